"""Systems of one's own from the command line: what they get, and what is said when they raise."""

import json
import re
import sys
from typing import Any

import pytest
from talk import TASK

from memalpha.errors import EvaluationError, InvalidContent
from memalpha.qa.systems import Streamed, SystemSettings
from memalpha.store.embedding import HashEmbedder
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.types import Chunk

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


def test_a_chunk_that_no_store_takes_is_named(memalpha, tmp_path):
    talk = TASK.model_copy(update={"chunks": (Chunk(text="word " * 220_000), *TASK.chunks[1:])})
    save_jsonl([talk.model_copy(update={"questions": TASK.questions[-1:]})], tmp_path / "tasks.jsonl")
    code, _, err = memalpha("eval", "tasks", f"data={tmp_path / 'tasks.jsonl'}", "systems=rag")
    assert code and "system rag: task 'talk', chunk 0:" in err and "chunk_tokens=2048" in err


def test_splitting_is_advised_for_long_chunks_alone():
    class Blank:
        def read(self, chunk):
            raise InvalidContent("content is empty")

    def make(*_) -> Any:
        return Blank()

    settings = SystemSettings(1000, 5, HashEmbedder(8))
    with pytest.raises(EvaluationError, match=r"^system blank: task 'talk', chunk 0: content is empty$"):
        Streamed("blank", make).retrieve([TASK], settings)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Faulty", r"task 'talk', chunk 1: KeyError: 'key' \(.*faulty_system_of_a_test\.py, line 10\)"),
        ("Late", r"task 'talk', chunk 1: IndexError: .* line 13\)"),
        ("Unmade", r"task 'talk': OSError: no disk \(.* line 26\)"),
    ],
)
def test_a_system_that_raises_ends_the_run_in_words_and_what_is_done_stays(memalpha, tmp_path, monkeypatch, name, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "faulty_system_of_a_test.py").write_text(FAULTY)
    save_jsonl([TASK], tmp_path / "tasks.jsonl")
    words = [f"systems=[rag,faulty_system_of_a_test:{name},empty]", "reader.kind=copy", "metric=contains", "out=run"]
    code, _, err = memalpha("eval", "tasks", "data=tasks.jsonl", *words)
    assert code == 1
    assert (
        re.search(rf"^memalpha: system faulty_system_of_a_test:{name}: {says}$", err, re.M) and "Traceback" not in err
    )
    folder = tmp_path / "run" / "eval"
    assert len((folder / "rag.jsonl").read_text().splitlines()) == 4
    assert list(json.loads((folder / "summary.json").read_text())["systems"]) == ["rag"]
