"""The routing table of a sharded store: which server has which namespace.

It lies in a schema of its own, in a database of any of the servers or of another. A namespace gets its server when it
is first written: one of those that take new ones, by the hash of its name. From then on its row says where it is, and
only a move changes that, in one statement. While a namespace moves, an advisory lock of the table's server is held; it
ends with the connection of the process that moves it, also if that process is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql

from memalpha.errors import StoreError, StoreUnavailable
from memalpha.store.backends.postgres.connections import Connections
from memalpha.store.backends.postgres.errors import is_connection_lost, raise_store_error
from memalpha.store.backends.postgres.url import redact_url
from memalpha.store.backends.shards.url import split_shards_url

FORMAT = 1
_CONNECTIONS = 4

# Roles other than the owner call the functions: they may look a name up, and give a new one its server, but list none.
_DDL = """
CREATE TABLE {schema}.meta (key text PRIMARY KEY, value text NOT NULL);
CREATE TABLE {schema}.shards (
  number integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, url text NOT NULL UNIQUE, takes_new boolean NOT NULL);
CREATE TABLE {schema}.routes (
  namespace text COLLATE "C" PRIMARY KEY, shard integer NOT NULL REFERENCES {schema}.shards);
CREATE FUNCTION {schema}.first_shard(name text) RETURNS integer STABLE LANGUAGE sql SET search_path = {schema}, pg_temp
  AS $$ SELECT number FROM shards WHERE takes_new ORDER BY number LIMIT 1 OFFSET
    (hashtextextended(name, 0) & 4611686018427387903) % nullif((SELECT count(*) FROM shards WHERE takes_new), 0) $$;
CREATE FUNCTION {schema}.find(names text[]) RETURNS TABLE (namespace text, shard integer, is_routed boolean)
  STABLE SECURITY DEFINER LANGUAGE sql SET search_path = {schema}, pg_temp
  AS $$ SELECT n, coalesce(r.shard, first_shard(n)), r.shard IS NOT NULL
    FROM unnest(names) n LEFT JOIN routes r ON r.namespace = n $$;
CREATE FUNCTION {schema}.assign(name text, beside integer) RETURNS integer
  SECURITY DEFINER LANGUAGE plpgsql SET search_path = {schema}, pg_temp AS $$
BEGIN
  INSERT INTO routes SELECT name, coalesce(beside, first_shard(name)) ON CONFLICT DO NOTHING;
  RETURN (SELECT r.shard FROM routes r WHERE r.namespace = name);
END $$;
CREATE FUNCTION {schema}.admit(role name) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('GRANT USAGE ON SCHEMA {schema} TO %1$I; GRANT SELECT ON {schema}.meta, {schema}.shards TO %1$I;'
    'GRANT EXECUTE ON FUNCTION {schema}.find, {schema}.assign TO %1$I', role);
END $$;
REVOKE ALL ON FUNCTION {schema}.find, {schema}.assign, {schema}.admit FROM PUBLIC;
"""


class Directory:
    """Routing table of a sharded store.

    Attributes:
        path: Its URL without secrets.
        meta: Schema and embedder of the store, which all servers must have.
    """

    def __init__(self, url: str, *, create: bool, initial_meta: Callable[[], dict[str, str]]) -> None:
        """Open the table.

        Args:
            url: `postgresql+shards://user@host/database?schema=NAME`.
            create: Create a missing table.
            initial_meta: Returns schema and embedder of a new store.

        Raises:
            StoreError: There is none and `create` is False, or it cannot be opened.
        """
        self.path = redact_url(url)
        conninfo, self._schema = split_shards_url(url)
        self._name = sql.Identifier(self._schema).as_string(None)
        self._connections = Connections(conninfo, self.path, lambda connection: None, _CONNECTIONS)
        try:
            with self._connection("nothing was done") as connection:
                if not self._exists(connection):
                    if not create:
                        raise StoreError(
                            f"{self.path}: the database has no routing table: `memalpha shards add` makes it"
                        )
                    self._create(connection, initial_meta())
                self.meta = dict(connection.execute(f"SELECT key, value FROM {self._name}.meta".encode()).fetchall())
            if self.meta.get("format") != str(FORMAT):
                raise StoreError(f"{self.path} has format {self.meta.get('format')}, this memalpha reads {FORMAT}")
        except BaseException:
            self._connections.close()
            raise

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def ping(self) -> None:
        """Check that the server of the table answers. Raises `StoreUnavailable` otherwise."""
        self._connections.ping()

    def shards(self) -> dict[int, tuple[str, bool]]:
        """Return the URL of every server by its number, and whether it takes new namespaces."""
        rows = self._query("SELECT number, url, takes_new FROM {}.shards ORDER BY number")
        return {number: (url, takes_new) for number, url, takes_new in rows}

    def find(self, names: Collection[str]) -> dict[str, tuple[int | None, bool]]:
        """Return the server of each namespace, and whether that is stored; None if there is no server at all."""
        rows = self._query("SELECT * FROM {}.find(%s)", list(names))
        return {name: (shard, is_routed) for name, shard, is_routed in rows}

    def assign(self, name: str, beside: int | None) -> int:
        """Return the server of a namespace, and store it if there was none.

        Args:
            name: Name of the namespace.
            beside: Server that a new one gets; None is that of its hash.
        """
        try:
            return self._query("SELECT {}.assign(%s, %s)", name, beside)[0][0]
        except StoreError as error:
            if isinstance(error.__cause__, psycopg.errors.NotNullViolation):
                raise StoreError(
                    f"{self.path}: no server takes new namespaces: `memalpha shards add` adds one"
                ) from error
            raise

    def routes(self) -> dict[str, int]:
        """Return the server of every namespace; for the owner alone."""
        return dict(self._query("SELECT namespace, shard FROM {}.routes ORDER BY namespace"))

    def add_shard(self, url: str, names: Collection[str]) -> int:
        """Add a server with the namespaces that it has, and return its number; a known one takes new ones again.

        Raises `StoreError` if another server has one of them.
        """
        with self._connection("nothing was done") as connection, connection.transaction():
            statement = (
                f"INSERT INTO {self._name}.shards (url, takes_new) VALUES (%s, true) "
                "ON CONFLICT (url) DO UPDATE SET takes_new = true RETURNING number"
            )
            (number,) = connection.execute(statement.encode(), [url]).fetchone() or (0,)
            rows = connection.execute(
                f"INSERT INTO {self._name}.routes SELECT unnest(%s::text[]), %s ON CONFLICT (namespace) DO UPDATE "
                "SET shard = routes.shard RETURNING namespace, shard".encode(),
                [list(names), number],
            ).fetchall()
            foreign = [name for name, shard in rows if shard != number]
            if foreign:
                raise StoreError(f"{redact_url(url)}: it has a namespace {foreign[0]!r}, and so has another server")
        return number

    def remove_shard(self, number: int) -> int:
        """Let a server take no new namespaces, and remove it if it has none; return how many it has."""
        with self._connection("nothing was done") as connection:
            connection.execute(f"UPDATE {self._name}.shards SET takes_new = false WHERE number = %s".encode(), [number])
            query = f"SELECT count(*) FROM {self._name}.routes WHERE shard = %s"
            (count,) = connection.execute(query.encode(), [number]).fetchone() or (0,)
            if not count:
                connection.execute(f"DELETE FROM {self._name}.shards WHERE number = %s".encode(), [number])
            return count

    @contextmanager
    def move_lock(self, name: str) -> Iterator[MoveLock | None]:
        """Lock the place of a namespace during the block; yield None if somebody else has locked it."""
        with self._connection("nothing was done") as connection:
            key = f"{self._schema} {name}"
            (is_locked,) = connection.execute(
                "SELECT pg_try_advisory_lock(hashtextextended(%s, 4))", [key]
            ).fetchone() or (False,)
            if not is_locked:
                yield None
                return
            try:
                yield MoveLock(connection, self._name, self.path, name)
            finally:
                try:
                    connection.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 4))", [key])
                except psycopg.Error:
                    connection.close()  # whatever its state: the lock ends with the connection

    def _exists(self, connection: psycopg.Connection) -> bool:
        row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [f"{self._name}.routes"]).fetchone()
        return row is not None and row[0]

    def _create(self, connection: psycopg.Connection, meta: dict[str, str]) -> None:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"memalpha {self._schema}"])
            if self._exists(connection):  # another process was faster
                return
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {self._name}".encode())
            connection.execute(_DDL.replace("{schema}", self._name).encode(), prepare=False)
            rows = {**{key: meta[key] for key in ("schema", "embedder")}, "format": str(FORMAT)}
            connection.cursor().executemany(f"INSERT INTO {self._name}.meta VALUES (%s, %s)".encode(), rows.items())

    def _query(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        text = query.replace("{}", self._name).encode()
        for retries in range(_CONNECTIONS, -1, -1):  # after a restart of the server all pooled connections may be dead
            try:
                with self._connection("nothing was done") as connection:
                    return connection.execute(text, values).fetchall()
            except StoreUnavailable as error:
                if not (retries and isinstance(error.__cause__, psycopg.Error) and is_connection_lost(error.__cause__)):
                    raise
                self.ping()  # raises the reason if the server is gone
        raise AssertionError

    @contextmanager
    def _connection(self, state: str) -> Iterator[psycopg.Connection]:
        connection = self._connections.checkout()
        try:
            yield connection
        except psycopg.Error as error:
            raise_store_error(error, self.path, state, None)
        finally:
            with suppress(psycopg.Error):
                self._connections.checkin(connection)


class MoveLock:
    """Lock on the place of one namespace: it cannot change, unless by `switch`."""

    def __init__(self, connection: psycopg.Connection, schema: str, path: str, name: str) -> None:
        self._connection, self._routes, self._path, self._name = connection, f"{schema}.routes", path, name

    @property
    def shard(self) -> int | None:
        """Number of the namespace's server."""
        query = f"SELECT shard FROM {self._routes} WHERE namespace = %s"
        row = self._execute(query, "", self._name).fetchone()
        return row[0] if row else None

    def switch(self, source: int, target: int) -> None:
        """Send the namespace to another server: the one moment of a move. Raises `StoreError`.

        It is a statement of the connection that holds the lock: if the lock was lost, so is the statement.
        """
        query = f"UPDATE {self._routes} SET shard = %s WHERE namespace = %s AND shard = %s"
        count = self._execute(query, "whether it moved is not known", target, self._name, source).rowcount
        if count != 1:
            raise StoreError(f"{self._path}: the namespace {self._name!r} is no longer where it was")

    def _execute(self, query: str, state: str, *values: Any) -> psycopg.Cursor:
        try:
            return self._connection.execute(query.encode(), values)
        except psycopg.Error as error:
            raise_store_error(error, self._path, state, None)
