"""Benchmark of search on any tasks whose questions name their evidence, without a reader or a language model.

Each conversation is a `MemoryStore` of its turns, stored as the system `rag` stores them. A question is searched for
among the chunks that it may know (`asked_after_chunk`). Its evidence are turns; a text that was said twice is stored
once and stands for both. The methods are the routes of `MemoryStore.search`, its default with the reranker "spans", and
BM25 of the package bm25s (Lu 2024, arXiv 2407.03618) where it is installed, with its English stop words, Snowball's
English stems, and bigrams of Chinese, Japanese and Korean characters. The route `dense` is the plain inner product of
question and turn. A method by words alone returns no entry that shares none.

| metric    | meaning                                                                                  |
|-----------|------------------------------------------------------------------------------------------|
| recall@k  | mean over questions of the share of evidence units among the first k hits                |
| mrr       | mean of 1 / rank of the first evidence unit (0 beyond rank 100)                          |
| tokens@10 | length of the first ten hits (characters / 4)                                            |
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memalpha.arguments import counted
from memalpha.config import EvalConfig
from memalpha.errors import DataError
from memalpha.qa.progress import show_progress
from memalpha.qa.report import align_columns, format_interval, make_result_folder
from memalpha.qa.scoring.stats import ScoredAnswer, estimate, group_values
from memalpha.qa.systems import raw_fields, turn_passages
from memalpha.store.embedding import load_embedder
from memalpha.store.search.ranking import ROUTES
from memalpha.store.store import MemoryStore
from memalpha.tasks.load import load_evaluation_tasks
from memalpha.text_files import write_json
from memalpha.types import MemoryEntry, Task

KS = (1, 5, 10, 20)
DEPTH = 100
Search = Callable[[Sequence[str], int], Sequence[Sequence[MemoryEntry]]]


class EvidenceQuestion(NamedTuple):
    """Question, its kind, and its evidence units (at least one)."""

    text: str
    kind: str
    gold: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvidenceRanks:
    """Ranks of one question's evidence units.

    Attributes:
        kind: Kind of the question.
        gold: 1-based ranks; infinite beyond `DEPTH`.
        tokens: Length of the first ten hits.
    """

    kind: str
    gold: tuple[float, ...]
    tokens: float

    def recall(self, k: int) -> float:
        """Return the share of the evidence units among the first k hits."""
        return float(np.mean(np.array(self.gold) <= k))


def rank_evidence(
    questions: Sequence[EvidenceQuestion], search: Search, unit: Callable[[MemoryEntry], str | None]
) -> list[EvidenceRanks]:
    """Return the ranks of each question's evidence units.

    Args:
        questions: Questions with their evidence.
        search: Returns the k best entries for several queries.
        unit: Returns the unit that an entry is, or is a part of; the unit's first entry counts.
    """
    ranks = []
    for question, hits in zip(questions, search([question.text for question in questions], DEPTH), strict=True):
        first_rank: dict[str | None, int] = {}
        for number, entry in enumerate(hits, start=1):
            first_rank.setdefault(unit(entry), number)
        gold = tuple(first_rank.get(name, math.inf) for name in question.gold)
        ranks.append(EvidenceRanks(question.kind, gold, sum(len(entry.content) / 4 for entry in hits[:10])))
    return ranks


def summarize_ranks(ranks: Sequence[EvidenceRanks], kinds: Sequence[str] = ()) -> dict[str, Any]:
    """Return the metrics of all questions, and under `by_type` those of each kind in `kinds`."""
    by_kind = group_values((item.kind, item) for item in ranks)
    return {
        **recall_metrics(ranks),
        "tokens@10": round(float(np.mean([item.tokens for item in ranks])), 1),
        "by_type": {kind: recall_metrics(by_kind[kind]) for kind in kinds if kind in by_kind},
    }


def recall_metrics(ranks: Sequence[EvidenceRanks]) -> dict[str, Any]:
    """Return questions, recall at each of `KS`, and mrr."""
    values: dict[str, Any] = {"questions": len(ranks)}
    for k in KS:
        values[f"recall@{k}"] = round(float(np.mean([item.recall(k) for item in ranks])), 4)
    return {**values, "mrr": round(float(np.mean([1.0 / min(item.gold) for item in ranks])), 4)}


BM25S = "bm25s"
"""Method: BM25 of the package bm25s."""
SPANS = "spans"
"""Method: the default route, then the reranker of this name."""
WITHOUT_EMBEDDER = ("bm25", BM25S)
_WITHOUT_SPACES = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]+")


def run_search(config: EvalConfig) -> dict[str, Any]:
    """Run the benchmark on `config.data`: a task file, or a folder of task files, each a kind of text of its own.

    With `config.out` the result is also written to its `eval/search.json`.

    Args:
        config: Task files, embedders, number of tasks of each, output.

    Returns:
        `{"retrieval": [row, ...], "questions_without_evidence": number}`. A row is a set and a method; `interval` is
        the 95 % interval of its recall@10 over conversations, None for fewer than ten.

    Raises:
        DataError: `config.data` is missing, or no question names evidence, or one names a turn that its task lacks.
    """
    if config.data is None:
        raise DataError("search: name a task file whose questions have evidence, data=PATH (see data/README.md)")
    folder = None if config.out is None else make_result_folder(config.out)
    files = sorted(Path(config.data).glob("*.jsonl")) or [Path(config.data)]
    sets = {file.stem: load_evaluation_tasks(str(file), config.limit) for file in files}
    for file, tasks in zip(files, sets.values(), strict=True):
        if not any(question.evidence for task in tasks for question in task.questions):
            raise DataError(f"{file}: no question names its evidence (ids of turns), so recall cannot be measured")
    rows: list[dict[str, Any]] = []
    for (name, tasks), (number, embedder) in product(sets.items(), enumerate(config.embedders)):
        methods = [*(route for route in ROUTES if number == 0 or route not in WITHOUT_EMBEDDER), SPANS]
        methods += [BM25S] if number == 0 and importlib.util.find_spec("bm25s") else []
        ranks: dict[str, list[tuple[str, EvidenceRanks]]] = {method: [] for method in methods}
        with show_progress("conversations") as progress:
            for done, task in enumerate(tasks, start=1):
                for method, task_ranks in measure_task(task, embedder, methods).items():
                    ranks[method] += [(task.id, item) for item in task_ranks]
                progress(f"search, {name}, {embedder}", done, len(tasks))
        for method, collected in ranks.items():
            row: dict[str, Any] = {"set": name, "method": method}
            row["embedder"] = "none" if method in WITHOUT_EMBEDDER else embedder
            row["conversations"] = len({task for task, _ in collected})
            kinds = sorted({item.kind for _, item in collected})
            interval = estimate([ScoredAnswer(task, item.kind, item.recall(10)) for task, item in collected]).interval
            rows.append(row | {"interval": interval} | summarize_ranks([item for _, item in collected], kinds))
    questions = [question for tasks in sets.values() for task in tasks for question in task.questions]
    without = sum(not question.evidence for question in questions)
    result = {"retrieval": rows, "questions_without_evidence": without}
    if folder is not None:
        write_json(folder / "search.json", result)
    return result


def format_search(result: Mapping[str, Any]) -> str:
    """Format the result of `run_search`: for each set a table of all questions, and recall@10 by type of question."""
    lines: list[str] = []
    for name in dict.fromkeys(row["set"] for row in result["retrieval"]):
        rows = [row for row in result["retrieval"] if row["set"] == name]
        table = [["method", "embedder", "recall@1", "recall@10", "95 % interval", "mrr", "tokens@10"]]
        for row in rows:
            recall = [f"{row['recall@1']:.3f}", f"{row['recall@10']:.3f}", format_interval(row["interval"])]
            table.append([row["method"], row["embedder"], *recall, f"{row['mrr']:.3f}", f"{row['tokens@10']:.0f}"])
        about = counted(rows[0]["conversations"], "conversation")
        lines += ["", f"{name}: {counted(rows[0]['questions'], 'question')} about {about}"]
        lines += align_columns(table, left=2)
        kinds = rows[0]["by_type"]
        if len(kinds) > 1:
            table = [["recall@10", "", *(f"{kind} ({figures['questions']})" for kind, figures in kinds.items())]]
            for row in rows:
                recall = [f"{row['by_type'][kind]['recall@10']:.3f}" for kind in kinds]
                table.append([row["method"], row["embedder"], *recall])
            lines += ["", *align_columns(table, left=2)]
    if without := result["questions_without_evidence"]:
        lines += ["", f"without evidence, and left out: {counted(without, 'question')}"]
    return "\n".join(lines[1:])


def measure_task(task: Task, embedder: str, methods: Sequence[str]) -> dict[str, list[EvidenceRanks]]:
    """Return the ranks of a task's questions by method.

    Args:
        task: Task; questions without evidence are left out.
        embedder: Name of the embedder.
        methods: Routes of the store, `SPANS` or `BM25S`.

    Raises:
        DataError: The evidence of a question is the id of no turn with words.
    """
    ranks: dict[str, list[EvidenceRanks]] = {method: [] for method in methods}
    if not any(question.evidence for question in task.questions):
        return ranks
    with MemoryStore.open(":memory:", embedder=load_embedder(embedder)) as store:
        pieces = [(piece, chunk) for chunk in task.chunks for piece in turn_passages(chunk)]
        entries = store.insert_many(raw_fields(piece, chunk) for piece, chunk in pieces)
        entry_ids = {turn: entry.id for (piece, _), entry in zip(pieces, entries, strict=True) for turn in piece.turns}
        distinct = {entry.id: entry for entry in entries}.values()
        by_chunk: dict[int, list[EvidenceQuestion]] = {}  # the last that a question may know
        for question in task.questions:
            if unknown := [turn for turn in question.evidence if turn not in entry_ids]:
                raise DataError(
                    f"task {task.id!r}, question {question.id!r}: its evidence {unknown[0]!r} is the id of no turn "
                    "with words"
                )
            if gold := dict.fromkeys(entry_ids[turn] for turn in question.evidence):
                asked = EvidenceQuestion(question.question, question.category or "all", tuple(gold))
                by_chunk.setdefault(task.asked_after(question), []).append(asked)
        for last, questions in by_chunk.items():

            def search(queries: Sequence[str], k: int, method: Any, last: int = last) -> list[list[MemoryEntry]]:
                how = {"reranker": SPANS} if method == SPANS else {"route": method}
                results = store.search_many(queries, k, where={"chunk": {"$lte": last}}, **how)
                return [[hit.entry for hit in hits if hit.score > 0 or method != "bm25"] for hits in results]

            visible = [entry for entry in distinct if entry.chunk is not None and entry.chunk <= last]
            for method in methods:
                by_method = _bm25s_search(visible) if method == BM25S else partial(search, method=method)
                ranks[method] += rank_evidence(questions, by_method, lambda entry: entry.id)
    return ranks


def _bm25s_search(entries: Sequence[MemoryEntry]) -> Search:
    import bm25s
    from nltk.stem.snowball import SnowballStemmer

    stemmer = SnowballStemmer("english")

    def bigrams(match: re.Match[str]) -> str:
        run = match[0]
        return f" {' '.join(run[at : at + 2] for at in range(max(1, len(run) - 1)))} "

    def tokenize(texts: Sequence[str]) -> Any:
        return bm25s.tokenize(
            [_WITHOUT_SPACES.sub(bigrams, text) for text in texts],
            stopwords="en",
            stemmer=lambda words: [stemmer.stem(word) for word in words],
            show_progress=False,
        )

    tokens = tokenize([entry.content for entry in entries])
    if not any(tokens.ids):  # an index needs a word
        return lambda queries, k: [[] for _ in queries]
    index = bm25s.BM25()
    index.index(tokens, show_progress=False)

    def search(queries: Sequence[str], k: int) -> list[list[MemoryEntry]]:
        numbers, scores = index.retrieve(tokenize(queries), k=min(k, len(entries)), show_progress=False)
        return [
            [entries[number] for number, score in zip(*row, strict=True) if score > 0]
            for row in zip(numbers, scores, strict=True)
        ]

    return search
