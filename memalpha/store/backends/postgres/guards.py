"""Triggers that keep the past of a PostgreSQL store: the log is append-only, and versions follow the log.

They hold for every role, the owner included. A tenant that writes SQL can therefore append and erase, as the store
does, but change nothing that was:

- A log row is appended at the end, with a time that is not before that of the last. It changes by erasure only.
- A version is inserted as a row of the log has it. It is ended once, by a row of the log. It is deleted after its row
  of the log was erased.

The owner may switch the triggers off, to drop a namespace or to repair one.

The functions run as the owner, whom a policy of `ddl` lets read the log and the versions inside a trigger. They name
what they read and search no path, so that a caller's `search_path` cannot put something else in its place. Who renames
the schema makes them anew (`guard_functions`).
"""

from __future__ import annotations

from memalpha.store.fields import BLANKS, FIELDS, NAMES, listed

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
        logged=", ".join(f"nullif(o.{name}, '')" if name in BLANKS else f"o.{name}" for name in optional),
    )
