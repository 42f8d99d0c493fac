"""The files of `examples/deploy` name what the server has: options, address, paths, headers, limits."""

import re
from pathlib import Path

import pytest
import typer

from memalpha.cli.main import app

pytest.importorskip("starlette", reason="the server's packages are not installed")

from memalpha.integrations.server import http, run, schemas

FILES = {path.name: path.read_text() for path in (Path(__file__).parents[2] / "examples" / "deploy").iterdir()}


def value(name: str, pattern: str) -> str:
    """Return what the pattern's group matches in a file."""
    match = re.search(pattern, FILES[name])
    assert match, f"{name}: no {pattern}"
    return match[1]


@pytest.mark.parametrize("name", FILES)
def test_the_server_has_the_options_and_one_address(name: str) -> None:
    words = value(name, r"(?m)^(.*--http.*)$").translate(str.maketrans('",[]', "    ")).split()
    known = {option for item in typer.main.get_command(app).commands["serve"].params for option in item.opts}
    assert {word for word in words if word.startswith("--")} <= known
    host, _ = run.parse_address(words[words.index("--http") + 1])
    assert run.is_loopback(host) or run.TOKEN_ENV in FILES[name]  # others reach it
    assert set(re.findall(r"\b(?:127|0)\.0\.0\.[01]:(\d+)", FILES[name])) == {"8765"}


def test_limits_paths_and_headers_are_those_of_the_server() -> None:
    assert int(value("nginx.conf", r"client_max_body_size (\d+)m;")) << 20 > schemas.MAX_BODY  # memalpha answers 413
    assert value("nginx.conf", r"proxy_set_header (\S+) \$request_id;").lower() == http.REQUEST_ID_HEADER.decode()
    assert value("nginx.conf", r"proxy_set_header Host (\S+);") == "$http_host"
    assert value("Dockerfile", r"urlopen\('http://127\.0\.0\.1:8765(\S+?)'") in http.OPEN
    assert int(value("memalpha.service", r"TimeoutStopSec=(\d+)")) > run.SHUTDOWN_SECONDS
