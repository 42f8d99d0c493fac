"""Official files from a hub: a small hub over real HTTP, read by the hub's own client in a process."""

import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from hub_layouts import MEETING, write

from memalpha.errors import DataError, install_command
from memalpha.tasks.catalog import locate, obtain, snapshot_commit
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.load import load_tasks

COMMIT = "a" * 40
LARGE = b"0123456789" * 3_000


def digest(content):
    return hashlib.sha256(content).hexdigest()


class Hub(http.server.BaseHTTPRequestHandler):
    """Serve `server.files` of the dataset me/set at `server.commit`; requests are noted in `server.asked`."""

    def log_message(self, *_):
        pass

    def send(self, status, body=b"", **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET" and self.server.breaks and len(body) > 1000:
            self.server.breaks -= 1
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif self.command == "GET":
            self.wfile.write(body)

    def answer(self):
        path, files, commit = self.path.split("?")[0], self.server.files, self.server.commit
        self.server.asked.append((self.command, path))
        if path == "/":
            self.send(200)
        elif path.startswith("/api/datasets/me/set/tree/"):
            listed = [{"type": "file", "path": name, "size": len(b), "oid": "0" * 40} for name, b in files.items()]
            self.send(200, json.dumps(listed).encode(), Content_Type="application/json")
        elif path.startswith("/api/datasets/me/set"):
            about = {"id": "me/set", "sha": commit, "siblings": [{"rfilename": name} for name in files]}
            self.send(200, json.dumps(about).encode(), Content_Type="application/json")
        elif path.startswith("/datasets/me/set/resolve/") and (name := path.split("/", 6)[6]) in files:
            self.send(200, files[name], ETag=f'"{digest(files[name])}"', X_Repo_Commit=commit)
        else:
            self.send(404, b"{}", X_Error_Code="RepoNotFound")

    do_HEAD = do_GET = answer


@contextmanager
def hub(**files):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files, server.commit, server.asked, server.breaks = dict(files), COMMIT, [], 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def ask(home, port, *sets):
    """Return what `obtain` gives for each set in a process whose hub is at the port: a path or an error message."""
    code = (
        "import json, sys\n"
        "from memalpha.errors import DataError\n"
        "from memalpha.tasks.dataset_info import DataSet, File\n"
        "from memalpha.tasks.catalog import obtain\n"
        "for known in eval(sys.argv[1]):\n"
        "    try: print(json.dumps(['path', str(obtain(known))]))\n"
        "    except DataError as error: print(json.dumps(['error', str(error)]))\n"
    )
    env = {
        **{key: value for key, value in os.environ.items() if not key.startswith("HF_")},
        "HF_ENDPOINT": f"http://127.0.0.1:{port}",
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    command = [sys.executable, "-c", code, repr(sets)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()], done.stderr


def describe_set(*files, revision=COMMIT, source="hub:me/set"):
    return DataSet("set", "a set", source, "CC BY 4.0", "1", "judge", files=files, revision=revision)


def test_a_pinned_set_is_fetched_once_even_when_the_connection_breaks(tmp_path):
    dataset = describe_set(File("large.bin", digest(LARGE), len(LARGE)), File("parts/a.json"))
    parts = describe_set(File("parts/*.json"))
    with hub(**{"large.bin": LARGE, "parts/a.json": b"[1]", "parts/b.json": b"[2]", "unwanted.bin": b"x"}) as server:
        server.breaks = 1
        (first, again, *_), stderr = ask(tmp_path, server.server_port, dataset, dataset, parts)
        port, paths = server.server_port, [path for _, path in server.asked]
        assert [method for method, path in server.asked if path.endswith("large.bin")] == ["HEAD", "GET", "GET"]
    assert "Fetching" in stderr  # the progress bar
    assert sum(path == "/" for path in paths) == 2  # nothing was asked the second time
    kind, folder = first
    assert kind == "path" and again == first
    results = {str(file.relative_to(folder)): file.read_bytes() for file in Path(folder).rglob("*.*")}
    assert results == {"large.bin": LARGE, "parts/a.json": b"[1]", "parts/b.json": b"[2]"}
    assert snapshot_commit(Path(folder) / "large.bin") == COMMIT
    (offline, other), _ = ask(tmp_path, port, dataset, describe_set(File("other.json")))
    assert offline == first
    assert other[0] == "error"
    for part in ("the hub does not answer", "other.json", "me/set", COMMIT, "CC BY 4.0", "data=PATH"):
        assert part in other[1]


def test_wrong_files_are_reported_and_removed_from_the_cache(tmp_path):
    bad = describe_set(File("a.json", digest(b"[2]")))
    with hub(**{"a.json": b"[1]"}) as server:
        others = describe_set(File("b.json")), describe_set(File("a.json"), source="hub:me/none")
        got, _ = ask(tmp_path, server.server_port, bad, bad, *others)
        fetched = sum(method == "GET" and path.endswith("/a.json") for method, path in server.asked)
    assert [kind for kind, _ in got] == ["error"] * 4
    assert "a.json: its checksum" in got[0][1] and "removed from the cache" in got[0][1]
    assert got[1] == got[0] and fetched == 2
    assert "the repository has no file b.json" in got[2][1]
    assert "set: not fetched: " in got[3][1] and "data=PATH" in got[3][1]


def test_without_a_revision_the_newest_or_the_cached_commit_is_read(tmp_path):
    dataset = describe_set(File("a.json"), revision=None)
    with hub(**{"a.json": b"[1]"}) as server:
        ((_, first),), _ = ask(tmp_path, server.server_port, dataset)
        server.files, server.commit = {"a.json": b"[1, 2]"}, "b" * 40
        ((_, second),), _ = ask(tmp_path, server.server_port, dataset)
        port = server.server_port
    ((_, third),), _ = ask(tmp_path, port, dataset)
    assert [snapshot_commit(Path(path)) for path in (first, second, third)] == [COMMIT, "b" * 40, "b" * 40]
    assert (Path(second) / "a.json").read_bytes() == b"[1, 2]"


def test_a_given_path_wins_without_the_hub(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert locate(describe_set(File("a.json")), None, tmp_path) == tmp_path
    with pytest.raises(DataError, match=r"nowhere: not there; get a\.json from the dataset repository me/set"):
        locate(describe_set(File("a.json")), None, tmp_path / "nowhere")
    with pytest.raises(DataError, match=f"huggingface_hub fetches it: {re.escape(install_command('eval'))}"):
        obtain(describe_set(File("a.json")))


def test_tasks_from_the_cache_say_which_commit_they_are_of(tmp_path):
    folder = tmp_path / "snapshots" / COMMIT
    for snapshot in (folder, tmp_path):
        write(snapshot / "test.jsonl", [MEETING])
    assert [task.meta for task in load_tasks("qmsum", data=folder)] == [{"commit": COMMIT}]
    assert [task.meta for task in load_tasks("qmsum", data=tmp_path)] == [{}]
