"""Load readers from a configuration, and choose reader and metric for task files that set none.

`agent.reader` has the readers, since a `MemoryAgent` answers too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from memalpha.agent.copying_reader import CopyReader
from memalpha.agent.reader import Answer, ExtractiveReader, PolicyReader, Reader, Reading
from memalpha.config import EvalConfig, ReaderConfig
from memalpha.errors import ConfigError
from memalpha.policy.base import Policy, with_prompt_style
from memalpha.policy.load import load_policy
from memalpha.store.slots import key_value
from memalpha.types import Task

__all__ = ["Answer", "CopyReader", "ExtractiveReader", "PolicyReader", "Reader", "Reading", "load_reader"]

NOTE_METRIC, SENTENCE_METRIC = "exact", "f1"
_MAX_VALUE_WORDS = 6
_SENTENCE_END = re.compile(r"[.!?\u3002\uff01\uff1f]\W*$")


def load_reader(config: ReaderConfig | str, policy: Policy | None = None, *, frozen: bool = False) -> Reader:
    """Load the reader of a configuration, or by name: "extractive", "copy", or a policy.

    Args:
        config: Configuration, reader name, policy name or directory.
        policy: Policy that answers if `config.policy` names none. It must stay frozen while a writer trains against it.
            It is prompted in the style it was trained on unless the configuration sets `prompt`.
        frozen: The weights of `policy` never change, so its answers are kept. A policy loaded here is always types. An
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
        policy, frozen = load_policy(config.policy), True
    if policy is None:
        raise ConfigError(
            f"reader.policy: name the policy that answers (kind={config.kind}), or use reader.kind=extractive"
        )
    return PolicyReader(policy, with_prompt_style(config, policy), frozen=frozen)


def has_notes(tasks: Sequence[Task]) -> bool:
    """Return True if most facts of the tasks are notes such as `city: Oslo`.

    Facts are the contents of gold operations where there are any, otherwise what was said.
    """
    facts = list(_facts(tasks))
    return 2 * sum(map(_is_note, facts)) > len(facts)


def with_default_reader(config: EvalConfig, tasks: Sequence[Task]) -> tuple[EvalConfig, str, str | None]:
    """Choose reader and metric of an evaluation on a task file that names none.

    The extractive reader finds the values of notes and nothing else, and `exact` refuses other words for the same. Over
    sentences the reader copies words of the best passage, and `f1` counts the words in common.

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


def _facts(tasks: Sequence[Task]) -> Iterator[str]:
    if any(operation.content for task in tasks for operation in task.gold_operations):
        yield from (operation.content for task in tasks for operation in task.gold_operations if operation.content)
        return
    for task in tasks:
        for chunk in task.chunks:
            yield from (turn.text for turn in chunk.turns)
            yield from (chunk.text or "").splitlines()


def _is_note(fact: str) -> bool:
    pair = key_value(fact)
    return pair is not None and len(pair[1].split()) <= _MAX_VALUE_WORDS and not _SENTENCE_END.search(pair[1])
