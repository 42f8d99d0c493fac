"""Stores in PostgreSQL with pgvector."""
