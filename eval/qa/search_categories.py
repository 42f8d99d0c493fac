"""Search of categorized facts by questions in other words, alone and among the lines of chats.

    python eval/qa/search_categories.py FRIENDSQA

FRIENDSQA is a folder with FriendsQA's files (emorynlp/FriendsQA); 600 of its lines are added to a random category each
(`spread`), or all to one (`in one`). The two sets of facts and questions lie in `eval/qa/pools/`. Prints the table.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from memalpha.store.embedding import CachedEmbedder, load_embedder
from memalpha.store.store import MemoryStore

POOLS = Path(__file__).parent / "pools"
SETS = {"1": ("life", "spatiotemporal_context"), "2": (POOLS / "categories-2.yaml", "diary")}
HOW: dict[str, dict[str, Any]] = {route: {"route": route} for route in ("bm25", "dense", "flat", "hard", "soft")}
HOW["spans"] = {"reranker": "spans"}


def chat_lines(folder: Path) -> list[str]:
    """Return 600 lines of chats in a random order that is always the same."""
    lines = {}
    for path in sorted(folder.glob("*.json")):
        for scene in json.loads(path.read_text(encoding="utf-8"))["data"]:
            for said in scene["paragraphs"][0]["utterances:"]:
                lines[f"{(said['speakers'] or ['#'])[0]}: {said['utterance']}"] = None
    chosen = [line for line in lines if len(line.split()) > 4]
    random.Random(0).shuffle(chosen)
    return chosen[:600]


def main() -> None:
    """Measure and print."""
    lines, embedder = chat_lines(Path(sys.argv[1])), CachedEmbedder(load_embedder("static"))
    print("| set | lines of chats | route | right at 1 | recall@10 | mrr |\n|---|---|---|---|---|---|")
    for name, (schema, one) in SETS.items():
        facts = [json.loads(line) for line in (POOLS / f"categories-{name}.jsonl").read_text("utf-8").splitlines()]
        for where in ("none", "spread", "in one"):
            store, draw, asked = MemoryStore.open(":memory:", schema=schema, embedder=embedder), random.Random(1), []
            for fact in facts:
                id = store.insert(fact["category"], fact["content"]).id
                asked += [(question, id) for question in fact["questions"]]
            for line in lines if where != "none" else ():
                store.insert(one if where == "in one" else draw.choice(store.schema.category_names), line)
            for route, how in HOW.items():
                found = store.search_many([question for question, _ in asked], 10, **how)
                ranks = [
                    next((rank for rank, hit in enumerate(hits, 1) if hit.entry.id == id), None)
                    for hits, (_, id) in zip(found, asked, strict=True)
                ]
                cells = (ranks.count(1), sum(rank is not None for rank in ranks), sum(1 / r for r in ranks if r))
                print(f"| {name} | {where} | {route} | " + " | ".join(f"{x / len(asked):.3f}" for x in cells) + " |")


if __name__ == "__main__":
    main()
