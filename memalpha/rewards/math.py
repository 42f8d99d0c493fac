r"""Reward of a correct answer to a mathematical problem: 1 if it equals the truth, else 0.

The answer is the content of the reply's last closed `\boxed{...}`, else its last number. A leading `<think>` part is
ignored. The truth comes from a column: the text behind GSM8K's `####`, MATH's last box, or the whole text.

math-verify (Kydlíček 2025) decides whether two answers are equal: numbers, fractions, roots, sets, intervals, matrices,
equations and formulas. Before it is asked:

- Equal texts and numbers are equal, in any case of letters. Words (`Monday`) equal only themselves.
- Currencies, thousands separators and units are removed: `18 dollars`, `\$18` and `18\text{ cm}` all equal `18`. Where
  both sides have a unit, it must be the same.
- Number words count: `3 million`, `5k`, `2 dozen` are 3,000,000, 5,000 and 24. `2 1/2` is 2.5.
- A number differs from the same digits in another base, and `4 = 5`, `\geq 5` and `\approx 5` are not `5`.

`50%` equals `0.5` and `50`. Of math-verify's rules: a decimal equals its fraction from six digits on: `0.33` is
not 1/3. Several answers (`5 or 6`) in a box are a set and equal only the same set. Without a box the last number
counts: 6 in `between 5 and 6`.

math-verify limits its time by a signal, which works only in the main thread and cannot interrupt a large power. It
therefore runs in processes of its own (`memalpha.workers`) with `CPU_SECONDS` per pair. A comparison that exceeds the
limit (`9^{9^{9^9}}`) counts as not equal.
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
from memalpha.rewards.base import read_column, reply_text
from memalpha.tasks.text_tasks import last_boxed
from memalpha.workers import KillableFunction, Killed

CPU_SECONDS = 2.0
"""CPU seconds for the comparison of one pair."""
MAX_CHARACTERS = 2000
"""Longest answer that is compared by value, in characters; a longer one must be the same text."""
CACHE_SIZE = 100_000
"""Pairs whose verdict is cached."""

_INTEGER = r"(?:\d{1,3}(?:(?:,|\{,\})\d{3})+(?!\d)|\d+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.\d+)?|\.\d+)"
_TIMES = {"dozen": "12", "k": "10^{3}", "hundred": "10^{2}", "thousand": "10^{3}"}
_TIMES |= {"million": "10^{6}", "billion": "10^{9}", "trillion": "10^{12}"}
_TIMES_WORD = r"(?:dozen|(?<=\d)k|(?:hundred|thousand|million|billion|trillion)s?)(?!\w)"
_NUMBER = re.compile(
    rf"""(?:(?<![\w)\]}}.])[-+\u2212])?\s?
    (?:(?:(?<![\w.,/])\d+\s?)?\\[dt]?frac\{{\s*-?{_DECIMAL}\s*\}}\{{\s*{_DECIMAL}\s*\}}
     |(?:(?<![\w.,/])\d+\s+)?(?<![\w.]){_INTEGER}\s?/\s?{_INTEGER}(?![\w/]|\.\d)
     |(?<![\d.]){_DECIMAL}(?:[eE][-+]?\d{{1,3}}(?!\w)|\s?(?:\\times|\\cdot|[\u00d7*])\s?10\^\{{?[-+]?\d{{1,3}}\}}?)?
    )(?:\s?\\?%|\s?{_TIMES_WORD})?""",
    re.VERBOSE | re.IGNORECASE,
)
_NOISE = re.compile(r"\\?[$€£¥₹₩₽]|\\[!,]|(?<=\d)(?:\{,\}|,(?=\d{3}(?!\d)))")
_SPACE = re.compile(r"(?<!\\)\\ |\s|~")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\{([^{}]*)\}")
_SPACED = re.compile(r"[-+]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_MIXED = re.compile(r"([-+]?\d+)\s+(\d+)\s?/\s?(\d+)")
_TIMES_NUMBER = re.compile(rf"(?<=\d)\s?({_TIMES_WORD})", re.IGNORECASE)
_WITH_UNITS = re.compile(r"(?:[^\W\d_]{3,}[\s:]+)*([-+]?[\d.,/ ]*\d\s?%?)(?:[\s-]+[^\W\d_]{3,}\.?)+")
_SCALES = re.compile(
    r"\b(?:half|halves|thirds?|quarters?|score|plus|minus|times|over|squared|cubed|root|and|not)\b", re.IGNORECASE
)
"""Words that change the value of the number beside them, unlike units."""
_UNIT = re.compile(r"\d[\s.%]*((?:[\s-]*[^\W\d_]+\.?)+)$")
_HALF_DAY = re.compile(r"\d\s?([ap])\.?\s?m\b", re.IGNORECASE)
_PERCENT = re.compile(r"\s?\\?%$")
_BASE = re.compile(r"\d\s*_\s*\{?\s*(\d+)")
_RELATION = re.compile(r"\\(?:not|neq?|geq?|leq?|gt|lt|approx|sim|equiv|pm)(?![a-z])|[<>\u2248\u2260\u2264\u2265~]")
_NAMED, _NAME = re.compile(r"[A-Za-z)](?:_\{?\w+\}?)?\s*$"), re.compile(r"\s*[A-Za-z](?![A-Za-z])")
"""A variable name before an equals sign, or after one."""


class MathReward:
    """Reward 1 if the reply's answer equals `columns[column]`, else 0; None if the column is None.

    Raises:
        ConfigError: math-verify is not installed.
        RewardError: A truth is empty or not a text or number.
    """

    name = "math"

    def __init__(self, column: str = "answer") -> None:
        if find_spec("math_verify") is None:
            raise ConfigError(f"a math reward needs math-verify: {install_command('train')}")
        self.column = column
        self.columns = (column,)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Return 1, 0 or None for each completion.

        Args:
            prompts: Ignored.
            completions: Texts or lists of messages.
            columns: Lists as long as `completions`; the column with the truth is required.
        """
        truths: list[str | None] = []
        for row, truth in enumerate(read_column(columns, self.column)):
            is_readable = isinstance(truth, str | int | float) and not isinstance(truth, bool)
            truths.append(extract_truth(str(truth)) if is_readable else None)
            if truth is not None and not truths[-1]:
                raise RewardError(f"row {row}: column {self.column!r} holds {truth!r:.80}, and no answer")
        answers = [extract_answer(reply_text(reply, thinking=False)) for reply in completions]
        pairs = [(answer, truth) for answer, truth in zip(answers, truths, strict=True) if truth is not None]
        equal = iter(are_equal(pairs))
        return [None if truth is None else float(next(equal)) for truth in truths]


# ---------------------------------------------------------------------------------------------------------- reading


def last_number(text: str) -> str | None:
    r"""Return the last number of a text as written, or None.

    Recognized forms: 1,234.5, -3/4, \frac{3}{4}, 2 1/2, 1.5e3, 1.5 \times 10^{3}, 50%.
    """
    last = deque(_NUMBER.finditer(text), maxlen=1)
    return last[0][0].strip() if last else None


def extract_answer(reply: str) -> str:
    """Return a reply's answer: its last box, else its last number, else "", which equals nothing."""
    boxed = last_boxed(reply)
    return boxed if boxed is not None else last_number(reply) or ""


def extract_truth(text: str) -> str:
    """Return the answer in a data set's solution: behind the last `####`, else boxed, else everything."""
    if "####" in text:
        text = text.rpartition("####")[2]
    boxed = last_boxed(text)
    return (text if boxed is None else boxed).strip()


# -------------------------------------------------------------------------------------------------------- comparing


def are_equal(pairs: Sequence[tuple[str, str]]) -> list[bool]:
    """Compare each (answer, truth) pair; math-verify runs in limited processes, once per distinct pair."""
    if len(_VERDICTS) > CACHE_SIZE:
        _VERDICTS.clear()
    missing = [pair for pair in dict.fromkeys(pairs) if pair not in _VERDICTS]
    for pair in missing:
        _VERDICTS[pair] = False if _has_other_unit(*pair) else _compare_texts(*map(_normalize, pair))
    undecided = [pair for pair in missing if _VERDICTS[pair] is None]
    outcomes = dict(zip(undecided, _PROCESSES.map([tuple(map(_normalize, pair)) for pair in undecided]), strict=True))
    _VERDICTS.update((pair, outcome is True) for pair, outcome in outcomes.items())
    if killed := [f"{pair[0][:80]!r}: {out.reason}" for pair, out in outcomes.items() if isinstance(out, Killed)]:
        message = f"{len(killed)} answers count as wrong: comparing them did not end ({killed[0]})"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    return [_VERDICTS[pair] is True for pair in pairs]


def _normalize(text: str) -> str:
    r"""Remove currencies, separators, units, `\text{}` and the brackets of `(A)`; multiply out number words."""
    text = _SPACE.sub(" ", _NOISE.sub("", text.replace("\u2212", "-")))
    text = re.sub(r"\s?\bpercent$", "%", _TEXT.sub(r"\1", text).strip().rstrip(".").strip())
    text = text.replace(" ", "") if _SPACED.fullmatch(text) else text
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text) if _MIXED.fullmatch(text) else text
    text = _TIMES_NUMBER.sub(lambda match: rf" \times {_TIMES[match[1].casefold().removesuffix('s')]}", text)
    if not _SCALES.search(text) and (match := _WITH_UNITS.fullmatch(text)):
        text = match[1].strip()
    return text[1] if re.fullmatch(r"\([A-Za-z]\)", text) else text


@lru_cache(CACHE_SIZE)
def _compare_texts(answer: str, truth: str) -> bool | None:
    """Compare without math-verify: True, False, or None if math-verify has to decide."""
    if not answer or answer.casefold() == truth.casefold():
        return bool(answer)
    is_word = re.fullmatch(r"[^\W\d_]{2,}(?:[\s'-]+[^\W\d_]+)*", truth)
    if is_word or len(answer) > MAX_CHARACTERS or _has_other_form(answer, truth):
        return False
    try:
        difference = Fraction(answer) - Fraction(truth)
    except (ValueError, ZeroDivisionError):
        return None
    return True if difference == 0 else False if difference.denominator == 1 else None


def _has_other_unit(answer: str, truth: str) -> bool:
    """Return True for `126 m` and `126 dollars`, `10 am` and `10 pm`: both have a unit, none begins like the other."""
    texts = [_TIMES_NUMBER.sub("", _TEXT.sub(r" \1", text).strip().rstrip(".")) for text in (answer, truth)]
    written = [unit[1].replace(".", "") for text in texts if (unit := _UNIT.search(text))]
    units = sorted(re.sub(r"[\s-]+", " ", unit).strip().casefold() for unit in written)
    halves = {half[1].casefold() for text in texts if (half := _HALF_DAY.search(text))}
    differ = len(units) == 2 and not units[1].startswith(units[0].removesuffix("s"))
    return len(halves) == 2 or (differ and max(map(len, units)) > 2)


def _has_other_form(answer: str, truth: str) -> bool:
    """Return True for differences that math-verify ignores: number base, relation, equation of numbers."""
    if _BASE.findall(answer) != _BASE.findall(truth) or (_RELATION.search(answer) and not _RELATION.search(truth)):
        return True
    signs = list(re.finditer("=", answer)) if "=" not in truth else []
    return not all(_NAMED.search(answer, 0, sign.start()) or _NAME.match(answer, sign.end()) for sign in signs)


def verify(answer: str, truth: str) -> bool:
    """Compare two formulas by math-verify without a time limit; `are_equal` runs it in a limited process.

    With a percent sign, they are compared without it too.
    """
    from math_verify import parse
    from math_verify import verify as compare

    pairs = dict.fromkeys([(answer, truth), (_PERCENT.sub("", answer), _PERCENT.sub("", truth))])
    for pair in pairs:
        answer_formula, gold = (parse(f"${text.replace('$', '')}$", parsing_timeout=0) for text in pair)
        if compare(gold, answer_formula, timeout_seconds=None):
            return True
    return False


_PROCESSES = KillableFunction(verify, seconds=CPU_SECONDS, warm=("1", "2"))
_VERDICTS: dict[tuple[str, str], bool | None] = {}
