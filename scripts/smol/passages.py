"""Rows from real passages: XQuAD, HotpotQA and FriendsQA.

Used are every second article of XQuAD, the even-numbered questions of HotpotQA's training sample, and the development
episodes of FriendsQA. A chunk is a few sentences or utterances. Gold are the sentences that hold an answer, with the
title or speaker before them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from memalpha.errors import DataError
from memalpha.store.state import MemoryState
from memalpha.types import Chunk, Operation, SpeakerTurn
from smol.rows import SCHEMA, SmolRow, operation_call, reader_row, writer_row

FILES = {
    "xquad": "xquad_en/xquad.en.json",
    "hotpotqa": "hotpotqa_small/hotpotqa_train.json",
    "friendsqa": "friendsqa/friendsqa_dev.json",
}
WORDS = 32
"""Most words of a gold sentence after shortening."""
UTTERANCE_WORDS = (6, 28)
"""Words of an utterance that is worth storing."""

DIALOGUES = 0.2
"""Share of stretches that are FriendsQA's."""

_SENTENCE = re.compile(r"(?<=[a-z0-9)\]\"”%]{2}[.!?]) (?=[A-Z\"“(])")
_PARENTHESIS = re.compile(r" ?\([^()]*\)| ?\[[^\[\]]*\]")
_BREAK = re.compile(r"(?:;|, (?:while|which|who|whose|where|but|although|because|with|as|and|making|including)\b)")
_TOKENISED = ((r" ([,.!?;:%)])", r"\1"), (r"([(]) ", r"\1"), (r" (n't|'[a-z]+|na\b|ta\b)", r"\1"), (r"\s+", " "))


@dataclass(frozen=True, slots=True)
class Passage:
    """Hold turns of a text and its questions: (question, answer, index of the turn that holds it)."""

    turns: tuple[SpeakerTurn, ...]
    questions: tuple[tuple[str, str, int], ...]
    category: str = "semantic"


def load_passages(folder: Path) -> list[Passage]:
    """Load the passages of all three sets.

    Args:
        folder: Folder with the files of `FILES`.

    Raises:
        DataError: A file is missing; names it and the option that leaves the passages out.
    """
    for path in FILES.values():
        if not (folder / path).is_file():
            raise DataError(f"{folder / path}: missing; give its folder with --data, or use --without-passages")
    texts = {name: json.loads((folder / path).read_text(encoding="utf-8")) for name, path in FILES.items()}
    return [*_xquad(texts["xquad"]), *_hotpotqa(texts["hotpotqa"]), *_friendsqa(texts["friendsqa"])]


def passage_rows(passages: Sequence[Passage], seed: int, index: int) -> Iterator[SmolRow]:
    """Yield the writer row of a stretch of one passage, and a reader row at times.

    Args:
        passages: All passages.
        seed: Seed of the rows.
        index: Number of the row.
    """
    rng = Random(f"smol|passages|{seed}|{index}")
    category = "episodic" if rng.random() < DIALOGUES else "semantic"
    passage = rng.choice([item for item in passages if item.category == category] or passages)
    is_dialogue = passage.category == "episodic"
    size = rng.randint(2, 6) if is_dialogue else rng.randint(1, 3)
    start = rng.randrange(max(1, len(passage.turns) - size + 1))
    turns = passage.turns[start : start + size]
    facts: dict[int, str] = {}
    for _, answer, turn in passage.questions:
        if start <= turn < start + size and turn not in facts:
            fact = gold_sentence(passage, turn)
            if fact is not None and answer.lower() in fact.lower():
                facts[turn] = fact
    others = _other_facts(passages, passage, rng, rng.randint(0, 5))
    state = _stored(others)
    if facts or is_dialogue:  # a stretch of an article without a question holds facts all the same
        gold = [Operation("insert", category=passage.category, content=facts[turn]) for turn in sorted(facts)]
        chunk = Chunk(turns=turns) if is_dialogue else Chunk(text=_article_text(turns))
        if len(gold) <= 3:
            yield writer_row("passages", chunk, state.list(), [operation_call(operation) for operation in gold])
    if rng.random() < 0.4 and facts:
        turn = rng.choice(sorted(facts))
        pairs = [(question, answer) for question, answer, at in passage.questions if at == turn]
        question, answer = rng.choice([pair for pair in pairs if pair[1].lower() in facts[turn].lower()] or [("", "")])
        if question:
            contents = [content for _, content in _other_facts(passages, passage, rng, rng.randint(0, 6))]
            is_answerable = rng.random() < 0.85
            contents += [facts[turn]] if is_answerable else []
            rng.shuffle(contents)
            notes = _stored([(passage.category, content) for content in contents]).list()
            yield reader_row("passages", question, notes, answer if is_answerable else "unknown")


def gold_sentence(passage: Passage, turn: int) -> str | None:
    """Return the entry for one turn: title or speaker, then the sentence without parentheses and trailing clauses.

    Args:
        passage: Passage of the turn.
        turn: Index of the turn.

    Returns:
        The content, or None if the sentence stays too long or is too short.
    """
    item = passage.turns[turn]
    answers = [answer for _, answer, at in passage.questions if at == turn]
    text = item.text.strip()
    plain = " ".join(_PARENTHESIS.sub("", text).split())
    if all(answer.lower() in plain.lower() for answer in answers):
        text = plain
    end = max((text.lower().rfind(answer.lower()) + len(answer) for answer in answers), default=0)
    cut = next((m.start() for m in _BREAK.finditer(text) if m.start() >= max(end, 20)), None)
    if cut is not None:
        text = text[:cut].rstrip(" ,;") + "."
    count = len(text.split())
    low, high = UTTERANCE_WORDS if passage.category == "episodic" else (4, WORDS)
    if not low <= count <= high:
        return None
    return text if text.startswith(item.speaker) else f"{item.speaker}: {text}"


def _article_text(turns: Sequence[SpeakerTurn]) -> str:
    return f"{turns[0].speaker}: " + " ".join(turn.text.strip() for turn in turns)


def _other_facts(passages: Sequence[Passage], passage: Passage, rng: Random, count: int) -> list[tuple[str, str]]:
    facts = []
    for other in rng.sample(passages, min(count, len(passages))):
        if other is passage or not other.questions or other.turns[0].speaker == passage.turns[0].speaker:
            continue
        fact = gold_sentence(other, rng.choice(other.questions)[2])
        if fact is not None:
            facts.append((other.category, fact))
    return facts


def _stored(facts: Sequence[tuple[str, str]]) -> MemoryState:
    state = MemoryState.empty(SCHEMA, unique_contents=True)
    for category, content in dict.fromkeys(facts):
        state = state.apply(Operation("insert", category=category, content=content))
    return state


def _passage(title: str, sentences: Sequence[str], questions: Sequence[tuple[str, str, int]]) -> Passage:
    return Passage(tuple(SpeakerTurn(speaker=title, text=text) for text in sentences), tuple(questions))


def _xquad(data: dict) -> Iterator[Passage]:
    for article in data["data"][::2]:
        title = article["title"].replace("_", " ")
        for paragraph in article["paragraphs"]:
            sentences = _SENTENCE.split(paragraph["context"])
            ends, position = [], 0
            for sentence in sentences:
                position += len(sentence) + 1
                ends.append(position)
            questions = []
            for qa in paragraph["qas"]:
                answer = qa["answers"][0]
                turn = next(number for number, end in enumerate(ends) if answer["answer_start"] < end)
                if answer["text"] in sentences[turn]:
                    questions.append((qa["question"].strip(), answer["text"], turn))
            yield _passage(title, sentences, questions)


def _hotpotqa(questions: list) -> Iterator[Passage]:
    for item in questions[::2]:
        for title, sentences in item["context"]:
            support = [number for name, number in item["supporting_facts"] if name == title and number < len(sentences)]
            if not support:
                continue
            pairs = []
            for number in support:
                text = sentences[number]
                has_answer = item["answer"].lower() in text.lower() and title.lower() not in item["answer"].lower()
                pairs.append((item["question"] if has_answer else "", item["answer"] if has_answer else "", number))
            yield _passage(title, sentences[:5], [pair for pair in pairs if pair[2] < 5])


def _friendsqa(data: dict) -> Iterator[Passage]:
    for scene in data["data"]:
        for paragraph in scene["paragraphs"]:
            utterances = [item for item in paragraph["utterances:"] if item["speakers"] != ["#NOTE#"]]
            numbers = {item["uid"]: number for number, item in enumerate(utterances)}
            turns = tuple(
                SpeakerTurn(speaker=", ".join(item["speakers"]), text=detokenise(item["utterance"]))
                for item in utterances
            )
            questions = []
            for qa in paragraph["qas"]:
                answer = qa["answers"][0]
                turn = numbers.get(answer["utterance_id"])
                text = detokenise(answer["answer_text"]).strip(" ,.;")
                if turn is not None and text in turns[turn].text and len(text) > 2:
                    questions.append((detokenise(qa["question"]), text, turn))
            if turns:
                yield Passage(turns, tuple(questions), "episodic")


def detokenise(text: str) -> str:
    """Undo the blanks of a tokenised text: `You 're gon na go !` becomes `You're gonna go!`."""
    for pattern, replacement in _TOKENISED:
        text = re.sub(pattern, replacement, text)
    return text.strip()
