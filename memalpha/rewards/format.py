"""Rewards for the form of a reply: a regular expression, or a JSON schema of the first JSON value in it.

Patterns come from a configuration and are run on texts that a model made, which may make them backtrack without end:
both kinds match with the `regex` library and its time limit. A reply on which a pattern takes longer than `TIMEOUT`
seconds gets 0, with a warning, and the run goes on.

Published ways: the format reward of DeepSeek-R1 (Guo et al. 2025, arXiv 2501.12948) is the pattern
`(?s)<think>.*?</think>.*`.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from memalpha.errors import ConfigError
from memalpha.rewards.base import reply_text

TIMEOUT = 1.0
"""Seconds that a pattern may take on one text."""
STARTS = 200
"""Places of a reply at which a JSON value is looked for, at most."""

_FENCED = re.compile(r"^[ \t]*```[ \t]*json[ \t]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL | re.IGNORECASE)
_OPENING = re.compile(r"[\[{]")


class FormatReward:
    """1 where `pattern` matches the reply (`match` "full": all of it, "search": some part), else 0.

    The reply counts with its `<think>` part and with the white space around it. Raises `ConfigError` for what is no
    pattern.
    """

    name = "format"

    def __init__(self, pattern: str, match: Literal["full", "search"] = "full") -> None:
        self.pattern = _compiled(pattern)
        self.match = match

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """1 or 0 for each completion."""
        return [float(_matches(self.pattern, reply_text(reply), full=self.match == "full")) for reply in completions]


class SchemaReward:
    """1 where the reply's JSON value (`first_json`) is valid under the schema, else 0; also where it has none.

    `schema` is a mapping or a JSON file; which draft, its "$schema" says (else the newest). Formats ("format") are not
    checked, and nothing is fetched: a "$ref" leads to a place in the schema itself. Raises `ConfigError`.
    """

    name = "schema"

    def __init__(self, schema: Mapping[str, Any] | str | Path) -> None:
        try:
            from jsonschema import Draft202012Validator, SchemaError
            from jsonschema.validators import extend, validator_for
            from referencing import Registry
        except ModuleNotFoundError as error:
            raise ConfigError("a schema reward needs jsonschema: pip install 'memalpha[train]'") from error
        if not isinstance(schema, Mapping):
            schema = _read(Path(schema))
        schema = dict(schema)
        kind = validator_for(schema, default=Draft202012Validator)
        try:
            kind.check_schema(schema)
        except SchemaError as error:
            raise ConfigError(f"json_schema: no JSON schema, at {error.json_path}: {error.message}") from error
        self._validator = extend(kind, {"pattern": _pattern})(schema, registry=Registry())

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """1 or 0 for each completion."""
        return [float(self._fits(reply_text(reply, thinking=False))) for reply in completions]

    def _fits(self, text: str) -> bool:
        value = first_json(text)
        try:
            return value is not NOTHING and self._validator.is_valid(value)
        except RecursionError:  # a value nested so deep fits no schema that anybody meant
            return False


NOTHING = object()
"""What `first_json` gives where there is no value (None is JSON's null)."""


def first_json(text: str) -> Any:
    """The first JSON value of a reply, else `NOTHING`.

    That is the reply itself, where it is one as a whole; else the first fenced block marked json that holds one; else
    the first object or array that begins anywhere (of `STARTS` places where one could). NaN and Infinity are no JSON.
    """
    for whole in (text, *(found[1] for found in _FENCED.finditer(text))):
        value = _decoded(whole)
        if value is not NOTHING:
            return value
    for number, opening in enumerate(_OPENING.finditer(text)):
        if number == STARTS:
            break
        try:
            return _DECODER.raw_decode(text, opening.start())[0]
        except (ValueError, RecursionError):
            continue
    return NOTHING


def _decoded(text: str) -> Any:
    try:
        return _DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        return NOTHING


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is too large")
    return number


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"json_schema: {path} cannot be read ({error})") from error
    if not isinstance(schema, dict):
        raise ConfigError(f"json_schema: {path} must hold a JSON object")
    return schema


def _compiled(pattern: str) -> Any:
    try:
        import regex
    except ModuleNotFoundError as error:
        raise ConfigError("a pattern needs regex: pip install 'memalpha[train]'") from error
    try:
        return regex.compile(pattern)
    except (regex.error, ValueError, OverflowError) as error:
        raise ConfigError(f"pattern: {pattern!r} is no regular expression ({error})") from error


def _matches(pattern: Any, text: str, *, full: bool) -> bool:
    try:
        return (pattern.fullmatch if full else pattern.search)(text, timeout=TIMEOUT) is not None
    except TimeoutError:
        warnings.warn(
            f"pattern {pattern.pattern!r} took over {TIMEOUT:g} s on a reply of {len(text)} characters, which counts "
            "as no match: write it without nested repeats",
            RuntimeWarning,
            stacklevel=2,
        )
        return False


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Any:
    """JSON schema's "pattern", with a time limit."""
    import jsonschema

    if validator.is_type(instance, "string") and not _matches(_compiled(pattern), instance, full=False):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")
