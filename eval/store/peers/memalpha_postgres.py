"""memalpha in PostgreSQL, on the server that MEMALPHA_BENCH_POSTGRES names."""

import os

from peers import memalpha

from memalpha import MemoryStore


class Peer(memalpha.Peer):
    def __init__(self, folder, data):
        folder.mkdir(exist_ok=True)
        url = os.environ["MEMALPHA_BENCH_POSTGRES"]
        url += ("&" if "?" in url else "?") + "schema=bench"
        self._store = MemoryStore.open(url, embedder=memalpha.Embedder(data))
        self._names = {}

    before_adds = bare = property()  # there is no file to copy

    def close(self):
        self._store.close()
