"""`Learner`: an `Engine` behind futures. Each call is a request to one worker and returns a `Future` at once.

The interface is that of Tinker's training client (Thinking Machines, 2025): forward, forward_backward, optim_step,
save. They are done in the order they were submitted and give, bit for bit, what the same calls on the engine give,
whoever waits for what. So the caller may wait elsewhere (for a reader, a judge) while the learner learns. What a
failure does, and what giving up waiting does not, `train.futures` says.

The sampler shares the engine's weights: wait for the last `optim_step` before sampling again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from memalpha.errors import TrainingError
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.data.samples import TrainingSample
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.futures import Future, Pipeline
from memalpha.train.trainers.checkpoint import load_checkpoint, save_checkpoint

CustomLoss = Callable[[list[torch.Tensor], Sequence[TrainingSample]], torch.Tensor]
"""A loss of one's own: from the log-probs of each row's completion, (T,) float32 with gradient, and the rows, to a
scalar."""


class Learner:
    """Requests to `engine`, done one after the other in a thread of their own, or `inline`, before the call returns.

    Of several processes each does its requests inline: collectives come from one thread in one order, as they must. A
    new learner begins without a gradient. After a failed request make another one, from a checkpoint. A context
    manager, which waits for all requests at its end.
    """

    def __init__(self, engine: Engine, *, inline: bool = False) -> None:
        self.engine = engine
        engine.optimizer.zero_grad(set_to_none=True)
        self._pipeline = Pipeline(inline=inline or engine.world.size > 1, name="memalpha learner")

    def forward(self, samples: Sequence[TrainingSample], *, reference: bool = False) -> Future[list[np.ndarray]]:
        """Log-probs of each row's completion, of the weights as they are then (`Engine.forward`)."""
        return self._pipeline.submit("forward", lambda: self.engine.forward(samples, reference=reference))

    def values(self, samples: Sequence[TrainingSample]) -> Future[list[np.ndarray]]:
        """What the value head says before each of a row's completion tokens (`Engine.values`)."""
        return self._pipeline.submit("values", lambda: self.engine.values(samples))

    def forward_backward(
        self, samples: Sequence[TrainingSample], loss: CustomLoss | None = None
    ) -> Future[dict[str, float]]:
        """Add a gradient to what has been added since the last `optim_step`; returns figures (`merged`).

        Without `loss` it is the engine's loss of the samples' streams, whose weights must be normalised for the whole
        optimizer step, however many calls it takes: use `update`, or `normalized` for all their rows at once.

        With `loss` it is that of one's own loss over all rows of this call together, exact however they are split into
        micro-batches: one pass for the log-probs, d loss / d log-prob of each token, and a pass with these as linear
        weights. The samples' own weights are not read, nor is anything normalised. Its future raises `TrainingError`
        for a result without a gradient, or one that is not finite.
        """
        if loss is None:
            return self._pipeline.submit("forward_backward", lambda: self.engine.forward_backward(samples))
        return self._pipeline.submit("forward_backward", lambda: _custom_forward_backward(self.engine, samples, loss))

    def optim_step(self, rate: float) -> Future[float]:
        """One optimizer step at learning rate `rate` with the gradient so far, clipped; returns its norm."""
        return self._pipeline.submit("optim_step", lambda: self.engine.optim_step(rate))

    def save(
        self, out: Path, step: int, policy: TransformersPolicy, state: Mapping[str, Any] | None = None
    ) -> Future[Path]:
        """Write `out/checkpoints/step-N`, weights and optimizer as they are then (`checkpoint.save_checkpoint`)."""
        return self._pipeline.submit("save", lambda: save_checkpoint(out, step, policy, self.engine, state or {}))

    def load(self, path: Path) -> Future[dict[str, Any]]:
        """Put weights and optimizer of a checkpoint back; returns its state (`checkpoint.load_checkpoint`)."""
        return self._pipeline.submit("load", lambda: load_checkpoint(path, self.engine))

    def normalized(self, *parts: Sequence[TrainingSample]) -> list[list[TrainingSample]]:
        """The parts of ONE optimizer step with their weights divided for all of them together."""
        remaining = iter(self.engine.normalized([sample for part in parts for sample in part]))
        return [[next(remaining) for _ in part] for part in parts]

    def update(self, *parts: Sequence[TrainingSample], rate: float) -> Future[dict[str, float]]:
        """One optimizer step: `parts` normalised together, a `forward_backward` for each, an `optim_step`.

        Returns their figures (`merged`), the gradient's norm (`grad_norm`) and the `learning_rate`.
        """
        gradients = [self.forward_backward(part) for part in self.normalized(*parts)]

        def step() -> dict[str, float]:
            norm = self.engine.optim_step(rate)
            return {
                **merge_metrics([gradient.result() for gradient in gradients]),
                "grad_norm": norm,
                "learning_rate": rate,
            }

        return self._pipeline.submit("optim_step", step)

    @property
    def idle_since(self) -> float | None:
        """When it ran out of requests, by `time.monotonic`; None while it has some."""
        return self._pipeline.idle_since

    def close(self, *, drop: bool = False) -> None:
        """Wait for all requests, or for the one under way and drop the others (`Pipeline.close`)."""
        self._pipeline.close(drop=drop)

    def __enter__(self) -> Learner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drop=kind is not None)


def merge_metrics(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Figures of several `forward_backward` of one optimizer step as those of one.

    Loss and tokens are sums, what ends with `_max` and `ratio_deviation` maxima, all else is a mean weighed by tokens
    (exact but for quantiles).
    """
    if len(results) == 1:
        return dict(results[0])
    tokens = sum(metrics["tokens"] for metrics in results)
    totals: dict[str, float] = {}
    for name in results[0]:
        values = [one[name] for one in results]
        if name in ("loss", "tokens"):
            totals[name] = sum(values)
        elif name == "ratio_deviation" or name.endswith("_max"):
            totals[name] = max(values)
        else:
            weighed = sum(value * one["tokens"] for value, one in zip(values, results, strict=True))
            totals[name] = weighed / max(1.0, tokens)
    return totals


def _custom_forward_backward(engine: Engine, samples: Sequence[TrainingSample], loss: CustomLoss) -> dict[str, float]:
    rows = [torch.from_numpy(row.copy()).requires_grad_() for row in engine.forward(samples)]
    value = loss(rows, samples)
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
        raise TrainingError(
            "loss: must return a scalar tensor that depends on the log-probs; "
            f"{_describe(value)} has no gradient for them"
        )
    gradients = torch.autograd.grad(value.reshape(()), rows, allow_unused=True)
    linear = []
    for sample, gradient in zip(samples, gradients, strict=True):
        zeros = np.zeros(len(sample.completion_ids), dtype=np.float32)
        weight = zeros if gradient is None else -gradient.numpy()
        linear.append(replace(sample, ce=weight, pg=zeros, kl=zeros, ent=None, vf=None))
    if not torch.isfinite(value) or not all(np.isfinite(row.ce).all() for row in linear):
        raise TrainingError(
            f"loss: {value.item():g}, or its gradient, is not finite: look for logs and divisions in it"
        )
    return {**engine.forward_backward(linear), "loss": value.item()}


def _describe(value: Any) -> str:
    return f"one of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
