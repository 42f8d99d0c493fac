"""PostgreSQL databases with pgvector."""
