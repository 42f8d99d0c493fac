"""The engine: updates weights from `TrainingSample`s and knows no algorithm.

`BaseEngine` owns a model's weights and optimizer, with precision, sharding and files. `Engine` learns from token rows,
`reward_engine.RewardEngine` from compared or rated replies.

It is no `GRPOTrainer` subclass: one rollout is many rows with their own contexts, and reductions are
data. Rows are right-padded in length-sorted micro-batches under a token budget. Dropout stays off, so the first ratio
of a step is 1.

Reduction as data: stream weights are divided once per optimizer step, then the loss is a plain sum.

The divisor is computed over all rows of the step before any forward pass. So any split of these rows into
micro-batches, futures or processes gives the same gradient.
"""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from memalpha.arguments import brief_repr, check_items, check_type
from memalpha.config import LearnerConfig
from memalpha.errors import TrainingError
from memalpha.policy.model_files import count_parameters, hide_progress_bars, load_adapter
from memalpha.policy.reward_model import unwrap_peft
from memalpha.train.data.samples import (
    MAX_PADDING_RATIO,
    STREAMS,
    MicroBatch,
    PrefixTree,
    TrainingSample,
    balance_micro_batches,
    pack,
    padded_nodes,
    padded_rows,
    padded_tokens,
    split_micro_batches,
    split_tree_batches,
    tree_layout,
)
from memalpha.train.learner.distributed import (
    SINGLE_PROCESS,
    World,
    full_tensor,
    load_sharded,
    save_sharded,
    saved_shapes,
    shard_like,
)
from memalpha.train.learner.losses import LOSS_SUMS, ImportanceMode, LossSettings, importance_weights, loss_sum
from memalpha.train.learner.token_logprobs import TokenScorer, check_head, check_trees


def has_weight(sample: TrainingSample) -> bool:
    """Return True if the row has a gradient: a weight in some stream, and an advantage in the policy gradient."""
    weights = (getattr(sample, name) for name in STREAMS if name != "pg")
    return bool((sample.pg * sample.advantages).any()) or any(weight is not None and weight.any() for weight in weights)


def check_rows(samples: Any) -> list[TrainingSample]:
    """Return token rows as a list; raise `TrainingError` for anything else."""
    rows = check_items("samples", samples, of="TrainingSample", error=TrainingError)
    if wrong := [row for row in rows if not isinstance(row, TrainingSample)]:
        raise TrainingError(f"samples: a list of TrainingSample is needed, not one with {brief_repr(wrong[0])}")
    return rows


def normalize(
    samples: Sequence[TrainingSample],
    normalizer: Literal["constant", "token", "row"],
    constant: float = 16.0,
    *,
    ce_normalizer: Literal["constant", "token", "row", "unit"] | None = None,
) -> list[TrainingSample]:
    """Divide each stream's weights, for the rows of ONE optimizer step.

    Only rows, tokens and units with a non-zero weight count. So a stream's strength does not depend on rows that only
    other streams train. Masked rows count as rows of policy gradient and KL, as in TRL, but their tokens do not. The
    entropy bonus and the value loss are always means over tokens.

    Args:
        samples: Rows of the step.
        normalizer: Divisor of policy gradient and KL. "constant": rows x `constant` (Dr. GRPO, no length bias);
            "token": trained tokens of the stream (DAPO, TRL's `dapo`); "row": rows x trained tokens of the row (GRPO as
            published).
        constant: Tokens per row for "constant".
        ce_normalizer: Divisor of the cross-entropy, by default `normalizer`; "unit" divides by the number of units.

    Returns:
        The rows with divided weights.
    """
    samples = check_rows(samples)
    normalizers = {"pg": normalizer, "kl": normalizer, "ce": ce_normalizer or normalizer, "ent": "token", "vf": "token"}
    divided: list[dict[str, np.ndarray]] = [{} for _ in samples]
    masked = sum(sample.masked for sample in samples)
    for name in STREAMS:
        weights = [getattr(sample, name) for sample in samples]
        trained = [0 if weight is None else int(np.count_nonzero(weight)) for weight in weights]
        rows, tokens = sum(number > 0 for number in trained), sum(trained)
        rows = max(1, rows + (masked if rows and name in ("pg", "kl") else 0))
        units = len({sample.unit for sample, number in zip(samples, trained, strict=True) if number})
        stream_normalizer = normalizers[name]
        for streams_of_row, weight, row_tokens in zip(divided, weights, trained, strict=True):
            if weight is None:
                continue
            if stream_normalizer == "constant":
                divisor = rows * constant
            elif stream_normalizer == "unit":
                divisor = max(1, units)
            else:
                divisor = max(1, tokens) if stream_normalizer == "token" else rows * max(1, row_tokens)
            streams_of_row[name] = weight / np.float32(divisor)
    return [replace(sample, **streams) for sample, streams in zip(samples, divided, strict=True)]


def scheduled_learning_rate(step: int, config: LearnerConfig) -> float:
    """Return the learning rate of `step` (from 0): linear warm-up, constant, linear decay.

    The decay covers the last `decay_fraction` of `schedule_steps`.
    """
    warmup = min(1.0, (step + 1) / config.optimizer.warmup_steps) if config.optimizer.warmup_steps else 1.0
    decay_steps = config.optimizer.decay_fraction * config.optimizer.schedule_steps
    steps_left = config.optimizer.schedule_steps - step
    decay = min(1.0, max(0.0, steps_left / decay_steps)) if decay_steps else 1.0
    return config.optimizer.peak_rate * min(warmup, decay)


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

    @torch.no_grad()
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
            for name, parameter in self.trainable.items():
                copy_on_host = self._stepped[name]
                copy_on_host.copy_(parameter)  # a checkpoint may have been loaded since the last step
                copy_on_host.grad = None if parameter.grad is None else parameter.grad.to("cpu")
                parameter.grad = None
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if is_offloaded:
            for name, parameter in self.trainable.items():
                parameter.copy_(self._stepped[name])
        if self.trained is not self.model:  # a sampler in this process needs the weights whole
            for name, parameter in self.model.named_parameters():
                if name in self.trainable:
                    parameter.copy_(full_tensor(self.trainable[name]))
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
        tensors: dict[str, torch.Tensor] = {}
        for path, shape in saved_shapes(folder).items():
            if (parameter := self._stepped.get(path.rpartition("/")[0])) is not None:
                tensors[path] = torch.empty_like(parameter) if shape else torch.empty((), device=parameter.device)
        load_sharded(tensors | further, folder)
        self.optimizer.state.clear()
        for path, value in tensors.items():
            name, _, key = path.rpartition("/")
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

    def _make_optimizer(self, head: dict[str, nn.Parameter], rate_scale: float = 1.0) -> None:
        """Create the optimizer of the trainable weights and of a value head, if there is one.

        The head's learning rate is `rate_scale` times that of the weights.
        """
        config = self.config
        self.trainable = {
            name: parameter for name, parameter in self.trained.named_parameters() if parameter.requires_grad
        }
        shares = dict.fromkeys(self.trainable, 1.0) | dict.fromkeys(head, rate_scale)
        self.value_head = head
        self.trainable |= head
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
        rate, betas, decay = config.optimizer.peak_rate, config.optimizer.adam_betas, config.optimizer.weight_decay
        # One pass over the weights, no temporaries.
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=betas, weight_decay=decay, fused=True)

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


class Engine(BaseEngine):
    """Update the trainable weights of `model` in place.

    Trained weights are float32 at least; with `dtype` bfloat16 the passes and the frozen weights are bfloat16. Rows are
    those of a whole step, the same in every process of `world`; each process computes its share, and all get the same
    results.

    Args:
        model: A `PreTrainedModel`, or a `PeftModel` from `add_lora`.
        config: Optimizer, precision and micro-batch settings.
        loss: Settings of the loss.
        reference: Keep log-probs of the current weights available: without adapters for a `PeftModel`, else from a
            frozen copy. Construct the engine on the start weights then, and load a checkpoint afterwards.
        value_learning_rate: Train a value head too, with the same schedule but this rate instead of `learning_rate`.
        world: Processes of the run.
        keeps_whole: Keep a whole copy of weights that FSDP shards, for a sampler in this process.

    Raises:
        TrainingError: `model` or `config` is something else.
        PolicyError: The model's logits are not those of its output embedding.
        ConfigError: `share_prefixes` is set, and the model cannot attend along trees.
    """

    def __init__(
        self,
        model: Any,
        config: LearnerConfig,
        loss: LossSettings = LossSettings(),  # noqa: B008  # frozen
        *,
        reference: bool = False,
        value_learning_rate: float | None = None,
        world: World = SINGLE_PROCESS,
        keeps_whole: bool = True,
    ) -> None:
        check_type("model (policy.model of a policy)", model, (PreTrainedModel, PeftModel), error=TrainingError)
        check_type("config", config, LearnerConfig, error=TrainingError)
        check_head(model)
        if config.compute.share_prefixes:
            check_trees(model)
        super().__init__(model, config, world, keeps_whole=keeps_whole)
        self.loss = loss
        trained = self.trained
        self._reference_model = trained if reference and isinstance(model, PeftModel) else None
        frozen = copy.deepcopy(model).requires_grad_(False) if reference and self._reference_model is None else None
        scorer = self._make_scorer(trained, values=value_learning_rate is not None)
        self.scorer = self._wrap_scorer(scorer)
        if frozen is not None and config.compute.dtype == "bfloat16":
            # Autocast multiplies in bfloat16 anyway, so the copy stays equal to the original.
            embedding_weights = {id(module.weight) for module in frozen.modules() if isinstance(module, nn.Embedding)}
            for part in frozen.modules():
                if isinstance(part, nn.Linear | Conv1D) and id(part.weight) not in embedding_weights:
                    part.to(torch.bfloat16)
        self.reference = None if frozen is None else self._wrap_scorer(self._make_scorer(frozen))
        head = {} if scorer.value_head is None else dict(scorer.value_head.named_parameters(prefix="value_head"))
        self._make_optimizer(head, (value_learning_rate or 0.0) / self.config.optimizer.peak_rate)

    def forward(self, samples: Sequence[TrainingSample], *, reference: bool = False) -> list[np.ndarray]:
        """Return log-probs (T,) of each row's completion tokens at the row's temperature.

        Args:
            samples: Token rows.
            reference: Use the reference policy instead of the current weights.

        Raises:
            TrainingError: `reference` is set, but the engine keeps none.
        """
        scorer, adapters = self.scorer, nullcontext()
        if reference and self._reference_model is not None:
            adapters = self._reference_model.disable_adapter()
        elif reference:
            if self.reference is None:
                raise TrainingError("this engine keeps no reference: construct it with reference=True")
            scorer = self.reference
        with adapters:
            return self._score_rows(samples, scorer, 0)

    def values(self, samples: Sequence[TrainingSample]) -> list[np.ndarray]:
        """Return the value head's estimates (T,) before each row's completion tokens.

        Raises:
            TrainingError: The engine has no value head.
        """
        if not self.value_head:
            raise TrainingError("this engine has no value head: construct it with a value_learning_rate")
        return self._score_rows(samples, self.scorer, 2)

    def _score_rows(self, samples: Sequence[TrainingSample], scorer: nn.Module, output: int) -> list[np.ndarray]:
        """Return one of the scorer's outputs per row, without a gradient."""
        samples = check_rows(samples)
        rows_by_index: list[tuple[int, np.ndarray]] = []
        with torch.no_grad():
            for part, trees, is_live in self._assign_microbatches(samples):
                result = _score(scorer, self._pack([samples[i] for i in part], trees))[output]
                values = result.float().cpu().split([len(samples[i].completion_ids) for i in part])
                rows_by_index += [(i, row.numpy()) for i, row in zip(part, values, strict=True) if is_live]
        by_index = dict(self.world.gather(rows_by_index))
        return [by_index[i] for i in range(len(samples))]

    def recompute_old_logprobs(
        self, samples: Sequence[TrainingSample], cap: float | None = None, *, mode: ImportanceMode = "token_truncate"
    ) -> tuple[list[TrainingSample], dict[str, float]]:
        """Replace the sampler's log-probs by the learner's, before the first update of a step.

        With `cap`, advantages are multiplied by `importance_weights`: the gradient is the sampler's, corrected for the
        learner. Divisors still count every token, also one of weight 0, as in TRL.

        Args:
            samples: Rows of the step.
            cap: Largest importance weight; None applies no weights.
            mode: Level of the ratios, and what happens above the cap.

        Returns:
            The rows, and the mismatch of sampler and learner over policy-gradient tokens: `mismatch_kl` (k3 of
            KL(sampler || learner)), `mismatch_p99` and `mismatch_max` of |log ratio|, and with `cap` `mismatch_capped`,
            the share of tokens whose ratio is above it: clipped or dropped.
        """
        policy_gradient_ratios, rows = [np.empty(0, dtype=np.float32)], []
        capped = 0
        for sample, logprobs in zip(samples, self.forward(samples), strict=True):
            log_ratios = logprobs - sample.logprobs
            trained = sample.pg != 0
            policy_gradient_ratios.append(log_ratios[trained])
            row = replace(sample, logprobs=logprobs)
            if cap is not None:
                weights, is_capped = importance_weights(log_ratios, trained, cap, mode)
                capped += int((is_capped & trained).sum())
                row = replace(row, advantages=sample.advantages * weights)
            rows.append(row)
        log_ratio = np.concatenate(policy_gradient_ratios)
        stats = {f"mismatch_{name}": value for name, value in log_ratio_tails(log_ratio).items()}
        stats["mismatch_kl"] = float((np.expm1(log_ratio) - log_ratio).sum()) / max(1, len(log_ratio))
        if cap is not None:
            stats["mismatch_capped"] = capped / max(1, len(log_ratio))
        return rows, stats

    def forward_backward(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        """Add the gradient of the summed loss; weights must be normalised for the whole step already.

        Rows without any weight have no gradient: they get no pass and count in no mean.

        Returns:
            `loss`; `tokens`; per-token means of entropy, clipped share, KL to the old policy (`old_kl`, k3) and to the
            reference, and with a value head its loss; `old_p99` and `old_max` of |log ratio|; the largest |ratio - 1|
            (`ratio_deviation`); `rows_without_weight`.
        """
        samples = check_rows(samples)
        rows_given = len(samples)
        samples = [sample for sample in samples if has_weight(sample)]
        totals: dict[str, float] = dict.fromkeys(["loss", *LOSS_SUMS], 0.0)
        log_ratios: list[np.ndarray] = [np.empty(0, dtype=np.float32)]
        microbatches = self._assign_microbatches(samples)
        for number, (part, trees, is_live) in enumerate(microbatches, start=1):
            batch = self._pack([samples[i] for i in part], trees)
            with self.world.accumulate(self.scorer, number == len(microbatches)):
                logprobs, entropy, values = _score(self.scorer, batch)
                loss, sums, log_ratio = loss_sum(logprobs, entropy, batch, self.loss, values)
                (loss * self.world.size if is_live else loss * 0).backward()
            if is_live:
                sums = {"loss": loss.detach(), **sums}
                for name, value in zip(sums, torch.stack([v.double() for v in sums.values()]).tolist(), strict=True):
                    totals[name] += value
                log_ratios.append(log_ratio.float().cpu().numpy())
        per_process = self.world.gather([(totals, np.concatenate(log_ratios))])
        result = {name: sum(totals[name] for totals, _ in per_process) for name in totals}
        for name in result.keys() - {"loss", "tokens"}:
            result[name] /= max(1.0, result["tokens"])
        if not self.value_head:
            del result["value_loss"]
        log_ratio = np.concatenate([log_ratio for _, log_ratio in per_process])
        result |= {f"old_{name}": value for name, value in log_ratio_tails(log_ratio).items()}
        result["ratio_deviation"] = float(np.abs(np.expm1(log_ratio)).max(initial=0.0))
        result["rows_without_weight"] = float(rows_given - len(samples))
        return result

    def normalized(self, samples: Sequence[TrainingSample]) -> list[TrainingSample]:
        """Return the rows of ONE optimizer step with normalised weights, as the loss settings say."""
        return normalize(samples, self.loss.normalizer, self.loss.constant, ce_normalizer=self.loss.ce_normalizer)

    def update(self, samples: Sequence[TrainingSample], rate: float) -> dict[str, float]:
        """Take one optimizer step on `samples`: normalise weights, accumulate the gradient, step.

        If no row has a weight, nothing changes and `tokens` is 0.
        """
        stats = self.forward_backward(self.normalized(samples))
        return {**stats, "grad_norm": self.optim_step(rate), "learning_rate": rate}

    def _assign_microbatches(
        self, samples: Sequence[TrainingSample]
    ) -> list[tuple[list[int], Sequence[PrefixTree], bool]]:
        """Return this process's micro-batches as (row indices, their trees, is live); without trees rows are padded.

        A CPU computes what it pads; an accelerator waits for a pass's thousands of kernels to be started, so there few
        passes count more than little padding.
        """
        tokens = self.config.compute.microbatch_tokens
        trees_by_first: dict[int, Sequence[PrefixTree]] = {}
        if self.config.compute.share_prefixes:
            batches = balance_micro_batches(split_tree_batches(samples, tokens), self.world.size, padded_nodes)
            parts = [[index for tree in trees for index in tree.samples] for trees in batches]
            trees_by_first = {part[0]: trees for part, trees in zip(parts, batches, strict=True)}
        else:
            ratio = MAX_PADDING_RATIO if self.model.device.type == "cpu" else math.inf
            parts = split_micro_batches(samples, tokens, ratio)
            parts = balance_micro_batches(parts, self.world.size, partial(padded_tokens, samples))
        assigned = self.world.assign_microbatches(parts)  # a dead one is a single row, which needs no tree
        return [(part, trees_by_first.get(part[0], ()) if is_live else (), is_live) for part, is_live in assigned]

    def _pack(self, samples: Sequence[TrainingSample], trees: Sequence[PrefixTree]) -> MicroBatch:
        return pack(samples, self.model.device, tree_layout(samples, trees) if trees else padded_rows(samples))

    def _make_scorer(self, model: Any, *, values: bool = False) -> TokenScorer:
        config = self.config
        return TokenScorer(
            model,
            head_tokens=config.compute.head_tokens,
            autocast=config.compute.dtype == "bfloat16",
            checkpointing=config.compute.gradient_checkpointing,
            values=values,
        )


def _score(scorer: nn.Module, batch: MicroBatch) -> Any:
    return scorer(batch.input_ids, batch.positions, batch.targets, batch.temperature, batch.depths, batch.attended)


def log_ratio_tails(log_ratio: np.ndarray) -> dict[str, float]:
    """Return the 99th percentile (`p99`) and the maximum (`max`) of |log ratio|; 0 for an empty array."""
    sizes = np.abs(log_ratio) if len(log_ratio) else np.zeros(1)
    return {"p99": float(np.quantile(sizes, 0.99)), "max": float(sizes.max())}
