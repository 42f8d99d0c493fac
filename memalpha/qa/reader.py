"""Load readers from a configuration, choose the reader of task files, and find readers that cannot answer.

`agent.reader` has the readers, since a `MemoryAgent` answers too. A reader cannot answer if all its answers are empty,
or most are cut off before their end: a model that thinks first spends the few tokens of an answer on its thoughts.
Every memory then scores 0, even a perfect one. Training checks its first steps (`train.trainers.rl`), an
evaluation the first answers of its reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from memalpha.agent.copying_reader import CopyReader
from memalpha.agent.reader import Answer, Conflicts, ExtractiveReader, Item, PolicyReader, Reader, retrieve
from memalpha.config import EvalConfig, ReaderConfig
from memalpha.errors import ConfigError, EvaluationError
from memalpha.policy.base import Policy, with_prompt_style
from memalpha.policy.load import load_policy
from memalpha.store.values import key_value
from memalpha.types import Task

if TYPE_CHECKING:
    from memalpha.qa.report import Record

__all__ = ["Answer", "CopyReader", "ExtractiveReader", "PolicyReader", "Reader", "load_reader"]

NOTE_METRIC, SENTENCE_METRIC = "exact", "f1"
_MAX_VALUE_WORDS = 6
_SENTENCE_END = re.compile(r"[.!?\u3002\uff01\uff1f]\W*$")


def load_reader(config: ReaderConfig | str, policy: Policy | None = None, *, frozen: bool = False) -> Reader:
    """Load the reader of a configuration, or by name: "extractive", "copy", or a policy.

    Args:
        config: Configuration, reader name, policy name or directory.
        policy: Policy that answers if `config.policy` names none. It must stay frozen while a writer trains against it.
            It is prompted in the style it was trained on unless the configuration sets `prompt`.
        frozen: The weights of `policy` never change, so its answers are kept. A policy loaded here is always frozen. An
            endpoint keeps its answers itself (`endpoint.cache`).

    Raises:
        ConfigError: The reader needs a policy and there is none.
    """
    if isinstance(config, str):
        floors = {"extractive": ReaderConfig(), "copy": ReaderConfig(kind="copy")}
        config = floors.get(config) or ReaderConfig(kind="policy", policy=config)
    if config.kind == "copy":
        return CopyReader(config)
    if config.kind == "extractive":
        return ExtractiveReader(config)
    if config.policy is not None:
        policy, frozen = load_policy(config.policy, setting="reader.policy"), True
    if policy is None:
        raise ConfigError(
            f"reader.policy: name the policy that answers (kind={config.kind}), or use reader.kind=extractive"
        )
    return PolicyReader(policy, with_prompt_style(config, policy), frozen=frozen)


def has_notes(tasks: Sequence[Task]) -> bool:
    """Return True if most facts of the tasks are notes such as `city: Oslo`.

    Facts are the contents of gold operations where there are any, otherwise what was said.
    """
    facts = [operation.content for task in tasks for operation in task.gold_operations if operation.content]
    if not facts:
        for chunk in (chunk for task in tasks for chunk in task.chunks):
            facts += [*(turn.text for turn in chunk.turns), *(chunk.text or "").splitlines()]
    values = [pair[1] for pair in map(key_value, facts) if pair is not None]
    notes = (len(value.split()) <= _MAX_VALUE_WORDS and not _SENTENCE_END.search(value) for value in values)
    return 2 * sum(notes) > len(facts)


def with_default_reader(config: EvalConfig, tasks: Sequence[Task]) -> tuple[EvalConfig, str, str | None]:
    """Choose reader and metric of an evaluation on a task file that names none.

    The extractive reader finds the values of notes and nothing else, and `exact` refuses other words for the same. Over
    sentences the reader copies words of the passage that answers, and `f1` counts the words in common.

    Args:
        config: The evaluation.
        tasks: Its tasks.

    Returns:
        The configuration with its reader, the metric of questions that name none, and a note on the choice; None if
        nothing was chosen.
    """
    if has_notes(tasks):
        return config, NOTE_METRIC, None
    metric = NOTE_METRIC if "metric" in config.model_fields_set else SENTENCE_METRIC  # a run's evaluation sets it
    names_all = all("metric" in question.meta for task in tasks for question in task.questions)
    choices = [] if names_all or metric == NOTE_METRIC else [f"metric={metric}"]
    remedy = ""
    if "kind" not in config.reader.model_fields_set and config.reader.policy is None:
        config = config.model_copy(update={"reader": config.reader.model_copy(update={"kind": "copy"})})
        choices.insert(0, "reader.kind=copy")
        remedy = "; a language model reads better: reader.kind=policy reader.policy=MODEL"
    note = f"the data holds sentences; taken by default: {' '.join(choices)}{remedy}" if choices else None
    return config, metric, note


MAX_TRUNCATED = 0.9
"""Share of replies or answers cut at their token limit above which a model counts as unable to reply."""

FIRST_ANSWERS = 32
"""Answers of an evaluation that are checked before the others are read."""

MIN_ANSWERS = 8
"""Fewer answers say nothing about a reader."""


class AnswerCounts(NamedTuple):
    """Counts of a reader's answers to questions with notes: all, the empty ones, those cut off."""

    answers: int = 0
    empty: int = 0
    truncated: int = 0

    @classmethod
    def of(cls, answers: Iterable[Answer | Record]) -> AnswerCounts:
        """Count answers, or records, of questions that notes were shown for."""
        texts = [
            (answer.text, answer.truncated) if isinstance(answer, Answer) else (answer.answer, answer.truncated)
            for answer in answers
            if (answer.hits if isinstance(answer, Answer) else answer.retrieved)
        ]
        return cls(len(texts), sum(not text.strip() for text, _ in texts), sum(truncated for _, truncated in texts))


class ReaderFault(NamedTuple):
    """Why a reader's answers are worth nothing, and what to change, in words."""

    reason: str
    remedy: str


def find_reader_fault(counts: AnswerCounts, reader: PolicyReader, key: str = "reader") -> ReaderFault | None:
    """Return the fault of a reader that cannot answer; None if some of its answers are whole.

    Args:
        counts: Counts of its answers.
        reader: The reader.
        key: Name of its settings in the configuration.
    """
    limit = f"{key}.max_new_tokens={reader.config.max_new_tokens}"
    if counts.answers and counts.empty == counts.answers:
        reason = f"all {counts.answers} answers are empty ({limit})"
    elif counts.truncated > MAX_TRUNCATED * counts.answers:
        reason = f"{counts.truncated} of {counts.answers} answers were cut at {limit}"
    else:
        return None
    return ReaderFault(
        f"reader {reader.name}: {reason}",
        f"raise {key}.max_new_tokens; for a model that thinks first set {key}.thinking_tokens, a budget of its own (0 "
        f"turns thinking off; a server also needs {key}.chat_template_kwargs={{enable_thinking: false}}), and see "
        f"`memalpha check-policy {reader.policy.name}`",
    )


class CheckedReader:
    """Let a reader answer, and stop after its first answers if it cannot.

    The first questions with notes are read before the others. Once enough of them are answered, no more are checked.

    Args:
        reader: Reader of a language model.

    Raises:
        EvaluationError: By `answer`: the first answers are all empty, or most are cut off.
    """

    def __init__(self, reader: PolicyReader) -> None:
        self.reader, self.policy, self.name = reader, reader.policy, reader.name
        self.config = reader.config
        self.conflicts: Conflicts = reader.conflicts
        self._first: list[Answer] = []

    def answer(self, items: Sequence[Item], *, k: int | None = None) -> list[Answer]:
        """Answer as the wrapped reader does."""
        if len(self._first) >= MIN_ANSWERS:
            return self.reader.answer(items, k=k)
        readings = retrieve(items, k or self.config.k)
        found: list[Item] = [(question, item.memory) for (question, _), item in zip(items, readings, strict=True)]
        first = [index for index, item in enumerate(readings) if item.memory.hits][:FIRST_ANSWERS]
        answers = dict(zip(first, self.reader.answer([found[index] for index in first]), strict=True))
        self._first += answers.values()
        counts = AnswerCounts.of(self._first)
        if counts.answers >= MIN_ANSWERS and (fault := find_reader_fault(counts, self.reader)):
            raise EvaluationError(
                f"stopped after the first {counts.answers} answers: {fault.reason}. What to change: "
                f"{fault.remedy}. If it is meant so, set sampling.stop_unreadable=false (in Python: check_reader=False)"
            )
        rest = [index for index in range(len(items)) if index not in answers]
        answers |= zip(rest, self.reader.answer([found[index] for index in rest]), strict=True)
        return [answers[index] for index in range(len(items))]


def check_reader_answers(reader: Reader, records: Iterable[Record], *, stop_unreadable: bool = True) -> None:
    """Check the answers of a whole evaluation before training starts from it.

    Args:
        reader: The reader.
        records: Records of the evaluation.
        stop_unreadable: Check a language model's answers; those of a rule are always checked.

    Raises:
        EvaluationError: All answers are empty, or most of a language model's are cut off. No memory could earn a
            reward.
    """
    counts = AnswerCounts.of(records)
    if not isinstance(reader, PolicyReader):
        if counts.answers and counts.empty == counts.answers:
            raise EvaluationError(
                f"reader {reader.name}: all {counts.answers} answers to questions with retrieved entries are empty, so "
                "no memory can earn a reward: choose another reader.kind"
            )
    elif stop_unreadable and (fault := find_reader_fault(counts, reader)):
        raise EvaluationError(
            f"{fault.reason}, so no memory can earn a reward. What to change: {fault.remedy}. If it is meant so, set "
            "sampling.stop_unreadable=false"
        )


def with_check(reader: Reader, is_checked: bool = True) -> Reader:
    """Return a reader that stops after its first answers if its language model cannot answer.

    Args:
        reader: Any reader. One without a language model is returned as it is.
        is_checked: False returns every reader as it is.
    """
    return CheckedReader(reader) if is_checked and isinstance(reader, PolicyReader) else reader


def reader_metrics(reader: Reader, records: Sequence[Record]) -> dict[str, float]:
    """Return what a reader with a language model did, by name; {} for other readers.

    `reader_truncated` is the share of answers cut at `reader.max_new_tokens`. Means over questions are
    `searches`, those of an agentic reader, and `left_out`, the entries that did not fit a reader of the whole memory.
    """
    if not isinstance(reader, PolicyReader | CheckedReader) or not records:
        return {}
    counts = {"reader_truncated": [int(record.truncated) for record in records]}
    if reader.config.kind == "agentic":
        counts["searches"] = [len(record.searches) for record in records]
    if reader.config.kind == "full-memory":
        counts["left_out"] = [record.left_out or 0 for record in records]
    return {name: sum(values) / len(records) for name, values in counts.items()}
