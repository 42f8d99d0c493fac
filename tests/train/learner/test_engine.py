"""Invariants of the engine: splits, precision, what is trained, what counts."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import cache

import numpy as np
import oracle
import pytest
import torch
from oracle import relative_error
from tiny import tiny_model, tiny_policy

from memalpha.config import TrainConfig
from memalpha.errors import PolicyError, TrainingError
from memalpha.train.data.samples import cross_entropy_sample, pack, policy_gradient_sample, split_micro_batches
from memalpha.train.learner.async_engine import Learner
from memalpha.train.learner.engine import Engine, normalize, scheduled_learning_rate
from memalpha.train.learner.losses import LossSettings, loss_sum
from memalpha.train.learner.token_logprobs import head_logprobs
from memalpha.types import Completion, SampleRequest, Turn

UNSPLIT, SINGLE_ROWS = 10**9, 1


def config(**changes) -> TrainConfig:
    return TrainConfig(**{"out": "unused", "warmup_steps": 0, "decay_fraction": 0.0, "learning_rate": 1e-3, **changes})


@cache
def completions(count: int) -> list[Completion]:
    """Sample ragged completions from the random tiny model."""
    requests = [
        SampleRequest(
            messages=({"role": "user", "content": "x" * (3 + 5 * (i % 7)) + str(i % 3)},),
            key=(1, i),
            temperature=1.0,
            max_new_tokens=4 + 3 * (i % 6),
        )
        for i in range(count)
    ]
    return tiny_policy().sample(requests)


def sampled_rows(count: int = 24):
    """Return the model and rows that it sampled, with random advantages."""
    advantages = np.random.default_rng(0).normal(size=count)
    return tiny_model(), [
        policy_gradient_sample(Turn(chunk=0, completion=c), float(a), task=str(i))
        for i, (c, a) in enumerate(zip(completions(count), advantages, strict=True))
    ]


def gradient(learner: Engine, rows) -> torch.Tensor:
    learner.optimizer.zero_grad(set_to_none=True)
    learner.forward_backward(rows)
    return torch.cat([tensor.grad.flatten().double() for tensor in learner.trainable.values()])


def nudged(model, size: float = 0.02):
    """Return the model after a random step, so that ratios leave 1 and some are clipped."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(
    "changes",
    [
        {"microbatch_tokens": SINGLE_ROWS},
        {"microbatch_tokens": 100, "head_tokens": 5},
        {"gradient_checkpointing": True},
    ],
)
def test_memory_settings_do_not_change_the_gradient(changes):
    learner, rows = every_stream()
    other = Engine(learner.model, config(**changes), learner.loss, value_learning_rate=1e-3)
    assert relative_error(gradient(other, rows), gradient(learner, rows)) < 1e-5


def every_stream():
    """Return an engine away from its reference, and rows that mix all streams."""
    model, rows = sampled_rows(20)
    loss = LossSettings(kl_estimator="k2")
    learner = Engine(model, config(microbatch_tokens=UNSPLIT), loss, reference=True, value_learning_rate=1e-3)
    nudged(model)
    references = learner.forward(rows, reference=True)
    random = np.random.default_rng(1)

    def weights(row, share: int) -> np.ndarray:
        return (random.uniform(0.1, 1.0) * (random.integers(share) > 0) * row.pg).astype(np.float32)

    rows = [
        replace(row, ce=weights(row, 2), reference=reference, kl=weights(row, 2), ent=weights(row, 3))
        for row, reference in zip(rows, references, strict=True)
    ]
    rows = [replace(row, values=0 * row.pg, returns=row.advantages, vf=weights(row, 2)) for row in rows]
    rows[3] = replace(rows[3], ent=None, vf=None)
    rows[4] = replace(rows[4], kl=rows[4].kl * 0, reference=None)
    return learner, normalize(rows, "row")


def test_bfloat16_keeps_master_weights_in_float32():
    """Steps below bfloat16's resolution add up, and the gradient is float32's within bfloat16's precision."""
    model, rows = sampled_rows(12)
    exact = gradient(Engine(copy.deepcopy(model), config()), rows)
    learner = Engine(model, config(dtype="bfloat16"))
    low = gradient(learner, rows)
    assert {part.grad.dtype for part in learner.trainable.values()} == {torch.float32}
    assert 1e-5 < relative_error(low, exact) < 0.1
    before = {name: part.detach().clone() for name, part in learner.trainable.items()}
    for _ in range(3):
        learner.update(rows, 1e-7)
    assert {value.dtype for value in learner.optimizer_tensors().values()} == {torch.float32}
    for name, part in learner.trainable.items():
        moved = (part - before[name]).abs()
        assert part.dtype == torch.float32 and 0 < moved.max() < 1e-6
    assert Engine(tiny_model().bfloat16(), config()).trainable["model.norm.weight"].dtype == torch.float32


@pytest.mark.parametrize("tied", [True, False])
def test_a_bfloat16_reference_equals_its_policy(tied):
    """The KL must be 0 at the start. Linear layers rest in bfloat16, the others as in the policy."""
    _, rows = sampled_rows(8)
    learner = Engine(tiny_model(tied=tied), config(dtype="bfloat16"), reference=True)
    for logprobs, reference in zip(learner.forward(rows), learner.forward(rows, reference=True), strict=True):
        assert (logprobs == reference).all()
    assert learner.reference is not None
    kinds = {part.dtype for name, part in learner.reference.named_parameters() if "proj" in name}
    assert kinds == {torch.bfloat16}


def test_equal_rows_are_all_counted():
    model, rows = sampled_rows(10)
    nudged(model)
    rows = normalize([*rows, *(replace(row, advantages=row.advantages * -2.5) for row in rows[::2])], "row")
    assert pack(rows).input_ids.shape[0] == 10
    net, exact_rows = oracle.Net64(model), list(map(oracle.row_of, rows))
    losses = oracle.clip_loss(oracle.logprobs64(net, exact_rows), exact_rows, 0.2, 0.2)
    weighted = [float(row.pg[0]) * loss.sum() for row, loss in zip(rows, losses, strict=True)]
    expected = oracle.gradient(torch.stack(weighted).sum(), net.weights)
    for tokens in (UNSPLIT, 100, SINGLE_ROWS):
        learner = Engine(model, config(microbatch_tokens=tokens))
        assert relative_error(gradient(learner, rows), expected) < 1e-5
    assert sum(len(part) for part in split_micro_batches(rows, SINGLE_ROWS)) == 15


def test_ratio_is_one_before_the_first_update_and_not_after():
    model, rows = sampled_rows()
    learner = Engine(model, config())
    assert learner.update(rows, 1e-2)["ratio_deviation"] < 1e-5
    second = learner.update(rows, 1e-2)
    assert second["ratio_deviation"] > 1e-2
    assert second["clipped"] > 0


def test_each_sampled_token_is_trained_exactly_once():
    """The gradient of the hidden states is non-zero exactly at positions that predict sampled tokens."""
    model, rows = sampled_rows(9)
    rows = [replace(row, advantages=np.ones_like(row.advantages)) for row in rows]
    trained_positions = []
    for part in split_micro_batches(rows, 100):
        batch = pack([rows[i] for i in part])
        hidden = model.base_model(input_ids=batch.input_ids).last_hidden_state.detach().requires_grad_()
        chosen = hidden.flatten(0, 1)[batch.positions]
        head = model.get_output_embeddings()
        scored = head_logprobs(chosen, head.weight, None, batch.targets, batch.temperature)
        loss_sum(*scored, batch, LossSettings())[0].backward()
        assert len(hidden.grad) == len(part), "all rows differ here"
        for i, touched in zip(part, hidden.grad.abs().sum(-1) > 0, strict=True):
            trained_positions += [(i, position + 1) for position in touched.nonzero()[:, 0].tolist()]
        assert torch.equal(batch.targets, torch.cat([torch.tensor(rows[i].completion_ids) for i in part]))
    assert sorted(trained_positions) == [
        (i, t) for i, row in enumerate(rows) for t in range(len(row.prompt_ids), row.length)
    ]
    assert Engine(model, config()).forward_backward(rows)["tokens"] == len(trained_positions)


def test_learning_rate_schedule():
    settings = config(learning_rate=1.0, warmup_steps=4, decay_fraction=0.5, schedule_steps=20)
    rates = [scheduled_learning_rate(step, settings) for step in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:11] == [1.0] * 7
    assert rates[11:] == pytest.approx([0.1 * left for left in range(9, 0, -1)])
    assert rates == [scheduled_learning_rate(s, settings.model_copy(update={"max_steps": 3})) for s in range(20)]


def test_unsupported_models_and_calls_are_refused():
    class Capped(type(tiny_model())):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = torch.tanh(output.logits)
            return output

    with pytest.raises(PolicyError, match="after the output embedding"):
        Engine(Capped(tiny_model().config), config())
    model, rows = sampled_rows(2)
    with pytest.raises(TrainingError, match="gradient norm"):
        Engine(model, config()).update([replace(rows[0], advantages=rows[0].advantages * math.nan)], 1e-3)
    with pytest.raises(PolicyError, match="no token record"):
        replace(rows[0], completion_ids=())
    with pytest.raises(PolicyError, match=r"temperature 0\.0 cannot be trained at"):
        replace(rows[0], temperature=0.0)


@pytest.mark.parametrize("normalizer", ["constant", "token", "row"])
def test_rows_without_weight_count_in_the_divisors_only(normalizer):
    """Dropping them leaves the gradient, and no pass is made for them."""
    model, rows = sampled_rows(12)
    flat = [replace(row, advantages=0 * row.advantages) for row in rows[6:]]
    learner = Engine(nudged(model.double()), config(), LossSettings(normalizer=normalizer))
    normalized = learner.normalized([*rows[:6], *flat])
    stats = learner.forward_backward(normalized)
    assert stats["rows_without_weight"] == 6 and stats["tokens"] == sum(len(row.completion_ids) for row in rows[:6])
    actual = torch.cat([tensor.grad.flatten() for tensor in learner.trainable.values()])
    tiny_weight = np.float32(1e-30)  # keeps the flat rows' passes without a gradient worth mentioning
    passed = [replace(row, ent=row.pg * tiny_weight) for row in normalized]
    expected = gradient(learner, passed)
    assert learner.forward_backward(passed)["rows_without_weight"] == 0
    assert relative_error(actual, expected) < 1e-12


def ragged_rows(count: int, low: int, high: int):
    """Return rows with lengths spread over [low, high]; a tenth of each is completion."""
    random = np.random.default_rng(0)
    lengths = random.integers(low, high, size=count)
    return [
        cross_entropy_sample(random.integers(9, size=length - length // 10), random.integers(9, size=length // 10))
        for length in lengths.tolist()
    ]


@pytest.mark.parametrize("tokens", [1024, 4096, 16384])
@pytest.mark.parametrize(("count", "low", "high"), [(64, 300, 3500), (256, 60, 400), (24, 200, 8000)])
def test_padding_stays_under_five_percent(tokens, count, low, high):
    rows = ragged_rows(count, low, high)
    parts = split_micro_batches(rows, tokens)
    assert sorted(i for part in parts for i in part) == list(range(count))
    computed = sum(pack([rows[i] for i in part]).input_ids.numel() for part in parts)
    assert computed <= 1.05 * sum(row.length - 1 for row in rows)
    assert all(len(part) * max(rows[i].length for i in part) <= tokens for part in parts if len(part) > 1)
    together = sum(row.length for row in rows) / min(tokens, sum(row.length for row in rows))
    assert len(parts) <= 2 * together + 20 * np.log(high / low), "no more micro-batches than lengths ask for"


def test_other_objects_are_refused_in_words():
    policy = tiny_policy()
    for model in ("tiny", policy):
        with pytest.raises(
            TrainingError, match=r"model \(policy.model of a policy\) .*PreTrainedModel or PeftModel is"
        ):
            Engine(model, config())
    with pytest.raises(TrainingError, match="config None: LearnerConfig is needed"):
        Engine(policy.model, None)
    engine = Engine(policy.model, config())
    for rows in (["a"], "a", None, [None]):
        for call in (
            engine.forward,
            engine.forward_backward,
            engine.normalized,
            Learner(engine, inline=True).normalized,
        ):
            with pytest.raises(TrainingError, match="a list of TrainingSample is needed"):
                call(rows)
    with pytest.raises(TrainingError, match="Engine is needed"):
        Learner(policy)
