r"""The reward of a right answer to a mathematical problem: 1 where the reply's answer equals the truth, else 0.

The answer is what stands in the reply's last closed `\boxed{...}`, else its last number; a leading `<think>` part does
not count. The truth is read from a column: behind GSM8K's `####`, in MATH's last box, or the whole text.

Equal are texts that are the same, numbers of the same value (exactly), and what math-verify (Kydlíček 2025) finds
equal: fractions, roots, sets, intervals, matrices, equations, formulas. The rules it leaves open:

- Percent: `50%` equals `50%`, `0.5` and `50`. Thousands may be separated (`1,234`, `1{,}234`, `1 234` in LaTeX).
- Units and currencies are not compared: `18 dollars`, `\$18`, `18\text{ cm}` all equal `18`; words that scale
  (`3 million`, `two dozen`) are no units, and never equal the bare number.
- A decimal counts as its fraction from six digits on (math-verify's rounding); `0.33` is not 1/3, `3.14` is not pi.
- A mixed number `2 1/2` is 2.5. Words (`Monday`) equal themselves in any case, and nothing else.
- Several answers (`5 or 6`) are a set, and equal only the same set.

math-verify bounds its time by a signal, which works in the main thread alone and not inside a big power, so it runs in
a process of ours (`killable`) with `SECONDS` of CPU time a pair: what takes longer (`9^{9^{9^9}}`) is not equal.
"""

from __future__ import annotations

import re
import warnings
from collections import deque
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from memalpha.errors import ConfigError, RewardError
from memalpha.rewards.base import column_of, reply_text
from memalpha.rewards.killable import Killable, Killed

SECONDS = 2.0
"""CPU time for one pair."""
LONGEST = 2000
"""Characters of an answer; what is longer is equal only where it is the same text."""
KEPT = 100_000
"""Pairs whose outcome is remembered."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|\\boxed\s+([^\s${}]+)")
_INTEGER = r"(?:\d{1,3}(?:(?:,|\{,\})\d{3})+(?!\d)|\d+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.\d+)?|\.\d+)"
_NUMBER = re.compile(
    rf"""(?P<sign>(?<![\w)\]}}.])[-+\u2212])?\s?
    (?:\\[dt]?frac\{{(?P<over>\s*-?{_DECIMAL}\s*)\}}\{{(?P<under>\s*{_DECIMAL}\s*)\}}
     |(?:(?P<whole>(?<![\w.,/])\d+)\s+)?(?P<top>(?<![\w.]){_INTEGER})\s?/\s?(?P<bottom>{_INTEGER})(?![\w/]|\.\d)
     |(?P<plain>(?<![\d.]){_DECIMAL})(?:(?P<e>[eE][-+]?\d{{1,3}})(?!\w)
       |\s?(?:\\times|\\cdot|[\u00d7*])\s?10\^\{{?(?P<ten>[-+]?\d{{1,3}})\}}?)?
    )(?P<percent>\s?\\?%)?""",
    re.VERBOSE,
)
_TENS = ("half", "third", "quarter", "dozen", "score", "hundred", "thousand", "million", "billion", "trillion")
_SCALES = {*_TENS, *(f"{word}s" for word in _TENS), "halves", "plus", "minus", "times", "over", "squared", "cubed"}
_SCALES |= {"root", "and", "not"}
"""Words beside a number that make it another one."""
_WORD = re.compile(r"[^\W\d_]+")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\{([^{}]*)\}")
_WITH_UNITS = re.compile(r"(?:[^\W\d_]{3,}[\s:]+)*(?P<number>[-+]?[\d.,/ ]*\d\s?%?)(?:[\s-]+[^\W\d_]{3,}\.?)+")
_CURRENCY = re.compile(r"\\?[$€£¥₹₩₽]")


class MathReward:
    """1 where the reply's answer equals `columns[column]`, else 0; None where that is None.

    Raises `ConfigError` where math-verify is not installed, `RewardError` for a truth that is empty or no text.
    """

    name = "math"

    def __init__(self, column: str = "answer") -> None:
        if find_spec("math_verify") is None:
            raise ConfigError("a math reward needs math-verify: pip install 'memalpha[train]'")
        self.column = column
        self.columns = (column,)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """1, 0 or None for each completion."""
        truths = [self._truth(row, truth) for row, truth in enumerate(column_of(columns, self.column))]
        answers = [answer_of(reply_text(reply, thinking=False)) for reply in completions]
        rows = [row for row, truth in enumerate(truths) if truth is not None]
        found: list[float | None] = [None] * len(truths)
        equal = are_equal([(answers[row], truths[row] or "") for row in rows])
        for row, same in zip(rows, equal, strict=True):
            found[row] = float(same)
        return found

    def _truth(self, row: int, truth: Any) -> str | None:
        if truth is None:
            return None
        text = truth_of(str(truth)) if isinstance(truth, str | int | float) and not isinstance(truth, bool) else ""
        if not text:
            raise RewardError(f"row {row}: column {self.column!r} holds {truth!r:.80}, and no answer")
        return text


# ---------------------------------------------------------------------------------------------------------- reading


def last_boxed(text: str) -> str | None:
    r"""What the last closed `\boxed{...}` holds, braces counted (`\{` is none); in a box of a box, the inner."""
    for found in reversed(list(_BOX.finditer(text))):
        if found[1] is not None:
            return found[1]
        depth, at = 1, found.end()
        while at < len(text) and depth:
            if text[at] == "\\":
                at += 1
            else:
                depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        if not depth:
            return text[found.end() : at - 1].strip()
    return None


def last_number(text: str) -> str | None:
    r"""The last number of a text as it is written: 1,234.5, -3/4, \frac{3}{4}, 2 1/2, 1.5e3, 1.5 \times 10^{3}, 50%."""
    last = deque(_NUMBER.finditer(text), maxlen=1)
    return last[0][0].strip() if last else None


def answer_of(reply: str) -> str:
    r"""A reply's answer: its last box, else its last number, else "" (which equals nothing)."""
    boxed = last_boxed(reply)
    return boxed if boxed is not None else last_number(reply) or ""


def truth_of(text: str) -> str:
    r"""The answer in a data set's solution: behind the last `####`, else in the last box, else all of it."""
    if "####" in text:
        text = text.rpartition("####")[2]
    boxed = last_boxed(text)
    return (text if boxed is None else boxed).strip()


def number_of(text: str) -> tuple[Fraction, bool] | None:
    """(value, whether in percent) of a text that is one number as `last_number` reads them, else None."""
    found = _NUMBER.fullmatch(text.strip()) if len(text) <= LONGEST else None
    if found is None:
        return None
    if found["plain"] is not None:
        value = _exact(found["plain"])
        power = int((found["e"] or "e0")[1:]) if found["ten"] is None else int(found["ten"])
        value *= Fraction(10) ** power
    elif found["over"] is not None:
        value = _ratio(found["over"], found["under"])
    else:
        value = _ratio(found["top"], found["bottom"])
        if value is not None and found["whole"] is not None:
            value += int(found["whole"])
    if value is None:
        return None
    return (-value if found["sign"] in ("-", "\u2212") else value), found["percent"] is not None


def _exact(text: str) -> Fraction:
    return Fraction(text.replace("{,}", "").replace(",", "").replace(" ", "").strip())


def _ratio(over: str, under: str) -> Fraction | None:
    bottom = _exact(under)
    return _exact(over) / bottom if bottom else None


# -------------------------------------------------------------------------------------------------------- comparing


def are_equal(pairs: Sequence[tuple[str, str]]) -> list[bool]:
    """Whether each answer equals its truth. What needs math-verify is compared in processes, equal pairs once."""
    known = {pair: _plainly_equal(*pair) for pair in set(pairs)}
    asked = [pair for pair, equal in known.items() if equal is None]
    if asked:
        known |= _verified(asked)
    return [bool(known[pair]) for pair in pairs]


@lru_cache(KEPT)
def _plainly_equal(answer: str, truth: str) -> bool | None:
    """Without math-verify: True, False, or None where that has to say."""
    answer, truth = _plain(answer), _plain(truth)
    if not answer:
        return False
    if answer.casefold() == truth.casefold():
        return True
    if _is_words(truth) or len(answer) > LONGEST:
        return False
    number = number_of(truth)
    if number is not None:
        if _SCALES.intersection(_plain_words(answer)):
            return False
        answer = _without_units(answer)
        given = number_of(answer)
        if given is not None:
            if given == number or ((given[1] or number[1]) and _percent_equal(given, number)):
                return True
            if given[0].denominator == number[0].denominator == 1:
                return False
    return None


def _percent_equal(one: tuple[Fraction, bool], other: tuple[Fraction, bool]) -> bool:
    if one[1] and other[1]:
        return one[0] == other[0]
    percent, plain = (one[0], other[0]) if one[1] else (other[0], one[0])
    return plain in (percent, percent / 100)


def _plain(text: str) -> str:
    r"""Without currencies, spaces at the ends, `\text{}` around words, and the brackets of a choice `(A)`."""
    text = _CURRENCY.sub("", text).replace("\u2212", "-").replace(r"\!", "").replace(r"\,", "")
    text = re.sub(r"\s?\bpercent$", "%", text.strip().rstrip(".").strip())
    inner = _TEXT.fullmatch(text)
    text = inner[1].strip() if inner else text
    choice = re.fullmatch(r"\(([A-Za-z])\)", text)
    return choice[1] if choice else text


def _is_words(text: str) -> bool:
    return len(text) > 1 and bool(re.fullmatch(r"[^\W\d_]{2,}(?:[\s'-]+[^\W\d_]+)*", text))


def _without_units(text: str) -> str:
    """The number alone, where nothing but words of three letters and more stands around it."""
    found = _WITH_UNITS.fullmatch(text)
    return found["number"].strip() if found else text


def _plain_words(text: str) -> set[str]:
    r"""The words of a text, of one in LaTeX those in its `\text{}`."""
    if "\\" in text:
        text = " ".join(_TEXT.findall(text))
    return set(_WORD.findall(text.casefold()))


_PROCESSES = Killable(f"{__name__}:verify", seconds=SECONDS, warm=("1", "2"))
_KNOWN: dict[tuple[str, str], bool] = {}


def _verified(pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], bool]:
    known = {pair: _KNOWN[pair] for pair in pairs if pair in _KNOWN}
    asked = [pair for pair in pairs if pair not in known]
    outcomes = _PROCESSES.map([tuple(map(_plain, pair)) for pair in asked])
    known |= {pair: outcome is True for pair, outcome in zip(asked, outcomes, strict=True)}
    if killed := [(pair[0], out) for pair, out in zip(asked, outcomes, strict=True) if isinstance(out, Killed)]:
        answer, outcome = killed[0]
        what = f"{len(killed)} answers count as wrong: comparing them did not end ({answer[:80]!r}: {outcome.why})"
        warnings.warn(what, RuntimeWarning, stacklevel=2)
    if len(_KNOWN) > KEPT:
        _KNOWN.clear()
    _KNOWN.update(known)
    return known


def verify(answer: str, truth: str) -> bool:
    """What math-verify says, without a time limit: `are_equal` calls it in a process that has one."""
    from math_verify import parse
    from math_verify import verify as compare

    given, gold = (parse(f"${text.replace('$', '')}$", parsing_timeout=0) for text in (answer, truth))
    return bool(compare(gold, given, timeout_seconds=None))
