"""The learner: owns the weights and the optimizer, takes `TrainingSample`s, and is blind to the algorithm.

Why our own and not a `GRPOTrainer` subclass: one rollout is many rows with contexts of their own, and reductions are
data (`normalize`). Only completion positions pass the LM head; rows are right-padded in length-sorted micro-batches
under a token budget. Dropout stays off, so that the first ratio of a step is 1.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from memalpha.config import TrainConfig
from memalpha.errors import PolicyError, TrainingError
from memalpha.train.losses import STATS, loss_sum, token_logprobs
from memalpha.train.normalize import normalize
from memalpha.train.samples import MicroBatch, TrainingSample, pack, split


def learning_rate(step: int, config: TrainConfig) -> float:
    """Linear warm-up, constant, linear decay over the last `decay_fraction` of `schedule_steps`; `step` from 0."""
    warm = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    decay_steps = config.decay_fraction * config.schedule_steps
    left = config.schedule_steps - step
    cool = min(1.0, max(0.0, left / decay_steps)) if decay_steps else 1.0
    return config.learning_rate * min(warm, cool)


class Learner:
    """Updates `model` in place.

    With `config.beta` > 0 a frozen copy of the model as it is now becomes the KL's reference, so construct the learner
    on the start weights and load a checkpoint afterwards.
    """

    def __init__(self, model: PreTrainedModel, config: TrainConfig) -> None:
        self.model = model.eval()
        self.config = config
        self.named = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
        self.optimizer = torch.optim.AdamW(
            self.named.values(), lr=config.learning_rate, betas=config.adam_betas, weight_decay=config.weight_decay
        )
        self.reference = copy.deepcopy(model).requires_grad_(False).eval() if config.beta > 0 else None
        self._check_head()

    def forward(self, samples: Sequence[TrainingSample]) -> list[np.ndarray]:
        """Current log-probs of each row's completion tokens, at the row's temperature; no gradient."""
        result: list[np.ndarray] = [np.empty(0)] * len(samples)
        with torch.no_grad():
            for part in split(samples, self.config.microbatch_tokens):
                batch = pack([samples[i] for i in part], self.model.device)
                values, _ = self._logprobs(self.model, batch)
                counts = [len(samples[i].completion_ids) for i in part]
                for i, row in zip(part, values.split(counts), strict=True):
                    result[i] = row.cpu().numpy()
        return result

    def forward_backward(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        """Add the gradient of the summed loss; the samples' weights must be normalised for the whole step already.

        Returns loss, tokens, per-token means of entropy, clipped share, KL to the sampler (`old_kl`) and to the
        reference, and the largest |ratio - 1| (`ratio_deviation`).
        """
        config = self.config
        high = config.epsilon if config.epsilon_high is None else config.epsilon_high
        total, sums = torch.zeros(()), torch.zeros(len(STATS))
        for part in split(samples, config.microbatch_tokens):
            batch = pack([samples[i] for i in part], self.model.device)
            reference = None
            if self.reference is not None:
                with torch.no_grad():
                    reference, _ = self._logprobs(self.reference, batch)
            logprobs, entropy = self._logprobs(self.model, batch)
            loss, stats = loss_sum(logprobs, entropy, batch, config.epsilon, high, reference)
            loss.backward()
            stats = stats.cpu()
            total = total + loss.detach().cpu()
            worst = torch.maximum(sums[-1], stats[-1])
            sums = sums + stats
            sums[-1] = worst
        result = dict(zip(STATS, sums.tolist(), strict=True))
        for name in STATS[1:-1]:
            result[name] /= max(1.0, result["tokens"])
        return {"loss": float(total), **result}

    def optim_step(self, rate: float) -> float:
        """Clip the gradient, step the optimizer at learning rate `rate`, clear the gradient; returns its norm."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.named.values(), self.config.max_grad_norm))
        if not math.isfinite(norm):
            raise TrainingError(f"the gradient norm is {norm}: lower learning_rate or check the rewards")
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def update(self, samples: Sequence[TrainingSample], rate: float) -> dict[str, float]:
        """One optimizer step on `samples`: normalise their weights, accumulate the gradient, step."""
        stats = self.forward_backward(normalize(samples, self.config.loss_normalizer, self.config.loss_constant))
        return {**stats, "grad_norm": self.optim_step(rate), "learning_rate": rate}

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        """The optimizer's state by `parameter/key`; empty before the first step."""
        state = self.optimizer.state
        return {
            f"{name}/{key}": value.contiguous()
            for name, parameter in self.named.items()
            for key, value in state.get(parameter, {}).items()
        }

    def load_optimizer_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put `optimizer_tensors` back. Raises `KeyError` for an unknown parameter."""
        self.optimizer.state.clear()
        for full, value in tensors.items():
            name, _, key = full.rpartition("/")
            parameter = self.named[name]
            place = "cpu" if value.dim() == 0 else parameter.device
            self.optimizer.state[parameter][key] = value.to(place)

    @staticmethod
    def _logprobs(model: PreTrainedModel, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = model.base_model(input_ids=batch.input_ids, use_cache=False).last_hidden_state
        chosen = hidden.flatten(0, 1).index_select(0, batch.positions)
        head: Any = model.get_output_embeddings()
        return token_logprobs(head(chosen), batch)

    def _check_head(self) -> None:
        """Refuse architectures that change logits after the output embedding (soft caps, scales)."""
        probe = torch.arange(8, device=self.model.device)[None] * 7 % self.model.config.get_text_config().vocab_size
        with torch.no_grad():
            whole = self.model(input_ids=probe, use_cache=False).logits.float()
            head: Any = self.model.get_output_embeddings()
            ours = None
            if head is not None:
                ours = head(self.model.base_model(input_ids=probe, use_cache=False).last_hidden_state).float()
        if ours is None or ours.shape != whole.shape or not torch.allclose(ours, whole, atol=1e-3, rtol=1e-3):
            raise PolicyError(
                f"{type(self.model).__name__} changes its logits after the output embedding; the learner projects "
                "completion positions itself and cannot train this architecture"
            )
