"""Commands of `memalpha`, a file for each group."""
