"""Systems of one's own from the command line: what they get, and what is said when they raise."""

from __future__ import annotations

import json
import re
import sys

import pytest
from talk import TASK

from memalpha.cli import main
from memalpha.tasks.formats.jsonl import save_jsonl

CUSTOM_SYSTEM = '''
class Newest:
    """Keeps the last chunk as a text; made with what the evaluation gives."""

    name = "newest"

    def __init__(self, k):
        assert k == 5
        self.text = ""

    def read(self, chunk):
        self.text = chunk.render()

    def context(self, question):
        return [self.text]

    def size(self):
        return len(self.text) // 4

    def entries(self):
        from memalpha.qa.systems.base import Passage

        return [Passage(self.text)]
'''


def test_a_class_of_ones_own_works_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_system_of_a_test.py").write_text(CUSTOM_SYSTEM)
    save_jsonl([TASK], tmp_path / "tasks.jsonl")
    words = ["systems=[own_system_of_a_test:Newest,rag]", "reader={kind: copy, k: 5}", "metric=contains", "out=run"]
    monkeypatch.setattr(sys, "argv", ["memalpha", "eval", "tasks", "data=tasks.jsonl", *words, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    custom, rag = json.loads(out)
    assert custom["system"] == "own_system_of_a_test:Newest"
    assert custom["losses"].get("overwritten_or_deleted"), "what it held after every chunk was looked at"
    folder = tmp_path / "run" / "eval"
    complete = json.loads((folder / "summary.json").read_text())
    assert complete["systems"]["rag"] == rag and len(complete["data_sha256"]["tasks.jsonl"]) == 64
    assert complete["versions"]["numpy"] and complete["config"]["context_tokens"] == 2048
    assert len((folder / "rag.jsonl").read_text().splitlines()) == 4
    assert (folder / "systems.csv").read_text().startswith("system,questions,accuracy,low,high,")
    assert "| rag | 4 |" in (folder / "systems.md").read_text()


FAULTY = """
class Faulty:
    name = "faulty"

    def read(self, chunk):
        if chunk.index == 1:
            return self.look(chunk)

    def look(self, chunk):
        return {}["key"]

    def context(self, question):
        yield question[100]

    def size(self):
        return 0


class Late(Faulty):
    def look(self, chunk):
        pass


class Unmade(Faulty):
    def __init__(self):
        raise OSError("no disk")
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Faulty", r"task 'talk', chunk 1: KeyError: 'key' \(.*faulty_system_of_a_test\.py, line 10\)"),
        ("Late", r"task 'talk', chunk 1: IndexError: .* line 13\)"),
        ("Unmade", r"task 'talk': OSError: no disk \(.* line 26\)"),
    ],
)
def test_a_system_that_raises_ends_the_run_in_words_and_what_is_done_stays(tmp_path, monkeypatch, capsys, name, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "faulty_system_of_a_test.py").write_text(FAULTY)
    save_jsonl([TASK], tmp_path / "tasks.jsonl")
    words = [f"systems=[rag,faulty_system_of_a_test:{name},empty]", "reader.kind=copy", "metric=contains", "out=run"]
    monkeypatch.setattr(sys, "argv", ["memalpha", "eval", "tasks", "data=tasks.jsonl", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    err = capsys.readouterr().err
    assert (
        re.search(rf"^memalpha: system faulty_system_of_a_test:{name}: {says}$", err, re.M) and "Traceback" not in err
    )
    folder = tmp_path / "run" / "eval"
    assert len((folder / "rag.jsonl").read_text().splitlines()) == 4
    assert list(json.loads((folder / "summary.json").read_text())["systems"]) == ["rag"]
