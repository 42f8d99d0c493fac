"""`TrainingSample`: one contiguous token row with everything the loss needs, and its packing into padded micro-batches.

Suffixes: T completion tokens of one row, B rows, L padded row length, N completion tokens of a whole micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from memalpha.errors import PolicyError
from memalpha.types import Turn

STREAMS = ("pg", "ce", "kl", "ent", "vf")
"""The parts of the loss (`train.losses`), by the name of their weights."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSample:
    """One row: `prompt_ids` then `completion_ids` (T of them, as sampled, end of sequence included).

    `logprobs` are the ratio's denominator, at `temperature`: those the tokens were sampled with, or the learner's own
    (`Engine.recompute_old`); `reference` are the reference policy's. `advantages` weigh the policy gradient. `pg`,
    `ce`, `kl`, `ent` and `vf` are the weights of the loss's streams (policy gradient, cross-entropy, KL to the
    reference, entropy bonus, value loss; None: 0); `values` are what the value head gave before a step's first update,
    `returns` what it is to give. All are float32 of shape (T,). `task`, `rollout`, `chunk`, `role` say where the row
    came from. Rows of one `unit` (None: the row alone) go into the same optimizer step.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: np.ndarray
    advantages: np.ndarray
    pg: np.ndarray
    ce: np.ndarray
    kl: np.ndarray
    ent: np.ndarray | None = None
    vf: np.ndarray | None = None
    reference: np.ndarray | None = None
    values: np.ndarray | None = None
    returns: np.ndarray | None = None
    temperature: float = 1.0
    task: str = ""
    rollout: int = 0
    chunk: int = 0
    role: str = "attempt"
    unit: str | None = None

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
        for name in ("logprobs", "advantages", "reference", "values", "returns", *STREAMS):
            value = getattr(self, name)
            if value is not None and value.shape != (count,):
                raise ValueError(f"{name} has shape {value.shape}, the completion has {count} tokens")
        if self.reference is None and self.kl.any():
            raise ValueError("kl: a weight on the KL needs the log-probs of the reference")
        if self.vf is not None and (self.values is None or self.returns is None):
            raise ValueError("vf: a weight on the value loss needs the old values and the returns")

    @property
    def length(self) -> int:
        """Tokens of the row."""
        return len(self.prompt_ids) + len(self.completion_ids)


def policy_gradient_sample(
    turn: Turn, advantage: float = 0.0, *, task: str = "", rollout: int = 0, role: str = "attempt"
) -> TrainingSample:
    """The row of one sampled turn: every completion token carries `advantage` and the unnormalised weight 1.

    A greedy turn (temperature 0) trains at temperature 1, at which its log-probs were recorded.
    """
    completion = turn.completion
    nothing = np.zeros(len(completion.completion_ids), dtype=np.float32)
    return TrainingSample(
        prompt_ids=completion.prompt_ids,
        completion_ids=completion.completion_ids,
        logprobs=np.asarray(completion.logprobs, dtype=np.float32),
        advantages=nothing + np.float32(advantage),
        pg=nothing + 1,
        ce=nothing,
        kl=nothing,
        temperature=completion.temperature or 1.0,
        task=task,
        rollout=rollout,
        chunk=turn.chunk,
        role=role,
    )


def cross_entropy_sample(
    prompt_ids: Sequence[int], completion_ids: Sequence[int], *, task: str = "", rollout: int = 0, chunk: int = 0
) -> TrainingSample:
    """The row of one demonstration: every completion token (end of sequence included) has cross-entropy weight 1."""
    nothing = np.zeros(len(completion_ids), dtype=np.float32)
    return TrainingSample(
        prompt_ids=tuple(prompt_ids),
        completion_ids=tuple(completion_ids),
        logprobs=nothing,
        advantages=nothing,
        pg=nothing,
        ce=nothing + 1,
        kl=nothing,
        task=task,
        rollout=rollout,
        chunk=chunk,
    )


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Right-padded `input_ids` (B, L; each row without its last token) and N flat completion tokens.

    `positions` (N,) index the flattened hidden states that predict `targets` (N,). Right padding under a causal model
    needs no mask: no trained position sees what comes after it. Rollouts of a sharp policy often agree: samples of
    equal tokens share one of the B rows, their advantages stay apart. `sample` (N,) numbers the samples that the tokens
    belong to. What follows `kl` is None where no sample has it.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    sample: torch.Tensor
    targets: torch.Tensor
    temperature: torch.Tensor
    logprobs: torch.Tensor
    advantages: torch.Tensor
    pg: torch.Tensor
    ce: torch.Tensor
    kl: torch.Tensor
    reference: torch.Tensor | None
    ent: torch.Tensor | None
    vf: torch.Tensor | None
    values: torch.Tensor | None
    returns: torch.Tensor | None


MAX_PADDING_RATIO = 1.05
"""How many tokens a micro-batch may compute for each token it holds."""


def split_micro_batches(samples: Sequence[TrainingSample], tokens: int) -> list[list[int]]:
    """Indices of `samples` in micro-batches, those of the longest rows first.

    A micro-batch of several distinct rows computes at most `tokens` tokens and at most `PADDING` x those of its rows.
    Longest first: memory that one micro-batch has freed is large enough for the next.
    """
    order = sorted(range(len(samples)), key=lambda i: (-samples[i].length, *_tokens(samples[i]), i))
    parts: list[list[int]] = []
    width = rows = real = 0
    last = None
    for i in order:
        ids, length = _tokens(samples[i]), samples[i].length
        if parts and ids == last:
            parts[-1].append(i)
            continue
        last, room = ids, width * (rows + 1)
        if parts and room <= min(tokens, MAX_PADDING_RATIO * (real + length)):
            parts[-1].append(i)
            rows, real = rows + 1, real + length
        else:
            parts.append([i])
            width, rows, real = length, 1, length
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

    def flat(values: Iterable[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(list(values))).to(device)

    def some(name: str, instead: float = 0.0) -> torch.Tensor | None:
        rows = [getattr(sample, name) for sample in samples]
        if all(row is None for row in rows):
            return None
        others = (np.full_like(sample.pg, instead) for sample in samples)
        return flat(other if row is None else row for row, other in zip(rows, others, strict=True))

    counts = [len(sample.completion_ids) for sample in samples]
    heat = np.repeat(np.array([sample.temperature for sample in samples], dtype=np.float32), counts)
    return MicroBatch(
        input_ids=torch.from_numpy(input_ids).to(device),
        positions=flat(positions),
        sample=flat([np.repeat(np.arange(len(samples)), counts)]),
        targets=flat(np.array(sample.completion_ids, dtype=np.int64) for sample in samples),
        temperature=torch.from_numpy(heat).to(device),
        logprobs=flat(sample.logprobs for sample in samples),
        advantages=flat(sample.advantages for sample in samples),
        pg=flat(sample.pg for sample in samples),
        ce=flat(sample.ce for sample in samples),
        kl=flat(sample.kl for sample in samples),
        reference=some("reference", np.nan),
        ent=some("ent"),
        vf=some("vf"),
        values=some("values"),
        returns=some("returns"),
    )
