"""`write_memory_page(store, file)`: one static HTML page of a memory: entries, versions, and any moment of its log.

The page needs no network. Without JavaScript it shows the memory as it is now, with what has ended struck out; a script
adds a search by words, a choice of speakers and a slider over the log. All texts are escaped by the template, the
script only shows and hides. A Content-Security-Policy lets nothing but this script and these styles run.

A served page has forms: edit and delete an entry, take back the last change, and decide on what waits. They work
without JavaScript. Each carries the token of the reader's own page, and the position that the reader saw: a page of
another site cannot know the token, and a change that came in between is not overwritten.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from memalpha.arguments import check_path
from memalpha.errors import StoreError
from memalpha.report import page as render
from memalpha.store.checks.audit import Finding, find_conflicts
from memalpha.store.fields import visible
from memalpha.store.io.jsonl import atomic_writer
from memalpha.store.quarantine import Quarantined
from memalpha.store.store import MemoryStore
from memalpha.types import MemoryEntry, Operation

MAX_OPERATIONS = 5000
"""Operations of the log that a page holds, the last ones."""
MAX_ENTRIES = 2000
"""Entries that a page holds, those that changed last."""
SHOWN_HITS = 20
"""Results of a search on a server's page."""
SPEAKER_COLOURS = 6
"""Colours of speakers in the style sheet; further speakers repeat them."""
_CHANGES = ("insert", "update", "delete", "expired")
_ENDS = {"update": "updated", "delete": "deleted", "expired": "expired"}


def _show(value: object) -> object:
    """Make control characters and changes of direction in somebody's text visible; None is the empty text."""
    if isinstance(value, Markup):
        return value
    return visible(value) if isinstance(value, str) else "" if value is None else value


ENVIRONMENT = render.ENVIRONMENT.overlay(finalize=_show)


@dataclass(frozen=True, slots=True)
class History:
    """Content of a page.

    Attributes:
        first: Position before the first operation.
        last: Position of the last one.
        log: Time to the second and operation by position, in the order of the log.
        entries: Versions of each entry, oldest first, in the order of their creation.
        cores: Core texts and the positions from which they hold.
        quarantined: Operations that await a review, oldest first.
        contradictions: Live entries of the page that cannot both be true.
        outdated: Live entries that something else speaks against, but for those that a contradiction names with it.
        total: Entries that the page would hold without a limit.
    """

    first: int
    last: int
    log: Mapping[int, tuple[str, Operation]]
    entries: Sequence[Sequence[MemoryEntry]]
    cores: Sequence[tuple[int, str]]
    quarantined: Sequence[Quarantined]
    contradictions: Sequence[Finding]
    outdated: Sequence[Finding]
    total: int

    @property
    def live(self) -> int:
        """Number of the page's entries that have not ended."""
        return sum(versions[-1].valid_to is None for versions in self.entries)

    def event(self, position: int) -> str:
        """Return a position with its time, where the page has it."""
        return f"position {position}" + (f" ({self.log[position][0]})" if position in self.log else "")

    def ending(self, position: int) -> str:
        """Return how the operation at `position` ended a version."""
        return _ENDS.get(self.log[position][1].kind, "ended") if position in self.log else "ended"

    def origin(self, version: MemoryEntry) -> str:
        """Return where a version came from, but for its speaker, as text."""
        fields: dict[str, Any] = {name: getattr(version, name) for name in ("source", "chunk", "turn", "expires")}
        fields["importance"] = None if version.importance == 1.0 else version.importance
        fields = {name: value for name, value in fields.items() if value is not None}
        fields |= {f"metadata {key}": value for key, value in version.metadata.items()}
        parts = [f"{name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in fields.items()]
        reason = self.log[version.valid_from][1].reason if version.valid_from in self.log else None
        return "; ".join([*parts, reason] if reason else parts)


def read_history(store: MemoryStore) -> History:
    """Read the content of a page from a store's namespace, as of one position of its log."""
    last = store.snapshot()
    first = max(0, last - MAX_OPERATIONS)
    log = {
        position: (time[:19].replace("T", " "), operation)
        for position, time, operation in store.log(first)
        if position <= last
    }
    changes = {position: operation.id for position, (_, operation) in log.items() if operation.kind in _CHANGES}
    changed = {id: position for position, id in changes.items() if id is not None}
    before = {entry.id: entry.valid_from for entry in store.list(as_of=first)} if first else {}
    last_change = before | changed
    newest = sorted(last_change, key=lambda id: last_change[id], reverse=True)[:MAX_ENTRIES]
    entries = []
    for history in store.history_many(newest).values():  # without those that were erased
        versions = [version for version in history if version.valid_from <= last]
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
    waiting = [item for item in store.quarantined() if item.position <= last]
    findings = find_conflicts(store, entries)
    contradictions = [finding for finding in findings if finding.kind == "contradiction"]
    pairs = [{entry.id for entry in finding.entries} for finding in contradictions]
    outdated = [
        finding
        for finding in findings
        if finding.kind == "stale"
        and not any({entry.id for entry in (*finding.entries, *finding.against)} <= pair for pair in pairs)
    ]
    return History(first, last, log, entries, cores, waiting, contradictions, outdated, len(last_change))


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
    try:
        with target.open("rb") as stream:
            start = stream.read(15).lower()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise StoreError(f"{target}: the page cannot be written: {error.strerror or error}") from error
    else:
        if start != b"<!doctype html>":  # it may be the store itself
            raise StoreError(f"{target} exists and is no HTML page: give another file name")
    history = read_history(store)
    page = _render(store, history)
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
    served = {"is_served": True, "query": query, "hits": hits, "done": done, "failure": failure, "draft": draft}
    rights = {"token": token, "can_write": can_write, "can_review": can_review}
    return _render(store, read_history(store), **served, **rights)


def _render(store: MemoryStore, history: History, **served: Any) -> str:
    """Return the page; `served` holds the template's values that only a server gives."""
    style, page_style, script = map(render.read_asset, ("memory.css", "page.css", "memory.js"))
    speakers = Counter(versions[-1].speaker for versions in history.entries).most_common()
    names = dict.fromkeys([name for name, _ in speakers] + [item.operation.speaker for item in history.quarantined])
    names.pop(None, None)
    by_category: dict[str, list[Sequence[MemoryEntry]]] = {category.name: [] for category in store.schema.categories}
    for versions in history.entries:
        by_category.setdefault(versions[-1].category, []).append(versions)
    moments = [["", "before the changes of this page" if history.first else "before the first change"]]
    moments += [
        [time, f"{operation.kind} {visible(operation.id)}" if operation.id else operation.kind]
        for time, operation in history.log.values()
    ]
    name = f"{Path(store.path).name}, {store.namespace_name}"
    context = {
        "title": f"memalpha: {name}",
        "name": name,
        "policy": (
            f"default-src 'none'; style-src {render.source_hash(style)} {render.source_hash(page_style)}; "
            f"script-src {render.source_hash(script)}; base-uri 'none'; form-action 'self'"
        ),
        "style": style,
        "script": script,
        "history": history,
        "speakers": speakers,
        "colours": {name: index % SPEAKER_COLOURS for index, name in enumerate(names)},
        "categories": by_category,
        "moments": moments,
        **dict.fromkeys(("is_served", "can_write", "can_review", "done", "failure"), ""),
    }
    text = ENVIRONMENT.get_template("memory.html").render(context | served)
    return text.encode("utf-8", "backslashreplace").decode()  # metadata may hold half of a surrogate pair
