"""Tables of messages with column names of their own."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from memalpha import load_tasks
from memalpha.cli.options import read_chunks
from memalpha.errors import DataError
from memalpha.tasks.formats.message_tables import find_fields
from memalpha.tasks.formats.messages import SpeakerNames


def read(path: Path, text: str, **options):
    """Return the tasks of a table, and (timestamp, speaker, text) of each turn."""
    path.write_text(text, encoding="utf-8-sig")
    tasks = load_tasks(path, **options)
    return tasks, [(c.timestamp, turn.speaker, turn.text) for task in tasks for c in task.chunks for turn in c.turns]


@pytest.mark.parametrize(
    ("header", "times"),
    [
        ("from,date,message", ("2024-05-24 21:05", "2024-05-25T08:00")),
        ("Absender;Datum;Nachricht", ("24.05.2024 21:05", "25.05.2024 08:00")),
        ("Remitente\tFecha\tMensaje", ("24/05/2024 21:05", "25/05/2024 8:00")),
        ("Name,Date_Time,Text", ("5/24/24 9:05 PM", "5/25/24 8:00 AM")),
        ('"User","Sent at","Content"', ("May 24, 2024, 21:05:00", "May 25, 2024, 08:00:00")),
    ],
)
def test_columns_and_fields_of_many_names(tmp_path, header, times):
    mark = next(mark for mark in ",;\t" if mark in header)
    rows = [("Ana", times[0], "I moved,\nto Porto."), ("Bo", times[1], "Why;\twhen?")]
    lines = [header, *(mark.join(f'"{cell}"' for cell in row) for row in rows)]
    [task], turns = read(tmp_path / "chat.csv", "\n".join(lines))
    assert turns == [("2024-05-24T21:05", "Ana", rows[0][2]), ("2024-05-25T08:00", "Bo", rows[1][2])]
    assert (task.id, task.meta, task.chunks[0].turns[0].id) == ("chat", {"source": "table"}, "0.0")
    objects = [dict(zip(re.findall(r"[A-Z_a-z ]+", header), row, strict=True)) for row in rows]
    for name, value in {"list.json": objects, "held.json": {"title": "x", "messages": objects}}.items():
        assert read(tmp_path / name, json.dumps(value))[1] == turns
    assert read(tmp_path / "lines.jsonl", "\n".join(map(json.dumps, objects)))[1] == turns
    assert [c.timestamp for c in read_chunks(tmp_path / "lines.jsonl", None)] == [turn[0] for turn in turns]


def test_objects_that_are_no_messages_of_people(tmp_path):
    """Roles are of chat APIs, nested fields of other exports; what is wrong in a later object is named."""
    first = {"speaker": 7, "text": "Hi", "timestamp": 1716584700, "likes": [1]}
    text = json.dumps([first, {"speaker": None, "text": "Ho"}])
    with pytest.raises(DataError, match=r"a\.json: message 1: field 'speaker' is missing or not str or int"):
        read(tmp_path / "a.json", text)
    [task], turns = read(tmp_path / "b.json", json.dumps([first]))
    assert turns == [("2024-05-24T21:05:00", "7", "Hi")] and task.meta["left_out"] == {"other cells": 1}
    for other in ({"role": "user", "name": "Ana", "content": "Hi", "timestamp": "2024-05-24"}, {"chunks": []}):
        assert find_fields(other) is None
    assert find_fields({"sender": {"name": "Ana"}, "text": "Hi"}) is None
    for more in ({"answers": ["Hi"]}, {"chosen": "Hi"}, {"questions": []}):
        assert find_fields({"author": "Ana", "text": "Hi", **more}) is None
    assert find_fields({" sender": "Ana", "text ": "Hi"}) is None


def test_objects_under_messages_and_without_words(tmp_path):
    """Fields of an export make none without its marks; the list's time is kept, its questions are not lost."""
    rows = [
        {"sender": "Ana", "text": "Hi", "type": "text", "date": "2024-05-24"},
        {"sender": "Bo", "text": None, "likes": []},
    ]
    [task], turns = read(tmp_path / "a.json", json.dumps({"messages": rows}))
    assert turns == [("2024-05-24", "Ana", "Hi")] and task.meta["left_out"] == {"other cells": 1, "empty messages": 1}
    held = {"timestamp": "2024-05-24", "messages": [{"author": "Ana", "content": "Hi"}]}
    assert read(tmp_path / "b.json", json.dumps(held))[1] == turns
    with pytest.raises(DataError, match="qa: questions beside messages are not read"):
        read(tmp_path / "c.json", json.dumps({**held, "qa": [{"q": "Who?", "a": "Ana"}]}))


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.ndjson"])
def test_the_order_of_dates_of_objects(tmp_path, name):
    text = json.dumps({"sender": "Ana", "text": "Hi", "date": "03/05/2024"})
    text = f"[{text}]" if name == "a.json" else text
    with pytest.raises(DataError, match="dates=day-first"):
        read(tmp_path / name, text)
    assert read(tmp_path / name, text, dates="month-first")[1] == [("2024-03-05", "Ana", "Hi")]


def test_days_clocks_chats_and_what_is_left_out(tmp_path):
    text = "Chat,Date,Time,Author,Text,Reaction\na,24/05/2024,21:05,Ana,Hi,+1\nb,25/05/2024,,Bo,Ho,\n"
    text += "a,24/05/2024,21:06,Ana,,\n"
    tasks, turns = read(tmp_path / "a.csv", text)
    assert turns == [("2024-05-24T21:05", "Ana", "Hi"), ("2024-05-25", "Bo", "Ho")]
    assert [(task.id, task.meta.get("left_out")) for task in tasks] == [
        ("a", {"empty messages": 1, "other cells": 1}),
        ("b", None),
    ]
    assert read(tmp_path / "b.csv", "sender,text\nAna,Hi\n")[1] == [(None, "Ana", "Hi")]
    assert read_chunks(tmp_path / "b.csv", "2024-05-01")[0].timestamp == "2024-05-01"


def test_messages_that_stand_newest_first_are_put_in_order(tmp_path):
    rows = [
        "a,2024-05-25,Bo,5",
        "b,2024-05-24,Ana,x",
        "a,2024-05-24,Ana,4",
        "a,,Ana,3",
        "a,2024-05-23,Bo,2",
        "a,2024-05-23,Bo,1",
    ]
    turns = read(tmp_path / "a.csv", "\n".join(["chat,date,from,message", *rows, "b,2024-05-25,Ana,y"]))[1]
    assert [text for _, _, text in turns] == ["1", "2", "3", "4", "5", "x", "y"]
    for clocks, is_newest_first in (
        ((9, 8, 9, 8), False),
        ((9, 8, 7, 6, 5, 4, 3, 2, 3, 2, 1, 0), True),
    ):  # summer's end
        table = "".join(f"2024-10-27 0{clock}:00,Bo,{n}\n" for n, clock in enumerate(clocks))
        numbers = [int(text) for _, _, text in read(tmp_path / "a.csv", f"date,from,message\n{table}")[1]]
        assert numbers == sorted(numbers, reverse=is_newest_first)
    months = "from,date,message\nBo,2/5/2024,c\nAna,1/6/2024,b\nBo,12/5/2023,a\n"
    assert [turn[0] for turn in read(tmp_path / "a.csv", months)[1]] == ["2023-12-05", "2024-01-06", "2024-02-05"]


@pytest.mark.parametrize("header", ["AuthorID,Author,Content", "sender_id,sender_name,text", "user id,User,message"])
def test_ids_tell_people_of_one_name_apart(tmp_path, header):
    [task], turns = read(tmp_path / "a.csv", f"{header}\n1,Ana,Hi\n2,Ana,Ho\n1,Anna,Ha\n,Ana,He\nNaN,Ana,Hu\n")
    assert [turn[1] for turn in turns] == ["Ana", "Ana (2)", "Anna", "Ana", "Ana"] and "left_out" not in task.meta
    roles = "sender,sender_id,text\nuser,1,Hi\nAssistant,gpt-3,Ho\nuser,2,Ha\nAssistant,gpt-4,He\n"
    assert [turn[1] for turn in read(tmp_path / "a.csv", roles)[1]] == ["user", "Assistant"] * 2
    bot = "user_id,sender,text\n1,bot,Hi\n2,bot,Ho\n"  # the ids are those of customers
    assert [turn[1] for turn in read(tmp_path / "a.csv", bot)[1]] == ["bot", "bot"]


def test_many_people_of_one_name_are_told_apart_in_no_time():
    speakers, started = SpeakerNames(), time.monotonic()
    names = [speakers.name("guest", number % 30_000) for number in range(60_000)]
    assert names[29_999] == names[59_999] == "guest (30000)" and time.monotonic() - started < 10


def test_what_no_table_of_messages_can_hold_is_said(tmp_path):
    for text, says in (
        ("from,date,message\nAna,2024-05-24,Hi\nBo,soon,Ho\n", r"a\.csv:3: 'soon' is no date or time in a known form"),
        ("from,date,message\nAna,1/2/2024,Hi\n", "the dates may begin with the day or the month"),
        ("from,date,message\nAna,2024-05-24,Hi, Bo\n", r"a\.csv:2: 4 fields, where the header has 3"),
        ("from,date,message\nAna,2024-05-24,\n", "no message has words"),
    ):
        with pytest.raises(DataError, match=says):
            read(tmp_path / "a.csv", text)
    assert (
        read(tmp_path / "a.csv", "from,date,message\nAna,1/2/2024,Hi\n", dates="month-first")[1][0][0] == "2024-01-02"
    )
    with pytest.raises(DataError, match="dates belongs to"):
        read(tmp_path / "a.csv", "context,question,answer\na,b,c\n", dates="month-first")


@pytest.mark.parametrize("cell", ["soon", "31/02/2024 21:05", "24/05/2024 25:05"])
def test_a_date_of_ten_that_cannot_be_read_is_counted(tmp_path, cell):
    rows = "".join(f"Ana,{day}/05/2024 21:05,{day}\n" for day in range(20, 29))
    [task], turns = read(tmp_path / "a.csv", f"from,date,message\n{rows}Bo,{cell},Ho\n")
    assert len(turns) == 10 and turns[-1] == ("2024-05-28T21:05", "Bo", "Ho")
    assert task.meta["left_out"] == {"unreadable dates": 1}
    with pytest.raises(DataError, match=rf"a\.csv:11: .*{cell[-5:]}"):
        read(tmp_path / "a.csv", f"from,date,message\n{rows}Bo,{cell},Ho\nBo,{cell},Ho\n")


@pytest.mark.parametrize(
    ("columns", "cells", "time", "left_out"),
    [
        ("tag", "home", None, {"other cells": 1}),
        ("sent", "true", None, {"other cells": 1}),
        ("sent", "24/05/2024 21:05", "2024-05-24T21:05", {}),
        ("time", "10:15", None, {"times without a day": 1}),
        ("time", "2024-05-24 21:05", "2024-05-24T21:05", {}),
        ("date,time", "2024-05-24 21:05,21:05", "2024-05-24T21:05", {}),
        ("timestamp", "1716584700", "2024-05-24T21:05:00", {}),
        ("timestamp", "1716584700000", "2024-05-24T21:05:00", {}),
        ("timestamp", "1716584700.000200", "2024-05-24T21:05:00", {}),
        ("timestamp", "2024-05-24 21:05:00 UTC", "2024-05-24T21:05", {}),
        ("timestamp", "2024-05-24T21:05:00Z", "2024-05-24T21:05:00Z", {}),
        ("date", "24 May 2024 21:05", "2024-05-24T21:05:00", {}),
        ("date", '"Fri, 24 May 2024 21:05:00 +0200"', "2024-05-24T21:05:00+02:00", {}),
        ("date,time", "24/05/2024,24:05:09", "2024-05-24T00:05:09", {}),
        ("date", "24.05.2005 21:05", "2005-05-24T21:05", {}),
    ],
)
def test_times_of_many_forms(tmp_path, columns, cells, time, left_out):
    [task], [turn] = read(tmp_path / "a.csv", f"user,text,{columns}\nAna,Hi,{cells}\n")
    assert turn == (time, "Ana", "Hi") and task.meta.get("left_out", {}) == left_out


def test_tables_of_a_task_folder_are_no_table_of_messages(tmp_path):
    (tmp_path / "questions.csv").write_text("question,answer\nWho?,Ana\n")
    [task], _ = read(tmp_path / "chunks.csv", "speaker,text,timestamp\nAna,Hi,2024-05-24\nBo,Ho,2024-05-24\n")
    assert len(task.questions) == 1 and len(task.chunks) == 2


@pytest.mark.parametrize("form", ["[{}, {}]", '{{"data": [{}, {}]}}', "{}\n{}\n"])
@pytest.mark.parametrize("holder", ["messages", "dialogue"])
def test_conversations_of_people(tmp_path, form, holder):
    first = {
        "id": "a",
        "timestamp": "2024-05-24",
        holder: [{"speaker": "Ana", "text": "Hi"}, {"speaker": "Bo", "text": ""}],
    }
    second = {"id": 7, holder: [{"sender": "Cy", "text": "Ho", "date": "2024-05-25T08:00", "likes": 3}]}
    name = "a.jsonl" if form.startswith("{}") else "a.json"
    tasks, turns = read(tmp_path / name, form.format(json.dumps(first), json.dumps(second)))
    assert [task.id for task in tasks] == ["a", "7"]
    assert turns == [("2024-05-24", "Ana", "Hi"), ("2024-05-25T08:00", "Cy", "Ho")]
    assert [task.meta["left_out"] for task in tasks] == [{"empty messages": 1}, {"other cells": 1}]
    assert tasks[0].chunks[0].turns[0].id == "0.0"
    (tmp_path / name).write_text(json.dumps([first, {**first, "id": "b", holder: [{"speaker": None, "text": "x"}]}]))
    with pytest.raises(DataError, match=r"field 'speaker' is missing"):
        load_tasks(tmp_path / name)
