"""Is a store file sound? Everything that follows from the log is compared with it, row by row, and can be made anew.

The log is the truth and is never repaired: what is wrong with it is named. Versions must be what replaying the log
gives, vectors there, finite and equal to what the embedder gives now, and nothing may be left over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from memalpha.errors import DamagedStore, EmbedderError, MemalphaError, StoreError
from memalpha.store.backends.base import Backend
from memalpha.store.backends.namespace import Namespace
from memalpha.store.backends.row_codec import digest, vector_blob, version_row
from memalpha.store.backends.sqlite import Database
from memalpha.store.embedding import Embedder
from memalpha.store.filters import utc
from memalpha.store.indexing import cache
from memalpha.store.indexing.stored_embedder import RecordedEmbedder
from memalpha.store.open import existing, rows_of
from memalpha.store.schema import MemorySchema
from memalpha.store.state import MemoryState, plan
from memalpha.types import MemoryEntry

ADVICE = "the log is never repaired: go back to a copy, or save what can be read with `memalpha export`"
_MAX_LISTED = 5
_BATCH = 256
_TOLERANCE = 1e-3  # of a component of a unit vector; a model's own batching makes 1e-6


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong: with the `file`, the `log`, the `versions` or the `vectors` (of a namespace), or an `index` file
    beside it."""

    part: Literal["file", "log", "versions", "vectors", "index"]
    message: str
    namespace: str | None = None

    def __str__(self) -> str:
        return f"{self.part}{f' of {self.namespace}' if self.namespace else ''}: {self.message}"


@dataclass(slots=True)
class HealthReport:
    """What an examination found: `problems` there are, those that were `repaired`, `notes` on what was not looked at,
    and how many namespaces, operations, versions and vectors were."""

    problems: list[Problem] = field(default_factory=list)
    repaired: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("namespaces", *_COUNTED), 0))


_COUNTED = ("operations", "versions", "vectors")


def examine(path: str | Path, *, repair: bool = False, embedder: str | Embedder | None = None) -> HealthReport:
    """Look a store through, a file or one in PostgreSQL; with `repair`, make anew what follows from the log, all in
    one transaction. Vectors are compared with those of `embedder`, or of the recorded embedder where that is a shipped
    one; else a note says that they were not.

    Raises `StoreError` if there is no store at `path`.
    """
    try:
        database = existing(path)
    except DamagedStore as error:
        return HealthReport([Problem("file", f"{error}; {ADVICE}")])
    if isinstance(database, Database):
        database.read_damaged_text()
    try:
        found = _examine(database, embedder, repair=repair)
        if not repair or not found.problems:
            return found
        database.scrub()
        left = _examine(database, embedder, repair=False)
        left.repaired = [problem for problem in found.problems if problem not in left.problems]
        return left
    finally:
        database.close()


def _examine(database: Backend, embedder: str | Embedder | None, *, repair: bool) -> HealthReport:
    health = HealthReport()
    try:
        with database.transaction(write=False):
            names = database.namespaces()
        with database.transaction(*names, write=repair):
            _Examination(database, embedder, health, repair).run()
    except DamagedStore as error:
        health.problems.append(Problem("file", f"{error}; {ADVICE}"))
    return health


class _Examination:
    """One pass over a file, inside a transaction."""

    def __init__(self, database: Backend, embedder: str | Embedder | None, health: HealthReport, repair: bool) -> None:
        self.database, self.health, self.repair = database, health, repair
        self.embedder = embedder

    def run(self) -> None:
        """Find everything, and repair it if that was asked for."""
        database = self.database
        self.health.notes += database.notes()
        for fault in database.faults():
            self.report("file", f"{fault}; {ADVICE}")
        misses = database.misses()
        for name, kind in misses.items():
            self.report("file", f"the {kind} {name} is missing or not as it should be")
        tables = [name for name, kind in misses.items() if kind == "table"]
        if tables and not (self.repair and set(tables) <= {"versions", "vectors"}):
            return
        for name in tables:
            database.make(name)
        if database.scrub_due:
            self.report("file", "an erasure was not finished: free pages may still hold what was erased")
        try:
            schema = MemorySchema.from_json(database.meta["schema"])
            recorded = RecordedEmbedder(database.path, database.meta["embedder"], self.embedder)
        except (KeyError, ValueError, MemalphaError) as error:
            self.report("file", f"what is recorded of the schema or the embedder cannot be read ({error}); {ADVICE}")
            return
        for table in ("operations", "versions", "vectors"):
            if orphans := database.orphans(table):
                part = "log" if table == "operations" else table
                self.report(part, f"{orphans} rows belong to no namespace" + (f"; {ADVICE}" if part == "log" else ""))
                if self.repair and part != "log":
                    database.drop_orphans(table)
        for name in database.namespaces():
            self.health.counts["namespaces"] += 1
            rows = rows_of(database, name, schema)
            right = self.replay(rows)
            if right is not None and self.versions(rows, right):
                self.vectors(rows, {row[4]: row[7] for row in right.values()}, recorded)
                if lacking := rows.wordless(mend=self.repair):
                    self.report("vectors", f"{lacking} contents have no words to be found by", name)
        self.index_files([rows_of(database, name, schema) for name in database.namespaces()])
        if self.repair:  # after the rows, which may not have been such that the indexes could be made
            for name in misses.keys() - set(tables):
                database.make(name)

    def index_files(self, namespaces: list[Namespace]) -> None:
        """See which index files would be taken; those that would not, and all if anything was wrong, are removed."""
        files = cache.index_files(self.database.path)
        caches = [cache.IndexCache(rows) for rows in namespaces] if files else []
        sound = {index.path for index in caches if index.path in files and index.load() is not None}
        for file in files:
            if file not in sound:
                self.report("index", f"{file} is damaged, left over or of another store: it is not used")
        if self.repair and self.health.problems:
            cache.remove_index_files(self.database)

    def report(self, part: Any, message: str, namespace: str | None = None) -> None:
        """Note a problem."""
        self.health.problems.append(Problem(part, message, namespace))

    def replay(self, rows: Namespace) -> dict[tuple[str, int], tuple[Any, ...]] | None:
        """The rows of `versions` that follow from the log, by id and version; None if the log is not sound."""
        state, created = MemoryState.empty(rows.schema), {}
        versions: dict[tuple[str, int], tuple[MemoryEntry, int]] = {}
        heads, before = [0], ""
        for position in range(1, rows.position + 1):
            try:
                with self.database.transaction(write=False):
                    ((seq, time, head, operation),) = rows.log(position - 1, 1)
                if seq != position:
                    raise ValueError(f"there is none; the next is {seq}")
                if time < before or utc(datetime.fromisoformat(time)) != time:
                    raise ValueError(f"its time {time!r} is before that of the last, {before!r}, or no time")
                if not (head == seq or (0 <= head < seq and heads[head] == head)):
                    raise ValueError(f"its head {head!r} is no position that an undo could go back from")
                change = plan(state, operation, position)
            except (StoreError, ValueError, TypeError) as error:
                self.report("log", f"position {position}: {error}; {ADVICE}", rows.name)
                return None
            heads.append(head)
            before, state = time, state.advance(change)
            for entry in (change.ended, change.entry):
                if entry is not None:
                    versions[entry.id, entry.version] = entry, created.setdefault(entry.id, position)
        self.health.counts["operations"] += len(heads) - 1
        return {key: version_row(entry, created) for key, (entry, created) in versions.items()}

    def versions(self, rows: Namespace, right: dict[tuple[str, int], tuple[Any, ...]]) -> bool:
        """Compare `versions` with what the log gives; False if the log may be what is wrong."""
        there = {(row[5], row[0]): row for row in rows.version_rows()}
        self.health.counts["versions"] += len(there)
        wrong = [key for key, row in there.items() if right.get(key) != row]
        missing = [key for key in right if key not in there]
        end = rows.position
        if beyond := [key for key, row in there.items() if any(isinstance(at, int) and at > end for at in row[1:3])]:
            self.report("log", f"it ends at {end}, before {_some(beyond)}; {ADVICE}", rows.name)
            return False
        # Each version has a checksum of its content; where that speaks against the log, the log is not believed.
        doubtful = [key for key in wrong if key in right and _speaks_against(there[key], right[key])]
        if doubtful:
            self.report("log", f"the content of {_some(doubtful)} is not what its checksum says; {ADVICE}", rows.name)
            return False
        for keys, what in ((wrong, "not as the log has them"), (missing, "missing")):
            if keys:
                self.report("versions", f"{len(keys)} {what}: {_some(keys)}", rows.name)
        if self.repair and (wrong or missing):
            rows.replace_versions(right.values())
        return True

    def vectors(self, rows: Namespace, contents: dict[bytes, str], recorded: RecordedEmbedder) -> None:
        """Compare `vectors` with what the embedder gives for the contents of the versions."""
        there = dict(rows.vector_rows())
        self.health.counts["vectors"] += len(there)
        left_over = [key for key in there if key not in contents]
        missing = [key for key in contents if key not in there]
        sound = {key for key in contents if key in there and _sound(there[key], recorded.dim)}
        wrong = [key for key in contents if key in there and key not in sound]
        right: dict[bytes, bytes] = {}
        try:
            for key, vector in _embedded(contents, recorded.load()):
                right[key] = vector_blob(vector)
                if key in sound and not _near(there[key], vector):
                    wrong.append(key)
        except (EmbedderError, StoreError) as error:
            self.health.notes.append(f"vectors of {rows.name} were not compared with the embedder's: {error}")
        for keys, what in ((left_over, "of no content that is stored"), (missing, "missing")):
            if keys:
                self.report("vectors", f"{len(keys)} {what}", rows.name)
        if wrong:
            message = f"{len(wrong)} not what the embedder {recorded.name!r} gives, such as that of "
            self.report("vectors", message + repr(contents[wrong[0]]), rows.name)
        if self.repair and (left_over or missing or wrong):
            kept = {key: there[key] for key in contents if key in there}
            rows.replace_vectors((kept | right).items())


def _speaks_against(there: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    return there[4] != right[4] and isinstance(there[7], str) and there[4] == digest(there[7])


def _some(keys: list[tuple[str, int]]) -> str:
    """The first of some versions, by name."""
    names = [f"{id!r} v{version}" for id, version in keys[:_MAX_LISTED]]
    return ", ".join(names) + (" ..." if len(keys) > _MAX_LISTED else "")


def _sound(blob: object, dim: int) -> bool:
    return isinstance(blob, bytes) and len(blob) == 4 * dim and bool(np.isfinite(np.frombuffer(blob, "<f4")).all())


def _near(blob: bytes, vector: np.ndarray) -> bool:
    return bool(np.abs(np.frombuffer(blob, "<f4") - vector).max(initial=0.0) <= _TOLERANCE)


def _embedded(contents: dict[bytes, str], embedder: Embedder) -> Iterator[tuple[bytes, np.ndarray]]:
    keys = list(contents)
    for start in range(0, len(keys), _BATCH):
        batch = keys[start : start + _BATCH]
        yield from zip(batch, embedder.encode([contents[key] for key in batch]), strict=True)
