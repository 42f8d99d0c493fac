"""A data set of your own: a loader, and a task file written with it.

The file below is a support chat as CSV lines `ticket,speaker,text`. `load` has the signature of the shipped loaders.

    python examples/own_data_set.py
    memalpha eval tasks data=tickets.jsonl systems=rag
"""

import argparse
import csv
from itertools import groupby
from pathlib import Path

from memalpha.errors import DataError
from memalpha.tasks.dataset_info import DataSet
from memalpha.tasks.formats.jsonl import load_jsonl, save_jsonl
from memalpha.types import Chunk, Question, SpeakerTurn, Task

SAMPLE = "".join(
    f"{number},customer,I am on the {plan} plan.\n{number},agent,Thank you.\n"
    for number, plan in enumerate(["Basic", "Plus", "Family", "Studio", "Night"])
)
DATA = DataSet(
    name="tickets",
    about="support chats, with a question for the customer's plan",
    source="github:you/tickets",
    licence="Apache-2.0",
    counts="5 chats",
    metric="exact",
)


def load(path, variant=None, limit: int | None = None):
    """Load one task per ticket. Raises `DataError` for a line without three fields."""
    rows = list(csv.reader(Path(path).read_text(encoding="utf-8").splitlines()))
    for number, row in enumerate(rows, start=1):
        if len(row) != 3:
            raise DataError(f"{path}:{number}: ticket, speaker and text are needed, not {len(row)} fields")
    tickets = [(ticket, list(lines)) for ticket, lines in groupby(rows, key=lambda row: row[0])]
    return [_task(ticket, lines) for ticket, lines in tickets][:limit]


def _task(ticket, lines):
    turns = tuple(SpeakerTurn(speaker=who, text=text, id=f"t{n}") for n, (_, who, text) in enumerate(lines))
    named = [turn for turn in turns if turn.text.startswith("I am on the ")]
    plans = tuple(turn.text.removeprefix("I am on the ").removesuffix(" plan.") for turn in named[-1:])
    evidence = tuple(turn.id for turn in named[-1:])
    question = Question(id="plan", question="Which plan?", answers=plans, category="plan", evidence=evidence)
    return Task(id=f"ticket-{ticket}", chunks=(Chunk(turns=turns),), questions=(question,))


def main():
    """Write sample chats, load them, and save them as a checked task file."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("tickets.jsonl"))
    out = parser.parse_args().out
    source = out.with_suffix(".csv")
    source.write_text(SAMPLE, encoding="utf-8")
    save_jsonl(load(source), out)
    print(f"{len(load_jsonl(out))} tasks: {out}")  # load_jsonl refuses what does not fit, with line and field


if __name__ == "__main__":
    main()
