"""Mails and mailboxes: authors, dates, encodings, HTML, and quotations of what is read already."""

from __future__ import annotations

import mailbox
import time
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from memalpha import load_tasks
from memalpha.cli.options import read_chunks
from memalpha.errors import DataError

ATTRIBUTION = "On Fri, 24 May 2024 at 10:00, Bo Berg <bo@example.org>\nwrote:\n"
ASKED = "Where do you live now, after all these years of work abroad?\nI live in Bonn."
QUOTED = "> Where do you live now, after all these\n> years of work abroad?\n>\n> I live in Bonn.\n"
HEAD = "-----Ursprüngliche Nachricht-----\nVon: Bo\nGesendet: Freitag\nAn: Ana\nBetreff: Flat\n\n"


def mail(author: str, date: str, words: str, number: int, *answered: int, **content: Any) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"], message["Date"] = author, "x@example.org", "Flat", date
    message["Message-ID"], message["MIME-Version"] = f"<{number}@example.org>", "1.0"
    if answered:
        message["References"] = "\n ".join(f"<{id}@example.org>" for id in answered)
    message.set_content(words, **content)
    return message


def read(path: Path, *mails: EmailMessage):
    """Return (timestamp, speaker, text) of the mails in a mailbox, and what was left out."""
    box = mailbox.mbox(path / "all.mbox")
    for message in mails:
        box.add(message)
    box.close()
    [task] = load_tasks(path / "all.mbox")
    turns = [(chunk.timestamp, turn.speaker, turn.text) for chunk in task.chunks for turn in chunk.turns]
    return turns, task.meta.get("left_out")


ASK = mail("Bo Berg <bo@example.org>", "Fri, 24 May 2024 10:00:00 +0200", ASKED, 1)


def test_a_mail_is_what_its_author_wrote(tmp_path):
    message = mail(
        "Ana Köhler <ana@example.org>", "Fri, 24 May 2024 23:05:09 -0200", f"Köln!\n\n{ATTRIBUTION}{QUOTED}", 2
    )
    message.add_attachment(b"x", maintype="image", subtype="png", filename="a.png")
    for name in ("a.eml", "a.txt"):
        (tmp_path / name).write_bytes(bytes(message).replace(b"\n", b"\r\n"))
        [task], [chunk] = load_tasks(tmp_path / name), read_chunks(tmp_path / name, None)
        assert chunk.turns[0].text == task.chunks[0].turns[0].text == f"Flat\nKöln!\n\n{ATTRIBUTION}{QUOTED}".strip()
        assert (chunk.timestamp, chunk.turns[0].speaker) == ("2024-05-25T01:05:09", "Ana Köhler")
        assert task.meta == {"source": "mail", "left_out": {"media": 1}}


@pytest.mark.parametrize(
    "words", [f"In Porto.\n\n{ATTRIBUTION}{QUOTED}", f"{ATTRIBUTION}{QUOTED}\nIn Porto.", f"In Porto.\n\n{HEAD}{ASKED}"]
)
def test_a_mailbox_is_read_by_date_without_what_it_quotes(tmp_path, words):
    answer = mail('"Silva, Ana" <ana@example.org>', "Fri, 24 May 2024 10:30:00 +0200", words, 2, 1)
    turns, left_out = read(tmp_path, answer, ASK)
    assert turns == [
        ("2024-05-24T08:00:00", "Bo Berg", f"Flat\n{ASKED}"),
        ("2024-05-24T08:00:00", "Silva, Ana", "Flat\nIn Porto."),
    ]
    assert left_out is not None and left_out["quoted lines"] > 2


def test_a_long_paragraph_before_a_quotation_stays(tmp_path):
    words = "I thought of 1985 and of what you wrote to me, " * 6 + "which was this:"
    answer = mail("Ana", "Fri, 24 May 2024 10:30:00 +0200", f"{words}\n{QUOTED}", 2, 1, cte="8bit")
    assert read(tmp_path, ASK, answer)[0][-1][2] == f"Flat\n{words}"


@pytest.mark.parametrize(
    "words",
    [
        "> I live in Bonn.\nWith Cy?",
        f"Bo was told:\n{QUOTED}> By Cy.",
        f"{HEAD}I moved to Rome.",
        "Dear Bo,\nFrom: 1 May\nTill: 3 May\nPlace: Rome\nI am away.",
        "From here it is far.",
        "The dates are\nFrom: 1 May\nTill: 3 May\nPlace: Rome",
        "Name: Ana\nCity: Porto\nPhone: 12\nI live in Bonn.",
    ],
)
def test_what_no_mail_before_says_stays(tmp_path, words):
    turns, left_out = read(tmp_path, ASK, mail("a@example.org", "Fri, 24 May 2024 10:30:00 +0200", words, 2, 1))
    assert turns[-1][1:] == ("a@example.org", f"Flat\n{words}") and left_out is None


def test_words_of_html_and_of_other_encodings(tmp_path):
    page = "<style>p {}</style><p>I moved<br>to  K&ouml;ln.</p><blockquote><div>Where do you live now, after all these"
    page += " years of work abroad?</div><div>I live in Bonn.</div></blockquote>"
    latin = mail("Cy", "nonsense", "Tschüß", 3, charset="iso-8859-1", cte="8bit")
    broken = mail("Di", "Fri, 24 May 2024 10:40:00 +0200", "x", 4)
    broken.replace_header("Content-Type", 'text/plain; charset="nonsense"')
    answer = mail("Ana", "Fri, 24 May 2024 10:30:00 +0200", page, 2, 1, subtype="html")
    turns, left_out = read(tmp_path, ASK, answer, latin, broken)
    said = [("Ana", "Flat\nI moved\nto Köln."), ("Cy", "Flat\nTschüß"), ("Di", "Flat\nx")]
    assert [turn[1:] for turn in turns[1:]] == said
    assert left_out == {"quoted lines": 2, "unreadable dates": 1}


def test_addresses_of_one_name_are_told_apart(tmp_path):
    authors = ("Ana <a@x.org>", "Ana <A@x.org>", "Ana <b@y.org>", "Bo <b@y.org>", "Ana", "Ana <c@z.org>")
    mails = [mail(name, f"Fri, 24 May 2024 10:0{n}:00 +0000", "Hi", n) for n, name in enumerate(authors)]
    names = ["Ana", "Ana", "Ana (b@y.org)", "Bo", "Ana", "Ana (c@z.org)"]
    assert [turn[1] for turn in read(tmp_path, *mails)[0]] == names


def test_a_typed_letter_is_no_mail(tmp_path):
    (tmp_path / "a.txt").write_text("From: Ana\nDate: 24 May 2024\nTo: Bo\n\nI moved.")
    assert read_chunks(tmp_path / "a.txt", None)[0].text is not None
    with pytest.raises(DataError, match="no message of a chat export"):
        load_tasks(tmp_path / "a.txt")


HEAD_LINES = "From: Ana <ana@example.org>\nMIME-Version: 1.0\nSubject: Flat\n"
DATED = f"{HEAD_LINES}Date: Fri, 24 May 2024 23:30:00 -0000\nMessage-ID: <9@example.org>\n"
MIXED = "Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/html\n\n<h4>I</h4>moved"
MIXED += "<table><tr><td>to</td><td>Rome</td></tr></table>\n--b\nContent-Type: message/rfc822\n\nFrom: Bo\n\nHi\n"


@pytest.mark.parametrize(
    ("text", "turn", "left_out"),
    [
        (f"{HEAD_LINES}\nHi.", (None, "Ana", "Flat\nHi."), {"unreadable dates": 1}),
        (f"{DATED}Content-Transfer-Encoding: 8bit\n\nKöln", ("2024-05-24T23:30:00", "Ana", "Flat\nKöln"), {}),
        (
            f"{DATED}{MIXED}--b\nContent-Type: text/plain\n\nThe end.\n--b--\n",
            ("2024-05-24T23:30:00", "Ana", "Flat\nI\nmoved\nto Rome\nThe end."),
            {"attached mails": 1},
        ),
    ],
)
def test_mails_of_uncommon_forms_are_read_whole(tmp_path, monkeypatch, text, turn, left_out):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        (tmp_path / "a.eml").write_text(text)
        [task] = load_tasks(tmp_path / "a.eml")
    finally:
        monkeypatch.undo()
        time.tzset()
    [chunk] = task.chunks
    assert (chunk.timestamp, chunk.turns[0].speaker, chunk.turns[0].text) == turn
    assert task.meta.get("left_out", {}) == left_out


def test_lines_from_inside_a_mail_do_not_end_it(tmp_path):
    border = "From ana Fri May 24 10:00:00 2024\n"
    text = f"{border}{DATED}\nHi.\n\nFrom here it is far.\nYou see.\n{border}Subject: Two\nDate: x\n\nHo.\n"
    for line_end in ("\n", "\r\n"):
        (tmp_path / "a.mbox").write_bytes(text.replace("\n", line_end).encode())
        [task] = load_tasks(tmp_path / "a.mbox")
        assert [(turn.speaker, turn.text) for turn in task.chunks[0].turns] == [
            ("Ana", "Flat\nHi.\n\nFrom here it is far.\nYou see."),
            ("unknown", "Two\nHo."),
        ]


def test_a_line_with_a_number_before_a_quotation_stays(tmp_path):
    answer = mail("Ana", "Fri, 24 May 2024 10:30:00 +0200", f"I pay 300 euros. You asked:\n{QUOTED}", 2, 1)
    assert read(tmp_path, ASK, answer)[0][-1][2] == "Flat\nI pay 300 euros. You asked:"


def test_mails_nested_without_end_and_open_tags_take_no_time(tmp_path):
    (tmp_path / "a.eml").write_text(f"{DATED}Content-Type: text/html\n\n" + "a<b " * 20_000)
    assert load_tasks(tmp_path / "a.eml")[0].chunks[0].turns[0].text.startswith("Flat\na<b a<b")
    (tmp_path / "a.eml").write_text(f"{DATED}\n{'-' * 20_000}{chr(10) * 20_000}I moved.")
    assert load_tasks(tmp_path / "a.eml")[0].chunks[-1].turns[-1].text.endswith("I moved.")
    (tmp_path / "a.mbox").write_text(f"From x\n{DATED}\nHi.\n\nFrom {'1:11:11 ' * 100_000}")
    assert "1:11:11" in load_tasks(tmp_path / "a.mbox")[0].chunks[-1].turns[-1].text
    nested = "".join(f"Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n" for n in range(600))
    border = "From ana Fri May 24 10:00:00 2024\n"
    (tmp_path / "a.mbox").write_text(f"{border}{DATED}{nested}\n\n{border}{DATED}\nHi.\n")
    [task] = load_tasks(tmp_path / "a.mbox")
    assert task.meta["left_out"] == {"unreadable mails": 1} and task.chunks[0].turns[0].text == "Flat\nHi."


def test_long_fields_take_no_time(tmp_path):
    started, field = time.monotonic(), "; a*0=b" * 10_000
    (tmp_path / "a.eml").write_text(f"{DATED}Content-Type: text/plain{field}\n\nHi.")
    assert load_tasks(tmp_path / "a.eml")[0].chunks[0].turns[0].text == "Flat\nHi."
    assert time.monotonic() - started < 10
