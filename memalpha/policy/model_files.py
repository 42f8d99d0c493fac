"""Read transformers models, tokenizers and LoRA adapters from directories and the model hub."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.tokenization_utils_base import PreTrainedTokenizerBase
from transformers.utils import logging as hf_logging

from memalpha.arguments import brief_repr, check_type
from memalpha.config.groups import LoadingConfig
from memalpha.errors import ConfigError, MemalphaError, PolicyError, did_you_mean, install_command, required_packages
from memalpha.hub import hub_reachable
from memalpha.policy.base import ADAPTER_CONFIG, NAMED_POLICIES, RULE_POLICIES, endpoint_hint

DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Values of `compute.device_map`."""


def is_reward_model(path: str | Path) -> bool:
    """Return True if the `config.json` in `path` describes a sequence classification model."""
    try:
        config = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    architectures = config.get("architectures") if isinstance(config, dict) else None
    return bool(architectures) and str(architectures[0]).endswith("ForSequenceClassification")


def check_writes_text(config: Any, name: str | Path) -> None:
    """Raise `PolicyError`, which names the policy, if a configuration is not of a causal language model."""
    kind, reason = config.model_type, ""
    if config.is_encoder_decoder:
        reason = "an encoder-decoder model"
    elif getattr(config, "is_decoder", None) is False and not kind.startswith("gpt_neox"):
        # configurations of decoders lack the key, or set it; GPT-NeoX (Pythia) alone has false and masks all the same
        reason = "an encoder, which writes no text"
    elif type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not getattr(config, "auto_map", None):
        reason = "no model that AutoModelForCausalLM of this transformers loads"
    if reason:
        raise PolicyError(
            f"policy {str(name)!r}: its config.json is of type {kind!r}, {reason}: take a decoder-only language "
            "model, such as a Qwen3, Llama or Gemma"
        )


def load_model(
    path: str | Path,
    dtype: str,
    device: str,
    label: str = "policy",
    *,
    loading: LoadingConfig | None = None,
    **kwargs: Any,
) -> tuple[Any, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer from a directory or a hub id.

    Local files take precedence over the hub.

    Args:
        path: directory with config.json, weights and tokenizer, or a hub id `owner/name`.
        dtype: torch dtype of the weights.
        device: torch device of the weights; "meta" reads configuration and tokenizer only.
        label: word for the model in error messages.
        loading: 4 bits, device map and attention.
        **kwargs: `kind`, the transformers auto class (default: causal language model), and further keywords of its
            `from_pretrained`.

    Returns:
        The model on `device`, and its tokenizer.

    Raises:
        ConfigError: if a key of `loading` needs a package that is missing, or does not work here.
        PolicyError: if there is no such model, or it cannot be loaded or moved to `device`.
    """
    if not isinstance(dtype, str) or not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise PolicyError(f"dtype {brief_repr(dtype)}: the name of a torch dtype is needed, such as float32")
    check_type("device", device, (str, torch.device), error=PolicyError)
    loading = loading or LoadingConfig()
    is_shape = device == "meta"
    if not is_shape:
        kwargs |= _loading_arguments(loading, dtype, device)
    is_local = (Path(path) / "config.json").is_file()
    if not is_local and (Path(path).exists() or not re.fullmatch(r"\w[\w.-]*/[\w.-]+", str(path))):
        if (Path(path) / "checkpoints").is_dir():
            raise PolicyError(f"{path} is a run directory: give it to load_policy, or name one of its checkpoints")
        shipped, remote, near = "", "", ""
        if label == "policy":
            shipped = f"{', '.join(RULE_POLICIES)} (keeps every line), {', '.join(NAMED_POLICIES)}, "
            remote = f". {endpoint_hint(str(path))}"
            near = did_you_mean(str(path), (*RULE_POLICIES, *NAMED_POLICIES))
        raise PolicyError(
            f"no {label} at {str(path)!r}{near}: expected {shipped}a directory with config.json, weights and "
            f"tokenizer, or a hub id owner/name{remote}"
        )
    try:
        try:
            model, tokenizer = _load(path, dtype, offline=True, is_shape=is_shape, **kwargs)
        except OSError:
            if is_local:
                raise
            if not hub_reachable():
                raise PolicyError(
                    f"{label} {str(path)!r} is not on this machine and the model hub cannot be reached: connect "
                    "and try again, or give a directory with config.json, weights and tokenizer"
                ) from None
            model, tokenizer = _load(path, dtype, offline=False, is_shape=is_shape, **kwargs)
    except MemalphaError:
        raise
    except Exception as error:  # files that do not fit raise whatever transformers meets, an AssertionError or KeyError
        name, text = loading.attn_implementation, str(error).lower()
        words = ("attn_implementation", "attention", "flash", (name or "").lower())
        if name is not None and any(word in text for word in words):
            raise ConfigError(
                f"compute.attn_implementation: {name!r} does not work for {label} "
                f"{str(path)!r} ({first_sentence(error)}): try sdpa or eager, or leave it out"
            ) from error
        raise PolicyError(f"cannot load {label} {str(path)!r}: {type(error).__name__}: {error}") from error
    if "device_map" in kwargs:
        devices = {str(part) for part in getattr(model, "hf_device_map", {}).values()}
        if devices & {"disk", "meta"} or ("cpu" in devices and len(devices) > 1):
            raise ConfigError(
                f"compute.device_map: {label} {str(path)!r} does not fit on the devices here (parts would be moved in "
                "and out at every token): set load_in_4bit=true or dtype=bfloat16, or take a smaller model"
            )
        return model, tokenizer
    try:
        model.to(device)
    except (RuntimeError, AssertionError, TypeError) as error:  # AssertionError: torch was built without this device
        reason = str(error).partition("\n")[0]
        raise PolicyError(
            f"{label} {str(path)!r} cannot be put on device {brief_repr(device)} ({reason}): try cpu"
        ) from error
    return model, tokenizer


def _load(
    path: str | Path, dtype: str, *, offline: bool, is_shape: bool, kind: Any = AutoModelForCausalLM, **kwargs: Any
) -> tuple[Any, PreTrainedTokenizerBase]:
    """Return a model and its tokenizer; `is_shape` leaves its weights on the meta device."""
    config = AutoConfig.from_pretrained(path, local_files_only=offline)
    if kind is AutoModelForCausalLM:
        check_writes_text(config, path)
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=offline)
    if is_shape:
        with torch.device("meta"):
            model = kind.from_config(config, dtype=getattr(torch, dtype))
        with suppress(OSError):  # most small models have no such file
            model.generation_config = GenerationConfig.from_pretrained(path, local_files_only=offline)
        return model, tokenizer
    with hide_progress_bars():
        loaded: Any = kind.from_pretrained(
            path, dtype=getattr(torch, dtype), local_files_only=offline, output_loading_info=True, **kwargs
        )
    model, loading_info = loaded
    if missing_keys := sorted(loading_info["missing_keys"]):  # transformers would initialize them randomly
        raise ValueError(f"its weights are not those of its config.json: they lack {missing_keys[0]}")
    if "quantization_config" in kwargs:
        # What was not packed is still a view of the mapped file: all of it would stay resident on a CPU.
        for parameter in model.parameters():
            if _quant_state(parameter) is None:
                parameter.data = parameter.data.clone()
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            # On CPUs with AVX-512 BF16 bitsandbytes would sample with other, rounded weights than it trains with.
            module.support_avx512bf16_for_cpu = False
    return model, tokenizer


def is_quantized(model: Any) -> bool:
    """Return True if the model's weights are held in fewer bits than they are computed with."""
    return getattr(model, "quantization_method", None) is not None


def count_parameters(model: torch.nn.Module) -> int:
    """Return the number of distinct weights; tied ones count once, those packed in 4 bits as what they stand for."""
    states = ((parameter, _quant_state(parameter)) for parameter in model.parameters())
    return sum(parameter.numel() if state is None else state.shape.numel() for parameter, state in states)


def max_positions(config: Any) -> int | None:
    """Return the tokens that the positions of a model with this configuration reach to; None if it does not say."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)  # GPT-2 has it by another name


def _quant_state(parameter: torch.nn.Parameter) -> Any:
    """Return what bitsandbytes holds of a packed weight; None for another."""
    return getattr(parameter, "quant_state", None)


def _loading_arguments(loading: LoadingConfig, dtype: str, device: str) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for these settings."""
    arguments: dict[str, Any] = {}
    if loading.attn_implementation is not None:
        arguments["attn_implementation"] = loading.attn_implementation
    if loading.device_map is not None:
        if loading.device_map not in DEVICE_MAPS:
            raise ConfigError(f"compute.device_map: no map {loading.device_map!r}: give {', '.join(DEVICE_MAPS)}")
        arguments["device_map"] = loading.device_map
    if loading.load_in_4bit:
        if importlib.util.find_spec("bitsandbytes") is None:
            raise ConfigError(
                f"compute.load_in_4bit: needs bitsandbytes: {install_command('quantize')}, or leave load_in_4bit out"
            )
        from transformers import BitsAndBytesConfig

        try:
            kernels = importlib.import_module("bitsandbytes.functional")
            kernels.quantize_4bit(torch.zeros(64, 64, device=device), quant_type="nf4", compress_statistics=True)
        except (RuntimeError, NotImplementedError, ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"compute.load_in_4bit: bitsandbytes does not work on device {device!r} here "
                f"({first_sentence(error)}): install a build for it, or leave load_in_4bit out"
            ) from error
        arguments["quantization_config"] = BitsAndBytesConfig(  # QLoRA's: NF4 with double quantization
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=getattr(torch, dtype),
        )
        arguments.setdefault("device_map", {"": device})  # quantized on the way; `to` would come too late
    if "device_map" in arguments and importlib.util.find_spec("accelerate") is None:
        key = "device_map" if loading.device_map is not None else "load_in_4bit"
        raise ConfigError(f"compute.{key}: needs accelerate: {install_command('train')}")
    return arguments


def first_sentence(error: Exception) -> str:
    """Return the first sentence of an error's message, on one line."""
    return " ".join(str(error).split()).partition(". ")[0].rstrip(".")


def resize_embeddings(model: Any, tokens: int) -> None:
    """Give the model's embeddings at least `tokens` rows; new rows are random."""
    if len(model.get_input_embeddings().weight) < tokens:
        with torch.random.fork_rng(devices=[]):
            model.resize_token_embeddings(tokens, mean_resizing=False)


def read_adapter_config(folder: str | Path) -> Any:
    """Return the configuration of a LoRA adapter.

    Raises `PolicyError` if peft is missing or the adapter is of another kind, `OSError` or `ValueError` if it cannot be
    read.
    """
    with required_packages(f"{folder} holds a LoRA adapter, which", "peft", error=PolicyError):
        import peft
    config = peft.PeftConfig.from_pretrained(str(folder))
    if not isinstance(config, peft.LoraConfig):
        raise PolicyError(f"{folder} holds a {config.peft_type} adapter: only LoRA can be merged")
    config.base_model_name_or_path = None  # otherwise peft warns that the base has another name
    return config


def add_adapter(model: Any, config: Any, folder: str | Path) -> Any:
    """Return a `PeftModel` of the model with the adapter weights of `folder`.

    Raises `ValueError` if the tensors do not match the adapter's configuration.
    """
    import peft

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft uses deprecated names of transformers
        tuned = peft.get_peft_model(model, config)
    load_adapter(tuned, folder)
    return tuned


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


def weights_fingerprint(model: torch.nn.Module) -> str:
    """Return a short hash of the weights, the same on every device: sums over each tensor's bits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        bits = tensor.detach().contiguous().reshape(-1).view(torch.uint8 if tensor.element_size() == 1 else torch.int16)
        # In slices: on CPU the sum copies what it adds as int64, four times an embedding in 16 bits.
        total = sum(int(part.sum(dtype=torch.int64)) for part in bits.split(1 << 20))
        digest.update(f"{name} {tuple(tensor.shape)} {total}\n".encode())
    return digest.hexdigest()[:16]
