"""Task files of a user's own: JSONL and CSV."""
