"""Data sets, generated or read from files, as tasks: chunks and the questions on them."""
