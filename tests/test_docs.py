"""The README tells the truth: its snippets run, and every public name, command and module is in it."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from pathlib import Path

import pytest
import typer

import memalpha
from memalpha import cli
from memalpha.config import EvalConfig, TrainConfig, load_config, parse_overrides

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True)
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("memalpha ")
]
MODULES = sorted(path for path in (ROOT / "memalpha").rglob("*.py"))


def _commands() -> dict[str, typer.models.CommandInfo]:
    """Every command by its words, as in `data list`."""
    found = {command.name or command.callback.__name__: command for command in cli.app.registered_commands}  # type: ignore[union-attr]
    for group in cli.app.registered_groups:
        assert group.typer_instance is not None
        for command in group.typer_instance.registered_commands:
            found[f"{group.name} {command.name}"] = command
    return found


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_snippets_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(PYTHON[number], f"README snippet {number + 1}", "exec"), {})


def test_shell_snippets_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In order, in one folder; what trains or needs a download is only checked to be a valid configuration."""
    monkeypatch.chdir(tmp_path)
    ran = 0
    for _, *words in COMMANDS:
        if words[0] == "train":
            load_config(TrainConfig, words[1], parse_overrides(words[2:]))
            continue
        if words[:2] == ["eval", "locomo"]:
            load_config(EvalConfig, "locomo", parse_overrides([word for word in words[2:] if "=" in word]))
            continue
        monkeypatch.setattr(sys, "argv", ["memalpha", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code in (0, None), (words, capsys.readouterr().err)
        ran += 1
    assert ran >= 5
    assert "Porto" in capsys.readouterr().out


@pytest.mark.parametrize("name", memalpha.__all__)
def test_public_names_are_documented_and_there(name: str) -> None:
    assert re.search(rf"`{name}\b", README), f"{name} is not in the README"
    value = getattr(memalpha, name)
    assert isinstance(value, str) or value.__doc__


@pytest.mark.parametrize("name", _commands())
def test_commands_are_documented_with_an_example(name: str) -> None:
    assert f"`memalpha {name}" in README
    help_text = _commands()[name].callback.__doc__ or ""
    assert f"Example: memalpha {name}" in help_text
    [example] = re.findall(r"Example: (memalpha .*)", help_text)
    assert len(shlex.split(example)) >= 2


@pytest.mark.parametrize("path", MODULES, ids=[str(path.relative_to(ROOT)) for path in MODULES])
def test_modules_have_a_docstring_and_stand_in_the_tree(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{path} has no docstring"
    if path.name not in ("__init__.py", "__main__.py"):
        tree = README[README.index("## How it is built") :]
        assert re.search(rf"[ /]{re.escape(path.name)} ", tree), f"{path} is not in the README's tree"


def test_the_tree_names_nothing_that_is_gone() -> None:
    tree = README[README.index("## How it is built") :]
    named = set(re.findall(r"[a-z_]+\.py\b", tree))
    assert named <= {path.name for path in MODULES}


def test_paths_of_the_repository_are_there() -> None:
    named = set(re.findall(r"(?<![\w/.])(?:\./)?((?:\.ci|data|eval|memalpha|scripts|tests)/[\w./-]*)", README))
    assert {"data/example.jsonl", "data/README.md", "scripts/demo"} <= named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("path", MODULES, ids=[str(path.relative_to(ROOT)) for path in MODULES])
def test_no_module_is_longer_than_a_room(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500
