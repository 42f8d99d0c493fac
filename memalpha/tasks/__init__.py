"""Data sets, made and read, all as tasks: chunks and the questions asked of them."""
