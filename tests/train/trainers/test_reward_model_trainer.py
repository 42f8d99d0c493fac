"""Runs that train a reward model: what is learnt, going on bit for bit, files, refusals, the same from Python."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch
from run_kinds import NO, PROMPTS, YES, pair_rows, small_config
from tiny import tiny_model, tiny_policy, tiny_tokenizer

from memalpha import load_reward_model
from memalpha.config import RewardModelConfig, build_config
from memalpha.errors import ConfigError, DataError, TrainingError
from memalpha.policy.reward_model import Head, add_reward_head, unwrap_peft
from memalpha.train.api import train
from memalpha.train.data.preferences import ComparedReplies, RatedReply, read_reward_examples
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.reward_engine import RewardEngine, split_microbatches


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def judges(policy_path, tmp_path):
    """A function: overrides -> configuration of a run of a second on 10 pairs, in `tmp_path / "run"`."""
    return partial(small_config, RewardModelConfig, policy_path, tmp_path)


@pytest.mark.parametrize(("pooling", "lora"), [("last", None), ("mean", {"r": 4}), ("attention", {"r": 4})])
def test_chosen_comes_out_above_rejected(judges, pooling, lora):
    settings = judges(pooling=pooling, lora=lora)
    summary = train(settings)
    assert (summary["pairs"], summary["validation_pairs"], summary["steps"]) == (8, 2, 4)
    assert summary["before"]["validation_accuracies"] == 0.5, "the head is 0 at first"
    assert summary["before"]["validation_pair_loss"] == pytest.approx(np.log(2))
    assert summary["after"]["validation_pair_loss"] < np.log(2)
    assert summary["after"]["validation_accuracies"] == 1.0
    model = load_reward_model(settings.out)
    right, wrong = model.score(PROMPTS[8:], YES[8:]), model.score(PROMPTS[8:], NO[8:])
    gap = np.mean(right) - np.mean(wrong)
    assert gap == pytest.approx(summary["after"]["validation_margins"], rel=1e-4)


# --------------------------------------------------------------------------------------------------- loss and gradient


def scorer(seed=0, pooling="last", objectives=("reward",), lora=None, **changes):
    """An engine on a random model whose head (and q) is random too."""
    head = Head(pooling, dict(zip(objectives, (1.0, -0.5, 2.0), strict=False)))
    model = add_reward_head(tiny_model(seed), head, tiny_tokenizer(), "tiny")
    settings = {"out": "unused", "data": "unused", "lora": lora, "microbatch_tokens": 150, **changes}
    config = build_config(RewardModelConfig, settings, "test")
    whole = ["score", "pool"] if pooling == "attention" else ["score"]
    if lora is not None:
        model = add_lora(model, config.lora, "tiny", modules_to_save=whole, task_type="SEQ_CLS")
    engine = RewardEngine(model, config, head)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in engine.trainable.items():
            if "score" in name or "pool" in name or "lora_B" in name:
                parameter.normal_(0, 0.5)
    return engine


def judged(objectives=1):
    """Pairs with margins and ratings, of random tokens of ragged lengths."""
    random = np.random.default_rng(0)

    def ids(count):
        return tuple(random.integers(3, 200, count).tolist())

    results = []
    for number in range(7):
        prompt = ids(random.integers(1, 30))
        one, two = ((prompt, ids(random.integers(1, 20))) for _ in range(2))
        if number % 3 == 2:
            messages = [float(random.normal()) if number != 5 or k else float("nan") for k in range(objectives)]
            results.append(RatedReply("", (one,), tuple(messages) if objectives > 1 else (0.3,)))
        else:
            results.append(
                ComparedReplies("", (one, two), number / 10, None if objectives == 1 else (None, 0, 1)[number % 3])
            )
    return results


def slowly(engine, items):
    """The same loss in float64, a row at a time, its hidden states pooled by a plain loop; and its gradient."""
    model = unwrap_peft(engine.model)
    kept = {name: parameter.data for name, parameter in engine.model.named_parameters()}
    engine.model.double()
    weights = list(engine.head.objectives.values())
    losses = []
    try:
        for one in items:
            outputs = []
            for prompt, reply in one.rows:
                row = [*prompt, *reply]
                hidden = model.base_model(input_ids=torch.tensor([row]), use_cache=False).last_hidden_state[0]
                if engine.head.pooling == "last":
                    pooled = hidden[max(index for index, id in enumerate(row) if id != 0)]
                else:
                    own = [hidden[index] for index in range(len(prompt), len(row))]
                    pulls = [torch.zeros((), dtype=torch.float64) for _ in own]
                    if engine.head.pooling == "attention":
                        pulls = [model.pool(state[None, None])[0, 0] for state in own]
                    powers = [pull.exp() for pull in pulls]
                    pooled = sum(power * state for power, state in zip(powers, own, strict=True)) / sum(powers)
                outputs.append(model.score(pooled))
            if isinstance(one, ComparedReplies):
                v = [sum(w * s for w, s in zip(weights, out, strict=True)) for out in outputs]
                if one.objective is not None:
                    v = [out[one.objective] for out in outputs]
                loss = torch.log1p(torch.exp(-(v[0] - v[1] - one.margin))) + engine.center * (v[0] + v[1]) ** 2
            else:
                squares = [(s - y) ** 2 for s, y in zip(outputs[0], one.scores, strict=True) if y == y]
                loss = sum(squares) / len(squares)
            losses.append(loss)
        mean = sum(losses) / len(losses)
        mean.backward()
        gradient = {
            name: parameter.grad for name, parameter in engine.model.named_parameters() if parameter.requires_grad
        }
    finally:
        for name, parameter in engine.model.named_parameters():
            parameter.grad, parameter.data = None, kept[name]
    return float(mean.detach()), gradient


@pytest.mark.parametrize(
    ("pooling", "objectives", "lora"),
    [
        ("last", ("reward",), None),
        ("mean", ("a", "b"), None),
        ("attention", ("a", "b"), None),
        ("attention", ("a",), {}),
    ],
)
def test_loss_and_gradient_equal_a_slow_float64_reading(pooling, objectives, lora):
    engine = scorer(pooling=pooling, objectives=objectives, lora=lora, center_rewards_coefficient=0.05)
    items = judged(len(objectives))
    expected, gradient_expected = slowly(engine, items)
    assert len(split_microbatches(items, 150)) > 2
    figures = engine.compute_metrics(items, engine.forward_backward(items))
    assert figures["loss"] == pytest.approx(expected, rel=1e-5)
    results = {name: parameter.grad for name, parameter in engine.trainable.items()}
    assert results.keys() == gradient_expected.keys()
    whole = torch.cat([value.flatten() for value in gradient_expected.values()])
    gap = torch.cat([(results[name].double() - gradient_expected[name]).flatten() for name in results])
    assert gap.norm() / whole.norm() < 1e-5


def test_micro_batches_checkpointing_and_equal_rows_change_nothing():
    items = judged()
    items += items[:2]
    gradients = []
    for changes in ({}, {"microbatch_tokens": 10}, {"microbatch_tokens": 9999}, {"gradient_checkpointing": True}):
        engine = scorer(pooling="mean", **changes)
        engine.forward_backward(items)
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in engine.trainable.values()]))
    for other in gradients[1:]:
        assert (other - gradients[0]).norm() / gradients[0].norm() < 1e-5


# ---------------------------------------------------------------------------------------------------------------- data


def test_objectives_learn_from_pairs_of_their_own_and_from_ratings(judges, tmp_path):
    """One objective prefers what the other does not; a third is told by numbers."""
    rows = [{**row, "objective": "kind"} for row in pair_rows()]
    rows += [
        {"prompt": p, "chosen": r, "rejected": c, "objective": "long"} for p, c, r in zip(PROMPTS, YES, NO, strict=True)
    ]
    ratings = enumerate(zip(PROMPTS, YES, strict=True))
    rows += [{"prompt": p, "completion": c, "scores": {"worth": number % 2}} for number, (p, c) in ratings]
    data = written(tmp_path / "objectives.jsonl", rows)
    changes = {"objectives": {"kind": 1.0, "long": 0.25, "worth": 0.0}, "epochs": 5, "pooling": "mean"}
    settings = judges(data=str(data), eval_data=str(data), validate_every=100, save_every=100, **changes)
    summary = train(settings)
    assert summary["after"]["validation_accuracies"] == 1.0
    assert summary["after"]["validation_errors"] < 0.6
    model = load_reward_model(settings.out)
    good, bad = model.scores(PROMPTS, YES), model.scores(PROMPTS, NO)
    assert all(one["kind"] > two["kind"] and one["long"] < two["long"] for one, two in zip(good, bad, strict=True))
    totals = [one["kind"] + 0.25 * one["long"] for one in good]
    assert model.score(PROMPTS, YES) == pytest.approx(totals, abs=1e-6)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "c", "margin": "much"}, "margin: 'much' is not a finite number"),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "objective": "z"}, "objective: 'z' is none of reward"),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "score": 1}, "score: a line is a pair"),
        ({"prompt": "a", "completion": "b"}, "scores: give either score"),
        ({"prompt": "a", "completion": "b", "scores": {}}, "scores: must be an object"),
        ({"prompt": "a", "completion": "b", "scores": {"z": 1}}, "scores: 'z' is none of reward"),
        ({"prompt": "a", "completion": "b", "score": True}, "True is not a finite number"),
        ({"prompt": "", "completion": "b", "score": 1}, "prompt: is empty"),
    ],
)
def test_bad_lines_are_refused_by_name(tmp_path, line, told):
    path = written(tmp_path / "bad.jsonl", [*pair_rows()[:2], line])
    with pytest.raises(DataError, match=rf"bad\.jsonl:3: .*{told}"):
        read_reward_examples(path, tiny_policy(), ["reward"])


def test_scores_beyond_all_reason_are_named(judges, tmp_path):
    config = judges()
    rows = [{"prompt": p, "completion": c, "score": 1e30} for p, c in zip(PROMPTS, YES, strict=True)]
    written(tmp_path / "pairs.jsonl", rows)
    with pytest.raises(TrainingError, match="validation_pair_loss is inf at step 0: look for scores or margins"):
        train(config)


def test_refusals(judges, tmp_path):
    with pytest.raises(DataError, match="says anything of objective 'b'"):
        rows = pair_rows(objective="a")
        train(judges(data=str(written(tmp_path / "a.jsonl", rows)), objectives={"a": 1, "b": 1}))
    with pytest.raises(ConfigError, match=r"lora\.target_modules: score is the head"):
        train(judges(lora={"target_modules": ["score"]}))
