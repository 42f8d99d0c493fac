"""Entries of a small writer in the words of the chat, as `MemoryAgent` writes them if the policy's `quotes` is True.

A small model copies values and guesses their topics: "pet age: 903 555 0142". So the sentence of the chunk that holds
the value is written in the place of each content (`quote_chunk`). The writer's own words, its note, stay in the
metadata of the entry. It was trained on a memory of notes, so its view shows notes, under ids like those of notes
(`show_notes`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from memalpha.agent.parsing import UNSAID
from memalpha.agent.transcript import is_anonymous, is_assistant, spoken_lines
from memalpha.errors import UnknownEntry
from memalpha.store.fields import id_topic
from memalpha.store.memory import Memory
from memalpha.store.search.lexical import words
from memalpha.store.values import value_words
from memalpha.types import Chunk, Observation, ToolCall

NOTE = "note"
"""Metadata key of the writer's own words. Two facts of a sentence are two entries: one may change or end alone."""
QUOTED_WORDS = 6
"""Fewest words of a quoted sentence, if its line has so many."""

_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|(?<=[\u3002\uff01\uff1f])")


def quote_chunk(
    calls: Sequence[ToolCall], chunk: Chunk, shown_ids: Mapping[str, str]
) -> tuple[tuple[ToolCall, ...], list[str | None]]:
    """Return calls whose contents are sentences of the chunk, and the notes that they stand for.

    "pet age: 903 555 0142" becomes "i learned the vet's number by heart, 903 555 0142", which is true and is found. The
    sentence has most words of the value, then of the content, and is the shortest of those; one of fewer than
    `QUOTED_WORDS` words comes with those around it. A content stays if no sentence has half of the words of its value,
    but for what an assistant said. If no line has any of them, the writer made it up or repeats what it remembers: the
    call fails with the code "invalid_content".

    Args:
        calls: Calls of the writer.
        chunk: Chunk that it read.
        shown_ids: Ids of entries by those that the writer saw, from `show_notes`.

    Returns:
        The calls, and for each the note that its sentence stands for, if it was quoted.
    """
    lines = [*spoken_lines(chunk)]
    said = {word for _, line in lines for word in words(line)}
    sentences = [
        (set(words(text)), text if is_anonymous(speaker) else f"{speaker}: {text}")
        for speaker, line in lines
        if not is_assistant(speaker)
        for text in _long_sentences(line)
    ]
    quoted: list[ToolCall] = []
    notes: list[str | None] = []
    for call in calls:
        arguments = dict(call.arguments)
        id, content, error, note = arguments.get("id"), arguments.get("content"), call.error, None
        if isinstance(id, str):
            arguments |= {"id": shown_ids.get(id, id)}
        if isinstance(content, str) and arguments.keys() & {"category", "id"}:
            value, terms = value_words(content), set(words(content))
            shares = [(len(value & found), len(terms & found), -len(found), text) for found, text in sentences]
            share, *_, text = max(shares, key=lambda item: item[:3], default=(0, 0, 0, ""))
            if value.isdisjoint(said):
                error = UNSAID
            elif 2 * share >= len(value):
                arguments["content"], note = text, content
        quoted.append(replace(call, arguments=arguments, error=error))
        notes.append(note)
    return tuple(quoted), notes


def show_notes(observation: Observation, memory: Memory) -> tuple[Observation, dict[str, str]]:
    """Return what the writer sees in the place of an observation: notes for the entries that have them.

    A note that its entry no longer says, because somebody else changed it, is not shown.

    Args:
        observation: Observation of the memory.
        memory: The memory.

    Returns:
        The observation to show, and the ids of entries by those that it shows.
    """
    entries, shown_ids, ids = [], dict[str, str](), {entry.id for entry in observation.entries}
    for entry in observation.entries:
        try:
            note = memory.get(entry.id).metadata.get(NOTE)
        except UnknownEntry:  # somebody else ended it since the observation
            note = None
        value = value_words(note) if isinstance(note, str) else set()
        if isinstance(note, str) and 2 * len(value.intersection(words(entry.content))) >= len(value):
            shown_id = f"{id_topic(note)}#{entry.id.rpartition('#')[2]}"
            if shown_id in ids or shown_id in shown_ids:
                shown_id = entry.id
            shown_ids[shown_id] = entry.id
            entry = replace(entry, id=shown_id, content=note)
        entries.append(entry)
    return replace(observation, entries=tuple(entries)), shown_ids


def _long_sentences(line: str) -> Iterator[str]:
    """Yield each sentence of a line; one of fewer than `QUOTED_WORDS` words with those before it, then after it."""
    parts = [part for part in _SENTENCE_END.split(line.strip()) if part.strip()]
    for number in range(len(parts)):
        start, end = number, number + 1
        while len(words(" ".join(parts[start:end]))) < QUOTED_WORDS and (start > 0 or end < len(parts)):
            start, end = (start - 1, end) if start > 0 else (start, end + 1)
        yield " ".join(parts[start:end])
