"""Records, figures and reports: each key of the summary against cases worked out by hand."""

import json
from collections import Counter

import pytest
from rollout import EMBEDDER, SCHEMA, delete, gold, insert, roll, skip, update

from memalpha.agent.agent import MemoryAgent
from memalpha.agent.reader import Answer, ExtractiveReader
from memalpha.config import AgentConfig, ReaderConfig, WorldConfig
from memalpha.errors import ConfigError, DataError, PolicyError, StoreError
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa import error_analysis, systems
from memalpha.qa.error_analysis import with_error_classes
from memalpha.qa.evaluate import evaluate, evaluate_memory
from memalpha.qa.reader import load_reader
from memalpha.qa.report import make_result_folder, mean_and_error, summarize
from memalpha.store.embedding import HashEmbedder
from memalpha.store.memory import WorkingMemory
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore
from memalpha.tasks.synthetic.worlds import tasks
from memalpha.types import Chunk, Question, SpeakerTurn, Task, TrajectoryGroup

CONFIG = AgentConfig(prompt="compact", embedder="hash")
REFUSING = ExtractiveReader(ReaderConfig(conflicts="refuse"))
CITY = {"slot": "city", "kind": "updated", "stale": ["Oslo"]}
PET = {"slot": "pet", "kind": "retracted", "stale": ["cat"]}
HOME = "Which city is home?"
TASK = Task(
    id="t",
    chunks=(
        Chunk(text="I live in Oslo. My pet is a cat."),
        Chunk(text="I moved to Rome."),
        Chunk(text="No pet any more."),
    ),
    questions=(
        Question(id="now", question=HOME, answers=("Rome",), category="knowledge-update", meta=CITY),
        Question(id="then", question=HOME, answers=("Oslo",), asked_after_chunk=0, category="extraction"),
        Question(id="pet", question="What pet?", category="abstention", meta=PET),
    ),
    gold_operations=(
        gold("insert", 0, "city: Oslo"),
        gold("insert", 0, "pet: cat"),
        gold("update", 1, "city: Rome", "city: Oslo"),
        gold("delete", 2, replaces="pet: cat"),
    ),
)


FIRST = [insert("city: Oslo"), insert("pet: cat")]
GOOD = roll(TASK, FIRST, [update("city: Oslo", "city: Rome")], [delete("pet: cat")])
LAZY = roll(TASK, FIRST, [insert("city: Rome")], [skip], rollout=1)
OLD = roll(TASK, FIRST, [], [insert("pet: cat"), delete("nothing")], rollout=2)


def ask(*trajectories, reader=None, metric="exact"):
    groups = [TrajectoryGroup(trajectories[0].task, trajectories)]
    [records] = evaluate_memory(groups, reader or REFUSING, metric, embedder=EMBEDDER)
    return records


def trace(*trajectories):
    groups = [TrajectoryGroup(trajectories[0].task, trajectories)]
    records = with_error_classes(groups, [record for records in ask(*trajectories) for record in records])
    return [(record.answer, record.written, record.live) for record in records]


def test_four_times_the_questions_trace_the_same_passages(monkeypatch):
    """Entries become passages, and sentences are tied to turns, once for a memory: not once more for each question."""
    counts = Counter()

    def counted(name, function):
        def call(*arguments, **keywords):
            counts[name] += bool(arguments[0])  # the core memory is empty here
            return function(*arguments, **keywords)

        return call

    monkeypatch.setattr(systems, "Passage", counted("passages", systems.Passage))
    monkeypatch.setattr(error_analysis, "source_sentences", counted("ties", error_analysis.source_sentences))
    turns = tuple(SpeakerTurn(speaker="Ana", text=f"City {n} is near river {n}.", id=f"t{n}") for n in range(8))
    costs = []
    for copies in (1, 4):
        questions = tuple(
            Question(id=f"q{n}-{copy}", question=f"River of city {n}?", answers=(f"river {n}",), evidence=(f"t{n}",))
            for n in range(8)
            for copy in range(copies)
        )
        task = Task(id="rivers", chunks=(Chunk(turns=turns),), questions=questions)
        counts.clear()
        evaluate(ScriptedPolicy("add-all"), [task], reader="copy")
        costs.append(dict(counts))
    assert costs[0] == costs[1] and set(costs[0]) == {"passages", "ties"}


def test_records_are_answered_from_the_memory_of_their_time():
    good, lazy, old = ask(GOOD, LAZY, OLD)
    assert [record.answer for record in good] == ["Rome", "Oslo", "unknown"]
    assert [record.correct for record in good] == [True, True, True]
    assert [record.conflict for record in lazy] == [True, False, False]
    assert [record.correct for record in lazy] == [False, True, False]
    assert [(record.answer, record.stale) for record in old] == [("Oslo", True), ("Oslo", False), ("cat", True)]
    assert [record.rollout for record in (good[0], lazy[0], old[0])] == [0, 1, 2]
    assert [len(record.retrieved) for record in lazy] == [3, 2, 3]


def test_evidence_decides_where_there_is_some():
    cities = ("Rome", "Lima")
    facts = [gold("insert", 0, f"trip: {city}", turn=f"0.{n}", category="episodic") for n, city in enumerate(cities)]
    question = Question(id="q", question="How many trips?", answers=("2",), evidence=("0.0", "0.1"))
    task = Task(id="e", chunks=(Chunk(text="x"),), questions=(question,), gold_operations=facts)
    trips = [insert(f"trip: {city}", "episodic") for city in cities]
    assert trace(roll(task, trips[:1])) == [("1", False, False)]
    assert trace(roll(task, trips)) == [("2", True, True)]  # though no entry says "2"


def test_an_agents_store_gives_its_own_embedder_and_none_by_a_files_word(tmp_path):
    class Named(HashEmbedder):
        name = "models/notes"

    def report(embedder):
        with MemoryStore.open(tmp_path / "ana.db", embedder=embedder) as store:
            return evaluate(MemoryAgent(ScriptedPolicy("add-all"), store, config=AgentConfig(prompt="compact")), [TASK])

    assert 0 <= report(Named(64)).summary["accuracy"] <= 1
    with pytest.raises(StoreError, match="records the embedder 'models/notes'"):
        report(None)


def test_summary_by_hand():
    trajectories = [GOOD, LAZY, OLD]
    records = [record for of_one in ask(*trajectories) for record in of_one]
    summary = summarize(records, trajectories, lambda text: len(text.split()))
    assert summary["accuracy"] == pytest.approx(5 / 9)
    assert summary["answerable_accuracy"] == pytest.approx(4 / 6)
    assert summary["se"] is None  # one conversation
    assert summary["update_accuracy"] == summary["retract_accuracy"] == pytest.approx(1 / 3)
    assert summary["reward"] is None
    # calls: GOOD 4, LAZY 4, OLD 4; one fails, one is a duplicate
    assert summary["valid_calls"] == pytest.approx(11 / 12)
    assert summary["duplicates"] == summary["update_share"] == summary["delete_share"] == pytest.approx(1 / 12)
    assert summary["update_hit"] == summary["delete_hit"] == pytest.approx(1 / 3)
    assert summary["memory_tokens"] == pytest.approx((2 + 6 + 4) / 3)
    assert summary["conversation_tokens"] == 17
    assert summary["by_ability"]["extraction"] == {"accuracy": 1.0, "se": None, "score": 1.0, "n": 3}
    assert summary["stale_rate"] == 3 / 6  # the "then" question has no stale answer


def test_mean_and_error():
    assert mean_and_error([]) == (None, None)
    assert mean_and_error([[1.0, 0.0]]) == (0.5, None)
    mean, error = mean_and_error([[1.0], [0.0], [1.0], [0.0]])
    assert mean == 0.5 and error == pytest.approx((0.25 / 3) ** 0.5)  # equal clusters: the usual standard error
    assert mean_and_error([[1.0] * 3, [], [0.0]])[0] == 0.75
    doubled = mean_and_error([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])[1]
    assert doubled == pytest.approx(error)  # more questions on the same conversations are no more evidence


@pytest.mark.parametrize(
    ("category", "content"),
    [("episodic", "city: Rome"), ("semantic", "new city: Rome"), ("semantic", "city Rome"), ("core", "city: Rome")],
)
def test_no_way_around_the_conflict_rule(category, content):
    """Another category, another key, no colon, the core: two live values of the task's slot are two all the same."""
    call = ("core_memory_update", {"content": content}) if category == "core" else insert(content, category)
    around = roll(TASK, FIRST, [call], [skip])
    memory = WorkingMemory(around.states[-1], EMBEDDER)
    assert "Rome" in memory.core + "".join(entry.content for entry in memory.list())
    assert ask(around, reader=Says("Rome", "refuse"))[0][0].conflict
    assert ask(around, reader=Says("Rome", "keep"))[0][0].correct
    moved = roll(TASK, FIRST, [update("city: Oslo", "city: Rome (moved from Oslo)")])
    assert ask(moved, reader=Says("Rome", "refuse"))[0][0].correct


class Says:
    """A reader that always gives the same answer."""

    name = "says"

    def __init__(self, text, conflicts):
        self.text, self.conflicts = text, conflicts

    def answer(self, items, *, k=None):
        return [Answer(self.text) for _ in items]


def test_a_reader_that_fails_raises():
    class Down:
        name, conflicts = "down", "keep"

        def answer(self, items, *, k=None):
            raise ConnectionError("server is away")

    with pytest.raises(PolicyError, match="reader 'down' raised ConnectionError: server is away"):
        ask(GOOD, reader=Down())


def test_evaluate_writes_what_it_shows(tmp_path, capsys):
    world = tasks(WorldConfig(), 0, 0, 6)
    oracle = evaluate(ScriptedPolicy("oracle"), world, config=CONFIG)
    lazy = evaluate(ScriptedPolicy("append-only"), world, "extractive", config=CONFIG, name="append_only")
    assert oracle.summary["accuracy"] > lazy.summary["accuracy"]
    assert oracle.summary["update_hit"] == oracle.summary["delete_hit"] == 1.0 > lazy.summary["update_hit"] == 0.0
    assert oracle.summary["conversation_tokens"] == lazy.summary["conversation_tokens"]
    lazy.save(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "eval" / "append_only.jsonl").read_text().splitlines()]
    assert len(lines) == sum(len(task.questions) for task in world)
    assert set(lines[0]) >= {"task", "question_id", "ability", "question", "answer", "gold", "correct"}
    assert sum(line["correct"] for line in lines) / len(lines) == pytest.approx(lazy.summary["accuracy"])
    assert json.loads((tmp_path / "eval" / "append_only.json").read_text()) == lazy.summary
    lazy.table()
    printed = capsys.readouterr().out
    assert "append_only" in printed and "knowledge-update" in printed and "update_hit" in printed
    assert "extractive (floor)" in printed and "exact" in printed


def test_evaluate_takes_an_agent_and_leaves_its_store_alone():
    store = WorkingMemory(MemoryState.empty(SCHEMA), EMBEDDER)
    report = evaluate(MemoryAgent(ScriptedPolicy("oracle"), store, CONFIG), tasks(WorldConfig(), 0, 0, 2))
    assert report.summary["valid_calls"] == 1.0 and store.list() == []


def test_load_reader():
    assert isinstance(load_reader("extractive"), ExtractiveReader)
    policy = ScriptedPolicy("fixed", text="Oslo")
    assert load_reader(ReaderConfig(kind="policy"), policy).name == "policy:scripted:fixed"
    policy.prompt = "compact"
    assert load_reader(ReaderConfig(kind="policy"), policy).config.prompt == "compact"
    assert load_reader(ReaderConfig(kind="policy", prompt="full"), policy).config.prompt == "full"
    with pytest.raises(ConfigError, match=r"reader\.policy"):
        load_reader(ReaderConfig(kind="policy"))


def test_nothing_to_evaluate_is_an_error(tmp_path):
    silent = TASK.model_copy(update={"questions": ()})
    for texts, message in (([], "empty"), ([silent], "no task has a question: .*memalpha data ask")):
        with pytest.raises(DataError, match=message):
            evaluate(ScriptedPolicy("add-all"), texts, "extractive", config=CONFIG)
    goldless = TASK.model_copy(update={"gold_operations": ()})
    with pytest.raises(PolicyError, match="gold operations: task 't'"):
        evaluate(ScriptedPolicy("oracle"), [goldless], "extractive", config=CONFIG)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        make_result_folder(tmp_path / "file")
