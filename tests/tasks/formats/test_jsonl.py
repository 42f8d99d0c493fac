import json
import math
from pathlib import Path

import datasets
import pytest
from hub_layouts import write
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.config import WorldConfig
from memalpha.errors import DataError
from memalpha.tasks.formats.jsonl import load_jsonl, save_jsonl, to_dataset
from memalpha.tasks.load import load_tasks
from memalpha.tasks.synthetic.worlds import generate
from memalpha.types import Chunk, GoldOperation, Question, SpeakerTurn, Task

GOOD = {"id": "a", "chunks": [{"text": "I live in Oslo."}], "questions": [{"id": "q", "question": "Where?"}]}

letters = st.characters(codec="utf-8", exclude_characters="\0")
texts = st.text(letters, max_size=20)
filled = st.text(letters, min_size=1, max_size=20).filter(str.strip)
dates = st.none() | st.dates().map(str)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


metas = st.dictionaries(texts, json_values, max_size=2)


@st.composite
def any_task(draw):
    turn_ids = iter(range(1000))
    ids = st.none() | st.builds(lambda: str(next(turn_ids)))
    turns = st.lists(st.builds(SpeakerTurn, speaker=texts, text=filled, id=ids), min_size=1, max_size=3).map(tuple)
    any_chunk = st.builds(Chunk, text=filled, timestamp=dates) | st.builds(Chunk, turns=turns, timestamp=dates)
    chunks = draw(st.lists(any_chunk, min_size=1, max_size=3))
    index, last, maybe = st.integers(0, len(chunks) - 1), len(chunks) - 1, st.none() | texts
    answers, at = st.lists(filled, max_size=2).map(tuple), st.none() | index
    asked = st.builds(
        Question, id=st.just(""), question=filled, answers=answers, category=maybe, asked_after_chunk=at, meta=metas
    )
    questions = [item.model_copy(update={"id": f"q{n}"}) for n, item in enumerate(draw(st.lists(asked, max_size=2)))]
    said = {"chunk": index, "category": texts, "content": filled, "replaces": maybe, "timestamp": dates}
    stated = st.builds(GoldOperation, kind=st.sampled_from(["insert", "core_update"]), **said)
    operations = draw(st.lists(stated, max_size=2))
    if operations and operations[0].kind == "insert":
        ended = {"category": operations[0].category, "replaces": operations[0].content, "content": draw(filled)}
        operations.append(GoldOperation(kind=draw(st.sampled_from(["update", "delete"])), chunk=last, **ended))
    fields = {"questions": tuple(questions), "gold_operations": tuple(operations), "meta": draw(metas)}
    return Task(id=draw(filled), chunks=tuple(chunks), **fields)


@given(st.lists(any_task(), min_size=1, max_size=3, unique_by=lambda task: task.id))
def test_round_trip(tmp_path_factory, tasks):
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    save_jsonl(tasks, path)
    assert load_jsonl(path) == tasks


@given(st.binary(max_size=80) | st.text(max_size=40).map(lambda text: json.dumps({"id": text}).encode()))
def test_garbage_is_a_data_error_that_names_the_file(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("tasks") / "bad.jsonl"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"bad\.jsonl"):
        load_jsonl(path)


ASKED = {"id": "q", "question": "?"}
INSERT = {"kind": "insert", "chunk": 0, "category": "semantic", "content": "city: Oslo"}
TURN = {"speaker": "a", "text": "b", "id": "t1"}
TURNS = {"chunks": [{"turns": [TURN]}]}
CITING = TURNS | {"questions": [ASKED | {"evidence": ["t1", "t2"]}]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"chunks": []}, "chunks: empty: a task has at least one chunk"),
        ({"id": ""}, "id: empty: every task needs an id"),
        ({"chunks": [{"text": "a"}, {"text": " "}]}, r"chunks\[1\]\.text: empty: there is nothing to read"),
        ({"chunks": [{"turns": [{"speaker": "a", "text": ""}]}]}, r"chunks\[0\]\.turns: empty"),
        ({"chunks": [{"text": "a\0"}]}, r"chunks\[0\]\.text: holds a NUL"),
        ({"questions": [{"id": " ", "question": "?"}]}, r"questions\[0\]\.id: empty"),
        ({"questions": [{"id": "q", "question": ""}]}, r"questions\[0\]\.question: empty"),
        ({"questions": [{"id": "q", "question": "?", "answers": ["x", ""]}]}, r"questions\[0\]\.answers\[1\]: .* \[\]"),
        ({"questions": [{"id": "q", "question": "?", "asked_after_chunk": "0"}]}, r"questions\[0\]\.asked_after_chunk"),
        ({"gold_operations": [{"kind": "insert", "chunk": "0", "category": "c"}]}, r"gold_operations\[0\]\.chunk"),
        (CITING, r"\[0\]\.evidence\[1\]: no turn .* has the id 't2'"),
        (TURNS | {"gold_operations": [INSERT | {"turn": "t2"}]}, r"operations\[0\]\.turn: no turn .* has the id 't2'"),
        ({"gold_operations": [INSERT | {"content": ""}]}, r"gold_operations\[0\]\.content: empty"),
        ({"questions": [{"id": "q", "question": "?", "meta": {"stale": "x"}}]}, r"questions\[0\]\.meta\.stale: a list"),
        ({"chunks": [{"text": "x", "turns": [{"speaker": "a", "text": "b"}]}]}, r"chunks\[0\]: a chunk has either"),
        ({"chunks": [{"txt": "x"}]}, r"chunks\[0\]\.txt: unknown key: known are text"),
        ({"chunks": [{"turns": [{"speaker": "a", "text": 3}]}]}, r"chunks\[0\]\.turns\[0\]\.text"),
        ({"chunks": [{"text": "x", "timestamp": "May 1st"}]}, r"chunks\[0\]\.timestamp: 'May 1st'"),
        ({"questions": [{"id": "q", "question": "?", "answer": "x"}]}, r"questions\[0\]\.answer: unknown key"),
        ({"questions": [{"id": "q", "question": "?", "choices": ["x"]}]}, r"\.choices: .* meta \(for all"),
        ({"questions": [ASKED | {"asked_after_chunk": 1}]}, r"questions\[0\]\.asked_after_chunk: 1 is o"),
        ({"questions": [{"id": "q", "question": "?"}] * 2}, r"questions\[1\]\.id: questions\[0\] has 'q' already"),
        ({"gold_operations": [{"kind": "insert", "chunk": 4, "category": "c"}]}, r"gold_operations\[0\]\.chunk"),
        ({"gold_operations": [{"kind": "add", "chunk": 0, "category": "c"}]}, r"gold_operations\[0\]\.kind"),
        ({"extra": 1}, "extra: unknown key: known are id, chunks"),
        ({"meta": {"x": math.nan}}, "NaN is not JSON"),
    ],
)
def test_bad_line_is_refused_with_file_line_and_field(tmp_path, change, says):
    lines = f"{json.dumps(GOOD)}\n\n{json.dumps({**GOOD, 'id': 'b', **change})}\n"
    with pytest.raises(DataError, match=r"tasks\.jsonl:3: .*" + says):
        load_jsonl(write(tmp_path / "tasks.jsonl", lines))


@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_of_tasks_is_read_as_well(tmp_path, indent):
    path = tmp_path / "tasks.json"
    for value in [[GOOD, {**GOOD, "id": "b"}], GOOD]:
        path.write_text(json.dumps(value, indent=indent) + "\n")
        assert [task.id for task in load_jsonl(path)] == ["a", "b"][: len(value) if isinstance(value, list) else 1]
    path.write_text(json.dumps([GOOD, {**GOOD, "id": "b", "questions": 3}], indent=indent))
    with pytest.raises(DataError, match=r"tasks\.json: row 1: questions"):
        load_jsonl(path)


def test_evidence_of_a_task_without_turn_ids_is_free(tmp_path):
    path = write(tmp_path / "tasks.jsonl", [{**GOOD, "questions": [ASKED | {"evidence": ["page 3"]}]}])
    assert load_jsonl(path)[0].questions[0].evidence == ("page 3",)


MOVE = {"kind": "update", "chunk": 1, "category": "semantic", "content": "city: Rome", "replaces": "city: Oslo"}
FORGET = {"kind": "delete", "chunk": 1, "category": "semantic", "replaces": "city: Rome"}
TWO_CHUNKS = {"id": "a", "chunks": [{"text": "one"}, {"text": "two"}]}


@pytest.mark.parametrize(
    ("operations", "says"),
    [
        ([INSERT, {**MOVE, "replaces": None}], r"gold_operations\[1\]\.replaces: needed.* update ends"),
        ([INSERT, MOVE, {**FORGET, "replaces": None}], r"gold_operations\[2\]\.replaces: needed.* delete ends"),
        ([INSERT, {**MOVE, "replaces": "city: Osl"}], r"gold_operations\[1\]\.replaces: no fact .*'city: Osl'"),
        ([INSERT, {**MOVE, "category": "episodic"}], r"gold_operations\[1\]\.replaces: no fact of 'episodic'"),
        ([INSERT, MOVE, {**FORGET, "replaces": "city: Oslo"}], r"gold_operations\[2\]\.replaces: no fact"),
        ([INSERT, MOVE, FORGET, FORGET], r"gold_operations\[3\]\.replaces: no fact"),
        ([{**INSERT, "chunk": 1}, {**FORGET, "chunk": 0, "replaces": "city: Oslo"}], r"gold_operations\[1\]\.replaces"),
    ],
)
def test_gold_operations_end_only_what_holds(tmp_path, operations, says):
    with pytest.raises(DataError, match=r"tasks\.jsonl:1: " + says):
        load_jsonl(write(tmp_path / "tasks.jsonl", [{**TWO_CHUNKS, "gold_operations": operations}]))


def test_gold_operations_are_read_chunk_by_chunk(tmp_path):
    core = {"kind": "core_update", "chunk": 0, "category": "core", "content": "Ana"}
    path = write(tmp_path / "tasks.jsonl", [{**TWO_CHUNKS, "gold_operations": [MOVE, FORGET, core, INSERT]}])
    assert [operation.kind for operation in load_jsonl(path)[0].gold_at(0)] == ["core_update", "insert"]


def test_a_chunk_may_be_in_two_tasks():
    first_task, two = Chunk(text="one"), Chunk(text="two")
    first, second = Task(id="a", chunks=(first_task, two)), Task(id="b", chunks=(two, first_task))
    for task in (first, second):
        assert [chunk.index for chunk in task.chunks] == [0, 1]
    assert first.chunks[0].text == second.chunks[1].text == "one"
    assert (first_task.index, two.index) == (0, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (json.dumps({"id": "a", "chunks": [{"turns": [TURN] * 2}]}), r"1: chunks\[0\]\.turns\[1\]\.id"),
        ('{"id": "a", "id": "b", "chunks": [{"text": "x"}]}', "1: id: the key occurs twice"),
        ('{"id": "a", "chunks": [{"text": "x"}], "meta": {"x": 1e400}}', "1: 1e400 is too large"),
        ((json.dumps(GOOD) + "\n") * 2, r"2: id: task 'a' is at .*tasks.jsonl:1 already"),
    ],
)
def test_repeated_turn_id_key_and_task_id_are_refused(tmp_path, text, says):
    with pytest.raises(DataError, match=r"tasks\.jsonl:" + says):
        load_jsonl(write(tmp_path / "tasks.jsonl", text))


def test_unreadable_tasks_are_not_written(tmp_path):
    tasks = [Task(id="a", chunks=(Chunk(text="x"),), meta={"x": value}) for value in (math.nan, object(), "\ud800")]
    for task in (*tasks, Task(id="a", chunks=(Chunk(text="x", timestamp="soon"),))):
        with pytest.raises(DataError, match="'a'"):
            save_jsonl([task], tmp_path / "tasks.jsonl")
    questions = (Question(id="q", question="Who?", meta={"asked": [1, math.inf]}),)
    with pytest.raises(DataError, match=r"task 'a'\.questions\[0\]\.meta\.asked\[1\] cannot be written as JSON"):
        save_jsonl([Task(id="a", chunks=(Chunk(text="x"),), questions=questions)], tmp_path / "tasks.jsonl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("save", [to_dataset, lambda tasks: save_jsonl(tasks, "tasks.jsonl")])
def test_dicts_are_refused_as_tasks(tmp_path, monkeypatch, save):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"^\{'id': 'a'\}: Task objects are needed"):
        save([{"id": "a"}])


def test_deep_nesting_and_empty_files_are_data_errors(tmp_path):
    path = tmp_path / "tasks.jsonl"
    for text in ("", "\n \n", "[" * 100_000, '{"id": "\ud83d"}'.encode("utf-8", "surrogatepass").decode("latin-1")):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(DataError, match=r"tasks\.jsonl"):
            load_jsonl(path)


def test_load_tasks_by_name_and_path(tmp_path):
    path = tmp_path / "mine.jsonl"
    save_jsonl([generate(WorldConfig(), 0, index) for index in range(3)], path)
    assert [task.id for task in load_tasks(path, limit=2)] == ["demo-train-0-0", "demo-train-0-1"]
    world = WorldConfig(split="test")
    assert load_tasks("synthetic", limit=2, world=world, seed=5) == [generate(world, 5, 0), generate(world, 5, 1)]
    assert len(load_tasks("synthetic")) == 200


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        (("synthetik",), {}, "no data set 'synthetik'"),
        (("nowhere.jsonl",), {}, "nowhere.jsonl: cannot be read"),
        (("locomo",), {}, "data=PATH"),
        (("locomo",), {"data": "nowhere.json"}, "nowhere.json"),
        (("synthetic", 0), {}, "at least one task"),
        (("mine.jsonl",), {"seed": 3}, "seed belongs to named data sets"),
        (("locomo",), {"seed": 3, "data": "x.json"}, "seed belongs to sets .*'synthetic', 'babi'"),
        (("babi",), {"variant": "small"}, "no variant 'small'; it has none"),
        (("babi",), {"colour": "red"}, "no option 'colour'; its options are: seed"),
        (("synthetic",), {"data": "x"}, "synthetic: made here: data does not belong"),
    ],
)
def test_load_tasks_names_the_fault(arguments, options, says):
    with pytest.raises(DataError, match=says):
        load_tasks(*arguments, **options)


def test_long_chunks_are_split_on_the_way(tmp_path):
    turns = [{"speaker": "Ana", "text": f"Word {n}."} for n in range(9)]
    path = write(tmp_path / "tasks.jsonl", [{**GOOD, "chunks": [{"turns": turns}]}])
    assert [len(chunk.turns) for chunk in load_tasks(path, chunk_tokens=10)[0].chunks] == [3, 3, 3]
    for size in (0, "10", True):
        with pytest.raises(DataError, match=r"chunk_tokens=.*: a whole number from 1 is needed"):
            load_tasks(path, chunk_tokens=size)


def test_questions_without_ids_are_numbered(tmp_path):
    path = write(tmp_path / "tasks.jsonl", [{**GOOD, "questions": [{"question": "Where?"}, {**ASKED, "id": "b"}]}])
    (task,) = load_jsonl(path)
    assert [question.id for question in task.questions] == ["q0", "b"]
    save_jsonl([task], path)
    assert load_jsonl(path) == [task]


def test_the_shipped_sample_and_the_example_in_its_readme_load(tmp_path):
    data = Path(__file__).parents[3] / "data"
    assert {"plain-text", "two-speakers"} < {task.id for task in load_tasks(data / "example.jsonl")}
    example = (data / "README.md").read_text(encoding="utf-8").split("```json\n")[1].split("```")[0]
    (tmp_path / "example.jsonl").write_text(json.dumps(json.loads(example)))
    assert len(load_tasks(tmp_path / "example.jsonl")[0].questions) == 2


@settings(max_examples=20)
@given(st.lists(any_task(), min_size=1, max_size=3, unique_by=lambda task: task.id))
def test_what_becomes_a_dataset_is_read_back_the_same(tasks):
    dataset = to_dataset(tasks)
    assert load_tasks(dataset) == tasks and load_tasks(dataset, limit=1) == tasks[:1]


def test_a_dataset_survives_the_files_that_the_hub_holds(tmp_path):
    tasks = load_tasks("synthetic", limit=3)
    to_dataset(tasks).to_parquet(tmp_path / "tasks.parquet")
    assert load_tasks(datasets.Dataset.from_parquet(str(tmp_path / "tasks.parquet"), cache_dir=tmp_path)) == tasks
    to_dataset(tasks).to_json(tmp_path / "tasks.jsonl")
    assert len((tmp_path / "tasks.jsonl").read_text().splitlines()) == 3


def test_datasets_of_others_are_read_or_refused_by_row():
    def rows(**changes):
        return datasets.Dataset.from_list([{**dict.fromkeys(changes), **GOOD}, {**GOOD, "id": "b", **changes}])

    assert load_tasks(rows(meta={"split": "train"}))[1].meta == {"split": "train"}
    refusals = {
        r"row 1: id: task 'a' is at row 0 already": rows(id="a"),
        r"row 1: meta: ": rows(meta="no JSON"),
        r"row 1: speaker: unknown key": rows(speaker="Ana"),
        r"holds no row": rows().select([]),
        r"has splits: give one of them \('train'\)": datasets.DatasetDict(train=rows()),
        r"a stream: load it with streaming=False": rows().to_iterable_dataset(),
        r"a Dataset: variant belongs to named data sets only": None,
    }
    for message, dataset in refusals.items():
        with pytest.raises(DataError, match=message):
            load_tasks(rows(), variant="x") if dataset is None else load_tasks(dataset)
    with pytest.raises(DataError, match="there is no task"):
        to_dataset([])
    with pytest.raises(DataError, match="task 'a' occurs twice"):
        to_dataset([Task.model_validate(GOOD)] * 2)
