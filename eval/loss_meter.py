"""How often the loss meter names the right class, where the truth is known: `python eval/loss_meter.py`.

Truth by construction: for each question of synthetic tasks, the memory that a perfect writer has then is spoiled in one
known way (a fact dropped, garbled, deleted later, held but not shown, shown but answered wrong), among all its other
entries. Each case is asked of the meter by its three rules: with the task's gold facts, with only the turns that
entries were taken from, and with neither. Prints, for each rule and class, precision and recall over the cases.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from memalpha.config import WorldConfig
from memalpha.qa.error_analysis import (
    ANSWERED_WRONG,
    GOLD_FAULTY,
    NEVER_WRITTEN,
    NOT_FOUND,
    NOT_RETRIEVED,
    OVERWRITTEN,
    SHOULD_HAVE_ABSTAINED,
    WRITTEN_WRONG,
    classify,
)
from memalpha.qa.records import Record
from memalpha.qa.systems.base import Passage, Retrieval
from memalpha.tasks.synthetic.worlds import tasks
from memalpha.types import Question, Task

RULES = ("facts", "turns", "answers")
K = 5


@dataclass(frozen=True)
class Case:
    """A wrong answer whose class is known."""

    task: Task
    shown: Retrieval
    truth: str


def cases(task: Task, rng: Random) -> Iterator[Case]:
    """One case of every class that a question can lose its answer in, for every question of the task."""
    for question in task.questions:
        ever, held = _oracle(task, question)
        if not question.answers:
            yield Case(task, _shown(question, held, held, ever, rng), SHOULD_HAVE_ABSTAINED)
            continue
        faulty = question.model_copy(update={"meta": {**question.meta, "fault": "wrong_answer"}})
        yield Case(task, _shown(faulty, held, held, ever, rng), GOLD_FAULTY)
        support = [entry for entry in held if set(entry.turns) & set(question.evidence)]
        if {turn for entry in support for turn in entry.turns} < set(question.evidence) or not support:
            continue  # asks for what was updated since: a perfect memory no longer has it
        lost = rng.choice(support)
        rest = [entry for entry in held if entry is not lost]
        others = [entry for entry in held if entry not in support]
        before = [entry for entry in ever if entry is not lost]
        key, _, _ = lost.text.partition(": ")
        garbled = Passage(f"{key}: Nowhere", id=lost.id, turns=lost.turns)
        yield Case(task, _shown(question, rest, rest, before, rng), NEVER_WRITTEN)
        yield Case(task, _shown(question, rest, [*rest, garbled], [*before, garbled], rng), WRITTEN_WRONG)
        yield Case(task, _shown(question, rest, rest, ever, rng), OVERWRITTEN)
        yield Case(task, _shown(question, others, held, ever, rng), NOT_RETRIEVED)
        yield Case(task, _shown(question, others, None, None, rng), NOT_FOUND)
        yield Case(task, _shown(question, others, held, ever, rng, support), ANSWERED_WRONG)


def by_rule(case: Case, rule: str) -> tuple[Task, Retrieval]:
    """The case as the meter sees it where only `rule` can be used."""
    if rule == "facts":
        return case.task, case.shown
    task, shown = case.task.model_copy(update={"gold_operations": ()}), case.shown
    if rule == "turns":
        return task, shown

    def bare(passages: Sequence[Passage] | None) -> tuple[Passage, ...] | None:
        return None if passages is None else tuple(Passage(entry.text, id=entry.id) for entry in passages)

    return task, Retrieval(
        shown.question,
        bare(shown.passages) or (),
        shown.tokens,
        shown.size,
        entries=bare(shown.entries),
        history=bare(shown.history),
    )


def wrong_record(question: Question) -> Record:
    """A record of a wrong answer."""
    return Record("t", 0, question.id, "", None, question.question, "Atlantis", question.answers, 0.0, False)


def measure(found: Sequence[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """Precision and recall of each class from pairs of truth and verdict."""
    pairs, truths, verdicts = Counter(found), Counter(t for t, _ in found), Counter(v for _, v in found)
    return {
        name: {
            "cases": truths[name],
            "precision": pairs[name, name] / verdicts[name] if verdicts[name] else None,
            "recall": pairs[name, name] / truths[name] if truths[name] else None,
            "taken_for": {verdict: n for (truth, verdict), n in pairs.items() if truth == name != verdict},
        }
        for name in (
            GOLD_FAULTY,
            SHOULD_HAVE_ABSTAINED,
            NEVER_WRITTEN,
            WRITTEN_WRONG,
            OVERWRITTEN,
            NOT_RETRIEVED,
            NOT_FOUND,
            ANSWERED_WRONG,
        )
    }


def run(world: WorldConfig, count: int, seed: int = 0) -> dict[str, dict[str, dict[str, Any]]]:
    """`measure` by rule, over the first `count` tasks of a world."""
    rng = Random(seed)
    made = [case for task in tasks(world, seed, 0, count) for case in cases(task, rng)]
    return {
        rule: measure(
            [(case.truth, str(classify(*by_rule(case, rule), wrong_record(case.shown.question)))) for case in made]
        )
        for rule in RULES
    }


def _oracle(task: Task, question: Question) -> tuple[list[Passage], list[Passage]]:
    """All entries that a perfect writer had made when the question was asked, and those it still had."""
    last = len(task.chunks) - 1 if question.asked_after_chunk is None else question.asked_after_chunk
    ever: list[Passage] = []
    held: list[Passage] = []
    for number, operation in enumerate(task.gold_operations):
        if operation.chunk > last:
            continue
        if operation.replaces:
            held = [entry for entry in held if entry.text != operation.replaces]
        if operation.content:
            entry = Passage(operation.content, id=f"e{number}", turns=(operation.turn or "",))
            ever.append(entry)
            held.append(entry)
    return ever, held


def _shown(
    question: Question,
    pool: Sequence[Passage],
    held: Sequence[Passage] | None,
    ever: Sequence[Passage] | None,
    rng: Random,
    first: Sequence[Passage] = (),
) -> Retrieval:
    passages = (*first, *rng.sample(list(pool), min(len(pool), K)))
    if held is None:
        return Retrieval(question, passages, 0, 0)
    return Retrieval(question, passages, 0, 0, entries=tuple(held), history=None if ever is None else tuple(ever))


def table(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The measurement as Markdown."""
    lines = ["| rule | class | cases | precision | recall | taken for |", "|---|---|---|---|---|---|"]
    for rule, classes in found.items():
        for name, row in classes.items():
            figures = ["-" if row[key] is None else f"{row[key]:.3f}" for key in ("precision", "recall")]
            taken = ", ".join(f"{verdict} {n}" for verdict, n in sorted(row["taken_for"].items()))
            lines.append(f"| {rule} | {name} | {row['cases']} | {' | '.join(figures)} | {taken} |")
    return "\n".join(lines)


def main() -> None:
    """Measure both worlds, print the tables, write them with `--out`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=200, help="of the demo's world (the full one: a tenth)")
    parser.add_argument("--out", type=Path, help="folder for loss-meter.md and loss-meter.json")
    options = parser.parse_args()
    worlds = {
        "demo": run(WorldConfig(split="test"), options.tasks),
        "full, 8k tokens": run(WorldConfig(preset="full", split="test", tokens=8000), max(1, options.tasks // 10)),
    }
    text = "\n\n".join(f"## {name}\n\n{table(found)}" for name, found in worlds.items())
    print(text)
    if options.out:
        command = f"python eval/loss_meter.py --tasks {options.tasks}"
        head = f"# Does the loss meter name the right class?\n\nMade with `{command}`.\n\n"
        (options.out / "loss-meter.md").write_text(head + text + "\n", encoding="utf-8")
        result = {"command": command, "worlds": worlds}
        (options.out / "loss-meter.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
