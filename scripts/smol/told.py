"""Tasks from chats told in full: whole conversations of many voices, whose values change from one telling to the next.

The chats stand in `told/*.txt`:

    == user                          between a user (u) and an assistant (a); "== two": between two named people (1, 2)
    = 2024-09-02 10:15               a chunk begins, with its time
    u: got a {beast=puppy|kitten}!! {petcall} is {n=8|9|10} weeks old
    + pet: {petcall} the {beast}     written after this turn; "+e" is an event, "@2024-10-12" behind it its day
    a: Congratulations!
    = 2024-09-20 18:05
    u: {petcall} is the size of a {size=fox|loaf} now. call him {petcall2} from today
    ~ pet: {petcall} the {beast} -> {petcall2}    an entry that changes; "- pet: {petcall2}" one that ends
    ? What is my pet called? | {petcall2}
    ? What is my cat called? |       a question without an answer

`{name=one|two}` names alternatives where they are first used, and `{name}` is the one drawn. A name that is not
introduced so is a pool of `chats.txt`, with or without a number (`{town}`, `{town2}`). `{1}` and `{2}` are the people.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from memalpha.store.search.lexical import words
from memalpha.store.values import holds_answer
from memalpha.types import Chunk, GoldOperation, Question, SpeakerTurn, Task
from smol.chats import Chat, task_rows
from smol.rows import SmolRow

_SLOT = re.compile(r"\{(\w+)(?:=([^{}]*))?\}")
_CHANGE = re.compile(r"(\+e?|~|-) ([^:]+): (.+?)(?: -> (.+?))?(?: @(\d{4}-\d\d-\d\d))?")
MAX_WORDS, MAX_CALLS = 90, 6
"""Most words and changes of a chunk."""


@dataclass(frozen=True, slots=True)
class ToldChat:
    """Hold one chat as it stands in its file.

    Attributes:
        name: Name of the file and line.
        speakers: Marks of its two speakers, "ua" or "12".
        lines: Its lines without the first.
    """

    name: str
    speakers: str
    lines: tuple[str, ...]

    def task(self, id: str, rng: Random, asked_later: Iterable[tuple[str, str]] = ()) -> Task:
        """Draw the values and return the chat as a task.

        Args:
            id: Id of the task.
            rng: Draws the values.
            asked_later: Further questions with their answers, which need not stand in an entry; "" has no answer.

        Raises:
            ValueError: If a line cannot be read, an entry says what its chunk does not, or no entry answers a question;
                names the chat and the line.
        """
        values = _Values(rng)
        try:
            lines = [values.fill(line) for line in self.lines]
        except KeyError as error:
            raise ValueError(
                f"{self.name}: {{{error.args[0]}}} is no pool, and no line before names its values"
            ) from error
        chunks: list[Chunk] = []
        gold: list[GoldOperation] = []
        asked: list[tuple[str, tuple[str, ...]]] = []
        turns: list[SpeakerTurn] = []
        live: dict[str, str] = {}
        number, time = 0, ""

        def close() -> None:
            if time:
                chunks.append(Chunk(turns=tuple(turns), timestamp=time, index=len(chunks)))
                turns.clear()

        names = {"u": "user", "a": "assistant", "1": values.drawn["1"], "2": values.drawn["2"]}
        for line in lines:
            if match := re.fullmatch(r"= (\d{4}-\d\d-\d\d) (\d\d:\d\d)", line):
                close()
                time = f"{match[1]}T{match[2]}"
            elif match := re.fullmatch(rf"([{self.speakers}]): (.+)", line):
                turns.append(SpeakerTurn(speaker=names[match[1]], text=match[2], id=f"t{number}"))
                number += 1
            elif match := re.fullmatch(r"\? (.+?) \|(.*)", line):
                asked.append((match[1], tuple(answer.strip() for answer in match[2].split("|") if answer.strip())))
            elif turns and (match := _CHANGE.fullmatch(line)):
                mark, topic, value, new, day = match.groups()
                content = f"{topic}: {new or value}"
                before = None if mark[0] == "+" else f"{topic}: {value}"
                if (mark == "~") != bool(new):
                    raise ValueError(f"{self.name}: '~ topic: old -> new' alone has an arrow: {line!r}")
                if before is not None and before not in live:
                    raise ValueError(f"{self.name}: no entry {before!r} to change: {line!r}; there are {sorted(live)}")
                category = live.pop(before) if before else "episodic" if mark == "+e" else "semantic"
                if mark != "-":
                    said = words(" ".join(f"{turn.speaker} {turn.text}" for turn in turns))
                    absent = [word for word in words(new or value) if word not in said]
                    if absent:
                        raise ValueError(f"{self.name}: not said in this chunk: {absent} of {line!r}")
                    if content in live:
                        raise ValueError(f"{self.name}: said twice: {line!r}")
                    live[content] = category
                gold.append(
                    GoldOperation(
                        kind={"+": "insert", "~": "update", "-": "delete"}[mark[0]],  # pyright: ignore[reportArgumentType]
                        chunk=len(chunks),
                        category=category,
                        content="" if mark == "-" else content,
                        replaces=before,
                        timestamp=day if mark[0] == "+" else None,
                        turn=turns[-1].id,
                    )
                )
            else:
                raise ValueError(f"{self.name}: cannot read {line!r}")
        close()
        for chunk in chunks:
            length = len(" ".join(turn.text for turn in chunk.turns).split())
            calls = sum(operation.chunk == chunk.index for operation in gold)
            if length > MAX_WORDS or calls > MAX_CALLS or not chunk.turns:
                raise ValueError(f"{self.name}: chunk of {chunk.timestamp} has {length} words and {calls} changes")
        questions = []
        for text, answers in asked:
            topic = _topic_of(answers, live)
            if answers and not topic:
                raise ValueError(
                    f"{self.name}: no entry that holds has an answer of {text!r}; there are {sorted(live)}"
                )
            questions.append(Question(id=f"q{len(questions)}", question=text, answers=answers, meta={"slot": topic}))
        for line in asked_later:
            text, answer = map(values.fill, line)
            questions.append(Question(id=f"q{len(questions)}", question=text, answers=(answer,) if answer else ()))
        return Task(id=id, chunks=tuple(chunks), gold_operations=tuple(gold), questions=tuple(questions))


def _topic_of(answers: Iterable[str], contents: Iterable[str]) -> str:
    """Return the topic of the first entry whose value has one of the answers; "" if none has."""
    for content in contents:
        topic, _, value = content.partition(": ")
        if any(holds_answer(value, answer) for answer in answers):
            return topic
    return ""


class _Values:
    """Draw the values of one telling, each once."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.chat = rng, Chat(rng, "train")
        self.drawn = {"1": self.chat.draw("first")}
        self.drawn["2"] = self._other("first")

    def _other(self, pool: str) -> str:
        while (value := self.chat.draw(pool)) in self.drawn.values():
            pass
        return value

    def fill(self, line: str) -> str:
        """Fill the slots of a line."""
        return _SLOT.sub(self._draw, line)

    def _draw(self, match: re.Match[str]) -> str:
        name, alternatives = match.groups()
        if name not in self.drawn:
            self.drawn[name] = (
                self.rng.choice(alternatives.split("|")) if alternatives else self._other(name.rstrip("0123456789"))
            )
        return self.drawn[name]


@cache
def load_told() -> tuple[ToldChat, ...]:
    """Read all chats of `told/*.txt`."""
    return tuple(chat for path in sorted((Path(__file__).parent / "told").glob("*.txt")) for chat in read_told(path))


def read_told(path: Path) -> list[ToldChat]:
    """Read the chats of one file.

    Raises:
        ValueError: A chat begins with another line than "== user" or "== two"; names the file and line.
    """
    chats: list[tuple[str, str, list[str]]] = []
    for number, line in enumerate(map(str.strip, path.read_text(encoding="utf-8").splitlines()), 1):
        if line in ("== user", "== two"):
            chats.append((f"{path.name}:{number}", "ua" if line == "== user" else "12", []))
        elif line and (not chats or line.startswith("== ")):
            raise ValueError(f"{path.name}:{number}: a chat begins with '== user' or '== two', not {line!r}")
        elif line:
            chats[-1][2].append(line)
    return [ToldChat(name, speakers, tuple(lines)) for name, speakers, lines in chats]


def told_rows(seed: int, index: int) -> Iterator[SmolRow]:
    """Yield the rows of telling number `index`: all chats are told in an order of the seed's, then again."""
    chat = _shuffled(seed)[index % len(load_told())]
    task = chat.task(f"told-{seed}-{index}", Random(f"smol|told|{seed}|{index}"))
    yield from task_rows("told", task, Random(f"smol|told rows|{seed}|{index}"))


@cache
def _shuffled(seed: int) -> list[ToldChat]:
    return Random(f"smol|told order|{seed}").sample(load_told(), len(load_told()))
