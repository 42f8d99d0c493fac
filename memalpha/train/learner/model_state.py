"""`BaseEngine`: a model's weights and optimizer, with precision, sharding and files.

Its subclasses add the loss: `engine` learns from token rows, `reward_engine` from compared or rated replies.
"""

from __future__ import annotations

import copy
import math
import shutil
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
from memalpha.policy.model_files import count_parameters, hide_progress_bars, load_adapter
from memalpha.policy.reward_model import unwrap_peft
from memalpha.train.learner.distributed import (
    SINGLE_PROCESS,
    World,
    full_tensor,
    gather_weights,
    load_sharded,
    save_sharded,
    saved_shapes,
    shard_like,
)


class BaseEngine:
    """Own a model and the optimizer of its trainable weights.

    With `keeps_whole=False` weights that FSDP shards are nowhere whole (`is_sharded`): `model` itself is sharded, and
    cannot sample. Adapters' bases stay whole.

    Trained weights are float32 at least; with `dtype` bfloat16 the passes and the frozen weights are bfloat16. With
    `offload_optimizer` Adam's states are in host memory: each step copies gradients there and new weights back. A
    subclass builds its scorer from `trained` (the model, or its sharded copy), wraps it (`_wrap_scorer`) and calls
    `_make_optimizer`.
    """

    scorer: nn.Module
    optimizer: torch.optim.AdamW

    def __init__(
        self, model: Any, config: LearnerConfig, world: World = SINGLE_PROCESS, *, keeps_whole: bool = True
    ) -> None:
        self.model = model.eval()
        self.config = config.with_learning_rate(count_parameters(model))
        self.world = world
        self.weights_step = 0
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
            elif self.config.compute.dtype == "bfloat16" and parameter.is_floating_point():  # not those in 4 bits
                parameter.data = parameter.data.to(torch.bfloat16)
        shards = world.size > 1 and config.compute.sharding == "fsdp"
        self.is_sharded = shards and not keeps_whole and config.lora is None
        # FSDP shards in place. A sampler in this process needs the full weights, so a copy is sharded then.
        self.trained = copy.deepcopy(model) if shards and not self.is_sharded else model
        self.trainable: dict[str, nn.Parameter] = {}
        self.value_head: dict[str, nn.Parameter] = {}
        self._stepped: dict[str, nn.Parameter] = {}

    def optim_step(self, rate: float) -> float:
        """Clip the gradient, step at learning rate `rate`, clear the gradient; returns the unclipped norm.

        Without a gradient since the last step nothing changes, not even by Adam's momentum; the norm is 0.

        Raises:
            TrainingError: The norm is not finite.
        """
        if all(parameter.grad is None for parameter in self.trainable.values()):
            return 0.0
        norm = float(
            full_tensor(nn.utils.clip_grad_norm_(self.trainable.values(), self.config.optimizer.max_grad_norm))
        )
        if not math.isfinite(norm):
            raise TrainingError(f"the gradient norm is {norm}: lower learning_rate or check the rewards")
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        is_offloaded = self._stepped is not self.trainable
        if is_offloaded:
            with torch.no_grad():
                for name, parameter in self.trainable.items():
                    copy_on_host = self._stepped[name]
                    copy_on_host.copy_(parameter)  # a checkpoint may have been loaded since the last step
                    copy_on_host.grad = None if parameter.grad is None else parameter.grad.to("cpu")
                    parameter.grad = None
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if is_offloaded:
            with torch.no_grad():
                for name, parameter in self.trainable.items():
                    parameter.copy_(self._stepped[name])
        gather_weights(self.trainable, self.model)
        return norm

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        """Return the optimizer's unsharded state by `parameter/key`; empty before the first step."""
        return {name: full_tensor(value).cpu().contiguous() for name, value in self._optimizer_state().items()}

    def load_optimizer_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore the result of `optimizer_tensors`. Raises `KeyError` for an unknown parameter."""
        self.optimizer.state.clear()
        for path, value in tensors.items():
            name, _, key = path.rpartition("/")
            parameter = self._stepped[name]
            self.optimizer.state[parameter][key] = (
                value.to(parameter.device) if value.dim() == 0 else shard_like(value, parameter)
            )

    def write_optimizer(self, folder: Path, **further: torch.Tensor) -> None:
        """Write the state of a sharded optimizer, each process its share. Every process must call this.

        Args:
            folder: Folder that every process sees.
            further: Tensors that the main process adds.
        """
        save_sharded({**self._optimizer_state(), **(further if self.world.is_main else {})}, folder)

    def load_optimizer(self, folder: Path, **further: torch.Tensor) -> None:
        """Restore what `write_optimizer` wrote in any number of processes. Every process must call this.

        Args:
            folder: Its folder.
            further: Tensors that are filled with those that the main process added.

        Raises:
            CheckpointError: A file or tensor is missing or has another shape.
        """
        tensors = dict(further)
        for path, shape in saved_shapes(folder).items():
            if (parameter := self._stepped.get(path.rpartition("/")[0])) is not None:
                tensors[path] = torch.empty_like(parameter) if shape else torch.empty((), device=parameter.device)
        load_sharded(tensors, folder)
        self.optimizer.state.clear()
        for path, value in tensors.items():
            name, _, key = path.rpartition("/")
            if path not in further:
                self.optimizer.state[self._stepped[name]][key] = value

    def _optimizer_state(self) -> dict[str, torch.Tensor]:
        return {
            f"{name}/{key}": value
            for name, parameter in self._stepped.items()
            for key, value in self.optimizer.state.get(parameter, {}).items()
        }

    def write_shards(self, folder: Path) -> None:
        """Write sharded weights as a plain transformers directory, tensor by tensor. Every process must call this."""
        save_sharded(_saved_tensors(self.model), folder, whole=True)
        if self.world.is_main:
            shutil.rmtree(folder / "sharded")
            [file] = folder.glob("model-*.safetensors")
            file.rename(folder / "model.safetensors")
            (folder / "model.safetensors.index.json").unlink()
            config: Any = self.model.config
            if not config.architectures:  # FSDP's own class stands for the model's
                config.architectures = [type(self.model).__name__.removeprefix("FSDP")]
            config.save_pretrained(folder)
            if self.model.generation_config is not None:
                self.model.generation_config.save_pretrained(folder)

    def write(self, folder: Path) -> None:
        """Write the trained weights: a plain transformers directory, or the adapters of a `PeftModel`.

        An adapter's configuration names its base model. Sharded weights are written by `write_shards`.
        """
        if not isinstance(self.model, PeftModel):
            self._write_model(folder)
            return
        # Not PeftModel.save_pretrained: it writes a model card and asks the model hub about the base.
        tensors = get_peft_model_state_dict(self.model, save_embedding_layers=False)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
        self.model.peft_config["default"].save_pretrained(str(folder))

    def read(self, folder: Path) -> None:
        """Load what `write` wrote into the model in place. Raises the libraries' errors for other files."""
        if self.is_sharded:
            load_sharded(_saved_tensors(self.model), folder)
        elif isinstance(self.model, PeftModel):
            load_adapter(self.model, folder)
        else:
            self.model.load_state_dict(self._read_model(folder))

    def _write_model(self, folder: Path) -> None:
        with hide_progress_bars():
            self.model.save_pretrained(folder)

    def _read_model(self, folder: Path) -> Mapping[str, torch.Tensor]:
        with hide_progress_bars():
            saved: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=self.model.dtype)
        return saved.state_dict()

    def _make_optimizer(self, head: Mapping[str, nn.Parameter] | None = None, rate_scale: float = 1.0) -> None:
        """Create the optimizer of the trainable weights and of a value head.

        The head's learning rate is `rate_scale` times that of the weights.
        """
        config = self.config
        self.trainable = {
            name: parameter for name, parameter in self.trained.named_parameters() if parameter.requires_grad
        }
        shares = dict.fromkeys(self.trainable, 1.0)
        if head:
            self.value_head = dict(head)
            self.trainable |= self.value_head
            shares |= dict.fromkeys(head, rate_scale)
        self._stepped = self.trainable
        if config.compute.offload_optimizer:
            self._stepped = {
                name: nn.Parameter(parameter.detach().to("cpu", copy=True))
                for name, parameter in self.trainable.items()
            }
        groups: list[dict[str, Any]] = [
            {"params": [self._stepped[name] for name in shares if shares[name] == share], "share": share}
            for share in dict.fromkeys(shares.values())
        ]
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=config.optimizer.peak_rate,
            betas=config.optimizer.adam_betas,
            weight_decay=config.optimizer.weight_decay,
            fused=True,  # one pass over the weights, no temporaries
        )

    def _wrap_scorer(self, scorer: Any) -> nn.Module:
        """Wrap a model's scorer for the processes of the run."""
        return self.world.wrap_module(
            scorer, list(unwrap_peft(scorer.model)._no_split_modules or ()), self.config.compute.sharding
        )


def _saved_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return parameters, each tied one once, and the buffers that are saved."""
    parameters = dict(model.named_parameters())
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return parameters | {name: value for name, value in model.state_dict().items() if name not in tied}
