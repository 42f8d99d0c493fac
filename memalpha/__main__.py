"""`python -m memalpha` is the command `memalpha`."""

from memalpha.cli.main import main

main()
