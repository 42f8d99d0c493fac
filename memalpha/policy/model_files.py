"""Read transformers models, tokenizers and LoRA adapters from directories and the model hub."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.tokenization_utils_base import PreTrainedTokenizerBase
from transformers.utils import logging as hf_logging

from memalpha.errors import PolicyError
from memalpha.hub import hub_reachable
from memalpha.policy.base import ADAPTER_CONFIG, SHIPPED_POLICIES, endpoint_hint


def is_reward_model(path: str | Path) -> bool:
    """Return True if the `config.json` in `path` describes a sequence classification model."""
    try:
        config = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    architectures = config.get("architectures") if isinstance(config, dict) else None
    return bool(architectures) and str(architectures[0]).endswith("ForSequenceClassification")


def load_model(
    path: str | Path, dtype: str, device: str, label: str = "policy", **kwargs: Any
) -> tuple[Any, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer from a directory or a hub id.

    Local files take precedence over the hub.

    Args:
        path: directory with config.json, weights and tokenizer, or a hub id `owner/name`.
        dtype: torch dtype of the weights.
        device: torch device of the weights.
        label: word for the model in error messages.
        **kwargs: `kind`, the transformers auto class (default: causal language model), and further keywords of its
            `from_pretrained`.

    Returns:
        The model on `device`, and its tokenizer.

    Raises:
        PolicyError: if there is no such model, or it cannot be loaded or moved to `device`.
    """
    is_local = (Path(path) / "config.json").is_file()
    if not is_local and (Path(path).exists() or not re.fullmatch(r"\w[\w.-]*/[\w.-]+", str(path))):
        if (Path(path) / "checkpoints").is_dir():
            raise PolicyError(f"{path} is a run directory: give it to load_policy, or name one of its checkpoints")
        shipped, remote = "", ""
        if label == "policy":
            shipped = f"{', '.join(SHIPPED_POLICIES)}, "
            remote = f". {endpoint_hint(str(path))}"
        raise PolicyError(
            f"no {label} at {str(path)!r}: expected {shipped}a directory with config.json, weights and tokenizer, or a "
            f"hub id owner/name{remote}"
        )
    try:
        try:
            model, tokenizer = _load(path, dtype, offline=True, **kwargs)
        except OSError:
            if is_local:
                raise
            if not hub_reachable():
                raise PolicyError(
                    f"{label} {str(path)!r} is not on this machine and the model hub cannot be reached: connect "
                    "and try again, or give a directory with config.json, weights and tokenizer"
                ) from None
            model, tokenizer = _load(path, dtype, offline=False, **kwargs)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise PolicyError(f"cannot load {label} {str(path)!r}: {error}") from error
    try:
        model.to(device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch was built without this device
        reason = str(error).splitlines()[0]
        raise PolicyError(f"{label} {str(path)!r} cannot be put on device {device!r} ({reason}): try cpu") from error
    return model, tokenizer


def _load(
    path: str | Path, dtype: str, *, offline: bool, kind: Any = AutoModelForCausalLM, **kwargs: Any
) -> tuple[Any, PreTrainedTokenizerBase]:
    with hide_progress_bars():
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=offline)
        model, loading_info = kind.from_pretrained(
            path, dtype=getattr(torch, dtype), local_files_only=offline, output_loading_info=True, **kwargs
        )
    if missing_keys := sorted(loading_info["missing_keys"]):  # transformers would initialize them randomly
        raise ValueError(f"its weights are not those of its config.json: they lack {missing_keys[0]}")
    return model, tokenizer


def load_adapter(tuned: Any, folder: str | Path) -> None:
    """Copy the adapter weights of `folder` into a `PeftModel`.

    Raises `ValueError` if the tensors do not match the adapter's configuration.
    """
    import peft

    tensors = load_file(Path(folder) / "adapter_model.safetensors")
    expected = peft.get_peft_model_state_dict(tuned, save_embedding_layers=False)
    mismatched = sorted(tensors.keys() ^ expected.keys())
    if mismatched:
        raise ValueError(f"its tensors are not those that {ADAPTER_CONFIG} asks for ({mismatched[0]} and others)")
    peft.set_peft_model_state_dict(tuned, tensors)


@contextmanager
def hide_progress_bars() -> Iterator[None]:
    """Hide transformers' progress bars for loading and saving."""
    was_enabled = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            hf_logging.enable_progress_bar()
