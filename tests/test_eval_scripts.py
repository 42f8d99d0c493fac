"""The measuring scripts in eval/ start, say what they take, and describe their functions."""

import ast
import os
import runpy
import sys
from pathlib import Path

import pytest

EVAL = Path(__file__).parents[1] / "eval"
ROOMS = ("learning", "qa", "reach", "store")
OTHER_ENVIRONMENTS = ("store/measure.py",)  # runs where its peer is installed, with positions for arguments
SCRIPTS = [
    path.relative_to(EVAL).as_posix()
    for room in ROOMS
    for path in sorted((EVAL / room).glob("*.py"))
    if "__main__" in path.read_text(encoding="utf-8") and path.relative_to(EVAL).as_posix() not in OTHER_ENVIRONMENTS
]


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch):
    """Leave path, environment and modules as they were: the rooms have modules of the same name."""
    modules, environment = set(sys.modules), set(os.environ)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in set(os.environ) - environment:
        del os.environ[name]
    for name in set(sys.modules) - modules:
        if str(EVAL) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_says_what_a_script_takes(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    monkeypatch.syspath_prepend(str((EVAL / script).parent))
    try:
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(EVAL / script), run_name="__main__")
    except ModuleNotFoundError as error:
        assert not (EVAL / script).parent.joinpath(f"{error.name}.py").exists()
        pytest.skip(f"needs {error.name}")
    assert not end.value.code
    printed = capsys.readouterr().out
    assert printed.startswith("usage:")


def test_functions_of_three_parameters_describe_them():
    offenders = []
    for path in (path for room in ROOMS for path in (EVAL / room).glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                docstring = ast.get_docstring(node) or ""
                if not docstring or (len(node.args.args + node.args.kwonlyargs) >= 3 and "Args:" not in docstring):
                    offenders.append(f"{path.relative_to(EVAL)}: {node.name}")
    assert offenders == []
