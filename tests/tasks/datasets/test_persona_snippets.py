"""PersonaMem's snippets mixed with others, from rows in the official layout."""

import hub_layouts
import pytest

from memalpha.errors import DataError
from memalpha.tasks.datasets.personamem import load_personamem_snippets as load
from memalpha.tasks.formats.jsonl import load_jsonl, save_jsonl
from memalpha.tasks.load import load_tasks


def snippet(number):
    return [{"role": "user", "content": f"I like tea number {number}."}, {"role": "assistant", "content": "Noted."}]


def row(number, persona=None, **changes):
    return {
        "persona_id": str(number // 2 if persona is None else persona),
        "user_query": repr({"role": "user", "content": f"Which tea, {number}?"}),
        "correct_answer": f"Tea {number}",
        "incorrect_answers": '["Coffee", "Milk", "Water"]',
        "related_conversation_snippet": repr(snippet(number)),
        "pref_type": "hidden",
    } | changes


def write(folder, rows, name="train.csv"):
    return hub_layouts.write(folder / "benchmark" / "text" / name, rows)


def chunk_texts(task):
    return [tuple(turn.text for turn in chunk.turns) for chunk in task.chunks]


def test_a_question_has_its_snippet_among_one_to_five_of_other_personas(tmp_path):
    write(tmp_path, [row(number) for number in range(40)])
    tasks = load(tmp_path)
    save_jsonl(tasks, tmp_path / "tasks.jsonl")
    assert load_jsonl(tmp_path / "tasks.jsonl") == tasks
    sizes, places = set(), set()
    for number, task in enumerate(tasks):
        (question,) = task.questions
        sizes.add(len(task.chunks) - 1)
        places.add(index := question.meta["snippet"])
        assert chunk_texts(task)[index] == (f"I like tea number {number}.", "Noted.")
        assert question.evidence == tuple(turn.id for turn in task.chunks[index].turns)
        assert question.answers == (f"({question.meta['choice']}) Tea {number}",)
        assert len(set(chunk_texts(task))) == len(task.chunks)
        other = number + 1 if number % 2 == 0 else number - 1  # the same persona's other row
        assert (f"I like tea number {other}.", "Noted.") not in chunk_texts(task)
    assert sizes == {1, 2, 3, 4, 5}
    assert len(places) > 3
    assert len({task.questions[0].meta["choice"] for task in tasks}) == 4


def test_a_seed_mixes_and_a_limit_does_not(tmp_path):
    file = write(tmp_path, [row(number) for number in range(12)])
    tasks = load(file, irrelevant=3)
    assert load(tmp_path, irrelevant=3) == tasks
    assert load(tmp_path, limit=5, irrelevant=3) == tasks[:5]
    assert max(len(task.chunks) for task in tasks) == 4
    assert [chunk_texts(task) for task in load(file, irrelevant=3, seed=1)] != [chunk_texts(task) for task in tasks]
    assert load_tasks("personamem_snippets", 2, data=file) == load(file, limit=2)


def test_splits_are_files(tmp_path):
    write(tmp_path, [row(0), row(2)], "val.csv")
    assert len(load(tmp_path, "val")) == 2
    with pytest.raises(DataError, match=r"train\.csv"):
        load(tmp_path, "train")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(0), row(1, persona=0)], "one persona only"),
        ([row(0), row(2, related_conversation_snippet="hello")], r"train\.csv:3: related_conversation_snippet"),
        ([row(0, related_conversation_snippet="")], "no row has a related_conversation_snippet"),
        ([row(0), row(2, incorrect_answers="[]")], r"train\.csv:3: incorrect_answers"),
    ],
)
def test_a_bad_row_is_named(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        load(write(tmp_path, rows))


def test_at_least_one_snippet_is_mixed_in(tmp_path):
    with pytest.raises(DataError, match="irrelevant=0: Input should be greater than or equal to 1"):
        load_tasks("personamem_snippets", data=write(tmp_path, [row(0), row(2)]), irrelevant=0)
