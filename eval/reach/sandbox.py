"""Run the attacks on the sandbox, and measure the cost of a sandboxed program.

    python eval/reach/sandbox.py --out eval/results/sandbox.json --cpuacct /sys/fs/cgroup/cpuacct/bench

Attacks are those of tests/support/attacks.py, each followed by a right program. Cost: a right program with five tests,
and with one input, run one after the other and two at once; CPU time is that of all processes, which only a control
group knows (`--cpuacct`, a folder to make; else it is left out), wall time is the machine's at its load. `residue`: how
many empty files and threads a program gets to make in its CPU time and memory, which no limit counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from memalpha.rewards.code import parse_tests, run_tests
from memalpha.rewards.sandbox import Limits, read_output, start_process

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from attacks import ATTACKS, RIGHT, TESTS

FIVE = [*TESTS, "assert f(2) == 25", "assert f(3) == 38"]
FILES = """
number = 0
import signal, sys
try:
    while True:
        open(f"/tmp/{number}", "w").close()
        number += 1
        if number % 1000 == 0:
            print(number, flush=True)
except OSError:
    print(number, flush=True)
"""
THREADS = """
import threading, time
threading.stack_size(32768)
number = 0
try:
    while True:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        number += 1
        print(number, flush=True)
except RuntimeError:
    pass
"""


def run_attacks(limits: Limits) -> list[dict[str, Any]]:
    """Run every attack and return one row each."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "secret").write_text("155")
        for name, program in ATTACKS.items():
            began = time.perf_counter()
            program = program.replace("PORT", "9").replace("FOLDER", folder)
            outcomes = run_tests(program, parse_tests(TESTS), limits)
            seconds = time.perf_counter() - began
            after = run_tests.__wrapped__(RIGHT, parse_tests(TESTS), Limits())
            passed, right = sum(not failure for failure in outcomes), not any(after)
            rows.append(
                {"attack": name, "outcome": outcomes[0], "passed": passed, "seconds": seconds, "next right": right}
            )
    return rows


def cost(tests: list[Any], program: str, count: int, group: Path | None) -> dict[str, float | None]:
    """Measure milliseconds per run and runs per second.

    Args:
        tests: Tests of the program.
        program: Source code.
        count: Number of runs.
        group: Folder of a control group; None leaves CPU time out.
    """
    compiled, times = parse_tests(tests), []
    before = 0 if group is None else int((group / "cpuacct.usage").read_text())
    for _ in range(count):
        began = time.perf_counter()
        assert not any(run_tests.__wrapped__(program, compiled, Limits()))
        times.append(1000 * (time.perf_counter() - began))
    spent = None if group is None else (int((group / "cpuacct.usage").read_text()) - before) / 1e6 / count
    began = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: run_tests.__wrapped__(program, compiled, Limits()), range(count)))
    return {
        "cpu ms": spent,
        "wall ms, median": statistics.median(times),
        "wall ms, least": min(times),
        "wall ms, most": max(times),
        "a second, two at once": count / (time.perf_counter() - began),
    }


def residue(source: str) -> int:
    """Return the last number that a program prints before its limits end it."""
    deadline = time.monotonic() + Limits().clock  # a thread without memory may never say that it began
    with start_process(Limits(), source=source, stdin=b"") as child:
        words = read_output(child, deadline).split()
    return int(words[-1]) if words else 0


def main() -> None:
    """Measure, record and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--cpuacct", type=Path)
    options = parser.parse_args()
    if (group := options.cpuacct) is not None:
        group.mkdir(exist_ok=True)
        (group / "tasks").write_text(str(os.getpid()))
    record = {
        "user": "root" if os.getuid() == 0 else "unprivileged",
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "asserts": cost(FIVE, RIGHT, options.count, group),
        "input": cost([["12\n", "155\n"]], "print(13 * int(input()) - 1)", options.count, group),
        "residue": {"empty files": residue(FILES), "threads": residue(THREADS)},
        "attacks": run_attacks(Limits(seconds=1, megabytes=256)),
    }
    text = json.dumps(record, indent=1)
    if options.out is not None:
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
