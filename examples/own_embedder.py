"""An embedder of your own: character trigrams, which find words despite typing errors.

python examples/own_embedder.py
"""

import zlib

import numpy as np

from memalpha import MemoryStore


class TrigramEmbedder:
    """Count character trigrams in `dim` buckets; rows have length 1."""

    name = "trigrams-512"  # recorded in the file: change it whenever the vectors change
    dim = 512

    def encode(self, texts):
        """Return L2-normalised rows, float32 (len(texts), dim)."""
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, text in enumerate(texts):
            padded = f"  {text.lower()}  "
            for start in range(len(padded) - 2):
                bucket = zlib.crc32(padded[start : start + 3].encode()) % self.dim  # hash() differs between processes
                vectors[row, bucket] += 1.0
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.where(norms > 0, norms, 1.0).astype(np.float32)


def main():
    """Search with a misspelt query."""
    store = MemoryStore.open(":memory:", embedder=TrigramEmbedder())
    for fact in ("Ana plays the accordion.", "Ana lives in Porto.", "Her dog is called Rex."):
        store.insert("semantic", fact)
    for hit in store.search("acordeon", k=1):
        print(hit.entry.content)
    store.close()


if __name__ == "__main__":
    main()
