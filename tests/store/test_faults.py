"""Full disks, I/O errors, half writes and kills at write and sync calls, by `eval/store/attacks/faults.py`."""

import shutil
import sys
from pathlib import Path

import pytest
from stores import import_file

FAULTS = Path(__file__).parents[2] / "eval" / "store" / "attacks" / "faults.py"
pytestmark = [
    pytest.mark.sqlite,
    pytest.mark.skipif(sys.platform != "linux", reason="the faults are loaded with LD_PRELOAD, on Linux"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, which builds the library of faults"),
]


@pytest.fixture(scope="module")
def faults():
    return import_file(FAULTS)


def test_a_failing_call_leaves_the_state_before_or_after(faults) -> None:
    names = ["insert and checkpoint", "transaction", "erase", "export_jsonl", "close"]
    rows = faults.run(1, 0, names)["operations"]
    assert [(name, row["problems"]) for name, row in rows.items()] == [(name, {}) for name in names]
    assert all(row["calls"] >= 5 and row["cases"] == 6 for row in rows.values())


def test_a_copy_is_whole_or_absent_and_leaves_nothing_else(faults, tmp_path: Path) -> None:
    bench = faults.Bench(tmp_path)
    try:
        for operation, kind in (("fork to a file", "I/O error"), ("copy", "SIGKILL")):
            calls, states = bench.measure(operation)
            for n in (*range(2, calls + 1, 20), calls - 1, calls):
                assert bench.faults_of(operation, kind, n, states) == [], f"{operation}: {kind} at call {n}"
    finally:
        bench.close()
