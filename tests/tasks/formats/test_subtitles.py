"""Subtitles and transcripts of meetings: speakers, sentences over several cues, and texts that are neither."""

from __future__ import annotations

import pytest

from memalpha import load_tasks
from memalpha.cli.options import read_chunks
from memalpha.errors import DataError
from memalpha.tasks.formats.subtitles import read_subtitles

ANA, BO = ("Ana Silva", "I moved to Porto last week."), ("Bo", "Where: to?")


def cue(number: int, words: str, point: str = ".") -> str:
    return f"{number}\n00:00:0{number}{point}000 --> 00:00:0{number}{point}900 align:start\n{words}\n\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "zoom.vtt",
            "WEBVTT\n\n" + cue(1, "Ana Silva: I moved to") + cue(2, "Porto last week.") + cue(3, "Bo: Where: to?"),
        ),
        (
            "teams.vtt",
            "\ufeffWEBVTT\n\nNOTE made by Teams\n\n"
            + cue(1, "<v Ana Silva>I moved to\nPorto</v>").replace("00:00:01.000", "0:0:1.0")
            + cue(2, "<v Ana Silva>last week.</v>\n<v.loud Bo><i>Where: to?</i></v>"),
        ),
        (
            "talk.srt",
            (cue(1, "Ana Silva: I moved to Porto last week.", ",") + cue(2, "Bo: Where: to?", ",")).replace(
                "\n", "\r\n"
            ),
        ),
        ("talk.txt", "[Ana Silva] 10:15:30\nI moved to Porto last week.\n\n[Bo] 10:15:40\nWhere: to?\n"),
        ("otter.txt", "Ana Silva  0:05  \nI moved to Porto last week.\n\nBo  0:20  \nWhere: to?\n"),
        (
            "chat.txt",
            "10:15:30 From Ana Silva to Everyone:\n\tI moved to Porto last week.\n10:16:01\t From  Bo : Where: to?\n",
        ),
    ],
)
def test_who_said_what_in_a_meeting(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode())
    [task], [chunk] = load_tasks(tmp_path / name), read_chunks(tmp_path / name, "2024-05-01")
    assert [(turn.speaker, turn.text) for turn in task.chunks[0].turns] == [ANA, BO]
    assert chunk.timestamp == "2024-05-01" and len(chunk.turns) == 2 and task.meta == {"source": "transcript"}


def test_subtitles_without_speakers_are_a_text(tmp_path):
    numbers = (
        cue(1, "Hear: I was born", ",") + cue(2, "{\\an8}in\n1985", ",") + cue(3, "- Why?\n- Work &amp; love.", ",")
    )
    (tmp_path / "talk.srt").write_text(numbers + "4\n00:00:09,000 --> 00:00:09,500\nIn\n\n1990\n")
    [chunk] = load_tasks(tmp_path / "talk.srt")[0].chunks
    assert chunk.text == "Hear: I was born in 1985 - Why?\n- Work & love.\nIn 1990"
    rolling = "WEBVTT\nKind: captions\n\n" + cue(1, " \nI moved<00:00:01.500><c> to</c>") + cue(2, "I moved to\n ")
    (tmp_path / "tube.vtt").write_text(rolling + cue(3, "I moved to\nPorto<c> now</c>"))
    assert load_tasks(tmp_path / "tube.vtt")[0].chunks[0].text == "I moved to Porto now"
    (tmp_path / "none.vtt").write_text("WEBVTT\n\n00:01.000 --> 00:02.000\n\n")
    with pytest.raises(DataError, match=r"none\.vtt: no cue has words"):
        load_tasks(tmp_path / "none.vtt")


def test_only_tags_of_subtitles_are_no_words(tmp_path):
    words = (
        '<i>If</i> a<b and c>d, <FONT color="red">3 <5 & 7> 2</font>, <Ana> says <c.loud b>so</c><i/><p class="a">.</p>'
    )
    (tmp_path / "talk.srt").write_text(cue(1, words, ","))
    assert read_chunks(tmp_path / "talk.srt", None)[0].text == "If a<b and c>d, 3 <5 & 7> 2, <Ana> says so."


def test_words_before_the_first_speaker_are_kept(tmp_path):
    (tmp_path / "a.vtt").write_text("WEBVTT\n\n" + cue(1, "Hi.") + cue(2, "<v Ana>Hello."))
    assert [turn.speaker for turn in load_tasks(tmp_path / "a.vtt")[0].chunks[0].turns] == ["unknown", "Ana"]


@pytest.mark.parametrize(
    "text",
    [
        "Lunch  12:30\nwith Bo\n\nDinner  19:30\nwith Cy",
        "I wrote 00:00:01,000 --> 00:00:02,000\nin the file.",
        "[Ana] 10:15\nAn idea.",
        "WEBVTT is a format.",
        "[Gym] 10:15\nlegs\n[Work] 11:15\nmail",
        "Intro  0:45\nSong two  3:20",
        "Prep time  0:15\nCook time  0:45\n\nMix the flour.",
        "12:30 From Berlin to Paris: ICE 5\n14:00 From Paris to Lyon: TGV",
    ],
)
def test_other_texts_with_times_stay_texts(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    assert [chunk.text for chunk in read_chunks(tmp_path / "a.txt", None)] == [text]


def test_long_speeches_and_broken_tags_take_no_time():
    line = "some words on a line\n"
    speeches = read_subtitles(f"[Ana] 10:15:30\n{line * 100_000}[Bo] 10:15:40\nx")
    assert speeches is not None and speeches[1] == ("Bo", "x")
    assert read_subtitles(f"WEBVTT\n\n{cue(1, '<v ' + ' ' * 100_000)}") == [("", "<v")]
