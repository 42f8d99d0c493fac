"""Fail every write and sync call of every kind of operation, and check what is left.

    python eval/store/attacks/faults.py --out eval/results/fault-injection.json

`faults.c` (built with gcc, Linux only) is loaded before libc into a worker. There it counts the calls of write, pwrite,
fsync, fdatasync, ftruncate and rename on files of the store's folder, temporary files of SQLite included, and fails the
n-th: a full disk from then on, an I/O error once or from then on, a write of half the bytes (alone, or before a full
disk), and a SIGKILL in the middle of a write. For each operation and fault, every n is tried, or a seeded sample.
A process without the faults then opens the store. It must find

- the state before the operation or the one after it, the latter if the operation returned or was reported as pending;
- a `MemalphaError` from the operation, no other exception, and none for a half write that can be completed;
- no file but the store and complete targets; after a kill of `create` or an export, once it is tried again.

With the disk healthy again, the handle that failed must write, search and close, and `doctor` must find nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memalpha.agent.consolidate import apply_consolidation, propose_consolidation
from memalpha.errors import MemalphaError, ScrubPending, StoreError
from memalpha.store.checks.integrity import examine
from memalpha.store.open import copy_store
from memalpha.store.quarantine import quarantine_operation
from memalpha.store.store import MemoryStore
from memalpha.types import Operation

KINDS = {"full disk": 1, "I/O error": 2, "I/O errors": 3, "half a write": 4, "half, then full": 5, "SIGKILL": 6}
PROBE = "the probe after the fault"
TEXTS = [f"new fact {number}: " + "word " * 60 for number in range(30)]
FACTS = [f"stored fact {number}: Ana met Ben in room {number}" for number in range(40)]


def open_store(path: Path) -> MemoryStore:
    """Open a store with a clock that stands still, so that states can be compared."""
    return MemoryStore.open(path, embedder="hash", clock=lambda: datetime(2026, 1, 2, tzinfo=UTC))


def _transaction(store: MemoryStore, folder: Path) -> None:
    with store.transaction():
        store.add(TEXTS[0])
        store.update("fact-3", TEXTS[1])
        store.delete("fact-4")
        store.core_update("core of the transaction")


def _checkpoint(store: MemoryStore, folder: Path) -> None:
    store.database.connection.execute("PRAGMA wal_autocheckpoint = 1")
    store.add(TEXTS[0])


def _expire(store: MemoryStore, folder: Path) -> None:
    with MemoryStore.open(store.path, embedder="hash", clock=lambda: datetime(2026, 2, 2, tzinfo=UTC)) as later:
        later.list()


def _quarantine(store: MemoryStore, folder: Path) -> None:
    operation = Operation("insert", category="semantic", content=TEXTS[0])
    store.apply(quarantine_operation(operation, None, "nobody said so"))


def _review(store: MemoryStore, folder: Path) -> None:
    store.review(store.quarantined()[0].position, accept=True)


def _update_many(store: MemoryStore, folder: Path) -> None:
    store.update_many([{"id": f"fact-{number}", "content": TEXTS[number]} for number in range(8)])


OPERATIONS: dict[str, Callable[[MemoryStore, Path], Any]] = {
    "insert": lambda store, _: store.insert("semantic", TEXTS[0]),
    "insert and checkpoint": _checkpoint,
    "insert_many": lambda store, _: store.insert_many([{"category": "semantic", "content": text} for text in TEXTS]),
    "update": lambda store, _: store.update("fact-3", TEXTS[0]),
    "update_many": _update_many,
    "upsert": lambda store, _: store.upsert("fact-5", TEXTS[0]),
    "delete": lambda store, _: store.delete("fact-3"),
    "delete_many": lambda store, _: store.delete_many([f"fact-{number}" for number in range(20)]),
    "core_update": lambda store, _: store.core_update("a new core"),
    "undo": lambda store, _: store.undo(),
    "redo": lambda store, _: store.redo(),
    "restore": lambda store, _: store.restore(10),
    "revert": lambda store, _: store.revert(source="chat"),
    "quarantine": _quarantine,
    "review": _review,
    "expire": _expire,
    "merge metadata": lambda store, _: store.update("fact-6", metadata={"a": 1}, merge_metadata=True),
    "transaction": _transaction,
    "import_jsonl": lambda store, folder: store.import_jsonl(folder / "lines.jsonl"),
    "consolidate": lambda store, _: apply_consolidation(store, propose_consolidation(store)),
    "erase": lambda store, _: store.erase("fact-3"),
    "erase_core_history": lambda store, _: store.erase_core_history(),
    "erase_all": lambda store, _: store.namespace("other").erase_all(),
    "drop_namespace": lambda store, _: store.drop_namespace("other"),
    "namespace": lambda store, _: store.namespace("third").add(TEXTS[0]),
    "fork": lambda store, _: store.fork("fork"),
    "fork to a file": lambda store, folder: store.fork(path=folder / "fork.db").close(),
    "copy": lambda store, folder: copy_store(store.path, folder / "copy.db"),
    "backup": lambda store, folder: store.backup(folder / "backup.db"),
    "export_jsonl": lambda store, folder: store.export_jsonl(folder / "export.jsonl"),
    "create": lambda _, folder: open_store(folder / "created.db").close(),
    "close": lambda store, _: store.close(),
}
RETRIED = ("create", "export_jsonl", "fork to a file", "copy", "backup")


def prepare(folder: Path) -> None:
    """Make the store that every operation begins with."""
    with open_store(folder / "a.db") as store:
        for number, text in enumerate(FACTS):
            store.upsert(f"fact-{number}", text, timestamp="2024-05-01", source="chat" if number % 8 == 0 else "notes")
        store.upsert("brief", "this ends in February", expires="2026-02-01")
        store.update("fact-1", "Ana met Ben yesterday in room 1", timestamp="2024-05-02")
        store.core_update("the first core")
        store.core_update("the core")
        operation = Operation("insert", category="semantic", content="a quarantined fact")
        store.apply(quarantine_operation(operation, None, "nobody said so"))
        store.add("an undone fact")
        store.undo()
        store.namespace("other").add_many(FACTS[:10])
    lines = "".join(json.dumps({"category": "semantic", "content": text}) + "\n" for text in TEXTS[:10])
    (folder / "lines.jsonl").write_text(lines, encoding="utf-8")


def read_state(folder: Path) -> dict[str, Any]:
    """Return the logs, entries and core memories of all stores in a folder, and the texts of other complete files."""
    state: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".jsonl":
            state[path.name] = path.read_text(encoding="utf-8")
        elif path.suffix == ".db" and path.stat().st_size:
            with open_store(path) as store:
                scopes = [store.namespace(name) for name in store.namespaces()]
                state[path.name] = {
                    scope.namespace_name: [
                        [str(operation) for _, _, operation in scope.log()],
                        scope.list(),
                        scope.core,
                    ]
                    for scope in scopes
                }
    return state


def left_over(folder: Path, state: dict[str, Any]) -> list[str]:
    """Return the names of files that are neither a complete store or export, nor an empty file of a killed `create`."""
    files = [path for path in folder.iterdir() if path.is_file()]
    return sorted({path.name for path in files if path.suffix != ".db" or path.stat().st_size} - state.keys())


def work() -> None:
    """Serve cases from stdin, each in a forked process, with the faults of the loaded library."""
    library = ctypes.CDLL(None)
    library.faults_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
    library.faults_disarm.restype = ctypes.c_long
    while line := sys.stdin.readline():
        case = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                _run_case(library, Path(case["folder"]), case["operation"], case["kind"], case["n"])
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"exit": status}), flush=True)


def _run_case(library: Any, folder: Path, operation: str, kind: int, n: int) -> None:
    path, error, handle = folder / "a.db", None, None
    store = open_store(path)
    store.search("Ana")
    if operation == "close":
        store.add(TEXTS[0])
    library.faults_arm(str(folder).encode(), n, kind)
    try:
        OPERATIONS[operation](store, folder)
    except BaseException as raised:  # noqa: BLE001 the parent judges it
        error = raised
    calls = library.faults_disarm()
    fact = {"calls": calls, "error": error and f"{type(error).__name__}: {error}"}
    fact |= {"expected": error is None or isinstance(error, MemalphaError), "pending": isinstance(error, ScrubPending)}
    print(json.dumps(fact), flush=True)
    sys.stdin.readline()
    try:
        if operation == "close":
            store.close()
            store = open_store(path)
        store.add(PROBE)
        first = store.search(PROBE, k=3)
        with open_store(path) as other:
            assert [hit.entry for hit in other.search(PROBE, k=3)] == [hit.entry for hit in first]
        assert first[0].entry.content == PROBE
        store.close()
    except BaseException as raised:  # noqa: BLE001 the parent judges it
        handle = f"{type(raised).__name__}: {raised}"
    print(json.dumps({"handle": handle}), flush=True)


class Bench:
    """Worker with faults, and the checks of what it leaves."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.template = folder / "case", folder / "template"
        self.template.mkdir()
        prepare(self.template)
        library = folder / "faults.so"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        self.temporary = self.folder / "temporary"
        environment = {**os.environ, "LD_PRELOAD": str(library), "SQLITE_TMPDIR": str(self.temporary)}
        command = [sys.executable, __file__, "--work"]
        pipe = subprocess.PIPE
        self.worker = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

    def _send(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self.worker.stdin is not None and self.worker.stdout is not None
        self.worker.stdin.write(json.dumps(message) + "\n")
        self.worker.stdin.flush()
        return json.loads(self.worker.stdout.readline())

    def start(self, operation: str, kind: int = 0, n: int = 0) -> dict[str, Any]:
        """Run an operation with a fault on a new copy of the store; return what it came to.

        Args:
            operation: Name in `OPERATIONS`.
            kind: Number of the fault in `KINDS`.
            n: Call that fails, from 1 on; 0 for none.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.template, self.folder)
        self.temporary.mkdir()
        return self._send({"folder": str(self.folder), "operation": operation, "kind": kind, "n": n})

    def finish(self) -> str | None:
        """Let the worker go on with its handle; return the error of that, and wait for its end."""
        handle = self._send({})["handle"]
        assert self.worker.stdout is not None
        json.loads(self.worker.stdout.readline())
        return handle

    def measure(self, operation: str) -> tuple[int, list[dict[str, Any]]]:
        """Return the number of calls of an operation without faults, and the states before and after it."""
        calls = self.start(operation)["calls"]
        after = read_state(self.folder)
        if (handle := self.finish()) is not None:
            raise RuntimeError(f"{operation} fails without faults: {handle}")
        before = read_state(self.template) if operation != "close" else after
        return calls, [before, after]

    def faults_of(self, operation: str, kind: str, n: int, states: list[dict[str, Any]]) -> list[str]:
        """Return what is wrong after one fault.

        Args:
            operation: Name in `OPERATIONS`.
            kind: Name in `KINDS`.
            n: Call that fails.
            states: States before and after the operation.
        """
        outcome, problems = self.start(operation, KINDS[kind], n), []
        killed = "exit" in outcome
        try:
            state = read_state(self.folder)
        except MemalphaError as error:
            state = {}
            problems.append(f"cannot be opened: {error}")
        is_after = not killed and (outcome["error"] is None or outcome["pending"])
        if state not in (states[1:] if is_after else states):
            problems.append("the state is not the one after" if is_after else "the state is neither before nor after")
        if not killed:
            if not outcome["expected"] or (kind == "half a write" and outcome["error"]):
                problems.append(f"raised {outcome['error']}")
            handle = self.finish()
            if handle is not None:
                problems.append(f"the handle afterwards: {handle}")
        try:
            last = read_state(self.folder)
        except MemalphaError as error:
            return [*problems, f"cannot be opened in the end: {error}"]
        if killed and operation in RETRIED:  # what it left is removed by the next one at this path
            with open_store(self.folder / "a.db") as store, suppress(StoreError):  # a copy may be complete
                OPERATIONS[operation](store, self.folder)
            state = read_state(self.folder)
        if not killed and not any(PROBE in row for row in last["a.db"]["default"][0]):
            problems.append("the write after the fault is lost")
        problems += [f"left over: {name[:40]}" for name in left_over(self.folder, state)]
        problems += [f"doctor: {problem}" for problem in examine(self.folder / "a.db").problems]
        return problems

    def close(self) -> None:
        """End the worker."""
        assert self.worker.stdin is not None and self.worker.stdout is not None
        self.worker.stdin.close()
        self.worker.wait()
        self.worker.stdout.close()


def run(most: int, seed: int, names: list[str] | None = None) -> dict[str, Any]:
    """Return calls, cases and problems per operation.

    Args:
        most: Failing calls tried per operation and fault; more are a sample.
        seed: Seed of the samples.
        names: Operations; None for all.
    """
    rng, rows = random.Random(seed), {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder).resolve())
        try:
            for operation in names or OPERATIONS:
                calls, states = bench.measure(operation)
                cases, problems = 0, Counter[str]()
                for kind in KINDS:
                    for n in sorted(rng.sample(range(1, calls + 1), min(most, calls))):
                        cases += 1
                        problems.update(f"{kind}: {text}" for text in bench.faults_of(operation, kind, n, states))
                rows[operation] = {"calls": calls, "cases": cases, "problems": dict(problems)}
                print(operation, json.dumps(rows[operation]), file=sys.stderr)
        finally:
            bench.close()
    return {"seed": seed, "most": most, "operations": rows}


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] == ["--work"]:
        work()
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--most", type=int, default=40, help="failing calls per operation and fault")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operations", nargs="+", choices=list(OPERATIONS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = run(options.most, options.seed, options.operations)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    rows = result["operations"].values()
    print(sum(row["cases"] for row in rows), "faults,", sum(sum(row["problems"].values()) for row in rows), "problems")
    sys.exit(any(row["problems"] for row in rows))


if __name__ == "__main__":
    main()
