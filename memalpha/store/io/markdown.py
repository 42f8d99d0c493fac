"""What a memory holds now as Markdown that a person reads and edits, and back.

    # Memory

    ## Core memory

    > Ana, 34, nurse.

    ## semantic

    - Ana lives in Porto.
      `{"id": "ana-lives#k", "timestamp": "2025-01-10", "source": "chat-7"}`

An entry is a `- ` line; further lines of its content are indented by two blanks. A line whose text begins with a
backslash or another punctuation sign gets a backslash before it, as Markdown wants it, so that no content is taken for
a heading, a list or a comment. The last line, in backticks, says the rest: `FIELDS`, those that are not given have
their defaults (importance 1, no metadata, no date, no origin). An entry of one's own needs no such line.

Importing makes each entry of the document live as it stands there: what is known by its id is updated, what is not is
inserted. What the document leaves out stays; its past does too. The history is not in the document: JSON Lines has it.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from memalpha.errors import DataError, DuplicateContent, StoreError
from memalpha.store.backends.namespace import Namespace
from memalpha.store.io.jsonl import at_line, details_of, json_text, read_text, whole_file
from memalpha.store.schema import MemorySchema
from memalpha.store.validation import check_timestamp, clean_content
from memalpha.types import MemoryEntry, Operation

if TYPE_CHECKING:
    from memalpha.store.store import MemoryStore

FIELDS = ("id", "timestamp", "importance", "metadata", "source", "chunk", "turn", "expires")
CORE = "Core memory"
_DEFAULTS = {"importance": 1.0, "metadata": {}}
_SIGNS = frozenset(string.punctuation)


@dataclass(frozen=True, slots=True)
class Notes:
    """A document that was read: the core memory (None: no such section) and the entries as inserts, each with the
    number of its line."""

    core: str | None
    core_line: int
    entries: tuple[tuple[int, Operation], ...]


def export_markdown(store: MemoryStore, path: str | Path) -> int:
    """Write what a store's namespace holds now, and return the number of entries; the file appears at once."""
    with store._now():
        entries, core = store._rows.live(), store._rows.core(store._rows.position)
    with whole_file(Path(path)) as file:
        file.write(render(store.schema, core, entries))
    return len(entries)


def import_markdown(store: MemoryStore, path: str | Path) -> int:
    """Make the entries and the core memory of a document live in a store's namespace, all or none; the number of
    operations it took. Raises `DataError` naming file and line."""
    notes = read_markdown(path)
    vectors = store._vectors(sorted({operation.content or "" for _, operation in notes.entries}))
    with store._now(write=True):
        return apply_notes(store._rows, path, notes, vectors)


def render(schema: MemorySchema, core: str, entries: Iterable[MemoryEntry]) -> str:
    """The document of some entries, in the order of the schema's categories."""
    parts = ["# Memory\n"]
    if core:
        parts.append(f"\n## {CORE}\n\n" + "".join(f"> {line}\n" if line else ">\n" for line in core.split("\n")))
    held: dict[str, list[MemoryEntry]] = {name: [] for name in schema.category_names}
    for entry in entries:
        held[entry.category].append(entry)
    for name, some in held.items():
        parts.append(f"\n## {name}\n" + "".join(f"\n{_item(entry)}" for entry in some))
    return "".join(parts)


def read_markdown(path: str | Path) -> Notes:
    """Read a document; raises `DataError` naming file and line for what is no entry, heading or quoted core memory, for
    a details line that is not understood, and for an id that occurs twice."""
    section, core, core_line = "", None, 0
    entries: list[tuple[int, Operation]] = []
    lines = _lines(path)
    for number, text in lines:
        where = f"{path}:{number}"
        if text.startswith("## "):
            section = text[3:].strip()
            if section == CORE:
                if core is not None:
                    raise DataError(f"{where}: a second section {CORE!r}")
                core, core_line = [], number
        elif section == CORE:
            assert core is not None
            core.append(text[2:] if text.startswith("> ") else text[1:] if text.startswith(">") else text)
        elif text.startswith("- ") and section:
            body = [text[2:], *_indented(lines)]
            entries.append((number, _operation(where, section, body)))
        elif text.strip() and section:
            raise DataError(f"{where}: an entry begins with '- ', and its further lines with two blanks: {text[:60]!r}")
        elif text.startswith("- "):
            raise DataError(f"{where}: an entry belongs below the heading of its category, such as '## semantic'")
    first: dict[str, int] = {}
    for number, operation in entries:
        if operation.id and first.setdefault(operation.id, number) != number:
            raise DataError(f"{path}:{number}: id {operation.id!r}: line {first[operation.id]} has it already")
    return Notes(None if core is None else "\n".join(core).strip(), core_line, tuple(entries))


def apply_notes(rows: Namespace, path: str | Path, notes: Notes, vectors: Mapping[str, np.ndarray]) -> int:
    """Append what makes a document's entries live as they stand there; the number of operations. Inside a
    transaction."""
    before = rows.position
    if notes.core is not None and notes.core != rows.core(before):
        with at_line(f"{path}:{notes.core_line}"):
            rows.write(Operation("core_update", content=notes.core))
    for number, wanted in notes.entries:
        with at_line(f"{path}:{number}"):
            there = rows.last(wanted.id) if wanted.id else None
            if there is None or there.valid_to is not None:
                try:
                    rows.write(wanted, vectors)
                except DuplicateContent:
                    if wanted.id is not None:
                        raise
                continue
            if there.category != rows.schema.check_category(wanted.category):
                raise StoreError(
                    f"entry {there.id!r} is of category {there.category!r}: leave its id out to add it to "
                    f"{wanted.category!r}, and delete the other"
                )
            update = replace(wanted, kind="update", timestamp=wanted.timestamp or "", expires=wanted.expires or "")
            try:
                rows.write(update, vectors)
            except DuplicateContent as same:
                if same.entry_id != there.id:  # else it stands there as it is
                    raise
    return rows.position - before


def _item(entry: MemoryEntry) -> str:
    first, *more = map(_escaped, entry.content.split("\n"))
    known = {name: getattr(entry, name) for name in FIELDS}
    said = {name: value for name, value in known.items() if value is not None and value != _DEFAULTS.get(name)}
    details = json_text(said).replace("`", "\\u0060")
    return "".join([f"- {first}\n", *(f"  {line}\n" if line else "\n" for line in more), f"  `{details}`\n"])


def _escaped(line: str) -> str:
    return f"\\{line}" if line[:1] in _SIGNS else line


def _unescaped(line: str) -> str:
    return line[1:] if line.startswith("\\") and line[1:2] in _SIGNS else line


def _operation(where: str, category: str, body: Sequence[str]) -> Operation:
    """The insert that an item's lines stand for."""
    details = {}
    if len(body) > 1 and body[-1].startswith("`{") and body[-1].rstrip().endswith("}`"):
        *body, last = body
        details = details_of(where, last.strip().strip("`"), FIELDS)
    with at_line(where):
        check_timestamp(details.get("timestamp"))
        content = clean_content("\n".join(map(_unescaped, body)))
    return Operation("insert", category=category, content=content, **{**_DEFAULTS, **details})


class _Lines(Iterator[tuple[int, str]]):
    """Numbered lines, of which one can be put back."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts, self.number = texts, 0

    def __next__(self) -> tuple[int, str]:
        if self.number == len(self.texts):
            raise StopIteration
        self.number += 1
        return self.number, self.texts[self.number - 1]


def _lines(path: str | Path) -> _Lines:
    texts = read_text(Path(path)).split("\n")
    if all(text.endswith("\r") for text in texts[:-1]):  # an editor's line ends, and no content's
        texts = [text.removesuffix("\r") for text in texts]
    return _Lines(texts)


def _indented(lines: _Lines) -> list[str]:
    """The further lines of an item, up to its details or to the next line that is not indented; blank ones between
    them belong to it."""
    found: list[str] = []
    end = lines.number
    for number, text in lines:
        if text.startswith("  "):
            found += [""] * (number - end - 1)
            found.append(text[2:])
            end = number
        elif text.strip():
            break
    lines.number = end
    return found
