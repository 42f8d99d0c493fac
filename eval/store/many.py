"""Write and search one store file from many processes at the same time, then check every count.

    python eval/store/many.py --processes 8 --seconds 60 --out eval/results/store-many.json

Each process inserts (single entries, batches, and entries with a near expiry), updates and deletes its own entries, and
searches and lists all entries. After each acknowledged insert it publishes the id. The other processes read published
ids at random and must find them. These are counted: errors; acknowledged operations missing from the log or out of
order; live entries that are missing or differ from the acknowledged ones; published ids that could not be read
(`unseen`). `wrong` counts a log whose replay differs from the state, and a file that `doctor` finds faulty.
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
ID_BYTES = 140  # bytes of a place where an id is shown


def run_worker(path: Path, number: int, seconds: float, published_ids: list[Any], seed: int) -> None:
    """Run one process; its acknowledged operations go to a file of its own, one per line.

    Args:
        path: Store file.
        number: Index of the process.
        seconds: Duration of the work.
        published_ids: Shared buffers with the last inserted id of each process.
        seed: Seed of the operations.
    """
    rng, own_contents, deadline = random.Random(f"{seed}.{number}"), {}, time.monotonic() + seconds
    counts: Counter[str] = Counter()
    with MemoryStore.open(path) as store, path.with_suffix(f".{number}").open("w") as acknowledgements:

        def acknowledge(kind: str, id: str, content: str | None) -> None:
            acknowledgements.write(json.dumps([kind, id, content]) + "\n")

        while time.monotonic() < deadline:
            kind = rng.choice(
                ("insert",) * 4 + ("many", "expire", "update", "update", "delete", "search", "list", "look")
            )
            counts[kind] += 1
            text = f"{rng.choice(TOPICS)} {rng.randrange(500)}: process {number} {counts.total()}"
            try:
                if kind in ("insert", "expire"):
                    expiry = (datetime.now(UTC) + timedelta(seconds=rng.random() * 3)).isoformat()
                    entry = store.insert("semantic", text, expires=expiry if kind == "expire" else None)
                    acknowledge("insert", entry.id, entry.content)
                    if kind == "insert":
                        own_contents[entry.id] = entry.content
                        published_ids[number].value = entry.id.encode()
                elif kind == "many":
                    facts = [{"category": "semantic", "content": f"{text} {part}"} for part in range(10)]
                    for entry in store.insert_many(facts):
                        acknowledge("insert", entry.id, entry.content)
                        own_contents[entry.id] = entry.content
                elif kind == "update" and own_contents:
                    id = rng.choice(list(own_contents))
                    own_contents[id] = store.update(id, text).content
                    acknowledge("update", id, text)
                elif kind == "delete" and own_contents:
                    id = rng.choice(list(own_contents))
                    store.delete(id)
                    del own_contents[id]
                    acknowledge("delete", id, None)
                elif kind == "search":
                    counts["hits"] += len(store.search(text, 5))
                elif kind == "list":
                    store.list(limit=50, where={"category": "semantic"})
                elif kind == "look":
                    id = published_ids[rng.randrange(len(published_ids))].value.decode()
                    counts["unseen"] += bool(id) and not any(entry.id == id for entry in store.history(id))
            except MemalphaError:  # any other ends the process, which is counted too
                counts["errors"] += 1
                traceback.print_exc()
    path.with_suffix(f".{number}.end").write_text(json.dumps([counts, own_contents]))


def run(processes: int, seconds: float, seed: int) -> dict[str, int | float]:
    """Run the processes, then return the counts.

    Args:
        processes: Number of processes.
        seconds: Duration of their work.
        seed: Seed of the operations.
    """
    context, start = get_context("spawn"), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.db"
        MemoryStore.open(path, embedder="hash").close()
        published_ids = [context.Array("c", ID_BYTES) for _ in range(processes)]
        workers = [
            context.Process(target=run_worker, args=(path, n, seconds, published_ids, seed)) for n in range(processes)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        ends = [path.with_suffix(f".{number}.end") for number in range(processes)]
        worker_results = [json.loads(end.read_text()) for end in ends if end.exists()]
        counts = sum((Counter(counted) for counted, _ in worker_results), Counter())
        later = datetime.now(UTC) + timedelta(seconds=10)  # when all that expires has done so
        with MemoryStore.open(path, clock=lambda: later) as store:
            log, live = [operation for _, _, operation in store.log()], {entry.id: entry for entry in store.list()}
            wrong = MemoryState.replay(store.schema, log).list() != store.list()
        lost_count = 0
        for number in range(processes):
            acknowledgements = [json.loads(line) for line in path.with_suffix(f".{number}").read_text().splitlines()]
            ids = {id for _, id, _ in acknowledgements}
            logged = [[o.kind, o.id, o.content] for o in log if o.id in ids and o.kind != "expired"]
            lost_count += sum(
                acknowledged != logged_row for acknowledged, logged_row in zip(acknowledgements, logged, strict=False)
            ) + abs(len(acknowledgements) - len(logged))
        expected_contents = {id: content for _, contents in worker_results for id, content in contents.items()}
        missing = sum(id not in live or live[id].content != content for id, content in expected_contents.items())
        wrong += bool(examine(path).problems) + len(live.keys() - expected_contents.keys())
        return {
            "processes": processes,
            "seconds": round(time.monotonic() - start, 1),
            "operations": len(log),
            "expired": sum(operation.kind == "expired" for operation in log),
            "searches": counts["search"],
            "others_entries_read": counts["look"],
            "errors": counts["errors"] + sum(worker.exitcode != 0 for worker in workers),
            "lost": lost_count,
            "missing": missing,
            "unseen": counts["unseen"],
            "wrong": wrong,
        }


def main() -> None:
    """Run the command line."""
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
