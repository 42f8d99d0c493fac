"""The command line: `main` runs a command, `app` is the Typer application; each group of commands has a file."""

from memalpha.cli.main import app, main

__all__ = ["app", "main"]
