"""Qdrant's Python client in its local mode, on disk."""

from measure import DIM
from qdrant_client import QdrantClient, models


class Peer:
    def __init__(self, folder, data):
        self._client = QdrantClient(path=str(folder))
        if not self._client.collection_exists("bench"):
            self._client.create_collection(
                "bench", vectors_config=models.VectorParams(size=DIM, distance=models.Distance.COSINE)
            )

    def insert(self, ids, texts, users, days, vectors):
        rows = zip(ids, texts, users, days, vectors, strict=True)
        points = [
            models.PointStruct(id=id, vector=vector.tolist(), payload={"text": text, "user": user, "day": day})
            for id, text, user, day, vector in rows
        ]
        self._client.upsert("bench", points)

    def add(self, id, text, user, day, vector):
        self.insert([id], [text], [user], [day], [vector])

    def search(self, text, vector, k, user=None, days=None):
        conditions = []
        if user is not None:
            conditions.append(models.FieldCondition(key="user", match=models.MatchValue(value=user)))
        if days is not None:
            conditions.append(models.FieldCondition(key="day", range=models.Range(gte=days[0], lt=days[1])))
        query_filter = models.Filter(must=conditions) if conditions else None
        response = self._client.query_points("bench", query=vector.tolist(), limit=k, query_filter=query_filter)
        return [point.id for point in response.points]

    def delete(self, id):
        self._client.delete("bench", models.PointIdsList(points=[id]))

    def close(self):
        self._client.close()
