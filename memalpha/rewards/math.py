r"""The reward of a right answer to a mathematical problem: 1 where the reply's answer equals the truth, else 0.

The answer is what stands in the reply's last closed `\boxed{...}`, else its last number; a leading `<think>` part does
not count. The truth is read from a column: behind GSM8K's `####`, in MATH's last box, or the whole text.

Equal are texts that are the same, numbers of the same value (exactly), and what math-verify (Kydlíček 2025) finds
equal: fractions, roots, sets, intervals, matrices, equations, formulas. The rules it leaves open:

- Percent: `50%` equals `50%`, `0.5` and `50`. Thousands may be separated (`1,234`, `1{,}234`, in a box `1 234`).
- Units and currencies are not compared: `18 dollars`, `\$18`, `18\text{ cm}` all equal `18` (and `18\text{ m}`);
  `3 million`, `5k`, `2 dozen` are 3,000,000, 5,000 and 24. `am` is not `pm`, and a number's base is a part of it.
- A decimal counts as its fraction from six digits on (math-verify's rounding); `0.33` is not 1/3, `3.14` is not pi.
- A mixed number `2 1/2` is 2.5. Words (`Monday`) equal themselves in any case, and nothing else.
- `x = 5` equals `5`; `4 = 5`, `\geq 5` and `\approx 5` do not.
- Several answers (`5 or 6`) in a box are a set, and equal only the same set. Without a box, the last number counts
  whatever stands before it: of `between 5 and 6` that is 6.

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

from memalpha.errors import ConfigError, RewardError, install_command
from memalpha.rewards.reply import column_of, reply_text
from memalpha.rewards.subprocess_call import Killable, Killed
from memalpha.tasks.text_tasks import last_boxed

SECONDS = 2.0
"""CPU time for one pair."""
LONGEST = 2000
"""Characters of an answer; what is longer is equal only where it is the same text."""
KEPT = 100_000
"""Pairs whose outcome is remembered."""

_INTEGER = r"(?:\d{1,3}(?:(?:,|\{,\})\d{3})+(?!\d)|\d+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.\d+)?|\.\d+)"
_TIMES = {"hundred": 2, "thousand": 3, "k": 3, "million": 6, "billion": 9, "trillion": 12}
"""Powers of ten by their words."""
_TIMES_WORD = r"(?:dozen|(?<=\d)k|(?:hundred|thousand|million|billion|trillion)s?)(?!\w)"
_NUMBER = re.compile(
    rf"""(?P<sign>(?<![\w)\]}}.])[-+\u2212])?\s?
    (?:(?:(?P<mixed>(?<![\w.,/])\d+)\s?)?\\[dt]?frac\{{(?P<over>\s*-?{_DECIMAL}\s*)\}}\{{(?P<under>\s*{_DECIMAL}\s*)\}}
     |(?:(?P<whole>(?<![\w.,/])\d+)\s+)?(?P<top>(?<![\w.]){_INTEGER})\s?/\s?(?P<bottom>{_INTEGER})(?![\w/]|\.\d)
     |(?P<plain>(?<![\d.]){_DECIMAL})(?:(?P<e>[eE][-+]?\d{{1,3}})(?!\w)
       |\s?(?:\\times|\\cdot|[\u00d7*])\s?10\^\{{?(?P<ten>[-+]?\d{{1,3}})\}}?)?
    )(?:(?P<percent>\s?\\?%)|\s?(?P<times>{_TIMES_WORD}))?""",
    re.VERBOSE | re.IGNORECASE,
)
_SPACED = re.compile(r"([-+]?\d{1,3}(?: \d{3})+)(\.\d+)?(?!\d)")
_SCALES = {"half", "halves", "third", "thirds", "quarter", "quarters", "score", "plus", "minus", "times", "over"}
_SCALES |= {"squared", "cubed", "root", "and", "not"}
"""Words beside a number that make it another one."""
_BASE = re.compile(r"\d\s*_\s*\{?\s*(\d+)")
_RELATION = re.compile(r"\\(?:not|neq?|geq?|leq?|gt|lt|approx|sim|equiv|pm)(?![a-z])|[<>\u2248\u2260\u2264\u2265~]")
_NAMED, _NAME = re.compile(r"[A-Za-z)](?:_\{?\w+\}?)?\s*$"), re.compile(r"\s*[A-Za-z](?![A-Za-z])")
"""What stands before an equals sign, or behind one, that names a value."""
_HALVES = re.compile(r"(?<![a-z])([ap])\.?\s?m(?![a-z])", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\{([^{}]*)\}")
_WITH_UNITS = re.compile(
    rf"(?:[^\W\d_]{{3,}}[\s:]+)*(?P<number>[-+]?[\d.,/ ]*\d\s?(?:%|{_TIMES_WORD})?)"
    rf"(?:[\s-]+(?!{_TIMES_WORD})[^\W\d_]{{3,}}\.?)+",
    re.IGNORECASE,
)
_SPACE = re.compile(r"(?<!\\)\\ |\s|~")
_CURRENCY = re.compile(r"\\?[$€£¥₹₩₽]")


class MathReward:
    """1 where the reply's answer equals `columns[column]`, else 0; None where that is None.

    Raises `ConfigError` where math-verify is not installed, `RewardError` for a truth that is empty or no text.
    """

    name = "math"

    def __init__(self, column: str = "answer") -> None:
        if find_spec("math_verify") is None:
            raise ConfigError(f"a math reward needs math-verify: {install_command('train')}")
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
    text = (
        _SPACED.sub(lambda found: found[0].replace(" ", ""), text.strip()) if _SPACED.fullmatch(text.strip()) else text
    )
    found = _NUMBER.fullmatch(text.strip()) if len(text) <= LONGEST else None
    if found is None or len(text) > LONGEST:
        return None
    if found["plain"] is not None:
        value = _exact(found["plain"])
        power = int((found["e"] or "e0")[1:]) if found["ten"] is None else int(found["ten"])
        value *= Fraction(10) ** power
    elif found["over"] is not None:
        value = _ratio(found["over"], found["under"], found["mixed"])
    else:
        value = _ratio(found["top"], found["bottom"], found["whole"])
    if value is None:
        return None
    if times := (found["times"] or "").casefold().removesuffix("s"):
        value *= 12 if times == "dozen" else 10 ** _TIMES[times]
    return (-value if found["sign"] in ("-", "\u2212") else value), found["percent"] is not None


def _exact(text: str) -> Fraction:
    return Fraction(text.replace("{,}", "").replace(",", "").replace(" ", "").strip())


def _ratio(over: str, under: str, whole: str | None) -> Fraction | None:
    bottom = _exact(under)
    return _exact(over) / bottom + int(whole or 0) if bottom else None


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
    if _is_words(truth) or len(answer) > LONGEST or _says_otherwise(answer, truth):
        return False
    number = number_of(truth)
    if number is not None:
        if _SCALES.intersection(_plain_words(answer)):
            return False
        given = number_of(answer) or number_of(_without_units(answer))
        if given is not None:
            if given == number or ((given[1] or number[1]) and _percent_equal(given, number)):
                return True
            if given[0].denominator == number[0].denominator == 1:
                return False
    return None


def _says_otherwise(answer: str, truth: str) -> bool:
    """What math-verify passes over: another base, half of the day or relation, an equation of numbers."""
    if _BASE.findall(answer) != _BASE.findall(truth):
        return True
    if {half.casefold() for half in _HALVES.findall(answer)} != {half.casefold() for half in _HALVES.findall(truth)}:
        return bool(_HALVES.search(answer) and _HALVES.search(truth))
    if _RELATION.search(answer) and not _RELATION.search(truth):
        return True
    return "=" not in truth and not all(_NAMED.search(answer, 0, at.start()) or _NAME.match(answer, at.end())
                                        for at in re.finditer("=", answer))  # fmt: skip


def _percent_equal(one: tuple[Fraction, bool], other: tuple[Fraction, bool]) -> bool:
    if one[1] and other[1]:
        return one[0] == other[0]
    percent, plain = (one[0], other[0]) if one[1] else (other[0], one[0])
    return plain in (percent, percent / 100)


def _plain(text: str) -> str:
    r"""Without currencies, spaces at the ends, `\text{}` around words, and the brackets of a choice `(A)`."""
    text = _CURRENCY.sub("", text).replace("\u2212", "-").replace(r"\!", "").replace(r"\,", "")
    text = _SPACE.sub(" ", text)
    text = _TEXT.sub(
        lambda found: found[1] if found[1].strip().casefold().removesuffix("s") in _TIMES else found[0], text
    )
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
