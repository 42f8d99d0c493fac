"""Pieces of HTML that all parts of the page share. Every text of a memory goes through `text`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from memalpha.report.memory_page.history import History
from memalpha.store.validation import visible

SPEAKER_COLOURS = 6
"""Colours of speakers in the style sheet; further speakers repeat them."""


def text(value: str) -> str:
    """Return somebody's text as HTML, with control characters and changes of direction made visible."""
    return escape(visible(value))


def moment(time: str) -> str:
    """Return a time of the log to the second."""
    return escape(time[:19].replace("T", " "))


def number(position: int | None) -> str:
    """Return a position as an attribute's value, "" for none."""
    return "" if position is None else str(position)


def event(position: int, history: History) -> str:
    """Return a position with its time, where the page has it."""
    entry = history.log.get(position)
    return f"position {position}" + (f" ({moment(entry[0])})" if entry is not None else "")


def table(head: str, rows: Sequence[str], label: str) -> str:
    """Return a table that scrolls by keyboard too where it is too wide.

    Args:
        head: Row of the head, as HTML.
        rows: Rows of the body, as HTML.
        label: Name of the region, as HTML.
    """
    content = f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{content}</div>'


class SpeakerTags:
    """Tags that say on whose word an entry rests, each speaker with a colour of his own."""

    def __init__(self, history: History) -> None:
        names = [name for name, _ in history.count_speakers().most_common() if name is not None]
        names += [item.operation.speaker for item in history.quarantined if item.operation.speaker is not None]
        names = list(dict.fromkeys(names))
        self._colours = {name: index % SPEAKER_COLOURS for index, name in enumerate(names)}

    def tag(self, speaker: str | None, key: str | None = None) -> str:
        """Return the tag of a speaker and of the server's key that the words came with; "" without both."""
        tags = []
        if speaker is not None:
            colour = self._colours.get(speaker, 0)
            tags.append(f'<span class="who k{colour}"><span class="unseen">said by </span>{text(speaker)}</span>')
        if key is not None:
            tags.append(f'<span class="tag">key {text(key)}</span>')
        return "".join(tags)
