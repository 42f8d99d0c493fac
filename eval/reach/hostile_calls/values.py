"""Hostile values: wrong types, numbers without end, texts that are none, deep nesting, paths that are no files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np


def _nest(levels: int, *, mapping: bool) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if mapping else [value]
    return value


class Anything:
    """Class that takes any arguments."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self.arguments = args, keywords


def _junk() -> Iterator[Any]:
    yield from ("a\ud800", None, 3, [])


NUMBERS: dict[str, Any] = {
    "True": True,
    "0": 0,
    "-1": -1,
    "2**63": 2**63,
    "-2**200": -(2**200),
    "10**400": 10**400,
    "10**5000": 10**5000,
    "1.5": 1.5,
    "1e308": 1e308,
    "-1e308": -1e308,
    "5e-324": 5e-324,
    "NaN": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "numpy NaN": np.float32("nan"),
    "numpy -3": np.int64(-3),
    "Decimal NaN": Decimal("sNaN"),
    "1j": 1j,
}
TEXTS: dict[str, str] = {
    "empty text": "",
    "blank": " \t\n",
    "NUL": "a\x00b",
    "lone surrogate": "a\ud800",
    "escape sequences": "\x1b[2J\x1b]0;owned\x07",
    "right-to-left override": "\u202egnp.exe",
    "combining marks": "e" + "\u0301" * 5000,
    "long": "x" * 300_000,
    "SQL": "'; DROP TABLE versions; --",
    "FTS": 'a" OR NEAR(b *) AND NOT (',
    "dots": "folder/../folder/../dots",
    "number": "10" * 3000,
    "nan": "nan",
    "-inf": "-inf",
    "negative": "-5",
    "dashes": "--help",
    "braces": "{0.__class__}%s%n${x}",
    "JSON deep": "[" * 100_000,
    "YAML aliases": "&a [*a, *a]",
    "YAML object": "!!python/object/apply:os.system [exit]",
    "date": "9999-12-31T23:59:59.999999+14:00",
    "year 0": "0000-00-00",
    "regular expression": "(a+)+$" * 20,
    "URL": "ftp://localhost/x",
    "URL without a host": "postgresql://",
    "endpoint without a model": "http://",
    "scripted": "scripted:",
}
OBJECTS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "bytes": lambda: b"\xff\xfe",
    "bytearray": lambda: bytearray(b"x"),
    "empty list": list,
    "empty mapping": dict,
    "list of None": lambda: [None],
    "list of lists": lambda: [["a"], [1]],
    "list of texts": lambda: ["Ana", "a\ud800"],
    "mapping with other keys": lambda: {1: 2, None: 3},
    "mapping": lambda: {"content": float("nan")},
    "mapping with odd texts": lambda: {"a\ud800": "b\x00", "\x00": ["\udfff"], "": {"": ""}},
    "set": lambda: {1, "a"},
    "object": object,
    "class": lambda: Anything,
    "function": lambda: lambda *_, **__: object(),
    "exception": lambda: ValueError("x"),
    "deep list": lambda: _nest(5000, mapping=False),
    "deep mapping": lambda: _nest(60, mapping=True),
    "deeper mapping": lambda: {"$and": [_nest(5000, mapping=True)]},
    "iterator of junk": _junk,
    "array of NaN": lambda: np.full((2, 256), np.nan),
    "array of texts": lambda: np.array([["a", "b"]]),
    "array of objects": lambda: np.array([None, {}], dtype=object),
    "empty array": lambda: np.zeros((0, 256)),
    "date": lambda: datetime(2024, 5, 1),
    "range": lambda: range(3),
}
PATHS = ("folder", "missing/file", "fifo", "file/below", "loop", "full", "unreadable.bin")
# No value may name anything outside of the folder: what is called with them writes files, as root too.


def make_paths(folder: Path) -> dict[str, str]:
    """Make paths that are no readable files, by name: a folder, a FIFO, a link to itself, below a file, no text.

    Args:
        folder: Folder for them.
    """
    (folder / "folder").mkdir()
    (folder / "file").touch()
    (folder / "unreadable.bin").write_bytes(bytes(range(256)) * 20)
    (folder / "loop").symlink_to("loop")
    (folder / "full").symlink_to("/dev/full")
    os.mkfifo(folder / "fifo")
    return {f"path {name}": f"{folder}/{name}" for name in PATHS} | {"path of 300 characters": f"{folder}/{'x' * 300}"}


def hostile_values(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return factories of all hostile values by name.

    Args:
        folder: Folder with the paths of `make_paths`.
    """
    paths = {f"path {name}": f"{folder}/{name}" for name in PATHS} | {"path of 300 characters": f"{folder}/{'x' * 300}"}
    plain = {**NUMBERS, **{f"text {name}": value for name, value in TEXTS.items()}, **paths}
    values: dict[str, Callable[[], Any]] = {name: lambda v=value: v for name, value in plain.items()}
    values |= {f"{name}, a Path": lambda v=value: Path(v) for name, value in paths.items()}
    return values | OBJECTS
