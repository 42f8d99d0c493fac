"""Helpers of the loaders: splitting, turn ids, dates, and streaming of large files."""

import json
import tracemalloc
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.config import WorldConfig
from memalpha.errors import DataError
from memalpha.tasks import chunking
from memalpha.tasks.chunking import (
    CHUNK,
    TaskBuilder,
    cut_chunk,
    parse_answers,
    rechunk,
    require_iso_time,
    split_text,
    to_iso_time,
)
from memalpha.tasks.formats import files as reading
from memalpha.tasks.formats.files import iter_csv_rows, iter_json_array, iter_json_lines, iter_parquet_rows
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.types import Chunk, SpeakerTurn, Task, is_iso_time

times = st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1)).map(
    lambda time: time.replace(microsecond=0)
)
FORMS = [
    "%Y/%m/%d (%a) %H:%M",
    "%b %d, %Y, %H:%M:%S",
    "%Y-%m-%d %H:%M:%S",
    "%B %d, %Y, %I:%M %p",
    "%B-%d-%Y",
    "%Y/%m/%d",
    "%d %B, %Y",
    "%Y-%m-%dT%H:%M:%S",
]


def turn(text, id, speaker="Ana"):
    return SpeakerTurn(speaker=speaker, text=text, id=id)


@given(times, st.sampled_from(FORMS))
def test_a_date_in_an_official_form_keeps_its_value(time, form):
    text = time.strftime(form)
    parsed = to_iso_time(f" {text} ")
    assert parsed is not None and is_iso_time(parsed)
    assert datetime.fromisoformat(parsed) == datetime.strptime(text, form)


@given(st.text(max_size=30))
def test_any_other_text_is_a_date_or_none(text):
    parsed = to_iso_time(text)
    assert parsed is None or is_iso_time(parsed)


@pytest.mark.parametrize("text", ["", "soon", "2023/13/01 (Sat) 02:21", "Marsh-15-2024", "15/03/2024", "None"])
def test_invalid_dates_are_none_or_refused(text):
    assert to_iso_time(text) is None
    with pytest.raises(DataError, match=r"x\.json: field 'd': .* is no date"):
        require_iso_time(text, "x.json: field 'd'")


@given(st.text(alphabet="ab. \n!?\u2028", max_size=400), st.integers(4, 60))
def test_splitting_loses_only_white_space_within_the_limit(text, size):
    pieces = split_text(text, size)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(piece and piece == piece.strip() and len(piece) <= size for piece in pieces)


@given(st.lists(st.text(alphabet="ab. \n", min_size=1, max_size=90).filter(str.strip), min_size=1), st.integers(8, 60))
def test_a_chunk_is_cut_between_turns_and_keeps_what_was_said(texts, size):
    turns = tuple(SpeakerTurn(speaker="Al", text=text, id=f"t{number}") for number, text in enumerate(texts))
    chunk = Chunk(turns=turns, timestamp="2025-01-10", index=7)
    parts = cut_chunk(chunk, size)
    assert {(part.timestamp, part.index) for part in parts} == {("2025-01-10", 7)}
    for turn in turns:
        pieces = [piece.text for part in parts for piece in part.turns if piece.id == turn.id]
        assert "".join("".join(pieces).split()) == "".join(turn.text.split())
        assert pieces == [turn.text] if len(turn.text) <= size else max(map(len, pieces)) <= size
    room = [sum(len(turn.text) + 5 for turn in part.turns) for part in parts if len(part.turns) > 1]
    assert all(length <= size for length in room)


def test_a_text_is_split_at_the_best_border():
    assert split_text("One two. Three\n\nfour five six", 22) == ["One two. Three", "four five six"]
    assert split_text("One two. Three four five", 16) == ["One two.", "Three four five"]
    assert split_text("一つ。「二つ。」三つ四つ", 8) == ["一つ。「二つ。」", "三つ四つ"]
    assert split_text("一つ、二つ三つ", 5) == ["一つ、", "二つ三つ"]
    assert split_text("abcdefghij", 4) == ["abcd", "efgh", "ij"]
    assert split_text("five\nlabel: 1\nsix\nlabel: 2", 18, (r"\n(?!\s*label:)",)) == ["five\nlabel: 1", "six\nlabel: 2"]


def test_sessions_are_split_between_turns_and_long_turns_into_parts():
    builder = TaskBuilder()
    long = "word " * (CHUNK // 4)
    builder.add_session([turn("a" * (CHUNK - 100), "t1"), turn("b" * 200, "t2"), turn(" \n", "t3")], "2024-05-01")
    builder.add_session([turn(long, "t4")])
    assert [[t.id for t in chunk.turns] for chunk in builder.chunks] == [["t1"], ["t2"], ["t4"], ["t4~2"]]
    assert [chunk.timestamp for chunk in builder.chunks] == ["2024-05-01", "2024-05-01", None, None]
    assert all(len(chunk.render()) <= CHUNK for chunk in builder.chunks)
    assert builder.resolve_evidence(["t4", "t2", "t4", "t3", "t9"]) == (("t4", "t4~2", "t2"), ["t3", "t9"])
    with pytest.raises(DataError, match="turn id 't2' occurs twice"):
        builder.add_session([turn("again", "t2")])


@given(st.lists(st.lists(st.integers(0, 3 * CHUNK), max_size=5), max_size=4))
def test_no_chunk_is_longer_than_the_limit_and_no_word_is_lost(sessions):
    builder = TaskBuilder()
    for s, lengths in enumerate(sessions):
        builder.add_session(turn(("ab " * length)[:length], f"{s}.{n}") for n, length in enumerate(lengths))
    assert all(len(chunk.render()) <= CHUNK for chunk in builder.chunks)
    words = "".join(t.text for chunk in builder.chunks for t in chunk.turns)
    assert len("".join(words.split())) == sum(
        len("".join(("ab " * length)[:length].split())) for lengths in sessions for length in lengths
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("two", ("two",)),
        (3, ("3",)),
        (2.5, ("2.5",)),
        ([["a", "b"], ["a", None, " "]], ("a", "b")),
        (["7"], ("7",)),
        (15.0, ("15",)),
        ([1e3, "15.0", float("nan")], ("1000", "15.0")),
    ],
)
def test_answers_of_all_the_kinds_that_official_files_have(value, expected):
    assert parse_answers(value, "here") == expected


@pytest.mark.parametrize("value", [None, "", " ", [], [[""]], {"a": 1}, [{}]])
def test_invalid_answers_are_refused(value):
    with pytest.raises(DataError, match="here: an answer is"):
        parse_answers(value, "here")


# -------------------------------------------------------------------------------------------------------- large files

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(json_values, max_size=6), st.integers(1, 40), st.sampled_from([None, 2]), st.booleans())
def test_a_json_list_read_in_blocks_is_the_list(tmp_path_factory, items, block, indent, ascii):
    file = tmp_path_factory.mktemp("json") / "list.json"
    file.write_text(json.dumps(items, indent=indent, ensure_ascii=ascii), encoding="utf-8", errors="surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_BLOCK", block)
        try:
            assert list(iter_json_array(file)) == items
        except DataError as error:
            assert "UTF-8" in str(error) and not ascii  # lone surrogates are no text


def test_a_json_list_is_read_one_item_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_BLOCK", 1 << 16)
    file = tmp_path / "list.json"
    file.write_text(json.dumps([{"text": f"{n}" * 100_000} for n in range(10)] * 10))
    tracemalloc.start()
    count = sum(len(item["text"]) == 100_000 for item in iter_json_array(file))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 100
    assert peak < 2_000_000 < file.stat().st_size  # bytes: a few items, not a hundred
    assert next(iter_json_array(file))["text"].startswith("00")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a JSON list"),
        ("{}", "not a JSON list"),
        ('[{"a": 1', "item 0: not JSON, or cut off"),
        ('[{"a": 1}', r"no comma or '\]' after item 0"),
        ('[{"a": 1} {"a": 2}]', r"no comma or '\]' after item 0"),
        ('[1, {"a" 2, "b": "some more text to come here"}]', "item 1: not JSON"),
        (f"[1, {'9' * 5000}]", "item 1: not JSON: Exceeds the limit"),
        ('[{"a": 1, "a": 2}]', "item 0: not JSON: a: the key occurs twice"),
        ('[1, "open', "item 1: not JSON, or cut off: Unterminated"),
        ("[1] 2", "something follows"),
        ("[" * 100_000, "item 0"),
    ],
)
def test_a_bad_json_list_is_named_with_its_item(tmp_path, text, message):
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        list(iter_json_array(file))
    assert str(file) in str(caught.value)


def test_errors_in_large_files_name_the_line_or_row(tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_text('{"a": 1}\n\n{"a": \n')
    rows = iter_json_lines(file)
    assert next(rows) == (f"{file}:1", {"a": 1})
    with pytest.raises(DataError, match=r"x\.jsonl:3: not JSON"):
        next(rows)
    table = tmp_path / "x.csv"
    table.write_text('id,text\n1,"two\nlines"\n2\n')
    lines = iter_csv_rows(table)
    assert next(lines) == (f"{table}:2", {"id": "1", "text": "two\nlines"})
    with pytest.raises(DataError, match=r"x\.csv:4: 1 fields, where the header has 2"):
        next(lines)
    parquet = tmp_path / "x.parquet"
    with pytest.raises(DataError, match="no such file"):
        next(iter_parquet_rows(parquet, ["a"]))
    parquet.write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match="not a Parquet file"):
        next(iter_parquet_rows(parquet, ["a"]))


# --------------------------------------------------------------------------------------------------------------- recut


@pytest.mark.parametrize("tokens", [1, 12, 40, 5000])
def test_rechunking_keeps_questions_and_text(tokens):
    task = synthetic.tasks(WorldConfig(preset="full", split="test", tokens=4000), 3, 0, 1)[0]
    fine = rechunk(task, tokens)
    assert [turn for chunk in fine.chunks for turn in chunk.turns] == [t for chunk in task.chunks for t in chunk.turns]
    assert all(len(chunk.render()) <= 4 * tokens or len(chunk.turns) == 1 for chunk in fine.chunks)
    assert [chunk.index for chunk in fine.chunks] == list(range(len(fine.chunks)))
    where = {turn.id: chunk.index for chunk in fine.chunks for turn in chunk.turns}
    for before, after in zip(task.questions, fine.questions, strict=True):
        assert after.evidence == before.evidence
        at = len(fine.chunks) - 1 if after.asked_after_chunk is None else after.asked_after_chunk
        read = {turn.id for chunk in fine.chunks[: at + 1] for turn in chunk.turns}
        text = len(task.chunks) - 1 if before.asked_after_chunk is None else before.asked_after_chunk
        assert read == {turn.id for chunk in task.chunks[: text + 1] for turn in chunk.turns}
    assert all(item.chunk == where[item.turn] for item in fine.gold_operations if item.turn is not None)
    assert [item.content for item in fine.gold_operations] == [item.content for item in task.gold_operations]
    assert (fine == task) == (tokens == 5000)


def test_a_text_is_rechunked_at_its_borders():
    task = Task(id="t", chunks=(Chunk(text="One two. Three four.", timestamp="2024-05-01"), Chunk(text="Five.")))
    fine = rechunk(task, 3)
    assert [chunk.text for chunk in fine.chunks] == ["One two.", "Three four.", "Five."]
    assert [chunk.timestamp for chunk in fine.chunks] == ["2024-05-01", "2024-05-01", None]


def test_an_iso_day_is_read_without_trying_other_forms(monkeypatch):
    monkeypatch.setattr(chunking, "datetime", None)
    assert to_iso_time("2024-05-24") == "2024-05-24"
