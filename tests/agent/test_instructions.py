"""The user's own words on what to remember: shown to the writer, or refused where nobody would read them."""

import pytest
from fake_policy import FakePolicy

from memalpha.agent.agent import MemoryAgent
from memalpha.cli.main import main as run_command
from memalpha.config import AgentConfig, TrainConfig, build_config
from memalpha.errors import ConfigError, DataError
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.schema import load_schema
from memalpha.store.store import MemoryStore

WORDS = "Remember allergies and medication.\nIgnore the weather."
SCHEMA = load_schema("mem-alpha")


def main(words, monkeypatch):
    """Run a command and return its exit code."""
    monkeypatch.setattr("sys.argv", ["memalpha", *words])
    with pytest.raises(SystemExit) as stop:
        run_command()
    return stop.value.code or 0


def recording(prompt: str = "full") -> FakePolicy:
    """A policy that skips every chunk."""
    skip = '<tool_call>{"name": "memory_skip", "arguments": {}}</tool_call>'
    return FakePolicy(lambda _: skip, "recorder", prompt)


def test_a_prompt_of_exact_bytes_refuses_them():
    with pytest.raises(ConfigError, match=r"instructions: the compact prompt cannot show them"):
        build_config(TrainConfig, {"out": "x", "agent": {"instructions": WORDS, "prompt": "compact"}}, "test")
    with MemoryStore.open(":memory:", embedder="hash") as store:
        with pytest.raises(ConfigError, match="'recorder': the compact prompt cannot show them"):
            MemoryAgent(recording("compact"), store, AgentConfig(instructions=WORDS))
        with pytest.raises(ConfigError, match="follows rules and reads no instructions"):
            MemoryAgent(ScriptedPolicy("add-all"), store, AgentConfig(instructions=WORDS))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["read", "{store}", "{chat}", "--policy", "tiny", "--instructions", "x"], "compact prompt"),
        (["read", "{store}", "{chat}", "--policy", "add_all", "--instructions", "x"], "reads no instructions"),
        (["read", "{store}", "{chat}", "--policy", "tiny", "--instructions", " "], "instructions: empty"),
        (["serve", "{store}", "--mcp", "--policy", "add_all", "--instructions", "x"], "reads no instructions"),
        (["serve", "{store}", "--mcp", "--read-only", "--instructions", "x"], "has no writer"),
    ],
)
def test_commands_refuse_them_before_a_store_is_made(command, message, tmp_path, monkeypatch, capsys):
    store, chat = tmp_path / "a.db", tmp_path / "chat.txt"
    chat.write_text("Ana: hi")
    assert main([word.format(store=store, chat=chat) for word in command], monkeypatch) == 2
    assert message in capsys.readouterr().err and not store.exists()


def test_the_commands_pass_them_on(tmp_path, monkeypatch, capsys):
    recorder, chat = recording(), tmp_path / "chat.txt"
    monkeypatch.setattr("memalpha.policy.load.load_policy", lambda name, **_: recorder)
    chat.write_text("Ana: hi")
    options = ["--policy", "x", "--embedder", "hash", "--instructions", WORDS]
    code = main(["read", str(tmp_path / "a.db"), str(chat), *options], monkeypatch)
    assert code == 0 and recorder.requests[0].messages[0]["content"].endswith(WORDS)
    served = []
    monkeypatch.setattr("memalpha.integrations.server.run.serve_stdio", served.append)
    code = main(["serve", str(tmp_path / "b.db"), "--mcp", *options], monkeypatch)
    assert code == 0 and served[0]._agent.config.instructions == WORDS


def test_long_instructions_leave_less_room_for_chunks(tmp_path):
    pytest.importorskip("torch")
    from tiny import tiny_policy

    from memalpha.tasks.formats.jsonl import save_jsonl
    from memalpha.train.rollouts.memory_tasks import TaskSource
    from memalpha.types import Task

    policy, file = tiny_policy(), tmp_path / "mine.jsonl"
    questions = [{"id": "q", "question": "who?", "answers": ["Ana"]}]
    save_jsonl([Task(id=f"t{n}", chunks=[{"text": f"{n}" * 900}], questions=questions) for n in range(6)], file)
    settings = {"out": str(tmp_path / "run"), "data": str(file), "validation_tasks": 0}

    def check(length: int | None) -> None:
        agent = {"view_tokens": 256, "max_new_tokens": 64, "instructions": length and "x" * length}
        config = build_config(TrainConfig, {**settings, "agent": agent}, "test")
        TaskSource(config).check(policy, config.agent, SCHEMA)

    check(None)
    with pytest.raises(DataError, match=r"chunk 0 of task 't0' has 90\d tokens.*with 400 of agent\.instructions"):
        check(400)
    with pytest.raises(ConfigError, match=r"agent\.instructions: no chunk fits beside 5000 tokens of instructions"):
        check(5000)
