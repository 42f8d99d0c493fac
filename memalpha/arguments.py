"""Checks of what a user gives: each raises a `MemalphaError` that names the argument, or code, and what is needed."""

from __future__ import annotations

import inspect
import json
import math
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, cast

from memalpha.errors import MemalphaError, StoreError, describe_exception

K = TypeVar("K")
V = TypeVar("V")
_PIPES = ("/dev/stdin", "/dev/fd/", "/proc/")  # where a shell puts the output of another command


def brief_repr(value: object, length: int = 80) -> str:
    """Return the beginning of a value's `repr`, for a message."""
    try:
        return f"{value!r:.{length}}"
    except (ValueError, RecursionError):  # an integer of thousands of digits, or nesting without end
        return f"of the type {type(value).__name__}"


def name_of(value: object) -> str:
    """Return the name of a function or class; of any other object its type's."""
    return str(getattr(value, "__name__", type(value).__name__))


def group_values(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Collect the values of each key; both stay in the order in which they appear."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural but for one: "1 task", "1,200 tasks", "2 entries"."""
    if count == 1:
        return f"1 {noun}"
    ends_in_ies = noun.endswith("y") and noun[-2] not in "aeiou"
    return f"{count:,} {noun[:-1]}ies" if ends_in_ies else f"{count:,} {noun}s"


def check_count(name: str, value: object, *, error: type[MemalphaError] = StoreError) -> int:
    """Return a whole number from 0, such as one of numpy, as an `int` of 64 bits at most; raise for anything else.

    Args:
        name: Name of the argument.
        value: Value of the argument.
        error: Class of the error.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
        raise error(f"{name} {brief_repr(value)}: a whole number from 0 is needed")
    return min(int(value), sys.maxsize)


def check_flag(name: str, value: object, *, error: type[MemalphaError] = StoreError) -> None:
    """Raise unless an argument is True or False.

    Args:
        name: Name of the argument.
        value: Value of the argument.
        error: Class of the error.
    """
    if not isinstance(value, bool):
        raise error(f"{name} {brief_repr(value)}: True or False is needed")


def check_type(
    name: str, value: object, kinds: type | tuple[type, ...], *, error: type[MemalphaError] = StoreError
) -> None:
    """Raise unless an argument is an instance of a class.

    Args:
        name: Name of the argument.
        value: Value of the argument.
        kinds: Class, or classes; that of None is not named in the message.
        error: Class of the error.
    """
    if not isinstance(value, kinds):
        classes = kinds if isinstance(kinds, tuple) else (kinds,)
        needed = " or ".join(kind.__name__ for kind in classes if kind is not NoneType)
        raise error(f"{name} {brief_repr(value)}: {needed} is needed")


def check_seed(value: object, *, error: type[MemalphaError] = StoreError) -> None:
    """Raise unless a seed is a whole number of at most 64 bits."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not -(2**63) <= int(value) < 2**63:
        raise error(f"seed {brief_repr(value)}: a whole number of at most 64 bits is needed")


def check_function(
    name: str, value: object, takes: Sequence[str] | None = None, *, error: type[MemalphaError] = StoreError
) -> None:
    """Raise unless an argument can be called.

    Args:
        name: Name of the argument.
        value: Value of the argument.
        takes: What it is called with, for a function that must take as many arguments.
        error: Class of the error.
    """
    if not callable(value):
        raise error(f"{name} {brief_repr(value)}: a function is needed")
    try:
        with suppress(ValueError):  # some builtins tell no signature
            _ = takes is None or inspect.signature(value, follow_wrapped=False).bind(*takes)
    except TypeError as problem:
        raise error(f"{name}: a function of {' and '.join(takes or ())} is needed ({problem})") from problem


def check_path(name: str, value: object, *, error: type[MemalphaError] = StoreError) -> None:
    """Raise unless an argument is a path that a file can have.

    Args:
        name: Name of the argument.
        value: Value of the argument.
        error: Class of the error.
    """
    try:
        encoded = os.fsencode(value) if isinstance(value, str | os.PathLike) else b""
    except (TypeError, UnicodeEncodeError):
        encoded = b""
    if not encoded or b"\0" in encoded:
        raise error(f"{name} {_format_path(value)}: a path is needed")
    path = Path(os.fsdecode(encoded))
    if "://" in str(value):
        return
    try:
        is_pipe = stat.S_ISFIFO(path.stat().st_mode) and not str(value).startswith(_PIPES)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as problem:  # too long, without rights, or a link to itself
        raise error(f"{name} {_format_path(value)}: {problem.strerror}") from problem
    if is_pipe:  # opening it would wait for another process
        raise error(f"{name} {_format_path(value)}: a file is needed, not a device or a pipe")


def _format_path(value: object) -> str:
    return brief_repr(str(value) if isinstance(value, os.PathLike) else value, 300)


def is_file(path: str | Path) -> bool:
    """Return True for the path of a file, and False for what no path can be."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def check_items(name: str, value: Any, *, of: str = "items", error: type[MemalphaError] = StoreError) -> list[Any]:
    """Return the items of an argument as a list; raise for a text, bytes, a mapping, or what has no items.

    Args:
        name: Name of the argument.
        value: Value of the argument.
        of: Kind of the items, for the message.
        error: Class of the error.
    """
    if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        raise error(f"{name} {brief_repr(value)}: a list of {of} is needed")
    try:
        return list(value)
    except TypeError as problem:  # a numpy scalar says that it has items
        raise error(f"{name} {brief_repr(value)}: a list of {of} is needed") from problem


def check_texts(name: str, value: Any, *, error: type[MemalphaError] = StoreError) -> list[str]:
    """Return the texts of an argument as a list; raise unless all of its items are texts.

    Args:
        name: Name of the argument.
        value: Value of the argument.
        error: Class of the error.
    """
    texts = check_items(name, value, of="texts", error=error)
    for text in texts:
        if not isinstance(text, str):
            raise error(f"{name}: a list of texts is needed, not one with {brief_repr(text)}")
    return texts


@contextmanager
def name_errors(
    prefix: str, error: type[MemalphaError], *, is_own: bool = False, kept: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Re-raise exceptions of a user's code as `error`, with its name and line. A `MemalphaError` stays as it is.

    Args:
        prefix: Beginning of the message, such as "environment Dice, task 't1' raised".
        error: Class of the error.
        is_own: The code is memalpha's: what it raises is a bug and stays as it is.
        kept: Further classes that stay as they are.
    """
    try:
        yield
    except (MemalphaError, *kept):
        raise
    except (Exception, SystemExit) as problem:  # exit() in a user's code would end a run without a word
        if is_own:
            raise
        raise error(f"{prefix} {describe_exception(problem)}") from problem


def is_async_result(result: object) -> bool:
    """Return True for what an async function or generator returned: its code has not run, and never will."""
    if inspect.iscoroutine(result):
        result.close()  # otherwise Python warns that nobody awaited it
    return inspect.isawaitable(result) or inspect.isasyncgen(result)


def to_float(result: Any, where: str, *, error: type[MemalphaError]) -> float:
    """Return what a user's function gave as a float; raise unless it is a finite number.

    Args:
        result: A number, or an array or tensor without dimensions.
        where: Setting and function, for messages.
        error: Class of the error.
    """
    if is_async_result(result):
        raise error(f"{where} is async: write it as a plain function")
    value = result.item() if getattr(result, "ndim", None) == 0 else result
    if isinstance(value, Real) and abs(cast("Any", value)) <= sys.float_info.max:
        return float(value)
    raise error(f"{where} gave {brief_repr(result)}: a finite number is needed")


def locate_json_fault(name: str, value: Any, depth: int = 8) -> str:
    """Return the path of the innermost value that JSON cannot hold, such as `metadata.visits[1]`.

    Args:
        name: Name of the value.
        value: What could not be written.
        depth: Levels to look into.
    """
    items: Any = value.items() if isinstance(value, Mapping) else ()
    items = enumerate(value) if isinstance(value, list | tuple) else items
    for key, item in items if depth else ():
        try:
            json.dumps(item, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return locate_json_fault(f"{name}[{key}]" if isinstance(key, int) else f"{name}.{key}", item, depth - 1)
    return name


class RepeatedKeyError(ValueError):
    """A JSON object has a key twice: all values but the last would be lost in silence."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dict. Raises `RepeatedKeyError` naming a key that occurs twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for number, key in enumerate(keys) if key in keys[:number])
        raise RepeatedKeyError(f"{repeated}: the key occurs twice in one object")
    return values


def finite_float(text: str) -> float:
    """Return a number of JSON. Raises `ValueError` if a float cannot hold it (1e400), which would become infinite."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large for a number")
    return number


def refuse_constant(name: str) -> Any:
    """Raise `ValueError` for NaN and infinities, which JSON lacks and Python reads."""
    raise ValueError(f"{name} is not JSON: use null or a number")


def is_finite_number(value: object) -> bool:
    """Return True for a number that a float can hold, and False for NaN, infinities, booleans and anything else."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def check_target(path: Path, *, error: type[MemalphaError] = StoreError) -> None:
    """Raise if a device or a pipe is at a path: a complete file that is moved there would replace it.

    "-" is refused, too: in other programs it is the standard output, and nobody wants a file of that name.
    """
    if str(path) == "-":
        raise error("-: the path of a file is needed, not the standard output")
    try:
        is_special = path.exists() and not path.is_file() and not path.is_dir()
    except OSError:  # writing says so
        return
    if is_special:
        raise error(f"{path}: a file is needed, not a device or a pipe")
