"""Policies behind OpenAI-compatible servers."""
