"""LoCoMo without a language model: how much of the evidence does search find, and what does a mere copier score?

Units are single turns, candidates those of the question's own conversation, questions those of categories 1 to 4 with
usable evidence. recall@k is the mean over questions of the share of gold evidence turns among the first k units, mrr
that of 1 / rank of the first gold turn (0 beyond rank 100), tokens@10 the length of ten units (characters / 4), as a
reader would get them.

Every unit is `<date> <speaker>: <text> [caption]`. The methods, each exactly one route of `store.retrieval.Corpus`:

| method    | vectors  | words (BM25)                     | score                                        |
|-----------|----------|----------------------------------|----------------------------------------------|
| dense     | the unit | -                                | inner product                                |
| bm25      | -        | the unit                         | BM25                                         |
| flat      | the unit | the unit                         | sum of both, min-max scaled                  |
| two-layer | the unit | date, previous, this, next turn  | the same + the session's prior (route soft)  |
| hard      | the unit | date, previous, this, next turn  | flat, within the round(sqrt(sessions)) best  |
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from memalpha.config import EvalConfig
from memalpha.errors import DataError
from memalpha.qa.evaluator import result_folder
from memalpha.qa.metrics import locomo_f1
from memalpha.store.embedding import load_embedder
from memalpha.store.lexical import STOP_WORDS, words
from memalpha.store.retrieval import Corpus, Document, Route
from memalpha.tasks.locomo import ANSWERABLE, load_locomo
from memalpha.types import Chunk, Question, SpeakerTurn, Task

METHODS: dict[str, tuple[str, Route]] = {
    "dense": ("own", "dense"),
    "bm25": ("own", "bm25"),
    "flat": ("own", "flat"),
    "two-layer": ("neighbours", "soft"),
    "hard": ("neighbours", "hard"),
}
KS = (5, 10, 20)
DEPTH = 100


def run_locomo(config: EvalConfig) -> dict[str, Any]:
    """The benchmark: `{"retrieval": [row, ...], "qa": [row, ...]}`; a progress bar goes to stderr.

    With `config.out` the result is also written to its `eval/locomo.json`. Raises `DataError` without `config.data`.
    """
    if config.data is None:
        raise DataError("locomo: give the path of its file, data=PATH (locomo10.json; see data/README.md)")
    folder = None if config.out is None else result_folder(config.out)
    tasks = load_locomo(config.data, config.limit)
    embedders = [load_embedder(name) for name in config.embedders]
    result: dict[str, Any] = {"retrieval": [], "qa": []}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for number, embedder in enumerate(embedders):
            bar = progress.add_task(f"locomo, {embedder.name}", total=len(tasks))
            ranks: dict[str, list[_Ranks]] = {method: [] for method in METHODS if method != "bm25" or number == 0}
            answers: list[tuple[str, float]] = []
            for task in tasks:
                corpora = {text: Corpus(embedder, documents(task, text)) for text in ("own", "neighbours")}
                for method, collected in ranks.items():
                    text, route = METHODS[method]
                    collected += _ranks(task, corpora[text], route)
                answers += _floor(task, corpora["neighbours"])
                progress.advance(bar)
            for method, collected in ranks.items():
                name = "none" if method == "bm25" else embedder.name
                result["retrieval"].append({"method": method, "embedder": name, **_summary(collected)})
            result["qa"].append(
                {
                    "reader": "extractive floor (copies from the best turn; no language model)",
                    "metric": "locomo-f1",
                    "score": round(float(np.mean([score for _, score in answers])), 4),
                    "method": "two-layer",
                    "embedder": embedder.name,
                    "questions": len(answers),
                    "by_type": {
                        kind: round(float(np.mean(scores)), 4) for kind, scores in sorted(_by_type(answers).items())
                    },
                }
            )
    if folder is not None:
        (folder / "locomo.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def format_locomo(result: dict[str, Any]) -> str:
    """The result of `run_locomo` as a text table."""
    lines = ["method     embedder  recall@5  recall@10  recall@20    mrr  tokens@10  questions"]
    for row in result["retrieval"]:
        lines.append(
            f"{row['method']:<10} {row['embedder']:<9} {row['recall@5']:>7.3f} {row['recall@10']:>10.3f} "
            f"{row['recall@20']:>10.3f} {row['mrr']:>6.3f} {row['tokens@10']:>10.0f} {row['questions']:>10}"
        )
    for row in result["qa"]:
        kinds = ", ".join(f"{kind} {score:.3f}" for kind, score in row["by_type"].items())
        lines.append(f"{row['reader']}, {row['embedder']}: {row['metric']} {row['score']:.3f} ({kinds})")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------------------- search


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Where one question's gold turns were found: their 1-based ranks, and the length of the first ten units."""

    kind: str
    gold: tuple[float, ...]
    tokens: float


def documents(task: Task, text: str = "neighbours") -> list[Document]:
    """A conversation's turns as documents in their sessions; `text` "own" or "neighbours" says what BM25 sees."""
    made: list[Document] = []
    for chunk in task.chunks:
        lines = [f"{turn.speaker}: {turn.text}" for turn in chunk.turns]
        day = _spoken(_day(chunk))
        for index, turn in enumerate(chunk.turns):
            own = f"{day} {lines[index]}"
            around = None if text == "own" else "\n".join([day, *lines[max(0, index - 1) : index + 2]])
            made.append(Document(_id(turn), own, group=str(chunk.index), order=len(made), lexical_text=around))
    return made


def measure(tasks: Sequence[Task], corpora: Sequence[Corpus], route: Route) -> dict[str, Any]:
    """One row of the benchmark for a corpus a task: recall@k, mrr, tokens@10, questions, by_type."""
    return _summary([item for task, corpus in zip(tasks, corpora, strict=True) for item in _ranks(task, corpus, route)])


def _ranks(task: Task, corpus: Corpus, route: Route) -> list[_Ranks]:
    """Ranks of the gold turns of each question with usable evidence; a turn beyond rank 100 has an infinite one."""
    asked = [question for question in task.questions if question.evidence and question.category in ANSWERABLE]
    lengths = {document.id: len(document.text) / 4 for document in documents(task, "own")}
    found = []
    results = corpus.search_many([question.question for question in asked], DEPTH, route=route)
    for question, hits in zip(asked, results, strict=True):
        place = {hit.id: rank for rank, hit in enumerate(hits, start=1)}
        gold = tuple(place.get(turn, math.inf) for turn in question.evidence)
        found.append(_Ranks(str(question.category), gold, sum(lengths[hit.id] for hit in hits[:10])))
    return found


def _summary(ranks: Sequence[_Ranks]) -> dict[str, Any]:
    kinds: dict[str, list[_Ranks]] = defaultdict(list)
    for item in ranks:
        kinds[item.kind].append(item)
    return {
        **_figures(ranks),
        "tokens@10": round(float(np.mean([item.tokens for item in ranks])), 1),
        "by_type": {kind: _figures(kinds[kind]) for kind in ANSWERABLE if kind in kinds},
    }


def _figures(ranks: Sequence[_Ranks]) -> dict[str, Any]:
    figures: dict[str, Any] = {"questions": len(ranks)}
    for k in KS:
        figures[f"recall@{k}"] = round(float(np.mean([np.mean(np.array(item.gold) <= k) for item in ranks])), 4)
    return {**figures, "mrr": round(float(np.mean([1.0 / min(item.gold) for item in ranks])), 4)}


def _by_type(scores: Sequence[tuple[str, float]]) -> dict[str, list[float]]:
    kinds: dict[str, list[float]] = defaultdict(list)
    for kind, score in scores:
        kinds[kind].append(score)
    return kinds


def _id(turn: SpeakerTurn) -> str:
    if turn.id is None:
        raise DataError("every turn of a LoCoMo conversation has an id")
    return turn.id


def _day(chunk: Chunk) -> date:
    if chunk.timestamp is None:
        raise DataError(f"session {chunk.index} has no date")
    return date.fromisoformat(chunk.timestamp[:10])


def _spoken(day: date) -> str:
    return f"{day.day} {day:%B %Y}"


# ---------------------------------------------------------------------------------------------------- extractive floor


def _floor(task: Task, corpus: Corpus) -> list[tuple[str, float]]:
    """(category, official F1) of the floor reader's answer to each answerable question, from the best turn alone."""
    turns = {_id(turn): (turn, _day(chunk)) for chunk in task.chunks for turn in chunk.turns}
    asked = [question for question in task.questions if question.category in ANSWERABLE]
    results = corpus.search_many([question.question for question in asked], 1)
    return [
        (str(question.category), locomo_f1(_copy(question, *turns[hits[0].id]), question.answers[0], question.category))
        for question, hits in zip(asked, results, strict=True)
        if question.category is not None
    ]


_SHIFTS = (
    (re.compile(r"\b(?:yesterday|last night)\b", re.I), timedelta(days=-1)),
    (re.compile(r"\btomorrow\b", re.I), timedelta(days=1)),
    (re.compile(r"\blast week\b", re.I), timedelta(weeks=-1)),
    (re.compile(r"\bnext week\b", re.I), timedelta(weeks=1)),
)


def _copy(question: Question, turn: SpeakerTurn, day: date) -> str:
    """What a mere copier says: a date for "when", else the longest run of new words in the sentence nearest to it."""
    if question.question.lower().startswith("when"):
        if re.search(r"\blast year\b", turn.text, re.I):
            return str(day.year - 1)
        return _spoken(day + next((shift for cue, shift in _SHIFTS if cue.search(turn.text)), timedelta()))
    asked = set(words(question.question))
    sentences = [part for part in re.split(r"(?<=[.!?])\s+|[\[\]]", turn.text) if part.strip()] or [turn.text]
    best = max(sentences, key=lambda sentence: len(asked & set(words(sentence))))
    spans: list[list[str]] = [[]]
    for token in re.findall(r"[\w'\u2019-]+", best):
        new = words(token)
        if token.lower() in STOP_WORDS or asked & set(new):
            if spans[-1]:
                spans.append([])
        else:
            spans[-1].append(token)
    return " ".join(max(spans, key=len)) or best
