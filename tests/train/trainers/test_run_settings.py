"""What a run takes and what it refuses: settings, tasks, directories, devices."""

from __future__ import annotations

import json
import shutil
from bisect import bisect_left
from functools import partial
from pathlib import Path

import pytest
from hub_layouts import use_as_hub_cache, write_memalpha_split
from run_kinds import python_inputs, small_config

from memalpha.agent.prompts import writer_messages
from memalpha.config import SFTConfig, TextConfig, TrainConfig, WorldConfig, shipped_configs, training_config
from memalpha.errors import CheckpointError, ConfigError, DataError, PolicyError
from memalpha.policy.load import load_policy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.store.schema import load_schema
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train import api as loop
from memalpha.train.api import train
from memalpha.train.rollouts.memory_tasks import TaskSource
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.trainer import Trainer
from memalpha.types import Chunk, Observation, Question, Task

EVALUATIONS = ("locomo", "search", "state", "synthetic", "tasks")


@pytest.fixture(scope="module")
def finished(policy_path, tmp_path_factory):
    """Return the configuration of a run without a step."""
    settings = small_config(TrainConfig, policy_path, tmp_path_factory.mktemp("finished"), max_steps=0)
    train(settings)
    return settings


def test_refusals(small, tmp_path):
    with pytest.raises(PolicyError, match="no weights"):
        train(small(policy="scripted:oracle"))
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError):
        train(small(data=str(tmp_path / "empty.jsonl")))
    assert not small().out.exists()


@pytest.mark.parametrize("kind", [TrainConfig, SFTConfig])
@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"memory_schema": "none.yaml"}, "schema none.yaml: cannot be read"),
        ({"tools": ["none:X"]}, "agent.tools: 'none:X'"),
    ],
)
def test_the_agents_files_and_tools_are_checked_before_weights_are_loaded(kind, agent, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        train(small_config(kind, tmp_path / "no-weights", tmp_path, agent=agent))


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (TrainConfig, {"algorithm": "none:X"}, "algorithm: 'none:X' cannot be found"),
        (TextConfig, {"algorithm": "json:loads"}, "algorithm: 'json:loads' is no subclass"),
        (TrainConfig, {"reward": {"functions": [{"name": "x", "function": "none:X"}]}}, "reward.functions.x: 'none:X'"),
        (TextConfig, {"max_turns": 3}, "max_turns: has no effect without an environment"),
    ],
)
def test_names_of_code_are_checked_before_weights_are_loaded(kind, fields, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        config = small_config(kind, tmp_path / "no-weights", tmp_path, **fields)
        train(config, **python_inputs(config))


@pytest.mark.parametrize("name", ["before", "append_only", "example"])
def test_an_evaluation_that_is_gone_is_named_before_a_run_goes_on(finished, name, tmp_path):
    settings = finished.model_copy(update={"out": tmp_path / "run", "max_steps": 1})
    shutil.copytree(finished.out, settings.out, symlinks=True)
    (settings.out / "eval" / f"{name}.json").unlink()
    with pytest.raises(CheckpointError, match=rf"eval/{name}\.json cannot be read .*put it back"):
        train(settings)
    assert not (settings.out / "metrics.jsonl").exists()


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe\xfd", b"- 1"])
@pytest.mark.parametrize("name", ["summary.json", "config.yaml", "checkpoints/step-0/state.json"])
def test_garbage_in_a_run_directory_is_named(finished, name, content, tmp_path):
    settings = finished.model_copy(update={"out": tmp_path / "run"})
    shutil.copytree(finished.out, settings.out, symlinks=True)
    if "state" in name:
        (settings.out / "summary.json").unlink()
    (settings.out / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{'step-0' if 'state' in name else name}.*delete it to resume"):
        train(settings)
    assert (settings.out / name).read_bytes() == content


def test_a_run_is_resumed_by_its_name(small, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["memalpha", "train", "a name"])
    settings = small(max_steps=1)
    train(settings)
    moved = settings.out.rename(tmp_path / "moved")
    assert train(moved, max_steps=2)["steps"] == 2
    starts = [json.loads(line) for line in (moved / "starts.jsonl").read_text().splitlines()]
    assert [(start["step"], start["scheduled_steps"]) for start in starts] == [(0, 1), (1, 2)]
    assert starts[0]["command"] == "memalpha train 'a name'" and starts[0]["version"] and starts[0]["host"]
    written = (moved / "config.yaml").read_bytes()
    with pytest.raises(CheckpointError, match="other settings \\(seed: 0 there, 9 now\\)"):
        train(moved, seed=9)
    with pytest.raises(ConfigError, match=r"beyond schedule_steps 4: .*a run that has begun keeps its schedule"):
        train(moved, max_steps=9)
    with pytest.raises(CheckpointError, match="beyond max_steps=0"):
        train(moved, max_steps=0)
    assert (moved / "config.yaml").read_bytes() == written, "a refused run changes nothing"


@pytest.mark.parametrize("name", [name for name in shipped_configs() if name not in EVALUATIONS])
def test_recorded_settings_are_read_back_as_they_were(name, tmp_path):
    config = training_config(name, {"data": "x.jsonl"} if name in ("preferences", "reward") else {})
    RunDirectory(tmp_path).write_settings(config)
    assert training_config(tmp_path) == config.model_copy(update={"out": tmp_path})
    assert training_config(tmp_path, {"max_steps": 1}).max_steps == 1


def test_task_sources(small, tmp_path):
    source = TaskSource(small(eval_tasks=3, validation_tasks=2))
    one, two = source.batch(0), source.batch(2)
    assert not {task.id for task in one} & {task.id for task in two}
    assert [task.id for task in source.batch(0)] == [task.id for task in one]
    others = {task.id for task in source.validation} | {task.id for task in source.held_out}
    assert len(others) == 5 and not others & {task.id for task in one}
    assert [t.id for t in TaskSource(small(seed=5, eval_tasks=3)).held_out] == [t.id for t in source.held_out]

    save_jsonl(synthetic.tasks(WorldConfig(), 0, 0, 10), tmp_path / "mine.jsonl")
    file = TaskSource(small(data=str(tmp_path / "mine.jsonl"), tasks_per_step=4))
    sets = [{task.id for task in tasks} for tasks in (file.file_tasks, file.validation, file.held_out)]
    assert all(sets) and len(set.union(*sets)) == sum(map(len, sets))
    count = len(file.file_tasks)
    first_pass, second_pass = ([file.batch(i)[0].id for i in range(start, start + count)] for start in (0, count))
    assert sorted(first_pass) == sorted(second_pass) == sorted(sets[0]) and first_pass != second_pass


def told(count, texts=None):
    """Tasks that say a number each, or one of `texts`."""
    questions = (Question(id="q", question="What is Bo's code?", answers=("7",)),)
    codes = [i if texts is None else texts[i % len(texts)] for i in range(count)]
    chunks = [(Chunk(text=f"Bo: my code is {code}."),) for code in codes]
    return [Task(id=f"t{i}", chunks=part, questions=questions) for i, part in enumerate(chunks)]


@pytest.mark.parametrize("most", [200, 3])
def test_a_file_that_grows_moves_no_task(small, tmp_path, most):
    """Whether tasks come at the end, at the start or in between, and whatever the limit of the evaluations."""
    tasks = told(90)
    settings = {"data": str(tmp_path / "mine.jsonl"), "eval_tasks": most, "validation_tasks": most}
    trained: set[str] = set()
    evaluated: set[str] = set()
    for part in (tasks[20:60], tasks[20:65], tasks[65:10:-1], tasks):
        save_jsonl(part, tmp_path / "mine.jsonl")
        source = TaskSource(small(**settings))
        now_trained = {task.id for task in source.file_tasks}
        now_evaluated = {task.id for task in [*source.validation, *source.held_out]}
        assert now_trained and now_evaluated and len(source.held_out) <= most
        assert not trained & now_evaluated and not (most == 200 and evaluated & now_trained)
        trained, evaluated = trained | now_trained, evaluated | now_evaluated


def test_equal_conversations_are_on_one_side_and_told(small, tmp_path):
    save_jsonl(told(40, range(8)), tmp_path / "twins.jsonl")
    source = TaskSource(small(data=str(tmp_path / "twins.jsonl"), eval_tasks=3))
    trained, others = (
        {task.chunks[0].text for task in tasks} for tasks in (source.file_tasks, [*source.validation, *source.held_out])
    )
    assert trained and others and not trained & others
    assert source.notes == ["data: 32 of 40 tasks repeat a conversation under another id; equal ones are on one side"]


def test_a_run_is_resumed_on_its_own_tasks_only(small, tmp_path):
    tasks = synthetic.tasks(WorldConfig(), 0, 0, 12)
    path = tmp_path / "mine.jsonl"
    save_jsonl(tasks[:10], path)
    settings = {"data": str(path), "max_steps": 1}
    train(small(**settings))
    written = (small().out / "run.json").read_bytes()
    fingerprint = TaskSource(small(**settings)).fingerprint
    for other in (tasks[:9], tasks[2:], [*tasks[:9], tasks[9].model_copy(update={"meta": {"n": 1}})], tasks):
        save_jsonl(other, path)
        assert TaskSource(small(**settings)).fingerprint != fingerprint
    with pytest.raises(CheckpointError, match=r"began with other tasks .* another out"):
        train(small(**{**settings, "max_steps": 2}))
    save_jsonl(tasks[:10], path)
    moved, policy = path.rename(tmp_path / "moved.jsonl"), shutil.copytree(small().policy, tmp_path / "policy")
    assert train(small().out, data=str(moved), policy=str(policy), max_steps=2)["steps"] == 2
    assert (small().out / "run.json").read_bytes() == written


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("chat_template.jinja", "", "Hello. ", "another chat template than .*step-0, the checkpoint"),
        ("tokenizer.json", '"B":', '"\u00e9B":', "another tokenizer than .*step-0, the checkpoint"),
    ],
)
def test_a_policy_that_reads_its_prompts_otherwise_resumes_no_run(finished, tmp_path, file, old, new, message):
    settings = finished.model_copy(update={"out": tmp_path / "run", "max_steps": 1})
    shutil.copytree(finished.out, settings.out, symlinks=True)
    policy = Path(shutil.copytree(finished.policy, tmp_path / "policy"))
    text = (policy / file).read_text()
    (policy / file).write_text(text.replace(old, new, 1))
    with pytest.raises(CheckpointError, match=message):
        train(settings.model_copy(update={"policy": str(policy)}))
    (policy / file).write_text(text)
    assert train(settings.model_copy(update={"policy": str(policy)}))["steps"] == 1


def test_what_is_evaluated_is_not_trained_on(small, tmp_path):
    small = partial(small, eval_tasks=3)

    def write(name, tasks):
        save_jsonl(tasks, tmp_path / name)
        return str(tmp_path / name)

    world = WorldConfig()
    trained, others = synthetic.tasks(world, 0, 0, 6), synthetic.tasks(world, 9, 0, 3)
    mine, held = write("mine.jsonl", trained), write("held.jsonl", others)
    source = TaskSource(small(data=mine, eval_data=held))
    assert [task.id for task in source.held_out] == [task.id for task in others]
    assert [task.id for task in source.validation] == [trained[0].id]
    with pytest.raises(ConfigError, match=f"{trained[2].id!r}.*among the training tasks"):
        TaskSource(small(data=mine, eval_data=write("same.jsonl", [others[0], trained[2]])))
    renamed = trained[2].model_copy(update={"id": "another"})
    with pytest.raises(ConfigError, match=f"3 of 3 chunks .* word for word .* in {trained[2].id!r}"):
        TaskSource(small(data=mine, eval_data=write("renamed.jsonl", [renamed])))
    small_talk = others[0].model_copy(update={"chunks": (*others[0].chunks[:2], trained[2].chunks[2])})
    assert TaskSource(small(data=mine, eval_data=write("talk.jsonl", [small_talk]))).held_out == [small_talk]
    with pytest.raises(ConfigError, match="among the training tasks"):
        TaskSource(small(eval_data=write("synthetic.jsonl", synthetic.tasks(world, 0, 1234, 1))))
    assert TaskSource(small(seed=1, eval_data=held)).held_out == others
    with pytest.raises(ConfigError, match="split=train"):
        TaskSource(small(world={"split": "test"}))
    with pytest.raises(DataError, match="has 4 tasks, training needs at least 5"):
        TaskSource(small(data=write("few.jsonl", trained[:4])))
    copies = [trained[0].model_copy(update={"id": f"copy-{number}"}) for number in range(9)]
    with pytest.raises(DataError, match="has 9 tasks, of which 8 repeat a conversation, training needs at least 5"):
        TaskSource(small(data=write("copies.jsonl", copies)))
    with pytest.raises(DataError, match="has 1 tasks, training needs at least 2"):
        TaskSource(small(data=write("one.jsonl", trained[:1]), eval_data=held))


def test_a_data_set_with_splits_is_trained_on_its_training_split(small, tmp_path, monkeypatch):
    cache = use_as_hub_cache(monkeypatch, tmp_path / "cache")
    write_memalpha_split(cache, "test", "tested", 4)
    kinds = (small(data="memalpha", max_steps=1), SFTConfig(policy=small().policy, out=small().out, data="memalpha"))
    for settings in kinds:
        with pytest.raises(DataError, match=r"get train\.parquet"):
            train(settings)
        with pytest.raises(ConfigError, match="data: longmemeval is for evaluation only"):
            train(settings, data="longmemeval")
        with pytest.raises(ConfigError, match="train_on_evaluation_split: has no effect with data=synthetic"):
            train(settings, data="synthetic", train_on_evaluation_split=True)
    assert not small().out.exists()

    def texts(tasks):
        return {task.chunks[0].text.split()[0] for task in tasks}

    write_memalpha_split(cache, "train", "trained", 10)
    source = TaskSource(small(data="memalpha"))
    assert texts(source.file_tasks) == texts(source.validation) == texts(source.held_out) == {"trained"}
    source = TaskSource(small(data="memalpha", eval_data="memalpha"))
    assert texts(source.file_tasks) == texts(source.validation) == {"trained"} and texts(source.held_out) == {"tested"}
    assert {task.id for task in source.held_out} <= {task.id for task in [*source.file_tasks, *source.validation]}
    numbered = synthetic.tasks(WorldConfig(), 9, 0, 1)[0].model_copy(update={"id": source.file_tasks[0].id})
    save_jsonl([numbered], tmp_path / "numbered.jsonl")  # a file's ids are its own: an equal one is the same task
    with pytest.raises(ConfigError, match="among the training tasks"):
        TaskSource(small(data="memalpha", eval_data=str(tmp_path / "numbered.jsonl")))
    evaluation = small(data="memalpha", train_on_evaluation_split=True, eval_tasks=1, validation_tasks=1)
    write_memalpha_split(cache, "test", "tested", 6)
    assert texts(TaskSource(evaluation).file_tasks) == {"tested"}
    for name in ("memalpha", "memalpha_mab"):
        with pytest.raises(ConfigError, match="word for word in training tasks"):
            TaskSource(small(data=name, eval_data="memalpha", train_on_evaluation_split=True))


@pytest.mark.parametrize("below", ["", "deeper/run"])
def test_an_out_that_can_be_no_directory_is_refused_before_anything_is_loaded(small, tmp_path, monkeypatch, below):
    monkeypatch.setattr(loop, "_compose", None)
    (tmp_path / "a-file").write_text("mine")
    with pytest.raises(ConfigError, match=r"out: .*a-file is a file"):
        train(small(out=str(tmp_path / "a-file" / below)))
    assert (tmp_path / "a-file").read_text() == "mine"


@pytest.mark.parametrize("device", ["nope", "meta", "cuda:999"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_loaded(small, monkeypatch, device):
    monkeypatch.setattr(loop, "_compose", None)
    with pytest.raises(ConfigError, match=f"device: '{device}' cannot be used here .*try cpu"):
        train(small(device=device))
    assert not small().out.exists()


def test_training_tasks_without_a_question_are_refused(small, tmp_path):
    tasks, held = synthetic.tasks(WorldConfig(), 0, 0, 6), synthetic.tasks(WorldConfig(), 9, 0, 3)
    path = tmp_path / "mute.jsonl"
    save_jsonl(held, tmp_path / "held.jsonl")
    for more in ({}, {"eval_data": str(tmp_path / "held.jsonl")}):
        save_jsonl(tasks, path)
        trained = {task.id for task in TaskSource(small(data=str(path), **more)).file_tasks}
        save_jsonl([t.model_copy(update={"questions": ()}) if t.id in trained else t for t in tasks], path)
        with pytest.raises(DataError, match=r"mute\.jsonl .*has a question.*add questions"):
            TaskSource(small(data=str(path), **more))


@pytest.fixture(scope="module")
def policy(policy_path) -> TransformersPolicy:
    policy = load_policy(str(policy_path))
    assert isinstance(policy, TransformersPolicy) and policy.positions == 4096
    return policy


def check_tasks(policy: TransformersPolicy, settings: TrainConfig) -> None:
    TaskSource(settings).check(policy, settings.agent, load_schema(settings.agent.memory_schema))


@pytest.mark.parametrize("key, place", [("data", 0), ("data", 4), ("data", 5), ("eval_data", 0), ("eval_data", 2)])
def test_a_chunk_too_long_for_the_policy_is_named(small, tmp_path, policy, key, place):
    tasks = synthetic.tasks(WorldConfig(), 0, 0, 6)
    chunks = (*tasks[place].chunks, Chunk(text="x" * 3100))
    tasks[place] = tasks[place].model_copy(update={"chunks": chunks})
    save_jsonl(tasks, tmp_path / "long.jsonl")
    with pytest.raises(
        DataError, match=rf"{key}: .*long\.jsonl: chunk {len(chunks) - 1} of task {tasks[place].id!r} .*split the chunk"
    ):
        most = {"eval_tasks": 3, "validation_tasks": 2}
        check_tasks(policy, small(seed=1, **most, **{key: str(tmp_path / "long.jsonl")}))


def test_gold_operations_of_another_schema_are_refused(small, tmp_path):
    """No write could ever be right there: r4 would stay 0 and both baselines would be empty."""
    save_jsonl(synthetic.tasks(WorldConfig(), 0, 0, 5), tmp_path / "mine.jsonl")
    with pytest.raises(DataError, match=r"mine\.jsonl: gold_operations\[\d\] of task .*set agent\.memory_schema"):
        train(small(data=str(tmp_path / "mine.jsonl"), agent={"memory_schema": "life"}))
    assert not small().out.exists()


def test_what_an_algorithm_brings_along_goes_with_it():
    rloo = TrainConfig(out="x", algorithm="rloo", importance_sampling_level="sequence")
    assert (rloo.loss.scale_rewards, rloo.loss.loss_type) == ("none", "grpo")
    token = training_config(rloo, {"importance_sampling_level": "token"})
    assert (token.loss.scale_rewards, token.loss.loss_type) == ("none", "dr_grpo")
    ppo = TrainConfig(out="x", algorithm="ppo")
    assert (ppo.sampling.group_size, ppo.tasks_per_step) == (1, 64)
    assert training_config(ppo, {"algorithm": "grpo"}) == TrainConfig(out="x")
    assert training_config(ppo, {"algorithm": "dpo"}) == TrainConfig(out="x", algorithm="dpo")
    erl = TrainConfig(out="x", algorithm="erl", erl={"algorithm": 1})
    assert erl.loss.scale_rewards == "batch"
    assert training_config(erl, {"erl": {"algorithm": 2}}).loss.scale_rewards == "group"


def test_a_chunk_that_just_fits_is_trained_on(small, tmp_path, policy, monkeypatch):
    """The longest chunk that is let through leaves room for a full view and a full reply."""
    tasks = synthetic.tasks(WorldConfig(), 0, 0, 5)
    save_jsonl(tasks[1:], tmp_path / "held.jsonl")
    data = {"data": str(tmp_path / "mine.jsonl"), "eval_data": str(tmp_path / "held.jsonl"), "validation_tasks": 0}
    settings = small(**data)

    def is_refused(length: int) -> bool:
        chunks = (*tasks[0].chunks, Chunk(timestamp="2025-06-02", text="x" * length))
        save_jsonl([tasks[0].model_copy(update={"chunks": chunks})], tmp_path / "mine.jsonl")
        try:
            check_tasks(policy, settings)
        except DataError:
            return True
        return False

    longest = 2900 + bisect_left(range(2900, 3100), True, key=is_refused) - 1
    assert is_refused(longest + 1) and not is_refused(longest)
    chunk = TaskSource(settings).file_tasks[0].chunks[-1]
    schema = load_schema(settings.agent.memory_schema)
    prompt = policy.render(*writer_messages(Observation(chunk, "", ()), settings.agent, schema))
    left = policy.positions - len(prompt) - settings.agent.view_tokens - settings.agent.max_new_tokens
    assert 0 <= left <= 8
    monkeypatch.setattr(Trainer, "train", None)
    assert is_refused(longest + 1)
    with pytest.raises(DataError, match="split the chunk"):
        train(settings)
    assert not settings.out.exists(), "refused before any work"
