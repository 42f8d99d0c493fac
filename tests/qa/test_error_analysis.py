"""Error analysis: memories spoiled in a known way and the class it gives, each rule, and the waterfall."""

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rollout import gold

from memalpha.config import WorldConfig
from memalpha.qa import error_analysis
from memalpha.qa.report import Record
from memalpha.qa.systems import Passage, Retrieval
from memalpha.types import Chunk, Question, SpeakerTurn, Task

BENCH = runpy.run_path(str(Path(__file__).parents[2] / "eval" / "qa" / "error_analysis.py"))


def said(text: str, turn: str) -> SpeakerTurn:
    return SpeakerTurn(speaker="user", text=text, id=turn)


TASK = Task(
    id="t",
    chunks=(
        Chunk(turns=(said("I live in Oslo, with a cat.", "a1"), said("Tom lives in Rome.", "a2"))),
        Chunk(turns=(said("I moved to Rome on Monday.", "b1"),)),
    ),
    gold_operations=(
        gold("insert", 0, "city: Oslo", turn="a1"),
        gold("insert", 0, "pet: cat", turn="a1"),
        gold("insert", 0, "Tom city: Rome", turn="a2"),
        gold("update", 1, "city: Rome", "city: Oslo", turn="b1"),
    ),
)
CITY = Question(id="city", question="Where do I live?", answers=("Rome",), evidence=("b1",), category="update")
FREE = TASK.model_copy(update={"gold_operations": ()})


def entry(item: str | tuple[str, str | int]) -> Passage:
    """Return the passage of a text, or of a text with its turn or its chunk."""
    text, source = item if isinstance(item, tuple) else (item, None)
    return Passage(text, turns=(source,) if isinstance(source, str) else (), chunk=source if source in (0, 1) else None)


def retrieval(question=CITY, passages=(), current=None, past=None, core=""):
    """Return a retrieval; passages and entries are made of texts (`entry`)."""
    shown, live, ever = (
        None if items is None else tuple(item if isinstance(item, Passage) else entry(item) for item in items)
        for items in (passages, current, past)
    )
    return Retrieval(question, shown, 0, core, entries=live, history=ever)


def held(question, texts, *, is_shown=False):
    """Return a retrieval from a memory that has held the texts all along."""
    return retrieval(question, texts if is_shown else (), texts, texts)


def wrong(question=CITY, **changes):
    record = Record("t", 0, question.id, question.category or "none", None, question.question, "Paris", (), 0.0, False)
    return replace(record, **changes)


def error_of(example, task=TASK, **changes):
    return error_analysis.classified(task, example, wrong(example.question, **changes)).error_class


@pytest.mark.parametrize(
    ("rule", "passages", "current", "past", "loss"),
    [
        ("facts", ["city: Rome"], ["city: Rome"], ["city: Rome"], "answered_wrong"),
        ("facts", ["notes:\nTom city: Bergen\nCity: rome."], None, None, "answered_wrong"),  # a line of a larger text
        ("facts", ["pet: cat"], ["city: Rome", "pet: cat"], ["city: Rome"], "not_retrieved"),
        ("facts", [], ["pet: cat"], ["city: Rome", "pet: cat"], "overwritten_or_deleted"),
        ("facts", ["city: Oslo"], ["city: Oslo"], ["city: Oslo"], "never_written"),  # the old value: never updated
        ("facts", ["Tom city: Rome"], ["Tom city: Rome"], ["Tom city: Rome"], "never_written"),  # somebody else's
        ("facts", ["city: Paris"], ["city: Paris"], ["city: Paris"], "written_wrong"),
        ("facts", [], [], [], "never_written"),
        ("facts", ["city: Oslo"], None, None, "not_found"),
        ("facts", [], ["city: Oslo"], None, "not_found"),
        ("facts", [("2024-05-02 user: I moved to Rome on Monday.", "b1")], None, None, "answered_wrong"),  # its turn
        ("facts", [], [("user: I moved to", "b1")], [("user: I moved to", "b1")], "written_wrong"),  # cut short
        ("facts", [("The user has moved to Rome.", 1)], None, None, "answered_wrong"),  # free text of its chunk
        ("facts", [], [], [("The user has moved.", 1)], "never_written"),
        ("facts", [], [], [("The user has moved to Rome.", 0)], "never_written"),
        ("turns", [("home is Rome", "b1")], None, None, "answered_wrong"),
        ("turns", [], [("home is Rome", "b1")], [], "not_retrieved"),
        ("turns", [], [("home is Oslo", "a1")], [("home is Rome", "b1")], "overwritten_or_deleted"),
        ("turns", [], [("moved on Monday", "b1")], [("moved on Monday", "b1")], "written_wrong"),  # the turn says Rome
        ("turns", [], [("home is Oslo", "a1")], [("home is Oslo", "a1")], "never_written"),
        ("turns", [("home is Oslo", "a1")], None, None, "not_found"),
        ("chunks", [], [("The user moved to Rome on Monday.", 1)], [], "not_retrieved"),
        ("chunks", [], [("Ana likes tea. The user has moved to Rome.", 1)], [], "not_retrieved"),  # one sentence of it
        ("chunks", [], [], [("The user moved on Monday.", 1)], "written_wrong"),  # from the turn, without the answer
        ("chunks", [], [], [("The user moved to Rome on Monday.", 0)], "never_written"),  # another chunk
        ("chunks", [], [], [("Rome has old churches and squares.", 1)], "never_written"),  # the word, from no turn
        ("answers", [], ["Lives in Rome"], ["Lives in Rome"], "not_retrieved"),
        ("answers", [], ["Oslo"], ["Oslo"], "never_written"),
    ],
)
def test_by_each_rule(rule, passages, current, past, loss):
    task, example = TASK if rule == "facts" else FREE, retrieval(CITY, passages, current, past)
    assert error_analysis.trace(task, example).rule == rule
    assert error_of(example, task) == loss


def test_a_fact_in_free_text_beside_lines_of_slots():
    """A fact that is no `key: value` has no slot, so no line gives that slot another value."""
    free = TASK.model_copy(update={"gold_operations": (gold("insert", 1, "They moved to Rome", turn="b1"),)})
    assert error_of(held(CITY, ["city: Oslo", "pet: cat", "Rome"]), free) == "never_written"
    assert error_of(held(CITY, [("city: Oslo", "b1")]), free) == "written_wrong"


def test_core_memory_is_in_view():
    assert error_of(retrieval(current=(), past=(), core="city: Rome")) == "answered_wrong"
    assert error_of(retrieval(current=(), past=(), core="city: Paris")) == "written_wrong"


def test_only_the_facts_that_are_asked_for():
    cat = Question(id="pet", question="Which pet?", answers=("cat",), evidence=("a1",))
    assert error_of(held(cat, ["pet: cat"], is_shown=True)) == "answered_wrong"
    both = Question(id="n", question="How many?", answers=("2",), evidence=("a1",))
    assert error_of(held(both, ["pet: cat"], is_shown=True)) == "never_written"


def test_faulty_gold_right_answers_and_questions_without_one():
    faults = ("wrong date", {"of": "evidence"}, {"of": "answer"})
    questions = [CITY.model_copy(update={"meta": {"fault": fault}}) for fault in faults]
    classes = [error_of(held(question, ())) for question in questions]
    assert classes == ["gold_faulty", "never_written", "gold_faulty"]
    nobody = Question(id="no", question="Where does Ana live?")
    assert error_of(retrieval(nobody, ["city: Rome"])) == "should_have_abstained"
    assert error_analysis.trace(TASK, retrieval(nobody)) == error_analysis.Trace()
    assert error_of(retrieval(), correct=True) is None


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("I went hiking.", "never_written"),  # the turn's other sentence
        ("My dog has a name.", "written_wrong"),
        ("pet: Max", "written_wrong"),  # in words of its own, so it may be meant for the sentence
    ],
)
def test_another_sentence_of_the_turn_is_no_wrong_version(text, loss):
    task = of_turns(("user", "I went hiking yesterday. My dog is called Rex."))
    dog = Question(id="dog", question="What is my dog called?", answers=("Rex",), evidence=("a",))
    assert error_of(held(dog, [(text, "a")]), task) == loss


def test_all_evidence_is_needed():
    asked = "Where do I and Tom live?"
    both_turns = Question(id="both", question=asked, answers=("the same town",), evidence=("a2", "b1"))
    half, complete = [("x", "b1")], [Passage("x", turns=("b1", "a2"))]
    assert error_of(held(both_turns, half, is_shown=True), FREE) == "never_written"
    assert error_of(retrieval(both_turns, half, complete, complete), FREE) == "partly_retrieved"
    assert error_of(retrieval(both_turns, half), FREE) == "partly_retrieved", "the entries are not known"
    assert error_of(held(both_turns, complete), FREE) == "not_retrieved"
    assert error_of(retrieval(both_turns, complete), FREE) == "answered_wrong"
    assert [error_analysis.evidence_recall(retrieval(both_turns, shown)) for shown in (half, complete)] == [0.5, 1.0]


def test_an_answer_that_is_in_no_words_is_not_found():
    worked_out = Question(id="n", question="How many moves?", answers=("1",))
    assert error_of(held(worked_out, ["Oslo"]), FREE) == "not_found"
    assert error_of(held(worked_out, ()), FREE) == "never_written"  # nothing was
    assert error_of(retrieval(worked_out), FREE) == "not_found"


def of_turns(*turns):
    """Return a task of one chunk, with turns `a`, `b` … of (speaker, text)."""
    said = [SpeakerTurn(speaker=speaker, text=text, id=id) for id, (speaker, text) in zip("abc", turns, strict=False)]
    return Task(id="d", chunks=(Chunk(turns=tuple(said)),))


def test_one_of_several_alternative_turns_is_enough():
    task = of_turns(("Ana", "I keep it in the drawer."), ("Tom", "It stays under my bed."))
    where = Question(id="w", question="Where is it kept?", answers=("drawer", "under my bed"), evidence=("a", "b"))
    kept = [("Ana keeps it in the drawer.", 0)]
    assert error_of(held(where, kept, is_shown=True), task) == "never_written"  # turn b is missing
    either = where.model_copy(update={"meta": {"evidence": "any"}})
    assert error_of(held(either, kept, is_shown=True), task) == "answered_wrong"
    assert error_of(held(either, kept), task) == "not_retrieved"
    assert error_of(held(either, ()), task) == "never_written"


LONG = "polishing his plan, calling investors, building a platform"
PLAN = ("Jon is polishing a plan.", "Jon is calling investors.", "He builds a platform.")
KIND = "You were very kind to me. I sang at the theatre."
JON = "Jon: I am polishing my plan, calling investors and building a platform online."
HOME = "Ana: I live in Oslo, with a cat."


@pytest.mark.parametrize(
    ("turns", "question", "answers", "texts", "error"),
    [
        (["Ana Silva: I sang in the old theatre."], "Where did she sing?", ["theatre"],
         ["Ana Silva says: how are you?"], "never_written"),  # the name alone ties no entry to a turn
        ([JON], "What does Jon do?", [LONG], PLAN[:1], "written_wrong"),
        ([JON], "What does Jon do?", [LONG], PLAN, "not_retrieved"),  # the entries hold a long answer together
        ([f"Jon: I do {LONG}."], "What does Jon do?", [LONG], PLAN, "not_retrieved"),
        ([f"Ana: {KIND}"], "Where did she sing?", ["the theatre", KIND], ["Ana says they were very kind."],
         "never_written"),  # the long answer is the whole turn, and the short one is all that is needed
        (["Ana: I play the cello at home.", "Ana: I learnt to paint birds."], "What does Ana play and paint?",
         ["cello, birds"], ["Ana plays at home."], "never_written"),  # a turn without any entry comes first
        ([HOME], "What animal lives with me?", ["a kitten"], ["The user lives in Oslo with a cat."], "not_retrieved"),
        ([HOME, "user: Tom lives in Rome."], "What animal lives with me?", ["a kitten"], ["Tom lives in Rome."],
         "never_written"),  # the sentence belongs to the turn that shares most words
        (["Tom: I got a car!", "Ana: I got a red car."], "What did Tom get?", ["it"], ["got a red car"],
         "never_written"),
    ],
)  # fmt: skip
def test_entries_are_tied_to_turns_by_their_words(turns, question, answers, texts, error):
    task = of_turns(*(turn.split(": ", 1) for turn in turns))
    evidence = ("a", "b") if "paint" in question else ("a",)
    asked = Question(id="w", question=question, answers=tuple(answers), evidence=evidence)
    assert error_of(held(asked, [(text, 0) for text in texts]), task) == error


def test_sentences_end_at_stops_but_not_at_abbreviations():
    sentences = ["Dr. Weber paid 3.50 euros.", "Good!", "我很好。", "再见。"]
    assert list(error_analysis.split_sentences("Dr. Weber paid 3.50 euros. Good! 我很好。再见。")) == sentences


@pytest.mark.parametrize("answer", ["Yes", "no", "2", "Twelve", "17"])
def test_yes_no_and_small_numbers_never_count_as_found(answer):
    question = Question(id="q", question="Is it so?", answers=(answer,))
    assert error_of(held(question, [f"They said {answer} to 2 of us."], is_shown=True), FREE) == "not_found"


@pytest.mark.parametrize("gold", ["A", "(a) Rome", "Rome"])
def test_a_choice_is_looked_for_by_the_text_of_its_option(gold):
    meta = {"metric": "choice", "choices": {"A": "Rome", "B": "Oslo"}}
    question = Question(id="q", question="Where do I live?", answers=(gold,), meta=meta)
    assert error_of(held(question, ["I have a cat"]), FREE) == "never_written"
    assert error_of(held(question, ["Lives in Rome"]), FREE) == "not_retrieved"
    wrong_letter = retrieval(question, ["Lives in Rome"])
    assert "\nRight: Rome\n" in error_analysis.classified(FREE, wrong_letter, wrong(question)).feedback


def test_core_text_that_the_budget_cut_off_was_held_all_the_same():
    """Not overwritten: it is in the memory, and was not in view."""
    complete = "pet: cat. city: Rome"
    example = replace(retrieval(CITY, (), (), [complete]), core="pet: cat.", full_core=complete)
    assert error_of(example, FREE) == "not_retrieved"
    assert error_of(replace(example, core=complete), FREE) == "answered_wrong"
    assert error_of(replace(example, full_core="pet: cat."), FREE) == "overwritten_or_deleted"


def test_every_spoiled_memory_gets_its_class():
    """By gold facts every class is right; the other rules confuse what they must, and never blame the gold answer."""
    measured = BENCH["run"](WorldConfig(split="test"), 12)
    for name, row in measured["facts"].items():
        assert row["cases"] > 2, name
        assert (row["precision"], row["recall"]) == (1.0, 1.0), (name, row)
    turns = measured["turns"]
    for name in set(turns) - {"written_wrong", "not_retrieved", "partly_retrieved"}:
        assert (turns[name]["precision"], turns[name]["recall"]) == (1.0, 1.0), (name, turns[name])
    assert turns["written_wrong"]["recall"] > 0.4
    assert turns["partly_retrieved"]["recall"] == turns["not_retrieved"]["recall"] == 1.0
    taken_for = set(turns["written_wrong"]["taken_for"])
    assert {"not_retrieved"} <= taken_for <= {"not_retrieved", "partly_retrieved"}
    for name in ("gold_faulty", "should_have_abstained"):
        assert measured["answers"][name]["precision"] == measured["answers"][name]["recall"] == 1.0


def test_waterfall_by_hand():
    apart = {"should_have_abstained", "not_found", "partly_retrieved"}
    lost_by = [name for name in error_analysis.ERROR_CLASSES if name not in apart]
    records = [wrong(error_class=loss, ceiling=loss != "gold_faulty") for loss in lost_by]
    records += [wrong(correct=True, ceiling=True) for _ in range(3)] + [wrong(error_class="should_have_abstained")]
    records += [wrong(Question(id="x", question="?", category="other"), error_class="not_found")]
    other, update, complete = error_analysis.waterfall(records)
    assert (update.ability, update.n, update.ceiling) == ("update", 10, 8 / 9)
    assert (update.ceiling_n, update.ceiling_answered, other.ceiling_n) == (9, 3 / 9, 0), "of the same questions"
    steps = (update.sound, update.written, update.kept, update.retrieved, update.answered)
    assert steps == (0.9, 0.7, 0.6, 0.5, 0.3)
    assert update.error_counts == {**dict.fromkeys(lost_by, 1), "should_have_abstained": 1}
    assert list(update.error_counts) == [c for c in error_analysis.ERROR_CLASSES if c in update.error_counts]
    shares = (other.ability, other.written, other.kept, other.retrieved, other.answered)
    assert shares == ("other", None, None, 0.0, 0.0)
    assert (complete.ability, complete.n, complete.written, complete.answered) == ("all", 11, None, 3 / 11)
    assert json.loads(json.dumps(complete.as_json()))["losses"]["not_found"] == 1
    assert error_analysis.waterfall([wrong()]) == error_analysis.waterfall([]) == [], "without classes there is none"


def test_feedback_says_what_was_lost():
    example = retrieval(CITY, ["city: Oslo", "pet:\n cat"], ["city: Oslo"], ["city: Oslo", "city: Rome"])
    assert error_analysis.classified(TASK, example, wrong(answer="Oslo", stale=True)).feedback.splitlines() == [
        "Question: Where do I live?",
        "Answered: Oslo",
        "Right: Rome",
        "Retrieved: city: Oslo | pet: cat",
        "Said: I moved to Rome on Monday.",
        "To be noted: city: Rome",
        "Lost: what was asked for was written, then overwritten or deleted.",
        "An outdated statement about this is still in the memory.",
    ]
    assert error_analysis.classified(TASK, example, wrong(answer="Oslo"), style="compact").feedback.splitlines() == [
        "ask: Where do I live?",
        "answer: Oslo",
        "right: Rome",
        "said: I moved to Rome on Monday.",
    ]
    assert error_analysis.classified(TASK, example, wrong(correct=True)).feedback == ""
    nobody = retrieval(Question(id="no", question="Where does Ana live?"))
    assert error_analysis.classified(TASK, nobody, wrong(answer="")).feedback.splitlines()[1:4] == [
        "Answered: (nothing)",
        "Right: that it is not known",
        "Retrieved: (nothing)",
    ]
    long = retrieval(CITY, ["word " * 100, "b", "c", "d"])
    retrieved = error_analysis.classified(TASK, long, wrong()).feedback.splitlines()[3]
    assert retrieved == f"Retrieved: {'word ' * 59}word… | b | c"


@pytest.mark.parametrize("rule", ["facts", "turns", "chunks", "answers"])
def test_the_cost_is_linear_in_the_length_of_a_conversation(rule):
    """Four times the turns, with a question on each, cost about four times the calls: no question reads all entries."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call" and "/memalpha/" in frame.f_code.co_filename.replace("\\", "/")

    costs = []
    for size in (50, 200):
        turns = [SpeakerTurn(speaker="Ana", text=f"Town t{n} lies on river r{n}.", id=f"t{n}") for n in range(size)]
        chunks = tuple(Chunk(turns=tuple(turns[n : n + 10])) for n in range(0, size, 10))
        questions = tuple(
            Question(id=f"q{n}", question=f"River of t{n}?", answers=(f"r{n}",), evidence=(f"t{n}",))
            for n in range(size)
        )
        facts = tuple(gold("insert", n // 10, f"t{n}: r{n}", turn=f"t{n}") for n in range(size))
        if rule == "answers":
            questions = tuple(question.model_copy(update={"evidence": ()}) for question in questions)
        facts = facts if rule == "facts" else ()
        task = Task(id=f"{rule}-{size}", chunks=chunks, questions=questions, gold_operations=facts)
        texts = [f"Town t{n} is on a stream." if n % 2 else turns[n].text for n in range(size)]
        written = tuple(
            Passage(text, f"e{n}", turns=() if rule == "chunks" else (f"t{n}",), chunk=n // 10)
            for n, text in enumerate(texts)
        )
        calls = 0
        sys.setprofile(count)
        try:
            records = [
                error_analysis.classified(
                    task, replace(retrieval(question), entries=written, history=written), wrong(question)
                )
                for question in questions
            ]
        finally:
            sys.setprofile(None)
        costs.append(calls)
        assert len({record.error_class for record in records}) == 2  # half of the answers are held, half are not
    assert costs[1] < 5 * costs[0]


EVA = SpeakerTurn(speaker="Eva", text="I am a vegetarian, no fish.", id="e")
TWO = Task(id="t", chunks=(Chunk(turns=(EVA, SpeakerTurn(speaker="Tom", text="I booked Oslo.", id="f"))),))
DIET = Question(id="diet", question="What does she eat?", answers=("vegetarian",), evidence=("e",))


@pytest.mark.parametrize(
    ("note", "question", "error_class"),
    [
        ("Tom is a vegetarian", DIET.question, "written_wrong"),
        ("Eva is a vegetarian", DIET.question, "answered_wrong"),
        ("Eva tells Tom: vegetarian", DIET.question, "answered_wrong"),
        ("a vegetarian, no fish", DIET.question, "answered_wrong"),
        ("Tom is a vegetarian", "What does Tom's friend eat?", "answered_wrong"),
    ],
)
@pytest.mark.parametrize("source", [0, "e"])
def test_a_note_about_another_speaker_is_the_writers_error(note, question, error_class, source):
    asked = DIET.model_copy(update={"question": question})
    assert error_of(held(asked, [(note, source)], is_shown=True), TWO) == error_class


def test_what_is_said_to_somebody_may_be_about_him():
    turns = (EVA.model_copy(update={"text": "You are a vegetarian, Sir."}), TWO.chunks[0].turns[1])
    told = TWO.model_copy(update={"chunks": (Chunk(turns=turns),)})
    assert error_of(held(DIET, [("Tom is a vegetarian", 0)], is_shown=True), told) == "answered_wrong"


@pytest.mark.parametrize("speaker", ["assistant", "Tom"])
def test_a_window_of_turns_quotes_each_of_them(speaker):
    turns = (SpeakerTurn(speaker=speaker, text="Tell me more.", id="f"), said("I live in Oslo, with a cat.", "a1"))
    task = Task(id="t", chunks=(Chunk(turns=turns),), gold_operations=TASK.gold_operations[:1])
    window = Passage(f"{speaker}: Tell me more.\nI live in Oslo, with a cat.", turns=("f", "a1"))
    asked = CITY.model_copy(update={"evidence": ("a1",), "answers": ("Oslo",)})
    assert error_of(held(asked, [window]), task) == "not_retrieved"
    assert error_of(held(asked, [window], is_shown=True), task) == "answered_wrong"
