"""The oracle is right: by the library's forward pass, finite differences, identities, and TRL."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from datasets import Dataset
from oracle import Net64, Row
from tiny import VOCABULARY, nudged, tiny_llama, tiny_model, tiny_tokenizer
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.trainer.utils import pad

ROWS, LONGEST, TEMPERATURE = 12, 20, 0.7

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers' own names on their way out


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    for trainer in (GRPOTrainer, RLOOTrainer):
        monkeypatch.setattr(trainer, "_send_telemetry", lambda self: None)


@functools.cache
def policies():
    """The reference, the sampler and the policy that trains: three near models."""
    start = tiny_model()
    return start, nudged(start, 1), nudged(start, 2)


def ragged(count: int = ROWS, seed: int = 0, longest: int = LONGEST) -> list[Row]:
    """Rows of random tokens without log-probs; each row has one advantage."""
    random = np.random.default_rng(seed)
    rows = []
    for p, c in zip(random.integers(1, 60, count), np.linspace(1, longest, count).astype(int), strict=True):
        completion = tuple(random.integers(0, VOCABULARY, c).tolist())
        advantages = torch.full((len(completion),), random.normal(), dtype=torch.float64)
        nothing = torch.zeros(len(completion), dtype=torch.float64)
        prompt = tuple(random.integers(3, VOCABULARY, p).tolist())
        rows.append(Row(prompt, completion, nothing, advantages, temperature=TEMPERATURE))
    return rows


@functools.cache
def scored() -> tuple[Net64, list[Row]]:
    """The training policy, and rows with the log-probs of sampler and reference."""
    start, sampler, current = map(Net64, policies())
    rows = ragged()
    with torch.no_grad():
        old, reference = oracle.logprobs64(sampler, rows), oracle.logprobs64(start, rows)
    rows = [replace(row, old=o, reference=r) for row, o, r in zip(rows, old, reference, strict=True)]
    return current, rows


@pytest.mark.parametrize(
    "model", [tiny_model(), tiny_model(3, tied=False), tiny_llama(1)], ids=["tied", "qwen", "llama"]
)
def test_the_forward_pass_equals_transformers(model):
    net = Net64(model)
    ids = np.random.default_rng(0).integers(VOCABULARY, size=70).tolist()
    expected = model.double()(input_ids=torch.tensor([ids])).logits[0].detach()
    assert float(expected.std()) > 0.3
    assert torch.allclose(net.logits(ids), expected, rtol=0, atol=1e-4 * float(expected.std()))


def losses(net: Net64, rows: list[Row]) -> dict[str, torch.Tensor]:
    """Return every loss whose gradient is that of its value."""
    new = oracle.logprobs64(net, rows)
    clips = {
        "token": oracle.clip_loss(new, rows, 0.1, 0.3),
        "two-sided": oracle.clip_loss(new, rows, 0.1, 0.3, delta=1.05),
        "sequence": oracle.clip_loss(new, rows, 0.1, 0.3, level="sequence"),
        "product": oracle.clip_loss(new, rows, 0.6, 3.0, level="product"),
        "k1": oracle.kl_loss(new, rows, "k1", corrected=True),
        "k2": oracle.kl_loss(new, rows, "k2"),
        "k3": oracle.kl_loss(new, rows, "k3", corrected=True, level="sequence"),
    }
    result = {name: oracle.reduce(of_rows, "grpo") for name, of_rows in clips.items()}
    result["entropy"] = oracle.reduce(oracle.entropies64(net, rows), "dapo")
    pairs = [(rows[:3], rows[3:5]), (rows[5:6], rows[6:9])]
    for kind in ("sigmoid", "ipo"):
        result[kind] = oracle.trajectory_preferences(net, pairs, 0.3, kind, smoothing=0.1 * (kind == "sigmoid"))
    result["distilled"] = oracle.internalization(new)
    return result


def test_gradients_are_finite_differences():
    net, rows = scored()
    torch.manual_seed(0)
    direction = {name: torch.randn_like(leaf) for name, leaf in net.weights.items()}
    line = torch.cat([part.flatten() for part in direction.values()])
    slopes = {name: float(oracle.gradient(loss, net.weights) @ line) for name, loss in losses(net, rows).items()}
    step, values = 1e-7, []
    with torch.no_grad():
        for sign in (1, -1):
            for name, leaf in net.weights.items():
                leaf.add_(direction[name], alpha=sign * step)
            values.append(losses(net, rows))
            for name, leaf in net.weights.items():
                leaf.sub_(direction[name], alpha=sign * step)
    for name, slope in slopes.items():
        assert slope == pytest.approx(float(values[0][name] - values[1][name]) / (2 * step), rel=1e-5), name


# --- TRL --------------------------------------------------------------------------------------------------------------

COMMON = {"model_init_kwargs": {"dtype": "float32"}, "bf16": False, "gradient_checkpointing": False}
COMMON |= {"report_to": "none", "use_cpu": True}


def trained(trainer) -> dict[str, torch.nn.Parameter]:
    """The trainer's parameters, set to those of the training policy."""
    trainer.model.load_state_dict(policies()[2].state_dict())
    return dict(trainer.model.train().named_parameters())


def assert_same_loss(trainer, inputs, expected: torch.Tensor, *extra) -> None:
    """Assert that TRL's loss and gradient equal the oracle's."""
    net, _ = scored()
    parameters = trained(trainer)
    loss = trainer._compute_loss(trainer.model, inputs, *extra)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in parameters.items()}
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    expected_gradient = oracle.gradient(expected, net.weights)
    assert oracle.relative_error(oracle.flat(gradients, net.weights), expected_gradient) < 1e-5


def window(rows: list[Row]) -> dict[str, torch.Tensor]:
    """Return the rows as a batch of TRL."""

    def padded(values, side: str = "right") -> torch.Tensor:
        return pad([torch.as_tensor(value) for value in values], padding_value=0, padding_side=side)

    return {
        "prompt_ids": padded([row.prompt for row in rows], "left"),
        "prompt_mask": padded([[1] * len(row.prompt) for row in rows], "left"),
        "completion_ids": padded([row.completion for row in rows]),
        "completion_mask": padded([[1] * len(row.completion) for row in rows]),
        "old_per_token_logps": padded([row.old for row in rows]).float(),
        "ref_per_token_logps": padded([row.reference for row in rows]).float(),
        "old_logps": torch.stack([row.old.sum() for row in rows]).float(),
        "advantages": torch.stack([row.advantages[0] for row in rows]).float(),
        "num_items_in_batch": torch.tensor(sum(len(row.completion) for row in rows)),
    }


def grpo(policy_path, path, reward=lambda **_: [], **settings) -> GRPOTrainer:
    settings = {"temperature": TEMPERATURE, "epsilon": 0.1, "epsilon_high": 0.3, **settings}
    trainer = GRPOTrainer(
        str(policy_path),
        reward,
        GRPOConfig(
            str(path),
            max_completion_length=LONGEST,
            per_device_train_batch_size=ROWS,
            num_generations=ROWS // 2,
            **COMMON,
            **settings,
        ),
        train_dataset=Dataset.from_dict({"prompt": [""]}),
        processing_class=tiny_tokenizer(),
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def test_rloo_loss_equals_trl(policy_path, tmp_path):
    net, rows = scored()
    trainer = rloo(policy_path, tmp_path, epsilon=0.3, epsilon_high=0.6)
    losses = oracle.clip_loss(oracle.logprobs64(net, rows), rows, 0.3, 0.6, level="product")
    moved = [ratio[0].item() for ratio in oracle.ratios(oracle.logprobs64(net, rows), rows, "product")]
    assert min(moved) < 0.7 and max(moved) > 1.6, "some are clipped at either side"
    assert_same_loss(trainer, window(rows), oracle.reduce(losses, "grpo"))


def rloo(policy_path, path, reward=lambda **_: [], **settings) -> RLOOTrainer:
    config = RLOOConfig(
        str(path),
        temperature=TEMPERATURE,
        max_completion_length=LONGEST,
        per_device_train_batch_size=ROWS,
        num_generations=ROWS // 2,
        beta=0.0,
        **COMMON,
        **settings,
    )
    data = Dataset.from_dict({"prompt": [""]})
    return RLOOTrainer(str(policy_path), reward, config, train_dataset=data, processing_class=tiny_tokenizer())


@pytest.mark.parametrize("scale", ["group", "batch", "none", "rloo"])
def test_advantages_equal_trl(policy_path, tmp_path, scale):
    rewards = np.random.default_rng(0).normal(size=ROWS)

    def reward(**_):
        return rewards.tolist()

    if scale == "rloo":
        trainer = rloo(policy_path, tmp_path, reward)
        expected = oracle.group_advantages(rewards.reshape(2, -1), "leave_one_out")
    else:
        trainer = grpo(policy_path, tmp_path, reward, scale_rewards=scale)
        expected = oracle.group_advantages(rewards.reshape(2, -1), "mean", scale)
    output = trainer._generate_and_score_completions([{"prompt": "a"}] * (ROWS // 2) + [{"prompt": "b"}] * (ROWS // 2))
    assert np.allclose(output["advantages"].numpy(), np.concatenate(expected), atol=1e-5)


# --- identities -------------------------------------------------------------------------------------------------------


def test_leave_one_out_scales_the_mean_baseline():
    rewards = [np.random.default_rng(0).normal(size=n) for n in (2, 5, 8)]
    for r, advantages in zip(rewards, oracle.group_advantages(rewards, "leave_one_out"), strict=True):
        assert advantages == pytest.approx(len(r) / (len(r) - 1) * (r - r.mean()), rel=1e-12)
    assert oracle.group_advantages([[3.0]]) == [0.0]


def test_turns_at_one_index_are_a_group():
    """With one turn each, a turn's advantage is its rollout's; a common reward gives no advantage."""
    rewards = np.random.default_rng(0).normal(size=(2, 5))
    for baseline in ("mean", "leave_one_out"):
        expected = oracle.group_advantages(rewards, baseline)
        for shared, turn in ((1.0, 0.0), (0.0, 1.0), (0.5, 0.5)):
            groups = [[(shared * r, [turn * r]) for r in group] for group in rewards]
            advantages = np.array(oracle.turn_advantages(groups, baseline, "none"))[:, :, 0]
            assert advantages == pytest.approx(np.array(expected), rel=1e-12)
    ragged_groups = [[(1.0, [0.5, 0.2]), (0.0, [0.5]), (0.5, [0.5, 0.6])]]
    [[first, second, third]] = oracle.turn_advantages(ragged_groups, scale="none")
    assert (first, second, third) == (pytest.approx([0.5, 0.3]), pytest.approx([-0.5]), pytest.approx([0.0, 0.2]))
    scaled = oracle.turn_advantages(ragged_groups, scale="group", floor=0.0)[0]
    assert scaled[1] == pytest.approx([-0.5 / np.std([1.5, 0.5, 1.0])])
    assert scaled[2] == pytest.approx([0.0, 0.2 / np.std([1.2, 0.4, 1.1])])


def episode(seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return values and rewards of an episode of five turns."""
    random = np.random.default_rng(seed)
    lengths = [3, 1, 7, 2, 5]
    return [random.normal(size=n) for n in lengths], oracle.token_rewards(lengths, random.normal(size=5), 2.0)


def test_gae_is_the_weighted_mean_of_all_n_step_advantages():
    """The paper's definition, eqs. 11 to 16: (1 - lam) sum of lam^(n - 1) A^(n), the last with the rest."""
    values, rewards = episode()
    gamma, lam = 0.9, 0.8
    advantages, returns = oracle.gae(values, rewards, gamma, lam)
    v, r = [*np.concatenate(values), 0.0], np.concatenate(rewards)
    count = len(r)
    for t, a in enumerate(np.concatenate(advantages)):
        steps = range(1, count - t + 1)
        gains = [sum(gamma**i * r[t + i] for i in range(n)) + gamma**n * v[t + n] - v[t] for n in steps]
        weights = [(1 - lam) * lam ** (n - 1) if n < count - t else lam ** (n - 1) for n in steps]
        assert a == pytest.approx(np.dot(weights, gains), rel=1e-12, abs=1e-12)
    assert np.concatenate(returns) == pytest.approx(np.concatenate(advantages) + v[:-1])
    assert [len(row) for row in advantages] == [3, 1, 7, 2, 5]


def test_gae_with_lam_0_and_1():
    values, rewards = episode()
    v, r = np.concatenate(values), np.concatenate(rewards)
    undiscounted = np.concatenate(oracle.gae(values, rewards, 1.0, 1.0)[0])
    assert undiscounted == pytest.approx(r[::-1].cumsum()[::-1] - v, rel=1e-12), "rewards to come minus the value"
    one_step = np.concatenate(oracle.gae(values, rewards, 0.9, 0.0)[0])
    assert one_step == pytest.approx(r + 0.9 * np.append(v[1:], 0.0) - v, rel=1e-12), "one step"
    assert r.sum() == pytest.approx(sum(row[-1] for row in rewards))


def test_equal_policies():
    """At ratio 1 GRPO and CISPO give REINFORCE's gradient, every KL is 0, and DPO has half its weight."""
    net, rows = scored()
    with torch.no_grad():
        current = oracle.logprobs64(net, rows)
    rows = [replace(row, old=n, reference=n) for row, n in zip(rows, current, strict=True)]

    def gradient_of(losses) -> torch.Tensor:
        return oracle.gradient(oracle.reduce(losses(oracle.logprobs64(net, rows)), "dapo"), net.weights)

    reinforce = gradient_of(lambda new: [-row.advantages * n for row, n in zip(rows, new, strict=True)])
    for gradient in (
        gradient_of(lambda new: oracle.clip_loss(new, rows, 0.2, 0.2)),
        gradient_of(lambda new: oracle.cispo_loss(new, rows, 1.2)),
        gradient_of(lambda new: oracle.clip_loss(new, rows, 0.2, 0.2, level="sequence")),
    ):
        assert oracle.relative_error(gradient, reinforce) < 1e-12
    for estimator in ("k1", "k2", "k3"):
        assert all((row == 0).all() for row in oracle.kl_loss(current, rows, estimator))
    pair = [(rows[:2], rows[2:5])]
    dpo = oracle.gradient(oracle.trajectory_preferences(net, pair, 0.3), net.weights)
    conservative = oracle.gradient(oracle.trajectory_preferences(net, pair, 0.3, smoothing=0.2), net.weights)
    new = oracle.logprobs64(net, rows[:5])
    gap = sum(n.sum() for n in new[:2]) - sum(n.sum() for n in new[2:])
    expected = oracle.gradient(gap, net.weights) * -0.3 / 2
    assert oracle.relative_error(dpo, expected) < 1e-12
    assert oracle.relative_error(conservative, expected * (1 - 2 * 0.2)) < 1e-12


def test_clips_by_hand():
    """Check one token per row by hand: ratios 0.5, 2 and 1.05 with advantages of both signs."""

    def number(value: float) -> torch.Tensor:
        return torch.tensor([value], dtype=torch.float64)

    ratios = [0.5, 2.0, 1.05, 0.5, 2.0, 1.05]
    signs = [1.0, 1.0, 1.0, -1.0, -1.0, -1.0]
    rows = [Row((1,), (1,), number(0.0), number(sign), returns=number(1.0)) for sign in signs]
    new = [number(ratio).log() for ratio in ratios]

    def numbers(losses) -> list[float]:
        return [round(float(loss), 10) for loss in losses]

    assert numbers(oracle.clip_loss(new, rows, 0.2, 0.3)) == [-0.5, -1.3, -1.05, 0.8, 2.0, 1.05]
    assert numbers(oracle.clip_loss(new, rows, 0.2, 0.3, delta=1.5)) == [-0.5, -1.3, -1.05, 0.8, 1.5, 1.05]
    capped = oracle.cispo_loss(new, rows, 1.5)
    weights = [0.5, 1.5, 1.05] * 2
    assert numbers(capped) == [round(-w * s * float(n), 10) for w, s, n in zip(weights, signs, new, strict=True)]
    rows = [replace(row, values=number(0.5)) for row in rows[:3]]
    values = [number(v) for v in (0.9, 0.0, 0.55)]
    assert numbers(oracle.value_loss(values, rows)) == [0.005, 0.5, 0.10125]
    assert numbers(oracle.value_loss(values, rows, 0.2)) == [0.045, 0.5, 0.10125]
    white = np.concatenate(oracle.whiten([np.array([1.0, 2.0]), np.array([6.0])]))
    assert white.mean() == pytest.approx(0) and white.std() == pytest.approx(1)


def test_kl_estimates_are_unbiased():
    """The sum over the vocabulary of p x estimate is the divergence itself, for k1 and k3."""
    start, _, current = map(Net64, policies())
    row = ragged()[3]
    with torch.no_grad():
        p, q = oracle._scores(current, row)[0], oracle._scores(start, row)[0]
    exact = float((p.exp() * (p - q)).sum())
    tokens = Row(row.prompt, tuple(range(len(p))), p, p, reference=q)
    for estimator in ("k1", "k3"):
        [estimate] = oracle.kl_loss([p], [tokens], estimator)
        assert float((p.exp() * estimate).sum()) == pytest.approx(exact, rel=1e-9)
    assert exact > 0.01
