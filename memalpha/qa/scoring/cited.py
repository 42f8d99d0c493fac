"""Scores of replies that cite their evidence: form, answer and evidence (the PersonaMem reward).

| component  | score                                                                                       |
|------------|---------------------------------------------------------------------------------------------|
| `format`   | 0.1 for an answer line, 0.05 for an evidence line, 0.05 for a line of reasoning             |
| `answer`   | the question's own score, 0 to 1                                                            |
| `evidence` | 0.1 for every cited note that is evidence, -0.05 for every other, clamped to -0.1 .. 0.3    |

A cited number without a note counts as a wrong one. `cited` is the sum divided by its maximum, 1.5, and at least 0, so
that it is a score in 0..1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memalpha.agent.reader import Cited
from memalpha.qa.systems.base import Passage
from memalpha.types import Question, Task

MAX_SCORE = 1.5


def cited_scores(reply: Cited, answer: float, notes: Sequence[bool]) -> dict[str, float]:
    """Return the components and `cited`.

    Args:
        reply: Parsed reply.
        answer: Score of the answer.
        notes: True for each note that is evidence, in the order that the reader saw.
    """
    form = 0.1 * (reply.answer is not None) + 0.05 * (reply.evidence is not None) + 0.05 * (reply.reasoning is not None)
    numbers = reply.evidence or ()
    hits = sum(0 < number <= len(notes) and notes[number - 1] for number in numbers)
    evidence = min(0.3, max(-0.1, 0.1 * hits - 0.05 * (len(numbers) - hits)))
    return replace_answer_score({"cited.format": form, "cited.evidence": evidence}, answer)


def replace_answer_score(scores: Mapping[str, float], answer: float) -> dict[str, float]:
    """Recompute the composite score with a new answer score (used after judging)."""
    form, evidence = scores["cited.format"], scores["cited.evidence"]
    return {
        "cited.format": form,
        "cited.answer": answer,
        "cited.evidence": evidence,
        "cited": max(0.0, form + answer + evidence) / MAX_SCORE,
    }


def evidence_notes(task: Task, question: Question, notes: Sequence[str], passages: Sequence[Passage]) -> list[bool]:
    """Return True for each note that comes from the question's evidence.

    A note is evidence if it comes from one of the evidence turns. A passage that names no turn is evidence if its chunk
    holds such a turn.

    Args:
        task: Task of the question.
        question: Question with its evidence.
        notes: Passage ids, or `#index` for passages without one.
        passages: Passages that the reader saw.
    """
    evidence = set(question.evidence)
    chunks = {chunk.index for chunk in task.chunks if any(turn.id in evidence for turn in chunk.turns)}
    by_id = {passage.id or f"#{index}": passage for index, passage in enumerate(passages)}
    cited_passages = [by_id[id] for id in notes]
    return [not evidence.isdisjoint(note.turns) if note.turns else note.chunk in chunks for note in cited_passages]
