"""Text tasks: generated sets by number, known sets in their own format, own files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import datasets
import pytest
from hub_layouts import write
from hypothesis import given
from hypothesis import strategies as st

from memalpha.config import TextConfig
from memalpha.errors import ConfigError, DataError
from memalpha.tasks import text_tasks as text
from memalpha.tasks.synthetic import arithmetic, programs
from memalpha.tasks.synthetic.phrases import is_held_out
from memalpha.tasks.text_tasks import last_boxed, load_text_tasks
from memalpha.train.rollouts.text_tasks import TextTaskSource

GSM8K = [
    {"question": "Tom has 2 pens and buys 3. How many?", "answer": "He has 2+3=<<2+3=5>>5 pens.\n#### 5"},
    {"question": "A farm makes 600 eggs a day. In two?", "answer": "600*2=<<600*2=1200>>1200\n#### 1,200"},
]
MATH = [{"problem": "Find $x$.", "level": "Level 2", "type": "Algebra", "solution": "So $x=\\boxed{\\frac{1}{2}}$."}]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(text, "hub_reachable", lambda: False)


@given(st.sampled_from(["train", "test"]), st.integers(0, 9), st.integers(0, 400))
def test_a_word_problem_is_what_its_solution_says(split, seed, number) -> None:
    (task,) = arithmetic.tasks(split, seed, number, 1)
    *steps, last = task.columns["solution"].splitlines()
    numbers = [int(digits) for digits in re.findall(r"\d+", task.prompt)]
    reached, held_out = [], False
    for step in steps:
        left, sign, right, result = re.fullmatch(r"(\d+)([-+*])(\d+)=(\d+)", step).groups()  # type: ignore[union-attr]
        assert {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[sign](int(left), int(right)) == int(result)
        assert int(right) in numbers and (int(left) in numbers or int(left) == reached[-1])
        assert 1 <= int(result) <= arithmetic.LARGEST
        reached.append(int(result))
        held_out = held_out or is_held_out(f"{left}{sign}{right}", arithmetic.HELD_OUT)
    assert last == f"#### {reached[-1]}" and task.columns["answer"] == str(reached[-1])
    assert held_out == (split == "test"), "a pair of numbers that a test has is in no training problem"
    assert task == arithmetic.tasks(split, seed, max(0, number - 2), 3)[min(number, 2)], "whatever was made before"
    assert task.category == arithmetic.LEVELS[number % 3]
    assert {task.columns["level"] for task in arithmetic.tasks(split, seed, number, 2, "hard")} == {"hard"}


@given(st.sampled_from(["train", "test"]), st.integers(0, 9), st.integers(0, 400))
def test_a_programming_problem_is_solved_by_its_solution_alone(split, seed, number) -> None:
    (task,) = programs.tasks(split, seed, number, 1)
    code = re.fullmatch(r"```python\n(.*)\n```", task.columns["solution"], re.S)[1]  # type: ignore[index]
    names: dict = {}
    exec(code, names)
    for test in task.columns["tests"]:
        exec(test, names)
    names["f"] = lambda argument: None
    with pytest.raises(AssertionError):
        for test in task.columns["tests"]:
            exec(test, names)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("19+17=36\n#### 36", ""),
        ("19-17=2\n#### 2", "19-17=2 is wrong."),
        ("19+17=36\n#### 35", "#### 35 is wrong."),
        ("19+17=36", "Something is missing at the end."),
        ("19+17=36\n#### 36\nand 1", "and 1 is too much."),
    ],
)
def test_feedback_names_the_first_wrong_line_and_not_the_right_one(reply: str, expected: str) -> None:
    for form in (reply, [{"role": "assistant", "content": reply}]):
        assert arithmetic.feedback(["?"], [form], solution=["19+17=36\n#### 36"], level=["easy"]) == [expected]


def _folder(tmp_path: Path, rows: list[dict], *configs: str) -> Path:
    """Write a data set as the hub has it: a card, and Parquet files of the splits of each configuration."""
    folder = tmp_path / "set"
    card = "---\nconfigs:\n"
    for config in configs:
        card += f"- config_name: {config}\n  data_files:\n"
        for split in ("train", "test"):
            file = folder / config / f"{split}-00000-of-00001.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            datasets.Dataset.from_list(rows if split == "train" else rows[:1]).to_parquet(str(file))
            card += f"  - split: {split}\n    path: {config}/{split}-*\n"
    (folder / "README.md").write_text(card + "---\n", encoding="utf-8")
    return folder


def test_gsm8k_in_its_own_format(tmp_path: Path) -> None:
    folder = _folder(tmp_path, GSM8K, "main")
    tasks = load_text_tasks("gsm8k", data=folder)
    assert [task.columns["answer"] for task in tasks] == ["5", "1200"]
    assert tasks[0].prompt == GSM8K[0]["question"] and tasks[0].columns["solution"] == GSM8K[0]["answer"]
    assert len(load_text_tasks("gsm8k", data=folder, split="test")) == 1
    assert load_text_tasks("gsm8k", data=folder, limit=1) == tasks[:1]


def test_math_in_its_own_format(tmp_path: Path) -> None:
    configs = ("algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory")
    folder = _folder(tmp_path, MATH * 2, *configs, "prealgebra", "precalculus")
    tasks = load_text_tasks("math", data=folder)
    assert len(tasks) == len({task.id for task in tasks}) == 14
    assert (tasks[0].columns["answer"], tasks[0].category) == ("\\frac{1}{2}", "Level 2")
    assert load_text_tasks("math", data=folder, limit=9) == tasks[:9]
    subjects = [task.id.split("-")[1] for task in tasks]
    assert subjects[:7] == subjects[7:] and len(set(subjects)) == 7, "subjects take turns: none is all that is held out"


def test_own_files_are_read(tmp_path: Path) -> None:
    rows = [{"q": "1+1?", "target": "2", "n": 1}, {"q": "2+2?", "target": "4", "n": 2}]
    columns = {"prompt": "q", "answer": "target"}
    dataset = datasets.Dataset.from_list(rows)
    dataset.to_parquet(tmp_path / "a.parquet")
    write(tmp_path / "a.jsonl", rows)
    dataset.save_to_disk(str(tmp_path / "kept"))
    datasets.DatasetDict({"test": dataset}).save_to_disk(str(tmp_path / "splits"))
    for name in ("a.parquet", "a.jsonl", "kept"):
        tasks = load_text_tasks(tmp_path / name, columns=columns)
        assert [(task.prompt, str(task.columns["answer"])) for task in tasks] == [("1+1?", "2"), ("2+2?", "4")], name
        assert set(tasks[0].columns) == {"answer", "n"}
    assert len(load_text_tasks(tmp_path / "splits", columns=columns, split="test")) == 2
    with pytest.raises(DataError, match="no split 'train': test"):
        load_text_tasks(tmp_path / "splits", columns=columns)


LINES = """
{"prompt":"a","answer":"2024-05-01","number":123456789012345678901234567890}
{"prompt":"b","answer":"007","tags":["x"],"extra":{"m":null}}
"""
TABLE = "prompt,answer,id\na,007,1\nb,NA,\nc,,3\nd,1.50,4\ne,null,5\nf,2024-05-01,6\ng,True,7\nh,1e5,8\n"


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_own_files_arrive_as_they_are_written(tmp_path: Path, mark: str) -> None:
    (tmp_path / "a.jsonl").write_text(mark + LINES.strip(), encoding="utf-8")
    (tmp_path / "a.json").write_text(f"{mark} [{LINES.strip().replace(chr(10), ',')}]", encoding="utf-8")
    (tmp_path / "a.csv").write_text(mark + TABLE, encoding="utf-8")
    (tmp_path / "a.tsv").write_text(mark + TABLE.replace(",", "\t"), encoding="utf-8")
    rows = [json.loads(line) for line in LINES.split("\n") if line]
    for name in ("a.jsonl", "a.json"):
        tasks = load_text_tasks(tmp_path / name)
        assert [task.columns["answer"] for task in tasks] == ["2024-05-01", "007"]
        assert [task.columns["number"] for task in tasks] == [rows[0]["number"], None], "a gap is none"
        assert tasks[1].columns["extra"] == {"m": None} and tasks[1].columns["tags"] == ["x"]
    for name in ("a.csv", "a.tsv"):
        tasks = load_text_tasks(tmp_path / name)
        answers = [task.columns["answer"] for task in tasks]
        assert answers == ["007", "NA", "", "1.50", "null", "2024-05-01", "True", "1e5"]
        assert [task.id for task in tasks[:3]] == ["1", "a-1", "3"]
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.csv").rename(tmp_path / "folder" / "train.csv")
    (tmp_path / "a.jsonl").rename(tmp_path / "folder" / "test-00000.jsonl")
    assert [task.columns["answer"] for task in load_text_tasks(tmp_path / "folder")] == answers
    held_out = load_text_tasks(tmp_path / "folder", split="test")
    assert [task.columns["answer"] for task in held_out] == ["2024-05-01", "007"]
    (tmp_path / "a.csv").write_bytes("prompt,answer\na,é\n".encode("latin-1"))
    (tmp_path / "a.jsonl").write_text("[1]\n")
    for name in ("a.csv", "a.jsonl"):
        with pytest.raises(DataError, match=r"not CSV in UTF-8|a JSON object is needed"):
            load_text_tasks(tmp_path / name)


@pytest.mark.parametrize("field", ["tool_calls", "reasoning_content", "name", "tool_call_id", "weight"])
def test_a_field_of_a_message_is_refused_by_name_unless_it_is_empty(tmp_path: Path, field: str) -> None:
    path = tmp_path / "a.jsonl"
    message = {"role": "user", "content": "Hi"}
    for value in (["call"], "x", 0):
        with pytest.raises(DataError, match=rf"row 0: prompt\[0\]\.{field}: .* has role and content"):
            load_text_tasks(write(path, [{"prompt": [{**message, field: value}]}]))
    for value in (None, [], ""):
        assert load_text_tasks(write(path, [{"prompt": [{**message, field: value}]}]))[0].messages == (message,)


def test_test_and_validation_splits_are_refused_for_training(tmp_path: Path) -> None:
    rows = [{"prompt": "1+1?", "answer": "2"}]
    for split in ("test", "validation"):
        datasets.Dataset.from_list(rows, split=split).save_to_disk(str(tmp_path / split))
        with pytest.raises(DataError, match=f"holds the split '{split}', which is not for training"):
            load_text_tasks(tmp_path / split)
        assert len(load_text_tasks(tmp_path / split, split="test")) == 1
    datasets.Dataset.from_list(rows, split="train").save_to_disk(str(tmp_path / "train"))
    assert len(load_text_tasks(tmp_path / "train")) == 1
    (tmp_path / "files").mkdir()
    datasets.Dataset.from_list(rows).to_json(tmp_path / "files" / "test.jsonl")
    with pytest.raises(DataError, match="cannot be read"):
        load_text_tasks(tmp_path / "files")
    single = _folder(tmp_path, GSM8K, "main") / "main" / "test-00000-of-00001.parquet"
    with pytest.raises(DataError, match=r"gsm8k: .* is a file, which does not say which split it holds"):
        load_text_tasks("gsm8k", data=single)
    with pytest.raises(ConfigError, match=r"dataset\.folder: .* is a file"):
        TextTaskSource(TextConfig(policy="tiny", out=tmp_path / "run", data="gsm8k", data_folder=str(single)))


def test_chat_prompts(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    (task,) = load_text_tasks(write(tmp_path / "a.jsonl", [{"id": "x", "prompt": messages, "category": "talk"}]))
    assert (task.id, task.category, task.messages) == ("x", "talk", tuple(messages))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"question": "?"}, "no column 'prompt', but question: say which it is"),
        ({"prompt": ""}, "row 0: prompt: a text or chat messages"),
        ({"prompt": 3}, "row 0: prompt: a text or chat messages"),
        ({"prompt": "\ud83d"}, "row 0: prompt: holds half of a surrogate pair"),
        ({"prompt": [{"role": "user"}]}, "row 0: prompt: a text or chat messages"),
    ],
)
def test_invalid_prompts_are_refused(tmp_path: Path, line: dict, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        load_text_tasks(write(tmp_path / "a.jsonl", [line]))


def test_a_table_with_semicolons_is_read_and_an_id_names_one_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt;id\nx, y;1\nz;1\n")
    assert load_text_tasks(tmp_path / "a.csv", limit=1)[0].prompt == "x, y"
    with pytest.raises(DataError, match="row 1: id '1' is that of row 0 too"):
        load_text_tasks(tmp_path / "a.csv")


def test_a_category_of_0_is_one(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [{"prompt": "x", "category": 0}, {"prompt": "y", "category": None}])
    assert [task.category for task in load_text_tasks(file)] == ["0", None]


def test_missing_files_columns_and_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "x"}\n')
    (tmp_path / "b.jsonl").write_text('{"prompt": \n')
    (tmp_path / "c.txt").write_text("x")
    for name, message, more in (
        (tmp_path / "none.jsonl", "no such file", {}),
        (tmp_path / "b.jsonl", "b.jsonl:1: not JSON", {}),
        (tmp_path / "c.txt", "files are .json", {}),
        (tmp_path / "a.jsonl", "columns.answer: there is no column 'gold', but", {"columns": {"answer": "gold"}}),
        ("gsm8k", "name its folder: data=PATH", {}),
        ("gsm8k", "cannot be read", {"data": tmp_path / "nowhere"}),
        ("no-such-set", "names are arithmetic, programs, gsm8k, math", {}),
        ("arithmetic", "is made here: leave out columns", {"columns": {"prompt": "x"}}),
        (tmp_path / "a.jsonl", "data belongs to named data sets only", {"data": tmp_path}),
        ("arithmetic", "at least one task", {"limit": 0}),
    ):
        with pytest.raises(DataError, match=re.escape(message)):
            load_text_tasks(name, **more)


@given(st.text(alphabet="{}ab ", max_size=20).map(str.strip))
def test_the_last_box_is_extracted(inside: str) -> None:
    depth = 0
    for letter in inside:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth < 0:
            return
    if depth == 0:
        assert last_boxed(f"first \\boxed{{1}} then \\boxed{{{inside}}} end") == inside
    assert last_boxed(inside) is None
    assert last_boxed("\\boxed{1") is None
