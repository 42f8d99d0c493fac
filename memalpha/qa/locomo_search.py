"""Benchmark of search on LoCoMo's turns, without a language model: recall of the evidence by route.

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
"""

from __future__ import annotations

import json
from datetime import date
from typing import Any

from memalpha.agent.copying_reader import format_date
from memalpha.config import EvalConfig
from memalpha.errors import ConfigError, DataError
from memalpha.qa.progress import show_progress
from memalpha.qa.report import make_result_folder
from memalpha.qa.scoring.recall import EvidenceQuestion, EvidenceRanks, rank_evidence, search_function, summarize_ranks
from memalpha.store.embedding import load_embedder
from memalpha.store.search.ranking import Route
from memalpha.store.store import MemoryStore
from memalpha.tasks.datasets.locomo import ANSWERABLE, load_locomo
from memalpha.types import Chunk, SpeakerTurn, Task

METHODS: tuple[Route, ...] = ("dense", "bm25", "flat", "soft")


def run_locomo_search(config: EvalConfig) -> dict[str, Any]:
    """Run the benchmark and return `{"retrieval": [row, ...]}`; progress goes to stderr.

    With `config.out` the result is also written to its `eval/locomo-search.json`.

    Raises:
        ConfigError: `config.workers` is above 1.
        DataError: `config.data` is missing.
    """
    if config.workers > 1:
        raise ConfigError("workers: locomo-search runs in one process: leave it out")
    if config.data is None:
        raise DataError("locomo-search: give the path of its file, data=PATH (locomo10.json; see data/README.md)")
    folder = None if config.out is None else make_result_folder(config.out)
    tasks = load_locomo(config.data, config.limit)
    embedders = [load_embedder(name) for name in config.embedders]
    result: dict[str, Any] = {"retrieval": []}
    with show_progress("conversations") as progress:
        for number, embedder in enumerate(embedders):
            ranks: dict[Route, list[EvidenceRanks]] = {
                method: [] for method in METHODS if method != "bm25" or number == 0
            }
            for done, task in enumerate(tasks, start=1):
                with MemoryStore.open(":memory:", embedder=embedder) as store:
                    store.insert_many(turn_entries(task))
                    for method, collected in ranks.items():
                        collected += rank_evidence(
                            evidence_questions(task), search_function(store, method), lambda entry: entry.turn
                        )
                progress(f"locomo, {embedder.name}", done, len(tasks))
            for method, collected in ranks.items():
                name = "none" if method == "bm25" else embedder.name
                result["retrieval"].append(
                    {"method": method, "embedder": name, **summarize_ranks(collected, ANSWERABLE)}
                )
    if folder is not None:
        (folder / "locomo-search.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


# ------------------------------------------------------------------------------------------------------------- search


def turn_entries(task: Task) -> list[dict[str, Any]]:
    """Return a conversation's turns as entries for `MemoryStore.insert_many`."""
    return [
        {
            "category": "episodic",
            "content": f"{format_date(_chunk_date(chunk))} {turn.speaker}: {turn.text}",
            "timestamp": chunk.timestamp,
            "source": task.id,
            "chunk": chunk.index,
            "turn": _turn_id(turn),
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


def _turn_id(turn: SpeakerTurn) -> str:
    if turn.id is None:
        raise DataError("every turn of a LoCoMo conversation has an id")
    return turn.id


def _chunk_date(chunk: Chunk) -> date:
    if chunk.timestamp is None:
        raise DataError(f"session {chunk.index} has no date")
    return date.fromisoformat(chunk.timestamp[:10])
