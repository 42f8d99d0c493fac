"""Preference data: which of two replies to a prompt is better, as exact token ids.

A JSON Lines file in TRL's formats. `{"prompt", "chosen", "rejected"}`: the prompt is a text, used as it is, or
messages, which go through the policy's chat template (with `"tools"`, if there are any); a reply is a text or one
assistant message. `{"chosen", "rejected"}`: two chats that differ in their last message, the assistant's; the messages
before it are the prompt.

Reward model data: which of two replies is better, or the score of a reply, as exact token ids.

A JSON Lines file with two kinds of lines, which may be mixed.

Pairs: `{"prompt", "chosen", "rejected"}` as in `train.data.preferences`. `"margin"` is the minimum difference of the
scores. `"objective"` names the objective in which chosen is better; without it, chosen is better in the weighted sum.

Ratings: `{"prompt", "completion", "score": 0.7}` with one objective. `"scores": {"truth": 1, "size": 0.4}` by name with
several; objectives that are not named are not trained on that line.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError

from memalpha.errors import DataError
from memalpha.policy.reward_model import encode_row
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.algorithms.dpo import build_pair_row
from memalpha.train.data.chat_format import (
    check_row,
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
from memalpha.train.data.samples import TrainingSample, cross_entropy_sample

_KEYS = ("prompt", "chosen", "rejected", "tools")


@dataclass(frozen=True, slots=True)
class Pair:
    """Token ids of a prompt and two replies, each reply with the token that ends a turn.

    Attributes:
        source: file:line.
        prompt_ids: Prompt.
        chosen_ids: Better reply.
        rejected_ids: Worse reply.
    """

    source: str
    prompt_ids: tuple[int, ...]
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]

    def rows(self, unit: str) -> list[TrainingSample]:
        """Return the pair's two rows, chosen first."""
        sides = ((self.chosen_ids, True), (self.rejected_ids, False))
        rows = ((cross_entropy_sample(self.prompt_ids, ids, task=self.source), chosen) for ids, chosen in sides)
        return [build_pair_row(row, unit, chosen=chosen) for row, chosen in rows]


def read_pairs(path: Path, policy: TransformersPolicy) -> list[Pair]:
    """Read the pairs of a file, in its order.

    Raises:
        DataError: A line is invalid, its replies are the same, or a row is longer than the model takes; names file,
            line and field.
    """
    pairs = []
    for source, value in read_objects(path, _KEYS):
        line = parse_preference_line(value, source, policy.reply_form)
        if isinstance(line.prompt, str):
            prompt = encode(policy, line.prompt)
        else:
            prompt = render_messages(policy, line.prompt, line.tools, f"{source}: {line.field}")
        if not prompt:
            raise DataError(f"{source}: prompt: is empty")
        replies = zip(("chosen", "rejected"), (line.chosen, line.rejected), strict=True)
        chosen, rejected = (encode_reply(policy, reply, f"{source}: {field}") for field, reply in replies)
        for reply in (chosen, rejected):
            check_row(policy, [*prompt, *reply], source)
        pairs.append(Pair(source, tuple(prompt), chosen, rejected))
    return pairs


@dataclass(frozen=True, slots=True)
class PreferenceLine:
    """The parts of one line.

    Attributes:
        prompt: A text, or messages.
        tools: Tools for the template.
        chosen: Better reply.
        rejected: Worse reply.
        field: Field that holds the prompt, for errors.
    """

    prompt: str | list[dict[str, Any]]
    tools: list[dict[str, Any]]
    chosen: str
    rejected: str
    field: str


def parse_preference_line(value: Mapping[str, Any], source: str, form: str = "hermes") -> PreferenceLine:
    """Validate one line and return its parts.

    Args:
        value: The line.
        source: file:line for errors.
        form: Form in which the policy writes tool calls (`reply_form`).

    Raises:
        DataError: The line is invalid.
    """
    for key in ("chosen", "rejected"):
        if key not in value:
            raise DataError(f"{source}: {key}: missing")
    tools = validate_tools(value, source)
    if "prompt" in value:
        prompt = validate_prompt(value["prompt"], tools, source)
        chosen, rejected = (reply_text(value[key], f"{source}: {key}", form) for key in ("chosen", "rejected"))
        field = "prompt"
    else:
        if isinstance(value["chosen"], str) or isinstance(value["rejected"], str):
            raise DataError(f"{source}: prompt: missing (only chats may hold it themselves)")
        chats = {key: validate_messages(value[key], f"{source}: {key}") for key in ("chosen", "rejected")}
        for key, messages in chats.items():
            if not messages or messages[-1]["role"] != "assistant":
                raise DataError(f"{source}: {key}: its last message must be the assistant's")
        prompt, field = chats["chosen"][:-1], "chosen"
        if chats["rejected"][:-1] != prompt:
            raise DataError(f"{source}: rejected: what stands before its last message is not what chosen has there")
        chosen, rejected = (
            format_message(chat[-1], f"{source}: {key}[{len(chat) - 1}]", form) for key, chat in chats.items()
        )
    if chosen == rejected:
        raise DataError(f"{source}: rejected: is the same reply as chosen, which prefers nothing: leave the line out")
    return PreferenceLine(prompt, tools, chosen, rejected, field)


KEYS = ("prompt", "chosen", "rejected", "margin", "objective", "completion", "score", "scores", "tools")
_PAIR, _RATING = {"chosen", "rejected", "margin", "objective"}, {"completion", "score", "scores"}

Row = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids of a prompt and of a reply (`policy.reward_model.encode_row`)."""


@dataclass(frozen=True, slots=True)
class ComparedReplies:
    """A better and a worse reply to a prompt.

    Attributes:
        source: file:line.
        rows: Row of the better reply, then of the worse one.
        margin: Minimum difference of the scores.
        objective: Index of the objective; None compares the weighted sum.
    """

    source: str
    rows: tuple[Row, Row]
    margin: float = 0.0
    objective: int | None = None


@dataclass(frozen=True, slots=True)
class RatedReply:
    """A reply with its scores.

    Attributes:
        source: file:line.
        rows: Its single row.
        scores: Score for each objective; NaN where the line has none.
    """

    source: str
    rows: tuple[Row]
    scores: tuple[float, ...]


RewardExample = ComparedReplies | RatedReply


def read_reward_examples(path: Path, policy: TransformersPolicy, objectives: Sequence[str]) -> list[RewardExample]:
    """Read the examples of a file, in its order.

    Args:
        path: JSON Lines file.
        policy: Policy whose tokenizer and template are used.
        objectives: Names of the objectives.

    Raises:
        DataError: A line is invalid, its replies are the same, or a row is longer than the model takes; names file,
            line and field.
    """
    examples: list[RewardExample] = []
    for source, value in read_objects(path, KEYS):
        pair, rating = _PAIR & value.keys(), _RATING & value.keys()
        if pair and rating:
            raise DataError(f"{source}: {sorted(rating)[0]}: a line is a pair (chosen, rejected) or a rated completion")
        parse = _parse_rating if rating else _parse_comparison
        example = parse(value, policy, objectives, source)
        for prompt, reply in example.rows:
            check_row(policy, [*prompt, *reply], source)
        examples.append(example)
    return examples


def lines_fingerprint(lines: Sequence[Any]) -> str:
    """Return a short hash of pairs or of examples, independent of their file."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(repr(replace(line, source="")).encode())
    return digest.hexdigest()[:16]


def _parse_comparison(
    value: Mapping[str, Any], policy: TransformersPolicy, objectives: Sequence[str], source: str
) -> ComparedReplies:
    line = parse_preference_line(value, source, policy.reply_form)
    chosen, rejected = (
        _encode_row(policy, line.prompt, reply, line.tools, f"{source}: {line.field}")
        for reply in (line.chosen, line.rejected)
    )
    margin = 0.0 if value.get("margin") is None else _finite_number(value["margin"], f"{source}: margin")
    objective = value.get("objective")
    if objective is not None and objective not in objectives:
        raise DataError(f"{source}: objective: {objective!r} is none of {', '.join(objectives)} (objectives=)")
    index = None if objective is None else list(objectives).index(objective)
    return ComparedReplies(source, (chosen, rejected), margin, index)


def _parse_rating(
    value: Mapping[str, Any], policy: TransformersPolicy, objectives: Sequence[str], source: str
) -> RatedReply:
    for key in ("prompt", "completion"):
        if key not in value:
            raise DataError(f"{source}: {key}: missing")
    if ("score" in value) == ("scores" in value):
        raise DataError(f"{source}: scores: give either score, a number, or scores by objective")
    tools = validate_tools(value, source)
    reply = reply_text(value["completion"], f"{source}: completion", policy.reply_form)
    prompt = validate_prompt(value["prompt"], tools, source)
    row = _encode_row(policy, prompt, reply, tools, f"{source}: prompt")
    if "score" in value:
        if len(objectives) > 1:
            raise DataError(f"{source}: score: there are {len(objectives)} objectives: give scores by name")
        scores_by_name = {objectives[0]: value["score"]}
    else:
        scores_by_name = value["scores"]
        if not isinstance(scores_by_name, dict) or not scores_by_name:
            raise DataError(f"{source}: scores: must be an object of numbers by objective")
    for name in scores_by_name:
        if name not in objectives:
            raise DataError(f"{source}: scores: {name!r} is none of {', '.join(objectives)} (objectives=)")
    numbers = {name: _finite_number(score, f"{source}: scores.{name}") for name, score in scores_by_name.items()}
    return RatedReply(source, (row,), tuple(numbers.get(name, math.nan) for name in objectives))


def _encode_row(policy: TransformersPolicy, prompt: Any, reply: str, tools: Sequence[Any], where: str) -> Row:
    if not prompt:
        raise DataError(f"{where}: is empty")
    try:
        return encode_row(policy.tokenizer, prompt, reply, tools)
    except TemplateError as error:
        raise DataError(f"{where}: the chat template of policy {policy.name!r} refuses it: {error}") from error


def _finite_number(value: Any, source: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{source}: {value!r} is not a finite number")
    return float(value)
