"""`TrainingSample`: one contiguous token row with everything the loss needs, and its packing into padded micro-batches.

Shape suffixes: T completion tokens of one row, B rows, L padded row length, N completion tokens of a micro-batch.

Rows that begin alike, packed as trees: each common prefix is computed once, forward and backward.

Rollouts of a group share their prompt, all prompts their instructions. A tree holds one node per token of a distinct
prefix. A node attends to its ancestors and itself, at the position that it has in its rows. Logits and gradients are
those of separate rows, up to the order of sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any, TypeVar

import numpy as np
import torch

from memalpha.errors import PolicyError
from memalpha.policy.base import shared_length
from memalpha.types import Turn

T = TypeVar("T")

STREAMS = ("pg", "ce", "kl", "ent", "vf")
"""Streams of the loss (`train.learner.losses`), by the names of their weights."""

REQUIRED = ("logprobs", "advantages", "pg", "ce", "kl")
"""Arrays that every row has."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSample:
    """One row: `prompt_ids` followed by `completion_ids`.

    All arrays are float32 of shape (T,).

    Attributes:
        prompt_ids: Prompt.
        completion_ids: The T sampled tokens, including the end of sequence.
        logprobs: Denominator of the ratio, at `temperature`: the sampler's log-probs, or the learner's own
            (`Engine.recompute_old_logprobs`).
        advantages: Factors of the policy gradient.
        pg: Weights of the policy gradient.
        ce: Weights of the cross-entropy.
        kl: Weights of the KL to the reference.
        ent: Weights of the entropy bonus; None is 0.
        vf: Weights of the value loss; None is 0.
        reference: Log-probs of the reference policy.
        values: Outputs of the value head before the step's first update.
        returns: Targets of the value head.
        temperature: Sampling temperature.
        task: Id of the task.
        rollout: Index of the rollout in its group.
        chunk: Index of the chunk.
        role: Role of the trajectory.
        unit: Rows of one unit go into the same optimizer step; None: the row alone.
        truncated: True if the completion was cut off.
        masked: True if it is cut off and has no weight, but counts among the rows of policy gradient and KL.
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
    truncated: bool = False
    masked: bool = False

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
        """Number of tokens of the row."""
        return len(self.prompt_ids) + len(self.completion_ids)


def policy_gradient_sample(
    turn: Turn, advantage: float = 0.0, *, task: str = "", rollout: int = 0, role: str = "attempt"
) -> TrainingSample:
    """Return the row of one sampled turn: every completion token has `advantage` and the unnormalized weight 1.

    Tokens that were forced (`Completion.forced`) have weight 0. A greedy turn (temperature 0) trains at temperature 1,
    at which its log-probs were recorded.

    Args:
        turn: Turn with token ids and log-probs.
        advantage: Advantage of every token.
        task: Id of the task.
        rollout: Index of the rollout in its group.
        role: Role of the trajectory.
    """
    completion = turn.completion
    zeros = np.zeros(len(completion.completion_ids), dtype=np.float32)
    sampled = zeros + 1
    sampled[slice(*completion.forced)] = 0
    return TrainingSample(
        prompt_ids=completion.prompt_ids,
        completion_ids=completion.completion_ids,
        logprobs=np.asarray(completion.logprobs, dtype=np.float32),
        advantages=zeros + np.float32(advantage),
        pg=sampled,
        ce=zeros,
        kl=zeros,
        temperature=completion.temperature or 1.0,
        task=task,
        rollout=rollout,
        chunk=turn.chunk,
        role=role,
        truncated=completion.stop_reason == "length",
    )


def cross_entropy_sample(
    prompt_ids: Sequence[int], completion_ids: Sequence[int], *, task: str = "", rollout: int = 0, chunk: int = 0
) -> TrainingSample:
    """Return the row of one demonstration: every completion token has cross-entropy weight 1.

    Args:
        prompt_ids: Prompt.
        completion_ids: Completion, including the end of sequence.
        task: Id of the task.
        rollout: Index of the rollout in its group.
        chunk: Index of the chunk.
    """
    zeros = np.zeros(len(completion_ids), dtype=np.float32)
    return TrainingSample(
        prompt_ids=tuple(prompt_ids),
        completion_ids=tuple(completion_ids),
        logprobs=zeros,
        advantages=zeros,
        pg=zeros,
        ce=zeros + 1,
        kl=zeros,
        task=task,
        rollout=rollout,
        chunk=chunk,
    )


def is_imitable(turn: Turn) -> bool:
    """Return True if all calls of the turn were executed and its reply was not cut off."""
    return turn.completion.stop_reason != "length" and all(result.ok for result in turn.results)


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Right-padded rows and their flat completion tokens.

    Right padding under a causal model needs no mask: no trained position sees what comes after it. Rollouts of a sharp
    policy often agree, so samples of equal tokens share one of the B rows; their advantages stay apart. Attributes
    after `kl` are None if no sample has them. With `compute.share_prefixes` a row holds the nodes of a tree.

    Attributes:
        input_ids: Token ids (B, L), each row without its last token.
        depths: Positions (B, L) of a tree's nodes in their rows; None for plain rows.
        attended: True (B, 1, L, L) where a tree's node attends to another; None for plain rows.
        positions: Indices (N,) into the flattened hidden states that predict `targets`.
        sample: Index (N,) of the sample of each token.
        targets: Token ids (N,).
    """

    input_ids: torch.Tensor
    depths: torch.Tensor | None
    attended: torch.Tensor | None
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
"""Tokens that a CPU's micro-batch may compute for each token that it holds."""


def split_micro_batches(
    samples: Sequence[TrainingSample], tokens: int, padding_ratio: float = MAX_PADDING_RATIO
) -> list[list[int]]:
    """Split samples into micro-batches of indices, longest rows first.

    With the longest first, memory that one micro-batch frees is large enough for the next.

    Args:
        samples: Rows of a step.
        tokens: Most tokens that a micro-batch of several distinct rows computes.
        padding_ratio: Most tokens that it computes for each token of its rows.
    """
    order = sorted(range(len(samples)), key=lambda i: (-samples[i].length, *_tokens(samples[i]), i))
    equal_rows = [list(group) for _, group in groupby(order, key=lambda i: _tokens(samples[i]))]
    sizes = [(samples[group[0]].length, 1) for group in equal_rows]
    return [list(chain.from_iterable(part)) for part in split_by_width(equal_rows, sizes, tokens, padding_ratio)]


def split_by_width(
    items: Sequence[T], sizes: Sequence[tuple[int, int]], tokens: int, padding_ratio: float = math.inf
) -> list[list[T]]:
    """Split items, the widest first, into micro-batches; one that is larger than the limits is alone.

    Args:
        items: Rows, or what has several.
        sizes: Width and number of rows of each item.
        tokens: Most tokens that a micro-batch computes: its rows are padded to the width of the first.
        padding_ratio: Most tokens that it computes for each token of its items.
    """
    parts: list[list[T]] = []
    width = rows = row_tokens = 0
    for item, (length, count) in zip(items, sizes, strict=True):
        if parts and width * (rows + count) <= min(tokens, padding_ratio * (row_tokens + length * count)):
            parts[-1].append(item)
            rows, row_tokens = rows + count, row_tokens + length * count
        else:
            parts.append([item])
            width, rows, row_tokens = length, count, length * count
    return parts


def padded_tokens(samples: Sequence[TrainingSample], part: Sequence[int]) -> int:
    """Return the tokens that a micro-batch computes: equal rows are computed once."""
    lengths = {_tokens(samples[i]): samples[i].length for i in part}.values()
    return max(lengths) * len(lengths)


def balance_micro_batches(parts: Sequence[list[T]], processes: int, size: Callable[[list[T]], int]) -> list[list[T]]:
    """Return micro-batches that take several processes as long as possible at the same time, largest first.

    Processes go through them side by side, `processes` at a time, and wait for the slowest. So micro-batches of similar
    size come together, and those of an incomplete last round are split until it is full or all are single.

    Args:
        parts: Micro-batches of rows or trees, each longest first.
        processes: Processes that share them; for one, `parts` are returned as they are.
        size: Tokens that a micro-batch computes.
    """
    if processes == 1:
        return list(parts)
    ordered = sorted(parts, key=size, reverse=True)
    full = len(ordered) // processes * processes
    last = ordered[full:]
    while last and len(last) < processes and any(len(part) > 1 for part in last):
        largest = max((part for part in last if len(part) > 1), key=size)
        middle = len(largest) // 2
        last.remove(largest)
        last += [largest[:middle], largest[middle:]]
    return ordered[:full] + sorted(last, key=size, reverse=True)


def _tokens(sample: TrainingSample) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return sample.prompt_ids, sample.completion_ids


@dataclass(frozen=True, slots=True)
class Layout:
    """Token ids (B, L) of a micro-batch, and the flat indices of each sample's tokens except the last.

    `depths` and `attended` are those of `MicroBatch`.
    """

    input_ids: np.ndarray
    nodes: Sequence[np.ndarray]
    depths: np.ndarray | None = None
    attended: np.ndarray | None = None


def padded_rows(samples: Sequence[TrainingSample]) -> Layout:
    """Lay out distinct rows, padded to the right."""
    width = max(sample.length for sample in samples) - 1
    rows = {ids: row for row, ids in enumerate(dict.fromkeys(map(_tokens, samples)))}
    input_ids = np.zeros((len(rows), width), dtype=np.int64)
    for (prompt, completion), row in rows.items():
        input_ids[row, : len(prompt) + len(completion) - 1] = (prompt + completion)[:-1]
    firsts = [rows[_tokens(sample)] * width for sample in samples]
    nodes = [np.arange(first, first + sample.length - 1) for first, sample in zip(firsts, samples, strict=True)]
    return Layout(input_ids, nodes)


def pack(
    samples: Sequence[TrainingSample], device: torch.device | str = "cpu", layout: Layout | None = None
) -> MicroBatch:
    """Return the micro-batch of samples; completion tokens are flat, in the order given.

    Args:
        samples: Token rows.
        device: Device of the tensors.
        layout: Where tokens are computed; default: `padded_rows`.
    """
    layout = layout or padded_rows(samples)

    def flat(values: Iterable[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(list(values))).to(device)

    def optional(name: str, default: float = 0.0) -> torch.Tensor | None:
        rows = [getattr(sample, name) for sample in samples]
        if all(row is None for row in rows):
            return None
        defaults = (np.full_like(sample.pg, default) for sample in samples)
        return flat(filler if row is None else row for row, filler in zip(rows, defaults, strict=True))

    required: dict[str, Any] = {name: flat(getattr(sample, name) for sample in samples) for name in REQUIRED}
    optionals: dict[str, Any] = {name: optional(name) for name in ("ent", "vf", "values", "returns")}
    counts = [len(sample.completion_ids) for sample in samples]
    temperatures = np.repeat(np.array([sample.temperature for sample in samples], dtype=np.float32), counts)
    return MicroBatch(
        input_ids=torch.from_numpy(layout.input_ids).to(device),
        depths=None if layout.depths is None else torch.from_numpy(layout.depths).to(device),
        attended=None if layout.attended is None else torch.from_numpy(layout.attended).to(device),
        positions=flat(
            nodes[len(sample.prompt_ids) - 1 :] for nodes, sample in zip(layout.nodes, samples, strict=True)
        ),
        sample=flat([np.repeat(np.arange(len(samples)), counts)]),
        targets=flat(np.array(sample.completion_ids, dtype=np.int64) for sample in samples),
        temperature=torch.from_numpy(temperatures).to(device),
        reference=optional("reference", np.nan),
        **required,
        **optionals,
    )


TREE_TOKENS = 512
"""Most nodes of a tree of several rows: attention costs the square of them."""


@dataclass(slots=True)
class PrefixTree:
    """Nodes of rows in sorted order.

    Attributes:
        tokens: Token of each node.
        depths: Position of each node in its rows.
        segments: (first node, end, path before them) of the nodes that each row added.
        samples: Indices of the samples in the tree.
        paths: Nodes of each sample's tokens, in the order of `samples`.
    """

    tokens: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    segments: list[tuple[int, int, np.ndarray]] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    paths: list[np.ndarray] = field(default_factory=list)

    def count_shared(self, row: Sequence[int]) -> int:
        """Return the number of first tokens that the row shares with the last row of the tree."""
        return shared_length([self.tokens[node] for node in self.paths[-1]], row)

    def add(self, sample: int, row: Sequence[int]) -> None:
        """Add a row that sorts behind all rows of the tree.

        Args:
            sample: Index of the row's sample.
            row: Token ids.
        """
        shared = self.count_shared(row) if self.paths else 0
        before = self.paths[-1][:shared] if self.paths else np.zeros(0, dtype=np.int64)
        first = len(self.tokens)
        self.tokens += row[shared:]
        self.depths += range(shared, len(row))
        if len(self.tokens) > first:
            self.segments.append((first, len(self.tokens), before))
        self.samples.append(sample)
        self.paths.append(np.concatenate([before, np.arange(first, len(self.tokens))]))

    def attended(self, width: int) -> np.ndarray:
        """Return True where a node attends to another (`width`, `width`); padding attends to itself."""
        mask = np.eye(width, dtype=bool)
        for first, end, before in self.segments:
            mask[first:end, before] = True
            mask[first:end, first:end] = np.tri(end - first, dtype=bool)
        return mask


def build_trees(samples: Sequence[TrainingSample], tokens: int) -> list[PrefixTree]:
    """Pack samples into trees, in the order of their tokens.

    Args:
        samples: Token rows.
        tokens: Most nodes of a tree of several rows.
    """
    rows = [(*sample.prompt_ids, *sample.completion_ids[:-1]) for sample in samples]
    trees: list[PrefixTree] = []
    for index in sorted(range(len(rows)), key=lambda i: (rows[i], i)):
        row = rows[index]
        if not trees or len(trees[-1].tokens) + len(row) - trees[-1].count_shared(row) > tokens:
            trees.append(PrefixTree())
        trees[-1].add(index, row)
    return trees


def split_tree_batches(samples: Sequence[TrainingSample], tokens: int) -> list[list[PrefixTree]]:
    """Split samples into micro-batches, each a few trees of similar size, the largest first.

    Args:
        samples: Token rows.
        tokens: Most padded nodes of a micro-batch of several trees.
    """
    trees = sorted(build_trees(samples, min(tokens, TREE_TOKENS)), key=lambda tree: -len(tree.tokens))
    return split_by_width(trees, [(len(tree.tokens), 1) for tree in trees], tokens, MAX_PADDING_RATIO)


def padded_nodes(trees: Sequence[PrefixTree]) -> int:
    """Return the tokens that a micro-batch of trees computes."""
    return max(len(tree.tokens) for tree in trees) * len(trees)


def tree_layout(samples: Sequence[TrainingSample], trees: Sequence[PrefixTree]) -> Layout:
    """Lay out the trees of a micro-batch.

    Args:
        samples: Token rows of the micro-batch, in the order of the trees' samples.
        trees: Trees of a micro-batch of `split_tree_batches`.
    """
    width = max(len(tree.tokens) for tree in trees)
    input_ids, depths = np.zeros((2, len(trees), width), dtype=np.int64)
    nodes: list[np.ndarray] = []
    for number, tree in enumerate(trees):
        input_ids[number, : len(tree.tokens)] = tree.tokens
        depths[number, : len(tree.tokens)] = tree.depths
        nodes += [number * width + path for path in tree.paths]
    return Layout(input_ids, nodes, depths, np.stack([tree.attended(width) for tree in trees])[:, None])
