"""Exact state without a reader: verdicts, memories compared with gold operations by words and by a judge, commands."""

import json

import pytest
from rollout import gold
from scripted_judge import Says, part
from typer.testing import CliRunner

from memalpha.cli import app
from memalpha.errors import ConfigError
from memalpha.qa import state_suite
from memalpha.qa.from_config import load_settings
from memalpha.qa.scoring.judge import Judge
from memalpha.qa.systems import Passage, Retrieval
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.tasks.synthetic.state_world import SITUATIONS
from memalpha.types import Chunk, Question, Task


def judged(*entries: str, core: str = "", answers=("Rome",), stale=("Oslo",), false="", marks="") -> str:
    meta = {"stale": list(stale), "false": false, "marks": marks}
    question = Question(id="q", question="Where?", answers=answers, meta=meta)
    return state_suite.verdict(Retrieval(question, (), 0, core, tuple(map(Passage, entries))))


@pytest.mark.parametrize(
    ("entries", "options", "expected"),
    [
        (["city: Rome"], {}, "right"),
        (["moved from Oslo to Rome"], {}, "right"),
        (["city: Romeo"], {}, "missing"),
        (["city: Rome", "city: Oslo"], {}, "stale"),
        (["city: Rome", "no longer lives in Oslo"], {}, "right"),
        (["city: Oslo"], {}, "stale"),
        ([], {"answers": ()}, "right"),
        (["city: Oslo"], {"answers": ()}, "stale"),
        (["city: Rome", "city: Lima"], {"false": "Lima"}, "false"),
        (["city: Rome", "The neighbour brags about Lima"], {"false": "Lima", "marks": "My neighbour brags"}, "right"),
        (["city: Rome", "lives in Lima"], {"false": "Lima", "marks": "My neighbour brags"}, "false"),
        ([], {"core": "city: Rome"}, "right"),
    ],
)
def test_verdicts(entries, options, expected) -> None:
    assert judged(*entries, **options) == expected


def test_a_perfect_writer_is_right_and_an_append_only_one_about_what_stays(tmp_path) -> None:
    systems = ["append-only", "scripted:oracle", "empty"]
    everything_in_view = {"limit": 3, "systems": systems, "out": tmp_path, "agent": {"view_related": 30}}
    result = state_suite.run_state(load_settings("state", everything_in_view))
    append_only, oracle, empty = result["systems"]
    assert oracle["right"] == 1.0 and oracle["interval"] is None
    right = {name: shares["right"] for name, shares in append_only["situations"].items()}
    assert all(right[name] == 1.0 for name in ("tracking", "before_change", "absence", "quoted"))
    assert all(right[name] == 0.0 for name in ("update", "update_cue", "correction", "retraction"))
    assert empty["situations"]["retraction"]["right"] == 1.0 and empty["situations"]["tracking"]["missing"] == 1.0
    assert json.loads((tmp_path / "eval" / "state.json").read_text(encoding="utf-8"))["questions"] == 60
    assert all(name in state_suite.format_state(result) for name in (*systems, *SITUATIONS))


def test_the_command() -> None:
    outcome = CliRunner().invoke(app, ["eval", "state", "limit=1", "systems=empty", "--json"])
    assert outcome.exit_code == 0 and json.loads(outcome.stdout)["conversations"] == 1
    refused = CliRunner().invoke(app, ["eval", "state", "limit=1", "systems=nobody"])
    assert isinstance(refused.exception, ConfigError) and "no system 'nobody'" in str(refused.exception)


def test_settings_have_an_effect_or_are_refused(monkeypatch) -> None:
    read = []
    monkeypatch.setattr(state_suite, "read_with_systems", lambda config, tasks: read.extend(tasks) or ())
    state_suite.run_state(load_settings("state", {"limit": 1}))
    state_suite.run_state(load_settings("state", {"limit": 1, "chunk_tokens": 60}))
    whole, cut = read
    assert len(cut.chunks) > len(whole.chunks) and len(cut.questions) == len(whole.questions)
    for name, value in {"metric": "f1", "reader": {"kind": "copy"}, "context_tokens": 9, "embedders": ["hash"]}.items():
        with pytest.raises(ConfigError, match=f"{name}: memalpha eval state does not use it"):
            load_settings("state", {name: value})
    with pytest.raises(ConfigError, match="embedders: memalpha eval locomo does not use it"):
        load_settings("locomo", {"embedders": ["hash"]})


# ----------------------------------------------------------------------------------------------------- gold operations

FIRST = "Ana lives in Oslo with two cats"
MOVED = "Ana lives in Rome"
TASK = Task(
    id="ana",
    chunks=(Chunk(text="I live in Oslo", index=0), Chunk(text="Rome now. Bob says I am rich", index=1)),
    gold_operations=(gold("insert", 0, FIRST), gold("update", 1, MOVED, FIRST)),
    meta={"interference": [[1, "Ana is rich"]]},
)


@pytest.mark.parametrize(
    ("text", "fact", "expected"),
    [
        ("moved: Rome", "city: Rome", True),
        ("moved: Romeo", "city: Rome", False),
        ("two cats live with Ana in Oslo", FIRST, True),
        ("Ana lives in Oslo", FIRST, False),
    ],
)
def test_words_decide_strictly(text, fact, expected):
    assert state_suite.says(text, fact) == expected


def test_what_is_compared():
    before, after = (FIRST, "hello"), (FIRST, MOVED, "Ana is rich")
    statements = state_suite.compare_task(TASK, [before, after])
    assert all(statement.is_entry == (score == "precision") for score, statement in statements)
    items = [(score, statement.text, statement.sources) for score, statement in statements]
    assert items[:3] == [("recall", FIRST, before), ("precision", FIRST, (FIRST,)), ("precision", "hello", (FIRST,))]
    changed = [("recall", MOVED, after), ("omitted", MOVED, after), ("stale", FIRST, (FIRST, "Ana is rich"))]
    written = [("precision", text, (MOVED,)) for text in (MOVED, "Ana is rich")]
    assert items[3:] == [*changed, *written, ("false", "Ana is rich", after)]


def scores(tmp_path, system: str, **settings) -> dict:
    save_jsonl([TASK], tmp_path / "t.jsonl")
    overrides = {"data": str(tmp_path / "t.jsonl"), "systems": [system], **settings}
    [row] = state_suite.score_memories(load_settings("state", overrides))["systems"]
    return {score: None if row[score] is None else row[score]["value"] for score in state_suite.SCORES} | {
        "un": row["unjudged"]
    }


def test_the_oracle_states_all_and_an_empty_memory_nothing(tmp_path):
    perfect = {"recall": 1.0, "precision": 1.0, "false": 0.0, "omitted": 0.0, "stale": 0.0, "un": 0}
    assert scores(tmp_path, "scripted:oracle") == perfect
    nothing = {"recall": 0.0, "precision": None, "false": 0.0, "omitted": 1.0, "stale": 0.0, "un": 0}
    assert scores(tmp_path, "empty") == nothing


def test_a_judge_decides_in_other_words_and_may_fail(tmp_path, monkeypatch):
    def reply(prompt: str, *_) -> str:
        if "<entry>" in prompt:
            return "supported" if "Rome" in part(prompt, "facts") else "no idea"
        return "stated" if "Rome now" in part(prompt, "entries") else "missing"

    monkeypatch.setattr(state_suite, "load_judge", lambda config: Judge([Says(reply)]))
    found = scores(tmp_path, "append-only", judge={"judges": ["fake"]})
    # Two entries, one of each chunk: the first has no verdict, the second is supported.
    assert found == {"recall": 0.5, "precision": 1.0, "false": 1.0, "omitted": 0.0, "stale": 1.0, "un": 1}


def test_the_command_compares_memories_with_gold_operations(tmp_path):
    save_jsonl([TASK], tmp_path / "t.jsonl")
    arguments = ["eval", "state", f"data={tmp_path}/t.jsonl", "systems=[append-only]", f"out={tmp_path}/run"]
    shown = CliRunner().invoke(app, [*arguments, "--json"])
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout)
    assert json.loads((tmp_path / "run" / "eval" / "gold_scores.json").read_text()) == result
    assert "by words; conversations: 1\n" in state_suite.format_gold_scores(result)


def test_tasks_without_gold_operations_are_refused(tmp_path):
    save_jsonl([TASK.model_copy(update={"gold_operations": ()})], tmp_path / "t.jsonl")
    refused = CliRunner().invoke(app, ["eval", "state", f"data={tmp_path}/t.jsonl", "systems=[empty]"])
    assert "task ana has no gold operations" in str(refused.exception)
