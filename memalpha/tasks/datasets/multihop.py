"""HotpotQA (Yang et al., EMNLP 2018) and MuSiQue (Trivedi et al., TACL 2022): multi-hop questions.

Some questions (20) share one pool of all their paragraphs, each paragraph once, shuffled under a seed: a task. Evidence
points at turns: a sentence of HotpotQA, a paragraph of MuSiQue, with the paragraph's title as its speaker. Paragraphs
are told apart by title and text, for two of them may share a title. A paragraph stays in one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from memalpha.errors import DataError
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.sources.files import (
    CHUNK_TOKENS,
    build_task,
    find_file,
    read_json,
    require_field,
    require_items,
    require_strings,
)
from memalpha.tasks.sources.streaming import iter_json_lines
from memalpha.types import Chunk, Question, SpeakerTurn, Task

_SMALL = "b144c46df14cabe5f5822d8caded4bec5f709461"
DATA = (
    DataSet(
        name="hotpotqa",
        about="questions whose answer needs two paragraphs, 20 of them over one pool",
        source="github:OSU-NLP-Group/HippoRAG",
        licence="CC BY-SA 4.0 (share alike)",
        counts="100 questions (78 bridge, 22 comparison), 994 paragraphs: 5 pools; any official file works",
        metric="f1",
        files=(
            File(
                "data/hotpotqa_train.json", "6c0e2689d03c94b3bb4d5f94ed806ea4f4eb4f46c12132f8e91df774ad5c5a22", 810_836
            ),
        ),
        revision=_SMALL,
        faults=("one question has four paragraphs instead of ten", "nine answers are yes or no"),
        expected={"": {"tasks": 5, "questions": 100}},
    ),
    DataSet(
        name="musique",
        about="questions of two to four hops, 20 of them over one pool of paragraphs",
        source="github:OSU-NLP-Group/HippoRAG",
        licence="CC BY 4.0",
        counts="100 questions (2 hops 68, 3 hops 27, 4 hops 5), 1,890 paragraphs: 5 pools; any official file works",
        metric="f1",
        files=(
            File(
                "data/musique_train.json", "bca674746844637f5c68408a96b67bc0542d98e7c53715f3acafe144bd5e4ff4", 1_179_088
            ),
        ),
        revision=_SMALL,
        faults=("in 37 questions two paragraphs share a title",),
        expected={"": {"tasks": 5, "questions": 100}},
    ),
)


class _HopQuestion(NamedTuple):
    """Hold a parsed question, its paragraphs (title, texts of the turns) and evidence (paragraph, text)."""

    id: str
    text: str
    answers: tuple[str, ...]
    category: str
    paragraphs: list[tuple[str, tuple[str, ...]]]
    evidence: list[tuple[int, int]]
    missing_evidence: list[str]


def load_hotpotqa(
    path: Path,
    variant: str | None = None,
    limit: int | None = None,
    *,
    questions: int = 20,
    chunk: int = CHUNK_TOKENS,
    seed: int = 0,
) -> list[Task]:
    """Load pools of HotpotQA's questions and paragraphs.

    Args:
        path: Official file, or its folder.
        variant: Not used, the set has no variants.
        limit: Return the first `limit` pools only.
        questions: Questions of a pool.
        chunk: Longest chunk in tokens (characters / 4).
        seed: Seed that shuffles the paragraphs.

    Raises:
        DataError: The file does not fit; the message names file, question and field.
    """
    file = find_file(path, DATA[0].files[0].path)
    items = require_items(read_json(file), "questions", str(file))
    return _pools("hotpotqa", file, items, _hotpotqa, limit, questions, chunk, seed)


def load_musique(
    path: Path,
    variant: str | None = None,
    limit: int | None = None,
    *,
    questions: int = 20,
    chunk: int = CHUNK_TOKENS,
    seed: int = 0,
) -> list[Task]:
    """Load pools of MuSiQue's questions and paragraphs.

    Args:
        path: JSON list or official JSON Lines (`.jsonl`), or its folder.
        variant: Not used, the set has no variants.
        limit: Return the first `limit` pools only.
        questions: Questions of a pool.
        chunk: Longest chunk in tokens (characters / 4).
        seed: Seed that shuffles the paragraphs.

    Raises:
        DataError: The file does not fit; the message names file, question and field.
    """
    file = find_file(path, DATA[1].files[0].path)
    lines = [item for _, item in iter_json_lines(file)] if file.suffix == ".jsonl" else read_json(file)
    items = require_items(lines, "questions", str(file))
    return _pools("musique", file, items, _musique, limit, questions, chunk, seed)


def _pools(
    name: str,
    file: Path,
    items: Sequence[Any],
    parse: Callable[[Any, str], _HopQuestion],
    limit: int | None,
    questions: int,
    chunk: int,
    seed: int,
) -> list[Task]:
    if questions < 1 or chunk < 1:
        raise DataError(f"{name}: questions={questions} and chunk={chunk}: each must be at least 1")
    starts = range(0, len(items), questions)[:limit]
    batches = (
        [
            parse(item, f"{file}: question {number}")
            for number, item in enumerate(items[start : start + questions], start)
        ]
        for start in starts
    )
    return [_pool(str(file), f"{name}-{number}", batch, chunk, seed) for number, batch in enumerate(batches)]


def _pool(location: str, id: str, batch: Sequence[_HopQuestion], chunk: int, seed: int) -> Task:
    numbers: dict[tuple[str, tuple[str, ...]], int] = {}
    for hop_question in batch:
        for paragraph in hop_question.paragraphs:
            numbers.setdefault(paragraph, len(numbers))
    order = list(numbers)
    Random(f"{id}|{seed}").shuffle(order)
    return build_task(
        location,
        id=id,
        chunks=tuple(_chunks(order, numbers, chunk)),
        questions=tuple(
            Question(
                id=hop_question.id,
                question=hop_question.text,
                answers=hop_question.answers,
                category=hop_question.category,
                evidence=tuple(
                    _turn(numbers[hop_question.paragraphs[paragraph_index]], text_index)
                    for paragraph_index, text_index in hop_question.evidence
                ),
                meta={
                    "metric": "f1",
                    **({"unknown_evidence": hop_question.missing_evidence} if hop_question.missing_evidence else {}),
                },
            )
            for hop_question in batch
        ),
        meta={"paragraphs": len(order), "seed": seed},
    )


def _chunks(
    order: Sequence[tuple[str, tuple[str, ...]]], numbers: Mapping[tuple[str, tuple[str, ...]], int], tokens: int
) -> Iterator[Chunk]:
    chunk_turns: list[SpeakerTurn] = []
    size = 0
    for paragraph in order:
        title, texts = paragraph
        turns = [
            SpeakerTurn(speaker=title, text=text, id=_turn(numbers[paragraph], text_index))
            for text_index, text in enumerate(texts)
            if text
        ]
        length = sum(len(turn.speaker) + len(turn.text) + 3 for turn in turns)
        if chunk_turns and size + length > 4 * tokens:
            yield Chunk(turns=tuple(chunk_turns))
            chunk_turns, size = [], 0
        chunk_turns += turns
        size += length
    if chunk_turns:
        yield Chunk(turns=tuple(chunk_turns))


def _turn(paragraph: int, text_index: int) -> str:
    return f"p{paragraph}:{text_index}"


def _hotpotqa(item: Any, location: str) -> _HopQuestion:
    paragraphs: list[tuple[str, tuple[str, ...]]] = []
    for pair in require_items(require_field(item, "context", list, location), "paragraphs", f"{location}: context"):
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], list)):
            raise DataError(f"{location}: context: a paragraph is [title, list of sentences]")
        paragraphs.append((pair[0], tuple(str(sentence).strip() for sentence in pair[1])))
    titles = {title: number for number, (title, _) in enumerate(paragraphs)}
    evidence: list[tuple[int, int]] = []
    missing_evidence: list[str] = []
    for fact in require_field(item, "supporting_facts", list, location):
        if not (isinstance(fact, list) and len(fact) == 2 and isinstance(fact[0], str) and isinstance(fact[1], int)):
            raise DataError(f"{location}: supporting_facts: each is [title, number of the sentence]")
        paragraph_index = titles.get(fact[0])
        if (
            paragraph_index is None
            or not 0 <= fact[1] < len(paragraphs[paragraph_index][1])
            or not paragraphs[paragraph_index][1][fact[1]]
        ):
            missing_evidence.append(f"{fact[0]}:{fact[1]}")
        elif (paragraph_index, fact[1]) not in evidence:
            evidence.append((paragraph_index, fact[1]))
    return _HopQuestion(
        id=require_field(item, "_id", str, location),
        text=require_field(item, "question", str, location),
        answers=(require_field(item, "answer", str, location),),
        category=require_field(item, "type", str, location),
        paragraphs=paragraphs,
        evidence=evidence,
        missing_evidence=missing_evidence,
    )


def _musique(item: Any, location: str) -> _HopQuestion:
    paragraphs: list[tuple[str, tuple[str, ...]]] = []
    evidence: list[tuple[int, int]] = []
    for paragraph in require_items(
        require_field(item, "paragraphs", list, location), "paragraphs", f"{location}: paragraphs"
    ):
        text = require_field(paragraph, "paragraph_text", str, location).strip()
        if require_field(paragraph, "is_supporting", bool, location):
            if not text:
                raise DataError(f"{location}: paragraphs[{len(paragraphs)}]: it supports the answer and is empty")
            evidence.append((len(paragraphs), 0))
        paragraphs.append((require_field(paragraph, "title", str, location), (text,)))
    id = require_field(item, "id", str, location)
    answers: tuple[str, ...] = ()
    if item.get("answerable", True):  # MuSiQue-Full also has questions whose paragraphs do not answer them
        aliases = require_strings(item.get("answer_aliases") or [], f"{location}: answer_aliases")
        answers = tuple(dict.fromkeys([require_field(item, "answer", str, location), *aliases]))
    return _HopQuestion(
        id=id,
        text=require_field(item, "question", str, location),
        answers=tuple(answer for answer in answers if answer.strip()),
        category=id.partition("hop")[0] + "hop" if "hop" in id else "multi-hop",
        paragraphs=paragraphs,
        evidence=evidence if answers else [],
        missing_evidence=[],
    )
