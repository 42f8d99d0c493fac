"""Open hostile store files, made by this script: `python eval/store/attacks/hostile_files.py --out FILE.json`.

Every case changes a copy of a sound store of two namespaces (see `hostile_cases.py`). A forked process then does
everything that one does with a store: opens it, lists, filters, counts, searches, shows history, log, past states and
differences, exports, writes, undoes, erases, forks, backs up, copies, builds an index, opens it for reading only, runs
`memalpha doctor`, `show` and `search`, repairs it and reads it again. Each step must return or raise a `MemalphaError`.

An audit hook counts as a fault: an import, code that is compiled or run, a process, a connection, a library that is
loaded, and any file that is opened, renamed or removed outside of the case's folder. So does a step of over 2 s of CPU,
over 500 MB of memory beyond the start, or a crash. What a case may need lazily is imported before: the same steps are
done with the sound file first.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main

sys.path.insert(0, str(Path(__file__).parent))
from hostile_cases import CASES, make_store

from memalpha.cli.main import app
from memalpha.errors import MemalphaError
from memalpha.store.checks.integrity import examine
from memalpha.store.io.copy import copy_store
from memalpha.store.store import MemoryStore

COMMAND = typer.main.get_command(app)  # made once: it compiles annotations
MAX_SECONDS, MAX_MEMORY = 2.0, 500 << 20
_EVENTS = (
    "import",
    "exec",
    "compile",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "ctypes.dlopen",
)
_CONNECTIONS = ("subprocess.Popen", "socket.connect", "socket.bind", "sqlite3.load_extension", "pickle.find_class")
_FILES = {
    "open": 0,
    "os.remove": 0,
    "os.rename": 1,
    "os.rmdir": 0,
    "os.symlink": 1,
    "sqlite3.connect": 0,
    "os.chmod": 0,
}
_ALLOWED = ("/dev/null", "/proc/self/")


def read_steps(path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Iterate over the steps of a case: name and action."""
    folder = path.parent
    for read_only in (True, False):
        opened: list[MemoryStore] = []
        mode = "reading" if read_only else "writing"
        yield f"open for {mode}", lambda o=opened, r=read_only: o.append(MemoryStore.open(path, read_only=r))
        if not opened:
            continue
        store = opened[0]
        yield "list", store.list
        yield "list where", lambda s=store: s.list(where={"user": "ana", "importance": {"$gte": 0.5}})
        yield "list by time", lambda s=store: s.list(where={"timestamp": {"$lt": "2025-01-01"}}, limit=3)
        yield "count", store.count
        yield "search", lambda s=store: s.search("fact value")
        yield "search where", lambda s=store: s.search("fact value", where={"user": "ana"}, around=50)
        yield "search past", lambda s=store: s.search("fact value", as_of=3)
        yield "get", lambda s=store: s.get("fact-1#x")
        yield "history", lambda s=store: s.history("fact-1#x")
        yield "find", lambda s=store: s.find("semantic", "fact 2: value 2")
        yield "recent", lambda s=store: s.recent(3)
        yield "log", lambda s=store: list(s.log())
        yield "core", lambda s=store: (s.core, s.core_at(1))
        yield "past", lambda s=store: (s.list(as_of=2), s.list(as_of="2026-11-02"))
        yield "diff", lambda s=store: s.diff(1)
        yield "state", lambda s=store: s.state
        yield "queue", store.quarantined
        yield "other namespace", lambda s=store: (s.namespaces(), s.namespace("other").list())
        yield "export", lambda s=store: s.export_jsonl(folder / "export.jsonl")
        if not read_only:
            yield from _write_steps(store, folder)
        yield f"close after {mode}", store.close
    yield "copy", lambda: copy_store(path, folder / "copied.db")
    yield "doctor", lambda: [str(problem) for problem in examine(path).problems]
    for command in (["doctor", path], ["show", path], ["search", path, "fact"], ["doctor", path, "--repair"]):
        yield f"memalpha {command[0]}", lambda c=command: run_command([str(word) for word in c])
    yield "list after repair", lambda: MemoryStore.open(path).list()


def _write_steps(store: MemoryStore, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    def id_at(index: int) -> str:
        entries = store.list()
        return entries[index].id if entries else "nobody#x"

    yield "insert", lambda: store.insert("semantic", "fact 9: value 9", metadata={"user": "ben"})
    yield "insert_many", lambda: store.insert_many([{"category": "semantic", "content": "fact 8: value 8"}])
    yield "update", lambda: store.update(id_at(-1), "fact 9: value 10")
    yield "merge", lambda: store.update(id_at(0), metadata={"a": 1}, merge_metadata=True)
    yield "undo", lambda: (store.undo(), store.redo())
    yield "restore", lambda: store.restore(2)
    yield "revert", lambda: store.revert(source="chat", dry_run=True)
    yield "delete", lambda: store.delete(id_at(-1))
    yield "erase", lambda: store.erase(id_at(-1))
    yield "core update", lambda: store.core_update("Ben")
    yield "fork", lambda: store.fork("fork")
    yield "fork file", lambda: store.fork(path=folder / "fork.db").close()
    yield "backup", lambda: store.backup(folder / "backup.db")
    yield "index", store.build_index


def run_command(words: list[str]) -> None:
    """Run a command of memalpha in this process. Raises what it raises, and `AssertionError` for another exit code."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = COMMAND.main(words, prog_name="memalpha", standalone_mode=False)
        except SystemExit as end:
            code = end.code
    assert code in (None, 0, 1, 2), code


def do_steps(path: Path) -> dict[str, str]:
    """Do every step and return what each one came to: "read", "refused: …", or a fault."""
    outcomes: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step, action in read_steps(path):
            name = f"{step}, again" if step in outcomes else step
            start = time.process_time()
            try:
                action()
                outcome = "read"
            except MemalphaError as error:
                outcome = f"refused: {type(error).__name__}: {error}"[:300]
            except Exception as error:  # noqa: BLE001  whatever is raised is what is looked for
                outcome = f"FAULT raw {type(error).__name__}: {error}"[:300]
            seconds = time.process_time() - start
            outcomes[name] = outcome if seconds <= MAX_SECONDS else f"FAULT {seconds:.1f} s of CPU; {outcome}"
    return outcomes


class Guard:
    """Audit hook that notes what a store file must not bring about."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.events = str(folder.resolve()), list[str]()
        self.is_on = True
        sys.addaudithook(self.look)

    def look(self, event: str, values: tuple[Any, ...]) -> None:
        """Note an event."""
        if not self.is_on:
            return
        if event in _EVENTS or event in _CONNECTIONS:
            self.events.append(f"{event} {str(values[0])[:80]}")
        elif event in _FILES:
            path = values[_FILES[event]]
            if isinstance(path, int):
                return
            name = str(Path(os.fsdecode(path).removeprefix("file:").partition("?")[0]).resolve())
            if not name.startswith((self.folder, *_ALLOWED)) and os.fsdecode(path) != ":memory:":
                self.events.append(f"{event} {name[:120]}")


def run_case(store: Path, name: str, folder: Path) -> dict[str, str]:
    """Make a case, look at it in a forked process, and return the outcome of every step.

    Args:
        store: Sound store file.
        name: Name of the case.
        folder: Empty folder for its files.
    """
    path = folder / "a.db"
    shutil.copy(store, path)
    if CASES[name](path) is False:
        return {"make": "not possible in SQLite"}
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            limit = _memory() + MAX_MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            signal.alarm(300)
            guard = Guard(folder)
            outcomes = do_steps(path)
            guard.is_on = False
            outcomes |= {
                f"hook {number}": f"FAULT {event}"
                for number, event in enumerate(list(dict.fromkeys(guard.events))[:20])
            }
            os.write(writer, json.dumps(outcomes).encode()[:60000])
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return {"process": f"FAULT killed by signal {os.WTERMSIG(status)}"}
    return json.loads(text) if text else {"process": "FAULT no answer"}


def _memory() -> int:
    """Return the address space of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def run(names: list[str], folder: Path) -> dict[str, dict[str, str]]:
    """Run cases and return the outcomes of their steps.

    Args:
        names: Names of cases.
        folder: Empty folder.
    """
    sound = folder / "sound" / "a.db"
    sound.parent.mkdir()
    make_store(sound)
    results = {}
    for number, name in enumerate(["sound", *names]):
        case = folder / str(number)
        case.mkdir()
        if name == "sound":  # imports what the steps need
            shutil.copy(sound, case / "a.db")
            faults = {step: text for step, text in do_steps(case / "a.db").items() if text.startswith("FAULT raw")}
            assert not faults, faults
            for data in (b"no store", b""):
                (case / "a.db").write_bytes(data)
                do_steps(case / "a.db")
        else:
            results[name] = run_case(sound, name, case)
        shutil.rmtree(case)
    return results


def summarize(results: dict[str, dict[str, str]]) -> dict[str, dict[str, int]]:
    """Return the number of cases and steps by kind of case."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for name, outcomes in results.items():
        row = table[name.split(":")[0]]
        if "make" in outcomes:
            row["not possible"] += 1
            continue
        row["cases"] += 1
        row["refused at opening"] += outcomes.get("open for writing", "").startswith("refused")
        row["steps"] += len(outcomes)
        row["steps refused"] += sum(text.startswith("refused") for text in outcomes.values())
        row["faults"] += sum(text.startswith("FAULT") for text in outcomes.values())
    return {kind: dict(row) for kind, row in table.items()}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", default="", help="run only cases whose name contains this")
    parser.add_argument("--every", type=int, default=1, help="run every n-th case")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = [name for name in CASES if options.cases in name][:: options.every]
    with tempfile.TemporaryDirectory() as folder:
        results = run(names, Path(folder))
    faults = {
        f"{name} | {step}": text
        for name, outcomes in results.items()
        for step, text in outcomes.items()
        if text.startswith("FAULT")
    }
    for place, text in faults.items():
        print(place, "->", text)
    table = summarize(results)
    for kind, row in table.items():
        print(kind, row)
    if options.out:
        options.out.write_text(json.dumps({"table": table, "faults": faults}, indent=1) + "\n", encoding="utf-8")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
