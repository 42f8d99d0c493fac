"""`TrainingSample`: one contiguous token row with everything the loss needs, and its packing into padded micro-batches.

Suffixes: T completion tokens of one row, B rows, L padded row length, N completion tokens of a whole micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from memalpha.errors import PolicyError
from memalpha.types import Turn


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSample:
    """One row: `prompt_ids` then `completion_ids` (T of them, as sampled, end of sequence included).

    `logprobs` are those the tokens were sampled with, at `temperature`; `advantages` weigh the policy gradient. `pg`,
    `ce` and `kl` are the weights of the loss's streams (policy gradient, cross-entropy, KL to the reference); all are
    float32 of shape (T,). `task`, `rollout`, `chunk` say where the row came from.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: np.ndarray
    advantages: np.ndarray
    pg: np.ndarray
    ce: np.ndarray
    kl: np.ndarray
    temperature: float = 1.0
    task: str = ""
    rollout: int = 0
    chunk: int = 0

    def __post_init__(self) -> None:
        count = len(self.completion_ids)
        if not count or not self.prompt_ids:
            raise PolicyError(
                f"task {self.task!r}, chunk {self.chunk}: a turn without prompt and completion ids cannot be trained "
                "on (scripted policies and some endpoints keep no token record)"
            )
        if not self.temperature > 0:
            raise PolicyError(
                f"task {self.task!r}, chunk {self.chunk}: temperature {self.temperature} cannot be trained at: the "
                "loss divides by it (greedy turns have log-probs at temperature 1)"
            )
        for name in ("logprobs", "advantages", "pg", "ce", "kl"):
            if getattr(self, name).shape != (count,):
                raise ValueError(f"{name} has shape {getattr(self, name).shape}, the completion has {count} tokens")

    @property
    def length(self) -> int:
        """Tokens of the row."""
        return len(self.prompt_ids) + len(self.completion_ids)


def policy_gradient_sample(
    turn: Turn, advantage: float, *, kl: float = 0.0, task: str = "", rollout: int = 0
) -> TrainingSample:
    """The row of one sampled turn: every completion token carries `advantage`, unnormalised weight 1 and KL `kl`.

    A greedy turn (temperature 0) trains at temperature 1, at which its log-probs were recorded.
    """
    completion = turn.completion
    count = len(completion.completion_ids)
    return TrainingSample(
        prompt_ids=completion.prompt_ids,
        completion_ids=completion.completion_ids,
        logprobs=np.asarray(completion.logprobs, dtype=np.float32),
        advantages=np.full(count, advantage, dtype=np.float32),
        pg=np.ones(count, dtype=np.float32),
        ce=np.zeros(count, dtype=np.float32),
        kl=np.full(count, kl, dtype=np.float32),
        temperature=completion.temperature or 1.0,
        task=task,
        rollout=rollout,
        chunk=turn.chunk,
    )


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Right-padded `input_ids` (B, L; each row without its last token) and N flat completion tokens.

    `positions` (N,) index the flattened hidden states that predict `targets` (N,). Right padding under a causal model
    needs no mask: no trained position sees what comes after it. Rollouts of a sharp policy often agree: samples of
    equal tokens share one of the B rows, their advantages stay apart.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    temperature: torch.Tensor
    logprobs: torch.Tensor
    advantages: torch.Tensor
    pg: torch.Tensor
    ce: torch.Tensor
    kl: torch.Tensor


def split(samples: Sequence[TrainingSample], tokens: int) -> list[list[int]]:
    """Indices of `samples` by length, cut so that distinct rows x longest row is at most `tokens` (or one row)."""
    order = sorted(range(len(samples)), key=lambda i: (samples[i].length, *_tokens(samples[i]), i))
    parts: list[list[int]] = []
    rows, last = 0, None
    for i in order:
        ids = _tokens(samples[i])
        rows += ids != last
        if parts and (ids == last or rows * samples[i].length <= tokens):
            parts[-1].append(i)
        else:
            parts.append([i])
            rows = 1
        last = ids
    return parts


def _tokens(sample: TrainingSample) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return sample.prompt_ids, sample.completion_ids


def pack(samples: Sequence[TrainingSample], device: torch.device | str = "cpu") -> MicroBatch:
    """Pad distinct rows to the right and flatten the completion tokens of all samples, in the order given."""
    width = max(sample.length for sample in samples) - 1
    rows = {ids: row for row, ids in enumerate(dict.fromkeys(map(_tokens, samples)))}
    input_ids = np.zeros((len(rows), width), dtype=np.int64)
    for (prompt, completion), row in rows.items():
        input_ids[row, : len(prompt) + len(completion) - 1] = (prompt + completion)[:-1]
    positions = []
    for sample in samples:
        first = rows[_tokens(sample)] * width + len(sample.prompt_ids) - 1
        positions.append(np.arange(first, first + len(sample.completion_ids)))

    def flat(name: str) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([getattr(sample, name) for sample in samples])).to(device)

    counts = [len(sample.completion_ids) for sample in samples]
    heat = np.repeat(np.array([sample.temperature for sample in samples], dtype=np.float32), counts)
    targets = np.concatenate([np.array(sample.completion_ids, dtype=np.int64) for sample in samples])
    return MicroBatch(
        input_ids=torch.from_numpy(input_ids).to(device),
        positions=torch.from_numpy(np.concatenate(positions)).to(device),
        targets=torch.from_numpy(targets).to(device),
        temperature=torch.from_numpy(heat).to(device),
        logprobs=flat("logprobs"),
        advantages=flat("advantages"),
        pg=flat("pg"),
        ce=flat("ce"),
        kl=flat("kl"),
    )
