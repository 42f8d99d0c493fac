"""The floor: bare SQLite with a log, entries, vectors and words (FTS5), searched by numpy; nothing is checked or kept.

It is no store: an entry has no versions, no id of its own and no check, and the vectors in memory follow this process
alone. It says what the rows themselves cost.
"""

import json
import sqlite3

import numpy as np
from measure import DIM

_SCHEMA = """
CREATE TABLE log (position INTEGER PRIMARY KEY, time TEXT, kind TEXT, id INTEGER, content TEXT, metadata TEXT);
CREATE TABLE entries (id INTEGER PRIMARY KEY, content TEXT, metadata TEXT, user TEXT, day INTEGER);
CREATE TABLE vectors (id INTEGER PRIMARY KEY, vector BLOB);
CREATE INDEX users ON entries (user);
CREATE INDEX days ON entries (day);
CREATE VIRTUAL TABLE words USING fts5(content);
"""


class Peer:
    def __init__(self, folder, data):
        folder.mkdir(exist_ok=True)
        is_new = not (folder / "bench.db").exists()
        self._rows = sqlite3.connect(folder / "bench.db", isolation_level=None)
        for setting in ("page_size = 8192", "journal_mode = WAL", "synchronous = FULL", "cache_size = -16384"):
            self._rows.execute(f"PRAGMA {setting}")
        if is_new:
            self._rows.executescript(_SCHEMA)
        self._vectors = None

    def insert(self, ids, texts, users, days, vectors):
        metadata = [json.dumps({"n": id, "user": u, "day": day}) for id, u, day in zip(ids, users, days, strict=True)]
        self._rows.execute("BEGIN IMMEDIATE")
        self._rows.executemany(
            "INSERT INTO log (time, kind, id, content, metadata) VALUES ('2026-01-01T00:00:00', 'insert', ?, ?, ?)",
            zip(ids, texts, metadata, strict=True),
        )
        self._rows.executemany(
            "INSERT INTO entries VALUES (?, ?, ?, ?, ?)", zip(ids, texts, metadata, users, days, strict=True)
        )
        self._rows.executemany("INSERT INTO vectors VALUES (?, ?)", zip(ids, map(bytes, vectors), strict=True))
        self._rows.executemany("INSERT INTO words (rowid, content) VALUES (?, ?)", zip(ids, texts, strict=True))
        self._rows.execute("COMMIT")
        self._vectors = None

    def add(self, id, text, user, day, vector):
        self.insert([id], [text], [user], [day], [vector])

    def search(self, text, vector, k, user=None, days=None):
        if self._vectors is None:
            rows = self._rows.execute("SELECT id, vector FROM vectors ORDER BY id").fetchall()
            self._ids = np.array([id for id, _ in rows])
            self._vectors = np.frombuffer(b"".join(row for _, row in rows), np.float32).reshape(-1, DIM)
        where, values = ("user = ?", [user]) if days is None else ("day >= ? AND day < ?", days)
        ids, vectors = self._ids, self._vectors
        if user is not None or days is not None:
            matches = [id for (id,) in self._rows.execute(f"SELECT id FROM entries WHERE {where}", values)]
            chosen = np.searchsorted(ids, np.sort(matches))
            ids, vectors = ids[chosen], vectors[chosen]
        scores = vectors @ np.frombuffer(vector, np.float32)
        best = np.argpartition(-scores, min(k, len(scores)) - 1)[:k]
        return ids[best[np.argsort(-scores[best])]].tolist()

    def delete(self, id):
        self._rows.execute("BEGIN IMMEDIATE")
        self._rows.execute("INSERT INTO log (time, kind, id) VALUES ('2026-01-01T00:00:00', 'delete', ?)", (id,))
        for table, key in (("entries", "id"), ("vectors", "id"), ("words", "rowid")):
            self._rows.execute(f"DELETE FROM {table} WHERE {key} = ?", (id,))
        self._rows.execute("COMMIT")
        self._vectors = None

    def close(self):
        self._rows.close()
