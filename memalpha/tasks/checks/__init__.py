"""Check task files, and training sets for overlap with test sets."""
