"""Prompts of the writer, its reflection and the reader, in three styles.

`full` is for instruction-tuned models: a system prompt, the memory view with dates and categories, tools through the
chat template. `compact` is for the tiny policy: one bare user message, no tools. The tiny policy was trained on its
exact bytes, so they must not change. `mem-alpha` is for Mem-alpha's checkpoints (`agent.mem_alpha`); its reflection is
that of `full`.

`observe` makes the writer's view of the memory while it reads one chunk.

The sentences are in `memalpha/data/prompts.yaml`.

Calls are written in one of three forms: `native` to the model's chat template, `hermes` blocks, or `lines`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from string import ascii_lowercase
from typing import Any

from memalpha.agent import mem_alpha
from memalpha.agent.tools import load_tools, tool_schemas
from memalpha.config import AgentConfig, ReaderConfig
from memalpha.errors import ConfigError, DataError
from memalpha.policy.base import Policy, with_prompt_style
from memalpha.policy.chat.text import describe_tools, plain_line, plain_text
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.fields import check_timestamp, time_order
from memalpha.store.memory import Memory
from memalpha.store.schema import MemorySchema, load_schema
from memalpha.tasks.formats.files import load_shipped_yaml
from memalpha.types import Chunk, Hit, MemoryEntry, Observation, Question, Task, ViewEntry

Message = dict[str, str]

ABSTAIN = "unknown"

DEMOTED = "demoted"
"""Part of the score of a hit that a trust rule ranks lower: another than the owner said it."""

CORE_CUT = "[cut here to fit this view: the stored core memory is longer, and rewriting it would lose the rest]"

PROMPTS = load_shipped_yaml("prompts.yaml")
"""Sentences of the prompts in style `full`."""

_DEEDS = {"deed": "tool calls", "deeds": "calls"}
_LINES = {"deed": "lines of these forms", "deeds": "lines"}


def check_style(config: AgentConfig, schema: MemorySchema) -> None:
    """Raise `ConfigError` if a tool or a prompt file cannot be read, or the style cannot show them or such a memory."""
    for tool in load_tools(config.tools).values():
        if config.form == "lines" and not tool.line:
            raise ConfigError(f"agent.tools: {tool.name} has no line form: set its `line`, or form=hermes")
    if config.prompt == "mem-alpha":
        mem_alpha.check_schema(schema)
        mem_alpha.load_prompt(config.prompt_file)


def render_view(core: str, entries: Iterable[ViewEntry], style: str) -> str:
    """Render the memory for the writer.

    Args:
        core: core memory text; may be empty.
        entries: entries to show, in this order.
        style: "full", "compact" or "mem-alpha".

    Returns:
        The core memory, then one line per entry.
    """
    if style == "mem-alpha":
        return mem_alpha.render_view(core, list(entries))
    if style == "compact":
        lines = [f"{entry.id} {plain_line(entry.content)}" for entry in entries]
        return "\n".join(["memory", *([f"core: {plain_line(core)}"] if core else []), *lines])
    notes = ((entry, ", ".join(filter(None, (entry.category, entry.timestamp)))) for entry in entries)
    lines = [f"[{entry.id}] ({note}) {plain_line(entry.content)}" for entry, note in notes]
    return "\n".join(["Core memory:", plain_line(core) or "(empty)", "", "Memory entries:", *(lines or ["(none)"])])


def writer_messages(
    observation: Observation, config: AgentConfig, schema: MemorySchema
) -> tuple[tuple[Message, ...], tuple[dict[str, Any], ...]]:
    """Build the writer's messages and tools for one chunk.

    Args:
        observation: the writer's view of the chunk.
        config: prompt style and the user's instructions.
        schema: categories, which the prompt describes.

    Returns:
        Messages and tool schemas. The compact style has no tools, because its policy was trained without them; in the
        style mem-alpha, and in the forms hermes and lines, the system message says how to call them.
    """
    wishes = f"\n\nInstructions of the user on what to remember:\n{config.instructions}" if config.instructions else ""
    if config.prompt == "mem-alpha":
        prompt = mem_alpha.load_prompt(config.prompt_file)
        return mem_alpha.writer_messages(observation, config.max_new_tokens, prompt, wishes), ()
    chunk, text = observation.chunk, plain_text(observation.chunk.render())
    view = render_view(observation.core, observation.entries, config.prompt)
    if config.prompt == "compact":
        stamp = f" {chunk.timestamp}" if chunk.timestamp else ""
        advice = f"advice\n{plain_line(observation.advice)}\n" if observation.advice else ""
        return ({"role": "user", "content": f"{view}\n{advice}chunk{stamp}\n{text}"},), ()
    kinds = "\n".join(f"- {category.name}: {category.description}" for category in schema.categories)
    date = f" ({chunk.timestamp})" if chunk.timestamp else ""
    advice = f"Your advice from an earlier attempt:\n{plain_text(observation.advice)}\n\n" if observation.advice else ""
    tools = load_tools(config.tools)
    schemas, in_lines = tool_schemas(schema, tools), config.form == "lines"
    rules = [f"- {tool.line_shape() if in_lines else name} {tool.rule}" for name, tool in tools.items()]
    system = PROMPTS["writer"].format(tools="\n".join(rules), **(_LINES if in_lines else _DEEDS))
    form = {"native": "", "hermes": f"\n\n{describe_tools(schemas)}", "lines": PROMPTS["line_rules"]}[config.form]
    messages = (
        {"role": "system", "content": f"{system}{form}\n\nCategories of entries:\n{kinds}{wishes}"},
        {"role": "user", "content": f"{view}\n\n{advice}New part of the conversation{date}:\n{text}"},
    )
    return messages, schemas if config.form == "native" else ()


def reflection_messages(
    core: str, entries: Iterable[ViewEntry], feedback: str, earlier: Sequence[str], config: AgentConfig
) -> tuple[Message, ...]:
    """Build the prompt that asks the writer for advice after an attempt.

    Args:
        core: core memory that the attempt built.
        entries: entries that the attempt wrote; the compact style shows neither core nor entries.
        feedback: error feedback in the same style; "" if all answers were right.
        earlier: advice that helped in other conversations.
        config: prompt style.

    Returns:
        The messages; no tools are offered.
    """
    if config.prompt == "compact":
        lines = ["reflect", *(f"advice\n{plain_line(text)}" for text in earlier), plain_text(feedback) or "all right"]
        return ({"role": "user", "content": "\n".join(lines)},)
    parts = [f"The memory after the last part:\n{render_view(core, entries, config.prompt)}"]
    if earlier:
        parts.append(
            "Advice that helped in other conversations:\n" + "\n".join(f"- {plain_line(text)}" for text in earlier)
        )
    parts.append(f"What went wrong:\n{plain_text(feedback)}" if feedback else "All answers were right.")
    return ({"role": "system", "content": PROMPTS["reflection"]}, {"role": "user", "content": "\n\n".join(parts)})


def reader_messages(
    question: str, hits: Sequence[Hit], config: ReaderConfig, *, core: str = "", queries: Sequence[str] | None = None
) -> tuple[Message, ...]:
    """Build the reader's messages: dated notes, oldest first, then the question.

    Args:
        question: question as the language model sees it.
        hits: retrieved entries; `order_notes` sorts them.
        config: prompt style. With `cite` the notes are numbered from 1, and the reply must name its evidence.
        core: core memory to show before the notes.
        queries: searches made so far by a reader that may search once more; None: it may not.

    Returns:
        The messages.
    """
    question = plain_text(question)
    facts = list(map(note_line, order_notes(hits)))
    if config.prompt == "compact":
        lines = ["facts", *([f"core: {plain_line(core)}"] if core else []), *facts, f"ask: {question}"]
        return ({"role": "user", "content": "\n".join(lines)},)
    marks = [f"[{number}]" for number in range(1, len(facts) + 1)] if config.cite else ["-"] * len(facts)
    lines = [f"- core memory: {plain_line(core)}"] if core else []
    lines += [f"{mark} {fact}" for mark, fact in zip(marks, facts, strict=True)]
    note_lines = "\n".join(lines) or "(none)"
    form = f"\n\n{PROMPTS['cite']}" if config.cite else ""
    system, searched = PROMPTS["reader"], ""
    if queries is not None:
        system += PROMPTS["search"].format(left=config.searches - len(queries), searches=config.searches)
        searched = f"\n\nSearched for so far: {'; '.join(('the question', *queries))}"
    return (
        {"role": "system", "content": system},
        {"role": "user", "content": f"Memory notes:\n{note_lines}{searched}\n\nQuestion: {question}{form}"},
    )


def note_line(entry: MemoryEntry) -> str:
    """Return an entry as the reader sees it: one line, with its date."""
    return plain_line(entry.content) + (f" ({entry.timestamp})" if entry.timestamp else "")


def order_notes(hits: Sequence[Hit]) -> list[MemoryEntry]:
    """Return retrieved entries in reading order: oldest first, and demoted ones after the others."""

    def key(hit: Hit) -> tuple[Any, ...]:
        return DEMOTED in hit.explain, time_order(hit.entry.timestamp), hit.entry.valid_from

    return [hit.entry for hit in sorted(hits, key=key)]


def letter_choices(choices: Any) -> dict[str, str]:
    """Return the texts of choices by small letter: of a mapping ({"A": ...}), or of a list from (a) on.

    A letter that each text begins with ("A. Oslo") is left out. Raises `DataError` for anything else.
    """
    texts = choices.values() if isinstance(choices, Mapping) else choices
    if not isinstance(choices, Mapping | list | tuple) or any(isinstance(text, Mapping | list) for text in texts):
        raise DataError(f"choices: texts by letter or a list of texts are needed, not {choices!r:.80}")
    if not isinstance(choices, Mapping) and len(choices) > len(ascii_lowercase):
        raise DataError(f"choices: there are {len(choices)} texts, and a letter each for {len(ascii_lowercase)}")
    pairs = choices.items() if isinstance(choices, Mapping) else zip(ascii_lowercase, choices, strict=False)
    by_letter = {str(letter).strip(" ().").lower(): str(text) for letter, text in pairs}
    mark = r"\s*[).:\uff09\uff1a\uff0e\u3001]\s*(?=\S)"
    bare = {
        letter: re.sub(rf"(?i)^\s*[(\uff08]?{re.escape(letter)}{mark}", "", text) for letter, text in by_letter.items()
    }
    return bare if all(bare[letter] != text for letter, text in by_letter.items()) else by_letter


def question_with_choices(question: Question, *, dated: bool = True) -> str:
    """Format a question for a language model, with its date and lettered choices."""
    date, choices = question.meta.get("date"), letter_choices(question.meta.get("choices") or {})
    day = f"(asked on {date}) " if date and dated else ""
    return "\n".join([f"{day}{question.question}", *(f"({letter}) {text}" for letter, text in choices.items())])


def prompted_config(config: AgentConfig, policy: Policy, schema: str | None = None) -> AgentConfig:
    """Return `config` in the policy's own prompt style, unless it sets one.

    Args:
        config: settings of the writer.
        policy: the writer.
        schema: categories of the memory to come, to check the style against before there is one.

    Raises:
        ConfigError: if `config` holds instructions that the policy cannot see, or the style cannot show such a memory.
    """
    if config.instructions is not None and isinstance(policy, ScriptedPolicy):
        raise ConfigError(
            f"agent.instructions: {policy.name} follows rules and reads no instructions; leave them out, or name a "
            "model as the writer"
        )
    config = with_prompt_style(config, policy)
    if schema is not None:
        check_style(config, load_schema(schema))
    return config


def check_store_names(config: AgentConfig, store: Memory) -> None:
    """Raise `ConfigError` if `config` names another schema or embedder than the store's."""
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
    recent, core = memory.recent(config.view_recent + 1), memory.core
    if len(recent) <= config.view_recent:
        entries = _oldest_first(memory, recent)
        if _fits(core, entries, config, count_tokens):
            return Observation(chunk, core, _view(entries), task, advice)
    # Retrieved and recent entries alternately, best first, without duplicates.
    recent = recent[: config.view_recent]
    related = memory.search(chunk.render(), config.view_related) if config.view_related else []
    by_id: dict[str, MemoryEntry] = {}
    for entry in chain.from_iterable(zip_longest((hit.entry for hit in related), recent)):
        if entry is not None:
            by_id.setdefault(entry.id, entry)
    ranked = list(by_id.values())
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
