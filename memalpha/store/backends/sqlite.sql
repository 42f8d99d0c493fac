CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE namespaces (ns INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE operations (
  ns INTEGER NOT NULL, seq INTEGER NOT NULL, time TEXT NOT NULL, head INTEGER NOT NULL, kind TEXT NOT NULL,
  id TEXT, category TEXT, content TEXT, {log_columns}, reason TEXT,
  PRIMARY KEY (ns, seq)) WITHOUT ROWID;
CREATE TRIGGER operations_stay BEFORE UPDATE ON operations WHEN NOT (
  OLD.kind <> 'erased' AND NEW.kind = 'erased' AND (NEW.ns, NEW.seq, NEW.time, NEW.head)
    = (OLD.ns, OLD.seq, OLD.time, OLD.head)
  AND coalesce({new_contents}) IS NULL)
BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TRIGGER operations_last BEFORE DELETE ON operations BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TABLE versions (
  ns INTEGER NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, category TEXT NOT NULL, content TEXT NOT NULL,
  {first_columns},
  valid_from INTEGER NOT NULL, valid_to INTEGER, created INTEGER NOT NULL, digest BLOB NOT NULL,
  {later_columns}, PRIMARY KEY (ns, id, version)) WITHOUT ROWID;
{indexes}
CREATE INDEX spans ON versions (ns, source, coalesce(chunk, -1), created)
  WHERE valid_to IS NULL AND turn IS NOT NULL AND source IS NOT NULL;
CREATE TABLE vectors (ns INTEGER NOT NULL, digest BLOB NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (ns, digest));
PRAGMA application_id = {application_id};
PRAGMA user_version = {format};
