"""PersonaMem v1 (Jiang et al., COLM 2025) and v2 (2512.06688): a history, questions with choices.

The choices are in `meta["choices"]` by letter, the right letter in `meta["choice"]`; the answer is "(letter) text".

v1: a shared context is a task, a system message begins a session. A question is asked when exactly the messages before
its `end_index_in_shared_context` have been read; chunks are split there.

v2: a persona's history is a task, asked at its end. The message that states the persona outright is left out. Evidence
is the related snippet where it is found word for word. v2 gives one right and several wrong answers; their order here
follows from the question's text.

Snippets: v2 as short tasks for training. A task is one question. Its chunks are the related snippet and 1 to
`irrelevant` others, drawn from rows of other personas and shuffled. All of it follows from `seed` and the rows; `limit`
does not change it. Evidence are the turns of the related snippet, `meta["snippet"]` is its index. `qa.scoring.metrics`
describes the reward of an answer that names its evidence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from memalpha.errors import DataError
from memalpha.tasks.chunking import TaskBuilder
from memalpha.tasks.dataset_info import Count, shipped_card
from memalpha.tasks.formats import files
from memalpha.tasks.formats.files import find_file, find_sibling, read_turn, require_field
from memalpha.types import Question, SpeakerTurn, Task

DATA = _V1, _V2, _SNIPPETS = tuple(map(shipped_card, ("personamem", "personamem_v2", "personamem_snippets")))

_LETTER = re.compile(r"\s*\(?([a-z])[).:]\s*", re.IGNORECASE)


def load_personamem(path: Path, variant: str | None = None, limit: int | None = None) -> list[Task]:
    """Load the shared contexts of v1 that questions are asked about.

    Args:
        path: Folder that holds both files, or one of them.
        variant: "32k", "128k" or "1M".
        limit: Return the first `limit` contexts only; the largest have 1M tokens each.

    Raises:
        DataError: A file does not fit; the message names file, line and field.
    """
    questions, shared = (find_sibling(path, file.path) for file in _V1.files_for(variant))
    rows_by_context: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for location, row in files.iter_csv_rows(questions):
        rows_by_context.setdefault(require_field(row, "shared_context_id", str, location), []).append((location, row))
    tasks: list[Task] = []
    for location, value in files.iter_json_lines(shared):
        if not isinstance(value, dict) or not all(isinstance(messages, list) for messages in value.values()):
            raise DataError(f"{location}: an object of a context id and its list of messages is needed")
        for id, messages in value.items():
            if rows := rows_by_context.pop(id, None):
                tasks.append(_context(id, messages, rows, location))
                if len(tasks) == limit:
                    return tasks
        if not rows_by_context:
            return tasks
    location, row = next(iter(rows_by_context.values()))[0]
    raise DataError(f"{location}: shared_context_id {row['shared_context_id']!r} is not in {shared}")


def load_personamem_v2(path: Path, variant: str | None = None, limit: int | None = None) -> list[Task]:
    """Load the histories of v2's text benchmark.

    Args:
        path: Folder laid out as the official repository.
        variant: "32k" or "128k".
        limit: Return the first `limit` histories only.

    Raises:
        DataError: A file does not fit; the message names file, line and field.
    """
    size = variant or _V2.variants[0]
    questions = find_sibling(path, _V2.files[0].path)
    root = path if path.is_dir() else path.parent
    rows_by_history: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for location, row in files.iter_csv_rows(questions):
        link = require_field(row, f"chat_history_{size}_link", str, location)
        rows_by_history.setdefault(link, []).append((location, row))
    tasks: list[Task] = []
    for link, rows in islice(rows_by_history.items(), limit):
        for folder in (root, *questions.parents[:4]):
            if (file := folder / link).is_file():
                break
        else:
            raise DataError(f"{rows[0][0]}: chat_history_{size}_link: no file {link} below {root}")
        value = files.read_json(file)
        messages = value.get("chat_history") if isinstance(value, dict) else value
        if not isinstance(messages, list):
            raise DataError(f"{file}: field 'chat_history' is missing or not list")
        builder = TaskBuilder()
        turns = [read_turn(message, f"m{n}", f"{file}: message {n}") for n, message in enumerate(messages)]
        if turns and turns[0].speaker == "system":
            turns = turns[1:]
        builder.add_session(turns)
        asked = []
        for n, (location, row) in enumerate(rows):
            text, choices, letter = _shuffle_choices(row, f"{file.stem} {n}", location)
            meta = {key: row[key] for key in ("preference", "pref_type", "updated", "topic_query") if row.get(key)}
            evidence, _ = builder.resolve_evidence(_find_snippet(row.get("related_conversation_snippet", ""), turns))
            category = row.get("pref_type") or None
            asked.append(_question(f"q{n}", text, choices, letter, category, meta, evidence=evidence))
        persona = rows[0][1].get("persona_id") or file.stem
        tasks.append(builder.build(f"persona{persona}_{size}", asked, str(file), meta={"persona_id": persona}))
    return tasks


def _context(id_: str, messages: list[Any], rows: list[tuple[str, dict[str, str]]], location: str) -> Task:
    ends: dict[str, int] = {}
    for row_location, row in rows:
        end = require_field(row, "end_index_in_shared_context", str, row_location).strip()
        if not end.isdecimal() or not 1 <= int(end) <= len(messages):
            raise DataError(f"{row_location}: end_index_in_shared_context {end!r} is outside 1..{len(messages)}")
        ends[row_location] = int(end)
    builder = TaskBuilder()
    last: dict[int, int] = {}  # number of messages read → index of the last chunk
    turns: list[SpeakerTurn] = []
    for n, message in enumerate(messages):
        turn = read_turn(message, f"m{n}", f"{location}: message {n}")
        if turns and turn.speaker == "system":
            builder.add_session(turns)
            turns = []
        turns.append(turn)
        if n + 1 in ends.values():
            builder.add_session(turns)
            turns, last[n + 1] = [], builder.last_index
    builder.add_session(turns)
    questions = []
    for row_location, row in rows:
        options = _parse_literal(require_field(row, "all_options", str, row_location))
        if not isinstance(options, list) or len(options) < 2:
            raise DataError(f"{row_location}: all_options is no list of choices")
        choices = {}
        for n, option in enumerate(map(str, options)):
            match = _LETTER.match(option)
            choices[match[1].lower() if match else chr(ord("a") + n)] = option[match.end() if match else 0 :].strip()
        if len(choices) != len(options):
            raise DataError(f"{row_location}: all_options has a letter twice")
        letter = require_field(row, "correct_answer", str, row_location).strip("() \t").lower()
        if letter not in choices:
            raise DataError(f"{row_location}: correct_answer {row['correct_answer']!r} is none of {', '.join(choices)}")
        if last[ends[row_location]] < 0:
            raise DataError(f"{row_location}: end_index_in_shared_context: nothing has been said by then")
        id, text, category = (
            require_field(row, key, str, row_location)
            for key in ("question_id", "user_question_or_message", "question_type")
        )
        meta, chunk = {"topic": row.get("topic", "")}, last[ends[row_location]]
        questions.append(_question(id, text, choices, letter, category, meta, asked_after_chunk=chunk))
    return builder.build(id_, questions, location, meta={"persona_id": rows[0][1].get("persona_id", "")})


def _question(
    id: str, text: str, choices: dict[str, str], letter: str, category: str | None, meta: dict[str, Any], **fields: Any
) -> Question:
    """Build a question with choices; `letter` is the right one."""
    answers = (f"({letter}) {choices[letter]}",)
    meta = {"metric": "choice", "choices": choices, "choice": letter, **meta}
    return Question(id=id, question=text, answers=answers, category=category, meta=meta, **fields)


def _shuffle_choices(row: Mapping[str, str], seed: str, location: str) -> tuple[str, dict[str, str], str]:
    """Return question, choices by letter, and right letter of a row of v2.

    The order of the choices follows from `seed` and the text.

    Args:
        row: Row of the CSV file.
        seed: Seed of the order.
        location: Place that an error names.

    Raises:
        DataError: The row has no question, or its wrong answers are invalid.
    """
    query = _parse_literal(require_field(row, "user_query", str, location))
    text = str(query.get("content", "")) if isinstance(query, dict) else row["user_query"]
    incorrect_answers = _parse_literal(require_field(row, "incorrect_answers", str, location))
    correct_answer = require_field(row, "correct_answer", str, location)
    if not isinstance(incorrect_answers, list) or not incorrect_answers:
        raise DataError(f"{location}: incorrect_answers is no list of answers")
    if correct_answer in incorrect_answers:
        raise DataError(f"{location}: correct_answer is among incorrect_answers")
    options = [correct_answer, *map(str, incorrect_answers)]
    Random(sha256(f"{seed} {text}".encode()).hexdigest()).shuffle(options)
    choices = dict(zip("abcdefghijklmnop", options, strict=False))
    return text, choices, next(letter for letter, option in choices.items() if option == correct_answer)


def _find_snippet(text: str, turns: list[SpeakerTurn]) -> list[str]:
    """Return the turn ids of the first word-for-word match of a snippet's messages, or none."""
    value = _parse_literal(text)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value) or not value:
        return []
    snippet_messages = [(item.get("role"), str(item.get("content", "")).strip()) for item in value]
    history_messages = [(turn.speaker, turn.text.strip()) for turn in turns]
    for start in range(len(history_messages) - len(snippet_messages) + 1):
        if history_messages[start : start + len(snippet_messages)] == snippet_messages:
            return [turn.id or "" for turn in turns[start : start + len(snippet_messages)]]
    return []


def _parse_literal(text: str) -> Any:
    """Parse a printed value as JSON or Python; other texts are returned unchanged."""
    try:
        return files.parse_printed(text)
    except ValueError:
        return text


class _Row(NamedTuple):
    location: str
    number: int
    values: Mapping[str, str]
    messages: tuple[tuple[str, str], ...]
    persona: str


def load_personamem_snippets(
    path: Path, variant: str | None = None, limit: int | None = None, *, irrelevant: Count = 5, seed: int = 0
) -> list[Task]:
    """Load the rows of a split that have a snippet, with snippets of others.

    Args:
        path: File of the split, or its folder.
        variant: "train", "val" or "benchmark".
        limit: Return the first `limit` rows only.
        irrelevant: Most snippets of other personas in a task; at least one is mixed in.
        seed: Seed of their choice and order.

    Raises:
        DataError: The file does not fit (the message names file, line and field), or has one persona only.
    """
    file = find_file(path, _SNIPPETS.files_for(variant)[0].path)
    rows: list[_Row] = []
    for number, (location, values) in enumerate(files.iter_csv_rows(file)):
        text = values.get("related_conversation_snippet", "")
        items = _parse_literal(text) if text else []
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise DataError(f"{location}: related_conversation_snippet is no list of messages")
        turns = [read_turn(item, "", location) for item in items]
        persona = require_field(values, "persona_id", str, location)
        if messages := tuple((turn.speaker, turn.text) for turn in turns):
            rows.append(_Row(location, number, values, messages, persona))
    if not rows:
        raise DataError(f"{file}: no row has a related_conversation_snippet")
    ring = list(rows)
    Random(seed).shuffle(ring)
    return [_snippet_task(row, ring, irrelevant, seed) for row in rows[:limit]]


def _snippet_task(row: _Row, ring: list[_Row], max_others: int, seed: int) -> Task:
    rng = Random(f"{seed} {row.number}")
    count, start = rng.randint(1, max_others), rng.randrange(len(ring))
    chosen_rows: dict[tuple[tuple[str, str], ...], _Row] = {}
    for step in range(len(ring)):
        candidate = ring[(start + step) % len(ring)]
        if candidate.persona != row.persona and candidate.messages != row.messages:
            chosen_rows.setdefault(candidate.messages, candidate)
            if len(chosen_rows) == count:
                break
    if not chosen_rows:
        raise DataError(f"{row.location}: no other persona's snippet to mix in: the file has one persona only")
    mixed = [row, *chosen_rows.values()]
    rng.shuffle(mixed)
    builder = TaskBuilder()
    for index, mixed_row in enumerate(mixed):
        messages = enumerate(mixed_row.messages)
        builder.add_session(SpeakerTurn(speaker=who, text=said, id=f"s{index}:{n}") for n, (who, said) in messages)
    position = mixed.index(row)
    related = [f"s{position}:{n}" for n, (_, said) in enumerate(row.messages) if said.strip()]
    text, choices, letter = _shuffle_choices(row.values, f"{seed} {row.number}", row.location)
    category, evidence = row.values.get("pref_type") or None, builder.resolve_evidence(related)[0]
    question = _question("q0", text, choices, letter, category, {"snippet": position}, evidence=evidence)
    return builder.build(f"row{row.number}", [question], row.location, meta={"persona_id": row.persona})
