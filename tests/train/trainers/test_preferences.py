"""Runs on plain pairs: what is learnt, what validates, going on bit for bit, refusals, the same from Python."""

from __future__ import annotations

import json
import math
from functools import partial

import pytest
from run_kinds import NO, PROMPTS, YES, demonstration_rows, pair_rows, small_config, write_lines
from runs import lines, same, weights

import memalpha
from memalpha import train_on_preferences, train_reward_model
from memalpha.config import PreferenceConfig, RewardModelConfig, SFTConfig, build_config, training_config
from memalpha.errors import CheckpointError, ConfigError, DataError, PolicyError
from memalpha.policy.load import load_policy
from memalpha.qa.from_config import load_settings
from memalpha.report.page import write_report
from memalpha.train.api import train


@pytest.fixture
def prefers(policy_path, tmp_path):
    """A function: overrides -> configuration of a run of a second on 10 pairs, in `tmp_path / "run"`."""
    return partial(small_config, PreferenceConfig, policy_path, tmp_path)


@pytest.mark.parametrize(
    "changes",
    [{}, {"lora": {"r": 4}}, {"dpo": {"loss_type": "ipo"}}, {"dpo": {"reference_free": True}}],
    ids=["full", "lora", "ipo", "reference-free"],
)
def test_chosen_becomes_likelier(prefers, changes):
    settings = prefers(**changes)
    summary = train(settings)
    assert (summary["pairs"], summary["validation_pairs"], summary["steps"]) == (8, 2, 4)
    assert summary["after"]["validation_pair_loss"] < summary["before"]["validation_pair_loss"]
    assert summary["after"]["validation_margins"] > summary["before"]["validation_margins"]
    first, *between, last = lines(settings.out / "metrics.jsonl")
    assert summary["tokens"] == sum(line["tokens"] for line in (first, *between, last)) > 0
    if not changes.get("dpo"):
        assert summary["before"]["validation_pair_loss"] == pytest.approx(math.log(2)), "the reference is the start"
        assert first["loss"] == pytest.approx(math.log(2)) and first["margins"] == 0
    assert last["accuracies"] == 1.0


def test_the_schedule_is_as_long_as_the_passes(prefers, tmp_path):
    assert train(prefers(epochs=1.5))["steps"] == 3
    with pytest.raises(ConfigError, match=r"max_steps: 9 is beyond the 4 steps of epochs=2"):
        train(prefers(max_steps=9, out=str(tmp_path / "other")))
    config = build_config(PreferenceConfig, {"out": "x", "data": "y", "schedule_steps": 7}, "test")
    assert config.optimizer.epochs is None and config.optimizer.schedule_steps == 7
    optimizer = training_config(prefers(), {"schedule_steps": 7}).optimizer
    assert optimizer.epochs is None and optimizer.schedule_steps == 7


@pytest.mark.parametrize(
    ("kind", "unit", "changes", "message"),
    [
        (PreferenceConfig, "pairs", {"dpo": {"beta": 0.2}}, r"dpo\.beta: 0\.1 there, 0\.2 now"),
        (RewardModelConfig, "lines", {"pooling": "mean"}, r"pooling: 'last' there, 'mean' now"),
    ],
)
def test_a_run_does_not_go_on_with_other_pairs_or_settings(kind, unit, changes, message, policy_path, tmp_path):
    configure = partial(small_config, kind, policy_path, tmp_path)
    train(configure(max_steps=1))
    with pytest.raises(CheckpointError, match=message):
        train(configure(**changes))
    path = (tmp_path / "pairs.jsonl").rename(tmp_path / "moved.jsonl")
    assert train(configure(data=str(path), max_steps=2))["steps"] == 2
    path.write_text(path.read_text().replace("yes 3", "yes 33"))
    with pytest.raises(CheckpointError, match=f"began with other {unit} than data="):
        train(configure(data=str(path)))


def test_what_validates_is_a_file_of_its_own_or_nothing(prefers, tmp_path):
    other = tmp_path / "held-out.jsonl"
    other.write_text(json.dumps({"prompt": "a", "chosen": "yes", "rejected": "no"}) + "\n")
    summary = train(prefers(eval_data=str(other)))
    assert (summary["pairs"], summary["validation_pairs"]) == (10, 1)
    settings = prefers(validation_pairs=0, out=str(tmp_path / "none"))
    summary = train(settings)
    assert summary["pairs"] == 10 and summary["before"] == summary["after"] == {}
    assert summary["best_step"] == summary["steps"]
    other.write_text("")
    with pytest.raises(DataError, match=r"held-out\.jsonl: holds no line"):
        train(prefers(eval_data=str(other), out=str(tmp_path / "empty")))
    other.write_text(json.dumps({"prompt": "a", "chosen": "yes", "rejected": "no"}) + "\n")
    with pytest.raises(DataError, match="has one pair, which validates"):
        train(prefers(data=str(other), out=str(tmp_path / "one")))


# ---------------------------------------------------------------------------------------------------------- from Python


@pytest.mark.parametrize(
    ("kind", "train_on_lists"),
    [(PreferenceConfig, train_on_preferences), (RewardModelConfig, train_reward_model)],
    ids=["preferences", "reward model"],
)
def test_lists_are_learnt_from_as_a_file_is(kind, train_on_lists, policy_path, tmp_path):
    settings = small_config(kind, policy_path, tmp_path)
    train(settings)
    groups = ("optimizer", "evaluation", "checkpoint")
    same_settings = {group: getattr(settings, group).model_dump(exclude_unset=True) for group in groups}
    out = tmp_path / "lists"
    lines = []
    summary = train_on_lists(PROMPTS, YES, NO, policy=policy_path, out=out, on_step=lines.append, **same_settings)
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert summary["pairs"] == 8 and same(weights(settings.out, 4), weights(out, 4))
    assert train_on_lists(PROMPTS, YES, NO, policy=policy_path, out=out, **same_settings) == summary
    with pytest.raises(CheckpointError, match="holds other pairs"):
        train_on_lists(PROMPTS, NO, YES, policy=policy_path, out=out, **same_settings)
    assert getattr(memalpha, train_on_lists.__name__) is train_on_lists


def test_lists_may_hold_messages(policy_path, tmp_path):
    prompts = [[{"role": "user", "content": prompt}] for prompt in "abcdef"]
    chosen = [[{"role": "assistant", "content": prompt[0]["content"]}] for prompt in prompts]
    settings = {"policy": policy_path, "out": tmp_path / "run", "batch_pairs": 2}
    assert train_on_preferences(prompts, chosen, ["no"] * 6, **settings)["steps"] == 3


def test_bad_calls_are_refused_and_leave_nothing_that_blocks(policy_path, tmp_path):
    settings = {"policy": policy_path, "out": tmp_path / "run", "batch_pairs": 2}
    with pytest.raises(DataError, match="10 prompts, 9 chosen and 10 rejected"):
        train_on_preferences(PROMPTS, YES[:-1], NO, **settings)
    with pytest.raises(DataError, match=r"preferences\.jsonl:1: rejected: is the same reply as chosen"):
        train_on_preferences(PROMPTS, YES, YES, **settings)
    with pytest.raises(ConfigError, match=r"unknown key 'epoch' \(did you mean 'optimizer.epochs'"):
        train_on_preferences(PROMPTS, YES, NO, epoch=1, **settings)
    with pytest.raises(ConfigError, match="data: train_on_preferences takes the pairs themselves"):
        train_on_preferences(PROMPTS, YES, NO, data="pairs.jsonl", **settings)
    with pytest.raises(ConfigError, match=r"dpo\.beta: "):
        train_on_preferences(PROMPTS, YES, NO, dpo={"beta": 0}, **settings)
    assert train_on_preferences(PROMPTS, YES, NO, **settings)["steps"] == 4


# ------------------------------------------------------------------------------------------------ command line and page


@pytest.mark.parametrize(
    ("kind", "message"), [(PreferenceConfig, "asked no questions"), (RewardModelConfig, "trained a reward model")]
)
def test_a_run_has_a_page_and_no_questions(kind, message, policy_path, tmp_path):
    settings = small_config(kind, policy_path, tmp_path, max_steps=1)
    train(settings)
    page = write_report(settings.out).read_text()
    assert "pair loss 0.693 before" in page and "Preferences" in page and "not finished" not in page
    with pytest.raises(ConfigError, match=message):
        load_settings(str(settings.out))
    if kind is RewardModelConfig:
        with pytest.raises(PolicyError, match="is a reward model, which scores replies"):
            load_policy(settings.out)


@pytest.mark.parametrize("kind", [PreferenceConfig, RewardModelConfig, SFTConfig])
def test_copies_on_both_sides_of_validation_are_told(kind, policy_path, tmp_path, capfd):
    rows = demonstration_rows() if kind is SFTConfig else pair_rows()
    path = tmp_path / ("mine.jsonl" if kind is SFTConfig else "pairs.jsonl")
    write_lines(path, [*rows, rows[0]])
    train(small_config(kind, policy_path, tmp_path, max_steps=0))
    assert "; 1 of 2 that validate are trained on too" in capfd.readouterr().err
