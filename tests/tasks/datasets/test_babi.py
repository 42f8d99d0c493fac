"""bAbI: official answers follow from official statements, and stay true in renamed, joined streams."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from memalpha.config import BabiConfig, build_config
from memalpha.errors import ConfigError, DataError
from memalpha.tasks.datasets import babi
from memalpha.tasks.datasets.babi import BabiStory, UnreadableStatement
from memalpha.tasks.formats.jsonl import load_jsonl, save_jsonl
from memalpha.tasks.load import load_tasks
from memalpha.types import Task

TASKS = (1, 2, 6, 8, 9, 11, 12, 13)


def build_world(*lines: str) -> BabiStory:
    world = BabiStory()
    for number, line in enumerate(lines, 1):
        world.tell(line, number)
    return world


def _answer(world: BabiStory, question: str) -> str | None:
    reply = world.ask(question)
    return reply.answers[0] if reply else None


# --------------------------------------------------------------------------------------------------- the official files


@pytest.mark.parametrize("task", TASKS)
def test_every_official_answer_follows_from_its_statements(task: int) -> None:
    """Count the stories: reading checks the answers (1,000 questions a file, as published)."""
    config = BabiConfig(tasks=(task,))
    train = [*babi.stories(config, "train"), *babi.stories(config, "validation")]
    for stories in (train, babi.stories(config, "test")):
        assert sum(len(story.questions) for story in stories) == 1000
        assert {story.task for story in stories} == {task}


def test_splits_share_no_story() -> None:
    names = [{story.name for story in babi.stories(BabiConfig(), split)} for split in ("train", "validation", "test")]
    assert [len(stories_by_split) for stories_by_split in names] == [1280, 320, 1600]
    assert not names[0] & names[1]
    assert all("_test" in name for name in names[2])


GOOD = "1 Mary moved to the bathroom.\n2 John went to the hallway.\n3 Where is Mary? \tbathroom\t1\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (GOOD.replace("bathroom\t1", "hallway\t1"), 3, "'bathroom' follows"),
        (GOOD.replace("bathroom\t1", "bathroom\t3"), 3, "supporting lines"),
        (GOOD.replace("\t1", ""), 3, "parted by tabs"),
        (GOOD.replace("3 Where", "4 Where"), 3, "line 4 of a story follows its line 2"),
        (GOOD.replace("2 John", "John"), 2, "<number> <text>"),
        (GOOD.replace("went to", "danced in"), 2, "no statement"),
        (GOOD.replace("Where is Mary", "Who is Mary"), 3, "no question"),
        (GOOD.replace("Where is Mary", "Where is Fred"), 3, "nothing follows"),
        (GOOD.replace("2 John went", "2 Then they went"), 2, "refers to nobody"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    path = tmp_path / "qa1_x_test.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=rf"qa1_x_test\.txt:{line}: .*{re.escape(message)}"):
        babi.read_file(path, 1)


def test_both_official_separators_and_gzip_are_read(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("qa1_a.txt", "qa1_b.txt", "qa1_c.txt.gz")]
    paths[0].write_text(GOOD, encoding="utf-8")
    paths[1].write_text(GOOD.replace("\t", "|"), encoding="utf-8")  # so in the two files of task 1
    paths[2].write_bytes(gzip.compress(GOOD.encode()))
    first, *other_stories = ([(s.statements, s.questions) for s in babi.read_file(path, 1)] for path in paths)
    assert other_stories == [first, first]


def test_a_folder_without_the_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"0 files qa1_\*_test"):
        load_tasks("babi", 1, data=tmp_path)


def test_an_own_folder_is_read(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / f"qa1_x_{part}.txt").write_text(GOOD * 5, encoding="utf-8")
    config = BabiConfig(tasks=(1,), stories=5, folder=str(tmp_path))
    [question, *_] = babi.stream(config, "test", 0, 0).questions
    assert question.answers == ("bathroom",)


# ------------------------------------------------------------------------------------------------------------ the world


def test_the_world_follows_people_and_things() -> None:
    world = build_world("Mary got the milk there.", "Mary went to the office.", "Then she went back to the garden.")
    assert world.entries() == {"mary": "mary: garden; has milk"}
    assert _answer(world, "Where is the milk?") == "garden"
    world.tell("Mary put down the milk there.", 4)
    world.tell("Mary and John journeyed to the kitchen.", 5)
    world.tell("Afterwards they moved to the hallway.", 6)
    assert world.entries() == {"mary": "mary: hallway", "milk": "milk: garden", "john": "john: hallway"}
    assert _answer(world, "What is Mary carrying?") == "nothing"
    assert _answer(world, "Where is the milk?") == "garden"
    assert _answer(world, "What is John carrying?") is None


def test_the_world_knows_negation() -> None:
    world = build_world("Mary is in the office.", "Mary is no longer in the office.")
    assert world.entries() == {"mary": "mary: not office"}
    assert _answer(world, "Is Mary in the office?") == "no"
    assert _answer(world, "Is Mary in the garden?") is None
    assert _answer(world, "Where is Mary?") is None
    world.tell("Mary journeyed to the garden.", 3)
    assert _answer(world, "Is Mary in the garden?") == "yes"


def test_lists_are_right_in_any_order() -> None:
    world = build_world("Mary got the milk there.", "Mary took the apple.")
    reply = world.ask("What is Mary carrying?")
    assert reply is not None
    assert reply.answers == ("milk, apple", "apple, milk")
    assert reply.evidence == (1, 2)


def test_impossible_statements_are_refused() -> None:
    with pytest.raises(UnreadableStatement, match="without holding"):
        build_world("Mary dropped the milk.")
    with pytest.raises(UnreadableStatement, match="holds"):
        build_world("Mary got the milk.", "John got the milk.")


# -------------------------------------------------------------------------------------------------------------- streams


def _streams() -> list[Task]:
    return load_tasks("babi", limit=20, seed=3)


def test_golds_are_the_official_answers_renamed() -> None:
    official = {story.name: story for story in babi.stories(BabiConfig(), "test")}
    checked: Counter[str] = Counter()
    for task in _streams():
        for question in task.questions:
            number, _, line = question.id.partition(":")
            if line.startswith("again"):
                continue
            back = {new: old for old, new in task.meta["names"][int(number)].items()}
            story = official[task.meta["stories"][int(number)]]
            [story_question] = [asked for asked in story.questions if asked.line == int(line)]

            def plain(text: str, back: dict[str, str] = back) -> str:
                return re.sub(r"\w+", lambda word: back.get(word[0], word[0]), text)

            assert plain(question.question) == story_question.text
            assert story_question.answer in map(plain, question.answers)
            assert question.evidence == tuple(f"{number}:{evidence_line}" for evidence_line in story_question.evidence)
            checked[question.category or ""] += 1
        assert sum(not q.id.partition(":")[2].startswith("again") for q in task.questions) == 20
    assert set(checked) == {f"qa{task}" for task in TASKS}


def test_names_are_distinct_and_keep_their_kind() -> None:
    for task in _streams():
        names = [new for mapping in task.meta["names"] for new in mapping.values()]
        assert len(set(names)) == len(names)
        for mapping in task.meta["names"]:
            for old, new in mapping.items():
                kind = babi.FEMALE if old in babi.WOMEN else babi.MALE if old.istitle() else babi.THINGS
                assert new in kind


def test_streams_are_functions_of_their_arguments_and_use_every_story_once() -> None:
    config = BabiConfig()
    assert babi.stream(config, "train", 5, 7) == babi.stream(config, "train", 5, 7)
    assert babi.stream(config, "train", 5, 7) != babi.stream(config, "train", 6, 7)
    assert babi.stream(config, "train", 5, 7) != babi.stream(config, "train", 5, 7 + 320)  # the next pass
    story_names = [name for task in babi.streams(config, "validation", 0, 0, 80) for name in task.meta["stories"]]
    assert sorted(story_names) == sorted(story.name for story in babi.stories(config, "validation"))


def test_too_many_stories_for_the_split_or_the_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"stories: .*less than or equal to 6"):
        build_config(BabiConfig, {"stories": 7}, "test")
    with pytest.raises(DataError, match="need more names of people or things than there are"):
        babi.weave(babi.stories(BabiConfig(), "test")[:40], Random(0), "too-many")
    (tmp_path / "qa1_x_test.txt").write_text(GOOD)
    with pytest.raises(DataError, match="stories=2 is more than the 1 of split test"):
        babi.stream(BabiConfig(stories=2, tasks=(1,), folder=str(tmp_path)), "test", 0, 0)


def test_streams_pass_through_a_task_file(tmp_path: Path) -> None:
    """Check, through the reader of task files, that each gold operation replaces a fact that holds."""
    save_jsonl(_streams(), tmp_path / "babi.jsonl")
    assert load_jsonl(tmp_path / "babi.jsonl") == _streams()
