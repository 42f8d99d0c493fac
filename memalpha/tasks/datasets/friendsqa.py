"""FriendsQA (Yang & Choi, SIGDIAL 2019): questions on scenes of a television series.

An episode is a task, its scenes are the chunks, in order. A turn's id is `<scene>:<utterance>`, for an utterance counts
within its scene. Several speakers of one utterance are joined by commas; stage notes have the speaker `#NOTE#`. All
differing gold answers of a question are accepted, and every utterance that one was taken from is evidence. `category`
is the question word (who, what, when, where, why, how).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.dataset_info import shipped_card
from memalpha.tasks.formats.files import build_task, find_file, read_json, require_field, require_items
from memalpha.types import Chunk, Question, SpeakerTurn, Task

DATA = shipped_card("friendsqa")


def load(path: Path, variant: str | None = None, limit: int | None = None) -> list[Task]:
    """Load the episodes of a folder with both files, or of one file.

    Args:
        path: Folder or file.
        variant: "all", "dev" or "test".
        limit: Return the first `limit` episodes by name only.

    Raises:
        DataError: A file does not fit; the message names file, scene and field.
    """
    episodes: dict[str, list[tuple[str, Chunk, list[Question]]]] = {}
    for file in [path] if path.is_file() else [find_file(path, file.path) for file in DATA.files_for(variant)]:
        scenes = require_field(read_json(file), "data", list, str(file))
        for number, item in enumerate(require_items(scenes, "scenes", f"{file}: data")):
            title, chunk, questions = _scene(item, f"{file}: data[{number}]")
            episode, underline, _ = title.rpartition("_")
            episodes.setdefault(episode if underline else title, []).append((title, chunk, questions))
    tasks: list[Task] = []
    for episode in sorted(episodes)[:limit]:
        scenes = sorted(episodes[episode], key=lambda scene: scene[0])
        tasks.append(
            build_task(
                str(path),
                id=f"friendsqa-{episode}",
                chunks=tuple(chunk for _, chunk, _ in scenes),
                questions=tuple(question for _, _, questions in scenes for question in questions),
                meta={"scenes": [title for title, _, _ in scenes]},
            )
        )
    return tasks


def _scene(item: Any, location: str) -> tuple[str, Chunk, list[Question]]:
    title = require_field(item, "title", str, location)
    location = f"{location} ({title})"
    turns: list[SpeakerTurn] = []
    questions: list[Question] = []
    for paragraph in require_items(require_field(item, "paragraphs", list, location), "paragraphs", location):
        for utterance in require_field(paragraph, "utterances:", list, location):  # the official key ends in a colon
            speakers = require_items(require_field(utterance, "speakers", list, location), "speakers", location)
            uid = require_field(utterance, "uid", int, location)
            text = require_field(utterance, "utterance", str, f"{location}: utterance {uid}")
            turns.append(SpeakerTurn(speaker=", ".join(map(str, speakers)), text=text, id=f"{title}:{uid}"))
        turn_ids = {turn.id for turn in turns}
        questions += [
            _question(item_question, title, turn_ids, location)
            for item_question in require_field(paragraph, "qas", list, location)
        ]
    if not turns:
        raise DataError(f"{location}: a scene without utterances")
    return title, Chunk(turns=tuple(turns)), questions


def _question(item: Mapping[str, Any], title: str, turn_ids: set[str | None], location: str) -> Question:
    id = require_field(item, "id", str, location)
    location = f"{location}: question {id}"
    answers = require_items(require_field(item, "answers", list, location), "answers", location)
    evidence = tuple(
        dict.fromkeys(f"{title}:{require_field(answer, 'utterance_id', int, location)}" for answer in answers)
    )
    if unknown := [turn for turn in evidence if turn not in turn_ids]:
        raise DataError(f"{location}: its answer is taken from {unknown[0]}, an utterance that the scene does not have")
    kind = id.removeprefix(title).strip("_").partition("_")[0].lower()
    return Question(
        id=id,
        question=require_field(item, "question", str, location),
        answers=tuple(dict.fromkeys(require_field(answer, "answer_text", str, location).strip() for answer in answers)),
        category=kind or None,
        evidence=evidence,
        meta={
            "metric": DATA.metric,
            "evidence": "any",
            **({"paraphrased": True} if id.endswith("_Paraphrased") else {}),
        },
    )
