"""Databases of a store: SQLite files and PostgreSQL."""
