"""Make the supervised rows of the SmolLM2 writer: `scripts/make_smol_rows.py --count 8000 --seed 0 --out rows.jsonl`.

Each line is `{"prompt": [{"role": "user", "content": …}], "completion": …}`, as `memalpha train sft source=FILE` reads
it: prompts in the compact style, completions in the line form. Equal options give equal bytes. The declared mixture:

| part | share | rows |
|---|---|---|
| demo | .20 | the demo world, training values, 60 % pseudo-words, drills |
| paraphrase | .44 | the demo world in training phrasings of `paraphrases.txt` and `phrasings.txt` |
| dialogue | .18 | two people who talk over months (`smol.dialogues`), facts as sentences |
| full | .03 | the full world, sessions cut into short chunks |
| babi | .07 | streams of bAbI's training stories |
| passages | .08 | XQuAD (every second article), HotpotQA (even-numbered questions), FriendsQA (dev) |

`--chats` makes rows of short natural chats, from wordings (`smol.chats`, .10) and told in full (`smol.told`, .60), the
demo world (.12) and its paraphrases (.18).

`--focus` takes a tenth of reader rows, and without `--chats` other shares (`FOCUS_SHARES`). Three of four writer rows
of `FOCUS_PARTS` are what the writer found hard: four or more calls, or a change among four or more entries in view.

A fifth of each part but `full` are reader rows. Rows longer than `MAX_TOKENS` are dropped, and so are duplicates. The
order is random: every part occurs from the first rows on.

`--held-out TASKS.jsonl --count 60` writes tasks told in held-out phrasings, which no row uses, for evaluation.
With `--chats` most wordings are those of the rows (`smol.chats`), and most values are not.
`--tasks TASKS.jsonl --count 256` writes tasks with training values and phrasings, for reinforcement.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

from smol.chats import chat_rows, chat_tasks
from smol.dialogues import dialogue_rows
from smol.passages import load_passages, passage_rows
from smol.rows import SmolRow
from smol.told import told_rows
from smol.worlds import babi_rows, demo_rows, full_rows, held_out_tasks, paraphrase_rows, reward_tasks

from memalpha.errors import DataError, MemalphaError
from memalpha.tasks.formats.jsonl import save_jsonl

SHARES = {"demo": 0.20, "paraphrase": 0.44, "dialogue": 0.18, "full": 0.03, "babi": 0.07, "passages": 0.08}
"""Share of each part among all rows."""
CHAT_SHARES = {"chats": 0.10, "told": 0.60, "demo": 0.12, "paraphrase": 0.18}
"""Share of each part with `--chats`."""
FOCUS_SHARES = {"demo": 0.24, "paraphrase": 0.52, "dialogue": 0.12, "full": 0.03, "babi": 0.03, "passages": 0.06}
"""Share of each part with `--focus`."""
FOCUS_PARTS = ("demo", "paraphrase", "dialogue", "told")
FOCUS_HARD = 0.75
"""Share of hard rows among the writer rows of `FOCUS_PARTS` with `--focus`."""
HARD_CALLS, HARD_ENTRIES = 4, 4
"""A row is hard with this many calls, or with a change among this many entries in view."""
READER_SHARE, FOCUS_READERS = 0.2, 0.1
"""Share of reader rows in every part that has them, and with `--focus`."""
WITHOUT_READER = ("full",)
MAX_TOKENS = 600
MAX_COMPLETION = 160
MAX_PROMPT = {"full": 450, "babi": 450, "passages": 450}
DATA = Path(__file__).parents[1] / ".." / "shared" / "data"

RowSource = Callable[[int, int], Iterable[SmolRow]]


def main(argv: Sequence[str] | None = None) -> int:
    """Write rows, or held-out tasks; print the realised mixture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file of the rows")
    parser.add_argument("--held-out", type=Path, help="file of tasks in held-out phrasings; no rows are made")
    parser.add_argument("--tasks", type=Path, help="file of tasks for reinforcement; no rows are made")
    parser.add_argument("--count", type=int, default=8000, help="number of rows, or of tasks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of xquad_en, hotpotqa_small and friendsqa")
    parser.add_argument("--focus", action="store_true", help="the mixture for a writer that has learnt the first one")
    parser.add_argument("--chats", action="store_true", help="natural chats, for a writer that knows the other parts")
    parser.add_argument("--without-passages", action="store_true", help="leave the passages out")
    parser.add_argument("--tokenizer", help="folder of SmolLM2's tokenizer; default: 4 characters count as a token")
    arguments = parser.parse_args(argv)
    if sum(path is not None for path in (arguments.out, arguments.held_out, arguments.tasks)) != 1:
        parser.error("give one of --out, --held-out and --tasks")
    try:
        if arguments.held_out is not None:
            make = partial(chat_tasks, split="test") if arguments.chats else held_out_tasks
            save_jsonl(make(arguments.count, arguments.seed), arguments.held_out)
            return 0
        if arguments.tasks is not None:
            make = chat_tasks if arguments.chats else reward_tasks
            save_jsonl(make(arguments.count, arguments.seed), arguments.tasks)
            return 0
        data = None if arguments.without_passages else arguments.data
        rows, statistics = make_rows(
            arguments.count,
            arguments.seed,
            data,
            token_counter(arguments.tokenizer),
            focus=arguments.focus,
            chats=arguments.chats,
        )
    except MemalphaError as error:
        print(error, file=sys.stderr)
        return 2
    arguments.out.write_text("".join(json.dumps(row.to_json()) + "\n" for row in rows), encoding="utf-8")
    print(statistics)
    return 0


def token_counter(folder: str | None) -> Callable[[str], int]:
    """Return a function that counts the tokens of a text.

    Args:
        folder: Folder of a transformers tokenizer; None counts a quarter of the characters.
    """
    if folder is None:
        return lambda text: -(-len(text) // 4)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def make_rows(
    total: int,
    seed: int,
    data: Path | None,
    count_tokens: Callable[[str], int],
    *,
    focus: bool = False,
    chats: bool = False,
) -> tuple[list[SmolRow], str]:
    """Return shuffled rows in the declared mixture, and a Markdown table of what was made.

    Args:
        total: Number of rows.
        seed: Seed of all rows.
        data: Folder of the passages; None leaves them out.
        count_tokens: Token counter for the limits.
        focus: Take the mixture of hard rows.
        chats: Take the mixture of natural chats.

    Raises:
        DataError: A file of the passages is missing.
    """
    sources: dict[str, RowSource] = {
        "demo": demo_rows,
        "paraphrase": paraphrase_rows,
        "dialogue": dialogue_rows,
        "full": full_rows,
        "babi": babi_rows,
        "chats": chat_rows,
        "told": told_rows,
    }
    if data is not None:
        sources["passages"] = partial(passage_rows, load_passages(data))
    shares = CHAT_SHARES if chats else FOCUS_SHARES if focus else SHARES
    weight = sum(shares.get(part, 0) for part in sources)
    rows: list[SmolRow] = []
    table = ["| part | rows | reader rows | prompt tokens | completion tokens | skips | too long | duplicates |"]
    table.append("|---" * 8 + "|")
    for part, source in sources.items():
        if not shares.get(part):
            continue
        count_rows = round(total * shares[part] / weight)
        part_rows, dropped, lengths = _part_rows(part, source, count_rows, seed, count_tokens, focus)
        rows += part_rows
        readers = sum(row.kind == "reader" for row in part_rows)
        skips = sum(row.completion == "." for row in part_rows)
        means = [sum(column) / max(1, len(lengths)) for column in zip(*(lengths or [(0, 0)]), strict=True)]
        table.append(
            f"| {part} | {len(part_rows)} | {readers} | {means[0]:.0f} | {means[1]:.1f} | {skips} "
            f"| {dropped['long']} | {dropped['duplicate']} |"
        )
    Random(f"smol|order|{seed}").shuffle(rows)
    return rows, "\n".join(table)


def _part_rows(
    part: str, source: RowSource, total: int, seed: int, count_tokens: Callable[[str], int], focus: bool
) -> tuple[list[SmolRow], Counter[str], list[tuple[int, int]]]:
    """Return the rows of one part, counts of dropped rows, and (prompt, completion) tokens of each row."""
    readers = 0 if part in WITHOUT_READER else round(total * (FOCUS_READERS if focus else READER_SHARE))
    easy = round((total - readers) * (1 - FOCUS_HARD)) if focus and part in FOCUS_PARTS else total
    quota = {"writer": total - readers, "reader": readers}
    rows: list[SmolRow] = []
    lengths: list[tuple[int, int]] = []
    dropped: Counter[str] = Counter()
    prompts: set[str] = set()
    for row in _numbered_rows(source, seed):
        if not any(quota.values()):
            return rows, dropped, lengths
        if not quota[row.kind]:
            continue
        size = count_tokens(row.prompt), count_tokens(row.completion)
        if sum(size) > MAX_TOKENS or size[1] > MAX_COMPLETION or size[0] > MAX_PROMPT.get(part, MAX_TOKENS):
            dropped["long"] += 1
        elif row.prompt in prompts:
            dropped["duplicate"] += 1
            if dropped["duplicate"] > 20 * total:
                raise DataError(f"part {part}: only {len(rows)} different rows of {total}: ask for fewer with --count")
        elif row.kind == "writer" and not easy and not is_hard(row):
            continue
        else:
            prompts.add(row.prompt)
            quota[row.kind] -= 1
            easy -= row.kind == "writer" and not is_hard(row)
            rows.append(row)
            lengths.append(size)
    return rows, dropped, lengths


def is_hard(row: SmolRow) -> bool:
    """Return True if a writer row has many calls, or a change among many entries in view."""
    calls = row.completion.splitlines()
    entries = row.prompt.partition("\nchunk ")[0].count("\n")
    return len(calls) >= HARD_CALLS or (entries >= HARD_ENTRIES and any(call[0] in "~-" for call in calls))


def _numbered_rows(source: RowSource, seed: int) -> Iterator[SmolRow]:
    for index in count():
        yield from source(seed, index)


if __name__ == "__main__":
    sys.exit(main())
