"""Servers on a real socket: `memalpha serve` in a process of its own, an application in a thread."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "memalpha", "serve"]
ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}


class ServerProcess:
    """A running server: its process and its address."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        lines: list[str] = []
        while not (match := re.search(r" at (http://\S+?)/v1", "".join(lines))):
            lines.append(self.line())
            assert lines[-1], f"the server ended before it named its address: {lines}"
        self.url = match[1]

    def line(self) -> str:
        """Return the next line of stderr."""
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def stop(self) -> str:
        """Stop the server as an operator does; return the rest of stderr. Nothing is on stdout."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=60)
        assert (self.process.returncode, out) == (0, ""), err
        return err


@contextmanager
def running(store: Path | str, *words: str, **environment: str) -> Iterator[ServerProcess]:
    """Start a server and yield it; it is killed at the end if it still runs.

    Args:
        store: The store.
        words: Options of `memalpha serve`.
        environment: Variables beside this process's.
    """
    process = subprocess.Popen(
        [*COMMAND, str(store), "--embedder", "hash", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT, **environment},
    )
    try:
        yield ServerProcess(process)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def listening(app: Any, **options: Any) -> Iterator[str]:
    """Serve an application in a thread and yield its address; `options` are uvicorn's."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, **options))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
