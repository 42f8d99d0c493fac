"""Parts of the sentence rules: labels, slots of updates, dates, and which sentences are skipped."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from memalpha.policy.rules.dates import resolve_dates
from memalpha.policy.rules.slots import find_slot
from memalpha.policy.rules.statements import is_about_a_person, is_for_the_listener, is_small_talk, split_sentences
from memalpha.policy.rules.transcript import spoken_lines
from memalpha.types import Chunk


def test_a_label_holds_until_the_next_one_in_any_case():
    text = "USER: hi\nassistant: One.\nTwo.\n\nAna: My dog: Rex.\nNote: bring milk\n**Bot:** Fine."
    assert [(speaker, line) for speaker, line in spoken_lines(Chunk(text=text)) if line] == [
        ("USER", "hi"),
        ("assistant", "One."),
        ("assistant", "Two."),
        ("Ana", "My dog: Rex."),
        ("Ana", "Note: bring milk"),
        ("Bot", "Fine."),
    ]


SAME_SLOT = [
    ("I live in Rome.", "Actually, I moved to Porto last month."),
    ("my name is ana", "Call me Anna."),
    ("Tom: I work at Acme.", "Tom: I no longer work at Acme."),
    ("I like coffee.", "I don't like coffee anymore."),
    ("My favourite colour is blue.", "I changed my favourite colour to green."),
    ("Ich wohne in Berlin.", "Ich bin nach Hamburg gezogen."),
    ("I'm a nurse.", "I work as a pilot now."),
]


@pytest.mark.parametrize(("old", "new"), SAME_SLOT)
def test_an_update_has_the_slot_of_what_it_replaces_and_another_value(old, new):
    first, second = find_slot(old), find_slot(new)
    assert first is not None and second is not None
    assert first[:2] == second[:2] and first.value != second.value


@pytest.mark.parametrize(
    "content",
    ["I'm a big fan of jazz.", "I'm a mother of two.", "I moved to tears of joy.", "It is a nice city.", "I love it."],
)
def test_what_only_looks_like_a_slot_has_none(content):
    assert find_slot(content) is None


def test_dates_are_written_out():
    cases = {
        "I ran yesterday.": "I ran yesterday (9 May 2024).",
        "two weeks ago": "two weeks ago (around 26 April 2024)",
        "last month, next year": "last month (April 2024), next year (2025)",
        "in 3 days": "in 3 days (13 May 2024)",
        "the day after tomorrow": "the day after tomorrow (12 May 2024)",
        "last week": "last week (the week before 10 May 2024)",
    }
    assert {text: resolve_dates(text, "2024-05-10T09:00") for text in cases} == cases  # a Friday
    for number, name in enumerate(("Monday", "Friday", "Sunday")):
        before = max(
            day for back in range(1, 8) if (day := date(2024, 5, 10) - timedelta(back)).weekday() == (0, 4, 6)[number]
        )
        assert f"({before.day} {before:%B %Y})" in resolve_dates(f"last {name}", "2024-05-10")
    assert resolve_dates("yesterday", None) == resolve_dates("yesterday", "soon") == "yesterday"
    assert resolve_dates("999 years ago and 2000 years ago", "0500-01-01") == "999 years ago and 2000 years ago"
    once = resolve_dates("yesterday", "2024-05-10")
    assert resolve_dates(once, "2024-06-10") == once


def test_sentences_end_at_stops_but_not_at_abbreviations():
    assert list(split_sentences("Dr. Weber paid 3.50 euros. Good! 我很好。再见。")) == [
        "Dr. Weber paid 3.50 euros.",
        "Good!",
        "我很好。",
        "再见。",
    ]


def test_talk_and_statements():
    for text in ("How are you?", "Keep up the great work!", "That's awesome!", "I'm so proud of you!", "Thanks, Tom!"):
        assert is_small_talk(text), text
    for text in ("Write me a poem.", "Your blood pressure is fine.", "please explain it"):
        assert is_for_the_listener(text) and not is_small_talk(text), text
    for text in ("Ana lives in Rome.", "i work nights", "我住在上海。", "Thanks, I live in Rome.", "This is my dog."):
        assert is_about_a_person(text) and not is_small_talk(text), text
    for text in ("The weather changed.", "Work is hard.", "Keep in touch.", "Sounds good."):
        assert not is_about_a_person(text), text
