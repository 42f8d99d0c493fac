"""Namespaces spread over several PostgreSQL servers, found by a routing table."""
