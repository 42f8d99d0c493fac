"""mem0 on its default backend, Qdrant's local mode, on disk."""

from measure import DIM
from peers import mem0_faiss


class Peer(mem0_faiss.Peer):
    def store(self):
        return "qdrant", {"embedding_model_dims": DIM, "on_disk": True}
