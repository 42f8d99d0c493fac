"""Raw sets without a conversation: passages (SQuAD, XQuAD), labels (Banking77, CLINC150, NLU, TREC), BookSum.

Passages: 24 paragraphs in the order of the file are a task, with all questions on them. A paragraph is a turn: its
article's title is the speaker (text, if it has none), `<article>:<paragraph>` (both from 0) its id and the evidence of
its questions. A question of SQuAD 2.0 that its paragraph does not answer has no answer: the right one is to abstain.
A file of rows (Parquet or JSON Lines: id, context, question, answers, title if any), as the hub has these sets, is
read, too; the id of a paragraph is its number there. A context may be a dialogue, [{"speaker", "text"}, ...]: its turns
are turns, and each of those that hold an answer is evidence by itself.

Labels, as learning at test time: a task is a stream of labelled examples and questions for the labels of other
sentences. Labels are numbers in an order that set and seed decide, so that nobody knows one by its name; "12" and
"label 12" are both right. Every task has a new sample of examples, shuffled, one a turn: `label 12: <sentence>`. The
evidence of a question are the examples of its label. All test sentences are asked, in an order that the seed shuffles.
With `split="train"` the questions are training sentences, without the examples of their task. Test sentences that also
stand in the training file, apart from capitals and punctuation, have `meta["leak"]` true.

BookSum: a chapter or book is split into chunks of at most 2,048 tokens, one a day from 2024-01-01, and summarized. The
answers are the row's summaries. Mem-alpha's questions, scored by keywords, come with its own data (`memalpha_sets`).

Papers: SQuAD (Rajpurkar et al., EMNLP 2016; 2.0: ACL 2018), XQuAD (Artetxe et al., ACL 2020), BookSum (Kryściński et
al. 2021).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from itertools import chain
from pathlib import Path
from random import Random
from types import NoneType
from typing import Any, Literal

from memalpha.errors import DataError
from memalpha.tasks.chunking import split_text
from memalpha.tasks.dataset_info import Count, DataSet, shipped_card
from memalpha.tasks.formats import files
from memalpha.tasks.formats.files import find_file, find_sibling, require_field, require_items, require_strings
from memalpha.tasks.overlap import words
from memalpha.types import Chunk, Question, SpeakerTurn, Task

OUT_OF_SCOPE = "out-of-scope"
"""Variant of CLINC150 with sentences that no label fits, and the category of their questions."""

_EXAMPLES = {"nlu": 40, "trec-coarse": 400, "trec-fine": 60}
_TREC_LINE = re.compile(r"(?P<fine>(?P<coarse>[^\s:]+):\S*) (?P<text>.+)")

Sentences = list[tuple[str, str]]
"""Pairs of a sentence and the name of its label."""
Loader = Callable[..., list[Task]]


DATA = tuple(map(shipped_card, ("squad", "xquad", "banking77", "clinc150", "nlu", "trec", "booksum")))
_CARDS = {dataset.name: dataset for dataset in DATA}

# ------------------------------------------------------------------------------------------------------------ passages


def _passage_loader(card: DataSet) -> Loader:
    def load(path: Path, variant: str | None = None, limit: int | None = None, *, paragraphs: Count = 24) -> list[Task]:
        """Load tasks of SQuAD or XQuAD.

        Args:
            path: Official file, or its folder; or a file of rows.
            variant: Official file of SQuAD by split and version, such as "dev-v1.1"; language of XQuAD, such as "de".
            limit: Return the first `limit` tasks only.
            paragraphs: Paragraphs of a task.

        Raises:
            DataError: The file does not fit; the message names file, location and field.
        """
        file = find_file(path, card.files_for(variant)[0].path)
        if file.suffix in (".jsonl", ".parquet"):
            passages = _passages_of_rows(file)
        else:
            articles = require_field(files.read_json(file), "data", list, str(file))
            passages = list(_passages(require_items(articles, "articles", f"{file}: data"), str(file)))
        tasks: list[Task] = []
        for start in range(0, len(passages), paragraphs)[:limit]:
            turns, questions = zip(*passages[start : start + paragraphs], strict=True)
            chunks, id = tuple(files.pack_turns(chain(*turns))), f"{card.name}-{len(tasks)}"
            tasks.append(files.build_task(str(file), id=id, chunks=chunks, questions=tuple(chain(*questions))))
        return tasks

    return load


def _passages(articles: list[Any], file: str) -> Iterator[tuple[Sequence[SpeakerTurn], list[Question]]]:
    for a, article in enumerate(articles):
        for p, item in enumerate(require_field(article, "paragraphs", list, f"{file}: data[{a}]")):
            location = f"{file}: data[{a}].paragraphs[{p}]"
            turns = _turns(item, article, f"{a}:{p}", location)
            questions: list[Question] = []
            for question in require_field(item, "qas", list, location):
                place = f"{location}: question {require_field(question, 'id', (str, int), location)}"
                questions.append(_question({"is_impossible": False} | question, turns, place))
            yield turns, questions


def _passages_of_rows(file: Path) -> list[tuple[Sequence[SpeakerTurn], list[Question]]]:
    """Return the passages of a file with a question a row, in the order of their first questions."""
    columns, is_table = ("id", "context", "question", "answers"), file.suffix == ".parquet"
    optional = ("title", "is_impossible")
    rows = files.iter_parquet_rows(file, columns, optional) if is_table else files.iter_json_lines(file)
    passages: dict[str, tuple[Sequence[SpeakerTurn], list[Question]]] = {}
    for location, row in rows:
        place = f"{location}: question {require_field(row, 'id', (str, int), location)}"
        turns = _turns(row, row, str(len(passages)), place)
        turns, questions = passages.setdefault(repr(row["context"]), (turns, []))
        questions.append(_question(row, turns, place))
    if not passages:
        raise DataError(f"{file}: no row: there is nothing to read")
    return list(passages.values())


def _turns(item: Any, titled: Any, id: str, location: str) -> Sequence[SpeakerTurn]:
    """Return a paragraph as one turn, which its title says, or the turns of a dialogue."""
    title = (require_field(titled, "title", (str, NoneType), location) or "text").replace("_", " ")
    context = require_field(item, "context", (str, list), location)
    if isinstance(context, str):
        return [SpeakerTurn(speaker=title, text=context, id=id)]
    return [
        files.read_turn(turn, f"{id}:{n}", f"{location}: context[{n}]", speaker="speaker", text="text")
        for n, turn in enumerate(require_items(context, "turns", f"{location}: context"))
    ]


def _question(item: Mapping[str, Any], turns: Sequence[SpeakerTurn], place: str) -> Question:
    """Return a question on a passage; where `is_impossible` is missing or null, it is one without answers."""
    impossible = require_field(item, "is_impossible", (bool, NoneType), place)
    golds = require_field(item, "answers", (list, dict, NoneType) if impossible else (list, dict), place) or []
    if isinstance(golds, dict):
        texts = require_strings(require_field(golds, "text", list, f"{place}: answers"), f"{place}: answers")
    else:
        texts = [require_field(gold, "text", str, f"{place}: answers[{n}]") for n, gold in enumerate(golds)]
    if bool(texts) == impossible:
        raise DataError(f"{place}: is_impossible is {impossible}, but there are {len(texts)} answers")
    said = {turn.id: f"{turn.speaker}: {turn.text}" for turn in turns}
    evidence = [id for id in said if id and (len(said) == 1 or any(text in said[id] for text in texts))]
    return Question(
        id=str(item["id"]),
        question=require_field(item, "question", str, place).strip(),
        answers=tuple(dict.fromkeys(texts)),
        category="extraction" if texts else "unanswerable",
        evidence=tuple(evidence if texts else ()),
        meta={"metric": "squad-f1"} | ({"evidence": "any"} if len(turns) > 1 else {}),
    )


load_squad, load_xquad = _passage_loader(_CARDS["squad"]), _passage_loader(_CARDS["xquad"])

# -------------------------------------------------------------------------------------------------------------- labels


def _read_banking77(path: Path, variant: str | None) -> list[Sentences]:
    return [_read_csv(find_sibling(path, file.path), ",", "text", "category") for file in _CARDS["banking77"].files]


def _read_clinc150(path: Path, variant: str | None) -> list[Sentences]:
    file = find_file(path, _CARDS["clinc150"].files[0].path)
    splits: list[Sentences] = []
    for name in ("train", "test", "oos_test"):
        location = f"{file}: {name}"
        pairs = require_items(require_field(files.read_json(file), name, list, str(file)), "sentences", location)
        for n, pair in enumerate(pairs):
            if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) and text for text in pair)):
                raise DataError(f"{location}[{n}]: [sentence, label] is needed")
        splits.append([(text, label) for text, label in pairs])
    train, test, outside = splits
    return [train, test + [(text, OUT_OF_SCOPE) for text, _ in outside] if variant == OUT_OF_SCOPE else test]


def _read_nlu(path: Path, variant: str | None) -> list[Sentences]:
    splits: list[Sentences] = []
    for folder in (path / "trainset", path / "testset" / "csv"):
        tables = sorted(folder.glob("*.csv"))
        if not tables:
            raise DataError(f"{folder}: no CSV files; give the folder of one fold (it holds trainset and testset)")
        columns = ("answer_from_anno", "scenario", "intent")
        splits.append([row for file in tables for row in _read_csv(file, ";", *columns)])
    return splits


def _read_trec(path: Path, variant: str | None) -> list[Sentences]:
    splits: list[Sentences] = []
    for file in (find_sibling(path, info.path) for info in _CARDS["trec"].files):
        splits.append([])
        for number, line in enumerate(files.read_text(file).split("\n"), 1):
            if match := _TREC_LINE.fullmatch(line.strip()):
                splits[-1].append((match["text"], match["fine" if variant == "fine" else "coarse"]))
            elif line.strip():
                raise DataError(f"{file}:{number}: not like 'DESC:manner How did ... ?'")
    return splits


def _read_csv(file: Path, separator: str, text: str, *label: str) -> Sentences:
    """Read a CSV file with a header; underlines join the columns of a label."""
    sentences: Sentences = []
    for location, row in files.iter_csv_rows(file, (text, *label), separator):
        values = [row[column].strip() for column in (text, *label)]
        if not all(values):
            raise DataError(f"{location}: an empty field: {text} and {', '.join(label)} are needed")
        sentences.append((values[0], "_".join(values[1:])))
    return sentences


def _label_loader(name: str, read: Callable[[Path, str | None], list[Sentences]]) -> Loader:
    """Return the loader of a labelled set; `read` returns its training and its test sentences."""

    def load(
        path: Path,
        variant: str | None = None,
        limit: int | None = None,
        *,
        examples: Count | None = None,
        questions: Count = 100,
        split: Literal["test", "train"] = "test",
        seed: int = 0,
    ) -> list[Task]:
        """Load tasks of a labelled set.

        Args:
            path: Official folder, or a file in it.
            variant: One of the set's variants.
            limit: Return the first `limit` tasks only.
            examples: Examples of each label; default 20 (nlu 40; trec 400 of a coarse label, 60 of a fine one).
            questions: Questions of a task.
            split: Sentences that are asked.
            seed: Seed of labels, order and examples.

        Raises:
            DataError: A file does not fit; the message names file, line and field.
        """
        prefix = f"{name}-{variant or 'coarse'}" if name == "trec" else name
        examples = _EXAMPLES.get(prefix, 20) if examples is None else examples
        train, test = read(path, variant)
        labels = sorted({label for _, label in train})
        Random(f"{prefix}|labels|{seed}").shuffle(labels)
        numbers = {label: str(number) for number, label in enumerate(labels)}
        if unknown := sorted({label for _, label in test} - {*numbers, OUT_OF_SCOPE}):
            raise DataError(f"{path}: test label {unknown[0]!r} has no training sentence")
        copies: dict[tuple[str, ...], list[int]] = defaultdict(list)  # indices of training sentences by their words
        for index, (text, _) in enumerate(train):
            copies[tuple(words(text))].append(index)
        asked = list(enumerate(train if split == "train" else test))
        Random(f"{prefix}|{split}|{seed}").shuffle(asked)
        tasks: list[Task] = []
        for start in range(0, len(asked), questions)[:limit]:
            batch = asked[start : start + questions]
            repeated = [copies.get(tuple(words(text)), []) for _, (text, _) in batch]
            excluded = {index for indices in repeated for index in indices} if split == "train" else set()
            sample = _sample(train, examples, excluded, Random(f"{prefix}|{split}|{seed}|{len(tasks)}"))
            if not sample:
                raise DataError(f"{name}: questions={questions} leaves no training sentence as an example: ask fewer")
            evidence: dict[str, list[str]] = defaultdict(list)
            turns: list[SpeakerTurn] = []
            for index in sample:
                text, label = train[index]
                evidence[label].append(f"e{index}")
                turns.append(SpeakerTurn(speaker=f"label {numbers[label]}", text=text, id=f"e{index}"))
            asked_now = tuple(
                Question(
                    id=f"{split}{i}",
                    question=f'Label of "{text}"?',  # a longer frame costs search up to a third of its hits on TREC
                    answers=(numbers[label], f"label {numbers[label]}") if label in numbers else (),
                    category="label" if label in numbers else OUT_OF_SCOPE,
                    evidence=tuple(evidence[label]),
                    meta={"metric": "exact", "text": text, **({"leak": True} if same and split == "test" else {})},
                )
                for (i, (text, label)), same in zip(batch, repeated, strict=True)
            )
            id, chunks = f"{prefix}-{split}-{seed}-{len(tasks)}", tuple(files.pack_turns(turns))
            meta = {"labels": numbers, "examples": len(sample)}
            tasks.append(files.build_task(str(path), id=id, chunks=chunks, questions=asked_now, meta=meta))
        return tasks

    return load


load_banking77 = _label_loader("banking77", _read_banking77)
load_clinc150 = _label_loader("clinc150", _read_clinc150)
load_nlu = _label_loader("nlu", _read_nlu)
load_trec = _label_loader("trec", _read_trec)


def _sample(train: Sentences, examples: int, excluded: set[int], rng: Random) -> list[int]:
    """Draw the indices of `examples` sentences of each label, shuffled, without `excluded` indices."""
    by_label: dict[str, list[int]] = defaultdict(list)
    for index, (_, label) in enumerate(train):
        if index not in excluded:
            by_label[label].append(index)
    sample = [i for _, indices in sorted(by_label.items()) for i in rng.sample(indices, min(examples, len(indices)))]
    rng.shuffle(sample)
    return sample


# ------------------------------------------------------------------------------------------------------------ chapters


def load_booksum(
    path: Path, variant: str | None = None, limit: int | None = None, min_chunks: int = 5, max_chunks: int = 20
) -> list[Task]:
    """Load the rows of a part of BookSum.

    Args:
        path: Folder or file of the part.
        variant: Level and split, such as "chapters-test".
        limit: Return the first `limit` rows only.
        min_chunks: Leave out rows with fewer chunks.
        max_chunks: Leave out rows with more chunks.

    Raises:
        DataError: The file does not fit; the message names file, line and field.
    """
    file = find_file(path, _CARDS["booksum"].files_for(variant)[0].path)
    tasks: list[Task] = []
    for number, (location, row) in enumerate(files.iter_json_lines(file)):
        pieces = split_text(require_field(row, "text", str, location))
        summaries: list[str] = []
        for n, item in enumerate(require_field(row, "summary", list, location)):
            is_text, place = isinstance(item, str), f"{location}: summary[{n}]"
            text = item if is_text else require_field(item, "text", (str, list), place)
            summaries.append((text if isinstance(text, str) else "\n".join(map(str, text))).strip())
        if not pieces or not any(summaries) or not min_chunks <= len(pieces) <= max_chunks:
            continue
        days = [(date(2024, 1, 1) + timedelta(days=n)).isoformat() for n in range(len(pieces))]
        request = f"Summarize what I read in the book from {days[0]} to {days[-1]}."
        answers = tuple(filter(None, dict.fromkeys(summaries)))
        question = Question(
            id="summary", question=request, answers=answers, category="summary", meta={"metric": "rouge"}
        )
        chunks = tuple(Chunk(text=piece, timestamp=day) for piece, day in zip(pieces, days, strict=True))
        meta = {key: str(row[key]) for key in ("book_title", "title", "chapter_id", "bid") if row.get(key)}
        tasks.append(Task(id=f"booksum-{file.stem}-{number}", chunks=chunks, questions=(question,), meta=meta))
        if len(tasks) == limit:
            break
    return tasks
