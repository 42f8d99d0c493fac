"""Data sets: a module for each, or for sets of one format."""
