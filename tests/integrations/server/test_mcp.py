"""MCP server with the official client: in this process, over stdio, and over streamable HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")
import httpx2
import typer
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from serving import ENVIRONMENT, ServerProcess, running

from memalpha.agent.tools import execute, tool_schemas
from memalpha.cli import app
from memalpha.config import TrustConfig
from memalpha.errors import ConfigError
from memalpha.integrations.server.mcp import mcp_server, read_line
from memalpha.integrations.server.run import check_token_needed, is_loopback, parse_address, read_token
from memalpha.integrations.server.service import MemoryService
from memalpha.policy.load import load_policy
from memalpha.store.store import MemoryStore
from memalpha.types import ToolCall

TOKEN = "a-token-of-the-tests"
CHAT = "\n".join(f"Tom: I have {number} cats." for number in range(400))


def calls(store: MemoryStore, *requests: tuple[str, dict[str, Any]], policy: Any = None, **options: Any) -> list[Any]:
    """Call tools with a client in this process and return the results."""
    service = MemoryService(store, policy or load_policy("scripted:add-all"), **options)

    async def ask() -> list[Any]:
        async with Client(mcp_server(service)) as client:
            results: list[Any] = []
            for name, arguments in requests:
                try:
                    results.append(await client.call_tool(name, arguments))
                except MCPError as error:
                    results.append(error)
            return results

    return asyncio.run(ask())


def test_a_trust_rule_names_others_and_ranks_them_lower(store):
    with store.writing_as(speaker="Mallory"):
        store.insert("semantic", "Ana lives in Moscow, where Ana does live.")
    store.insert("semantic", "Ana lives in Porto.")
    store.insert("semantic", "The bridge is closed.")
    requests = (("memory_search", {"query": "Where does Ana live?"}), ("memory_list", {}))
    for trust, contents in (
        (None, ["Ana lives in Moscow, where Ana does live.", "Ana lives in Porto."]),
        (TrustConfig(owner="Ana"), ["Ana lives in Porto.", "Mallory: Ana lives in Moscow, where Ana does live."]),
    ):
        hits, entries = (result.structured_content for result in calls(store, *requests, trust=trust))
        assert [hit["content"] for hit in hits["hits"]][:2] == contents
        assert {entry["content"] for entry in entries["entries"]} == {*contents, "The bridge is closed."}
        service = MemoryService(store, load_policy("add_all"), trust=trust)
        answer = asyncio.run(service.ask("Where does Ana live?", 2))
        assert [hit.entry.content for hit in answer.hits] == contents
        filtered = asyncio.run(service.ask("Where does Ana live?", 2, where={"category": "semantic"}))
        assert [hit.entry.content for hit in filtered.hits] == contents


def listed(service: MemoryService) -> dict[str, Any]:
    async def ask() -> Any:
        async with Client(mcp_server(service)) as client:
            return await client.list_tools()

    return {tool.name: tool for tool in asyncio.run(ask()).tools}


def test_edit_tools_have_the_schema_of_training(store):
    tools = listed(MemoryService(store, load_policy("scripted:add-all")))
    trained = {tool["function"]["name"]: tool["function"] for tool in tool_schemas(store.schema)}
    for name in ("memory_insert", "memory_update", "memory_delete"):
        assert tools[name].input_schema == trained[name]["parameters"]
        assert tools[name].description == trained[name]["description"]
    hints = {name: tool.annotations for name, tool in tools.items()}
    assert {name for name, hint in hints.items() if hint.read_only_hint} == {"memory_search", "memory_list"}
    destructive = {name for name, hint in hints.items() if hint.destructive_hint}
    assert destructive == {"memory_update", "memory_delete", "memory_read"}
    assert hints["memory_insert"].destructive_hint is False and hints["memory_insert"].idempotent_hint
    assert not any(hint.open_world_hint for hint in hints.values()) and len(tools) == 6
    words = {word for tool in tools.values() for word in tool.input_schema["properties"]}
    assert not words & {"path", "file", "namespace", "schema", "store"}
    field = tools["memory_read"].input_schema["properties"]["messages"]
    assert field["type"] == "array" and field["items"]["type"] == "object" and field["maxItems"] == 10_000


def test_read_only_serves_only_reading_tools(store):
    store.insert("semantic", "city: Porto")
    assert set(listed(MemoryService(store, None, read_only=True))) == {"memory_search", "memory_list"}
    [response] = calls(store, ("memory_search", {"query": "city"}), read_only=True)
    assert response.structured_content["hits"][0]["content"] == "city: Porto"
    [refused] = calls(store, ("memory_insert", {"category": "semantic", "content": "a"}), read_only=True)
    assert isinstance(refused, MCPError) and "no tool 'memory_insert'" in str(refused)
    with pytest.raises(ConfigError, match="read-only"):
        MemoryService(store, None)


EDITS = [
    ("memory_insert", {"category": "semantic", "content": "Ana's city: Porto", "importance": 0.5}),
    ("memory_insert", {"category": "semantic", "content": "Ana's city: Porto"}),
    ("memory_insert", {"category": "nonsense", "content": "a"}),
    ("memory_insert", {"category": "semantic", "content": " "}),
    ("memory_insert", {"category": "semantic", "content": "a", "namespace": "b"}),
    ("memory_insert", {"category": "episodic", "content": "It rained.", "timestamp": "May"}),
    ("memory_update", {"id": "ana-s#f", "content": "Ana's city: Oslo"}),
    ("memory_update", {"id": "nobody", "content": "a"}),
    ("memory_delete", {"id": "nobody"}),
    ("memory_delete", {}),
]


def test_edits_act_as_in_training(store):
    """Every call gives the result of `execute`, and both memories are equal at the end."""
    same = MemoryStore.open(":memory:", embedder="hash")
    entry_id = same.insert("semantic", "Ana's city: Porto", importance=0.5).id
    same.erase_all()
    same = MemoryStore.open(":memory:", embedder="hash")
    edits = [(name, {**of, "id": entry_id} if of.get("id") == "ana-s#f" else of) for name, of in EDITS]
    for (name, arguments), response in zip(edits, calls(store, *edits), strict=True):
        result, _ = execute(same, ToolCall(name, arguments), chunk=None, source="mcp", timestamp=None)
        outcome = response.structured_content
        assert outcome == json.loads(response.content[0].text) and response.is_error is not result.ok
        assert outcome == {"tool": name, **{key: getattr(result, key) for key in outcome if key != "tool"}}
    assert store.state == same.state and store.snapshot() == 4


def test_read_reports_progress(store):
    service, progress_log = MemoryService(store, load_policy("scripted:add-all")), []

    async def progress(done: float, of: float | None, message: str | None) -> None:
        progress_log.append((done, of, message))

    async def ask() -> Any:
        async with Client(mcp_server(service)) as client:
            short = await client.call_tool("memory_read", {"text": "Ana: Hi!"}, progress_callback=progress)
            assert not progress_log and short.structured_content["chunks"] == 1
            return await client.call_tool(
                "memory_read", {"text": CHAT, "timestamp": "2024-05-01"}, progress_callback=progress
            )

    reading = asyncio.run(ask()).structured_content
    assert {item["code"] for item in reading["results"]} == {"inserted"}
    assert len(reading["results"]) + reading["left_out"] == 400
    count = reading["chunks"]
    assert progress_log == [(n, count, f"{n} of {count} chunks read") for n in range(1, count + 1)] and count > 1


def test_pages_and_limits(store):
    for number in range(3):
        store.insert("semantic", f"fact {number}")
    first, second, unknown, large, empty, role, float_ = calls(
        store,
        ("memory_list", {"limit": 2}),
        ("memory_list", {"limit": 2, "after": store.list()[1].id}),
        ("memory_search", {"query": "fact", "category": "nonsense"}),
        ("memory_insert", {"category": "semantic", "content": "x" * 20_001}),
        ("memory_read", {"text": " "}),
        ("memory_read", {"messages": [{"role": "human", "content": "I live in Porto."}]}),
        ("memory_search", {"query": "fact", "k": 2.0}),
    )
    assert [entry["content"] for entry in first.structured_content["entries"]] == ["fact 0", "fact 1"]
    assert first.structured_content["next"] and second.structured_content["next"] is None
    assert len(float_.structured_content["hits"]) == 2
    failed = [(item.is_error, item.structured_content["code"]) for item in (unknown, large, empty, role)]
    assert failed == [(True, "unknown_category"), *[(True, "invalid_arguments")] * 3]
    assert "messages[0].role: is 'human'" in role.structured_content["message"]
    assert store.snapshot() == 3


# ------------------------------------------------------------------------------------------------------- starting


@pytest.mark.parametrize(
    "text", ["8765", ":8765", "localhost", "localhost:", "localhost:x", "localhost:70000", "::1:80"]
)
def test_invalid_addresses_are_refused(text):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_address(text)


def test_tokens_and_addresses_that_need_them(tmp_path, monkeypatch):
    assert parse_address("[::1]:8765") == ("::1", 8765) and parse_address("localhost:0") == ("localhost", 0)
    hosts = ("127.0.0.1", "127.8.0.1", "localhost", "::1", "0.0.0.0", "::", "192.168.0.7", "memory.example")
    assert [is_loopback(host) for host in hosts] == [True] * 4 + [False] * 4
    monkeypatch.delenv("MEMALPHA_TOKEN", raising=False)
    assert read_token(None) is None
    with pytest.raises(ConfigError, match="needs a token"):
        check_token_needed("0.0.0.0", False)
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(file) == TOKEN
    monkeypatch.setenv("MEMALPHA_TOKEN", "short")
    with pytest.raises(ConfigError, match="at least 16"):
        read_token(None)
    for text in ("", "two words are not one", "ünlesbar-ünlesbar-ünlesbar"):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match="token"):
            read_token(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(tmp_path / "none")


WRITER = ("--policy", "scripted:add-all")
BOTH = (*WRITER, "--mcp", "--http", "127.0.0.1:0")


def command(store: Path | str, *words: str) -> list[str]:
    return ["-m", "memalpha", "serve", str(store), *WRITER, "--embedder", "hash", *words]


def test_stdio_and_a_restart(tmp_path):
    """A second server has the text of the first, answers every line, and keeps stdout clean until SIGTERM."""
    path = tmp_path / "ana.db"
    server = StdioServerParameters(command=sys.executable, args=command(path, "--mcp"), env=ENVIRONMENT)

    async def first() -> Any:
        async with Client(server) as client:
            assert client.server_info.name == "memalpha" and "memory_read" in client.instructions
            read = await client.call_tool("memory_read", {"text": "Ana: I live in Porto.", "timestamp": "2024-05-01"})
            assert [item["code"] for item in read.structured_content["results"]] == ["inserted"]
            return (await client.call_tool("memory_search", {"query": "Where does Ana live?"})).structured_content

    results = asyncio.run(first())
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    again = subprocess.Popen([sys.executable, *command(path, "--mcp")], **pipes, env={**os.environ, **ENVIRONMENT})

    def answer(line: bytes) -> Any:
        again.stdin.write(line + b"\n")
        again.stdin.flush()
        return json.loads(again.stdout.readline())

    def ask(method: str, **params: Any) -> Any:
        return answer(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode())["result"]

    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    assert ask("initialize", **about)["serverInfo"]["name"] == "memalpha"
    again.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
    search = {"name": "memory_search", "arguments": {"query": "Where does Ana live?"}}
    assert ask("tools/call", **search)["structuredContent"] == results
    new = {"category": "semantic", "content": "city: Porto"}
    assert ask("tools/call", name="memory_insert", arguments=new)["structuredContent"]["ok"]
    for line, id in ((b"no JSON", None), (b'{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"na', 8)):
        error = answer(line)
        assert (error["id"], error["error"]["code"]) == (id, -32700)
    head = b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"memory_search","arguments":'
    assert answer(head + b'{"query":"cut \\ud83d \xff"}}}')["result"]["structuredContent"]["hits"]
    again.send_signal(signal.SIGTERM)  # while its stdin is open
    out, err = again.communicate(timeout=60)
    assert (again.returncode, out, err) == (0, b"", b"")
    with MemoryStore.open(path, create=False) as reopened:
        assert [entry.content for entry in reopened.list()] == ["Ana: I live in Porto.", "city: Porto"]


def test_a_host_that_is_gone_leaves_no_traceback(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    words, line = command(tmp_path / "ana.db", "--mcp"), b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'
    ended = subprocess.run(
        [sys.executable, *words], input=line, stdout=writer, stderr=subprocess.PIPE, env={**os.environ, **ENVIRONMENT}
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_shutdown_with_two_active_clients(tmp_path):
    """An MCP and an HTTP client write until SIGTERM: every acknowledged write is in the store, in order."""
    path, secret = tmp_path / "ana.db", tmp_path / "token"
    secret.write_text(TOKEN)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    done: dict[str, list[str]] = {"mcp": [], "http": []}

    async def by_mcp(url: str) -> None:
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as web,
            Client(streamable_http_client(f"{url}/mcp", http_client=web)) as client,
        ):
            await client.call_tool("memory_read", {"text": "Tom: I work at Acme."})
            for number in range(10_000):
                fact = {"category": "semantic", "content": f"mcp fact {number}"}
                result = await client.call_tool("memory_insert", fact)
                done["mcp"].append(result.structured_content["content"])

    async def by_http(url: str) -> None:
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60) as web:
            for number in range(10_000):
                fact = {"category": "semantic", "content": f"http fact {number}"}
                done["http"].append((await web.post("/v1/entries", json=fact)).json()["content"])

    async def both(server: ServerProcess) -> None:
        work = [asyncio.create_task(by_mcp(server.url)), asyncio.create_task(by_http(server.url))]
        while min(map(len, done.values())) < 5 and not any(task.done() for task in work):
            await asyncio.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.wait(work, timeout=60)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    with running(path, *BOTH, "--token-file", str(secret)) as server:
        for response in (httpx2.get(f"{server.url}/v1/entries"), httpx2.post(f"{server.url}/mcp")):
            assert response.status_code == 401
        asyncio.run(both(server))
        assert "Traceback" not in server.stop()
    with MemoryStore.open(path, create=False) as reopened:
        contents = [entry.content for entry in reopened.list()]
    assert contents[0] in ("Tom: I work at Acme.", "http fact 0")
    for name, facts in done.items():
        assert len(facts) >= 5 and [text for text in contents if text.startswith(name)][: len(facts)] == facts


def test_the_documented_host_commands_are_valid():
    """Host configurations in docs/guides/serve.md are JSON with arguments of `memalpha serve`."""
    page = (Path(__file__).parents[3] / "docs" / "guides" / "serve.md").read_text(encoding="utf-8")
    serve = typer.main.get_command(app).commands["serve"]
    lines = [shlex.split(line, comments=True) for line in re.findall(r"^\$ (.*)", page, re.MULTILINE)]
    for text in re.findall(r"```jsonc\n(.*?)```", page, re.DOTALL):
        [group] = json.loads(text).values()
        [server] = group.values()
        lines += [[server["command"], *server["args"]]] if "args" in server else []
    lines = [line[line.index("serve") + 1 :] for line in lines if "serve" in line]
    for words in lines:
        options = serve.make_context("serve", list(words)).params
        assert options["mcp"] or options["http"], words
        assert options["policy"] or options["read_only"], words
    assert len(lines) == 14


FACTS = ("Ana skis.", "Ben swims.", "Cleo reads.")
MEANT = {
    "a number as text": ("memory_search", {"query": "Ana", "k": " 2.0 "}, {"query": "Ana", "k": 2}),
    "no messages": ("memory_read", {"text": "Hi", "messages": [], "metadata": {}}, {"text": "Hi"}),
    "a blank category": ("memory_list", {"category": "  "}, {}),
    "null for everything": ("memory_list", {"category": None, "limit": None, "after": None}, {}),
    "a number as a query": ("memory_search", {"query": 42}, {"query": "42"}),
    "messages as text": (
        "memory_read",
        {"messages": '[{"role": "user", "content": "I ski."}]', "text": "", "timestamp": ""},
        {"messages": [{"role": "user", "content": "I ski."}]},
    ),
    "importance as text": (
        "memory_insert",
        {"category": "semantic", "content": "Dan sails.", "importance": "0.5"},
        {"category": "semantic", "content": "Dan sails.", "importance": 0.5},
    ),
}


@pytest.mark.parametrize("kind", MEANT)
def test_arguments_are_read_as_models_mean_them(kind) -> None:
    name, written, meant = MEANT[kind]
    outputs = []
    for arguments in (written, meant):
        with MemoryStore.open(":memory:", embedder="hash") as store:
            for fact in FACTS:
                store.insert("semantic", fact)
            (result,) = calls(store, (name, arguments))
            entries = [(entry.content, entry.metadata, entry.importance) for entry in store.list()]
            outputs.append((result.structured_content, entries))
            assert not result.is_error, result.structured_content
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("memory_search", {"query": "Ana", "k": "two"}),
        ("memory_search", {"query": "Ana", "k": "true"}),
        ("memory_search", {"query": "Ana", "k": "[2]"}),
        ("memory_read", {"messages": "hello"}),
    ],
)
def test_what_cannot_be_read_is_refused(store, name, arguments) -> None:
    (result,) = calls(store, (name, arguments))
    assert result.is_error and result.structured_content["code"] == "invalid_arguments"


LONG = {
    "many": [f"Note {number}: " + f"word{number} " * 2500 for number in range(12)],
    "one": ["é" * 19_000 + " needle " + "x" * 60_000],
    "wide": ["\N{SLICE OF PIZZA}" * 15_000, "Ana skis."],
    "short": [f"Fact {number} of many." for number in range(3000)],
}


@pytest.mark.parametrize("kind", LONG)
def test_answers_end_before_hosts_cut_them(kind) -> None:
    with MemoryStore.open(":memory:", embedder="hash") as store:
        store.add_many(LONG[kind])
        contents: list[str] = []
        after, pages = None, 0
        while pages == 0 or after is not None:
            (page,) = calls(store, ("memory_list", {"after": after, "limit": 1000}))
            assert len(page.model_dump_json().encode()) < 160_000
            contents += [entry["content"] for entry in page.structured_content["entries"]]
            after, pages = page.structured_content["next"], pages + 1
        assert len(contents) == len(LONG[kind]) and (pages > 1 or kind == "one")
        assert all(text.startswith(shown) for text, shown in zip(LONG[kind], contents, strict=True))
        (found,) = calls(store, ("memory_search", {"query": "word7 needle fact", "k": 100}))
        assert len(found.model_dump_json().encode()) < 160_000
        hits = found.structured_content["hits"]
        assert len(hits) + found.structured_content.get("left_out", 0) == min(100, len(LONG[kind]))
        if kind == "many":
            assert "word7" in hits[0]["content"] and "best passage" in hits[0]["shown"]
        if kind == "one":
            assert "needle" in hits[0]["content"]


LINES = {
    b'{"jsonrpc":"2.0","id":1,"method":"ping"}': (None, None),
    b'{"jsonrpc":"2.0","id":"a","method":"x","params":{"q":"cut \\ud83d"}}': (None, None),
    b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name': (-32700, 3),
    b'{"jsonrpc":"2.0","method":"tools/call","params":{"id":"ana#1"': (-32700, None),
    b"\xff\xfe{\x00": (-32700, None),
    b"[" * 100_000: (-32700, None),
    b'{"id":5,"method":"ping"}': (-32600, 5),
    b'{"jsonrpc":"1.0","id":"b","method":"ping"}': (-32600, "b"),
    b'{"jsonrpc":"2.0","id":true}': (-32600, None),
    b'{"jsonrpc":"2.0","id":null,"method":"ping"}': (-32600, None),
    b'\xef\xbb\xbf{"jsonrpc":"2.0","id":7,"method":"ping"}': (None, None),
    b"7": (-32600, None),
    b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}': (-32700, None),
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: ascii(line[:40]))
def test_every_line_is_a_message_or_answered(line) -> None:
    code, id = LINES[line]
    text, error = read_line(line + b"\r\n")
    assert (error and error.error.code, error and error.id) == (code, id)
    assert (text == "") == (error is not None)
    text.encode()
    assert read_line(b" \r\n") == ("", None)
