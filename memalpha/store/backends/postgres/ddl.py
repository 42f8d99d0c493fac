"""Definition of a PostgreSQL schema of stores: tables, indexes and row-level security (`guards` has the triggers).

The tables are those of a store file. Each but `namespaces` is partitioned by the hash of the namespace id, so a
namespace lies in one partition of each, and a cluster can spread them. A closed namespace is one whose rows are being
copied from another server, or were copied to one (see `backends.shards`): no transaction may open it. Text is
`COLLATE "C"`, so its order is that of code points, as in SQLite. `vectors` and `postings` hold the search data of a
content: its embedding and word counts.

Row-level security also applies to the owner. A row is visible and writable only in a transaction that names its
namespace in `memalpha.ns`, and only for the tables' owner or a role that `members` lists with that namespace. Only the
owner writes `members`, so setting the parameter grants nothing. The partitions themselves have a policy for the
owner's reads alone (those of the triggers), so nobody can bypass the tables. Superusers and roles with BYPASSRLS bypass
all of this: applications should be neither.
"""

from __future__ import annotations

from memalpha.store.backends.postgres.guards import APPEND_ONLY, APPEND_ONLY_FUNCTION, FUNCTIONS, version_guards

FORMAT = 5
PARTITIONS = 16
TABLES = ("operations", "versions", "vectors", "postings")

_STATISTICS_ROWS, _STATISTICS_NAMESPACES = 200, 2  # synthetic rows per partition, and their namespaces
_MAX_DIM = 2000  # largest vector that fits into a page and that HNSW supports
_HNSW_INDEX = "CREATE INDEX vectors_near ON vectors USING hnsw (vector {operators});"

_ERASURES = "CREATE INDEX erasures ON operations (ns, seq) WHERE kind = 'erased';"
_QUARANTINE = "CREATE INDEX quarantine ON operations (ns, seq) WHERE kind IN ('quarantined', 'reviewed');"
_MIGRATIONS = {
    1: _ERASURES,
    2: f"""\
DROP TRIGGER operations_stay ON operations;
ALTER TABLE operations ADD COLUMN speaker text COLLATE "C", ADD COLUMN key text COLLATE "C",
  ADD COLUMN reason text COLLATE "C";
ALTER TABLE versions ADD COLUMN speaker text COLLATE "C", ADD COLUMN key text COLLATE "C";
{APPEND_ONLY}
{_QUARANTINE}""",
    3: f"ALTER TABLE namespaces ADD COLUMN closed boolean NOT NULL DEFAULT false;\n{APPEND_ONLY_FUNCTION}",
}
_GUARDED = 4  # the next migration brings the guards of `version_guards`
# Take from the roles of a schema of format 4 what let them change versions.
_REVOKE = """\
DO $$ DECLARE role text; BEGIN
  FOR role IN SELECT DISTINCT r.rolname FROM members m JOIN pg_roles r ON r.oid = m.role::oid LOOP
    EXECUTE format('REVOKE UPDATE ON versions, vectors, postings FROM %I', role);
    EXECUTE format('GRANT UPDATE (valid_to) ON versions TO %I', role);
  END LOOP;
END $$;"""

_DDL = """
CREATE TABLE meta (key text COLLATE "C" PRIMARY KEY, value text NOT NULL);
CREATE TABLE namespaces (
  ns bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE, turn boolean,
  closed boolean NOT NULL DEFAULT false);
CREATE TABLE members (role regrole NOT NULL, namespace text COLLATE "C" NOT NULL, PRIMARY KEY (role, namespace));
CREATE TABLE operations (
  ns bigint NOT NULL, seq bigint NOT NULL, time text COLLATE "C" NOT NULL, head bigint NOT NULL,
  kind text COLLATE "C" NOT NULL, id text COLLATE "C", category text COLLATE "C", content text COLLATE "C",
  timestamp text COLLATE "C", importance float8, metadata text COLLATE "C", source text COLLATE "C", chunk bigint,
  turn text COLLATE "C", expires text COLLATE "C", speaker text COLLATE "C", key text COLLATE "C",
  reason text COLLATE "C", PRIMARY KEY (ns, seq)) PARTITION BY HASH (ns);
CREATE TABLE versions (
  ns bigint NOT NULL, id text COLLATE "C" NOT NULL, version bigint NOT NULL, category text COLLATE "C" NOT NULL,
  content text COLLATE "C" NOT NULL, timestamp text COLLATE "C", importance float8 NOT NULL,
  metadata text COLLATE "C" NOT NULL, source text COLLATE "C", chunk bigint, turn text COLLATE "C",
  valid_from bigint NOT NULL, valid_to bigint, created bigint NOT NULL, digest bytea NOT NULL,
  expires text COLLATE "C", source_key bigint GENERATED ALWAYS AS (hashtextextended(source, 0)) STORED,
  speaker text COLLATE "C", key text COLLATE "C",
  PRIMARY KEY (ns, id, version)) PARTITION BY HASH (ns);
CREATE TABLE vectors (
  ns bigint NOT NULL, digest bytea NOT NULL, vector {extension}.vector({dim}) NOT NULL, PRIMARY KEY (ns, digest))
  PARTITION BY HASH (ns);
CREATE TABLE postings (
  ns bigint NOT NULL, term bigint NOT NULL, digest bytea NOT NULL, count integer NOT NULL, length integer NOT NULL,
  PRIMARY KEY (ns, term, digest) INCLUDE (count, length)) PARTITION BY HASH (ns);

CREATE INDEX core_updates ON operations (ns, seq) WHERE kind = 'core_update';
{erasures}
{quarantine}
CREATE UNIQUE INDEX live_order ON versions (ns, created) WHERE valid_to IS NULL;
CREATE INDEX live_content ON versions (ns, digest) WHERE valid_to IS NULL;
CREATE INDEX expiring ON versions (ns, expires) WHERE valid_to IS NULL AND expires IS NOT NULL;
CREATE INDEX spans ON versions (ns, source_key, coalesce(chunk, -1), created)
  WHERE valid_to IS NULL AND turn IS NOT NULL AND source IS NOT NULL;

{guard}
{append_only}
CREATE TRIGGER operations_last BEFORE DELETE ON operations FOR EACH ROW EXECUTE FUNCTION append_only();
CREATE TRIGGER operations_whole BEFORE TRUNCATE ON operations FOR EACH STATEMENT EXECUTE FUNCTION append_only();

CREATE POLICY own ON members USING ({owner} OR role = {me}) WITH CHECK ({owner});
CREATE POLICY own ON namespaces USING (
  {owner} OR name IN (SELECT m.namespace FROM {schema}.members m WHERE m.role = {me}));
"""

_IS_OWNER = (
    "pg_has_role((SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.oid = '{schema}.namespaces'::regclass), 'USAGE')"
)
_CURRENT_ROLE = "quote_ident(current_user)::regrole"  # by oid: a role that is dropped and created again is another one
_IS_VISIBLE = (
    "ns = ANY (ARRAY(SELECT n.ns FROM {schema}.namespaces n WHERE n.ns = ANY "
    "(string_to_array(current_setting('memalpha.ns', true), ',')::bigint[])))"
)  # evaluated once per statement; the policy of `namespaces` decides which rows the role sees

# Collect statistics from synthetic rows, then remove the rows. Only the owner may run ANALYZE, and the first automatic
# one may come late. Until then PostgreSQL would estimate one row per namespace, consider all indexes equal, and read a
# whole namespace to find one entry.
_STATISTICS = """
INSERT INTO operations (ns, seq, time, head, kind, id, content)
  SELECT n % {namespaces}, n, n, n, 'insert', n, n FROM generate_series(1, {rows}) n;
INSERT INTO versions (ns, id, version, category, content, importance, metadata, valid_from, valid_to, created, digest,
  source, chunk, turn)
  SELECT n % {namespaces}, n, 1, n % 5, n, 1, '{{}}', n, CASE WHEN n % 4 = 0 THEN n + 1 END, n,
  decode(md5(n::text), 'hex'), n / 30, n % 30, n FROM generate_series(1, {rows}) n;
INSERT INTO vectors
  SELECT n % {namespaces}, decode(md5(n::text), 'hex'), array_fill(0.1, ARRAY[{dim}])::real[]::{extension}.vector
  FROM generate_series(1, {rows}) n;
INSERT INTO postings SELECT n % {namespaces}, n % 20, decode(md5((n / 20)::text), 'hex'), 1, 20
  FROM generate_series(1, {rows}) n;
ANALYZE {parts};
TRUNCATE {parts};
"""

# Grant other roles exactly what a store needs; not TRUNCATE, which ignores policies, and no change of what was stored.
_ADMIT = """
CREATE OR REPLACE FUNCTION admit(role name, namespace text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
  EXECUTE format('GRANT USAGE ON SCHEMA {schema} TO %1$I;'
    'GRANT SELECT ON {schema}.meta, {schema}.members, {schema}.namespaces TO %1$I;'
    'GRANT INSERT (name), UPDATE (turn) ON {schema}.namespaces TO %1$I;'
    'GRANT SELECT, INSERT, UPDATE ON {schema}.operations TO %1$I;'
    'GRANT UPDATE (valid_to) ON {schema}.versions TO %1$I;'
    'GRANT SELECT, INSERT, DELETE ON {schema}.versions, {schema}.vectors, {schema}.postings TO %1$I', role);
  INSERT INTO {schema}.members VALUES (quote_ident(role)::regrole, namespace) ON CONFLICT DO NOTHING;
END $$;
REVOKE ALL ON FUNCTION admit FROM PUBLIC;
"""


def create_script(schema: str, extension: str, dim: int) -> str:
    """Return the statements that create the tables of a schema.

    Args:
        schema: Quoted name of the schema.
        extension: Quoted name of the extension's schema.
        dim: Dimension of the vectors.
    """
    owner = _IS_OWNER.format(schema=schema)
    statements = [f"SET LOCAL search_path = {schema};"]
    names = {"schema": schema, "extension": extension, "owner": owner, "me": _CURRENT_ROLE}
    parts_of_log = {
        "erasures": _ERASURES,
        "quarantine": _QUARANTINE,
        "append_only": APPEND_ONLY,
        "guard": APPEND_ONLY_FUNCTION,
    }
    statements.append(_DDL.format(**names, **parts_of_log, dim=dim))
    statements.append(_ADMIT.format(schema=schema))
    if dim <= _MAX_DIM:  # stored in the row, not in the TOAST table
        statements.append("ALTER TABLE vectors ALTER COLUMN vector SET STORAGE PLAIN;")
    parts = [f"{table}_{part}" for table in TABLES for part in range(PARTITIONS)]
    for part in parts:
        table, _, number = part.partition("_")
        bounds = f"(modulus {PARTITIONS}, remainder {number})"
        statements.append(f"CREATE TABLE {part} PARTITION OF {table} FOR VALUES WITH {bounds};")
    statements.append(
        _STATISTICS.format(
            extension=extension,
            dim=dim,
            rows=_STATISTICS_ROWS * PARTITIONS,
            namespaces=_STATISTICS_NAMESPACES * PARTITIONS,
            parts=", ".join(parts),
        )
    )
    statements.append(version_guards(schema, PARTITIONS, owner))  # after the synthetic rows, which no log has
    statements += [f"CREATE POLICY own ON {table} USING ({_IS_VISIBLE.format(schema=schema)});" for table in TABLES]
    statements += [
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;"
        for table in (*TABLES, *parts, "namespaces", "members")
    ]
    if dim <= _MAX_DIM:
        statements.append(_HNSW_INDEX.format(operators=f"{extension}.vector_ip_ops"))
    return "\n".join(statements)


def migration_script(schema: str, version: int) -> str:
    """Return the statements that migrate a schema of an older format to this one.

    Args:
        schema: Quoted name of the schema.
        version: Its format, from 1.
    """
    steps = "\n".join(_MIGRATIONS[step] for step in range(version, _GUARDED))
    guards = version_guards(schema, PARTITIONS, _IS_OWNER.format(schema=schema))
    steps += f"\n{_REVOKE}\n{APPEND_ONLY_FUNCTION}\n{_ADMIT.format(schema=schema)}\n{guards}"
    return f"SET LOCAL search_path = {schema};\n{steps}\nUPDATE meta SET value = '{FORMAT}' WHERE key = 'format';"


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
