"""Kill a writer again and again while it writes, and count what was lost.

    python eval/store/crash.py --kills 1000 --out eval/results/store-crash.json

A process does all sorts of operations on one store file (seeded; insert, insert with an expiry that soon comes,
insert_many, update, delete, core_update, undo, redo, restore, fork into a namespace and into a file, erase) and prints
what it means to do before each and what was done after it. It is killed (SIGKILL) after a random time, and started
again on the same file; every 50 kills on a new one. After every kill the file is opened and must hold

- every operation that was acknowledged, at its position and as it was acknowledged, or its stub if it was erased
  since, and every fork that was (else it counts as `lost`),
- nothing beyond them but what was intended when the kill came, whole or not at all, and the ends of what has expired
  (else `half`),
- the state that replaying its log gives (else `wrong`); every tenth time `doctor` looks too.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from memalpha.errors import UnknownEntry
from memalpha.store.checks.integrity import examine
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore
from memalpha.types import Operation

LONGEST = 0.25  # seconds between the writer's first operation and its death
FILES = 50  # kills of one file
FORKED = 20  # operations that a fork takes over
KINDS = (
    *("insert",) * 6,
    *("expire",) * 2,
    *("insert_many",) * 3,
    *("update",) * 4,
    *("delete",) * 2,
    *("core_update", "undo", "redo", "restore", "erase", "fork", "fork_file"),
)
Row = list[str | None]


def write(path: Path, seed: str, durability: str, told: int) -> None:
    """Write until killed; what is in the log up to `told` is known."""
    rng, number = random.Random(seed), 0
    with MemoryStore.open(path, embedder="hash", durability=durability) as store:  # pyright: ignore
        while True:
            number += 1
            entries, before = store.list(limit=200), store.snapshot()
            kind = rng.choice(KINDS) if entries else "insert"
            entry = rng.choice(entries) if entries else None
            texts = [f"fact {rng.randrange(1000)}: {seed} {number} {i} " + "x" * rng.randrange(300) for i in range(20)]
            intent = {
                "intent": kind,
                "texts": texts,
                "at": before,
                "id": entry and entry.id,
                "name": f"{seed} {number}",
            }
            print(json.dumps(intent), flush=True)
            with suppress(UnknownEntry):  # it expired just now
                act(store, kind, intent, rng)
            done = [row(done) for _, _, done in store.log(told)]
            told += len(done)
            print(json.dumps({"done": done, **intent}), flush=True)


def act(store: MemoryStore, kind: str, intent: dict, rng: random.Random) -> None:
    """Do what is intended."""
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
        store.fork(intent["name"], as_of=FORKED)
    elif kind == "fork_file":
        store.fork(path=fork_file(Path(store._database.path), intent), as_of=FORKED).close()
    else:
        getattr(store, kind)()


def fork_file(path: Path, intent: dict) -> Path:
    """Where the fork of an intent goes."""
    return path.with_name(f"{intent['name']}.fork".replace(" ", "-"))


def row(operation: Operation) -> Row:
    """What is compared of an operation."""
    return [operation.kind, operation.id, operation.content]


def stubbed(rows: list[Row], id: str) -> list[Row]:
    """The rows once an entry is erased."""
    first = next((place for place, row in enumerate(rows, 1) if row[1] == id), 0)
    return [["erased", f"erased#{first}", None] if row[1] == id else row for row in rows]


class File:
    """A store file, and what its writers said they did."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.acknowledged: list[Row] = []
        self.forks: list[tuple[dict, list[Row]]] = []

    def hear(self, told: list[dict]) -> None:
        """What was acknowledged."""
        for item in told:
            if "done" not in item:
                continue
            if item["intent"].startswith("fork"):
                self.forks.append((item, self.acknowledged[:FORKED]))
            self.acknowledged += item["done"]
            if item["intent"] == "erase" and ["erased", None, None] in item["done"]:
                self.acknowledged = stubbed(self.acknowledged, item["id"])

    def check(self, last: dict, found: dict[str, int]) -> None:
        """Open the file after a kill and count what is not as it should be; `last`: the last that the writer said."""
        under_way = last if last and "done" not in last else {}
        opened = datetime.now(UTC)
        with MemoryStore.open(self.path, clock=lambda: opened) as store:  # nothing expires while it is looked at
            log = [done for _, _, done in store.log()]
            there = [row(done) for done in log]
            known, erased = len(self.acknowledged), False
            if under_way.get("intent") == "erase":
                stubs = stubbed(self.acknowledged, under_way["id"])
                erased = there[:known] == stubs
                self.acknowledged = stubs if erased else self.acknowledged
            lost = there[:known] != self.acknowledged
            lost |= any(not self._forked(store, item, rows) for item, rows in self.forks[-5:])
            found["lost"] += lost
            beyond = [row for row in there[known:] if row[0] != "expired"]
            found["half"] += not (fits(under_way, beyond, store, erased=erased) and self._whole_fork(store, under_way))
            found["wrong"] += MemoryState.replay(store.schema, log).list() != store.list()
            self.acknowledged += there[known:]
            store.erase()  # finishes what an erasure had begun

    def _forked(self, store: MemoryStore, intent: dict, rows: list[Row]) -> bool:
        """Whether a fork holds these rows, but for what was erased before it was made."""
        if intent["intent"] == "fork":
            return [row(done) for _, _, done in store.namespace(intent["name"]).log()][: len(rows)] == rows
        path = fork_file(self.path, intent)
        if not path.exists():
            return False
        with MemoryStore.open(path) as fork:
            return [row(done) for _, _, done in fork.log()][: len(rows)] == rows

    def _whole_fork(self, store: MemoryStore, intent: dict) -> bool:
        """Whether a fork that was under way is there as a whole or not at all."""
        if intent.get("intent") == "fork" and not store.namespace(intent["name"]).snapshot():
            return True
        if intent.get("intent") == "fork_file" and not fork_file(self.path, intent).exists():
            return True
        return "fork" not in intent.get("intent", "") or self._forked(store, intent, self.acknowledged[:FORKED])


def fits(intent: dict, beyond: list[Row], store: MemoryStore, *, erased: bool) -> bool:
    """Whether what lies beyond the acknowledged operations is the whole of the one that was under way."""
    kind = intent.get("intent")
    if kind == "erase" and erased:
        return beyond == [["erased", None, None]]
    if not beyond:
        return True
    if kind == "insert_many":
        return [row[2] for row in beyond] == [text.strip() for text in intent["texts"]]
    if kind in ("insert", "expire", "update", "core_update"):
        content = beyond[0][2] or ""
        logged = "insert" if kind == "expire" else kind
        return len(beyond) == 1 and beyond[0][0] == logged and content.startswith(intent["texts"][0][:200].strip())
    if kind == "restore":  # one that had begun went all the way: its last row is of a position it could aim at
        places = range(max(0, intent["at"] - 7), intent["at"] + 1)
        return facts(store.list()) in [facts(store.list(as_of=place)) for place in places]
    return kind in ("delete", "undo", "redo") and len(beyond) == 1


def facts(entries: list) -> list[tuple[str, str]]:
    """What a restore brings back; what expires may be gone again."""
    return [(entry.id, entry.content) for entry in entries if entry.expires is None]


def run(kills: int, seed: int, durability: str) -> dict[str, int | str]:
    """Kill `kills` times; the counts."""
    rng, found = random.Random(seed), {"lost": 0, "half": 0, "wrong": 0}
    operations, under_way = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        file = File(Path(folder))
        for number in range(kills):
            if number % FILES == 0:
                file = File(Path(folder) / f"{number}.db")
            command = [sys.executable, __file__, "--write", str(file.path), f"{seed}.{number}", durability]
            command.append(str(len(file.acknowledged)))
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            time.sleep(rng.random() * LONGEST)
            process.send_signal(signal.SIGKILL)
            rest, _ = process.communicate()
            text = "".join([*lines, rest])
            told = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]  # a cut line was not heard
            operations += sum("done" in item for item in told)
            under_way += bool(told) and "done" not in told[-1]
            file.hear(told)
            before = dict(found)
            file.check(told[-1] if told else {}, found)
            if number % 10 == 9 or number == kills - 1:
                found["wrong"] += bool(examine(file.path).problems)
            if found != before:
                print(f"kill {number}: {found} {str(told[-1:])[:300]}", file=sys.stderr)
    return {
        "kills": kills,
        "seed": seed,
        "durability": durability,
        "acknowledged": operations,
        "killed_in_an_operation": under_way,
        **found,
    }


def main() -> None:
    """Read the command line."""
    if sys.argv[1:2] == ["--write"]:
        write(Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
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
    sys.exit(any(result[name] for name in ("lost", "half", "wrong")))


if __name__ == "__main__":
    main()
