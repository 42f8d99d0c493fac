"""Write `cases.jsonl` and `held-out.jsonl`: task files of a synthetic help desk, for `own-data.md`.

A task has three calls of one customer: facts, one fact that changes, and one that is retracted. To write task files
from your own records, keep the structure of `case` and fill it from them.
"""

import json
from pathlib import Path
from random import Random

VALUES = {
    "plan": ["Basic", "Plus", "Family", "Studio", "Business", "Night"],
    "router": ["Nimbus", "Kestrel", "Orbit", "Halo", "Brook", "Vesta"],
    "fault": ["slow upload", "no dial tone", "frozen picture", "dropped calls", "wrong invoice", "weak signal"],
    "contact": ["by mail", "in the morning", "after work", "on Saturday", "by letter", "at noon"],
}
LINES = {  # stated, changed, retracted
    "plan": ("I am on the {} plan.", "Please move me to the {} plan.", "I have cancelled my plan."),
    "router": ("My router is a {}.", "The new router you sent is a {}.", "I sent the router back."),
    "fault": ("I have a fault: {}.", "The fault is another one now: {}.", "The fault is gone."),
    "contact": ("You reach me {}.", "From now on you reach me {}.", "Please do not contact me any more."),
}
TALK = ["Thanks for waiting.", "One moment, please.", "I see.", "What terrible weather!", "Is there anything else?"]


def case(number: int) -> dict:
    """Build the task of one customer, with gold operations and a question about every fact."""
    rng = Random(number)
    first = {name: rng.choice(values) for name, values in VALUES.items()}
    changed, ended = rng.sample(list(VALUES), 2)
    new = rng.choice([value for value in VALUES[changed] if value != first[changed]])
    note = {name: f"{name}: {value}" for name, value in first.items()}
    calls = [
        [(LINES[name][0].format(first[name]), {"kind": "insert", "content": note[name]}) for name in VALUES],
        [
            (
                LINES[changed][1].format(new),
                {"kind": "update", "content": f"{changed}: {new}", "replaces": note[changed]},
            )
        ],
        [(LINES[ended][2], {"kind": "delete", "replaces": note[ended]})],
    ]
    chunks, gold = [], []
    for day, call in enumerate(calls):
        talk = (rng.choice(TALK), f"This is ticket {number}-{day}.")  # no call of a held-out customer was trained on
        lines = [("customer", text, done) for text, done in call] + [("agent", text, None) for text in talk]
        rng.shuffle(lines)
        turns = [{"id": f"{day}.{n}", "speaker": who, "text": text} for n, (who, text, _) in enumerate(lines)]
        chunks.append({"timestamp": f"2025-03-{7 * day + 3:02}", "turns": turns})
        gold += [
            {**done, "chunk": day, "category": "semantic", "turn": f"{day}.{n}"}
            for n, (_, _, done) in enumerate(lines)
            if done
        ]
    turn_of = {operation.get("content", operation.get("replaces")): operation["turn"] for operation in gold}
    questions = []
    for name in VALUES:
        kind = "updated" if name == changed else "retracted" if name == ended else "stated"
        answers = {"stated": [first[name]], "updated": [new], "retracted": []}[kind]
        questions.append(
            {
                "id": name,
                "question": f"What is the customer's {name}?",
                "answers": answers,
                "category": kind,
                "evidence": [turn_of[f"{name}: {answers[0]}" if answers else note[name]]],
                "meta": {"kind": kind, "slot": name, "stale": [] if kind == "stated" else [first[name]]},
            }
        )
    return {"id": f"customer-{number}", "chunks": chunks, "questions": questions, "gold_operations": gold}


def write(path: str, numbers: range) -> None:
    """Write one task per line."""
    Path(path).write_text("".join(json.dumps(case(number)) + "\n" for number in numbers), encoding="utf-8")


if __name__ == "__main__":
    write("cases.jsonl", range(200))
    write("held-out.jsonl", range(1000, 1040))
