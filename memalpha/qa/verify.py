"""Check of a data set on disk against its description: checksums, counts, ids, evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memalpha.agent.dates import day_of, format_date
from memalpha.agent.prompts import letter_choices
from memalpha.errors import DataError
from memalpha.qa.error_analysis import answers_in_words
from memalpha.qa.scoring.official import choice_score
from memalpha.tasks.catalog import (
    MODULES,
    get_data_set,
    load_set,
    locate,
    matching_files,
    resolve_variant,
    validate_options,
)
from memalpha.tasks.chunking import rechunk
from memalpha.tasks.dataset_info import File
from memalpha.tasks.formats.chats import count_left_out
from memalpha.tasks.formats.files import check_selection, compute_sha256
from memalpha.tasks.formats.jsonl import find_problems
from memalpha.tasks.load import load_tasks
from memalpha.types import Question, Task, is_iso_time, parse_iso_time


@dataclass(frozen=True, slots=True)
class FileCheck:
    """Describe the state of one official file.

    `state` is "known" (the checksum matches), "other", "missing", "unknown" (no checksum is recorded), or "own" (a file
    of another name than the set's, in the set's format).
    """

    path: str
    state: str
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class DataCheck:
    """Hold the result of a check.

    Attributes:
        name: Name of the set, or path of the task file.
        variant: Variant that was checked.
        files: State of each official file.
        counts: Tasks, chunks, turns, questions, tokens (characters / 4), longest chunk in tokens.
        evidence: Questions with an answer (`answered`), those that name evidence (`named`), those whose evidence holds
            an answer (`holds`), `unknown` evidence ids, and questions marked `faulty`, `leaked` or `made`
            by a model.
        elsewhere: Ids (task, question) of questions whose evidence, with its day, has none of their answers word for
            word: a count, an answer in other words, or a wrong turn.
        left_out: What exported chats lost, by kind: media, notices, deleted messages, tool calls, edited branches.
        backwards: Ids of tasks with a chunk of an earlier day than a chunk before it; a writer reads it as news.
        problems: Faults of this copy, to be mended.
        faults: Known faults of the official files.
    """

    name: str
    variant: str | None
    files: tuple[FileCheck, ...]
    counts: dict[str, int]
    evidence: dict[str, int]
    elsewhere: tuple[tuple[str, str], ...]
    left_out: dict[str, int]
    backwards: tuple[str, ...]
    problems: tuple[str, ...]
    faults: tuple[str, ...]


def check_data_set(
    name: str,
    *,
    data: str | Path | None = None,
    variant: str | None = None,
    chunk_tokens: int | None = None,
    **options: Any,
) -> DataCheck:
    """Check a named data set, or a task file by its path.

    Counts are compared with the known ones unless an option changes them, or the file is one of your own. Faults inside
    the data become problems of the result.

    Args:
        name: Name of a data set, or path of a task file.
        data: File or folder of your own.
        variant: Variant to check; default: the first.
        chunk_tokens: Split longer chunks between turns, after the counts are compared.
        **options: Options of the set's loader.

    Raises:
        DataError: The name, variant or option is unknown, or the data are missing.
    """
    if name not in MODULES:
        tasks = load_tasks(name, data=data, variant=variant, chunk_tokens=chunk_tokens, **options)
        choices = [
            f"task {task.id!r}: questions[{number}].meta.{problem}"
            for task in tasks
            for number, question in enumerate(task.questions)
            if (problem := _find_choice_problem(question))
        ]
        return _build_report(name, None, (), tasks, choices, ())
    check_selection(0, data, options.get("limit"), chunk_tokens)
    dataset = get_data_set(name)
    variant, options = resolve_variant(dataset, variant), validate_options(name, options)
    path = locate(dataset, variant, data)
    official = dataset.files_for(variant)
    files: tuple[FileCheck, ...] = ()
    is_own = False
    if path is not None:
        folder = path.parent if path.is_file() and len(official) > 1 else path  # the file stands for its folder
        files = tuple(_check_file(folder, file) for file in official)
        if files and folder.is_file() and files[0].state != "known":
            own, stems = path.stem.lower(), [Path(file.path).stem.lower() for file in dataset.files]
            is_own = not any(stem in own or own in stem for stem in stems)
            files = (replace(files[0], path=str(path), state="own"),) if is_own else files
    faults = () if is_own else dataset.faults
    problem = "is not that of the known file: another version, or damaged"
    mismatches = [f"{file.path}: sha256 {file.sha256} {problem}" for file in files if file.state == "other"]
    try:
        tasks = load_set(name, data=data, variant=variant, **options)
    except DataError as error:
        return _build_report(name, variant, files, [], [*mismatches, str(error)], faults)
    if not options and not is_own:
        actual, expected = counts(tasks), dataset.expected.get(variant or "", {})
        mismatches += [f"{actual[key]:,} {key} instead of {n:,}" for key, n in expected.items() if actual[key] != n]
    if chunk_tokens is not None:
        tasks = [rechunk(task, chunk_tokens) for task in tasks]
    return _build_report(name, variant, files, tasks, mismatches, faults)


def _find_choice_problem(question: Question) -> str | None:
    """Return why no reader could choose among a question's choices, or no scorer tell the right one."""
    options, is_choice = question.meta.get("choices"), question.meta.get("metric") == "choice"
    try:
        texts = [text.strip().casefold() for text in letter_choices(options or {}).values()]
        for answer in question.answers * is_choice:
            choice_score("", answer, options=options)
    except DataError as error:
        return str(error)
    if options and len({*texts}) < max(2, len(texts)):
        return "choices: two or more different texts are needed"
    return None


def counts(tasks: Sequence[Task]) -> dict[str, int]:
    """Count tasks, chunks, turns, questions and tokens (characters / 4), and measure the longest chunk."""
    chunks = [len(chunk.render()) for task in tasks for chunk in task.chunks]
    return {
        "tasks": len(tasks),
        "chunks": len(chunks),
        "turns": sum(len(chunk.turns) for task in tasks for chunk in task.chunks),
        "questions": sum(len(task.questions) for task in tasks),
        "tokens": sum(chunks) // 4,
        "longest_chunk": max(chunks, default=0) // 4,
    }


def _check_file(path: Path, file: File) -> FileCheck:
    """Check the official file in the folder `path`, or the file `path` itself."""
    candidates = [path] if path.is_file() else [path / file.path, path / Path(file.path).name]
    matches = [candidate for candidate in candidates if candidate.exists()]
    if not (matches := matches or matching_files(path, file)):
        return FileCheck(file.path, "missing")
    size = sum(part.stat().st_size for part in (matches[0], *matches[0].rglob("*")) if part.is_file())
    if file.sha256 is None:
        return FileCheck(file.path, "unknown", size)
    digest = compute_sha256(matches[0])
    return FileCheck(file.path, "known" if digest == file.sha256 else "other", size, digest)


def _build_report(
    name: str,
    variant: str | None,
    files: tuple[FileCheck, ...],
    tasks: Sequence[Task],
    problem_texts: list[str],
    faults: tuple[str, ...],
) -> DataCheck:
    backwards: list[str] = []
    for task in tasks:
        problem_texts += [f"task {task.id!r}: {field}: {problem}" for field, problem in find_problems(task)]
        days = [parse_iso_time(time).date() for chunk in task.chunks if is_iso_time(time := chunk.timestamp or "")]
        if days != sorted(days):
            backwards.append(task.id)
    repeated = [id for id, count in Counter(task.id for task in tasks).items() if count > 1]
    problem_texts += [f"task {id!r} occurs twice: ids are unique" for id in repeated]
    evidence, elsewhere = _evidence(tasks)
    left_out, late, problems = count_left_out(tasks), tuple(backwards), tuple(problem_texts)
    return DataCheck(name, variant, files, counts(tasks), evidence, elsewhere, left_out, late, problems, faults)


def _evidence(tasks: Sequence[Task]) -> tuple[dict[str, int], tuple[tuple[str, str], ...]]:
    elsewhere: list[tuple[str, str]] = []
    totals: dict[str, int] = dict.fromkeys(("answered", "named", "holds", "unknown", "faulty", "leaked", "made"), 0)
    for task in tasks:
        turn_texts: dict[str | None, str] = {}
        for chunk in task.chunks:  # answers give its day as 2023-05-08, 8 May 2023 or May 8, 2023
            day = day_of(chunk.timestamp)
            said = f"{chunk.timestamp}\n{format_date(day)}\n{day:%B} {day.day}, {day.year}" if day else ""
            turn_texts |= {
                turn.id: f"{turn.speaker}: {turn.text}\n{said}".casefold() for turn in chunk.turns if turn.id
            }
        for question in task.questions:
            totals["unknown"] += len(question.meta.get("unknown_evidence", ()))
            totals["faulty"] += "fault" in question.meta
            totals["made"] += "made_by" in question.meta
            totals["leaked"] += bool(question.meta.get("leak"))
            if not question.answers:
                continue
            totals["answered"] += 1
            totals["named"] += bool(question.evidence)
            texts = [turn_texts[id] for id in question.evidence if id in turn_texts]
            answers = () if _find_choice_problem(question) else answers_in_words(question)
            if any(answer.casefold() in text for answer in answers for text in texts):
                totals["holds"] += 1
            elif question.evidence:
                elsewhere.append((task.id, question.id))
    return totals, tuple(elsewhere)
