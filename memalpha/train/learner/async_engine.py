"""`Learner`: an `Engine` behind futures; each call submits a request to one worker and returns a `Future` at once.

The interface follows Tinker's training client (Thinking Machines, 2025): forward, forward_backward, optim_step, save.
Requests run in the order of submission and give, bit for bit, the results of the same calls on the engine. So the
caller can wait for a reader or a judge while the learner works. `learner.futures` describes failures and cancelling.

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
from memalpha.train.trainers.checkpoint import load_checkpoint
from memalpha.train.trainers.directory import RunDirectory

CustomLoss = Callable[[list[torch.Tensor], Sequence[TrainingSample]], torch.Tensor]
"""Custom loss: takes log-probs of each row's completion, (T,) float32 with gradient, and the rows; returns a scalar."""


class Learner:
    """Run requests to `engine` in order, in a worker thread or `inline`, before the call returns.

    With several processes each process runs its requests inline: collectives must come from one thread, in one order. A
    new learner starts without a gradient. After a failed request, create a new learner from a checkpoint. As a context
    manager it waits for all requests on exit.

    Args:
        engine: Owner of weights and optimizer.
        inline: Run each request before the call returns, without a thread.
    """

    def __init__(self, engine: Engine, *, inline: bool = False) -> None:
        self.engine = engine
        engine.optimizer.zero_grad(set_to_none=True)
        self._pipeline = Pipeline(inline=inline or engine.world.size > 1, name="memalpha learner")

    def forward(self, samples: Sequence[TrainingSample], *, reference: bool = False) -> Future[list[np.ndarray]]:
        """Compute log-probs of each row's completion with the weights at that point (`Engine.forward`)."""
        return self._pipeline.submit("forward", lambda: self.engine.forward(samples, reference=reference))

    def values(self, samples: Sequence[TrainingSample]) -> Future[list[np.ndarray]]:
        """Compute the value head's estimates before each completion token (`Engine.values`)."""
        return self._pipeline.submit("values", lambda: self.engine.values(samples))

    def forward_backward(
        self, samples: Sequence[TrainingSample], loss: CustomLoss | None = None
    ) -> Future[dict[str, float]]:
        """Add a gradient to those since the last `optim_step`.

        Without `loss` the engine's loss of the samples' streams is used. The samples' weights must then be normalised
        for the whole optimizer step, however many calls it takes: use `update`, or `normalized` for all rows at once.

        A custom `loss` sees all rows of this call together, so the gradient is exact for every split into
        micro-batches. One pass computes the log-probs, a second one uses d loss / d log-prob as linear weights of the
        tokens. The samples' own weights are ignored and nothing is normalised. Its future raises `TrainingError` if the
        result has no gradient or is not finite.

        Args:
            samples: Token rows.
            loss: Custom loss; None uses the engine's.

        Returns:
            A future of metrics (see `merge_metrics`).
        """
        if loss is None:
            return self._pipeline.submit("forward_backward", lambda: self.engine.forward_backward(samples))
        return self._pipeline.submit("forward_backward", lambda: _custom_forward_backward(self.engine, samples, loss))

    def optim_step(self, rate: float) -> Future[float]:
        """Clip the accumulated gradient and step at learning rate `rate`; returns the gradient's norm."""
        return self._pipeline.submit("optim_step", lambda: self.engine.optim_step(rate))

    def save(
        self, out: Path, step: int, policy: TransformersPolicy, state: Mapping[str, Any] | None = None
    ) -> Future[Path]:
        """Write weights and optimizer to `out/checkpoints/step-N` (`RunDirectory.save_checkpoint`).

        Args:
            out: Run directory.
            step: Step number N.
            policy: Policy whose tokenizer and configuration are saved.
            state: JSON state of the run; empty by default.

        Returns:
            A future of the checkpoint's path.
        """
        save = RunDirectory(out).save_checkpoint
        return self._pipeline.submit("save", lambda: save(step, policy, self.engine, state or {}))

    def load(self, path: Path) -> Future[dict[str, Any]]:
        """Restore weights and optimizer from a checkpoint and return its state (`checkpoint.load_checkpoint`)."""
        return self._pipeline.submit("load", lambda: load_checkpoint(path, self.engine))

    def normalized(self, *parts: Sequence[TrainingSample]) -> list[list[TrainingSample]]:
        """Return the parts of ONE optimizer step, their weights normalised over all parts together."""
        remaining = iter(self.engine.normalized([sample for part in parts for sample in part]))
        return [[next(remaining) for _ in part] for part in parts]

    def update(self, *parts: Sequence[TrainingSample], rate: float) -> Future[dict[str, float]]:
        """Take one optimizer step: normalise `parts` together, add each part's gradient, step.

        Returns:
            A future of the merged metrics (`merge_metrics`), `grad_norm` and `learning_rate`.
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

    def close(self, *, drop: bool = False) -> None:
        """Wait for all requests; `drop=True` waits for the running one and drops the rest (`Pipeline.close`)."""
        self._pipeline.close(drop=drop)

    def __enter__(self) -> Learner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drop=kind is not None)


def merge_metrics(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merge the metrics of several `forward_backward` calls of one optimizer step.

    Loss, tokens and rows without weight are summed. `ratio_deviation` and names that end with `_max` are maxima. All
    others are means weighted by tokens, exact except for quantiles.
    """
    if len(results) == 1:
        return dict(results[0])
    tokens = sum(metrics["tokens"] for metrics in results)
    totals: dict[str, float] = {}
    for name in results[0]:
        values = [metrics[name] for metrics in results]
        if name in ("loss", "tokens", "rows_without_weight"):
            totals[name] = sum(values)
        elif name == "ratio_deviation" or name.endswith("_max"):
            totals[name] = max(values)
        else:
            weighted = sum(value * metrics["tokens"] for value, metrics in zip(values, results, strict=True))
            totals[name] = weighted / max(1.0, tokens)
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
