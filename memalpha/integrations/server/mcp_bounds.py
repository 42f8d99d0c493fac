"""What comes in from MCP hosts, read kindly, and what goes out, bounded: hosts cut or refuse long answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from memalpha.store.io.jsonl import to_json
from memalpha.store.search.bm25 import words
from memalpha.store.search.passages import split_passages

MAX_ANSWER = 60_000
"""Bytes of an answer's JSON, which goes out twice: as structured content and as text."""
_LONG = 4_000  # characters of a content from which a search that is too long shows the best passage alone
_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int, float),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def read_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's arguments as models mean them.

    A number, list or object that is given as text is read, a number where a text belongs becomes text, and an optional
    argument that is null or blank counts as not given.

    Args:
        arguments: Arguments as they came.
        schema: JSON schema of the tool.
    """
    meant = {}
    for name, value in arguments.items():
        kind = schema["properties"].get(name, {}).get("type")
        is_blank = value is None or (isinstance(value, str) and not value.strip())
        if is_blank and name in schema["properties"] and name not in schema.get("required", ()):
            continue
        if isinstance(value, str) and kind in _TYPES:
            value = _parse(value, _TYPES[kind])
        elif kind == "string" and isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        meant[name] = value
    return meant


def _parse(text: str, types: tuple[type, ...]) -> Any:
    """Return the JSON value of a text if it is of these types, else the text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, types) and (bool in types or not isinstance(value, bool)) else text


def fit_items(items: Sequence[dict[str, Any]], size: int = 0) -> list[dict[str, Any]]:
    """Return the first items that fit into an answer, at least one: its content is cut if it does not fit alone.

    Args:
        items: Entries or outcomes as JSON objects.
        size: Bytes that the answer has besides.
    """
    fitting: list[dict[str, Any]] = []
    for item in items:
        size += _count_bytes(item)
        if size > MAX_ANSWER:
            break
        fitting.append(item)
    return fitting or [_cut(item) for item in items[:1]]


def fit_hits(hits: Sequence[dict[str, Any]], query: str) -> dict[str, Any]:
    """Return the answer of a search: hits, and how many were left out.

    Args:
        hits: Entries with scores, best first.
        query: Query of the search.
    """
    if sum(map(_count_bytes, hits)) > MAX_ANSWER:
        hits = [_shorten(hit, query) if len(hit["content"]) > _LONG else hit for hit in hits]
    fitting = fit_items(hits)
    left_out = len(hits) - len(fitting)
    return {"hits": fitting} | ({"left_out": left_out} if left_out else {})


def _shorten(hit: dict[str, Any], query: str) -> dict[str, Any]:
    """Replace a content by the passage of it that has most words of the query."""
    terms = set(words(query))
    passage = max(split_passages(hit["content"]), key=lambda passage: len(terms.intersection(words(passage))))
    first = min((index for term in terms if (index := passage.lower().find(term)) >= 0), default=0)
    start = max(0, min(first - _LONG // 2, len(passage) - _LONG))  # of a passage without blanks
    return {
        **hit,
        "content": passage[start : start + _LONG],
        "shown": f"best passage of {len(hit['content'])} characters",
    }


def _cut(item: dict[str, Any]) -> dict[str, Any]:
    """Cut the texts of an item, which alone is longer than an answer may be."""
    length = MAX_ANSWER // 10  # of up to four bytes each, in up to two texts
    long = {name: value for name, value in item.items() if isinstance(value, str) and len(value) > length}
    shown = ", ".join(f"{name}: {length} of {len(value)} characters" for name, value in long.items())
    return {**item, **{name: value[:length] for name, value in long.items()}, "shown": shown}


def _count_bytes(value: Any) -> int:
    return len(to_json(value).encode())
