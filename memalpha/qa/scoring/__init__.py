"""Metrics, judges and statistics."""
