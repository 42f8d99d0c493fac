"""One writer over one memory: what it is shown for a chunk, and what its reply does.

Every chunk is a fresh prompt of the memory view and the chunk, so the cost is linear in the conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TypeVar

from memalpha.agent.parsing import parse_calls
from memalpha.agent.prompts import CORE_CUT, render_view, writer_messages
from memalpha.agent.reader import Answer, ExtractiveReader, PolicyReader, Reader
from memalpha.agent.tools import execute
from memalpha.config import AgentConfig, ReaderConfig
from memalpha.errors import ConfigError
from memalpha.policy.base import Policy, with_prompt_style
from memalpha.policy.load import load_policy
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.memory import Memory
from memalpha.store.schema import MemorySchema, load_schema
from memalpha.store.validation import check_timestamp
from memalpha.tasks.chunking import split_text
from memalpha.types import (
    Chunk,
    Completion,
    MemoryEntry,
    Observation,
    Operation,
    SampleRequest,
    Task,
    ToolCall,
    ToolResult,
    Turn,
    ViewEntry,
)

T = TypeVar("T")
Text = str | Chunk
MAX_CHUNK_CHARACTERS = 4000
"""Longest chunk, in characters, that a long text is cut into; as `memalpha read` has it."""


def observe(
    memory: Memory,
    chunk: Chunk,
    config: AgentConfig,
    count_tokens: Callable[[str], int],
    task: Task | None = None,
    advice: str = "",
) -> Observation:
    """What the writer sees of the memory for this chunk: the core, entries retrieved for it, and the most recent ones.

    The union is shown oldest first. Where the rendered view is over `config.view_tokens`, a core memory that takes more
    than half of that alone is shown cut, with a last line that says so (what is stored stays whole), and the
    lowest-ranked entries are left out until it fits (rank: best retrieved, most recent, second best, ...). `advice` is
    shown beside it and does not count.
    Raises `InvalidContent` for a chunk whose timestamp is not ISO 8601: that is no mistake of the writer.
    """
    check_timestamp(chunk.timestamp)
    recent, core = memory.recent(config.view_recent + 1), memory.core
    if len(recent) <= config.view_recent:
        entries = _oldest_first(memory, recent)
        if _fits(core, entries, config, count_tokens):
            return Observation(chunk, core, _view(entries), task, advice)
    ranked = _ranked(memory, recent[: config.view_recent], chunk, config)
    if not _fits(core, ranked, config, count_tokens):
        core = _cut_core(core, config, count_tokens)
    entries = _oldest_first(memory, ranked)
    while ranked and not _fits(core, entries, config, count_tokens):
        entries.remove(ranked.pop())
    return Observation(chunk, core, _view(entries), task, advice)


def _oldest_first(memory: Memory, entries: Sequence[MemoryEntry]) -> list[MemoryEntry]:
    created = memory.created_at([entry.id for entry in entries])
    return sorted(entries, key=lambda entry: created[entry.id])


def _cut_core(core: str, config: AgentConfig, count_tokens: Callable[[str], int]) -> str:
    """As much of the core as half the budget holds, to the end of a word, or of a line if one is near, and a notice."""
    half = config.model_copy(update={"view_tokens": config.view_tokens // 2})
    if count_tokens(core) <= count_tokens(CORE_CUT) or _fits(core, [], half, count_tokens):
        return core

    def cut(length: int) -> str:
        prefix = core[:length]
        if not core[length].isspace():
            line = prefix.rfind("\n")
            prefix = prefix[:line] if line >= length // 2 else prefix.rsplit(None, 1)[0] if prefix.strip() else ""
        return f"{prefix.rstrip()}\n{CORE_CUT}" if prefix.strip() else CORE_CUT

    fitting, too_long = 0, len(core)
    while too_long - fitting > 1:
        middle = (fitting + too_long) // 2
        if _fits(cut(middle), [], half, count_tokens):
            fitting = middle
        else:
            too_long = middle
    return cut(fitting)


def _view(entries: list[MemoryEntry]) -> tuple[ViewEntry, ...]:
    return tuple(ViewEntry(entry.id, entry.category, entry.content, entry.timestamp) for entry in entries)


def _fits(core: str, entries: list[MemoryEntry], config: AgentConfig, count_tokens: Callable[[str], int]) -> bool:
    text = render_view(core, _view(entries), config.prompt)
    # No tokenizer makes more tokens than bytes, so most views need no counting.
    return len(text.encode()) <= config.view_tokens or count_tokens(text) <= config.view_tokens


def _ranked(memory: Memory, recent: list[MemoryEntry], chunk: Chunk, config: AgentConfig) -> list[MemoryEntry]:
    """Retrieved and recent entries taken in turn, best first, each once."""
    related = memory.search(chunk.render(), config.view_related) if config.view_related else []
    ranked: dict[str, MemoryEntry] = {}
    for number in range(max(len(related), len(recent))):
        if number < len(related):
            ranked.setdefault(related[number].entry.id, related[number].entry)
        if number < len(recent):
            ranked.setdefault(recent[number].id, recent[number])
    return list(ranked.values())


def build_request(
    observation: Observation,
    config: AgentConfig,
    schema: MemorySchema,
    *,
    key: tuple[int, ...] = (),
    temperature: float = 0.0,
) -> SampleRequest:
    """The writer's prompt for one observation."""
    messages, tools = writer_messages(observation, config, schema)
    return SampleRequest(messages, tools, key, temperature, config.max_new_tokens, observation)


def act(memory: Memory, chunk: Chunk, completion: Completion, *, source: str | None = None) -> Turn:
    """Run the calls of a completion on the memory, in order; a call that fails does not stop those after it."""
    calls = parse_calls(completion.text)
    outcomes = list(_execute_calls(memory, chunk, calls, source))
    operations = tuple(operation for _, operation in outcomes if operation is not None)
    return Turn(chunk.index, completion, calls, tuple(result for result, _ in outcomes), operations)


def _execute_calls(
    memory: Memory, chunk: Chunk, calls: Iterable[ToolCall], source: str | None
) -> Iterator[tuple[ToolResult, Operation | None]]:
    for call in calls:
        yield execute(memory, call, chunk=chunk.index, source=source, timestamp=chunk.timestamp)


class MemoryAgent:
    """A policy that keeps one memory: `read` the conversation as it comes, `ask` from what was kept.

    `policy`: a `Policy`, or what `load_policy` takes. "add_all" keeps every line that no assistant said, "heuristic"
    the statements about people (in English, by rules: see `policy.heuristic`), both on any text; a run directory stands
    for its best checkpoint, `http://host/v1#model` for a model behind an endpoint. The prompts are in the style of the
    policy unless `config` sets another. `reader` defaults to the policy itself, or to the extractive floor where the
    policy is a script. Categories and embedder are the store's own; a `config` that names others raises `ConfigError`.

    Threads may share an agent: it reads one chunk after the other. `aread`, `aask` and `astream` are for event loops:
    they run, in the order they were called, in one thread of the agent's own; what that has begun is done even if
    whoever awaits it is cancelled.
    """

    def __init__(
        self,
        policy: str | Path | Policy,
        store: Memory,
        config: AgentConfig | None = None,
        reader: Reader | None = None,
    ) -> None:
        if not isinstance(store, Memory):
            raise ConfigError(
                f"store: a MemoryStore is needed, not {type(store).__name__} (in an event loop too: aread, aask and "
                "astream do not block it)"
            )
        self.policy = load_policy(policy) if isinstance(policy, str | Path) else policy
        self.store = store
        self.config = with_prompt_style(config or AgentConfig(), self.policy)
        _check_names(self.config, store)
        self.reader = reader or default_reader(self.policy, self.config)
        self._chunks = 0
        self._turn = RLock()
        self._thread: ThreadPoolExecutor | None = None

    def read(self, chunk: Text, *, timestamp: str | None = None, source: str | None = None) -> Turn:
        """One policy call in a fresh context; its tool calls are applied to the store.

        A text becomes a chunk with `timestamp`; a `Chunk` brings its own. `source` is kept with what is written.
        """
        with self._turn:
            shown_chunk, completion = self._reply(chunk, timestamp)
            return act(self.store, shown_chunk, completion, source=source)

    def stream(
        self, text: Text | Iterable[Text], *, timestamp: str | None = None, source: str | None = None
    ) -> Iterator[Operation]:
        """Read chunk by chunk and yield every operation that changed the memory, as logged, once it is done (in a
        `MemoryStore`: on disk).

        A text is cut into chunks of at most `PIECE` characters; what is iterated over gives a chunk an item, each taken
        when those before it are read, so it may be a conversation that goes on. Who stops iterating stops the reading:
        what was not yielded yet has not been done.
        """
        for chunk in _split(text):
            with self._turn:
                shown_chunk, completion = self._reply(chunk, timestamp)
            for _, operation in _execute_calls(self.store, shown_chunk, parse_calls(completion.text), source):
                if operation is not None:
                    yield operation

    def ask(self, question: str, k: int = 8) -> Answer:
        """An answer from the `k` entries that are nearest to the question; `Answer.hits` says which."""
        return self.reader.answer([(question, self.store)], k=k)[0]

    async def aread(self, chunk: Text, *, timestamp: str | None = None, source: str | None = None) -> Turn:
        """`read`, awaited."""
        return await self._run_in_thread(partial(self.read, chunk, timestamp=timestamp, source=source))

    async def aask(self, question: str, k: int = 8) -> Answer:
        """`ask`, awaited."""
        return await self._run_in_thread(partial(self.ask, question, k))

    async def astream(
        self,
        text: Text | Iterable[Text] | AsyncIterable[Text],
        *,
        timestamp: str | None = None,
        source: str | None = None,
    ) -> AsyncIterator[Operation]:
        """`stream`, awaited; what is iterated over may be asynchronous too."""
        if not isinstance(text, AsyncIterable):
            operations = self.stream(text, timestamp=timestamp, source=source)
            while (operation := await self._run_in_thread(partial(next, operations, None))) is not None:
                yield operation
            return
        async for chunk in text:
            async for operation in self.astream((chunk,), timestamp=timestamp, source=source):
                yield operation

    def _reply(self, chunk: Text, timestamp: str | None) -> tuple[Chunk, Completion]:
        """The chunk as it is shown, and what the policy says to it."""
        if isinstance(chunk, str):
            chunk = Chunk(text=chunk, timestamp=timestamp, index=self._chunks)
        observation = observe(self.store, chunk, self.config, self.policy.count_tokens)
        [completion] = self.policy.sample([build_request(observation, self.config, self.store.schema)])
        self._chunks += 1
        return chunk, completion

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "memalpha-agent")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _split(text: Text | Iterable[Text]) -> Iterable[Text]:
    if isinstance(text, str):
        return split_text(text, MAX_CHUNK_CHARACTERS)
    return (text,) if isinstance(text, Chunk) else text


def _check_names(config: AgentConfig, store: Memory) -> None:
    """Refuse a schema or embedder that the configuration names and the store does not have."""
    if "memory_schema" in config.model_fields_set:
        schema = load_schema(config.memory_schema)
        if not schema.is_compatible_with(store.schema):
            raise ConfigError(
                f"memory_schema: the store has schema {store.schema.describe()}, not {schema.describe()}: leave it "
                "out, or open another store"
            )
    if "embedder" in config.model_fields_set and config.embedder != store.embedder:
        raise ConfigError(
            f"embedder: the store was made with {store.embedder!r}, not {config.embedder!r}: leave it out, or open "
            "another store"
        )


def default_reader(policy: Policy, config: AgentConfig) -> Reader:
    """The policy itself, in the same prompt style; the extractive floor for a script, which cannot read."""
    if isinstance(policy, ScriptedPolicy):
        return ExtractiveReader()
    return PolicyReader(policy, ReaderConfig(kind="policy", prompt=config.prompt))
