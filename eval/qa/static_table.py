"""Compare two tables of the static embedder on the sets of `retrieval_pools.py`, paired, and on natural chats.

    git show 224fafb5:memalpha/store/static/table.npz > before/table.npz    # vocabulary.txt beside it, unchanged
    python eval/qa/static_table.py before DATA

DATA as in `retrieval_pools.py`. Of the dialogues with an assistant the odd ones are taken. Writes static-embedder.json
to --results: recall@10 and mrr by table and route, and the gain in recall@10 with its interval (95 % of 10,000 paired
bootstrap samples over conversations, episodes or questions); of the chats, every line kept, the share of questions to
which the nearest entry holds the answer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import retrieval_pools as pools

from memalpha import MemoryAgent, MemoryStore, load_tasks
from memalpha.store.embedding import CachedEmbedder, Embedder, StaticEmbedder
from memalpha.store.values import holds_answer

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser

SETS = ("locomo", "friendsqa", "xquad", "hotpotqa", "musique", "beam-100K", "beam-500K")
CHATS = Path(__file__).parents[1] / "learning" / "natural_chats.jsonl"


def compare(name: str, data: Path, tables: list[Embedder]) -> dict[str, Any]:
    """Return the figures of a set by route."""
    parts = list(pools.SETS[name](data))
    if name.startswith("beam"):
        parts = pools.take_half(parts, "odd", by_question=False)
    measured = [[pools.measure(pool, table) for pool in parts] for table in tables]
    results = {}
    for route in ("dense", "sum", "neighbours"):
        groups = [[ranks[route] for ranks in by_pool] for by_pool in measured]
        if name not in pools.DIALOGUES:  # by question: four or five pools are too few
            groups = [[[item] for group in by_pool for item in group] for by_pool in groups]
        sums = [pools.summarize_ranks([item for group in by_pool for item in group]) for by_pool in groups]
        figures = {key: [round(summary[key], 4) for summary in sums] for key in ("recall@10", "mrr")}
        results[route] = {**figures, "gain": pools.gain(groups[1], groups[0])}
    return results


def nearest_in_chats(table: Embedder, first: int, last: int, route: str) -> float:
    """Return the share of answerable questions of some chats whose nearest entry holds the answer."""
    found = []
    for task in load_tasks(str(CHATS))[first:last]:
        with MemoryStore.open(":memory:", embedder=table) as store:
            agent = MemoryAgent("add_all", store)
            for chunk in task.chunks:
                agent.read(chunk)
            for question in task.questions:
                if question.answers:
                    text = store.search(question.question, k=1, route=route)[0].entry.content
                    found.append(any(holds_answer(text, answer) for answer in question.answers))
    return round(sum(found) / len(found), 4)


def main() -> None:
    """Measure both tables and write the record."""
    parser = make_parser(__doc__)
    parser.add_argument("before", type=Path, help="folder with table.npz and vocabulary.txt")
    parser.add_argument("data", type=Path)
    options = parser.parse_args()
    tables = [CachedEmbedder(StaticEmbedder(options.before)), CachedEmbedder(StaticEmbedder())]
    results = {name: compare(name, options.data, tables) for name in SETS}
    for name, first, last in (("60 chats", 0, 60), ("44 chats", 60, 104)):
        results[name] = {
            route: [nearest_in_chats(table, first, last, route) for table in tables] for route in ("dense", "flat")
        }
    text = json.dumps(results, indent=1) + "\n"
    (options.results / "static-embedder.json").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
