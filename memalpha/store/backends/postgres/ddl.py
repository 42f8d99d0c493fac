"""Definition of a PostgreSQL schema of stores: tables, indexes and row-level security (`guards` has the triggers).

The tables are those of a store file. Each but `meta`, `namespaces` and `members` has the namespace's id as the first
column of its keys, and every statement names one, so a cluster can spread them by it. Text is `COLLATE "C"`, so its
order is that of code points, as in SQLite. `vectors` holds the embedding of a content, as a store file does.

Row-level security also applies to the owner. A row is visible and writable only in a transaction that names its
namespace in `memalpha.ns`, and only for the tables' owner or a role that `members` lists with that namespace. Only the
owner writes `members`, so setting the parameter grants nothing. A second policy lets the triggers, which run as the
owner, read the log and the versions without that look-up. Superusers and roles with BYPASSRLS bypass all of this:
applications should be neither.
"""

from __future__ import annotations

from memalpha.store.backends.postgres.guards import FUNCTIONS, TRIGGERS, guard_functions
from memalpha.store.fields import FIELDS, columns, sql_default

FORMAT = 1
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

CREATE INDEX core_updates ON operations (ns, seq) WHERE kind = 'core_update';
CREATE INDEX erasures ON operations (ns, seq) WHERE kind = 'erased';
CREATE INDEX quarantine ON operations (ns, seq) WHERE kind IN ('quarantined', 'reviewed');
CREATE UNIQUE INDEX live_order ON versions (ns, created) WHERE valid_to IS NULL;
CREATE INDEX live_content ON versions (ns, digest) WHERE valid_to IS NULL;
CREATE INDEX expiring ON versions (ns, expires) WHERE valid_to IS NULL AND expires IS NOT NULL;
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
CREATE POLICY own ON operations USING ({visible});
CREATE POLICY own ON versions USING ({visible});
CREATE POLICY own ON vectors USING ({visible});
ALTER TABLE namespaces ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE members ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE operations ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE versions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE vectors ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
"""
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
        _POLICIES.format(schema=schema, owner=owner, me=_ME, visible=visible),
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
