"""Exports of KakaoTalk and LINE: days, clocks, lines of the app, messages of several lines, and texts that are none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from memalpha import load_tasks
from memalpha.cli.options import read_chunks
from memalpha.errors import DataError

RULE, TITLE = "-" * 15, "홍길동 님과 카카오톡 대화\n저장한 날짜 : 2024-05-04 14:31:22\n\n"
DESKTOP = (
    f"{TITLE}{RULE} 2024년 5월 3일 금요일 {RULE}\n홍길동님이 김철수님을 초대했습니다.\n[홍길동] [오후 2:31] 나는 "
    "포르투로\n이사했어.\n[김 [철]수] [오후 12:05] 사진 2장\n[김 [철]수] [오전 12:05] 언제?\n"
    f"{RULE} 2024년 5월 4일 토요일 {RULE}\n[홍길동] [오후 2:31] 어제: 3시\n김철수님이 나갔습니다.\n"
    "[홍길동] [오후 2:32] 철수님이 나갔습니다.\n[홍길동] [오후 2:33] 삭제된 메시지입니다.\n"
)
PHONE = (
    "홍길동 님과 카카오톡 대화\n저장한 날짜 : 2024년 5월 4일 오후 2:31\n\n\n2024년 5월 3일 오후 2:31\n"
    "2024년 5월 3일 오후 2:31, 홍길동님이 김철수님을 초대했습니다.\n2024년 5월 3일 오후 2:31, 홍길동 : 나는 포르투로\n"
    "이사했어.\n2024년 5월 3일 오후 2:32, 김 [철]수 : 사진\n2024년 5월 3일 오전 12:05, 김 [철]수 : 언제?\n\n"
    "2024년 5월 4일 오후 2:31\n2024년 5월 4일 오후 2:31, 홍길동 : 어제: 3시\n"
    "2024년 5월 4일 오후 2:32, 홍길동 : 철수님이 나갔습니다.\n2024년 5월 4일 오후 2:33, 홍길동 : 삭제된 메시지입니다.\n"
)
IPHONE = PHONE.replace("년 ", ". ").replace("월 ", ". ").replace("일 오", ". 오").replace("1, 홍길동님", "1: 홍길동님")
IPHONE = IPHONE.replace("\n\n2024. 5. 4. 오후 2:31\n", "\n\n2024년 5월 4일 토요일\n")
LINE = (
    "[LINE] 花子とのトーク履歴\n保存日時\uff1a2024/05/04 14:31\n\n2024/05/03(金)\n"
    '14:31\t花子\t"候補は\n2024/05/03(金)\n2024/05/04(土)"\n14:32\t太郎\t[スタンプ]\n14:33\t太郎\t☎ 通話時間 1:23\n'
    "14:34\t\t花子がメッセージの送信を取り消しました\n\n2024/05/04(土)\n09:05\t太郎 次\t土曜:\t9時\n9:06\t花子\t[笑]\n"
)


def chat(path: Path, text: str, name: str = "chat.txt", **options):
    """Return the task of an exported text, and (timestamp, speaker, text) of each turn."""
    (path / name).write_text(text, encoding="utf-8")
    [task] = load_tasks(path / name, **options)
    return task, [(chunk.timestamp, turn.speaker, turn.text) for chunk in task.chunks for turn in chunk.turns]


@pytest.mark.parametrize("text", [DESKTOP, PHONE, IPHONE])
@pytest.mark.parametrize("name", ["chat.txt", "chat.log"])
def test_what_was_said_in_kakaotalk(tmp_path, text, name):
    task, turns = chat(tmp_path, "\ufeff" + text.replace("\n", "\r\n"), name)
    assert turns == [
        ("2024-05-03T14:31", "홍길동", "나는 포르투로\n이사했어."),
        ("2024-05-03T14:31", "김 [철]수", "언제?"),
        ("2024-05-04T14:31", "홍길동", "어제: 3시"),
        ("2024-05-04T14:31", "홍길동", "철수님이 나갔습니다."),
    ]
    notices = 2 if text == DESKTOP else 1
    left_out = {"notices": notices, "media": 1, "deleted messages": 1}
    assert task.meta == {"source": "kakaotalk", "left_out": left_out}
    assert read_chunks(tmp_path / name, None, exact_times=True)[1].timestamp == "2024-05-03T00:05"


def test_what_was_said_in_line(tmp_path):
    task, turns = chat(tmp_path, LINE)
    assert turns == [
        ("2024-05-03T14:31", "花子", "候補は\n2024/05/03(金)\n2024/05/04(土)"),
        ("2024-05-04T09:05", "太郎 次", "土曜:\t9時"),
        ("2024-05-04T09:05", "花子", "[笑]"),
    ]
    assert task.meta == {"source": "line", "left_out": {"media": 1, "notices": 1, "deleted messages": 1}}


PC = (
    "2024.05.03 金曜日\n14:31 花子 ポルトに\n引っ越した。\n14:32 太郎 スタンプ\n2024.05.04 土曜日\n"
    "09:05 太郎 いつ?\n9:06 花子 昨日: 3時\n"
)


def test_what_was_said_in_line_on_a_pc(tmp_path):
    task, turns = chat(tmp_path, PC, "[LINE]花子.txt")
    assert turns == [
        ("2024-05-03T14:31", "花子", "ポルトに\n引っ越した。"),
        ("2024-05-04T09:05", "太郎", "いつ?"),
        ("2024-05-04T09:05", "花子", "昨日: 3時"),
    ]
    assert task.meta == {"source": "line", "left_out": {"media": 1}}


@pytest.mark.parametrize(
    "text",
    [
        f"Ana with KakaoTalk Chats\nDate Saved : 2024-05-04 14:31:22\n\n{RULE} Friday, May 3, 2024 {RULE}\n"
        "Ana invited Bo to this chatroom.\n[Ana] [2:31 PM] I moved.\n[Bo] [12:05\u202fPM] Photo\n",
        "KakaoTalk Chats with Ana\nDate Saved : May 4, 2024, 2:31 PM\n\n\nMay 3, 2024, 2:31 PM\n"
        "May 3, 2024, 2:31 PM, Ana : I moved.\nMay 3, 2024, 2:32 PM, Bo : Photo\n",
        "[LINE] Chat history with Ana\nSaved on: 5/4/2024, 14:35\n\nFri, 5/3/2024\n14:31\tAna\tI moved.\n"
        "14:32\tBo\t[Photo]\n",
        "[LINE] Chat history with Ana\nSaved on: 4/5/2024, 14:35\n\nFri, 3/5/2024\n02:31PM\tAna\tI moved.\n",
        "[LINE] Chat history with Ana\nSaved on: 2024/05/04 14:35\n\n2024/05/03(Fri)\n2:31 PM\tAna\tI moved.\n",
        "[LINE] Ana的聊天記錄\n儲存日期\uff1a2024/05/04 14:35\n\n2024/05/03\uff08週五\uff09\n"
        "下午02:31\tAna\tI moved.\n",
        "[LINE] Ana\n2024.05.03 Friday\n2:31 p.m.\tAna\tI moved.\n2:32 p.m.\tBo\t[Sticker]\n",
        "[LINE] Ana\nบันทึกเมื่อ 31/05/2567 14:31\n\nศ., 31/05/2567\n14:31\tBo\t[รูป]\n\n"
        "ศ., 03/05/2567\n14:31\tAna\tI moved.\n",
        "[LINE] Ana님과의 대화\n저장한 날짜: 2024/05/04 오후 2:31\n\n2024.05.03 금요일\n오후 02:31\tAna\tI moved.\n"
        "오후 02:32\tBo\t[스티커]\n",
        f"{RULE} 2024년 5월 3일 금요일 {RULE}\n[Ana] [오후 2:31] I moved.\n[Bo] [오후 2:31] 이모티콘\n",
    ],
)
def test_other_languages_and_exports_without_their_title(tmp_path, text):
    assert chat(tmp_path, text)[1] == [("2024-05-03T14:31", "Ana", "I moved.")]


def test_messages_before_the_first_day_are_counted(tmp_path):
    task, turns = chat(tmp_path, LINE.replace("2024/05/03(金)\n14:31", "14:30\t花子\tあ\n\n2024/05/03(金)\n14:31", 1))
    assert len(turns) == 3 and task.meta["left_out"]["lines before the first message"] == 1


def test_lines_that_begin_like_notices_take_no_time(tmp_path):
    text, started = f"{DESKTOP}{'님이 ' * 100_000}님을\n", time.monotonic()
    assert chat(tmp_path, text)[1] and time.monotonic() - started < 10


def test_a_weekday_that_fits_both_orders_is_asked_for(tmp_path):
    text = "[LINE] Chat history with Ana\nSaved on: 9/6/2024, 14:35\n\nThu, 9/5/2024\n14:31\tAna\tI moved.\n"
    with pytest.raises(DataError, match=r"the dates may begin with the day or the month \(9/5/2024 on line 5"):
        chat(tmp_path, text)
    assert chat(tmp_path, text, dates="month-first")[1][0][0] == "2024-09-05T14:31"
    assert chat(tmp_path, f"{text}\nFri, 9/6/2024\n14:31\tAna\tHi.\n")[1][0][0] == "2024-09-05T14:31"


@pytest.mark.parametrize(
    "text",
    [
        "2024년 5월 3일 오후 2:31, 치과 : 예약\n서류를 가져갈 것.\n주차는 지하.",
        "2024년 5월 3일 오후 2:31, 치과\n2024년 5월 4일 오후 2:31, 병원",
        f"일기\n{RULE} 2024년 5월 3일 금요일 {RULE}\n[홍길동] [오후 2:31] 안녕\n이렇게 말했다.\n나는 기뻤다.\n끝.",
        "14:31\tStart\tRun\n14:32\tStop\tRun",
        "2024/05/03(金)\n09:00\t会議\t渋谷\n10:00\t電話\t花子",
        PC.strip(),
        "2024/05/03(金)\n花子と会った。\n14:31\t電車\t渋谷",
        "[LINE] 花子とのトーク履歴を読んだ。\n楽しかった。",
        "Notes\nDate Saved: 2024-05-04\n[Ana] [2:31 PM] I moved.",
    ],
)
def test_texts_that_look_a_bit_like_an_export_stay_texts(tmp_path, text):
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    assert [chunk.text for chunk in read_chunks(tmp_path / "a.txt", None)] == [text]
