"""Compare the hits of searches over LoCoMo's turns in PostgreSQL and in SQLite, with the same embedder.

    python eval/store/postgres_recall.py URL DATA --out eval/results/store-postgres-recall

URL is a PostgreSQL database with pgvector. Its schema "recall" is dropped and filled anew. DATA holds `locomo10.json`
in any folder below it. Every conversation is a namespace, its turns are entries with a source and a turn. "all turns"
is one namespace with the turns of all conversations, where most near entries belong to another conversation.
recall@10 is the mean over questions of the share of the evidence among the first ten hits. "all looked at" is the
search used up to 10,000 entries, "candidates" the one used beyond, which this script forces. "as all" is the share of
the ten hits of PostgreSQL's exhaustive search among the ten.
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

ALL_TURNS = "all turns"


def main() -> None:
    """Run the command line."""
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
    conversations = [(task.id, locomo.evidence_questions(task)) for task in tasks]
    all_turns_together = [
        (
            ALL_TURNS,
            [
                question._replace(gold=tuple(f"{id} {name}" for name in question.gold))
                for id, questions in conversations
                for question in questions
            ],
        )
    ]
    with MemoryStore.open(url) as postgres_store, MemoryStore.open(":memory:") as sqlite_store:
        for store in (postgres_store, sqlite_store):
            for task in tasks:
                facts = [{**fact, "turn": f"{task.id} {fact['turn']}"} for fact in locomo.turn_entries(task)]
                store.namespace(ALL_TURNS).insert_many(facts)
                store.namespace(task.id).insert_many(locomo.turn_entries(task))
        for namespaces, route in [(conversations, route) for route in options.routes] + [
            (all_turns_together, "flat"),
            (all_turns_together, "dense"),
        ]:
            exhaustive_hits: list[set[str]] = []
            for name, store, exhaustive_limit in (
                ("SQLite", sqlite_store, size),
                ("PostgreSQL, all looked at", postgres_store, size),
                ("PostgreSQL, candidates", postgres_store, 100),
            ):
                if exhaustive_limit != size and route in (
                    "soft",
                    "bm25",
                ):  # of raw turns, and of words, all are always looked at
                    continue
                postgres_search.EXHAUSTIVE_UP_TO = exhaustive_limit
                ranks, top_ten_hits = [], []
                for id, questions in namespaces:
                    search = search_function(store.namespace(id), route)

                    def recording_search(
                        queries: Sequence[str], k: int, search=search, top_ten_hits=top_ten_hits
                    ) -> list[list[MemoryEntry]]:
                        results = search(queries, k)
                        top_ten_hits.extend({entry.id for entry in hits[:10]} for hits in results)
                        return results

                    ranks += rank_evidence(questions, recording_search, lambda entry: entry.turn)
                if name.endswith("looked at"):
                    exhaustive_hits = top_ten_hits
                row = {
                    "memory": "a conversation" if namespaces is conversations else "all turns",
                    "route": route,
                    "store": name,
                }
                row |= summarize_ranks(ranks)
                if name.startswith("Post"):
                    row["as all"] = sum(len(a & b) for a, b in zip(top_ten_hits, exhaustive_hits, strict=True)) / sum(
                        map(len, exhaustive_hits)
                    )
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
        metrics = " | ".join(f"{row[name]:.4f}" for name in ("recall@5", "recall@10", "recall@20", "mrr"))
        agreement = f"{row['as all']:.4f}" if "as all" in row else ""
        lines.append(
            f"| {row['memory']} | {row['route']} | {row['store']} | {metrics} | {agreement} | {row['questions']} |"
        )
    options.out.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
