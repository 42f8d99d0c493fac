"""Every example runs at a tiny size, and the pages on extending memalpha show its code word for word."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from standin import StandIn

import memalpha.tasks.catalog
from memalpha import load_tasks
from memalpha.config import AgentConfig, RewardConfig, training_config
from memalpha.errors import ConfigError, DataError, RewardError
from memalpha.qa.memory_reward import MemoryReward
from memalpha.store.store import MemoryStore

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
TESTED = {
    "chatbot",
    "langgraph_agent",
    "make_cases",
    "own_algorithm",
    "own_data_set",
    "own_embedder",
    "own_reward",
    "own_system",
    "own_tool",
    "ten_line_chat",
    "train_on_own_data",
}
PAGES = {
    "algorithm": "own_algorithm",
    "reward": "own_reward",
    "data-set": "own_data_set",
    "system": "own_system",
    "embedder": "own_embedder",
    "tool": "own_tool",
}
TINY = {"max_steps": 1, "tasks_per_step": 1, "group_size": 2, "minibatches": 1, "eval_tasks": 1, "validation_tasks": 1}

Run = Callable[..., str]


@pytest.fixture
def run_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs an example in a temporary folder and returns what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


def metrics_of(run: Path) -> dict[str, float]:
    return json.loads((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == TESTED


@pytest.mark.parametrize(("page", "example"), PAGES.items())
def test_the_code_of_a_page_is_that_of_its_example(page: str, example: str) -> None:
    text = (ROOT / "docs" / "extend" / f"{page}.md").read_text(encoding="utf-8")
    code = text.split("```python\n", 1)[1].split("```", 1)[0]  # what follows on a page runs in tests/test_docs.py
    assert code.strip() in (EXAMPLES / f"{example}.py").read_text(encoding="utf-8")


def test_the_notebook_runs_without_outputs_in_it_and_its_tables_are_escaped() -> None:
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    for cell in codes:
        assert cell["outputs"] == [] and cell["execution_count"] is None
        exec("".join(cell["source"]), names)
    assert names["report"].summary["accuracy"] == 1.0
    assert "all</td><td>1.000</td>" in names["report"]._repr_html_()
    with MemoryStore.open(":memory:") as store:
        store.add("<script>alert(1)</script>" + "x" * 300)
        for page in (store._repr_html_(), store.search("script")._repr_html_()):  # type: ignore[attr-defined]
            assert "&lt;script&gt;" in page and "<script" not in page and "x…</td>" in page


def test_chatbot_remembers_a_user_and_no_other(run_example: Run) -> None:
    first = run_example("chatbot", "--user", "ana", "--say", "I live in Porto.")
    assert "I do not know you yet." in first
    assert "I live in Porto." in run_example("chatbot", "--user", "ana", "--say", "Where do I live?")
    assert "I do not know you yet." in run_example("chatbot", "--user", "tom", "--say", "Where do I live?")
    with MemoryStore.open("chat.db") as store:
        contents = [entry.content for entry in store.namespace("ana").list()]
    assert contents == ["I live in Porto.", "Where do I live?"]  # the assistant's replies are not kept


def test_chatbot_takes_a_writer_and_typed_messages(run_example: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = iter(["I live in Porto.", "Nice weather.", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(messages))
    run_example("chatbot", "--policy", "scripted:fixed")
    with MemoryStore.open("chat.db") as store:
        assert store.namespace("ana").list() == [], "a writer that replies with nothing"


def test_chatbot_puts_notes_into_the_prompt_of_a_model(run_example: Run) -> None:
    prompts: list[list[dict[str, str]]] = []

    def answer(body: Mapping[str, Any]) -> str:
        prompts.append(body["messages"])
        return "Noted."

    with StandIn(answer) as server:
        arguments = ("--model", f"{server.url}#m", "--say", "I live in Porto.", "--say", "Where do I live?")
        assert run_example("chatbot", *arguments).splitlines() == ["bot: Noted."] * 2
    assert "I live in Porto." in prompts[-1][0]["content"] and prompts[-1][1]["content"] == "Where do I live?"


def test_ten_line_chat_remembers_with_a_model_on_a_socket(run_example: Run) -> None:
    content = {"category": "semantic", "content": "The user lives in Porto."}
    call = {"id": "c", "type": "function", "function": {"name": "memory_insert", "arguments": json.dumps(content)}}

    def answer(body: Mapping[str, Any]) -> str | dict[str, Any]:
        if body.get("tools"):
            is_new = "moved to Porto" in body["messages"][-1]["content"]
            return {"role": "assistant", "content": None, "tool_calls": [call]} if is_new else "Nothing to keep."
        return "In Porto." if "lives in Porto" in body["messages"][0]["content"] else "Noted."

    with StandIn(answer) as server:
        say = ("--say", "I moved to Porto last week.", "--say", "Where do I live?")
        output = run_example("ten_line_chat", "--model", f"{server.url}#m", *say)
    assert output.splitlines() == ["bot: Noted.", "bot: In Porto.", "memory: ['The user lives in Porto.']"]


def test_the_recipes_for_mem0_and_langgraph_copy_memories() -> None:
    langgraph = pytest.importorskip("langgraph.store.memory")
    page = (ROOT / "docs" / "guides" / "coming-from.md").read_text(encoding="utf-8")
    recipes: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[-1], recipes)

    class Mem0:
        """Stand-in with what `get_all` of mem0 2 takes and returns."""

        def get_all(self, *, filters: Mapping[str, str], top_k: int) -> dict[str, list[dict[str, Any]]]:
            times = {"created_at": "2024-05-01T10:00:00-07:00", "updated_at": None}
            memory = {"id": "x", "memory": f"{filters['user_id']} likes tea.", "hash": "", **times}
            return {"results": [memory, {**memory, "memory": "I ran.", "metadata": {"topic": "sport"}}][:top_k]}

    items = langgraph.InMemoryStore()
    items.put(("users", "ana"), "home", {"text": "Ana lives in Porto.", "topic": "home"})
    with MemoryStore.open(":memory:", embedder="hash") as store:
        recipes["copy_mem0"](Mem0(), ["ana", "tom"], store)
        assert [entry.content for entry in store.namespace("tom").list()] == ["tom likes tea.", "I ran."]
        entry = store.namespace("ana").list()[1]
        assert (entry.timestamp, entry.metadata) == ("2024-05-01T10:00:00-07:00", {"topic": "sport"})
        recipes["copy_langgraph"](items, store)
        assert [entry.content for entry in store.list()] == ["Ana lives in Porto."]
        copied = recipes["LangGraphStore"](store).get(("users", "ana"), "home")
        assert copied.value == {"text": "Ana lives in Porto.", "topic": "home"}


def test_langgraph_agent_keeps_users_apart(run_example: Run) -> None:
    pytest.importorskip("langgraph")
    output = run_example("langgraph_agent")
    assert "ana: Where do I live? -> You said: I live in Porto." in output
    assert "tom: Where do I live? -> I see." in output
    assert "insert undone" in output


def test_own_embedder_finds_despite_a_typing_error(run_example: Run) -> None:
    assert run_example("own_embedder").strip() == "Ana plays the accordion."


def test_own_system_is_evaluated_beside_a_built_in_one(run_example: Run) -> None:
    output = run_example("own_system", "--tasks", "2")
    accuracies = dict(re.findall(r"(\S+): accuracy (\d\.\d+)", output))
    assert set(accuracies) == {"own_system:WordOverlap", "rag"}
    assert 0 < float(accuracies["own_system:WordOverlap"]) <= 1


def test_own_data_set_is_a_task_file(run_example: Run) -> None:
    assert run_example("own_data_set") == "5 tasks: tickets.jsonl\n"
    tasks = load_tasks("tickets.jsonl")
    assert [task.questions[0].answers for task in tasks][:2] == [("Basic",), ("Plus",)]
    assert all(set(task.questions[0].evidence) <= {turn.id for turn in task.chunks[0].turns} for task in tasks)


def test_own_data_set_works_as_a_module_of_the_catalog(
    run_example: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import own_data_set

    run_example("own_data_set")
    monkeypatch.setitem(sys.modules, "memalpha.tasks.datasets.tickets", own_data_set)
    monkeypatch.setitem(memalpha.tasks.catalog.MODULES, "tickets", "datasets.tickets")
    assert [task.id for task in load_tasks("tickets", 2, data="tickets.csv")] == ["ticket-0", "ticket-1"]
    (tmp_path / "short.csv").write_text("0,customer\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"short.csv:1: ticket, speaker and text"):
        load_tasks("tickets", data="short.csv")


def test_make_cases_holds_out_calls_that_no_training_task_has(run_example: Run) -> None:
    pytest.importorskip("torch")
    from memalpha.train.rollouts.memory_tasks import TaskSource

    run_example("make_cases")
    settings = {"source": "gold", "data": "cases.jsonl", "eval_data": "held-out.jsonl", "validation_tasks": 10}
    source = TaskSource(training_config("sft", settings))  # it refuses held-out tasks whose text is trained on
    assert (len(source.validation), len(source.held_out)) == (10, 40)


def test_train_on_own_data_imitates_and_evaluates(run_example: Run) -> None:
    pytest.importorskip("torch")
    output = run_example("train_on_own_data", "--cases", "6", "--steps", "1")
    assert "6 tasks checked" in output
    assert "scripted:oracle: accuracy 1.000" in output
    assert (Path("runs/own-data/run/checkpoints/best")).is_dir()


def test_own_algorithm_centres_rewards_over_the_step(run_example: Run) -> None:
    pytest.importorskip("torch")
    output = run_example("own_algorithm", "--steps", "1")
    assert re.search(r"step 0: reward \d\.\d+, baseline \d\.\d+", output)
    metrics = metrics_of(Path("runs/reinforce"))
    assert metrics["baseline"] == pytest.approx(metrics["reward"])  # equal chunks per task: both are means over turns
    assert "algorithm: own_algorithm:Reinforce" in Path("runs/reinforce/config.yaml").read_text(encoding="utf-8")


def test_own_reward_is_a_component_of_both_runs(run_example: Run) -> None:
    pytest.importorskip("torch")
    output = run_example("own_reward")
    [short], [digits] = re.findall(r"short: (\d\.\d+)", output), re.findall(r"digits: (\d\.\d+)", output)
    assert 0 <= float(short) < 1 and 0 <= float(digits) <= 1


def test_own_tool_is_called_trained_with_and_served(
    run_example: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("mcp")
    from mcp import Client

    from memalpha import train
    from memalpha.integrations.server.mcp import mcp_server
    from memalpha.integrations.server.service import MemoryService
    from memalpha.policy.scripted import ScriptedPolicy

    monkeypatch.syspath_prepend(str(EXAMPLES))
    assert run_example("own_tool") == "['changed'] Ana likes tea with milk.\n"

    train("demo", agent={"tools": ["own_tool:Merge"]}, out=tmp_path / "run", **TINY)
    assert metrics_of(tmp_path / "run")["valid_calls"] > 0

    store = MemoryStore.open(":memory:", embedder="hash")
    ids = [store.insert("semantic", content).id for content in ("Ana likes tea.", "Ana takes milk in it.")]
    service = MemoryService(store, ScriptedPolicy("add-all"), config=AgentConfig(tools=("own_tool:Merge",)))

    async def merge() -> Any:
        async with Client(mcp_server(service)) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            arguments = {"id": ids[0], "other": ids[1], "content": "Ana likes tea with milk."}
            return tools["memory_merge"], await client.call_tool("memory_merge", arguments)

    tool, answer = asyncio.run(merge())
    assert tool.input_schema["required"] == ["id", "other", "content"] and tool.annotations.destructive_hint
    assert answer.structured_content["code"] == "changed"
    assert [entry.content for entry in store.list()] == ["Ana likes tea with milk."]


NOT_FOUND = "cannot be found"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_algorithm:Missing", NOT_FOUND),
        ("own_reward:short_memory", "no subclass"),
        ("memalpha.train.algorithms.base:Algorithm", "no subclass"),  # abstract: without annotate
    ],
)
def test_a_wrong_algorithm_is_refused(name: str, message: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from memalpha.config import TrainConfig
    from memalpha.train.algorithms import build_algorithm

    with pytest.raises(ConfigError, match=rf"algorithm.*{re.escape(name)}.*{message}"):
        build_algorithm(TrainConfig(out=tmp_path, algorithm=name))


def functions(path: str, name: str = "short") -> dict[str, object]:
    return {"functions": [{"function": path, "name": name, "weight": 0.1}]}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own_reward:missing", NOT_FOUND),
        ("own_reward:LIMIT", "is no function"),
    ],
)
def test_a_wrong_reward_function_is_refused(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"reward\.functions\.short.*'{path}'.*{message}"):
        MemoryReward(RewardConfig.model_validate(functions(path)), len)


@pytest.mark.parametrize("value", ["float('nan')", "'much'"])
def test_a_reward_function_that_returns_no_number_ends_the_run(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from memalpha import train

    monkeypatch.chdir(tmp_path)  # modules of the working directory are found
    module = f"reward_{abs(hash(value))}"
    (tmp_path / f"{module}.py").write_text(f"def short(trajectory, records):\n    return {value}\n", encoding="utf-8")
    with pytest.raises(RewardError, match=rf"reward\.functions\.short: {module}:short gave .* finite number"):
        train("demo", reward=functions(f"{module}:short"), out=tmp_path / "run", **TINY)


def test_two_reward_functions_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two components have one name"):
        RewardConfig.model_validate(functions("own_reward:short_memory", "r1"))
