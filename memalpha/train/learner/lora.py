"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) on a transformers model, by peft.

The adapters sit in the model's own layers, so that whoever holds the model samples with them. They are float32 whatever
the model is in, and their start is a function of the seed alone; the second factor starts at 0, so the adapted model is
the model at first. With the adapters off it stays so: that is the reference of a KL.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from memalpha.config import LoraConfig
from memalpha.errors import ConfigError


def add_lora(
    model: PreTrainedModel,
    config: LoraConfig,
    name: str,
    seed: int = 0,
    *,
    whole: Sequence[str] = (),
    task_type: str = "CAUSAL_LM",
) -> PeftModel:
    """`model` with new adapters in its layers, in place; only they train. `name` is what its base can be loaded by.

    `whole` names modules that train as they are and are kept with the adapters (a head); `task_type` is peft's. Raises
    `ConfigError` for target modules that are not there, for those, and for the output embedding: the learner projects
    hidden states itself.
    """
    head = model.get_output_embeddings()
    layers = {path: part for path, part in model.named_modules() if isinstance(part, torch.nn.Linear | Conv1D)}
    inner = [path for path, part in layers.items() if part is not head and path not in whole]
    targets = config.target_modules
    if targets != "all-linear":
        for target in targets:
            if any(_named(path, target) for path in layers.keys() - set(inner)):
                what = "head, which trains whole" if whole else "output embedding, which takes no adapter"
                raise ConfigError(f"lora.target_modules: {target} is the {what}")
            if not any(_named(path, target) for path in inner):
                there = ", ".join(sorted({path.rpartition(".")[2] for path in inner}))
                raise ConfigError(f"lora.target_modules: {name!r} has no linear layer {target!r}; it has {there}")
    elif whole:  # which peft leaves out of all linear layers by their usual names only
        targets = tuple(sorted({path.rpartition(".")[2] for path in inner}))
    settings = PeftLoraConfig(
        task_type=task_type,
        r=config.r,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type]  # peft scales by it, whole or not
        target_modules=targets if isinstance(targets, str) else list(targets),
        modules_to_save=list(whole) or None,
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft calls transformers by names on their way out
        torch.manual_seed(seed)
        adapted = get_peft_model(model, settings)
    settings.base_model_name_or_path = name
    assert isinstance(adapted, PeftModel)
    return adapted


def _named(path: str, target: str) -> bool:
    return path == target or path.endswith(f".{target}")
