"""Write task files of QMSum's meetings with the questions of meetings.jsonl, in the place of `memalpha data ask`.

    python eval/learning/meetings.py QMSUM runs/meetings

QMSUM is a copy of the repository (github:Yale-LILY/QMSum, MIT). A language model wrote the questions after reading the
meetings; each names the turn that answers it. For the meetings that are trained on it also wrote a note for each, which
becomes a gold operation. A task is the beginning of a meeting, in chunks of 120 tokens.
"""

from __future__ import annotations

import argparse
import json
from itertools import groupby
from pathlib import Path

from memalpha import load_tasks
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.types import GoldOperation, Question, Task

QUESTIONS = Path(__file__).with_suffix(".jsonl")
CHUNK_TOKENS, CHUNKS, TRAINED = 120, 16, 6


def begin_meeting(meeting: Path, rows: list[dict[str, str]]) -> Task:
    """Return the first chunks of a meeting with the questions that they answer."""
    [task] = load_tasks("qmsum", data=meeting, variant=meeting.parent.name, queries=False, chunk_tokens=CHUNK_TOKENS)
    chunks = task.chunks[:CHUNKS]
    chunk_of = {turn.id: chunk.index for chunk in chunks for turn in chunk.turns}
    questions = [
        Question(
            id=f"q{number}",
            question=row["question"],
            answers=tuple(row["answers"]),
            category="made",
            evidence=(row["turn"],),
            meta={"made_by": "a language model"},
        )
        for number, row in enumerate(rows)
        if row["turn"] in chunk_of
    ]
    notes = [
        GoldOperation(
            kind="insert",
            chunk=chunk_of[row["turn"]],
            category="semantic",
            content=row["note"],
            turn=row["turn"],
        )
        for row in rows
        if "note" in row and row["turn"] in chunk_of
    ]
    return Task(id=task.id, chunks=chunks, questions=tuple(questions), gold_operations=tuple(notes))


def main() -> None:
    """Write train.jsonl and held-out.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="checkout of QMSum")
    parser.add_argument("folder", type=Path, help="folder to write")
    arguments = parser.parse_args()
    data, folder = arguments.data, arguments.folder
    rows = map(json.loads, QUESTIONS.read_text(encoding="utf-8").splitlines())
    train, held_out = [], []
    for (split, name), group in groupby(rows, key=lambda row: (row["split"], row["meeting"])):
        (train if split == "train" else held_out).append(
            begin_meeting(data / "data/ALL" / split / f"{name}.json", [*group])
        )
    folder.mkdir(parents=True, exist_ok=True)
    save_jsonl(train[:TRAINED], folder / "train.jsonl")
    save_jsonl(held_out, folder / "held-out.jsonl")


if __name__ == "__main__":
    main()
