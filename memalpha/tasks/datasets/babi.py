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
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

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


class StoryQuestion(NamedTuple):
    """Hold an official question: line number, text, answer (a list has ", " between its items), supporting lines."""

    line: int
    text: str
    answer: str
    evidence: tuple[int, ...]


class Story(NamedTuple):
    """Hold one official story: statements by line number, and questions.

    `name` is its file and line.
    """

    task: int
    name: str
    statements: Sequence[tuple[int, str]]
    questions: Sequence[StoryQuestion]


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


class StoryAnswer(NamedTuple):
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

    @property
    def content(self) -> str | None:
        """Content of its entry, or None."""
        if not self.is_person:
            return self.location if self.holder is None else None
        location = self.location or (f"not {self.absent_from}" if self.absent_from else "")
        if location and not self.carried:
            return location
        has = f"has {_join_names(self.carried)}"
        return f"{location}; {has}" if location else has


class BabiStory:
    """Follow one story: `tell` it statement by statement, `ask` at any point."""

    def __init__(self) -> None:
        self._things: defaultdict[str, _Entity] = defaultdict(_Entity)
        self._last: tuple[str, ...] = ()

    def tell(self, text: str, line: int) -> None:
        """Apply the statement number `line`. Raises `UnreadableStatement`."""
        match = _match(text, (MOVE, IS, TAKE, DROP), "statement")
        if match["who"] not in PRONOUNS:
            self._last = tuple(match["who"].split(" and "))
        elif len(self._last) != (2 if match["who"] == "they" else 1):
            raise UnreadableStatement(f"{match['who']!r} refers to nobody")
        for name in self._last:
            self._things[name].is_person = True
            if match.re in (TAKE, DROP):
                thing_name = match["thing"]
                person, thing = self._things[name], self._things[thing_name]
                if match.re is TAKE:
                    if thing.holder is not None:
                        raise UnreadableStatement(f"{name} takes the {thing_name}, which {thing.holder} holds")
                    if person.location is None and thing.location is not None:
                        self._move(name, thing.location, line)
                    elif thing.location not in (None, person.location):
                        raise UnreadableStatement(f"{name} takes the {thing_name}, which is elsewhere")
                    thing.holder, thing.location, thing.statement_line = name, person.location, person.statement_line
                    thing.location_history += [person.location] if person.location else []
                    person.carried = [*person.carried, thing_name]
                elif thing_name not in person.carried:
                    raise UnreadableStatement(f"{name} puts down the {thing_name} without holding it")
                else:
                    thing.holder, person.carried = None, [item for item in person.carried if item != thing_name]
                thing.handling_lines = [line]
                person.handling_lines.append(line)
                person.carried_history.append(_join_names(person.carried))
            elif match.re is IS and match["no"]:
                self._move(name, None, line)
                self._things[name].absent_from = match["place"]
            else:
                self._move(name, match["place"], line)

    def ask(self, question: str) -> StoryAnswer | None:
        """Return the answer that follows from the statements so far, or None. Raises `UnreadableStatement`."""
        match = _match(question, (ASK_PLACE, ASK_WHETHER, ASK_CARRIED), "question")
        thing = self._things.get(match[1], _Entity())
        history, lines = list[str](), [thing.statement_line]
        if match.re is ASK_CARRIED:
            is_known, answers = bool(thing.handling_lines), tuple(map(_join_names, permutations(thing.carried)))
            history, lines = thing.carried_history, thing.handling_lines
        elif match.re is ASK_WHETHER:
            is_known = thing.location is not None or thing.absent_from == match["place"]
            answers = ("yes" if thing.location == match["place"] else "no",)
        else:
            is_known, answers, history = thing.location is not None, (thing.location or "",), thing.location_history
            lines += [] if thing.is_person else thing.handling_lines
        if not is_known:
            return None
        current = [thing.location] if thing.location else []
        places = dict.fromkeys(current + thing.location_history[::-1])
        earlier = dict.fromkeys(value for value in history if value not in answers)
        return StoryAnswer(answers, match[1].lower(), tuple(places), tuple(earlier), tuple(sorted(set(lines))))

    def entries(self) -> dict[str, str]:
        """Return the entries of a perfect memory by slot."""
        contents = {name.lower(): thing.content for name, thing in self._things.items()}
        return {slot: f"{slot}: {content}" for slot, content in contents.items() if content}

    def _move(self, name: str, location: str | None, line: int) -> None:
        """Move a person, and all that the person carries, to a location (None: unknown)."""
        for thing in (self._things[moved] for moved in (name, *self._things[name].carried)):
            thing.location, thing.absent_from, thing.statement_line = location, None, line
            thing.location_history += [location] if location else []


def _match(text: str, patterns: Iterable[re.Pattern[str]], kind: str) -> re.Match[str]:
    for pattern in patterns:
        if match := pattern.fullmatch(text):
            return match
    raise UnreadableStatement(f"{text!r} is no {kind} of the tasks that are known here")


def _join_names(things: Sequence[str]) -> str:
    return ", ".join(things) or NOTHING


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
    statements, questions, world, last = list[tuple[int, str]](), list[StoryQuestion](), BabiStory(), 0
    for number, line in enumerate(text.splitlines(), 1):
        location = f"{path}:{number}"
        if (match := _LINE.fullmatch(line)) is None:
            raise DataError(f"{location}: not '<number> <text>': {line[:60]!r}")
        line_number = int(match[1])
        if line_number == 1:
            statements, questions, world = [], [], BabiStory()
            stories.append(Story(task, f"{path.name}:{number}", statements, questions))
        elif line_number != last + 1:
            raise DataError(f"{location}: line {line_number} of a story follows its line {last}")
        last, fields = line_number, [part.strip() for part in match[2].replace("|", "\t").split("\t")]
        try:
            if len(fields) == 1:
                world.tell(fields[0], line_number)
                statements.append((line_number, fields[0]))
                continue
            if len(fields) != 3 or not all(fields) or not _EVIDENCE.fullmatch(fields[2]):
                raise DataError(f"{location}: a question is 'text, answer, supporting line numbers', parted by tabs")
            # A list of things has any order. An answer that does not follow from the statements is refused.
            question, answer, evidence = fields[0], ", ".join(fields[1].split(",")), tuple(map(int, fields[2].split()))
            if not {line for line, _ in statements}.issuperset(evidence):
                problem = f"supporting lines {fields[2]!r} are not all statements before it in the story"
                raise DataError(f"{location}: {problem}")
            reply = world.ask(question)
            if reply is None or answer not in reply.answers:
                derived = "nothing follows" if reply is None else f"{reply.answers[0]!r} follows"
                problem = f"the answer to {question!r} is given as {answer!r}, but {derived} from the statements"
                raise DataError(f"{location}: {problem}")
            questions.append(StoryQuestion(line_number, question, answer, evidence))
        except UnreadableStatement as error:
            raise DataError(f"{location}: {error}") from error
    if not (stories := [story for story in stories if story.statements]):
        raise DataError(f"{path}: no story in it")
    return tuple(stories)


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
    root = Path(folder) if folder is not None else Path(__file__).parents[2] / "data" / "babi"
    name = f"qa{task}_*_{file_split}.txt"
    paths = [*root.glob(name), *root.glob(f"{name}.gz")]
    if len(paths) != 1:
        needed = "give the folder of the official English files (tasks_1-20_v1-2/en)"
        raise DataError(f"babi: {len(paths)} files {name} (or .txt.gz) in {root}: {needed}")
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
    pools = {kind: rng.sample(pool, len(pool)) for kind, pool in (("f", FEMALE), ("m", MALE), ("t", THINGS))}
    names: list[dict[str, str]] = []
    for story in stream_stories:
        texts = [text for _, text in story.statements]
        people = [word for word in re.findall(r"\w+", " ".join(texts)) if word in WOMEN + MEN]
        kinds = {word: "f" if word in WOMEN else "m" for word in people}
        kinds |= {match["thing"]: "t" for text in texts if (match := TAKE.fullmatch(text) or DROP.fullmatch(text))}
        if any(list(kinds.values()).count(kind) > len(pool) for kind, pool in pools.items()):
            raise DataError(f"babi: stories={len(stream_stories)} need more names of people or things than there are")
        names.append({word: pools[kind].pop() for word, kind in kinds.items()})
    readers = [_StoryReader(number, *item) for number, item in enumerate(zip(stream_stories, names, strict=True))]
    chunks, questions, operations = list[Chunk](), list[Question](), list[GoldOperation]()
    while running := [reader for reader in readers if reader.pieces][:CONCURRENT_STORIES]:
        index, turns = len(chunks), list[SpeakerTurn]()
        for reader in rng.sample(running, len(running)):
            piece = reader.pieces.pop(0)
            turns += [SpeakerTurn(speaker=SPEAKER, text=text, id=reader.turn_id(line)) for line, text in piece]
            operations += reader.read(piece, index)
            questions += reader.questions_after(piece[-1][0], index)
        chunks.append(Chunk(turns=tuple(turns), index=index))
    for reader in readers:
        questions += reader.repeated_questions(rng, len(chunks) - 1)
    meta, gold = {"stories": [story.name for story in stream_stories], "names": names}, tuple(operations)
    return Task(id=task_id, chunks=tuple(chunks), questions=tuple(questions), gold_operations=gold, meta=meta)


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

    def read(self, piece: Sequence[tuple[int, str]], chunk: int) -> Iterator[GoldOperation]:
        """Yield a perfect memory's operations for this piece.

        There is one an entry, in the order of its last change.
        """
        first = last = self.world.entries()
        last_change: dict[str, int] = {}
        for line, text in piece:
            before = last
            self.world.tell(text, line)
            last = self.world.entries()
            for slot in {**before, **last}:
                if before.get(slot) != last.get(slot):
                    last_change.pop(slot, None)
                    last_change[slot] = line
        for slot, line in last_change.items():
            old, new = first.get(slot), last.get(slot)
            if old != new:
                yield GoldOperation(
                    kind="insert" if old is None else "delete" if new is None else "update",
                    chunk=chunk,
                    category="semantic",
                    content=new or "",
                    replaces=old,
                    turn=self.turn_id(line),
                )

    def questions_after(self, line: int, chunk: int) -> Iterator[Question]:
        """Yield the official questions that follow the statement `line`."""
        end = min((number for number, _ in self.story.statements if number > line), default=sys.maxsize)
        for asked in self.story.questions:
            if line < asked.line < end:
                reply = self.world.ask(self.rename(asked.text))
                if reply is None or self.rename(asked.answer) not in reply.answers:
                    raise DataError(f"babi: {self.story.name}, line {asked.line}: its answer is lost by new names")
                yield self._question(str(asked.line), asked.text, reply, asked.evidence, chunk)

    def repeated_questions(self, rng: Random, chunk: int) -> Iterator[Question]:
        """Yield some of the questions again, with the answer at the end of the story."""
        texts = list(dict.fromkeys(question.text for question in self.story.questions))
        replies = [(text, reply) for text in texts if (reply := self.world.ask(self.rename(text)))]
        for number, (text, reply) in enumerate(rng.sample(replies, min(REPEATED_QUESTIONS, len(replies)))):
            yield self._question(f"again{number}", text, reply, reply.evidence, chunk)

    def _question(self, id: str, text: str, reply: StoryAnswer, evidence: Sequence[int], chunk: int) -> Question:
        kind = "updated" if len(reply.places) > 1 or reply.earlier else "stated"
        return Question(
            id=f"{self.number}:{id}",
            question=self.rename(text),
            answers=reply.answers,
            category=f"qa{self.story.task}",
            evidence=tuple(map(self.turn_id, evidence)),
            asked_after_chunk=chunk,
            meta={"slot": reply.slot, "kind": kind, "stale": list(reply.earlier), "values": list(reply.places)},
        )


def _pieces(story: Story) -> list[list[tuple[int, str]]]:
    """Split the statements into pieces that end before a question or after `MAX_STATEMENTS`.

    No piece begins with "Then she …": the pronoun belongs to the statement before.
    """
    pieces: list[list[tuple[int, str]]] = []
    question_lines = {question.line for question in story.questions}
    for line, text in story.statements:
        refers = re.match(_SEQUENCE_WORDS, text)
        if pieces and (refers or (line - 1 not in question_lines and len(pieces[-1]) < MAX_STATEMENTS)):
            pieces[-1].append((line, text))
        else:
            pieces.append([(line, text)])
    return pieces
