"""Answer questions from memory: the reader interface, a policy reader and an extractive baseline.

Readers search the memory of each question, or see what somebody else retrieved from it (`RetrievedMemory`). They take
many questions at once, because in training all questions of a step are one batch.

Two live values of one subject and attribute make an answer wrong (`apply_conflict_rule`; `store.values` defines slots):
without this rule an insert would earn as much as an update, and the policy would never learn to update.

A policy reads the entries of one search, searches further by itself (`reader.kind=agentic`, as the agent of Mem-alpha
does, Wang et al. 2025, arXiv:2509.25911), or sees the whole memory (`full-memory`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Literal, Protocol, runtime_checkable

import Stemmer

from memalpha.agent.dates import ASKS_FOR_DAY, ASKS_FOR_HOUR, CLOCK, day_of, find_time
from memalpha.agent.parsing import after_thinking, parse_calls
from memalpha.agent.prompts import ABSTAIN, note_line, order_notes, question_with_choices, reader_messages
from memalpha.agent.quoting import NOTE
from memalpha.agent.tools import SEARCH_TOOL, search_query
from memalpha.agent.transcript import is_anonymous, split_label
from memalpha.arguments import brief_repr, check_function, group_values
from memalpha.config import AgentConfig, ReaderConfig
from memalpha.errors import ConfigError, PolicyError
from memalpha.policy.base import (
    Policy,
    QuotingPolicy,
    count_checked,
    reader_style,
    sample_checked,
    wrap_outside_errors,
)
from memalpha.policy.reply_cache import cache_frozen
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.memory import Memory
from memalpha.store.search import lexical
from memalpha.store.search.answer_spans import MOST_PASSAGES, find_answers, order_of
from memalpha.store.search.lexical import UNSPACED, stem
from memalpha.store.values import contains, is_abstention, is_contradictory, is_same, key_value, slot_value
from memalpha.tasks.formats.files import load_shipped_yaml
from memalpha.types import Completion, Hit, MemoryEntry, Question, SampleRequest, ToolCall

Conflicts = Literal["keep", "refuse", "newest"]

CALL_TOKENS = 64
"""Room for a call of `search_memory`, beside the tokens of an answer."""

_CITED_LINE = re.compile(r"^[ \t]*(answer|evidence|reasoning)[ \t]*:(.*)$", re.IGNORECASE | re.MULTILINE)
_BETWEEN_NUMBERS = re.compile(r"[\[\](),;.]|\band\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Cited:
    """Three parts of a reply; None for a missing or invalid part.

    `evidence` holds the cited note numbers without duplicates.
    """

    answer: str | None
    evidence: tuple[int, ...] | None
    reasoning: str | None


@dataclass(frozen=True, slots=True)
class Search:
    """A search that a reader made by itself: its query, and the ids of the entries that it found, best first."""

    query: str
    retrieved: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a reader, with the entries it was read from.

    Attributes:
        text: the answer.
        abstained: True if the answer says that the memory lacks it.
        conflict: True if its slot has two different live values; such an answer counts as wrong.
        hits: entries that the reader saw.
        prompt: prompt of a language-model reader.
        cited: parsed parts of a reply that cites evidence.
        notes: ids of the entries in the order of the cited numbers.
        truncated: True if the answer of a language model was cut at `max_new_tokens`.
        searches: searches that the reader made by itself.
        left_out: number of live entries that did not fit a reader of the whole memory; None for other readers.
    """

    text: str
    abstained: bool = False
    conflict: bool = False
    hits: tuple[Hit, ...] = ()
    prompt: str | None = None
    cited: Cited | None = None
    notes: tuple[str, ...] = ()
    truncated: bool = False
    searches: tuple[Search, ...] = ()
    left_out: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RetrievedMemory:
    """Hits that somebody else retrieved for a question, in the place of a memory that the reader searches.

    Attributes:
        hits: entries, best first; a reader sees them all, whatever its `k`.
        core: core memory text.
        live: returns all entries of the memory; None: they are not known, and the conflict rule uses `hits`.
        further: returns the hits of another query, best first; None: the memory cannot be searched further.
    """

    hits: tuple[Hit, ...]
    core: str = ""
    live: Callable[[], Sequence[MemoryEntry]] | None = None
    further: Callable[[str], Sequence[Hit]] | None = None

    def list(self) -> list[MemoryEntry]:
        """Return all entries of the memory, or those of `hits` if the others are not known."""
        return [hit.entry for hit in self.hits] if self.live is None else [*self.live()]

    def search(self, query: str, k: int | None = None) -> list[Hit]:
        """Return the hits of another query, or `hits` if the memory cannot be searched further."""
        return [*(self.hits if self.further is None else self.further(query))]

    def search_many(self, queries: Sequence[str], k: int | None = None) -> list[list[Hit]]:
        """Return `hits` for each query."""
        return [[*self.hits] for _ in queries]


@dataclass(frozen=True, slots=True)
class Reading:
    """Question with what a reader sees of its memory.

    Attributes:
        question: text of the question.
        memory: entries that were retrieved for it, and what the reader may ask of their memory.
        full_question: question for a language model, with date and choices; "": same as `question`.
    """

    question: str
    memory: RetrievedMemory
    full_question: str = ""

    def with_hits(self, hits: Iterable[Hit]) -> Reading:
        """Return the reading with other entries in view."""
        return replace(self, memory=replace(self.memory, hits=tuple(hits)))


class Reader(Protocol):
    """Answer questions from memories.

    `name` appears in reports; `conflicts` is the rule for contradicting entries.
    """

    name: str
    conflicts: Conflicts

    def answer(self, items: Sequence[Item], *, k: int | None = None) -> list[Answer]:
        """Return one answer per (question, memory), in order.

        `k` entries are retrieved; the default is the reader's own. A memory may be a `RetrievedMemory`.
        """
        ...


@runtime_checkable
class _Answering(Protocol):
    answer: Callable[..., Any]


def require_reader(reader: object) -> None:
    """Raise `ConfigError` for an object that does not answer."""
    answer = reader.answer if isinstance(reader, _Answering) else None
    check_function("reader: its method answer", answer, error=ConfigError)


Item = tuple[str | Question, Memory | RetrievedMemory]
"""Question and memory to answer it from.

The search uses the text of a `Question` only; a language model also sees its date and choices.
"""


def check_answers(reader: Reader, number: int, read: Callable[[], Sequence[Answer]]) -> list[Answer]:
    """Return the answers of a reader of any make, checked.

    Args:
        reader: Reader that answers. An error of one of memalpha's own keeps its class.
        number: Number of questions.
        read: Asks the reader.

    Raises:
        PolicyError: The reader raised, or returned something else than one answer with a text per question.
    """
    with wrap_outside_errors("reader", reader) as name:
        answers = [*read()]
    if len(answers) != number:
        raise PolicyError(f"reader {name} returned {len(answers)} answers to {number} questions")
    for answer in answers:
        if not isinstance(answer, Answer) or not isinstance(answer.text, str):
            raise PolicyError(f"reader {name} returned {brief_repr(answer)}: an Answer with a text is needed")
    return answers


def retrieve(items: Sequence[Item], k: int) -> list[Reading]:
    """Retrieve the k best entries per item, with one batched search per memory.

    Args:
        items: questions with their memories.
        k: entries per question.

    Returns:
        One reading per item, in order.
    """
    by_memory = group_values((id(memory), number) for number, (_, memory) in enumerate(items))
    readings: dict[int, Reading] = {}
    for numbers in by_memory.values():
        memory = items[numbers[0]][1]
        questions = [items[n][0] for n in numbers]
        texts = [question if isinstance(question, str) else question.question for question in questions]
        hits_of = memory.search_many(texts, k)
        if not isinstance(memory, RetrievedMemory):
            memory = RetrievedMemory((), memory.core, cache(memory.list), partial(memory.search, k=k))
        for number, question, text, hits in zip(numbers, questions, texts, hits_of, strict=True):
            full_question = "" if isinstance(question, str) else question_with_choices(question)
            readings[number] = Reading(text, replace(memory, hits=tuple(hits)), full_question)
    return [readings[number] for number in range(len(items))]


QUOTED = 2
"""Entries in whose words a small policy answers."""


def _distinct(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """Return the best hit of each date and content: a quoting writer keeps a sentence once for each of its facts."""
    by_text: dict[tuple[str | None, str], Hit] = {}
    for hit in hits:
        by_text.setdefault((hit.entry.timestamp, hit.entry.content), hit)
    return tuple(by_text.values())


class PolicyReader:
    """Read entries with a language model, and answer or abstain.

    The entries are dated and sorted oldest first. They are the k best for the question; with `kind=agentic` also those
    of the policy's own searches, and with `kind=full-memory` all that are live, without the oldest if not all fit.

    Args:
        policy: Policy that answers.
        config: Prompt style, k, length of an answer. Default: the style `full`.
        frozen: The policy's weights never change, so its answers are kept and equal prompts of later calls are not
            sampled again (`policy.reply_cache`).
        quotes: Answer in the words of the `QUOTED` best entries: small policies make words up, and take those of other
            entries. What stands in a sentence is answered by the whole sentence, the value of a note by itself.
    """

    def __init__(
        self, policy: Policy, config: ReaderConfig | None = None, *, frozen: bool = False, quotes: bool = False
    ) -> None:
        self.policy = policy
        self.quotes = quotes
        self.cache = cache_frozen(policy) if frozen else None
        self.config = config or ReaderConfig(kind="policy")
        if self.config.prompt == "compact":
            policies, advice = "a policy prompted in the compact style", "set reader.prompt=full for a language model"
            if self.config.cite:
                raise ConfigError(f"reader.cite: {policies} answers in a word: leave it out, or {advice}")
            if self.config.kind == "agentic":
                raise ConfigError(f"reader.kind: {policies} makes no searches: take policy, or {advice}")
        self.conflicts: Conflicts = self.config.conflicts or "keep"
        self.name = f"{self.config.kind if self.config.is_model else 'policy'}:{policy.name}"

    def answer(self, items: Sequence[Item], *, k: int | None = None) -> list[Answer]:
        """Return greedy answers; equal prompts are sampled once, those of a frozen policy once for all calls.

        Raises:
            ConfigError: With `kind=full-memory`, if the entries of a memory are not known.
        """
        readings = retrieve(items, k or self.config.k)
        if self.quotes:
            readings = [item.with_hits(_distinct(item.memory.hits)) for item in readings]
        if self.config.kind == "agentic":
            answers = self._search_and_answer(readings)
        elif self.config.kind == "full-memory":
            filled, left_out = list[Reading](), list[int]()
            for item in readings:  # with the newest live entries that fit
                if item.memory.live is None:
                    raise ConfigError(
                        "reader.kind: full-memory needs a system that shows its entries (method `entries`); take policy"
                    )
                whole = item.with_hits(Hit(entry, 0.0) for entry in item.memory.list())
                notes = order_notes(apply_conflict_rule([whole], self.conflicts)[0].memory.hits)
                room = self.config.context_tokens - count_checked(self.policy, item.memory.core)
                first = len(notes)
                while first and (room := room - count_checked(self.policy, f"- {note_line(notes[first - 1])}\n")) >= 0:
                    first -= 1
                filled.append(item.with_hits(Hit(entry, 0.0) for entry in notes[first:]))
                left_out.append(first)
            replies = zip(self._ask(filled), left_out, strict=True)
            answers = [replace(answer, left_out=count) for (answer, _), count in replies]
        else:
            answers = [answer for answer, _ in self._ask(readings)]
        if self.quotes:
            answers = [_quoted(answer, item) for answer, item in zip(answers, readings, strict=True)]
        return mark_conflicts(answers, readings) if self.conflicts == "refuse" else answers

    def _ask(
        self, items: Sequence[Reading], queries: Sequence[Sequence[str]] | None = None
    ) -> list[tuple[Answer, Completion]]:
        """Prompt the policy once per item; with the `queries` made so far per item, it may search once more."""
        visible = apply_conflict_rule(items, self.conflicts)
        prompts: dict[tuple[str, ...], SampleRequest] = {}
        keys = []
        for index, item in enumerate(visible):
            question, made = item.full_question or item.question, None if queries is None else queries[index]
            messages = reader_messages(question, item.memory.hits, self.config, core=item.memory.core, queries=made)
            keys.append(key := tuple(message["content"] for message in messages))
            if key not in prompts:
                prompts[key] = SampleRequest(
                    messages,
                    () if queries is None else (SEARCH_TOOL,),
                    max_new_tokens=self.config.max_new_tokens + (0 if queries is None else CALL_TOKENS),
                    thinking_tokens=self.config.thinking_tokens,
                    chat_template_kwargs=self.config.chat_template_kwargs,
                )
        sample = partial(sample_checked, self.policy) if self.cache is None else self.cache.ask
        completions = sample(list(prompts.values())) if prompts else []
        replies = dict(zip(prompts, completions, strict=True))
        return [
            (self._answer(replies[key], item, "\n\n".join(key)), replies[key])
            for key, item in zip(keys, visible, strict=True)
        ]

    def _search_and_answer(self, items: Sequence[Reading]) -> list[Answer]:
        """Let the policy search before it answers; each round asks all questions that are still open.

        A reply without a call is the answer. An unreadable call, a repeated query and the last search lead to a prompt
        without the tool.
        """
        inquiries = [_Inquiry(item) for item in items]
        answers: dict[int, Answer] = {}
        active = [index for index, item in enumerate(items) if item.memory.further is not None]
        while active:
            queries = [[search.query for search in inquiries[index].searches] for index in active]
            replies = self._ask([inquiries[index].reading for index in active], queries)
            asked, active = active, []
            for index, (answer, completion) in zip(asked, replies, strict=True):
                if not (calls := parse_calls(completion.text)):
                    answers[index] = answer
                elif inquiries[index].follow(calls, self.config.searches):
                    active.append(index)
        rest = [index for index in range(len(items)) if index not in answers]
        replies = self._ask([inquiries[index].reading for index in rest])
        answers |= {index: answer for index, (answer, _) in zip(rest, replies, strict=True)}
        return [replace(answers[index], searches=tuple(inquiry.searches)) for index, inquiry in enumerate(inquiries)]

    def _answer(self, reply: Completion, item: Reading, prompt: str) -> Answer:
        text, truncated = reply.text[after_thinking(reply.text) :].strip(), reply.stop_reason == "length"
        hits = item.memory.hits
        if not self.config.cite:
            return Answer(text, is_abstention(text), hits=hits, prompt=prompt, truncated=truncated)
        cited = parse_cited(text)
        answer = cited.answer or ""
        ids = tuple(entry.id for entry in order_notes(hits))
        return Answer(answer, is_abstention(answer), False, hits, prompt, cited, ids, truncated)


@dataclass(slots=True)
class _Inquiry:
    """Question of an agentic reader: its entries and its searches so far."""

    reading: Reading
    searches: list[Search] = field(default_factory=list)

    def follow(self, calls: Sequence[ToolCall], limit: int) -> bool:
        """Make the searches of a reply's calls, `limit` in all; return True if the policy may search again."""
        for call in calls:
            made = {self.reading.question.casefold(), *(search.query.casefold() for search in self.searches)}
            query = search_query(call)
            if query is None or query.casefold() in made or self.reading.memory.further is None:
                return False
            hits = self.reading.memory.further(query)
            self.searches.append(Search(query, tuple(hit.entry.id for hit in hits)))
            earlier = self.reading.memory.hits
            notes = {note_line(hit.entry) for hit in earlier}
            new = (hit for hit in hits if note_line(hit.entry) not in notes)
            self.reading = self.reading.with_hits((*earlier, *new))
            if len(self.searches) == limit:
                return False
        return True


def parse_cited(text: str) -> Cited:
    """Parse a reply that cites evidence.

    It has three lines: `Answer: ...`, `Evidence: [2], [5]` (numbers of the notes, or `none`) and `Reasoning: ...`. Each
    stands at most once, in any order. A line that is missing, empty or repeated is None, and so is evidence
    that is no list of numbers. No text raises.
    """
    lines_by_part = group_values((match[1].lower(), match[2].strip()) for match in _CITED_LINE.finditer(text))
    parts = {name: lines[0] for name, lines in lines_by_part.items() if len(lines) == 1 and lines[0]}
    words = _BETWEEN_NUMBERS.sub(" ", parts.get("evidence", "missing")).split()
    words = [] if [word.lower() for word in words] == ["none"] else words
    are_numbers = all(word.isascii() and word.isdecimal() and len(word) < 5 for word in words)
    evidence = tuple(dict.fromkeys(map(int, words))) if are_numbers else None
    return Cited(parts.get("answer"), evidence, parts.get("reasoning"))


class ExtractiveReader:
    """Answer by word overlap, as a lower bound without a language model.

    It understands no paraphrase and reads entries only, not the core memory.

    - "How many" counts the entries whose key shares a word with the question: of the whole memory, or of the hits that
      somebody else retrieved.
    - "When" returns the time that the best matching entry names, or its date.
    - Other questions return the value of the best entry whose key shares a word with the question.

    Entries without a key, and lines of a transcript, whose label says who spoke, match by their whole text and are
    quoted, also for a date that they name or a number. A question of stop words alone ("how old am I?") gets the
    nearest of them. What somebody says of himself answers no English question about another ("Where does Ben live?").
    The reader abstains if no entry matches.
    """

    def __init__(self, config: ReaderConfig | None = None) -> None:
        self.config = config or ReaderConfig()
        self.conflicts: Conflicts = self.config.conflicts or "keep"
        self.name = "extractive (floor)"

    def answer(self, items: Sequence[Item], *, k: int | None = None) -> list[Answer]:
        """Return one answer per item, without sampling."""
        answers, readings = [], retrieve(items, k or self.config.k)
        for item, (_, memory) in zip(apply_conflict_rule(readings, self.conflicts), items, strict=True):
            text = ABSTAIN
            if item.question.lower().startswith("how many"):
                hits = [hit.entry for hit in item.memory.hits]
                text = _count(item.question, hits if isinstance(memory, RetrievedMemory) else memory.list())
            if text == ABSTAIN:
                text = self._extract(item.question, item.memory)
            answers.append(Answer(text, text == ABSTAIN, hits=item.memory.hits))
        return mark_conflicts(answers, readings) if self.conflicts == "refuse" else answers

    def _extract(self, question: str, memory: RetrievedMemory) -> str:
        language = _language_of(question, (hit.entry for hit in memory.hits))
        question_stems = _stems(question, language)
        for entry in (hit.entry for hit in memory.hits):
            key, value = _key_and_value(entry)
            if key is None:
                # "How old am I?" has no word to look for: the nearest sentence is quoted.
                is_near = not question_stems or question_stems & _stems(entry.content, language)
                if is_near and not _speaks_of_another(question, entry):
                    return _when(question, value, entry.timestamp) or value
            elif noted := _noted(question, question_stems, entry, language):
                return noted
        return ABSTAIN


class QuotingReader(ExtractiveReader):
    """Answer with the value of a note, or a sentence, that two small networks take for the answer (`answer_spans`).

    This is what a `MemoryAgent` answers without a language model, and with one as small as "smol". It reads the core
    memory, too. "How many" counts notes as `ExtractiveReader` does, and a note whose key has a word of the question is
    taken as there if all entries are notes. A sentence is quoted without the label that says who spoke; to "when"
    without a date or a clock time in it the answer is the day that it speaks of, in other languages than English the
    sentence with its own day. The networks also say that nothing answers. What they learnt of other languages is less:
    there an entry must have a word of the question, besides the name of a speaker and the words of
    `data/function_words.yaml`, in any form that Snowball's stemmer of its language knows.
    """

    def __init__(self, config: ReaderConfig | None = None) -> None:
        super().__init__(config)
        self.name = "quoting"

    def _extract(self, question: str, memory: RetrievedMemory) -> str:
        hits = _distinct(memory.hits)[:MOST_PASSAGES]
        language = _language_of(question, (hit.entry for hit in hits))
        question_stems = _stems(question, language)
        entries = [hit.entry for hit in hits if not _speaks_of_another(question, hit.entry)]
        noted = next(filter(None, (_noted(question, question_stems, entry, language) for entry in entries)), None)
        if noted and None not in (_key_and_value(entry)[0] for entry in entries):
            return noted
        entries += [MemoryEntry("", "core", line) for line in memory.core.splitlines() if line.strip()]
        is_english = not _ENGLISH.isdisjoint(_WORD.findall(question.lower()))
        if not is_english:
            names = {name for entry in entries for name in _stems(entry.speaker or "", language)}
            topic = {word for word in question_stems - names if not _HIRAGANA.fullmatch(word)}
            asked = [words for words in (question_stems & names, topic or question_stems - names) if words]
            read = [(entry, _stems(entry.content, language)) for entry in entries]
            entries = [entry for entry, stems in read if all(words & stems for words in asked)]
        spans = find_answers(question, [entry.content for entry in entries], order_of(entries))
        if sum(span.chance for span in spans) <= 1 - (NOTHING if is_english or not question_stems else NOTHING_FOREIGN):
            return noted or ABSTAIN
        entry, span = max(zip(entries, spans, strict=True), key=lambda pair: pair[1].score)
        _, value = _key_and_value(entry)
        start = span.start - entry.content.rfind(value)
        return _when(question, value, entry.timestamp, (start, start + len(span.text))) or value


_AUX = r"(?:did|do|does|is|are|was|were|will|would|ha[sd]|have|can|could|should|might)\b"
_VERB = rf"(?: of the \w+)? {_AUX}"
_LEAD = (
    "(?:(?:do|can|could|would) you )?(?:please )?(?:still )?(?:remember|recall|know|(?:tell|remind) me)(?: exactly)?"
    r"(?!.*\b(?:who|whose|what|where|which|why|how)\b)"
)
_ASKS_FOR_DAY = re.compile(
    rf"\W*(?:(?:and|so|since|until|by|from|{_LEAD}) )?when\b(?!.*, (?:who|whose|what|where|which|why|how)\b)"
    rf"(?! (?!{_AUX}|exactly)\w[^,]*, {_AUX})"
    rf"|.*\bhow long ago\b|(?:\w+ )?(?:what|which) (?:day|date){_VERB}",
    re.I | re.S,
)
_ASKS_IN_ANOTHER_LANGUAGE = re.compile(ASKS_FOR_DAY, re.I | re.S)
_ASKS_FOR_TIME = re.compile(
    rf"(?:\w+ )?(?:what|which) (?:month|year|time){_VERB}|{ASKS_FOR_DAY}|.*(?:{ASKS_FOR_HOUR})", re.I | re.S
)


def asks_for_day(question: str) -> bool:
    """Return True if the day of a message answers where it names no time: "When I was ill, who cooked?" does not."""
    return _ASKS_FOR_DAY.match(question) is not None


def asks_for_time(question: str) -> bool:
    """Return True if a time answers that a message names."""
    return asks_for_day(question) or _ASKS_FOR_TIME.match(question) is not None


def apply_conflict_rule(items: Sequence[Reading], conflicts: Conflicts) -> Sequence[Reading]:
    """Return the items with the hits that the conflict rule allows.

    "newest" keeps only the newest hit of each slot; other rules keep all hits.
    """
    if conflicts != "newest":
        return items
    return [item.with_hits(keep_newest(item.memory.hits)) for item in items]


def mark_conflicts(answers: Sequence[Answer], items: Sequence[Reading]) -> list[Answer]:
    """Set `conflict` on answers from a slot with different live values (rule "refuse")."""
    marked = []
    for answer, item in zip(answers, items, strict=True):
        slot = None if answer.abstained else answer_slot(answer.text, answer.hits)
        is_disputed = slot is not None and in_conflict(slot, item.memory.list())
        marked.append(replace(answer, conflict=True) if is_disputed else answer)
    return marked


_WORD = re.compile(r"\w+")
_HIRAGANA = re.compile("[\u3041-\u309f]+")  # endings and particles beside kanji and katakana
_FUNCTION_WORDS = {name: frozenset(text.split()) for name, text in load_shipped_yaml("function_words.yaml").items()}


NOTHING, NOTHING_FOREIGN = 0.7, 0.8
"""Chance that no entry answers from which on a reader abstains, in English and in other languages."""

_ENGLISH = frozenset(_WORD.findall("what whats who whos whom whose where wheres when which why how does did the my"))
"""Words of English questions that questions of other languages hardly have ("was" is German, too)."""


def _language_of(question: str, entries: Iterable[MemoryEntry]) -> str:
    """Return the language with most function words in a question, of several the one with most in the entries.

    One that has an eighth of all words at most is another language, as Turkish; its words are read as English ones.
    """
    texts = [_WORD.findall(text.lower()) for text in (question, " ".join(entry.content for entry in entries))]
    counts = {name: [sum(map(words.__contains__, text)) for text in texts] for name, words in _FUNCTION_WORDS.items()}
    name = max(counts, key=counts.__getitem__)
    return name if sum(counts[name]) > sum(map(len, texts)) / 8 else "english"


def _stems(text: str, language: str = "english") -> set[str]:
    content = [word for word in _WORD.findall(text.lower()) if word not in _FUNCTION_WORDS[language]]
    stem_word = stem if language == "english" else Stemmer.Stemmer(language).stemWord
    stems = {stem_word(word) for word in content if language == "english" or len(word) > 1 or word.isdigit()}
    if language == "german":  # "wohnt" as "wohne", "Annas" as "Anna"
        stems = {re.sub("(?<=...)[st]$", "", word) for word in stems}
    if UNSPACED.search(text):  # where nothing parts words, pairs of characters
        stems.update(word for word in lexical.words(text) if len(word) > 1)
    return stems


def _count(question: str, entries: Iterable[MemoryEntry]) -> str:
    question_stems = _stems(question)
    keys = [pair[0] for entry in entries if (pair := key_value(entry.content)) and question_stems & _stems(pair[0])]
    return str(len(keys)) if keys else ABSTAIN


def _key_and_value(entry: MemoryEntry) -> tuple[str | None, str]:
    """Return key and value of a note. A sentence has no key; its value is the text after the name of who said it."""
    key, value = key_value(entry.content) or (None, entry.content)
    is_label = entry.speaker is not None and key == entry.speaker.lower()
    return None if is_label or NOTE in entry.metadata else key, value


def _noted(question: str, question_stems: set[str], entry: MemoryEntry, language: str) -> str | None:
    """Return the answer of a note: its value, or to "when" a time; None for a sentence and a note of something else."""
    key, value = _key_and_value(entry)
    if key is None:
        return None
    if question_stems & _stems(entry.content, language) and (when := _when(question, value, entry.timestamp)):
        return when
    return value if question_stems & _stems(key, language) and not asks_for_day(question) else None


_FIRST_PERSON = re.compile(r"\b(?:I|[Mm]e|[Mm]y|[Mm]ine|[Ww]e|[Oo]ur|[Uu]s)\b")
_ABOUT = re.compile(r"\b(?:[Dd]oes|[Dd]id|[Ii]s|[Ww]as|[Hh]as|[Ww]ill|[Cc]an) ([A-Z]\w+)\b|\b([A-Z]\w+)['\u2019]s\b")


def _speaks_of_another(question: str, entry: MemoryEntry) -> bool:
    """Return True for a sentence in which somebody speaks of himself, where an English question is about another."""
    speaker, said = split_label(entry.content)
    if not speaker or is_anonymous(speaker) or _FIRST_PERSON.search(question) or not _FIRST_PERSON.search(said):
        return False
    names = {(subject or owner).lower() for subject, owner in _ABOUT.findall(question)}
    there = set(_WORD.findall(entry.content.lower()))  # a nickname counts: Ben for Benjamin
    return bool(names) and not any(
        name in there or any(name.startswith(part) or part.startswith(name) for part in speaker.lower().split())
        for name in names
    )


def _when(question: str, text: str, timestamp: str | None, span: tuple[int, int] = (0, 0)) -> str | None:
    """Return a text that names a date or an hour, otherwise the day that it speaks of, by its timestamp.

    None if the question does not ask for a time, or neither text nor timestamp has one.
    """
    if not asks_for_time(question):
        return None
    day = day_of(timestamp)
    if (time := find_time(question, text, day, span)) is not None:
        return text if time.is_named or day is None else time.text
    if _ASKS_IN_ANOTHER_LANGUAGE.match(question):  # a time that no table knows may stand in the text
        return text if CLOCK.search(text) or day is None else f"{text} ({day})"
    return None if not asks_for_day(question) else text if CLOCK.search(text) else timestamp


def _quoted(answer: Answer, item: Reading) -> Answer:
    """Return the answer in the words of the `QUOTED` best entries.

    What stands in a sentence is answered by the sentence: "wine" is wrong, "My sling came off, so I can carry you wine"
    was said. "Yes" and "no", a value of a note, a date of an entry and a word of the core memory stay. Anything else is
    made up: the value of the best entry takes its place, or the number of entries if a number is asked for.
    """
    best = [hit.entry for hit in answer.hits[:QUOTED]]
    words = set(_WORD.findall(answer.text.lower()))
    if not best or answer.abstained or (words and words <= {"yes", "no"}):
        return answer
    for entry in best:
        if words and words.issubset(_WORD.findall(entry.content.lower())):
            key, value = _key_and_value(entry)
            return answer if key is not None else replace(answer, text=value)
    texts = [item.memory.core, *(f"{entry.content} {entry.timestamp or ''}" for entry in best)]
    if words and words.issubset({"yes", "no", *_WORD.findall(" ".join(texts).lower())}):
        return answer
    _, value = _key_and_value(best[0])
    if item.question.lower().startswith("how many") and not any(map(str.isdigit, value)):
        value = _count(item.question, [hit.entry for hit in item.memory.hits])
    return replace(answer, text=value, abstained=is_abstention(value))


def default_reader(policy: Policy, config: AgentConfig, reader: ReaderConfig | None = None) -> Reader:
    """Return the default reader of a policy.

    This is the policy itself in the same prompt style, or `QuotingReader` for a scripted policy and for one whose
    entries are sentences of the chat: the network finds the right one more often than a small model. A policy in the
    compact style is small: what it answers stands in the entries, or is quoted from them.

    Args:
        policy: the writer, which also reads.
        config: its settings as a writer; they name the style.
        reader: its settings as a reader; their style wins.

    Raises:
        ConfigError: if there are settings of a reader, and the policy is scripted.
    """
    if isinstance(policy, ScriptedPolicy):
        if reader is not None:
            raise ConfigError(f"reader: {policy.name} follows rules and cannot be prompted: leave its settings out")
        return QuotingReader()
    is_kept = reader is None or reader.model_fields_set <= {"k", "conflicts"}
    if is_kept and isinstance(policy, QuotingPolicy) and policy.quotes:
        return QuotingReader(reader)
    settings = reader or ReaderConfig(kind="policy")
    if "prompt" not in settings.model_fields_set:
        settings = settings.model_copy(update={"prompt": reader_style(config.prompt)})
    return PolicyReader(policy, settings, quotes=settings.prompt == "compact" and settings.kind == "policy")


def answer_slot(answer: str, hits: Iterable[Hit]) -> str | None:
    """Return the slot of the best hit whose value equals the answer.

    Falls back to the best hit whose value the answer contains; None without a match.
    """
    pairs = [pair for hit in hits if (pair := key_value(hit.entry.content))]
    slots = (slot for matches in (is_same, contains) for slot, value in pairs if matches(answer, value))
    return next(slots, None)


def in_conflict(slot: str, entries: Iterable[MemoryEntry]) -> bool:
    """Return True if live `entries` hold different values for `slot`.

    Values that are all events do not conflict.
    """
    return is_contradictory(entry for entry in entries if (pair := key_value(entry.content)) and pair[0] == slot)


def states_several_values(slot: str, values: Sequence[str], statements: Iterable[str]) -> bool:
    """Return True if live `statements` state more than one of `values` for `slot`.

    Args:
        slot: words of the slot; a statement is about it if it contains them.
        values: candidate values, the correct one first. A statement counts for the first value that it contains, so
            "moved from Oslo to Rome" does not contradict Rome.
        statements: contents of entries of any category, and lines of the core.

    Returns:
        True if at least two different values are stated.
    """
    stated = {
        next((index for index, value in enumerate(values) if contains(statement, value)), None)
        for statement in statements
        if contains(statement, slot)
    }
    return len(stated - {None}) > 1


def keep_newest(hits: Sequence[Hit]) -> list[Hit]:
    """Drop hits whose slot a later hit states again.

    Most memory systems read this way; it is the control for the conflict rule.
    """
    newest: dict[str, int] = {}
    for hit in hits:
        if pair := slot_value(hit.entry):
            newest[pair[0]] = max(newest.get(pair[0], 0), hit.entry.valid_from)
    return [hit for hit in hits if not (pair := slot_value(hit.entry)) or newest[pair[0]] == hit.entry.valid_from]
