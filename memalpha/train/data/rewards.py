"""Reward model data: which of two replies is better, or the score of a reply, as exact token ids.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError

from memalpha.errors import DataError
from memalpha.policy.reward_model import encode_row
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.data.chat_format import check_room, read_objects, reply_text, validate_prompt, validate_tools
from memalpha.train.data.preferences import parse_preference_line

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
        example = (
            _parse_rating(value, policy, objectives, source)
            if rating
            else _parse_comparison(value, policy, objectives, source)
        )
        check_room(policy, max(len(prompt) + len(reply) for prompt, reply in example.rows), source)
        examples.append(example)
    return examples


def reward_examples_fingerprint(examples: Sequence[RewardExample]) -> str:
    """Return a short hash of the examples, independent of their file."""
    digest = hashlib.sha256()
    for example in examples:
        labels = (example.margin, example.objective) if isinstance(example, ComparedReplies) else example.scores
        digest.update(repr((example.rows, labels)).encode())
    return digest.hexdigest()[:16]


def _parse_comparison(
    value: Mapping[str, Any], policy: TransformersPolicy, objectives: Sequence[str], source: str
) -> ComparedReplies:
    line = parse_preference_line(value, source, policy.reply_form)
    if line.chosen == line.rejected:
        raise DataError(f"{source}: rejected: is the same reply as chosen, which prefers nothing: leave the line out")
    chosen, rejected = (
        _encode_row(policy, line.prompt, reply, line.tools, source, line.field)
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
    row = _encode_row(policy, validate_prompt(value["prompt"], tools, source), reply, tools, source)
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


def _encode_row(
    policy: TransformersPolicy,
    prompt: Any,
    reply: str,
    tools: Sequence[Mapping[str, Any]],
    source: str,
    field: str = "prompt",
) -> Row:
    if not prompt:
        raise DataError(f"{source}: {field}: is empty")
    try:
        return encode_row(policy.tokenizer, prompt, reply, tools)
    except TemplateError as error:
        raise DataError(
            f"{source}: {field}: the chat template of policy {policy.name!r} refuses it: {error}"
        ) from error


def _finite_number(value: Any, source: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{source}: {value!r} is not a finite number")
    return float(value)
