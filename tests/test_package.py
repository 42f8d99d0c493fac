"""Installed package: the wheel's contents, a small core without torch, and equal versions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from functools import partial
from importlib.metadata import requires
from pathlib import Path

import pytest

import memalpha

ROOT = Path(__file__).parent.parent
CORE_PACKAGES = 22  # memalpha and its dependencies; an increase needs a reason


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy, because the build writes into its folder
    shutil.copytree(ROOT / "memalpha", source / "memalpha", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)],
        check=True,
    )
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_contains_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name: archive.getinfo(name).file_size for name in archive.namelist()}
    expected = {
        f"memalpha/{path.relative_to(ROOT / 'memalpha').as_posix()}"
        for path in (ROOT / "memalpha").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected == {name for name in inside if name.startswith("memalpha/")}
    assert {"LICENSE", "NOTICE"} <= {Path(name).name for name in inside}
    for needed in (
        "config/presets/demo.yaml",
        "weights/tiny/model.safetensors",
        "report/templates/base.html",
        "report/templates/memory.css",
        "report/templates/memory.js",
        "py.typed",
    ):
        assert f"memalpha/{needed}" in inside
    weights = sum(size for name, size in inside.items() if name.startswith("memalpha/weights/tiny/"))
    smol = sum(size for name, size in inside.items() if name.startswith("memalpha/weights/smol/"))
    static = sum(size for name, size in inside.items() if name.startswith("memalpha/store/static/"))
    assert 0 < weights <= 4 * 2**20 and 0 < static <= 8 * 2**20 and smol <= 12_100_000


@pytest.mark.slow
def test_the_core_is_small_and_works_without_torch(wheel: Path, tmp_path: Path) -> None:
    """A fresh `pip install memalpha` has few packages and a working store, and names missing extras."""
    home = tmp_path / "env"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = partial(subprocess.run, text=True, env=environment, cwd=tmp_path)  # never the checkout's memalpha
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    listed = run([python, "-m", "pip", "list", "--format=freeze"], check=True, capture_output=True).stdout.split()
    packages = {line.split("==")[0].lower() for line in listed} - {"pip", "setuptools"}
    assert len(packages) <= CORE_PACKAGES, sorted(packages)
    assert not packages & {"torch", "transformers", "sentence-transformers"}
    store = tmp_path / "ana.db"
    command = home / "bin" / "memalpha"
    run([command, "add", store, "Ana lives in Lisbon."], check=True)
    result = run([command, "search", store, "Where does Ana live?"], capture_output=True, check=True)
    assert "Lisbon" in result.stdout
    for words in (["demo", "--out", str(tmp_path / "run")], ["read", str(store), __file__, "--policy", "tiny"]):
        refused = run([command, *words], capture_output=True, check=False)
        assert refused.returncode == 2 and "memalpha[train]" in refused.stderr


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == memalpha.__version__
    assert re.search(
        rf"^## {re.escape(memalpha.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )


def test_every_dependency_is_pinned() -> None:
    """`constraints.txt` names the direct dependencies of every extra, exactly."""
    pins = dict(
        line.replace("_", "-").split("==")
        for line in (ROOT / "constraints.txt").read_text().lower().splitlines()
        if "==" in line
    )
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pins.values())
    requirements = (requirement.lower().replace("_", "-") for requirement in requires("memalpha") or ())
    named = {re.split(r"[\[<>=!~; ]", requirement)[0] for requirement in requirements}
    assert named - {"memalpha"} <= pins.keys()


def test_core_dependencies_are_these() -> None:
    core = [requirement for requirement in requires("memalpha") or () if "extra ==" not in requirement]
    names = {re.split(r"[\[<>=!~; ]", requirement.lower())[0] for requirement in core}
    assert names == {
        *("pydantic", "numpy", "pystemmer", "faiss-cpu", "typer", "rich", "pyyaml", "immutables", "httpx2"),
        *("jinja2", "markupsafe"),  # what pages escape with
        "typing-extensions",  # a dependency of pydantic anyway
    }
