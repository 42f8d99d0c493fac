"""What scripts, evaluations and examples import from the package and from each other is there: no run is needed."""

from __future__ import annotations

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for room in ("scripts", "eval", "examples") for path in (ROOT / room).rglob("*.py"))
OURS = ("memalpha", "smol")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_imported_name_of_ours_exists(path: Path) -> None:
    missing = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or node.level or (node.module or "").partition(".")[0] not in OURS:
            continue
        module = importlib.import_module(node.module or "")
        for name in (alias.name for alias in node.names):
            if not hasattr(module, name) and find_spec(f"{node.module}.{name}") is None:
                missing.append(f"line {node.lineno}: {node.module}.{name}")
    assert missing == []


def test_the_rooms_hold_files() -> None:
    assert len(SOURCES) > 50
