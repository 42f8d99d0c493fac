"""Kill a writer repeatedly while it writes, and count lost operations.

    python eval/store/crash.py --kills 1000 --out eval/results/store-crash.json

A process runs seeded operations of every kind on one store file: insert, insert with a near expiry, insert_many,
update, update_many, delete, delete_many, a transaction, core_update, undo, redo, restore, fork into a namespace and
into a file, backup, copy, drop_namespace, erase. It tells its intent before each operation and
the logged rows after it. It is killed (SIGKILL) after a random time and begun again on the same file; every 50 kills a
new file begins. After every kill the file is opened and must hold

- every acknowledged operation at its position, or its stub if it was erased since, and every acknowledged fork and
  copy, and no dropped namespace (otherwise `lost`),
- beyond them only the operation intended at the kill, completely or not at all, and the ends of expired entries
  (otherwise `half`),
- the state that replaying its log gives (otherwise `wrong`). Every tenth time `doctor` checks the file too.
- Opening it must leave no file of what was killed (otherwise `leftover`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from memalpha.errors import UnknownEntry
from memalpha.store.checks.integrity import examine
from memalpha.store.open import copy_store
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore
from memalpha.types import Operation

MAX_WRITER_SECONDS = 0.5  # seconds between the writer's first operation and its death
KILLS_PER_FILE = 50  # kills of one file
FORK_POSITION = 20  # operations that a fork takes over
KINDS = (
    *("insert",) * 6,
    *("expire",) * 2,
    *("insert_many",) * 3,
    *("update",) * 4,
    *("delete",) * 2,
    *("core_update", "undo", "redo", "restore", "erase", "erase", "fork", "fork", "fork_file", "backup", "copy"),
    *("drop", "drop", "update_many", "delete_many", "transaction"),
)
FILES = ("fork_file", "backup", "copy")  # operations that make another file
OperationRow = list[str | None]


def write(path: Path, seed: str, durability: str, position: int, tell: Callable[[dict], None]) -> None:
    """Write until killed; operations up to `position` are acknowledged already.

    Args:
        path: Store file.
        seed: Seed of the operations and part of their texts.
        durability: "full" or "normal".
        position: Log position up to which operations are acknowledged.
        tell: Sends a message to the process that kills this one.
    """
    rng, number = random.Random(seed), 0
    with MemoryStore.open(path, embedder="hash", durability=durability) as store:  # pyright: ignore
        while True:
            number += 1
            entries, before = store.list(limit=200), store.snapshot()
            kind = rng.choice(KINDS) if entries else "insert"
            entry = rng.choice(entries) if entries else None
            texts = [f"fact {rng.randrange(1000)}: {seed} {number} {i} " + "x" * rng.randrange(300) for i in range(20)]
            names = sorted(set(store.namespaces()) - {"default"})
            kind = "insert" if kind == "drop" and not names else kind
            intent = {
                "intent": kind,
                "texts": texts,
                "at": before,
                "id": entry and entry.id,
                "ids": [entry.id for entry in rng.sample(entries, min(3, len(entries)))],
                "name": rng.choice(names) if kind == "drop" else f"{seed} {number}",
            }
            tell(intent)
            with suppress(UnknownEntry):  # it expired just now
                execute_intent(store, kind, intent, rng)
            rows = [operation_row(operation) for _, _, operation in store.log(position)]
            position += len(rows)
            tell({"done": rows, **intent})


def execute_intent(store: MemoryStore, kind: str, intent: dict, rng: random.Random) -> None:
    """Run the operation that an intent describes.

    Args:
        store: Store to write to.
        kind: Kind of operation, one of `KINDS`.
        intent: Texts, entry id, position and fork name of the operation.
        rng: Source of the expiry and of the position to restore.
    """
    texts, id, before = intent["texts"], intent["id"], intent["at"]
    if kind in ("insert", "expire"):
        soon = datetime.now(UTC) + timedelta(seconds=rng.random() / 3)
        store.insert("semantic", texts[0], expires=soon.isoformat() if kind == "expire" else None)
    elif kind == "insert_many":
        store.insert_many([{"category": "semantic", "content": text} for text in texts])
    elif kind == "update":
        store.update(id, texts[0])
    elif kind in ("delete", "erase"):
        getattr(store, kind)(id)
    elif kind == "core_update":
        store.core_update(texts[0][:200])
    elif kind == "restore":
        store.restore(max(0, before - rng.randrange(8)))
    elif kind == "fork":
        store.fork(intent["name"], as_of=FORK_POSITION)
    elif kind == "fork_file":
        store.fork(path=fork_file(Path(store.path), intent), as_of=FORK_POSITION).close()
    elif kind == "backup":
        store.backup(fork_file(Path(store.path), intent))
    elif kind == "copy":
        copy_store(store.path, fork_file(Path(store.path), intent))
    elif kind == "drop":
        store.drop_namespace(intent["name"])
    elif kind == "update_many":
        store.update_many([{"id": id, "content": text} for id, text in zip(intent["ids"], texts, strict=False)])
    elif kind == "delete_many":
        store.delete_many(intent["ids"])
    elif kind == "transaction":
        with store.transaction():
            for text in texts[:3]:
                store.insert("semantic", text)
            store.search("fact")
    else:
        getattr(store, kind)()


def fork_file(path: Path, intent: dict) -> Path:
    """Return the path for the fork of an intent."""
    return path.with_name(f"{intent['name']}.fork".replace(" ", "-"))


def operation_row(operation: Operation) -> OperationRow:
    """Return the compared fields of an operation."""
    return [operation.kind, operation.id, operation.content]


def replace_by_stubs(rows: list[OperationRow], id: str) -> list[OperationRow]:
    """Return the rows after the erasure of an entry."""
    first = next((position for position, operation_row in enumerate(rows, 1) if operation_row[1] == id), 0)
    return [["erased", f"erased#{first}", None] if operation_row[1] == id else operation_row for operation_row in rows]


class File:
    """A store file and the operations that its writers acknowledged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.acknowledged: list[OperationRow] = []
        self.forks: list[tuple[dict, list[OperationRow]]] = []
        self.dropped: list[str] = []

    def record_acknowledged(self, messages: list[dict]) -> None:
        """Record the acknowledged operations and forks of a writer's messages."""
        for item in messages:
            if "done" not in item:
                continue
            if item["intent"] in (*FILES, "fork"):
                self.forks.append((item, self.acknowledged[: self.copied_count(item)]))
            if item["intent"] == "drop":
                self.forget(item["name"])
            self.acknowledged += item["done"]
            if item["intent"] == "erase" and ["erased", None, None] in item["done"]:
                self.acknowledged = replace_by_stubs(self.acknowledged, item["id"])

    @staticmethod
    def copied_count(intent: dict) -> int:
        """Return the number of operations that a fork or copy holds at least."""
        return FORK_POSITION if intent["intent"].startswith("fork") else intent["at"]

    def forget(self, name: str) -> None:
        """Record that a namespace was dropped."""
        self.dropped.append(name)
        self.forks = [(item, rows) for item, rows in self.forks if item["intent"] != "fork" or item["name"] != name]

    def check(self, last: dict, counts: dict[str, int]) -> None:
        """Open the file after a kill and count the faults into `counts`; `last` is the writer's last message."""
        interrupted = last if last and "done" not in last else {}
        open_time = datetime.now(UTC)
        with MemoryStore.open(self.path, clock=lambda: open_time) as store:  # nothing expires while it is looked at
            log = [operation for _, _, operation in store.log()]
            logged = [operation_row(operation) for operation in log]
            known_count, erased = len(self.acknowledged), False
            if interrupted.get("intent") == "erase":
                stubs = replace_by_stubs(self.acknowledged, interrupted["id"])
                erased = logged[:known_count] == stubs
                self.acknowledged = stubs if erased else self.acknowledged
            if interrupted.get("intent") == "drop" and interrupted["name"] not in store.namespaces():
                self.forget(interrupted["name"])
            lost = logged[:known_count] != self.acknowledged
            lost |= any(not self._fork_holds(store, item, rows) for item, rows in self.forks[-5:])
            lost |= not set(self.dropped).isdisjoint(store.namespaces())
            counts["lost"] += lost
            unacknowledged = [operation_row for operation_row in logged[known_count:] if operation_row[0] != "expired"]
            counts["half"] += not (
                is_whole_intent(interrupted, unacknowledged, store, erased=erased)
                and self._is_fork_whole(store, interrupted)
            )
            counts["wrong"] += MemoryState.replay(store.schema, log).list() != store.list()
            self.acknowledged += logged[known_count:]
            counts["leftover"] += any(map(is_leftover, self.path.parent.iterdir()))
            counts["pending"] += store.pending_scrub  # opening has finished what an erasure had begun
            for item, _ in self.forks[:-5]:
                fork_file(self.path, item).unlink(missing_ok=True)
            self.forks = self.forks[-5:]

    def _fork_holds(self, store: MemoryStore, intent: dict, rows: list[OperationRow]) -> bool:
        """Return True if a fork holds the rows, apart from entries erased before the fork."""
        if intent["intent"] == "fork":
            return [operation_row(operation) for _, _, operation in store.namespace(intent["name"]).log()][
                : len(rows)
            ] == rows
        path = fork_file(self.path, intent)
        if not path.exists():
            return False
        with MemoryStore.open(path) as fork:
            return [operation_row(operation) for _, _, operation in fork.log()][: len(rows)] == rows

    def _is_fork_whole(self, store: MemoryStore, intent: dict) -> bool:
        """Return True if an interrupted fork is complete or absent."""
        if intent.get("intent") == "fork" and not store.namespace(intent["name"]).snapshot():
            return True
        if intent.get("intent") in FILES and not fork_file(self.path, intent).exists():
            return True
        if intent.get("intent") not in (*FILES, "fork"):
            return True
        return self._fork_holds(store, intent, self.acknowledged[: self.copied_count(intent)])


def is_leftover(file: Path) -> bool:
    """Return True for a file that nobody needs: half a copy."""
    return file.name.startswith(".")


def is_whole_intent(intent: dict, unacknowledged: list[OperationRow], store: MemoryStore, *, erased: bool) -> bool:
    """Return True if the unacknowledged rows are the complete interrupted operation, or none.

    Args:
        intent: The interrupted operation; empty if the kill came between operations.
        unacknowledged: Logged rows beyond the acknowledged ones.
        store: The opened store.
        erased: True if an interrupted erasure has replaced the entry by its stub.
    """
    kind = intent.get("intent")
    if kind == "erase" and erased:
        return unacknowledged == [["erased", None, None]]
    if not unacknowledged:
        return True
    contents = [operation_row[2] for operation_row in unacknowledged]
    if kind == "insert_many":
        return contents == [text.strip() for text in intent["texts"]]
    if kind == "transaction":
        return contents == [text.strip() for text in intent["texts"][:3]]
    if kind == "update_many":
        return contents == [text.strip() for text in intent["texts"][: len(intent["ids"])]]
    if kind == "delete_many":
        return [operation_row[:2] for operation_row in unacknowledged] == [["delete", id] for id in intent["ids"]]
    if kind in ("insert", "expire", "update", "core_update"):
        content = unacknowledged[0][2] or ""
        logged = "insert" if kind == "expire" else kind
        return (
            len(unacknowledged) == 1
            and unacknowledged[0][0] == logged
            and content.startswith(intent["texts"][0][:200].strip())
        )
    if kind == "restore":  # one that had begun went all the way: its last row is of a position it could aim at
        positions = range(max(0, intent["at"] - 7), intent["at"] + 1)
        return lasting_facts(store.list()) in [lasting_facts(store.list(as_of=position)) for position in positions]
    return kind in ("delete", "undo", "redo") and len(unacknowledged) == 1


def lasting_facts(entries: list) -> list[tuple[str, str]]:
    """Return ids and contents that a restore brings back; entries with an expiry may have ended again."""
    return [(entry.id, entry.content) for entry in entries if entry.expires is None]


def run(kills: int, seed: int, durability: str) -> dict[str, Any]:
    """Kill a writer `kills` times and return the counts.

    Args:
        kills: Number of kills.
        seed: Seed of operations and kill times.
        durability: "full" or "normal".
    """
    rng, counts = random.Random(seed), {"lost": 0, "half": 0, "wrong": 0, "leftover": 0, "pending": 0}
    operations, interrupted = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        file = File(Path(folder))
        for number in range(kills):
            if number % KILLS_PER_FILE == 0:
                file = File(Path(folder) / f"{number}.db")
            messages = run_and_kill(file, f"{seed}.{number}", durability, rng.random() * MAX_WRITER_SECONDS)
            operations.update(item["intent"] for item in messages if "done" in item)
            if messages and "done" not in messages[-1]:
                interrupted[messages[-1]["intent"]] += 1
            file.record_acknowledged(messages)
            before = dict(counts)
            file.check(messages[-1] if messages else {}, counts)
            if number % 10 == 9 or number == kills - 1:
                counts["wrong"] += bool(examine(file.path).problems)
            if counts != before:
                print(f"kill {number}: {counts} {str(messages[-1:])[:300]}", file=sys.stderr)
    return {
        "kills": kills,
        "seed": seed,
        "durability": durability,
        "acknowledged": operations.total(),
        "killed_in_an_operation": interrupted.total(),
        **counts,
        "acknowledged_by_kind": dict(operations.most_common()),
        "killed_by_kind": dict(interrupted.most_common()),
    }


def run_and_kill(file: File, seed: str, durability: str, seconds: float) -> list[dict]:
    """Fork a writer, kill it `seconds` after its first message, and return what it told.

    Args:
        file: Store file.
        seed: Seed of its operations.
        durability: "full" or "normal".
        seconds: Time that it has.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)

            def tell(message: dict) -> None:
                os.write(writer, json.dumps(message).encode() + b"\n")

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what the last kill left
                write(file.path, seed, durability, len(file.acknowledged), tell)
        finally:  # nothing may run on in the copy of this process
            if sys.exc_info()[1] is not None:
                traceback.print_exc()
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        lines = [pipe.readline()]
        killer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
        killer.start()
        lines += pipe.readlines()  # also keeps the pipe from filling up
        killer.join()
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1]), "the writer ended by itself"
    return [json.loads(line) for line in lines if line.endswith(b"\n")]  # a cut line was not heard


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--durability", choices=("full", "normal"), default="full")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = run(options.kills, options.seed, options.durability)
    text = json.dumps(result)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    sys.exit(any(result[name] for name in ("lost", "half", "wrong", "leftover", "pending")))


if __name__ == "__main__":
    main()
