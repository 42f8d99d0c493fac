"""Recall of the evidence on LoCoMo's turns, by route of search and without a language model.

    python eval/qa/locomo_search.py locomo10.json [--embedders static minilm]

Each conversation is a `MemoryStore`, each turn an entry `<date> <speaker>: <text> [caption]`. The entry's source is the
conversation, its chunk the session, its turn the turn's id. Questions are those of categories 1 to 4 with usable
evidence; hits come from the question's own conversation. `scoring.recall` defines recall@k, mrr and tokens@10. The
methods are routes of `MemoryStore.search`; "soft" is its default:

| method | score                                                                                 |
|--------|---------------------------------------------------------------------------------------|
| dense  | inner product of question and turn                                                    |
| bm25   | BM25 of the turn's words                                                              |
| flat   | sum of both, min-max scaled                                                           |
| soft   | the same with the words around the turn (`search.span_bm25`) and the category's prior |

Prints the table; the whole result goes to locomo-search.json in --out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from memalpha.agent.copying_reader import format_date
from memalpha.qa.scoring.recall import EvidenceQuestion, EvidenceRanks, rank_evidence, search_function, summarize_ranks
from memalpha.qa.search_benchmark import format_search
from memalpha.store.embedding import load_embedder
from memalpha.store.search.options import Route
from memalpha.store.store import MemoryStore
from memalpha.tasks.datasets.locomo import ANSWERABLE, load_locomo
from memalpha.types import Task

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser, write_json

METHODS: tuple[Route, ...] = ("dense", "bm25", "flat", "soft")


def measure(tasks: Sequence[Task], embedders: Sequence[str]) -> dict[str, Any]:
    """Return `{"retrieval": [row, ...]}`, a row per method and embedder."""
    rows: list[dict[str, Any]] = []
    for number, embedder in enumerate(map(load_embedder, embedders)):
        ranks: dict[Route, list[EvidenceRanks]] = {method: [] for method in METHODS if method != "bm25" or number == 0}
        for task in tasks:
            with MemoryStore.open(":memory:", embedder=embedder) as store:
                store.insert_many(turn_entries(task))
                for method, collected in ranks.items():
                    search = search_function(store, method)
                    collected += rank_evidence(evidence_questions(task), search, lambda entry: entry.turn)
        for method, collected in ranks.items():
            name = "none" if method == "bm25" else embedder.name
            rows.append({"method": method, "embedder": name, **summarize_ranks(collected, ANSWERABLE)})
    return {"retrieval": rows}


def turn_entries(task: Task) -> list[dict[str, Any]]:
    """Return a conversation's turns as entries for `MemoryStore.insert_many`."""
    return [
        {
            "category": "episodic",
            "content": f"{format_date(date.fromisoformat(str(chunk.timestamp)[:10]))} {turn.speaker}: {turn.text}",
            "timestamp": chunk.timestamp,
            "source": task.id,
            "chunk": chunk.index,
            "turn": turn.id,
        }
        for chunk in task.chunks
        for turn in chunk.turns
    ]


def evidence_questions(task: Task) -> list[EvidenceQuestion]:
    """Return a conversation's answerable questions with usable evidence."""
    return [
        EvidenceQuestion(question.question, question.category, question.evidence)
        for question in task.questions
        if question.evidence and question.category in ANSWERABLE
    ]


def main() -> None:
    """Measure and print the table."""
    parser = make_parser(__doc__, out=Path("runs/locomo-search"))
    parser.add_argument("data")
    parser.add_argument("--embedders", nargs="+", default=["static"])
    options = parser.parse_args()
    result = measure(load_locomo(options.data), options.embedders)
    write_json(options.out / "locomo-search.json", result)
    print(format_search(result))


if __name__ == "__main__":
    main()
