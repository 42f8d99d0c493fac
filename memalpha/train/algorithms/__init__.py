"""Algorithms, one file each: they turn trajectory groups into annotated training samples."""
