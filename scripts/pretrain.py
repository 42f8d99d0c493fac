"""Supervised training of a very small causal LM from random weights, on one CPU core.

Written for the policies that ship (`scripts/make_tiny_policy.py`, `scripts/make_babi_policy.py`). `kick` teaches
copying from any offset before there is any text. It begins with a fixed offset, which a positional head can copy, and
widens the window of offsets. Without the fixed start, copying from any offset does not form in 400 steps; with it, in
about 150.

Hidden matrices are trained by Muon (Jordan et al. 2024: orthogonalised momentum, quintic Newton-Schulz), everything
else by AdamW.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

Encoded = tuple[list[int], list[int]]
"""Prompt ids and completion ids (end token included) of one demonstration."""


class Muon(torch.optim.Optimizer):
    """Update 2-D hidden weights by momentum, orthogonalised with five Newton-Schulz steps.

    Weights of equal shape are processed as one batch.
    """

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every weight once from its gradient."""
        for group in self.param_groups:
            shapes: dict[tuple[int, ...], list[torch.nn.Parameter]] = {}
            for weight in group["params"]:
                shapes.setdefault(tuple(weight.shape), []).append(weight)
            for (rows, columns), weights in shapes.items():
                steps = []
                for weight in weights:
                    assert weight.grad is not None
                    momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                    momentum.mul_(group["momentum"]).add_(weight.grad)
                    steps.append(weight.grad.add(momentum, alpha=group["momentum"]))
                directions = _orthogonal(torch.stack(steps))
                for weight, direction in zip(weights, directions, strict=True):
                    weight.add_(direction, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def _orthogonal(x: torch.Tensor) -> torch.Tensor:
    """Return approximately the nearest semi-orthogonal matrices: singular values of about 0.7 to 1.2."""
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


class Trainer:
    """Minimise the cross-entropy of marked tokens; the head runs on those alone."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        hidden = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
        rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
        self.optimizers = (Muon(hidden, lr=1.0), torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.0))

    def loss(self, ids: torch.Tensor, marked: torch.Tensor) -> torch.Tensor:
        """Return the mean over the `marked` tokens of `ids` (both rows x tokens).

        Padding is on the right, so it needs no mask.
        """
        hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][marked[:, 1:]]
        return cross_entropy(self.model.lm_head(hidden), ids[:, 1:][marked[:, 1:]])

    def step(self, ids: torch.Tensor, marked: torch.Tensor, muon: float, adam: float) -> float:
        """Take one optimizer step and return the loss.

        Args:
            ids: Token ids, rows x tokens.
            marked: Mask of the trained tokens.
            muon: Learning rate of the hidden matrices.
            adam: Learning rate of all other weights.
        """
        loss = self.loss(ids, marked)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, rate in zip(self.optimizers, (muon, adam), strict=True):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()


# (steps, shortest period, longest period): a fixed offset first, then ever wider windows.
KICK = ((70, 16, 16), (40, 14, 18), (40, 10, 24), (80, 5, 24))


def kick(trainer: Trainer, seed: int) -> float:
    """Teach copying from any offset on random tokens that repeat with a random period.

    Returns:
        The last loss.
    """
    noise = torch.Generator().manual_seed(seed)
    vocabulary, steps_done, loss = trainer.model.config.vocab_size, 0, 0.0
    for steps, low, high in KICK:
        width = 32 if low == high else 48
        for _ in range(steps):
            periods = torch.randint(low, high + 1, (64, 1), generator=noise)
            tokens = torch.randint(20, vocabulary, (64, high), generator=noise)
            positions = torch.arange(width).expand(64, width)
            ids = tokens.gather(1, positions % periods)
            steps_done += 1
            warmup = min(1.0, steps_done / 20)
            loss = trainer.step(ids, positions > periods, 0.02 * warmup, 3e-3 * warmup)
    return loss


@dataclass(frozen=True, slots=True)
class Stage:
    """Describe a stage of training.

    Rates fall linearly to `final` of themselves over the last `decay` of the steps.
    """

    name: str
    steps: int
    muon: float
    adam: float
    final: float = 1.0
    decay: float = 0.5
    warmup: int = 0


def train(trainer: Trainer, stage: Stage, source: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Run one stage and print the mean loss of every 50 steps.

    Args:
        trainer: Model and optimizers.
        stage: Steps and learning rates.
        source: Batches of (ids, completion mask), as from `collate`.
    """
    started, total = time.process_time(), 0.0
    for step in range(1, stage.steps + 1):
        decay_left = min(1.0, (stage.steps - step) / (stage.steps * stage.decay))
        scale = stage.final + (1 - stage.final) * decay_left
        if stage.warmup:
            scale *= min(1.0, step / stage.warmup)
        ids, marked = next(source)
        total += trainer.step(ids, marked, stage.muon * scale, stage.adam * scale)
        if step % 50 == 0:
            spent = time.process_time() - started
            print(f"{stage.name}: step {step} of {stage.steps}, loss {total / 50:.3f}, {spent:.0f} s", flush=True)
            total = 0.0


@torch.inference_mode()
def greedy_matches(model: PreTrainedModel, rows: Sequence[Encoded]) -> list[bool]:
    """Return, for each row, True if greedy decoding gives its completion exactly."""
    matches = [False] * len(rows)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]) + len(rows[i][1]))
    for start in range(0, len(order), 64):
        batch_indices = order[start : start + 64]
        ids, marked = collate([rows[i] for i in batch_indices])
        is_right = model(input_ids=ids, use_cache=False).logits[:, :-1].argmax(-1) == ids[:, 1:]
        for number, i in enumerate(batch_indices):
            matches[i] = bool(is_right[number][marked[number, 1:]].all())
    return matches


def batches(rows: Sequence[Encoded], tokens: int, rng: Random) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield `collate`d batches of about `tokens` padded tokens, in random order.

    Rows of similar length share a batch.

    Args:
        rows: Prompt and completion ids.
        tokens: Padded tokens of a batch.
        rng: Source of randomness.
    """
    groups: list[list[Encoded]] = []
    group: list[Encoded] = []
    for row in sorted(rows, key=lambda row: (len(row[0]) + len(row[1]), row)):
        group.append(row)
        if (len(row[0]) + len(row[1])) * len(group) >= tokens:
            groups.append(group)
            group = []
    rng.shuffle(groups)  # the last, incomplete group is left out: it would weigh as much as a full one
    yield from map(collate, groups)


def collate(rows: Sequence[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return padded ids and the mask of completion tokens, rows x tokens."""
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    marked = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[number, :end] = torch.tensor(prompt + answer)
        marked[number, len(prompt) : end] = True
    return ids, marked
