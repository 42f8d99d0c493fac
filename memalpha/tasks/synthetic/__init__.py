"""Tasks generated from worlds whose facts are known.

`from memalpha.tasks import synthetic; synthetic.tasks(...)` stands for `worlds.tasks`.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "tasks":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from memalpha.tasks.synthetic.worlds import tasks

    return tasks
