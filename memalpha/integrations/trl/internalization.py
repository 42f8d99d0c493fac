"""Phase 7 of ERL: cross-entropy of successful second attempts under the original prompt, in TRL's update loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from memalpha.integrations.trl.attempts import ReflectedAttempt
from memalpha.integrations.trl.base import RowTrainer
from memalpha.integrations.trl.guard import require
from memalpha.integrations.trl.rows import Rows, add_dead_rows, round_up, rows_from_ids


class InternalizingTrainer(RowTrainer):
    """`GRPOTrainer` that also imitates queued rows; base of `ERLTrainer`.

    With `algorithm=1` the cross-entropy is a term of GRPO's loss. With `algorithm=2` it has one epoch of its own over
    the generation's micro-batches, after those of GRPO.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._imitation_rows: list[Rows] = []
        self._imitation_weight = 0.0

    def _queue_imitation(self, first_rows: Rows, attempts: Sequence[ReflectedAttempt]) -> None:
        """Queue successful second attempts after their original prompts, one share per micro-batch.

        Args:
            first_rows: Rows of the first attempts, whose prompts are used.
            attempts: Attempts with their scored second attempts.
        """
        args = self.args
        if not args.enable_internalization:
            return
        end_ids = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        prompts, replies = [], []
        for attempt in attempts:
            if attempt.retry is None or not attempt.reward > args.internalization_threshold:
                continue
            if self.mask_truncated_completions and attempt.retry.completion_ids[-1] not in end_ids:
                continue
            ids, mask = first_rows["prompt_ids"][attempt.index], first_rows["prompt_mask"][attempt.index]
            prompts.append(ids[mask.bool()].tolist())
            replies.append(list(attempt.retry.completion_ids))
        lengths = self._gather_values([len(reply) for reply in replies])
        self._record_metric("erl/internalized", len(lengths))
        if not lengths:
            return
        steps, pad_id = args.steps_per_generation, self._tokenizer.pad_token_id
        rows = rows_from_ids(prompts, replies, pad_id, self.accelerator.device)
        rows = add_dead_rows(rows, round_up(self._max_over_processes(len(replies)), steps), pad_id)
        self._imitation_rows = [{name: tensor[step::steps] for name, tensor in rows.items()} for step in range(steps)]
        first_count = len(first_rows["prompt_ids"]) * self.accelerator.num_processes
        self._imitation_weight = args.internalization_coef * len(lengths) / first_count / sum(lengths)

    def _is_internalizing(self) -> bool:
        """Return True if this micro-batch belongs to algorithm 2's last epoch."""
        epoch = self._step // self.args.steps_per_generation % self.num_iterations
        return self.args.algorithm == 2 and epoch == self.num_iterations - 1

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        inputs = super()._prepare_inputs(generation_batch)
        if not self.model.training or not self._imitation_rows:
            return inputs
        rows = self._imitation_rows[self._step % self.args.steps_per_generation]
        if self.args.algorithm == 2:
            return {"imitated": rows, "alone": True} if self._is_internalizing() else inputs
        return {**inputs, "imitated": rows}

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Run TRL's training step; skip it, without a gradient, if algorithm 2 has nothing to imitate.

        Args:
            model: The wrapped model.
            inputs: The generation batch.
            num_items_in_batch: Passed on to TRL.

        Returns:
            The loss; 0 for a skipped step.
        """
        if self._is_internalizing() and not self._imitation_rows:
            self._step += 1
            return torch.zeros((), device=self.accelerator.device)
        return super().training_step(model, inputs, num_items_in_batch)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        rows = inputs.get("imitated")
        if rows is None:
            return super()._compute_loss(model, inputs)
        imitation = self._imitation_loss(model, rows)
        return imitation if inputs.get("alone") else super()._compute_loss(model, inputs) + imitation

    def _imitation_loss(self, model: Any, rows: Rows) -> torch.Tensor:
        """Return the weighted cross-entropy of a micro-batch's imitated rows."""
        ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
        mask = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
        result = self._get_per_token_logps_and_entropies(model, ids, mask, rows["completion_ids"].shape[1])
        require(
            isinstance(result, tuple) and result[0].shape == rows["completion_ids"].shape, "log-probs of other shape"
        )
        # An update sees `window` of the generation's micro-batches, and gradients are averaged over processes.
        window = self.current_gradient_accumulation_steps
        scale = self.accelerator.num_processes * self.args.steps_per_generation / window * self._imitation_weight
        loss = -(result[0] * rows["completion_mask"]).sum() * scale
        self._record_metric("erl/internalization_loss", self.accelerator.gather(loss.detach()).mean().item() * window)
        return loss
