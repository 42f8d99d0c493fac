"""Every loss, advantage and gradient of the training code a second time: float64, one row at a time, from the papers.

Nothing here imports memalpha. The forward pass is written out (`Net64`; the library's own computes norms and rotations
in float32), a row is never padded, a reduction is a plain sum over rows, and autograd only sees float64. T is the
number of completion tokens of a row; what a function returns per token is a list of (T,) tensors, one for each row.

Papers: PPO 1707.06347, GAE 1506.02438, GRPO 2402.03300, Dr. GRPO 2503.20783, DAPO 2503.14476, GSPO 2507.18071, CISPO
2506.13585, two-sided clip 2505.07291, RLOO 2402.14740, KL estimators: Schulman 2020, DPO 2305.18290, cDPO: Mitchell
2023, IPO 2310.12036, ERL 2602.13949. Where a paper leaves a name's meaning open, it is TRL's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

# --- rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Row:
    """A context and what was sampled in it; `old`, `advantages`, `reference`, `values`, `returns` are (T,) float64.

    `old` are the log-probs the ratio divides by, `values` those of the value function at sampling time.
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
    """The row of a `TrainingSample` (whatever of its optional arrays it has)."""

    def exact(name: str) -> Tensor | None:
        value = getattr(sample, name, None)
        return None if value is None else torch.from_numpy(np.asarray(value)).double()

    names = ("advantages", "reference", "values", "returns")
    row = Row(sample.prompt_ids, sample.completion_ids, exact("logprobs"), exact("advantages"))
    return replace(row, **{name: exact(name) for name in names}, temperature=sample.temperature)


# --- the model --------------------------------------------------------------------------------------------------------


class Net64:
    """A Qwen3 or Llama in float64 throughout, with the weights of `model`, of a `PeftModel` with its adapters.

    `weights` are the leaves, by the model's names and in its order: what of it requires gradients.
    """

    def __init__(self, model):
        self.config = model.config
        self._tensors, self.weights = {}, {}
        for name, parameter in model.named_parameters():
            leaf = parameter.detach().double().clone().requires_grad_(parameter.requires_grad)
            if parameter.requires_grad:
                self.weights[name] = leaf
            plain = name.removeprefix("base_model.model.").replace(".base_layer", "").replace(".default", "")
            self._tensors[plain] = leaf
        adapter = getattr(model, "peft_config", {}).get("default")
        self._strength = adapter.lora_alpha / adapter.r if adapter else 0.0
        rope = getattr(self.config, "rope_parameters", None) or {}
        assert rope.get("rope_type", "default") == "default"
        base = rope.get("rope_theta") or self.config.rope_theta
        size = self.config.head_dim or self.config.hidden_size // self.config.num_attention_heads
        self.heads, self.shared, self.size = self.config.num_attention_heads, self.config.num_key_value_heads, size
        self.frequencies = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)

    def _project(self, x: Tensor, name: str) -> Tensor:
        """A linear map, with what an adapter adds to it."""
        y = x @ self._tensors[f"{name}.weight"].T
        if f"{name}.lora_A.weight" in self._tensors:
            low, high = (self._tensors[f"{name}.lora_{part}.weight"] for part in "AB")
            y = y + self._strength * (x @ low.T @ high.T)
        return y

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = (x.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps).rsqrt()
        return x * scale * self._tensors[f"{name}.weight"]

    def _rotate(self, x: Tensor) -> Tensor:
        """Rotary positions; x is (heads, length, size), its halves the two coordinates of each plane."""
        angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * self.frequencies
        one, two = x.chunk(2, dim=-1)
        return torch.cat([one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()], -1)

    def _attend(self, x: Tensor, layer: str) -> Tensor:
        def heads(name: str, count: int) -> Tensor:
            y = self._project(x, f"{layer}.{name}_proj").view(len(x), count, self.size)
            if f"{layer}.{name}_norm.weight" in self._tensors:
                y = self._norm(y, f"{layer}.{name}_norm")
            return y.transpose(0, 1).repeat_interleave(self.heads // count, 0)

        q, k = self._rotate(heads("q", self.heads)), self._rotate(heads("k", self.shared))
        future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        score = (q @ k.transpose(1, 2) / math.sqrt(self.size)).masked_fill(future, -math.inf)
        mixed = score.softmax(-1) @ heads("v", self.shared)
        return self._project(mixed.transpose(0, 1).reshape(len(x), -1), f"{layer}.o_proj")

    def hidden(self, ids: Sequence[int]) -> Tensor:
        """The last hidden states (length, width) of one sequence, after the final norm."""
        h = self._tensors["model.embed_tokens.weight"][list(ids)]
        for number in range(self.config.num_hidden_layers):
            layer = f"model.layers.{number}"
            h = h + self._attend(self._norm(h, f"{layer}.input_layernorm"), f"{layer}.self_attn")
            x = self._norm(h, f"{layer}.post_attention_layernorm")
            gate, up = self._project(x, f"{layer}.mlp.gate_proj"), self._project(x, f"{layer}.mlp.up_proj")
            h = h + self._project(torch.nn.functional.silu(gate) * up, f"{layer}.mlp.down_proj")
        return self._norm(h, "model.norm")

    def logits(self, ids: Sequence[int]) -> Tensor:
        """(length, vocabulary)."""
        head = self._tensors.get("lm_head.weight", self._tensors["model.embed_tokens.weight"])
        return self.hidden(ids) @ head.T


def _scores(net: Net64, row: Row) -> Tensor:
    """Log-probs (T, vocabulary) of all tokens at each position of a completion, at the row's temperature."""
    logits = net.logits(row.prompt + row.completion)[len(row.prompt) - 1 : -1] / row.temperature
    return logits - logits.logsumexp(-1, keepdim=True)


def logprobs64(net: Net64, rows: Sequence[Row]) -> list[Tensor]:
    """Teacher-forced log-probs of every completion."""
    return [_scores(net, row)[range(len(row.completion)), list(row.completion)] for row in rows]


def entropies64(net: Net64, rows: Sequence[Row]) -> list[Tensor]:
    """Entropy, in nats, of the distribution that each completion token was drawn from."""
    return [-(scores.exp() * scores).sum(-1) for scores in (_scores(net, row) for row in rows)]


def values64(net: Net64, rows: Sequence[Row], weight: Tensor, bias: Tensor | float = 0.0) -> list[Tensor]:
    """A linear value head on the hidden states that predict each completion token: V(s_t) before a_t is taken."""
    states = (net.hidden(row.prompt + row.completion)[len(row.prompt) - 1 : -1] for row in rows)
    return [state @ weight.flatten() + bias for state in states]


# --- policy gradient --------------------------------------------------------------------------------------------------


def ratios(new: Sequence[Tensor], rows: Sequence[Row], level: str = "token") -> list[Tensor]:
    """pi / pi_old, spread over the tokens of its row: of each "token"; of the "sequence" as GSPO takes it, the
    geometric mean of its tokens'; of the whole completion, "product", as REINFORCE over completions needs it."""
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
    """-min(r A, clip(r, 1 - low, 1 + high) A) per token; `delta`: r of the first term is at most that (two-sided)."""
    losses = []
    for ratio, row in zip(ratios(new, rows, level), rows, strict=True):
        first = ratio if delta is None else ratio.clamp(max=delta)
        clipped = ratio.clamp(1 - low, 1 + high)
        losses.append(-torch.minimum(first * row.advantages, clipped * row.advantages))
    return losses


def cispo_loss(new: Sequence[Tensor], rows: Sequence[Row], high: float, *, level: str = "token") -> list[Tensor]:
    """-sg(min(r, high)) A log pi: `high` is the weight's cap itself, as in TRL, not its distance from 1."""
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
    """Estimates of KL(pi || reference) per token; `corrected`: times the ratio, which is differentiated too."""
    found = []
    for n, ratio, row in zip(new, ratios(new, rows, level), rows, strict=True):
        log = n - row.reference
        kl = {"k1": log, "k2": log.square() / 2, "k3": (-log).exp() - 1 + log}[estimator]
        found.append(kl * ratio if corrected else kl)
    return found


def add(*parts: Sequence[Tensor], weights: Sequence[float]) -> list[Tensor]:
    """Weighted sums of per-token losses."""
    return [sum(w * p for w, p in zip(weights, of_row, strict=True)) for of_row in zip(*parts, strict=True)]


def reduce(losses: Sequence[Tensor], how: str, constant: float | None = None) -> Tensor:
    """The loss of one optimizer step, by TRL's `loss_type`.

    "grpo": mean over rows of the mean over their tokens. "dapo" and "cispo": mean over tokens. "dr_grpo": sum over
    rows x `constant` (the longest completion allowed). "sum": nothing is divided by.
    """
    if how == "grpo":
        return torch.stack([loss.mean() for loss in losses]).mean()
    total = torch.stack([loss.sum() for loss in losses]).sum()
    if how in ("dapo", "cispo"):
        return total / sum(len(loss) for loss in losses)
    if how == "dr_grpo":
        assert constant is not None
        return total / (len(losses) * constant)
    assert how == "sum"
    return total


def value_loss(
    values: Sequence[Tensor], rows: Sequence[Row], clip: float | None = None, half: bool = True
) -> list[Tensor]:
    """(V - R)^2 / 2 per token; `clip`: the larger of that and of the error of V held within `clip` of the old V."""
    losses = []
    for value, row in zip(values, rows, strict=True):
        error = (value - row.returns).square()
        if clip is not None:
            held = torch.maximum(torch.minimum(value, row.values + clip), row.values - clip)
            error = torch.maximum(error, (held - row.returns).square())
        losses.append(error / 2 if half else error)
    return losses


# --- advantages -------------------------------------------------------------------------------------------------------


def group_advantages(
    rewards: Sequence[Sequence[float]], baseline: str = "mean", scale: str = "none", floor: float = 1e-4
) -> list[np.ndarray]:
    """Advantages of the rollouts of each group, as TRL's GRPO ("mean") and RLOO ("leave_one_out") trainers.

    `scale`: divide by the sample standard deviation (n - 1) of the "group" or of the "batch", plus `floor`. A group of
    one has no baseline but itself: advantage 0.
    """
    found = []
    every = np.concatenate([np.asarray(group, dtype=np.float64) for group in rewards])
    for group in rewards:
        r = np.asarray(group, dtype=np.float64)
        if len(r) < 2:
            found.append(np.zeros(len(r)))
            continue
        others = np.array([r.mean() if baseline == "mean" else np.delete(r, i).mean() for i in range(len(r))])
        spread = {"group": r, "batch": every}.get(scale)
        found.append((r - others) / (1.0 if spread is None else spread.std(ddof=1) + floor))
    return found


def turn_advantages(
    groups: Sequence[Sequence[tuple[float, Sequence[float]]]],
    baseline: str = "mean",
    scale: str = "group",
    floor: float = 0.01,
) -> list[list[list[float]]]:
    """One advantage a turn, of groups of rollouts, each a reward of its own and the rewards of its turns.

    A rollout is compared with its group ("mean") or with its others ("leave_one_out"), a turn with those that have a
    turn at the same place. `scale` "group": over the standard deviation (n) of the group's sums of both at that place
    (a rollout that ended before is taken to have the mean of the turns there); "batch": over that of all groups'
    turns, each rollout weighing the same.
    """

    def less_baseline(value: float, others: Sequence[float]) -> float:
        if baseline == "mean":
            return value - sum([value, *others]) / (len(others) + 1)
        return value - sum(others) / len(others) if others else 0.0

    rollouts = [rollout for group in groups for rollout in group]
    middle = np.mean([np.mean([whole + turn for turn in turns]) for whole, turns in rollouts])
    spread = np.mean([np.mean([(whole + turn - middle) ** 2 for turn in turns]) for whole, turns in rollouts]) ** 0.5
    found = []
    for group in groups:
        of_group = []
        for i, (whole, turns) in enumerate(group):
            rest = [rollout for j, rollout in enumerate(group) if j != i]
            own = less_baseline(whole, [w for w, _ in rest])
            row = []
            for t, turn in enumerate(turns):
                gain = own + less_baseline(turn, [other[t] for _, other in rest if t < len(other)])
                usual = np.mean([other[t] for _, other in group if t < len(other)])
                sums = [w + (other[t] if t < len(other) else usual) for w, other in group]
                row.append(gain / {"group": np.std(sums) + floor, "batch": spread + floor, "none": 1.0}[scale])
            of_group.append(row)
        found.append(of_group)
    return found


def token_rewards(lengths: Sequence[int], turns: Sequence[float], terminal: float = 0.0) -> list[np.ndarray]:
    """Each turn's reward at its last token (`lengths` tokens a turn), `terminal` at the last of the episode."""
    found = [np.zeros(length) for length in lengths]
    for row, reward in zip(found, turns, strict=True):
        row[-1] += reward
    found[-1][-1] += terminal
    return found


def gae(
    values: Sequence[np.ndarray], rewards: Sequence[np.ndarray], gamma: float, lam: float
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Advantages and returns of one episode: rows in order, all their tokens one sequence of actions.

    By brute force: A_t = sum over l of (gamma lam)^l delta_(t+l), delta_t = r_t + gamma V_(t+1) - V_t, V = 0 after
    the last token of the last row (eq. 16 of the paper). The return is A + V.
    """
    v = np.concatenate([np.asarray(row, dtype=np.float64) for row in values])
    r = np.concatenate([np.asarray(row, dtype=np.float64) for row in rewards])
    count = len(v)
    following = [*v[1:], 0.0]
    a = np.array(
        [
            math.fsum((gamma * lam) ** (u - t) * (r[u] + gamma * following[u] - v[u]) for u in range(t, count))
            for t in range(count)
        ]
    )
    cuts = np.cumsum([len(row) for row in values])[:-1]
    return np.split(a, cuts), np.split(a + v, cuts)


def whiten(advantages: Sequence[np.ndarray], floor: float = 1e-8) -> list[np.ndarray]:
    """Mean 0, standard deviation (n) 1 over all tokens of all rows."""
    every = np.concatenate(list(advantages))
    return [(row - every.mean()) / (every.std() + floor) for row in advantages]


# --- preferences ------------------------------------------------------------------------------------------------------


def log_ratio(new: Sequence[Tensor], rows: Sequence[Row], reference_free: bool = False) -> Tensor:
    """log pi - log pi_ref of a trajectory: the sum over all completions of all its turns."""
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
    """The loss of one pair, from the two log-ratios.

    "sigmoid": DPO; with `smoothing` e, the preference is the wrong way round with probability e (cDPO). "ipo": the
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
    """Mean over (chosen rows, rejected rows) of their `preference_loss`. `average`: as TRL's IPO, per token."""
    losses = []
    for pair in pairs:
        of_pair = [log_ratio(logprobs64(net, rows), rows, reference_free) for rows in pair]
        tokens = tuple(sum(len(row.completion) for row in rows) if average else 1 for rows in pair)
        losses.append(preference_loss(*of_pair, beta, loss_type, smoothing=smoothing, tokens=tokens))
    return torch.stack(losses).mean()


# --- imitation --------------------------------------------------------------------------------------------------------


def internalization(new: Sequence[Tensor], units: Sequence[str] | None = None) -> Tensor:
    """ERL's distillation of second attempts under the first attempt's prompt: -E[log pi(y2 | x)], from the log-probs of
    the rows it keeps. The expectation is over tokens, or over `units` (the attempt each row belongs to)."""
    total = -torch.stack([n.sum() for n in new]).sum()
    return total / (sum(len(n) for n in new) if units is None else len(set(units)))


# --- gradients --------------------------------------------------------------------------------------------------------


def gradient(loss: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """d loss / d weights, one flat float64 vector in the order of `weights`; 0 for what the loss does not reach."""
    leaves = list(weights.values())
    found = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
    return torch.cat(
        [(torch.zeros_like(leaf) if part is None else part).flatten() for leaf, part in zip(leaves, found, strict=True)]
    )


def flat(tensors: Mapping[str, Tensor | None], like: Mapping[str, Tensor]) -> Tensor:
    """Gradients by name as a vector comparable with `gradient`'s; every name of `like` must be there."""
    parts = []
    for name, leaf in like.items():
        part = tensors[name]
        parts.append((torch.zeros_like(leaf) if part is None else part.detach().double()).flatten())
    return torch.cat(parts)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """|found - expected| / |expected|."""
    return float((found - expected).norm() / expected.norm())
