"""A model hub on a real socket: repositories, uploads by commit and by LFS, as `huggingface_hub` calls them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from standin import Answer, HttpStandIn

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


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Serve an empty hub inside the block."""
    hub = Hub()

    def respond(method: str, path: str, body: bytes) -> Answer:
        status, value = 200, {}
        if method == "GET":
            return 501, {}, b""
        if method == "PUT":
            hub.objects[path[1:]] = body
        elif method == "POST" and server.headers[-1].get("Authorization") != f"Bearer {TOKEN}":
            status, value = 401, {"error": "who are you?"}
        elif method == "POST":
            value = hub.answer(path.partition("?")[0], body)
        data = b"" if method == "HEAD" else json.dumps(value).encode()
        return status, {"Content-Type": "application/json"}, data

    with HttpStandIn(respond) as server:
        hub.url = server.url
        yield hub
