"""A model hub on a real socket: repositories, uploads by commit and by LFS, as `huggingface_hub` calls them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_write"


class Hub:
    """The stand-in's content: settings of each repository, and files by path."""

    def __init__(self) -> None:
        self.url = ""
        self.repositories: dict[str, dict[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        self.commits: list[str] = []
        self.objects: dict[str, bytes] = {}

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        name = f"{body['organization']}/{body['name']}"
        self.repositories[name] = body
        return {"url": f"{self.url}/{name}", "name": name}

    def commit(self, repository: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.commits.append(value["summary"])
            elif line["key"] == "file":
                self.files[f"{repository}/{value['path']}"] = base64.b64decode(value["content"])
            else:
                self.files[f"{repository}/{value['path']}"] = self.objects[value["oid"]]
        return {"commitOid": "0" * 40, "commitUrl": f"{self.url}/{repository}/commit/{'0' * 40}"}

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        """Answer a POST."""
        if path.endswith("/commit/main"):
            repository = path.removeprefix("/api/models/").removesuffix("/commit/main")
            return self.commit(repository, [json.loads(line) for line in body.splitlines()])
        fields = json.loads(body)
        if path == "/api/repos/create":
            return self.create(fields)
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if path.endswith("/preupload/main"):
            modes = {True: "lfs", False: "regular"}
            return {
                "files": [
                    {"path": name, "uploadMode": modes[name.endswith(".safetensors")], "shouldIgnore": False}
                    for name in (file["path"] for file in fields["files"])
                ]
            }
        assert path.endswith(".git/info/lfs/objects/batch"), path
        uploads = [{**item, "actions": {"upload": {"href": f"{self.url}/{item['oid']}"}}} for item in fields["objects"]]
        return {"transfer": "basic", "objects": uploads}


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._send(200, {})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self._send(401, {"error": "who are you?"})
            else:
                self._send(200, hub.answer(self.path.partition("?")[0], body))

        def do_PUT(self) -> None:
            hub.objects[self.path[1:]] = self.rfile.read(int(self.headers["Content-Length"]))
            self._send(200, {})

        def _send(self, code: int, value: dict[str, Any]) -> None:
            data = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, *words: Any) -> None:
            pass

    return Handler


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Serve an empty hub inside the block."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
