"""Compare the error classes of writers whose entries name no turns with labels read by hand.

    python eval/qa/writer_class_agreement.py DATA                      # agreement, to --results
    python eval/qa/writer_class_agreement.py DATA --systems smol --show 8   # answers to label, without their classes

DATA holds the folders `locomo` and `friendsqa` with the official files. Systems: `sentence-rules`; `smol`, on the first
two conversations in chunks of 120 tokens; and `notes`, free text by another writer. On LoCoMo these are the data set's
own observations, which a language model wrote, without the turns that they name. On FriendsQA they are turns in other
words (`reword`), of which every fifth is left out. The labels are in writer-class-labels.json beside the record, in
two parts: the rules were mended on the first, and the second was drawn and read afterwards.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from memalpha.qa.error_analysis import GOLD_FAULTY, SHOULD_HAVE_ABSTAINED, classified
from memalpha.qa.protocol import BUDGET, EVAL_K, run_systems
from memalpha.qa.reader import load_reader
from memalpha.qa.records import Record
from memalpha.qa.systems.base import Passage, Retrieval
from memalpha.qa.systems.baselines import SearchSystem, fact_passages
from memalpha.qa.systems.builtin import EvaluatedSystem, Progress, Retrievals, Streamed, SystemSettings, load_system
from memalpha.tasks.chunking import rechunk
from memalpha.tasks.load import load_tasks
from memalpha.types import Chunk, Task

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import command, make_parser, opening, write_json

SETS = {
    "locomo": ("locomo/locomo10.json", "locomo-f1", {"variant": "answerable"}),
    "friendsqa": ("friendsqa", "f1", {}),
}
SYSTEMS = ("sentence-rules", "notes")
SMOL_TASKS, SMOL_TOKENS = 2, 120
LABELS = "writer-class-labels.json"
RECORD = "writer-class-agreement"
RESAMPLES = 10_000
FEWEST_WORDS = 4  # of a sentence that a note keeps
LEFT_OUT = 5  # every so many notes, one is left out
REWORDED = (  # applied in this order; a speaker takes the place of "{}"
    *((form, "{} is") for form in ("I'm", "I am")),
    *((form, "{} has") for form in ("I've", "I 've")),
    ("I 'm", "{} is"),
    ("I", "{}"),
    *((form, "{}'s") for form in ("my", "My")),
    ("me", "{}"),
    ("gonna", "going to"),
    ("guys", "people"),
    ("great", "good"),
    ("big", "large"),
    ("kids", "children"),
    ("job", "work"),
    ("house", "home"),
    ("buy", "purchase"),
    ("bought", "purchased"),
    ("talk", "speak"),
    ("got", "received"),
    ("see", "meet"),
    ("good", "nice"),
    ("movie", "film"),
    ("scared", "afraid"),
    ("mad", "angry"),
    ("want", "wish"),
    ("guy", "man"),
    ("girl", "woman"),
    ("look", "seem"),
    ("think", "believe"),
)


class Answer(NamedTuple):
    """A wrong answer, its task and what was retrieved."""

    task: Task
    retrieval: Retrieval
    record: Record


class Kept:
    """System that keeps what it retrieved."""

    def __init__(self, system: EvaluatedSystem) -> None:
        self.name, self._system = system.name, system
        self.retrievals = Retrievals([], [])

    def retrieve(self, tasks: Sequence[Task], settings: SystemSettings, progress: Progress | None = None) -> Retrievals:
        """Return the passages for every question; arguments as in `EvaluatedSystem.retrieve`."""
        self.retrievals = self._system.retrieve(tasks, settings, progress)
        return self.retrievals


def reword(text: str, speaker: str) -> str:
    """Return the first two longer sentences of a turn in the third person and in other words."""
    sentences = [part for part in re.split(r"(?<=[.!?])\s+", text.strip()) if len(part.split()) >= FEWEST_WORDS][:2]
    text = " ".join(sentences)
    for word, other in REWORDED:
        text = re.sub(rf"\b{re.escape(word)}\b", lambda _, other=other: other.format(speaker), text)
    return text


def reworded_turns(chunk: Chunk) -> list[Passage]:
    """Return notes of a chunk's turns without their ids; stage notes have none."""
    notes = []
    for turn in chunk.turns:
        speaker = turn.speaker.split()[0] if turn.speaker else "somebody"
        if not speaker.startswith("#") and (text := reword(turn.text, speaker)):
            notes.append(
                Passage(f"{speaker} says: {text}", f"note{chunk.index}.{len(notes)}", "semantic", chunk=chunk.index)
            )
    return [note for number, note in enumerate(notes) if number % LEFT_OUT != LEFT_OUT - 2]


def note_taker(task: Task, settings: SystemSettings) -> SearchSystem:
    """Create the system `notes` of a task."""
    notes = reworded_turns
    if task.meta.get("observations"):
        facts = fact_passages(task)

        def notes(chunk: Chunk) -> list[Passage]:
            return [replace(passage, turns=(), chunk=chunk.index) for passage in facts(chunk)]

    return SearchSystem("notes", notes, settings.k, settings.embedder, raw=False)


def wrong_answers(data: Path, systems: Sequence[str]) -> Iterator[tuple[str, str, list[Answer]]]:
    """Yield set, system and wrong answers in order, without those whose class needs no reading."""
    for set_name, (file, metric, options) in SETS.items():
        tasks = load_tasks(set_name, data=data / file, **options)
        for name in systems:
            read = [rechunk(task, SMOL_TOKENS) for task in tasks[:SMOL_TASKS]] if name == "smol" else tasks
            kept = Kept(Streamed("notes", note_taker) if name == "notes" else load_system(name))
            [report] = run_systems([kept], read, load_reader("copy"), budget=BUDGET, k=EVAL_K, metric=metric)
            by_question = {
                (task.id, retrieval.question.id): (task, retrieval)
                for task, group in zip(read, kept.retrievals.by_task, strict=True)
                for retrieval in group
            }
            yield (
                set_name,
                name,
                [
                    Answer(*by_question[record.task, record.question_id], record)
                    for record in report.records
                    if record.error_class not in (None, GOLD_FAULTY, SHOULD_HAVE_ABSTAINED)
                ],
            )


def show(answer: Answer) -> str:
    """Describe an answer without its class: evidence, entries of its chunks, and which were shown."""
    question = answer.retrieval.question
    lines = [f"Q: {question.question}", f"gold: {question.answers}", f"answer: {answer.record.answer}"]
    turns = {turn.id: (chunk, turn) for chunk in answer.task.chunks for turn in chunk.turns}
    evidence = [turns[id] for id in question.evidence if id in turns]
    lines += [
        f"evidence (chunk {chunk.index}, {chunk.timestamp}): {turn.speaker}: {turn.text}" for chunk, turn in evidence
    ]
    ranks = {(passage.id, passage.text): rank for rank, passage in enumerate(answer.retrieval.passages)}
    words = {word for _, turn in evidence for word in turn.text.lower().split()}
    near = [
        passage
        for passage in (*(answer.retrieval.entries or ()), *(answer.retrieval.history or ()))
        if passage.chunk in {chunk.index for chunk, _ in evidence}
    ]
    near.sort(key=lambda passage: -len(words & set(passage.text.lower().split())))
    for passage in dict.fromkeys(near[:6]):
        rank = ranks.get((passage.id, passage.text))
        lines.append(
            f"entry{'' if rank is None else f' SHOWN at {rank}'} (chunk {passage.chunk}): {passage.text[:300]}"
        )
    lines += [f"first shown: {passage.text[:100]}" for passage in answer.retrieval.passages[:2]]
    return "\n".join(lines)


def interval(agreed: int, count: int) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a share."""
    drawn = np.random.default_rng(0).binomial(count, agreed / count, RESAMPLES) / count
    low, high = np.quantile(drawn, [0.025, 0.975])
    return round(float(low), 3), round(float(high), 3)


def main() -> None:
    """Show answers to label, or compare the classes with the labels."""
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=[*SYSTEMS, "smol"])
    parser.add_argument("--show", type=int, help="print so many answers of each system and set, to label")
    options = parser.parse_args()
    labels = json.loads((options.results / LABELS).read_text(encoding="utf-8"))
    counts: Counter[tuple[str, str, str, bool]] = Counter()
    differences = []
    for set_name, name, answers in wrong_answers(options.data, options.systems):
        if options.show:
            drawn = Random(f"{set_name} {name}").sample(answers, min(options.show, len(answers)))
            print("\n\n".join(f"## {_key(set_name, name, answer)}\n{show(answer)}" for answer in drawn))
            continue
        for answer in answers:
            for part, hand in labels.items():
                label = hand.get(_key(set_name, name, answer))
                if label is not None:
                    record = classified(answer.task, answer.retrieval, answer.record)
                    counts[part, set_name, name, record.error_class == label] += 1
                    if record.error_class != label:
                        differences.append([part, _key(set_name, name, answer), label, record.error_class])
    if options.show:
        return
    lines = ["| part | set | system | labelled | agree | share, 95 % interval |", "|---|---|---|---|---|---|"]
    rows = []
    names = [*options.systems, "all"]
    for part, set_name, name in [
        (part, set_name, name) for part in labels for set_name in (*SETS, "all") for name in names
    ]:
        matching = {
            key: number
            for key, number in counts.items()
            if key[0] == part and set_name in (key[1], "all") and name in (key[2], "all")
        }
        if labelled := sum(matching.values()):
            agreed = sum(number for key, number in matching.items() if key[3])
            low, high = interval(agreed, labelled)
            share = f"{agreed / labelled:.3f} ({low:.3f} to {high:.3f})"
            lines.append(f"| {part} | {set_name} | {name} | {labelled} | {agreed} | {share} |")
            rows.append({"part": part, "set": set_name, "system": name, "labelled": labelled, "agreed": agreed})
    lines += ["", "| part | answer | by hand | by rule |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in sorted(differences)]
    print("\n".join([*opening("Agreement"), *lines]))
    write_json(options.results / f"{RECORD}.json", {"command": command(), "rows": rows, "differences": differences})


def _key(set_name: str, name: str, answer: Answer) -> str:
    return " ".join((set_name, name, answer.task.id, answer.record.question_id))


if __name__ == "__main__":
    main()
