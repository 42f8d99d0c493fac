"""Own tasks as CSV: one table, or a table of chunks and one of questions."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from hub_layouts import write
from hypothesis import given
from hypothesis import strategies as st

from memalpha.errors import DataError
from memalpha.tasks.formats import csv as table
from memalpha.tasks.formats.csv import load_csv
from memalpha.tasks.formats.jsonl import load_jsonl, save_jsonl
from memalpha.tasks.load import load_tasks

CHUNKS = """\
task,chunk,timestamp,speaker,turn,text
ana,morning,2024-05-01,Ana,t1,"I moved to Porto, at last."
ana,morning,2024-05-01,Tom,t2,Good for you!
ana,evening,2024-05-02,Ana,t3,It rains here.
tom,one,,Tom,t1,I like rye.
"""
QUESTIONS = """\
task,id,question,answers,category,evidence,asked_after_chunk,source
ana,where,Where does Ana live?,Porto|in Porto,extraction,t1,morning,chat
ana,,How is the weather?,rain,,t3|t1,,
tom,pet,What pet does Tom have?,,abstention,,,
"""


def test_two_tables(tmp_path):
    write(tmp_path / "chunks.csv", CHUNKS)
    questions = write(tmp_path / "questions.csv", QUESTIONS)
    ana, tom = load_tasks(tmp_path)
    assert [chunk.timestamp for chunk in ana.chunks] == ["2024-05-01", "2024-05-02"]
    assert ana.chunks[0].render() == "Ana: I moved to Porto, at last.\nTom: Good for you!"
    where, weather = ana.questions
    assert (where.id, where.answers, where.category) == ("where", ("Porto", "in Porto"), "extraction")
    assert (where.evidence, where.asked_after_chunk, where.meta) == (("t1",), 0, {"source": "chat"})
    assert (weather.id, weather.evidence, weather.asked_after_chunk) == ("q1", ("t3", "t1"), None)
    assert weather.category is None
    assert (tom.id, tom.questions[0].answers, tom.chunks[0].timestamp) == ("tom", (), None)
    assert load_tasks(questions) == [ana, tom]
    assert load_tasks(questions, 1) == [ana]
    semicolons = tmp_path / "other"
    semicolons.mkdir()
    write(semicolons / "chunks.csv", "\ufefftext;turn\nAna, of Porto;t1\nTom;\n")
    write(semicolons / "questions.csv", "question\tanswer\tasked_after_chunk\nWho is of Porto?\tAna | the one\t0\n")
    (task,) = load_tasks(semicolons)
    assert (task.id, [chunk.render() for chunk in task.chunks]) == ("other", ["text: Ana, of Porto", "text: Tom"])
    assert (task.questions[0].answers, task.questions[0].asked_after_chunk) == (("Ana | the one",), 0)


def test_one_table_groups_by_task_or_by_context(tmp_path):
    table = "context, question, answer\nAna lives in Porto.,Where?,Porto\nTom.,Who?,Tom\nAna lives in Porto.,Who?,Ana\n"
    first, second = load_tasks(write(tmp_path / "mine.csv", table))
    assert (first.id, [question.answers for question in first.questions]) == ("mine-0", [("Porto",), ("Ana",)])
    assert (second.id, second.chunks[0].text, second.questions[0].id) == ("mine-1", "Tom.", "q0")
    table = "task,timestamp,context,question,answer\nt,2024-05-01,A.,Q?,a\nt,2024-05-02,B.,R?,b\nt,2024-05-01,A.,S?,c\n"
    (task,) = load_tasks(write(tmp_path / "tasks.csv", table))
    assert [(chunk.text, chunk.timestamp) for chunk in task.chunks] == [("A.", "2024-05-01"), ("B.", "2024-05-02")]
    assert [question.question for question in task.questions] == ["Q?", "R?", "S?"]


def test_long_texts_are_split_before_their_questions(tmp_path):
    long = " ".join(f"Sentence {number}." for number in range(3000))
    write(tmp_path / "chunks.csv", f"chunk,text,turn\na,{long},t1\nb,short,t2\n")
    write(tmp_path / "questions.csv", "question,answer,evidence,asked_after_chunk\nWhat?,x,t1,a\n")
    (task,) = load_tasks(tmp_path)
    (question,) = task.questions
    assert question.asked_after_chunk == len(task.chunks) - 2 > 1
    assert question.evidence[:2] == ("t1", "t1~2") and len(question.evidence) == len(task.chunks) - 1


@pytest.mark.parametrize("name", ["", "chunks.csv"])
def test_messages_need_no_questions(tmp_path, name):
    write(tmp_path / "chunks.csv", "task;timestamp;speaker;text\n1;2024-05-01;Ana;Broken.\n;;;\n2;2024-05-02;Bo;Late\n")
    tasks = load_tasks(tmp_path / name)
    assert [(task.id, task.chunks[0].turns[0].text) for task in tasks] == [("1", "Broken."), ("2", "Late")]
    assert not any(task.questions for task in tasks)


@pytest.mark.parametrize(("cell", "answers"), [("[a]|[b]", ("[a]", "[b]")), ("[REDACTED]", ("[REDACTED]",))])
def test_answers_in_brackets_are_no_printed_list(tmp_path, cell, answers):
    write(tmp_path / "a.csv", f"context,question,answers\nx,Who?,{cell}\n")
    assert load_tasks(tmp_path / "a.csv")[0].questions[0].answers == answers


X, ASK = "text\nx\n", "question,answer\nWho?,a\n"


@pytest.mark.parametrize(
    ("chunks", "questions", "says"),
    [
        (None, "question,answer\nWho?,Tom\n", r"questions\.csv: no column 'context', and no chunks\.csv beside it"),
        (X, "ask,answer\nWho?,Tom\n", r"no column 'question' in its first line: ask, .* chunks\.csv"),
        (X, "question\nWho?\n", r"questions\.csv:2: a column 'answer', or one 'answers'"),
        ("text\nx\0y\n", ASK, r"chunks\.csv:2: holds a NUL character"),
        (X, "question,answer,answers\nWho?,a,b\n", "not both"),
        (X, "question,answers\nWho?,\"['a', 'b']\"\n", r"csv:2: answers: \['a', 'b'\] is a printed list: .* \|"),
        (X, "question,answers\nWho?,[true]\n", r"csv:2: answers: \[true\] is a printed list"),
        (X, "question,answer\n", r"questions\.csv: no row below its header"),
        (X, "question,answer\nWho?,a,b\n", r"questions\.csv:2: 3 fields, where the header has 2"),
        (X, 'question,answer\nWho?,"a\n', r"questions\.csv:2: not CSV"),
        (X, "question,answer,answer\nWho?,a,b\n", "two columns have the name 'answer'"),
        (X, "question,answer\n ,a\n", r"questions\.csv:2: question: empty"),
        (X, "context,question,answer\nx,Who?,a\n", r"column 'context' belongs into chunks\.csv"),
        (X, "task,question,answer\nt,Who?,a\n", "'task' is a column of both tables, or of none"),
        ("task,text\nt,x\n", "task,question,answer\nu,Who?,a\n", r"questions\.csv:2: task: 'u' has no chunk in"),
        ("task,text\n ,x\n", "task,question,answer\nu,Who?,a\n", r"chunks\.csv:2: task: empty"),
        ("text,who\nx,Tom\n", ASK, r"chunks\.csv: unknown column 'who'; known are task, chunk"),
        ("text\n  \n", ASK, r"chunks\.csv:2: text: empty"),
        ("text,timestamp\nx,May\n", ASK, r"chunks\.csv:2: timestamp: 'May' is no ISO 8601"),
        (
            "chunk,text,timestamp\na,x,20240501\na,y,20240502\n",
            ASK,
            r"csv:3: timestamp: differs .* chunk 'a': write the same",
        ),
        ("chunk,text\na,x\nb,y\na,z\n", ASK, r"chunks\.csv:4: chunk: 'a' has come before"),
        ("text,turn\nx,t\ny,t\n", ASK, r"chunks\.csv:3: turn: turn id 't' occurs twice"),
        ("text,turn\nx,t\n", "question,answer,evidence\nWho?,a,t9\n", r"questions\.csv:2: evidence: no turn .* 't9'"),
        (X, "question,answer,asked_after_chunk\nWho?,a,7\n", "asked_after_chunk: '7' is no chunk of the task"),
        (X, "id,question,answer\nq,Who?,a\nq,What?,b\n", r"csv: task '.*': questions\[1\]\.id: .* has 'q' al"),
    ],
)
def test_bad_tables_are_refused_with_file_line_and_column(tmp_path, chunks, questions, says):
    if chunks is not None:
        write(tmp_path / "chunks.csv", chunks)
    write(tmp_path / "questions.csv", questions)
    with pytest.raises(DataError, match=says):
        load_tasks(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_marks(tmp_path, encoding):
    text = "task\tcontext\tquestion\tanswer\nana\tAna wohnt in Köln.\tWo wohnt Ana?\tKöln\n"
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    assert load_tasks(tmp_path / "t.csv")[0].questions[0].answers == ("Köln",)


def test_bad_single_tables_are_refused(tmp_path):
    for text, says in (
        ("context,question,answer\n,Who?,a\n", r"t\.csv:2: context: empty"),
        ("context,timestamp,question,answer\nx,20240501,Who?,a\nx,20240601,Who?,b\n", r"t\.csv:3: timestamp: differs"),
        ("context,question,answer,evidence\nx,Who?,a,t1\n", r"t\.csv: column 'evidence' needs the turns of a chunks"),
    ):
        with pytest.raises(DataError, match=says):
            load_tasks(write(tmp_path / "t.csv", text))
    for damaged in (b"\xff\xfe\x00", "context,question,answer\nCafé,Who?,a\n".encode("latin-1")):
        (tmp_path / "t.csv").write_bytes(damaged)
        with pytest.raises(DataError, match=r"CSV (file )?in UTF-8.*: save it as UTF-8"):
            load_tasks(tmp_path / "t.csv")
    with pytest.raises(DataError, match=r"nowhere\.csv: cannot be read"):
        load_tasks(tmp_path / "nowhere.csv")
    with pytest.raises(DataError, match=r"is a folder without a chunks\.csv"):
        load_tasks(tmp_path)


TEXT = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Z"), include_characters=" \n\"',;|"), min_size=1, max_size=30
)
FILLED = TEXT.filter(lambda text: bool(text.strip()))


@given(st.lists(st.tuples(FILLED, FILLED, TEXT), min_size=1, max_size=8), st.sampled_from(",;\t"))
def test_csv_round_trip(tmp_path_factory, rows, separator):
    folder = tmp_path_factory.mktemp("csv")
    with (folder / "mine.csv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, delimiter=separator).writerows([("context", "question", "answer"), *rows])
    tasks = load_csv(folder / "mine.csv")
    assert [task.chunks[0].text for task in tasks] == list(dict.fromkeys(context.strip() for context, _, _ in rows))
    for task in tasks:
        expected = [(q.strip(), a.strip()) for context, q, a in rows if context.strip() == task.chunks[0].text]
        assert [(question.question, "".join(question.answers)) for question in task.questions] == expected
    save_jsonl(tasks, folder / "mine.jsonl")
    assert load_jsonl(folder / "mine.jsonl") == tasks


@given(st.text(alphabet=',;\t\n"|ab\r', max_size=60), st.text(alphabet=',;\t\n"|ab\r', max_size=60))
def test_any_table_is_read_or_refused_by_name(tmp_path_factory, chunks, questions):
    folder = tmp_path_factory.mktemp("csv")
    (folder / "chunks.csv").write_text(f"chunk,text,turn\n{chunks}", newline="")
    (folder / "questions.csv").write_text(f"question,answers,evidence\n{questions}", newline="")
    try:
        tasks = load_csv(folder)
    except DataError as error:
        assert str(folder) in str(error)
    else:
        assert tasks and all(task.chunks for task in tasks)


def test_the_examples_of_the_readme_are_read(tmp_path):
    readme = (Path(__file__).parents[3] / "data" / "README.md").read_text(encoding="utf-8")
    first, chunks, questions = re.findall(r"```\n(task,.*?)```", readme, re.DOTALL)
    (task,) = load_tasks(write(tmp_path / "one.csv", first))
    assert [question.answers for question in task.questions] == [("Porto",), ("a flat",)]
    write(tmp_path / "chunks.csv", chunks)
    write(tmp_path / "questions.csv", questions)
    (task,) = load_tasks(tmp_path)
    assert (task.questions[0].evidence, task.questions[0].asked_after_chunk) == (("t1",), 0)
    columns = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (?:chunks|questions) \|.*$", readme, re.MULTILINE))))
    assert columns == {*table._CHUNK_COLUMNS, *table._QUESTION_COLUMNS, *table._ONE_TABLE}


def test_messages_and_questions_in_one_table_are_told_where_they_go(tmp_path: Path):
    (tmp_path / "both.csv").write_text("sender,text,question,answer\nAna,Hi,Who?,Ana\n")
    with pytest.raises(DataError, match=r"messages go into the chunks\.csv of a folder \(task, .*questions\.csv"):
        load_tasks(tmp_path / "both.csv")
