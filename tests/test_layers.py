"""Rules of the layout, read from the source with `ast`: one test per rule, which lists every offender.

Every form of import counts: `import`, `from … import`, relative, inside functions, and `import_module("…")` with a
literal name. `if TYPE_CHECKING:` blocks do not run and are left out.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "memalpha"

# room → the rooms it may import from (besides itself)
BASE = frozenset({"errors", "arguments", "types", "config", "hub", "workers", "endpoint_calls", "forks", "text_files"})
BELOW: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "types": frozenset({"errors"}),
    "hub": frozenset(),
    "forks": frozenset(),
    "text_files": frozenset({"errors", "arguments"}),
    "arguments": frozenset({"errors"}),
    "workers": frozenset({"errors"}),
    "endpoint_calls": frozenset({"errors"}),
    "config": BASE,
}
BELOW["store"] = BASE
BELOW["policy"] = BELOW["tasks"] = BASE  # neither knows the store, nor the other
BELOW["agent"] = BASE | {"store", "policy", "tasks"}
BELOW["environments"] = BELOW["agent"] | {"agent"}  # they know no reward
BELOW["qa"] = BELOW["environments"] | {"environments"}
BELOW["rewards"] = BELOW["qa"] | {"qa"}
BELOW["train"] = BELOW["rewards"] | {"rewards"}
BELOW["report"] = BELOW["train"] | {"train", "__init__"}  # for the version
BELOW["integrations"] = BELOW["report"]
BELOW["cli"] = BELOW["report"] | {"report", "integrations"}
BELOW["__main__"] = frozenset({"cli"})
BELOW["__init__"] = frozenset(BELOW) - {"cli", "__main__"}  # lazily: see test_importing_the_package_loads_nothing

MODEL_LIBRARIES = {"torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "sentence_transformers"}
MODEL_MODULES = (
    *("policy.transformers", "policy.reward_head", "policy.reward_model", "policy.model_files", "policy.kv_cache"),
    *("policy.chat", "policy.decoding", "policy.decoding_rows", "policy.flat_qwen3", "policy.smol.fetch"),
    *("store.embedding", "train", "integrations"),
)
"""Modules and packages that may import them."""

MAX_LINES = 800  # of code: a class stays in one file
MAX_MODULES_IN_FOLDER = 20

OPTIONAL_LIBRARIES = MODEL_LIBRARIES | {
    *("anthropic", "bm25s", "datasets", "fastapi", "filelock", "httpx2", "huggingface_hub", "jsonschema", "langgraph"),
    *("math_verify", "mcp", "mem0", "nltk", "openai", "opentelemetry"),
    *("pandas", "pyarrow", "referencing", "regex", "rich", "rouge_score", "tokenizers", "uvicorn", "vllm"),
    "wandb",
}
"""Heavy or optional libraries: functions may import them."""
PLATFORM_LIBRARIES = {"fcntl", "resource", "select"}
"""Modules of Python that some systems lack."""
LAZY_IMPORTS = {
    "memalpha": "public names load on first use",
    "cli.checks": "a command loads its part of the library when it runs: `memalpha --help` loads no numpy or faiss",
    "cli.data": "as cli.checks",
    "cli.evaluate": "as cli.checks",
    "cli.read": "as cli.checks",
    "cli.options": "as cli.checks",
    "cli.serve": "as cli.checks",
    "cli.store": "as cli.checks",
    "cli.train": "as cli.checks",
    "policy.base": "the back ends load torch or an endpoint's client",
    "policy.load": "the back ends load torch or an endpoint's client",
    "train.api": "each kind of run loads its own modules: a memory run needs no rewards of text replies",
    "store.open": "PostgreSQL needs psycopg, which is optional",
}
"""Modules whose functions may import modules of memalpha, and why."""
MAX_LAZY_IMPORTS = {"__init__": 1, "cli": 55, "integrations": 1, "policy": 8, "store": 4, "train": 5}
"""Import statements of memalpha modules inside functions, per room."""


@dataclass(frozen=True)
class Import:
    """One import: line, absolute dotted name, and whether a function makes it."""

    line: int
    name: str
    in_function: bool


@dataclass(frozen=True)
class Module:
    """A module of the package, by its dotted name; a package is its `__init__`."""

    name: str
    path: Path

    @cached_property
    def source(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def imports(self) -> list[Import]:
        is_package = self.path.name == "__init__.py"
        return list(_imports(self.tree, f"{self.name}.__init__" if is_package else self.name))

    @property
    def short(self) -> str:
        """Name without `memalpha.`."""
        return self.name.removeprefix("memalpha.")


def _load_modules() -> dict[str, Module]:
    modules = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("memalpha", *path.relative_to(PACKAGE).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = Module(name, path)
    return modules


MODULES = _load_modules()


def _imports(tree: ast.AST, module: str) -> Iterator[Import]:
    """Yield every import in `tree`, the source of `module` (with `.__init__` for a package)."""
    for node, in_function in _running(tree):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, in_function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")[: -node.level]
                base = ".".join([*parts, base] if base else parts)
            yield from (Import(node.lineno, f"{base}.{alias.name}", in_function) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield Import(node.lineno, node.args[0].value, in_function)


def _running(node: ast.AST, in_function: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Yield every node that runs, and whether it is inside a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for statement in child.orelse:
                yield statement, in_function
                yield from _running(statement, in_function)
            continue
        yield child, in_function
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _running(child, in_function or is_function)


def _room(dotted: str) -> str:
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in BELOW else "__init__"


def _wrong_imports(module: str, imports: Iterable[Import]) -> list[str]:
    room = _room(module)
    return [
        f"{module}:{item.line}: {room} must not import {item.name}"
        for item in imports
        if item.name.startswith("memalpha.") and (target := _room(item.name)) != room and target not in BELOW[room]
    ]


def _target(name: str) -> str | None:
    """Return the module of memalpha that an import of `name` runs."""
    return name if name in MODULES else parent if (parent := name.rpartition(".")[0]) in MODULES else None


def _check(offenders: Mapping[str, str]) -> None:
    """Fail with the message of every offender."""
    assert not offenders, "\n".join(offenders.values())


def test_imports_run_one_way() -> None:
    unknown = [name for name in MODULES if name.count(".") > 1 and name.split(".")[1] not in BELOW]
    assert not unknown, f"give the room of {unknown[0]} a place in BELOW"
    offenders = [line for module in MODULES.values() for line in _wrong_imports(module.name, module.imports)]
    assert not offenders, "\n".join(offenders)


def test_only_some_modules_import_model_libraries() -> None:
    offenders = [
        f"{module.name}:{item.line}: {item.name}"
        for module in MODULES.values()
        for item in module.imports
        if item.name.split(".")[0] in MODEL_LIBRARIES
        and not any(module.short == name or module.short.startswith(f"{name}.") for name in MODEL_MODULES)
    ]
    assert not offenders, "\n".join(offenders)


def test_modules_import_each_other_in_no_circle() -> None:
    graph = {
        name: {target for item in module.imports if (target := _target(item.name)) is not None}
        for name, module in MODULES.items()
    }
    circle: list[str] = []
    try:
        TopologicalSorter({name: targets - {name} for name, targets in graph.items()}).prepare()
    except CycleError as error:
        circle = error.args[1]
    assert not circle, " -> ".join(name.removeprefix("memalpha.") for name in circle)


def test_imports_inside_functions_have_a_reason() -> None:
    """Functions import heavy or optional libraries; other imports are at the top, but for the modules listed."""
    offenders: dict[str, str] = {}
    lines: set[tuple[str, int]] = set()
    for module in MODULES.values():
        for item in module.imports:
            library = item.name.split(".")[0]
            if not item.in_function or library in OPTIONAL_LIBRARIES | PLATFORM_LIBRARIES:
                continue
            if library == "memalpha" and module.short in LAZY_IMPORTS:
                lines.add((module.name, item.line))
            else:
                offenders[module.short] = f"{module.name}:{item.line}: import {item.name} at the top"
    _check(offenders)
    for room, count in Counter(_room(name) for name, _ in lines).items():
        assert count <= MAX_LAZY_IMPORTS.get(room, 0), f"{room}: {count} imports of memalpha inside functions"


def test_a_missing_package_is_one_message_without_the_import_error_before_it() -> None:
    offenders = []
    for module in MODULES.values():
        for handler in ast.walk(module.tree):
            for node in ast.walk(handler) if isinstance(handler, ast.ExceptHandler) else ():
                if isinstance(node, ast.Raise) and node.exc and "install_command(" in ast.unparse(node.exc):
                    is_silent = isinstance(node.cause, ast.Constant) and node.cause.value is None
                    offenders += [] if is_silent else [f"{module.name}:{node.lineno}"]
    assert not offenders, offenders


def test_every_module_has_a_docstring() -> None:
    offenders = [name for name, module in MODULES.items() if not ast.get_docstring(module.tree)]
    assert not offenders, "\n".join(offenders)


def _code_lines(module: Module) -> int:
    """Return the number of lines that bear code: no docstrings, comments or blank lines."""
    empty = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(module.source).readline)
        if token.type not in empty
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def test_no_module_is_too_long() -> None:
    long = [module for module in MODULES.values() if len(module.source.splitlines()) > MAX_LINES]
    lengths = {module.short: _code_lines(module) for module in long}
    offenders = {name: f"{name}: {length} lines of code" for name, length in lengths.items() if length > MAX_LINES}
    _check(offenders)


def test_no_folder_has_too_many_modules() -> None:
    counts = Counter(module.path.parent for module in MODULES.values() if module.path.name != "__init__.py")
    offenders = [f"{folder}: {count} modules" for folder, count in counts.items() if count > MAX_MODULES_IN_FOLDER]
    assert not offenders, "\n".join(offenders)


def test_no_public_class_name_is_defined_twice() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for module in MODULES.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(module.name)
    offenders = {name: f"{name}: {', '.join(modules)}" for name, modules in homes.items() if len(modules) > 1}
    _check(offenders)


def test_importing_the_package_loads_nothing() -> None:
    """`import memalpha` loads no heavy library (7 ms of CPU measured); the core rooms load no torch."""
    code = """
import sys
import tokenize
import memalpha
heavy = {"torch", "transformers", "numpy", "pydantic", "faiss"} & set(sys.modules)
assert not heavy, heavy
import memalpha.cli
assert not {"numpy", "faiss", "sqlite3"} & set(sys.modules), "a command loads its part of the library when it runs"
for name in ("MemoryStore", "MemoryAgent", "load_policy", "load_tasks", "evaluate", "TrainConfig"):
    getattr(memalpha, name)
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow  # CI runs it
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_train_is_the_function_in_any_order(order: tuple[int, ...]) -> None:
    """The package `memalpha.train` and the public function share a name."""
    lines = ("import memalpha.train.rollouts.epochs", "from memalpha import train")
    code = f"""
import inspect
{lines[order[0]]}
{lines[order[1]]}
import memalpha
from memalpha.train.rollouts import epochs
from memalpha.train.api import train
assert memalpha.train is train and inspect.isfunction(train) and epochs
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_test_files_have_names_of_their_own() -> None:
    """Two of one name stop the whole suite: pytest imports them by it."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
