"""Forked processes: a child inherits locks as they were held, and none of the threads that would release them."""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakSet

_OBJECTS: WeakSet[ForkAware] = WeakSet()
_STATE = threading.local()  # of the thread that forks: the objects, each with what its `before_fork` returned


class ForkAware:
    """Object with a lock, a thread or a connection of this process, once `watch_forks` was called."""

    def watch_forks(self) -> None:
        """Call the methods below at every fork from now on, while the object lives."""
        _OBJECTS.add(self)

    def unwatch_forks(self) -> None:
        """Stop calling them."""
        _OBJECTS.discard(self)

    def before_fork(self) -> Any:
        """Prepare the object, and return what `after_fork` gets. It must not wait for long."""

    def after_fork(self, state: Any) -> None:
        """Go on in the parent."""

    def reset_in_child(self, state: Any) -> None:
        """Replace the locks, and forget threads and connections, without closing what the parent uses."""
        raise NotImplementedError


def _before_fork() -> None:
    _STATE.objects = [(target, target.before_fork()) for target in list(_OBJECTS)]


def _after_fork() -> None:
    for target, state in _STATE.__dict__.pop("objects", ()):
        target.after_fork(state)


def _reset_in_child() -> None:
    for target, state in _STATE.__dict__.pop("objects", ()):
        target.reset_in_child(state)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_reset_in_child)
