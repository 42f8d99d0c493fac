"""The schema of SQLite store files: tables, indexes, triggers, migrations, and what does not belong into a file.

A file may come from somebody else. Triggers and views are code that runs on every write or read, so a file with any
object that the format does not define is refused by name before anything is written.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from functools import cache

APPLICATION_ID = 0x6D416C70  # "mAlp"
FORMAT = 6

_ADDED_COLUMNS = (", reason TEXT", ", speaker TEXT, key TEXT", ", expires TEXT")  # formats 6, 6 and 3; the log's first
_ADDED = "".join(reversed(_ADDED_COLUMNS[1:]))
_STATISTICS = "CREATE TABLE sqlite_stat1(tbl,idx,stat)"  # made by ANALYZE

_NEW_COLUMNS = ", NEW.speaker, NEW.key, NEW.reason"

# A log row may change by erasure only: it becomes a stub that keeps its position, time and head.
_APPEND_ONLY = """\
CREATE TRIGGER operations_stay BEFORE UPDATE ON operations WHEN NOT (
  OLD.kind <> 'erased' AND NEW.kind = 'erased' AND (NEW.ns, NEW.seq, NEW.time, NEW.head)
    = (OLD.ns, OLD.seq, OLD.time, OLD.head)
  AND coalesce(NEW.category, NEW.content, NEW.timestamp, NEW.importance, NEW.metadata, NEW.source, NEW.chunk, NEW.turn,
    NEW.expires{new_columns}) IS NULL)
BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;"""

_EXPIRING = "CREATE INDEX expiring ON versions (ns, expires) WHERE valid_to IS NULL AND expires IS NOT NULL;"

# Spans of each source in order, so that neighbours of a span are found without reading the source.
_SPANS = """\
CREATE INDEX spans ON versions (ns, source, coalesce(chunk, -1), created)
  WHERE valid_to IS NULL AND turn IS NOT NULL AND source IS NOT NULL;"""

# Finds what awaits a review without reading the log.
_QUARANTINE = "CREATE INDEX quarantine ON operations (ns, seq) WHERE kind IN ('quarantined', 'reviewed');"

# Finds erasures without reading the log: new ids and search indexes depend on whether there are any.
_ERASURES = "CREATE INDEX erasures ON operations (ns, seq) WHERE kind = 'erased';"

DDL = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE namespaces (ns INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE operations (
  ns INTEGER NOT NULL, seq INTEGER NOT NULL, time TEXT NOT NULL, head INTEGER NOT NULL, kind TEXT NOT NULL,
  id TEXT, category TEXT, content TEXT, timestamp TEXT, importance REAL, metadata TEXT, source TEXT, chunk INTEGER,
  turn TEXT{_ADDED}, reason TEXT, PRIMARY KEY (ns, seq)) WITHOUT ROWID;
CREATE INDEX core_updates ON operations (ns, seq) WHERE kind = 'core_update';
{_ERASURES}
{_QUARANTINE}
{_APPEND_ONLY.format(new_columns=_NEW_COLUMNS)}
CREATE TRIGGER operations_last BEFORE DELETE ON operations BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TABLE versions (
  ns INTEGER NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, category TEXT NOT NULL, content TEXT NOT NULL,
  timestamp TEXT, importance REAL NOT NULL, metadata TEXT NOT NULL, source TEXT, chunk INTEGER, turn TEXT,
  valid_from INTEGER NOT NULL, valid_to INTEGER, created INTEGER NOT NULL, digest BLOB NOT NULL{_ADDED},
  PRIMARY KEY (ns, id, version)) WITHOUT ROWID;
CREATE UNIQUE INDEX live_order ON versions (ns, created) WHERE valid_to IS NULL;
CREATE INDEX live_content ON versions (ns, digest) WHERE valid_to IS NULL;
{_EXPIRING}
{_SPANS}
CREATE TABLE vectors (ns INTEGER NOT NULL, digest BLOB NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (ns, digest));
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
"""

# Statements that migrate a file from a format to the next.
MIGRATIONS = {
    1: "",  # another trigger operations_stay, which the next step replaces again
    2: f"""\
DROP TRIGGER operations_stay;
ALTER TABLE operations ADD COLUMN expires TEXT;
ALTER TABLE versions ADD COLUMN expires TEXT;
{_APPEND_ONLY.format(new_columns="")}
{_EXPIRING}""",
    3: _SPANS,
    4: _ERASURES,
    5: f"""\
DROP TRIGGER operations_stay;
ALTER TABLE operations ADD COLUMN speaker TEXT;
ALTER TABLE operations ADD COLUMN key TEXT;
ALTER TABLE operations ADD COLUMN reason TEXT;
ALTER TABLE versions ADD COLUMN speaker TEXT;
ALTER TABLE versions ADD COLUMN key TEXT;
{_APPEND_ONLY.format(new_columns=_NEW_COLUMNS)}
{_QUARANTINE}""",
}


def split_statements(script: str) -> Iterator[str]:
    """Iterate over the statements of a script. (`executescript` would commit the open transaction first.)"""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


@cache
def definitions() -> dict[str, tuple[str, str]]:
    """Return the parts of the format by name: kind (table, index, trigger) and SQL statement."""
    definitions = {}
    for statement in map(str.strip, split_statements(DDL)):
        if match := re.match(r"CREATE (?:UNIQUE )?(TABLE|INDEX|TRIGGER) (\w+)", statement):
            definitions[match[2]] = match[1].lower(), statement
    return definitions


def foreign_objects(connection: sqlite3.Connection, version: int = FORMAT) -> dict[str, str]:
    """Return the objects of a file that its format does not define, or defines otherwise, as {name: kind}.

    Only `sqlite_master` is read, which no view can stand in for.

    Args:
        connection: Open connection to the file.
        version: Format of the file. Triggers and indexes of older formats are compared by name only, because the
            migration replaces them.
    """
    foreign = {}
    for kind, name, table, sql in connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"):
        expected_kind, statement = definitions().get(name, ("", ""))
        expected = {statement.removesuffix(";")}
        if version < FORMAT and kind == "table":
            older = statement.removesuffix(";")
            for column in _ADDED_COLUMNS:
                older = older.replace(column, "")
                expected.add(older)
        is_same = kind == expected_kind and (sql in expected or (version < FORMAT and kind != "table"))
        is_automatic = kind == "index" and sql is None and name.startswith("sqlite_autoindex_") and table in TABLES
        if not (is_same or is_automatic or (kind == "table" and sql == _STATISTICS)):
            foreign[name] = kind
    return foreign


TABLES = frozenset(name for name, (kind, _) in definitions().items() if kind == "table")
"""Names of the tables of a store file."""
