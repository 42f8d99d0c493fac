"""One writer over one memory: build its view and prompt, apply its tool calls.

Every chunk gets a fresh prompt of the memory view and the chunk, so the cost is linear in the conversation's length.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TypeVar, cast

from memalpha.agent.prompts import (
    CORE_CUT,
    check_store_names,
    check_style,
    prompted_config,
    render_view,
    writer_messages,
)
from memalpha.agent.reader import Answer, Reader, default_reader
from memalpha.agent.styles import parse_reply
from memalpha.agent.tools import execute
from memalpha.config import AgentConfig
from memalpha.errors import ConfigError, DataError
from memalpha.policy.base import Policy
from memalpha.policy.load import load_policy
from memalpha.store.memory import Memory
from memalpha.store.schema import MemorySchema
from memalpha.store.validation import check_timestamp
from memalpha.tasks.chunking import split_text
from memalpha.tasks.formats.messages import Messages, chunk_messages, is_messages
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
"""Maximum length in characters of chunks cut from a long text; same as in `memalpha read`."""


def observe(
    memory: Memory,
    chunk: Chunk,
    config: AgentConfig,
    count_tokens: Callable[[str], int],
    task: Task | None = None,
    advice: str = "",
) -> Observation:
    """Build the writer's view of the memory for one chunk.

    The view holds the core memory, entries retrieved for the chunk, and the most recent entries, oldest first. If the
    rendered view exceeds `config.view_tokens`, it is shortened in two ways:

    - A core memory of more than half the budget is cut, with a last line that says so. The stored core stays whole.
    - The lowest-ranked entries are dropped until the view fits. The rank alternates: best retrieved, most recent,
      second best, and so on.

    The style `mem-alpha` shows the last `config.view_recent` entries of each category instead, in the order in which
    they were first stored. If they do not fit, it shows half as many of each, down to none.

    Args:
        memory: the memory to show.
        chunk: the chunk to read; its text is the search query.
        config: sizes and style of the view.
        count_tokens: the policy's token counter.
        task: task of the chunk, in training and evaluation only.
        advice: advice from an earlier attempt; it does not count towards `view_tokens`.

    Returns:
        The observation, not yet rendered to messages.

    Raises:
        InvalidContent: if the chunk's timestamp is not ISO 8601.
    """
    check_timestamp(chunk.timestamp)
    if config.prompt == "mem-alpha":
        return _observe_by_category(memory, chunk, config, count_tokens, task, advice)
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


def _observe_by_category(
    memory: Memory,
    chunk: Chunk,
    config: AgentConfig,
    count_tokens: Callable[[str], int],
    task: Task | None,
    advice: str,
) -> Observation:
    """Build the view of the style `mem-alpha`: the last entries of each category; see `observe`."""
    by_category = {name: memory.list(name) for name in memory.schema.category_names}

    def newest(number: int) -> list[MemoryEntry]:
        return [entry for entries in by_category.values() for entry in entries[max(len(entries) - number, 0) :]]

    number, core = config.view_recent, memory.core
    if not _fits(core, newest(number), config, count_tokens):
        core = _cut_core(core, config, count_tokens)
    while number and not _fits(core, newest(number), config, count_tokens):
        number //= 2
    counts = {name: len(entries) for name, entries in by_category.items()}
    return Observation(chunk, core, _view(newest(number)), task, advice, counts)


def _oldest_first(memory: Memory, entries: Sequence[MemoryEntry]) -> list[MemoryEntry]:
    created = memory.created_at([entry.id for entry in entries])
    return sorted(entries, key=lambda entry: created[entry.id])


def _cut_core(core: str, config: AgentConfig, count_tokens: Callable[[str], int]) -> str:
    """Cut the core to half the budget, at a word or a nearby line end.

    The cut core ends with the notice `CORE_CUT`. A core that fits is returned unchanged.
    """
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
    # A text never has more tokens than bytes, so most views need no counting.
    return len(text.encode()) <= config.view_tokens or count_tokens(text) <= config.view_tokens


def _ranked(memory: Memory, recent: list[MemoryEntry], chunk: Chunk, config: AgentConfig) -> list[MemoryEntry]:
    """Return retrieved and recent entries alternately, best first, without duplicates."""
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
    """Build the writer's prompt for one observation.

    Args:
        observation: the writer's view of one chunk.
        config: prompt style and most new tokens.
        schema: categories of the memory.
        key: key of the sampling noise.
        temperature: sampling temperature; 0 is greedy.

    Returns:
        The request for `Policy.sample`.
    """
    messages, tools = writer_messages(observation, config, schema)
    return SampleRequest(
        messages,
        tools,
        key,
        temperature,
        config.max_new_tokens,
        config.thinking_tokens,
        config.chat_template_kwargs,
        observation,
        native_calls=config.form == "native",
    )


def act(
    memory: Memory, chunk: Chunk, completion: Completion, *, source: str | None = None, form: str = "hermes"
) -> Turn:
    """Apply the tool calls of a completion to the memory, in order.

    A failed call does not stop the calls after it.

    Args:
        memory: the memory to change.
        chunk: the chunk that was read; its timestamp dates new entries.
        completion: the writer's reply.
        source: name of the conversation, stored with each operation.
        form: form in which the writer's calls are written (`AgentConfig.reply_form`).

    Returns:
        The turn: calls, their results, and the operations that changed the memory.
    """
    calls = parse_reply(completion.text, form)
    outcomes = list(_execute_calls(memory, chunk, calls, source))
    operations = tuple(operation for _, operation in outcomes if operation is not None)
    return Turn(chunk.index, completion, calls, tuple(result for result, _ in outcomes), operations)


def _execute_calls(
    memory: Memory, chunk: Chunk, calls: Iterable[ToolCall], source: str | None
) -> Iterator[tuple[ToolResult, Operation | None]]:
    for call in calls:
        yield execute(memory, call, chunk=chunk.index, source=source, timestamp=chunk.timestamp)


class MemoryAgent:
    """Write a memory with a policy: `read` the conversation, `ask` the memory.

    Threads may share an agent: it reads one chunk at a time. `aread`, `aask` and `astream` serve event loops. They run
    in call order in one thread of the agent, and a started call finishes even if its awaiter is cancelled.

    Args:
        policy: a `Policy` or a name for `load_policy`. "add_all" stores every line that no assistant said. A run
            directory stands for its best checkpoint, `openai:MODEL` or `http://host/v1#model` for a model behind an
            endpoint.
        store: the memory to write, with its own categories and embedder.
        config: sizes, prompt style and the user's instructions; the default style is the policy's own.
        reader: answers questions; default: the policy itself, or `ExtractiveReader` for scripted policies.

    Raises:
        ConfigError: if `store` is not a memory, `config` names another schema or embedder than the store's, or the
            policy cannot see the instructions, or the prompt style does not fit the schema.
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
        self.config = prompted_config(config or AgentConfig(), self.policy)
        check_store_names(self.config, store)
        check_style(self.config, store.schema)
        self.reader = reader or default_reader(self.policy, self.config)
        self.chunks_read = 0
        self._turn = RLock()
        self._thread: ThreadPoolExecutor | None = None

    def read(self, chunk: Text | Messages, *, timestamp: str | None = None, source: str | None = None) -> Turn:
        """Read one chunk: call the policy once and apply its tool calls.

        Chat messages of several days, or of more than `MAX_CHUNK_CHARACTERS`, are several chunks. The turn then has the
        calls, results and operations of all of them, and the last completion.

        Args:
            chunk: a text, a `Chunk`, or chat messages: `[{"role": "user", "content": "..."}]`, with `name` and
                `timestamp` if there are any. Content blocks of OpenAI's and Anthropic's APIs are read too.
            timestamp: ISO 8601 date of a text, or of messages without one; a `Chunk` has its own.
            source: name of the conversation, stored with each operation.

        Returns:
            The turn: calls, their results, and the operations that changed the memory.

        Raises:
            DataError: a message is invalid, or none has words of a user or an assistant.
            PolicyError: the policy did not answer; earlier chunks stay written.
        """
        if isinstance(chunk, str | Chunk):
            return self._read_chunk(chunk, timestamp, source)
        with self._turn:
            turns = [self._read_chunk(part, None, source) for part in self._message_chunks(chunk, timestamp)]
        if not turns:
            raise DataError("messages: no words of a user or an assistant: there is nothing to read")
        return replace(
            turns[-1],
            calls=tuple(call for turn in turns for call in turn.calls),
            results=tuple(result for turn in turns for result in turn.results),
            operations=tuple(operation for turn in turns for operation in turn.operations),
        )

    def _read_chunk(self, chunk: Text, timestamp: str | None, source: str | None) -> Turn:
        with self._turn:
            shown_chunk, completion = self._reply(chunk, timestamp)
            return act(self.store, shown_chunk, completion, source=source, form=self.config.reply_form)

    def _message_chunks(self, messages: object, timestamp: str | None) -> list[Chunk]:
        if not is_messages(messages):
            raise DataError("a text, a Chunk or a list of chat messages is needed: [{'role': 'user', 'content': ...}]")
        return chunk_messages(messages, timestamp=timestamp, size=MAX_CHUNK_CHARACTERS, first_index=self.chunks_read)

    def stream(
        self, text: Text | Messages | Iterable[Text], *, timestamp: str | None = None, source: str | None = None
    ) -> Iterator[Operation]:
        """Read chunk by chunk and yield each operation after it is applied.

        In a `MemoryStore`, a yielded operation is on disk. Reading stops when the caller stops iterating.

        Args:
            text: a text, a `Chunk`, chat messages (see `read`), or an iterable of texts and chunks. A text is cut into
                chunks of at most `MAX_CHUNK_CHARACTERS`. Each item of an iterable is one chunk, fetched after the
                chunks before it are read.
            timestamp: ISO 8601 date of texts and of messages without one; a `Chunk` has its own.
            source: name of the conversation, stored with each operation.

        Yields:
            The operations that changed the memory, as logged.
        """
        for chunk in self._split(text, timestamp):
            with self._turn:
                shown_chunk, completion = self._reply(chunk, timestamp)
            calls = parse_reply(completion.text, self.config.reply_form)
            for _, operation in _execute_calls(self.store, shown_chunk, calls, source):
                if operation is not None:
                    yield operation

    def ask(self, question: str, k: int = 8) -> Answer:
        """Answer from the `k` nearest entries, which are listed in `Answer.hits`."""
        return self.reader.answer([(question, self.store)], k=k)[0]

    async def aread(self, chunk: Text | Messages, *, timestamp: str | None = None, source: str | None = None) -> Turn:
        """Run `read` in the agent's thread.

        Args:
            chunk: a text, a `Chunk` or chat messages.
            timestamp: ISO 8601 date of a text, or of messages without one.
            source: name of the conversation.

        Returns:
            The turn, as from `read`.
        """
        return await self._run_in_thread(partial(self.read, chunk, timestamp=timestamp, source=source))

    async def aask(self, question: str, k: int = 8) -> Answer:
        """Run `ask` in the agent's thread."""
        return await self._run_in_thread(partial(self.ask, question, k))

    async def astream(
        self,
        text: Text | Messages | Iterable[Text] | AsyncIterable[Text],
        *,
        timestamp: str | None = None,
        source: str | None = None,
    ) -> AsyncIterator[Operation]:
        """Run `stream` in the agent's thread; `text` may be an asynchronous iterable.

        Args:
            text: a text, a `Chunk`, chat messages, or an iterable of texts and chunks.
            timestamp: ISO 8601 date of texts, or of messages without one.
            source: name of the conversation.

        Yields:
            The operations that changed the memory, as logged.
        """
        if not isinstance(text, AsyncIterable):
            operations = self.stream(text, timestamp=timestamp, source=source)
            while (operation := await self._run_in_thread(partial(next, operations, None))) is not None:
                yield operation
            return
        async for chunk in text:
            async for operation in self.astream((chunk,), timestamp=timestamp, source=source):
                yield operation

    def _split(self, text: Text | Messages | Iterable[Text], timestamp: str | None) -> Iterable[Text]:
        if isinstance(text, str):
            return split_text(text, MAX_CHUNK_CHARACTERS)
        if isinstance(text, Chunk):
            return (text,)
        return self._message_chunks(text, timestamp) if is_messages(text) else cast(Iterable[Text], text)

    def _reply(self, chunk: Text, timestamp: str | None) -> tuple[Chunk, Completion]:
        """Return the chunk with its index, and the policy's completion for it."""
        if isinstance(chunk, str):
            chunk = Chunk(text=chunk, timestamp=timestamp, index=self.chunks_read)
        observation = observe(self.store, chunk, self.config, self.policy.count_tokens)
        [completion] = self.policy.sample([build_request(observation, self.config, self.store.schema)])
        self.chunks_read += 1
        return chunk, completion

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "memalpha-agent")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
