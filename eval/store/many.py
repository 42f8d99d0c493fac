"""Many processes write and search one store file at the same time; then everything is counted.

    python eval/store/many.py --processes 8 --seconds 60 --out eval/results/store-many.json

Each process inserts (one by one, many at once, and entries that soon expire), updates and deletes entries of its own,
and searches and lists everybody's. After each acknowledged insert it shows the others the id; they read at random what
was shown last, which must be there. Counted: errors; acknowledged operations that are not in the log, in their order;
live entries that are missing or not as acknowledged; ids that were shown and could not be read (`unseen`); and whether
replaying the log gives the state, and `doctor` finds the file sound (`wrong`).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from memalpha.errors import MemalphaError
from memalpha.store.checks.integrity import examine
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore

KINDS = (*("insert",) * 4, "many", "expire", "update", "update", "delete", "search", "list", "look")
TOPICS = ("pet", "city", "job", "food")
_ID = 140  # bytes of a place where an id is shown


def work(path: Path, number: int, seconds: float, shown: list[Any], seed: int) -> None:
    """One process: what it was acknowledged goes to a file of its own, a line an operation."""
    rng, mine, end = random.Random(f"{seed}.{number}"), {}, time.monotonic() + seconds
    counts: Counter[str] = Counter()
    with MemoryStore.open(path) as store, path.with_suffix(f".{number}").open("w") as told:

        def tell(kind: str, id: str, content: str | None) -> None:
            told.write(json.dumps([kind, id, content]) + "\n")

        while time.monotonic() < end:
            kind = rng.choice(
                ("insert",) * 4 + ("many", "expire", "update", "update", "delete", "search", "list", "look")
            )
            counts[kind] += 1
            text = f"{rng.choice(TOPICS)} {rng.randrange(500)}: process {number} {counts.total()}"
            try:
                if kind in ("insert", "expire"):
                    soon = (datetime.now(UTC) + timedelta(seconds=rng.random() * 3)).isoformat()
                    entry = store.insert("semantic", text, expires=soon if kind == "expire" else None)
                    tell("insert", entry.id, entry.content)
                    if kind == "insert":
                        mine[entry.id] = entry.content
                        shown[number].value = entry.id.encode()
                elif kind == "many":
                    facts = [{"category": "semantic", "content": f"{text} {part}"} for part in range(10)]
                    for entry in store.insert_many(facts):
                        tell("insert", entry.id, entry.content)
                        mine[entry.id] = entry.content
                elif kind == "update" and mine:
                    id = rng.choice(list(mine))
                    mine[id] = store.update(id, text).content
                    tell("update", id, text)
                elif kind == "delete" and mine:
                    id = rng.choice(list(mine))
                    store.delete(id)
                    del mine[id]
                    tell("delete", id, None)
                elif kind == "search":
                    counts["hits"] += len(store.search(text, 5))
                elif kind == "list":
                    store.list(limit=50, where={"category": "semantic"})
                elif kind == "look":
                    id = shown[rng.randrange(len(shown))].value.decode()
                    counts["unseen"] += bool(id) and not any(found.id == id for found in store.history(id))
            except MemalphaError:  # any other ends the process, which is counted too
                counts["errors"] += 1
                traceback.print_exc()
    path.with_suffix(f".{number}.end").write_text(json.dumps([counts, mine]))


def run(processes: int, seconds: float, seed: int) -> dict[str, int | float]:
    """Let them work, then count."""
    context, start = get_context("spawn"), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.db"
        MemoryStore.open(path, embedder="hash").close()
        shown = [context.Array("c", _ID) for _ in range(processes)]
        workers = [context.Process(target=work, args=(path, n, seconds, shown, seed)) for n in range(processes)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        ends = [path.with_suffix(f".{number}.end") for number in range(processes)]
        done = [json.loads(end.read_text()) for end in ends if end.exists()]
        counts = sum((Counter(counted) for counted, _ in done), Counter())
        later = datetime.now(UTC) + timedelta(seconds=10)  # when all that expires has done so
        with MemoryStore.open(path, clock=lambda: later) as store:
            log, live = [operation for _, _, operation in store.log()], {entry.id: entry for entry in store.list()}
            wrong = MemoryState.replay(store.schema, log).list() != store.list()
        lost = 0
        for number in range(processes):
            told = [json.loads(line) for line in path.with_suffix(f".{number}").read_text().splitlines()]
            ids = {id for _, id, _ in told}
            logged = [[o.kind, o.id, o.content] for o in log if o.id in ids and o.kind != "expired"]
            lost += sum(one != other for one, other in zip(told, logged, strict=False)) + abs(len(told) - len(logged))
        mine = {id: content for _, own in done for id, content in own.items()}
        missing = sum(id not in live or live[id].content != content for id, content in mine.items())
        wrong += bool(examine(path).problems) + len(live.keys() - mine.keys())
        return {
            "processes": processes,
            "seconds": round(time.monotonic() - start, 1),
            "operations": len(log),
            "expired": sum(operation.kind == "expired" for operation in log),
            "searches": counts["search"],
            "others_entries_read": counts["look"],
            "errors": counts["errors"] + sum(worker.exitcode != 0 for worker in workers),
            "lost": lost,
            "missing": missing,
            "unseen": counts["unseen"],
            "wrong": wrong,
        }


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = run(options.processes, options.seconds, options.seed)
    print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps(result) + "\n", encoding="utf-8")
    sys.exit(any(result[name] for name in ("errors", "lost", "missing", "unseen", "wrong")))


if __name__ == "__main__":
    main()
