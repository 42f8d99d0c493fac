"""Chroma, persistent client."""

import chromadb
from chromadb.config import Settings


class Peer:
    def __init__(self, folder, data):
        client = chromadb.PersistentClient(str(folder), Settings(anonymized_telemetry=False))
        self._all = client.get_or_create_collection(
            "bench", embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
        )

    def insert(self, ids, texts, users, days, vectors):
        self._all.add(
            ids=[str(id) for id in ids],
            documents=texts,
            metadatas=[{"user": user, "day": day} for user, day in zip(users, days, strict=True)],
            embeddings=[vector.tolist() for vector in vectors],
        )

    def add(self, id, text, user, day, vector):
        self.insert([id], [text], [user], [day], [vector])

    def search(self, text, vector, k, user=None, days=None):
        where = None if user is None else {"user": user}
        if days is not None:
            where = {"$and": [{"day": {"$gte": days[0]}}, {"day": {"$lt": days[1]}}]}
        results = self._all.query(query_embeddings=[vector.tolist()], n_results=k, where=where)
        return [int(id) for id in results["ids"][0]]

    def delete(self, id):
        self._all.delete(ids=[str(id)])

    def close(self):
        pass
