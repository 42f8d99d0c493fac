"""Anthropic's memory tool (`memory_20250818`) on a `MemoryStore`: Claude's files are entries of it.

    tool = MemoryTool(store.namespace("ana"))
    ... tools=[tool.to_dict()] ...             # in the request, with the client of one's choice
    ... tool.answer(block) ...                 # the tool_result for a tool_use block
    client.beta.messages.tool_runner(..., tools=[tool.runnable()])    # or let the anthropic package run it

A file under `/memories` is an entry whose id is its path; its content is the file's text, so that it can be searched,
every version stays in the history, and `undo`, audit and export hold. A directory is there while a file is in it, and
its size is that of its files. The commands and what they answer, errors too, are those of the tool's documentation.
A path is never taken for one of the machine's: one that leaves `/memories`, by `..` in any spelling, is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from memalpha.errors import ConfigError, InvalidContent, MemalphaError
from memalpha.store.filters import utc
from memalpha.store.keyed_entries import Keyed, escaped, text_of
from memalpha.store.store import MemoryStore

_LOG = logging.getLogger("memalpha")
ROOT = "/memories"
_MOST_LINES = 999_999
_NEEDED: Mapping[str, Mapping[str, type]] = {
    "view": {"path": str},
    "create": {"path": str, "file_text": str},
    "str_replace": {"path": str, "old_str": str, "new_str": str},
    "insert": {"path": str, "insert_line": int, "insert_text": str},
    "delete": {"path": str},
    "rename": {"old_path": str, "new_path": str},
}


class CommandError(MemalphaError):
    """A command that cannot be carried out: its text goes to the model, as the result of its call."""


class MemoryTool:
    """The memory tool over the files in one namespace of a store, in `category` ("semantic", or the schema's first)."""

    def __init__(self, store: MemoryStore, *, category: str | None = None) -> None:
        self.store = store
        self._files = Keyed(store, "file", category)

    def to_dict(self) -> dict[str, str]:
        """The tool as a request names it."""
        return {"type": "memory_20250818", "name": "memory"}

    def answer(self, block: Any) -> dict[str, Any]:
        """The `tool_result` block for a `tool_use` block, a mapping or the anthropic package's object.

        Where the store itself fails (it is locked, its server is away), the model is told that the memory is not
        available, and the failure is an error in the log `memalpha`; `run` raises it.
        """
        id, command = (block["id"], block["input"]) if isinstance(block, Mapping) else (block.id, block.input)
        result = {"type": "tool_result", "tool_use_id": id}
        try:
            return {**result, "content": self._run(command)}
        except CommandError as error:
            return {**result, "content": str(error), "is_error": True}

    def runnable(self, *, asynchronous: bool = False) -> Any:
        """The tool for the tool runner of the anthropic package, of its synchronous or asynchronous client."""
        try:
            from anthropic.lib.tools import (  # pyright: ignore[reportMissingImports]
                BetaAsyncBuiltinFunctionTool,
                BetaBuiltinFunctionTool,
                ToolError,
            )
        except ModuleNotFoundError as error:
            raise ConfigError(f"a tool runner needs {error.name}: pip install anthropic; else use answer") from error

        tool = self

        def run(command: Any) -> str:
            try:
                return tool._run(command)
            except CommandError as error:
                raise ToolError(str(error)) from error  # the runner takes any other for a bug in the tool

        class Runnable(BetaBuiltinFunctionTool):
            def to_dict(self) -> Any:
                return tool.to_dict()

            def call(self, input: object) -> Any:
                return run(input)

        class AsyncRunnable(BetaAsyncBuiltinFunctionTool):
            def to_dict(self) -> Any:
                return tool.to_dict()

            async def call(self, input: object) -> Any:
                return await asyncio.to_thread(run, input)

        return AsyncRunnable() if asynchronous else Runnable()

    def _run(self, command: Any) -> str:
        """`run` for a model, whose call is answered whatever happens to the store."""
        try:
            return self.run(command)
        except CommandError:
            raise
        except MemalphaError as error:
            _LOG.error("memory tool: %s: %s", type(error).__name__, error, exc_info=True)
            raise CommandError("Error: The memory is not available at the moment") from error

    def run(self, command: Mapping[str, Any]) -> str:
        """Carry out one command and return its text. Raises `CommandError` where it cannot be; nothing is changed
        then."""
        kind = command.get("command") if isinstance(command, Mapping) else None
        if not isinstance(kind, str) or kind not in _NEEDED:
            raise CommandError(f"Error: Unknown command: {kind}. There are: {', '.join(_NEEDED)}")
        given = []
        for name, needed in _NEEDED[kind].items():
            value: Any = command.get(name)
            if not isinstance(value, needed) or isinstance(value, bool):
                raise CommandError(f"Error: `{name}` is missing or no {'number' if needed is int else 'text'}")
            given.append(_checked(value) if name.endswith("path") else value)
        if kind == "view":
            return self._view(given[0], command.get("view_range"))
        try:
            with self._files.together():
                return getattr(self, f"_{kind}")(*given)
        except InvalidContent as error:
            raise CommandError(f"Error: {error}") from error

    def _view(self, path: str, lines: Any) -> str:
        text = self._read(path)
        if text is None:
            return self._list(path)
        found = text.split("\n")
        if len(found) > _MOST_LINES:
            raise CommandError(f"File {path} exceeds maximum line limit of 999,999 lines.")
        first, last = 1, len(found)
        if lines is not None:
            if not isinstance(lines, list | tuple) or [type(line) for line in lines] != [int, int]:
                raise CommandError(f"Error: Invalid `view_range`: {lines}. It should be two line numbers")
            first, last = max(1, lines[0]), len(found) if lines[1] == -1 else lines[1]
            if first > min(last, len(found)):
                raise CommandError(
                    f"Error: Invalid `view_range`: {list(lines)}. It should be within the range of lines of the file: "
                    f"[1, {len(found)}]"
                )
        return f"Here's the content of {path} with line numbers:\n" + _numbered(found, first, last)

    def _list(self, path: str) -> str:
        sizes: dict[str, int] = {}
        for file, text in self._below(path).items():
            parts = file.removeprefix(path).split("/")[1:]
            if any(part.startswith(".") or part == "node_modules" for part in parts):
                continue
            size = len(text.encode())
            for depth in range(min(len(parts), 3)):
                place = "/".join(parts[:depth]) + ("/" if depth else "")
                sizes[place] = sizes.get(place, 0) + size
            if len(parts) <= 2:
                sizes["/".join(parts)] = size
        if not sizes and path != ROOT:
            raise CommandError(f"The path {path} does not exist. Please provide a valid path.")
        lines = [f"{_size(sizes.pop('', 0))}\t{path}"]
        lines += [f"{_size(size)}\t{path}/{place}" for place, size in sorted(sizes.items())]
        head = (
            f"Here're the files and directories up to 2 levels deep in {path}, excluding hidden items and node_modules:"
        )
        return "\n".join([head, *lines])

    def _create(self, path: str, text: str) -> str:
        if self._exists(path):
            raise CommandError(f"Error: File {path} already exists")
        self._write(path, text)
        return f"File created successfully at: {path}"

    def _str_replace(self, path: str, old: str, new: str) -> str:
        text = self._read(path)
        if text is None:
            raise CommandError(f"Error: The path {path} does not exist. Please provide a valid path.")
        places = [place for place in range(len(text)) if text.startswith(old, place)] if old else []
        if not places:
            raise CommandError(
                f"No replacement was performed, old_str `{old}` did not appear verbatim in {path}."
                if old
                else "Error: `old_str` is empty"
            )
        lines = [text.count("\n", 0, place) + 1 for place in places]
        if len(places) > 1:
            raise CommandError(
                f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines: "
                f"{', '.join(map(str, lines))}. Please ensure it is unique"
            )
        changed = text[: places[0]] + new + text[places[0] + len(old) :]
        self._write(path, changed)
        shown = _numbered(changed.split("\n"), max(1, lines[0] - 2), lines[0] + new.count("\n") + 2)
        return f"The memory file has been edited. Here is the snippet showing the change (with line numbers):\n{shown}"

    def _insert(self, path: str, line: int, text: str) -> str:
        before = self._read(path)
        if before is None:
            raise CommandError(f"Error: The path {path} does not exist")
        lines = before.split("\n")
        if lines[-1] == "":
            lines.pop()
        if not 0 <= line <= len(lines):
            raise CommandError(
                f"Error: Invalid `insert_line` parameter: {line}. It should be within the range of lines of the file: "
                f"[0, {len(lines)}]"
            )
        lines.insert(line, text.removesuffix("\n"))
        self._write(path, "\n".join(lines) + "\n")
        return f"The file {path} has been edited."

    def _delete(self, path: str) -> str:
        if path == ROOT:
            raise CommandError(f"Error: Cannot delete the {ROOT} directory itself")
        files = [path] if self._read(path) is not None else list(self._below(path))
        if not files:
            raise CommandError(f"Error: The path {path} does not exist")
        for file in files:
            self._files.delete(escaped(file))
        return f"Successfully deleted {path}"

    def _rename(self, old: str, new: str) -> str:
        if old == ROOT:
            raise CommandError(f"Error: Cannot rename the {ROOT} directory itself")
        text = self._read(old)
        files = self._below(old) if text is None else {old: text}
        if not files:
            raise CommandError(f"Error: The path {old} does not exist")
        if self._exists(new):
            raise CommandError(f"Error: The destination {new} already exists")
        if new.startswith(f"{old}/"):
            raise CommandError(f"Error: Cannot move {old} into itself")
        for file in files:
            self._files.delete(escaped(file))
        for file, text in files.items():
            self._write(new + file.removeprefix(old), text)
        return f"Successfully renamed {old} to {new}"

    def _read(self, path: str) -> str | None:
        """The text of a file; None where none is there."""
        entry = self._files.get(escaped(path))
        return None if entry is None else text_of(entry)

    def _write(self, path: str, text: str) -> None:
        for place, letter in enumerate(path):
            if letter == "/" and place > len(ROOT) and self._read(path[:place]) is not None:
                raise CommandError(f"Error: {path[:place]} is a file, not a directory")
        self._files.put(escaped(path), text, {"path": path}, timestamp=utc(self._files.now()))

    def _below(self, path: str) -> dict[str, str]:
        """The files in a directory, at any depth."""
        files = {entry.metadata["file"]["path"]: text_of(entry) for entry in self._files.all()}
        return {name: text for name, text in files.items() if name.startswith(f"{path}/")}

    def _exists(self, path: str) -> bool:
        return path == ROOT or self._read(path) is not None or bool(self._below(path))


def _checked(path: str) -> str:
    """A path in its one form. Raises `CommandError` for one that is not in `/memories`."""
    plain = path
    while (decoded := unquote(plain)) != plain:
        plain = decoded
    if any(ord(letter) < 32 for letter in plain):
        raise CommandError(f"Error: Path {path!r} has control characters, as line breaks and tabs are")
    if "\\" in plain or ".." in plain.split("/"):
        raise CommandError(f"Error: Path {path} would escape {ROOT} directory")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not path.startswith("/") or "/" + "".join(parts[:1]) != ROOT:
        raise CommandError(f"Error: Path must start with {ROOT}, got: {path}")
    return "/" + "/".join(parts)


def _numbered(lines: list[str], first: int, last: int) -> str:
    return "\n".join(f"{number:6}\t{lines[number - 1]}" for number in range(first, min(last, len(lines)) + 1))


def _size(count: int) -> str:
    """A number of bytes as people read it: 0B, 12B, 1.5K, 2K."""
    value, unit = float(count), "B"
    for larger in "KMG":
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f}{unit}" if value == int(value) else f"{value:.1f}{unit}"
