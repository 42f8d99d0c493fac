"""The current memory as Markdown that people can read and edit, and back.

    # Memory

    ## Core memory

    > Ana, 34, nurse.

    ## semantic

    - Ana lives in Porto.
      `{"id": "ana-lives#k", "timestamp": "2025-01-10", "source": "chat-7"}`

An entry is a `- ` line; further lines of its content are indented by two blanks, or by as many more as a formatter has
put behind the dash. A line that begins with a backslash
or another punctuation sign is escaped with a backslash, as in Markdown, so that no content is read as a heading, list
or comment. The last line, in backticks, holds the other `FIELDS`; missing ones have their defaults (importance 1, no
metadata, no date, no origin). A line that looks like it and is not the last is refused, and so are details with an id
that end a line of text. An entry that you add by hand
needs no such line.

Importing makes each entry of the document live as written: a known id is updated, anything else is inserted. Entries
missing from the document stay, and so do past versions. The document has no history; JSON Lines does.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memalpha.errors import DataError, DuplicateContent, StoreError
from memalpha.store.fields import NAMES, TIMES, check_content_size, check_timestamp, clean_content, new_defaults
from memalpha.store.io.jsonl import atomic_writer, locate_errors, parse_fields, to_json
from memalpha.store.schema import MemorySchema
from memalpha.text_files import read_text
from memalpha.types import MemoryEntry, Operation

if TYPE_CHECKING:
    from memalpha.store.store import MemoryStore

FIELDS = ("id", *NAMES)
CORE_HEADING = "Core memory"
_DEFAULTS = new_defaults()
_PUNCTUATION = frozenset(string.punctuation)
_LOST_ID = re.compile(r'`\{"id":[^`]*\}`\s*$')
_STRUCTURE = re.compile(r"#| {2}`\{")  # a heading or details, which no export ends with a carriage return
_LIST_ITEM = re.compile(r"\s*([-*+]|\d+[.)])\s")


@dataclass(frozen=True, slots=True)
class MarkdownDocument:
    """Parsed document.

    Attributes:
        core: Core memory text; None without such a section.
        core_line: Line number of the core memory section.
        entries: Line number and insert of each entry.
    """

    core: str | None
    core_line: int
    entries: tuple[tuple[int, Operation], ...]


def export_markdown(store: MemoryStore, path: str | Path) -> int:
    """Write the current entries of a namespace and return their number.

    The file appears when complete.
    """
    with store.read_transaction():
        entries, core = store.rows.entries.live(), store.rows.log.core_at(store.rows.log.position)
    with atomic_writer(Path(path)) as file:
        file.write(render_markdown(store.schema, core, entries))
    return len(entries)


def import_markdown(store: MemoryStore, path: str | Path, document: MarkdownDocument | None = None) -> int:
    """Apply the entries and core memory of a document, all or none; return the number of operations.

    A pipe can be read once, so pass the `document` that `read_markdown` returned. Raises `DataError` naming file and
    line.
    """
    document = document or read_markdown(path)
    contents = {operation.content or "": number for number, operation in document.entries}
    for content, number in contents.items():
        with locate_errors(f"{path}:{number}"):
            check_content_size(content, store.max_content)
    vectors = store.recorded_embedder.embed(sorted(contents), store.rows)
    with store.exclusive() as log_end:
        if document.core is not None and document.core != store.rows.log.core_at(log_end.position):
            with locate_errors(f"{path}:{document.core_line}"):
                store.rows.write(Operation("core_update", content=document.core))
        for number, insert in document.entries:
            with locate_errors(f"{path}:{number}"):
                current = store.rows.entries.version_at(insert.id, None) if insert.id else None
                if current is None:
                    with suppress(DuplicateContent):  # without an id, what the memory states already
                        store.rows.write(insert, vectors)
                    continue
                if current.category != store.schema.check_category(insert.category):
                    raise StoreError(
                        f"entry {current.id!r} is of category {current.category!r}: leave its id out to add it to "
                        f"{insert.category!r}, and delete the other"
                    )
                update = replace(insert, kind="update", **{name: getattr(insert, name) or "" for name in TIMES})
                with suppress(DuplicateContent):  # the entry is unchanged
                    store.rows.write(update, vectors)
        return store.rows.log.position - log_end.position


def render_markdown(schema: MemorySchema, core: str, entries: Iterable[MemoryEntry]) -> str:
    """Return the document of some entries, ordered by the schema's categories.

    Args:
        schema: Schema whose categories become headings.
        core: Core memory text; "" leaves the section out.
        entries: Entries to write.
    """
    parts = ["# Memory\n"]
    if core:
        parts.append(
            f"\n## {CORE_HEADING}\n\n" + "".join(f"> {line}\n" if line else ">\n" for line in core.split("\n"))
        )
    entries_by_category: dict[str, list[MemoryEntry]] = {name: [] for name in schema.category_names}
    for entry in entries:
        entries_by_category[entry.category].append(entry)
    for name, category_entries in entries_by_category.items():
        parts.append(f"\n## {name}\n")
        for entry in category_entries:
            first_line, *further_lines = map(_escape, entry.content.split("\n"))
            fields = ((field, getattr(entry, field)) for field in FIELDS)
            written = {field: value for field, value in fields if value not in (None, _DEFAULTS.get(field))}
            details = to_json(written).replace("`", "\\u0060")
            parts += [f"\n- {first_line}\n", *(f"  {line}\n" if line else "\n" for line in further_lines)]
            parts.append(f"  `{details}`\n")
    return "".join(parts)


def read_markdown(path: str | Path) -> MarkdownDocument:
    """Parse a document.

    Raises:
        DataError: A line is no entry, heading or quoted core memory, a details line is invalid, or an id occurs twice.
            The message names file and line.
    """
    section, core, core_line = "", None, 0
    entries: list[tuple[int, Operation]] = []
    lines, number = _read_lines(path), 0
    while number < len(lines):
        text, number = lines[number], number + 1
        location = f"{path}:{number}"
        if text.startswith("## "):
            section = text[3:].strip()
            if section == CORE_HEADING:
                if core is not None:
                    raise DataError(f"{location}: a second section {CORE_HEADING!r}")
                core, core_line = [], number
        elif section == CORE_HEADING:
            assert core is not None
            core.append(text[2:] if text.startswith("> ") else text[1:] if text.startswith(">") else text)
        elif text.startswith("- ") and section:
            first = number
            body, details = [text[2:], *_read_indented(lines, number)], {}
            number += len(body) - 1
            blanks = len(body[0]) - len(body[0].lstrip(" "))  # of a formatter, which indents all lines so
            body = [re.sub(f"^ {{0,{blanks}}}", "", line) for line in body]
            for index, line in enumerate(body[1:], 1):
                if line.startswith("`{") and not (index + 1 == len(body) and line.rstrip().endswith("}`")):
                    raise DataError(
                        f"{path}:{first + index}: the details `{{...}}` are the last line of an entry, in one pair of "
                        "backticks; a backslash before the line makes it text"
                    )
            if len(body) > 1 and body[-1].startswith("`{"):
                details = parse_fields(location, body.pop().strip().strip("`"), FIELDS)
            elif _LOST_ID.search(body[-1]):
                raise DataError(
                    f"{path}:{first + len(body) - 1}: the details `{{...}}` need a line of their own, indented as the "
                    "entry is; if they are text, add a last line `{}`"
                )
            with locate_errors(location):
                check_timestamp(details.get("timestamp"))
                content = clean_content("\n".join(map(_unescape, body)))
            fields = {**new_defaults(), **details}
            entries.append((first, Operation("insert", category=section, content=content, **fields)))
        elif text.strip() and section:
            raise DataError(
                f"{location}: an entry begins with '- ', and its further lines with two blanks: {text[:60]!r}"
            )
        elif _LIST_ITEM.match(text):
            raise DataError(f"{location}: an entry belongs below the heading of its category, such as '## semantic'")
    first_lines: dict[str, int] = {}
    for number, operation in entries:
        if operation.id and first_lines.setdefault(operation.id, number) != number:
            raise DataError(f"{path}:{number}: id {operation.id!r}: line {first_lines[operation.id]} has it already")
    return MarkdownDocument(None if core is None else "\n".join(core).strip(), core_line, tuple(entries))


def _escape(line: str) -> str:
    return f"\\{line}" if line[:1] in _PUNCTUATION else line


def _unescape(line: str) -> str:
    return line[1:] if line.startswith("\\") and line[1:2] in _PUNCTUATION else line


def _read_lines(path: str | Path) -> list[str]:
    text = read_text(Path(path), keep_line_ends=True)
    texts = text.split("\n" if "\n" in text else "\r")  # of an old Mac
    if any(text.endswith("\r") and _STRUCTURE.match(text) for text in texts):  # of an editor, not of the content
        return [text.removesuffix("\r") for text in texts]
    return texts


def _read_indented(lines: Sequence[str], start: int) -> list[str]:
    """Return the further lines of an item, from index `start` up to the next line that is not indented.

    Blank lines between indented lines belong to the item.
    """
    content: list[str] = []
    for index in range(start, len(lines)):
        if lines[index].startswith("  "):
            content += [""] * (index - start - len(content))
            content.append(lines[index][2:])
        elif lines[index].strip():
            break
    return content
