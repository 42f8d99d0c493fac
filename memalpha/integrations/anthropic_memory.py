"""Anthropic's memory tool (`memory_20250818`) on a `MemoryStore`: Claude's files are its entries.

    tool = MemoryTool(store.namespace("ana"))
    ... tools=[tool.to_dict()] ...             # in the request, with any client
    ... tool.answer(block) ...                 # the tool_result for a tool_use block
    client.beta.messages.tool_runner(..., tools=[tool.runnable()])    # or let the anthropic package run it

A file under `/memories` is an entry: the id is its path, the content its text. Files can therefore be searched, every
version stays in the history, and `undo`, audit and export work. A directory exists while it contains a file; its size
is that of its files. Commands, answers and errors follow the tool's documentation. Paths never reach the file system:
a path that leaves `/memories`, by `..` in any spelling, is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from memalpha.errors import ConfigError, InvalidContent, MemalphaError
from memalpha.store.fields import format_utc
from memalpha.store.keyed_entries import KeyedEntries, escape_key, original_text
from memalpha.store.store import MemoryStore

_LOG = logging.getLogger("memalpha")
ROOT = "/memories"
_PARAMETERS: Mapping[str, Mapping[str, type]] = {
    "view": {"path": str},
    "create": {"path": str, "file_text": str},
    "str_replace": {"path": str, "old_str": str, "new_str": str},
    "insert": {"path": str, "insert_line": int, "insert_text": str},
    "delete": {"path": str},
    "rename": {"old_path": str, "new_path": str},
}


class CommandError(MemalphaError):
    """A command that failed; its message goes to the model as the result of the call."""


class MemoryTool:
    """Serve the memory tool from one namespace of a store; files are entries of the schema's default category."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self._files = KeyedEntries(store, "file")

    def to_dict(self) -> dict[str, str]:
        """Return the tool for the `tools` of a request."""
        return {"type": "memory_20250818", "name": "memory"}

    def answer(self, block: Any) -> dict[str, Any]:
        """Return the `tool_result` block for a `tool_use` block (a mapping, or the anthropic package's object).

        If the store fails (it is locked, its server is away), the model learns that the memory is not available, and
        the logger `memalpha` gets the error. `run` raises it instead.
        """
        id, command = (block["id"], block["input"]) if isinstance(block, Mapping) else (block.id, block.input)
        result = {"type": "tool_result", "tool_use_id": id}
        try:
            return {**result, "content": self._run(command)}
        except CommandError as error:
            return {**result, "content": str(error), "is_error": True}

    def runnable(self, *, asynchronous: bool = False) -> Any:
        """Return the tool for the anthropic package's tool runner, synchronous or asynchronous."""
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
                return self._run(command)
            except CommandError as error:
                raise ToolError(str(error)) from error  # the runner treats other exceptions as bugs of the tool

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
        """Run a command of a model; a failing store gives an answer, too."""
        try:
            return self.run(command)
        except CommandError:
            raise
        except MemalphaError as error:
            _LOG.error("memory tool: %s: %s", type(error).__name__, error, exc_info=True)
            raise CommandError("Error: The memory is not available at the moment") from error

    def run(self, command: Mapping[str, Any]) -> str:
        """Run one command and return its text. Raises `CommandError` on failure, without any change."""
        kind = command.get("command") if isinstance(command, Mapping) else None
        if not isinstance(kind, str) or kind not in _PARAMETERS:
            raise CommandError(f"Error: Unknown command: {kind}. There are: {', '.join(_PARAMETERS)}")
        arguments = []
        for name, expected in _PARAMETERS[kind].items():
            value: Any = command.get(name)
            if not isinstance(value, expected) or isinstance(value, bool):
                raise CommandError(f"Error: `{name}` is missing or no {'number' if expected is int else 'text'}")
            if isinstance(value, str):  # half of a cut emoji could not be sent back to the model
                value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            arguments.append(_normalize_path(value) if name.endswith("path") else value)
        if kind == "view":
            return self._view(arguments[0], command.get("view_range"))
        try:
            with self.store.exclusive():
                return getattr(self, f"_{kind}")(*arguments)
        except InvalidContent as error:
            raise CommandError(f"Error: {error}") from error

    def _view(self, path: str, lines: Any) -> str:
        text = self._read(path)
        if text is None:
            return self._list(path)
        text_lines = text.split("\n")
        if len(text_lines) > 999_999:
            raise CommandError(f"File {path} exceeds maximum line limit of 999,999 lines.")
        first, last = 1, len(text_lines)
        if lines is not None:
            if not isinstance(lines, list | tuple) or [type(line) for line in lines] != [int, int]:
                raise CommandError(f"Error: Invalid `view_range`: {lines}. It should be two line numbers")
            first, last = max(1, lines[0]), len(text_lines) if lines[1] == -1 else lines[1]
            if first > min(last, len(text_lines)):
                raise CommandError(
                    f"Error: Invalid `view_range`: {list(lines)}. It should be within the range of lines of the file: "
                    f"[1, {len(text_lines)}]"
                )
        return f"Here's the content of {path} with line numbers:\n" + _number_lines(text_lines, first, last)

    def _list(self, path: str) -> str:
        sizes: dict[str, int] = {}
        for file, text in self._files_below(path).items():
            parts = file.removeprefix(path).split("/")[1:]
            if any(part.startswith(".") or part == "node_modules" for part in parts):
                continue
            size = len(text.encode())
            for depth in range(min(len(parts), 3)):
                folder = "/".join(parts[:depth]) + ("/" if depth else "")
                sizes[folder] = sizes.get(folder, 0) + size
            if len(parts) <= 2:
                sizes["/".join(parts)] = size
        if not sizes and path != ROOT:
            raise CommandError(f"The path {path} does not exist. Please provide a valid path.")
        lines = [f"{_format_size(sizes.pop('', 0))}\t{path}"]
        lines += [f"{_format_size(size)}\t{path}/{name}" for name, size in sorted(sizes.items())]
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
        if not old:
            raise CommandError("Error: `old_str` is empty")
        offsets = [offset for offset in range(len(text)) if text.startswith(old, offset)]
        if not offsets:
            raise CommandError(f"No replacement was performed, old_str `{old}` did not appear verbatim in {path}.")
        lines = [text.count("\n", 0, offset) + 1 for offset in offsets]
        if len(offsets) > 1:
            raise CommandError(
                f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines: "
                f"{', '.join(map(str, lines))}. Please ensure it is unique"
            )
        new_text = text[: offsets[0]] + new + text[offsets[0] + len(old) :]
        self._write(path, new_text)
        excerpt = _number_lines(new_text.split("\n"), max(1, lines[0] - 2), lines[0] + new.count("\n") + 2)
        return (
            f"The memory file has been edited. Here is the snippet showing the change (with line numbers):\n{excerpt}"
        )

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
        files = [path] if self._read(path) is not None else list(self._files_below(path))
        if not files:
            raise CommandError(f"Error: The path {path} does not exist")
        for file in files:
            self._files.delete(escape_key(file))
        return f"Successfully deleted {path}"

    def _rename(self, old: str, new: str) -> str:
        if old == ROOT:
            raise CommandError(f"Error: Cannot rename the {ROOT} directory itself")
        text = self._read(old)
        files = self._files_below(old) if text is None else {old: text}
        if not files:
            raise CommandError(f"Error: The path {old} does not exist")
        if self._exists(new):
            raise CommandError(f"Error: The destination {new} already exists")
        if new.startswith(f"{old}/"):
            raise CommandError(f"Error: Cannot move {old} into itself")
        for file in files:
            self._files.delete(escape_key(file))
        for file, text in files.items():
            self._write(new + file.removeprefix(old), text)
        return f"Successfully renamed {old} to {new}"

    def _read(self, path: str) -> str | None:
        """Return the text of a file; None if it does not exist."""
        entry = self._files.get(escape_key(path))
        return None if entry is None else original_text(entry)

    def _write(self, path: str, text: str) -> None:
        for index, character in enumerate(path):
            if character == "/" and index > len(ROOT) and self._read(path[:index]) is not None:
                raise CommandError(f"Error: {path[:index]} is a file, not a directory")
        self._files.put(escape_key(path), text, {"path": path}, timestamp=format_utc(self.store.database.clock()))

    def _files_below(self, path: str) -> dict[str, str]:
        """Return the files in a directory, at any depth, as {path: text}."""
        files = {entry.metadata["file"]["path"]: original_text(entry) for entry in self._files.list()}
        return {name: text for name, text in files.items() if name.startswith(f"{path}/")}

    def _exists(self, path: str) -> bool:
        return path == ROOT or self._read(path) is not None or bool(self._files_below(path))


def _normalize_path(path: str) -> str:
    """Return the canonical form of a path. Raises `CommandError` if it is not in `/memories`."""
    plain = path
    while (decoded := unquote(plain)) != plain:
        plain = decoded
    if any(ord(character) < 32 for character in plain):
        raise CommandError(f"Error: Path {path!r} has control characters, such as line breaks and tabs")
    if "\\" in plain or ".." in plain.split("/"):
        raise CommandError(f"Error: Path {path} would escape {ROOT} directory")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not path.startswith("/") or "/" + "".join(parts[:1]) != ROOT:
        raise CommandError(f"Error: Path must start with {ROOT}, got: {path}")
    return "/" + "/".join(parts)


def _number_lines(lines: list[str], first: int, last: int) -> str:
    return "\n".join(f"{number:6}\t{lines[number - 1]}" for number in range(first, min(last, len(lines)) + 1))


def _format_size(count: int) -> str:
    """Format a number of bytes: 0B, 12B, 1.5K, 2K."""
    value, unit = float(count), "B"
    for larger in "KMG":
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f}{unit}" if value == int(value) else f"{value:.1f}{unit}"
