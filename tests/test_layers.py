"""The one-way rule of imports and who may import torch, read from the source with `ast`.

Every form counts: `import`, `from … import`, relative, inside functions, and `import_module("…")` with a literal name.
`if TYPE_CHECKING:` blocks do not run and are left out.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "memalpha"

# room → the rooms it may import from (besides itself)
BASE = frozenset({"errors", "types", "config", "hub"})
BELOW: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "types": frozenset({"errors"}),
    "hub": frozenset(),
    "config": BASE,
}
BELOW["store"] = BASE
BELOW["policy"] = BELOW["tasks"] = BASE  # neither knows the store, nor the other
BELOW["agent"] = BASE | {"store", "policy", "tasks"}
BELOW["qa"] = BELOW["agent"] | {"agent"}
BELOW["rewards"] = BELOW["qa"] | {"qa"}
BELOW["environments"] = BELOW["rewards"] | {"rewards"}
BELOW["train"] = BELOW["environments"] | {"environments"}
BELOW["report"] = BELOW["train"] | {"train"}
BELOW["integrations"] = BELOW["report"] | {"__init__"}  # which is asked for the version
BELOW["cli"] = BELOW["report"] | {"report", "integrations", "__init__"}
BELOW["__main__"] = frozenset({"cli"})
BELOW["__init__"] = frozenset(BELOW) - {"cli", "__main__"}  # lazily: see test_importing_the_package_loads_nothing

MODEL_LIBRARIES = {"torch", "transformers", "trl", "peft", "accelerate", "sentence_transformers"}


def _imports(tree: ast.AST, module: str) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import in `tree`, the source of `module`."""
    for node in _running(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")[: -node.level]
                base = ".".join([*parts, base] if base else parts)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def _running(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in child.orelse:
                yield other
                yield from _running(other)
            continue
        yield child
        yield from _running(child)


def _modules() -> list[tuple[str, Path]]:
    """(dotted name, file) of every module; a package is named by its `__init__`."""
    files = sorted(PACKAGE.rglob("*.py"))
    return [(".".join(("memalpha", *path.relative_to(PACKAGE).with_suffix("").parts)), path) for path in files]


def _room(dotted: str) -> str:
    parts = dotted.split(".")
    if len(parts) == 1:
        return "__init__"
    return parts[1] if parts[1] in BELOW else "__init__"


def _wrong_imports(module: str, source: str) -> list[str]:
    room = _room(module)
    wrong = []
    for line, name in _imports(ast.parse(source), module):
        if name.startswith("memalpha.") and (target := _room(name)) != room and target not in BELOW[room]:
            wrong.append(f"{module}:{line}: {room} must not import {name}")
    return wrong


def _may_use_models(module: str) -> bool:
    parts = module.split(".")
    backend = parts[1] == "policy" and parts[-1] in ("transformers", "reward_model", "model_files", "kv_cache")
    return backend or parts[1] == "train" or module == "memalpha.store.embedding" or parts[1] == "integrations"


@pytest.mark.parametrize(("module", "path"), _modules(), ids=[name for name, _ in _modules()])
def test_imports_run_one_way(module: str, path: Path) -> None:
    assert _room(module) in BELOW, f"{module}: give its room a place in BELOW"
    assert not _wrong_imports(module, path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("module", "path"), _modules(), ids=[name for name, _ in _modules()])
def test_only_some_rooms_import_model_libraries(module: str, path: Path) -> None:
    names = {name.split(".")[0] for _, name in _imports(ast.parse(path.read_text(encoding="utf-8")), module)}
    assert _may_use_models(module) or not names & MODEL_LIBRARIES


@pytest.mark.parametrize(
    "form",
    [
        "from memalpha.agent.agent import observe",
        "import memalpha.agent",
        "from memalpha import agent",
        "from ..agent import parsing",
        "from .. import agent",
        "def f():\n    from memalpha.qa import reader",
        "import importlib\nimportlib.import_module('memalpha.train.api')",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import memalpha.cli.main",
    ],
)
def test_the_test_sees_every_form(form: str) -> None:
    assert _wrong_imports("memalpha.store.state", form)


def test_the_test_leaves_type_checking_blocks_out() -> None:
    assert not _wrong_imports("memalpha.store.state", "if TYPE_CHECKING:\n    import memalpha.cli.main")
    assert not _wrong_imports(
        "memalpha.store.state", "from .schema import load_schema\nfrom ..errors import StoreError"
    )


def test_importing_the_package_loads_nothing() -> None:
    """`import memalpha` brings no heavy library (7 ms of CPU measured); the core rooms bring no torch."""
    code = """
import sys
import memalpha
heavy = {"torch", "transformers", "numpy", "pydantic", "faiss"} & set(sys.modules)
assert not heavy, heavy
for name in ("MemoryStore", "MemoryAgent", "load_policy", "load_tasks", "evaluate", "train", "TrainConfig"):
    getattr(memalpha, name)
import memalpha.cli.main
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_train_is_the_same_object_in_any_order() -> None:
    """The package `memalpha.train` and the public function share a name: both spellings must work in either order."""
    code = """
from memalpha import train as first
import memalpha.train.api
from memalpha import train as second
assert first is second and callable(first) and first.api.train
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
