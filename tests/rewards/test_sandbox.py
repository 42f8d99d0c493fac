"""Programs under attack: they earn nothing, nothing is left, the next is scored right; and no sandbox, no run."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from attacks import ATTACKS, RIGHT, TESTS

from memalpha.config.rewards import CodePart
from memalpha.errors import ConfigError
from memalpha.rewards import sandbox
from memalpha.rewards.code import CodeReward, parse_tests, run_tests
from memalpha.rewards.environments import load_rewards
from memalpha.rewards.sandbox import Limits, check_sandbox, read_output, start_process

WHY = sandbox._find_problem(shutil.which("bwrap"), os.environ.get("PATH", ""))
contained = pytest.mark.skipif(bool(WHY), reason=f"no sandbox here: {WHY}")
SHORT = Limits(seconds=1, megabytes=256, patience=2)


@pytest.fixture
def listener():
    """A server on this machine that gives the answer away."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        reached = []

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                reached.append(connection)
                connection.sendall(b"155")
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], reached
        server.shutdown(socket.SHUT_RDWR)


MARK = f"#{os.getpid()}"
"""Stands in the command line of all that these tests start: others may run programs on this machine."""


@pytest.fixture(autouse=True)
def marked(monkeypatch):
    command = sandbox._command
    command.cache_clear()
    run_tests.cache_clear()
    monkeypatch.setattr(sandbox, "_BOOT", sandbox._BOOT + MARK)
    yield
    command.cache_clear()


def sandboxes() -> int:
    """How many processes of ours are bubblewrap, or run in one."""
    found = 0
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += MARK.encode() + b"\0" in place.read_bytes()
    return found


def until_none_is_left() -> int:
    until = time.monotonic() + 10
    while (count := sandboxes()) and time.monotonic() < until:
        time.sleep(0.02)
    return count


@contained
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_earns_nothing_and_leaves_nothing(name, tmp_path, listener, monkeypatch):
    port, reached = listener
    (tmp_path / "secret").write_text("155")
    monkeypatch.setenv("MEMALPHA_SECRET", "155")
    program = ATTACKS[name].replace("PORT", str(port)).replace("FOLDER", str(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    outcomes = run_tests(program, parse_tests(TESTS), SHORT)
    assert all(outcomes), outcomes
    assert run_tests(RIGHT, parse_tests(TESTS), Limits()) == ("", "", ""), "the next is scored right"
    assert sorted(tmp_path.rglob("*")) == before and (tmp_path / "secret").read_text() == "155"
    assert not reached
    assert not list(Path("/").glob("memalpha-was-here")) and not list(Path.home().glob("memalpha-was-here"))
    assert until_none_is_left() == 0


@contained
def test_what_a_program_sees(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMALPHA_SECRET", "155")
    source = """
import os, sys
print(sorted(os.listdir("/")), sorted(os.listdir("/dev")), os.listdir("/tmp"), sorted(os.environ), os.getcwd())
places = ("/home", "/proc", "/etc/passwd", "/sys", "/var", "/usr/bin/env", "/usr/share")
print([place for place in places if os.path.exists(place)])
print([fd for fd in range(3, 64) if os.path.exists(fd)])
"""
    with start_process(Limits(), source=source, stdin=b"") as child:
        said = read_output(child, time.monotonic() + 60).decode()
        assert child.wait(60) == 0
    root, seen, fds = said.splitlines()
    assert "PYTHONHASHSEED" in root and "MEMALPHA_SECRET" not in root and "['null', 'urandom', 'zero'] []" in root
    assert seen == fds == "[]"


@contained
def test_all_ends_with_the_process_that_started_it():
    code = (
        f"from memalpha.rewards import sandbox\nimport time\nsandbox._BOOT += {MARK!r}\n"
        "with sandbox.start_process(sandbox.Limits(seconds=60), source='while True: pass', stdin=b''):\n"
        "    print('started', flush=True)\n    time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "started\n"
    child.send_signal(signal.SIGKILL)  # it may have only begun: then it is for `inside` to see that nobody waits
    child.wait()
    assert until_none_is_left() == 0


# ------------------------------------------------------------------------------------------- no sandbox, no program


def fake(folder: Path, text: str) -> str:
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, r"bubblewrap \(bwrap\) is not installed"),
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "fails .*No permissions to create"),
        ('while [ "$1" != -- ]; do shift; done; shift; exec "$@"', "does not contain programs: one in it found"),
        ("exit 0", "does not contain programs: one in it found b''"),
    ],
    ids=["missing", "no namespaces", "lets everything through", "runs nothing"],
)
def test_without_a_sandbox_nothing_is_run(tmp_path, monkeypatch, text, why):
    folder = str(tmp_path) if text is None else fake(tmp_path, text)
    monkeypatch.setenv("PATH", folder if text is None else f"{folder}:/bin:/usr/bin")
    monkeypatch.setattr(sandbox, "_command", sandbox._command.__wrapped__)
    with pytest.raises(ConfigError, match=rf"never run without one: .*{why}.*apt install bubblewrap"):
        check_sandbox()
    with pytest.raises(ConfigError, match=r"rewards\.0: programs cannot be run in a sandbox here"):
        load_rewards([CodePart(kind="code")])
    with pytest.raises(ConfigError, match="never run without one"):
        run_tests(RIGHT, parse_tests(TESTS), Limits())
    with pytest.raises(ConfigError, match="never run without one"):
        CodeReward()


def test_a_machine_without_a_filter_is_refused(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert "no system call filter for riscv64" in sandbox._find_problem("bwrap", "another path")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "bubblewrap is for Linux" in sandbox._find_problem("bwrap", "a third path")
