"""Plain data for reward models: which of two replies is better, or what a reply is worth, as exact token ids.

A JSON Lines file, of lines of two kinds, also mixed. `{"prompt", "chosen", "rejected"}` as in `train.preference_data`,
with `"margin"` (by how much, at least, the scores should differ) and `"objective"` (in which respect chosen is better;
without: all in all, by the weighted sum). `{"prompt", "completion", "score": 0.7}`: what a reply is worth where there
is one objective; `"scores": {"truth": 1, "size": 0.4}` by name where there are several (those not named are not learnt
from that line).
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
"""A prompt's ids and a reply's (`reward_model_.encode_row`)."""


@dataclass(frozen=True, slots=True)
class ComparedReplies:
    """`rows`: a better reply's, then a worse one's; `objective` is the place of the one in which it is (None: the
    weighted sum)."""

    source: str
    rows: tuple[Row, Row]
    margin: float = 0.0
    objective: int | None = None


@dataclass(frozen=True, slots=True)
class RatedReply:
    """`rows`: one, and what it is worth by objective, NaN where that is not said."""

    source: str
    rows: tuple[Row]
    scores: tuple[float, ...]


RewardExample = ComparedReplies | RatedReply


def read_reward_examples(path: Path, policy: TransformersPolicy, objectives: Sequence[str]) -> list[RewardExample]:
    """The lines of a file, in its order. Raises `DataError` with file, line and field for anything that is none, for
    two replies that are the same, and for a row longer than the model takes."""
    found: list[RewardExample] = []
    for where, value in read_objects(path, KEYS):
        pair, rating = _PAIR & value.keys(), _RATING & value.keys()
        if pair and rating:
            raise DataError(f"{where}: {sorted(rating)[0]}: a line is a pair (chosen, rejected) or a rated completion")
        one = (
            _parse_rating(value, policy, objectives, where)
            if rating
            else _parse_comparison(value, policy, objectives, where)
        )
        check_room(policy, max(len(prompt) + len(reply) for prompt, reply in one.rows), where)
        found.append(one)
    return found


def reward_examples_fingerprint(judged: Sequence[RewardExample]) -> str:
    """What tells one list from another, wherever its file lies."""
    found = hashlib.sha256()
    for one in judged:
        told = (one.margin, one.objective) if isinstance(one, ComparedReplies) else one.scores
        found.update(repr((one.rows, told)).encode())
    return found.hexdigest()[:16]


def _parse_comparison(
    value: Mapping[str, Any], policy: TransformersPolicy, objectives: Sequence[str], where: str
) -> ComparedReplies:
    said = parse_preference_line(value, where)
    if said.chosen == said.rejected:
        raise DataError(f"{where}: rejected: is the same reply as chosen, which prefers nothing: leave the line out")
    chosen, rejected = (
        _encode_row(policy, said.prompt, reply, said.tools, where, said.field) for reply in (said.chosen, said.rejected)
    )
    margin = 0.0 if value.get("margin") is None else _finite_number(value["margin"], f"{where}: margin")
    objective = value.get("objective")
    if objective is not None and objective not in objectives:
        raise DataError(f"{where}: objective: {objective!r} is none of {', '.join(objectives)} (objectives=)")
    place = None if objective is None else list(objectives).index(objective)
    return ComparedReplies(where, (chosen, rejected), margin, place)


def _parse_rating(
    value: Mapping[str, Any], policy: TransformersPolicy, objectives: Sequence[str], where: str
) -> RatedReply:
    for key in ("prompt", "completion"):
        if key not in value:
            raise DataError(f"{where}: {key}: missing")
    if ("score" in value) == ("scores" in value):
        raise DataError(f"{where}: scores: give either score, a number, or scores by objective")
    tools = validate_tools(value, where)
    reply = reply_text(value["completion"], f"{where}: completion")
    row = _encode_row(policy, validate_prompt(value["prompt"], tools, where), reply, tools, where)
    if "score" in value:
        if len(objectives) > 1:
            raise DataError(f"{where}: score: there are {len(objectives)} objectives: give scores by name")
        given = {objectives[0]: value["score"]}
    else:
        given = value["scores"]
        if not isinstance(given, dict) or not given:
            raise DataError(f"{where}: scores: must be an object of numbers by objective")
    for name in given:
        if name not in objectives:
            raise DataError(f"{where}: scores: {name!r} is none of {', '.join(objectives)} (objectives=)")
    numbers = {name: _finite_number(number, f"{where}: scores.{name}") for name, number in given.items()}
    return RatedReply(where, (row,), tuple(numbers.get(name, math.nan) for name in objectives))


def _encode_row(
    policy: TransformersPolicy,
    prompt: Any,
    reply: str,
    tools: Sequence[Mapping[str, Any]],
    where: str,
    field: str = "prompt",
) -> Row:
    if not prompt:
        raise DataError(f"{where}: {field}: is empty")
    try:
        return encode_row(policy.tokenizer, prompt, reply, tools)
    except TemplateError as error:
        raise DataError(f"{where}: {field}: the chat template of policy {policy.name!r} refuses it: {error}") from error


def _finite_number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{where}: {value!r} is not a finite number")
    return float(value)
