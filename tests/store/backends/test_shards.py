"""Stores on several PostgreSQL servers: routing, moves under load and after kills, servers that are away."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import pytest
from typer.testing import CliRunner

from memalpha.cli.main import app
from memalpha.errors import NamespaceMoved, StoreError, StoreUnavailable
from memalpha.store.checks.integrity import examine
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore
from memalpha.types import Operation

pytest.importorskip("psycopg")
from memalpha.store.backends.shards import admin
from memalpha.store.backends.shards.url import check_server_url, with_user

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def second_server(postgres):
    from postgres_server import server

    with server() as running:
        yield running


@dataclass
class Shards:
    """A store on two servers: its URL, theirs, and the servers."""

    url: str
    urls: tuple[str, str]
    servers: tuple

    def open(self, namespace: str = "default", **options) -> MemoryStore:
        return MemoryStore.open(self.url, namespace=namespace, **options)

    def other(self, url: str) -> str:
        return self.urls[1] if url == self.urls[0] else self.urls[0]

    def place(self, name: str) -> str:
        """URL of the server that the routing table names."""
        routes, schema = self.servers[0], self.url.rpartition("=")[2]
        query = f"SELECT url FROM {schema}.routes JOIN {schema}.shards ON number = shard WHERE namespace = '{name}'"
        ((url,),) = routes.run(query)
        return url

    def names(self, count: int = 8) -> list[str]:
        """Write and return some namespaces."""
        names = [f"user-{n}" for n in range(count)]
        with self.open() as store:
            for name in names:
                store.namespace(name).insert("semantic", f"city of {name}: Porto")
        return names


@pytest.fixture
def shards(postgres, second_server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shards]:
    from memalpha.store.backends.postgres import ddl

    monkeypatch.setattr(ddl, "PARTITIONS", 2)
    schema = f"s_{secrets.token_hex(4)}"
    servers = (postgres, second_server)
    urls = tuple(f"postgresql:///postgres?host={server.host}&schema={schema}" for server in servers)
    store = f"postgresql+shards://memalpha@/postgres?host={postgres.host}&schema=r_{schema}"
    assert [admin.add_server(store, url, embedder="hash") for url in urls] == [[], []]
    yield Shards(store, urls, servers)
    for server in servers:
        server.run(f"DROP SCHEMA IF EXISTS {schema} CASCADE", f"DROP SCHEMA IF EXISTS r_{schema} CASCADE")


def test_namespaces_of_several_servers_are_one_store(shards: Shards, tmp_path: Path, capsys) -> None:
    names = shards.names()
    assert {shards.place(name) for name in names} == set(shards.urls)
    with shards.open("user-0") as store:
        entry = store.list()[0]
        store.update(entry.id, "city: Rome")
        assert [hit.entry.content for hit in store.search("city", 3)] == ["city: Rome"]
        assert store.get(entry.id, as_of=1).content == "city of user-0: Porto"
        assert store.namespaces() == names
        copy = store.fork("copy")
        assert shards.place("copy") == shards.place("user-0") and list(copy.log()) == list(store.log())
        with store.transaction(), pytest.raises(StoreError, match="is of 'user-0' alone"):
            copy.insert("semantic", "no")
        assert store.namespace("unwritten").list() == [] and store.namespaces() == ["copy", *names]
        assert store.drop_namespace("copy") == 2 and store.namespaces() == names
        away = next(name for name in names if shards.place(name) != shards.place("user-0"))
        with pytest.raises(StoreError, match="lie on several servers"), store._database.transaction("user-0", away):
            raise AssertionError
        assert store.backup(tmp_path / "all.db") == {name: 1 + (name == "user-0") for name in names}
        log = list(store.log())
    with MemoryStore.open(tmp_path / "all.db", namespace="user-0") as file:
        assert list(file.log()) == log
    health = examine(shards.url)
    assert not health.problems and health.counts == {"namespaces": 8, "operations": 9, "versions": 9, "vectors": 9}


def run(*arguments: str) -> str:
    """Run a command and return what it prints."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_commands_add_list_move_and_remove(shards: Shards) -> None:
    names = shards.names(4)
    assert [report["namespace"] for report in json.loads(run("audit", shards.url, "--json"))] == names
    listed = json.loads(run("shards", "list", shards.url, "--json"))
    assert [server["url"] for server in listed] == list(shards.urls) and sum(s["namespaces"] for s in listed) == 4
    source = shards.place(names[0])
    moved = json.loads(run("move", shards.url, names[0], "--to", shards.other(source), "--json"))
    assert (moved["operations"], shards.place(names[0])) == (1, shards.other(source))
    assert CliRunner().invoke(app, ["shards", "remove", shards.url, source]).exit_code == 1, "it has namespaces"
    with shards.open() as store:
        for n in range(6):
            store.namespace(f"new-{n}").insert("semantic", "a")
            assert shards.place(f"new-{n}") == shards.other(source)
        for name in store.namespaces():
            if shards.place(name) == source:
                admin.move(shards.url, name, shards.other(source))
        assert store.namespaces() == [*(f"new-{n}" for n in range(6)), *names]
    assert run("shards", "remove", shards.url, source) == "removed\n"
    assert len(admin.list_servers(shards.url)) == 1


def test_refusals_say_what_to_do(shards: Shards, postgres, tmp_path: Path) -> None:
    for url, message in {
        "mysql://host/db": "URL of a PostgreSQL server",
        "postgresql://ana@host/db": "leave user and password out",
        "postgresql://host/db?password=geheim": "leave user and password out",
    }.items():
        with pytest.raises(StoreError, match=message) as caught:
            admin.add_server(shards.url, url)
        assert "geheim" not in str(caught.value)
    assert with_user("postgresql://db2/x", "postgresql+shards://ana:pw@db1/y") == "postgresql://ana:pw@db2/x"
    assert check_server_url("postgresql:///x?host=/tmp&schema=a") == "postgresql:///x?host=/tmp&schema=a"
    with pytest.raises(StoreError, match="no routing table: `memalpha shards add` makes it"):
        MemoryStore.open(f"{shards.url}_missing", create=False)
    with pytest.raises(StoreError, match="postgresql\\+shards://"):
        admin.list_servers("postgresql://host/db")
    with MemoryStore.open(f"{shards.url}_empty", embedder="hash") as empty:
        for call in (empty.list, lambda: empty.insert("semantic", "a")):
            with pytest.raises(StoreError, match="no server takes new namespaces: `memalpha shards add`"):
                call()
    with MemoryStore.open(":memory:", embedder="hash") as file, pytest.raises(StoreError, match="copy to one server"):
        file.fork(path=shards.url)
    with pytest.raises(StoreError, match="has another embedder"):
        admin.add_server(f"{shards.url}_other", f"{shards.urls[0]}_other", embedder="static")
        admin.add_server(f"{shards.url}_other", shards.urls[1])
    (name,) = shards.names(1)
    for target, message in {shards.place(name): "is at .* already", "postgresql://no/db": "is no server of"}.items():
        with pytest.raises(StoreError, match=message):
            admin.move(shards.url, name, target)
    with pytest.raises(StoreError, match="sends it nowhere"):
        admin.move(shards.url, "nobody", shards.urls[0])
    for suffix in ("missing", "empty", "other"):
        postgres.run(f"DROP SCHEMA IF EXISTS {shards.url.rpartition('=')[2]}_{suffix} CASCADE")


def test_a_store_of_one_server_becomes_one_of_several(shards: Shards) -> None:
    one = with_user(f"{shards.urls[1]}_one", shards.url)
    with MemoryStore.open(one, namespace="ana", embedder="hash") as store:
        store.insert("semantic", "city: Porto")
    assert admin.add_server(shards.url, f"{shards.urls[1]}_one") == ["ana"]
    with shards.open("ana") as store:
        assert [entry.content for entry in store.list()] == ["city: Porto"] and store.namespaces() == ["ana"]
    with MemoryStore.open(with_user(shards.urls[0], shards.url), namespace="ana") as store:
        store.insert("semantic", "of nobody")  # behind the routing table's back
    (problem,) = examine(shards.url).problems
    assert problem.part == "routing" and "which the routing table sends to another server" in problem.message
    with pytest.raises(StoreError, match="of its own, which the routing table does not know"):
        admin.move(shards.url, "ana", shards.urls[0])
    shards.servers[1].run(f"DROP SCHEMA {shards.urls[1].rpartition('=')[2]}_one CASCADE")


def test_moves_under_writes_lose_and_double_nothing(shards: Shards) -> None:
    name, stop, errors = "ana", [], []
    written: dict[str, str] = {}  # acknowledged contents by id
    with shards.open(name) as store, shards.open(name) as reader:
        store.insert_many([{"category": "semantic", "content": f"fact {n}"} for n in range(100)])

        def write(number: int) -> None:
            count = 0
            while not stop:
                count += 1
                try:
                    entry = store.insert("semantic", f"writer {number}, fact {count}")
                    if count % 5 == 0:
                        entry = store.update(entry.id, f"{entry.content}, corrected")
                    written[entry.id] = entry.content
                    if count % 20 == 0:
                        store.erase(store.insert("semantic", f"secret {number} {count}").id)
                except Exception as error:  # noqa: BLE001
                    errors.append(error)

        def read() -> None:
            while not stop:
                try:
                    assert len(reader.list()) >= 100
                except Exception as error:  # noqa: BLE001
                    errors.append(error)

        threads = [Thread(target=write, args=(0,)), Thread(target=write, args=(1,)), Thread(target=read)]
        for thread in threads:
            thread.start()
        moves = []
        try:
            for _ in range(3):
                before = len(written)
                moves.append(admin.move(shards.url, name, shards.other(shards.place(name))))
                while len(written) < before + 10 and not errors:
                    time.sleep(0.01)
        finally:
            stop.append(True)
            for thread in threads:
                thread.join()
        assert not errors and [move.pause < 5 for move in moves] == [True] * 3
        entries = {entry.id: entry.content for entry in reader.list()}
        assert written.items() <= entries.items()
        assert len(entries) == 100 + len(written) == len(set(entries.values()))
        log = list(reader.log())
        assert [position for position, *_ in log] == list(range(1, len(log) + 1))
        assert reader.state == MemoryState.replay(reader.schema, [operation for *_, operation in log])
        assert reader.list(as_of=100) == reader.list(as_of=100)[:100]
    health = examine(shards.url)
    assert not health.problems and health.counts["operations"] == len(log)


def test_what_is_erased_during_a_move_is_erased_from_the_copy(shards: Shards) -> None:
    (name,) = shards.names(1)
    stages: list[str] = []
    with shards.open() as store:
        scope = store.namespace(name)
        shared = [scope.insert(category, "pet: cat").id for category in ("semantic", "episodic")]
        for text in ("first", "second"):
            scope.core_update(text)
        secrets = [scope.insert("semantic", f"secret {number}").id for number in range(3)]
        scope.update(secrets[0], "secret changed")

        def erase_some(stage: str) -> None:
            stages.append(stage)
            if stage == "catch up":
                scope.erase(secrets[0])
                scope.erase(shared[0])
                scope.apply(Operation("insert", id=secrets[0], category="semantic", content="secret no more"))
                scope.erase_core_history()
            elif stage == "pause":
                scope.erase(secrets[1])
                scope.erase(scope.insert("semantic", "secret at last").id)

        source = shards.place(name)
        before = scope.snapshot()
        move = admin.move(shards.url, name, shards.other(source), progress=erase_some)
        assert stages.count("copy") == 1 and move.operations > before and move.queued >= 0
        contents = [entry.content for entry in scope.list()]
        assert sorted(contents) == sorted([f"city of {name}: Porto", "pet: cat", "secret 2", "secret no more"])
        log = repr(list(scope.log()))
        assert not any(word in log for word in ("secret 0", "changed", "secret 1", "at last", "first"))
        assert scope.search("pet: cat", 1)[0].entry.id == shared[1] and scope.core == "second"
    assert not examine(shards.url).problems


STAGES = ("catch up", "pause", "closed", "switched", "tidy")
KILLED = """\
import json, os, signal, sys
from memalpha.store.backends.shards import admin
for store, name, target, last in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        admin.move(store, name, target, progress=lambda stage: stage == last and os.kill(os.getpid(), signal.SIGKILL))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, last
"""


def test_a_killed_move_leaves_the_namespace_whole_at_one_place(shards: Shards) -> None:
    names = shards.names(len(STAGES))
    sources = {name: shards.place(name) for name in names}
    moves = [(shards.url, name, shards.other(sources[name]), stage) for name, stage in zip(names, STAGES, strict=True)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", KILLED, json.dumps(moves)], env=environment, check=True, timeout=120)
    moved = [shards.place(name) != sources[name] for name in names]
    assert moved == [False, False, False, True, True]
    problems = [problem.message for problem in examine(shards.url).problems]
    assert sum("a move was interrupted" in problem for problem in problems) == 2, problems
    with shards.open() as store:
        for name in names:
            scope = store.namespace(name)
            assert [entry.content for entry in scope.list()] == [f"city of {name}: Porto"]
            scope.insert("semantic", "after the kill")
        assert store.namespaces() == names
    health = examine(shards.url, repair=True)
    assert not health.problems and len(health.repaired) >= 4, health
    assert health.counts["operations"] == 2 * len(names)
    with shards.open() as store:
        for name in names:
            move = admin.move(shards.url, name, shards.other(shards.place(name)))
            assert move.operations == 2 and len(store.namespace(name).list()) == 2
    assert not examine(shards.url).problems


def test_roles_keep_their_namespaces_through_a_move(shards: Shards) -> None:
    (name,) = shards.names(1)
    schema, role = shards.urls[0].rpartition("=")[2], f"app_{secrets.token_hex(4)}"
    place = shards.place(name)
    number = shards.urls.index(place)
    shards.servers[number].run(f"CREATE ROLE {role} LOGIN")
    shards.servers[number].run(f"SELECT {schema}.admit('{role}', '{name}')", user="memalpha")
    if number:
        shards.servers[0].run(f"CREATE ROLE {role} LOGIN")
    shards.servers[0].run(f"SELECT r_{schema}.admit('{role}')", user="memalpha")
    with MemoryStore.open(shards.url.replace("memalpha@", f"{role}@"), namespace=name) as store:
        assert len(store.list()) == 1
        if not number:
            with pytest.raises(StoreError, match=f"lacks the role '{role}'"):
                admin.move(shards.url, name, shards.other(place))
            assert len(store.list()) == 1
            shards.servers[1].run(f"CREATE ROLE {role} LOGIN")
        admin.move(shards.url, name, shards.other(place))
        store.insert("semantic", "after the move")
        assert len(store.list()) == 2 and store.namespaces() == [name]
        with pytest.raises(StoreError, match="permission denied"):
            store._database.directory.routes()  # pyright: ignore[reportAttributeAccessIssue]
    direct = with_user(place, shards.url)
    with MemoryStore.open(direct, namespace=name) as store, pytest.raises(NamespaceMoved, match="was moved to another"):
        store.insert("semantic", "at the old place")
    for server in shards.servers:
        server.run(f"DROP OWNED BY {role}", f"DELETE FROM {schema}.members", f"DROP ROLE {role}")


def test_a_server_that_is_away_concerns_its_namespaces_alone(shards: Shards, postgres) -> None:
    from memalpha.integrations.server.http import http_app
    from memalpha.integrations.server.service import MemoryService
    from memalpha.policy.scripted import ScriptedPolicy

    testclient = pytest.importorskip("starlette.testclient")
    names = shards.names()
    here, away = (next(name for name in names if shards.place(name) == url) for url in shards.urls)
    service = MemoryService(shards.open(here), ScriptedPolicy("add-all"))
    with testclient.TestClient(http_app(service), base_url="http://localhost") as web:
        fact = {"category": "semantic", "content": "dog: Rex"}
        assert web.post("/v1/entries", json=fact).status_code == 201
        other = service.namespace(away)
        assert web.portal is not None
        assert len(web.portal.call(other.search, "city", 3)) == 1
        silent = shards.servers[1]
        rows = silent.run("SELECT pid FROM pg_stat_activity WHERE usename = 'memalpha'")
        pids = [silent.pid, *(pid for (pid,) in rows)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:

            def ask_away(_: int) -> tuple[float, int]:
                begin = time.monotonic()
                try:
                    web.portal.call(other.search, "city", 3)
                except Exception as error:  # noqa: BLE001
                    return time.monotonic() - begin, getattr(error, "status", 0)
                return 0.0, 200

            with ThreadPoolExecutor(12) as pool:
                waiting = [pool.submit(ask_away, n) for n in range(12)]
                time.sleep(0.2)
                for _ in range(20):
                    begin = time.monotonic()
                    assert web.post("/v1/search", json={"query": "dog"}).status_code == 200
                    assert time.monotonic() - begin < 1.5
                assert {future.result()[1] for future in waiting} == {503}
                assert max(future.result()[0] for future in waiting) < 2.5
            with pytest.raises(StoreUnavailable):
                other._store.list()
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        end = time.monotonic() + 15
        while ask_away(0)[1] != 200:
            assert time.monotonic() < end
            time.sleep(0.1)
