"""Model server on a real socket: OpenAI's two APIs, whole and streamed, with answers by a function."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Message = str | dict[str, Any]


class StandIn:
    """Server that answers `/chat/completions` and `/responses` with `reply(body)`.

    A reply is a text, or a message with tool calls.
    `bodies` holds the requests. `cut`: a stream breaks off after this number of pieces (one word each).
    """

    def __init__(self, reply: Callable[[Mapping[str, Any]], Message], *, cut: int | None = None) -> None:
        self.reply, self.cut = reply, cut
        self.bodies: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.bodies.append(body)
                reply_message = outer.reply(body)
                chat = self.path.endswith("/chat/completions")
                if not body.get("stream"):
                    self._send(
                        json.dumps((_completion if chat else _response)(reply_message)).encode(), "application/json"
                    )
                    return
                assert isinstance(reply_message, str)
                words = [word + " " for word in reply_message.split(" ")]
                events = (_chunks if chat else _events)(reply_message, words[: outer.cut])
                self._send("".join(events).encode(), "text/event-stream", incomplete=outer.cut is not None)

            def _send(self, data: bytes, kind: str, *, incomplete: bool = False) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data) + incomplete))
                self.end_headers()
                self.wfile.write(data)
                self.close_connection = incomplete

            def log_message(self, *words: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> StandIn:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _message(message: Message) -> dict[str, Any]:
    return {"role": "assistant", "content": message} if isinstance(message, str) else message


def _completion(message: Message) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": _message(message)}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def _response(text: Message) -> dict[str, Any]:
    parts = [{"type": "output_text", "text": text, "annotations": []}]
    output = {"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": parts}
    rest = {"parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
    response = {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "completed",
        "output": [output],
    }
    return {**response, **rest}


def _chunks(text: str, words: list[str]) -> Iterator[str]:
    for word in words:
        choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        yield f"data: {json.dumps(chunk)}\n\n"
    if len(words) == len(text.split(" ")):
        yield "data: [DONE]\n\n"


def _events(text: str, words: list[str]) -> Iterator[str]:
    response = _response(text)
    part = {"type": "output_text", "text": "", "annotations": []}
    item = {**response["output"][0], "status": "in_progress", "content": []}
    address = {"item_id": "i", "output_index": 0, "content_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", "part": part, **address},
        *({"type": "response.output_text.delta", "delta": word, "logprobs": [], **address} for word in words),
    ]
    if len(words) == len(text.split(" ")):
        events.append({"type": "response.completed", "response": response})
    for number, event in enumerate(events):
        yield f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n"
