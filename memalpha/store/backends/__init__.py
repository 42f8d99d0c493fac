"""Where operations and entries are kept: SQLite files, PostgreSQL."""
