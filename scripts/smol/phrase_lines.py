"""Split lists of phrasings."""

from __future__ import annotations


def lines(text: str) -> tuple[str, ...]:
    """Split a text into its non-empty lines."""
    return tuple(line.strip() for line in text.splitlines() if line.strip())
