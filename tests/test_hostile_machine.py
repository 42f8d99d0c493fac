"""A store where the machine says no: a few cells of `eval/reach/environments.py`, which has all of them."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.sqlite,
    pytest.mark.skipif(sys.platform != "linux", reason="mounts, /proc and forked processes, on Linux"),
]
SCRIPT = Path(__file__).parents[1] / "eval" / "reach" / "environments.py"


@pytest.fixture(scope="module")
def environments():
    path, modules = [*sys.path], {*sys.modules}
    spec = importlib.util.spec_from_file_location("environments", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.warm_up(["open", "search", "add"])
    yield module
    sys.path[:] = path
    for name in {"common"} - modules:
        sys.modules.pop(name, None)


def can_mount(folder: Path) -> bool:
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "memalpha", folder]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        return False
    subprocess.run(["umount", folder], check=True)
    return True


@pytest.mark.parametrize(
    ("name", "action", "message"),
    [
        ("umask 000", "add", "right"),
        ("1 descriptors", "open", "refused: .*may this process open more of them"),
        ("2 descriptors", "add", "right|refused: "),
        ("4 descriptors", "search", "right"),
        ("read-only folder", "search", "right"),
        ("read-only folder", "add", "refused: .*is read-only: open it with read_only=True"),
        ("full disk", "add", "refused: .*the disk is full: make room"),
        ("disk with 64 kB", "search", "right"),
    ],
)
def test_the_answer_is_right_or_says_why(name: str, action: str, message: str, environments, tmp_path: Path) -> None:
    if "disk" in name and not can_mount(tmp_path):
        pytest.skip("mounting a small disk needs root")
    if "read-only" in name and os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        Path(folder).chmod(0o755)
        outcome = environments.run_cell(name, action, Path(folder))
    assert environments.re.match(message, outcome), outcome
