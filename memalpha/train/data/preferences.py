"""Plain preference data: which of two replies to a prompt is better, as exact token ids.

A JSON Lines file in TRL's formats. `{"prompt", "chosen", "rejected"}`: the prompt is a text, taken as it is, or
messages, which go through the policy's chat template (with `"tools"`, if there are any); a reply is a text or one
assistant message. `{"chosen", "rejected"}`: two chats that differ in their last message, the assistant's, and share
what stands before it: the prompt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from memalpha.errors import CheckpointError, DataError
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.algorithms.pairwise import build_pair_row
from memalpha.train.data.chat_format import (
    check_room,
    encode,
    encode_reply,
    format_message,
    read_objects,
    render_messages,
    reply_text,
    validate_messages,
    validate_prompt,
    validate_tools,
)
from memalpha.train.data.samples import TrainingSample

_KEYS = ("prompt", "chosen", "rejected", "tools")


@dataclass(frozen=True, slots=True)
class Pair:
    """Ids of a prompt and of two replies to it, each with the token that ends a turn; `place` is its file:line."""

    source: str
    prompt_ids: tuple[int, ...]
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]

    def rows(self, unit: str) -> list[TrainingSample]:
        """Its two rows, chosen first."""
        sides = ((self.chosen_ids, True), (self.rejected_ids, False))
        return [build_pair_row(self.prompt_ids, ids, unit, chosen=chosen, task=self.source) for ids, chosen in sides]


def read_pairs(path: Path, policy: TransformersPolicy) -> list[Pair]:
    """The pairs of a file, in its order. Raises `DataError` with file, line and field for anything that is none, for
    two replies that are the same, and for a row longer than the model takes."""
    found = []
    for where, value in read_objects(path, _KEYS):
        said = parse_preference_line(value, where)
        if isinstance(said.prompt, str):
            prompt = encode(policy, said.prompt)
        else:
            prompt = render_messages(policy, said.prompt, said.tools, f"{where}: {said.field}")
        if not prompt:
            raise DataError(f"{where}: prompt: is empty")
        named = zip(("chosen", "rejected"), (said.chosen, said.rejected), strict=True)
        chosen, rejected = (encode_reply(policy, reply, f"{where}: {field}") for field, reply in named)
        if chosen == rejected:
            raise DataError(
                f"{where}: rejected: is the same reply as chosen, which prefers nothing: leave the line out"
            )
        check_room(policy, len(prompt) + max(len(chosen), len(rejected)), where)
        found.append(Pair(where, tuple(prompt), chosen, rejected))
    return found


def write_pairs(
    path: Path, prompts: Sequence[Any], chosen: Sequence[Any], rejected: Sequence[Any], *, is_resuming: bool
) -> None:
    """Write what `read_pairs` reads, in one rename; where a run has `begun` with the file, its pairs must be these.

    Raises `DataError` for lists that do not go together or hold what JSON cannot say, `CheckpointError` for other pairs
    than those that the run began with.
    """
    if not len(prompts) == len(chosen) == len(rejected):
        raise DataError(
            f"preferences: {len(prompts)} prompts, {len(chosen)} chosen and {len(rejected)} rejected replies: there "
            "must be as many of each"
        )
    lines = []
    for number, (prompt, one, two) in enumerate(zip(prompts, chosen, rejected, strict=True)):
        try:
            lines.append(json.dumps({"prompt": prompt, "chosen": one, "rejected": two}) + "\n")
        except (TypeError, ValueError) as error:
            raise DataError(f"preferences: pair {number} is neither texts nor messages: {error}") from error
    if is_resuming and path.exists():
        theirs = zip_longest(path.read_text(encoding="utf-8").splitlines(keepends=True), lines)
        other = [number for number, (one, two) in enumerate(theirs) if one != two]
        if other:
            raise CheckpointError(
                f"{path} holds other pairs (from pair {other[0]} on): give the same ones to go on, or another out"
            )
        return
    aside = path.with_name(f".{path.name}.part")
    aside.write_text("".join(lines), encoding="utf-8")
    aside.replace(path)


def pairs_fingerprint(pairs: Sequence[Pair]) -> str:
    """What tells one list of pairs from another, wherever its file lies."""
    found = hashlib.sha256()
    for pair in pairs:
        found.update(repr((pair.prompt_ids, pair.chosen_ids, pair.rejected_ids)).encode())
    return found.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class PreferenceLine:
    """What one line says: a prompt (a text, or messages from the field `field`), tools, two replies."""

    prompt: str | list[dict[str, Any]]
    tools: list[dict[str, Any]]
    chosen: str
    rejected: str
    field: str = "prompt"


def parse_preference_line(value: Mapping[str, Any], where: str) -> PreferenceLine:
    """The parts of one line, checked. Raises `DataError`."""
    for key in ("chosen", "rejected"):
        if key not in value:
            raise DataError(f"{where}: {key}: missing")
    tools = validate_tools(value, where)
    if "prompt" in value:
        prompt = validate_prompt(value["prompt"], tools, where)
        return PreferenceLine(
            prompt, tools, *(reply_text(value[key], f"{where}: {key}") for key in ("chosen", "rejected"))
        )
    if isinstance(value["chosen"], str) or isinstance(value["rejected"], str):
        raise DataError(f"{where}: prompt: missing (only chats may hold it themselves)")
    chats = {key: validate_messages(value[key], f"{where}: {key}") for key in ("chosen", "rejected")}
    for key, messages in chats.items():
        if not messages or messages[-1]["role"] != "assistant":
            raise DataError(f"{where}: {key}: its last message must be the assistant's")
    if chats["chosen"][:-1] != chats["rejected"][:-1]:
        raise DataError(f"{where}: rejected: what stands before its last message is not what chosen has there")
    chosen, rejected = (format_message(chat[-1], f"{where}: {key}[{len(chat) - 1}]") for key, chat in chats.items())
    return PreferenceLine(chats["chosen"][:-1], tools, chosen, rejected, "chosen")
