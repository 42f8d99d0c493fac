"""Ctrl-C that waits until the state of a run is consistent, in one process or in all of them together."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from memalpha.train.learner.distributed import SINGLE_PROCESS, World


class CoordinatedInterrupt(KeyboardInterrupt):
    """Ctrl-C that all processes take at the same point, with a consistent state."""


@contextmanager
def defer_interrupt(log: Callable[[str], None], world: World = SINGLE_PROCESS) -> Iterator[None]:
    """Delay SIGINT until the block ends; a second one interrupts at once.

    With several processes, all of them stop at the end of the block if one received SIGINT (`CoordinatedInterrupt`). A
    second SIGINT changes nothing there, because launchers pass on their own. torchrun and accelerate wait 30 s and then
    kill the processes: a longer step is lost back to the last checkpoint.

    Args:
        log: Called with a message when the first SIGINT arrives.
        world: Processes that must stop together.
    """
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # nohup or a background job: stays ignored
    is_handled = not ignored and threading.current_thread() is threading.main_thread()
    interrupted = False

    def on_sigint(signal_number: int, frame: Any) -> None:
        nonlocal interrupted
        if interrupted and world.size == 1:
            raise KeyboardInterrupt
        if not interrupted:
            hint = "press again to stop at once" if world.size == 1 else "a launcher may not wait for its end"
            log(f"Ctrl-C: finishing this step first; {hint}")
        interrupted = True

    previous_handler = signal.signal(signal.SIGINT, on_sigint) if is_handled else None
    try:
        yield
        # Interrupts are still deferred here: a process that skipped the gather would hang the others.
        if world.size > 1 and any(world.gather([interrupted])):
            raise CoordinatedInterrupt
    finally:
        if is_handled:
            signal.signal(signal.SIGINT, previous_handler)
    if interrupted:
        raise KeyboardInterrupt
