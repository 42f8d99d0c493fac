"""Kill a writer again and again while it writes, and count what was lost.

    python eval/store/crash.py --kills 1000 --out eval/results/store-crash.json

A process writes all sorts of operations to one store file (seeded; insert, update, delete, core_update, undo, redo,
restore) and prints what it means to do before each and what was done after it. It is killed (SIGKILL) after a random
time, and started again on the same file. After every kill the file is opened and must hold

- every operation that was acknowledged, at its position and as it was acknowledged (else it counts as `lost`),
- nothing beyond them but what was intended when the kill came, whole or not at all (else `half`),
- the state that replaying its log gives (else `wrong`); every tenth time, and at the end, `doctor` looks too.
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
from pathlib import Path

from memalpha.store.doctor import examine
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore
from memalpha.types import Operation

LONGEST = 0.25  # seconds between the writer's first operation and its death
KINDS = ("insert",) * 6 + ("update",) * 4 + ("delete",) * 2 + ("core_update", "undo", "redo", "restore")


def write(path: Path, seed: str, durability: str) -> None:
    """Write until killed."""
    rng, number = random.Random(seed), 0
    with MemoryStore.open(path, embedder="hash", durability=durability) as store:  # pyright: ignore
        while True:
            number += 1
            entries, before = store.list(limit=200), store.snapshot()
            kind = rng.choice(KINDS) if entries else "insert"
            text = f"fact {rng.randrange(1000)}: {seed} {number} " + "x" * rng.randrange(300)
            print(json.dumps({"intent": kind, "text": text, "at": before}), flush=True)
            if kind == "insert":
                store.insert("semantic", text)
            elif kind == "update":
                store.update(rng.choice(entries).id, text)
            elif kind == "delete":
                store.delete(rng.choice(entries).id)
            elif kind == "core_update":
                store.core_update(text[:200])
            elif kind == "restore":
                store.restore(max(0, before - rng.randrange(8)))
            else:
                getattr(store, kind)()
            print(json.dumps({"done": [row(done) for _, _, done in store.log(before)], "at": before}), flush=True)


def row(operation: Operation) -> list[str | None]:
    """What is compared of an operation."""
    return [operation.kind, operation.id, operation.content]


def fits(intent: dict, beyond: list[Operation], store: MemoryStore, before: int) -> bool:
    """Whether what lies beyond the acknowledged operations is the whole of the one that was under way."""
    if not beyond or "intent" not in intent:
        return not beyond
    kind, text = intent["intent"], intent["text"]
    if kind in ("insert", "update", "core_update"):
        return len(beyond) == 1 and beyond[0].kind == kind and (beyond[0].content or "").startswith(text[:200].strip())
    if kind == "restore":  # a restore that had begun went all the way: its last row is of a position it could aim at
        then = [store.list(as_of=position) for position in range(max(0, before - 7), before + 1)]
        now = [(entry.id, entry.content) for entry in store.list()]
        return any([(entry.id, entry.content) for entry in entries] == now for entries in then)
    return len(beyond) == 1


def run(kills: int, seed: int, durability: str) -> dict[str, int | str]:
    """Kill `kills` times; the counts."""
    rng, found = random.Random(seed), {"lost": 0, "half": 0, "wrong": 0}
    acknowledged: list[list[str | None]] = []
    operations = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "crash.db"
        for number in range(kills):
            command = [sys.executable, __file__, "--write", str(path), f"{seed}.{number}", durability]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            time.sleep(rng.random() * LONGEST)
            process.send_signal(signal.SIGKILL)
            rest, _ = process.communicate()
            text = "".join([*lines, rest])
            told = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]  # a cut line was not heard
            for item in told:
                acknowledged += item.get("done", [])
            operations += sum("done" in item for item in told)
            with MemoryStore.open(path) as store:
                log = [done for _, _, done in store.log()]
                before = len(acknowledged)
                found["lost"] += [row(done) for done in log[:before]] != acknowledged
                found["half"] += not fits(told[-1] if told else {}, log[before:], store, before)
                found["wrong"] += MemoryState.replay(store.schema, log).list() != store.list()
                acknowledged += [row(done) for done in log[before:]]
            if number % 10 == 9 or number == kills - 1:
                found["wrong"] += bool(examine(path).problems)
    return {"kills": kills, "seed": seed, "durability": durability, "acknowledged": operations, **found}


def main() -> None:
    """Read the command line."""
    if sys.argv[1:2] == ["--write"]:
        write(Path(sys.argv[2]), sys.argv[3], sys.argv[4])
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
