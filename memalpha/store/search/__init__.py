"""Two-layer search: vectors, BM25, ranking."""
