"""Convert SmolLM2-135M-Instruct from GGUF to a transformers directory, and hash its weights."""

from __future__ import annotations

import errno
import hashlib
import io
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from memalpha.errors import PolicyError
from memalpha.policy.model_files import hide_progress_bars
from memalpha.policy.smol.base_model import GGUF

WEIGHTS_SHA256 = "c7675a57f20d0942937a02c9b6379a391954daa91c566049afba2e292b38f512"
"""SHA-256 over the converted tensors: name, shape and bfloat16 bytes of each, sorted by name."""

NOT_CONFIG = ("quantization_config", "_name_or_path", "model_type", "architectures", "transformers_version")


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
    """Return a SHA-256 over the tensors of a folder's `model.safetensors`, whatever their order in the file."""
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def has_same_weights(folder: Path) -> bool:
    """Return True if a folder holds the weights of `WEIGHTS_SHA256`; False also if they cannot be read."""
    try:
        return weights_sha256(folder) == WEIGHTS_SHA256
    except (OSError, SafetensorError):
        return False
