"""Train a writer on conversations of your own: write a task file, check it, imitate, evaluate.

The tiny model learns little in some steps; docs/start/own-data.md has sizes that do.

    python examples/train_on_own_data.py --cases 24 --steps 20
"""

import argparse
from pathlib import Path

from memalpha import evaluate, load_policy, load_tasks, train
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.types import Chunk, GoldOperation, Question, SpeakerTurn, Task

CITIES = ("Porto", "Braga", "Faro", "Lagos", "Evora", "Aveiro", "Tomar", "Sintra")


def conversation(number):
    """Return a task: customer `number` names a city, later another one, and is asked for it."""
    old, new = CITIES[number % len(CITIES)], CITIES[(number + 3) % len(CITIES)]
    lines = [
        ("2025-03-03", "0.0", f"I am number {number} and live in {old}."),
        ("2025-06-10", "1.0", f"Number {number} again: I have moved to {new}."),
    ]
    chunks = [
        Chunk(timestamp=day, turns=(SpeakerTurn(speaker="customer", text=text, id=turn),)) for day, turn, text in lines
    ]
    question = Question(
        id="city", question="What is the customer's city?", answers=(new,), category="updated", evidence=("1.0",)
    )
    first, second = f"city: {old}", f"city: {new}"
    gold = (
        GoldOperation(kind="insert", chunk=0, category="semantic", content=first, turn="0.0"),
        GoldOperation(kind="update", chunk=1, category="semantic", content=second, replaces=first, turn="1.0"),
    )
    return Task(id=f"customer-{number}", chunks=tuple(chunks), questions=(question,), gold_operations=gold)


def main():
    """Write two task files, train on one, evaluate on the other."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/own-data"))
    parser.add_argument("--cases", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    cases, held_out = options.out / "cases.jsonl", options.out / "held-out.jsonl"
    save_jsonl([conversation(number) for number in range(options.cases)], cases)
    save_jsonl([conversation(number) for number in range(1000, 1004)], held_out)
    print(f"{len(load_tasks(cases))} tasks checked")  # a line that does not fit is refused with file, line and field
    settings = {"source": "gold", "reader": {"kind": "extractive"}, "schedule_steps": options.steps}
    run = options.out / "run"
    train(
        "sft",
        data=str(cases),
        eval_data=str(held_out),
        validation_tasks=2,
        evaluation={"evaluate": False},
        out=run,
        **settings,
    )
    for name in ("scripted:append-only", run / "checkpoints" / "best", "scripted:oracle"):
        report = evaluate(load_policy(name), load_tasks(held_out), reader="extractive")
        print(f"{name}: accuracy {report.summary['accuracy']:.3f}")


if __name__ == "__main__":
    main()
