"""bAbI (Weston et al. 2015, arXiv 1502.05698): stories of the official split, woven into streams of tasks.

The official files of tasks 1, 2, 6, 8, 9, 11, 12 and 13 come with the package, unmodified (`memalpha/data/babi`, CC BY
3.0); a folder of one's own works too. Every official answer is derived again from the statements when the files are
read. A stream weaves several stories together: in each story its people and things get names of their own, so that
what was told of one never contradicts another, and a question is asked when its story's statements before it have been
read. Some are asked again at the end of the stream, with the answer that holds then.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from random import Random
from typing import Literal

from memalpha.config import BabiConfig
from memalpha.errors import DataError
from memalpha.tasks.dataset_info import DataSet
from memalpha.tasks.datasets.babi_world import MEN, WOMEN, Reply, Unreadable, World, thing_in
from memalpha.tasks.synthetic.phrases import words
from memalpha.types import Chunk, GoldOperation, Question, SpeakerTurn, Task

Split = Literal["train", "validation", "test"]

DATA = DataSet(
    name="babi",
    about="streams of official stories (tasks 1, 2, 6, 8, 9, 11, 12, 13), questions in mid-stream and at the end",
    source="github:VinGarcia/bAbI",
    licence="CC BY 3.0",
    counts="test: 400 streams of 4 stories, 12,506 questions; training files: 8 x 1,000 questions",
    metric="exact",
    revision="c4f149ba",
    ships=True,
    faults=(
        "the two qa1 files have a bar in place of the tab",
        "an answer with commas is a set (qa8): the whole is right or nothing",
    ),
    expected={"": {"tasks": 400, "questions": 12506}},
    training_options={"split": "train"},
)

VALIDATION = 0.2
"""Share of each official training file, its end, that only split "validation" uses."""
STATEMENTS = 4
"""Longest piece of one story in a chunk."""
TOGETHER = 2
"""Stories that run at the same time, a piece of each in every chunk; when one ends, the next begins."""
AGAIN = 4
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
"""Names that people and things of a stream draw from; the same in all splits (the stories differ)."""

_LINE = re.compile(r"(\d+) (.*)")
_EVIDENCE = re.compile(r"\d+( \d+)*")


@dataclass(frozen=True, slots=True)
class Asked:
    """An official question: its line number in the story, text, answer as in the file, supporting lines."""

    line: int
    text: str
    answer: str
    evidence: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Story:
    """One official story: statements by line number, and questions; `name` says where it stands."""

    task: int
    name: str
    statements: tuple[tuple[int, str], ...]
    questions: tuple[Asked, ...]


# ------------------------------------------------------------------------------------------------------ official files


def read_file(path: Path, task: int) -> tuple[Story, ...]:
    """The stories of an official file (plain or gzip), each answer derived again from its statements.

    Raises `DataError` naming file and line for a line that does not fit and for an answer that does not follow.
    """
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a bAbI file ({error})") from error
    stories: list[Story] = []
    statements: list[tuple[int, str]] = []
    questions: list[Asked] = []
    world, first = World(), 1

    def finish() -> None:
        if statements:
            stories.append(Story(task, f"{path.name}:{first}", tuple(statements), tuple(questions)))

    for number, line in enumerate(text.splitlines(), 1):
        where = f"{path}:{number}"
        if (found := _LINE.fullmatch(line)) is None:
            raise DataError(f"{where}: not '<number> <text>': {line[:60]!r}")
        place, words = int(found[1]), found[2]
        if place == 1:
            finish()
            statements, questions, world, first = [], [], World(), number
        elif place != _last(statements, questions) + 1:
            raise DataError(f"{where}: line {place} of a story follows its line {_last(statements, questions)}")
        parts = [part.strip() for part in words.replace("|", "\t").split("\t")]
        try:
            if len(parts) == 1:
                world.tell(parts[0], place)
                statements.append((place, parts[0]))
            else:
                told = {line for line, _ in statements}
                questions.append(asked := _asked(place, parts, told, where))
                _agree(asked, world.ask(asked.text), where)
        except Unreadable as error:
            raise DataError(f"{where}: {error}") from error
    finish()
    if not stories:
        raise DataError(f"{path}: no story in it")
    return tuple(stories)


def _last(statements: Sequence[tuple[int, str]], questions: Sequence[Asked]) -> int:
    return max([0, *(line for line, _ in statements[-1:]), *(asked.line for asked in questions[-1:])])


def _asked(line: int, parts: Sequence[str], told: set[int], where: str) -> Asked:
    if len(parts) != 3 or not all(parts) or not _EVIDENCE.fullmatch(parts[2]):
        raise DataError(f"{where}: a question is 'text, answer, supporting line numbers', parted by tabs")
    evidence = tuple(map(int, parts[2].split()))
    if not told.issuperset(evidence):
        raise DataError(f"{where}: supporting lines {parts[2]!r} are not all statements before it in the story")
    return Asked(line, parts[0], parts[1], evidence)


def _agree(asked: Asked, reply: Reply | None, where: str) -> None:
    """Refuse an official answer that does not follow from the statements; lists may have any order."""
    told = ", ".join(asked.answer.split(","))
    if reply is None or told not in reply.answers:
        derived = "nothing follows" if reply is None else f"{reply.answers[0]!r} follows"
        raise DataError(
            f"{where}: the answer to {asked.text!r} is given as {told!r}, but {derived} from the statements"
        )


def stories(config: BabiConfig, split: Split) -> tuple[Story, ...]:
    """All stories of the split, of all tasks of `config`: official training files part into train and validation.

    Raises `DataError` for a file that is missing or does not fit.
    """
    found: list[Story] = []
    for task in config.tasks:
        told = _official(task, "test" if split == "test" else "train", config.folder)
        cut = len(told) if split == "test" else len(told) - round(len(told) * VALIDATION)
        found += told[cut:] if split == "validation" else told[:cut]
    return tuple(found)


@lru_cache(maxsize=64)
def _official(task: int, part: str, folder: str | None) -> tuple[Story, ...]:
    with ExitStack() as stack:
        if folder is None:
            root = stack.enter_context(resources.as_file(resources.files("memalpha") / "data" / "babi"))
        else:
            root = Path(folder)
        paths = [*root.glob(f"qa{task}_*_{part}.txt"), *root.glob(f"qa{task}_*_{part}.txt.gz")]
        if len(paths) != 1:
            raise DataError(
                f"babi: {len(paths)} files qa{task}_*_{part}.txt (or .txt.gz) in {root}: give the folder of the "
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
    count = one_pass(config, split)
    return streams(config, split, seed, 0, count if limit is None else min(limit, count))


def stream(config: BabiConfig, split: Split, seed: int, index: int) -> Task:
    """Stream number `index` of the split under `seed`: equal arguments give equal bytes.

    Each pass over the split uses every story once, in an order of its own. Raises `DataError` where the names do not
    suffice for so many stories, or the split has fewer.
    """
    told = stories(config, split)
    size = len(told) // config.stories
    if not size:
        raise DataError(f"babi: stories={config.stories} is more than the {len(told)} of split {split}")
    turn, place = divmod(index, size)
    order = list(range(len(told)))
    Random(f"babi|{split}|{seed}|{turn}").shuffle(order)
    chosen = [told[i] for i in order[place * config.stories : (place + 1) * config.stories]]
    return weave(chosen, Random(f"babi|{split}|{seed}|{turn}|{place}"), f"babi-{split}-{seed}-{index}")


def streams(config: BabiConfig, split: Split, seed: int, start: int, count: int) -> list[Task]:
    """Streams `start` to `start + count - 1`."""
    return [stream(config, split, seed, index) for index in range(start, start + count)]


def one_pass(config: BabiConfig, split: Split = "test") -> int:
    """Return the number of streams that use every story of the split once; a rest that fills no stream is left out."""
    return len(stories(config, split)) // config.stories


def weave(chosen: Sequence[Story], rng: Random, task_id: str) -> Task:
    """One task of these stories, `TOGETHER` of which run at a time."""
    names = _names(chosen, rng)
    told = [_Telling(number, story, mapping) for number, (story, mapping) in enumerate(zip(chosen, names, strict=True))]
    chunks: list[Chunk] = []
    questions: list[Question] = []
    operations: list[GoldOperation] = []
    while running := [telling for telling in told if telling.pieces][:TOGETHER]:
        index, turns = len(chunks), []
        for telling in rng.sample(running, len(running)):
            piece = telling.pieces.pop(0)
            turns += [SpeakerTurn(speaker=SPEAKER, text=text, id=telling.turn(line)) for line, text in piece]
            operations += telling.read(piece, index)
            questions += telling.asked(piece[-1][0], index)
        chunks.append(Chunk(turns=tuple(turns), index=index))
    for telling in told:
        questions += telling.asked_again(rng, len(chunks) - 1)
    meta = {"stories": [story.name for story in chosen], "names": names}
    return Task(
        id=task_id, chunks=tuple(chunks), questions=tuple(questions), gold_operations=tuple(operations), meta=meta
    )


def _names(chosen: Sequence[Story], rng: Random) -> list[dict[str, str]]:
    """For each story, new names of its people and things: no two in the stream share one."""
    pools = {kind: rng.sample(pool, len(pool)) for kind, pool in (("f", FEMALE), ("m", MALE), ("t", THINGS))}
    names: list[dict[str, str]] = []
    for story in chosen:
        mapping: dict[str, str] = {}
        for word, kind in _cast(story):
            if not pools[kind]:
                raise DataError(f"babi: stories={len(chosen)} need more names of people or things than there are")
            mapping[word] = pools[kind].pop()
        names.append(mapping)
    return names


def _cast(story: Story) -> list[tuple[str, str]]:
    """The people (f, m) and things (t) of a story in order of appearance."""
    said = dict.fromkeys(word for _, text in story.statements for word in re.findall(r"\w+", text))
    people = [(word, "f" if word in WOMEN else "m") for word in said if word in WOMEN or word in MEN]
    things = dict.fromkeys(thing for _, text in story.statements if (thing := thing_in(text)))
    return [*people, *((word, "t") for word in things)]


class _Telling:
    """A renamed story on its way through a stream."""

    def __init__(self, number: int, story: Story, names: Mapping[str, str]) -> None:
        self.number, self.story, self.names = number, story, names
        self.world = World()
        self._word = re.compile(r"\b(?:" + "|".join(map(re.escape, names)) + r")\b")
        self.pieces = [[(line, self.renamed(text)) for line, text in piece] for piece in _pieces(story)]

    def renamed(self, text: str) -> str:
        return self._word.sub(lambda found: self.names[found[0]], text)

    def turn(self, line: int) -> str:
        return f"{self.number}:{line}"

    def read(self, piece: Sequence[tuple[int, str]], chunk: int) -> list[GoldOperation]:
        """What a perfect memory changes for this piece: one operation an entry, in the order of its last change."""
        start, changed = self.world.entries(), {}
        for line, text in piece:
            before = self.world.entries()
            self.world.tell(text, line)
            after = self.world.entries()
            for slot in {**before, **after}:
                if before.get(slot) != after.get(slot):
                    changed.pop(slot, None)
                    changed[slot] = line
        end = self.world.entries()
        return [
            _operation(start.get(slot), end.get(slot), chunk, self.turn(line))
            for slot, line in changed.items()
            if start.get(slot) != end.get(slot)
        ]

    def asked(self, line: int, chunk: int) -> Iterator[Question]:
        """The official questions that follow the statement `line`."""
        later = [number for number, _ in self.story.statements if number > line]
        for asked in self.story.questions:
            if line < asked.line < min(later, default=asked.line + 1):
                reply = self.world.ask(self.renamed(asked.text))
                if reply is None or self.renamed(", ".join(asked.answer.split(","))) not in reply.answers:
                    raise DataError(f"babi: {self.story.name}, line {asked.line}: its answer is lost by new names")
                yield self._question(f"{self.number}:{asked.line}", asked.text, reply, asked.evidence, chunk)

    def asked_again(self, rng: Random, chunk: int) -> Iterator[Question]:
        """Some of the questions once more, where the end of the story answers them."""
        texts = list(dict.fromkeys(asked.text for asked in self.story.questions))
        replies = [(text, reply) for text in texts if (reply := self.world.ask(self.renamed(text)))]
        for number, (text, reply) in enumerate(rng.sample(replies, min(AGAIN, len(replies)))):
            yield self._question(f"{self.number}:again{number}", text, reply, reply.evidence, chunk)

    def _question(self, id: str, text: str, reply: Reply, evidence: Sequence[int], chunk: int) -> Question:
        return Question(
            id=id,
            question=self.renamed(text),
            answers=reply.answers,
            category=f"qa{self.story.task}",
            evidence=tuple(map(self.turn, evidence)),
            asked_after_chunk=chunk,
            meta={
                "slot": reply.slot,
                "kind": "updated" if len(reply.places) > 1 or reply.earlier else "stated",
                "stale": list(reply.earlier),
                "values": list(reply.places),
            },
        )


def _pieces(story: Story) -> list[list[tuple[int, str]]]:
    """The statements in pieces: one ends before a question, or after `STATEMENTS` (but never before "Then she …")."""
    pieces: list[list[tuple[int, str]]] = []
    asked = {question.line for question in story.questions}
    for line, text in story.statements:
        refers = re.match(r"(Then|Afterwards|After that|Following that) ", text)
        if pieces and (refers or (line - 1 not in asked and len(pieces[-1]) < STATEMENTS)):
            pieces[-1].append((line, text))
        else:
            pieces.append([(line, text)])
    return pieces


def _operation(before: str | None, after: str | None, chunk: int, turn: str) -> GoldOperation:
    kind: Literal["insert", "update", "delete"]
    kind = "insert" if before is None else "delete" if after is None else "update"
    return GoldOperation(kind=kind, chunk=chunk, category="semantic", content=after or "", replaces=before, turn=turn)
