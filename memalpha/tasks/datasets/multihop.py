"""HotpotQA (Yang et al., EMNLP 2018) and MuSiQue (Trivedi et al., TACL 2022): questions over several paragraphs.

Some questions (20) share one pool of all their paragraphs, each paragraph once, shuffled under a seed: a task. A turn
is what evidence points at, with the paragraph's title as its speaker: a sentence of HotpotQA, a paragraph of MuSiQue.
Paragraphs are told apart by title and text, for two of them may share a title. A paragraph stays in one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from memalpha.errors import DataError
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.sources.files import CHUNK_TOKENS, field, file_in, filled, read_json, strings, task
from memalpha.tasks.sources.streaming import json_lines
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


class _Asked(NamedTuple):
    """A question as read: its paragraphs (title, the texts that are turns) and evidence as (paragraph, text)."""

    id: str
    text: str
    answers: tuple[str, ...]
    category: str
    paragraphs: list[tuple[str, tuple[str, ...]]]
    evidence: list[tuple[int, int]]
    lost: list[str]


def load_hotpotqa(
    path: Path,
    variant: str | None = None,
    limit: int | None = None,
    *,
    questions: int = 20,
    chunk: int = CHUNK_TOKENS,
    seed: int = 0,
) -> list[Task]:
    """Pools of `questions` each, in chunks of at most `chunk` tokens; `seed` shuffles the paragraphs.

    Raises `DataError` naming file, question and field.
    """
    file = file_in(path, DATA[0].files[0].path)
    asked = filled(read_json(file), "questions", str(file))
    return _pools("hotpotqa", file, asked, _hotpotqa, limit, questions, chunk, seed)


def load_musique(
    path: Path,
    variant: str | None = None,
    limit: int | None = None,
    *,
    questions: int = 20,
    chunk: int = CHUNK_TOKENS,
    seed: int = 0,
) -> list[Task]:
    """The same of MuSiQue: a JSON list, or the official JSON Lines (a file that ends in .jsonl)."""
    file = file_in(path, DATA[1].files[0].path)
    lines = [item for _, item in json_lines(file)] if file.suffix == ".jsonl" else read_json(file)
    asked = filled(lines, "questions", str(file))
    return _pools("musique", file, asked, _musique, limit, questions, chunk, seed)


def _pools(
    name: str,
    file: Path,
    items: Sequence[Any],
    read: Callable[[Any, str], _Asked],
    limit: int | None,
    questions: int,
    chunk: int,
    seed: int,
) -> list[Task]:
    if questions < 1 or chunk < 1:
        raise DataError(f"{name}: questions={questions} and chunk={chunk}: each must be at least 1")
    starts = range(0, len(items), questions)[:limit]
    batches = (
        [read(item, f"{file}: question {number}") for number, item in enumerate(items[at : at + questions], at)]
        for at in starts
    )
    return [_pool(str(file), f"{name}-{number}", some, chunk, seed) for number, some in enumerate(batches)]


def _pool(where: str, id: str, some: Sequence[_Asked], chunk: int, seed: int) -> Task:
    numbers: dict[tuple[str, tuple[str, ...]], int] = {}
    for asked in some:
        for paragraph in asked.paragraphs:
            numbers.setdefault(paragraph, len(numbers))
    order = list(numbers)
    Random(f"{id}|{seed}").shuffle(order)
    return task(
        where,
        id=id,
        chunks=tuple(_chunks(order, numbers, chunk)),
        questions=tuple(
            Question(
                id=asked.id,
                question=asked.text,
                answers=asked.answers,
                category=asked.category,
                evidence=tuple(_turn(numbers[asked.paragraphs[at]], place) for at, place in asked.evidence),
                meta={"metric": "f1", **({"unknown_evidence": asked.lost} if asked.lost else {})},
            )
            for asked in some
        ),
        meta={"paragraphs": len(order), "seed": seed},
    )


def _chunks(
    order: Sequence[tuple[str, tuple[str, ...]]], numbers: Mapping[tuple[str, tuple[str, ...]], int], tokens: int
) -> Iterator[Chunk]:
    held: list[SpeakerTurn] = []
    size = 0
    for paragraph in order:
        title, texts = paragraph
        turns = [
            SpeakerTurn(speaker=title, text=text, id=_turn(numbers[paragraph], place))
            for place, text in enumerate(texts)
            if text
        ]
        length = sum(len(turn.speaker) + len(turn.text) + 3 for turn in turns)
        if held and size + length > 4 * tokens:
            yield Chunk(turns=tuple(held))
            held, size = [], 0
        held += turns
        size += length
    if held:
        yield Chunk(turns=tuple(held))


def _turn(paragraph: int, place: int) -> str:
    return f"p{paragraph}:{place}"


def _hotpotqa(item: Any, where: str) -> _Asked:
    paragraphs: list[tuple[str, tuple[str, ...]]] = []
    for part in filled(field(item, "context", list, where), "paragraphs", f"{where}: context"):
        if not (isinstance(part, list) and len(part) == 2 and isinstance(part[0], str) and isinstance(part[1], list)):
            raise DataError(f"{where}: context: a paragraph is [title, list of sentences]")
        paragraphs.append((part[0], tuple(str(sentence).strip() for sentence in part[1])))
    titles = {title: number for number, (title, _) in enumerate(paragraphs)}
    evidence: list[tuple[int, int]] = []
    lost: list[str] = []
    for fact in field(item, "supporting_facts", list, where):
        if not (isinstance(fact, list) and len(fact) == 2 and isinstance(fact[0], str) and isinstance(fact[1], int)):
            raise DataError(f"{where}: supporting_facts: each is [title, number of the sentence]")
        at = titles.get(fact[0])
        if at is None or not 0 <= fact[1] < len(paragraphs[at][1]) or not paragraphs[at][1][fact[1]]:
            lost.append(f"{fact[0]}:{fact[1]}")
        elif (at, fact[1]) not in evidence:
            evidence.append((at, fact[1]))
    return _Asked(
        id=field(item, "_id", str, where),
        text=field(item, "question", str, where),
        answers=(field(item, "answer", str, where),),
        category=field(item, "type", str, where),
        paragraphs=paragraphs,
        evidence=evidence,
        lost=lost,
    )


def _musique(item: Any, where: str) -> _Asked:
    paragraphs: list[tuple[str, tuple[str, ...]]] = []
    evidence: list[tuple[int, int]] = []
    for part in filled(field(item, "paragraphs", list, where), "paragraphs", f"{where}: paragraphs"):
        text = field(part, "paragraph_text", str, where).strip()
        if field(part, "is_supporting", bool, where):
            if not text:
                raise DataError(f"{where}: paragraphs[{len(paragraphs)}]: it supports the answer and is empty")
            evidence.append((len(paragraphs), 0))
        paragraphs.append((field(part, "title", str, where), (text,)))
    id = field(item, "id", str, where)
    answers: tuple[str, ...] = ()
    if item.get("answerable", True):  # MuSiQue-Full also has questions whose paragraphs do not answer them
        aliases = strings(item.get("answer_aliases") or [], f"{where}: answer_aliases")
        answers = tuple(dict.fromkeys([field(item, "answer", str, where), *aliases]))
    return _Asked(
        id=id,
        text=field(item, "question", str, where),
        answers=tuple(answer for answer in answers if answer.strip()),
        category=id.partition("hop")[0] + "hop" if "hop" in id else "multi-hop",
        paragraphs=paragraphs,
        evidence=evidence if answers else [],
        lost=[],
    )
