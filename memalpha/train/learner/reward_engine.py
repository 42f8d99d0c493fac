"""The engine of reward models: learns from pairs and rated replies.

With s the head's outputs for a row and w the objectives' weights, an item's loss is

    pair      -log sigma(v(chosen) - v(rejected) - margin) + c (v(chosen) + v(rejected))^2
    rating    mean over the rated objectives k of (s_k - score_k)^2

where v = s_k for a pair of objective k, else w s, and c is `center_rewards_coefficient` (0 if not set). An optimizer
step takes the mean over its items. The rows of an item stay in one micro-batch; the split into micro-batches does not
change the gradient.

Papers: the Bradley-Terry likelihood of pairs, Ouyang et al. 2022, arXiv 2203.02155; margins, Touvron et al. 2023, arXiv
2307.09288; the centring term, Eisenstein et al. 2023, arXiv 2312.09244, eq. 2; several heads on one trunk with
regression of ratings, Wang et al. 2024 (ArmoRM), arXiv 2406.12845. For pairs without objectives, loss and gradient
equal those of TRL's RewardTrainer on the same token rows (tests/train/learner/test_trl_reward.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import logsigmoid

from memalpha.config import RewardModelConfig
from memalpha.policy.reward_model import Head, RewardScorer, pack_rows, read_reward_model, write_reward_model
from memalpha.train.data.preferences import ComparedReplies, RatedReply, RewardExample
from memalpha.train.data.samples import split_by_width
from memalpha.train.learner.distributed import SINGLE_PROCESS, World
from memalpha.train.learner.engine import BaseEngine
from memalpha.train.learner.token_logprobs import checkpointed_layers, recompute_activations


class RewardEngine(BaseEngine):
    """Update `model` (from `add_reward_head`, or a `PeftModel` of one) in place.

    Items are those of a whole step, the same in every process of `world`. Each process computes its share, and all get
    the same results.
    """

    def __init__(self, model: Any, config: RewardModelConfig, head: Head, world: World = SINGLE_PROCESS) -> None:
        super().__init__(model, config, world)
        self.head = head
        self.center = config.center_rewards_coefficient or 0.0
        self._objective_weights = torch.tensor(list(head.objectives.values()), device=model.device)
        self._pad_id = model.config.get_text_config().pad_token_id
        autocast = config.compute.dtype == "bfloat16"
        self._layers = checkpointed_layers(self.trained) if config.compute.gradient_checkpointing else []
        self.scorer = self._wrap_scorer(RewardScorer(self.trained, head.pooling, autocast=autocast))
        self._make_optimizer({})

    def scores(self, items: Sequence[RewardExample]) -> list[np.ndarray]:
        """Return the head's K outputs per row of each item, without a gradient.

        A pair has two rows (2, K), a rating one (1, K).
        """
        with torch.no_grad():
            return self.forward_backward(items)

    def forward_backward(self, items: Sequence[RewardExample]) -> list[np.ndarray]:
        """Add the gradient of the mean loss over a step's items, where gradients are on; return what `scores` does."""
        scores_by_item: list[tuple[int, np.ndarray]] = []
        microbatches = self.world.assign_microbatches(split_microbatches(items, self.config.compute.microbatch_tokens))
        for number, (part, is_live) in enumerate(microbatches, start=1):
            microbatch = [items[i] for i in part]
            with self.world.accumulate(self.scorer, number == len(microbatches)):
                values = self._score_rows(microbatch)
                if torch.is_grad_enabled():
                    loss = self._item_losses(microbatch, values).sum() / len(items)
                    (loss * self.world.size if is_live else loss * 0).backward()
            counts = np.cumsum([len(item.rows) for item in microbatch])[:-1]
            rows = np.split(values.detach().cpu().numpy(), counts)
            scores_by_item += [(i, row) for i, row in zip(part, rows, strict=True) if is_live]
        by_index = dict(self.world.gather(scores_by_item))
        return [by_index[i] for i in range(len(items))]

    def update(self, items: Sequence[RewardExample], rate: float) -> dict[str, float]:
        """Take one optimizer step on `items`.

        Returns:
            `compute_metrics` of the weights before the step, `grad_norm` and `learning_rate`.
        """
        scores = self.forward_backward(items)
        return {**self.compute_metrics(items, scores), "grad_norm": self.optim_step(rate), "learning_rate": rate}

    def compute_metrics(self, items: Sequence[RewardExample], scores: Sequence[np.ndarray]) -> dict[str, float]:
        """Return means over the items.

        `loss` covers all items. Pairs give `accuracies` (1 if chosen scores higher, 0.5 for a tie), `margins` (the
        difference) and `scores` (of both sides). Ratings give `errors` (root of the mean square).
        """
        values = torch.from_numpy(np.concatenate(list(scores))).to(self.model.device)
        metrics = {"loss": float(self._item_losses(items, values).cpu().numpy().mean())}
        weights = self._objective_weights.cpu().numpy()
        pairs = list(zip(items, scores, strict=True))
        compared = [(item.objective, row) for item, row in pairs if isinstance(item, ComparedReplies)]
        sides = [row @ weights if objective is None else row[:, objective] for objective, row in compared]
        sides = np.array(sides, dtype=np.float64).reshape(-1, 2)
        if len(sides):
            gaps = sides[:, 0] - sides[:, 1]
            metrics |= {
                "accuracies": float((np.sign(gaps) + 1).mean() / 2),
                "margins": float(gaps.mean()),
                "scores": float(sides.mean()),
            }
        squares = [np.square(row[0] - np.array(item.scores)) for item, row in pairs if isinstance(item, RatedReply)]
        if squares:
            metrics["errors"] = float(np.sqrt(np.nanmean(np.concatenate(squares))))
        return metrics

    def _score_rows(self, items: Sequence[RewardExample]) -> torch.Tensor:
        """Return scores (rows, K) of all rows of the items in order; equal rows are computed once."""
        rows = [row for item in items for row in item.rows]
        row_indices = {row: index for index, row in enumerate(dict.fromkeys(rows))}
        packed = pack_rows(list(row_indices), self.head.pooling, self._pad_id, self.model.device)
        with recompute_activations(self._layers):
            scores = self.scorer(*packed)
        return scores[torch.tensor([row_indices[row] for row in rows], device=scores.device)]

    def _item_losses(self, items: Sequence[RewardExample], values: torch.Tensor) -> torch.Tensor:
        losses, offset = [], 0
        for item in items:
            item_scores = values[offset : offset + len(item.rows)]
            offset += len(item.rows)
            if isinstance(item, ComparedReplies):
                chosen, rejected = (
                    item_scores @ self._objective_weights if item.objective is None else item_scores[:, item.objective]
                )
                loss = -logsigmoid(chosen - rejected - item.margin)
                losses.append(loss + self.center * (chosen + rejected).square() if self.center else loss)
            else:
                target = torch.tensor(item.scores, dtype=item_scores.dtype, device=item_scores.device)
                is_rated = ~target.isnan()
                losses.append((item_scores[0] - target)[is_rated].square().mean())
        return torch.stack(losses)

    def _write_model(self, folder: Path) -> None:
        write_reward_model(self.model, self.head, folder)

    def _read_model(self, folder: Path) -> Mapping[str, torch.Tensor]:
        dtype = str(self.model.dtype).removeprefix("torch.")
        return read_reward_model(folder, self.head, dtype, "cpu")[0].state_dict()

    def write(self, folder: Path) -> None:
        """Write the weights and the head's configuration."""
        super().write(folder)
        self.head.write(folder)


def split_microbatches(items: Sequence[RewardExample], max_tokens: int) -> list[list[int]]:
    """Split item indices into micro-batches of at most `max_tokens` padded tokens, longest rows first.

    A larger item gets a micro-batch of its own.
    """
    lengths = [max(len(prompt) + len(reply) for prompt, reply in item.rows) for item in items]
    order = sorted(range(len(items)), key=lambda i: (-lengths[i], i))
    return split_by_width(order, [(lengths[i], len(items[i].rows)) for i in order], max_tokens)
