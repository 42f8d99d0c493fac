"""Measure how often the error analysis names the right class where the truth is known.

Run `python eval/qa/error_analysis.py`.

The truth is known by construction. For each question of synthetic tasks, the memory of a perfect writer is spoiled in
one known way: a fact dropped, garbled, deleted later, retrieved not or in part, or answered wrong. Each case is
classified by the three rules: with the task's gold facts, with only the source turns of entries, and with neither. The
script prints precision and recall for each rule and class.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from memalpha.config import WorldConfig
from memalpha.qa.error_analysis import ERROR_CLASSES, classified
from memalpha.qa.report import Record
from memalpha.qa.systems import Passage, Retrieval
from memalpha.tasks.synthetic.worlds import tasks
from memalpha.types import Question, Task

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import command, make_parser, opening, save

RULES = ("facts", "turns", "answers")
K = 5


@dataclass(frozen=True)
class Case:
    """A wrong answer whose class is known."""

    task: Task
    retrieval: Retrieval
    truth: str


def cases(task: Task, rng: Random) -> Iterator[Case]:
    """Yield one case of every possible error class for every question of the task."""
    for question in task.questions:
        written_entries, live = _oracle(task, question)
        if not question.answers:
            yield Case(task, sample_retrieval(question, live, live, written_entries, rng), "should_have_abstained")
            continue
        faulty = question.model_copy(update={"meta": {**question.meta, "fault": "wrong_answer"}})
        yield Case(task, sample_retrieval(faulty, live, live, written_entries, rng), "gold_faulty")
        support = [entry for entry in live if set(entry.turns) & set(question.evidence)]
        if {turn for entry in support for turn in entry.turns} < set(question.evidence) or not support:
            continue  # a later update replaced the support, so that a perfect memory no longer has it
        dropped = rng.choice(support)
        rest = [entry for entry in live if entry is not dropped]
        distractors = [entry for entry in live if entry not in support]
        earlier = [entry for entry in written_entries if entry is not dropped]
        key, _, _ = dropped.text.partition(": ")
        garbled = Passage(f"{key}: Nowhere", id=dropped.id, turns=dropped.turns)
        yield Case(task, sample_retrieval(question, rest, rest, earlier, rng), "never_written")
        yield Case(task, sample_retrieval(question, rest, [*rest, garbled], [*earlier, garbled], rng), "written_wrong")
        yield Case(task, sample_retrieval(question, rest, rest, written_entries, rng), "overwritten_or_deleted")
        yield Case(task, sample_retrieval(question, distractors, live, written_entries, rng), "not_retrieved")
        yield Case(task, sample_retrieval(question, distractors, None, None, rng), "not_found")
        yield Case(task, sample_retrieval(question, distractors, live, written_entries, rng, support), "answered_wrong")
        if len(support) > 1:
            first = [entry for entry in support if entry is not dropped]
            yield Case(
                task, sample_retrieval(question, distractors, live, written_entries, rng, first), "partly_retrieved"
            )


def by_rule(case: Case, rule: str) -> tuple[Task, Retrieval]:
    """Return the case with only the information that `rule` needs."""
    if rule == "facts":
        return case.task, case.retrieval
    task, retrieval = case.task.model_copy(update={"gold_operations": ()}), case.retrieval
    if rule == "turns":
        return task, retrieval

    def bare(passages: Sequence[Passage] | None) -> tuple[Passage, ...] | None:
        return None if passages is None else tuple(Passage(entry.text, id=entry.id) for entry in passages)

    return task, Retrieval(
        retrieval.question,
        bare(retrieval.passages) or (),
        retrieval.tokens,
        entries=bare(retrieval.entries),
        history=bare(retrieval.history),
    )


def wrong_record(question: Question) -> Record:
    """Build the record of a wrong answer."""
    return Record("t", 0, question.id, "", None, question.question, "Atlantis", question.answers, 0.0, False)


def measure(pairs_of_classes: Sequence[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """Return precision and recall of each class from pairs of truth and verdict."""
    pairs, truths, verdicts = (
        Counter(pairs_of_classes),
        Counter(t for t, _ in pairs_of_classes),
        Counter(v for _, v in pairs_of_classes),
    )
    return {
        name: {
            "cases": truths[name],
            "precision": pairs[name, name] / verdicts[name] if verdicts[name] else None,
            "recall": pairs[name, name] / truths[name] if truths[name] else None,
            "taken_for": {verdict: n for (truth, verdict), n in pairs.items() if truth == name != verdict},
        }
        for name in ERROR_CLASSES
    }


def run(world: WorldConfig, count: int, seed: int = 0) -> dict[str, dict[str, dict[str, Any]]]:
    """Run `measure` by rule over the first `count` tasks of a world.

    Args:
        world: Synthetic world of the tasks.
        count: Number of tasks.
        seed: Seed of tasks and of the spoiled entries.
    """
    rng = Random(seed)
    all_cases = [case for task in tasks(world, seed, 0, count) for case in cases(task, rng)]
    return {
        rule: measure(
            [
                (case.truth, str(classified(*by_rule(case, rule), wrong_record(case.retrieval.question)).error_class))
                for case in all_cases
            ]
        )
        for rule in RULES
    }


def _oracle(task: Task, question: Question) -> tuple[list[Passage], list[Passage]]:
    """Return all entries of a perfect writer when the question is asked, and the live ones."""
    last = len(task.chunks) - 1 if question.asked_after_chunk is None else question.asked_after_chunk
    written_entries: list[Passage] = []
    live: list[Passage] = []
    for number, operation in enumerate(task.gold_operations):
        if operation.chunk > last:
            continue
        if operation.replaces:
            live = [entry for entry in live if entry.text != operation.replaces]
        if operation.content:
            entry = Passage(operation.content, id=f"e{number}", turns=(operation.turn or "",))
            written_entries.append(entry)
            live.append(entry)
    return written_entries, live


def sample_retrieval(
    question: Question,
    pool: Sequence[Passage],
    live: Sequence[Passage] | None,
    written_entries: Sequence[Passage] | None,
    rng: Random,
    first: Sequence[Passage] = (),
) -> Retrieval:
    """Return a retrieval of `K` passages, most of them drawn at random.

    Args:
        question: Question asked.
        pool: Passages to draw the others from.
        live: Entries of the memory; None if a system has none.
        written_entries: All entries ever written.
        rng: Source of randomness.
        first: Passages that are retrieved for sure.
    """
    passages = (*first, *rng.sample(list(pool), min(len(pool), K)))
    if live is None:
        return Retrieval(question, passages, 0)
    return Retrieval(
        question,
        passages,
        0,
        entries=tuple(live),
        history=None if written_entries is None else tuple(written_entries),
    )


def table(pairs_of_classes: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Format the measurement as Markdown."""
    lines = ["| rule | class | cases | precision | recall | taken for |", "|---|---|---|---|---|---|"]
    for rule, classes in pairs_of_classes.items():
        for name, row in classes.items():
            figures = ["-" if row[key] is None else f"{row[key]:.3f}" for key in ("precision", "recall")]
            verdict_counts = ", ".join(f"{verdict} {n}" for verdict, n in sorted(row["taken_for"].items()))
            lines.append(f"| {rule} | {name} | {row['cases']} | {' | '.join(figures)} | {verdict_counts} |")
    return "\n".join(lines)


def main() -> None:
    """Measure both worlds, print and record the tables."""
    parser = make_parser(__doc__)
    parser.add_argument("--tasks", type=int, default=200, help="of the demo's world (the full one: a tenth)")
    options = parser.parse_args()
    worlds = {
        "demo": run(WorldConfig(split="test"), options.tasks),
        "full, 8k tokens": run(WorldConfig(preset="full", split="test", tokens=8000), max(1, options.tasks // 10)),
    }
    text = "\n\n".join(f"## {name}\n\n{table(pairs_of_classes)}" for name, pairs_of_classes in worlds.items())
    head = "\n".join(opening("Does the error analysis name the right class?"))
    save(options.results / "error-analysis", {"command": command(), "worlds": worlds}, f"{head}\n\n{text}")


if __name__ == "__main__":
    main()
