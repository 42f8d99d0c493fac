-- Functions of the triggers; `ddl.guard_functions` fills the braces in.
-- In `as_logged`, `o` is the log row that made the version, `e` the one that ended it, and `p` the version before. An
-- update takes what it leaves out from there; "" removes a date (see `state.plan`).
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
END $$;
