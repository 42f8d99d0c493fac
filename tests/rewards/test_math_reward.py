"""Answers read from replies, truths from data sets, and when the two are equal; hostile answers end."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.config.rewards import MathPart
from memalpha.errors import RewardError
from memalpha.rewards import math as maths
from memalpha.rewards.base import score_texts
from memalpha.rewards.environments import load_rewards
from memalpha.rewards.math import are_equal, extract_answer, extract_truth, last_number, verify
from memalpha.tasks.text_tasks import last_boxed
from memalpha.workers import KillableFunction


@pytest.fixture(scope="module", autouse=True)
def one_process():
    """Compare in one process: each imports sympy."""
    processes = KillableFunction(verify, seconds=1.0, count=1, warm=("1", "2"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maths, "_PROCESSES", processes)
        yield
    processes.close()


BOXES = [
    (r"\boxed{5}", "5"), (r"first \boxed{1}, then $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"), (r"\boxed{a_{b_{c}}} and \boxed{open", "a_{b_{c}}"),
    (r"\boxed{\boxed{7}}", "7"), (r"\fbox{3}", "3"), (r"so $\boxed 5$", "5"), (r"\boxed {5}", "5"),
    (r"\boxed{}", ""), (r"\boxed{", None), (r"\boxed{\}", None), ("5", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "boxed"), BOXES)
def test_the_last_closed_box(text, boxed):
    assert last_boxed(text) == boxed


LAST_NUMBERS = [
    ("It is 1,234.5.", "1,234.5"), ("12,345,678 in all", "12,345,678"), ("1{,}234", "1{,}234"), ("so x = -5!", "-5"),
    ("= \u22127", "\u22127"), ("10-5", "5"), ("(3)-4", "4"), ("3/4 of it", "3/4"),
    (r"-\dfrac{1}{2}.", r"-\dfrac{1}{2}"), (r"\frac{-1}{2}", r"\frac{-1}{2}"), ("2 1/2 cups", "2 1/2"),
    ("a 1.5e3", "1.5e3"), (r"$1.5 \times 10^{-3}$", r"1.5 \times 10^{-3}"), ("$18.50", "18.50"), ("#### 42", "42"),
    (".5", ".5"), ("5, 6", "6"), ("1,23", "23"), ("1 / 0", "1 / 0"), ("It is 3 million.", "3 million"),
    ("1.5 Billions!", "1.5 Billions"), ("about 5k", "5k"), ("5 km", "5"), ("2 dozen eggs", "2 dozen"),
    (r"13\frac{1}{2}", r"13\frac{1}{2}"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "number"), LAST_NUMBERS)
def test_the_last_number(text, number):
    assert last_number(text) == number


def test_a_box_comes_before_numbers_and_thoughts_do_not_count():
    assert extract_answer(r"\boxed{3} of 4") == "3"
    assert extract_answer("of 4, 3") == "3"
    assert extract_answer("nothing") == ""
    function = load_rewards([MathPart(kind="math")])[0]
    replies = ["<think>\\boxed{4}</think>so 5", "<think>it is 4", [{"role": "assistant", "content": "4"}]]
    assert function(["p"] * 3, replies, answer=["4"] * 3) == [0, 0, 1]


def test_truths_of_the_known_data_sets_are_read():
    assert extract_truth("He has 5 * 4 = <<5*4=20>>20.\n#### 20") == "20"
    assert extract_truth(r"Thus $x=\boxed{\frac{3}{4}}$.") == r"\frac{3}{4}"
    assert extract_truth(" 1,000 ") == "1,000"


EQUAL = [
    ("5", "5"), ("5.0", "5"), ("1,234", "1234"), ("1{,}234", "1234"), (r"\frac{1}{2}", "0.5"), (r"\dfrac12", "0.5"),
    ("2/4", "1/2"), ("2 1/2", "2.5"), (r"2\frac{1}{2}", "2.5"), ("0.333333333", r"\frac13"), ("50%", "0.5"),
    (r"50\%", "50"), ("50 percent", "50%"), ("18 dollars", "18"), (r"\$18", "18"), ("$18$", "18"),
    (r"18\text{ cm}", "18"), ("18 cm", "18"), ("about 5 feet", "5"), (r"90^\circ", "90"), ("x=5", "5"),
    (r"\sqrt{4}", "2"), (r"\sqrt{8}", r"2\sqrt{2}"), (r"5 \times 2", "10"), ("x^2+2x+1", "(x+1)^2"),
    (r"\{1,2\}", r"\{2,1\}"), ("[0,1)", "[0,1)"), (r"\text{Monday}", "monday"), ("(A)", r"\text{A}"),
    ("-7", "\u22127"), ("\u22120.5", "-1/2"), ("3 million", "3,000,000"),
    (r"\begin{pmatrix}-1\\5\\0\end{pmatrix}", r"\begin{pmatrix} -1 \\ 5 \\ 0 \end{pmatrix}"),
    (r"x \in \{1,2\}", r"\{1,2\}"), (r"x=-2\text{ or }x=3", "-2,3"), ("x = 1, x = -2", "1,-2"),
    (r"3\text{ million}", "3000000"), ("18\u202f000", "18000"), (r"18\ 000", "18,000"), (r"2516_8", "2516_{8}"),
    (r"10\text{ a.m.}", r"10\text{ am}"), ("18 apples", "18 apple"), ("5 km", r"5\text{ km}"), (r"\geq 5", r"\ge 5"),
]  # fmt: skip
UNEQUAL = [
    ("", "5"), ("10 am", "10 pm"), ("10:30 a.m.", "10:30pm"), ("126 dollars", "126 m"), ("2 hours", "2 minutes"),
    ("6", "5"), ("0.33", r"\frac13"), ("3.14", r"\pi"), ("50%", "0.05"), ("3 million", "3"),
    (r"3\text{ million}", "3"), ("3 dozen eggs", "3"), ("2516_9", "2516_8"), ("101", "101_2"), (r"5 \neq", "5"),
    (r"\ge 5", "5"), (r"\approx 5", "5"), ("> 5", "5"), ("1=2=5", "5"), ("4 = 5", "5"), ("5 and six", "5"),
    ("5 or 6", "6"), ("5, 6", "6"), ("(1,2)", "(2,1)"), (r"2\pi", "2"), ("2 pi", "2"), ("12", "1,2"),
    ("Tuesday", "Monday"), ("dayMon", "Monday"),
    (r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"), ("{{{", "5"), ("\\", "5"),
    (r"\frac{1}{0}", "5"), ("1/0", "5"), ("9" * 5000, "5"), ("x" * 5000, "y"),
]  # fmt: skip


def test_what_is_equal():
    assert [pair for pair, equal in zip(EQUAL, are_equal(EQUAL), strict=True) if not equal] == []
    assert [pair for pair, equal in zip(UNEQUAL, are_equal(UNEQUAL), strict=True) if equal] == []


def test_what_would_never_end_is_wrong_and_the_next_is_right():
    maths._VERDICTS.clear()
    with pytest.warns(RuntimeWarning, match=r"1 answers count as wrong: .*over 1 s of CPU time"):
        assert are_equal([("9^{9^{9^{9}}}", "5"), (r"\sqrt{25}", "5.0")]) == [False, True]


def test_it_works_in_a_thread():
    """math-verify's own time limit does not: it needs signals, and these the main thread."""
    found = []
    maths._VERDICTS.clear()
    thread = threading.Thread(target=lambda: found.append(are_equal([(r"\sqrt{9}", "3.0")])))
    thread.start()
    thread.join()
    assert found == [[True]]


def test_a_reward_is_one_or_nought_or_none():
    function = load_rewards([MathPart(kind="math", column="truth", weight=2)])
    rewards = score_texts(function, ["p"] * 2, ["it is 4", "5"], {"truth": ["\\boxed{4}", 4]})
    assert [one.total for one in rewards] == [2.0, 0.0]
    assert function[0].columns == ("truth",)
    assert function[0](["p"] * 2, ["4", "4"], truth=[None, "4"]) == [None, 1.0]
    for truth in ("", "  ", [], True, "####"):
        with pytest.raises(RewardError, match=r"reward 'math': row 1: column 'truth' holds .*, and no answer"):
            function[0](["p"] * 2, ["4", "4"], truth=["4", truth])


NUMBERS = st.one_of(
    st.integers(-(10**12), 10**12).map(str),
    st.integers(-(10**9), 10**9).map(lambda number: f"{number:,}"),
    st.tuples(st.integers(-999, 999), st.integers(0, 999)).map(lambda parts: f"{parts[0]}.{parts[1]:03d}"),
    st.tuples(st.integers(-99, 99), st.integers(1, 99)).map(lambda parts: f"{parts[0]}/{parts[1]}"),
    st.tuples(st.integers(0, 99), st.integers(1, 99)).map(lambda parts: rf"\frac{{{parts[0]}}}{{{parts[1]}}}"),
)


@given(
    NUMBERS,
    st.sampled_from(["", "The answer is ", "x = ", "$", "**", "#### "]),
    st.sampled_from(["", ".", "$.", " cm"]),
)
def test_a_number_comes_back_from_any_sentence(number, before, after):
    assert last_number(f"1 and 2: {before}{number}{after}") == number


@given(st.text(alphabet="0123456789.,/-+\u2212% e{}\\frac^x", max_size=40))
def test_no_text_raises(text):
    answer = extract_answer(text)
    assert not answer or are_equal([(answer, answer)]) == [True]


TREES = st.recursive(st.sampled_from(["5", "x", r"\{", r"\}", r"\\", "a b"]), lambda inner: st.lists(inner).map(
    lambda parts: "{" + "".join(parts) + "}"
))  # fmt: skip


@given(TREES, st.sampled_from(["", r"\boxed{1} and ", "{", "}"]), st.sampled_from(["", " is it", r" \boxed{x", "}"]))
def test_a_box_holds_what_was_put_in(inner, before, after):
    assert last_boxed(f"{before}\\boxed{{{inner}}}{after}") == inner.strip()


@settings(max_examples=40)
@given(NUMBERS, NUMBERS)
def test_plain_numbers_are_compared_as_math_verify_does(one, two):
    for answer, truth in ((one, two), (one, one)):
        plainly = maths._compare_texts(maths._normalize(answer), maths._normalize(truth))
        assert plainly is None or plainly == verify(answer, truth), (answer, truth)
