"""Compare the error classes of systems on three sets with labels read by hand.

    python eval/qa/error_class_agreement.py DATA            # agreement, to --results
    python eval/qa/error_class_agreement.py DATA --show     # the sampled answers without their classes, to label

DATA is LoCoMo's official file. From every system and set, wrong answers are drawn with a fixed seed, without those that
need no reading (a faulty gold answer, a question without one). The labels are in error-class-labels.json beside the
record: task, question and system give the class that a reader of the memory names. `--sets` takes some sets only.

Of LoCoMo it is the second conversation. `natural` are chats that `smol` reads (eval/learning/natural_chats.jsonl); the
evidence of a question is the last turn, no assistant's, with an accepted answer. Questions without such a turn are left
out.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from memalpha.config import WorldConfig
from memalpha.qa.error_analysis import classified
from memalpha.qa.evaluate import BUDGET, EVAL_K, run_systems
from memalpha.qa.reader import load_reader
from memalpha.qa.report import Record
from memalpha.qa.systems import Retrieval, SystemSettings, load_system
from memalpha.store.embedding import load_embedder
from memalpha.store.values import holds_answer
from memalpha.tasks.load import load_tasks
from memalpha.types import Task

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import command, make_parser, opening, save

SYSTEMS = {
    "locomo": ("append-only", "rag"),  # the tiny policy cannot read LoCoMo's long turns
    "synthetic": ("append-only", "tiny"),
    "natural": ("append-only", "smol"),
}
COUNTS = {"locomo": 12, "synthetic": 10, "natural": 18}
"""Wrong answers of each system, by set."""
CHATS = Path(__file__).parents[1] / "learning" / "natural_chats.jsonl"
CHAT_COUNT = 60
LABELS = "error-class-labels.json"


@dataclass(frozen=True)
class Sample:
    """A wrong answer with the memory it came from.

    Attributes:
        key: Set, system, task and question.
        task: Task of the question.
        retrieval: Passages, entries and history.
        record: Record of the answer, classified.
    """

    key: str
    task: Task
    retrieval: Retrieval
    record: Record


def natural_tasks() -> list[Task]:
    """Return natural chats with turn ids, and of their questions those whose answer a turn holds, with its id."""
    tasks = []
    for task in load_tasks(str(CHATS))[:CHAT_COUNT]:
        chunks = []
        for chunk in task.chunks:
            turns = [turn.model_copy(update={"id": f"{chunk.index}.{n}"}) for n, turn in enumerate(chunk.turns)]
            chunks.append(chunk.model_copy(update={"turns": tuple(turns)}))
        turns = [turn for chunk in chunks for turn in chunk.turns if turn.speaker != "assistant"]
        questions = []
        for question in task.questions:
            holding = [turn.id for turn in turns if any(holds_answer(turn.text, answer) for answer in question.answers)]
            if holding:
                questions.append(question.model_copy(update={"evidence": (holding[-1],)}))
        tasks.append(task.model_copy(update={"chunks": tuple(chunks), "questions": tuple(questions)}))
    return tasks


def samples(data: str, set_names: Sequence[str]) -> Iterator[Sample]:
    """Yield wrong answers of each system and data set."""
    sets = {
        "synthetic": lambda: (load_tasks("synthetic", 24, world=WorldConfig(split="test")), "extractive", None),
        "locomo": lambda: (load_tasks("locomo", 2, data=data)[1:], "copy", "locomo-f1"),
        "natural": lambda: (natural_tasks(), "copy", None),
    }
    for set_name in set_names:
        tasks, reader, metric = sets[set_name]()
        for name in SYSTEMS[set_name]:
            [report] = run_systems([name], tasks, load_reader(reader), metric=metric)
            settings = SystemSettings(BUDGET, EVAL_K, load_embedder("static"))
            retrievals = load_system(name).retrieve(tasks, settings).by_task
            by_question = {
                (task.id, retrieval.question.id): (task, retrieval)
                for task, group in zip(tasks, retrievals, strict=True)
                for retrieval in group
            }
            wrong = [r for r in report.records if r.error_class not in (None, "gold_faulty", "should_have_abstained")]
            for record in Random(0).sample(wrong, min(COUNTS[set_name], len(wrong))):
                task, retrieval = by_question[record.task, record.question_id]
                key = " ".join((set_name, name, record.task, record.question_id))
                yield Sample(key, task, retrieval, classified(task, retrieval, record))


def show(sample: Sample) -> str:
    """Describe a sample without its class."""
    question, shown = sample.retrieval.question, {p.text for p in sample.retrieval.passages}
    turns = {turn.id: (chunk.index, turn) for chunk in sample.task.chunks for turn in chunk.turns}
    lines = [f"## {sample.key}", f"Q: {question.question}", f"gold: {question.answers}"]
    chunks = set()
    for turn_id in question.evidence:
        if turn_id in turns:
            chunk, turn = turns[turn_id]
            chunks.add(chunk)
            lines.append(f"evidence {turn_id} (chunk {chunk}): {turn.speaker}: {turn.text}")
    words = {word for id in question.evidence if id in turns for word in turns[id][1].text.lower().split()}
    for title, passages in (("entry", sample.retrieval.entries or ()), ("history", sample.retrieval.history or ())):
        near = [p for p in passages if p.chunk in chunks or set(p.turns) & set(question.evidence)]
        near.sort(key=lambda p: -len(words & set(p.text.lower().split())))
        for p in near[:6]:
            lines.append(f"{title}{' SHOWN' if p.text in shown else ''} (chunk {p.chunk}): {p.text[:300]}")
    if sample.retrieval.full_core:
        lines.append(f"core: {sample.retrieval.full_core[:200]}")
    lines.append(f"shown: {[p.text[:60] for p in sample.retrieval.passages[:4]]}")
    return "\n".join(lines)


def main() -> None:
    """Show the samples, or compare their classes with the labels."""
    parser = make_parser(__doc__)
    parser.add_argument("data")
    parser.add_argument("--show", action="store_true", help="print the samples to label")
    parser.add_argument("--sets", nargs="+", choices=[*SYSTEMS], default=[*SYSTEMS])
    options = parser.parse_args()
    drawn = list(samples(options.data, options.sets))
    if options.show:
        print("\n\n".join(map(show, drawn)))
        return
    labels = json.loads((options.results / LABELS).read_text(encoding="utf-8"))
    rows: dict[tuple[str, str], list[tuple[Sample, str]]] = defaultdict(list)
    for sample in drawn:
        if sample.key in labels:
            set_name, system = sample.key.split(" ")[:2]
            rows[set_name, system].append((sample, labels[sample.key]))
    lines = ["| set | system | labelled | rule | agree | differ (by hand: by rule) |", "|---|---|---|---|---|---|"]
    result = []
    for (set_name, system), pairs in rows.items():
        agreed = sum(sample.record.error_class == label for sample, label in pairs)
        rules = ", ".join(sorted({str(sample.record.rule) for sample, _ in pairs}))
        misses = [f"{label}: {s.record.error_class}" for s, label in pairs if s.record.error_class != label]
        lines.append(f"| {set_name} | {system} | {len(pairs)} | {rules} | {agreed} | {', '.join(misses)} |")
        result.append({"set": set_name, "system": system, "labelled": len(pairs), "agreed": agreed, "differ": misses})
    by_class: dict[str, list[bool]] = defaultdict(list)
    for sample, label in (pair for pairs in rows.values() for pair in pairs):
        by_class[label].append(sample.record.error_class == label)
    lines += ["", "| class, by hand | labelled | agree |", "|---|---|---|"]
    lines += [f"| {label} | {len(agreed)} | {sum(agreed)} |" for label, agreed in sorted(by_class.items())]
    head = "\n".join(opening("Do the error classes agree with labels read by hand?"))
    text = head + "\n\n" + "\n".join(lines)
    save(options.results / "error-class-agreement", {"command": command(), "rows": result}, text)


if __name__ == "__main__":
    main()
