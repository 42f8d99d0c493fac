"""Texts by number and numbers by text, in little memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

_BLOCK = 65536  # texts that are Python objects at once


class StringTable(Mapping[str, int]):
    """Texts, each with a number (a small one) that no other has; both may be given up and then given out again.

    As a Python string in a dict a text takes some 150 bytes. So what `settle` finds is laid end to end in UTF-8 and
    looked up by its hash among sorted ones: 12 bytes beside the text itself, which decides. The rest is in dicts.
    """

    def __init__(self) -> None:
        self._new: dict[str, int] = {}
        self._texts: dict[int, str] = {}  # the same by number
        self._gone: set[int] = set()  # numbers that are no longer for the text settled with them
        self._put(b"", np.zeros(0, np.int32))

    def _put(self, text: bytes, lengths: np.ndarray) -> None:
        """Have these texts, with the numbers from 0 on, as what is settled; lengths are in bytes, -1 where a number
        is not in use."""
        ends = np.cumsum(np.maximum(lengths, 0), dtype=np.int64)
        numbers = np.flatnonzero(lengths >= 0).astype(np.int32)
        self._text, self._ends = text, np.concatenate([[0], ends]).astype(np.min_scalar_type(len(text)))
        hashes = np.zeros(len(lengths), np.uint32)
        for start in range(0, len(lengths), _BLOCK):
            bounds = self._ends[start : start + _BLOCK + 1].tolist()
            hashes[start : start + _BLOCK] = [_hash(text[begin:end]) for begin, end in pairwise(bounds)]
        hashes = hashes[numbers]
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._numbers = hashes[order].data, numbers[order].data  # memoryviews are quick to look into

    def __len__(self) -> int:
        return len(self._new) + len(self._numbers) - len(self._gone)

    def __getitem__(self, text: str) -> int:
        number = self.get(text)
        if number is None:
            raise KeyError(text)
        return number

    def __iter__(self) -> Iterator[str]:
        yield from self._new
        for number in self._numbers:
            if number not in self._gone:
                yield self.text(number)

    def get(self, text: str, default: Any = None) -> Any:  # a mapping's own comes here by way of an exception
        """The number of a text; `default` if it has none."""
        number = self._new.get(text)
        if number is not None:
            return number
        if not self._numbers:
            return default
        raw = _raw(text)
        key = _hash(raw)
        place = bisect_left(self._hashes, key)
        while place < len(self._hashes) and self._hashes[place] == key:
            number = self._numbers[place]
            if number not in self._gone and self._settled(number) == raw:
                return number
            place += 1
        return default

    def id_of(self, text: str) -> int:
        """The number of a text; one that has none is given the next."""
        number = self.get(text)
        if number is None:
            self.set(text, number := len(self))
        return number

    def text(self, number: int) -> str:
        """The text that has a number which is in use."""
        text = self._texts.get(number)
        return self._settled(number).decode("utf-8", "surrogatepass") if text is None else text

    def _settled(self, number: int) -> bytes:
        return self._text[self._ends[number] : self._ends[number + 1]]

    def set(self, text: str, number: int) -> None:
        """Give a text a number, neither of which is in use."""
        self._new[text] = number
        self._texts[number] = text

    def pop(self, text: str) -> int:
        """Give up a text and its number, which is returned; `KeyError` if it has none."""
        number = self[text]
        if self._new.pop(text, None) is None:
            self._gone.add(number)
        else:
            del self._texts[number]
        return number

    def settle(self) -> None:
        """Lay all texts end to end."""
        if not self._new and not self._gone:
            return
        texts: list[bytes | None] = [None] * max(len(self._ends) - 1, 1 + max(self._texts, default=-1))
        for number in self._numbers:
            if number not in self._gone:
                texts[number] = self._settled(number)
        for number, text in self._texts.items():
            texts[number] = _raw(text)
        lengths = [-1 if text is None else len(text) for text in texts]
        self._put(b"".join(text or b"" for text in texts), np.array(lengths, np.int32))
        self._new, self._texts, self._gone = {}, {}, set()

    def to_arrays(self, name: str) -> dict[str, np.ndarray]:
        """All texts, settled, as arrays for `of_parts`."""
        self.settle()
        lengths = np.full(len(self._ends) - 1, -1, np.int32)
        used = np.asarray(self._numbers)
        lengths[used] = np.diff(self._ends)[used]
        return {f"{name} text": np.frombuffer(self._text, np.uint8), f"{name} lengths": lengths}

    @classmethod
    def from_arrays(cls, name: str, parts: Mapping[str, np.ndarray]) -> StringTable:
        """What gave these parts."""
        names = cls()
        names._put(parts[f"{name} text"].tobytes(), parts[f"{name} lengths"])
        return names


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _hash(raw: bytes) -> int:
    return hash(raw) & 0xFFFFFFFF
