"""The proxy files of `examples/deploy` in front of a running server."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed")

DEPLOY = Path(__file__).parents[3] / "examples" / "deploy"
TOKEN = "t0ken" * 8
HOST = "memory.example.org"


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return the port of a server that answers to HOST."""
    store = tmp_path_factory.mktemp("served") / "ana.db"
    command = [sys.executable, "-m", "memalpha", "serve", str(store), "--policy", "add_all", "--embedder", "hash"]
    command += ["--http", "127.0.0.1:0", "--allow-host", HOST]
    server = subprocess.Popen(command, env=os.environ | {"MEMALPHA_TOKEN": TOKEN}, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    port = None
    while port is None:
        line = server.stderr.readline()
        assert line, "the server ended before it named its address"
        port = re.search(r"127\.0\.0\.1:(\d+)/v1", line)
    yield int(port[1])
    server.terminate()
    assert server.wait(timeout=30) == 0
    server.stderr.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _nginx(folder: Path, port: int, upstream: int) -> list[str]:
    block = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    block = block.replace("listen 80;", f"listen 127.0.0.1:{port};").replace("127.0.0.1:8765", f"127.0.0.1:{upstream}")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    text = f"daemon off; pid {folder}/pid; error_log stderr; events {{}} http {{ access_log off; {temporary} {block} }}"
    (folder / "nginx.conf").write_text(text, encoding="utf-8")
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]


def _caddy(folder: Path, port: int, upstream: int) -> list[str]:
    text = (DEPLOY / "Caddyfile").read_text(encoding="utf-8").replace("127.0.0.1:8765", f"127.0.0.1:{upstream}")
    site = text.replace(f"\n{HOST} {{", f"\nhttp://{HOST}:{port} {{")
    comments, site = site[: site.index("http://" + HOST)], site[site.index("http://" + HOST) :]
    text = f"{comments}{{\n\tadmin off\n\tauto_https off\n}}\n{site}"
    (folder / "Caddyfile").write_text(text, encoding="utf-8")
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


PROXIES = [
    pytest.param(start, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed"))
    for name, start in (("nginx", _nginx), ("caddy", _caddy))
]


@pytest.mark.parametrize("proxy", PROXIES)
def test_the_proxy_keeps_host_and_key(proxy, upstream: int, tmp_path: Path) -> None:
    port = _free_port()
    command = proxy(tmp_path, port, upstream)
    environment = os.environ | {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    running = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        host = f"{HOST}:{port}"

        def ask(path: str, body: object = None, **headers: str) -> tuple[int, str]:
            data = None if body is None else json.dumps(body).encode()
            sent = {"Host": host, "Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"} | headers
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, sent)
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        end = time.monotonic() + 30
        while True:
            try:
                assert ask("/health/live")[0] == 200
                break
            except (urllib.error.URLError, ConnectionError):
                assert running.poll() is None and time.monotonic() < end, "the proxy did not start"
                time.sleep(0.05)
        assert ask("/v1/read", {"text": "Ana: I live in Porto."})[0] == 200
        assert "Porto" in ask("/v1/search", {"query": "Ana"}, Origin=f"http://{host}")[1]
        assert ask("/v1/search", {"query": "Ana"}, Origin="http://evil.example.org")[0] == 403
        assert ask("/v1/search", {"query": "Ana"}, Authorization="Bearer wrong")[0] == 401
        assert ask("/v1/insert", {"text": "x" * (5 << 20)})[0] == 413
    finally:
        running.terminate()
        running.wait(timeout=30)
