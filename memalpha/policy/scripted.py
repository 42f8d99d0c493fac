"""Scripted policies without a model: baselines, references, and fixed text for tests.

They need no torch. They emit Hermes text like a model, so that the parser, tools and rewards run unchanged. Token
counts are counts of words and single punctuation marks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from memalpha.errors import PolicyError, did_you_mean
from memalpha.policy.base import Policy
from memalpha.policy.chat.text import format_call
from memalpha.types import Chunk, Completion, GoldOperation, Observation, SampleRequest

KINDS = ("add-all", "oracle", "append-only", "fixed")
_TOKEN = re.compile(r"\w+|[^\w\s]")
_ASSISTANT_ROLES = ("assistant", "system", "tool")
_USER_LABELS = ("user", "human")
_ROLE = re.compile(r"(user|human|assistant|ai|system|tool):(?!\S)", re.IGNORECASE)


class ScriptedPolicy:
    """Rule-based writer.

    - `add-all`: insert every line of the chunk that no assistant said;
    - `oracle`: do each gold operation;
    - `append-only`: do gold inserts, insert the new value of gold updates, and skip deletes;
    - `fixed`: always reply `text`.

    `oracle` and `append-only` read `Observation.task`, so they need tasks with gold operations.

    Args:
        kind: one of `KINDS`.
        text: reply of `fixed`.

    Raises:
        PolicyError: if `kind` is unknown.
    """

    def __init__(self, kind: str, *, text: str = "") -> None:
        if kind not in KINDS:
            raise PolicyError(
                f"no scripted policy {kind!r}{did_you_mean(kind, KINDS)}: use scripted:{', scripted:'.join(KINDS)}"
            )
        self.name = f"scripted:{kind}"
        self.kind = kind
        self.text = text

    def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return one completion per request, without token ids.

        Raises `PolicyError` for a request without an observation.
        """
        return [Completion(self._reply(request), temperature=request.temperature) for request in requests]

    def count_tokens(self, text: str) -> int:
        """Return the number of words and single punctuation marks."""
        return len(_TOKEN.findall(text))

    def _reply(self, request: SampleRequest) -> str:
        if self.kind == "fixed":
            return self.text
        observation = request.observation
        if observation is None:
            raise PolicyError(f"{self.name} only writes memory: answer questions with another reader")
        if self.kind == "add-all":
            parameters = (tool["function"]["parameters"]["properties"] for tool in request.tools)
            names = [properties["category"]["enum"] for properties in parameters if "category" in properties]
            category = next((of_tool[0] for of_tool in names if "episodic" not in of_tool), "episodic")
            lines = _user_lines(observation.chunk)
            calls = [format_call("memory_insert", {"category": category, "content": line}) for line in lines]
        elif observation.task is None or not observation.task.gold_operations:
            reason = f"task {observation.task.id!r} has none" if observation.task else "a served writer has none"
            raise PolicyError(
                f"{self.name} needs tasks with gold operations: {reason}; systems without gold operations are "
                "append-only, rag and scripted:add-all"
            )
        else:
            operations = observation.task.gold_at(observation.chunk.index)
            calls = [call for item in operations if (call := self._gold_call(item, observation))]
        return "".join(calls or [format_call("memory_skip", {})])

    def _gold_call(self, operation: GoldOperation, observation: Observation) -> str | None:
        kind = operation.kind
        if kind == "core_update":
            return format_call("core_memory_update", {"content": operation.content})
        if self.kind == "append-only":
            return None if kind == "delete" else _insert_gold(operation, observation.chunk)
        id = next(
            (e.id for e in observation.entries if (e.category, e.content) == (operation.category, operation.replaces)),
            None,
        )
        if kind == "insert" or (kind == "update" and id is None):  # an entry that was never stored cannot be updated
            return _insert_gold(operation, observation.chunk)
        if id is None:
            return None
        if kind == "update":
            return format_call("memory_update", {"id": id, "content": operation.content})
        return format_call("memory_delete", {"id": id})


def ignores_memory(policy: Policy) -> bool:
    """Return True for a writer whose replies depend on the chunk alone, so that it needs no view of the memory."""
    return type(policy) is ScriptedPolicy and policy.kind == "add-all"  # a class derived from it may read the view


def _insert_gold(operation: GoldOperation, chunk: Chunk) -> str:
    arguments = {"category": operation.category, "content": operation.content}
    if operation.timestamp and operation.timestamp != chunk.timestamp:
        arguments["timestamp"] = operation.timestamp
    return format_call("memory_insert", arguments)


def _user_lines(chunk: Chunk) -> list[str]:
    """Return every line that no assistant said.

    The speaker stays in front of the text unless it is "user". In plain text with lines `user:` a role holds for its
    line and those after it, up to the next; without, every line is kept: `Assistant: Tom` is a credit of a film.
    """
    if chunk.text is not None:
        lines, user_lines, role = [*filter(None, map(str.strip, chunk.text.splitlines()))], [], "user"
        if not any((label := _ROLE.match(line)) and label[1].lower() in _USER_LABELS for line in lines):
            return lines
        for line in lines:
            label = _ROLE.match(line)
            role = label[1].lower() if label else role
            user_lines += [line] if role in _USER_LABELS else []
        return user_lines
    return [
        turn.text if turn.speaker.lower() == "user" else f"{turn.speaker}: {turn.text}"
        for turn in chunk.turns
        if turn.speaker.lower() not in _ASSISTANT_ROLES and turn.text.strip()
    ]
