"""A teacher's conversations: the best attempt becomes rows, a stopped call resumes, nothing is left out unsaid."""

import json
from pathlib import Path

import pytest
from runs import lines
from standin import StandIn

from memalpha.agent.prompts import prompted_config, writer_messages
from memalpha.config import AgentConfig, WorldConfig
from memalpha.errors import ConfigError, DataError, PolicyError
from memalpha.policy.load import load_policy
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa import teacher
from memalpha.qa.reader import load_reader
from memalpha.qa.teacher import RowsFile, write_rows
from memalpha.store.schema import load_schema
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.tasks.synthetic import worlds
from memalpha.train.data.demonstrations import load_rows
from memalpha.types import Chunk, Observation, Question, Task

READER = load_reader("extractive")


def tasks(count: int = 4) -> list[Task]:
    """Return conversations without gold operations."""
    made = worlds.tasks(WorldConfig(preset="demo"), 5, 0, count)
    return [task.model_copy(update={"gold_operations": ()}) for task in made]


def written(path: Path, policy, some=None, **options):
    return write_rows(some or tasks(), policy, RowsFile(path), reader=READER, metric="contains", **options)


def insert_lines(body) -> dict:
    """Return a message that inserts every line of the chunk."""
    chunk = body["messages"][-1]["content"].partition("New part of the conversation")[2].split("\n")[1:]
    notes = [json.dumps({"category": "semantic", "content": line.partition(": ")[2]}) for line in chunk if line.strip()]
    functions = [{"name": "memory_insert", "arguments": note} for note in notes]
    calls = [{"type": "function", "id": str(n), "function": call} for n, call in enumerate(functions)]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def test_of_several_attempts_the_best_is_kept(tmp_path):
    asked: dict[str, int] = {}

    def reply(body):
        """Write nothing the first time that a chunk is shown on an empty memory, and then every line."""
        shown = body["messages"][-1]["content"]
        asked[shown] = asked.get(shown, 0) + 1
        return "Nothing." if "(none)" in shown and asked[shown] % 2 else insert_lines(body)

    with StandIn(reply) as server:
        policy = load_policy(f"{server.url}#teacher")
        results = written(tmp_path / "rows.jsonl", policy, attempts=2, temperature=0.7)
    one = written(tmp_path / "one.jsonl", ScriptedPolicy("add-all"))
    kept = [result for result in results if result.reason == "kept"]
    assert kept and all(max(result.scores) > result.empty for result in kept)
    for result, full in zip(results, one, strict=True):
        assert len(result.scores) == 2 and max(result.scores) >= max(full.scores) - 1e-9
        assert (result.rows > 0) is (result.reason == "kept")
    assert {row["task"] for row in lines(tmp_path / "rows.jsonl")} == {result.task for result in kept}


def test_rows_have_the_prompts_of_the_student_and_can_be_trained_on(tmp_path):
    policy = load_policy("tiny")
    student = prompted_config(AgentConfig(), policy)
    written(tmp_path / "rows.jsonl", ScriptedPolicy("add-all"), student=student)
    rows = lines(tmp_path / "rows.jsonl")
    by_id = {task.id: task for task in tasks()}
    first = [row for row in rows if row["chunk"] == 0]
    assert first and student.prompt == "compact"
    for row in first:
        task = by_id[row["task"]]
        messages, _ = writer_messages(Observation(task.chunks[0], task=task), student, load_schema("mem-alpha"))
        assert row["prompt"] == [dict(message) for message in messages]
    loaded = load_rows(tmp_path / "rows.jsonl", policy)
    assert len(loaded) == len(rows)
    assert "memory_insert" in policy.tokenizer.decode(loaded[0][0].completion_ids)


def test_a_stopped_call_resumes_to_the_same_files(tmp_path, monkeypatch):
    monkeypatch.setattr(teacher, "PARALLEL_ROLLOUTS", 1)
    whole = written(tmp_path / "whole.jsonl", ScriptedPolicy("add-all"))

    class Failing(ScriptedPolicy):
        asked = 0

        def sample(self, requests):
            self.asked += 1
            if self.asked == 6:
                raise PolicyError("no answer")
            return super().sample(requests)

    with pytest.raises(PolicyError, match="no answer"):
        written(tmp_path / "parts.jsonl", Failing("add-all"))
    assert 0 < len(lines(tmp_path / "parts.scores.jsonl")) < len(whole)
    with (tmp_path / "parts.jsonl").open("a") as file:
        file.write('{"task": "half')  # a line that a crash cut off
    assert written(tmp_path / "parts.jsonl", ScriptedPolicy("add-all")) == whole
    for name in ("{}.jsonl", "{}.scores.jsonl"):
        assert (tmp_path / name.format("parts")).read_bytes() == (tmp_path / name.format("whole")).read_bytes()
    assert written(tmp_path / "parts.jsonl", ScriptedPolicy("add-all")) == whole, "all done: nobody is asked"


def test_what_is_not_kept_is_said(tmp_path):
    lonely = Task(id="no question", chunks=(Chunk(text="Hi."),))
    question = Question(id="q", question="Who?", answers=("Ana",))
    failing = Task(id="nothing", chunks=(Chunk(text="Hi."),), questions=(question,))
    results = written(tmp_path / "rows.jsonl", ScriptedPolicy("fixed", text="Nothing."), [lonely, failing])
    assert [result.reason for result in results] == ["no question", "no call was executed"]
    assert not (tmp_path / "rows.jsonl").exists() or not lines(tmp_path / "rows.jsonl")


def test_wrong_use_is_refused_in_words(tmp_path):
    with pytest.raises(ConfigError, match="all attempts would be the same"):
        written(tmp_path / "rows.jsonl", ScriptedPolicy("add-all"), attempts=2)
    with pytest.raises(DataError, match="same id"):
        written(tmp_path / "rows.jsonl", ScriptedPolicy("add-all"), tasks(1) * 2)
    with pytest.raises(ConfigError, match=r"name a \.jsonl file"):
        RowsFile(tmp_path / "rows.json")
    (tmp_path / "mine.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    with pytest.raises(DataError, match=r"mine\.jsonl:1: not a line that memalpha data write wrote"):
        RowsFile(tmp_path / "mine.jsonl")


def test_the_command_says_what_it_kept(tmp_path, memalpha):
    save_jsonl(tasks(), tmp_path / "mine.jsonl")
    words = ["data", "write", str(tmp_path / "mine.jsonl"), "--policy", "scripted:add-all"]
    code, out, _ = memalpha(*words, "--out", tmp_path / "rows.jsonl", "--student", "tiny", "--json")
    value = json.loads(out)
    assert code == 0 and value["rows"] == len(lines(tmp_path / "rows.jsonl")) and sum(value["reasons"].values()) == 4


def test_conversations_without_an_executed_call_are_written_again(tmp_path, memalpha):
    save_jsonl(tasks(2), tmp_path / "mine.jsonl")
    is_broken = True

    def reply(body):
        """Fail at the second conversation as long as the server is broken."""
        is_second = any(turn.text in str(body) for chunk in tasks(2)[1].chunks for turn in chunk.turns)
        return "Internal error" if is_broken and is_second else insert_lines(body)

    with StandIn(reply) as server:
        words = ["data", "write", tmp_path / "mine.jsonl", "--policy", f"{server.url}#m", "--reader", "extractive"]
        words += ["--out", tmp_path / "rows.jsonl"]
        out = memalpha(*words)[1]
        assert "1 not kept: no call was executed" in out and "memalpha check-policy http" in out
        assert "--reader names another" not in out
        assert [line["reply"] for line in lines(tmp_path / "rows.scores.jsonl")] == ["", "Internal error"]
        is_broken = False
        before = len(server.bodies)
        out = memalpha(*words)[1]
        assert "1 written again: no call was executed" in out and "not kept: no call" not in out
        assert len(server.bodies) - before == len(tasks(2)[1].chunks) + 1, "and the check of the endpoint"
        assert "written again" not in memalpha(*words)[1]
    assert [result.reply for result in RowsFile(tmp_path / "rows.jsonl").conversations.values()] == ["", ""]


def test_a_reply_without_a_call_is_no_example_of_skipping(tmp_path, memalpha):
    save_jsonl(tasks(), tmp_path / "mine.jsonl")
    garbled = [task.chunks[-1].turns[0].text for task in tasks()]

    def reply(body):
        return "garbage %%% sorry" if any(text in str(body) for text in garbled) else insert_lines(body)

    with StandIn(reply) as server:
        words = ["data", "write", tmp_path / "mine.jsonl", "--policy", f"{server.url}#m", "--reader", "extractive"]
        out = memalpha(*words, "--out", tmp_path / "rows.jsonl", "--metric", "contains")[1]
        rows = lines(tmp_path / "rows.jsonl")
        kept = {row["task"] for row in rows}
        assert kept and f"{len(kept)} chunk" in out and "of kept conversations without a row" in out
        assert all(row["chunk"] < len(tasks()[0].chunks) - 1 for row in rows), "no row where the reply was garbage"
        out = memalpha(*words, "--out", tmp_path / "rows.jsonl", "--metric", "f1")[1]
        assert f"{len(kept)} conversation" in out and "kept as an earlier call wrote and scored" in out


def test_another_metric_is_another_answer(tmp_path, memalpha):
    save_jsonl(tasks(2), tmp_path / "mine.jsonl")
    words = ["data", "write", tmp_path / "mine.jsonl", "--policy", "scripted:add-all", "--out", tmp_path / "rows.jsonl"]
    code, out, _ = memalpha(*words, "--reader", "extractive", "--metric", "exact")
    assert code == 1 and "without" in out and "rows.scores.jsonl the same command writes them again" in out
    assert memalpha(*words, "--reader", "extractive", "--metric", "contains")[0] == 0
