"""Measure writers on short natural chats: `python eval/learning/natural_chats.py WRITER... [--split test]`.

The chats (`natural_chats.jsonl` beside this file) were written by hand, by somebody who had not seen the wordings of
any training row. Each names its facts, the word sets that show an entry to keep one, the statements that must not be
kept (jokes, hearsay, somebody else's), and questions. Every writer reads them as a user would let it:
`MemoryAgent(WRITER, store).read(chunk)`, then `ask`. Figures, over the memory after the last chunk:

- kept: share of the facts that still hold and stand in an entry
- updates, corrections: share of the changed facts whose new value stands in an entry and whose old one in none
- retractions: share of the ended facts that no entry states, of those that stood in the memory before
- stale: share of entries that state only what no longer holds
- never true: share of entries that state what was never said as true: a statement to leave out, or one that matches no
  fact and is no part of a line of the chat
- answers: share of right answers; a question without an answer wants none

Beside the writers stand append-only (every line), add_all (what no assistant said) and the oracle, which has the facts
in their own words. Intervals are over conversations. Writes STEM.json and the table of STEM.md to --results.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from memalpha import MemoryAgent, MemoryStore, load_policy
from memalpha.agent.reader import ExtractiveReader
from memalpha.agent.text_match import holds_answer
from memalpha.config import AgentConfig
from memalpha.store.search.bm25 import words
from memalpha.types import Chunk, SpeakerTurn

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser, opening, save

CHATS = Path(__file__).with_name("natural_chats.jsonl")
BASELINES = ("append-only", "add_all", "oracle")
FIGURES = ("kept", "updates", "corrections", "retractions", "stale", "never true", "answers")


def load_chats(path: Path, split: str) -> list[dict[str, Any]]:
    """Return the chats of a split ("all": of both)."""
    chats = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [chat for chat in chats if split in (chat["split"], "all")]


def chunks_of(chat: dict[str, Any]) -> list[Chunk]:
    """Return the chunks of a chat."""
    return [
        Chunk(
            turns=tuple(SpeakerTurn(speaker=speaker, text=text) for speaker, text in chunk["turns"]),
            timestamp=chunk["timestamp"],
            index=index,
        )
        for index, chunk in enumerate(chat["chunks"])
    ]


def states(text: str, alternatives: Sequence[Sequence[str]]) -> bool:
    """Return True if all parts of an alternative stand in `text`: each a whole number, or the start of a word."""
    return any(all(_part(part).search(text) for part in parts) for parts in alternatives)


@cache
def _part(part: str) -> re.Pattern[str]:
    spaced = r"\s+".join(map(re.escape, part.split()))
    return re.compile(rf"(?<!\w){spaced}" + (r"(?!\d)" if part[-1].isdigit() else ""), re.IGNORECASE)


def write_oracle(store: MemoryStore, chat: dict[str, Any], index: int, ids: dict[str, str]) -> None:
    """Write the facts of one chunk in their own words; a change replaces what it names."""
    for fact in chat["facts"]:
        if fact["chunk"] != index:
            continue
        old = ids.pop(fact["replaces"], None) if fact["replaces"] else None
        if old is not None:
            store.delete_many([old])
        if fact["kept_if"]:
            ids[fact["id"]] = store.add(fact["text"]).id


def read_chat(name: str, policy: Any, config: AgentConfig, chat: dict[str, Any]) -> tuple[list[list[str]], list[bool]]:
    """Let a writer read one chat.

    Args:
        name: Name of the writer.
        policy: The loaded policy; None for append-only and the oracle.
        config: Settings of the writer.
        chat: The chat.

    Returns:
        The entries after each chunk, and for each question whether it was answered rightly.
    """
    with MemoryStore.open(":memory:") as store:
        reader = None if policy is not None else ExtractiveReader()
        agent = MemoryAgent(policy or "add_all", store, config if policy is not None else None, reader)
        ids: dict[str, str] = {}
        memories = []
        for chunk in chunks_of(chat):
            if name == "oracle":
                write_oracle(store, chat, chunk.index, ids)
            elif name == "append-only":
                store.add_many(f"{turn.speaker}: {turn.text}" for turn in chunk.turns)
            else:
                agent.read(chunk)
            memories.append([entry.content for entry in store.list()] + store.core.splitlines())
        answers = []
        for question in chat["questions"]:
            answer = agent.ask(question["question"])
            is_right = any(holds_answer(answer.text, accepted) for accepted in question["answers"])
            answers.append(answer.abstained if not question["answers"] else is_right and not answer.abstained)
        return memories, answers


def tally(chat: dict[str, Any], memories: list[list[str]], answers: list[bool]) -> dict[str, list[int]]:
    """Count the figures of one chat: for each of `FIGURES` the number of hits and of cases."""
    facts = {fact["id"]: fact for fact in chat["facts"]}
    entries = memories[-1]
    counts: dict[str, list[int]] = {name: [0, 0] for name in FIGURES}

    def count(name: str, is_hit: bool) -> None:
        counts[name][0] += is_hit
        counts[name][1] += 1

    for fact in facts.values():
        old = facts[fact["replaces"]]["kept_if"] if fact["replaces"] else []
        is_kept = any(states(entry, fact["kept_if"]) for entry in entries)
        is_old_there = any(states(entry, old) and not states(entry, fact["kept_if"]) for entry in entries)
        if fact["live"]:
            count("kept", is_kept)
            if fact["change"] in ("update", "correction"):
                count(fact["change"] + "s", is_kept and not is_old_there)
        if fact["change"] == "retraction" and any(states(entry, old) for entry in memories[fact["chunk"] - 1]):
            count("retractions", not is_old_there)
    lines = [" ".join(words(text)) for chunk in chat["chunks"] for _, text in chunk["turns"]]
    true = [words_ for fact in facts.values() if fact["live"] for words_ in fact["kept_if"]] + chat["also_true"]
    ended = [words_ for fact in facts.values() if not fact["live"] for words_ in fact["kept_if"]]
    false = [words_ for statement in chat["false"] for words_ in statement["words"]]
    for entry in entries:
        is_true, is_stale = states(entry, true), states(entry, ended)
        is_quote = any(" ".join(words(entry.partition(": ")[2] or entry)) in line for line in lines)
        count("stale", is_stale and not is_true)
        count("never true", states(entry, false) or not (is_true or is_stale or is_quote))
    for is_right in answers:
        count("answers", is_right)
    return counts


def estimate(counts: Sequence[dict[str, list[int]]], name: str) -> dict[str, float | int | None]:
    """Return a figure over all chats with its 95 % interval (bootstrap over chats)."""
    import numpy as np

    pairs = np.array([count[name] for count in counts], dtype=np.float64)
    if not pairs[:, 1].sum():
        return {"value": None, "low": None, "high": None, "cases": 0}
    draws = np.random.default_rng(0).integers(len(pairs), size=(2000, len(pairs)))
    sums = pairs[draws].sum(axis=1)
    low, high = np.quantile(sums[:, 0] / np.maximum(1, sums[:, 1]), (0.025, 0.975))
    hits, cases = pairs.sum(axis=0)
    return {"value": hits / cases, "low": float(low), "high": float(high), "cases": int(cases)}


def measure(name: str, chats: Sequence[dict[str, Any]], config: AgentConfig) -> dict[str, Any]:
    """Let a writer read all chats and return its figures, its entries and the CPU-seconds of a chunk."""
    policy = None if name in ("append-only", "oracle") else load_policy(name)
    started = time.process_time()
    results = [read_chat(name, policy, config, chat) for chat in progress(chats, name)]
    seconds = time.process_time() - started
    counts = [tally(chat, *result) for chat, result in zip(chats, results, strict=True)]
    return {
        "figures": {figure: estimate(counts, figure) for figure in FIGURES},
        "entries": {chat["id"]: memories[-1] for chat, (memories, _) in zip(chats, results, strict=True)},
        "entries_of_a_chat": sum(len(memories[-1]) for memories, _ in results) / len(chats),
        "cpu_seconds_per_chunk": seconds / sum(len(chat["chunks"]) for chat in chats),
    }


def progress(chats: Sequence[dict[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """Yield the chats, with a progress bar."""
    from tqdm import tqdm

    yield from tqdm(chats, desc=name, disable=None)


def row(name: str, result: dict[str, Any]) -> str:
    """Format one line of the table."""
    cells = []
    for figure in result["figures"].values():
        if figure["value"] is None:
            cells.append("-")
        else:
            cells.append(f"{figure['value']:.2f} ({figure['low']:.2f} to {figure['high']:.2f})")
    cells += [f"{result['entries_of_a_chat']:.1f}", f"{result['cpu_seconds_per_chunk']:.2f}"]
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    """Measure all writers and write the record."""
    parser = make_parser(__doc__)
    parser.add_argument("writers", nargs="*", help="names or directories of policies")
    parser.add_argument("--chats", type=Path, default=CHATS)
    parser.add_argument("--split", choices=("dev", "test", "all"), default="test")
    parser.add_argument("--set", nargs="*", default=(), metavar="KEY=VALUE", help="settings of the agent, as numbers")
    parser.add_argument("--stem", default="natural-chats", help="name of the record")
    arguments = parser.parse_args()
    chats = load_chats(arguments.chats, arguments.split)
    config = AgentConfig(**{key: int(value) for key, _, value in (text.partition("=") for text in arguments.set)})
    kinds = Counter(fact["change"] for chat in chats for fact in chat["facts"])
    results = {}
    table = [
        f"{len(chats)} chats (split {arguments.split}), {sum(kinds.values())} facts, {kinds['update']} updates, "
        f"{kinds['correction']} corrections, {kinds['retraction']} retractions.",
        "",
        "| writer | " + " | ".join(FIGURES) + " | entries a chat | CPU-s a chunk |",
        "|---" * (len(FIGURES) + 3) + "|",
    ]
    for name in (*arguments.writers, *BASELINES):
        results[name] = measure(name, chats, config)
        table.append(row(name, results[name]))
        print(table[-1], file=sys.stderr, flush=True)
    save(arguments.results / arguments.stem, results, "\n".join([*opening("Natural chats"), "", *table]))


if __name__ == "__main__":
    main()
