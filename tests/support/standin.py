"""Model server on a real socket: OpenAI's chat completions, with answers by a function."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Message = str | dict[str, Any]


class StandIn:
    """Server that answers `/chat/completions` with `reply(body)`: a text, or a message with tool calls.

    `bodies` holds the requests.
    """

    def __init__(self, reply: Callable[[Mapping[str, Any]], Message]) -> None:
        self.bodies: list[dict[str, Any]] = []
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                data = json.dumps(_completion(reply(bodies[-1]))).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

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


def _completion(message: Message) -> dict[str, Any]:
    content = {"role": "assistant", "content": message} if isinstance(message, str) else message
    choice = {"index": 0, "finish_reason": "stop", "message": content}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
