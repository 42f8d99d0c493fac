"""Cases of `hostile_files.py`: functions that change a sound store file as somebody hostile, or a bad disk, could."""

from __future__ import annotations

import json
import random
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from memalpha.store.store import MemoryStore
from memalpha.store.trust.quarantine import quarantine_operation
from memalpha.types import Operation

Case = Callable[[Path], object]

TABLES = {
    "meta": ("key", "value"),
    "namespaces": ("ns", "name"),
    "operations": (
        *("ns", "seq", "time", "head", "kind", "id", "category", "content", "timestamp", "importance", "metadata"),
        *("source", "chunk", "turn", "expires", "speaker", "key", "reason"),
    ),
    "versions": (
        *("ns", "id", "version", "category", "content", "timestamp", "importance", "metadata", "source", "chunk"),
        *("turn", "valid_from", "valid_to", "created", "digest", "expires", "speaker", "key"),
    ),
    "vectors": ("ns", "digest", "vector"),
}
VALUES = {
    "null": "NULL",
    "empty": "''",
    "text": "'{'",
    "blob": "x'fffe00'",
    "not utf-8": "CAST(x'ff61fe' AS TEXT)",
    "huge text": "CAST(zeroblob(3000000) AS TEXT) || 'x'",
    "long text": f"'{'ab ' * 300_000}'",
    "huge blob": "randomblob(3000000)",
    "largest": "9223372036854775807",
    "smallest": "-9223372036854775808",
    "minus one": "-1",
    "infinite": "9e999",
    "path": "'../../../../etc/passwd'",
    "nested": f"""'{'{"a":' * 5000}1{"}" * 5000}'""",
    "deep list": f"'{'[' * 100_000}'",
    "nul": "'a' || char(0) || 'b'",
}
ENDLESS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r"
OBJECTS = {
    "trigger that wipes": "CREATE TRIGGER t AFTER INSERT ON versions BEGIN DELETE FROM versions; END",
    "trigger that copies": (
        "CREATE TABLE l (x); CREATE TRIGGER t AFTER INSERT ON operations BEGIN INSERT INTO l VALUES (1); END"
    ),
    "trigger in a trigger's name": (
        "DROP TRIGGER operations_last; CREATE TRIGGER operations_last AFTER INSERT ON versions BEGIN DELETE FROM "
        "meta; END"
    ),
    "instead of trigger": "CREATE VIEW v AS SELECT 1 a; CREATE TRIGGER t INSTEAD OF INSERT ON v BEGIN SELECT 1; END",
    "view": "CREATE VIEW v AS SELECT * FROM versions",
    "endless view for meta": (
        f"ALTER TABLE meta RENAME TO m; CREATE VIEW meta AS SELECT key, value FROM m WHERE ({ENDLESS}) > 0"
    ),
    "endless view for versions": (
        f"ALTER TABLE versions RENAME TO o; CREATE VIEW versions AS SELECT * FROM o WHERE ({ENDLESS}) > 0"
    ),
    "recursive view": "CREATE VIEW v AS SELECT * FROM w; CREATE VIEW w AS SELECT * FROM v",
    "virtual table": "CREATE VIRTUAL TABLE words USING fts5(x)",
    "virtual table for vectors": (
        "ALTER TABLE vectors RENAME TO o; CREATE VIRTUAL TABLE vectors USING fts5(ns, digest, vector)"
    ),
    "rtree": "CREATE VIRTUAL TABLE r USING rtree(id, a, b)",
    "generated column": "ALTER TABLE versions ADD COLUMN g TEXT AS (hex(zeroblob(1000000)))",
    "generated stored column": (
        "ALTER TABLE meta RENAME TO m; CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL, g AS (key) "
        "STORED); INSERT INTO meta SELECT * FROM m"
    ),
    "more column": "ALTER TABLE versions ADD COLUMN more TEXT",
    "expression index": "CREATE INDEX e ON versions (hex(content) || hex(zeroblob(100000)))",
    "partial index": "CREATE INDEX e ON versions (id) WHERE content LIKE '%'",
    "index of our name": "DROP INDEX live_content; CREATE INDEX live_content ON versions (hex(digest))",
    "table": "CREATE TABLE loot (x)",
    "table with default": "CREATE TABLE loot (x DEFAULT (randomblob(1000000000)))",
    "table with check": "CREATE TABLE loot (x CHECK (length(hex(zeroblob(1000000))) > x))",
    "quoted name": 'CREATE TABLE "a""; DROP TABLE versions; --" (x)',
    "terminal escape in a name": 'CREATE TABLE "\x1b[2Jx" (x)',
    "very long name": f'CREATE TABLE "{"x" * 100_000}" (x)',
    "many tables": ";".join(f"CREATE TABLE t{number} (x)" for number in range(3000)),
    "without a table": "DROP TABLE vectors",
    "without an index": "DROP INDEX expiring",
    "statistics that lie": (
        "ANALYZE; UPDATE sqlite_stat1 SET stat = '99999999999 1 1 1'; INSERT INTO sqlite_stat1 VALUES "
        "('versions', 'x', zeroblob(1000000))"
    ),
    "foreign key": "CREATE TABLE f (x REFERENCES versions (id) ON DELETE CASCADE)",
}
PRAGMAS = {
    **{f"user_version {n}": f"PRAGMA user_version = {n}" for n in (0, 1, 2, 3, 5, 7, 2**31 - 1, -1)},
    **{f"application_id {n}": f"PRAGMA application_id = {n}" for n in (0, 1, -1, 0x6D416C71)},
    "autovacuum": "PRAGMA journal_mode = DELETE; PRAGMA auto_vacuum = FULL; VACUUM",
    "other page size": "PRAGMA journal_mode = DELETE; PRAGMA page_size = 512; VACUUM",
    "largest page size": "PRAGMA journal_mode = DELETE; PRAGMA page_size = 65536; VACUUM",
    "rollback journal": "PRAGMA journal_mode = DELETE",
}
CONTENTS = {
    "namespace like a path": "UPDATE namespaces SET name = '../../../tmp/x' WHERE ns = 1",
    "namespace of escapes": "UPDATE namespaces SET name = char(27) || '[2J' || char(0x202e) WHERE ns = 1",
    "copies of any path": (
        "INSERT INTO meta VALUES ('copy /etc/passwd', ''), ('copy ../../x', ''), ('copy //host/x', '')"
    ),
    "many copies": (
        "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r WHERE x < 20000) INSERT INTO meta SELECT "
        "'copy /tmp/x' || x, '' FROM r"
    ),
    "scrub due": "INSERT INTO meta VALUES ('scrub', 'due')",
    "last namespace": "INSERT INTO meta VALUES ('last namespace', '9223372036854775807')",
    "last namespace as text": "INSERT INTO meta VALUES ('last namespace', 'x')",
    "index key": "INSERT OR REPLACE INTO meta VALUES ('index key', x'00')",
    "no meta": "DELETE FROM meta",
    "no log": "DROP TRIGGER operations_last; DELETE FROM operations",
    "no versions": "DELETE FROM versions",
    "no vectors": "DELETE FROM vectors",
    "no namespaces": "DELETE FROM namespaces",
    "many due": "UPDATE versions SET expires = '2000-01-01T00:00:00.000000+00:00'",
    "all live": "DROP INDEX live_order; UPDATE versions SET valid_to = NULL",
    "none live": "UPDATE versions SET valid_to = valid_from",
    "backwards": "UPDATE versions SET valid_to = 1, valid_from = 9",
    "far positions": "UPDATE versions SET valid_from = valid_from + 9000000000000000000",
    "versions by the million": (
        "WITH RECURSIVE r(x) AS (SELECT 100 UNION ALL SELECT x + 1 FROM r WHERE x < 20000) INSERT INTO versions "
        "SELECT ns, id, x, category, content, timestamp, importance, metadata, source, chunk, turn, 1, 2, 1, "
        "digest, expires, speaker, key FROM versions, r WHERE versions.valid_from = 2 AND version = 1"
    ),
    "huge importance": "UPDATE versions SET importance = 1.7e308",
}
EMBEDDERS = {
    "a path": {"name": "../../model", "dim": 256, "probe": [0.0] * 256},
    "a url": {"name": "http://127.0.0.1:9/v1#m", "dim": 256, "probe": [0.0] * 256},
    "openai": {"name": "openai:text-embedding-3-small", "dim": 256, "probe": [0.0] * 256},
    "too many numbers": {"name": "hash", "dim": 300_000, "probe": [0.5] * 300_000},
    "a negative dimension": {"name": "hash", "dim": -1, "probe": []},
    "a huge number": {"name": "hash", "dim": 1, "probe": [10**400]},
    "another probe": {"name": "hash", "dim": 256, "probe": [9.0] * 256},
    "nan": {"name": "hash", "dim": 256, "probe": [float("nan")] * 256},
    "a list": [1],
}
VECTORS = {
    "nan": struct.pack("<f", float("nan")) * 256,
    "infinite": struct.pack("<f", float("inf")) * 256,
    "zeros": bytes(1024),
    "huge": struct.pack("<f", 3e38) * 256,
    "tiny": struct.pack("<f", 1e-40) * 256,
    "short": bytes(4),
    "long": bytes(4096),
    "odd": bytes(1023),
    "none": b"",
}


def make_store(path: Path) -> None:
    """Create the sound store: two namespaces, versions, an erasure, core memory, an expiry, spans, a quarantine."""
    clock = lambda: datetime(2026, 11, 1, 12, tzinfo=UTC)  # noqa: E731
    with MemoryStore.open(path, embedder="hash", clock=clock) as store:
        for number in range(5):
            store.insert("semantic", f"fact {number}: value {number}", metadata={"user": "ana"}, timestamp="2024-05-01")
        store.insert("episodic", "Ana said hello", source="chat", chunk=0, turn="t1")
        store.insert("episodic", "Ben said hello", source="chat", chunk=0, turn="t2")
        store.insert("semantic", "short lived", expires="2099-01-01")
        store.update(store.list()[1].id, "fact 1: value 11", metadata={"user": "ben", "tags": ["a"]})
        store.delete(store.list()[2].id)
        store.core_update("Ana")
        gone = store.insert("semantic", "gone")
        store.erase(gone.id)
        store.apply(quarantine_operation(Operation("insert", category="semantic", content="lie"), None, "not asked"))
        store.namespace("other").insert("semantic", "of others")
        store.undo()


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def _script(script: str) -> Case:
    def change(path: Path) -> None:
        with closing(_connect(path)) as rows:
            rows.executescript(f"{script}; PRAGMA wal_checkpoint(TRUNCATE)")

    return change


def _column(table: str, column: str, value: str, where: str) -> Case:
    def change(path: Path) -> bool:
        with closing(_connect(path)) as rows:
            (trigger,) = rows.execute("SELECT sql FROM sqlite_master WHERE name = 'operations_stay'").fetchone()
            rows.execute("DROP TRIGGER operations_stay")
            try:
                rows.execute(f"UPDATE OR REPLACE {table} SET {column} = {value} WHERE {where}")
            except sqlite3.Error:  # a constraint of SQLite's own
                return False
            rows.execute(trigger)
            rows.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return True

    return change


def _row(table: str, sql: str, values: tuple) -> Case:
    def change(path: Path) -> None:
        with closing(_connect(path)) as rows:
            rows.execute(f"UPDATE {table} {sql}", values)
            rows.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    return change


def _damaged(seed: int, size: int, *, page: int | None = None) -> Case:
    """Return a case with `size` random bytes at a random place, within a page of 8192 bytes or anywhere."""

    def change(path: Path) -> None:
        rng, data = random.Random(seed), bytearray(path.read_bytes())
        start = rng.randrange(100, len(data) - size) if page is None else page * 8192 + rng.randrange(8192 - size)
        data[start : start + size] = rng.randbytes(size)
        path.write_bytes(data)

    return change


def _header(offset: int, value: bytes) -> Case:
    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[offset : offset + len(value)] = value
        path.write_bytes(data)

    return change


def _truncated(share: float, extra: int = 0) -> Case:
    return lambda path: path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share) + extra])


def _beside(suffix: str, make: Callable[[bytes], bytes]) -> Case:
    return lambda path: Path(f"{path}{suffix}").write_bytes(make(path.read_bytes()))


def _wal(data: bytes, *, valid: bool) -> bytes:
    """Return a write-ahead log whose frames are random pages, with right or wrong checksums."""
    rng = random.Random(7)

    def checksum(s: tuple[int, int], block: bytes) -> tuple[int, int]:
        a, b = s
        for first, second in struct.iter_unpack("<II", block):
            a = (a + first + b) & 0xFFFFFFFF
            b = (b + second + a) & 0xFFFFFFFF
        return a, b

    head = struct.pack(">IIIIII", 0x377F0682, 3007000, 8192, 0, 1, 2)
    sums = checksum((0, 0), head)
    wal = head + struct.pack(">II", *sums)
    pages = len(data) // 8192
    for number in range(1, pages + 1):
        page = data[:100] + rng.randbytes(8092) if number == 1 else rng.randbytes(8192)
        frame = struct.pack(">II", number, pages)
        sums = checksum(sums, frame + page)
        stored = sums if valid else (1, 2)
        wal += frame + struct.pack(">IIII", 1, 2, *stored) + page
    return wal


def _journal(data: bytes) -> bytes:
    """Return a hot journal that would put random pages back."""
    rng, pages = random.Random(8), len(data) // 8192
    journal = bytes.fromhex("d9d505f920a163d7") + struct.pack(">IIIII", pages, 5, pages, 512, 8192)
    journal = journal.ljust(512, b"\0")
    for number in range(1, pages + 1):
        page = rng.randbytes(8192)
        check = (5 + sum(page[offset] for offset in range(8192 - 200, 0, -200))) & 0xFFFFFFFF
        journal += struct.pack(">I", number) + page + struct.pack(">I", check)
    return journal


def _cases() -> Iterator[tuple[str, Case]]:
    for table, columns in TABLES.items():
        first = {"meta": "key = 'embedder'", "namespaces": "name = 'default'", "vectors": "rowid = 2"}.get(table)
        for column in columns:
            for name, value in VALUES.items():
                where = first or ("seq = 2" if table == "operations" else "id LIKE 'fact-1#%' AND valid_to IS NULL")
                yield f"column: {table}.{column} {name}", _column(table, column, value, where)
        for column in columns:  # every row
            for name in ("blob", "text", "largest", "infinite"):
                yield f"column: {table}.{column} {name} in all rows", _column(table, column, VALUES[name], "1")
    for name, script in OBJECTS.items():
        yield f"object: {name}", _script(script)
    for name, script in {**PRAGMAS, **CONTENTS}.items():
        yield f"crafted: {name}", _script(script)
    for name, record in EMBEDDERS.items():
        yield f"crafted: embedder {name}", _row("meta", "SET value = ? WHERE key = 'embedder'", (json.dumps(record),))
    for name, vector in VECTORS.items():
        yield f"crafted: vector {name}", _row("vectors", "SET vector = ? WHERE rowid = 2", (vector,))
        yield f"crafted: all vectors {name}", _row("vectors", "SET vector = ?", (vector,))
    for seed in range(150):
        yield f"damage: {1 << seed % 10} bytes, seed {seed}", _damaged(seed, 1 << seed % 10)
    for page in range(12):
        yield f"damage: page {page}", _damaged(1000 + page, 8000, page=page)
        yield f"damage: zeros in page {page}", _header(page * 8192 + 100, bytes(8000))
    for offset in (16, 18, 19, 20, 21, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 62, 64, 68, 92, 96):
        for value in (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x00\x00\x00\x01", b"\x7f\xff\xff\xff"):
            yield f"damage: header at {offset} is {value.hex()}", _header(offset, value)
    for share in (0.0, 0.01, 0.3, 0.5, 0.9, 0.999):
        yield f"damage: truncated to {share}", _truncated(share)
    yield "damage: header alone", _truncated(0, 100)
    yield "damage: more at the end", lambda path: path.write_bytes(path.read_bytes() + b"x" * 50_000)
    yield "damage: write-ahead log of random pages", _beside("-wal", lambda data: _wal(data, valid=True))
    yield "damage: write-ahead log of wrong checksums", _beside("-wal", lambda data: _wal(data, valid=False))
    yield "damage: write-ahead log of noise", _beside("-wal", lambda data: random.Random(1).randbytes(100_000))
    yield "damage: shared memory of noise", _beside("-shm", lambda data: random.Random(2).randbytes(32_768))
    yield "damage: hot journal of random pages", _beside("-journal", _journal)
    yield "damage: journal of noise", _beside("-journal", lambda data: random.Random(3).randbytes(50_000))


CASES: dict[str, Case] = dict(_cases())
