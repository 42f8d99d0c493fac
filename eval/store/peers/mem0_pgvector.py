"""mem0 on pgvector, with its HNSW index, on the server that MEMALPHA_BENCH_POSTGRES names."""

import os

from measure import DIM
from peers import mem0_faiss


class Peer(mem0_faiss.Peer):
    def store(self):
        url = os.environ["MEMALPHA_BENCH_POSTGRES"]
        return "pgvector", {"connection_string": url, "embedding_model_dims": DIM, "hnsw": True}

    def location(self, folder):
        return {}
