"""Public functions and methods with valid arguments: what hostile values take the place of, one at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import memalpha
from memalpha.config.training import training_config
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.store import MemoryStore
from memalpha.types import Chunk, Operation, Question, Task, TextTask

VECTOR = [1.0] + [0.0] * 255
FACTS = ("Ana lives in Oslo", "Ana has a dog", "Ben likes tea", "Ben moved to Porto", "Cleo sings")
TASK = Task(
    id="t",
    chunks=(Chunk(text="Ana: I live in Oslo."),),
    questions=(Question(id="q", question="Where does Ana live?", answers=("Oslo",)),),
)


@dataclass(frozen=True)
class Target:
    """One callable.

    Attributes:
        make: Returns the callable, from a context.
        valid: Returns valid arguments by name, from a context; the first values may be positional only.
        extra: Names of keywords that `**fields` takes, and one that nothing takes.
        slow: Parameters whose texts load models, left out of a short run; "*" for the whole target.
        omitted: Parameters that get no hostile value in this run.
        is_excluded: Returns True for a parameter and a value that ask for work without end, such as 2**63 tasks.
    """

    make: Callable[[Context], Callable[..., Any]]
    valid: Callable[[Context], dict[str, Any]] = lambda context: {}
    extra: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    omitted: tuple[str, ...] = ()
    is_excluded: Callable[[str, str], bool] = lambda parameter, value: False


class Context:
    """A store with five facts, an agent for it, and a folder; made anew for every parameter.

    Args:
        folder: Folder for files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MemoryStore.open(":memory:", embedder="hash")
        self.ids = [entry.id for entry in self.store.add_many(FACTS, source="chat", metadata={"user": "ana"})]
        self.store.core_update("Ana")
        self.count = 0

    def agent(self) -> memalpha.MemoryAgent:
        """Return an agent of a scripted policy for the store."""
        return memalpha.MemoryAgent("add_all", self.store)

    def new_path(self) -> str:
        """Return a path where nothing is."""
        self.count += 1
        return f"{self.folder}/new-{self.count}"

    def probe(self) -> None:
        """Raise unless the store reads, searches and writes as before."""
        self.store.insert("semantic", f"probe {self.count}: a tram stops here")
        assert "tram" in self.store.search("tram", 1)[0].entry.content
        assert self.store.count() == len(self.store.list())
        self.store.undo()


def _stored(name: str, valid: Callable[[Context], dict[str, Any]] = lambda context: {}, *extra: str) -> Target:
    return Target(lambda context: getattr(context.store, name), valid, extra)


_FIELDS = ("timestamp", "importance", "metadata", "source", "chunk", "turn", "expires", "nonsense")
_FACT = {"category": "semantic", "content": "Dan reads"}
STORE: dict[str, Target] = {
    "add": _stored("add", lambda c: {"content": "Dan reads"}, *_FIELDS),
    "add_many": _stored("add_many", lambda c: {"contents": ["Dan reads", "Eva runs"]}, *_FIELDS),
    "apply": _stored("apply", lambda c: {"operation": Operation("insert", category="semantic", content="Dan reads")}),
    "around": _stored("around", lambda c: {"id": c.ids[0]}),
    "backup": _stored("backup", lambda c: {"path": c.new_path()}),
    "build_index": _stored("build_index"),
    "change": _stored("change", lambda c: {"operation": Operation("delete", id=c.ids[0])}),
    "core_at": _stored("core_at", lambda c: {"as_of": 3}),
    "core_update": _stored("core_update", lambda c: {"text": "Ben"}),
    "count": _stored("count"),
    "created_at": _stored("created_at", lambda c: {"ids": c.ids}),
    "delete": _stored("delete", lambda c: {"id": c.ids[0]}),
    "delete_many": _stored("delete_many", lambda c: {"ids": c.ids[:2]}),
    "diff": _stored("diff", lambda c: {"a": 1, "b": 4}),
    "drop_namespace": _stored("drop_namespace", lambda c: {"name": c.store.namespace_name}),
    "erase": Target(lambda c: lambda id: c.store.erase(id), lambda c: {"id": c.ids[0]}),
    "erase_all": _stored("erase_all"),
    "erase_core_history": _stored("erase_core_history"),
    "export_jsonl": _stored("export_jsonl", lambda c: {"path": c.new_path()}),
    "find": _stored("find", lambda c: {"category": "semantic", "content": FACTS[0]}),
    "fork": _stored("fork", lambda c: {"namespace": f"fork-{c.new_path()[-3:]}"}),
    "fork to a file": Target(lambda c: c.store.fork, lambda c: {"path": c.new_path()}),
    "get": _stored("get", lambda c: {"id": c.ids[0]}),
    "get_many": _stored("get_many", lambda c: {"ids": c.ids}),
    "history": _stored("history", lambda c: {"id": c.ids[0]}),
    "history_many": _stored("history_many", lambda c: {"ids": c.ids}),
    "import_jsonl": _stored("import_jsonl", lambda c: {"path": c.folder / "log.jsonl"}),
    "insert": _stored("insert", lambda c: dict(_FACT)),
    "insert_many": _stored("insert_many", lambda c: {"facts": [_FACT], "vectors": np.array([VECTOR])}),
    "a fact of insert_many": Target(
        lambda c: lambda **fact: c.store.insert_many([fact]), lambda c: dict(_FACT), _FIELDS
    ),
    "list": _stored("list"),
    "load_embedder": _stored("load_embedder"),
    "log": _stored("log"),
    "namespace": _stored("namespace", lambda c: {"name": "other"}),
    "namespaces": _stored("namespaces"),
    "pending_scrub": Target(lambda c: lambda: c.store.pending_scrub),
    "quarantined": _stored("quarantined"),
    "recent": _stored("recent", lambda c: {"n": 3}),
    "redo": _stored("redo"),
    "restore": _stored("restore", lambda c: {"position": 2}),
    "revert": _stored("revert", lambda c: {"source": "chat", "dry_run": True}),
    "review": _stored("review", lambda c: {"position": 1, "accept": True}),
    "search": Target(lambda c: c.store.search, lambda c: {"query": "Ana"}, slow=("reranker",)),
    "search_many": Target(lambda c: c.store.search_many, lambda c: {"queries": ["Ana", "Ben"]}, slow=("reranker",)),
    "a condition": Target(
        lambda c: lambda operand, field: c.store.list(where={field: operand}), lambda c: {"operand": 1, "field": "user"}
    ),
    **{
        f"operator {name}": Target(
            lambda c, name=name: lambda operand: c.store.search("Ana", where={"user": {name: operand}}),
            lambda c: {"operand": ["ana"]},
        )
        for name in ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$exists", "$not")
    },
    **{
        f"operator {name}": Target(
            lambda c, name=name: lambda operand: c.store.count(where={name: operand}),
            lambda c: {"operand": [{"user": "ana"}]},
        )
        for name in ("$and", "$or", "$not of all")
    },
    "snapshot": _stored("snapshot"),
    "to_pandas": _stored("to_pandas"),
    "undo": _stored("undo"),
    "update": _stored("update", lambda c: {"id": c.ids[0], "content": "Ana lives in Rome"}),
    "update_many": _stored("update_many", lambda c: {"updates": [{"id": c.ids[0], "content": "Ana swims"}]}),
    "a row of update_many": Target(
        lambda c: lambda **row: c.store.update_many([row]), lambda c: {"id": c.ids[0], "content": "Ana swims"}, _FIELDS
    ),
    "upsert": _stored("upsert", lambda c: {"key": "k", "content": "Dan reads"}, *_FIELDS),
    "writing_as": _stored("writing_as", lambda c: {"speaker": "Ana"}),
}
NOT_CALLED = (
    "close",
    "open",
    "read_transaction",
    "transaction",
)  # `open` is a target by itself; the others take no arguments


def _open(context: Context) -> Callable[..., Any]:
    def open_store(path: Any, **options: Any) -> Any:
        with MemoryStore.open(path, **options) as store:
            store.add("Dan reads")
            return store.search("Dan")

    open_store.__signature__ = inspect.signature(MemoryStore.open)  # pyright: ignore[reportFunctionMemberAccess]
    return open_store


def _operation(context: Context) -> Callable[..., Any]:
    def apply_operation(**fields: Any) -> Any:
        return context.store.apply(Operation(**fields))

    apply_operation.__signature__ = inspect.signature(Operation)  # pyright: ignore[reportFunctionMemberAccess]
    return apply_operation


def _boost(context: Context) -> Callable[..., Any]:
    def search_boosted(**fields: Any) -> Any:
        return context.store.search("Ana", boost=memalpha.Boost(**fields))

    search_boosted.__signature__ = inspect.signature(memalpha.Boost)  # pyright: ignore[reportFunctionMemberAccess]
    return search_boosted


def _agent(context: Context, name: str) -> Callable[..., Any]:
    return getattr(context.agent(), name)


def _is_endless(parameter: str, value: str) -> bool:
    return parameter == "limit" and value.startswith(("10**", "2**"))


_MISSING = "/missing/policy"
_PAIR = {"prompts": ["2 + 2"], "chosen": ["4"], "rejected": ["5"], "policy": _MISSING}
OTHERS: dict[str, Target] = {
    "MemoryStore.open": Target(_open, lambda c: {"path": ":memory:", "embedder": "hash"}, slow=("embedder",)),
    "Operation": Target(_operation, lambda c: {"kind": "insert", "category": "semantic", "content": "Dan reads"}),
    "Boost": Target(_boost, lambda c: {"importance": 0.1, "recency": 0.1, "now": "2024-05-01"}),
    "audit": Target(lambda c: memalpha.audit, lambda c: {"store": c.store, "source": ("chat", TASK.chunks)}),
    "load_embedder": Target(lambda c: memalpha.load_embedder, lambda c: {"name": "hash"}, slow=("*",)),
    "load_policy": Target(lambda c: memalpha.load_policy, lambda c: {"name": "tiny"}, slow=("*",)),
    "load_reward_model": Target(lambda c: memalpha.load_reward_model, lambda c: {"name": _MISSING}, slow=("*",)),
    "load_tasks": Target(
        lambda c: memalpha.load_tasks,
        lambda c: {"name_or_path": "synthetic", "limit": 1},
        ("x",),
        is_excluded=_is_endless,
    ),
    "load_text_tasks": Target(
        lambda c: memalpha.load_text_tasks,
        lambda c: {"name_or_path": "arithmetic", "limit": 2},
        is_excluded=_is_endless,
    ),
    "MemoryAgent": Target(
        lambda c: memalpha.MemoryAgent, lambda c: {"policy": "add_all", "store": c.store}, slow=("policy",)
    ),
    "MemoryAgent.read": Target(lambda c: _agent(c, "read"), lambda c: {"chunk": "Ana: I have a cat."}),
    "MemoryAgent.propose": Target(lambda c: _agent(c, "propose"), lambda c: {"chunk": "Ana: I have a cat."}),
    "MemoryAgent.apply": Target(
        lambda c: _agent(c, "apply"), lambda c: {"proposal": c.agent().propose("Ana: I have a cat.")}
    ),
    "MemoryAgent.stream": Target(lambda c: _agent(c, "stream"), lambda c: {"text": "Ana: I have a cat."}),
    "MemoryAgent.consolidate": Target(lambda c: _agent(c, "consolidate")),
    "MemoryAgent.ask": Target(lambda c: _agent(c, "ask"), lambda c: {"question": "Where does Ana live?"}),
    "MemoryAgent.with_store": Target(lambda c: _agent(c, "with_store"), lambda c: {"store": c.store}),
    "evaluate": Target(
        lambda c: memalpha.evaluate,
        lambda c: {
            "system": memalpha.load_policy("add_all"),
            "tasks": [TASK],
            "embedder": memalpha.load_embedder("hash"),
        },
    ),
    "evaluate_text": Target(
        lambda c: memalpha.evaluate_text,
        lambda c: {
            "policy": ScriptedPolicy("fixed", text="4"),
            "tasks": [TextTask(id="a", prompt="2 + 2")],
            "rewards": [lambda completions, **columns: [1.0 for _ in completions]],
        },
    ),
    "train": Target(
        lambda c: memalpha.train, lambda c: {"config": "demo", "policy": _MISSING, "out": c.new_path()}, ("x",), ("*",)
    ),
    "train_on_preferences": Target(
        lambda c: memalpha.train_on_preferences, lambda c: {**_PAIR, "out": c.new_path()}, ("epochs", "x"), ("*",)
    ),
    "train_reward_model": Target(
        lambda c: memalpha.train_reward_model, lambda c: {**_PAIR, "out": c.new_path()}, ("epochs", "x"), ("*",)
    ),
}
MODELS = {
    "Chunk": {"text": "Ana: hi"},
    "Question": {"id": "q", "question": "Where?", "answers": ["Oslo"]},
    "Task": {"id": "t", "chunks": [{"text": "Ana: hi"}], "questions": []},
    "TextTask": {"id": "a", "prompt": "2 + 2"},
}
"""Pydantic models of the public face: their documented error is pydantic's `ValidationError`."""


def targets() -> dict[str, Target]:
    """Return all targets by name; raise if a public name or a method of the store has none."""
    methods = {name for name, _ in inspect.getmembers(MemoryStore, callable) if not name.startswith("_")}
    missing = methods - STORE.keys() - set(NOT_CALLED)
    public = set(memalpha.__all__) - OTHERS.keys() - MODELS.keys()
    missing |= public - {"AsyncMemoryStore", "MemoryStore", "MemalphaError", "MemoryEntry", "__version__"}
    missing -= {"EvalConfig", "TrainConfig"}  # by `config_targets`
    if missing:
        raise AssertionError(f"without valid arguments here: {sorted(missing)}")
    models = {
        name: Target(lambda c, name=name: getattr(memalpha, name), lambda c, fields=fields: dict(fields))
        for name, fields in MODELS.items()
    }
    return {f"MemoryStore.{name}": target for name, target in STORE.items()} | OTHERS | models


def config_targets(names: Mapping[str, str]) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Iterate over the settings of shipped configurations: name, and a function that loads it with a value.

    Args:
        names: Shipped configurations, and the class of each ("train" or "eval").
    """
    from memalpha.config.files import load_config
    from memalpha.config.keys import settings_of

    for name, kind in names.items():
        base = {"data": "missing.jsonl"} if name in ("dpo", "reward", "preferences") else {}
        config_class = memalpha.EvalConfig if kind == "eval" else type(training_config(name, base))
        for path, _ in settings_of(config_class):
            *groups, last = path.split(".")

            def load(
                value: Any,
                name: str = name,
                kind: str = kind,
                groups: list[str] = groups,
                last: str = last,
                base: dict[str, Any] = base,
            ):
                overrides: dict[str, Any] = {last: value}
                for group in reversed(groups):
                    overrides = {group: overrides}
                if kind == "eval":
                    return load_config(memalpha.EvalConfig, name, overrides)
                return training_config(name, base | overrides)

            yield f"{name}: {path}", load
