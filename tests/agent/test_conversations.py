"""Reading many conversations: each into its namespace, whole or not at all, over processes that may be killed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from memalpha.agent.agent import MemoryAgent
from memalpha.agent.conversations import ConversationResult, read_conversations, shard_of
from memalpha.errors import ConfigError, PolicyError, PromptTooLong
from memalpha.policy.load import load_policy
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.checks.integrity import examine
from memalpha.store.store import MemoryStore
from memalpha.tasks.formats.jsonl import load_jsonl, save_jsonl
from memalpha.tasks.load import load_tasks
from memalpha.types import Operation

COUNT = 150


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many") / "tasks.jsonl"
    save_jsonl(load_tasks("synthetic", COUNT), path)
    return path


def first_of(tasks: Path, count: int) -> Path:
    """Return a file of the first tasks."""
    part = tasks.with_name(f"first {count}.jsonl")
    part.write_bytes(b"".join(tasks.read_bytes().splitlines(keepends=True)[:count]))
    return part


def logs(store: Path | str) -> dict[str, list[Operation]]:
    """Return the log of each namespace, without its times."""
    with MemoryStore.open(store, create=False) as opened:
        return {
            name: [operation for *_, operation in opened.namespace(name).log()] for name in sorted(opened.namespaces())
        }


@pytest.fixture(scope="module")
def expected(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Operation]]:
    """Logs of an uninterrupted reading by one process."""
    store = tmp_path_factory.mktemp("whole") / "store.db"
    summary = read_conversations(store, tasks, "add_all")
    assert (summary.read, summary.present, summary.failed) == (COUNT, 0, [])
    return logs(store)


def test_each_conversation_gets_the_log_of_reading_it_alone(tasks: Path, expected, tmp_path: Path) -> None:
    policy = load_policy("add_all")
    assert sorted(expected) == sorted(task.id for task in load_jsonl(tasks))
    for task in load_jsonl(tasks)[:8]:
        with MemoryStore.open(tmp_path / f"{task.id}.db") as store:
            agent = MemoryAgent(policy, store)
            for chunk in task.chunks:
                agent.read(chunk, source=task.id)
            assert [operation for *_, operation in store.log()] == expected[task.id]


def test_reading_again_reads_nothing_and_more_lines_are_added(tasks: Path, expected, tmp_path: Path) -> None:
    store, part = tmp_path / "store.db", first_of(tasks, 10)
    results: list[ConversationResult] = []
    assert read_conversations(store, part, "add_all", progress=results.append).read == 10
    assert {result.status for result in results} == {"read"} and len({result.task for result in results}) == 10
    summary = read_conversations(store, first_of(tasks, 30), "add_all")
    assert (summary.read, summary.present) == (20, 10)
    assert logs(store).items() <= expected.items() and not examine(store).problems


def test_shards_share_the_conversations(tasks: Path, expected, tmp_path: Path) -> None:
    shards = [tmp_path / f"{index}.db" for index in range(3)]
    for index, store in enumerate(shards):
        read_conversations(store, first_of(tasks, 30), "add_all", shard=(index, 3))
    parts = [logs(store) for store in shards]
    assert all(parts) and sum(map(len, parts)) == 30
    together = {name: log for part in parts for name, log in part.items()}
    assert len(together) == 30 and together.items() <= expected.items()
    assert [shard_of(f"task-{number}", 4) for number in range(6)] == [0, 3, 0, 2, 2, 1]  # the same on every machine
    with pytest.raises(ConfigError, match="shard 3/3: 0/3 to 2/3"):
        read_conversations(tmp_path / "none.db", tasks, "add_all", shard=(3, 3))


def test_one_postgres_holds_all_shards(tasks: Path, expected, postgres_url: str) -> None:
    part = first_of(tasks, 6)
    shards = [read_conversations(postgres_url, part, "add_all", shard=(index, 2)) for index in range(2)]
    assert sum(summary.read for summary in shards) == 6 and not any(summary.present for summary in shards)
    assert read_conversations(postgres_url, part, "add_all").present == 6
    names = [task.id for task in load_jsonl(part)]
    assert logs(postgres_url) == {name: expected[name] for name in sorted(names)}


def test_a_failed_conversation_leaves_nothing_and_is_read_again(tmp_path: Path, monkeypatch) -> None:
    class FailingPolicy(ScriptedPolicy):
        limit = 20

        def sample(self, requests):
            if any(len(request.observation.chunk.render()) > self.limit for request in requests):
                raise PromptTooLong("too long", "lower view_tokens")
            return super().sample(requests)

    policy = FailingPolicy("add-all")
    monkeypatch.setattr("memalpha.agent.conversations.load_policy", lambda _: policy)
    lines = [
        json.dumps({"id": "a", "chunks": [{"text": "user: hi"}, {"text": "x" * 30}]}),
        json.dumps({"id": "b", "chunks": [{"text": "user: short"}]}),
        json.dumps({"id": "b", "chunks": [{"text": "user: other"}]}),
        json.dumps({"id": "c", "chunks": [{"text": " "}]}),
        '{"chunks": []}',
        json.dumps({"id": "quiet", "chunks": [{"turns": [{"speaker": "assistant", "text": "hm"}]}]}),
    ]
    tasks, store = tmp_path / "tasks.jsonl", tmp_path / "store.db"
    tasks.write_text("\n".join(lines) + "\n", encoding="utf-8")
    summary = read_conversations(store, tasks, "fails")
    assert {result.task: result.error.removeprefix(f"{tasks}:") for result in summary.failed} == {
        "a": "1: chunk 2 of 2: too long: lower view_tokens",
        "b": "3: id: task 'b' is on a line before: ids are unique",
        "c": "4: chunks[0].text: empty: there is nothing to read",
        "": "5: id: Field required; chunks: empty: a task has at least one chunk",
    }
    assert {name: len(log) for name, log in logs(store).items()} == {"b": 1, "quiet": 0}
    policy.limit = 100
    again = read_conversations(store, tasks, "fails", max_errors=2)
    assert (again.read, again.present, again.stopped, len(again.failed)) == (1, 1, True, 2)
    assert {name: len(log) for name, log in logs(store).items()} == {"a": 2, "b": 1, "quiet": 0}
    assert not examine(store).problems


def test_a_policy_that_cannot_be_loaded_creates_no_store(tasks: Path, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="nobody"):
        read_conversations(tmp_path / "store.db", tasks, "scripted:nobody")
    assert not (tmp_path / "store.db").exists()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the workers in /proc")
def test_killed_workers_and_a_killed_reading_lose_and_double_nothing(tasks: Path, expected, tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    command = [sys.executable, "-m", "memalpha", "read", str(store), str(tasks), "--policy", "add_all"]
    command += ["--namespaces", "task", "--workers", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    wait_for(lambda: count_namespaces(store) >= 5)
    os.kill(children(process.pid)[-1], signal.SIGKILL)
    wait_for(lambda: count_namespaces(store) >= 20)
    workers = children(process.pid)
    process.kill()
    process.wait()
    wait_for(lambda: not any(map(is_running, workers)))  # they end by themselves
    assert 20 <= count_namespaces(store) < COUNT, "the kill came too late to interrupt anything"
    summary = read_conversations(store, tasks, "add_all")
    assert summary.read + summary.present == COUNT and summary.present >= 20 and not summary.failed
    assert logs(store) == expected and not examine(store).problems


def count_namespaces(store: Path) -> int:
    if not store.exists():
        return 0
    try:
        with closing(sqlite3.connect(store)) as connection:
            return connection.execute("SELECT count(*) FROM namespaces").fetchone()[0]
    except sqlite3.OperationalError:  # the tables are not there yet
        return 0


def children(pid: int) -> list[int]:
    """Return the worker processes of a process, oldest first."""
    pids = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return [pid for pid in sorted(pids) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""  # empty: ended, not yet reaped
    except FileNotFoundError:
        return False


def wait_for(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
