r"""Reward of a correct answer to a mathematical problem: 1 if it equals the truth, else 0.

The answer is the content of the reply's last closed `\boxed{...}`, else its last number. A leading `<think>` part is
ignored. The truth comes from a column: the text behind GSM8K's `####`, MATH's last box, or the whole text.

An answer is equal if the texts match, the numbers have exactly the same value, or math-verify (Kydlíček 2025) finds
them equal. It compares fractions, roots, sets, intervals, matrices, equations and formulas. Further rules:

- Percent: `50%` equals `50%`, `0.5` and `50`. Thousands may be separated (`1,234`, `1{,}234`, in a box `1 234`).
- Units and currencies are ignored: `18 dollars`, `\$18`, `18\text{ cm}` and `18\text{ m}` all equal `18`.
- Number words count: `3 million`, `5k`, `2 dozen` are 3,000,000, 5,000 and 24.
- `am` differs from `pm`, and a number differs from the same digits in another base.
- A decimal equals its fraction from six digits on (math-verify's rounding). `0.33` is not 1/3, `3.14` is not pi.
- A mixed number `2 1/2` is 2.5. Words (`Monday`) equal only themselves, in any case.
- `x = 5` equals `5`; `4 = 5`, `\geq 5` and `\approx 5` do not.
- Several answers (`5 or 6`) in a box are a set and equal only the same set. Without a box the last number counts:
  6 in `between 5 and 6`.

math-verify limits its time by a signal, which works only in the main thread and cannot interrupt a large power. It
therefore runs in a process of its own (`memalpha.workers`) with `CPU_SECONDS` per pair. A comparison that exceeds the
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
from memalpha.rewards.reply import read_column, reply_text
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
_TIMES = {"hundred": 2, "thousand": 3, "k": 3, "million": 6, "billion": 9, "trillion": 12}
"""Exponents of ten by number word."""
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
"""Words that change the value of the number beside them."""
_BASE = re.compile(r"\d\s*_\s*\{?\s*(\d+)")
_RELATION = re.compile(r"\\(?:not|neq?|geq?|leq?|gt|lt|approx|sim|equiv|pm)(?![a-z])|[<>\u2248\u2260\u2264\u2265~]")
_NAMED, _NAME = re.compile(r"[A-Za-z)](?:_\{?\w+\}?)?\s*$"), re.compile(r"\s*[A-Za-z](?![A-Za-z])")
"""A variable name before an equals sign, or after one."""
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
        truths = [self._truth(row, truth) for row, truth in enumerate(read_column(columns, self.column))]
        answers = [extract_answer(reply_text(reply, thinking=False)) for reply in completions]
        rows = [row for row, truth in enumerate(truths) if truth is not None]
        scores: list[float | None] = [None] * len(truths)
        equal = are_equal([(answers[row], truths[row] or "") for row in rows])
        for row, is_equal in zip(rows, equal, strict=True):
            scores[row] = float(is_equal)
        return scores

    def _truth(self, row: int, truth: Any) -> str | None:
        if truth is None:
            return None
        text = extract_truth(str(truth)) if isinstance(truth, str | int | float) and not isinstance(truth, bool) else ""
        if not text:
            raise RewardError(f"row {row}: column {self.column!r} holds {truth!r:.80}, and no answer")
        return text


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


def parse_number(text: str) -> tuple[Fraction, bool] | None:
    """Parse a text that is a single number, in the forms of `last_number`.

    Returns:
        (value, True if in percent), or None for any other text.
    """
    text = (
        _SPACED.sub(lambda match: match[0].replace(" ", ""), text.strip()) if _SPACED.fullmatch(text.strip()) else text
    )
    match = _NUMBER.fullmatch(text.strip()) if len(text) <= MAX_CHARACTERS else None
    if match is None or len(text) > MAX_CHARACTERS:
        return None
    if match["plain"] is not None:
        value = _fraction(match["plain"])
        power = int((match["e"] or "e0")[1:]) if match["ten"] is None else int(match["ten"])
        value *= Fraction(10) ** power
    elif match["over"] is not None:
        value = _ratio(match["over"], match["under"], match["mixed"])
    else:
        value = _ratio(match["top"], match["bottom"], match["whole"])
    if value is None:
        return None
    if times := (match["times"] or "").casefold().removesuffix("s"):
        value *= 12 if times == "dozen" else 10 ** _TIMES[times]
    return (-value if match["sign"] in ("-", "\u2212") else value), match["percent"] is not None


def _fraction(text: str) -> Fraction:
    return Fraction(text.replace("{,}", "").replace(",", "").replace(" ", "").strip())


def _ratio(numerator: str, denominator: str, integer: str | None) -> Fraction | None:
    bottom = _fraction(denominator)
    return _fraction(numerator) / bottom + int(integer or 0) if bottom else None


# -------------------------------------------------------------------------------------------------------- comparing


def are_equal(pairs: Sequence[tuple[str, str]]) -> list[bool]:
    """Compare each (answer, truth) pair; math-verify runs in limited processes, once per distinct pair."""
    verdicts = {pair: _compare_plain(*pair) for pair in set(pairs)}
    undecided = [pair for pair, equal in verdicts.items() if equal is None]
    if undecided:
        verdicts |= _compare_formulas(undecided)
    return [bool(verdicts[pair]) for pair in pairs]


@lru_cache(CACHE_SIZE)
def _compare_plain(answer: str, truth: str) -> bool | None:
    """Compare without math-verify: True, False, or None if math-verify has to decide."""
    answer, truth = _plain(answer), _plain(truth)
    if not answer:
        return False
    if answer.casefold() == truth.casefold():
        return True
    if _is_words(truth) or len(answer) > MAX_CHARACTERS or _has_other_form(answer, truth):
        return False
    number = parse_number(truth)
    if number is not None:
        if _SCALES.intersection(_plain_words(answer)):
            return False
        answer_number = parse_number(answer) or parse_number(_without_units(answer))
        if answer_number is not None:
            if answer_number == number or ((answer_number[1] or number[1]) and _percent_equal(answer_number, number)):
                return True
            if answer_number[0].denominator == number[0].denominator == 1:
                return False
    return None


def _has_other_form(answer: str, truth: str) -> bool:
    """Return True for differences that math-verify ignores: number base, am or pm, relation, equation of numbers."""
    if _BASE.findall(answer) != _BASE.findall(truth):
        return True
    if {half.casefold() for half in _HALVES.findall(answer)} != {half.casefold() for half in _HALVES.findall(truth)}:
        return bool(_HALVES.search(answer) and _HALVES.search(truth))
    if _RELATION.search(answer) and not _RELATION.search(truth):
        return True
    return "=" not in truth and not all(_NAMED.search(answer, 0, sign.start()) or _NAME.match(answer, sign.end())
                                        for sign in re.finditer("=", answer))  # fmt: skip


def _percent_equal(left: tuple[Fraction, bool], right: tuple[Fraction, bool]) -> bool:
    if left[1] and right[1]:
        return left[0] == right[0]
    percent, plain = (left[0], right[0]) if left[1] else (right[0], left[0])
    return plain in (percent, percent / 100)


def _plain(text: str) -> str:
    r"""Strip currencies, outer spaces, `\text{}` around words, and the brackets of a choice `(A)`."""
    text = _CURRENCY.sub("", text).replace("\u2212", "-").replace(r"\!", "").replace(r"\,", "")
    text = _SPACE.sub(" ", text)
    text = _TEXT.sub(
        lambda match: match[1] if match[1].strip().casefold().removesuffix("s") in _TIMES else match[0], text
    )
    text = re.sub(r"\s?\bpercent$", "%", text.strip().rstrip(".").strip())
    inner = _TEXT.fullmatch(text)
    text = inner[1].strip() if inner else text
    choice = re.fullmatch(r"\(([A-Za-z])\)", text)
    return choice[1] if choice else text


def _is_words(text: str) -> bool:
    return len(text) > 1 and bool(re.fullmatch(r"[^\W\d_]{2,}(?:[\s'-]+[^\W\d_]+)*", text))


def _without_units(text: str) -> str:
    """Return the number alone if only words of at least three letters surround it, else the text."""
    match = _WITH_UNITS.fullmatch(text)
    return match["number"].strip() if match else text


def _plain_words(text: str) -> set[str]:
    r"""Return the words of a text; of a text in LaTeX only those inside `\text{}`."""
    if "\\" in text:
        text = " ".join(_TEXT.findall(text))
    return set(_WORD.findall(text.casefold()))


_VERDICTS: dict[tuple[str, str], bool] = {}


def _compare_formulas(pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], bool]:
    verdicts = {pair: _VERDICTS[pair] for pair in pairs if pair in _VERDICTS}
    missing = [pair for pair in pairs if pair not in verdicts]
    outcomes = _PROCESSES.map([tuple(map(_plain, pair)) for pair in missing])
    verdicts |= {pair: outcome is True for pair, outcome in zip(missing, outcomes, strict=True)}
    if killed := [(pair[0], out) for pair, out in zip(missing, outcomes, strict=True) if isinstance(out, Killed)]:
        answer, outcome = killed[0]
        message = (
            f"{len(killed)} answers count as wrong: comparing them did not end ({answer[:80]!r}: {outcome.reason})"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    if len(_VERDICTS) > CACHE_SIZE:
        _VERDICTS.clear()
    _VERDICTS.update(verdicts)
    return verdicts


def verify(answer: str, truth: str) -> bool:
    """Compare two formulas by math-verify without a time limit; `are_equal` runs it in a limited process."""
    from math_verify import parse
    from math_verify import verify as compare

    answer_formula, gold = (parse(f"${text.replace('$', '')}$", parsing_timeout=0) for text in (answer, truth))
    return bool(compare(gold, answer_formula, timeout_seconds=None))


_PROCESSES = KillableFunction(verify, seconds=CPU_SECONDS, warm=("1", "2"))
