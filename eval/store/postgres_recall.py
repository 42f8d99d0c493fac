"""What a search of LoCoMo's turns finds in PostgreSQL and in SQLite, on the same data with the same embedder.

    python eval/store/postgres_recall.py URL DATA --out eval/results/store-postgres-recall

URL is a PostgreSQL database with pgvector, for tables of the schema "recall", which are dropped; DATA holds
`locomo10.json` in any folder below it. Every conversation is a namespace, its turns entries with a source and a turn;
"all turns" is one namespace of the turns of all conversations, in which most of what is near is of another one.
recall@10 is the mean over questions of the share of the evidence among the first ten hits; "all looked at" is the
search of up to 10,000 entries, "candidates" that of more, which is made to happen here. "as all" is the share of the
ten hits of PostgreSQL's search of all among the ten.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import psycopg

from memalpha.qa import locomo_search as locomo
from memalpha.qa.scoring.recall import rank_evidence, search_function, summarize_ranks
from memalpha.store.backends.postgres import search as postgres_search
from memalpha.store.store import MemoryStore
from memalpha.tasks.datasets.locomo import load_locomo
from memalpha.types import MemoryEntry

ALL = "all turns"


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
    size, rows = postgres_search.EXHAUSTIVE_UP_TO, []
    asked = [(task.id, locomo.evidence_questions(task)) for task in tasks]
    together = [
        (ALL, [one._replace(gold=tuple(f"{id} {name}" for name in one.gold)) for id, some in asked for one in some])
    ]
    with MemoryStore.open(url) as there, MemoryStore.open(":memory:") as here:
        for store in (there, here):
            for task in tasks:
                facts = [{**fact, "turn": f"{task.id} {fact['turn']}"} for fact in locomo.turn_entries(task)]
                store.namespace(ALL).insert_many(facts)
                store.namespace(task.id).insert_many(locomo.turn_entries(task))
        for of, route in [(asked, route) for route in options.routes] + [(together, "flat"), (together, "dense")]:
            every: list[set[str]] = []
            for name, store, most in (
                ("SQLite", here, size),
                ("PostgreSQL, all looked at", there, size),
                ("PostgreSQL, candidates", there, 100),
            ):
                if most != size and route in ("soft", "bm25"):  # of raw turns, and of words, all are always looked at
                    continue
                postgres_search.EXHAUSTIVE_UP_TO = most
                ranks, tens = [], []
                for id, questions in of:
                    search = search_function(store.namespace(id), route)

                    def noted(queries: Sequence[str], k: int, search=search, tens=tens) -> list[list[MemoryEntry]]:
                        found = search(queries, k)
                        tens.extend({entry.id for entry in hits[:10]} for hits in found)
                        return found

                    ranks += rank_evidence(questions, noted, lambda entry: entry.turn)
                if name.endswith("looked at"):
                    every = tens
                row = {"memory": "a conversation" if of is asked else "all turns", "route": route, "store": name}
                row |= summarize_ranks(ranks)
                if name.startswith("Post"):
                    row["as all"] = sum(len(a & b) for a, b in zip(tens, every, strict=True)) / sum(map(len, every))
                rows.append(row)
                print(json.dumps(rows[-1]), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    lines = [
        "# What PostgreSQL finds of LoCoMo's turns, beside SQLite", "", "```",
        f"python eval/store/postgres_recall.py URL DATA --out {options.out}", "```", "",
        "See the head of the script.", "",
        "| memory | route | store | recall@5 | recall@10 | recall@20 | mrr | as all | questions |", "|---" * 9 + "|",
    ]  # fmt: skip
    for row in rows:
        figures = " | ".join(f"{row[name]:.4f}" for name in ("recall@5", "recall@10", "recall@20", "mrr"))
        like = f"{row['as all']:.4f}" if "as all" in row else ""
        lines.append(f"| {row['memory']} | {row['route']} | {row['store']} | {figures} | {like} | {row['questions']} |")
    options.out.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
