"""Forms of a served page: edit and delete an entry, take back the last change, and decide on what waits.

They work without JavaScript. Each carries the token of the reader's own page, and the position that the reader saw: a
page of another site cannot know the token, and a change that came in between is not overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from memalpha.report.memory_page.markup import text
from memalpha.types import MemoryEntry

NOTICES = {
    "update": "Saved. The earlier text stays in the entry's history.",
    "delete": "Deleted. Its versions stay; “Take back the last change” brings it back.",
    "undo": "The last change is taken back.",
    "accept": "Accepted: the memory says so now.",
    "reject": "Rejected: the memory stays as it is.",
}
"""Said after an action, by its name."""


@dataclass(frozen=True, slots=True)
class Forms:
    """Forms that the reader of a page may use.

    Attributes:
        token: Value that every form sends back.
        can_write: Edit, delete and undo.
        can_review: Accept and reject what waits for a review.
    """

    token: str
    can_write: bool
    can_review: bool

    def entry(self, entry: MemoryEntry) -> str:
        """Return the form of a live entry, "" without the right."""
        if not self.can_write:
            return ""
        rows = min(8, 1 + entry.content.count("\n") + len(entry.content) // 70)
        return (
            self._begin("edit", id=entry.id, position=entry.valid_from)
            + f'<label><span class="soft">Change the text</span><textarea name="content" rows="{rows}" dir="auto">'
            f"\n{escape(entry.content)}</textarea></label>"
            '<div><button name="action" value="update">Save</button>'
            '<button name="action" value="delete" class="risky">Delete</button></div></form>'
        )

    def undo(self, last: int) -> str:
        """Return the form that takes back the last change, "" without the right or a change."""
        if not self.can_write or not last:
            return ""
        return (
            self._begin("undo", position=last) + '<button name="action" value="undo">Take back the last change</button>'
            "</form>"
        )

    def review(self, position: int) -> str:
        """Return the form of a quarantined operation, "" without the right."""
        if not self.can_review:
            return ""
        return (
            self._begin("decide", position=position) + '<button name="action" value="accept">Accept</button>'
            '<button name="action" value="reject" class="risky">Reject</button></form>'
        )

    def _begin(self, name: str, **fields: str | int) -> str:
        hidden = "".join(
            f'<input type="hidden" name="{key}" value="{escape(str(value))}">'
            for key, value in {"token": self.token, **fields}.items()
        )
        return f'<form method="post" action="/" class="{name}">{hidden}'


NO_FORMS = Forms("", can_write=False, can_review=False)


def notice(action: str, failure: str, draft: str) -> str:
    """Return what the last form led to, "" if none was sent.

    Args:
        action: Name of an action that succeeded, else "".
        failure: Why the action failed, else "".
        draft: Text that was sent with it.
    """
    if failure:
        draft_html = f'<p>Your text:</p><pre class="text" dir="auto">{text(draft)}</pre>' if draft else ""
        return f'<div class="notice bad" role="alert"><p>Nothing was changed: {text(failure)}</p>{draft_html}</div>'
    notice = NOTICES.get(action, "")
    return f'<p class="notice good" role="status">{escape(notice)}</p>' if notice else ""
