"""Ask a reader about memories: one record per question, all answered in one reader call.

`ask_states` asks states of a written memory, which the reader searches: the questions of rollouts, and those of credit
per call (`train.algorithms.credit`). `ask_retrievals` asks what an evaluated system returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from typing import Any

from memalpha.agent.prompts import question_with_choices
from memalpha.agent.reader import Answer, Reader, Reading, check_answers, states_several_values
from memalpha.agent.text_match import contains
from memalpha.errors import ConfigError, DataError
from memalpha.qa.report import CHANGED, Record, estimate_tokens
from memalpha.qa.scoring.metrics import (
    CORRECT_FROM,
    cited_scores,
    evidence_notes,
    is_correct,
    is_refusal,
    score_answer,
    score_question,
)
from memalpha.qa.systems.base import Passage, Retrieval, as_passage, question_chunk
from memalpha.qa.systems.baselines import passage_tokens
from memalpha.store.embedding import Embedder
from memalpha.store.in_memory import WorkingMemory
from memalpha.store.state import MemoryState
from memalpha.types import Hit, MemoryEntry, Question, Task, TrajectoryGroup

SINGLE_VALUED = ("stated", "updated", "retracted")
"""Kinds of questions (`Question.meta["kind"]`) about a slot that has one value at a time."""
MAX_BATCH_PASSAGES = 200_000
"""Passages that a reader gets in one batch, at most."""


# ---------------------------------------------------------------------------------------------------- written memories


@dataclass(frozen=True, slots=True, eq=False)
class StateQuestion:
    """A question of a task, and the memory state to answer it from; `rollout` goes into the record."""

    task: Task
    question: Question
    state: MemoryState
    rollout: int = 0


def questions_of(groups: Sequence[TrajectoryGroup]) -> Iterator[StateQuestion]:
    """Yield each trajectory's questions with the states that they are asked of."""
    for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
        for question in trajectory.task.questions:
            state = trajectory.states[question_chunk(question, trajectory.task)]
            yield StateQuestion(trajectory.task, question, state, trajectory.rollout)


def evaluate_memory(
    groups: Sequence[TrajectoryGroup], reader: Reader, metric: str = "exact", *, embedder: Embedder
) -> list[list[list[Record]]]:
    """Ask every trajectory its task's questions; arguments as in `ask_states`.

    Returns:
        Records as [group][trajectory][question].
    """
    records = iter(ask_states(list(questions_of(groups)), reader, metric, embedder=embedder))
    return [
        [list(islice(records, len(trajectory.task.questions))) for trajectory in group.trajectories] for group in groups
    ]


def ask_states(
    items: Sequence[StateQuestion], reader: Reader, metric: str = "exact", *, embedder: Embedder
) -> list[Record]:
    """Ask each question of its state.

    Args:
        items: Questions with their states.
        reader: Reader that answers. Its exceptions are passed on: a failed reader is not a wrong answer.
        metric: Name of the metric that scores answers.
        embedder: Embedder that the memories are searched with.

    Returns:
        One record per item, in order.
    """
    memories: dict[int, WorkingMemory] = {}
    asked: list[tuple[str | Question, WorkingMemory]] = []
    for item in items:
        question = item.question
        # Custom readers may expect a text: pass the whole question only if it has choices or a date.
        has_details = question_with_choices(question) != question.question
        memory = memories.setdefault(id(item.state), WorkingMemory(item.state, embedder))
        asked.append((question if has_details else question.question, memory))
    if texts := texts_to_embed(items):
        embedder.encode(texts)  # in one batch, so that the searches find them in the embedder's cache
    answers = check_answers(reader, len(asked), lambda: reader.answer(asked))
    return [_state_record(item, answer, metric, reader) for item, answer in zip(items, answers, strict=True)]


def texts_to_embed(items: Iterable[StateQuestion]) -> list[str]:
    """Return each text once whose vector `ask_states` needs: questions and memory entries."""
    texts: dict[str, None] = {}
    memories: dict[int, MemoryState] = {}
    for item in items:
        texts[item.question.question] = None
        memories[id(item.state)] = item.state
    for state in memories.values():
        texts.update(dict.fromkeys(entry.content for entry in state.entries.values()))
        texts.update(dict.fromkeys(state.schema.category_texts.values()))
    return list(texts)


def _state_record(item: StateQuestion, answer: Answer, metric: str, reader: Reader) -> Record:
    state = item.state
    contents = (entry.content for entry in state.entries.values())
    answer = _refuse_disputed(reader, item.question, answer, lambda: [*contents, *state.core.splitlines()])
    score, correct, scores = _score(item.task, item.question, answer, metric)
    return build_record(
        item.task,
        item.question,
        answer,
        score,
        correct,
        rollout=item.rollout,
        retrieved=tuple(hit.entry.id for hit in answer.hits),
        tokens=sum(estimate_tokens(hit.entry.content) for hit in answer.hits),
        scores=scores,
    )


def _score(task: Task, question: Question, answer: Answer, metric: str) -> tuple[float, bool, dict[str, float]]:
    """Return the score, True if it counts as right, and its components if the metric has some."""
    if metric not in ("question", "cited"):
        score = score_answer(metric, answer, question.answers)
        return score, score >= CORRECT_FROM[metric], {}
    score = score_question(question, answer)
    if score is None:
        raise DataError(f"question {question.id!r}: its metric needs a judge: set reward.metric=judge")
    correct = is_correct(question, score)
    if metric == "question":
        return score, correct, {}
    if answer.cited is None:
        raise ConfigError("reward.metric: cited scores replies that name their evidence: set reader.cite=true")
    passages = [as_passage(hit.entry) for hit in answer.hits]
    parts = cited_scores(answer.cited, score, evidence_notes(task, question, answer.notes, passages))
    return parts["cited"], correct, parts


# ---------------------------------------------------------------------------------------------------------- retrievals


def ask_retrievals(
    questions: Sequence[tuple[Task, Retrieval]], reader: Reader
) -> Iterator[tuple[Task, Retrieval, Answer]]:
    """Yield the reader's answer to each question, in batches of at most `MAX_BATCH_PASSAGES` passages.

    As reader entries, passages take a hundred times the memory. Where the reader searched by itself or saw the whole
    memory, the retrieval holds the passages that it saw.
    """
    first = passages = 0
    for index, (_, item) in enumerate(questions):
        if index > first and passages + len(item.passages) > MAX_BATCH_PASSAGES:
            yield from _ask_batch(questions[first:index], reader)
            first, passages = index, 0
        passages += len(item.passages)
    yield from _ask_batch(questions[first:], reader)


def _ask_batch(questions: Sequence[tuple[Task, Retrieval]], reader: Reader) -> Iterator[tuple[Task, Retrieval, Answer]]:
    entries: dict[int, MemoryEntry] = {}
    live: dict[int, Callable[[], list[MemoryEntry]]] = {}
    further: list[list[tuple[Passage, ...]]] = [[] for _ in questions]

    def list_entries(passages: Sequence[Passage]) -> list[MemoryEntry]:
        return [hit.entry for hit in passages_as_hits(passages, entries)]

    def search(item: Retrieval, found: list[tuple[Passage, ...]], query: str) -> tuple[Hit, ...]:
        assert item.search is not None
        found.append(item.search(query))
        return passages_as_hits(found[-1], entries)

    readings = [
        Reading(
            item.question.question,
            passages_as_hits(item.passages, entries),
            item.core,
            None
            if item.entries is None
            else live.setdefault(id(item.entries), cache(partial(list_entries, item.entries))),
            question_with_choices(item.question),
            None if item.search is None else partial(search, item, found),
        )
        for (_, item), found in zip(questions, further, strict=True)
    ]
    answers = check_answers(reader, len(readings), lambda: reader.read(readings))
    for (task, item), found, answer in zip(questions, further, answers, strict=True):
        seen = item
        if answer.left_out is not None or answer.searches:  # an agentic reader, or one of the whole memory
            by_entry = {
                (hit.entry.id, hit.entry.content): passage
                for passages in (item.passages, item.entries or (), *found)
                for hit, passage in zip(passages_as_hits(passages), passages, strict=True)
            }
            shown = tuple(by_entry[hit.entry.id, hit.entry.content] for hit in answer.hits)
            seen = replace(item, passages=shown, tokens=passage_tokens(shown) + estimate_tokens(item.core))
        yield task, seen, _refuse_disputed(reader, item.question, answer, partial(_statements, seen))


def passages_as_hits(passages: Sequence[Passage], entries: dict[int, MemoryEntry] | None = None) -> tuple[Hit, ...]:
    """Convert passages to the hits that a reader takes.

    Args:
        passages: Passages, best first.
        entries: Cache of entries by `id()` of passages that have an id; filled here. A system that returns all its
            passages returns the same ones for every question.
    """
    entries = {} if entries is None else entries
    hits = []
    for index, passage in enumerate(passages):
        if (entry := entries.get(id(passage))) is None:
            entry = MemoryEntry(
                id=passage.id or f"#{index}",
                category=passage.category or "",
                content=passage.text,
                timestamp=passage.timestamp,
                turn=passage.turns[0] if passage.turns else None,
                valid_from=passage.order,
            )
            if passage.id:
                entries[id(passage)] = entry
        hits.append(Hit(entry, score=-float(index)))
    return tuple(hits)


def _statements(item: Retrieval) -> list[str]:
    """Return all known statements of the memory: its entries, else its passages; and core lines."""
    if item.entries is None:
        return [*(passage.text for passage in item.passages), *item.core.splitlines()]
    return [*(passage.text for passage in item.entries), *(item.full_core or item.core).splitlines()]


def describe_conflicts(reader: Reader, retrievals: Iterable[Retrieval]) -> str:
    """Describe the reader's conflict rule, and what it was applied to.

    As in training, refusing goes by all live entries if the system shows them. That is stricter than going by the
    retrieved passages alone, so the description says which of the two was used.
    """
    if reader.conflicts != "refuse":
        return reader.conflicts
    return f"refuse, by {'what is shown' if any(item.entries is None for item in retrievals) else 'all that is held'}"


# ------------------------------------------------------------------------------------------------------------- records


def build_record(
    task: Task, question: Question, answer: Answer, score: float, correct: bool, *, rollout: int = 0, **fields: Any
) -> Record:
    """Build the record of an answer; `fields` are further fields of `Record`.

    Args:
        task: Task of the question.
        question: Question that was asked.
        answer: Answer of the reader.
        score: Score by the metric, 0 to 1.
        correct: True if the score counts as right.
        rollout: Index of the rollout.
    """
    # A wrong answer is stale if it gives a value that no longer holds (`meta["stale"]`, the former values).
    is_lasting = question.meta.get("kind") not in CHANGED or correct or answer.abstained
    return Record(
        task=task.id,
        rollout=rollout,
        question_id=question.id,
        ability=question.category or "none",
        kind=question.meta.get("kind"),
        question=question.question,
        answer=answer.text,
        gold=question.answers,
        score=score,
        correct=correct,
        stale=not is_lasting and any(contains(answer.text, str(old)) for old in question.meta.get("stale", ())),
        conflict=answer.conflict,
        abstained=is_refusal(answer, question.answers),
        truncated=answer.truncated,
        searches=tuple(search.as_json() for search in answer.searches),
        left_out=answer.left_out,
        **fields,
    )


def _refuse_disputed(
    reader: Reader, question: Question, answer: Answer, statements: Callable[[], Sequence[str]]
) -> Answer:
    """Return the answer, marked as a conflict if live statements give the question's slot two values.

    Readers that refuse conflicts go by it. The task has to name the slot and its values in `Question.meta`. The values
    are `values`, current one first, where the answer itself is no value of the slot ("yes"). Otherwise they are the
    answers and `stale`.
    """
    meta = question.meta
    values = meta.get("values") or (meta.get("stale") and [*question.answers, *meta["stale"]])
    if reader.conflicts != "refuse" or meta.get("kind") not in SINGLE_VALUED or not (meta.get("slot") and values):
        return answer
    is_disputed = states_several_values(str(meta["slot"]), list(map(str, values)), statements())
    return replace(answer, conflict=True) if is_disputed else answer
