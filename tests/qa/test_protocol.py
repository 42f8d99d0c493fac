"""Systems under one protocol: the same budget, reader and questions for all, and nothing of what is still to come."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_policy import FakePolicy
from hypothesis import given
from hypothesis import strategies as st
from scripted_judge import Says
from talk import TASK

from memalpha.agent.prompts import order_notes
from memalpha.agent.reader import PolicyReader
from memalpha.config import AgentConfig, ReaderConfig, WorldConfig
from memalpha.errors import ConfigError, DataError, EvaluationError, InvalidContent, PolicyError
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.evaluate import evaluate, run_systems
from memalpha.qa.reader import load_reader
from memalpha.qa.report import Report, as_markdown, estimate_tokens, format_cell, print_table, save_results, table_rows
from memalpha.qa.scoring.judge import Judge
from memalpha.qa.systems import (
    Passage,
    Streamed,
    SystemSettings,
    cut_to_budget,
    load_system,
    passage_tokens,
    passages_as_hits,
    window_passages,
)
from memalpha.store.embedding import HashEmbedder, load_embedder
from memalpha.tasks.chunking import rechunk
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.types import Chunk, Question, SpeakerTurn, Task

RAW = ("append-only", "rag", "rag:chunks", "window", "full")


ALL = ("empty", *RAW, "facts", "oracle", "scripted:add-all")


def retrieve_all(name: str, budget: int = 2048, tasks=(TASK,)):
    return load_system(name).retrieve(tasks, SystemSettings(budget, 8, load_embedder("hash")))


def run(*systems, tasks=(TASK,), **options):
    return run_systems(systems, tasks, load_reader("copy"), embedder="hash", **{"metric": "contains", **options})


PASSAGES = st.lists(
    st.builds(Passage, st.text("ab c", max_size=60), timestamp=st.sampled_from([None, "2024-05-01"])), max_size=8
)


@given(PASSAGES, st.integers(1, 60), st.text("ab c", max_size=80))
def test_the_budget_is_never_exceeded_and_only_the_end_is_cut(passages, budget, core):
    selected_core, selected = cut_to_budget(passages, budget, core)
    assert estimate_tokens(selected_core) + passage_tokens(selected) <= budget
    assert core.startswith(selected_core) and len(selected) <= len(passages)
    assert selected[1:] == tuple(passages)[1 : len(selected)], "whole passages, but for the first of all"
    assert all(original.text.startswith(part.text) for original, part in zip(passages, selected, strict=False))
    assert cut_to_budget(passages, None, core) == (core, tuple(passages))


@given(st.lists(st.text("ab \u00e9", min_size=1, max_size=90).filter(str.strip), min_size=1, max_size=6))
def test_windows_hold_all_words_and_no_more_than_they_may(texts):
    chunk = Chunk(turns=tuple(SpeakerTurn(speaker="user", text=text, id=str(at)) for at, text in enumerate(texts)))
    windows = window_passages(chunk, 8)
    assert all(len(window.text) <= 32 for window in windows)
    assert "".join("".join(window.text.split()) for window in windows) == "".join("".join(texts).split())
    assert {turn for window in windows for turn in window.turns} == {str(at) for at in range(len(texts))}


@pytest.mark.parametrize("name", ALL)
def test_every_system_keeps_to_the_budget(name):
    [complete] = retrieve_all(name).by_task
    [cut_short] = retrieve_all(name, budget=12).by_task
    assert [item.question.id for item in complete] == ["early", "late", "when", "none"]
    for item in (*complete, *cut_short):
        assert item.tokens == passage_tokens(item.passages) + estimate_tokens(item.core)
    assert all(item.tokens <= 12 for item in cut_short) == (name != "full")


@pytest.mark.parametrize("name", ALL)
def test_a_question_in_mid_stream_sees_only_what_was_read(name):
    early, late, *_ = retrieve_all(name).by_task[0]
    for passages in (early.passages, early.entries, early.history):
        assert passages is not None
        assert not any("Lima" in passage.text or "2.0" in passage.turns for passage in passages)
    if name not in ("empty", "facts"):
        assert any("Oslo" in passage.text for passage in early.history)
    if name in RAW:
        assert any("Lima" in passage.text for passage in late.history)
        assert {turn for passage in late.history for turn in passage.turns} == {
            turn.id for chunk in TASK.chunks for turn in chunk.turns
        }


def test_a_window_forgets_and_says_so():
    retrievals = retrieve_all("window", budget=12)
    *_, late = retrievals.by_task[0]
    assert [passage.text for passage in late.passages] == ["Ana: Rex came along."]
    assert len(late.history) == 6 and len(late.entries) == 1 and retrievals.sizes[0] <= 12


def test_records_say_what_is_known():
    reports = {report.name: report for report in run("empty", "rag", "oracle", "facts", "full", budget=100)}
    assert [record.correct for record in reports["oracle"].records] == [True, True, True, True]
    assert [record.ceiling for record in reports["rag"].records] == [True, True, True, None]
    empty = reports["empty"].summary
    assert (empty["ceiling"], empty["ceiling_n"], empty["ceiling_answered"]) == (1.0, 3, 0.0)
    assert empty["accuracy"] == 0.25, "of four questions, of which the ceiling's three name evidence"
    assert reports["empty"].summary["losses"] == {"never_written": 3} and reports["empty"].summary["tokens"] == 0
    early, late, *_ = reports["facts"].records
    assert early.error_class == "never_written"
    assert late.correct and late.error_class is None and late.evidence_recall == 1.0
    assert reports["rag"].summary["conflicts"] == "keep"
    assert reports["rag"].summary["evidence_recall@5"] == 1.0 and reports["rag"].records[0].system == "rag"
    assert reports["rag"].records[0].scores.keys() >= {"contains", "f1", "exact", "evidence_recall@5"}
    assert reports["rag"].summary["accuracy_interval"] is None, "one conversation has no spread"
    assert reports["rag"].records[3].feedback.startswith("Question: What is the name")


@pytest.mark.parametrize(("name", "budget"), [("rag:chunks", 13), ("own", 12)])
def test_a_passage_that_is_cut_keeps_the_turns_that_are_left_of_it(name, budget):
    """One long passage is no way to a recall of 1: what the reader does not see is not shown."""
    everything = [Passage("Ana: I moved to Oslo yesterday. Ana: It rains a lot.", turns=("0.0", "0.1"))]
    source = load_system(name) if name == "rag:chunks" else Streamed(name, lambda task, settings: _Odd(everything))
    [_, _, when, _] = source.retrieve([TASK], SystemSettings(budget, 1, load_embedder("hash"))).by_task[0]
    [passage] = when.passages
    assert "Oslo" in passage.text and "a lot" not in passage.text
    assert (passage.turns, passage.cut_turns) == (("0.0",), ("0.1",))
    summaries = [Passage("A summary of all that Ana said about where she lives and her dog.", turns=("0.0", "2.0"))]
    [report] = run(Streamed("told", lambda task, settings: _Odd(summaries)), budget=8)
    assert report.summary["evidence_recall"] == 0.0, "what is left of a summary is not known: it does not count"
    [report] = run(Streamed("told", lambda task, settings: _Odd(summaries)), budget=80)
    assert report.summary["evidence_recall"] == 1.0


def test_by_what_contradictions_are_refused_is_said():
    """All that is held where that is shown; the three methods alone do not show it."""
    values = [Passage("city: Oslo"), Passage("city: Lima")]

    class Open(_Odd):
        def entries(self):
            return values

    sources = [Streamed(kind.__name__, lambda task, settings, kind=kind: kind(values[1:])) for kind in (Open, _Odd)]
    reader = load_reader(ReaderConfig(conflicts="refuse"))
    task = TASK.model_copy(update={"questions": (Question(id="q", question="Which city?", answers=("Lima",)),)})
    reports = run_systems(sources, [task], reader, embedder="hash")
    rules = ["refuse, by all that is held", "refuse, by what is shown"]
    assert [report.summary["conflicts"] for report in reports] == rules
    assert [report.summary["accuracy"] for report in reports] == [0.0, 1.0]
    assert "conflicts: refuse, by all that is held (Open); refuse, by what is shown (_Odd)" in as_markdown(reports)


@pytest.mark.parametrize("name", ["append-only", "rag", "full"])
def test_what_is_said_again_is_the_newest(name):
    """Back in the kitchen: a store that keeps a text once must not make the garden the last of her places."""
    lines = "Mary went to the kitchen.", "Mary went to the garden.", "Mary went to the kitchen."
    stream = Task(
        id="t",
        chunks=tuple(Chunk(turns=(SpeakerTurn(speaker="story", text=t, id=str(n)),)) for n, t in enumerate(lines)),
        questions=(Question(id="q", question="Where is Mary?", answers=("kitchen",)),),
    )
    [[item]] = retrieve_all(name, tasks=[stream]).by_task
    assert order_notes(passages_as_hits(item.passages))[-1].content == lines[2]
    assert {turn for passage in item.passages for turn in passage.turns} == {"0", "1", "2"}


def test_the_order_of_systems_and_their_company_do_not_matter():
    tasks = synthetic.tasks(WorldConfig(), 0, 0, 2)
    names = ["empty", "append-only", "rag", "scripted:add-all", "oracle"]
    forth = run(*names, tasks=tasks)
    back = run(*names[::-1], tasks=tasks)[::-1]
    [alone] = run("rag", tasks=tasks)
    assert [report.records for report in forth] == [report.records for report in back]
    assert forth[2].records == alone.records and forth[2].summary == alone.summary


CORRECT = '{"reason": "so", "verdict": "correct"}'


def test_a_system_has_the_settings_of_the_writer():
    used, agent = list[AgentConfig](), AgentConfig(max_new_tokens=7)
    run(Streamed("odd", lambda task, settings: used.append(settings.agent) or _Odd([])), agent=agent)
    assert used == [agent]


def judging(reply) -> Judge:
    return Judge([Says(lambda prompt, _: reply(prompt))])


def test_a_reader_sees_date_and_choices_of_a_question():
    meta = {"date": "2024-06-01", "choices": {"B": "Rome"}}
    question = Question(id="q", question="Where?", answers=("b",), meta=meta)
    task, model = TASK.model_copy(update={"questions": (question,)}), FakePolicy(lambda request: "(b)")
    run_systems(["rag"], [task], PolicyReader(model), embedder="hash")
    evaluate(ScriptedPolicy("add-all"), [task], PolicyReader(model))
    texts = [str(request.messages) for request in model.requests]
    assert len(texts) == 2 and all("(asked on 2024-06-01) Where?" in text and "(b) Rome" in text for text in texts)
    whole = PolicyReader(model, ReaderConfig(kind="full-memory"))
    with pytest.raises(ConfigError, match=r"reader\.kind: full-memory needs a system that shows its entries"):
        run_systems([Streamed("odd", lambda task, settings: _Odd(["Rome"]))], [task], whole, embedder="hash")


def test_what_is_beyond_rules_is_judged():
    [report] = run("rag", metric="judge", judge=judging(lambda text: CORRECT))
    assert [record.score for record in report.records] == [1.0] * 4 and report.summary["unjudged"] == 0
    assert not any(record.error_class for record in report.records) and report.records[0].ceiling
    with pytest.raises(ConfigError, match=r"metric judge needs a judge.*judge\.judges"):
        run("rag", metric="judge")
    coloured = TASK.questions[1].model_copy(update={"meta": {"metric": "colour"}})
    with pytest.raises(ConfigError, match=r"task 'talk', question 'late': meta\.metric: no metric 'colour'"):
        run("rag", metric=None, tasks=[TASK.model_copy(update={"questions": (coloured,)})])
    for choices, says in (
        ("Rome", "texts by letter or a list"),
        (["Oslo", "Bergen"], "not a letter as in"),
        (["x"] * 27, "27 texts"),
    ):
        chosen = coloured.model_copy(update={"answers": ("Rome",), "meta": {"metric": "choice", "choices": choices}})
        with pytest.raises(DataError, match=rf"task 'talk', question 'late': choice.*{says}"):
            run("rag", metric=None, tasks=[TASK.model_copy(update={"questions": (chosen,)})])


def test_a_metric_of_the_user_scores_where_there_is_an_answer(tmp_path, monkeypatch):
    (tmp_path / "metrics_of_a_test.py").write_text(
        "import numpy\nhalf = lambda reply, question: numpy.float32(0.5)\nlarge = lambda *words: 2\n"
        "broken = lambda reply, question: question.gold\nthree = lambda question, reply, gold: 0.5\n"
        "import functools\nfits = functools.wraps(three)(half)\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("half", "fits"):
        [report] = run("rag", metric=f"metrics_of_a_test:{name}")
        assert {record.score for record in report.records if record.gold} == {0.5}
    assert all(record.correct for record in report.records if record.gold)
    for name, says in (
        ("large", "gave 2: a number from 0 to 1 is needed"),
        ("broken", r", question '.*': raised AttributeError: .*metrics_of_a_test\.py, line 4\)"),
        ("three", r"a function of the reply and the question is needed \(missing a required argument: 'gold'\)"),
    ):
        with pytest.raises(ConfigError, match=rf"metrics_of_a_test:{name}:? ?{says}"):
            run("rag", metric=f"metrics_of_a_test:{name}")


def test_answers_without_a_verdict_are_counted_where_the_figures_are(capsys):
    reports = run("rag", "empty", metric="judge", judge=judging(lambda text: "hm" if "brother" in text else CORRECT))
    header, rows = table_rows(reports)
    assert [row[header.index("unjudged")] for row in rows] == [1, 1] and [row[1] for row in rows] == [3, 3]
    dated_chunk = "rag: no judge gave a readable verdict on 1 of 4 answers; they are in no figure"
    print_table(reports)
    assert dated_chunk in as_markdown(reports) and dated_chunk in " ".join(capsys.readouterr().out.split())


def test_a_table_says_what_to_take_where_the_reader_is_too_weak(capsys):
    [report] = run("rag")
    advice = "take a language model (reader.kind=policy reader.policy=MODEL) and a metric"
    for ceiling, metric, is_advised in ((0.49, "exact", True), (0.49, "f1", False), (0.5, "exact", False)):
        summary = {**report.summary, "ceiling": ceiling, "metric": metric, "reader": "copy (floor)"}
        print_table([replace(report, summary=summary)])
        out = " ".join(capsys.readouterr().out.split())
        assert (advice in out) == is_advised and ("most errors are its own" in out) == (ceiling < 0.5)
    for name, accuracy in (("full", 0.4), ("full", 0.6), ("window", 0.4)):  # without evidence, full is the ceiling
        print_table([replace(report, name=name, summary={**report.summary, "ceiling": None, "accuracy": accuracy})])
        out = " ".join(capsys.readouterr().out.split())
        assert ("the whole conversation (full)" in out) == (name == "full" and accuracy < 0.5)


def test_a_judge_that_cannot_be_read_at_all_ends_the_run_in_words():
    with pytest.raises(PolicyError, match=r"system rag: no verdict on any of its 4 answers.*max_new_tokens"):
        run("rag", metric="judge", judge=judging(lambda text: "hm"))


def test_what_was_left_unjudged_before_is_not_told_again(tmp_path):
    [report] = run("rag")
    replace(report, unjudged=({},)).save(tmp_path)
    assert (tmp_path / "eval" / "rag.unjudged.json").exists()
    report.save(tmp_path)
    assert not (tmp_path / "eval" / "rag.unjudged.json").exists()


def test_showing_nothing_at_first_is_no_recall_of_a_system_that_tells_no_turns():
    class Slow(_Odd):
        def read(self, chunk):
            self.passages = ["Ana lives in Lima."] if chunk.index == 2 else []

    [slow, empty] = run(Streamed("slow", lambda task, settings: Slow([])), "empty")
    assert not slow.records[0].retrieved and slow.records[1].retrieved
    assert slow.summary["evidence_recall"] is None and slow.summary["evidence_recall@10"] is None
    assert empty.summary["evidence_recall"] == 0.0


def test_facts_stand_where_they_were_said_in_finer_chunks_too():
    [early, late, *_] = retrieve_all("facts", tasks=[rechunk(TASK, 8)]).by_task[0]
    assert len(rechunk(TASK, 8).chunks) == 6 and not early.entries
    assert [(passage.text, passage.timestamp) for passage in late.entries] == [("Ana lives in Lima.", "2024-06-01")]


def test_bad_input_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="'rag' is named twice"):
        run("rag", "empty", "rag")
    with pytest.raises(DataError, match="is there twice"):
        run("rag", tasks=[TASK, TASK])
    with pytest.raises(DataError, match="brings no facts of its own"):
        run("facts", tasks=[TASK.model_copy(update={"meta": {}})])
    (tmp_path / "broken_system_of_a_test.py").write_text("\nraise OSError('no')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"its module fails: OSError: no \(.*_test\.py, line 2\)"):
        run("broken_system_of_a_test:Thing")
    with pytest.raises(ConfigError, match="lacks read, context, size"):
        run("builtins:dict")
    with pytest.raises(EvaluationError, match=r"json:dumps: task 'talk': TypeError: .* positional argument: 'obj'"):
        run("json:dumps")
    for shape, message in (([3], "passages or texts, not int"), ("text", "a list, not str"), (None, "not NoneType")):
        with pytest.raises(ConfigError, match=message):
            run(Streamed("odd", lambda task, settings, shape=shape: _Odd(shape)))


async def _later(*_):
    return []


@pytest.mark.parametrize(
    ("method", "result", "message"),
    [
        ("read", _later, "is async"),
        ("read", (chunk for chunk in ()), "is a generator"),
        ("context", _later, "is async"),
        ("context", [Passage(None, "1")], "gives the passage '1', whose text is NoneType"),  # pyright: ignore
        ("size", _later, "is async"),
        ("size", None, "gives a number of tokens, not NoneType"),
        ("size", "3", "gives a number of tokens, not str"),
        ("size", float("nan"), "gives a number of tokens, not nan"),
        ("size", -3, "gives a number of tokens, not -3"),
        ("entries", None, "gives a list, not NoneType"),
        ("entries", ["a"], "gives passages, not str"),
        ("history", _later, "is async"),
        ("history", "abc", "gives a list, not str"),
        ("history", [1], "gives passages, not int"),
    ],
)
def test_a_method_that_returns_another_type_is_named(method, result, message):
    system = SimpleNamespace(read=print, context=lambda _: [], size=lambda: 0, entries=tuple, history=tuple)
    setattr(system, method, result if callable(result) else lambda *_: result)
    with pytest.raises(ConfigError, match=rf"^system odd: {method}\(\) {message}"):
        run(Streamed("odd", lambda task, settings: cast("Any", system)))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys\nsys.exit(0)", r"its module fails: SystemExit: 0 \(.*, line 2\)"),
        ("x = None\nx.lower()", r"its module fails: AttributeError: .*\(.*, line 2\)"),
        ("import no_such_module", r"its module fails: ModuleNotFoundError: .*\(.*, line 1\)"),
        ("def f(:", r"its module fails: SyntaxError: invalid syntax \([^(]*, line 1\)"),
        ("", "cannot be found"),
    ],
)
def test_a_module_that_fails_is_no_missing_module(tmp_path, monkeypatch, code, message):
    (tmp_path / "failing_system_of_a_test.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "failing_system_of_a_test", raising=False)
    with pytest.raises(ConfigError, match=f"^systems: 'failing_system_of_a_test:Thing':? {message}"):
        run("failing_system_of_a_test:Thing")


class _Odd:
    name = "odd"

    def __init__(self, shape):
        self.passages = shape

    def read(self, chunk):
        pass

    def context(self, question):
        return self.passages

    def size(self):
        return 0


# ------------------------------------------------------------------------------------- systems that raise

FAULTY = """
class Faulty:
    name = "faulty"

    def read(self, chunk):
        if chunk.index == 1:
            return self.look(chunk)

    def look(self, chunk):
        return {}["key"]

    def context(self, question):
        yield question[100]

    def size(self):
        return 0


class Late(Faulty):
    def look(self, chunk):
        pass


class Unmade(Faulty):
    def __init__(self):
        raise OSError("no disk")
"""


def test_a_chunk_that_no_store_takes_is_named(memalpha, tmp_path):
    talk = TASK.model_copy(update={"chunks": (Chunk(text="word " * 220_000), *TASK.chunks[1:])})
    save_jsonl([talk.model_copy(update={"questions": TASK.questions[-1:]})], tmp_path / "tasks.jsonl")
    code, _, err = memalpha("eval", "tasks", f"data={tmp_path / 'tasks.jsonl'}", "systems=rag")
    assert code and "system rag: task 'talk', chunk 0:" in err and "chunk_tokens=2048" in err


def test_splitting_is_advised_for_long_chunks_alone():
    class Blank:
        def read(self, chunk):
            raise InvalidContent("content is empty")

    def make(*_) -> Any:
        return Blank()

    settings = SystemSettings(1000, 5, HashEmbedder(8))
    with pytest.raises(EvaluationError, match=r"^system blank: task 'talk', chunk 0: content is empty$"):
        Streamed("blank", make).retrieve([TASK], settings)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Faulty", r"task 'talk', chunk 1: KeyError: 'key' \(.*faulty_system_of_a_test\.py, line 10\)"),
        ("Late", r"task 'talk', chunk 1: IndexError: .* line 13\)"),
        ("Unmade", r"task 'talk': OSError: no disk \(.* line 26\)"),
    ],
)
def test_a_system_that_raises_ends_the_run_in_words_and_what_is_done_stays(memalpha, tmp_path, monkeypatch, name, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "faulty_system_of_a_test.py").write_text(FAULTY)
    save_jsonl([TASK], tmp_path / "tasks.jsonl")
    words = [f"systems=[rag,faulty_system_of_a_test:{name},empty]", "reader.kind=copy", "metric=contains", "out=run"]
    code, _, err = memalpha("eval", "tasks", "data=tasks.jsonl", *words)
    assert code == 1
    told = rf"^memalpha: system faulty_system_of_a_test:{name}: {says}$"
    assert re.search(told, err, re.M) and "Traceback" not in err
    folder = tmp_path / "run" / "eval"
    assert len((folder / "rag.jsonl").read_text().splitlines()) == 4
    assert list(json.loads((folder / "summary.json").read_text())["systems"]) == ["rag"]


# --------------------------------------------------------------------------------------- files of reports


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (None, "-"), ("extractive", "extractive"), (True, "True"), (12_345, "12345"), (0.0, "0.000"),
        (0.12349, "0.123"), (-0.5, "-0.500"), (10.0, "10.000"), (10.04, "10"), (10.6, "11"), (12_345.6, "12,346"),
    ],
)  # fmt: skip
def test_a_cell_has_three_decimals_up_to_ten(value, cell):
    assert format_cell(value) == cell


@pytest.mark.parametrize(("name", "stem"), [("oracle", "oracle"), ("policy:org/model", "policy-org-model")])
def test_a_report_of_any_name_lies_in_one_folder(tmp_path, name, stem):
    Report(name, {}, ()).save(tmp_path)
    assert sorted(path.name for path in (tmp_path / "eval").iterdir()) == [f"{stem}.json", f"{stem}.jsonl"]


def test_a_summary_that_cannot_be_written_leaves_the_earlier_one(tmp_path, monkeypatch):
    (tmp_path / "summary.json").write_text("{}")

    def fill_disk(path, data):
        path.touch()
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(Path, "write_bytes", fill_disk)
    with pytest.raises(OSError, match="no space"):
        save_results(tmp_path, [Report("rag", {}, ())], {})
    assert (tmp_path / "summary.json").read_text() == "{}"
