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
    modules_to_save: Sequence[str] = (),
    task_type: str = "CAUSAL_LM",
) -> PeftModel:
    """`model` with new adapters in its layers, in place; only they train. `name` is what its base can be loaded by.

    `whole` names modules that train as they are and are kept with the adapters (a head); `task_type` is peft's. Raises
    `ConfigError` for target modules that are not there, for those, and for the output embedding: the learner projects
    hidden states itself.
    """
    head = model.get_output_embeddings()
    layers = {path: part for path, part in model.named_modules() if isinstance(part, torch.nn.Linear | Conv1D)}
    adaptable = [path for path, part in layers.items() if part is not head and path not in modules_to_save]
    targets = config.target_modules
    if targets != "all-linear":
        for target in targets:
            if any(_matches(path, target) for path in layers.keys() - set(adaptable)):
                kind = "head, which trains whole" if modules_to_save else "output embedding, which takes no adapter"
                raise ConfigError(f"lora.target_modules: {target} is the {kind}")
            if not any(_matches(path, target) for path in adaptable):
                available = ", ".join(sorted({path.rpartition(".")[2] for path in adaptable}))
                raise ConfigError(f"lora.target_modules: {name!r} has no linear layer {target!r}; it has {available}")
    elif modules_to_save:  # which peft leaves out of all linear layers by their usual names only
        targets = tuple(sorted({path.rpartition(".")[2] for path in adaptable}))
    settings = PeftLoraConfig(
        task_type=task_type,
        r=config.r,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type]  # peft scales by it, whole or not
        target_modules=targets if isinstance(targets, str) else list(targets),
        modules_to_save=list(modules_to_save) or None,
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft calls transformers by names on their way out
        torch.manual_seed(seed)
        adapted = get_peft_model(model, settings)
    settings.base_model_name_or_path = name
    assert isinstance(adapted, PeftModel)
    return adapted


def _matches(path: str, target: str) -> bool:
    return path == target or path.endswith(f".{target}")
