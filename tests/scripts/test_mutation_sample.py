"""The sample of mutants: which faults there are, that a sample is its seed's, and who kills and who survives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import mutation_sample
import pytest
from mutants import find_mutants

TOY = '''"""A toy."""
def first(items: list[int], at: int = 0) -> int:
    """Return an item."""
    if not items or at < 0:
        raise ValueError("ä: nothing")
    return min(items[at:])
'''
TEST = """from toy_package.agent.toy import first
def test_first():
    assert first([3, 2, 9]) == 2 and first([1, 5], 1) == 5
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Write a checkout with one module and its test; the module is imported by a name that is memalpha's no more."""
    for path, text in {
        "memalpha/agent/toy.py": TOY,
        "memalpha/agent/__init__.py": "",
        "tests/agent/test_toy.py": TEST,
        "pytest.ini": "[pytest]\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    (tmp_path / "toy_package").symlink_to(tmp_path / "memalpha")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_faults_are_those_of_the_code(toy):
    assert mutation_sample.core_modules(toy) == ["memalpha/agent/toy.py"]
    faults = {
        (mutant.kind, mutant.old, mutant.new)
        for mutant in find_mutants(toy, "memalpha/agent/toy.py")
        if mutant.is_valid(toy)
    }
    assert faults == {
        ("constant", "0", "1"),
        ("negate", "not items or at < 0", "not (not items or at < 0)"),
        ("and/or", "not items or at < 0", "((not items) and (at < 0))"),
        ("drop operand", "not items or at < 0", "((not items))"),
        ("drop operand", "not items or at < 0", "((at < 0))"),
        ("drop sign", "not items", "(items)"),
        ("compare", "at < 0", "(at <= 0)"),
        ("drop raise", 'raise ValueError("ä: nothing")', "pass"),
        ("min/max", "min", "max"),
        ("slice", "at", "(at) + 1"),
    }


def test_a_sample_is_its_seed_s(toy):
    mutants = find_mutants(toy, "memalpha/agent/toy.py")
    sample = mutation_sample.draw(toy, mutants, 5, 1)
    assert sample == mutation_sample.draw(toy, mutants, 5, 1) != mutation_sample.draw(toy, mutants, 5, 2)
    places = [(mutant.line, mutant.start) for mutant in mutation_sample.draw(toy, mutants, 99, 1)]
    assert len(places) == len(set(places)), "one fault a place"


TRIALS = """
import json, sys
from pathlib import Path
import mutation_sample
from mutants import find_mutants
root, module = Path(sys.argv[1]), "memalpha/agent/toy.py"
mutants = {mutant.kind: mutant for mutant in find_mutants(root, module)}
kinds = ("min/max", "drop raise")
outcomes = [mutation_sample.try_mutant(root, mutants[kind], 60, stamp) for stamp, kind in enumerate(kinds, 1)]
test = root / "tests/agent/test_toy.py"
test.write_text(test.read_text().replace("== 5", "== 6"))
print(json.dumps([*outcomes, mutation_sample.try_mutant(root, mutants["min/max"], 60, 3)]))
"""


@pytest.mark.slow
def test_who_is_killed_and_who_survives(toy):
    """In an interpreter of its own: a forked copy of one with other tests' threads would wait for them for ever."""
    source = toy / "memalpha/agent/toy.py"
    before, folder = source.read_bytes(), str(Path(mutation_sample.__file__).parent)
    command = [sys.executable, "-c", TRIALS, str(toy)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([folder, str(toy)])}
    done = subprocess.run(command, cwd=toy, env=environment, capture_output=True, text=True, check=True)
    killed_by, survivor, broken = json.loads(done.stdout)
    assert killed_by is not None and killed_by.endswith("test_toy.py::test_first")
    assert survivor is None
    assert broken is None, "the test fails without it, too"
    assert source.read_bytes() == before
