"""Interrupted evaluations: what is done is kept, the same command resumes, another one begins again; progress lines."""

import io
import json
from contextlib import closing

import pytest
from typer.testing import CliRunner

from memalpha.cli.main import app
from memalpha.config import EvalConfig, load_config
from memalpha.errors import ConfigError, EvaluationError
from memalpha.policy.decoding import DecodingQueue
from memalpha.policy.reply_cache import AnswerCache
from memalpha.qa import from_config
from memalpha.qa.from_config import MARKER, REPLIES, run_evaluation
from memalpha.qa.progress import SECONDS, line_progress
from memalpha.qa.systems import EmptySystem
from memalpha.text_files import lock_file

TASK = {
    "id": "ana",
    "chunks": [{"turns": [{"id": "0.0", "speaker": "user", "text": "pet: cat"}]}],
    "questions": [{"id": "q", "question": "What is the pet?", "answers": ["cat"], "evidence": ["0.0"]}],
}
FAULT: list[BaseException] = []


class Stoppable(EmptySystem):
    """Raises the error in `FAULT`, if there is one."""

    def read(self, chunk):
        if FAULT:
            raise FAULT[0]


@pytest.fixture(autouse=True)
def no_fault():
    yield
    FAULT.clear()


@pytest.fixture
def settings(tmp_path):
    data, out = tmp_path / "tasks.jsonl", tmp_path / "run"
    data.write_text(json.dumps(TASK) + "\n", encoding="utf-8")

    def make(**keys) -> EvalConfig:
        keys = {"data": str(data), "out": str(out), "systems": ["rag", f"{__name__}:Stoppable", "full"], **keys}
        return load_config(EvalConfig, "tasks", keys)

    return make


def evaluated_systems(monkeypatch) -> list[str]:
    names: list[str] = []
    load = from_config.load_system

    def counting(name, **options):
        names.append(name)
        return load(name, **options)

    monkeypatch.setattr(from_config, "load_system", counting)
    return names


@pytest.mark.parametrize(
    ("fault", "error"), [(KeyboardInterrupt(), KeyboardInterrupt), (OSError("x"), EvaluationError)]
)
def test_the_same_command_resumes_with_the_systems_that_are_left(settings, tmp_path, monkeypatch, fault, error):
    whole = run_evaluation(settings(out=str(tmp_path / "whole")))
    assert not (tmp_path / "whole" / "eval" / MARKER).exists()
    FAULT.append(fault)
    with pytest.raises(error):
        run_evaluation(settings())
    folder = tmp_path / "run" / "eval"
    assert list(json.loads((folder / "summary.json").read_text())["systems"]) == ["rag"]
    FAULT.clear()
    names = evaluated_systems(monkeypatch)
    reports = run_evaluation(settings())
    assert names == [f"{__name__}:Stoppable", "full"]
    assert [report.name for report in reports] == ["rag", f"{__name__}:Stoppable", "full"]
    assert [report.records for report in reports] == [report.records for report in whole]
    assert [report.summary["accuracy"] for report in reports] == [report.summary["accuracy"] for report in whole]
    assert len(json.loads((folder / "summary.json").read_text())["systems"]) == 3
    assert not (folder / MARKER).exists()
    names.clear()
    run_evaluation(settings())  # a whole one is evaluated anew
    assert len(names) == 3


def test_a_local_model_goes_on_within_a_system(settings, tmp_path, monkeypatch):
    """After Ctrl-C no reply that a local writer or reader gave is sampled again, and the report is the same."""
    submit, collect, sampled, stop_after = DecodingQueue.submit, DecodingQueue.collect, [], [10**9]

    def counting(queue, requests):
        sampled.extend(requests)
        return submit(queue, requests)

    def stopping(queue):
        stop_after[0] -= 1
        if stop_after[0] < 0:
            raise KeyboardInterrupt
        return collect(queue)

    monkeypatch.setattr(DecodingQueue, "submit", counting)
    monkeypatch.setattr(DecodingQueue, "collect", stopping)

    tiny = {"systems": ["tiny"], "reader": {"kind": "policy", "policy": "tiny"}}
    whole = run_evaluation(settings(**tiny, out=str(tmp_path / "whole")))
    count = len(sampled)
    stop_after[0] = 1
    with pytest.raises(KeyboardInterrupt):
        run_evaluation(settings(**tiny))
    replies = tmp_path / "run" / "eval" / REPLIES
    with closing(AnswerCache(replies)) as file:
        kept = len(file)
    assert 0 < kept < count
    stop_after[0], sampled[:] = 10**9, []
    again = run_evaluation(settings(**tiny))
    assert len(sampled) == count - kept
    assert [report.records for report in again] == [report.records for report in whole]
    assert not list(replies.parent.glob(f"{REPLIES}*")), "removed with the mark"


@pytest.mark.parametrize("metric", ["f1", None])
def test_another_configuration_begins_again_with_a_note_and_an_earlier_checkout_resumes(
    settings, tmp_path, monkeypatch, capsys, metric
):
    FAULT.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_evaluation(settings())
    assert "interrupted" not in capsys.readouterr().err
    FAULT.clear()
    marker = tmp_path / "run" / "eval" / MARKER
    fields = json.loads(marker.read_text())
    fields["provenance"]["data_sha256"] = {"tasks.jsonl": "0"}  # an earlier checkout wrote it
    marker.write_text(json.dumps(fields))
    names = evaluated_systems(monkeypatch)
    run_evaluation(settings() if metric is None else settings(metric=metric))
    assert ("rag" in names) == (metric is not None)
    assert ("note: the interrupted evaluation" in capsys.readouterr().err) == (metric is not None)


def test_a_damaged_report_is_named(settings, tmp_path):
    FAULT.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_evaluation(settings())
    (tmp_path / "run" / "eval" / "rag.jsonl").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"cannot be read.*remove .*\.unfinished"):
        run_evaluation(settings())


def test_two_evaluations_do_not_share_a_folder(settings, tmp_path):
    run_evaluation(settings())
    with (
        lock_file(tmp_path / "run" / "eval" / ".lock", "a test", ConfigError),
        pytest.raises(ConfigError, match="another out"),
    ):
        run_evaluation(settings())
    assert run_evaluation(settings())


def test_the_command_says_how_to_resume(settings, tmp_path):
    FAULT.append(KeyboardInterrupt())
    words = ["eval", "tasks", f"data={tmp_path / 'tasks.jsonl'}", f"systems=[rag,{__name__}:Stoppable]"]
    settings()
    ended = CliRunner().invoke(app, [*words, f"out={tmp_path / 'run'}"])
    assert ended.exit_code == 130
    assert "the same command resumes" in ended.stderr
    assert "name out=DIR" in CliRunner().invoke(app, words).stderr
    FAULT.clear()
    resumed = CliRunner().invoke(app, [*words, f"out={tmp_path / 'run'}", "--json"])
    assert "resuming: rag done" in resumed.stderr
    assert [summary["system"] for summary in json.loads(resumed.stdout)] == ["rag", f"{__name__}:Stoppable"]


def test_lines_of_progress_come_now_and_then():
    stream, now = io.StringIO(), [0.0]
    report = line_progress("chunks", stream, lambda: now[0])
    for done in range(1, 101):
        now[0] += SECONDS / 10
        report("slow", done, 100)
        report("other", done, 5000)
    report("quick", 1, 1)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "slow: 11 of 100 chunks"
    assert lines[-1] == "slow: 100 of 100 chunks" or lines[-2] == "slow: 100 of 100 chunks"
    assert 9 <= sum(line.startswith("slow") for line in lines) <= 12
    assert not any(line.startswith("quick") for line in lines)  # no line for what takes no time


def test_a_folder_that_cannot_be_written_is_said_before_the_work(settings, tmp_path, monkeypatch):
    (tmp_path / "run").write_text("")
    names = evaluated_systems(monkeypatch)
    with pytest.raises(ConfigError, match="out: cannot write to"):
        run_evaluation(settings())
    assert names == []
