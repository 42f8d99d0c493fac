"""Check the SmolLM2 writer's rows against the test sets: `python eval/learning/smol_contamination.py ROWS DATA`.

ROWS is a file of `scripts/make_smol_rows.py`, DATA the folder with `locomo` and `friendsqa`. Texts are compared by
`memalpha.tasks.overlap`. Test sets: the demo world's test split, tasks in held-out phrasings, bAbI's test
streams, LoCoMo, natural chats (all their turns), and FriendsQA's test episodes. Writes `smol-contamination.md` to
--results.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from memalpha.config import WorldConfig
from memalpha.tasks.load import load_tasks
from memalpha.tasks.overlap import find_overlap
from memalpha.tasks.synthetic.worlds import tasks
from memalpha.types import Chunk, Question, SpeakerTurn, Task

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parents[1]), str(ROOT / "scripts")]
from common import command, make_parser  # noqa: E402
from smol.worlds import held_out_tasks  # noqa: E402  # pyright: ignore[reportMissingImports]

HEADER = "| test set | questions | asked | said | 13 words | inside | on passages | shared whole | turns | in rows |"


def training_tasks(path: Path) -> Iterator[Task]:
    """Yield each row as a task: its turns or notes, its completion, and its question."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        row = json.loads(line)
        head, _, body = row["prompt"][0]["content"].partition("\n")
        if head == "facts":
            notes, _, question = ("\n" + body).rpartition("\nask: ")
            chunk = Chunk(text=f"{notes}\n{row['completion']}")
            yield Task(id=str(number), chunks=(chunk,), questions=(Question(id="q", question=question),))
            continue
        view, _, told = ("\n" + body).partition("\nchunk")
        turns = [
            SpeakerTurn(speaker=speaker, text=text)
            for speaker, _, text in (line.partition(": ") for line in told.splitlines()[1:])
        ]
        extra = SpeakerTurn(speaker="memory", text=f"{view}\n{row['completion']}")
        yield Task(id=str(number), chunks=(Chunk(turns=(*turns, extra)),))


def evidence_texts(test: Sequence[Task]) -> set[str]:
    """Return the different texts of the turns that the questions rest on; of all turns if no question says which."""
    texts = set()
    for task in test:
        cited = {turn for question in task.questions for turn in question.evidence}
        texts |= {turn.text for chunk in task.chunks for turn in chunk.turns if not cited or turn.id in cited}
    return texts


def main(argv: Sequence[str] | None = None) -> None:
    """Compare the rows with every test set and write the table."""
    parser = make_parser(__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("data", type=Path)
    arguments = parser.parse_args(argv)
    test_sets = {
        "demo world, test split (200 tasks)": tasks(WorldConfig(split="test"), 0, 0, 200),
        "held-out phrasings (60 tasks)": held_out_tasks(60),
        "bAbI, test": load_tasks("babi"),
        "LoCoMo": load_tasks("locomo", data=arguments.data / "locomo", variant="all"),
        "natural chats": load_tasks(str(Path(__file__).with_name("natural_chats.jsonl"))),
        "FriendsQA, test": load_tasks("friendsqa", data=arguments.data / "friendsqa", variant="test"),
    }
    told = {turn.text for task in training_tasks(arguments.rows) for chunk in task.chunks for turn in chunk.turns}
    table, examples = [HEADER, "|---" * 10 + "|"], []
    for name, test in test_sets.items():
        report = find_overlap(training_tasks(arguments.rows), test, examples=3)
        counts = [report.reasons[key] for key in ("question", "said", "question n-gram")]
        counts += [len(report.inside), len(report.resting), report.passages["whole"]]
        evidence = evidence_texts(test)
        counts += [len(evidence), len(evidence & told)]
        table.append(f"| {name} | {report.questions} | {' | '.join(map(str, counts))} |")
        examples += [f"- {name}, {item.reason}: “{item.text}” / “{item.train_text}”" for item in report.examples]
    digest = hashlib.sha256(arguments.rows.read_bytes()).hexdigest()
    count = len(arguments.rows.read_text(encoding="utf-8").splitlines())
    text = [
        "# What the SmolLM2 writer's rows share with the test sets",
        "",
        f"Made with `{command()}`. {count:,} rows of `scripts/make_smol_rows.py`, SHA-256 {digest[:16]}….",
        "",
        "Test questions that the rows ask or say word for word or share 13 words in a row with; that stand inside a",
        "longer training text (5 to 12 words); that rest on a passage shared in 13 words or whole. Then, for turns too",
        "short for n-grams: the different turns that the questions rest on, and how many of them a row tells word for",
        "word. Questions of the demo world and of bAbI are templates, asked of other facts in the rows. bAbI's",
        "statements are made of 50 names and six rooms, so that test and training stories share them by chance. The",
        "turns that the demo world shares are retractions without a value (“I no longer own a car.”).",
        "",
        *table,
        "",
        "Examples:",
        "",
        *(examples or ["- none"]),
    ]
    (arguments.results / "smol-contamination.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(table))


if __name__ == "__main__":
    main()
