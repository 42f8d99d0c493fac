"""One class for each protocol that users implement: what is wrong is refused at its boundary; the store works on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from memalpha.agent.agent import MemoryAgent
from memalpha.agent.reader import Answer
from memalpha.errors import EmbedderError, MemalphaError, PolicyError
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.evaluate import evaluate
from memalpha.qa.scoring.judge import Item, Judge
from memalpha.rewards.evaluate import evaluate_text
from memalpha.store.embedding import HashEmbedder
from memalpha.store.memory import WorkingMemory
from memalpha.store.schema import MEM_ALPHA
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore
from memalpha.types import Chunk, Completion, Question, Task, TextTask

TASK = Task(
    id="t",
    chunks=(Chunk(text="Ana: I live in Oslo."),),
    questions=(Question(id="q", question="Where does Ana live?", answers=("Oslo",)),),
)


class UserError(Exception):
    """An error of somebody's own code."""


def raise_error(*_: Any, **__: Any) -> Any:
    raise UserError("of somebody's own")


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore.open(":memory:", embedder="hash") as store:
        store.add("Ana lives in Oslo")
        yield store


def check_usable(store: MemoryStore, count: int = 1) -> None:
    """Raise unless the store holds what it held, takes a write and finds it."""
    assert store.count() == count == len(store.list())
    store.add("a tram stops here")
    assert store.search("tram", 1)[0].entry.content == "a tram stops here"


class TestEmbedder:
    """`Embedder`: name, dim, encode."""

    OUTPUTS: ClassVar[dict[str, Callable[[Any], Any]]] = {
        "None": lambda rows: None,
        "a text": lambda rows: "vector",
        "objects": lambda rows: [object()] * len(rows),
        "texts": lambda rows: [["a"] * 256] * len(rows),
        "complex numbers": lambda rows: rows * 1j,
        "one row more": lambda rows: np.concatenate([rows, rows[:1]]),
        "no row": lambda rows: rows[:0],
        "one dimension more": lambda rows: np.concatenate([rows, rows[:, :1]], axis=1),
        "one dimension": lambda rows: rows[0],
        "three dimensions": lambda rows: rows[None],
        "NaN": lambda rows: np.full_like(rows, np.nan),
        "inf": lambda rows: np.full_like(rows, np.inf),
        "one NaN": lambda rows: np.concatenate([np.full_like(rows[:, :1], np.nan), rows[:, 1:]], axis=1),
        "huge": lambda rows: rows.astype(np.float64) * 1e300,
        "large": lambda rows: rows * np.float32(1e30),
        "short": lambda rows: rows * np.float32(1e-30),
        "not of length 1": lambda rows: rows * 3,
        "ragged": lambda rows: [[1.0], [1.0, 2.0]],
        "raising": raise_error,
    }

    @pytest.mark.parametrize("output", OUTPUTS)
    def test_a_wrong_vector_is_refused(self, output: str, tmp_path: Path) -> None:
        class Faulty(HashEmbedder):
            is_faulty = False

            def encode(self, texts):
                rows = super().encode(texts)
                return TestEmbedder.OUTPUTS[output](rows) if self.is_faulty else rows

        embedder = Faulty()
        working = WorkingMemory(MemoryState.empty(MEM_ALPHA), embedder)
        (tmp_path / "facts.jsonl").write_text('{"category": "semantic", "content": "Eve swims"}\n')
        with MemoryStore.open(":memory:", embedder=embedder) as store:
            store.add("Ana lives in Oslo")
            working.insert("semantic", "Ana lives in Oslo")
            embedder.is_faulty = True
            log = list(store.log())
            facts = [{"category": "semantic", "content": "Ben sings"}, {"category": "semantic", "content": "Cleo runs"}]
            for call in (
                lambda: store.add("Ben likes tea"),
                lambda: store.insert_many(facts),
                lambda: store.search("Where does Ana live?"),
                lambda: store.update(store.list()[0].id, "Ana lives in Rome"),
                lambda: store.upsert("k", "Dan reads"),
                lambda: store.import_jsonl(tmp_path / "facts.jsonl"),
                lambda: working.search("Ana"),
            ):
                with pytest.raises(EmbedderError, match="hash" if output == "raising" else "embedder 'hash' returned"):
                    call()
            assert list(store.log()) == log
            embedder.is_faulty = False
            check_usable(store)

    def test_a_zero_row_is_found_by_words_alone(self) -> None:
        class Empty(HashEmbedder):
            def encode(self, texts):
                rows = super().encode(texts)
                return np.array([row * ("tea" not in text) for row, text in zip(rows, texts, strict=True)], np.float32)

        with MemoryStore.open(":memory:", embedder=Empty()) as store:
            store.add_many(["Ana lives in Oslo", "Ben likes tea"])
            assert store.search("tea", 1)[0].entry.content == "Ben likes tea"
            check_usable(store, 2)

    @pytest.mark.parametrize("attribute", [{"name": 5}, {"name": ""}, {"dim": 0}, {"dim": "8"}, {"encode": None}])
    def test_an_object_that_is_none_is_refused(self, attribute: dict[str, Any]) -> None:
        embedder = HashEmbedder()
        for name, value in attribute.items():
            setattr(embedder, name, value)
        with pytest.raises(EmbedderError):
            MemoryStore.open(":memory:", embedder=embedder)


class _Policy:
    """Policy that answers what a function makes of the requests."""

    name = "faulty"
    prompt = "full"

    def __init__(self, reply: Callable[[Any], Any], count: Any = 3) -> None:
        self.reply, self.count = reply, count

    def sample(self, requests):
        return self.reply(requests)

    def count_tokens(self, text):
        return self.count


class TestPolicy:
    """`Policy`: name, sample, count_tokens."""

    REPLIES: ClassVar[dict[str, Callable[[Any], Any]]] = {
        "None": lambda requests: None,
        "a number": lambda requests: 5,
        "no completion": lambda requests: [],
        "one more": lambda requests: [Completion("")] * (len(requests) + 1),
        "texts": lambda requests: ["text"] * len(requests),
        "no text": lambda requests: [Completion(None)] * len(requests),  # pyright: ignore[reportArgumentType]
        "bytes": lambda requests: [Completion(b"x")] * len(requests),  # pyright: ignore[reportArgumentType]
        "NaN": lambda requests: [Completion("x", (1,), (2,), (float("nan"),))] * len(requests),
        "inf": lambda requests: [Completion("x", (1,), (2,), (float("-inf"),))] * len(requests),
        "log-probs of other ids": lambda requests: [Completion("x", (1,), (2, 3), (-0.5,))] * len(requests),
        "raising": raise_error,
    }

    @pytest.mark.parametrize("reply", REPLIES)
    def test_a_wrong_completion_is_refused(self, reply: str, store: MemoryStore) -> None:
        policy = _Policy(self.REPLIES[reply])
        agent = MemoryAgent(policy, store)
        for call in (
            lambda: agent.read("Ana: I moved to Rome."),
            lambda: agent.ask("Where does Ana live?"),
            lambda: list(agent.stream(["Ana: I moved to Rome."])),
            lambda: evaluate(policy, [TASK], "extractive", embedder=HashEmbedder()),
            lambda: evaluate(ScriptedPolicy("add-all"), [TASK], MemoryAgent(policy, store).reader),
            lambda: evaluate_text(policy, [TextTask(id="a", prompt="2 + 2")], [lambda completions: [1.0]]),
        ):
            with pytest.raises(PolicyError, match="faulty"):
                call()
        check_usable(store)

    @pytest.mark.parametrize("count", [None, "3", -1, float("nan"), True])
    def test_a_wrong_count_of_tokens_is_refused(self, count: Any, store: MemoryStore) -> None:
        store.add_many([f"{number}: {'long ' * 400}" for number in range(5)])  # more bytes than fit without a count
        with pytest.raises(PolicyError):
            MemoryAgent(_Policy(lambda requests: [Completion("")] * len(requests), count), store).read("Ana: hi")
        check_usable(store, 6)


class _Reader:
    """Reader that answers what a function makes of the questions."""

    name, conflicts = "faulty", "keep"

    def __init__(self, reply: Callable[[Any], Any]) -> None:
        self.reply = reply

    def answer(self, items, *, k=None):
        return self.reply(items)


class TestReader:
    """`Reader`: name, conflicts, answer."""

    REPLIES: ClassVar[dict[str, Callable[[Any], Any]]] = {
        "None": lambda items: None,
        "no answer": lambda items: [],
        "one more": lambda items: [Answer("x")] * (len(items) + 1),
        "texts": lambda items: ["Oslo"] * len(items),
        "no text": lambda items: [Answer(None)] * len(items),  # pyright: ignore[reportArgumentType]
        "NaN": lambda items: [Answer(float("nan"))] * len(items),  # pyright: ignore[reportArgumentType]
        "raising": raise_error,
    }

    @pytest.mark.parametrize("reply", REPLIES)
    def test_a_wrong_answer_is_refused(self, reply: str, store: MemoryStore) -> None:
        reader: Any = _Reader(self.REPLIES[reply])
        agent = MemoryAgent("add_all", store, reader=reader)
        with pytest.raises(PolicyError, match="faulty"):
            agent.ask("Where does Ana live?")
        with pytest.raises(PolicyError, match="faulty"):
            evaluate(ScriptedPolicy("add-all"), [TASK], reader, embedder=HashEmbedder())
        check_usable(store)


class TestJudge:
    """`Judge`: policies that give verdicts, with weights."""

    ITEM = Item("Where does Ana live?", ("Oslo",), "Bergen")

    @pytest.mark.parametrize("reply", TestPolicy.REPLIES)
    def test_a_wrong_reply_is_no_score(self, reply: str) -> None:
        judge = Judge([_Policy(TestPolicy.REPLIES[reply])])
        for ask in (judge.judge, judge.score):
            with pytest.raises(PolicyError, match="faulty"):
                ask([self.ITEM])

    @pytest.mark.parametrize("weights", [[float("nan")], [float("inf")], [-1.0], [0.0], [1.0, 1.0], ["1"]])
    def test_wrong_weights_are_refused(self, weights: list[Any]) -> None:
        with pytest.raises(MemalphaError, match="weights"):
            Judge([_Policy(raise_error)], weights)


class _Connection:
    """Connection of a database that raises at the n-th statement."""

    def __init__(self, inner: Any, n: int, error: Exception) -> None:
        self.inner, self.left, self.error = inner, n, error

    def _count(self, name: str, *args: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise self.error
        return getattr(self.inner, name)(*args)

    def __getattr__(self, name: str) -> Any:
        return partial(self._count, name) if name in ("execute", "executemany") else getattr(self.inner, name)


@pytest.mark.sqlite
class TestBackend:
    """`Backend`: a connection that fails at any statement leaves the state before or after, and an error in words."""

    CALLS: ClassVar[dict[str, Callable[[MemoryStore], Any]]] = {
        "add": lambda store: store.add("Ben likes tea"),
        "insert_many": lambda store: store.insert_many([{"category": "semantic", "content": "Ben likes tea"}]),
        "update": lambda store: store.update(store.list()[0].id, "Ana lives in Rome"),
        "delete": lambda store: store.delete(store.list()[0].id),
        "undo": lambda store: store.undo(),
        "restore": lambda store: store.restore(0),
        "search": lambda store: store.search("Ana", as_of=1),
        "export": lambda store: list(store.log()),
    }
    ERRORS = (sqlite3.OperationalError("disk I/O error"), sqlite3.DatabaseError("malformed"), sqlite3.DataError("big"))

    @pytest.mark.parametrize("call", CALLS)
    def test_a_failing_statement_changes_nothing(self, call: str, tmp_path: Path) -> None:
        with MemoryStore.open(tmp_path / "a.db", embedder="hash") as store:
            store.add("Ana lives in Oslo")
            before, n, is_done = [str(row) for row in store.log()], 0, False
            while not is_done:
                n += 1
                inner = store.database.connection
                store.database.connection = _Connection(inner, n, self.ERRORS[n % 3])
                try:
                    self.CALLS[call](store)
                    is_done = store.database.connection.left > 0
                except MemalphaError as error:
                    assert str(tmp_path) in str(error)
                finally:
                    store.database.connection = inner
                if not is_done:
                    assert [str(row) for row in store.log()] == before
            assert n > 2
            store.add("a tram stops here")
            assert store.search("tram", 1)[0].entry.content == "a tram stops here"
