"""Rows that begin alike, packed as trees: each common prefix is computed once, forward and backward.

Rollouts of a group share their prompt, all prompts their instructions. A tree holds one node per token of a distinct
prefix. A node attends to its ancestors and itself, at the position that it has in its rows. Logits and gradients are
those of separate rows, up to the order of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from memalpha.train.data.samples import MAX_PADDING_RATIO, Layout, TrainingSample

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
        last = self.paths[-1]
        return next(
            (index for index, (node, token) in enumerate(zip(last, row, strict=False)) if self.tokens[node] != token),
            min(len(last), len(row)),
        )

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
    batches: list[list[PrefixTree]] = []
    width = nodes = 0
    for tree in trees:
        size = len(tree.tokens)
        if batches and width * (len(batches[-1]) + 1) <= min(tokens, MAX_PADDING_RATIO * (nodes + size)):
            batches[-1].append(tree)
            nodes += size
        else:
            batches.append([tree])
            width = nodes = size
    return batches


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
    attended = np.stack([tree.attended(width) for tree in trees])[:, None]
    return Layout(input_ids, nodes, depths, attended)
