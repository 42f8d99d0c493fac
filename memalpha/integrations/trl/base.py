"""`RowTrainer`: a `GRPOTrainer` whose updates have other rows than one a prompt, in any number."""

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
"""Rows of a batch for each that is real, where the loss divides by rows; a scalar."""


class RowTrainer(GRPOTrainer):
    """What `ERLTrainer` and `MultiContextGRPOTrainer` share; use one of them."""

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
        """The rows of this process and dead ones: as many in every process and micro-batch, and a loss of real ones.

        By tokens (`dapo`, `cispo`, `vespo`; `bnpo` within a micro-batch) dead rows have no weight as it is. Losses that
        divide by the rows of a micro-batch are multiplied by rows / real rows of the whole batch.
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
        """Log a figure of this batch; those of one log line are averaged."""
        self._metrics["train"][name].append(float(value))

    def _max_over_processes(self, count: int) -> int:
        """The largest of the processes' counts."""
        return max(self._gather_values([count]))

    def _gather_values(self, values: Sequence[Any]) -> list[Any]:
        """Everybody's values, in the order of processes."""
        return list(gather_object(list(values)))

    def _local_rows(self, values: torch.Tensor, size: int) -> torch.Tensor:
        """This process's `size` of everybody's rows."""
        first = self.accelerator.process_index * size
        return values[first : first + size]

    @contextmanager
    def _temporarily(self, **changes: Any) -> Iterator[dict[str, list[float]]]:
        """Metrics and logged texts go elsewhere (the metrics: here), and attributes are as in `changes`."""
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
