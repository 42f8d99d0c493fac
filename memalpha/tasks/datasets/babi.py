"""bAbI (Weston et al. 2015, arXiv 1502.05698): stories of the official splits, woven into streams of tasks.

The official files of tasks 1, 2, 6, 8, 9, 11, 12 and 13 come with the package, unmodified (`memalpha/data/babi`, CC BY
3.0); a folder of your own works too. `BabiStory` reads the official sentences (moves, things taken and put down,
negation, "Afterwards she", "Then they", "X and Y") and derives every answer from them. So official answers are checked
when the files are read, and the answers of renamed, joined stories are known.

It also holds the entries of a perfect memory. There is one for each person, `mary: kitchen; has football, milk` (or
`mary: not kitchen`, `mary: has milk`, `mary: has nothing`). There is one for each thing that lies somewhere, `football:
kitchen`. So every question is answered by one entry.

A stream weaves several stories together. The people and things of each story get new names, so that no story
contradicts another. A question is asked when the statements before it have been read. Some questions are asked again at
the end of the stream, with the answer that holds then.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Literal

from memalpha.config import BabiConfig
from memalpha.errors import DataError
from memalpha.tasks.dataset_info import shipped_card
from memalpha.tasks.synthetic.phrases import words
from memalpha.types import Chunk, GoldOperation, Question, SpeakerTurn, Task

Split = Literal["train", "validation", "test"]

DATA = shipped_card("babi")

VALIDATION_SHARE = 0.2
"""Share at the end of each official training file that is split "validation"."""
MAX_STATEMENTS = 4
"""Most statements of one story in a chunk."""
CONCURRENT_STORIES = 2
"""Stories told at the same time, a piece of each in every chunk; when one ends, the next begins."""
REPEATED_QUESTIONS = 4
"""Questions of each story that are asked again at the end of the stream."""
SPEAKER = "story"

FEMALE = words(
    "Mary Sandra Julie Alice Anna Carol Clara Diana Donna Ellen Emma Grace Helen Irene Jane Karen Laura Linda Nancy "
    "Olga Paula Rita Ruth Susan"
)
MALE = words(
    "John Daniel Bill Fred Jeff Adam Alan Brian Carl David Eric Frank George Henry Ivan James Kevin Leo Mark Oscar "
    "Paul Peter Robert Simon"
)
THINGS = words(
    "football milk apple book lamp hammer basket pencil orange bottle ticket letter candle mirror ladder guitar camera "
    "blanket umbrella towel"
)
"""Names for the people and things of a stream; all splits share them, their stories differ."""

_LINE = re.compile(r"(\d+) (.*)")
_EVIDENCE = re.compile(r"\d+( \d+)*")


@dataclass(frozen=True, slots=True)
class StoryQuestion:
    """Hold an official question: line number, text, answer as in the file, supporting lines."""

    line: int
    text: str
    answer: str
    evidence: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Story:
    """Hold one official story: statements by line number, and questions.

    `name` is its file and line.
    """

    task: int
    name: str
    statements: tuple[tuple[int, str], ...]
    questions: tuple[StoryQuestion, ...]


# ------------------------------------------------------------------------------------------------- the world of a story

WOMEN = ("Mary", "Sandra", "Julie")
MEN = ("John", "Daniel", "Bill", "Fred", "Jeff")
NOTHING = "nothing"
PRONOUNS = ("he", "she", "they")

_SEQUENCE_WORDS = r"(?:Then|Afterwards|After that|Following that) "
MOVE = re.compile(
    rf"(?:{_SEQUENCE_WORDS})?(?P<who>[A-Z]\w*(?: and [A-Z]\w*)?|he|she|they) "
    r"(?:went back|went|travelled|journeyed|moved) to the (?P<place>\w+)\."
)
IS = re.compile(r"(?P<who>[A-Z]\w*) is (?P<no>no longer |not )?in the (?P<place>\w+)\.")
TAKE = re.compile(r"(?P<who>[A-Z]\w*) (?:grabbed|got|picked up|took) the (?P<thing>\w+)(?: there)?\.")
DROP = re.compile(r"(?P<who>[A-Z]\w*) (?:dropped|put down|left|discarded) the (?P<thing>\w+)(?: there)?\.")
"""Every statement of the eight tasks; `who` may be a pronoun or "X and Y" in moves."""

ASK_PLACE = re.compile(r"Where is (?:the )?(?P<what>\w+)\?")
ASK_WHETHER = re.compile(r"Is (?P<who>\w+) in the (?P<place>\w+)\?")
ASK_CARRIED = re.compile(r"What is (?P<who>\w+) carrying\?")


class UnreadableStatement(ValueError):
    """A sentence that this world does not know, or that cannot be true in it."""


def handled_thing(text: str) -> str | None:
    """Return the thing that a statement says is taken or put down, or None."""
    match = TAKE.fullmatch(text) or DROP.fullmatch(text)
    return match["thing"] if match else None


@dataclass(frozen=True, slots=True)
class StoryAnswer:
    """Hold the answer to a question.

    Attributes:
        answers: Every accepted form; the first is canonical.
        slot: Entry that is asked for.
        places: Locations so far, the current one first, each once.
        earlier: Answers that held before and do not hold now.
        evidence: Numbers of the supporting statements.
    """

    answers: tuple[str, ...]
    slot: str
    places: tuple[str, ...]
    earlier: tuple[str, ...]
    evidence: tuple[int, ...]


@dataclass(slots=True)
class _Entity:
    """Hold a person or thing, its location, and the statements that say so."""

    location: str | None = None
    absent_from: str | None = None
    statement_line: int = 0
    location_history: list[str] = field(default_factory=list)
    carried: list[str] = field(default_factory=list)
    carried_history: list[str] = field(default_factory=list)
    handling_lines: list[int] = field(default_factory=list)
    holder: str | None = None
    is_person: bool = False


class BabiStory:
    """Follow one story: `tell` it statement by statement, `ask` at any point."""

    def __init__(self) -> None:
        self._things: dict[str, _Entity] = {}
        self._last: tuple[str, ...] = ()

    def tell(self, text: str, line: int) -> None:
        """Apply the statement number `line`. Raises `UnreadableStatement`."""
        if match := MOVE.fullmatch(text):
            for name in self._resolve_people(match["who"]):
                self._move(name, match["place"], line)
        elif match := IS.fullmatch(text):
            [name] = self._resolve_people(match["who"])
            if not match["no"]:
                self._move(name, match["place"], line)
            else:
                self._move(name, None, line)
                self._things[name].absent_from = match["place"]
        elif match := TAKE.fullmatch(text):
            self._take(self._resolve_people(match["who"])[0], match["thing"], line)
        elif match := DROP.fullmatch(text):
            self._drop(self._resolve_people(match["who"])[0], match["thing"], line)
        else:
            raise UnreadableStatement(f"{text!r} is no statement of the tasks that are known here")

    def ask(self, question: str) -> StoryAnswer | None:
        """Return the answer that follows from the statements so far, or None. Raises `UnreadableStatement`."""
        if match := ASK_PLACE.fullmatch(question):
            return self._answer_location(match["what"])
        if match := ASK_WHETHER.fullmatch(question):
            return self._answer_yes_no(match["who"], match["place"])
        if match := ASK_CARRIED.fullmatch(question):
            return self._answer_carried(match["who"])
        raise UnreadableStatement(f"{question!r} is no question of the tasks that are known here")

    def entries(self) -> dict[str, str]:
        """Return the entries of a perfect memory by slot."""
        return {
            name.lower(): f"{name.lower()}: {content}"
            for name, thing in self._things.items()
            if (content := _entry_content(thing))
        }

    def _resolve_people(self, subject: str) -> tuple[str, ...]:
        if subject in PRONOUNS:
            if len(self._last) != (2 if subject == "they" else 1):
                raise UnreadableStatement(f"{subject!r} refers to nobody")
        else:
            self._last = tuple(subject.split(" and "))
        return self._last

    def _person(self, name: str) -> _Entity:
        person = self._things.setdefault(name, _Entity())
        person.is_person = True
        return person

    def _move(self, name: str, location: str | None, line: int) -> None:
        """Move a person, and all that the person carries, to a location (None: unknown)."""
        person = self._person(name)
        for thing in (person, *(self._things[name_of_thing] for name_of_thing in person.carried)):
            thing.location, thing.absent_from, thing.statement_line = location, None, line
            thing.location_history += [location] if location else []

    def _take(self, name: str, thing_name: str, line: int) -> None:
        person, thing = self._person(name), self._things.setdefault(thing_name, _Entity())
        if thing.holder is not None:
            raise UnreadableStatement(f"{name} takes the {thing_name}, which {thing.holder} holds")
        if person.location is None and thing.location is not None:
            self._move(name, thing.location, line)
        elif thing.location not in (None, person.location):
            raise UnreadableStatement(f"{name} takes the {thing_name}, which is elsewhere")
        thing.holder, thing.location, thing.handling_lines = name, person.location, [line]
        thing.statement_line = person.statement_line
        if person.location:
            thing.location_history.append(person.location)
        self._set_carried(person, [*person.carried, thing_name], line)

    def _drop(self, name: str, thing_name: str, line: int) -> None:
        person = self._person(name)
        if thing_name not in person.carried:
            raise UnreadableStatement(f"{name} puts down the {thing_name} without holding it")
        thing = self._things[thing_name]
        thing.holder, thing.handling_lines = None, [line]
        self._set_carried(person, [carried_name for carried_name in person.carried if carried_name != thing_name], line)

    def _set_carried(self, person: _Entity, holds: list[str], line: int) -> None:
        person.carried = holds
        person.carried_history.append(_join_names(holds))
        person.handling_lines.append(line)

    def _answer_location(self, name: str) -> StoryAnswer | None:
        thing = self._things.get(name)
        if thing is None or thing.location is None:
            return None
        lines = {thing.statement_line} if thing.is_person else {*thing.handling_lines, thing.statement_line}
        return _build_reply((thing.location,), name, thing, thing.location_history, lines)

    def _answer_yes_no(self, name: str, location: str) -> StoryAnswer | None:
        person = self._things.get(name)
        if person is None or (person.location is None and person.absent_from != location):
            return None
        answer = "yes" if person.location == location else "no"
        return _build_reply((answer,), name, person, [], {person.statement_line})

    def _answer_carried(self, name: str) -> StoryAnswer | None:
        person = self._things.get(name)
        if person is None or not person.handling_lines:
            return None
        answers = tuple(map(_join_names, permutations(person.carried)))
        return _build_reply(answers, name, person, person.carried_history, set(person.handling_lines))


def _build_reply(
    answers: tuple[str, ...], name: str, thing: _Entity, history: list[str], lines: set[int]
) -> StoryAnswer:
    current = [thing.location] if thing.location else []
    places: dict[str, None] = dict.fromkeys(current + thing.location_history[::-1])
    earlier = dict.fromkeys(value for value in history if value not in answers)
    return StoryAnswer(answers, name.lower(), tuple(places), tuple(earlier), tuple(sorted(lines)))


def _join_names(things: list[str] | tuple[str, ...]) -> str:
    return ", ".join(things) or NOTHING


def _entry_content(thing: _Entity) -> str | None:
    """Return the content of the entry of a person or thing, or None."""
    if not thing.is_person:
        return thing.location if thing.holder is None else None
    location = thing.location or (f"not {thing.absent_from}" if thing.absent_from else "")
    if location and not thing.carried:
        return location
    has = f"has {_join_names(thing.carried)}"
    return f"{location}; {has}" if location else has


# ------------------------------------------------------------------------------------------------------ official files


def read_file(path: Path, task: int) -> tuple[Story, ...]:
    """Read the stories of an official file, plain or gzip; each answer is derived again.

    Raises:
        DataError: A line does not fit, or an answer does not follow; the message names file and line.
    """
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a bAbI file ({error})") from error
    stories: list[Story] = []
    statements: list[tuple[int, str]] = []
    questions: list[StoryQuestion] = []
    world, first_line = BabiStory(), 1

    def finish() -> None:
        if statements:
            stories.append(Story(task, f"{path.name}:{first_line}", tuple(statements), tuple(questions)))

    for number, line in enumerate(text.splitlines(), 1):
        location = f"{path}:{number}"
        if (match := _LINE.fullmatch(line)) is None:
            raise DataError(f"{location}: not '<number> <text>': {line[:60]!r}")
        line_number, text_after_number = int(match[1]), match[2]
        if line_number == 1:
            finish()
            statements, questions, world, first_line = [], [], BabiStory(), number
        elif line_number != _last_line(statements, questions) + 1:
            raise DataError(
                f"{location}: line {line_number} of a story follows its line {_last_line(statements, questions)}"
            )
        fields = [text_field.strip() for text_field in text_after_number.replace("|", "\t").split("\t")]
        try:
            if len(fields) == 1:
                world.tell(fields[0], line_number)
                statements.append((line_number, fields[0]))
            else:
                statement_lines = {line for line, _ in statements}
                questions.append(story_question := _parse_question(line_number, fields, statement_lines, location))
                _check_answer(story_question, world.ask(story_question.text), location)
        except UnreadableStatement as error:
            raise DataError(f"{location}: {error}") from error
    finish()
    if not stories:
        raise DataError(f"{path}: no story in it")
    return tuple(stories)


def _last_line(statements: Sequence[tuple[int, str]], questions: Sequence[StoryQuestion]) -> int:
    return max([0, *(line for line, _ in statements[-1:]), *(question.line for question in questions[-1:])])


def _parse_question(line: int, fields: Sequence[str], statement_lines: set[int], location: str) -> StoryQuestion:
    if len(fields) != 3 or not all(fields) or not _EVIDENCE.fullmatch(fields[2]):
        raise DataError(f"{location}: a question is 'text, answer, supporting line numbers', parted by tabs")
    evidence = tuple(map(int, fields[2].split()))
    if not statement_lines.issuperset(evidence):
        raise DataError(f"{location}: supporting lines {fields[2]!r} are not all statements before it in the story")
    return StoryQuestion(line, fields[0], fields[1], evidence)


def _check_answer(question: StoryQuestion, reply: StoryAnswer | None, location: str) -> None:
    """Refuse an official answer that does not follow from the statements.

    Lists may have any order.
    """
    official = ", ".join(question.answer.split(","))
    if reply is None or official not in reply.answers:
        derived = "nothing follows" if reply is None else f"{reply.answers[0]!r} follows"
        raise DataError(
            f"{location}: the answer to {question.text!r} is given as {official!r}, but {derived} from the statements"
        )


def stories(config: BabiConfig, split: Split) -> tuple[Story, ...]:
    """Return all stories of a split, of all tasks of `config`.

    Splits "train" and "validation" share the official training files.

    Raises:
        DataError: A file is missing or does not fit.
    """
    selected: list[Story] = []
    for task in config.tasks:
        official = _read_official(task, "test" if split == "test" else "train", config.folder)
        cut = len(official) if split == "test" else len(official) - round(len(official) * VALIDATION_SHARE)
        selected += official[cut:] if split == "validation" else official[:cut]
    return tuple(selected)


@lru_cache(maxsize=64)
def _read_official(task: int, file_split: str, folder: str | None) -> tuple[Story, ...]:
    with ExitStack() as stack:
        if folder is None:
            root = stack.enter_context(resources.as_file(resources.files("memalpha") / "data" / "babi"))
        else:
            root = Path(folder)
        paths = [*root.glob(f"qa{task}_*_{file_split}.txt"), *root.glob(f"qa{task}_*_{file_split}.txt.gz")]
        if len(paths) != 1:
            raise DataError(
                f"babi: {len(paths)} files qa{task}_*_{file_split}.txt (or .txt.gz) in {root}: give the folder of the "
                "official English files (tasks_1-20_v1-2/en)"
            )
        return read_file(paths[0], task)


# ------------------------------------------------------------------------------------------------------------- streams


def load(
    path: Path | None,
    variant: str | None = None,
    limit: int | None = None,
    *,
    seed: int = 0,
    streams_of: BabiConfig | None = None,
    split: Split = "test",
) -> list[Task]:
    """Return streams that use every story of the split once.

    Args:
        path: Folder of the official files; None reads the files that ship.
        variant: Not used, bAbI has no variants.
        limit: Return the first `limit` streams only.
        seed: Seed of the order of stories and of the new names.
        streams_of: Task numbers and stories per stream; default: `BabiConfig()`.
        split: "test", or a part of the official training files: "train" or "validation".
    """
    config = streams_of or BabiConfig()
    if path is not None:
        config = config.model_copy(update={"folder": str(path)})
    count = streams_per_epoch(config, split)
    return streams(config, split, seed, 0, count if limit is None else min(limit, count))


def stream(config: BabiConfig, split: Split, seed: int, index: int) -> Task:
    """Build stream number `index` of a split; equal arguments give equal bytes.

    Each epoch over the split uses every story once, in a new order.

    Args:
        config: Task numbers, stories per stream, folder.
        split: "train", "validation" or "test".
        seed: Seed of the order and of the new names.
        index: Number of the stream, from 0.

    Raises:
        DataError: The split has too few stories for a stream, or the names run out.
    """
    split_stories = stories(config, split)
    size = len(split_stories) // config.stories
    if not size:
        raise DataError(f"babi: stories={config.stories} is more than the {len(split_stories)} of split {split}")
    epoch, offset = divmod(index, size)
    order = list(range(len(split_stories)))
    Random(f"babi|{split}|{seed}|{epoch}").shuffle(order)
    stream_stories = [split_stories[i] for i in order[offset * config.stories : (offset + 1) * config.stories]]
    return weave(stream_stories, Random(f"babi|{split}|{seed}|{epoch}|{offset}"), f"babi-{split}-{seed}-{index}")


def streams(config: BabiConfig, split: Split, seed: int, start: int, count: int) -> list[Task]:
    """Build streams `start` to `start + count - 1`.

    Args:
        config: Task numbers, stories per stream, folder.
        split: "train", "validation" or "test".
        seed: Seed of the order and of the new names.
        start: Number of the first stream.
        count: Number of streams.
    """
    return [stream(config, split, seed, index) for index in range(start, start + count)]


def streams_per_epoch(config: BabiConfig, split: Split = "test") -> int:
    """Return the number of streams that use every story of the split once.

    A rest that fills no stream is left out.
    """
    return len(stories(config, split)) // config.stories


def weave(stream_stories: Sequence[Story], rng: Random, task_id: str) -> Task:
    """Weave stories into one task, `CONCURRENT_STORIES` at a time.

    Args:
        stream_stories: Stories of the stream.
        rng: Source of randomness for names and order.
        task_id: Id of the task.
    """
    names = _draw_names(stream_stories, rng)
    readers = [
        _StoryReader(number, story, mapping)
        for number, (story, mapping) in enumerate(zip(stream_stories, names, strict=True))
    ]
    chunks: list[Chunk] = []
    questions: list[Question] = []
    operations: list[GoldOperation] = []
    while running := [reader for reader in readers if reader.pieces][:CONCURRENT_STORIES]:
        index, turns = len(chunks), []
        for reader in rng.sample(running, len(running)):
            piece = reader.pieces.pop(0)
            turns += [SpeakerTurn(speaker=SPEAKER, text=text, id=reader.turn_id(line)) for line, text in piece]
            operations += reader.read(piece, index)
            questions += reader.questions_after(piece[-1][0], index)
        chunks.append(Chunk(turns=tuple(turns), index=index))
    for reader in readers:
        questions += reader.repeated_questions(rng, len(chunks) - 1)
    meta = {"stories": [story.name for story in stream_stories], "names": names}
    return Task(
        id=task_id, chunks=tuple(chunks), questions=tuple(questions), gold_operations=tuple(operations), meta=meta
    )


def _draw_names(stream_stories: Sequence[Story], rng: Random) -> list[dict[str, str]]:
    """Draw new names of people and things for each story; no two stories share one."""
    pools = {kind: rng.sample(pool, len(pool)) for kind, pool in (("f", FEMALE), ("m", MALE), ("t", THINGS))}
    names: list[dict[str, str]] = []
    for story in stream_stories:
        mapping: dict[str, str] = {}
        for word, kind in _cast(story):
            if not pools[kind]:
                raise DataError(
                    f"babi: stories={len(stream_stories)} need more names of people or things than there are"
                )
            mapping[word] = pools[kind].pop()
        names.append(mapping)
    return names


def _cast(story: Story) -> list[tuple[str, str]]:
    """Return the people (f, m) and things (t) of a story in order of appearance."""
    words_in_order = dict.fromkeys(word for _, text in story.statements for word in re.findall(r"\w+", text))
    people = [(word, "f" if word in WOMEN else "m") for word in words_in_order if word in WOMEN or word in MEN]
    things = dict.fromkeys(thing for _, text in story.statements if (thing := handled_thing(text)))
    return [*people, *((word, "t") for word in things)]


class _StoryReader:
    """Read a renamed story, piece by piece, into a stream."""

    def __init__(self, number: int, story: Story, names: Mapping[str, str]) -> None:
        self.number, self.story, self.names = number, story, names
        self.world = BabiStory()
        self._word = re.compile(r"\b(?:" + "|".join(map(re.escape, names)) + r")\b")
        self.pieces = [[(line, self.rename(text)) for line, text in piece] for piece in _pieces(story)]

    def rename(self, text: str) -> str:
        return self._word.sub(lambda match: self.names[match[0]], text)

    def turn_id(self, line: int) -> str:
        return f"{self.number}:{line}"

    def read(self, piece: Sequence[tuple[int, str]], chunk: int) -> list[GoldOperation]:
        """Return a perfect memory's operations for this piece.

        There is one an entry, in the order of its last change.
        """
        entries_before, last_change = self.world.entries(), {}
        for line, text in piece:
            before = self.world.entries()
            self.world.tell(text, line)
            after = self.world.entries()
            for slot in {**before, **after}:
                if before.get(slot) != after.get(slot):
                    last_change.pop(slot, None)
                    last_change[slot] = line
        entries_after = self.world.entries()
        return [
            _operation(entries_before.get(slot), entries_after.get(slot), chunk, self.turn_id(line))
            for slot, line in last_change.items()
            if entries_before.get(slot) != entries_after.get(slot)
        ]

    def questions_after(self, line: int, chunk: int) -> Iterator[Question]:
        """Yield the official questions that follow the statement `line`."""
        later = [number for number, _ in self.story.statements if number > line]
        for story_question in self.story.questions:
            if line < story_question.line < min(later, default=story_question.line + 1):
                reply = self.world.ask(self.rename(story_question.text))
                if reply is None or self.rename(", ".join(story_question.answer.split(","))) not in reply.answers:
                    raise DataError(
                        f"babi: {self.story.name}, line {story_question.line}: its answer is lost by new names"
                    )
                yield self._question(
                    f"{self.number}:{story_question.line}", story_question.text, reply, story_question.evidence, chunk
                )

    def repeated_questions(self, rng: Random, chunk: int) -> Iterator[Question]:
        """Yield some of the questions again, with the answer at the end of the story."""
        texts = list(dict.fromkeys(question.text for question in self.story.questions))
        replies = [(text, reply) for text in texts if (reply := self.world.ask(self.rename(text)))]
        for number, (text, reply) in enumerate(rng.sample(replies, min(REPEATED_QUESTIONS, len(replies)))):
            yield self._question(f"{self.number}:again{number}", text, reply, reply.evidence, chunk)

    def _question(self, id: str, text: str, reply: StoryAnswer, evidence: Sequence[int], chunk: int) -> Question:
        return Question(
            id=id,
            question=self.rename(text),
            answers=reply.answers,
            category=f"qa{self.story.task}",
            evidence=tuple(map(self.turn_id, evidence)),
            asked_after_chunk=chunk,
            meta={
                "slot": reply.slot,
                "kind": "updated" if len(reply.places) > 1 or reply.earlier else "stated",
                "stale": list(reply.earlier),
                "values": list(reply.places),
            },
        )


def _pieces(story: Story) -> list[list[tuple[int, str]]]:
    """Split the statements into pieces that end before a question or after `MAX_STATEMENTS`.

    No piece begins with "Then she …": the pronoun belongs to the statement before.
    """
    pieces: list[list[tuple[int, str]]] = []
    question_lines = {question.line for question in story.questions}
    for line, text in story.statements:
        refers = re.match(r"(Then|Afterwards|After that|Following that) ", text)
        if pieces and (refers or (line - 1 not in question_lines and len(pieces[-1]) < MAX_STATEMENTS)):
            pieces[-1].append((line, text))
        else:
            pieces.append([(line, text)])
    return pieces


def _operation(old_content: str | None, new_content: str | None, chunk: int, turn: str) -> GoldOperation:
    kind: Literal["insert", "update", "delete"]
    kind = "insert" if old_content is None else "delete" if new_content is None else "update"
    return GoldOperation(
        kind=kind, chunk=chunk, category="semantic", content=new_content or "", replaces=old_content, turn=turn
    )
