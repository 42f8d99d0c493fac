"""Tasks generated from worlds whose facts are known."""
