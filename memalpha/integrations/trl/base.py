"""`RowTrainer`: a `GRPOTrainer` whose updates may have any number of rows instead of one per prompt."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object

from memalpha.integrations.trl.guard import TRL_METHODS, require_methods, require_trl
from memalpha.integrations.trl.rows import ITEM_COUNT, ROW_MEAN_LOSSES, Rows, add_dead_rows, round_up

require_trl()

from trl.trainer.grpo_trainer import GRPOTrainer  # noqa: E402

ROW_SCALE = "row_scale"
"""Rows of a batch per real row, a scalar, for losses that divide by rows."""


class RowTrainer(GRPOTrainer):
    """Base of `ERLTrainer` and `MultiContextGRPOTrainer`; use one of them."""

    args: Any
    model: Any
    accelerator: Any
    num_generations: Any
    max_completion_length: Any
    _tokenizer: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        require_methods(GRPOTrainer, tuple(TRL_METHODS))
        super().__init__(*args, **kwargs)

    def _balance_rows(self, rows: Rows) -> Rows:
        """Add dead rows so that every process and micro-batch has equally many, and correct the loss for them.

        Losses that divide by tokens (`dapo`, `cispo`, `vespo`; `bnpo` within a micro-batch) give dead rows no weight.
        Losses that divide by the rows of a micro-batch are multiplied by rows / real rows of the whole batch.
        """
        row_count, steps = len(rows["prompt_ids"]), self.args.steps_per_generation
        total_rows = sum(self._gather_values([row_count]))
        rows = add_dead_rows(rows, round_up(self._max_over_processes(row_count), steps), self._tokenizer.pad_token_id)
        count = len(rows["prompt_ids"]) * self.accelerator.num_processes
        scale = count / max(1, total_rows) if self.loss_type in ROW_MEAN_LOSSES else 1.0
        device = self.accelerator.device
        rows[ROW_SCALE] = torch.tensor(scale, device=device)
        rows[ITEM_COUNT] = self.accelerator.gather(rows["completion_mask"].sum()).sum()
        return rows

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        scale = inputs.get(ROW_SCALE)
        if scale is None or float(scale) == 1.0:
            return super()._compute_loss(model, inputs)
        # The policy gradient is proportional to advantages, the KL to beta; the entropy bonus is a mean over tokens.
        beta = self.beta
        self.beta = beta * float(scale)
        try:
            return super()._compute_loss(model, {**inputs, "advantages": inputs["advantages"] * scale})
        finally:
            self.beta = beta

    def _record_metric(self, name: str, value: float) -> None:
        """Log a metric of this batch; values of one log line are averaged."""
        self._metrics["train"][name].append(float(value))

    def _max_over_processes(self, count: int) -> int:
        """Return the largest of the processes' counts."""
        return max(self._gather_values([count]))

    def _gather_values(self, values: Sequence[Any]) -> list[Any]:
        """Return the values of all processes, in the order of processes."""
        return list(gather_object(list(values)))

    def _local_rows(self, values: torch.Tensor, size: int) -> torch.Tensor:
        """Return this process's `size` rows out of the rows of all processes."""
        first = self.accelerator.process_index * size
        return values[first : first + size]

    @contextmanager
    def _temporarily(self, **changes: Any) -> Iterator[dict[str, list[float]]]:
        """Set attributes for the block, redirect metrics and logged texts, and yield the redirected metrics."""
        metrics: dict[str, list[float]] = defaultdict(list)
        changes = {
            "_metrics": {"train": metrics, "eval": defaultdict(list)},
            "_logs": {
                name: defaultdict(deque) if isinstance(logs, dict) else deque() for name, logs in self._logs.items()
            },
            **changes,
        }
        before = {name: getattr(self, name) for name in changes}
        try:
            for name, value in changes.items():
                setattr(self, name, value)
            yield metrics
        finally:
            for name, value in before.items():
                setattr(self, name, value)
