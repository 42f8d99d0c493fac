"""An evaluation from its configuration: what it says before it works, and what it takes over from a training run."""

from pathlib import Path

import pytest
import yaml

from memalpha.config import EvalConfig, WorldConfig, build_config, load_config, training_config
from memalpha.errors import ConfigError, DataError, PolicyError
from memalpha.qa.from_config import load_config_tasks, load_run_settings, load_settings, run_evaluation
from memalpha.qa.reader import with_default_reader
from memalpha.tasks.datasets import babi
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train.rollouts.memory_tasks import TaskSource
from memalpha.types import Task


def test_tasks_in_another_schema_are_refused(tmp_path):
    save_jsonl(synthetic.tasks(WorldConfig(), 0, 0, 1), tmp_path / "mine.jsonl")
    keys = {"agent": {"memory_schema": "life"}, "systems": "scripted:oracle"}
    config = load_config(EvalConfig, "tasks", {"data": str(tmp_path / "mine.jsonl"), **keys})
    with pytest.raises(DataError, match=r"data: .*mine\.jsonl: gold_operations\[0\] .*set agent\.memory_schema"):
        run_evaluation(config)


def run_directory(path: Path, **settings) -> Path:
    (path / "checkpoints" / "best").mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump({"out": str(path), **settings}))
    return path


def test_a_run_directory_stands_for_its_own_evaluation(tmp_path):
    settings = {"policy": "some/start", "agent": {"max_new_tokens": 7}, "reward": {"metric": "f1"}}
    reader, sampling = {"kind": "policy", "k": 3}, {"stop_unreadable": False}
    run = run_directory(tmp_path / "run", **settings, reader=reader, sampling=sampling, eval_data="held.jsonl")
    config = load_run_settings(run)
    assert not config.sampling.stop_unreadable, "random weights may be evaluated as they were trained"
    assert (config.benchmark, config.data, config.limit) == ("tasks", "held.jsonl", None)
    assert config.systems == (str(run / "checkpoints" / "best"),)
    assert (config.agent.max_new_tokens, config.metric) == (7, "f1")
    assert (config.reader.policy, config.reader.k, config.reader.conflicts) == ("some/start", 3, "refuse")
    other = load_run_settings(run, {"data": "other.jsonl", "systems": "scripted:oracle", "reader": {"k": 5}})
    assert (other.data, other.systems, other.reader.k) == ("other.jsonl", ("scripted:oracle",), 5)
    assert other.reader.policy == "some/start"
    beside = load_run_settings(run, {"systems": ["rag", "trained"]})
    assert beside.systems == ("rag", str(run / "checkpoints" / "best"))
    run = run_directory(tmp_path / "sft", algorithm="sft", policy="some/start", reader={"kind": "policy"})
    assert load_run_settings(run, {"data": "held.jsonl"}).reader.policy == "some/start", "a supervised run alike"


def test_device_and_precision_are_those_of_the_run(tmp_path):
    run = run_directory(tmp_path / "run", device="nowhere", dtype="bfloat16", eval_data=str(tmp_path / "mine.jsonl"))
    config = load_run_settings(run, {"systems": "tiny"})
    assert (config.device, config.dtype) == ("nowhere", "bfloat16")
    pytest.importorskip("torch")
    save_jsonl(synthetic.tasks(WorldConfig(), 0, 0, 1), tmp_path / "mine.jsonl")
    with pytest.raises(PolicyError, match=r"device 'nowhere' \(.*try cpu"):
        run_evaluation(config)


def test_a_synthetic_run_is_evaluated_on_its_held_out_world(tmp_path):
    run = run_directory(tmp_path / "run", world={"pseudo_values": 0.6}, eval_tasks=3)
    config = load_run_settings(run)
    assert (config.benchmark, config.world.split, config.limit) == ("synthetic", "test", 3)
    moved = run_directory(tmp_path / "moved", world={"drills": 1.0}, eval_tasks=3, evaluation={"seed": 4})
    streams = run_directory(tmp_path / "streams", data="babi", eval_tasks=1, evaluation={"seed": 4})
    for folder in (run, moved, streams):
        held_out = TaskSource(training_config(folder / "config.yaml")).held_out
        assert load_config_tasks(load_run_settings(folder)) == held_out, "the conversations of its own evaluation"
    assert load_run_settings(run, {"benchmark": "state"}).benchmark == "state", "which asks no reader, not the run's"
    overrides = load_run_settings(run, {"data": "mine.jsonl"})
    assert (overrides.benchmark, overrides.data, overrides.limit) == ("tasks", "mine.jsonl", None)
    with pytest.raises(ConfigError, match="data: name the task file"):
        load_config_tasks(load_settings("tasks", {"systems": "scripted:add-all"}))


def test_the_conversations_that_a_run_was_trained_on_are_no_held_out_data(tmp_path, capsys):
    run = run_directory(tmp_path / "file", data=str(tmp_path / "mine.jsonl"))
    with pytest.raises(ConfigError, match=r"file divided .*mine.jsonl itself.*held out: .*summary.json"):
        load_run_settings(run, {"systems": "scripted:add-all"})
    load_run_settings(run, {"data": str(tmp_path / "other.jsonl")})
    load_run_settings(run, {"data": str(tmp_path / "mine.jsonl"), "systems": "rag"})
    load_run_settings(run_directory(tmp_path / "set", data="perltqa"), {"data": "perltqa"})  # its evaluation split
    assert capsys.readouterr().err == ""
    load_run_settings(run, {"data": str(tmp_path / "sub" / ".." / "mine.jsonl")})
    assert "not held out" in capsys.readouterr().err


def test_a_run_without_a_best_checkpoint_takes_its_newest(tmp_path):
    run = run_directory(tmp_path / "run")
    (run / "checkpoints" / "best").rmdir()
    with pytest.raises(PolicyError, match="without a checkpoint"):
        load_run_settings(run)
    (run / "checkpoints" / "step-4").mkdir()
    assert load_run_settings(run).systems == (str(run / "checkpoints" / "step-4"),)
    (run / "checkpoints" / "best").symlink_to("step-2")
    with pytest.raises(PolicyError, match="best names step-2, which is not there: name another"):
        load_run_settings(run)
    assert load_run_settings(run, {"systems": ["tiny"]}).systems == ("tiny",)


def test_a_run_on_babi_is_evaluated_on_the_streams_it_held_out(tmp_path):
    run = run_directory(tmp_path / "run", data="babi", eval_babi={"stories": 6}, eval_tasks=2)
    settings = load_run_settings(run, {"systems": ["scripted:oracle", "rag"]})
    assert (settings.benchmark, settings.babi.stories, settings.limit) == ("babi", 6, 2)
    prompts_seen = load_config_tasks(settings)
    assert len(prompts_seen) == 2 and all(len(task.meta["stories"]) == 6 for task in prompts_seen)
    assert [task.id for task in prompts_seen] == [task.id for task in babi.streams(settings.babi, "test", 0, 0, 2)]


def test_a_name_stands_for_an_evaluation():
    assert load_settings("babi").benchmark == "babi"
    assert load_settings("locomo").systems[0] == "empty" and load_settings("locomo").reader.kind == "copy"
    with pytest.raises(ConfigError, match=r"no configuration 'nonesuch'.* one of locomo, .*a data set: .*longmemeval"):
        load_settings("nonesuch")
    with pytest.raises(ConfigError, match=r"demo configures training: .* evaluations: locomo, search"):
        load_settings("demo", {"tasks": 3})
    with pytest.raises(ConfigError, match="benchmark: no data set 'nonesuch'"):
        load_config_tasks(EvalConfig(benchmark="nonesuch"))
    with pytest.raises(DataError, match="no option 'colour'"):
        load_config_tasks(EvalConfig(benchmark="babi", options={"colour": 1}))


def test_systems_whose_files_would_have_one_name_are_refused(tmp_path):
    for names, message in (
        (("a/b", "a-b"), r"'a-b' and 'a/b' would both .* eval/a-b\.json"),
        (("summary",), "'summary' and"),
    ):
        with pytest.raises(ConfigError, match=message):
            run_evaluation(EvalConfig(benchmark="synthetic", systems=names, out=tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_systems_that_were_evaluated_otherwise_do_not_share_a_folder(tmp_path):
    def run(systems, limit, **more):
        settings = {"benchmark": "synthetic", "systems": systems, "limit": limit, "out": tmp_path, **more}
        return run_evaluation(EvalConfig.model_validate({**settings, "agent": {"embedder": "hash"}}))

    run(("empty", "oracle"), 1)
    run(("empty", "full"), 1)  # beside them, on the same tasks
    with pytest.raises(ConfigError, match="holds oracle with other tasks: name another folder"):
        run(("empty", "full"), 2)
    with pytest.raises(ConfigError, match="holds full, oracle with other reader and metric"):
        run(("empty",), 1, reader={"kind": "copy"}, metric="f1")
    run(("empty", "full", "oracle"), 2)  # over them
    (tmp_path / "eval" / "summary.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"summary\.json is not of an evaluation"):
        run(("empty",), 2)


def test_a_policy_that_no_reader_asks_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"reader\.kind=copy asks no policy: set reader\.kind=policy"):
        build_config(EvalConfig, {"reader": {"kind": "copy", "policy": "tiny"}}, "test")
    with pytest.raises(ConfigError, match=r"reader\.kind=extractive asks no policy: set reader\.kind=policy"):
        training_config("smollm2", {"reader": {"policy": "tiny"}})
    (tmp_path / "own.yaml").write_text("reader: {policy: tiny}")
    with pytest.raises(ConfigError, match=r"reader\.kind=extractive asks no policy: set reader\.kind=policy"):
        training_config(tmp_path / "own.yaml")


def test_a_setting_that_the_kind_of_reader_does_not_read_is_refused(tmp_path):
    for kind, name, value in (("copy", "max_new_tokens", 64), ("extractive", "cite", True), ("policy", "searches", 6)):
        reader = {"kind": kind, name: value}
        for settings in ({"reader": reader}, {"reward": {"reader": reader}}):
            with pytest.raises(ConfigError, match=rf"reader\.{name}: has no effect with reader\.kind={kind}; leave"):
                training_config("smollm2", settings)
        with pytest.raises(ConfigError, match=rf"reader\.{name}: has no effect with reader\.kind={kind}; leave"):
            build_config(EvalConfig, {"reader": reader}, "test")
        (tmp_path / "own.yaml").write_text(yaml.safe_dump({"out": "runs/own", "reader": reader}))
        with pytest.raises(ConfigError, match=rf"own\.yaml: reader\.{name}: has no effect with reader\.kind={kind}"):
            training_config(tmp_path / "own.yaml")
        run = run_directory(tmp_path / kind, reader=reader, reward={"reader": reader})
        assert load_run_settings(run).reader.kind == kind
        assert training_config(run).model_dump()["reward"]["reader"]["kind"] == kind
    assert training_config("mem-alpha", {"reader": {"kind": "copy"}}).reader.k == 40


def test_a_rule_takes_the_place_of_a_presets_policy_and_earlier_runs_open(tmp_path):
    assert training_config("erl", {"reader": {"kind": "copy"}}).reader.policy is None
    run = run_directory(tmp_path / "run", policy="tiny", reader={"kind": "extractive", "policy": "tiny"})
    assert load_run_settings(run).reader == load_run_settings(run_directory(tmp_path / "other")).reader


def test_seeds_are_asked_together():
    config = EvalConfig(benchmark="synthetic", seeds=(0, 1), limit=2)
    assert [task.id for task in load_config_tasks(config)] == [
        f"demo-test-{seed}-{at}" for seed in (0, 1) for at in (0, 1)
    ]
    with pytest.raises(DataError, match="is there twice"):
        run_evaluation(EvalConfig(benchmark="synthetic", seeds=(3, 3), limit=1))


# ------------------------------------------------------------------------- default reader and metric of a task file

SENTENCES = ["I moved to Porto in May.", "My sister plays the violin."]
NOTES = ["city: Porto", "sister's instrument: violin"]


def make_task(texts, **meta) -> Task:
    turns = [{"id": f"0.{at}", "speaker": "user", "text": text} for at, text in enumerate(texts)]
    question = {"id": "q", "question": "Where did I move to in May?", "answers": ["Porto"], "evidence": ["0.0"]}
    return Task.model_validate({"id": "a", "chunks": [{"turns": turns}], "questions": [question | {"meta": meta}]})


def choose(task, **keys):
    config, metric, note = with_default_reader(EvalConfig(benchmark="tasks", **keys), [task])
    return config.reader.kind, metric, note


def test_what_is_set_stays():
    sentences = make_task(SENTENCES)
    assert choose(make_task(NOTES)) == ("extractive", "exact", None)
    kind, metric, note = choose(sentences)
    assert (kind, metric) == ("copy", "f1")
    assert str(note).startswith("the data holds sentences; taken by default: reader.kind=copy metric=f1;")
    assert choose(sentences, reader={"kind": "extractive"})[:2] == ("extractive", "f1")
    policy = {"kind": "policy", "policy": "tiny"}
    assert choose(sentences, reader=policy, metric="contains") == ("policy", "exact", None)
    assert choose(sentences, metric=None)[1] == "exact"  # as the settings of a run say it
    assert "metric" not in str(choose(make_task(SENTENCES, metric="contains"))[2])


@pytest.mark.parametrize(
    ("keys", "accuracy"), [({}, 1.0), ({"reader": {"kind": "extractive"}, "metric": "exact"}, 0.0)]
)
def test_sentences_are_scored_by_default(tmp_path, capsys, keys, accuracy):
    save_jsonl([make_task(SENTENCES)], tmp_path / "tasks.jsonl")
    settings = load_config(EvalConfig, "tasks", {"data": str(tmp_path / "tasks.jsonl"), "systems": ["rag"], **keys})
    (report,) = run_evaluation(settings)
    assert report.summary["accuracy"] == accuracy
    assert ("taken by default" in capsys.readouterr().err) == (not keys)
