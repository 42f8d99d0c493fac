"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) on a transformers model, by peft.

The adapters sit in the model's own layers, so the sampler uses them too. They are float32 in any model and initialized
from the seed alone. The second factor starts at 0, so the adapted model equals the base at first. With the adapters off
it stays so: that is the reference of a KL.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model
from tokenizers import AddedToken
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from memalpha.config import LoraConfig
from memalpha.errors import ConfigError
from memalpha.policy.model_files import resize_embeddings
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.data.chat_format import encode

MAMBA_TYPES = frozenset({"falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"})
"""Model types in which peft refuses adapters on `MAMBA_FUSED`."""
MAMBA_FUSED = frozenset({"out_proj", "conv1d"})
"""Linear layers whose weights Mamba's kernels read themselves, past any adapter."""


def add_lora(
    model: PreTrainedModel,
    config: LoraConfig,
    name: str,
    seed: int = 0,
    *,
    modules_to_save: Sequence[str] = (),
    token_ids: Sequence[int] = (),
    task_type: str = "CAUSAL_LM",
) -> PeftModel:
    """Add new trainable adapters to `model` in place and freeze the rest.

    Args:
        model: The base model.
        config: Rank, alpha and target modules.
        name: Name or path that loads the base model; saved with the adapters.
        seed: Seed of the adapters' initialization.
        modules_to_save: Modules that are trained whole and saved with the adapters (a head), beside those of `config`.
        token_ids: Tokens whose embeddings are trained (`add_tokens`); a tied output embedding has the same.
        task_type: peft's task type.

    Raises:
        ConfigError: A target module does not exist, is in `modules_to_save`, or is the output embedding. The learner
            projects hidden states itself, so that one takes no adapter. Or the model has fewer layers than `layers`,
            or cannot train a module of `config.modules_to_save` whole.
    """
    head = model.get_output_embeddings()
    _check_whole_modules(model, config, name, has_tokens=bool(token_ids))
    # peft compares ends of paths letter by letter: "norm" would be every layer whose name ends so.
    whole_modules = [path for path, _ in model.named_modules() if _matches_any(path, config.modules_to_save)]
    heads, modules_to_save = modules_to_save, (*modules_to_save, *whole_modules)
    layers = {path: part for path, part in model.named_modules() if isinstance(part, torch.nn.Linear | Conv1D)}
    adaptable = [path for path, part in layers.items() if part is not head and not _matches_any(path, modules_to_save)]
    # Llama 4's router is a linear layer that returns two results, which an adapter cannot add to.
    routers = {path.rpartition(".")[2] for path in adaptable if type(layers[path]).__name__.endswith("Router")}
    fused = MAMBA_FUSED if model.config.model_type in MAMBA_TYPES else frozenset[str]()
    targets = config.target_modules
    if targets != "all-linear":
        for target in targets:
            if any(_matches(path, target) for path in layers.keys() - set(adaptable)):
                paths = [path for path in layers if _matches(path, target)]
                if any(_matches_any(path, heads) for path in paths):
                    reason = "the head, which is trained whole"
                elif any(_matches_any(path, whole_modules) for path in paths):
                    reason = "trained whole"
                else:
                    reason = "the output embedding, which takes no adapter"
                raise ConfigError(f"lora.target_modules: {target} is {reason}")
            if not any(_matches(path, target) for path in adaptable):
                available = ", ".join(sorted({path.rpartition(".")[2] for path in adaptable}))
                raise ConfigError(f"lora.target_modules: {name!r} has no linear layer {target!r}; it has {available}")
    elif fused or routers or modules_to_save or config.layers is not None:
        # peft excludes saved modules from "all-linear" by their usual names only, and limits layers of named ones.
        targets = tuple(sorted({path.rpartition(".")[2] for path in adaptable} - routers - fused))
    if refused := ", ".join(sorted(fused.intersection(targets))):
        raise ConfigError(f"lora.target_modules: {refused} of {name!r} is fused into a kernel and takes no adapter")
    stack, first = last_layers(model, config.layers, name) if config.layers is not None else (None, 0)
    settings = PeftLoraConfig(
        task_type=task_type,
        r=config.r,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type]  # peft accepts floats too
        target_modules=targets if isinstance(targets, str) else list(targets),
        modules_to_save=list(modules_to_save) or None,
        trainable_token_indices=_token_layers(model, token_ids) or None,
        layers_to_transform=None if stack is None else list(range(first, first + (config.layers or 0))),
        layers_pattern=stack,
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft uses deprecated names of transformers
        torch.manual_seed(seed)
        adapted = get_peft_model(model, settings)
    settings.base_model_name_or_path = name
    assert isinstance(adapted, PeftModel)
    return adapted


def _check_whole_modules(model: PreTrainedModel, config: LoraConfig, name: str, *, has_tokens: bool) -> None:
    """Raise `ConfigError` if a module of `config.modules_to_save` cannot be trained whole."""
    embeddings = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    for target in config.modules_to_save:
        parts = [part for path, part in model.named_modules() if _matches(path, target)]
        if not parts or any(list(part.children()) or not list(part.parameters()) for part in parts):
            raise ConfigError(f"lora.modules_to_save: {name!r} has no single layer with weights {target!r}")
        is_embedding = any(id(part) in embeddings for part in parts)
        if is_embedding and (model.config.get_text_config().tie_word_embeddings or has_tokens):
            raise ConfigError(
                f"lora.modules_to_save: {target} is an embedding, which cannot be trained whole where embeddings are "
                "tied or lora.trainable_tokens are set: name tokens there instead"
            )


def _token_layers(model: PreTrainedModel, token_ids: Sequence[int]) -> dict[str, list[int]]:
    """Return the ids of trained tokens by the paths of the embeddings that hold them; tied ones count once."""
    if not token_ids:
        return {}
    inputs: Any = model.get_input_embeddings()
    outputs: Any = model.get_output_embeddings()
    if outputs.bias is not None:
        raise ConfigError(
            "lora.trainable_tokens: the output embedding has a bias, which peft would drop: leave them out"
        )
    embeddings = [inputs] if model.config.get_text_config().tie_word_embeddings else [inputs, outputs]
    return {path: list(token_ids) for path, part in model.named_modules() if any(part is e for e in embeddings)}


def add_tokens(policy: TransformersPolicy, tokens: Sequence[str]) -> list[int]:
    """Return the ids of tokens; add those that the policy's tokenizer lacks, in place.

    A new token starts with the mean of the embeddings that spelled it before.

    Args:
        policy: Policy whose tokenizer and embeddings grow.
        tokens: Texts of the tokens; one that is a single token already stays as it is.

    Raises:
        ConfigError: The tokenizer splits an added token.
    """
    if not tokens:
        return []
    tokenizer: Any = policy.tokenizer
    model: Any = policy.model
    spellings = {token: encode(policy, token) for token in tokens}
    new_tokens = [token for token, ids in spellings.items() if len(ids) != 1]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in new_tokens])
    for token in new_tokens:
        if len(encode(policy, token)) != 1:
            raise ConfigError(f"lora.trainable_tokens: the tokenizer of {policy.name!r} does not take {token!r} whole")
    resize_embeddings(model, len(tokenizer))
    with torch.no_grad():
        for part in (model.get_input_embeddings(), model.get_output_embeddings()):
            for token in new_tokens:
                part.weight[encode(policy, token)[0]] = part.weight[spellings[token]].mean(dim=0)
    return [encode(policy, token)[0] for token in dict.fromkeys(tokens)]


def last_layers(model: PreTrainedModel, count: int, name: str) -> tuple[str, int]:
    """Return the name of the attribute that holds the model's layers, and the index of the first of the last `count`.

    Args:
        model: The base model.
        count: Number of last layers.
        name: Name of the model in error messages.

    Raises:
        ConfigError: The model has fewer layers, or no single list of layers.
    """
    layers = model.config.get_text_config().num_hidden_layers
    lists = {path: part for path, part in model.named_modules() if isinstance(part, torch.nn.ModuleList)}
    attributes = [path.rpartition(".")[2] for path, part in lists.items() if len(part) == layers]
    if len(attributes) != 1:
        raise ConfigError(f"lora.layers: {name!r} does not keep its layers in one list: leave it out")
    if count > layers:
        raise ConfigError(f"lora.layers: {name!r} has {layers} layers, not {count}")
    return attributes[0], layers - count


def _matches_any(path: str, targets: Sequence[str]) -> bool:
    return any(_matches(path, target) for target in targets)


def _matches(path: str, target: str) -> bool:
    return path == target or path.endswith(f".{target}")
