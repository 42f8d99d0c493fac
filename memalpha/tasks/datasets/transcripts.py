"""Transcripts: FriendsQA (Yang & Choi, SIGDIAL 2019), QMSum (Zhong et al., NAACL 2021).

FriendsQA: an episode of a television series is a task, its scenes are the chunks, in order. A turn's id is
`<scene>:<utterance>`, for an utterance counts within its scene. Several speakers of one utterance are joined by commas;
stage notes have the speaker `#NOTE#`. All differing gold answers of a question are accepted, and every utterance that
one was taken from is evidence. `category` is the question word (who, what, when, where, why, how).

QMSum: a meeting is a task, its specific queries are the questions. The chunks are speaker turns in order, with ids
`t0`, `t1`, .... Answers are the reference answers. Evidence are the turns of the query's text spans, both ends
included. Left out are general queries ("Summarize the whole meeting."), which rest on no turn. Read are the official
JSON Lines files, a folder of the official JSON files (one meeting each), or one such file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.chunking import TaskBuilder, read_question, require_objects
from memalpha.tasks.dataset_info import shipped_card
from memalpha.tasks.formats.files import (
    build_task,
    find_file,
    iter_json_lines,
    read_json,
    read_turn,
    require_field,
    require_items,
    require_strings,
)
from memalpha.types import Chunk, Question, SpeakerTurn, Task

DATA = _FRIENDSQA, _QMSUM = shipped_card("friendsqa"), shipped_card("qmsum")


def load_friendsqa(path: Path, variant: str | None = None, limit: int | None = None) -> list[Task]:
    """Load the episodes of a folder with both files, or of one file.

    Args:
        path: Folder or file.
        variant: "all", "dev" or "test".
        limit: Return the first `limit` episodes by name only.

    Raises:
        DataError: A file does not fit; the message names file, scene and field.
    """
    episodes: dict[str, list[tuple[str, Chunk, list[Question]]]] = {}
    for file in [path] if path.is_file() else [find_file(path, file.path) for file in _FRIENDSQA.files_for(variant)]:
        scenes = require_field(read_json(file), "data", list, str(file))
        for number, item in enumerate(require_items(scenes, "scenes", f"{file}: data")):
            title, chunk, questions = _scene(item, f"{file}: data[{number}]")
            episode, underline, _ = title.rpartition("_")
            episodes.setdefault(episode if underline else title, []).append((title, chunk, questions))
    tasks: list[Task] = []
    for episode in sorted(episodes, key=_by_numbers)[:limit]:
        scenes = sorted(episodes[episode], key=lambda scene: _by_numbers(scene[0]))
        titles, chunks, questions = zip(*scenes, strict=True)
        id, asked, meta = f"friendsqa-{episode}", tuple(chain(*questions)), {"scenes": list(titles)}
        tasks.append(build_task(str(path), id=id, chunks=chunks, questions=asked, meta=meta))
    return tasks


def _by_numbers(name: str) -> list[str | int]:
    """Return a key that sorts names with numbers: c2 before c10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _scene(item: Any, location: str) -> tuple[str, Chunk, list[Question]]:
    title = require_field(item, "title", str, location)
    location = f"{location} ({title})"
    turns: list[SpeakerTurn] = []
    questions: list[Question] = []
    for paragraph in require_items(require_field(item, "paragraphs", list, location), "paragraphs", location):
        for utterance in require_field(paragraph, "utterances:", list, location):  # the official key ends in a colon
            speakers = require_items(require_field(utterance, "speakers", list, location), "speakers", location)
            speaker = ", ".join(require_strings(speakers, f"{location}: speakers"))
            uid = require_field(utterance, "uid", int, location)
            text = require_field(utterance, "utterance", str, f"{location}: utterance {uid}")
            turns.append(SpeakerTurn(speaker=speaker, text=text, id=f"{title}:{uid}"))
        turn_ids = {turn.id for turn in turns}
        for question in require_field(paragraph, "qas", list, location):
            id = require_field(question, "id", str, location)
            place = f"{location}: question {id}"
            answers = require_items(require_field(question, "answers", list, place), "answers", place)
            utterances = (require_field(answer, "utterance_id", int, place) for answer in answers)
            evidence = dict.fromkeys(f"{title}:{utterance}" for utterance in utterances)
            if unknown := [turn for turn in evidence if turn not in turn_ids]:
                problem = f"its answer is taken from {unknown[0]}, an utterance that the scene does not have"
                raise DataError(f"{place}: {problem}")
            meta: dict[str, Any] = {"metric": _FRIENDSQA.metric, "evidence": "any"}
            meta |= {"paraphrased": True} if id.endswith("_Paraphrased") else {}
            category = id.removeprefix(title).strip("_").partition("_")[0].lower() or None
            text = require_field(question, "question", str, place)
            texts = tuple(dict.fromkeys(require_field(answer, "answer_text", str, place).strip() for answer in answers))
            questions.append(
                Question(id=id, question=text, answers=texts, category=category, evidence=tuple(evidence), meta=meta)
            )
    if not turns:
        raise DataError(f"{location}: a scene without utterances")
    return title, Chunk(turns=tuple(turns)), questions


def load_qmsum(path: Path, variant: str | None = None, limit: int | None = None, *, queries: bool = True) -> list[Task]:
    """Load the meetings of a split.

    Args:
        path: Folder or file.
        variant: "test", "val" or "train".
        limit: Return the first `limit` meetings only.
        queries: False leaves the questions out, to have others made (`memalpha data ask`).

    Raises:
        DataError: A file does not fit; the message names file, line and field.
    """
    tasks = []
    for id, location, meeting in islice(_meetings(path, variant), limit):
        builder = TaskBuilder()
        builder.add_session(
            read_turn(turn, f"t{n}", f"{location}: meeting_transcripts[{n}]", speaker="speaker", text="content")
            for n, turn in enumerate(_objects(meeting, "meeting_transcripts", location))
        )
        questions: list[Question] = []
        for n, query in enumerate(_objects(meeting, "specific_query_list", location) if queries else ()):
            place, turns = f"{location}: specific_query_list[{n}]", list[str]()
            for span in require_field(query, "relevant_text_span", list, place):
                try:
                    first, last = (int(end) for end in span)
                except (TypeError, ValueError) as error:
                    raise DataError(f"{place}: relevant_text_span: {span!r} is no pair of turn numbers") from error
                turns.extend(f"t{n}" for n in range(first, min(last, 10**6) + 1))
            meta, evidence = {"metric": _QMSUM.metric}, builder.resolve_evidence(turns)[0]
            fields = {"keys": ("query", "answer"), "evidence": evidence, "category": "specific"}
            questions.append(read_question(query, f"specific{n}", place, meta, **fields))
        tasks.append(builder.build(id, questions, location))
    return tasks


def _meetings(path: Path, variant: str | None) -> Iterator[tuple[str, str, Any]]:
    """Yield task id, location and content of each meeting."""
    split = variant or _QMSUM.variants[0]
    folders = (path / "data" / "ALL" / split, path / split, path)
    try:
        file = find_file(path, _QMSUM.files_for(variant)[0].path)
    except DataError:
        files = next(filter(None, (sorted(folder.glob("*.json")) for folder in folders)), None)
        if files is None:
            raise
    else:
        files = [file]
    for file in files:
        if file.suffix == ".json":
            yield f"qmsum-{file.stem}", str(file), read_json(file)
        else:
            for number, (location, meeting) in enumerate(iter_json_lines(file)):
                yield f"qmsum-{file.stem}-{number}", location, meeting


def _objects(meeting: Any, key: str, location: str) -> list[Mapping[str, Any]]:
    return require_objects(require_field(meeting, key, list, location), f"{location}: {key}")
