"""Consolidate a stored memory: merge duplicates, end what is outdated, rewrite the core.

Rules do what is certain without a language model. They end an entry that equals another but for case, spacing and
closing marks, that was updated elsewhere, or whose own text says that it is outdated. Raw turns stay as they were said.
A model then sees the entries in groups of related ones. It may update and end entries, write relative dates out and
rewrite the core memory, with a reason for each change.

With an `owner`, as an agent with a trust rule has, entries that another person said take no part.

Nothing is written before `apply_consolidation`. Then all is written in one transaction, and every operation of the log
carries its reason: an update in `metadata["consolidated"]`, others as their source.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pydantic import Field, ValidationError

from memalpha.agent.parsing import named_tool, parse_calls
from memalpha.agent.prompts import PROMPTS, render_view
from memalpha.agent.tools import Arguments, format_validation_error, tool_schema, validate_arguments
from memalpha.agent.trust import is_same
from memalpha.config import AgentConfig
from memalpha.errors import ConfigError, MemalphaError, StoreError, UnknownEntry
from memalpha.policy.base import Policy, sample_checked
from memalpha.policy.chat.text import describe_tools, plain_line
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.checks.audit import plain, stale_findings
from memalpha.store.fields import is_made_id, time_order
from memalpha.store.memory import WorkingMemory
from memalpha.store.schema import MemorySchema
from memalpha.store.state import fact_identity
from memalpha.store.store import MemoryStore
from memalpha.types import MemoryEntry, Operation, SampleRequest, ToolCall, ViewEntry

CERTAIN = ("replaced", "says")
"""Reasons of stale findings that rules act on; two values of a slot (`hobby`) may both hold."""
METADATA_KEY = "consolidated"
_MARK = re.compile(r"consolidation (\d+): ")
_MAX_REASON = 200


@dataclass(frozen=True, slots=True)
class ConsolidationChange:
    """One change of a consolidation.

    Attributes:
        operation: Update, delete or core_update, with its reason as the log will have it.
        before: Content that it replaces or ends.
        reason: The reason in words.
    """

    operation: Operation
    before: str
    reason: str


@dataclass(frozen=True, slots=True)
class Consolidation:
    """Changes of a consolidation, proposed or applied.

    Attributes:
        changes: Changes in order.
        unsure: What looks wrong and no rule may decide, in words.
        refused: Calls of the model that cannot be done, and changes whose entry was changed by others meanwhile.
        position: Log position before the changes.
        applied: True if the changes are in the log.
    """

    changes: tuple[ConsolidationChange, ...]
    unsure: tuple[str, ...]
    refused: tuple[str, ...]
    position: int
    applied: bool = False


def propose_consolidation(
    store: MemoryStore, policy: Policy | None = None, config: AgentConfig | None = None, *, owner: str | None = None
) -> Consolidation:
    """Return the changes that would consolidate a memory; nothing is written.

    Args:
        store: Memory to consolidate.
        policy: Model that decides what rules cannot; None or a scripted policy: rules alone.
        config: Size of the view, length of the reply and prompt style of the policy.
        owner: Person whose entries are consolidated, with those of no speaker; None: all entries.

    Raises:
        ConfigError: The policy is not prompted in full style with tools.
        PolicyError: The policy does not answer.
    """

    def takes_part(entry: MemoryEntry) -> bool:
        return owner is None or entry.speaker is None or is_same(entry.speaker, owner)

    position, stale = store.snapshot(), stale_findings(store)
    draft = _Draft(WorkingMemory(store.state, store.load_embedder()))
    for entry, reason in _superfluous(store.schema, filter(takes_part, draft.memory.list())):
        draft.end(entry, reason)
    unsure = []
    for finding in stale:
        if not all(map(takes_part, (*finding.entries, *finding.against))):
            continue
        entry, newer_ids = finding.entries[0], ", ".join(other.id for other in finding.against)
        if finding.reason not in CERTAIN:
            unsure.append(f"{entry.id} may be outdated: {newer_ids} has a later date")
        elif draft.has(entry):
            draft.end(entry, f"outdated since {newer_ids}" if newer_ids else "outdated by its own words")
    if policy is not None and not isinstance(policy, ScriptedPolicy):
        config = config or AgentConfig()
        if config.prompt != "full" or config.form == "lines":
            raise ConfigError(
                f"consolidation needs a model that is prompted in full and calls tools, and {policy.name} is prompted "
                f"as {config.prompt}, {config.form}: name an instruction-tuned model, or leave the policy out"
            )
        facts = [entry for entry in draft.memory.list() if entry.turn is None and takes_part(entry)]
        for entries in _groups(facts, draft.memory, policy, config):
            _ask(draft, policy, config, [entry for entry in entries if draft.has(entry)], unsure)
    return Consolidation(tuple(draft.changes), tuple(unsure), tuple(draft.refused), position)


def apply_consolidation(store: MemoryStore, proposal: Consolidation) -> Consolidation:
    """Write the changes of a proposal in one transaction.

    What others changed since the proposal stays as it is and is listed in `refused`.

    Args:
        store: Memory that the proposal was made for.
        proposal: From `propose_consolidation`.

    Returns:
        The applied changes, and the log position before them.
    """
    applied, refused = [], list(proposal.refused)
    # Embed before the write lock, as single writes do.
    contents = [change.operation.content or "" for change in proposal.changes if change.operation.kind == "update"]
    store.load_embedder().encode(contents)
    with store.transaction():
        position = store.snapshot()
        for change in proposal.changes:
            operation, mark = change.operation, f"consolidation {position}: {change.reason}"
            if operation.kind == "update":
                operation = replace(operation, metadata={**(operation.metadata or {}), METADATA_KEY: mark})
            else:
                operation = replace(operation, source=mark)
            try:
                current = store.core if operation.id is None else store.get(operation.id).content
                if current != change.before:
                    raise StoreError("was changed after the proposal")
                applied.append(replace(change, operation=store.apply(operation)))
            except StoreError as error:
                refused.append(f"{operation.kind} of {operation.id or 'the core memory'}: {error}")
    return Consolidation(tuple(applied), proposal.unsure, tuple(refused), position, applied=True)


def undo_consolidation(store: MemoryStore) -> int:
    """Undo the last consolidation in one step, by appending operations; return their number.

    Raises:
        StoreError: The last operation of the log belongs to no consolidation.
    """
    with store.transaction():
        end = store.snapshot()
        marks = {_start_of(operation) for _, _, operation in store.log(max(0, end - 1))}
        start = marks.pop() if marks else None
        if start is None:
            raise StoreError("the last operation is no consolidation: undo what was written since, one by one")
        if any(_start_of(operation) != start for _, _, operation in store.log(start)):
            raise StoreError(f"others wrote to the log since position {start}, where the consolidation began")
        return store.restore(start)


class _Draft:
    """A copy of the memory that changes are tried on."""

    def __init__(self, memory: WorkingMemory) -> None:
        self.memory = memory
        self.changes: list[ConsolidationChange] = []
        self.refused: list[str] = []

    def has(self, entry: MemoryEntry) -> bool:
        """Return True if the entry is live and says what it said."""
        try:
            return self.memory.get(entry.id).content == entry.content
        except UnknownEntry:
            return False

    def end(self, entry: MemoryEntry, reason: str) -> None:
        self.change(Operation("delete", id=entry.id), entry.content, reason)

    def change(self, operation: Operation, before: str, reason: str) -> None:
        self.memory.apply(operation)
        self.changes.append(ConsolidationChange(operation, before, reason))


def _start_of(operation: Operation) -> int | None:
    mark = (operation.metadata or {}).get(METADATA_KEY) if operation.kind == "update" else operation.source
    match = _MARK.match(mark) if isinstance(mark, str) else None
    return None if match is None else int(match[1])


def _superfluous(schema: MemorySchema, entries: Iterable[MemoryEntry]) -> Iterator[tuple[MemoryEntry, str]]:
    """Yield each entry that states in plain text what another one does.

    The one with the latest date stays, and so does what a caller stored under a key of his own: he looks it up by that.
    """
    groups: dict[Hashable, list[MemoryEntry]] = {}
    for entry in entries:
        if entry.turn is None:
            plain_entry = replace(entry, content=plain(entry.content))
            # A name, a key or a password with capitals inside is another one in another case.
            spelled = tuple(word for word in re.findall(r"\w+", entry.content) if word[1:] != word[1:].lower())
            groups.setdefault((fact_identity(schema, plain_entry), spelled), []).append(entry)
    for group in groups.values():
        latest = max(group, key=lambda entry: (time_order(entry.timestamp), entry.importance, -entry.valid_from))
        yield from (
            (entry, f"says the same as {latest.id}") for entry in group if entry is not latest and is_made_id(entry.id)
        )


def _groups(
    entries: Sequence[MemoryEntry], memory: WorkingMemory, policy: Policy, config: AgentConfig
) -> Iterator[list[MemoryEntry]]:
    """Yield the entries in groups of related ones, each as large as the view allows."""

    def size(entry: MemoryEntry) -> int:
        return policy.count_tokens(f"[{entry.id}] ({entry.category}, {entry.timestamp}) {entry.content}") + 1

    vectors = memory.load_embedder().encode([entry.content for entry in entries])
    waiting = np.ones(len(entries), bool)
    while waiting.any():
        first = int(np.argmax(waiting))
        order = [int(index) for index in np.argsort(-(vectors @ vectors[first]), kind="stable") if waiting[index]]
        order.remove(first)
        group, tokens = [first], size(entries[first])
        for index in order:
            tokens += size(entries[index])
            if tokens > config.view_tokens:
                break
            group.append(index)
        waiting[group] = False
        yield [entries[index] for index in sorted(group)]


def _ask(
    draft: _Draft, policy: Policy, config: AgentConfig, entries: Sequence[MemoryEntry], unsure: Sequence[str]
) -> None:
    """Let the model change a group of entries and the core memory of the draft."""
    view = [ViewEntry(entry.id, entry.category, entry.content, entry.timestamp) for entry in entries]
    ids = {entry.id for entry in entries}
    hints = [plain_line(line) for line in unsure if line.split(" ", 1)[0] in ids]
    has_core = draft.memory.schema.core
    tools = tuple(tool_schema(name, model) for name, model in _TOOLS.items() if has_core or model is not _Rewrite)
    form = f"\n\n{describe_tools(tools)}" if config.form == "hermes" else ""
    wishes = f"\n\nInstructions of the user on what to remember:\n{config.instructions}" if config.instructions else ""
    text = "\n".join([render_view(draft.memory.core, view, "full"), *(["", "Look at:", *hints] if hints else [])])
    request = SampleRequest(
        ({"role": "system", "content": f"{PROMPTS['consolidation']}{form}{wishes}"}, {"role": "user", "content": text}),
        tools if config.form == "native" else (),
        max_new_tokens=config.max_new_tokens,
        thinking_tokens=config.thinking_tokens,
        chat_template_kwargs=config.chat_template_kwargs,
        native_calls=config.form == "native",
    )
    [completion] = sample_checked(policy, [request])
    for call in parse_calls(completion.text):
        try:
            _do(draft, named_tool(call, _TOOLS), ids)
        except (MemalphaError, ValidationError) as error:
            problem = format_validation_error(error) if isinstance(error, ValidationError) else error
            draft.refused.append(f"{call.name} {dict(call.arguments)}: {problem}")


_REASON = Field(default="", description="why, in a few words")


class _Update(Arguments):
    """Replace what an entry says."""

    id: str = Field(description="id of the entry, as shown")
    content: str = Field(description="the whole new content")
    timestamp: str | None = Field(
        default=None, description="ISO date of the fact, if it is another one than the entry's"
    )
    reason: str = _REASON


class _Delete(Arguments):
    """End an entry."""

    id: str = Field(description="id of the entry, as shown")
    reason: str = _REASON


class _Rewrite(Arguments):
    """Rewrite the core text."""

    content: str = Field(description="the whole new content")
    reason: str = _REASON


_TOOLS: dict[str, type[_Update | _Delete | _Rewrite]] = {
    "memory_update": _Update,
    "memory_delete": _Delete,
    "core_memory_update": _Rewrite,
}


def _do(draft: _Draft, call: ToolCall, ids: set[str]) -> None:
    """Do one call on the draft. Raises if it cannot be done."""
    if call.error or call.name not in _TOOLS:
        raise StoreError(call.error or "no such tool here")
    arguments, _ = validate_arguments(_TOOLS[call.name], call.arguments)
    reason = " ".join((arguments.reason or "no reason given").split())[:_MAX_REASON]
    if isinstance(arguments, _Rewrite):
        if arguments.content.strip() != draft.memory.core:
            draft.change(Operation("core_update", content=arguments.content), draft.memory.core, reason)
        return
    if arguments.id not in ids:
        raise UnknownEntry("no such entry was shown")
    entry = draft.memory.get(arguments.id)
    if isinstance(arguments, _Delete):
        draft.end(entry, reason)
        return
    stamp = arguments.timestamp or entry.timestamp or ""
    origin = {"source": entry.source, "chunk": entry.chunk, "turn": entry.turn, "speaker": entry.speaker}
    fields = {"timestamp": stamp, "metadata": entry.metadata, **origin}
    draft.change(Operation("update", id=entry.id, content=arguments.content, **fields), entry.content, reason)
