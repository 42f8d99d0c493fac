"""OpenAI-compatible server on a real socket that fails on demand, for tests of endpoint faults."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

Fault = str | None
PROVIDER_ERROR = {"message": {"content": ""}, "error": {"message": "the provider is away"}, "finish_reason": "error"}
BODIES = {
    "empty": None,
    "error": {"error": {"message": "upstream is away"}},
    "choice error": {"choices": [PROVIDER_ERROR]},
    "no choices": {"choices": []},
}
"""Faulty bodies with status 200."""
FAULTS = ("429", "429 0.5", "500", "503 0.5", "hang", "cut", "half", "gone", *BODIES)
"""Faults that pass: a status (with the seconds of its Retry-After), a hang, a body cut short, half of a JSON, a
connection closed before the answer, an empty body, an error with status 200, one beside a message, an answer without
one."""


def whimsical(prompt: str, body: Mapping[str, Any]) -> str:
    """Return a verdict by the hash of the prompt: rewards differ, and are the same in every run."""
    yes = hashlib.sha256(prompt.encode()).digest()[0] % 2
    words = ("valid", "invalid") if '"valid or invalid"' in prompt else ("correct", "wrong")
    return json.dumps({"verdict": words[yes]})


class HostileServer:
    """Server that answers `reply(prompt, body)` (a text or a message) unless `fault` names a fault.

    A message may hold its own `finish_reason`.

    `fault(prompt, nth)` is called for the nth attempt (from 1) of a prompt. `seen` counts attempts and `answered`
    complete answers by prompt (the last message). `usage` makes the token usage of an answer. `models` None: no list
    of models.
    """

    def __init__(
        self,
        reply: Callable[[str, Mapping[str, Any]], Any] = lambda prompt, body: f"echo {prompt}",
        fault: Callable[[str, int], Fault] = lambda prompt, nth: None,
        usage: Callable[[str, str], Any] = lambda prompt, text: None,
        *,
        models: list[str] | None = ["m"],  # noqa: B006
        key: str | None = None,
    ) -> None:
        self.reply, self.fault, self.usage, self.models, self.key = reply, fault, usage, models, key
        self.seen: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.bodies: list[Mapping[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.at_once = self.most_at_once = 0
        self.hold: Callable[[str], bool] = lambda prompt: False
        """Return True while the answer to a prompt must wait."""

    def __enter__(self) -> HostileServer:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._connection, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        self.name = f"http://127.0.0.1:{self.port}/v1#m"
        return self

    def __exit__(self, *error: Any) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _stop(self) -> None:
        self._server.close()
        pending_tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in pending_tasks:
            task.cancel()
        await asyncio.gather(*pending_tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (head := await reader.readuntil(b"\r\n\r\n")) and await self._answer(head.decode(), reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # cancelled: the server ends
        finally:
            writer.close()

    async def _answer(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        self.headers.append(headers)
        if self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
            return self._send(writer, 401, {"error": {"message": f"wrong key {headers.get('authorization')}"}})
        if lines[0].startswith("GET /v1/models"):
            if self.models is None:
                return self._send(writer, 404, {"detail": "Not Found"})
            return self._send(writer, 200, {"data": [{"id": model} for model in self.models]})
        body = json.loads(raw)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self._complete(body, writer)
        finally:
            self.at_once -= 1

    async def _complete(self, body: Mapping[str, Any], writer: asyncio.StreamWriter) -> bool:
        if body["model"] != "m":
            return self._send(writer, 404, {"error": {"code": "model_not_found", "message": "no such model"}})
        prompt = body["messages"][-1]["content"]
        self.bodies.append(body)
        self.seen[prompt] += 1
        fault = self.fault(prompt, self.seen[prompt])
        while self.hold(prompt):
            await asyncio.sleep(0.002)
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "gone":
            return False
        if fault in BODIES:
            return self._send(writer, 200, BODIES[fault])
        if fault == "quota":
            error = {"type": "insufficient_quota", "message": "You exceeded your quota"}
            return self._send(writer, 429, {"error": error})
        if fault is not None and fault[0].isdigit():
            status, _, after = fault.partition(" ")
            extra = f"Retry-After: {after}\r\n" if after else ""
            return self._send(writer, int(status), {"error": {"message": "not now"}}, extra=extra)
        reply = self.reply(prompt, body)
        message = reply if isinstance(reply, dict) else {"role": "assistant", "content": reply}
        finish_reason = message.get("finish_reason", "stop")
        answer: dict[str, Any] = {"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]}
        if (usage := self.usage(prompt, str(message.get("content")))) is not None:
            answer["usage"] = usage
        if fault == "half":
            return self._send(writer, 200, answer, cut="json")
        if fault == "cut":
            return self._send(writer, 200, answer, cut="body")
        assert fault is None, fault
        self.answered[prompt] += 1
        return self._send(writer, 200, answer)

    def _send(
        self, writer: asyncio.StreamWriter, status: int, body: Any, *, extra: str = "", cut: str | None = None
    ) -> bool:
        text = b"" if body is None else json.dumps(body).encode()
        half = text[: len(text) // 2]
        length = len(half) if cut == "json" else len(text)
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{extra}Content-Length: {length}\r\n\r\n"
        writer.write(head.encode() + (half if cut else text))
        return cut != "body"
