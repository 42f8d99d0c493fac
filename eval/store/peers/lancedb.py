"""LanceDB, exact search (no vector index is made, as by default)."""

import lancedb
import pyarrow as pa
from measure import DIM

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("user", pa.string()),
        ("day", pa.int64()),
        ("vector", pa.list_(pa.float32(), DIM)),
    ]
)


class Peer:
    def __init__(self, folder, data):
        self._table = lancedb.connect(folder).create_table("bench", schema=SCHEMA, exist_ok=True)

    def insert(self, ids, texts, users, days, vectors):
        flat = pa.concat_arrays([pa.array(vector) for vector in vectors])
        columns = [ids, texts, users, days, pa.FixedSizeListArray.from_arrays(flat, DIM)]
        self._table.add(pa.table(columns, schema=SCHEMA))

    def add(self, id, text, user, day, vector):
        self.insert([id], [text], [user], [day], [vector])

    def search(self, text, vector, k, user=None, days=None):
        query = self._table.search(vector.tolist()).distance_type("cosine").limit(k)
        if user is not None:
            query = query.where(f"user = '{user}'", prefilter=True)
        if days is not None:
            query = query.where(f"day >= {days[0]} AND day < {days[1]}", prefilter=True)
        return query.to_arrow()["id"].to_pylist()

    def delete(self, id):
        self._table.delete(f"id = {id}")

    def close(self):
        pass
