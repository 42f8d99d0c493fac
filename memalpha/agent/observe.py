"""The writer's view of the memory while it reads one chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memalpha.agent.prompts import CORE_CUT, render_view
from memalpha.config import AgentConfig
from memalpha.store.memory import Memory
from memalpha.store.validation import check_timestamp
from memalpha.types import Chunk, MemoryEntry, Observation, Task, ViewEntry


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
