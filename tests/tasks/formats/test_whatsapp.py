"""Chats exported as text: both forms, both clocks, both orders of dates, lines of the app, and errors by line."""

from __future__ import annotations

import tempfile
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha import load_tasks
from memalpha.cli.options import read_chunks
from memalpha.errors import DataError
from memalpha.tasks.formats.whatsapp import is_chat_text

LRM, NNBSP = "\u200e", "\u202f"


def load(path: Path, text: str, **options):
    """Return the task of an exported text, and (timestamp, speaker, text) of each turn."""
    file = path / "chat.txt"
    file.write_text(text, encoding="utf-8")
    [task] = load_tasks(file, **options)
    return task, [(chunk.timestamp, turn.speaker, turn.text) for chunk in task.chunks for turn in chunk.turns]


def chat(path: Path, text: str, **options):
    return load(path, text, **options)[1]


def test_a_chat_of_an_iphone(tmp_path):
    text = (
        f"{LRM}[24/05/24, 9:05:09{NNBSP}PM] Trip: {LRM}Messages and calls are end-to-end encrypted.\r\n"
        f"[24/05/24, 9:05:30{NNBSP}PM] Trip: {LRM}Bo added you\r\n"
        f"[24/05/24, 9:06:00{NNBSP}PM] \u202a+351 912 345 678\u202c: I moved to Porto.\r\nRua 12.\r\n\r\nCome!\r\n"
        f"{LRM}[24/05/24, 9:07:00{NNBSP}PM] Bo: {LRM}image omitted\r\n"
        f"[25/05/24, 12:07:01{NNBSP}AM] Bo: At noon? {LRM}<This message was edited>\r\n"
        f"[25/05/24, 12:07:02{NNBSP}PM] Bo: My desk {LRM}<attached: 00000012-PHOTO.jpg>\r\n"
        f"[25/05/24, 12:07:03{NNBSP}PM] Bo: {LRM}You deleted this message.\r\n"
        f"[25/05/24, 12:07:04{NNBSP}PM] Bo: Nothing was omitted\r\n"
    )
    task, turns = load(tmp_path, text)
    assert turns == [
        ("2024-05-24T21:06", "+351 912 345 678", "I moved to Porto.\nRua 12.\n\nCome!"),
        ("2024-05-25T00:07:01", "Bo", "At noon?"),
        ("2024-05-25T00:07:01", "Bo", "My desk"),
        ("2024-05-25T00:07:01", "Bo", "Nothing was omitted"),
    ]
    assert task.meta["left_out"] == {"notices": 2, "media": 2, "deleted messages": 1}


def test_a_chat_of_an_android_phone(tmp_path, memalpha):
    text = (
        "24/05/2024, 21:05 - Messages and calls are end-to-end encrypted. Tap to learn more.\n"
        "24/05/2024, 21:05 - Ana created group “Trip: Rome”\n"
        '24/05/2024, 21:06 - Ana changed the subject from "Trip" to "Rome: now"\n'
        '24/05/2024, 21:06 - Ana "Nana" B: The flight: TP 832\n'
        "24/05/2024, 21:07 - Bo: <Media omitted>\n"
        "24/05/2024, 21:08 - Bo: IMG-20240524-WA0001.jpg (file attached)\nOur hotel\n"
        "24/05/2024, 21:09 - Bo: This message was deleted\n"
        "24/05/2024, 21:09 - Bo: [24/05/2024, 21:05:09] Ana: quoted\n"
        "24/05/2024, 21:10 - Bo: \n"
    )
    task, turns = load(tmp_path, text)
    assert [turn[1:] for turn in turns] == [
        ('Ana "Nana" B', "The flight: TP 832"),
        ("Bo", "Our hotel"),
        ("Bo", "[24/05/2024, 21:05:09] Ana: quoted"),
    ]
    assert task.meta["left_out"] == {"notices": 3, "media": 2, "deleted messages": 1}
    assert "left out   3 notices, 2 media, 1 deleted message\n" in memalpha("data", "check", tmp_path / "chat.txt")[1]
    (tmp_path / "other.txt").write_text(text, encoding="utf-8")
    assert "left out   6 notices, 4 media, 2 deleted" in memalpha("data", "prepare", tmp_path, tmp_path / "t.jsonl")[1]


@pytest.mark.parametrize(
    ("head", "time"),
    [
        ("[1.12.2019, 12.00.05] ", "2019-12-01T12:00:05"),
        ("[13.3.2022 klo 14.08.18] ", "2022-03-13T14:08:18"),
        ("2019-01-31 12:00 - ", "2019-01-31T12:00"),
        ("2023/11/30, 07:52 - ", "2023-11-30T07:52"),
        ("5/31/24, 1:05 p.m. - ", "2024-05-31T13:05"),
        ("31/5/24, 1:05 a.\u00a0m. - ", "2024-05-31T01:05"),
        ("31-05-2024 23:59 \u2013 ", "2024-05-31T23:59"),
        ("2024. 05. 24. 15:45 - ", "2024-05-24T15:45"),
        ("24. 5. 2024, 0:45 am - ", "2024-05-24T00:45"),
        ("[2024. 5. 24. 오후 3:45:10] ", "2024-05-24T15:45:10"),
        ("2024/5/24 下午12:45 - ", "2024-05-24T12:45"),
        ("[2024/5/24 凌晨12:45:10] ", "2024-05-24T00:45:10"),
        ("2024/5/24 午前0:45 - ", "2024-05-24T00:45"),
        ("\u200f٢٤/٥/٢٠٢٤، ٣:٤٥ م - ", "2024-05-24T15:45"),  # noqa: RUF001
        ("24/5/24, 3:45 π.μ. - ", "2024-05-24T03:45"),
        ("24/5/2567 15:45 - ", "2024-05-24T15:45"),
        ("24.05.2024 \u0433., 15:45 - ", "2024-05-24T15:45"),
        ("24/05/2024 à 15:45 - ", "2024-05-24T15:45"),
        ("2024-05-24 15 h 45 - ", "2024-05-24T15:45"),
        ("[2024-05-24 15 h 45 min 10 s] ", "2024-05-24T15:45:10"),
        ("24.05.24 \u0433., 15:45 \u0447. - ", "2024-05-24T15:45"),
        ("24/05/24, 3:45\u202fPTG - ", "2024-05-24T15:45"),
        ("24/05/24, 3:45\u202fPG - ", "2024-05-24T03:45"),
        ("[24/5/24, 3:45:10 CH] ", "2024-05-24T15:45:10"),
        ("24.05.2024, 12:45 ÖÖ - ", "2024-05-24T00:45"),
        ("[24.05.2005 10:00:05] ", "2005-05-24T10:00:05"),
        ("5/24/2024, 24:05 - ", "2024-05-24T00:05"),
        ("\u061c2024/5/24,\u061c 3:45 ب.ظ. - ", "2024-05-24T15:45"),
    ],
)
def test_heads_of_other_languages(tmp_path, head, time):
    assert chat(tmp_path, f"{head}Ana: Hi") == [(time, "Ana", "Hi")]


def test_the_order_of_dates_is_decided_over_the_whole_file(tmp_path):
    above_12 = "01/02/2024, 10:00 - Ana: a\n13/02/2024, 10:00 - Ana: b\n"
    assert [turn[0] for turn in chat(tmp_path, above_12)] == ["2024-02-01T10:00", "2024-02-13T10:00"]
    in_order = "11/1/24, 10:00 - Ana: a\n12/1/24, 10:00 - Ana: b\n1/2/25, 10:00 - Ana: c\n2/1/25, 10:00 - Ana: d\n"
    assert chat(tmp_path, in_order)[0][0] == "2024-11-01T10:00"
    with pytest.raises(
        DataError,
        match=r"chat\.txt: the dates may begin with the day or the month \(01/02/2024 on line 1.* memalpha data prep",
    ):
        chat(tmp_path, "01/02/2024, 10:00 - Ana: a\n")
    assert chat(tmp_path, "01/02/2024, 10:00 - Ana: a\n", dates="month-first")[0][0] == "2024-01-02T10:00"
    dots = "05.03.24, 10:00 - Ana: a\n04.06.24, 10:00 - Ana: b\n03.07.24, 10:00 - Ana: c\n02.08.24, 10:00 - Ana: d\n"
    assert chat(tmp_path, dots)[0][0] == "2024-03-05T10:00"
    assert chat(tmp_path, "05.03.24, 10:00 - Ana: a\n", dates="month-first")[0][0] == "2024-05-03T10:00"
    assert chat(tmp_path, "02/02/2024, 10:00 - Ana: a\n")[0][0] == "2024-02-02T10:00"


CHAT = "24/05/2024, 21:05 - Ana: I moved to Porto.\n24/05/2024, 21:06 - Bo: Where to?\nWhich street?\n"
ENCRYPTED = "Messages and calls are end-to-end encrypted.\n"


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("chat.log", ""),
        ("chat", ""),
        ("chat.MD", ""),
        ("chat.txt", ENCRYPTED),
        ("chat.txt", f"WhatsApp\n\n{ENCRYPTED}"),
    ],
)
@pytest.mark.parametrize("form", [str, lambda text: "\ufeff" + text.replace("\n", "\r\n")])
def test_a_chat_of_any_ending_may_begin_with_some_lines_of_the_app(tmp_path, name, before, form):
    (tmp_path / name).write_bytes(form(before + CHAT).encode())
    [task], [first, _] = load_tasks(tmp_path / name), read_chunks(tmp_path / name, None, exact_times=True)
    said = [("Ana", "I moved to Porto."), ("Bo", "Where to?\nWhich street?")]
    assert [(turn.speaker, turn.text) for turn in task.chunks[0].turns] == said
    assert (first.timestamp, first.turns[0].text) == ("2024-05-24T21:05", said[0][1])
    lines = len(before.replace("\n\n", "\n").splitlines())
    assert task.meta.get("left_out", {}) == ({"lines before the first message": lines} if lines else {})


@pytest.mark.parametrize(
    "text",
    [
        "Guild: Trip\n\n[24/5/2024 21:05] Ana (pinned)\nI moved\nto Porto.\n\n[24/5/2024 21:06] Bo\nIn: May?\n\n"
        "[25/5/2024 9:00] Ana\nNo.\n",
        "Record\n===\nGroup: A\n===\nWith: B\n===\n2024-05-24 21:05 Ana\nI moved\nto Porto.\n\n"
        "2024-05-24 21:06 Bo\nIn: May?\n\n"
        "2024-05-25 9:00 Ana\nNo.\n\n2024-05-25 9:01 Bo\nOh.\n",
        "2024-05-24 21:05 < Ana> I moved\nto Porto.\n2024-05-24 21:06 <@Bo> In: May?\n"
        "2024-05-24 21:07 -!- Cai [~c@x] has joined\n2024-05-24 21:07 * Ana says: wow\n2024-05-25 9:00 < Ana> No.\n",
        "2024-05-24 21:05\t@Ana\tI moved\nto Porto.\n2024-05-24 21:06\tBo\tIn: May?\n2024-05-25 9:00\tAna\tNo.\n"
        "2024-05-25 9:00\t-->\tCai (~c@x) has joined\n",
    ],
)
def test_names_stand_alone_behind_the_time_or_as_in_irc(tmp_path, text):
    assert chat(tmp_path, text)[:3] == [
        ("2024-05-24T21:05", "Ana", "I moved\nto Porto."),
        ("2024-05-24T21:05", "Bo", "In: May?"),
        ("2024-05-25T09:00", "Ana", "No."),
    ]


def test_words_of_whatsapp_are_no_names_of_irc(tmp_path):
    """Nor is a date before the first message a head; a colon within a name is none before words."""
    text = "24/05/2024 21:04 Exported here\n[24/05/2024, 21:05] Ana:3: <b> is bold\n[24/05/2024, 21:06] Bo: a\tb\n"
    text += "[24/05/2024, 21:07] Bo: <省略多媒體檔案>\n"
    assert is_chat_text(
        "[24/05/2024, 21:05] Bo left\n[24/05/2024, 21:06] Ana: I wrote\n24/05/2024 21:05 Rome\n", any_names=False
    )
    assert chat(tmp_path, text) == [("2024-05-24T21:05", "Ana:3", "<b> is bold"), ("2024-05-24T21:05", "Bo", "a\tb")]


def test_a_new_group_has_more_notices_than_messages(tmp_path):
    head = "24/05/2024, 21:05 - "
    notices = f'{head}Not even WhatsApp can read them.\n{head}Ana created group "Trip"\n{head}Bo joined\n' * 2
    (tmp_path / "a.txt").write_text(f"{notices}{CHAT}")
    [task] = load_tasks(tmp_path / "a.txt")
    assert len(task.chunks[0].turns) == 2 and task.meta["left_out"] == {"notices": 6}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("app.log", "[2024-05-24 21:05:09] Started\n[2024-05-24 21:05:10] Stopped\n[2024-05-24 21:06:00] by: root\n"),
        (
            "app.log",
            "[2024-05-24 21:05:09] INFO: Started\n[2024-05-24 21:05:10] Ready\n[2024-05-24 21:06] app.ERROR: x\n",
        ),
        ("app.log", "01/02/2024 21:05:09 - INFO - Started: x\n01/02/2024 21:05:10 - DEBUG - a: b\n"),
        ("diary.txt", f"My diary\nBo showed me this:\n{CHAT}I was glad.\nThen I slept.\nNext day it rained.\n"),
        ("diary.txt", "My diary\n24/05/2024, 21:05 - Trip: we went to the sea.\n"),
        ("diary.txt", "A day.\n" * 6 + CHAT),
        ("diary.txt", "2024-05-24 21:05 Rome\nSun.\n\n2024-05-25 21:05 Rome\nRain.\n\n2024-05-26 21:05 Bari\nSea.\n"),
        ("app.txt", "2024-05-24 21:05 INFO up\na\n2024-05-24 21:06 INFO up\nb\n2024-05-24 21:07 INFO up\nc\n"),
        ("data.txt", "2024-05-24 21:05\t1.5\t2\n2024-05-24 21:06\t1.5\t2\n"),
        ("costs.txt", "2024-05-24 21:05\tTea\t3.50\n2024-05-25 21:05\tTea\t3.50\n"),
        ("app.txt", "2024-05-24 21:05 <info> up\n2024-05-24 21:06 <info> down\n"),
        (
            "diary.txt",
            "24/05/2024, 21:05 - Rome\nSun.\n25/05/2024, 21:05 - Rome\nRain.\n26/05/2024, 21:05 - Bari\nSea.\n",
        ),
        ("cron.txt", "2024-05-24 21:05 Backup\n3 files\n2024-05-25 21:05 Backup\n5 files\n"),
        (
            "notes.md",
            "[2024-05-24 21:05] Team\nShip.\n[2024-05-25 21:05] Team\nIll.\n[2024-05-26 21:05] Retro\nGood.\n",
        ),
        ("diary.txt", "24/05/2024, 21:05 - Rain.\n25/05/2024, 21:05 - Trip: the sea.\n26/05/2024, 21:05 - Rain.\n"),
    ],
)
def test_a_text_that_only_holds_some_messages_stays_a_text(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert [chunk.text for chunk in read_chunks(tmp_path / name, None)] == [text.strip()]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("\n", {}, r"chat\.txt: is empty"),
        ("Dear diary", {}, r"chat\.txt:1: no message of a chat export"),
        ("24/05/2024, 21:05 - Ana: a\n31/02/2024, 21:05 - Ana: b", {}, r"chat\.txt:2: there is no date 31/02/2024"),
        ("24/05/2024, 21:05 - Ana: a", {"dates": "month-first"}, r"chat\.txt:1: there is no date 24/05/2024"),
        ("18-05-03, 9:05 pm - Ana: a", {}, r"chat\.txt:1: there is no date 18/05/03, .* from 2009 on: write"),
        ("1403/2/14, 21:05 - Ana: a", {}, r"chat\.txt:1: there is no date 1403/2/14, .* from 2009 on"),
        ("24/05/2024, 21:61 - Ana: a", {}, r"chat\.txt:1: there is no time 21:61"),
        ("24/05/2024, 13:05 pm - Ana: a", {}, r"chat\.txt:1: hour 13 does not exist on a 12-hour clock"),
        ("24/05/2024, 13:05 - Ana left", {}, r"chat\.txt:1: no message of a chat export"),
        ("24/05/2024, 13:05 - Ana: <Media omitted>", {}, r"no message has words of a person"),
        ("24/05/2024, 13:05 - Ana: a", {"dates": "dmy"}, "dates=dmy: use day-first or month-first"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, text, options, message):
    with pytest.raises(DataError, match=message):
        chat(tmp_path, text, **options)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("letter.eml", "From: Ana <ana@example.org>\n\nI moved."),
        ("notes.md", "# Notes"),
        ("links.md", "[Diary](x)\nI moved."),
        ("messages.html", "<p>I moved.</p>"),
        ("diary", "I moved."),
    ],
)
def test_texts_of_any_ending_are_told_where_they_belong(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=rf"{name}:1: no message of a chat export, .* belong into a task file, a line"):
        load_tasks(tmp_path / name)


def test_an_archive_and_other_files_are_refused(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
        archive.writestr("_chat.txt", "24/05/2024, 21:05 - Ana: a")
    with pytest.raises(DataError, match="an archive: unpack it"):
        load_tasks(tmp_path / "export.zip")
    with pytest.raises(DataError, match="dates belongs to"):
        load_tasks(tmp_path / "tasks.jsonl", dates="day-first")


def test_what_a_poll_offers_are_words_of_who_asks(tmp_path):
    choices = f"{LRM}OPCIÓN: Rome (the old town) ({LRM}1 voto)\n{LRM}OPCIÓN: Oslo ({LRM}0 votos)\n\n"
    poll = f"{LRM}ENCUESTA:\nWhere to?\n{choices}"
    [(_, speaker, words)] = chat(tmp_path, f"{LRM}[24/05/24, 21:05:09] Ana: {poll}")
    assert (speaker, words) == ("Ana", "Where to?\nOPCIÓN: Rome (the old town) (1 voto)\nOPCIÓN: Oslo (0 votos)")


WORDS = st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters="<"), min_size=1, max_size=8).filter(
    lambda word: word != "null"  # what the app writes for a message without text
)
LINES = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)
NAMES = st.text(st.sampled_from("ABCdefgéß 12+-."), min_size=1, max_size=9).filter(lambda name: name.strip() == name)


def test_only_the_app_s_own_null_is_no_message(tmp_path):
    text = "24/05/2024, 21:05 - Ana: null\n24/05/2024, 21:06 - Ana: NULL\n24/05/2024, 21:07 - Ana: null and void"
    assert [words for _, _, words in chat(tmp_path, text)] == ["NULL", "null and void"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(NAMES, st.lists(LINES, min_size=1, max_size=3).map("\n".join), st.integers(0, 50_000)), min_size=1
    ),
    st.sampled_from(["day-first", "month-first"]),
    st.booleans(),
    st.booleans(),
)
def test_what_was_sent_comes_back(messages, order, is_bracketed, has_12_hours):
    """Messages written in any of the forms are read back whole, in order, with their day."""
    time, lines, sent = datetime(2023, 12, 30, 22, 0), [], []
    for name, text, minutes in messages:
        time += timedelta(minutes=minutes)
        day = f"{time:%d/%m/%Y}" if order == "day-first" else f"{time:%m/%d/%Y}"
        clock = f"{time:%I:%M:%S}{NNBSP}{time:%p}" if has_12_hours else f"{time:%H:%M:%S}"
        lines.append(f"[{day}, {clock}] {name}: {text}" if is_bracketed else f"{day}, {clock} - {name}: {text}")
        sent.append((time.date().isoformat(), name, text))
    with tempfile.TemporaryDirectory() as folder:
        turns = chat(Path(folder), "\n".join(lines), dates=order)
    assert [(time[:10], name, text) for time, name, text in turns] == sent


def test_a_folder_of_chats_is_a_task_for_each_file(tmp_path, memalpha):
    folder = tmp_path / "chats"
    folder.mkdir()
    for number, name in enumerate(("zoe", "ana", "bo")):
        (folder / f"{name}.txt").write_text(f"0{number + 1}/02/2024, 21:05 - {name}: I moved to Porto.\n")
    (folder / "notes.json").write_text('[{"role": "user", "content": "Hi."}]')
    (folder / ".hidden").write_text("x")
    with pytest.raises(DataError, match=r"chats/bo\.txt: the dates may begin .* with dates=day-first or dates="):
        load_tasks(folder)
    tasks = load_tasks(folder, dates="day-first")
    assert [task.id for task in tasks] == ["ana", "bo", "notes", "zoe"]
    assert tasks[0].chunks[0].timestamp == "2024-02-02T21:05" and tasks[0].chunks[0].turns[0].id == "0.0"
    assert len(load_tasks(folder, 2, dates="day-first")) == 2
    (folder / "us.txt").write_text("3/14/24, 9:05 PM - Lee: I moved to Boise.\n")
    assert load_tasks(folder, dates="day-first")[-2].chunks[0].timestamp == "2024-03-14T21:05", "another phone"
    (folder / "us.txt").write_text("31/14/24, 9:05 PM - Lee: I moved to Boise.\n")
    with pytest.raises(DataError, match=r"us\.txt:1: there is no date 31/14/24, read day-first"):
        load_tasks(folder, dates="day-first")
    (folder / "us.txt").unlink()
    code, out, _ = memalpha("data", "check", folder, "dates=day-first")
    assert code == 0 and "holds      4 tasks" in out
    assert memalpha("data", "prepare", folder, tmp_path / "mine.jsonl", "dates=day-first")[0] == 0
    assert load_tasks(tmp_path / "mine.jsonl") == tasks
    error = memalpha("data", "check", folder / "ana.txt", folder / "bo.txt")[2]
    assert "bo.txt: one file or folder is read: put several exported chats into a folder" in error
    (folder / "ana.json").write_text('[{"role": "user", "content": "Hi."}]')
    with pytest.raises(DataError, match=r"ana\.txt: the id 'ana' is that of a chat in ana\.json too: rename it"):
        load_tasks(folder, dates="day-first")
    (folder / "ana.json").unlink()
    for name, text in (("a.jpg", "x"), ("a.txt", "Dear diary"), ("a.json", "{}")):
        (folder / name).write_text(text)
        with pytest.raises(DataError, match=rf"every file is an exported chat: .*{name} is none: .* into a task file"):
            load_tasks(folder, dates="day-first")
        (folder / name).unlink()
    for file in folder.glob("*.txt"):
        file.unlink()
    with pytest.raises(DataError, match="dates belongs to chats exported as text"):
        load_tasks(folder, dates="day-first")


def test_words_of_the_app_in_other_languages_are_nobody_s(tmp_path) -> None:
    deleted = ("Diese Nachricht wurde gelöscht.", "Se eliminó este mensaje.", "Mensagem apagada", "Bu mesaj silindi")
    deleted += ("Ce message a été supprimé", "Hai eliminato questo messaggio", "Данное сообщение удалено")
    texts = (*deleted, "IMG-20240524-WA0001.jpg (Datei angehängt)\nUnser Hotel", "Um acht <Se editó este mensaje.>")
    turns = chat(tmp_path, "".join(f"24/05/2024, 21:05 - ~{NNBSP}Ana: {text}\n" for text in texts))
    assert [turn[1:] for turn in turns] == [("~ Ana", "Unser Hotel"), ("~ Ana", "Um acht")]


def test_media_in_other_languages_are_media_and_names_of_documents_are_nobody_s_words(tmp_path) -> None:
    omitted = (
        "imagen omitida",
        "Bild weggelassen",
        "image absente",
        "video omesso",
        "áudio ocultado",
        "video weggelaten",
    )
    iphone = [*(f"{LRM}{note}" for note in omitted), f"Rent.pdf • {LRM}2 pages {LRM}document omitted"]
    iphone += [f"Renta.docx {LRM}documento omitido", f"Rent.pdf • {LRM}2 pages {LRM}<attached: 12-Rent.pdf>"]
    iphone += [f"Home.sweet {LRM}image omitted", f"Read a.txt {LRM}<This message was edited>", "The image was omitted"]
    task, turns = load(tmp_path, "".join(f"[24/05/24, 21:05:09] Ana: {text}\n" for text in iphone))
    assert [words for _, _, words in turns] == ["Home.sweet", "Read a.txt", "The image was omitted"]
    assert task.meta["left_out"] == {"media": 10}
    attached = ("Datei angehängt", "archivo adjunto", "fichier joint", "file allegato", "arquivo anexado", "dosya ekli")
    android = [*(f"Eva (2).vcf ({words})" for words in attached), "Rent.pdf (last page)"]
    task, turns = load(tmp_path, "".join(f"24/05/2024, 21:05 - Ana: {text}\n" for text in android))
    assert [words for _, _, words in turns] == ["Rent.pdf (last page)"] and task.meta["left_out"] == {"media": 6}


def test_a_caption_that_ends_in_a_document_s_name_stays(tmp_path) -> None:
    said = f"I paid Bob 300 euros for invoice.pdf {LRM}<attached: 00000012-PHOTO.jpg>"
    assert chat(tmp_path, f"[24/05/2024, 21:05:09] Ana: {said}\n")[0][2] == "I paid Bob 300 euros for invoice.pdf"


def test_heads_with_other_separators_are_words_of_the_message(tmp_path) -> None:
    said = "Dates:\n12/06/2024 10h30 - Dentist: bring card\n12.06.2024, 10:30 - Ben: hi"
    assert chat(tmp_path, f"24/05/2024, 21:05 - Ana: {said}\n") == [("2024-05-24T21:05", "Ana", said)]


def test_the_order_of_the_messages_decides_before_dots(tmp_path) -> None:
    times = [time for time, _, _ in chat(tmp_path, "04.12.24, 10:00 - Ana: a\n05.01.24, 10:00 - Ana: b\n")]
    assert times == ["2024-04-12T10:00", "2024-05-01T10:00"]
