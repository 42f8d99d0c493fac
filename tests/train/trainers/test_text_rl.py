"""Text runs: what they write, that all algorithms learn, what is refused."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import yaml
from run_kinds import LEVELS, python_inputs, small_config, text_tasks, upper
from runs import lines, same, weights

from memalpha.config import TextConfig, build_config, training_config
from memalpha.errors import CheckpointError, ConfigError, DataError, RewardError
from memalpha.policy.load import load_policy
from memalpha.rewards.environments import MultiObjective
from memalpha.train.api import train
from memalpha.train.rollouts.text_tasks import TextTaskSource, build_environment
from memalpha.train.trainers.directory import RunDirectory
from memalpha.types import TextTask


@pytest.fixture
def text(policy_path, tmp_path):
    """A function: overrides -> configuration of a text run of a second in `tmp_path / "run"`."""
    return partial(small_config, TextConfig, policy_path, tmp_path)


def run(config: TextConfig, **given):
    return train(config, **{**python_inputs(config), **given})


def test_a_run_writes_what_is_promised(text):
    summary = run(text(keep_tokens=True))
    out = text().out
    assert summary == json.loads((out / "summary.json").read_text())
    assert summary["tasks"] == summary["questions"] == 4
    assert summary["after"]["rewards"].keys() == {"upper", "short"}
    assert summary["after"]["by_ability"].keys() <= set(LEVELS)
    records = lines(out / "eval" / "after.jsonl")
    assert records[0]["gold"] == [records[0]["task"][1:]] and records[0]["scores"].keys() == {"upper", "short"}
    metrics = lines(out / "metrics.jsonl")
    assert all({"rewards/upper", "rewards/short", "accuracy", "reward", "flat"} <= line.keys() for line in metrics)
    assert [line.get("validation_accuracy") is not None for line in metrics] == [False, True, False, True]
    assert all(line["mismatch_max"] < 1e-4 < line["ratio_deviation"] for line in metrics)
    turns = lines(out / "turns.jsonl")
    for step, line in enumerate(metrics):
        rewards = np.array([turn["reward"] for turn in turns if turn["step"] == step])
        assert (line["reward_min"], line["reward_max"]) == (rewards.min(), rewards.max())
        assert line["reward_std"] == pytest.approx(rewards.std()) and line["reward_std"] > 0
        assert line["sampled_tokens_per_second"] == line["sampled_tokens"] / line["sample_seconds"]
        assert line["trained_tokens_per_second"] == line["tokens"] / line["train_seconds"]
    assert len(turns) == 4 * 3 * 4 and {turn["chunk"] for turn in turns} == {0}
    assert lines(out / "tasks.jsonl")[0]["prompt"].endswith("?")


def test_the_turns_of_a_step_are_not_held_in_memory_while_they_are_written(text, monkeypatch):
    logs, append = {}, RunDirectory.append
    monkeypatch.setattr(RunDirectory, "append", lambda self, *given: (logs.update([given]), append(self, *given)))
    run(text(keep_tokens=True, max_steps=1))
    assert iter(logs["turns.jsonl"]) is logs["turns.jsonl"]


def test_a_reward_that_fails_keeps_the_trained_steps(text):
    settings, is_away = text(save_every=2), True

    def remote(completions):
        log = settings.out / "metrics.jsonl"
        if is_away and log.exists() and lines(log):
            raise ConnectionError("away")
        return [float(len(text)) for text in completions]

    with pytest.raises(RewardError, match="'remote' raised ConnectionError: away"):
        run(settings, rewards=remote)
    assert (settings.out / "checkpoints" / "step-1" / "state.json").is_file()
    assert "raised ConnectionError: away" in (settings.out / "stopped.json").read_text()
    is_away = False
    assert run(settings, rewards=remote)["steps"] == 4
    assert [start["step"] for start in lines(settings.out / "starts.jsonl")] == [0, 1]


@pytest.mark.parametrize(("call", "step"), [(5, 2), (8, 4)])
def test_a_reward_that_fails_in_a_validation_keeps_the_trained_steps(text, tmp_path, call, step):
    """The reward is called at the start, its validation, two steps, a validation, two steps, a validation, the end."""
    whole, parts, count = text(out=str(tmp_path / "whole")), text(), 0

    def remote(completions):
        nonlocal count
        count += 1
        if count == call:
            raise ConnectionError("away")
        return upper(completions)

    run(whole, rewards=upper)
    with pytest.raises(RewardError, match="away"):
        run(parts, rewards=remote)
    assert len(lines(parts.out / "metrics.jsonl")) == step - 1
    assert (parts.out / f"checkpoints/step-{step}/state.json").is_file()
    run(parts, rewards=remote)
    states, logs = [], []
    for out in (whole.out, parts.out):
        state = json.loads((out / f"checkpoints/step-{step}/state.json").read_text())
        states.append({name: value for name, value in state.items() if "minutes" not in name})
        log = lines(out / "metrics.jsonl")
        logs.append([{name: line[name] for name in line if "second" not in name and "/" not in name} for line in log])
    assert states[0] == states[1] and logs[0] == logs[1]
    assert same(weights(whole.out, 4), weights(parts.out, 4))


ALGORITHM_SETTINGS = {
    "grpo": {"num_iterations": 2},
    "rloo": {"algorithm": "rloo"},
    "ppo": {"algorithm": "ppo", "group_size": 1, "tasks_per_step": 16},
    "dpo": {"algorithm": "dpo", "learning_rate": 5e-2},
    "erl": {"algorithm": "erl", "erl": {"reflection_tokens": 2}},
}


@pytest.mark.parametrize("name", ALGORITHM_SETTINGS)
def test_every_algorithm_raises_the_reward(text, name):
    """Replies of one token are a bandit. What tells losses of one algorithm apart is their gradients' to test."""
    steps = {"schedule_steps": 12, "save_every": 100, "decay_fraction": 0.0, "learning_rate": 3e-2}
    size = {"group_size": 8, "tasks_per_step": 4, "max_new_tokens": 1, "validation_tasks": 0, "eval_tasks": 1}
    config = text(**{**steps, **size, **ALGORITHM_SETTINGS[name]})
    run(config, rewards=[upper])
    rewards = [line["reward"] for line in lines(config.out / "metrics.jsonl")]
    assert sum(rewards[:2]) / 2 < 0.65 and sum(rewards[-2:]) / 2 > 0.9


class Twice:
    """Two replies; each is worth having a byte of the upper half."""

    def reset(self, task):
        self.replies = []
        return task.prompt

    def step(self, reply):
        self.replies.append(reply)
        return upper([reply])[0] / 2, len(self.replies) == 2, "again"


def test_an_environment_of_several_turns_is_learnt(text):
    changes = {"schedule_steps": 8, "learning_rate": 3e-2, "save_every": 100, "validation_tasks": 0}
    changes |= {"max_new_tokens": 1, "group_size": 8, "keep_tokens": True}
    run(text(max_turns=3, **changes), rewards=None, environment=Twice)
    metrics = lines(text().out / "metrics.jsonl")
    assert metrics[0]["turns"] == 2 and metrics[-1]["reward"] > 0.8 > metrics[0]["reward"]
    turns = lines(text().out / "turns.jsonl")
    pairs = list(zip(turns[::2], turns[1::2], strict=True))
    assert all(one["chunk"] == 0 and two["chunk"] == 1 for one, two in pairs)
    assert all(len(two["prompt_ids"]) > len(one["prompt_ids"]) for one, two in pairs)
    assert all(one["advantage"] == two["advantage"] for one, two in pairs), "the return is credited to every turn"


def test_the_curriculum_moves_on_and_looks_back():
    config = TextConfig(
        out="unused", data="arithmetic", tasks_per_step=8,
        curriculum={"order": ["easy", "medium", "hard"], "threshold": 0.5, "window": 10, "review": 0.5},
    )  # fmt: skip
    from memalpha.qa.report import Record
    from memalpha.train.rollouts.epochs import Curriculum

    source = TextTaskSource(config)
    curriculum = Curriculum(config.curriculum, source)

    def step(number: int, correct: bool):
        tasks = curriculum.batch(8 * number)
        assert tasks == curriculum.batch(8 * number), "drawing changes nothing"
        records = [Record(t.id, 0, t.id, "", None, "", "", (), 0.0, correct) for t in tasks]
        levels, ids = [task.columns["level"] for task in tasks], [task.id for task in tasks]
        return levels, curriculum.record_outcomes(8 * number, records), ids

    seen: list[str] = []
    for number, correct, unlocked in ((0, True, 1), (1, True, 2), (2, False, 2), (3, True, 2)):
        levels, line, ids = step(number, correct)
        seen += ids
        assert curriculum.state["curriculum"]["unlocked"] == unlocked
    assert set(levels) == {"easy", "medium"} and line["level"] == "medium" and 0 < line["level_accuracy"] < 1
    assert len(set(seen)) == 32, "no task of a made set comes twice"
    for number in range(4, 12):
        step(number, True)
    assert curriculum.level == "hard" and curriculum.state["curriculum"]["unlocked"] == 3
    assert json.loads(json.dumps(curriculum.state)) == curriculum.state


@pytest.mark.parametrize("changes", [{"beta": 0.1}, {"algorithm": "erl"}])
def test_replies_of_which_nothing_can_be_said_are_left_out(text, changes):
    asked = []

    def silent(completions):
        asked.extend(completions)
        return [None if (len(asked) + n) % 5 == 0 else float(len(one) % 2) for n, one in enumerate(completions)]

    if "algorithm" in changes:
        changes = changes | {"erl": {"reflection_tokens": 2}}
    run(text(max_steps=2, keep_tokens=True, **changes), rewards=[silent])
    metrics = lines(text().out / "metrics.jsonl")
    assert all(0 < line["unscored"] < 12 for line in metrics)
    turns = [turn for turn in lines(text().out / "turns.jsonl") if turn["role"] == "attempt"]
    assert len(turns) == sum(12 - line["unscored"] for line in metrics)
    with pytest.raises(RewardError, match="no reward function applies to any of 4 replies"):
        run(text(out=str(text().out) + "-none"), rewards=[lambda completions: [None] * len(completions)])


def test_a_prompt_that_leaves_no_room_for_a_reply_is_named(text):
    policy = load_policy(text().policy)
    prompt = "a " * (((policy.positions or 0) - 64) * 100 // policy.count_tokens("a " * 100))
    tasks = [*text_tasks(20), text_tasks(1)[0].model_copy(update={"id": "long", "prompt": prompt})]
    with pytest.raises(DataError, match=r"^data: the prompt of task 'long' has \d+ tokens, .* has room for \d+"):
        run(text(max_new_tokens=64), tasks=tasks)


def test_held_out_prompts_are_not_trained_on(text):
    twice = text_tasks(20) + [task.model_copy(update={"id": f"again-{task.id}"}) for task in text_tasks(20)]
    source = TextTaskSource(text(), twice)
    apart = {task.prompt for task in [*source.held_out, *source.validation]}
    assert not apart & {task.prompt for task in source.file_tasks} and "repeat a prompt" in source.notes[0]
    assert {task.category for task in source.held_out} == set(LEVELS), "not the file's tail"
    with pytest.raises(ConfigError, match="eval_data: the prompt of task 't3' is also that of training task"):
        TextTaskSource(text(validation_tasks=0), text_tasks(20), text_tasks(1, 3))
    with pytest.raises(ConfigError, match="eval_data: empty"):
        run(text(), eval_data=[])
    for tasks in (None, text_tasks(20)):
        with pytest.raises(DataError, match=r"^eval_data: two tasks have the id 't30'"):
            TextTaskSource(text(data=None if tasks else "arithmetic"), tasks, text_tasks(1, 30) * 2)


def test_a_reward_part_that_is_none_is_named_by_its_place(text):
    with pytest.raises(ConfigError, match=r"^rewards\.1: kind 'llm' is none of math, code"):
        build_environment(text(), [upper, {"kind": "llm"}])
    with pytest.raises(ConfigError, match="max_turns: has no effect without an environment"):
        build_environment(text(max_turns=3), [upper])


def test_a_run_is_resumed_on_its_own_tasks_only(text, capsys):
    run(text(max_steps=1), tasks=text_tasks(20))
    with pytest.raises(CheckpointError, match="began with other tasks"):
        run(text(max_steps=2), tasks=text_tasks(25))
    with pytest.raises(CheckpointError, match=r"other rewards \(.*'short \* 1'\] there, \['upper \* 1'\] now\)"):
        run(text(max_steps=2), tasks=text_tasks(20), rewards=[upper])
    assert run(text(max_steps=2), tasks=text_tasks(20))["steps"] == 2
    assert "its code has changed" not in capsys.readouterr().err

    def short(completions):  # a mend under the same name
        return [0.5] * len(completions)

    assert run(text(max_steps=3), tasks=text_tasks(20), rewards=[upper, short])["steps"] == 3
    assert "short: its code has changed since the run began" in capsys.readouterr().err


@pytest.mark.parametrize("dataset", [{}, {"columns": {"prompt": "question"}, "limit": 9}])
def test_a_run_that_recorded_columns_beside_tasks_is_resumed(text, dataset):
    """Earlier versions recorded settings that have no effect beside tasks."""
    run(text(max_steps=1))
    path = text().out / "config.yaml"
    recorded = yaml.safe_load(path.read_text())
    recorded["dataset"] |= {"columns": {"prompt": "question"}, "limit": 9}
    path.write_text(yaml.safe_dump(recorded))
    assert run(text(max_steps=2, dataset=dataset))["steps"] == 2


def test_a_run_is_resumed_on_its_own_generator_only(text, tmp_path):
    rows = "".join(json.dumps({"id": f"e{n}", "prompt": f"{n}?", "answer": "3"}) + "\n" for n in range(4))
    (tmp_path / "held.jsonl").write_text(rows)
    settings = {"eval_data": str(tmp_path / "held.jsonl"), "validation_tasks": 0}
    train(text(data="arithmetic", max_steps=1, **settings), rewards=[upper])
    with pytest.raises(CheckpointError, match=r"other settings \(data: 'arithmetic' there, 'programs' now\)"):
        train(text(data="programs", max_steps=2, **settings), rewards=[upper])
    with pytest.raises(CheckpointError, match=r"evaluation\.data: '.*held\.jsonl' there, 'arithmetic' now"):
        train(text(data="arithmetic", max_steps=2, **{**settings, "eval_data": "arithmetic"}), rewards=[upper])


def test_what_python_gives(text):
    given = {"tasks": (task for task in text_tasks()), "rewards": upper}
    assert run(text(max_steps=0), **given)["tasks"] == 4
    environment = MultiObjective({"upper": upper})
    assert run(text(max_steps=0, out=str(text().out) + "-2"), rewards=None, environment=environment)["tasks"] == 4


@pytest.mark.parametrize(
    ("changes", "given", "message"),
    [
        ({}, {"rewards": None}, "nothing says what a reply is worth"),
        ({}, {"tasks": None}, "data: name the tasks .* in Python .*also to resume"),
        ({"data": "arithmetic", "limit": 3}, {"tasks": None}, r"dataset\.limit: has no effect on arithmetic"),
        ({"columns": {"prompt": "question"}}, {}, r"dataset\.columns: has no effect on tasks, which no file holds"),
        ({"data": "arithmetic"}, {}, "data names tasks already"),
        ({"environment": "no.such:Thing"}, {"rewards": None}, "environment: 'no.such:Thing' cannot be found"),
        ({"curriculum": {"order": ["easy", "x"]}}, {}, "'hard', the level of task"),
        ({"curriculum": {"order": ["easy", "hard", "x"]}}, {}, "no training task has level 'x'"),
        ({}, {"feedback_func": upper}, "feedback_func: has no effect with algorithm=grpo"),
    ],
)
def test_what_cannot_be_run_is_refused(text, changes, given, message):
    with pytest.raises(ConfigError, match=message):
        run(text(**changes), **given)


def test_bad_data_is_refused(text):
    with pytest.raises(DataError, match="two tasks have the id 't0'"):
        run(text(), tasks=text_tasks(6) + text_tasks(1))
    with pytest.raises(DataError, match="needs at least 5"):
        run(text(), tasks=text_tasks(3))
    with pytest.raises(DataError, match=r"tasks \{'prompt': '2'\}: TextTask is needed"):
        run(text(), tasks=[{"prompt": "2"}] * 9)
    with pytest.raises(DataError, match=r"prompt of task 't9' has \d+ tokens"):
        run(text(), tasks=[*text_tasks(9), TextTask(id="t9", prompt="x" * 5000, columns={"answer": "", "level": ""})])


def test_settings_of_text_runs(text):
    data = {"task": "text", "out": "x", "data": "arithmetic", "rewards": [{"kind": "format", "pattern": "a"}]}
    config = build_config(TextConfig, data, "x")
    assert config.rewards[0].kind == "format" and training_config(config, {"seed": 3}).seed == 3
    with pytest.raises(ConfigError, match=r"a mapping is no configuration: build one, as in TextConfig\("):
        training_config({"task": "text"})
    with pytest.raises(ConfigError, match="rewards: tasks and functions themselves are for text runs"):
        train("demo", rewards=[upper])
