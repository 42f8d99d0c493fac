"""Labels of speakers in plain text."""

from __future__ import annotations

import pytest

from memalpha.agent.transcript import split_label, spoken_lines
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


@pytest.mark.parametrize(
    ("line", "label"),
    [
        ("Änne: Hallo", "Änne"),
        ("Jean-Luc d'Arc: Salut", ""),  # a word without a capital
        ("Иван Петров: Привет", "Иван Петров"),
        ("花子\uff1aこんにちは", "花子"),
        ("マリア\u30fbロペス: はい", "マリア\u30fbロペス"),
        ("ユーザー: はい", "ユーザー"),
        ("أحمد: مرحبا", "أحمد"),
        ("my dog: Rex", ""),
        ("12: noon", ""),
        ("Ana:", ""),
        ("user:", "user"),
    ],
)
def test_names_of_all_scripts_are_labels(line, label):
    assert split_label(line)[0] == label
