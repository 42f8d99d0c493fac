"""Extension of the site's generator: a method without a docstring shows the one that it inherits."""

from __future__ import annotations

from typing import Any

import griffe


class InheritedDocstrings(griffe.Extension):
    """Do for the pages what `inspect.getdoc` does for `help()`."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Fill in the docstrings of all classes of a loaded package."""
        _fill_in(pkg)


def _fill_in(parent: griffe.Module | griffe.Class) -> None:
    for member in parent.members.values():
        if isinstance(member, griffe.Module | griffe.Class):
            _fill_in(member)
        elif isinstance(parent, griffe.Class) and not (member.is_alias or member.docstring):
            bases = (base.members.get(member.name) for base in parent.mro())
            member.docstring = next((base.docstring for base in bases if base is not None and base.docstring), None)
