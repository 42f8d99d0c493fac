"""Whether a data set on disk is the known one, and sound: checksums, counts, ids, evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.catalog import MODULES, checked_options, checked_variant, data_set, load_set, locate
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.formats.jsonl import problems
from memalpha.tasks.load import load_tasks
from memalpha.tasks.sources.files import sha256
from memalpha.types import Task


@dataclass(frozen=True, slots=True)
class FileCheck:
    """An official file: `state` is "known" (the checksum is), "other", "missing", or "unknown" (none is recorded)."""

    path: str
    state: str
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class DataCheck:
    """What a check found. `problems` are to be mended; `faults` are the official ones that are known of the set.

    `counts`: tasks, chunks, turns, questions, tokens (characters / 4), the longest chunk in tokens. `evidence`: of the
    questions with an answer, how many name evidence (`named`), and in how many an answer stands in its text (`holds`);
    `unknown` evidence ids; questions marked as `faulty` or as `leaked`.
    """

    name: str
    variant: str | None
    files: tuple[FileCheck, ...]
    counts: dict[str, int]
    evidence: dict[str, int]
    problems: tuple[str, ...]
    faults: tuple[str, ...]


def check(name: str, *, data: str | Path | None = None, variant: str | None = None, **options: Any) -> DataCheck:
    """Check a named data set (`data`, `variant` and options as `load_tasks` takes them), or a task file by its path.

    Counts are compared with the known ones where no option changes them. Raises `DataError` for a name, variant or
    option that is not there and for data that are missing; what is wrong inside them becomes a problem.
    """
    if name not in MODULES:
        return _checked(name, None, (), load_tasks(name, data=data, variant=variant, **options), [], ())
    known = data_set(name)
    variant, options = checked_variant(known, variant), checked_options(name, options)
    path = locate(known, variant, data)
    official = known.files_for(variant)
    beside = path is not None and path.is_file() and len(official) > 1  # it stands for the folder that it lies in
    files = () if path is None else tuple(_file(path.parent if beside else path, file) for file in official)
    found = [
        f"{file.path}: sha256 {file.sha256} is not that of the known file: another version, or damaged"
        for file in files
        if file.state == "other"
    ]
    try:
        tasks = load_set(name, data=data, variant=variant, **options)
    except DataError as error:
        return _checked(name, variant, files, [], [*found, str(error)], known.faults)
    if not options:
        found += _miscounted(known, variant, tasks)
    return _checked(name, variant, files, tasks, found, known.faults)


def counts(tasks: Sequence[Task]) -> dict[str, int]:
    """Of tasks, chunks, turns, questions, tokens, and of the longest chunk in tokens (characters / 4)."""
    chunks = [len(chunk.render()) for task in tasks for chunk in task.chunks]
    return {
        "tasks": len(tasks),
        "chunks": len(chunks),
        "turns": sum(len(chunk.turns) for task in tasks for chunk in task.chunks),
        "questions": sum(len(task.questions) for task in tasks),
        "tokens": sum(chunks) // 4,
        "longest_chunk": max(chunks, default=0) // 4,
    }


def _file(path: Path, file: File) -> FileCheck:
    """The official file in the folder `path`, or `path` itself if that is a file, whatever its name."""
    places = [path] if path.is_file() else [path / file.path, path / Path(file.path).name]
    found = [place for place in places if place.exists()]
    if not found and "*" in file.path:
        found = [place for place in sorted((path / file.path).parent.glob(Path(file.path).name)) if place.is_file()]
    if not found:
        return FileCheck(file.path, "missing")
    place = found[0]
    size = sum(part.stat().st_size for part in place.rglob("*") if part.is_file()) if place.is_dir() else None
    size = place.stat().st_size if size is None else size
    if file.sha256 is None:
        return FileCheck(file.path, "unknown", size)
    digest = sha256(place)
    return FileCheck(file.path, "known" if digest == file.sha256 else "other", size, digest)


def _miscounted(known: DataSet, variant: str | None, tasks: Sequence[Task]) -> list[str]:
    held = counts(tasks)
    expected = known.expected.get(variant or "", {})
    return [f"{held[key]:,} {key} instead of {number:,}" for key, number in expected.items() if held[key] != number]


def _checked(
    name: str,
    variant: str | None,
    files: tuple[FileCheck, ...],
    tasks: Sequence[Task],
    found: list[str],
    faults: tuple[str, ...],
) -> DataCheck:
    for task in tasks:
        found += [f"task {task.id!r}: {field}: {problem}" for field, problem in problems(task)]
    repeated = [id for id, count in Counter(task.id for task in tasks).items() if count > 1]
    found += [f"task {id!r} occurs twice: ids are unique" for id in repeated]
    return DataCheck(name, variant, files, counts(tasks), _evidence(tasks), tuple(found), faults)


def _evidence(tasks: Sequence[Task]) -> dict[str, int]:
    held: dict[str, int] = dict.fromkeys(("answered", "named", "holds", "unknown", "faulty", "leaked"), 0)
    for task in tasks:
        said = {turn.id: turn.text.casefold() for chunk in task.chunks for turn in chunk.turns if turn.id}
        speaker = {turn.id: turn.speaker.casefold() for chunk in task.chunks for turn in chunk.turns if turn.id}
        for question in task.questions:
            held["unknown"] += len(question.meta.get("unknown_evidence", ()))
            held["faulty"] += "fault" in question.meta
            held["leaked"] += bool(question.meta.get("leak"))
            if not question.answers:
                continue
            held["answered"] += 1
            held["named"] += bool(question.evidence)
            texts = [f"{speaker[id]}: {said[id]}" for id in question.evidence if id in said]
            held["holds"] += any(answer.casefold() in text for answer in question.answers for text in texts)
    return held
