"""What a search of LoCoMo's turns finds in PostgreSQL and in SQLite, on the same data with the same embedder.

    python eval/store/postgres_recall.py URL DATA --out eval/results/store-postgres-recall

URL is a PostgreSQL database with pgvector, for tables of the schema "recall", which are dropped; DATA holds
`locomo10.json` in any folder below it. Every conversation is a namespace, its turns entries with a source and a turn.
recall@10 is the mean over questions of the share of the evidence among the first ten hits; "all looked at" is the
search of up to 10,000 entries, "candidates" that of more, which is made to happen here.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import psycopg

from memalpha.qa import locomo
from memalpha.qa.recall import rank, searching, summary
from memalpha.store import postgres_search
from memalpha.store.store import MemoryStore
from memalpha.tasks.locomo import load_locomo


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("url")
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="OUT.json and OUT.md are written")
    parser.add_argument("--routes", nargs="+", default=["soft", "flat", "dense", "bm25"])
    options = parser.parse_args()
    tasks = load_locomo(next(options.data.rglob("locomo10.json")))
    with psycopg.connect(options.url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute("DROP SCHEMA IF EXISTS recall CASCADE")
    url = f"{options.url}{'&' if '?' in options.url else '?'}schema=recall"
    size, rows = postgres_search.SIZE, []
    with MemoryStore.open(url) as there, MemoryStore.open(":memory:") as here:
        asked = [(task.id, locomo.questions(task)) for task in tasks]
        for task in tasks:
            for store in (there, here):
                store.namespace(task.id).insert_many(locomo.turns(task))
        for route in options.routes:
            for name, store, most in (
                ("SQLite", here, size),
                ("PostgreSQL, all looked at", there, size),
                ("PostgreSQL, candidates", there, 100),
            ):
                if most != size and route in ("soft", "bm25"):  # of raw turns, and of words, all are always looked at
                    continue
                postgres_search.SIZE = most
                ranks = [
                    one
                    for id, questions in asked
                    for one in rank(questions, searching(store.namespace(id), route), lambda entry: entry.turn)
                ]
                rows.append({"route": route, "store": name, **summary(ranks)})
                print(json.dumps(rows[-1]), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    lines = [
        "# What PostgreSQL finds of LoCoMo's turns, beside SQLite", "", "```",
        f"python eval/store/postgres_recall.py URL DATA --out {options.out}", "```", "",
        "See the head of the script.", "",
        "| route | store | recall@5 | recall@10 | recall@20 | mrr | questions |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        figures = " | ".join(f"{row[name]:.4f}" for name in ("recall@5", "recall@10", "recall@20", "mrr"))
        lines.append(f"| {row['route']} | {row['store']} | {figures} | {row['questions']} |")
    options.out.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
