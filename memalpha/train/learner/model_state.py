"""`Weights`: a model's weights and their optimizer, whatever they learn from: steps, precision, shards, files.

What is learnt, and from what, is a subclass's (`train.engine`: token rows, `train.reward_engine`: replies that are
compared).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM

from memalpha.config import LearnerConfig
from memalpha.errors import TrainingError
from memalpha.policy.transformers import load_adapter, without_bars
from memalpha.train.learner.distributed import SINGLE_PROCESS, World, full_tensor, gather_weights, shard_like
from memalpha.train.learner.token_logprobs import unwrap_peft


class BaseEngine:
    """Owns `model` (a `PreTrainedModel`, or a `PeftModel`) and the optimizer of what of it requires gradients.

    Trained weights are kept in float32 at least; with `dtype` bfloat16 the passes are not, nor are frozen weights.
    A subclass builds what computes with `trained` (the model, or the copy of it that is sharded in place), wraps that
    (`_wrap`), and then calls `_optimize`.
    """

    scorer: nn.Module
    optimizer: torch.optim.AdamW

    def __init__(self, model: Any, config: LearnerConfig, world: World = SINGLE_PROCESS) -> None:
        self.model = model.eval()
        self.config = config
        self.world = world
        self._cast_weights(model)
        # Shards are made in place: of a copy, for the sampler and the checkpoints need the weights whole.
        self.trained = copy.deepcopy(model) if world.size > 1 and config.sharding == "fsdp" else model
        self.trainable: dict[str, nn.Parameter] = {}
        self.value_head: dict[str, nn.Parameter] = {}

    def optim_step(self, rate: float) -> float:
        """Clip the gradient, step the optimizer at learning rate `rate`, clear the gradient; returns its norm."""
        norm = float(full_tensor(nn.utils.clip_grad_norm_(self.trainable.values(), self.config.max_grad_norm)))
        if not math.isfinite(norm):
            raise TrainingError(f"the gradient norm is {norm}: lower learning_rate or check the rewards")
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        gather_weights(self.trainable, self.model)
        return norm

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        """The optimizer's state by `parameter/key`, put together where it is sharded; empty before the first step."""
        state = self.optimizer.state
        return {
            f"{name}/{key}": full_tensor(value).cpu().contiguous()
            for name, parameter in self.trainable.items()
            for key, value in state.get(parameter, {}).items()
        }

    def load_optimizer_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put `optimizer_tensors` back. Raises `KeyError` for an unknown parameter."""
        self.optimizer.state.clear()
        for path, value in tensors.items():
            name, _, key = path.rpartition("/")
            parameter = self.trainable[name]
            self.optimizer.state[parameter][key] = (
                value.to(parameter.device) if value.dim() == 0 else shard_like(value, parameter)
            )

    def write(self, folder: Path) -> None:
        """Write what trains: all weights as a plain transformers directory, or the adapters of a `PeftModel`, whose
        configuration names the base."""
        if not isinstance(self.model, PeftModel):
            self._write_model(folder)
            return
        # Not PeftModel.save_pretrained: it writes a model card, and asks the model hub what the base is.
        tensors = get_peft_model_state_dict(self.model, save_embedding_layers=False)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
        self.model.peft_config["default"].save_pretrained(str(folder))

    def read(self, folder: Path) -> None:
        """Copy what `write` wrote into the model, in place. Raises what the libraries do for files that are not it."""
        if isinstance(self.model, PeftModel):
            load_adapter(self.model, folder)
        else:
            self.model.load_state_dict(self._read_model(folder))

    def _write_model(self, folder: Path) -> None:
        with without_bars():
            self.model.save_pretrained(folder)

    def _read_model(self, folder: Path) -> Mapping[str, torch.Tensor]:
        with without_bars():
            saved: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=self.model.dtype)
        return saved.state_dict()

    def _make_optimizer(self, head: Mapping[str, nn.Parameter] | None = None, rate_scale: float = 1.0) -> None:
        """Make the optimizer, of what trains and of a value head beside the model, at `share` of the learning rate."""
        config = self.config
        self.trainable = {
            name: parameter for name, parameter in self.trained.named_parameters() if parameter.requires_grad
        }
        groups: list[dict[str, Any]] = [{"params": list(self.trainable.values()), "share": 1.0}]
        if head:
            self.value_head = dict(head)
            groups.append({"params": list(head.values()), "share": rate_scale})
            self.trainable |= self.value_head
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=config.learning_rate,
            betas=config.adam_betas,
            weight_decay=config.weight_decay,
            fused=True,  # one pass over the weights and no temporaries
        )

    def _wrap_scorer(self, scorer: Any) -> nn.Module:
        """The scorer of a `model`, dealt to the processes."""
        return self.world.wrap_module(
            scorer, list(unwrap_peft(scorer.model)._no_split_modules or ()), self.config.sharding
        )

    @property
    def _device(self) -> torch.device:
        return self.model.device

    def _cast_weights(self, model: Any) -> None:
        """Put the weights in the precision they train (or rest) in, in place."""
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
            elif self.config.dtype == "bfloat16":
                parameter.data = parameter.data.to(torch.bfloat16)
