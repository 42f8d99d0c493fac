"""Definition of a PostgreSQL schema of stores: tables, indexes, row-level security and triggers.

The tables are those of a store file. Each but `meta`, `namespaces` and `members` has the namespace's id as the first
column of its keys, and every statement names one, so a cluster can spread them by it. Text is `COLLATE "C"`, so its
order is that of code points, as in SQLite. `vectors` holds the embedding of a content, as a store file does.

Row-level security also applies to the owner. A row is visible and writable only in a transaction that names its
namespace in `memalpha.ns`, and only for the tables' owner or a role that `members` lists with that namespace. Only the
owner writes `members`, so setting the parameter grants nothing. A second policy lets the triggers, which run as the
owner, read the log and the versions without that look-up. Superusers and roles with BYPASSRLS bypass all of this:
applications should be neither.

The triggers keep the past: the log is append-only, and versions follow the log. They hold for every role, the owner
included. A tenant that writes SQL can therefore append and erase, as the store does, but change nothing that was:

- A log row is appended at the end, with a time that is not before that of the last. It changes by erasure only.
- A version is inserted as a row of the log has it. It is ended once, by a row of the log. It is deleted after its row
  of the log was erased.

The owner may switch the triggers off, to drop a namespace or to repair one. Their functions run as the owner, whom a
policy lets read the log and the versions inside a trigger. They name what they read and search no path, so that a
caller's `search_path` cannot put something else in its place. Who renames the schema makes them anew
(`guard_functions`).
"""

from __future__ import annotations

from pathlib import Path

from memalpha.store.fields import FIELDS, INDEXES, NAMES, TIMES, columns, listed, sql_default

LOG_TRIGGERS = ("operations_stay", "operations_last", "operations_whole", "operations_next")
VERSION_TRIGGERS = ("versions_stay", "versions_made", "versions_gone")
_LASTING = ("ns", "id", "version", "category", "content", *NAMES, "valid_from", "created", "digest")
TABLES = ("operations", "versions", "vectors")
FUNCTIONS = ("append_only", "follows_last", "as_logged", "is_erased", "stays")


def _read(name: str, **values: str) -> str:
    """Return an SQL file of this folder with its braces filled in."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8").format(**values)


def guard_functions(schema: str) -> str:
    """Return the statements that make the functions of the triggers, or make them anew for a renamed schema.

    Args:
        schema: Quoted name of the schema, which the search path has first.
    """
    required = ("id", "category", "content", *(field.name for field in FIELDS if field.default is not None))
    optional = tuple(field.name for field in FIELDS if field.default is None)
    kept = [field.name for field in FIELDS if field.keeps]
    return _read(
        "guards.sql",
        schema=schema,
        kept=" ".join(f"o.{name} := coalesce(o.{name}, p.{name});" for name in kept),
        set_new=listed("NEW", required),
        set_logged=listed("o", required),
        new=listed("NEW", optional),
        logged=", ".join(f"nullif(o.{name}, '')" if name in TIMES else f"o.{name}" for name in optional),
    )


_TYPES = {"text": 'text COLLATE "C"', "number": "float8", "whole": "bigint"}
_DEFAULTS = {field.name: sql_default(field) for field in FIELDS if field.default is not None}
_OWNER = (
    "pg_has_role((SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.oid = '{schema}.namespaces'::regclass), 'USAGE')"
)
_VISIBLE = (
    "ns = ANY (ARRAY(SELECT n.ns FROM {schema}.namespaces n WHERE n.ns = ANY "
    "(string_to_array(current_setting('memalpha.ns', true), ',')::bigint[])))"
)


def create_script(schema: str) -> str:
    """Return the statements that create the tables of a schema (quoted name)."""
    return _read(
        "schema.sql",
        schema=schema,
        log_columns=columns(_TYPES, in_log=True),
        version_columns=columns(_TYPES, in_log=False),
        indexes=INDEXES,
        defaulted=", ".join(_DEFAULTS),
        defaults=", ".join(_DEFAULTS.values()),
        guards=guard_functions(schema),
        new_contents=listed("NEW", ("category", "content", *NAMES, "reason")),
        new_lasting=listed("NEW", _LASTING),
        old_lasting=listed("OLD", _LASTING),
        owner=_OWNER.format(schema=schema),
        visible=_VISIBLE.format(schema=schema),
    )


def drop_script(schema: str) -> str:
    """Return the statements that drop the tables and functions of a schema (quoted name).

    They fail if a namespace exists.
    """
    tables = ", ".join(f"{schema}.{table}" for table in ("meta", "members", "namespaces", *TABLES))
    functions = ", ".join(f"{schema}.{name}()" for name in FUNCTIONS)
    return f"""\
LOCK TABLE {schema}.namespaces;
SELECT 1 / (SELECT count(*) = 0 FROM {schema}.namespaces)::integer;
DROP TABLE {tables};
DROP FUNCTION {functions}, {schema}.admit(name, text);"""
