"""Measure language models as readers on gold evidence: `python eval/qa/model_reader.py DATA MODEL... [--questions 60]`.

DATA is the folder with `locomo`, `friendsqa` and `xquad_en`. Each question is read over the turns, or the sentences of
the paragraph, that hold its answer: what is wrong there is the reader's. XQuAD's even-numbered articles are left out,
since `scripts/make_smol_rows.py` makes rows of them; LoCoMo and FriendsQA's test episodes are in no rows. Beside the
models stand the copying and the extractive reader. A model is MODEL@STYLE, where the style is `full` or `compact`.
Means of token F1 (LoCoMo: its own rule) with half of a 95 % interval; differences to the copying reader are paired.
Writes `model-reader.json` and `model-reader.md` to --results.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import torch

from memalpha.agent.copying_reader import CopyReader
from memalpha.agent.reader import ExtractiveReader, PolicyReader, Reader, RetrievedMemory
from memalpha.config import ReaderConfig
from memalpha.policy.load import load_policy
from memalpha.qa.scoring.metrics import score_question
from memalpha.tasks.load import load_tasks
from memalpha.types import Hit, MemoryEntry, Question, Task

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import format_interval, make_parser, opening, save

SETS = ("locomo", "friendsqa", "xquad")


def load_set(name: str, data: Path) -> list[Task]:
    """Return the tasks of a set on which no row of the SmolLM2 writer rests."""
    if name == "locomo":
        return load_tasks("locomo", data=data / "locomo", variant="all")
    if name == "friendsqa":
        return load_tasks("friendsqa", data=data / "friendsqa", variant="test")
    articles = json.loads((data / "xquad_en" / "xquad.en.json").read_text(encoding="utf-8"))["data"]
    titles = {article["title"].replace("_", " ") for article in articles[1::2]}
    return [keep_articles(task, titles) for task in load_tasks("xquad", data=data / "xquad_en")]


def keep_articles(task: Task, titles: Set[str]) -> Task:
    """Return the task with the questions alone whose evidence is of these articles."""
    allowed = {turn.id for chunk in task.chunks for turn in chunk.turns if turn.speaker in titles}
    questions = [question for question in task.questions if allowed.issuperset(question.evidence)]
    return task.model_copy(update={"questions": tuple(questions)})


def gold_readings(tasks: Sequence[Task], count: int) -> list[tuple[Question, RetrievedMemory]]:
    """Return `count` random answerable questions, each with its evidence as entries.

    Args:
        tasks: Conversations or articles with questions.
        count: Number of questions.
    """
    items = []
    for task in tasks:
        notes = {}
        for number, chunk in enumerate(task.chunks):
            for turn in chunk.turns:
                text = f"{turn.speaker}: {turn.text}" if turn.speaker else turn.text
                name = f"e#{len(notes)}"
                notes[turn.id] = MemoryEntry(
                    id=name, category="episodic", content=text, timestamp=chunk.timestamp, valid_from=number
                )
        for question in task.questions:
            entries = [notes[turn] for turn in question.evidence if turn in notes]
            if entries and question.answers:
                items.append((question, RetrievedMemory(tuple(Hit(entry, 1.0) for entry in entries))))
    random.Random(0).shuffle(items)
    return items[:count]


def make_reader(name: str) -> Reader:
    """Return the reader of a name: `copy`, `extractive`, or MODEL@STYLE."""
    if name == "copy":
        return CopyReader(ReaderConfig(kind="copy"))
    if name == "extractive":
        return ExtractiveReader()
    model, _, style = name.rpartition("@")
    return PolicyReader(load_policy(model), ReaderConfig(kind="policy", prompt=style, max_new_tokens=24))  # type: ignore[arg-type]


def main() -> None:
    """Measure all readers on all sets and write the record."""
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("models", nargs="+", help="MODEL@STYLE")
    parser.add_argument("--questions", type=int, default=60, help="questions of each set")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sets = {name: gold_readings(load_set(name, arguments.data), arguments.questions) for name in SETS}
    table = ["| set | questions | reader | F1 | more than copy | cut | CPU-s a question |", "|---" * 7 + "|"]
    record: dict[str, Any] = {name: {} for name in sets}
    for reader_name in ("copy", "extractive", *arguments.models):
        reader = make_reader(reader_name)
        for name, items in sets.items():
            start = time.process_time()
            answers = reader.answer([(question.question, memory) for question, memory in items])
            seconds = (time.process_time() - start) / len(items)
            pairs = zip(items, answers, strict=True)
            scores = [score_question(question, answer) or 0.0 for (question, _), answer in pairs]
            record[name][reader_name] = {
                "scores": scores,
                "answers": [answer.text for answer in answers],
                "cut": sum(answer.truncated for answer in answers),
                "cpu_seconds": seconds,
            }
            gains = [score - floor for score, floor in zip(scores, record[name]["copy"]["scores"], strict=True)]
            gain = "" if reader_name == "copy" else format_interval(gains)
            label = reader_name.replace(str(Path.home()), "~")
            table.append(
                f"| {name} | {len(items)} | {label} | {format_interval(scores)} | {gain} "
                f"| {record[name][reader_name]['cut']} | {seconds:.2f} |"
            )
            print(table[-1], file=sys.stderr, flush=True)
    page = "\n".join([*opening("Language models as readers, on gold evidence"), "", *table])
    save(arguments.results / "model-reader", record, page)


if __name__ == "__main__":
    main()
