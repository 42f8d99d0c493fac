"""Progress of long work on stderr: bars on a terminal, otherwise a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Report = Callable[[str, int, int], None]
"""Called with (name, done, all)."""
SECONDS = 10.0
"""Time between two lines of one name, in seconds."""


@contextmanager
def show_progress(unit: str) -> Iterator[Report]:
    """Yield a function that shows how far named work is.

    Without a terminal, a line is written at most every `SECONDS`, and one at the end of work that took longer.

    Args:
        unit: What is counted, in the plural.
    """
    from rich.console import Console
    from rich.progress import Progress, TaskID

    console = Console(stderr=True)
    if not console.is_terminal:
        yield line_progress(unit, sys.stderr)
        return
    with Progress(console=console, transient=True) as bars:
        task_ids: dict[str, TaskID] = {}

        def report(name: str, done: int, total: int) -> None:
            if name not in task_ids:
                task_ids[name] = bars.add_task(name, total=total)
            bars.update(task_ids[name], completed=done, total=total)

        yield report


def line_progress(unit: str, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> Report:
    """Return a function that writes lines `name: done of all UNIT`, not too often.

    Args:
        unit: What is counted, in the plural.
        stream: Where the lines go.
        clock: Returns seconds.
    """
    written: dict[str, float] = {}
    lines: set[str] = set()

    def report(name: str, done: int, total: int) -> None:
        now = clock()
        since = now - written.setdefault(name, now)
        if since < SECONDS and not (done >= total and name in lines):
            return
        written[name] = now
        lines.add(name)
        print(f"{name}: {done:,} of {total:,} {unit}", file=stream, flush=True)

    return report
