"""File format for named arrays, read as a whole or not at all.

Layout: magic; length of the header (8 bytes); header (JSON: the caller's fields, and name, type and shape of each
array); the arrays (little-endian); HMAC-SHA-256 of everything before it, under a key of the caller.
"""

from __future__ import annotations

import hmac
import json
import math
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_MAGIC = b"memalpha index\n\0"
_DIGEST = 32
_TYPES = ("<f2", "<f4", "<f8", "|i1", "<i4", "<i8", "|u1", "<u2", "<u4", "|b1")
_BLOCK = 1 << 22

Arrays = Mapping[str, np.ndarray]


def write_arrays(file: BinaryIO, header: Mapping[str, Any], arrays: Arrays, key: bytes) -> None:
    """Write header and arrays to an open file and sync it.

    Args:
        file: Empty file, open for writing.
        header: Fields for the header; values that JSON can hold.
        arrays: Arrays by name.
        key: Secret key of the checksum.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    described = [[name, part.dtype.newbyteorder("<").str, part.shape] for name, part in contiguous.items()]
    head = json.dumps({**header, "arrays": described}).encode()
    digest = hmac.new(key, digestmod="sha256")
    for block in (_MAGIC, len(head).to_bytes(8, "little"), head):
        digest.update(block)
        file.write(block)
    for part, (_, kind, _) in zip(contiguous.values(), described, strict=True):
        view = part.astype(kind, copy=False).reshape(-1).view(np.uint8).data
        for start in range(0, len(view), _BLOCK):
            digest.update(view[start : start + _BLOCK])
            file.write(view[start : start + _BLOCK])
    file.write(digest.digest())
    file.flush()
    os.fsync(file.fileno())


def read_arrays(path: Path, key: bytes, spare: Collection[str] = ()) -> tuple[dict[str, Any], Arrays] | None:
    """Read the header (without `arrays`) and the arrays of a file.

    Args:
        path: File to read.
        key: Key that the file was written with.
        spare: Names of arrays that get a quarter more rows of zeros, which take no memory before they are used.

    Returns:
        Header and arrays, or None if the file is missing or any byte is not as written.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            return (
                _read(file, status.st_size, key, spare) if stat.S_ISREG(status.st_mode) else None
            )  # a pipe would wait
    except (OSError, ValueError, TypeError, KeyError):  # the header may be anything before it has been checked
        return None


def _read(file: BinaryIO, size: int, key: bytes, spare: Collection[str]) -> tuple[dict[str, Any], Arrays] | None:
    digest = hmac.new(key, digestmod="sha256")
    start = file.read(len(_MAGIC) + 8)
    length = int.from_bytes(start[len(_MAGIC) :], "little")
    if start[: len(_MAGIC)] != _MAGIC or length > size:
        return None
    head = file.read(length)
    digest.update(start + head)
    header = json.loads(head)
    described = [(name, kind, tuple(shape)) for name, kind, shape in header.pop("arrays")]
    if any(kind not in _TYPES or any(type(n) is not int or n < 0 for n in shape) for _, kind, shape in described):
        return None
    sizes = [math.prod(shape) * np.dtype(kind).itemsize for _, kind, shape in described]
    if len(start) + length + sum(sizes) + _DIGEST != size:  # never allocate more than the file holds
        return None
    arrays = {}
    for name, kind, shape in described:
        rows = shape[0] * 5 // 4 if name in spare else shape[0]
        arrays[name] = np.zeros((rows, *shape[1:]), kind)
        view = arrays[name][: shape[0]].reshape(-1).view(np.uint8).data
        for offset in range(0, len(view), _BLOCK):
            if file.readinto(view[offset : offset + _BLOCK]) != len(view[offset : offset + _BLOCK]):  # pyright: ignore
                return None
            digest.update(view[offset : offset + _BLOCK])
    return (header, arrays) if hmac.compare_digest(file.read(), digest.digest()) else None


def pack_strings(name: str, strings: Iterable[str]) -> dict[str, np.ndarray]:
    """Return strings as two arrays: their joined text, and the length of each in characters."""
    strings = list(strings)
    text = np.frombuffer("".join(strings).encode("utf-8", "surrogatepass"), np.uint8)
    return {f"{name} text": text, f"{name} lengths": np.fromiter(map(len, strings), np.int32, len(strings))}


def unpack_strings(name: str, arrays: Arrays) -> list[str]:
    """Return the strings that `pack_strings` packed."""
    text = arrays[f"{name} text"].tobytes().decode("utf-8", "surrogatepass")
    ends = np.cumsum(arrays[f"{name} lengths"], dtype=np.int64).tolist()
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
