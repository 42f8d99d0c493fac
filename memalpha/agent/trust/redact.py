"""Redaction: a function of the caller's removes secrets from a chunk before model and memory see it."""

from __future__ import annotations

from collections.abc import Callable

from memalpha.errors import ConfigError
from memalpha.types import Chunk


def redact_chunk(chunk: Chunk, redact: Callable[[str], str]) -> Chunk:
    """Return a chunk whose texts went through `redact`; speakers stay.

    Raises:
        ConfigError: `redact` returned no text.
    """

    def clean(text: str) -> str:
        if not isinstance(redacted := redact(text), str):
            raise ConfigError(f"redact: returned {type(redacted).__name__}; a function from text to text is needed")
        return redacted

    if chunk.text is not None:
        return chunk.model_copy(update={"text": clean(chunk.text)})
    turns = tuple(turn.model_copy(update={"text": clean(turn.text)}) for turn in chunk.turns)
    return chunk.model_copy(update={"turns": turns})
