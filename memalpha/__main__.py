"""`python -m memalpha` is the command `memalpha`."""

from memalpha.cli import main

main()
