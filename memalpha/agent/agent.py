"""One writer over one memory: build its view and prompt, apply its tool calls.

Every chunk gets a fresh prompt of the memory view and the chunk, so the cost is linear in the conversation's length.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from threading import RLock
from types import NoneType
from typing import Any, TypeVar, cast

from memalpha.agent.consolidate import Consolidation, apply_consolidation, propose_consolidation
from memalpha.agent.prompts import check_store_names, check_style, observe, prompted_config, writer_messages
from memalpha.agent.quoting import show_notes
from memalpha.agent.reader import Answer, Reader, check_answers, default_reader, require_reader
from memalpha.agent.replies import act, execute_calls, read_reply
from memalpha.agent.tools import load_tools
from memalpha.agent.trust import TrustJudge, redact_chunk, trusted_view
from memalpha.arguments import brief_repr, check_count, check_flag, check_function, check_type
from memalpha.config import AgentConfig, TrustConfig
from memalpha.errors import ConfigError, DataError
from memalpha.forks import ForkAware
from memalpha.policy.base import Policy, QuotingPolicy, count_checked, sample_checked, trained_sizes
from memalpha.policy.load import load_policy
from memalpha.policy.scripted import ignores_memory
from memalpha.store.fields import check_text, check_timestamp, validate_fields
from memalpha.store.memory import Memory, refuse_other_keywords
from memalpha.store.schema import MemorySchema
from memalpha.store.store import MemoryStore
from memalpha.tasks.chunking import cut_chunk, split_text
from memalpha.tasks.formats.messages import Messages, chunk_messages, is_messages
from memalpha.types import Chunk, Completion, Observation, Operation, SampleRequest, Turn

T = TypeVar("T")
Text = str | Chunk
_JOINED = ("calls", "results", "operations", "problems")
"""Fields of the turn of a chunk that was read in parts: those of all its parts."""
MAX_CHUNK_CHARACTERS = 4000
"""Maximum length in characters of chunks cut from a long text; same as in `memalpha read`."""


def build_request(observation: Observation, config: AgentConfig, schema: MemorySchema) -> SampleRequest:
    """Build the writer's prompt for one observation, to be sampled greedily.

    Args:
        observation: the writer's view of one chunk.
        config: prompt style and most new tokens.
        schema: categories of the memory.
    """
    messages, tools = writer_messages(observation, config, schema)
    return SampleRequest(
        messages,
        tools,
        max_new_tokens=config.max_new_tokens,
        thinking_tokens=config.thinking_tokens,
        chat_template_kwargs=config.chat_template_kwargs,
        observation=observation,
        native_calls=config.form == "native",
    )


@dataclass(frozen=True, slots=True)
class Proposal:
    """Hold the changes that a writer proposes for a chunk, before they are applied (`MemoryAgent.propose`).

    Attributes:
        observation: What the writer saw: the chunk, and the memory at that moment.
        completion: Its reply.
        core: The whole core memory at that moment; "" for a writer that sees no memory.
        shown_ids: Ids of entries by those that a quoting writer saw (`quoting.show_notes`); None for others.
    """

    observation: Observation
    completion: Completion
    core: str
    shown_ids: Mapping[str, str] | None = None

    @property
    def visible_contents(self) -> dict[str, str]:
        """Contents that the writer saw, by id; "" is the id of the core memory."""
        return {entry.id: entry.content for entry in self.observation.entries} | {"": self.core}


def _check_origin(
    timestamp: str | None, source: str | None, speaker: str | None, metadata: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return source, speaker and metadata as they are stored. Raises `InvalidContent`, before a model is asked."""
    for name, value in {"timestamp": timestamp, "source": source, "speaker": speaker}.items():
        if value is not None:
            check_text(name, value)
    stored = None if metadata is None else validate_fields({"metadata": metadata})["metadata"]
    return {"source": source, "speaker": speaker, "metadata": stored}


class MemoryAgent(ForkAware):
    """Write a memory with a policy: `read` the conversation, `ask` the memory.

    Threads may share an agent: it reads one chunk at a time. `aread`, `aask` and `astream` serve event loops. They run
    in call order in one thread of the agent, and a started call finishes even if its awaiter is cancelled.

    Args:
        policy: a `Policy` or a name for `load_policy`. "add_all" stores every line that no assistant said. A run
            directory stands for its best checkpoint, `openai:MODEL` or `http://host/v1#model` for a model behind an
            endpoint.
        store: the memory to write, with its own categories and embedder.
        config: sizes, prompt style and the user's instructions; the default style is the policy's own.
        reader: answers questions; default: the policy itself, or `QuotingReader` for scripted policies and `smol`.
        trust: rule of what a speaker may change (`agent.trust`); None lets all pass. Needs a `MemoryStore`. The
            words of others then have their names before them for the writer and the reader, and rank lower.
        redact: called with each text before anything reads it; what it removes reaches neither model nor memory.

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
        *,
        trust: TrustConfig | None = None,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        if not isinstance(store, Memory):
            raise ConfigError(
                f"store: a MemoryStore is needed, not {type(store).__name__} (in an event loop too: aread, aask and "
                "astream do not block it)"
            )
        if not isinstance(policy, str | Path | Policy):
            raise ConfigError(f"policy {brief_repr(policy)}: a name, or an object with name, sample and count_tokens")
        check_type("config", config, (AgentConfig, NoneType), error=ConfigError)
        check_type("trust", trust, (TrustConfig, NoneType), error=ConfigError)
        if reader is not None:
            require_reader(reader)
        if redact is not None:
            check_function("redact", redact, error=ConfigError)
        if trust is not None and not isinstance(store, MemoryStore):
            raise ConfigError(f"trust: a MemoryStore is needed, not {type(store).__name__}: it keeps a quarantine")
        self.trust, self.redact = trust, redact
        self.view = trusted_view(store, trust)
        self.policy = load_policy(policy) if isinstance(policy, str | Path) else policy
        self.store = store
        self.config = prompted_config(config or AgentConfig(), self.policy)
        check_store_names(self.config, store)
        check_style(self.config, store.schema)
        self.tools = load_tools(self.config.tools)
        self.reader = reader or default_reader(self.policy, self.config)
        self._quotes = isinstance(self.policy, QuotingPolicy) and self.policy.quotes
        self.chunks_read = 0
        chunk_tokens = trained_sizes(self.policy).get("chunk_tokens", MAX_CHUNK_CHARACTERS // 4)
        self._chunk_characters = min(4 * chunk_tokens, MAX_CHUNK_CHARACTERS)
        self._turn = RLock()
        self._thread: ThreadPoolExecutor | None = None
        self.watch_forks()

    def reset_in_child(self, state: object) -> None:
        """Forget the turn and the thread of the parent's calls."""
        self._turn, self._thread = RLock(), None

    @refuse_other_keywords
    def read(
        self,
        chunk: Text | Messages,
        *,
        timestamp: str | None = None,
        source: str | None = None,
        speaker: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Turn:
        """Read one chunk: call the policy once and apply its tool calls.

        Chat messages of several days, or of more than `MAX_CHUNK_CHARACTERS`, are several chunks; a model is told the
        first time of each. With "add_all" every message keeps its own time. A policy that names
        the size of chunks it was trained on (`chunk_tokens`) reads a longer one in parts. The turn then has the calls,
        results, operations and problems of all of them, and the last completion.

        Args:
            chunk: a text, a `Chunk`, or chat messages: `[{"role": "user", "content": "..."}]`, with `name` and
                `timestamp` if there are any. Content blocks of OpenAI's and Anthropic's APIs are read too.
            timestamp: ISO 8601 date of a text, or of messages without one; a `Chunk` has its own.
            source: name of the conversation, stored with each operation.
            speaker: person who said or wrote all of it, by your word; default: the turns' speakers, or the labels of a
                plain text (`Ana: ...`), which its author may have forged.
            metadata: JSON values set on every entry that is written, for `where`; other keys of an entry stay.

        Returns:
            The turn: calls, their results, and the operations that changed the memory.

        Raises:
            DataError: a message is invalid, or none has words of a user or an assistant.
            InvalidContent: the text or the metadata cannot be stored.
            PolicyError: the policy did not answer; earlier chunks stay written.
        """
        origin = _check_origin(timestamp, source, speaker, metadata)
        with self._turn:
            is_one = isinstance(chunk, str | Chunk)
            parts = self.parts(chunk) if is_one else self._message_chunks(chunk, timestamp)
            turns = [self.apply(self.propose(part, timestamp=timestamp), **origin) for part in parts]
        if len(turns) == 1:
            return turns[0]
        if not turns:
            raise DataError("messages: no words of a user or an assistant: there is nothing to read")
        joined = {name: tuple(chain.from_iterable(getattr(turn, name) for turn in turns)) for name in _JOINED}
        return replace(turns[-1], **joined)

    def with_store(self, store: Memory) -> MemoryAgent:
        """Return an agent with the same policy, settings and reader for another memory."""
        return MemoryAgent(self.policy, store, self.config, self.reader, trust=self.trust, redact=self.redact)

    def parts(self, chunk: Text) -> list[Text]:
        """Cut a chunk that is longer than those that the policy was trained on (`chunk_tokens`).

        Raises:
            InvalidContent: a text holds a NUL or half of a surrogate pair, which no memory takes.
        """
        size = self._chunk_characters
        is_text = isinstance(chunk, str)
        if is_text:
            check_text("text", chunk)
        if size == MAX_CHUNK_CHARACTERS or len(chunk if is_text else chunk.render()) <= size:
            return [chunk]
        return [*(split_text(chunk, size) if is_text else cut_chunk(chunk, size))]

    def propose(self, chunk: Text, *, timestamp: str | None = None) -> Proposal:
        """Ask the policy what to do about one chunk; nothing is written.

        Others may write meanwhile: a slow policy holds up nobody. `apply` does what was proposed.

        Args:
            chunk: a text or a `Chunk`, no longer than the policy takes (`parts`).
            timestamp: ISO 8601 date of a text; a `Chunk` has its own.

        Raises:
            PolicyError: the policy did not answer.
        """
        check_type("chunk", chunk, (str, Chunk), error=DataError)
        _check_origin(timestamp, None, None, None)
        with self._turn:
            if isinstance(chunk, str):
                chunk = Chunk(text=chunk, timestamp=timestamp, index=self.chunks_read)
            if self.redact is not None:
                chunk = redact_chunk(chunk, self.redact)
            if ignores_memory(self.policy):
                check_timestamp(chunk.timestamp)
                core, observation = "", Observation(chunk)
            else:
                core = self.store.core  # the view may have it cut
                observation = observe(self.view, chunk, self.config, partial(count_checked, self.policy))
            shown, shown_ids = show_notes(observation, self.view) if self._quotes else (observation, None)
            [completion] = sample_checked(self.policy, [build_request(shown, self.config, self.store.schema)])
            self.chunks_read += 1
            return Proposal(observation, completion, core, shown_ids)

    def apply(
        self,
        proposal: Proposal,
        *,
        source: str | None = None,
        speaker: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Turn:
        """Apply a proposal to the memory as it is now.

        What the writer saw and somebody changed since then is not changed again: such a call fails with the code
        "conflict". An entry that is gone gives "unknown_id".

        Args:
            proposal: from `propose`.
            source: name of the conversation, stored with each operation.
            speaker: person who said all of the chunk; see `read`.
            metadata: JSON values set on every entry that is written; see `read`.

        Returns:
            The turn: calls, their results, and the operations that changed the memory.
        """
        check_type("proposal", proposal, Proposal, error=DataError)
        metadata = _check_origin(None, source, speaker, metadata)["metadata"]
        chunk = proposal.observation.chunk
        return act(
            self.store,
            chunk,
            proposal.completion,
            source=source,
            metadata=metadata,
            form=self.config.reply_form,
            tools=self.tools,
            visible=proposal.visible_contents,
            judge=TrustJudge(self.store, chunk, self.trust, speaker),
            shown_ids=proposal.shown_ids,
        )

    def _message_chunks(self, messages: object, timestamp: str | None) -> list[Chunk]:
        if not is_messages(messages):
            empty = "the list of messages is empty: " if isinstance(messages, list) and not messages else ""
            needed = "a text, a Chunk or a list of chat messages is needed: [{'role': 'user', 'content': ...}]"
            raise DataError(empty + needed)
        return chunk_messages(
            messages,
            timestamp=timestamp,
            size=self._chunk_characters,
            first_index=self.chunks_read,
            exact_times=ignores_memory(self.policy),
        )

    def stream(
        self,
        text: Text | Messages | Iterable[Text],
        *,
        timestamp: str | None = None,
        source: str | None = None,
        speaker: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Iterator[Operation]:
        """Read chunk by chunk and yield each operation after it is applied.

        In a `MemoryStore`, a yielded operation is on disk. Reading stops when the caller stops iterating.

        Args:
            text: a text, a `Chunk`, chat messages (see `read`), or an iterable of texts and chunks. A text is cut into
                chunks of at most `MAX_CHUNK_CHARACTERS`. Each item of an iterable is one chunk, fetched after the
                chunks before it are read.
            timestamp: ISO 8601 date of texts and of messages without one; a `Chunk` has its own.
            source: name of the conversation, stored with each operation.
            speaker: person who said all of it; see `read`.
            metadata: JSON values set on every entry that is written; see `read`.

        Yields:
            The operations that changed the memory, as logged.
        """
        origin = _check_origin(timestamp, source, speaker, metadata)
        del origin["speaker"]
        for part in (part for chunk in self._split(text, timestamp) for part in self.parts(chunk)):
            proposal = self.propose(part, timestamp=timestamp)
            chunk, visible = proposal.observation.chunk, proposal.visible_contents
            calls, notes = read_reply(
                proposal.completion, chunk, self.config.reply_form, self.tools, proposal.shown_ids
            )
            judge = TrustJudge(self.store, chunk, self.trust, speaker)
            for _, operations in execute_calls(self.store, chunk, calls, origin, visible, judge, self.tools, notes):
                yield from operations

    def consolidate(self, *, dry_run: bool = True) -> Consolidation:
        """Merge duplicates, end what is outdated and rewrite the core memory.

        Rules do what is certain; a model decides the rest (`agent.consolidate`).

        Args:
            dry_run: True proposes the changes and writes nothing; `apply_consolidation(store, proposal)` applies them.

        Returns:
            The changes, each with its reason. `undo_consolidation(store)` takes them back in one step.

        Raises:
            ConfigError: The memory is no `MemoryStore`, or the policy is not prompted in full style with tools.
            PolicyError: The policy did not answer; nothing is written.
        """
        check_flag("dry_run", dry_run, error=ConfigError)
        if not isinstance(self.store, MemoryStore):
            raise ConfigError(f"consolidate: a MemoryStore is needed, not {type(self.store).__name__}: it keeps a log")
        with self._turn:
            owner = None if self.trust is None else self.trust.owner
            proposal = propose_consolidation(self.store, self.policy, self.config, owner=owner)
        return proposal if dry_run else apply_consolidation(self.store, proposal)

    @refuse_other_keywords
    def ask(self, question: str, k: int = 8) -> Answer:
        """Answer from the `k` nearest entries, which are listed in `Answer.hits` as the reader saw them.

        Raises `DataError` for a question that is no text, and `StoreError` for another `k` than a whole number.
        """
        check_type("question", question, str, error=DataError)
        check_count("k", k)
        return check_answers(self.reader, 1, lambda: self.reader.answer([(question, self.view)], k=k))[0]

    @refuse_other_keywords
    async def aread(
        self,
        chunk: Text | Messages,
        *,
        timestamp: str | None = None,
        source: str | None = None,
        speaker: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Turn:
        """Run `read` in the agent's thread.

        Args:
            chunk: a text, a `Chunk` or chat messages.
            timestamp: ISO 8601 date of a text, or of messages without one.
            source: name of the conversation.
            speaker: person who said all of it; see `read`.
            metadata: JSON values set on every entry that is written.

        Returns:
            The turn, as from `read`.
        """
        origin = {"source": source, "speaker": speaker, "metadata": metadata}
        return await self._run_in_thread(partial(self.read, chunk, timestamp=timestamp, **origin))

    @refuse_other_keywords
    async def aask(self, question: str, k: int = 8) -> Answer:
        """Run `ask` in the agent's thread."""
        return await self._run_in_thread(partial(self.ask, question, k))

    async def astream(
        self,
        text: Text | Messages | Iterable[Text] | AsyncIterable[Text],
        *,
        timestamp: str | None = None,
        source: str | None = None,
        speaker: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Operation]:
        """Run `stream` in the agent's thread; `text` may be an asynchronous iterable.

        Args:
            text: a text, a `Chunk`, chat messages, or an iterable of texts and chunks.
            timestamp: ISO 8601 date of texts, or of messages without one.
            source: name of the conversation.
            speaker: person who said all of it; see `read`.
            metadata: JSON values set on every entry that is written.

        Yields:
            The operations that changed the memory, as logged.
        """
        origin = {"source": source, "speaker": speaker, "metadata": metadata}
        if not isinstance(text, AsyncIterable):
            operations = self.stream(text, timestamp=timestamp, **origin)
            while (operation := await self._run_in_thread(partial(next, operations, None))) is not None:
                yield operation
            return
        async for chunk in text:
            async for operation in self.astream((chunk,), timestamp=timestamp, **origin):
                yield operation

    def _split(self, text: Text | Messages | Iterable[Text], timestamp: str | None) -> Iterable[Text]:
        if isinstance(text, str):
            return split_text(text, self._chunk_characters)
        if isinstance(text, Chunk):
            return (text,)
        if is_messages(text):
            return self._message_chunks(text, timestamp)
        check_type("text", text, Iterable, error=DataError)
        return cast(Iterable[Text], text)

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "memalpha-agent")
        return await asyncio.get_running_loop().run_in_executor(self._thread, copy_context().run, work)
