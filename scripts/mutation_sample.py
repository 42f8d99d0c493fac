"""Draw a seeded sample of mutants of the core modules, and run the tests that should kill each of them.

    python scripts/mutation_sample.py --count 60 --seed 7

A mutant is one small fault: a comparison or boundary, an operator, a constant, a dropped operand, statement or call,
swapped arguments. Its tests run in four stages until one fails: the module's own test file, the files that import the
module, the rest of the mirrored folder, the files at the top of its room with the room's whole runs. A failure counts
only if the same test passes without the mutant. Everything happens in copies of the checkout, in children of a process
that has the large packages imported. What survives is printed; reading has to say which of it is equivalent. Exits with
1 if the killed share is below `BOUND`.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from mutants import Mutant, find_mutants
from scipy.stats import binomtest

ROOT = Path(__file__).resolve().parents[1]
CORE = (
    "agent", "environments", "qa", "qa/scoring", "rewards", "store", "store/backends", "store/search",
    "train/algorithms", "train/data", "train/learner", "train/rollouts", "train/trainers",
)  # fmt: skip
PRELOADED = (
    "torch", "transformers", "peft", "datasets", "faiss", "numpy", "pydantic", "safetensors.torch", "fastapi",
    "hypothesis.stateful", "hypothesis.internal.conjecture.engine", "yaml", "typer", "rich",
)  # fmt: skip

PASSED = "passed"
BOUND = 0.85
"""Least share of killed mutants."""


def core_modules(root: Path) -> list[str]:
    """Return the paths of all core modules, packages' `__init__` left out."""
    files = (file for folder in CORE for file in sorted((root / "memalpha" / folder).glob("*.py")))
    return [file.relative_to(root).as_posix() for file in files if file.stem != "__init__"]


def draw(root: Path, mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Draw mutants at `count` different places, uniformly over all mutants that compile.

    Args:
        root: Checkout.
        mutants: All mutants.
        count: Size of the sample.
        seed: Seed of the sample.
    """
    order, places = random.Random(seed).sample(list(mutants), len(mutants)), {}
    for mutant in order:
        if len(places) == count:
            break
        if mutant.is_valid(root):
            places.setdefault((mutant.path, mutant.start), mutant)
    return list(places.values())


def test_stages(root: Path, path: str) -> Iterator[list[str]]:
    """Yield the test files of each stage: the module's own, those that import it, its folder's, its room's."""
    module = Path(path).with_suffix("")
    folder = Path("tests") / module.parent.relative_to("memalpha")
    files = {file.relative_to(root).as_posix(): file.read_text() for file in sorted(root.glob("tests/**/test_*.py"))}
    own = [name for name in files if Path(name).stem.startswith(f"test_{module.name}")]
    yield own
    dotted = re.escape(".".join(module.parts))
    package, name = (re.escape(part) for part in ".".join(module.parts).rsplit(".", 1))
    imports = re.compile(rf"{dotted}\b|from {package} import [^\n]*\b{name}\b")
    near = sorted(
        (file for file, text in files.items() if imports.search(text)), key=lambda file: str(folder) not in file
    )
    importing = [file for file in near if file not in own][:8]
    yield importing
    mirrored = [file for file in files if Path(file).parent == folder and file not in (*own, *importing)]
    yield mirrored
    room, done = Path(*folder.parts[:2]), {*own, *importing, *mirrored}
    whole_runs = [file for file in files if file.startswith(f"{room}/") and file.endswith("test_conformance.py")]
    top = [file for file in files if Path(file).parent == room]
    yield [file for file in (*whole_runs, *top) if file not in done]


@dataclass(eq=False)
class FirstFailure:
    """A pytest plug-in that remembers the first failure by its node id."""

    nodeid: str = field(default="")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.nodeid = self.nodeid or report.nodeid

    pytest_collectreport = pytest_runtest_logreport


def run_tests(root: Path, tests: Sequence[str], limit: float) -> str | None:
    """Run tests in a child process; return the first failure's node id, "time limit", or None if all pass.

    Args:
        root: Checkout.
        tests: Test files or node ids.
        limit: Seconds after which the child is ended.
    """
    import pytest

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(root)
        sys.path[0] = os.environ["PYTHONPATH"] = str(root)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        failure, code = FirstFailure(), 1
        try:
            code = pytest.main([*tests, "-x", "-q", "-p", "no:cacheprovider", "--rootdir", str(root)], [failure])
        finally:
            os.write(writing, (failure.nodeid or (PASSED if code in (0, 5) else tests[0])).encode())
            os._exit(0)
    os.close(writing)
    end = time.monotonic() + limit
    while time.monotonic() < end and not os.waitpid(child, os.WNOHANG)[0]:
        time.sleep(0.02)
    timed_out = time.monotonic() >= end
    try:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
    os.set_blocking(reading, False)  # another child may hold the writing end
    try:
        outcome = os.read(reading, 10_000).decode()
    except BlockingIOError:
        outcome = ""
    os.close(reading)
    return "time limit" if timed_out else None if outcome == PASSED else outcome or tests[0]  # nothing: it crashed


def try_mutant(root: Path, mutant: Mutant, limit: float, stamp: int) -> str | None:
    """Return the test that fails with the mutant and passes without it, or None if it survives.

    Args:
        root: Copy of the checkout.
        mutant: Fault to make; undone afterwards.
        limit: Seconds for each stage.
        stamp: Number of the mutant; keeps compiled files of different mutants apart.
    """

    @cache
    def passes_without(test: str) -> bool:
        path.write_bytes(source)
        os.utime(path, (stat.st_atime + stamp + 0.5, stat.st_mtime + 2 * stamp + 1))
        return run_tests(root, [test], limit) is None

    path = root / mutant.path
    source, stat = path.read_bytes(), path.stat()
    try:
        for tests in filter(None, test_stages(root, mutant.path)):
            path.write_bytes(mutant.apply(source))
            os.utime(path, (stat.st_atime, stat.st_mtime + 2 * stamp))
            failure = run_tests(root, tests, limit)
            if failure and (failure == "time limit" or passes_without(failure)):
                return failure
            if failure:
                print(f"fails without the mutant, too: {failure}", file=sys.stderr, flush=True)
    finally:
        path.write_bytes(source)
        os.utime(path, (stat.st_atime, stat.st_mtime))
    return None


def main() -> None:
    """Draw, run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=300, help="seconds for the tests of a stage")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="mutants at a time")
    parser.add_argument("--minutes", type=float, default=1e6, help="start no further mutant after so many")
    arguments = parser.parse_args()
    paths = core_modules(ROOT)
    mutants = [mutant for path in paths for mutant in find_mutants(ROOT, path)]
    sample = draw(ROOT, mutants, arguments.count, arguments.seed)
    print(f"{len(sample)} of {len(mutants):,} mutants of {len(paths)} modules, seed {arguments.seed}", flush=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in PRELOADED:
        __import__(name)
    end = time.monotonic() + 60 * arguments.minutes
    copies: SimpleQueue[Path] = SimpleQueue()

    def run(number: int) -> tuple[Mutant, str | None] | None:
        if time.monotonic() > end:
            return None
        root, mutant, start = copies.get(), sample[number], time.monotonic()
        failure = try_mutant(root, mutant, arguments.limit, number + 1)
        copies.put(root)
        outcome = f"killed by {failure}" if failure else "SURVIVED"
        print(f"{number + 1}. {mutant}: {outcome} ({time.monotonic() - start:.0f} s)", flush=True)
        return mutant, failure

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        for job in range(arguments.jobs):
            copies.put(Path(folder) / f"checkout-{job}")
            left_out = shutil.ignore_patterns(".*", "runs", "__pycache__", "*.egg-info")
            shutil.copytree(ROOT, Path(folder) / f"checkout-{job}", ignore=left_out)
        outcomes = list(filter(None, pool.map(run, range(len(sample)))))
    survivors = [mutant for mutant, failure in outcomes if failure is None]
    total, killed = len(outcomes), len(outcomes) - len(survivors)
    low, high = binomtest(killed, total).proportion_ci(method="wilson")
    print(f"\nkilled {killed} of {total}: {killed / total:.1%} (95 % interval {low:.1%} to {high:.1%})")
    print(*(f"survived: {mutant}" for mutant in survivors), sep="\n")
    sys.exit(killed / total < BOUND)


if __name__ == "__main__":
    main()
