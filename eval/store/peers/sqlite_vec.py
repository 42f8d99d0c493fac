"""sqlite-vec: one virtual table, the user as its partition key, WAL with synchronous=FULL."""

try:
    import pysqlite3 as sqlite3  # where Python's own cannot load extensions
except ImportError:
    import sqlite3

import sqlite_vec
from measure import DIM


class Peer:
    user_column = "user TEXT PARTITION KEY"

    def __init__(self, folder, data):
        folder.mkdir(exist_ok=True)
        self._rows = sqlite3.connect(folder / "bench.db", isolation_level=None)
        self._rows.enable_load_extension(True)
        sqlite_vec.load(self._rows)
        self._rows.execute("PRAGMA journal_mode = WAL")
        self._rows.execute("PRAGMA synchronous = FULL")
        self._rows.execute(
            f"CREATE VIRTUAL TABLE IF NOT EXISTS bench USING vec0(id INTEGER PRIMARY KEY, {self.user_column}, "
            f"day INTEGER, +text TEXT, vector FLOAT[{DIM}] distance_metric=cosine)"
        )

    def insert(self, ids, texts, users, days, vectors):
        self._rows.execute("BEGIN")
        self._rows.executemany(
            "INSERT INTO bench (id, text, user, day, vector) VALUES (?, ?, ?, ?, ?)",
            zip(ids, texts, users, days, map(bytes, vectors), strict=True),
        )
        self._rows.execute("COMMIT")

    def add(self, id, text, user, day, vector):
        self.insert([id], [text], [user], [day], [vector])

    def search(self, text, vector, k, user=None, days=None):
        where, values = "vector MATCH ? AND k = ?", [bytes(vector), k]
        if user is not None:
            where, values = where + " AND user = ?", [*values, user]
        if days is not None:
            where, values = where + " AND day >= ? AND day < ?", [*values, *days]
        return [id for (id,) in self._rows.execute(f"SELECT id FROM bench WHERE {where} ORDER BY distance", values)]

    def delete(self, id):
        self._rows.execute("DELETE FROM bench WHERE id = ?", (id,))

    def close(self):
        self._rows.close()
