"""Training takes the training split of a named data set, evaluation another one; the rest is refused."""

from __future__ import annotations

import pytest
from hub_layouts import MEETING, use_as_hub_cache, write, write_memalpha_split

from memalpha.errors import ConfigError, DataError
from memalpha.tasks.catalog import get_data_set, list_data_sets, validate_options
from memalpha.tasks.datasets import babi
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.tasks.load import load_evaluation_tasks, load_tasks, load_training_tasks

EVALUATION_ONLY = {
    *("locomo", "friendsqa", "xquad", "longmemeval", "memoryagentbench", "personamem"),
    *("personamem_v2", "perltqa", "beam", "beam_10m", "halumem", "memalpha_mab"),
}


@pytest.fixture
def hub_cache(monkeypatch, tmp_path):
    return use_as_hub_cache(monkeypatch, tmp_path)


def texts(tasks):
    return {task.chunks[0].text.split()[0] for task in tasks}


def test_a_set_with_splits_is_trained_on_its_training_split(hub_cache):
    write_memalpha_split(hub_cache, "test", "tested")
    assert texts(load_tasks("memalpha")) == {"tested"}, "the first variant is the default of evaluations"
    with pytest.raises(DataError, match=r"data: .*get train\.parquet .*data prepare memalpha .*variant=train"):
        load_training_tasks("memalpha")
    write_memalpha_split(hub_cache, "train", "trained")
    assert texts(load_training_tasks("memalpha")) == {"trained"}
    assert texts(load_evaluation_tasks("memalpha", 2)) == {"tested"}
    assert len(load_evaluation_tasks("memalpha", 2)) == 2


def test_an_evaluation_split_is_trained_on_only_with_the_key(hub_cache, tmp_path):
    write_memalpha_split(hub_cache, "test", "tested")
    with pytest.raises(ConfigError, match=r"data: memalpha_mab is for evaluation only.*train_on_evaluation_split=true"):
        load_training_tasks("memalpha_mab")
    assert texts(load_training_tasks("memalpha_mab", on_evaluation_split=True)) == {"tested"}
    assert texts(load_training_tasks("memalpha", on_evaluation_split=True)) == {"tested"}
    save_jsonl(load_tasks("memalpha_mab"), tmp_path / "mine.jsonl")
    assert texts(load_training_tasks(str(tmp_path / "mine.jsonl"))) == {"tested"}, "a file is its owner's affair"
    with pytest.raises(ConfigError, match=r"train_on_evaluation_split: has no effect with data=.*mine\.jsonl"):
        load_training_tasks(str(tmp_path / "mine.jsonl"), on_evaluation_split=True)


@pytest.mark.parametrize("name", sorted(EVALUATION_ONLY))
def test_evaluation_sets_are_refused_before_files_are_looked_for(name):
    with pytest.raises(ConfigError, match=f"data: {name} is for evaluation only"):
        load_training_tasks(name)


def test_files_of_a_set_from_git_are_written_to_a_task_file_first(tmp_path):
    with pytest.raises(DataError, match=r"train-v1\.1\.json .*\(memalpha data prepare squad .*variant=train-v1\.1\)"):
        load_training_tasks("squad")
    command = r"\(memalpha data prepare trec tasks\.jsonl data=PATH variant=coarse split=train"
    with pytest.raises(DataError, match=command):
        load_training_tasks("trec")
    with pytest.raises(DataError, match=r"locomo10\.json .*\(memalpha data prepare locomo tasks\.jsonl data=PATH "):
        load_training_tasks("locomo", on_evaluation_split=True)


def test_every_set_says_which_split_is_for_training():
    assert {dataset.name for dataset in list_data_sets() if not dataset.has_training_split} == EVALUATION_ONLY
    for dataset in list_data_sets():
        assert set(dataset.training_variants) <= set(dataset.variants)
        assert validate_options(dataset.name, dataset.training_options).keys() == dataset.training_options.keys()
        if dataset.has_training_split and not dataset.training_options:
            assert dataset.evaluation_variant in set(dataset.variants) - set(dataset.training_variants)
    books = get_data_set("booksum")
    assert (books.training_variant, books.evaluation_variant) == ("chapters-train", "chapters-test")
    assert get_data_set("personamem_snippets").evaluation_variant == "val", "its default variant is the training split"
    assert get_data_set("trec").evaluation_variant == "coarse"


def test_meetings_of_the_training_split(hub_cache):
    for split in ("test", "train"):
        write(hub_cache / "data" / "ALL" / "jsonl" / f"{split}.jsonl", [MEETING])
    options = get_data_set("qmsum").training_options
    (task,) = load_tasks("qmsum", data=hub_cache, variant=get_data_set("qmsum").training_variant, **options)
    assert task.id == "qmsum-train-0"


def test_generated_and_shipped_sets_give_their_training_split():
    assert {task.id.split("-")[1] for task in load_training_tasks("synthetic")} == {"train"}
    trained = load_training_tasks("babi")
    assert {task.id.split("-")[1] for task in trained} == {"train"}
    stories = {story for task in trained for story in task.meta["stories"]}
    assert all("_train." in story for story in stories)
    assert load_tasks("babi", 2) == babi.load(None, None, 2, split="test")
