"""Second implementation of every loss, advantage and gradient, from the papers: float64, one row at a time.

Nothing here imports memalpha. Rows are never padded, reductions are plain sums over rows. T is the number of completion
tokens of a row. Results per token are lists of (T,) tensors, one per row.

Papers: PPO 1707.06347, GAE 1506.02438, GRPO 2402.03300, Dr. GRPO 2503.20783, DAPO 2503.14476, GSPO 2507.18071, CISPO
2506.13585, two-sided clip 2505.07291, RLOO 2402.14740, KL estimators: Schulman 2020, DPO 2305.18290, cDPO: Mitchell
2023, IPO 2310.12036. Where a paper leaves a name's meaning open, TRL's is used.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

# --- rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Row:
    """A context and its sampled completion; all tensors are (T,) float64.

    `old` are the log-probs in the ratio's denominator, `values` those of the value function at sampling time.
    """

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    old: Tensor
    advantages: Tensor
    reference: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None
    temperature: float = 1.0


def row_of(sample) -> Row:
    """Convert a `TrainingSample` with any of its optional arrays."""

    def exact(name: str) -> Tensor | None:
        value = getattr(sample, name, None)
        return None if value is None else torch.from_numpy(np.asarray(value)).double()

    names = ("advantages", "reference", "values", "returns")
    row = Row(sample.prompt_ids, sample.completion_ids, exact("logprobs"), exact("advantages"))
    return replace(row, **{name: exact(name) for name in names}, temperature=sample.temperature)


# --- the model --------------------------------------------------------------------------------------------------------


class Net64:
    """A copy of `model` in float64, run one row at a time through its own forward pass and full logits.

    `weights` are the trainable leaves, by the model's names and in its order.
    """

    def __init__(self, model):
        self.model = copy.deepcopy(model).double().eval()
        self.weights = {name: part for name, part in self.model.named_parameters() if part.requires_grad}

    def hidden(self, ids: Sequence[int]) -> Tensor:
        """Return the last hidden states (length, width) of one sequence, after the final norm."""
        return self.model(input_ids=torch.tensor([list(ids)]), output_hidden_states=True).hidden_states[-1][0]

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Return logits (length, vocabulary)."""
        return self.model(input_ids=torch.tensor([list(ids)])).logits[0]


def _scores(net: Net64, row: Row) -> Tensor:
    """Return log-probs (T, vocabulary) at each position of a completion, at the row's temperature."""
    logits = net.logits(row.prompt + row.completion)[len(row.prompt) - 1 : -1] / row.temperature
    return logits - logits.logsumexp(-1, keepdim=True)


def logprobs64(net: Net64, rows: Sequence[Row]) -> list[Tensor]:
    """Return teacher-forced log-probs of every completion."""
    return [_scores(net, row)[range(len(row.completion)), list(row.completion)] for row in rows]


def entropies64(net: Net64, rows: Sequence[Row]) -> list[Tensor]:
    """Return the entropy in nats of the distribution that each completion token was drawn from."""
    return [-(scores.exp() * scores).sum(-1) for scores in (_scores(net, row) for row in rows)]


def values64(net: Net64, rows: Sequence[Row], weight: Tensor, bias: Tensor | float = 0.0) -> list[Tensor]:
    """Apply a linear value head to the hidden states that predict each completion token: V(s_t) before a_t."""
    states = (net.hidden(row.prompt + row.completion)[len(row.prompt) - 1 : -1] for row in rows)
    return [state @ weight.flatten() + bias for state in states]


# --- policy gradient --------------------------------------------------------------------------------------------------


def ratios(new: Sequence[Tensor], rows: Sequence[Row], level: str = "token") -> list[Tensor]:
    """Return pi / pi_old for each token.

    "token": the token's ratio. "sequence": the geometric mean over the row (GSPO). "product": the product over the row
    (REINFORCE over completions).
    """
    logs = [n - row.old for n, row in zip(new, rows, strict=True)]
    if level == "token":
        return [log.exp() for log in logs]
    if level == "sequence":
        return [log.mean().exp().expand_as(log) for log in logs]
    assert level == "product"
    return [log.sum().exp().expand_as(log) for log in logs]


def clip_loss(
    new: Sequence[Tensor],
    rows: Sequence[Row],
    low: float,
    high: float,
    *,
    level: str = "token",
    delta: float | None = None,
) -> list[Tensor]:
    """Return -min(r A, clip(r, 1 - low, 1 + high) A) per token; `delta` caps r of the first term (two-sided)."""
    losses = []
    for ratio, row in zip(ratios(new, rows, level), rows, strict=True):
        first = ratio if delta is None else ratio.clamp(max=delta)
        clipped = ratio.clamp(1 - low, 1 + high)
        losses.append(-torch.minimum(first * row.advantages, clipped * row.advantages))
    return losses


def cispo_loss(new: Sequence[Tensor], rows: Sequence[Row], high: float, *, level: str = "token") -> list[Tensor]:
    """Return -sg(min(r, high)) A log pi: `high` is the weight's cap itself, as in TRL, not its distance from 1."""
    return [
        -ratio.detach().clamp(max=high) * row.advantages * n
        for ratio, row, n in zip(ratios(new, rows, level), rows, new, strict=True)
    ]


def kl_loss(
    new: Sequence[Tensor],
    rows: Sequence[Row],
    estimator: str = "k3",
    *,
    corrected: bool = False,
    level: str = "token",
) -> list[Tensor]:
    """Return estimates of KL(pi || reference) per token; `corrected` multiplies by the differentiated ratio."""
    estimates = []
    for n, ratio, row in zip(new, ratios(new, rows, level), rows, strict=True):
        log = n - row.reference
        kl = {"k1": log, "k2": log.square() / 2, "k3": (-log).exp() - 1 + log}[estimator]
        estimates.append(kl * ratio if corrected else kl)
    return estimates


def add(*parts: Sequence[Tensor], weights: Sequence[float]) -> list[Tensor]:
    """Return weighted sums of per-token losses."""
    return [sum(w * p for w, p in zip(weights, row_parts, strict=True)) for row_parts in zip(*parts, strict=True)]


def reduce(losses: Sequence[Tensor], loss_type: str, constant: float | None = None) -> Tensor:
    """Return the loss of one optimizer step, by TRL's `loss_type`.

    "grpo": mean over rows of the mean over their tokens. "dapo" and "cispo": mean over tokens. "dr_grpo": sum over
    rows x `constant` (the longest completion allowed). "sum": nothing is divided by.
    """
    if loss_type == "grpo":
        return torch.stack([loss.mean() for loss in losses]).mean()
    total = torch.stack([loss.sum() for loss in losses]).sum()
    if loss_type in ("dapo", "cispo"):
        return total / sum(len(loss) for loss in losses)
    if loss_type == "dr_grpo":
        assert constant is not None
        return total / (len(losses) * constant)
    assert loss_type == "sum"
    return total


def value_loss(
    values: Sequence[Tensor], rows: Sequence[Row], clip: float | None = None, half: bool = True
) -> list[Tensor]:
    """Return (V - R)^2 / 2 per token; with `clip` the maximum of it and the error of the clipped V."""
    losses = []
    for value, row in zip(values, rows, strict=True):
        error = (value - row.returns).square()
        if clip is not None:
            clipped = torch.maximum(torch.minimum(value, row.values + clip), row.values - clip)
            error = torch.maximum(error, (clipped - row.returns).square())
        losses.append(error / 2 if half else error)
    return losses


# --- advantages -------------------------------------------------------------------------------------------------------


def turn_advantages(
    groups: Sequence[Sequence[tuple[float, Sequence[float]]]],
    baseline: str = "mean",
    scale: str = "group",
    floor: float = 0.01,
) -> list[list[list[float]]]:
    """Return one advantage per turn; a rollout is its shared reward and the rewards of its turns.

    A rollout is compared with its group ("mean") or with the others ("leave_one_out"), a turn with the turns at the
    same index. `scale` "group" divides by the standard deviation (n) of the group's sums of both at that index; a
    rollout that ended before counts with the mean of the turns there. "batch" divides by that of all groups' turns,
    with equal weight per rollout.
    """

    def less_baseline(value: float, other_values: Sequence[float]) -> float:
        if baseline == "mean":
            return value - sum([value, *other_values]) / (len(other_values) + 1)
        return value - sum(other_values) / len(other_values) if other_values else 0.0

    rollouts = [rollout for group in groups for rollout in group]
    batch_mean = np.mean([np.mean([shared + turn for turn in turns]) for shared, turns in rollouts])
    batch_std = (
        np.mean([np.mean([(shared + turn - batch_mean) ** 2 for turn in turns]) for shared, turns in rollouts]) ** 0.5
    )
    advantages = []
    for group in groups:
        group_advantages = []
        for i, (shared, turns) in enumerate(group):
            other_rollouts = [rollout for j, rollout in enumerate(group) if j != i]
            shared_gain = less_baseline(shared, [w for w, _ in other_rollouts])
            row = []
            for t, turn in enumerate(turns):
                gain = shared_gain + less_baseline(turn, [other[t] for _, other in other_rollouts if t < len(other)])
                mean_turn = np.mean([other[t] for _, other in group if t < len(other)])
                sums = [w + (other[t] if t < len(other) else mean_turn) for w, other in group]
                row.append(gain / {"group": np.std(sums) + floor, "batch": batch_std + floor, "none": 1.0}[scale])
            group_advantages.append(row)
        advantages.append(group_advantages)
    return advantages


def token_rewards(lengths: Sequence[int], turns: Sequence[float], terminal: float = 0.0) -> list[np.ndarray]:
    """Put each turn's reward at its last token (`lengths` tokens per turn) and `terminal` at the episode's last."""
    rewards = [np.zeros(length) for length in lengths]
    for row, reward in zip(rewards, turns, strict=True):
        row[-1] += reward
    rewards[-1][-1] += terminal
    return rewards


def gae(
    values: Sequence[np.ndarray], rewards: Sequence[np.ndarray], gamma: float, lam: float
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return advantages and returns of one episode; the rows' tokens are one sequence of actions.

    By brute force: A_t = sum over l of (gamma lam)^l delta_(t+l), delta_t = r_t + gamma V_(t+1) - V_t, V = 0 after
    the last token of the last row (eq. 16 of the paper). The return is A + V.
    """
    v = np.concatenate([np.asarray(row, dtype=np.float64) for row in values])
    r = np.concatenate([np.asarray(row, dtype=np.float64) for row in rewards])
    count = len(v)
    next_values = [*v[1:], 0.0]
    a = np.array(
        [
            math.fsum((gamma * lam) ** (u - t) * (r[u] + gamma * next_values[u] - v[u]) for u in range(t, count))
            for t in range(count)
        ]
    )
    boundaries = np.cumsum([len(row) for row in values])[:-1]
    return np.split(a, boundaries), np.split(a + v, boundaries)


def whiten(advantages: Sequence[np.ndarray], floor: float = 1e-8) -> list[np.ndarray]:
    """Shift and scale to mean 0 and standard deviation (n) 1 over all tokens of all rows."""
    tokens = np.concatenate(list(advantages))
    return [(row - tokens.mean()) / (tokens.std() + floor) for row in advantages]


# --- preferences ------------------------------------------------------------------------------------------------------


def log_ratio(new: Sequence[Tensor], rows: Sequence[Row], reference_free: bool = False) -> Tensor:
    """Return log pi - log pi_ref of a trajectory: the sum over the completions of all its turns."""
    total = torch.stack([n.sum() for n in new]).sum()
    return total if reference_free else total - sum(row.reference.sum() for row in rows)


def preference_loss(
    chosen: Tensor,
    rejected: Tensor,
    beta: float,
    loss_type: str = "sigmoid",
    *,
    smoothing: float = 0.0,
    tokens: tuple[int, int] = (1, 1),
) -> Tensor:
    """Return the loss of one pair from its two log-ratios.

    "sigmoid": DPO; with `smoothing` e, the preference is inverted with probability e (cDPO). "ipo": the
    squared distance of the gap from 1 / (2 beta); TRL averages each log-ratio over its `tokens`, the paper sums.
    """
    if loss_type == "ipo":
        return (chosen / tokens[0] - rejected / tokens[1] - 1 / (2 * beta)) ** 2
    assert loss_type == "sigmoid"
    gap, zero = beta * (chosen - rejected), torch.zeros((), dtype=torch.float64)
    return (1 - smoothing) * torch.logaddexp(zero, -gap) + smoothing * torch.logaddexp(zero, gap)


def trajectory_preferences(
    net: Net64,
    pairs: Iterable[tuple[Sequence[Row], Sequence[Row]]],
    beta: float,
    loss_type: str = "sigmoid",
    *,
    smoothing: float = 0.0,
    reference_free: bool = False,
    average: bool = False,
) -> Tensor:
    """Return the mean `preference_loss` over (chosen rows, rejected rows); `average` is TRL's IPO, per token."""
    losses = []
    for pair in pairs:
        ratios_of_pair = [log_ratio(logprobs64(net, rows), rows, reference_free) for rows in pair]
        tokens = tuple(sum(len(row.completion) for row in rows) if average else 1 for rows in pair)
        losses.append(preference_loss(*ratios_of_pair, beta, loss_type, smoothing=smoothing, tokens=tokens))
    return torch.stack(losses).mean()


# --- gradients --------------------------------------------------------------------------------------------------------


def gradient(loss: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """Return d loss / d weights as one flat float64 vector in the order of `weights`; unused weights give 0."""
    leaves = list(weights.values())
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
    return torch.cat(
        [
            (torch.zeros_like(leaf) if part is None else part).flatten()
            for leaf, part in zip(leaves, gradients, strict=True)
        ]
    )


def flat(tensors: Mapping[str, Tensor | None], like: Mapping[str, Tensor]) -> Tensor:
    """Flatten gradients by name to a vector comparable with `gradient`'s; every name of `like` is required."""
    parts = []
    for name, leaf in like.items():
        part = tensors[name]
        parts.append((torch.zeros_like(leaf) if part is None else part.detach().double()).flatten())
    return torch.cat(parts)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return |actual - expected| / |expected|."""
    return float((actual - expected).norm() / expected.norm())
