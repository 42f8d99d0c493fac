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

from memalpha.store.fields import FIELDS, INDEXES, NAMES, TIMES, columns, listed, sql_default

LOG_TRIGGERS = ("operations_stay", "operations_last", "operations_whole", "operations_next")
VERSION_TRIGGERS = ("versions_stay", "versions_made", "versions_gone")
_LASTING = ("ns", "id", "version", "category", "content", *NAMES, "valid_from", "created", "digest")
FUNCTIONS = ("append_only", "follows_last", "as_logged", "is_erased", "stays")

# In `as_logged`, `o` is the log row that made the version, `e` the one that ended it, and `p` the version before. An
# update takes what it leaves out from there; "" removes a date (see `state.plan`).
_FUNCTIONS = """\
CREATE OR REPLACE FUNCTION append_only() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  RAISE EXCEPTION 'the log is append-only';
END $$;

CREATE OR REPLACE FUNCTION follows_last() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog AS $$
DECLARE previous text;
BEGIN
  SELECT time INTO previous FROM {schema}.operations WHERE ns = NEW.ns AND seq = NEW.seq - 1;
  IF previous <= NEW.time THEN RETURN NULL; END IF;
  RAISE EXCEPTION 'the log is append-only: a row comes after the last one, and not before its time';
END $$;

CREATE OR REPLACE FUNCTION as_logged() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog AS $$
DECLARE o {schema}.operations; e {schema}.operations; p {schema}.versions;
BEGIN
  IF NEW.valid_to IS NOT NULL THEN
    SELECT * INTO e FROM {schema}.operations WHERE ns = NEW.ns AND seq = NEW.valid_to;
  END IF;
  IF NEW.valid_to IS NULL
    OR NEW.valid_to > NEW.valid_from AND e.id = NEW.id AND e.kind IN ('update', 'delete', 'expired')
  THEN
    IF TG_OP = 'UPDATE' THEN RETURN NULL; END IF;
    SELECT * INTO o FROM {schema}.operations WHERE ns = NEW.ns AND seq = NEW.valid_from;
    IF NEW.version > 1 THEN
      SELECT * INTO p FROM {schema}.versions WHERE ns = NEW.ns AND id = NEW.id AND version = NEW.version - 1;
    END IF;
    IF o.kind = 'insert' AND NEW.version = 1 AND NEW.created = NEW.valid_from
      OR o.kind IN ('insert', 'update') AND p.created = NEW.created AND p.valid_to <= NEW.valid_from
    THEN
      IF o.kind = 'update' THEN
        {kept}
      END IF;
      IF ({set_new}) = ({set_logged}) AND ({new}) IS NOT DISTINCT FROM ({logged})
      THEN RETURN NULL; END IF;
    END IF;
  END IF;
  RAISE EXCEPTION 'versions are as the log has them';
END $$;

CREATE OR REPLACE FUNCTION is_erased() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog AS $$
BEGIN
  IF 'erased' = (SELECT kind FROM {schema}.operations WHERE ns = OLD.ns AND seq = OLD.valid_from) THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION 'a version is deleted after its row of the log was erased';
END $$;

CREATE OR REPLACE FUNCTION stays() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  RAISE EXCEPTION 'versions do not change';
END $$;"""

TRIGGERS = f"""\
CREATE TRIGGER operations_stay BEFORE UPDATE ON operations FOR EACH ROW WHEN (NOT (
  OLD.kind <> 'erased' AND NEW.kind = 'erased' AND (NEW.ns, NEW.seq, NEW.time, NEW.head)
    = (OLD.ns, OLD.seq, OLD.time, OLD.head)
  AND num_nonnulls({listed("NEW", ("category", "content", *NAMES, "reason"))}) = 0)) EXECUTE FUNCTION append_only();
CREATE TRIGGER operations_last BEFORE DELETE ON operations FOR EACH ROW EXECUTE FUNCTION append_only();
CREATE TRIGGER operations_whole BEFORE TRUNCATE ON operations FOR EACH STATEMENT EXECUTE FUNCTION append_only();
CREATE TRIGGER operations_next AFTER INSERT ON operations FOR EACH ROW WHEN (NEW.seq <> 1)
  EXECUTE FUNCTION follows_last();
CREATE TRIGGER versions_stay BEFORE UPDATE ON versions FOR EACH ROW WHEN (
  OLD.valid_to IS NOT NULL
  OR ({listed("NEW", _LASTING)}) IS DISTINCT FROM ({listed("OLD", _LASTING)})) EXECUTE FUNCTION stays();
CREATE TRIGGER versions_made AFTER INSERT OR UPDATE ON versions FOR EACH ROW EXECUTE FUNCTION as_logged();
CREATE TRIGGER versions_gone AFTER DELETE ON versions FOR EACH ROW EXECUTE FUNCTION is_erased();"""


def guard_functions(schema: str) -> str:
    """Return the statements that make the functions of the triggers, or make them anew for a renamed schema.

    Args:
        schema: Quoted name of the schema, which the search path has first.
    """
    required = ("id", "category", "content", *(field.name for field in FIELDS if field.default is not None))
    optional = tuple(field.name for field in FIELDS if field.default is None)
    kept = [field.name for field in FIELDS if field.keeps]
    return _FUNCTIONS.format(
        schema=schema,
        kept=" ".join(f"o.{name} := coalesce(o.{name}, p.{name});" for name in kept),
        set_new=listed("NEW", required),
        set_logged=listed("o", required),
        new=listed("NEW", optional),
        logged=", ".join(f"nullif(o.{name}, '')" if name in TIMES else f"o.{name}" for name in optional),
    )


TABLES = ("operations", "versions", "vectors")

_TYPES = {"text": 'text COLLATE "C"', "number": "float8", "whole": "bigint"}
_DDL = f"""
CREATE TABLE meta (key text COLLATE "C" PRIMARY KEY, value text NOT NULL);
CREATE TABLE namespaces (
  ns bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE, turn boolean);
CREATE TABLE members (role regrole NOT NULL, namespace text COLLATE "C" NOT NULL, PRIMARY KEY (role, namespace));
CREATE TABLE operations (
  ns bigint NOT NULL, seq bigint NOT NULL, time text COLLATE "C" NOT NULL, head bigint NOT NULL,
  kind text COLLATE "C" NOT NULL, id text COLLATE "C", category text COLLATE "C", content text COLLATE "C",
  {columns(_TYPES, in_log=True)},
  reason text COLLATE "C", PRIMARY KEY (ns, seq));
CREATE TABLE versions (
  ns bigint NOT NULL, id text COLLATE "C" NOT NULL, version bigint NOT NULL, category text COLLATE "C" NOT NULL,
  content text COLLATE "C" NOT NULL, {columns(_TYPES, in_log=False)},
  valid_from bigint NOT NULL, valid_to bigint, created bigint NOT NULL, digest bytea NOT NULL,
  source_key bigint GENERATED ALWAYS AS (hashtextextended(source, 0)) STORED, PRIMARY KEY (ns, id, version));
CREATE TABLE vectors (ns bigint NOT NULL, digest bytea NOT NULL, vector bytea NOT NULL, PRIMARY KEY (ns, digest));
ALTER TABLE vectors ALTER COLUMN vector SET STORAGE EXTERNAL;

{INDEXES}
CREATE INDEX spans ON versions (ns, source_key, coalesce(chunk, -1), created)
  WHERE valid_to IS NULL AND turn IS NOT NULL AND source IS NOT NULL;
"""

# Collect statistics from synthetic rows, then remove the rows. Only the owner may run ANALYZE, and the first automatic
# one may come late. Until then PostgreSQL would estimate one row per namespace, consider all indexes equal, and read a
# whole namespace to find one entry.
_DEFAULTS = {field.name: sql_default(field) for field in FIELDS if field.default is not None}
_STATISTICS = f"""
INSERT INTO operations (ns, seq, time, head, kind, id, content)
  SELECT n % 32, n, n, n, 'insert', n, n FROM generate_series(1, 3200) n;
INSERT INTO versions (ns, id, version, category, content, {", ".join(_DEFAULTS)}, valid_from, valid_to, created,
  digest, source, chunk, turn)
  SELECT n % 32, n, 1, n % 5, n, {", ".join(_DEFAULTS.values())}, n, CASE WHEN n % 4 = 0 THEN n + 1 END, n,
  decode(md5(n::text), 'hex'), n / 30, n % 30, n FROM generate_series(1, 3200) n;
INSERT INTO vectors SELECT n % 32, decode(md5(n::text), 'hex'), '' FROM generate_series(1, 3200) n;
ANALYZE operations, versions, vectors;
TRUNCATE operations, versions, vectors;
"""

# `visible` is evaluated once per statement; the policy of `namespaces` decides which rows of it the role sees. Roles
# are compared by oid: one that is dropped and created again is another one.
_POLICIES = """
CREATE POLICY own ON members USING ({owner} OR role = {me}) WITH CHECK ({owner});
CREATE POLICY own ON namespaces USING (
  {owner} OR name IN (SELECT m.namespace FROM {schema}.members m WHERE m.role = {me}));
CREATE POLICY guard ON operations FOR SELECT USING (pg_trigger_depth() > 0 AND {owner});
CREATE POLICY guard ON versions FOR SELECT USING (pg_trigger_depth() > 0 AND {owner});
"""
_VISIBLE_ROWS = "CREATE POLICY own ON {table} USING ({visible});"
_SECURE = "ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;"
_OWNER = (
    "pg_has_role((SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.oid = '{schema}.namespaces'::regclass), 'USAGE')"
)
_ME = "quote_ident(current_user)::regrole"
_VISIBLE = (
    "ns = ANY (ARRAY(SELECT n.ns FROM {schema}.namespaces n WHERE n.ns = ANY "
    "(string_to_array(current_setting('memalpha.ns', true), ',')::bigint[])))"
)

# Grant other roles exactly what a store needs; not TRUNCATE, which ignores policies, and no change of what was stored.
_ADMIT = """
CREATE FUNCTION admit(role name, namespace text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
  EXECUTE format('GRANT USAGE ON SCHEMA {schema} TO %1$I;'
    'GRANT SELECT ON {schema}.meta, {schema}.members, {schema}.namespaces TO %1$I;'
    'GRANT INSERT (name), UPDATE (turn) ON {schema}.namespaces TO %1$I;'
    'GRANT SELECT, INSERT, UPDATE ON {schema}.operations TO %1$I;'
    'GRANT UPDATE (valid_to) ON {schema}.versions TO %1$I;'
    'GRANT SELECT, INSERT, DELETE ON {schema}.versions, {schema}.vectors TO %1$I', role);
  INSERT INTO {schema}.members VALUES (quote_ident(role)::regrole, namespace) ON CONFLICT DO NOTHING;
END $$;
REVOKE ALL ON FUNCTION admit FROM PUBLIC;
"""


def create_script(schema: str) -> str:
    """Return the statements that create the tables of a schema (quoted name)."""
    owner, visible = _OWNER.format(schema=schema), _VISIBLE.format(schema=schema)
    statements = [
        f"SET LOCAL search_path = {schema};",
        _DDL,
        _STATISTICS,  # before the triggers: no log has the synthetic rows
        guard_functions(schema),
        TRIGGERS,
        _ADMIT.format(schema=schema),
        _POLICIES.format(schema=schema, owner=owner, me=_ME),
        *(_VISIBLE_ROWS.format(table=table, visible=visible) for table in TABLES),
        *(_SECURE.format(table=table) for table in ("namespaces", "members", *TABLES)),
    ]
    return "\n".join(statements)


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
