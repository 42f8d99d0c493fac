"""`write_memory_page(store, file)`: one static HTML page of a memory: entries, versions, and any moment of its log.

The page needs no network. Without JavaScript it shows the memory as it is now, with what has ended struck out; a script
adds a search by words and a slider over the log. All texts are escaped here, the script only shows and hides. A
Content-Security-Policy lets nothing but this script and these styles run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from memalpha.errors import StoreError, UnknownEntry
from memalpha.report.template import fill_template
from memalpha.store.io.jsonl import atomic_writer
from memalpha.store.store import MemoryStore
from memalpha.store.trust.quarantine import Quarantined
from memalpha.store.validation import visible
from memalpha.types import Hit, MemoryEntry, Operation

MAX_OPERATIONS = 5000
"""Operations of the log that a page holds, the last ones."""
MAX_ENTRIES = 2000
"""Entries that a page holds, those that changed last."""
SHOWN_HITS = 20
"""Results of a search on a server's page."""
_LOG_CHARACTERS = 160
"""Characters of a text in the table of changes; the entry has all of it."""
_CHANGES = ("insert", "update", "delete", "expired")
_ENDS = {"update": "updated", "delete": "deleted", "expired": "expired"}


@dataclass(frozen=True, slots=True)
class _History:
    """Content of a page: a piece of the log, and the entries and texts that it concerns.

    Attributes:
        first: Position before the first operation.
        last: Position of the last one.
        log: Time and operation by position.
        entries: Versions of each entry, oldest first, in the order of their creation.
        cores: Core texts and the positions from which they hold.
        quarantined: Operations that await a review.
        total: Entries that the page would hold without a limit.
    """

    first: int
    last: int
    log: Mapping[int, tuple[str, Operation]]
    entries: Sequence[Sequence[MemoryEntry]]
    cores: Sequence[tuple[int, str]]
    quarantined: Sequence[Quarantined]
    total: int

    @property
    def live(self) -> int:
        """Number of the page's entries that have not ended."""
        return sum(versions[-1].valid_to is None for versions in self.entries)


def write_memory_page(store: MemoryStore, file: str | Path) -> dict[str, Any]:
    """Write the page of a store's namespace.

    A page holds the last `MAX_OPERATIONS` operations and the `MAX_ENTRIES` entries that changed last, and says so where
    there are more. The file is for its owner only, as stores are.

    Args:
        store: Store of the namespace.
        file: HTML file to write; an existing page is replaced.

    Returns:
        `file`, and `entries`, `live`, `operations` of the page; `all_entries` and `all_operations` of the store.

    Raises:
        StoreError: The file cannot be written, or it exists and is no HTML page.
    """
    target = Path(file)
    _refuse_other_files(target)
    history = _read_history(store)
    page = _render(store, history, "")
    with atomic_writer(target) as stream:
        stream.write(page)
    return {
        "file": str(target),
        "entries": len(history.entries),
        "live": history.live,
        "operations": history.last - history.first,
        "all_entries": history.total,
        "all_operations": history.last,
    }


def render_memory_page(store: MemoryStore, query: str = "") -> str:
    """Return the page of a store's namespace for a server, with a search of the store.

    Args:
        store: Store of the namespace.
        query: Query of the search; "" searches nothing.

    Raises:
        MemalphaError: The search fails.
    """
    hits = store.search(query, SHOWN_HITS) if query.strip() else []
    return _render(store, _read_history(store), _search_form(query, hits))


def _refuse_other_files(target: Path) -> None:
    """Raise `StoreError` if the target exists and is no page: it may be the store itself."""
    try:
        if not target.exists():
            return
        with target.open("rb") as stream:
            start = stream.read(15).lower()
    except OSError as error:
        raise StoreError(f"{target}: the page cannot be written: {error.strerror or error}") from error
    if start != b"<!doctype html>":
        raise StoreError(f"{target} exists and is no HTML page: give another file name")


def _read_history(store: MemoryStore) -> _History:
    last = store.snapshot()
    first = max(0, last - MAX_OPERATIONS)
    log = {position: (time, operation) for position, time, operation in store.log(first) if position <= last}
    changes = {position: operation.id for position, (_, operation) in log.items() if operation.kind in _CHANGES}
    changed = {id: position for position, id in changes.items() if id is not None}
    before = {entry.id: entry.valid_from for entry in store.list(as_of=first)} if first else {}
    last_change = before | changed
    newest = sorted(last_change, key=lambda id: last_change[id], reverse=True)[:MAX_ENTRIES]
    entries = []
    for id in newest:
        with suppress(UnknownEntry):  # all of it was erased
            versions = [version for version in store.history(id) if version.valid_from <= last]
            if versions and (versions[-1].valid_to or 0) > last:  # somebody wrote meanwhile
                versions[-1] = replace(versions[-1], valid_to=None)
            entries += [versions] if versions else []
    entries.sort(key=lambda versions: versions[0].valid_from)
    texts = [first] + [
        position
        for position, (_, operation) in log.items()
        if operation.kind == "core_update" or (operation.kind == "erased" and operation.id is None)
    ]
    cores = [(position, store.core_at(position)) for position in texts]
    waiting = [item for item in store.quarantined() if first < item.position <= last]
    return _History(first, last, log, entries, cores, waiting, len(last_change))


# ------------------------------------------------------------------------------------------------------------ rendering


def _render(store: MemoryStore, history: _History, search: str) -> str:
    files = resources.files("memalpha") / "report"
    style = f"<style>\n{(files / 'memory.css').read_text(encoding='utf-8')}</style>\n"
    script = f"<script>\n{(files / 'memory.js').read_text(encoding='utf-8')}</script>"
    title = f"{Path(store.path).name}, {store.namespace_name}"
    body = [
        _header(store, history, title),
        search,
        _controls(history),
        _cores(history),
        *_categories(store, history),
        _quarantined(history),
        _log_table(history),
        _moments(history),
        script,
    ]
    policy = _content_policy(fill_template("", script, style))
    return fill_template(f"memalpha: {visible(title)}", "\n".join(part for part in body if part), policy + style)


def _content_policy(page: str) -> str:
    """Return a policy that allows the styles and scripts of `page`, and nothing else."""

    def hashes(tag: str) -> str:
        blocks = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in blocks]
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    allowed = f"style-src {hashes('style')}; script-src {hashes('script')}"
    rules = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'self'"
    return f'<meta http-equiv="Content-Security-Policy" content="{rules}">\n'


def _header(store: MemoryStore, history: _History, title: str) -> str:
    live = history.live
    times = [time for time, _ in history.log.values()]
    span = f", {_moment(times[0])} to {_moment(times[-1])}" if times else ""
    lines = [f"{live} entries, {len(history.entries) - live} more have ended; {history.last} operations{span}."]
    if history.first:
        lines.append(f"Changes up to position {history.first} are not on this page: it holds {MAX_OPERATIONS} at most.")
    if len(history.entries) < history.total:
        lines.append(
            f"{history.total} entries are too many for a page: these {len(history.entries)} changed last. "
            "`memalpha show` lists all of them."
        )
    text = "".join(f'<p class="soft">{escape(line)}</p>' for line in lines)
    return f"<header><h1>{_text(title)}</h1>{text}</header>"


def _search_form(query: str, hits: Sequence[Hit]) -> str:
    """Return the form of the store's search, and its results with the parts of their scores."""
    rows = []
    for hit in hits:
        parts = ", ".join(f"{name} {value:.3f}" for name, value in hit.explain.items())
        text = f'<span class="text" dir="auto">{_text(hit.entry.content)}</span>'
        rows.append(
            f'<tr><td class="n">{hit.score:.3f}</td><td>{text} <span class="tag">{_text(hit.entry.id)}</span></td>'
            f'<td class="soft">{_text(parts)}</td></tr>'
        )
    form = (
        '<form method="get" action="/" role="search" class="search"><label><span class="soft">Search the store</span> '
        f'<input type="search" name="q" value="{_text(query)}"></label>'
        '<button type="submit">Search</button></form>'
    )
    if not query.strip():
        return form
    head = '<tr><th class="n">Score</th><th>Entry</th><th>Parts of the score</th></tr>'
    results = _table(head, rows, "results") if rows else "<p>Nothing was found.</p>"
    return f'{form}<section class="hits"><h2>Found</h2>{results}</section>'


def _table(head: str, rows: Sequence[str], label: str) -> str:
    """Return a table that scrolls by keyboard too where it is too wide."""
    table = f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{table}</div>'


def _controls(history: _History) -> str:
    return (
        '<div class="controls" role="search" hidden>'
        + '<label><span class="soft">Filter</span> <input type="search" id="words" autocomplete="off" '
        'placeholder="words of the entries"></label>'
        '<label><input type="checkbox" id="ended"> <span>show what has ended</span></label>'
        '<div class="moment"><button type="button" id="back" aria-label="one operation back">←</button>'
        f'<input type="range" id="moment" aria-label="moment of the log" min="{history.first}" max="{history.last}" '
        f'value="{history.last}"><button type="button" id="forward" aria-label="one operation on">→</button>'
        '<output id="moment-label" for="moment"></output><output id="found" for="words"></output></div></div>'
    )


def _cores(history: _History) -> str:
    if not any(text for _, text in history.cores):
        return ""
    ends = [position for position, _ in history.cores[1:]] + [None]
    texts = []
    for (position, text), end in zip(history.cores, ends, strict=True):
        hidden = "" if end is None else " hidden"
        texts.append(
            f'<pre class="text" dir="auto" data-from="{position}" data-to="{_number(end)}"{hidden}>{_text(text)}</pre>'
        )
    return f'<section><h2>Core memory</h2><div class="core">{"".join(texts)}</div></section>'


def _categories(store: MemoryStore, history: _History) -> list[str]:
    by_category: dict[str, list[Sequence[MemoryEntry]]] = {each.name: [] for each in store.schema.categories}
    for versions in history.entries:
        by_category.setdefault(versions[-1].category, []).append(versions)
    parts = {
        name: "".join(_entry(versions, history) for versions in entries)
        for name, entries in by_category.items()
        if entries
    }
    return [f'<section class="category"><h2>{_text(name)}</h2>{part}</section>' for name, part in parts.items()]


def _entry(versions: Sequence[MemoryEntry], history: _History) -> str:
    newest = versions[-1]
    ended = "" if newest.valid_to is None else " ended"
    heads = []
    for version in versions:
        hidden = "" if version is newest else " hidden"
        number = f'<span class="tag">version {version.version}</span>' if version.version > 1 else ""
        date = f'<span class="tag">{_text(version.timestamp)}</span>' if version.timestamp else ""
        heads.append(
            f'<span class="version" data-from="{version.valid_from}" data-to="{_number(version.valid_to)}"{hidden}>'
            f'<span class="text" dir="auto">{_text(version.content)}</span> {date}{number}</span>'
        )
    rows = "".join(_version(version, history) for version in reversed(versions))
    return (
        f'<details class="entry{ended}" data-id="{_text(newest.id)}"><summary>{"".join(heads)} '
        f'<span class="tag">{_text(newest.id)}</span></summary><dl>{rows}</dl></details>'
    )


def _version(version: MemoryEntry, history: _History) -> str:
    start = _event(version.valid_from, history)
    end = (
        ""
        if version.valid_to is None
        else f", {_ending(version.valid_to, history)} at {_event(version.valid_to, history)}"
    )
    fields: dict[str, Any] = {
        name: getattr(version, name)
        for name in ("speaker", "source", "chunk", "turn", "key", "expires")
        if getattr(version, name) is not None
    }
    if version.importance != 1.0:
        fields["importance"] = version.importance
    fields |= {f"metadata {key}": value for key, value in version.metadata.items()}
    origin = "; ".join(
        f"{name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in fields.items()
    )
    return (
        f'<div data-row="{version.valid_from}"><dt>Version {version.version}, from {escape(start)}{escape(end)}</dt>'
        f'<dd><span class="text" dir="auto">{_text(version.content)}</span></dd>'
        + (f'<dd class="soft">{_text(origin)}</dd>' if origin else "")
        + "</div>"
    )


def _ending(position: int, history: _History) -> str:
    entry = history.log.get(position)
    return "ended" if entry is None else _ENDS.get(entry[1].kind, "ended")


def _event(position: int, history: _History) -> str:
    entry = history.log.get(position)
    return f"position {position}" + (f" ({_moment(entry[0])})" if entry is not None else "")


def _quarantined(history: _History) -> str:
    items = []
    for item in history.quarantined:
        operation = item.operation
        origin = {name: getattr(operation, name) for name in ("speaker", "source", "key")}
        about = [_event(item.position, history), operation.kind, item.reason]
        about += [f"instead of: {item.before}"] if item.before and operation.content else []
        about += [f"{name}: {value}" for name, value in origin.items() if value is not None]
        content = operation.content or item.before or ""
        items.append(
            f'<li data-from="{item.position}" data-to=""><span class="text" dir="auto">{_text(content)}</span> '
            f'<span class="soft">{_text("; ".join(about))}</span></li>'
        )
    if not items:
        return ""
    hint = '<p class="soft">These changed nothing yet: <code>memalpha review</code> accepts or rejects them.</p>'
    return f'<section><h2>Waiting for review</h2>{hint}<ul class="memory waiting">{"".join(items)}</ul></section>'


def _log_table(history: _History) -> str:
    rows = []
    for position in sorted(history.log, reverse=True):
        time, operation = history.log[position]
        content = "; ".join(filter(None, (operation.content, operation.reason)))
        cut = content if len(content) <= _LOG_CHARACTERS else content[:_LOG_CHARACTERS] + " …"
        rows.append(
            f'<tr><td class="n">{position}</td><td class="time">{_moment(time)}</td><td>{escape(operation.kind)}</td>'
            f'<td>{_text(operation.id or "")}</td><td><span class="text" dir="auto">{_text(cut)}</span></td></tr>'
        )
    if not rows:
        return "<p>Nothing was ever written here.</p>"
    head = (
        '<tr><th class="n">Position</th><th class="time">Time (UTC)</th><th>Change</th><th>Entry</th><th>Text</th></tr>'
    )
    summary = f"<summary>All {len(rows)} changes, newest first</summary>"
    return f'<details class="log">{summary}{_table(head, rows, "changes")}</details>'


def _moments(history: _History) -> str:
    """Return what the slider says at each position, as JSON that ends no element."""
    moments = [["", "before the first change"]]
    if history.first:
        moments = [["", "before the changes of this page"]]
    for position in range(history.first + 1, history.last + 1):
        time, operation = history.log[position]
        moments.append([_moment(time), " ".join(filter(None, (operation.kind, visible(operation.id or ""))))])
    text = json.dumps(moments, ensure_ascii=True).replace("<", "\\u003c")
    return f'<script type="application/json" id="moments">{text}</script>'


def _moment(time: str) -> str:
    """Return a time of the log to the second."""
    return escape(time[:19].replace("T", " "))


def _text(text: str) -> str:
    """Return somebody's text as HTML, with control characters and changes of direction made visible."""
    return escape(visible(text))


def _number(position: int | None) -> str:
    return "" if position is None else str(position)
