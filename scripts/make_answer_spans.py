"""Train the networks of `memalpha/store/search/answer_spans.py`: `python scripts/make_answer_spans.py DATA`.

DATA is a folder with these files of public question sets, by the names that they have there:

- xquad.LANGUAGE.json (XQuAD, google-deepmind/xquad), of which the articles with even numbers are learnt
- SQuAD_it-test.json.gz (SQuAD-it, crux82/squad-it), without the articles of which XQuAD's odd ones are parts
- jaquad_train_0000.json to jaquad_train_0029.json (JaQuAD, SkelterLabsInc/JaQuAD)
- DRCD_test.json (DRCD, DRCKnowledgeTeam/DRCD) and cmrc2018_trial.json (CMRC 2018 in the form of SQuAD, ymcui/cmrc2018)
- dev-v2.0.json (SQuAD 2.0's development questions that chrischute/squad validates on) and dev-v2.0-es_small.json
  (SQuAD-es, ccasimiro88/TranslateAlignRetrieve), without XQuAD's odd articles: half of these questions have no answer
- arcd-train.json (ARCD, husseinmozannar/SOQAL), enelpi_1451-1579.json, enelpi_1579-1792.json and enelpi_1792-1922.json
  (the train_data of these years, the second v2, okanvk/Turkish-Reading-Comprehension-Question-Answering-Dataset)
- iapp_train.jsonl (squad_format/data/train.jsonl of iapp-technology/iapp-wiki-qa-dataset, Thai)
- friendsqa_dev.json and, to judge, friendsqa_tst.json (FriendsQA, emorynlp/FriendsQA)

The others stand beside this script: messages with marked answers (`said_and_asked.jsonl` and
`said_in_other_languages.jsonl`), and the chats told in full that the writer "smol" learnt from (`smol/told`), with the
questions of their authors and those of `smol/asked.tsv`; every tenth text and chat is held out. A question comes with
the ten best of the lines of one to four chats, the sentences of five paragraphs or the utterances of an episode, as
`MemoryStore.search` finds them, so that most of what the network sees does not answer. Writes
`memalpha/weights/spans/spans.npz` and prints, of what was held out, the token F1 of the best span of all passages and
of the passage that answers, and how often its passage is the right one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from smol.told import load_told
from torch import nn
from torch.nn import functional

from memalpha import MemoryStore
from memalpha.qa.scoring.metrics import best_score
from memalpha.store.search.answer_spans import (
    DILATIONS,
    MIDDLE,
    WEIGHTS,
    WINDOW,
    Words,
    find_answers,
    passage_words,
    question_words,
)
from memalpha.store.search.lexical import UNSPACED
from memalpha.store.values import holds_answer
from memalpha.tasks.load import load_tasks

HERE = Path(__file__).parent
LANGUAGES = ("ar", "de", "el", "en", "es", "hi", "ru", "th", "tr", "vi", "zh")
SENTENCE = re.compile(r".+?(?:[.!?\u0964](?=\s|$)|[\u3002\uff01\uff1f]|$)", re.DOTALL)
PASSAGES, BATCH, WIDTH, PROJECTED, RATE = 10, 32, 96, 64, 2e-3
WITHOUT_VECTORS, WITHOUT_WORD, WITHOUT_ANSWER = 0.25, 0.1, 0.12
"""Share of questions learnt without vectors, of words without theirs, and of questions without their passage."""
SHARES = {
    "told": 2.8,
    "notes": 2.8,
    "said_and_asked": 3.0,
    "friendsqa": 6.0,
    "xquad": 2.0,
    "squad2": 1.5,
    "jaquad": 1.6,
    "said_in_other_languages": 3.0,
}
"""Weight of a set in the mixture, 0.7 for others, times the number of its questions to the power .75."""

NOTES = ("{}: {}", "{}: {}", "{}: {}", "user's {} is {}", "The user's {}: {}.", "{} = {}")
"""Forms of a note of a topic and a value."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Hold a passage that a search found.

    Attributes:
        text: The passage.
        answers: Characters of its answers; empty if it does not answer.
        order: When it was said; higher is later.
        is_open: It may answer, though no words of it are marked.
    """

    text: str
    answers: tuple[tuple[int, int], ...]
    order: float
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Example:
    """Hold a question with the passages that a search found, best first.

    Attributes:
        set: Name of its set.
        question: Text of the question.
        answers: Right answers, for scores; none if nothing answers.
        passages: The passages.
        is_held_out: It judges, and is not learnt.
    """

    set: str
    question: str
    answers: tuple[str, ...]
    passages: tuple[Passage, ...]
    is_held_out: bool


def found(texts: Sequence[str], questions: Sequence[str]) -> list[list[int]]:
    """Return the numbers of the best texts for each question."""
    with MemoryStore.open(":memory:") as store:
        ids = {store.insert("semantic", text).id: number for number, text in enumerate(texts)}
        return [[ids[hit.entry.id] for hit in hits] for hits in store.search_many(questions, PASSAGES)]


def places_of(answers: Iterable[str], text: str) -> tuple[tuple[int, int], ...]:
    """Return where whole words of a text are an answer, whatever the case; nothing parts words of Chinese or Thai."""
    found = list[tuple[int, int]]()
    for answer in filter(None, map(str.strip, answers)):
        before, after = ("" if UNSPACED.match(letter) else r"[^\W_]" for letter in (answer[0], answer[-1]))
        bounds = f"(?<!{before})" if before else "", f"(?!{after})" if after else ""
        found += [match.span() for match in re.finditer(re.escape(answer).join(bounds), text, re.IGNORECASE)]
    return tuple(found)


def said_examples(name: str) -> Iterator[Example]:
    """Yield the questions of `said_and_asked.jsonl` or `said_in_other_languages.jsonl`, fifty texts at a time.

    With the answer "" a question of the first is answered by the text in other words, one of the second by nothing.
    """
    rows = [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    rng = random.Random(1)
    for is_held_out in (False, True):
        chosen = [row for number, row in enumerate(rows) if (number % 10 == 9) == is_held_out]
        rng.shuffle(chosen)
        for first in range(0, len(chosen), 50):
            group = chosen[first : first + 50]
            asked = [(row, *pair) for row in group for pair in zip(row["questions"], row["answers"], strict=True)]
            texts = [row["text"] for row in group]
            for (row, question, answer), hits in zip(asked, found(texts, [item[1] for item in asked]), strict=True):
                passages = []
                for hit in hits:
                    marks = places_of([answer], texts[hit]) if group[hit] is row else ()
                    is_open = group[hit] is row and not marks and (bool(answer) or name == "said_and_asked")
                    passages.append(Passage(texts[hit], marks, hit / len(texts), is_open))
                yield Example(name, question, (answer,) if answer else (), tuple(passages), is_held_out)


def told_examples(seed: int, *, in_sentences: bool, as_notes: bool) -> Iterator[Example]:
    """Yield the questions of the chats told in full, with the lines of one to four chats, or with their notes."""
    rng = random.Random(seed)
    more = defaultdict[str, list[tuple[str, str]]](list)
    for line in (HERE / "smol" / "asked.tsv").read_text(encoding="utf-8").splitlines():
        name, question, answer = line.split("\t")
        more[name].append((question, answer))
    tasks = [
        (number, chat.task(str(number), random.Random(f"{seed} {number}"), more[chat.name]))
        for number, chat in enumerate(load_told())
    ]
    rng.shuffle(tasks)
    for is_held_out in (False, True):
        chosen = [task for number, task in tasks if (number % 10 == 9) == is_held_out]
        while chosen:
            group = [chosen.pop() for _ in range(min(len(chosen), rng.choice((1, 1, 2, 3, 4))))]
            lines = list[tuple[str, int, str]]()
            live = [dict[str, str | None]() for _ in group]
            for number, task in enumerate(group):
                for operation in task.gold_operations:
                    live[number].pop(operation.replaces or "", None)
                    if operation.content:
                        live[number][operation.content] = operation.turn
                if as_notes:
                    form = rng.choice(NOTES)
                    lines += [(form.format(*note.split(": ", 1)), number, note) for note in live[number]]
                    continue
                for turn in (turn for chunk in task.chunks for turn in chunk.turns if turn.speaker != "assistant"):
                    said = turn.text if turn.speaker == "user" else f"{turn.speaker}: {turn.text}"
                    parts = re.split(r"(?<=[.!?;])\s+", said) if in_sentences else [said]
                    lines += [(part, number, turn.id) for part in parts]
            asked = [(question, number) for number, task in enumerate(group) for question in task.questions]
            if not asked or not lines:
                continue
            hits_of = found([line[0] for line in lines], [question.question for question, _ in asked])
            for (question, number), hits in zip(asked, hits_of, strict=True):
                turns = {
                    turn
                    for note, turn in live[number].items()
                    if any(holds_answer(note, answer) for answer in question.answers)
                }
                passages = []
                for hit in hits:
                    text, owner, source = lines[hit]
                    # The line that says what holds now answers; a question beside the notes is answered by any line.
                    is_right = owner == number and (as_notes or source in turns or not turns)
                    marks = places_of(question.answers, text) if is_right else ()
                    is_open = not marks and owner == number and any(holds_answer(text, a) for a in question.answers)
                    passages.append(Passage(text, marks, hit / len(lines), is_open))
                name = "notes" if as_notes else "told"
                yield Example(name, question.question, question.answers, tuple(passages), is_held_out)


def sentences_of(text: str) -> list[tuple[int, int]]:
    """Return first and last character of the sentences of a text; of Thai, of phrases of some hundred characters."""
    ends = SENTENCE if not re.search("[\u0e00-\u0e7f]", text) else re.compile(r".{80,}?(?:\s|$)|.+$", re.DOTALL)
    return [match.span() for match in ends.finditer(text) if match[0].strip()]


def squad_examples(
    name: str, articles: Iterable[dict[str, Any]], count: int, *, most: int = 30, is_held_out: bool
) -> Iterator[Example]:
    """Yield up to `count` questions of files in the form of SQuAD, `most` on five paragraphs, with their sentences."""
    rng = random.Random(0)
    articles = list(articles)
    rng.shuffle(articles)
    for article in articles:
        paragraphs = list(article["paragraphs"])
        rng.shuffle(paragraphs)
        for first in range(0, len(paragraphs), 5):
            texts, asked = list[str](), list[tuple[str, tuple[str, ...], dict[int, set[tuple[int, int]]]]]()
            for paragraph in paragraphs[first : first + 5]:
                whole, joined = paragraph["context"], rng.choice((1, 1, 2, 4))
                sentences = sentences_of(whole)
                parts = [
                    (sentences[at][0], sentences[min(at + joined, len(sentences)) - 1][1])
                    for at in range(0, len(sentences), joined)
                ]
                for question in paragraph["qas"]:
                    marks = defaultdict[int, set[tuple[int, int]]](set)
                    for answer in question["answers"]:
                        begin = answer["answer_start"]
                        if not whole.startswith(answer["text"], begin):
                            begin = whole.find(answer["text"])
                        end = begin + len(answer["text"])
                        for number, (left, right) in enumerate(parts):
                            if left <= begin and end <= right:
                                marks[len(texts) + number].add((begin - left, end - left))
                    if marks or not question["answers"]:
                        answers = tuple(sorted({answer["text"] for answer in question["answers"]}))
                        asked.append((question["question"], answers, marks))
                texts += [whole[left:right] for left, right in parts]
            rng.shuffle(asked)
            asked = asked[: min(most, count)]
            count -= len(asked)
            for (question, answers, marks), hits in zip(asked, found(texts, [item[0] for item in asked]), strict=True):
                passages = [Passage(texts[hit], tuple(sorted(marks.get(hit, ()))), hit / len(texts)) for hit in hits]
                yield Example(name, question, answers, tuple(passages), is_held_out)


def as_articles(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of iapp-wiki-qa as articles of SQuAD, five contexts an article."""
    asked = defaultdict[str, list[dict[str, Any]]](list)
    for row in rows:
        starts = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in starts]
        asked[row["context"]].append({"question": row["question"], "id": row["question_id"], "answers": answers})
    paragraphs = [{"context": context, "qas": questions} for context, questions in asked.items()]
    return [{"paragraphs": paragraphs[first : first + 5]} for first in range(0, len(paragraphs), 5)]


def friendsqa_examples(folder: Path, variant: str, *, is_held_out: bool) -> Iterator[Example]:
    """Yield the questions of FriendsQA's "dev" or "test" episodes, with utterances of the episode."""
    for task in load_tasks("friendsqa", data=folder, variant=variant):
        turns = [(turn.id, turn.text) for chunk in task.chunks for turn in chunk.turns]
        asked = [question for question in task.questions if question.answers and question.evidence]
        hits_of = found([text for _, text in turns], [question.question for question in asked])
        for question, hits in zip(asked, hits_of, strict=True):
            passages = []
            for hit in hits:
                id, text = turns[hit]
                is_right = id in question.evidence
                marks = places_of(question.answers, text) if is_right else ()
                passages.append(Passage(text, marks, hit / len(turns), is_right and not marks))
            yield Example("friendsqa", question.question, question.answers, tuple(passages), is_held_out)


def load_examples(data: Path) -> Iterator[Example]:
    """Yield all examples."""
    for seed in range(4):
        yield from told_examples(seed, in_sentences=seed % 2 == 1, as_notes=False)
    for seed in range(4, 7):
        yield from told_examples(seed, in_sentences=False, as_notes=True)
    yield from said_examples("said_and_asked")
    yield from said_examples("said_in_other_languages")
    yield from friendsqa_examples(data, "dev", is_held_out=False)
    if (data / "friendsqa_tst.json").exists():
        yield from friendsqa_examples(data, "test", is_held_out=True)

    def articles(name: str) -> list[dict[str, Any]]:
        return json.loads((data / name).read_text(encoding="utf-8"))["data"]

    for language in LANGUAGES:
        name, of = f"xquad {language}", articles(f"xquad.{language}.json")
        yield from squad_examples(name, of[0::2], 600, is_held_out=False)
        yield from squad_examples(name, of[1::2], 600, is_held_out=True)
    judged = articles("xquad.en.json")[1::2]
    ids = {question["id"] for article in judged for paragraph in article["paragraphs"] for question in paragraph["qas"]}
    titles = {article["title"] for article in judged}

    def learnt(of: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            article
            for article in of
            if article["title"] not in titles
            and not any(question["id"] in ids for paragraph in article["paragraphs"] for question in paragraph["qas"])
        ]

    italian = json.loads(gzip.decompress((data / "SQuAD_it-test.json.gz").read_bytes()))["data"]
    yield from squad_examples("squad-it", learnt(italian), 2500, is_held_out=False)
    english, spanish = articles("dev-v2.0.json"), learnt(articles("dev-v2.0-es_small.json"))
    yield from squad_examples("squad2", learnt(english), 3000, is_held_out=False)
    yield from squad_examples(
        "squad2", [article for article in english if article["title"] in titles], 800, is_held_out=True
    )
    yield from squad_examples("squad-es", spanish, 2500, is_held_out=False)
    yield from squad_examples("arcd", articles("arcd-train.json"), 700, is_held_out=False)
    for years in ("1451-1579", "1579-1792", "1792-1922"):
        yield from squad_examples("enelpi", articles(f"enelpi_{years}.json"), 800, is_held_out=False)
    thai = [json.loads(line) for line in (data / "iapp_train.jsonl").read_text(encoding="utf-8").splitlines()]
    yield from squad_examples("iapp", as_articles(thai), 3000, is_held_out=False)
    for file in range(30):
        yield from squad_examples("jaquad", articles(f"jaquad_train_{file:04d}.json"), 150, most=12, is_held_out=False)
    yield from squad_examples("drcd", articles("DRCD_test.json"), 2000, is_held_out=False)
    yield from squad_examples("cmrc", articles("cmrc2018_trial.json"), 900, is_held_out=False)


class Row:
    """An example as numbers; the vectors of words stand in one table for all."""

    def __init__(self, example: Example, place: Callable[[Words], list[int]]) -> None:
        asked = question_words(example.question)
        self.asked, self.asked_signs = place(asked), asked.signs
        self.passages = list[tuple[list[int], np.ndarray, list[tuple[int, int]], float, bool]]()
        for passage in example.passages:
            read = passage_words(example.question, passage.text)
            read = Words(*(part[:WINDOW] for part in read))
            if not read.found:
                continue
            marks = list[tuple[int, int]]()
            for start, end in passage.answers:
                inside = [at for at, match in enumerate(read.found) if match.start() < end and match.end() > start]
                marks += [(inside[0], inside[-1])] if inside else []
            is_open = passage.is_open or (bool(passage.answers) and not marks)
            self.passages.append((place(read), read.signs.astype(np.float16), marks, passage.order, is_open))
        self.is_marked = any(passage[2] for passage in self.passages)
        self.has_open = any(passage[4] for passage in self.passages)


class Network(nn.Module):
    """The network of `answer_spans._scores` in torch, for many questions: all their words in one row.

    Args:
        dim: Size of the token table's vectors.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(dim, PROJECTED, bias=False)
        self.question = nn.Linear(3 * (PROJECTED + 2), WIDTH)
        self.summary = nn.Linear(2 * WIDTH, WIDTH)
        self.sharpness, self.importance = nn.Parameter(torch.tensor(8.0)), nn.Linear(3, 1)
        self.words = nn.Linear(3 * PROJECTED + 20, WIDTH)
        self.asked = nn.Linear(WIDTH, 2 * WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in DILATIONS)
        self.convolutions = nn.ModuleList(nn.Linear(3 * WIDTH, WIDTH) for _ in DILATIONS)
        self.passage, self.told = nn.Linear(3 * WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.last = nn.LayerNorm(WIDTH)
        self.ends, self.holds = nn.Linear(WIDTH, 2), nn.Linear(2 * WIDTH, 1)
        self.nothing = nn.Sequential(nn.Linear(2 * WIDTH, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return scores of all words to begin and to end the answer, and of each question to have none."""
        count, of, question_of = batch.count, batch.of, batch.question_of
        asker = question_of[of]
        asked_projected = self.project(batch.asked)
        seen = torch.cat([asked_projected, batch.asked_signs], 1)
        hidden = functional.relu(self.question(neighbours(seen, 1, batch.asked_of)))
        total = torch.zeros(count, WIDTH).index_add(0, batch.asked_of, hidden)
        length = torch.bincount(batch.asked_of, minlength=count)[:, None]
        summary = torch.tanh(self.summary(torch.cat([highest(hidden, batch.asked_of, count), total / length], 1)))

        width = int(batch.asked_at.max()) + 1

        def padded(values: torch.Tensor, filler: float) -> torch.Tensor:
            out = torch.full((count, width, values.shape[1]), filler)
            out[batch.asked_of, batch.asked_at] = values
            return out

        vectors = padded(batch.asked, 0.0)
        sizes = torch.bincount(asker, minlength=count).tolist()
        likeness = torch.cat(
            [part @ vectors[number].T for number, part in enumerate(torch.split(batch.vectors, sizes))]
        )
        importance = padded(self.importance(torch.cat([batch.asked_norms, batch.asked_signs], 1)), -1e4)[..., 0][asker]
        attention = torch.softmax(self.sharpness * likeness + importance, 1)
        projected = self.project(batch.vectors)
        aligned = torch.bmm(attention[:, None], padded(asked_projected, 0.0)[asker])[:, 0]
        similar = [
            likeness.masked_fill(importance < -1e3, -2.0).amax(1, keepdim=True),
            batch.norms,
            (attention * likeness).sum(1, keepdim=True),
        ]
        parts = [projected, aligned, 4 * projected * aligned, batch.signs, *similar, batch.places[of]]
        x = modulate(self.words(torch.cat(parts, 1)), self.asked(summary)[asker])
        number_of_passages = len(question_of)
        for number, dilation in enumerate(DILATIONS):
            around = neighbours(self.norms[number](x), dilation, of)
            x = x + functional.relu(self.convolutions[number](around))
            if number == MIDDLE:
                best = highest(x, of, number_of_passages)
                whole = torch.cat([highest(best, question_of, count), summary], 1)[question_of]
                x = modulate(x, self.told(functional.relu(self.passage(torch.cat([best, whole], 1))))[of])
        x = self.last(x)
        best = highest(x, of, number_of_passages)
        of_passage = self.holds(torch.cat([best, best * summary[question_of]], 1))
        nothing = self.nothing(torch.cat([highest(best, question_of, count), summary], 1))[:, 0]
        begins, ends = (self.ends(x) + of_passage[of]).T
        return begins, ends, nothing


class Batch:
    """Questions as tensors: the words of all in one row, with the numbers of their passages, and those of questions.

    Args:
        rows: The questions.
        vectors: Vectors of all words, `(n, dim)`.
        norms: Their norms, `(n, 1)`.
        rng: Draws which passages and vectors a question is learnt without.
    """

    def __init__(self, rows: Sequence[Row], vectors: torch.Tensor, norms: torch.Tensor, rng: random.Random) -> None:
        asked, of, signs, places, question_of, kinds = [], [], [], [], [], []
        begins, ends, allowed, opened, ids = [], [], [], [], []
        for number, row in enumerate(rows):
            asked += [(id, number, at) for at, id in enumerate(row.asked)]
            drop = row.is_marked and rng.random() < WITHOUT_ANSWER
            keeps_open = row.has_open and not row.is_marked
            best = [(at, p) for at, p in enumerate(row.passages) if p[2] or (keeps_open and p[4])]
            others = [(at, p) for at, p in enumerate(row.passages) if not p[2] and not (keeps_open and p[4])]
            if drop:
                best, others = [], [item for item in others if not item[1][4]] or others
            rng.shuffle(others)
            chosen = sorted(best + others[: max(1 - len(best), rng.choice((1, 2, 4, 7, 10)) - len(best), 0)])
            kinds.append(2 if keeps_open else int(row.is_marked and not drop))
            orders = ranks([passage[3] for _, passage in chosen])
            for rank, (order, (_, (words, sign, marks, _, is_open))) in enumerate(zip(orders, chosen, strict=True)):
                of += [len(question_of)] * len(words)
                question_of.append(number)
                places.append((1 / (1 + rank), order))
                ids += words
                signs.append(sign)
                begin, end = np.zeros((2, len(words)), bool)
                for left, right in marks:
                    begin[left] = end[right] = True
                begins.append(begin)
                ends.append(end)
                opened.append(np.full(len(words), keeps_open and is_open))
                allowed.append(np.full(len(words), keeps_open or not is_open or bool(marks)))
        self.count = len(rows)
        self.of, self.question_of = torch.tensor(of), torch.tensor(question_of)
        asked_ids, self.asked_of, self.asked_at = torch.tensor(asked).T
        self.places = torch.tensor(places)
        with_vectors = torch.tensor([float(rng.random() >= WITHOUT_VECTORS) for _ in rows])
        with_word = (torch.rand(len(ids)) >= WITHOUT_WORD).float() * with_vectors[self.question_of[self.of]]
        self.vectors, self.norms = vectors[ids] * with_word[:, None], norms[ids]
        self.asked, self.asked_norms = vectors[asked_ids] * with_vectors[self.asked_of][:, None], norms[asked_ids]
        self.asked_signs = torch.tensor(np.concatenate([row.asked_signs for row in rows]))
        self.signs = torch.tensor(np.concatenate(signs)).float()
        self.begins, self.ends, self.opened, self.allowed = (
            torch.tensor(np.concatenate(part)) for part in (begins, ends, opened, allowed)
        )
        self.kinds = torch.tensor(kinds)


def ranks(orders: Sequence[float]) -> list[float]:
    """Return the ranks of passages from 0 for the oldest to 1 for the newest, as readers give them (`order_of`)."""
    rank_of = {order: rank / max(1, len(orders) - 1) for rank, order in enumerate(sorted(orders))}
    return [rank_of[order] for order in orders]


def modulate(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """Scale and shift rows (Perez et al. 2018, arXiv:1709.07871)."""
    scale, shift = by.chunk(2, 1)
    return x * (1 + scale) + shift


def neighbours(x: torch.Tensor, distance: int, of: torch.Tensor) -> torch.Tensor:
    """Return each row between those at a distance before and behind it in the same text, 0 if there is none."""
    before, behind = torch.zeros_like(x), torch.zeros_like(x)
    same = (of[distance:] == of[:-distance])[:, None]
    before[distance:], behind[:-distance] = x[:-distance] * same, x[distance:] * same
    return torch.cat([before, x, behind], 1)


def highest(x: torch.Tensor, of: torch.Tensor, count: int) -> torch.Tensor:
    """Return the highest value of each column over the rows of each text."""
    lowest = torch.full((count, x.shape[1]), -1e4)
    return lowest.scatter_reduce(0, of[:, None].expand_as(x), x, "amax", include_self=True)


def log_sum(x: torch.Tensor, of: torch.Tensor, count: int) -> torch.Tensor:
    """Return the logarithm of the sum of exponentials over the rows of each text."""
    top = torch.full((count,), -1e4).scatter_reduce(0, of, x, "amax")
    return top + torch.log(torch.zeros(count).index_add(0, of, torch.exp(x - top[of])) + 1e-9)


def loss_of(network: Network, batch: Batch) -> torch.Tensor:
    """Return the loss: a marked question wants its marks, an open one its passage, the others that nothing answers."""
    begins, ends, nothing = network(batch)
    asker, count, losses = batch.question_of[batch.of], batch.count, []
    weights = torch.where(batch.kinds == 2, 0.5, 1.0)
    for scores, marks in ((begins, batch.begins), (ends, batch.ends)):
        total = torch.logaddexp(log_sum(scores.masked_fill(~batch.allowed, -1e4), asker, count), nothing)
        marked = log_sum(scores.masked_fill(~marks, -1e4), asker, count)
        opened = log_sum(scores.masked_fill(~batch.opened, -1e4), asker, count)
        right = torch.where(batch.kinds == 1, marked, torch.where(batch.kinds == 2, opened, nothing))
        losses.append(((total - right) * weights).sum() / weights.sum())
    return losses[0] + losses[1]


def train(examples: Sequence[Example], steps: int, seed: int) -> dict[str, np.ndarray]:
    """Return the weights of a network that learnt the examples."""
    numbers, table = dict[str, int](), list[np.ndarray]()

    def place(read: Words) -> list[int]:
        for word, vector, norm in zip(read.found, read.vectors, read.norms, strict=True):
            if word[0].lower() not in numbers:
                numbers[word[0].lower()] = len(table)
                table.append(np.append(vector, norm))
        return [numbers[word[0].lower()] for word in read.found]

    sets = defaultdict[str, list[Row]](list)
    for example in examples:
        if (row := Row(example, place)).passages:
            sets[example.set.split()[0]].append(row)
    vectors, norms = torch.tensor(np.array(table, np.float32)).split([len(table[0]) - 1, 1], 1)
    shares = [SHARES.get(name, 0.7) * len(rows) ** 0.75 for name, rows in sets.items()]
    print(
        {
            name: (len(rows), round(share / sum(shares), 3))
            for (name, rows), share in zip(sets.items(), shares, strict=True)
        }
    )
    torch.manual_seed(seed)
    rng, network = random.Random(seed), Network(vectors.shape[1])
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.02, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 100) * (1 - step / steps))
    losses, start = list[float](), time.monotonic()
    for step in range(steps):
        rows = [rng.choice(sets[name]) for name in rng.choices(list(sets), shares, k=BATCH)]
        loss = loss_of(network, Batch(rows, vectors, norms, rng))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 2.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if (step + 1) % 200 == 0:
            print(f"step {step + 1}, {time.monotonic() - start:.0f} s, loss {mean(losses[-200:]):.3f}", flush=True)
    return {name: value.numpy().astype(np.float16) for name, value in network.state_dict().items()}


def judge(examples: Iterable[Example]) -> Iterator[str]:
    """Yield a line of figures for each set."""
    figures = defaultdict[str, dict[str, list[float]]](lambda: defaultdict(list))
    for example in examples:
        counts = figures[example.set]
        orders = ranks([passage.order for passage in example.passages])
        spans = find_answers(example.question, [passage.text for passage in example.passages], orders)
        best = max(range(len(spans)), key=lambda at: spans[at].score)
        right = [at for at, passage in enumerate(example.passages) if passage.answers]
        if right:
            counts["F1"].append(best_score("f1", spans[best].text, example.answers))
            counts["F1 of the right passage"].append(
                best_score("f1", max((spans[at] for at in right), key=lambda span: span.score).text, example.answers)
            )
            counts["right passage"].append(float(best in right))
            counts["right by search"].append(float(0 in right))
        elif not any(passage.is_open for passage in example.passages):
            counts["chance of nothing"].append(1 - sum(span.chance for span in spans))
    for name, counts in figures.items():
        yield f"{name}: " + ", ".join(f"{key} {mean(values):.3f} ({len(values)})" for key, values in counts.items())


def main() -> None:
    """Train and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=9000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    examples = list(load_examples(options.data))
    learnt = [example for example in examples if not example.is_held_out]
    networks = [train(learnt, options.steps, seed) for seed in options.seeds]
    weights = {name: np.stack([network[name] for network in networks]) for name in networks[0]}
    np.savez(options.out, allow_pickle=False, **weights)
    if options.out == WEIGHTS:
        for line in judge(example for example in examples if example.is_held_out):
            print(line)


if __name__ == "__main__":
    sys.exit(main())
