"""HTTP servers on a real socket: any answers by a function, and OpenAI's chat completions."""

from __future__ import annotations

import json
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Message = str | dict[str, Any]
Answer = tuple[int, dict[str, str], bytes]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that has gone
            traceback.print_exc()


class HttpStandIn:
    """Server on loopback that answers requests with `answer(method, path, body)`: status, headers and body.

    `headers` holds those of the requests.
    """

    def __init__(self, answer: Callable[[str, str, bytes], Answer]) -> None:
        self.headers: list[Any] = []
        seen_headers = self.headers

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                seen_headers.append(self.headers)
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, headers, data = answer(self.command, self.path, body)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

            def log_message(self, *words: Any) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def serve(self) -> None:
        """Answer requests until the block ends."""
        self._server.serve_forever(poll_interval=0.02)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.serve)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class JsonStandIn(HttpStandIn):
    """Server that answers every POST with the JSON of `reply(body)`; `bodies` holds the requests."""

    def __init__(self, reply: Callable[[dict[str, Any]], Any]) -> None:
        self.bodies: list[dict[str, Any]] = []

        def answer(method: str, path: str, body: bytes) -> Answer:
            if method != "POST":
                return 501, {}, b""
            self.bodies.append(json.loads(body))
            return 200, {"Content-Type": "application/json"}, json.dumps(reply(self.bodies[-1])).encode()

        super().__init__(answer)


class StandIn(JsonStandIn):
    """Model server that answers `/chat/completions` with `reply(body)`: a text, or a message with tool calls."""

    def __init__(self, reply: Callable[[Mapping[str, Any]], Message]) -> None:
        super().__init__(lambda body: _completion(reply(body)))
        self.url += "/v1"


def _completion(message: Message) -> dict[str, Any]:
    content = {"role": "assistant", "content": message} if isinstance(message, str) else message
    choice = {"index": 0, "finish_reason": "stop", "message": content}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
