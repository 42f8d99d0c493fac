"""`write_memory_page(store, file)`: one static HTML page of a memory: entries, versions, and any moment of its log.

The page needs no network. Without JavaScript it shows the memory as it is now, with what has ended struck out; a script
adds a search by words, a choice of speakers and a slider over the log. All texts are escaped here, the script only
shows and hides. A Content-Security-Policy lets nothing but this script and these styles run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from memalpha.arguments import check_path
from memalpha.errors import StoreError
from memalpha.report.memory_page.concerns import finding_sections, waiting_section
from memalpha.report.memory_page.entries import category_sections, core_section
from memalpha.report.memory_page.forms import NO_FORMS, Forms, notice
from memalpha.report.memory_page.history import History, read_history
from memalpha.report.memory_page.markup import SpeakerTags, moment, table, text
from memalpha.report.template import fill_template
from memalpha.store.io.jsonl import atomic_writer
from memalpha.store.store import MemoryStore
from memalpha.store.validation import visible
from memalpha.types import Hit

SHOWN_HITS = 20
"""Results of a search on a server's page."""
_LOG_CHARACTERS = 160
"""Characters of a text in the table of changes; the entry has all of it."""


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
    check_path("page", file)
    target = Path(file)
    _refuse_other_files(target)
    history = read_history(store)
    page = _render(store, history, [], NO_FORMS)
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


def render_memory_page(
    store: MemoryStore,
    query: str = "",
    *,
    token: str = "",
    can_write: bool = False,
    can_review: bool = False,
    done: str = "",
    failure: str = "",
    draft: str = "",
) -> str:
    """Return the page of a store's namespace for a server, with a search of the store.

    Args:
        store: Store of the namespace.
        query: Query of the search; "" searches nothing.
        token: Value that the reader's forms send back.
        can_write: Add forms that edit, delete and undo.
        can_review: Add forms that decide on what waits for a review.
        done: Action of a form that was done, "" for none.
        failure: Why an action of a form was not done, "" for none.
        draft: Text that was sent with the action that failed.

    Raises:
        MemalphaError: The search fails.
    """
    hits = store.search(query, SHOWN_HITS) if query.strip() else []
    forms = Forms(token, can_write=can_write, can_review=can_review)
    return _render(store, read_history(store), [notice(done, failure, draft), _search_form(query, hits)], forms)


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


def _render(store: MemoryStore, history: History, served: Sequence[str], forms: Forms) -> str:
    files = resources.files("memalpha") / "report" / "memory_page"
    style = f"<style>\n{(files / 'memory.css').read_text(encoding='utf-8')}</style>\n"
    script = f"<script>\n{(files / 'memory.js').read_text(encoding='utf-8')}</script>"
    title, tags = f"{Path(store.path).name}, {store.namespace_name}", SpeakerTags(history)
    body = [
        _header(history, title),
        *served,
        _controls(history),
        waiting_section(history, tags, forms),
        *finding_sections(history, tags),
        core_section(history),
        *category_sections(store, history, tags, forms),
        _log_table(history, forms),
        _moments(history),
        script,
    ]
    policy = _content_policy(fill_template("", script, style))
    return fill_template(f"memalpha: {visible(title)}", "\n".join(part for part in body if part), policy + style)


def _content_policy(page: str) -> str:
    """Return a policy that allows the styles and scripts of `page`, and nothing else."""

    def hashes(tag: str) -> str:
        blocks = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(block.encode()).digest()).decode() for block in blocks]
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    allowed = f"style-src {hashes('style')}; script-src {hashes('script')}"
    rules = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'self'"
    return f'<meta http-equiv="Content-Security-Policy" content="{rules}">\n'


def _header(history: History, title: str) -> str:
    live = history.live
    times = [time for time, _ in history.log.values()]
    span = f", {times[0][:10]} to {times[-1][:10]}" if times else ""
    lines = [f"What this memory holds, who said it, and how it changed{span}."]
    if history.first:
        lines.append(
            f"Changes up to position {history.first} are not on this page: it holds the last {len(history.log)}."
        )
    if len(history.entries) < history.total:
        lines.append(
            f"{history.total} entries are too many for a page: these {len(history.entries)} changed last. "
            "`memalpha show` lists all of them."
        )
    counts = [
        (len(history.quarantined), "waits for review", "wait for review", "waiting"),
        (len(history.contradictions), "contradiction", "contradictions", "contradictions"),
        (len(history.outdated), "outdated", "outdated", "outdated"),
    ]
    figures = [
        _figure(live, "entry" if live == 1 else "entries"),
        _figure(len(history.entries) - live, "ended"),
        _figure(history.last, "change" if history.last == 1 else "changes"),
        *(_figure(count, one if count == 1 else many, anchor) for count, one, many, anchor in counts if count),
    ]
    paragraphs = "".join(f'<p class="soft">{escape(line)}</p>' for line in lines)
    return f'<header><h1>{text(title)}</h1><ul class="figures">{"".join(figures)}</ul>{paragraphs}</header>'


def _figure(count: int, label: str, anchor: str = "") -> str:
    content = f"<b>{count}</b> {label}"
    return f'<li class="open"><a href="#{anchor}">{content}</a></li>' if anchor else f"<li>{content}</li>"


def _search_form(query: str, hits: Sequence[Hit]) -> str:
    """Return the form of the store's search, and its results with the parts of their scores."""
    rows = []
    for hit in hits:
        parts = ", ".join(f"{name} {value:.3f}" for name, value in hit.explain.items())
        content = f'<span class="text" dir="auto">{text(hit.entry.content)}</span>'
        rows.append(
            f'<tr><td class="n">{hit.score:.3f}</td><td>{content} <span class="tag">{text(hit.entry.id)}</span></td>'
            f'<td class="soft">{text(parts)}</td></tr>'
        )
    form = (
        '<form method="get" action="/" role="search" class="search"><label><span class="soft">Search</span> '
        f'<input type="search" name="q" value="{text(query)}" placeholder="the nearest entries, with '
        'their scores"></label><button type="submit">Search</button></form>'
    )
    if not query.strip():
        return form
    head = '<tr><th class="n">Score</th><th>Entry</th><th>Parts of the score</th></tr>'
    results = table(head, rows, "results") if rows else "<p>Nothing was found.</p>"
    return f'{form}<section class="hits"><h2>Found</h2>{results}</section>'


def _controls(history: History) -> str:
    speakers = history.count_speakers()
    options = ['<option value="">everybody</option>']
    for name, count in speakers.most_common():
        label = "nobody known" if name is None else name
        options.append(f'<option value="={text(name or "")}">{text(label)} ({count})</option>')
    is_said = any(name is not None for name in speakers)
    choice = f'<label><span class="soft">Said by</span> <select id="speaker">{"".join(options)}</select></label>'
    return (
        '<div class="controls" role="search" hidden>'
        '<label class="wide"><span class="soft">Filter</span> <input type="search" id="words" autocomplete="off" '
        f'placeholder="words"></label>{choice if is_said else ""}'
        '<label><input type="checkbox" id="ended"> <span>ended too</span></label>'
        '<div class="moment"><button type="button" id="back" aria-label="one operation back">←</button>'
        f'<input type="range" id="moment" aria-label="moment of the log" min="{history.first}" max="{history.last}" '
        f'value="{history.last}"><button type="button" id="forward" aria-label="one operation on">→</button>'
        '<div class="said"><output id="moment-label" for="moment"></output>'
        '<output id="found" for="words"></output></div></div></div>'
    )


def _log_table(history: History, forms: Forms) -> str:
    rows = []
    for position in sorted(history.log, reverse=True):
        time, operation = history.log[position]
        content = "; ".join(filter(None, (operation.content, operation.reason)))
        cut = content if len(content) <= _LOG_CHARACTERS else content[:_LOG_CHARACTERS] + " …"
        who = "; ".join(filter(None, (operation.speaker, f"key {operation.key}" if operation.key else "")))
        rows.append(
            f'<tr><td class="n">{position}</td><td class="time">{moment(time)}</td><td>{escape(operation.kind)}</td>'
            f'<td>{text(operation.id or "")}</td><td><span class="text" dir="auto">{text(cut)}</span></td>'
            f"<td>{text(who)}</td></tr>"
        )
    if not rows:
        return "<p>Nothing was ever written here.</p>"
    head = (
        '<tr><th class="n">Position</th><th class="time">Time (UTC)</th><th>Change</th><th>Entry</th><th>Text</th>'
        "<th>Who</th></tr>"
    )
    summary = f"<summary>All {len(rows)} changes, newest first</summary>"
    return f'{forms.undo(history.last)}<details class="log">{summary}{table(head, rows, "changes")}</details>'


def _moments(history: History) -> str:
    """Return what the slider says at each position, as JSON that ends no element."""
    moments = [["", "before the first change"]]
    if history.first:
        moments = [["", "before the changes of this page"]]
    for position in range(history.first + 1, history.last + 1):
        time, operation = history.log[position]
        moments.append([moment(time), " ".join(filter(None, (operation.kind, visible(operation.id or ""))))])
    content = json.dumps(moments, ensure_ascii=True).replace("<", "\\u003c")
    return f'<script type="application/json" id="moments">{content}</script>'
