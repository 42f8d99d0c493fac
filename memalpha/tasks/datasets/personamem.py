"""PersonaMem v1 (Jiang et al., COLM 2025) and v2 (2512.06688) as tasks: a history, questions with four choices.

The choices are in `meta["choices"]` by letter, the right letter in `meta["choice"]`; the answer is "(letter) text".
v1: a shared context is a task, a system message begins a session; a question is asked when exactly the messages before
its `end_index_in_shared_context` have been read, and chunks are cut there. v2: a persona's history is a task, asked at
its end; the message that states the persona outright is left out; evidence is the related snippet where it is found
word for word. v2 gives one right and several wrong answers: their order here follows from the question's text.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.chunking import Stream
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.sources.files import field, file_in, read_json
from memalpha.tasks.sources.streaming import csv_rows, json_lines
from memalpha.types import Question, SpeakerTurn, Task

_V1_SIZES = ("32k", "128k", "1M")
_V2_SIZES = ("32k", "128k")
_V1_HASHES = {
    "questions_32k.csv": "cccd34cf53e0bc4d9536c04cff5ca045156d9a4e227e83327112482840bbc93c",
    "shared_contexts_32k.jsonl": "217247ebfec9e8442fc53570c795ab69f21aad08745f7de78d9beab51b122d4a",
}
_QUESTIONS_V2 = "benchmark/text/benchmark.csv"

DATA = (
    DataSet(
        name="personamem",
        about="chats of 20 users whose preferences change, questions with four choices in mid-stream",
        source="hub:bowen-upenn/PersonaMem-v1",
        licence="MIT",
        counts="32k: 37 contexts, 589 questions of 7 types; 128k and 1M: longer contexts",
        metric="choice",
        revision="a8076d5608c93ba2a28983cd78aa99b01a163ae7",
        variants=_V1_SIZES,
        files=tuple(
            File(name, _V1_HASHES.get(name), None, (size,))
            for size in _V1_SIZES
            for name in (f"questions_{size}.csv", f"shared_contexts_{size}.jsonl")
        ),
        expected={"32k": {"tasks": 37, "questions": 589}},
        faults=(
            "the repository was called bowen-upenn/PersonaMem before",
            "messages have no dates",
            "choices are a list printed as JSON or as Python, each with its letter in front",
            "system messages state the persona of the session: kept, as in the official runs",
        ),
    ),
    DataSet(
        name="personamem_v2",
        about="200 users whose preferences mostly show without being said, questions with several choices",
        source="hub:bowen-upenn/PersonaMem-v2",
        licence="CC BY 4.0",
        counts="5,000 questions on 200 personas (text benchmark)",
        metric="choice",
        revision="ed956dea41521fc4499acbc63f966e0fd3c053ba",
        variants=_V2_SIZES,
        files=(
            File(_QUESTIONS_V2, "95f2a8a324aab7baf2af937feae12731369e2abf7cad5ab3e170594cb25a3e52"),
            *(File(f"data/chat_history_{size}/*.json", None, None, (size,)) for size in _V2_SIZES),
        ),
        expected={size: {"questions": 5000} for size in _V2_SIZES},
        faults=(
            "made by a language model, not all of it checked by people",
            "735 personas of its training file are in its validation file too, though its card says none",
            "the order of the choices is not given: it follows from the question's text here",
            "queries are printed Python or JSON objects; snippets do not always occur word for word in the history",
        ),
    ),
)

_LETTER = re.compile(r"\s*\(?([a-z])[).:]\s*", re.IGNORECASE)


def load_personamem(path: Path, variant: str | None = None, limit: int | None = None) -> list[Task]:
    """The shared contexts that questions are asked of (the first `limit`), from a folder that holds both files."""
    return list(islice(contexts(path, variant), limit))


def load_personamem_v2(path: Path, variant: str | None = None, limit: int | None = None) -> list[Task]:
    """The histories of the text benchmark (the first `limit`), from a folder laid out as the official repository."""
    return list(islice(histories(path, variant), limit))


def contexts(path: Path, variant: str | None = None) -> Iterator[Task]:
    """v1, one context at a time (1M tokens each in the largest). Raises `DataError` naming file, line and field."""
    questions, shared = (_beside(path, file.path) for file in DATA[0].files_for(variant))
    asked: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for where, row in csv_rows(questions):
        asked.setdefault(field(row, "shared_context_id", str, where), []).append((where, row))
    for where, value in json_lines(shared):
        if not isinstance(value, dict) or not all(isinstance(messages, list) for messages in value.values()):
            raise DataError(f"{where}: an object of a context id and its list of messages is needed")
        for id, messages in value.items():
            if rows := asked.pop(id, None):
                yield _context(id, messages, rows, where)
        if not asked:
            return
    where, row = next(iter(asked.values()))[0]
    raise DataError(f"{where}: shared_context_id {row['shared_context_id']!r} is not in {shared}")


def histories(path: Path, variant: str | None = None) -> Iterator[Task]:
    """v2, one history at a time. Raises `DataError` naming file, line and field."""
    size = variant or DATA[1].variants[0]
    questions = _beside(path, _QUESTIONS_V2)
    root = path if path.is_dir() else path.parent
    asked: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for where, row in csv_rows(questions):
        asked.setdefault(field(row, f"chat_history_{size}_link", str, where), []).append((where, row))
    for link, rows in asked.items():
        for folder in (root, *questions.parents[:4]):
            if (file := folder / link).is_file():
                break
        else:
            raise DataError(f"{rows[0][0]}: chat_history_{size}_link: no file {link} below {root}")
        value = read_json(file)
        messages = value.get("chat_history") if isinstance(value, dict) else value
        if not isinstance(messages, list):
            raise DataError(f"{file}: field 'chat_history' is missing or not list")
        yield _history(messages, rows, file, size)


def _context(id: str, messages: list[Any], rows: list[tuple[str, dict[str, str]]], where: str) -> Task:
    ends = {place: _end(row, len(messages), place) for place, row in rows}
    stream = Stream()
    last: dict[int, int] = {}  # end of the messages read → index of the last chunk then
    turns: list[SpeakerTurn] = []
    for n, message in enumerate(messages):
        turn = _turn(message, n, where)
        if turns and turn.speaker == "system":
            stream.session(turns)
            turns = []
        turns.append(turn)
        if n + 1 in ends.values():
            stream.session(turns)
            turns, last[n + 1] = [], stream.last
    stream.session(turns)
    questions = []
    for place, row in rows:
        choices = _choices(row, place)
        letter = field(row, "correct_answer", str, place).strip("() \t").lower()
        if letter not in choices:
            raise DataError(f"{place}: correct_answer {row['correct_answer']!r} is none of {', '.join(choices)}")
        if last[ends[place]] < 0:
            raise DataError(f"{place}: end_index_in_shared_context: nothing has been said by then")
        questions.append(
            Question(
                id=field(row, "question_id", str, place),
                question=field(row, "user_question_or_message", str, place),
                answers=(f"({letter}) {choices[letter]}",),
                category=field(row, "question_type", str, place),
                asked_after_chunk=last[ends[place]],
                meta={"metric": "choice", "choices": choices, "choice": letter, "topic": row.get("topic", "")},
            )
        )
    return stream.task(id, questions, where, meta={"persona_id": rows[0][1].get("persona_id", "")})


def _end(row: Mapping[str, str], count: int, where: str) -> int:
    text = field(row, "end_index_in_shared_context", str, where).strip()
    if not text.isdecimal() or not 1 <= int(text) <= count:
        raise DataError(f"{where}: end_index_in_shared_context {text!r} is outside 1..{count}")
    return int(text)


def _choices(row: Mapping[str, str], where: str) -> dict[str, str]:
    """The options by letter, without the letter in front."""
    options = literal(field(row, "all_options", str, where))
    if not isinstance(options, list) or len(options) < 2:
        raise DataError(f"{where}: all_options is no list of choices")
    found = {}
    for n, option in enumerate(map(str, options)):
        match = _LETTER.match(option)
        found[match[1].lower() if match else chr(ord("a") + n)] = option[match.end() if match else 0 :].strip()
    if len(found) != len(options):
        raise DataError(f"{where}: all_options has a letter twice")
    return found


def _history(messages: list[Any], rows: list[tuple[str, dict[str, str]]], file: Path, size: str) -> Task:
    stream = Stream()
    turns = [_turn(message, n, f"{file}") for n, message in enumerate(messages)]
    if turns and turns[0].speaker == "system":
        turns = turns[1:]
    stream.session(turns)
    questions = []
    for n, (where, row) in enumerate(rows):
        text, choices, letter = with_choices(row, f"{file.stem} {n}", where)
        more = {key: row[key] for key in ("preference", "pref_type", "updated", "topic_query") if row.get(key)}
        questions.append(
            Question(
                id=f"q{n}",
                question=text,
                answers=(f"({letter}) {choices[letter]}",),
                category=row.get("pref_type") or None,
                evidence=stream.evidence(_snippet(row.get("related_conversation_snippet", ""), turns))[0],
                meta={"metric": "choice", "choices": choices, "choice": letter, **more},
            )
        )
    persona = rows[0][1].get("persona_id") or file.stem
    return stream.task(f"persona{persona}_{size}", questions, str(file), meta={"persona_id": persona})


def with_choices(row: Mapping[str, str], seed: str, where: str) -> tuple[str, dict[str, str], str]:
    """What a row of v2 asks, the choices by letter, and the right letter; their order follows from `seed` and the text.

    Raises `DataError` where a row has no question, or wrong answers that are none.
    """
    query = literal(field(row, "user_query", str, where))
    text = str(query.get("content", "")) if isinstance(query, dict) else row["user_query"]
    wrong = literal(field(row, "incorrect_answers", str, where))
    right = field(row, "correct_answer", str, where)
    if not isinstance(wrong, list) or not wrong:
        raise DataError(f"{where}: incorrect_answers is no list of answers")
    if right in wrong:
        raise DataError(f"{where}: correct_answer is among incorrect_answers")
    options = [right, *map(str, wrong)]
    random.Random(sha256(f"{seed} {text}".encode()).hexdigest()).shuffle(options)
    choices = dict(zip("abcdefghijklmnop", options, strict=False))
    return text, choices, next(letter for letter, option in choices.items() if option == right)


def _snippet(text: str, turns: list[SpeakerTurn]) -> list[str]:
    """The ids of the first place where a snippet's messages follow each other word for word; none where nowhere."""
    value = literal(text)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value) or not value:
        return []
    wanted = [(item.get("role"), str(item.get("content", "")).strip()) for item in value]
    said = [(turn.speaker, turn.text.strip()) for turn in turns]
    for start in range(len(said) - len(wanted) + 1):
        if said[start : start + len(wanted)] == wanted:
            return [turn.id or "" for turn in turns[start : start + len(wanted)]]
    return []


def _turn(message: Any, number: int, where: str) -> SpeakerTurn:
    place = f"{where}: message {number}"
    return SpeakerTurn(
        speaker=field(message, "role", str, place), text=field(message, "content", str, place), id=f"m{number}"
    )


def literal(text: str) -> Any:
    """The value that a text prints, as JSON or as Python; the text itself where it is neither."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _beside(path: Path, name: str) -> Path:
    """The file `name` in the folder `path`, or in the folder of the file `path`."""
    return file_in(path if path.is_dir() else path.parent, name)
