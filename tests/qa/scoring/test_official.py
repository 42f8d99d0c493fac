"""Scores of answers: our metrics, and what published scripts gave for the same inputs (`data/official_cases.json`)."""

import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.agent.reader import Answer, ExtractiveReader
from memalpha.errors import DataError
from memalpha.qa.evaluate import run_systems
from memalpha.qa.scoring import official
from memalpha.qa.scoring.metrics import (
    CORRECT_FROM,
    JUDGED,
    METRICS,
    QUESTION_METRICS,
    best_score,
    is_correct,
    official_scores,
    score_answer,
    score_question,
)
from memalpha.store.values import is_abstention
from memalpha.types import Chunk, Question, SpeakerTurn, Task

CASES = json.loads((Path(__file__).parent / "data" / "official_cases.json").read_text(encoding="utf-8"))


def close(value):
    return pytest.approx(value, abs=1e-9)


def test_locomo_f1():
    wrong = [
        case
        for case in CASES["locomo_f1"]
        if official.locomo_f1(case["prediction"], case["gold"], case["category"]) != close(case["score"])
    ]
    assert not wrong
    with pytest.raises(ValueError, match="1 to 5"):
        official.locomo_f1("a", "b", 6)


def test_locomo_f1_without_nltk_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk.stem.porter", None)
    official._nltk_stem.cache_clear()
    try:
        with pytest.raises(DataError, match=r"F1 needs nltk: .*\[eval\]"):
            official.locomo_f1("Porto", "Porto", 4)
    finally:
        official._nltk_stem.cache_clear()


def test_longmemeval_table():
    scores = official.longmemeval(tuple(record) for record in CASES["longmemeval"]["records"])
    printed = dict(re.findall(r"^\t?([\w\- ]+): ([\d.]+)", CASES["longmemeval"]["printed"], re.MULTILINE))
    assert round(scores["task_averaged"], 4) == float(printed.pop("Task-averaged Accuracy"))
    assert round(scores["overall"], 4) == float(printed.pop("Overall Accuracy"))
    assert round(scores["abstention"], 4) == float(printed.pop("Abstention Accuracy"))
    assert {kind: round(row["accuracy"], 4) for kind, row in scores["by_type"].items()} == {
        kind: float(value) for kind, value in printed.items()
    }
    partly = official.longmemeval([("q1", "multi-session", True)])
    assert (partly["task_averaged"], partly["abstention"]) == (1.0, None)
    assert partly["by_type"]["temporal-reasoning"] == {"accuracy": None, "n": 0}


def test_longmemeval_retrieval():
    for case in CASES["retrieval"]:
        scores = official.retrieval_scores(case["ranking"], case["correct"], case["k"], official=True)
        assert scores == {name: close(case[name]) for name in ("recall_any", "recall_all", "ndcg_any")}, case


def test_the_second_place_is_discounted_unless_official():
    def ndcg(ranking, **how):
        return official.retrieval_scores(ranking, ["x"], 3, **how)["ndcg_any"]

    assert ndcg(["x", "a", "b"]) == 1.0
    assert ndcg(["a", "x", "b"]) == close(0.6309297535714575)  # 1 / log2(3)
    assert ndcg(["a", "x", "b"], official=True) == 1.0
    assert ndcg(["a", "b"], corpus=["a", "b", "x"]) == 0.0


def test_sessions_of_what_was_shown():
    turns = ["s1_3", "s1_1", "s2_4", "s3_1", "s2_1"]
    scores = official.session_scores(turns, ["s2", "s9"], ks=(1, 2))
    assert scores == {
        "recall_any@1": 0.0, "recall_all@1": 0.0, "ndcg_any@1": 0.0,
        "recall_any@2": 1.0, "recall_all@2": 0.0, "ndcg_any@2": close(0.6309297535714575 / 1.6309297535714575),
    }  # fmt: skip
    deeper = official.session_scores(["s5_1", "s2_1"], ["s2"], ks=(2,))  # the one right session cannot rank twice
    assert deeper["ndcg_any@2"] == close(0.6309297535714575)
    assert official.session_scores(turns, []) == {}
    assert official.session_scores([], ["s2"], ks=(5,)) == {"recall_any@5": 0.0, "recall_all@5": 0.0, "ndcg_any@5": 0.0}


def test_an_evaluation_has_longmemevals_table():
    chunks = tuple(
        Chunk(turns=(SpeakerTurn(speaker="user", text=text, id=f"s{n}_1"),))
        for n, text in enumerate(["Ana lives in Oslo.", "My pet is a cat.", "The car is red."])
    )
    metric = {"metric": "contains"}
    question_of = [
        ("q1", "Where does Ana live?", ("Oslo",), "multi-session", "s0"),
        ("q2", "Which pet?", ("cat",), "knowledge-update", "s1"),
        ("q3_abs", "Whose car?", (), "multi-session", "s2"),
    ]
    questions = tuple(
        Question(
            id=id, question=text, answers=gold, category=kind, evidence=(f"{session}_1",) if gold else (),
            meta={**metric, "answer_session_ids": [session]},
        )
        for id, text, gold, kind, session in question_of
    )  # fmt: skip
    task = Task(id="t", chunks=chunks, questions=questions)
    for system, right, recall in (("rag", True, 1.0), ("empty", False, 0.0)):
        (report,) = run_systems([system], [task], ExtractiveReader(), embedder="hash")
        table = report.summary["longmemeval"]
        assert table["by_type"]["knowledge-update"] == {"accuracy": float(right), "n": 1}
        assert table["by_type"]["multi-session"]["n"] == 2
        assert table["by_type"]["temporal-reasoning"] == {"accuracy": None, "n": 0}
        assert table["abstention"] == float(not right)  # the floor finds something, an empty memory nothing
        assert table["retrieval"]["recall_all@5"] == recall
        assert set(table["retrieval"]) == {
            f"{name}@{k}" for name in ("recall_any", "recall_all", "ndcg_any") for k in (5, 10)
        }
    other = task.model_copy(update={"questions": (questions[0].model_copy(update={"category": "extraction"}),)})
    assert "longmemeval" not in run_systems(["rag"], [other], ExtractiveReader(), embedder="hash")[0].summary


def test_memoryagentbench():
    for case in CASES["memoryagentbench"]:
        text, golds = case["prediction"], case["golds"]
        assert official.substring_match(text, golds) == case["substring"], case
        assert official.strict_match(text, golds) == case["exact"], case
        assert official.answer_line(text) == case["line"], case
        assert official.all_mentioned(text, golds) == case["eventqa"], case


def test_recommendations():
    for case in CASES["recommendations"]:
        for k in (1, 5, 10):
            scores = official.recommendation_recall(case["prediction"], case["golds"], k, candidates=case["candidates"])
            assert scores == close(case[f"recall@{k}"]), case
    assert official.recommendation_recall("1. heat (1995)\n2. - Up", ["Heat", "Alien"]) == 0.5
    assert official.recommendation_recall("1. Heat", []) == 0.0


def test_keypoint_f1():
    for case in CASES["keypoint_f1"]:
        assert official.keypoint_f1(*case["counts"]) == close(case["score"])
    with pytest.raises(DataError, match="4 of 3"):
        official.keypoint_f1(4, 3, 0, 0)


def test_beam():
    for case in CASES["event_order"]:
        scores = official.event_order(case["reference"], case["told"])
        assert {"precision", "recall", "f1", "tau", "score"} == set(scores)
        for ours, expected in zip(scores, ("precision", "recall", "f1", "tau_norm", "final_score"), strict=True):
            assert scores[ours] == close(case[expected] or 0.0), (ours, case)


def test_personamem():
    for case in CASES["personamem"]:
        assert official.choice_score(case["prediction"], case["gold"], official=True) == case["official"], case


LETTERS = [
    ("(c)", 1), ("C.", 1), ("Answer: (c)", 1), ("The answer is C", 1), ("the correct option: c", 1),
    ("\\boxed{c}", 1), ("I thought of (a). <final_answer>(c)</final_answer>", 1),
    ("(c) Try the new place, or a quiet one", 1), ("**C**", 1), ("Answer: **C**", 1), ("**Answer: (C)**", 1),
    ("[c]", 1), ("Option C", 1), ("C. Read a novel", 1), ("**C.** Read a novel", 1),
    ("The best is **C. Read a novel** by far", 1), ("Answer: C\nShe likes books.", 1),
    ("So: <answer>C</answer>", 1), ("\uff08\uff23\uff09", 1), ("\uff23\u3001", 1),
    ("The answer is C because a car moves.", 1), ("The answer is C. Note that A is a common distractor.", 1),
    ("I considered (A), but it is wrong. Final answer: C", 1), ("The best answer is (C), not (A).", 1),
    ("C\n\nExplanation: A is wrong because (a) is not supported.", 1), ("Option (a) is wrong, so \\boxed{c}", 1),
    ("\\boxed{C. Read a novel}", 1), ("Answer: $C$", 1), ('{"answer": "C"}', 1), ("I choose C.", 1), ("It's C.", 1),
    ("Antwort: C", 1), ("\u7b54\u6848\u662fC", 1), ("\u7b54\u3048\u306fC\u3067\u3059\u3002", 1), ("\uc815\ub2f5: C", 1),
    ("A) Go\nC) Read\n\nAnswer: C", 1), ("The answer isn't C.", 0), ("Answer: A, C", 0), ("(a)\n(c)", 0),
    ("The answer is A. C is wrong.", 0), ("Which is correct: A or C?", 0), ("**A** or **C**", 0),
    ("A novel is best", 0), ("(a) or (c)", 0), ("c, then d", 0), ("a quiet place", 0), ("I'd go with the c one", 0),
    ("", 0),
]  # fmt: skip


@pytest.mark.parametrize(("prediction", "right"), LETTERS)
def test_a_letter_must_be_given_as_a_letter(prediction, right):
    assert official.choice_score(prediction, "(c)") == right
    assert official.choice_score(prediction, "(b) another") == 0


def test_an_article_is_no_vote_unless_official():
    for article in ("take a walk", "My answer: a walk", "The best option is a walk"):
        assert official.choice_score(article, "(a)") == 0.0
    assert official.choice_score("take a walk", "(a)", official=True) == 1.0
    with pytest.raises(DataError, match="not a letter"):
        official.choice_score("(c)", "a walk")


def test_the_text_of_an_option_names_it():
    options = {"a": "Try the new place", "b": "Stay at home"}
    assert official.choice_score("stay at home.", "(b) Stay at home", options=options) == 1.0
    assert official.choice_score("stay at home.", "(a) Try the new place", options=options) == 0.0
    assert official.choice_score("stay", "(b) Stay at home", options=options) == 0.0
    assert official.choice_score("stay at home", "(b) Stay at home") == 0.0
    assert official.choice_score("B) Stay at home", "(b)", options=options) == 1.0
    assert official.choice_score("B: Try the new place", "(b)", options=options) == 0.0
    for text in ("B. Because she is tired.", "B, because she is tired", "B is the answer"):
        assert official.choice_score(text, "(b)", options=options) == 1.0
        assert official.choice_score(text, "(a)", options=options) == 0.0
    for text in (
        "B. or A.",
        "A. No.\nB. Yes.",
        "C. Because she is tired",
        "B) is wrong.",
        "B: no, A: yes",
        "If B is the answer",
    ):
        assert official.choice_score(text, "(b)", options=options) == 0.0
    with_letters = ["A. Try the new place", "B) Stay at home"]
    for choices in (options, {"A": "Try the new place", "B": "Stay at home"}, list(options.values()), with_letters):
        for gold in ("(b) Stay at home", "B", "B. Stay at home", "Stay at home"):
            question = question_of("choice", (gold,), choices=choices)
            scores = [score_question(question, Answer(text)) for text in ("Stay at home", "B. Stay at home", "A")]
            assert scores == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("text", "letters"),
    [("I think it was Paris.", "a"), ("It was Paris, Texas, as she said.", "b"), ("They met 3 weeks ago", "c"),
     ("Sie wohnt jetzt in Rom", "d"), ("他住在杭州。", "e"), ("Yes, she did", "f"), ("Paris or Rom", ""),
     ("It was not Paris", ""), ("It isn't Paris.", ""), ("I'm unsure whether it was Paris", ""), ("Paris? No.", ""),
     ("他不住在杭州", ""), ("She is a Parisian", ""), ("Paris is wrong", ""), ("他非杭州人", ""), ("杭州吗", ""),
     ("Anything but Paris", ""), ("I doubt it was Paris", ""), ("Everywhere except Rom", ""), ("A。也许B。", ""),
     ("B. I thought of Rom first", "b"), ("A. I'm not sure, maybe B.", ""), ("A. Or perhaps B, though", ""),
     ("B. He said maybe a walk", "b"), ("B. Because A is wrong", "b"), ("B. She said so, perhaps B", "b")],
)  # fmt: skip
def test_a_sentence_that_names_one_option_alone_chooses_it(text, letters):
    options = ["Paris", "Paris, Texas", "3", "Rom", "杭州", "Yes"]
    assert "".join(letter for letter in "abcdef" if official.choice_score(text, letter, options=options)) == letters


def test_initials_of_a_name_are_no_letter():
    names = ["A. Smith", "B. Jones", "I. Newton", "A. Einstein"]
    for gold, letter in (("I. Newton", "c"), ("A. Einstein", "d")):
        scores = [official.choice_score(text, gold, options=names) for text in (letter, gold, "A", names[1])]
        assert scores == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("gold", "choices", "message"),
    [("1", {"1": "Oslo", "2": "Rome"}, "'1' is no letter: write {\"A\": TEXT"),
     ("1", ["Oslo", "Rome"], "the options a, b"), ("C", ["Oslo", "Rome"], "'C', not a .* or text of the options a, b"),
     ("A", [{"label": "A", "text": "Oslo"}], "texts by letter or a list")],
)  # fmt: skip
def test_options_that_no_reply_could_name_are_refused(gold, choices, message):
    with pytest.raises(DataError, match=message):
        score_question(question_of("choice", (gold,), choices=choices), Answer("1"))


@pytest.mark.parametrize(
    ("text", "letters"),
    [("B、杭州", "b"), ("B\uff1a杭州", "b"), ("B杭州", "b"), ("杭州。", "b"), ("【B】", "b"), ("正解はBです。", "b"),
     ("正确答案是B\uff0c因为她住在杭州。", "b"), ("王芳住在杭州\uff0c所以选B。", "b"), ("不选A\uff0c选B", "b"),
     ("답: 정답은 B번입니다.", "b"), ("B\uff1a苏州", ""), ("选B还是选C\uff1f", ""), ("选A是错的", ""),
     ("答案不是B", ""), ("不选B", ""), ("不应该选B。", ""), ("我不会选B", ""), ("没有选B", ""), ("排除B", ""),
     ("应该选B。", "b"), ("答案是A、B", ""), ("B型血", ""), ("杭州和苏州", ""), ("B选项", "b"),
     ("正确答案是 B 选项。", "b"), ("B。因为她说过。", "b"), ("B\uff0c因为她说过", "b"), ("B是正确的", "b"),
     ("根据对话\uff0cB选项是正确答案。", "b"), ("B\uff08杭州\uff09", "b"), ("我认为答案是B\uff08杭州\uff09。", "b"),
     ("不是A\uff0c而是B。", "b"), ("Bです。なぜなら彼女が言った。", "b"), ("Bが正解です", "b"), ("Bを選びます", "b"),
     ("B번입니다", "b"), ("B입니다. 왜냐하면", "b"), ("B、C都可以", ""), ("B。C。", ""), ("B类。", ""),
     ("B是正确的吗\uff1f", ""), ("B不是正确答案", ""), ("Bは正解ではありません", ""), ("B이 정답이 아닙니다", ""),
     ("Bを選びません", ""), ("B选项不正确。", ""), ("选项B和C", ""), ("A。不对\nB。对", ""),
     ("正解はBですか、Cですか", ""), ("维生素B。因为她说过", ""), ("我不认为B是正确的", ""), ("B。错误", ""),
     ("B是正确答案的可能性很小", ""), ("Bが正解とは限らない", ""), ("Bを選びますか", ""), ("B가 정답은 아닙니다", ""),
     ("B\uff08杭州\uff09不对", ""), ("我认为B是正确的", "b"), ("A不对\uff0cB是正确的", "b"), ("B가 정답이다", "b")],
)  # fmt: skip
def test_a_choice_is_read_in_chinese_japanese_and_korean(text, letters):
    options = {"A": "南京", "B": "杭州", "C": "苏州", "D": "上海"}
    assert "".join(letter for letter in "abcd" if official.choice_score(text, letter, options=options)) == letters


def test_memalpha():
    for case in CASES["memalpha"]:
        source, text, gold = case["source"], case["prediction"], case["gold"]
        if source in ("booksum", "infbench_sum_eng_shots2"):
            score = official.keyword_share(text, gold)
        elif source == "perltqa":
            score = official.parts_share(text, gold, official=True)
        elif source == "squad":
            score = float(gold.lower() in text.lower())
        else:
            score = official.numeric_label(text, gold)
        assert score == close(case["score"]), case
    assert official.parts_share("He met Xia Yu in May", "Xia Yu; May") == 1.0
    assert official.parts_share("He met Xia Yu in May", "Xia Yu; May", official=True) == 0.0


def test_rouge():
    pytest.importorskip("rouge_score", reason="rouge-score comes with memalpha[eval]")
    for case in CASES["rouge"]:
        scores = official.rouge(case["prediction"], case["gold"])
        assert scores == {name: close(case[name]) for name in ("rouge1", "rouge2", "rougeL")}


# ------------------------------------------------------------------------------------------------- by question


def question_of(metric=None, answers=("Oslo",), category=None, **meta):
    return Question(
        id="q", question="?", answers=answers, category=category, meta={"metric": metric, **meta} if metric else meta
    )


@pytest.mark.parametrize(
    ("metric", "text", "answers", "score"),
    [
        (None, "oslo.", ("Oslo",), 1.0), ("exact", "Answer: Oslo", ("Bergen", "Oslo"), 1.0),
        ("exact", "in Oslo", ("Oslo",), 0.0), ("substring", "Osloer", ("Oslo",), 1.0),
        ("contains", "Osloer", ("Oslo",), 0.0), ("f1", "red fox", ("the red fox", "dog"), 1.0),
        ("label", "\\boxed{12}", ("12",), 1.0), ("eventqa", "he ran, then slept", ("ran", "slept"), 1.0),
        ("choice", "(b)", ("(b)",), 1.0), ("keywords", "ball and Darcy", ("Darcy, Wickham",), 0.5),
        ("keywords", "ball and Darcy", ("Darcy", "ball"), 1.0), ("parts", "Xia in May", ("Xia; June",), 0.5),
        ("recall@5", "1. Heat\n2. Up", ("Up", "Alien"), 0.5),
    ],
)  # fmt: skip
def test_a_question_is_scored_by_its_own_metric(metric, text, answers, score):
    question = question_of(metric, answers)
    assert score_question(question, Answer(text)) == score
    assert is_correct(question, score) == (score >= 0.5)
    assert score_question(question, Answer(text, conflict=True)) == 0.0
    assert score_question(question, Answer("unknown", abstained=True)) == 0.0


@pytest.mark.parametrize(
    ("metric", "text", "answers"),
    [
        ("choice", "(b) Since it was not mentioned, let us try hiking", ("(b)",)),
        ("keywords", "Darcy proposes; his age is not specified in the book.", ("Darcy",)),
        ("parts", "Xia; the year is unknown", ("Xia",)),
        ("eventqa", "he ran; where to is not stated", ("ran",)),
        ("substring", "Oslo. The street is not known.", ("Oslo",)),
        ("recall@5", "1. Heat\n2. No information available", ("Heat",)),
    ],
)
def test_an_official_metric_scores_what_a_reply_says_beside_a_phrase_of_abstention(metric, text, answers):
    assert not is_abstention(text), "a reply that tells something is no refusal"
    assert score_question(question_of(metric, answers), Answer(text, abstained=True)) == 1.0
    assert score_question(question_of("contains", ("Lima",)), Answer(text, abstained=True)) == 0.0


@pytest.mark.parametrize("metric", [None, "exact", "f1", "contains"])
def test_our_metrics_keep_values_apart_and_squads_do_not(metric):
    question = question_of(metric, ("3.5",))
    assert [score_question(question, Answer(text)) for text in ("3.5.", "35")] == [1.0, 0.0]
    assert [score_question(question_of(name, ("3.5",)), Answer("35")) for name in ("squad-exact", "squad-f1")] == [1, 1]


@pytest.mark.parametrize(
    ("text", "gold", "score"),
    [("東京都です。", "東京都", 0.75), ("１９２３年", "1923年", 1), ("김영수입니다.", "김영수", 2 / 3),
     ("夜の湖", "『夜の湖』", 1), ("14駅", "14", 2 / 3), ("苏州", "杭州", 0.5), ("กรุงเทพ", "กรุงเทพ", 1)],
)  # fmt: skip
def test_squads_f1_counts_characters_where_no_space_parts_words(text, gold, score):
    assert score_question(question_of("squad-f1", (gold,)), Answer(text)) == close(score)


def test_a_reply_that_holds_an_accepted_answer_is_no_refusal():
    refusal = Answer("I don't know who Mira Holt is.", abstained=True)
    assert score_question(question_of("contains", ("Mira Holt",)), refusal) == 1.0
    assert score_question(question_of("contains", ("no",)), Answer("There is no information.", abstained=True)) == 0.0


def test_what_the_official_script_would_print_besides():
    assert official_scores(question_of("choice", ("(a) x",)), Answer("take a walk")) == {"choice (official)": 1.0}
    assert official_scores(question_of("parts", ("Xia; May",)), Answer("Xia in May")) == {"parts (official)": 0.0}
    assert official_scores(question_of("exact"), Answer("Oslo")) == {}
    stay = question_of("choice", ("Stay at home",), choices=["Try the new place", "Stay at home"])
    assert official_scores(stay, Answer("(b)")) == {"choice (official)": 1.0}
    assert official_scores(question_of("choice", ()), Answer("(a)")) == {}
    pytest.importorskip("rouge_score", reason="rouge-score comes with memalpha[eval]")
    scores = official_scores(question_of("rouge", ("a dog", "the cat sat")), Answer("the cat"))
    assert scores["rouge1"] == scores["rougeL"] == 0.8 and scores["rouge2"] == close(2 / 3)


def test_locomo_questions_go_by_category():
    multi = question_of("locomo-f1", ("hiking, painting",), "multi-hop")
    assert score_question(multi, Answer("hiking")) == 0.5
    assert score_question(multi.model_copy(update={"category": "single-hop"}), Answer("hiking")) == close(2 / 3)
    trap = question_of("locomo-f1", (), "adversarial")
    assert score_question(trap, Answer("unknown", abstained=True)) == 1.0
    assert score_question(trap, Answer("It is not mentioned.")) == 1.0
    assert score_question(trap, Answer("a necklace")) == 0.0
    assert score_question(trap, Answer("unknown", abstained=True, conflict=True)) == 0.0


def test_metrics_have_a_threshold_and_judged_ones_wait():
    assert set(CORRECT_FROM) == {*QUESTION_METRICS, *JUDGED}
    for metric in JUDGED:
        assert score_question(question_of(metric), Answer("Oslo")) is None


# ----------------------------------------------------------------------------------------------------- our metrics

WORDS = st.lists(st.sampled_from(["the", "red", "Fox", "fox", "runs", "running", "a", "7", ".", ","]), max_size=6).map(
    " ".join
)
TEXT = st.text(max_size=12) | WORDS


@pytest.mark.parametrize(
    ("metric", "prediction", "gold", "score"),
    [
        ("exact", "The Oslo.", "oslo", 1.0), ("exact", "Oslo, Norway", "Oslo", 0.0), ("exact", "", "", 0.0),
        ("contains", "You live in Oslo now", "oslo", 1.0), ("contains", "Osloer", "Oslo", 0.0),
        ("contains", "Oslo", "Oslo Norway", 0.0), ("f1", "red fox", "the red fox", 1.0),
        ("f1", "red red fox", "red fox", 0.8), ("f1", "cat", "dog", 0.0), ("f1", "the", "a", 0.0),
        ("f1", "on 9 January 2024, in Oslo", "9 Jan 2024", 2 / 3), ("f1", "on 8 Jan 2024", "9 Jan 2024", 0.0),
        ("f1", "1987년 5월 3일입니다", "1987년 5월 3일", 2 / 3), ("f1", "Oslo, 8 Jan 2024", "Oslo, 9 Jan 2024", 1 / 4),
    ],
)  # fmt: skip
def test_known_scores(metric, prediction, gold, score):
    assert METRICS[metric](prediction, gold) == pytest.approx(score)


@given(st.sampled_from(sorted(METRICS)), TEXT, st.lists(TEXT, max_size=3))
def test_bounds(metric, prediction, answers):
    score = best_score(metric, prediction, answers)
    assert 0.0 <= score <= 1.0
    assert best_score(metric, " ", answers) == 0.0
    for gold in answers:
        assert METRICS["exact"](prediction, gold) <= METRICS["contains"](prediction, gold)
        assert METRICS["exact"](prediction, gold) <= METRICS["f1"](prediction, gold)
        assert METRICS["f1"](prediction, gold) == METRICS["f1"](gold, prediction)


@pytest.mark.parametrize("metric", sorted(METRICS))
def test_abstention_conflict_and_silence(metric):
    unknown, right, silent = Answer("unknown", abstained=True), Answer("Oslo"), Answer("")
    assert score_answer(metric, right, ("Rome", "Oslo")) == 1.0
    assert score_answer(metric, unknown, ("Oslo", "nobody is known")) == 0.0
    assert score_answer(metric, Answer("None.", abstained=True), ("none",)) == 1.0  # an accepted answer to the letter
    assert score_answer(metric, unknown, ()) == 1.0
    assert score_answer(metric, right, ()) == 0.0
    assert score_answer(metric, silent, ()) == score_answer(metric, silent, ("Oslo",)) == 0.0
    assert score_answer(metric, Answer("Oslo", conflict=True), ("Oslo",)) == 0.0
    assert score_answer(metric, Answer("unknown", abstained=True, conflict=True), ()) == 0.0
