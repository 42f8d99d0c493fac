"""The schema of SQLite store files: tables, indexes, triggers, and what does not belong into a file.

A file may come from somebody else. Triggers and views are code that runs on every write or read, so a file with any
object that the format does not define is refused by name before anything is written.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from functools import cache

from memalpha.store.fields import NAMES, columns, listed

APPLICATION_ID = 0x6D416C70  # "mAlp"
FORMAT = 1

_STATISTICS = "CREATE TABLE sqlite_stat1(tbl,idx,stat)"  # made by ANALYZE

_TYPES = {"text": "TEXT", "number": "REAL", "whole": "INTEGER"}
_FIRST = NAMES[: NAMES.index("turn") + 1]  # versions have the later fields at their end

# - operations_stay: a log row may change by erasure only. It becomes a stub that keeps its position, time and head.
# - expiring, erasures, quarantine: find what expired, was erased or awaits a review without reading log or versions.
# - spans: those of each source in order, so that neighbours of a span are found without reading the source.
DDL = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE namespaces (ns INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE operations (
  ns INTEGER NOT NULL, seq INTEGER NOT NULL, time TEXT NOT NULL, head INTEGER NOT NULL, kind TEXT NOT NULL,
  id TEXT, category TEXT, content TEXT, {columns(_TYPES, in_log=True)}, reason TEXT,
  PRIMARY KEY (ns, seq)) WITHOUT ROWID;
CREATE INDEX core_updates ON operations (ns, seq) WHERE kind = 'core_update';
CREATE INDEX erasures ON operations (ns, seq) WHERE kind = 'erased';
CREATE INDEX quarantine ON operations (ns, seq) WHERE kind IN ('quarantined', 'reviewed');
CREATE TRIGGER operations_stay BEFORE UPDATE ON operations WHEN NOT (
  OLD.kind <> 'erased' AND NEW.kind = 'erased' AND (NEW.ns, NEW.seq, NEW.time, NEW.head)
    = (OLD.ns, OLD.seq, OLD.time, OLD.head)
  AND coalesce({listed("NEW", ("category", "content", *NAMES, "reason"))}) IS NULL)
BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TRIGGER operations_last BEFORE DELETE ON operations BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TABLE versions (
  ns INTEGER NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, category TEXT NOT NULL, content TEXT NOT NULL,
  {columns(_TYPES, in_log=False, names=_FIRST)},
  valid_from INTEGER NOT NULL, valid_to INTEGER, created INTEGER NOT NULL, digest BLOB NOT NULL,
  {columns(_TYPES, in_log=False, names=NAMES[len(_FIRST) :])}, PRIMARY KEY (ns, id, version)) WITHOUT ROWID;
CREATE UNIQUE INDEX live_order ON versions (ns, created) WHERE valid_to IS NULL;
CREATE INDEX live_content ON versions (ns, digest) WHERE valid_to IS NULL;
CREATE INDEX expiring ON versions (ns, expires) WHERE valid_to IS NULL AND expires IS NOT NULL;
CREATE INDEX spans ON versions (ns, source, coalesce(chunk, -1), created)
  WHERE valid_to IS NULL AND turn IS NOT NULL AND source IS NOT NULL;
CREATE TABLE vectors (ns INTEGER NOT NULL, digest BLOB NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (ns, digest));
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
"""


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


def foreign_objects(connection: sqlite3.Connection) -> dict[str, str]:
    """Return the objects of a file that the format does not define, or defines otherwise, as {name: kind}.

    Only `sqlite_master` is read, which no view can stand in for.
    """
    foreign = {}
    for kind, name, table, sql in connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"):
        expected_kind, statement = definitions().get(name, ("", ""))
        is_same = kind == expected_kind and is_same_sql(sql, statement)
        is_automatic = kind == "index" and sql is None and name.startswith("sqlite_autoindex_") and table in TABLES
        if not (is_same or is_automatic or (kind == "table" and sql == _STATISTICS)):
            foreign[name] = kind
    return foreign


def is_same_sql(sql: str | None, statement: str) -> bool:
    """Return True if a recorded definition is that of the format; line ends differ among what made a file."""
    return (sql or "").split() == statement.removesuffix(";").split()


TABLES = frozenset(name for name, (kind, _) in definitions().items() if kind == "table")
"""Names of the tables of a store file."""
