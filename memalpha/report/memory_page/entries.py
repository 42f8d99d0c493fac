"""Core memory and entries by category, each with its versions, who said them and where they came from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from memalpha.report.memory_page.forms import Forms
from memalpha.report.memory_page.history import History
from memalpha.report.memory_page.markup import SpeakerTags, event, number, text
from memalpha.store.store import MemoryStore
from memalpha.types import MemoryEntry

_ENDS = {"update": "updated", "delete": "deleted", "expired": "expired"}


def core_section(history: History) -> str:
    """Return the core memory with all its texts, "" if it was always empty."""
    if not any(content for _, content in history.cores):
        return ""
    ends = [position for position, _ in history.cores[1:]] + [None]
    texts = []
    for (position, content), end in zip(history.cores, ends, strict=True):
        hidden = "" if end is None else " hidden"
        texts.append(
            f'<pre class="text" dir="auto" data-from="{position}" data-to="{number(end)}"{hidden}>{text(content)}</pre>'
        )
    return f'<section><h2>Core memory</h2><div class="core">{"".join(texts)}</div></section>'


def category_sections(store: MemoryStore, history: History, tags: SpeakerTags, forms: Forms) -> list[str]:
    """Return a section for each category that has entries, in the order of the schema.

    Args:
        store: Store of the namespace.
        history: Content of the page.
        tags: Tags of the speakers.
        forms: Forms that the reader may use.
    """
    by_category: dict[str, list[Sequence[MemoryEntry]]] = {each.name: [] for each in store.schema.categories}
    for versions in history.entries:
        by_category.setdefault(versions[-1].category, []).append(versions)
    sections = []
    for name, entries in by_category.items():
        if entries:
            live = sum(versions[-1].valid_to is None for versions in entries)
            items = "".join(_entry(versions, history, tags, forms) for versions in entries)
            head = f'<h2>{text(name)} <span class="tag count">{live}</span></h2>'
            sections.append(f'<section class="category">{head}{items}</section>')
    return sections


def _entry(versions: Sequence[MemoryEntry], history: History, tags: SpeakerTags, forms: Forms) -> str:
    newest = versions[-1]
    ended = "" if newest.valid_to is None else " ended"
    heads = []
    for version in versions:
        hidden = "" if version is newest else " hidden"
        numbered = f'<span class="tag">version {version.version}</span>' if version.version > 1 else ""
        date = f'<span class="tag">{text(version.timestamp)}</span>' if version.timestamp else ""
        heads.append(
            f'<span class="version" data-from="{version.valid_from}" data-to="{number(version.valid_to)}" '
            f'data-speaker="{text(version.speaker or "")}"{hidden}>'
            f'<span class="text" dir="auto">{text(version.content)}</span> {tags.tag(version.speaker)}{date}{numbered}'
            "</span>"
        )
    rows = "".join(_version(version, history, tags) for version in reversed(versions))
    form = forms.entry(newest) if newest.valid_to is None else ""
    id = text(newest.id)
    return (
        f'<details class="entry{ended}" data-id="{id}"><summary>{"".join(heads)} '
        f'<span class="life" aria-hidden="true" title="when it held"></span><span class="tag">{id}</span>'
        f"</summary><dl>{rows}</dl>{form}</details>"
    )


def _version(version: MemoryEntry, history: History, tags: SpeakerTags) -> str:
    start = event(version.valid_from, history)
    end = (
        ""
        if version.valid_to is None
        else f", {_ending(version.valid_to, history)} at {event(version.valid_to, history)}"
    )
    fields: dict[str, Any] = {
        name: getattr(version, name)
        for name in ("source", "chunk", "turn", "expires")
        if getattr(version, name) is not None
    }
    if version.importance != 1.0:
        fields["importance"] = version.importance
    fields |= {f"metadata {key}": value for key, value in version.metadata.items()}
    parts = [f"{name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in fields.items()]
    if (operation := history.log.get(version.valid_from)) is not None and operation[1].reason:
        parts.append(operation[1].reason)
    origin = f"{tags.tag(version.speaker, version.key)}{text('; '.join(parts))}"
    return (
        f'<div data-row="{version.valid_from}"><dt>Version {version.version}, from {escape(start)}{escape(end)}</dt>'
        f'<dd><span class="text" dir="auto">{text(version.content)}</span></dd>'
        + (f'<dd class="soft">{origin}</dd>' if origin else "")
        + "</div>"
    )


def _ending(position: int, history: History) -> str:
    entry = history.log.get(position)
    return "ended" if entry is None else _ENDS.get(entry[1].kind, "ended")
