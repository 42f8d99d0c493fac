"""mem0 on its FAISS backend, entries added as they are (`infer=False`), one at a time: it has no other way."""

import logging
import os
import tempfile

os.environ["MEM0_DIR"] = tempfile.mkdtemp()  # else it writes into the home directory
os.environ["OPENAI_API_KEY"] = "none"

from measure import DIM
from mem0 import Memory

logging.disable(logging.WARNING)


class Embedder:
    def __init__(self, data):
        self._data = data

    def embed(self, text, memory_action=None):
        return self._data.vector(text).tolist()

    def embed_batch(self, texts, memory_action=None):
        return [self._data.vector(text).tolist() for text in texts]


class Peer:
    def store(self):
        return "faiss", {"distance_strategy": "cosine", "embedding_model_dims": DIM}

    def location(self, folder):
        return {"path": str(folder / "vectors")}

    def __init__(self, folder, data):
        folder.mkdir(exist_ok=True)
        provider, config = self.store()
        config |= {"collection_name": "bench"} | self.location(folder)
        self._memory = Memory.from_config(
            {
                "vector_store": {"provider": provider, "config": config},
                "history_db_path": str(folder / "history.db"),
            }
        )
        self._memory.embedding_model = Embedder(data)
        self._names = {}

    def insert(self, ids, texts, users, days, vectors):
        for row in zip(ids, texts, users, days, vectors, strict=True):
            self.add(*row)

    def add(self, id, text, user, day, vector):
        result = self._memory.add(
            [{"role": "user", "content": text}],
            user_id=user,
            agent_id="bench",
            metadata={"number": id, "day": day},
            infer=False,
        )
        self._names[id] = result["results"][0]["id"]

    def search(self, text, vector, k, user=None, days=None):
        # A scope is mandatory: everything is the agent's.
        filters = {"agent_id": "bench"} if user is None else {"user_id": user}
        if days is not None:
            filters = {"agent_id": "bench", "day": {"gte": days[0], "lt": days[1]}}
        results = self._memory.search(text, top_k=k, filters=filters, threshold=0.0)
        return [item["metadata"]["number"] for item in results["results"]]

    def delete(self, id):
        self._memory.delete(self._names[id])

    def close(self):
        self._memory.close()
