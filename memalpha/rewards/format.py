"""Rewards for the form of a reply: a regular expression, or a JSON schema.

Generated text can make a pattern backtrack or a schema run almost without end. The `regex` library therefore limits
the time of a pattern, and schemas run in a process that can be killed (`memalpha.workers`). A reply that takes longer
than `TIMEOUT` seconds gets 0 with a warning, and the run continues.

The format reward of DeepSeek-R1 (Guo et al. 2025, arXiv 2501.12948) is the pattern `(?s)<think>.*?</think>.*`.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from memalpha.arguments import finite_float, refuse_constant
from memalpha.errors import ConfigError, required_packages
from memalpha.rewards.base import reply_text
from memalpha.workers import KillableFunction, Killed

TIMEOUT = 1.0
"""Seconds for one reply: clock time of a pattern, CPU time of a schema."""
MAX_STARTS = 200
"""Most opening brackets of a reply at which parsing is tried."""

_FENCED = re.compile(r"^[ \t]*```[ \t]*json[ \t]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL | re.IGNORECASE)
_OPENING = re.compile(r"[\[{]")


class FormatReward:
    """Reward 1 if `pattern` matches the reply, else 0.

    The reply includes its `<think>` part and the surrounding white space.

    Args:
        pattern: Regular expression.
        match: "full" for the whole reply, "search" for any part of it.

    Raises:
        ConfigError: The pattern is invalid, or `regex` is not installed.
    """

    name = "format"

    def __init__(self, pattern: str, match: Literal["full", "search"] = "full") -> None:
        with required_packages("a pattern", "regex"):
            import regex
        try:
            self.pattern: Any = regex.compile(pattern)
        except (regex.error, ValueError, OverflowError) as error:
            raise ConfigError(f"pattern: {pattern!r} is no regular expression ({error})") from error
        self.match = match

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """Return 1 or 0 for each completion.

        Args:
            prompts: Ignored.
            completions: Texts or lists of messages.
            columns: Ignored.
        """
        return [float(self._matches(reply_text(reply))) for reply in completions]

    def _matches(self, text: str) -> bool:
        try:
            method = self.pattern.fullmatch if self.match == "full" else self.pattern.search
            return method(text, timeout=TIMEOUT) is not None
        except TimeoutError:
            _warn(f"pattern {self.pattern.pattern!r} took over {TIMEOUT:g} s", text)
            return False


class SchemaReward:
    """Reward 1 if the reply's first JSON value (`first_json`) is valid under the schema, else 0.

    A reply without a JSON value gets 0. The keyword "format" is not checked. A "$ref" is resolved within the schema
    only; nothing is fetched.

    Args:
        schema: Mapping or JSON file. "$schema" selects the draft (default: the newest).

    Raises:
        ConfigError: The schema is invalid or unreadable, or `jsonschema` is not installed.
    """

    name = "schema"

    def __init__(self, schema: Mapping[str, Any] | str | Path) -> None:
        with required_packages("a schema reward", "jsonschema"):
            from jsonschema import Draft202012Validator, SchemaError
            from jsonschema.validators import validator_for
        schema = dict(schema) if isinstance(schema, Mapping) else _read(Path(schema))
        try:
            validator_for(schema, default=Draft202012Validator).check_schema(schema)
        except SchemaError as error:
            raise ConfigError(f"json_schema: no JSON schema, at {error.json_path}: {error.message}") from error
        self.schema = json.dumps(schema)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """Return 1 or 0 for each completion.

        Args:
            prompts: Ignored.
            completions: Texts or lists of messages.
            columns: Ignored.
        """
        texts = [reply_text(reply, thinking=False) for reply in completions]
        outcomes = _PROCESSES.map([(self.schema, text) for text in texts])
        for text, outcome in zip(texts, outcomes, strict=True):
            if isinstance(outcome, Killed):
                _warn(f"the schema took {outcome.reason}", text)
        return [float(outcome is True) for outcome in outcomes]


def fits(schema: str, reply: str) -> bool:
    """Return True if a reply's JSON value is valid under a schema (JSON text).

    `SchemaReward` calls it in a process with limits.
    """
    validator = _validator(schema)
    value = first_json(reply)
    return value is not NO_VALUE and validator.is_valid(value)


_PROCESSES = KillableFunction(fits, seconds=TIMEOUT)


@lru_cache(8)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    parsed_schema = json.loads(schema)
    return validator_for(parsed_schema, default=Draft202012Validator)(parsed_schema, registry=Registry())


NO_VALUE = object()
"""Result of `first_json` for a reply without a JSON value (None is JSON's null)."""


def first_json(text: str) -> Any:
    """Return the first JSON value of a reply, or `NO_VALUE`.

    Candidates in this order: the whole reply, fenced blocks marked json, then any object or array. The last are tried
    at the first `MAX_STARTS` opening brackets. NaN and Infinity are invalid.
    """
    for candidate in (text, *(match[1] for match in _FENCED.finditer(text))):
        with suppress(ValueError, RecursionError):
            return _DECODER.decode(candidate.strip())
    for opening in islice(_OPENING.finditer(text), MAX_STARTS):
        with suppress(ValueError, RecursionError):
            return _DECODER.raw_decode(text, opening.start())[0]
    return NO_VALUE


_DECODER = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite_float)


def _read(path: Path) -> dict[str, Any]:
    try:
        schema = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"json_schema: {path} cannot be read ({error})") from error
    if not isinstance(schema, dict):
        raise ConfigError(f"json_schema: {path} must hold a JSON object")
    return schema


def _warn(problem: str, reply: str) -> None:
    warnings.warn(f"{problem} on a reply of {len(reply)} characters, which gets 0", RuntimeWarning, stacklevel=3)
