-- Tables, indexes, row-level security and triggers of a PostgreSQL schema of stores; `ddl` fills the braces in.

SET LOCAL search_path = {schema};

CREATE TABLE meta (key text COLLATE "C" PRIMARY KEY, value text NOT NULL);
CREATE TABLE namespaces (
  ns bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE, turn boolean);
CREATE TABLE members (role regrole NOT NULL, namespace text COLLATE "C" NOT NULL, PRIMARY KEY (role, namespace));
CREATE TABLE operations (
  ns bigint NOT NULL, seq bigint NOT NULL, time text COLLATE "C" NOT NULL, head bigint NOT NULL,
  kind text COLLATE "C" NOT NULL, id text COLLATE "C", category text COLLATE "C", content text COLLATE "C",
  {log_columns},
  reason text COLLATE "C", PRIMARY KEY (ns, seq));
CREATE TABLE versions (
  ns bigint NOT NULL, id text COLLATE "C" NOT NULL, version bigint NOT NULL, category text COLLATE "C" NOT NULL,
  content text COLLATE "C" NOT NULL, {version_columns},
  valid_from bigint NOT NULL, valid_to bigint, created bigint NOT NULL, digest bytea NOT NULL,
  source_key bigint GENERATED ALWAYS AS (hashtextextended(source, 0)) STORED, PRIMARY KEY (ns, id, version));
CREATE TABLE vectors (ns bigint NOT NULL, digest bytea NOT NULL, vector bytea NOT NULL, PRIMARY KEY (ns, digest));
ALTER TABLE vectors ALTER COLUMN vector SET STORAGE EXTERNAL;

{indexes}
CREATE INDEX spans ON versions (ns, source_key, coalesce(chunk, -1), created)
  WHERE valid_to IS NULL AND turn IS NOT NULL AND source IS NOT NULL;

-- Collect statistics from synthetic rows, then remove the rows. Only the owner may run ANALYZE, and the first automatic
-- one may come late. Until then PostgreSQL would estimate one row per namespace, consider all indexes equal, and read a
-- whole namespace to find one entry. No trigger is there yet: no log has the synthetic rows.
INSERT INTO operations (ns, seq, time, head, kind, id, content)
  SELECT n % 32, n, n, n, 'insert', n, n FROM generate_series(1, 3200) n;
INSERT INTO versions (ns, id, version, category, content, {defaulted}, valid_from, valid_to, created,
  digest, source, chunk, turn)
  SELECT n % 32, n, 1, n % 5, n, {defaults}, n, CASE WHEN n % 4 = 0 THEN n + 1 END, n,
  decode(md5(n::text), 'hex'), n / 30, n % 30, n FROM generate_series(1, 3200) n;
INSERT INTO vectors SELECT n % 32, decode(md5(n::text), 'hex'), '' FROM generate_series(1, 3200) n;
ANALYZE operations, versions, vectors;
TRUNCATE operations, versions, vectors;

{guards}

CREATE TRIGGER operations_stay BEFORE UPDATE ON operations FOR EACH ROW WHEN (NOT (
  OLD.kind <> 'erased' AND NEW.kind = 'erased' AND (NEW.ns, NEW.seq, NEW.time, NEW.head)
    = (OLD.ns, OLD.seq, OLD.time, OLD.head)
  AND num_nonnulls({new_contents}) = 0)) EXECUTE FUNCTION append_only();
CREATE TRIGGER operations_last BEFORE DELETE ON operations FOR EACH ROW EXECUTE FUNCTION append_only();
CREATE TRIGGER operations_whole BEFORE TRUNCATE ON operations FOR EACH STATEMENT EXECUTE FUNCTION append_only();
CREATE TRIGGER operations_next AFTER INSERT ON operations FOR EACH ROW WHEN (NEW.seq <> 1)
  EXECUTE FUNCTION follows_last();
CREATE TRIGGER versions_stay BEFORE UPDATE ON versions FOR EACH ROW WHEN (
  OLD.valid_to IS NOT NULL
  OR ({new_lasting}) IS DISTINCT FROM ({old_lasting})) EXECUTE FUNCTION stays();
CREATE TRIGGER versions_made AFTER INSERT OR UPDATE ON versions FOR EACH ROW EXECUTE FUNCTION as_logged();
CREATE TRIGGER versions_gone AFTER DELETE ON versions FOR EACH ROW EXECUTE FUNCTION is_erased();

-- Grant other roles exactly what a store needs; not TRUNCATE, which ignores policies, and no change of what was stored.
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

-- `visible` is evaluated once per statement; the policy of `namespaces` decides which rows of it the role sees. Roles
-- are compared by oid: one that is dropped and created again is another one.
CREATE POLICY own ON members USING ({owner} OR role = quote_ident(current_user)::regrole) WITH CHECK ({owner});
CREATE POLICY own ON namespaces USING (
  {owner} OR name IN (SELECT m.namespace FROM {schema}.members m WHERE m.role = quote_ident(current_user)::regrole));
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
