"""The frame and the style of every page."""

from __future__ import annotations

from html import escape
from importlib import resources
from string import Template


def fill_template(title: str, body: str, head: str = "") -> str:
    """Return a page in the style of all reports.

    Args:
        title: Title, as plain text.
        body: Content, as HTML.
        head: Further HTML of the head.
    """
    template = Template((resources.files("memalpha") / "report" / "template.html").read_text(encoding="utf-8"))
    return template.substitute(title=escape(title), body=body, head=head)
