"""Stores in and out: JSONL, Markdown, copies of stores."""
