"""Map strings to small integer ids and back, compactly."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

_BLOCK = 65536  # texts that exist as Python objects at a time


class StringTable(Mapping[str, int]):
    """Mapping of texts to small unique numbers, which may be reused after `pop`.

    A Python string in a dict takes some 150 bytes. So `settle` joins all texts in UTF-8, looked up by binary search
    over sorted hashes and then by comparing the bytes: 12 bytes beside the text itself. Later texts are in dicts.
    """

    def __init__(self) -> None:
        self._unsettled: dict[str, int] = {}
        self._texts: dict[int, str] = {}  # unsettled texts by number
        self._removed: set[int] = set()  # settled numbers whose text was removed
        self._set_settled(b"", np.zeros(0, np.int32))

    def _set_settled(self, text: bytes, lengths: np.ndarray) -> None:
        """Set the settled texts, numbered from 0 on; lengths are in bytes, -1 for an unused number."""
        ends = np.cumsum(np.maximum(lengths, 0), dtype=np.int64)
        numbers = np.flatnonzero(lengths >= 0).astype(np.int32)
        self._text, self._ends = text, np.concatenate([[0], ends]).astype(np.min_scalar_type(len(text)))
        hashes = np.zeros(len(lengths), np.uint32)
        for start in range(0, len(lengths), _BLOCK):
            bounds = self._ends[start : start + _BLOCK + 1].tolist()
            hashes[start : start + _BLOCK] = [_hash(text[begin:end]) for begin, end in pairwise(bounds)]
        hashes = hashes[numbers]
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._numbers = hashes[order].data, numbers[order].data  # memoryviews are fast to index

    def __len__(self) -> int:
        return len(self._unsettled) + len(self._numbers) - len(self._removed)

    def __getitem__(self, text: str) -> int:
        number = self.get(text)
        if number is None:
            raise KeyError(text)
        return number

    def __iter__(self) -> Iterator[str]:
        yield from self._unsettled
        for number in self._numbers:
            if number not in self._removed:
                yield self.text(number)

    def get(self, text: str, default: Any = None) -> Any:  # the inherited one raises an exception internally
        """Return the number of a text; `default` if it has none."""
        number = self._unsettled.get(text)
        if number is not None:
            return number
        if not self._numbers:
            return default
        raw = _encode(text)
        key = _hash(raw)
        index = bisect_left(self._hashes, key)
        while index < len(self._hashes) and self._hashes[index] == key:
            number = self._numbers[index]
            if number not in self._removed and self._settled(number) == raw:
                return number
            index += 1
        return default

    def id_of(self, text: str) -> int:
        """Return the number of a text; a new text gets the next one."""
        number = self.get(text)
        if number is None:
            self.set(text, number := len(self))
        return number

    def text(self, number: int) -> str:
        """Return the text of a number that is in use."""
        text = self._texts.get(number)
        return self._settled(number).decode("utf-8", "surrogatepass") if text is None else text

    def _settled(self, number: int) -> bytes:
        return self._text[self._ends[number] : self._ends[number + 1]]

    def set(self, text: str, number: int) -> None:
        """Assign a number to a text; neither may be in use."""
        self._unsettled[text] = number
        self._texts[number] = text

    def pop(self, text: str) -> int:
        """Give up a text and its number, which is returned; `KeyError` if it has none."""
        number = self[text]
        if self._unsettled.pop(text, None) is None:
            self._removed.add(number)
        else:
            del self._texts[number]
        return number

    def settle(self) -> None:
        """Move all texts to the compact form."""
        if not self._unsettled and not self._removed:
            return
        texts: list[bytes | None] = [None] * max(len(self._ends) - 1, 1 + max(self._texts, default=-1))
        for number in self._numbers:
            if number not in self._removed:
                texts[number] = self._settled(number)
        for number, text in self._texts.items():
            texts[number] = _encode(text)
        lengths = [-1 if text is None else len(text) for text in texts]
        self._set_settled(b"".join(text or b"" for text in texts), np.array(lengths, np.int32))
        self._unsettled, self._texts, self._removed = {}, {}, set()

    def to_arrays(self, name: str) -> dict[str, np.ndarray]:
        """Settle all texts and return them as arrays for `from_arrays`."""
        self.settle()
        lengths = np.full(len(self._ends) - 1, -1, np.int32)
        used = np.asarray(self._numbers)
        lengths[used] = np.diff(self._ends)[used]
        return {f"{name} text": np.frombuffer(self._text, np.uint8), f"{name} lengths": lengths}

    @classmethod
    def from_arrays(cls, name: str, parts: Mapping[str, np.ndarray]) -> StringTable:
        """Return the table that gave these arrays."""
        names = cls()
        names._set_settled(parts[f"{name} text"].tobytes(), parts[f"{name} lengths"])
        return names


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _hash(raw: bytes) -> int:
    return hash(raw) & 0xFFFFFFFF
