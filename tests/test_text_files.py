"""Encodings of files and pipes, in and out: a text arrives as it was written, or is refused in words."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from memalpha.errors import DataError
from memalpha.qa.scoring.judge import load_labels
from memalpha.store.store import MemoryStore
from memalpha.tasks.formats.csv import load_csv
from memalpha.tasks.formats.files import iter_json_lines, read_json
from memalpha.tasks.formats.jsonl import load_jsonl
from memalpha.tasks.formats.messages import is_message_file, load_messages
from memalpha.text_files import decode_text

TEXT = "Ana: café, Straße, \N{SLICE OF PIZZA} 東京\n"
READABLE = {
    "utf-8": TEXT.encode(),
    "utf-8 with a mark": codecs.BOM_UTF8 + TEXT.encode(),
    "utf-16": TEXT.encode("utf-16"),
    "utf-16 big-endian": codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
}
UNREADABLE = {
    "latin-1": "Ana: café\n".encode("latin-1"),
    "cp1252": "Ana: “tea”\n".encode("cp1252"),
    "shift-jis": "東京\n".encode("shift-jis"),
    "utf-16 without a mark": "Ana: tea\n".encode("utf-16-le"),
    "half a utf-16": codecs.BOM_UTF16_LE + b"A\x00\x00\xd8",
    "cut utf-8": "é".encode()[:1],
    "bytes": bytes(range(256)),
}


PACKED = gzip.compress(b"{}", mtime=0)  # workers have to agree on the name of a case


@pytest.mark.parametrize(
    ("data", "advice"),
    [(PACKED, "gunzip"), (b"PAR1\x15\x04", "a Parquet file"), (b"SQLite format 3\0\x10", "`memalpha copy` copies")],
)
def test_packed_files_are_refused_with_what_to_do(tmp_path: Path, data: bytes, advice: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(data)
    for load in (load_jsonl, read_json, load_messages, load_csv, lambda path: list(iter_json_lines(path))):
        with pytest.raises(DataError, match=f"tasks.jsonl: .*{advice}"):
            load(path)


@pytest.mark.parametrize("kind", READABLE)
def test_marks_are_no_part_of_a_text(kind) -> None:
    assert decode_text(READABLE[kind], "x") == TEXT


@pytest.mark.parametrize("kind", UNREADABLE)
def test_other_encodings_are_refused_by_name(kind) -> None:
    with pytest.raises(DataError, match=r"^x: .*save it as UTF-8"):
        decode_text(UNREADABLE[kind], "x")


LABEL = {"question": "Where?", "gold": ["東京"], "prediction": "café", "label": 1}
TASK = {"id": "t", "chunks": [{"text": "café"}], "questions": [{"id": "q", "question": "?", "answers": ["x"]}]}
FACT = {"category": "semantic", "content": "café 東京"}


def import_contents(path: Path) -> list[str]:
    with MemoryStore.open(":memory:", embedder="hash") as store:
        store.import_jsonl(path)
        return [entry.content for entry in store.list()]


LOADERS: dict[str, tuple[object, Callable[[Path], object], object]] = {
    "labels": (LABEL, lambda path: "café" in str(load_labels(path)), True),
    "tasks": (TASK, lambda path: load_jsonl(path)[0].chunks[0].text, "café"),
    "facts": (FACT, import_contents, ["café 東京"]),
    "JSON": (TASK, lambda path: read_json(path)["id"], "t"),
    "messages": (
        {"role": "user", "content": "café"},
        lambda path: (is_message_file(path), load_messages(path)[0].turns[0].text),
        (True, "café"),
    ),
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "latin-1"])
@pytest.mark.parametrize("kind", LOADERS)
def test_files_of_every_kind_may_have_a_mark(tmp_path: Path, kind, encoding) -> None:
    value, load, expected = LOADERS[kind]
    path = tmp_path / "file.jsonl"
    text = json.dumps(value, ensure_ascii=False) + "\n"
    if encoding == "latin-1":
        path.write_bytes(text.encode("latin-1", "replace"))
        with pytest.raises(DataError, match=r"file\.jsonl"):
            load(path)
        return
    path.write_bytes((codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b"") + text.encode(encoding))
    assert load(path) == expected


def run_process(*words: object, stdout: int | IO[bytes] = subprocess.PIPE, encoding: str = "utf-8"):
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "memalpha", *map(str, words)]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, env=environment)


def test_pipes_and_outputs_of_other_encodings(tmp_path: Path, memalpha, monkeypatch: pytest.MonkeyPatch) -> None:
    store, ended = tmp_path / "s.db", []
    for data in (READABLE["utf-16"], UNREADABLE["latin-1"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        ended.append(memalpha("read", store, "-", "--policy", "add_all"))
    assert [code for code, *_ in ended] == [0, 2] and ended[1][2].startswith("memalpha: stdin: ")
    with MemoryStore.open(store) as opened:
        assert [entry.content for entry in opened.list()] == [TEXT.strip()]
    run = run_process("show", store, "--json", encoding="ascii")
    assert json.loads(run.stdout)["entries"][0]["content"] == TEXT.strip()
    run = run_process("show", store, encoding="cp1252")
    assert run.returncode == 0 and "café".encode("cp1252") in run.stdout and rb"\U0001f355" in run.stdout
    if Path("/dev/full").exists():
        for words in (("show", store, "--json"), ("--help",)):
            with Path("/dev/full").open("wb") as full:
                run = run_process(*words, stdout=full)
            assert run.returncode == 2
            assert run.stderr == b"memalpha: the output cannot be written: no space left on device\n"
