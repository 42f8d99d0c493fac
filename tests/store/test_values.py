"""Comparable values: texts that differ in a mark of a number or name differ, other marks do not matter."""

from datetime import date
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.agent.reader import in_conflict
from memalpha.qa.memory_reward import GoldFacts
from memalpha.qa.scoring.metrics import containment, exact_match, token_f1
from memalpha.store.values import MONTHS, contains, key_value, normalize
from memalpha.types import Chunk, GoldOperation, MemoryEntry, Task

MARKS = [".", "-", ":", "/", "^", "'", "*", "\u00d7"]
NUMBERS = st.tuples(
    st.sampled_from(["", "-", "+", "<", ">", "±", "#"]),
    st.integers(1, 9).map(str),
    st.sampled_from(["", *MARKS]),
    st.integers(0, 99).map(str),
    st.sampled_from(["", "%", "€", "+"]),
).map("".join)
NAMES = """
C C++ C# C- C* F# A A+ A- O+ O- AB- .NET net AC/DC ACDC R&B RB Node.js Nodejs a.b@c.com ab@c.com user_name username
P!nk Pnk @ana ana #general general v1.2 v12 B-12 B12 COVID-19 COVID19 x^2 5² 52 3½ 31/2 1,5 15 10:30 1030
5m 5mm 00:30 30
"""


def entries(*values):
    return [MemoryEntry(str(at), "semantic", f"Bo's value: {value}") for at, value in enumerate(values)]


def are_apart(one, two):
    gold = GoldOperation(kind="insert", chunk=0, category="semantic", content=f"Bo's value: {one}")
    facts = GoldFacts(Task(id="t", chunks=(Chunk(text="x"),), gold_operations=(gold,)))
    return (
        exact_match(one, two) == 0.0
        and in_conflict("bo's value", entries(one, two))
        and not facts.holds("semantic", f"Bo's value: {two}", 0)
    )


@given(NUMBERS, NUMBERS)
def test_numbers_that_differ_in_a_mark_differ_in_every_comparison(one, two):
    assert are_apart(one, two) == (one != two)
    assert exact_match(f"{one}.", f"({one})") == containment(f"It is {one}, not {two}9.", one) == 1.0


def test_names_that_differ_in_a_mark_differ():
    names = NAMES.split()
    assert [pair for pair in combinations(names, 2) if not are_apart(*pair)] == []


def test_numbers_and_names_share_no_token():
    assert token_f1("C", "C++") == token_f1("35", "3.5") == token_f1("-5", "5") == token_f1("10:30", "1030") == 0.0
    assert not contains("C++ and C#", "C") and contains("C++ and C#", "c#") and contains("It costs $5", "5")


def test_a_key_ends_at_a_colon_of_either_width():
    assert key_value("\u57ce\u5e02\uff1a\u4e0a\u6d77") == ("\u57ce\u5e02", "\u4e0a\u6d77")
    clause = "\u5f7c\u306f\u6628\u65e5\u6771\u4eac\u3067\u6bcd\u306b\u3053\u3046\u8a00\u3063\u305f"
    assert key_value(f"{clause}\uff1aX") is None
    assert key_value("\u6642\u523b: 10\uff1a30") == ("\u6642\u523b", "10\uff1a30")


def test_an_answer_in_a_script_without_spaces_is_found_inside_a_sentence():
    assert contains("昨日大阪に引っ越しました。", "大阪") and contains("서울에 살아요", "서울")
    assert contains("เขาอยู่กรุงเทพ", "กรุงเทพ")
    assert contains("試験は2026年1月9日です", "2026-01-09") and contains("家賃は5万円です", "5万円")
    assert not contains("家賃は15万円です", "5万円") and not contains("大きい阪神", "大阪")
    assert not contains("不是", "是") and contains("答案: 是", "是")  # one character has to stand alone
    assert contains("3只狗", "3") and not contains("13只狗", "3")  # a digit beside it is told from it
    assert token_f1("大阪です", "大阪") == pytest.approx(2 / 3) and token_f1("東京", "大阪") == 0.0


@pytest.mark.parametrize(
    "texts",
    [
        "2026-01-09|2026年1月9日|2026년 1월 9일|9 Jan 2026",
        "1,000|1000|1'000|(1,000).",
        "1,234,567.5|1234567.5",
        "12.5 kg|\u0661\u0662\u066b\u0665 kg|\u0661\u0662.\u0665 kg",
        "12.5 kg|\u06f1\u06f2.\u06f5kg|\u0967\u0968.\u096b kg|\uff11\uff12.\uff15 kg",
        "2026\u5e7401\u670809\u65e5|\u0e59 January \u0e52\u0e50\u0e52\u0e56",
        "\u0130stanbul|istanbul|\u0130STANBUL",
        "Oslo.|Oslo|oslo!|“Oslo”|**Oslo**|*Oslo*|_Oslo_|`Oslo`|the Oslo|Os\u00adlo",
        "3.5.|3.5|(3.5)|3.5!",
        "\u22125|-5|\u20135|(-5).",
        "5%|5 %|5 %.",
        "$5|5 $|$5.",
        "-$5|$-5",
        "U.S.|US",
        "p.m.|pm",
        "5pm|5 p.m.|5 PM",
        "09:00|9:00|09:00.",
        "09:30-17:00|9:30-17:00",
        "3.5mg|3.5 mg",
        "don't|dont|don\u2019t",
        "e-mail|email",
        "C++.|(C++)|**C++**|'C++'",
        "A-.|(A-)|**A-**",
        ">= 5|≥5|>=5",
        "9 January|January 9|Jan 9th|9th of January",
        "January 2024|Jan. 2024|January, 2024",
        "13/01/2024|01/13/2024|13 January 2024|13-01-2024",
        "2024-01-09T10:30|9 January 2024, 10:30",
    ],
)
def test_other_marks_do_not_matter(texts):
    assert len({normalize(text) for text in texts.split("|")}) == 1


def spellings(day):
    month = MONTHS[day.month - 1].capitalize()
    ordinal = f"{day.day}{'th' if 4 <= day.day <= 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(day.day % 10, 'th')}"
    return [
        f"{day.day} {month} {day.year}",
        f"{month} {day.day}, {day.year}",
        f"the {ordinal} of {month[:3]} {day.year}",
        f"{month[:3]}. {ordinal}, {day.year}",
        f"{day.day:02}.{day.month:02}.{day.year}",
        f"{day.day}.{day.month}.{day.year}",
        f"{day.day}-{month[:3]}-{day.year}",
        f"{day.year}/{day.month}/{day.day}",
        day.isoformat(),
        *([f"{day.day}/{day.month}/{day.year}", f"{day:%m-%d-%Y}"] if day.day > 12 else []),
    ]


@given(st.dates(date(1000, 1, 1)), st.dates(date(1000, 1, 1)), st.data())
def test_dates_are_compared_as_dates(one, two, data):
    left, right = data.draw(st.sampled_from(spellings(one))), data.draw(st.sampled_from(spellings(two)))
    assert exact_match(left, right) == token_f1(left, right) == float(one == two)
    assert containment(f"She left on {left}.", data.draw(st.sampled_from(spellings(one)))) == 1.0


def test_an_open_order_of_day_and_month_is_equal_to_its_own_spelling_alone():
    for text in ("03/04/2024", "03-04-2024"):
        assert exact_match(text, text) == 1.0
        assert not any(exact_match(text, other) for other in ("3 April 2024", "4 March 2024", "04/03/2024"))
    assert exact_match("31.02.2024", "31 February 2024") == exact_match("1.2.3.2024", "2024-03-02") == 0.0
    assert token_f1("9 January 2024", "January 2024") == 0.8, "a date that is less exact shares words"


@pytest.mark.parametrize(
    ("text", "part", "is_held"),
    [
        ("at Carol's place", "Carol", True),
        ("Carol\u2019s friend Dave's car", "Carol's friend Dave", True),
        ("Caroline's", "Carol", False),
        ("Carol", "Carol's", False),
    ],
)
def test_a_possessive_contains_its_name(text, part, is_held):
    assert contains(text, part) is is_held
