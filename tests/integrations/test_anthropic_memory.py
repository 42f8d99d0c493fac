"""Anthropic's memory tool: documented answers, paths outside the root, and files as entries."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standin import JsonStandIn

from memalpha import MemoryStore
from memalpha.errors import ConfigError, StoreError
from memalpha.integrations.anthropic_memory import CommandError, MemoryTool

NOTES = "/memories/notes.txt"


@pytest.fixture
def tool(store):
    return MemoryTool(store)


def do(tool, command, **arguments):
    return tool.run({"command": command, **arguments})


def refused(tool, command, **arguments):
    before = tool.store.snapshot()
    with pytest.raises(CommandError) as error:
        do(tool, command, **arguments)
    assert tool.store.snapshot() == before
    return str(error.value)


def test_files_and_directories(tool):
    assert do(tool, "view", path="/memories").splitlines() == [
        "Here're the files and directories up to 2 levels deep in /memories, excluding hidden items and node_modules:",
        "0B\t/memories",
    ]
    assert do(tool, "create", path=NOTES, file_text="Ana\nPorto\n") == f"File created successfully at: {NOTES}"
    do(tool, "create", path="/memories/a/b/c/deep.md", file_text="x" * 1536)
    do(tool, "create", path="/memories/a/.hidden", file_text="x")
    do(tool, "create", path="/memories/node_modules/x", file_text="x")
    assert do(tool, "view", path="/memories/").splitlines()[1:] == [
        "1.5K\t/memories",
        "1.5K\t/memories/a/",
        "1.5K\t/memories/a/b/",
        f"10B\t{NOTES}",
    ]
    assert do(tool, "view", path="/memories/a/b").splitlines()[1:] == [
        "1.5K\t/memories/a/b",
        "1.5K\t/memories/a/b/c/",
        "1.5K\t/memories/a/b/c/deep.md",
    ]
    missing = "The path /memories/none does not exist. Please provide a valid path."
    assert refused(tool, "view", path="/memories/none") == missing
    do(tool, "create", path="/memories/cut", file_text="half \ud83d")  # no answer could hold it
    assert do(tool, "view", path="/memories").endswith("8B\t/memories/cut\n10B\t/memories/notes.txt")
    assert do(tool, "view", path="/memories/cut").endswith("\thalf \ufffd")


def test_view_range_and_insert_line(tool):
    do(tool, "create", path=NOTES, file_text="one\ntwo\nthree\n")
    head = f"Here's the content of {NOTES} with line numbers:\n"
    assert do(tool, "view", path=NOTES) == head + "     1\tone\n     2\ttwo\n     3\tthree\n     4\t"
    assert do(tool, "view", path=NOTES, view_range=[2, 2]) == head + "     2\ttwo"
    assert do(tool, "view", path=NOTES, view_range=[3, -1]) == head + "     3\tthree\n     4\t"
    assert do(tool, "view", path=NOTES, view_range=[4, 9]) == head + "     4\t"
    assert "view_range" in refused(tool, "view", path=NOTES, view_range=[2])
    for lines in ([5, 9], [5, -1], [3, 2], [1, 0]):
        error = f"Error: Invalid `view_range`: {lines}. It should be within the range of lines of the file: [1, 4]"
        assert refused(tool, "view", path=NOTES, view_range=lines) == error
    assert do(tool, "insert", path=NOTES, insert_line=0, insert_text="zero\n") == f"The file {NOTES} has been edited."
    do(tool, "insert", path=NOTES, insert_line=4, insert_text="four")
    numbered = "     1\tzero\n     2\tone\n     3\ttwo\n     4\tthree\n     5\tfour\n     6\t"
    assert do(tool, "view", path=NOTES).endswith(numbered)
    error = "Error: Invalid `insert_line` parameter: 6. It should be within the range of lines of the file: [0, 5]"
    assert refused(tool, "insert", path=NOTES, insert_line=6, insert_text="x") == error
    missing = refused(tool, "insert", path="/memories/x", insert_line=0, insert_text="x")
    assert missing == "Error: The path /memories/x does not exist"


def test_str_replace(tool):
    do(tool, "create", path=NOTES, file_text="a\nb\nhome: Lisbon\nd\ne\nf")
    assert do(tool, "str_replace", path=NOTES, old_str="Lisbon", new_str="Porto\nhome since: 2024") == (
        "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n"
        "     1\ta\n     2\tb\n     3\thome: Porto\n     4\thome since: 2024\n     5\td\n     6\te"
    )
    absent = refused(tool, "str_replace", path=NOTES, old_str="Rome", new_str="")
    assert absent == f"No replacement was performed, old_str `Rome` did not appear verbatim in {NOTES}."
    assert refused(tool, "str_replace", path=NOTES, old_str="home", new_str="") == (
        "No replacement was performed. Multiple occurrences of old_str `home` in lines: 3, 4. "
        "Please ensure it is unique"
    )
    for path in ("/memories/none", "/memories"):
        missing = refused(tool, "str_replace", path=path, old_str="x", new_str="")
        assert missing == f"Error: The path {path} does not exist. Please provide a valid path."


def test_delete_and_rename(tool):
    for name in ("a/x", "a/y", "b"):
        do(tool, "create", path=f"/memories/{name}", file_text="the same")
    assert refused(tool, "create", path="/memories/b", file_text="") == "Error: File /memories/b already exists"
    assert refused(tool, "create", path="/memories/a", file_text="") == "Error: File /memories/a already exists"
    assert "is a file" in refused(tool, "create", path="/memories/b/c", file_text="")
    moved = do(tool, "rename", old_path="/memories/a", new_path="/memories/c/d")
    assert moved == "Successfully renamed /memories/a to /memories/c/d"
    assert do(tool, "view", path="/memories/c/d/y").endswith("     1\tthe same")
    for old, new, why in (
        ("a", "z", "Error: The path /memories/a does not exist"),
        ("b", "c/d", "Error: The destination /memories/c/d already exists"),
        ("c", "c/e", "Error: Cannot move /memories/c into itself"),
        ("c", "b/e", "Error: /memories/b is a file, not a directory"),
        ("", "b/e", "Error: Cannot rename the /memories directory itself"),
    ):
        assert refused(tool, "rename", old_path=f"/memories/{old}", new_path=f"/memories/{new}") == why
    assert do(tool, "delete", path="/memories/c") == "Successfully deleted /memories/c"
    assert refused(tool, "delete", path="/memories/c") == "Error: The path /memories/c does not exist"
    assert refused(tool, "delete", path="/memories") == "Error: Cannot delete the /memories directory itself"
    assert do(tool, "view", path="/memories").splitlines()[1:] == ["8B\t/memories", "8B\t/memories/b"]


@pytest.mark.parametrize(
    "path",
    [
        *("/memories/../etc/passwd", "/memories/a/../../b", "/memories/%2e%2e/x", "/memories/%252e%252e%252fx"),
        *("/memories/..\\x", "/memories\\..\\x", "/etc/passwd", "memories/x"),
        *("/memoriesx", "/memories-of/x", "", "/", "..", "/memories/%2e%2e%5cx"),
    ],
)
def test_paths_outside_the_root_are_refused(tool, path):
    for command, arguments in (
        ("view", {"path": path}),
        ("create", {"path": path, "file_text": "x"}),
        ("rename", {"old_path": "/memories/x", "new_path": path}),
    ):
        message = refused(tool, command, **arguments)
        assert "would escape /memories" in message or "must start with /memories" in message


@pytest.mark.parametrize("path", ["/memories/a\0b", "/memories/a\nb", "/memories/a%0Ab", "/memories/a\tb"])
def test_control_characters_in_a_path_are_named(tool, path):
    message = f"Error: Path {path!r} has control characters, such as line breaks and tabs"
    assert refused(tool, "view", path=path) == message
    assert refused(tool, "create", path=path, file_text="x") == message


def test_a_failing_store_is_reported_and_logged(store, tool, caplog, monkeypatch):
    def fail(*arguments, **more):
        raise StoreError("/secret/memory.db: database is locked")

    monkeypatch.setattr(store, "get", fail)
    command = {"command": "view", "path": NOTES}
    with caplog.at_level(logging.ERROR, "memalpha"):
        result = tool.answer({"type": "tool_use", "id": "t", "name": "memory", "input": command})
    message = "Error: The memory is not available at the moment"
    assert result == {"type": "tool_result", "tool_use_id": "t", "content": message, "is_error": True}
    [record] = caplog.records
    assert "StoreError: /secret/memory.db: database is locked" in record.getMessage() and record.exc_info
    with pytest.raises(StoreError, match="locked"):
        tool.run(command)


@pytest.mark.parametrize(
    "command",
    [
        *({}, {"command": "look"}, {"command": ["view"]}, {"command": "view"}, {"command": "view", "path": 3}, "view"),
        None,
        {"command": "insert", "path": NOTES, "insert_line": "1", "insert_text": "x"},
        {"command": "create", "path": NOTES, "file_text": b"a"},
    ],
)
def test_invalid_commands_are_reported(tool, command):
    with pytest.raises(CommandError, match=r"^Error: "):
        tool.run(command)
    result = tool.answer({"type": "tool_use", "id": "t", "name": "memory", "input": command})
    assert result["is_error"] is True and result["content"].startswith("Error: ") and result["tool_use_id"] == "t"


TEXTS = st.text(st.sampled_from("ab \n\0"), max_size=6)
NAMES = st.sampled_from(["x", "y", "d/x", "d/e/x", "with space", "%41", "z" * 140])
STEPS = st.tuples(st.sampled_from(["create", "delete", "insert", "rename"]), NAMES, NAMES, TEXTS, st.integers(0, 2))


@settings(max_examples=30, deadline=None)
@given(st.lists(STEPS, max_size=10))
def test_files_match_a_model_of_the_commands(steps):
    """Random commands give the same files as on a dictionary {path: text}."""
    files: dict[str, str] = {}
    with MemoryStore.open(":memory:", embedder="hash") as memory:
        tool = MemoryTool(memory)
        for command, name, other, text, line in steps:
            path, new = f"/memories/{name}", f"/memories/{other}"
            try:
                if command == "create":
                    do(tool, "create", path=path, file_text=text)
                    assert path not in files
                    files[path] = text
                elif command == "delete":
                    do(tool, "delete", path=path)
                    del files[path]
                elif command == "insert":
                    do(tool, "insert", path=path, insert_line=line, insert_text=text)
                    lines = files[path].removesuffix("\n").split("\n") if files[path] else []
                    lines.insert(line, text.removesuffix("\n"))
                    files[path] = "\n".join(lines) + "\n"
                else:
                    do(tool, "rename", old_path=path, new_path=new)
                    files[new] = files.pop(path)
            except CommandError:
                assert command not in ("delete", "rename") or path not in files or new in files
            for path, text in files.items():
                rows = do(tool, "view", path=path).split("\n")[1:]
                assert "\n".join(row.split("\t", 1)[1] for row in rows) == text
        assert {entry.metadata["file"]["path"] for entry in memory.list()} == set(files)


def test_files_are_entries(store, tool):
    do(tool, "create", path=NOTES, file_text="Ana lives in Lisbon.\n")
    do(tool, "str_replace", path=NOTES, old_str="Lisbon", new_str="Porto")
    assert [version.content for version in store.history(NOTES)] == ["Ana lives in Lisbon.", "Ana lives in Porto."]
    assert store.search("Where does Ana live?")[0].entry.id == NOTES
    do(tool, "delete", path=NOTES)
    store.undo()
    assert do(tool, "view", path=NOTES).endswith("     1\tAna lives in Porto.\n     2\t")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_anthropic_package_runs_it(store, asynchronous):
    anthropic = pytest.importorskip("anthropic")

    def use(number, **command):
        return [{"type": "tool_use", "id": f"t{number}", "name": "memory", "input": command}]

    replies = [
        use(0, command="create", path=NOTES, file_text="Ana likes tea."),
        use(1, command="view", path="/memories/none"),
        [{"type": "text", "text": "Done."}],
    ]

    def reply(body):
        content = replies[len(server.bodies) - 1]
        message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
        message |= {"usage": {"input_tokens": 1, "output_tokens": 1}, "content": content}
        return message | {"stop_reason": "tool_use" if content[0]["type"] == "tool_use" else "end_turn"}

    tools, messages = [MemoryTool(store).runnable(asynchronous=asynchronous)], [{"role": "user", "content": "Tea!"}]
    body = {"model": "m", "max_tokens": 100, "tools": tools, "messages": messages}

    async def run_asynchronously(**where):
        async with anthropic.AsyncAnthropic(**where) as client:
            return await client.beta.messages.tool_runner(**body).until_done()

    with JsonStandIn(reply) as server:
        where = {"base_url": server.url, "api_key": "k", "max_retries": 0}
        if asynchronous:
            last = asyncio.run(run_asynchronously(**where))
        else:
            with anthropic.Anthropic(**where) as client:
                last = client.beta.messages.tool_runner(**body).until_done()
    tools = server.bodies[0]["tools"]
    assert last.content[0].text == "Done." and tools == [{"type": "memory_20250818", "name": "memory"}]
    first, second = (sent["messages"][-1]["content"][0] for sent in server.bodies[1:])
    assert first["content"] == f"File created successfully at: {NOTES}" and not first.get("is_error")
    assert second["is_error"] and second["content"].startswith("The path /memories/none does not exist")
    assert store.list()[0].content == "Ana likes tea."


def test_a_runner_without_the_package_is_refused(tool, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "anthropic.lib.tools", None)
    with pytest.raises(ConfigError, match="pip install anthropic"):
        tool.runnable()
