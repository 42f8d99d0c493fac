"""Integrity check of a store: compare everything that follows from the log with it, and rebuild it on request.

The log is the truth and is never repaired; its faults are only reported. Versions must be those that replaying the log
gives. Every content must have a vector, finite and equal to the embedder's. No row may be left over.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from memalpha.errors import DamagedStore, EmbedderError, MemalphaError, StoreError
from memalpha.store.backends.base import Backend
from memalpha.store.backends.namespace import Namespace, vector_blob
from memalpha.store.backends.sqlite import SQLiteDatabase
from memalpha.store.embedding import Embedder, RecordedEmbedder, first_faulty_row
from memalpha.store.fields import content_digest, format_utc, version_row
from memalpha.store.open import is_writable, open_existing, open_namespace
from memalpha.store.schema import MemorySchema
from memalpha.store.state import MemoryState, plan
from memalpha.types import MemoryEntry

ADVICE = "the log is never repaired: go back to a copy, or save what can be read with `memalpha export`"
_MAX_LISTED = 5
_BATCH = 256
_TOLERANCE = 1e-3  # of a component of a unit vector; a model's own batching makes 1e-6


@dataclass(frozen=True, slots=True)
class Problem:
    """Fault in one part of a store.

    The parts: the file, and the log, versions or vectors of a namespace.
    """

    part: Literal["file", "log", "versions", "vectors"]
    message: str
    namespace: str | None = None

    def __str__(self) -> str:
        return f"{self.part}{f' of {self.namespace}' if self.namespace else ''}: {self.message}"


@dataclass(slots=True)
class HealthReport:
    """Result of an integrity check.

    Attributes:
        problems: Faults that the store has (after a repair: still has).
        repaired: Faults that were repaired.
        notes: Checks that were left out, and advice on the server.
        counts: Namespaces, operations, versions and vectors that were checked.
    """

    problems: list[Problem] = field(default_factory=list)
    repaired: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("namespaces", *_COUNTED), 0))


_COUNTED = ("operations", "versions", "vectors")


def examine(path: str | Path, *, repair: bool = False, embedder: str | Embedder | None = None) -> HealthReport:
    """Check a store, a file or one in PostgreSQL.

    Args:
        path: Path or URL of the store.
        repair: Rebuild what follows from the log, all in one transaction.
        embedder: Embedder to compare vectors with, or its name. None takes the recorded one if it ships with memalpha;
            otherwise a note says that vectors were not compared.

    Raises:
        StoreError: There is no store at `path`.
    """
    try:
        database = open_existing(path, read_only=not repair and not is_writable(path))
    except DamagedStore as error:
        return HealthReport([Problem("file", f"{error}; {ADVICE}")])
    with closing(database):
        before = _examine(database, embedder, repair=repair)
        if not repair or not before.problems:
            return before
        database.scrub()
        after = _examine(database, embedder, repair=False)
        after.repaired = [problem for problem in before.problems if problem not in after.problems]
        return after


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
    """Check a store once, inside a transaction."""

    def __init__(self, database: Backend, embedder: str | Embedder | None, health: HealthReport, repair: bool) -> None:
        self.database, self.health, self.repair = database, health, repair
        self.embedder = embedder

    def run(self) -> None:
        """Report all problems, and repair them if `repair` is set."""
        database = self.database
        self.health.notes += database.warnings()
        missing: dict[str, str] = {}
        if isinstance(database, SQLiteDatabase):  # on a server, its owner decides what there is
            missing = database.schema_mismatches()
            if not self.examine_objects(database, missing):
                return
        for fault in database.integrity_errors():
            self.report("file", f"{fault}; {ADVICE}")
        tables = {name for name, kind in missing.items() if kind == "table"}
        if isinstance(database, SQLiteDatabase):
            if tables and not (self.repair and tables <= {"versions", "vectors"}):
                return
            for name in tables:
                database.recreate(name)
            self.examine_orphans(database)
        if database.is_scrub_due:
            self.report("file", "an erasure was not finished: free pages may still hold what was erased")
        try:
            schema = MemorySchema.from_json(database.meta["schema"])
            recorded = RecordedEmbedder(database.path, database.meta["embedder"], self.embedder)
        except (KeyError, ValueError, TypeError, RecursionError, MemalphaError) as error:
            self.report("file", f"what is recorded of the schema or the embedder cannot be read ({error}); {ADVICE}")
            return
        for name in database.namespaces():
            self.health.counts["namespaces"] += 1
            rows = open_namespace(database, name, schema)
            expected = self.replay(rows)
            if expected is not None and self.compare_versions(rows, expected):
                self.compare_vectors(rows, {row[4]: row[7] for row in expected.values()}, recorded)
        if self.repair and isinstance(database, SQLiteDatabase):  # at last: damaged rows can keep an index from it
            for name in missing.keys() - tables:
                database.recreate(name)

    def examine_objects(self, database: SQLiteDatabase, missing: dict[str, str]) -> bool:
        """Report objects that differ from the format's, and remove those that no store has where `repair` is set.

        Args:
            database: File to check.
            missing: What it lacks or has otherwise: `schema_mismatches`.

        Returns:
            False if nothing else can be read.
        """
        foreign = database.foreign_objects()
        for name, kind in missing.items():
            self.report("file", f"the {kind} {name} is missing or not as it should be")
        for name, kind in foreign.items():
            if name not in missing:
                self.report("file", f"the {kind} {name[:80]!r} does not belong into a store")
        if foreign and not self.repair:  # nothing else is read: an index, for one, could run for hours
            self.health.notes.append("the rest is checked once what does not belong into a store is removed (--repair)")
            return False
        for name, kind in foreign.items():
            database.drop(name, kind)
        return True

    def examine_orphans(self, database: SQLiteDatabase) -> None:
        """Report rows of no namespace, and delete those that follow from the log."""
        for table in _COUNTED:
            rows = f"FROM {table} WHERE ns NOT IN (SELECT ns FROM namespaces)"
            (count,) = database.connection.execute(f"SELECT count(*) {rows}").fetchone()
            if count and table == "operations":
                self.report("log", f"{count} rows belong to no namespace; {ADVICE}")
            elif count:
                self.report(table, f"{count} rows belong to no namespace")
                if self.repair:
                    database.connection.execute(f"DELETE {rows}")

    def report(self, part: Any, message: str, namespace: str | None = None) -> None:
        """Add a problem to the report.

        Args:
            part: Part of the store, as in `Problem`.
            message: The fault in words.
            namespace: Namespace that it is in; None for the whole store.
        """
        self.health.problems.append(Problem(part, message, namespace))

    def replay(self, rows: Namespace) -> dict[tuple[str, int], tuple[Any, ...]] | None:
        """Return the rows of `versions` that follow from the log, by id and version; None if the log is not sound."""
        state, created = MemoryState.empty(rows.schema), {}
        versions: dict[tuple[str, int], tuple[MemoryEntry, int]] = {}
        effective_positions, previous_time = [0], ""
        for position in range(1, rows.log.position + 1):
            try:
                with self.database.transaction(write=False):
                    ((logged_position, time, effective_position, operation),) = rows.log.page(position - 1, 1)
                if logged_position != position:
                    raise ValueError(f"it is missing; the next is {logged_position}")
                if time < previous_time or format_utc(datetime.fromisoformat(time)) != time:
                    raise ValueError(f"its time {time!r} is before that of the last, {previous_time!r}, or no time")
                is_own = effective_position == position
                if not is_own and not (
                    0 <= effective_position < position and effective_positions[effective_position] == effective_position
                ):
                    raise ValueError(f"its head {effective_position!r} is no position that an undo could go back from")
                change = plan(state, operation, position)
            except (StoreError, ValueError, TypeError) as error:
                self.report("log", f"position {position}: {error}; {ADVICE}", rows.name)
                return None
            effective_positions.append(effective_position)
            if position == rows.log.position and time > self.database.now():
                self.health.notes.append(f"the log of {rows.name} ends in the future ({time[:19]}): a clock was wrong")
            previous_time, state = time, state.advance(change)
            for entry in (change.ended, change.entry):
                if entry is not None:
                    versions[entry.id, entry.version] = entry, created.setdefault(entry.id, position)
        self.health.counts["operations"] += len(effective_positions) - 1
        return {key: version_row(entry, created) for key, (entry, created) in versions.items()}

    def compare_versions(self, rows: Namespace, expected: dict[tuple[str, int], tuple[Any, ...]]) -> bool:
        """Compare the stored versions with those of the log; return False if the log may be at fault."""
        stored = {(row[5], row[0]): row for row in rows.entries.rows()}
        self.health.counts["versions"] += len(stored)
        wrong = [key for key, row in stored.items() if expected.get(key) != row]
        missing = [key for key in expected if key not in stored]
        last_position = rows.log.position
        if beyond := [
            key
            for key, row in stored.items()
            if any(isinstance(position, int) and position > last_position for position in row[1:3])
        ]:
            self.report("log", f"it ends at {last_position}, before {_name_some(beyond)}; {ADVICE}", rows.name)
            return False
        # Each version has a checksum of its content. If the checksum contradicts the log, the log is not trusted.
        doubtful = []
        for key in (key for key in wrong if key in expected):
            digest, content = stored[key][4], stored[key][7]
            if digest != expected[key][4] and isinstance(content, str) and digest == content_digest(content):
                doubtful.append(key)
        if doubtful:
            self.report(
                "log", f"the content of {_name_some(doubtful)} is not what its checksum says; {ADVICE}", rows.name
            )
            return False
        for keys, what in ((wrong, "not as the log has them"), (missing, "missing")):
            if keys:
                self.report("versions", f"{len(keys)} {what}: {_name_some(keys)}", rows.name)
        if self.repair and (wrong or missing):
            rows.entries.replace(expected.values())
        return True

    def compare_vectors(self, rows: Namespace, contents: dict[bytes, str], recorded: RecordedEmbedder) -> None:
        """Compare the stored vectors with the embedder's.

        Args:
            rows: Namespace to check.
            contents: Contents of its versions, by digest.
            recorded: Embedder that the store records.
        """
        stored = dict(rows.vectors.rows())
        self.health.counts["vectors"] += len(stored)
        left_over = [key for key in stored if key not in contents]
        missing = [key for key in contents if key not in stored]
        sound = {}  # vectors by digest
        for key in contents.keys() & stored.keys():
            if isinstance(stored[key], bytes) and len(stored[key]) == 4 * recorded.dim:
                row = np.frombuffer(stored[key], "<f4")
                if first_faulty_row(row[None]) is None:
                    sound[key] = row
        wrong = [key for key in contents if key in stored and key not in sound]
        embedded: dict[bytes, bytes] = {}
        try:
            embedder, keys = recorded.load(), list(contents)
            for start in range(0, len(keys), _BATCH):
                batch = keys[start : start + _BATCH]
                vectors = embedder.encode([contents[key] for key in batch])
                for key, vector in zip(batch, vectors, strict=True):
                    embedded[key] = vector_blob(vector)
                    if key in sound and np.abs(sound[key] - vector).max(initial=0.0) > _TOLERANCE:
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
            remaining = {key: stored[key] for key in contents if key in stored}
            rows.vectors.replace((remaining | embedded).items())


def _name_some(keys: list[tuple[str, int]]) -> str:
    """Return the names of the first few versions."""
    names = [f"{id!r} v{version}" for id, version in keys[:_MAX_LISTED]]
    return ", ".join(names) + (" ..." if len(keys) > _MAX_LISTED else "")
