"""SQuAD (Rajpurkar et al., EMNLP 2016; 2.0: ACL 2018) and XQuAD (Artetxe et al., ACL 2020).

24 paragraphs in the order of the file are a task, with all questions on them. A paragraph is a turn: its article's
title is the speaker, `<article>:<paragraph>` (both from 0) its id and the evidence of its questions. The right answer
to a question of SQuAD 2.0 that its paragraph does not answer is to abstain.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.sources.files import (
    CHUNK_TOKENS,
    build_task,
    find_file,
    pack_turns,
    read_json,
    require_field,
    require_items,
)
from memalpha.types import Question, SpeakerTurn, Task

LANGUAGES = ("en", "ar", "de", "el", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh")
DATA = (
    DataSet(
        name="squad",
        about="questions on paragraphs of Wikipedia, 24 paragraphs a task",
        source="github:rajpurkar/SQuAD-explorer",
        licence="CC BY-SA 4.0 (share alike)",
        counts="dev 1.1: 48 articles, 2,067 paragraphs, 10,570 questions; dev 2.0: 11,873, half to abstain from",
        metric="f1",
        files=(
            File(
                "dataset/dev-v1.1.json",
                "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9",
                4_854_279,
                ("dev-v1.1",),
            ),
            File(
                "dataset/dev-v2.0.json",
                "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8",
                4_370_528,
                ("dev-v2.0",),
            ),
            File(
                "dataset/train-v1.1.json",
                "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955",
                30_288_272,
                ("train-v1.1",),
            ),
            File("dataset/train-v2.0.json", variants=("train-v2.0",)),
        ),
        variants=("dev-v1.1", "dev-v2.0", "train-v1.1", "train-v2.0"),
        training_variants=("train-v1.1", "train-v2.0"),
        revision="eee5fdbf62f8613a7812b03419e6b29617b74fd1",
        expected={"dev-v1.1": {"turns": 2067, "questions": 10570}, "dev-v2.0": {"turns": 1204, "questions": 11873}},
    ),
    DataSet(
        name="xquad",
        about="a sample of the SQuAD 1.1 dev set, and its translations, 24 paragraphs a task",
        source="github:google-deepmind/xquad",
        licence="CC BY-SA 4.0 (share alike)",
        counts="48 articles, 240 paragraphs, 1,190 questions in each of twelve languages",
        metric="f1",
        files=(
            File("xquad.en.json", "e4c57d1c9143aaa1c5d265ba5987a65f4e69528d2a98f29d6e75019b10344f29", 609_383, ("en",)),
            *(File(f"xquad.{language}.json", variants=(language,)) for language in LANGUAGES[1:]),
        ),
        variants=LANGUAGES,
        revision="7d30520c717524000f0d9d2f9c10a069acd9d285",
        faults=("one gold answer to a question, where the SQuAD dev set has several",),
        expected={language: {"tasks": 10, "turns": 240, "questions": 1190} for language in LANGUAGES},
    ),
)


def load_squad(
    path: Path, variant: str | None = None, limit: int | None = None, *, paragraphs: int = 24, chunk: int = CHUNK_TOKENS
) -> list[Task]:
    """Load tasks of SQuAD.

    Args:
        path: Official file, or its folder.
        variant: Official file by split and version, such as "dev-v1.1".
        limit: Return the first `limit` tasks only.
        paragraphs: Paragraphs of a task.
        chunk: Longest chunk in tokens (characters / 4).

    Raises:
        DataError: The file does not fit; the message names file, location and field.
    """
    return _load("squad", find_file(path, f"dataset/{variant or 'dev-v1.1'}.json"), limit, paragraphs, chunk)


def load_xquad(
    path: Path, variant: str | None = None, limit: int | None = None, *, paragraphs: int = 24, chunk: int = CHUNK_TOKENS
) -> list[Task]:
    """Load tasks of XQuAD.

    Args:
        path: Official file, or its folder.
        variant: Language.
        limit: Return the first `limit` tasks only.
        paragraphs: Paragraphs of a task.
        chunk: Longest chunk in tokens (characters / 4).

    Raises:
        DataError: The file does not fit; the message names file, location and field.
    """
    return _load("xquad", find_file(path, f"xquad.{variant or 'en'}.json"), limit, paragraphs, chunk)


def _load(name: str, file: Path, limit: int | None, paragraphs: int, chunk: int) -> list[Task]:
    if paragraphs < 1 or chunk < 1:
        raise DataError(f"{name}: paragraphs={paragraphs} and chunk={chunk}: each must be at least 1")
    articles = require_items(require_field(read_json(file), "data", list, str(file)), "articles", f"{file}: data")
    paragraphs_with_questions = list(_paragraphs(articles, str(file)))
    starts = range(0, len(paragraphs_with_questions), paragraphs)[:limit]
    return [
        build_task(
            str(file),
            id=f"{name}-{number}",
            chunks=tuple(
                pack_turns([turn for turn, _ in paragraphs_with_questions[start : start + paragraphs]], chunk)
            ),
            questions=tuple(
                question
                for _, paragraph_questions in paragraphs_with_questions[start : start + paragraphs]
                for question in paragraph_questions
            ),
        )
        for number, start in enumerate(starts)
    ]


def _paragraphs(articles: list[Any], file: str) -> Iterator[tuple[SpeakerTurn, list[Question]]]:
    for a, article in enumerate(articles):
        title = require_field(article, "title", str, f"{file}: data[{a}]").replace("_", " ")
        for p, item in enumerate(require_field(article, "paragraphs", list, f"{file}: data[{a}]")):
            location = f"{file}: data[{a}].paragraphs[{p}]"
            turn = SpeakerTurn(speaker=title, text=require_field(item, "context", str, location), id=f"{a}:{p}")
            yield turn, [_question(qa, f"{a}:{p}", location) for qa in require_field(item, "qas", list, location)]


def _question(qa: Any, turn: str, location: str) -> Question:
    id = require_field(qa, "id", str, location)
    location = f"{location}: question {id}"
    official_answers = require_field(qa, "answers", list, location)
    answers = tuple(dict.fromkeys(require_field(answer, "text", str, location) for answer in official_answers))
    impossible = qa.get("is_impossible", False)
    if bool(answers) == impossible:
        raise DataError(f"{location}: {'answers to an impossible question' if impossible else 'no answer'}")
    return Question(
        id=id,
        question=require_field(qa, "question", str, location).strip(),
        answers=answers,
        category="unanswerable" if impossible else "extraction",
        evidence=() if impossible else (turn,),
        meta={"metric": "f1"},
    )
