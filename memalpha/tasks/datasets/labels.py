"""Labelled sentences as learning at test time: Banking77, CLINC150, NLU (HWU64), TREC questions.

A task is a stream of labelled examples and questions for the labels of other sentences. Labels are numbers in an order
that set and seed decide, so that nobody knows one by its name; "12" and "label 12" are both right. Every task has a new
sample of examples (`examples` of each label, fewer if there are fewer), shuffled, one a turn: `label 12: <sentence>`.
Evidence of a question are the examples of its label.

All test sentences are asked, in an order that the seed shuffles, `questions` a task; the rest makes a shorter task.
With `split="train"` the questions are training sentences, too, without the examples of their task. That split is for
training without a look at the test set.

Test sentences that also stand in the training file, apart from capitals and punctuation, have `meta["leak"]` true.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

from memalpha.errors import DataError
from memalpha.tasks.checks.contamination import words
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.sources.files import (
    CHUNK_TOKENS,
    build_task,
    find_file,
    pack_turns,
    read_json,
    read_text,
    require_field,
    require_items,
)
from memalpha.tasks.sources.streaming import iter_csv_rows
from memalpha.types import Question, SpeakerTurn, Task

_TRAINING: Mapping[str, str] = {"split": "train"}

DATA = (
    DataSet(
        name="banking77",
        about="questions of a bank's customers, 77 labels, learned at test time",
        source="github:PolyAI-LDN/task-specific-datasets",
        licence="CC BY 4.0",
        counts="77 labels, 10,003 training sentences, 3,080 test sentences (40 a label)",
        metric="exact",
        files=(
            File("banking_data/train.csv", "b06e26ac675513959a63135f11b94ea7786ed02da65db93a5650d8838cbc664b", 839_073),
            File("banking_data/test.csv", "d12d6e3bc4c3103966ae786dc435913c0c563dfa328f5a3646d0e62cfeeb474d", 239_961),
        ),
        revision="57ec275d8078af65b7731c2a98be812d844a6d6b",
        faults=(
            "uneven: 35 to 187 training sentences a label",
            "25 test sentences are training sentences but for punctuation and capitals",
        ),
        expected={"": {"tasks": 31, "questions": 3080}},
        training_options=_TRAINING,
    ),
    DataSet(
        name="clinc150",
        about="requests to an assistant, 150 labels in ten domains, learned at test time",
        source="github:clinc/oos-eval",
        licence="CC BY 3.0",
        counts="150 labels, 15,000 training sentences (100 a label), 4,500 test sentences, 1,000 out of scope",
        metric="exact",
        files=(
            File("data/data_full.json", "36923c3705a59e08fe9c3883d8bc2dd966ef93e22cb78ac41171782a698d56e0", 2_495_390),
        ),
        variants=("in-scope", "out-of-scope"),
        training_variants=("in-scope",),
        training_options=_TRAINING,
        revision="828f8093932c8fe6ca7936c3d2e52903b1c523de",
        faults=("two training sentences also occur in test, 19 but for punctuation and capitals",),
        expected={
            "in-scope": {"tasks": 45, "questions": 4500},
            "out-of-scope": {"tasks": 55, "questions": 5500},
        },
    ),
    DataSet(
        name="nlu",
        about="requests to a home assistant (HWU64), 64 labels, learned at test time",
        source="github:xliuhw/NLU-Evaluation-Data",
        licence="CC BY 4.0",
        counts="64 labels (scenario_intent), fold 1: 9,960 training sentences, 1,076 test sentences",
        metric="exact",
        files=(
            File("trainset/", "b2f234da52760f62cdcc0bb42adf198e0bb3f23877398cf3c2104f60c8d39d1a", 1_417_081),
            File("testset/csv/", "f550d10cfa630d4d619e09f9fdfec0be56d3380b71f709b72b7520fd3245e8bc", 159_538),
        ),
        revision="f6071b496b17d71e6eb43f543af0707f4ff30557",
        faults=(
            "answer_annotation has inline slots; answer_from_anno, the sentence without them, is read",
            "uneven: 35 to 175 training sentences a label",
            "MemoryAgentBench counts 68 labels; this fold has 64",
        ),
        expected={"": {"tasks": 11, "questions": 1076}},
        training_options=_TRAINING,
    ),
    DataSet(
        name="trec",
        about="questions by the kind of their answer, 6 coarse or 50 fine labels, learned at test time",
        source="github:tonyzhaozh/few-shot-learning",
        licence="free for research, terms unclear (Li & Roth 2002); the repository Apache-2.0",
        counts="5,452 training questions, 500 test questions",
        metric="exact",
        files=(
            File("data/trec/train.txt", "202e3e1ad6143ed4f147f199324277e25b2573a78c08c3af1ff840b49c0779de", 335_859),
            File("data/trec/test.txt", "69b2d406aa15b3b514b6bf9b3bf1fa2c3515ce7ae744651173f8e57347bfb2a9", 23_353),
        ),
        variants=("coarse", "fine"),
        training_variants=("coarse", "fine"),
        training_options=_TRAINING,
        revision="e04d8643be91c2cce63f33e07760ff75d5aa3ad0",
        faults=(
            "71 training questions stand there twice, ten also in test, and one more but for its capitals",
            "one replacement character; tokenised text",
            "42 of the 50 fine labels occur in test; the rarest has 4 training questions",
        ),
        expected={"coarse": {"tasks": 5, "questions": 500}, "fine": {"tasks": 5, "questions": 500}},
    ),
)

OUT_OF_SCOPE = "out-of-scope"
"""Label of a sentence that no label fits."""
Split = Literal["test", "train"]


class Sentence(NamedTuple):
    """Hold a sentence and the name of its label."""

    text: str
    label: str


class Sentences(NamedTuple):
    """Hold the official splits; `outside` are sentences that no label fits."""

    train: list[Sentence]
    test: list[Sentence]
    outside: list[Sentence]


def load_banking77(
    path: Path,
    variant: str | None = None,
    limit: int | None = None,
    *,
    examples: int = 20,
    questions: int = 100,
    split: Split = "test",
    seed: int = 0,
    chunk: int = CHUNK_TOKENS,
) -> list[Task]:
    """Load tasks of the folder that holds train.csv and test.csv.

    Args:
        path: Folder, or a file in it.
        variant: Not used, the set has no variants.
        limit: Return the first `limit` tasks only.
        examples: Labelled examples of each label.
        questions: Questions of a task.
        split: Sentences that are asked.
        seed: Seed of labels, order and examples.
        chunk: Longest chunk in tokens (characters / 4).

    Raises:
        DataError: A file does not fit; the message names file, line and field.
    """
    train, test = (_rows(find_file(_folder(path), file.path), ",", "text", ("category",)) for file in DATA[0].files)
    return _tasks("banking77", path, Sentences(train, test, []), limit, examples, questions, split, seed, chunk)


def load_clinc150(
    path: Path,
    variant: str | None = None,
    limit: int | None = None,
    *,
    examples: int = 20,
    questions: int = 100,
    split: Split = "test",
    seed: int = 0,
    chunk: int = CHUNK_TOKENS,
) -> list[Task]:
    """Load tasks of data_full.json.

    Variant "out-of-scope" asks the out-of-scope test sentences among the others; their right answer is to abstain.

    Args:
        path: File, or its folder.
        variant: "in-scope" or "out-of-scope".
        limit: Return the first `limit` tasks only.
        examples: Labelled examples of each label.
        questions: Questions of a task.
        split: Sentences that are asked.
        seed: Seed of labels, order and examples.
        chunk: Longest chunk in tokens (characters / 4).
    """
    file = find_file(path, DATA[1].files[0].path)
    splits = read_json(file)
    train, test, outside = (_pairs(splits, name, file) for name in ("train", "test", "oos_test"))
    if variant != "out-of-scope":
        outside = []
    sentences = Sentences(train, test, [Sentence(row.text, OUT_OF_SCOPE) for row in outside])
    return _tasks("clinc150", path, sentences, limit, examples, questions, split, seed, chunk)


def load_nlu(
    path: Path,
    variant: str | None = None,
    limit: int | None = None,
    *,
    examples: int = 40,
    questions: int = 100,
    split: Split = "test",
    seed: int = 0,
    chunk: int = CHUNK_TOKENS,
) -> list[Task]:
    """Load tasks of one fold, the folder that holds trainset/ and testset/csv/.

    Args:
        path: Folder of the fold.
        variant: Not used, the set has no variants.
        limit: Return the first `limit` tasks only.
        examples: Labelled examples of each label.
        questions: Questions of a task.
        split: Sentences that are asked.
        seed: Seed of labels, order and examples.
        chunk: Longest chunk in tokens (characters / 4).
    """
    splits: list[list[Sentence]] = []
    for folder in (path / "trainset", path / "testset" / "csv"):
        files = sorted(folder.glob("*.csv"))
        if not files:
            raise DataError(f"{folder}: no CSV files; give the folder of one fold (it holds trainset and testset)")
        splits.append([row for file in files for row in _rows(file, ";", "answer_from_anno", ("scenario", "intent"))])
    train, test = splits
    return _tasks("nlu", path, Sentences(train, test, []), limit, examples, questions, split, seed, chunk)


def load_trec(
    path: Path,
    variant: str | None = None,
    limit: int | None = None,
    *,
    examples: int | None = None,
    questions: int = 100,
    split: Split = "test",
    seed: int = 0,
    chunk: int = CHUNK_TOKENS,
) -> list[Task]:
    """Load tasks of the folder that holds train.txt and test.txt.

    Args:
        path: Folder, or a file in it.
        variant: "coarse" or "fine" labels.
        limit: Return the first `limit` tasks only.
        examples: Labelled examples of each label; default: 400 of a coarse label, 60 of a fine one.
        questions: Questions of a task.
        split: Sentences that are asked.
        seed: Seed of labels, order and examples.
        chunk: Longest chunk in tokens (characters / 4).
    """
    fine = variant == "fine"
    train, test = (_trec(find_file(_folder(path), file.path), fine) for file in DATA[3].files)
    examples_per_label = (60 if fine else 400) if examples is None else examples
    name = f"trec-{'fine' if fine else 'coarse'}"
    return _tasks(name, path, Sentences(train, test, []), limit, examples_per_label, questions, split, seed, chunk)


def _tasks(
    name: str,
    source: Path,
    sentences: Sentences,
    limit: int | None,
    examples: int,
    questions: int,
    split: Split,
    seed: int,
    chunk: int,
) -> list[Task]:
    if examples < 1 or questions < 1 or chunk < 1:
        raise DataError(f"{name}: examples={examples}, questions={questions}, chunk={chunk}: each must be at least 1")
    labels = sorted({row.label for row in sentences.train})
    Random(f"{name}|labels|{seed}").shuffle(labels)
    numbers = {label: str(number) for number, label in enumerate(labels)}
    if unknown := sorted({row.label for row in sentences.test} - set(numbers)):
        raise DataError(f"{source}: test label {unknown[0]!r} has no training sentence")
    pool = [*sentences.test, *sentences.outside] if split == "test" else list(sentences.train)
    order = list(range(len(pool)))
    Random(f"{name}|{split}|{seed}").shuffle(order)
    training_copies: dict[tuple[str, ...], list[int]] = defaultdict(
        list
    )  # indices of training sentences by their words
    for index, row in enumerate(sentences.train):
        training_copies[tuple(words(row.text))].append(index)
    tasks: list[Task] = []
    for number, start in enumerate(range(0, len(order), questions)[:limit]):
        batch = [(index, pool[index]) for index in order[start : start + questions]]
        copies_of_batch = [training_copies.get(tuple(words(row.text)), []) for _, row in batch]
        excluded = {index for copies in copies_of_batch for index in copies} if split == "train" else set()
        sample = _sample(sentences.train, examples, excluded, Random(f"{name}|{split}|{seed}|{number}"))
        if not sample:
            raise DataError(f"{name}: questions={questions} leaves no training sentence as an example: ask fewer")
        turns = [
            SpeakerTurn(speaker=f"label {numbers[row.label]}", text=row.text, id=f"e{index}") for index, row in sample
        ]
        by_label: dict[str, list[str]] = defaultdict(list)
        for index, row in sample:
            by_label[row.label].append(f"e{index}")
        tasks.append(
            build_task(
                str(source),
                id=f"{name}-{split}-{seed}-{number}",
                chunks=tuple(pack_turns(turns, chunk)),
                questions=tuple(
                    _question(f"{split}{index}", row, numbers, by_label, split == "test" and bool(copies))
                    for (index, row), copies in zip(batch, copies_of_batch, strict=True)
                ),
                meta={"labels": numbers, "examples": len(sample)},
            )
        )
    return tasks


def _question(
    id: str, row: Sentence, numbers: Mapping[str, str], evidence: Mapping[str, Sequence[str]], leak: bool
) -> Question:
    is_in_scope = row.label in numbers
    return Question(
        id=id,
        question=f'Label of "{row.text}"?',  # a longer frame costs search up to a third of its hits on TREC
        answers=(numbers[row.label], f"label {numbers[row.label]}") if is_in_scope else (),
        category="label" if is_in_scope else OUT_OF_SCOPE,
        evidence=tuple(evidence.get(row.label, ())),
        meta={"metric": "exact", "text": row.text, **({"leak": True} if leak else {})},
    )


def _sample(train: Sequence[Sentence], examples: int, excluded: set[int], rng: Random) -> list[tuple[int, Sentence]]:
    """Draw `examples` of each label, shuffled, as (index in the file, sentence), without `excluded` indices."""
    by_label: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(train):
        if index not in excluded:
            by_label[row.label].append(index)
    indices = [
        index
        for label in sorted(by_label)
        for index in rng.sample(by_label[label], min(examples, len(by_label[label])))
    ]
    rng.shuffle(indices)
    return [(index, train[index]) for index in indices]


# --------------------------------------------------------------------------------------------------- official files


def _folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _rows(file: Path, separator: str, text: str, label: Sequence[str]) -> list[Sentence]:
    """Read a CSV file with a header; underlines join the columns of a label."""
    sentences: list[Sentence] = []
    for location, row in iter_csv_rows(file, (text, *label), separator):
        values = [row[text].strip(), *(row[column].strip() for column in label)]
        if not all(values):
            raise DataError(f"{location}: an empty field: {text} and {', '.join(label)} are needed")
        sentences.append(Sentence(values[0], "_".join(values[1:])))
    return sentences


def _pairs(splits: Any, name: str, file: Path) -> list[Sentence]:
    sentences: list[Sentence] = []
    for number, item in enumerate(
        require_items(require_field(splits, name, list, str(file)), "sentences", f"{file}: {name}")
    ):
        if not (isinstance(item, list) and len(item) == 2 and all(isinstance(value, str) and value for value in item)):
            raise DataError(f"{file}: {name}[{number}]: [sentence, label] is needed")
        sentences.append(Sentence(item[0], item[1]))
    return sentences


def _trec(file: Path, fine: bool) -> list[Sentence]:
    sentences: list[Sentence] = []
    for number, line in enumerate(read_text(file).split("\n"), 1):
        if not line.strip():
            continue
        label, _, text = line.strip().partition(" ")
        coarse, colon, _ = label.partition(":")
        if not colon or not coarse or not text:
            raise DataError(f"{file}:{number}: not like 'DESC:manner How did ... ?'")
        sentences.append(Sentence(text, label if fine else coarse))
    return sentences
