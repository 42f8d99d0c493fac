"""What needs a person: operations that wait for a review, contradictions, and entries that are outdated."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from memalpha.report.memory_page.forms import Forms
from memalpha.report.memory_page.history import History
from memalpha.report.memory_page.markup import SpeakerTags, event, text
from memalpha.store.checks.findings import Finding
from memalpha.store.trust.quarantine import Quarantined
from memalpha.types import MemoryEntry

MAX_SHOWN = 200
"""Waiting operations, and findings of a kind, that a page holds."""
FEW = 3
"""Findings that are shown at once; more are folded."""
_VERBS = {
    "insert": "wants to add",
    "update": "wants to change",
    "delete": "wants to delete",
    "core_update": "wants to rewrite the core memory",
}


def waiting_section(history: History, tags: SpeakerTags, forms: Forms) -> str:
    """Return the operations that await a review, "" if there are none.

    Args:
        history: Content of the page.
        tags: Tags of the speakers.
        forms: Forms that the reader may use.
    """
    waiting = history.quarantined
    if not waiting:
        return ""
    items = "".join(_waiting(item, history, tags, forms) for item in waiting[:MAX_SHOWN])
    how = "Nothing of this is in the memory: the trust rule holds it back until somebody decides."
    if not forms.can_review:
        how += " <code>memalpha review</code> accepts or rejects it."
    head = f'<h2 id="waiting">Waiting for review <span class="tag count">{len(waiting)}</span></h2>'
    return (
        f'<section class="concern">{head}<p class="soft">{how}</p><ul class="waiting">{items}</ul>'
        f"{_more(waiting)}</section>"
    )


def finding_sections(history: History, tags: SpeakerTags) -> list[str]:
    """Return the contradictions of the live entries, and the outdated ones, without those that have none."""
    sections = []
    for name, title, findings, how in (
        ("contradictions", "Contradictions", history.contradictions, "Live entries that cannot both be true."),
        ("outdated", "Outdated", history.outdated, "Live entries that something else speaks against."),
    ):
        if findings:
            items = "".join(_finding(finding, history, tags) for finding in findings[:MAX_SHOWN])
            is_open = " open" if len(findings) <= FEW else ""
            head = f'<h2>{title} <span class="tag count">{len(findings)}</span></h2>'
            sections.append(  # the anchor lies inside: following it opens the section
                f'<details class="concern"{is_open}><summary>{head}</summary><p class="soft" id="{name}">{how}</p>'
                f'<ul class="findings">{items}</ul>{_more(findings)}</details>'
            )
    return sections


def _waiting(item: Quarantined, history: History, tags: SpeakerTags, forms: Forms) -> str:
    operation = item.operation
    who = tags.tag(operation.speaker, operation.key) or '<span class="tag">nobody known</span>'
    lines = []
    if item.before:
        lines.append(f'<del class="text" dir="auto">{text(item.before)}</del>')
    if operation.content:
        lines.append(f'<ins class="text" dir="auto">{text(operation.content)}</ins>')
    about = [event(item.position, history), *([f"source: {operation.source}"] if operation.source else [])]
    form = forms.review(item.position)
    return (
        f'<li data-from="{item.position}" data-to=""><p>{who} {escape(_VERBS[operation.kind])}</p>{"".join(lines)}'
        f'<p class="soft">Held back: {text(item.reason)}. {text("; ".join(about))}</p>{form}</li>'
    )


def _finding(finding: Finding, history: History, tags: SpeakerTags) -> str:
    entries = "".join(_line(entry, history, tags, "") for entry in finding.entries)
    against = "".join(_line(entry, history, tags, " against") for entry in finding.against)
    since = max(entry.valid_from for entry in (*finding.entries, *finding.against))
    return f'<li data-from="{since}" data-to=""><p>{text(finding.message)}</p><ul>{entries}{against}</ul></li>'


def _line(entry: MemoryEntry, history: History, tags: SpeakerTags, kind: str) -> str:
    when = entry.timestamp or event(entry.valid_from, history)
    return (
        f'<li class="side{kind}"><span class="text" dir="auto">{text(entry.content)}</span> {tags.tag(entry.speaker)}'
        f'<span class="tag">{text(when)}</span><span class="tag">{text(entry.id)}</span></li>'
    )


def _more(items: Sequence[object]) -> str:
    return f'<p class="soft">{len(items) - MAX_SHOWN} more are not shown.</p>' if len(items) > MAX_SHOWN else ""
