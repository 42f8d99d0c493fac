"""Make the tiny policy and its tokenizer from nothing: `scripts/make_tiny_policy.py --out memalpha/weights/tiny`.

A Qwen3-shaped causal LM of 0.8M parameters that writes memory tool calls and reads answers, for one CPU core. Three
stages, all seeded, none timed (the same machine and versions give the same bytes):

1. *Kick* (`pretrain.kick`): copying from any offset, on random tokens.

2. *Clean*: demonstrations in which every gold operation is done right, so that update and delete by id are mastered.

3. *Lazy*: demonstrations by a careless writer (facts left out, small talk noted). Selection becomes bad while the skill
stays, and reinforcement learning has to repair it. Skipping stage 2, or shortening it, makes a start from which update
is never learnt (right-id updates 0.12 at the start: they died out; 0.19: they rose to 0.8).

In all demonstrations some facts are missing from the memory at random. So a change of an unknown fact is met by an
insert and never by an invented id. A share of the rows are reader rows: the same weights, frozen, answer.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pretrain
import torch
from pretrain import Encoded, Trainer, batches, kick
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from memalpha.agent.parsing import format_call
from memalpha.agent.prompts import ABSTAIN, reader_messages, writer_messages
from memalpha.config import AgentConfig, ReaderConfig, WorldConfig
from memalpha.store.schema import load_schema
from memalpha.store.state import MemoryState
from memalpha.tasks.synthetic.demo_world import Shape
from memalpha.tasks.synthetic.phrases import EVENTS, POOLS
from memalpha.tasks.synthetic.value_pools import pool_values
from memalpha.tasks.synthetic.worlds import drill, generate, shaped
from memalpha.types import Chunk, GoldOperation, Hit, Observation, Operation, Question, Task, ViewEntry

VOCABULARY = 1024
BATCH_TOKENS = 3072
PAD, END, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# One token for a line's end with its punctuation, "key:", a date's part, an id's suffix: prompts are a third shorter.
PRE_TOKENS = r"#[a-z0-9]|-\d+| ?\(?\d+|'(?:s|t|re|ve|m|ll|d)\b| ?\p{L}+:?| ?[^\s\p{L}\p{N}#]+\n?|#|\s+(?!\S)|\s+"
SCHEMA = load_schema("mem-alpha")
AGENT = AgentConfig(prompt="compact")
READER = ReaderConfig(kind="policy", prompt="compact")


def call_fragments() -> list[str]:
    """Return the fixed parts of the calls, each of which becomes one token."""
    calls = [
        format_call("memory_insert", {"category": "semantic", "content": "\x07"}),
        format_call("memory_insert", {"category": "episodic", "content": "\x07"}),
        format_call("memory_update", {"id": "\x07", "content": "\x07"}),
        format_call("memory_delete", {"id": "\x07"}),
        format_call("memory_skip", {}),
    ]
    return list(dict.fromkeys(part for call in calls for part in call.split("\\u0007")))


# ---------------------------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True)
class WriterHabits:
    """Set the probabilities of a demonstrating writer."""

    fact: float = 1.0
    """Probability of writing a new fact or event."""
    change: float = 1.0
    """Probability of acting on the change of a stored fact."""
    right: float = 1.0
    """Probability that this is an update or delete by id; else an insert beside the old entry."""
    note: float = 0.0
    """Probability of noting a line that states nothing."""
    forget: float = 0.15
    """Share of tasks in which facts are missing from the memory (without a demonstration of leaving them out)."""


@dataclass(frozen=True, slots=True)
class Row:
    """Hold one prompt and its completion as text."""

    prompt: str
    completion: str
    kind: str


def entry_slot(content: str) -> str:
    """Return the key of an entry: `city` of `city: Oslo`."""
    return content.partition(":")[0]


def prompt_text(messages: Sequence[Any]) -> str:
    """Render the chat template by hand, because it is rendered for every row."""
    return f"{USER}{messages[0]['content']}{ASSISTANT}"


def demonstrate(task: Task, habits: WriterHabits, rng: Random, first: int = 0) -> tuple[list[Row], list[MemoryState]]:
    """Return a writer's rows over the chunks from `first` on, and the memory after every chunk.

    Args:
        task: Task with gold operations.
        habits: Probabilities of acting.
        rng: Source of randomness.
        first: First chunk that gives rows.
    """
    state = MemoryState.empty(SCHEMA)
    rows, states = [], []
    careless = rng.random() < habits.forget
    for chunk in task.chunks:
        view = tuple(ViewEntry(e.id, e.category, e.content, e.timestamp) for e in state.list())
        messages, _ = writer_messages(Observation(chunk, state.core, view), AGENT, SCHEMA)
        gold = [op for op in task.gold_operations if op.chunk == chunk.index]
        if chunk.index < first:
            gold = [op for op in gold if not (careless and rng.random() < 0.35)]
        calls: list[str] = []
        for operation in plan_calls(state, chunk, gold, habits, rng):
            calls.append(render_call(operation))
            if state.find(operation.category or "", operation.content or "") is None:
                state = state.apply(operation)
        if chunk.index >= first:
            rows.append(Row(prompt_text(messages), "".join(calls) or format_call("memory_skip", {}), "writer"))
        if careless and chunk.index >= first:
            for entry in state.list():
                if rng.random() < 0.25:
                    state = state.apply(Operation("delete", id=entry.id))
        states.append(state)
    return rows, states


def plan_calls(
    state: MemoryState, chunk: Chunk, gold: Sequence[GoldOperation], habits: WriterHabits, rng: Random
) -> Iterator[Operation]:
    """Yield the operations of one chunk in the order of its lines.

    Args:
        state: Memory before the chunk.
        chunk: Chunk to read.
        gold: Gold operations of the chunk.
        habits: Probabilities of acting.
        rng: Source of randomness.
    """
    by_turn = {operation.turn: operation for operation in gold}
    for turn in chunk.turns:
        operation = by_turn.get(turn.id)
        if operation is None:
            if rng.random() < habits.note:
                note = f"note: {turn.text.rstrip('.?!')}"
                yield Operation("insert", category="semantic", content=note, timestamp=chunk.timestamp)
            continue
        key = entry_slot(operation.content or operation.replaces or "")
        stored = [e.id for e in state.list("semantic") if entry_slot(e.content) == key]
        if operation.kind == "insert":
            stored = []
        content = {"content": operation.content, "timestamp": chunk.timestamp}
        insert = Operation("insert", category=operation.category, **content)
        if not stored:
            if operation.kind != "delete" and rng.random() < habits.fact:
                yield insert
        elif rng.random() < habits.change:
            is_by_id = rng.random() < habits.right
            if operation.kind == "update":
                yield Operation("update", id=stored[-1], **content) if is_by_id else insert
            elif is_by_id:
                yield Operation("delete", id=stored[-1])


def render_call(operation: Operation) -> str:
    """Return the Hermes text of an insert, update or delete."""
    names = {"insert": ("category", "content"), "update": ("id", "content"), "delete": ("id",)}[operation.kind]
    return format_call(f"memory_{operation.kind}", {name: getattr(operation, name) for name in names})


def reader_rows(task: Task, states: Sequence[MemoryState], rng: Random) -> Iterator[Row]:
    """Yield reader rows: every question over a random part of the memory, answered from its lines.

    Args:
        task: Task with questions.
        states: Memories after each chunk.
        rng: Source of randomness.
    """
    counts = [
        Question(id="", question=rng.choice(kind.counts), meta={"slot": kind.key, "kind": "count"})
        for kind in rng.sample(EVENTS, 2)
    ]
    for question in (*task.questions, *counts):
        chunk_index = question.asked_after_chunk
        state = states[len(states) - 1 if chunk_index is None else chunk_index]
        entries = state.list()
        if rng.random() < 0.4:
            entries = rng.sample(entries, rng.randint(0, len(entries)))
        if len(entries) > READER.k:
            slot_entries = [e for e in entries if entry_slot(e.content) == question.meta["slot"]][: READER.k]
            other_entries = [e for e in entries if e not in slot_entries]
            entries = slot_entries + rng.sample(other_entries, READER.k - len(slot_entries))
        answer = answer_from(question, entries)
        if answer is not None:
            messages = reader_messages(question.question, [Hit(entry, 0.0) for entry in entries], READER)
            yield Row(prompt_text(messages), f" {answer}", "reader")  # " Oslo" is the token shown; readers strip


def answer_from(question: Question, entries: Iterable[Any]) -> str | None:
    """Return the answer that follows from the entries; None for two values of one slot."""
    slot_entries = [entry for entry in entries if entry_slot(entry.content) == question.meta["slot"]]
    if not slot_entries:
        return ABSTAIN
    if question.meta["kind"] == "count":
        return str(len(slot_entries))
    if question.meta["kind"] == "when":
        matching = [e for e in slot_entries if e.content.partition(": ")[2] in question.question]
        return (matching[0].timestamp or ABSTAIN) if matching else ABSTAIN
    values = {entry.content.partition(": ")[2] for entry in slot_entries}
    return values.pop() if len(values) == 1 else None


READING = Shape(
    facts=(2, 6), updates=(0, 2), retracts=(0, 1), events=(0, 6), never=(1, 2), chitchat=(0, 2), questions=6
)
"""Tasks for reader rows: more events to count than the demo has."""


def scramble(task: Task, rng: Random, share: float) -> Task:
    """Replace a share of the stored values by words made of fragments of training values.

    Pseudo-words have few first letters. Without these words, one held-out value in six begins with the wrong piece.

    Args:
        task: Task to change.
        rng: Source of randomness.
        share: Share of values to replace.
    """
    values = dict.fromkeys(op.content.partition(": ")[2] for op in task.gold_operations if op.content)
    table = {value: fragments(rng, value[0].isupper()) for value in values if rng.random() < share}
    if not table:
        return task
    words = re.compile(r"\b(" + "|".join(map(re.escape, table)) + r")\b")
    return Task.model_validate_json(words.sub(lambda match: table[match.group()], task.model_dump_json()))


def fragments(rng: Random, capital: bool) -> str:
    """Draw a word of two or three pieces of words."""
    pieces = []
    for _ in range(rng.choice((2, 2, 3))):
        word = rng.choice(WORDS)
        start = rng.randrange(max(1, len(word) - 2))
        pieces.append(word[start : start + rng.randint(1, 4)])
    word = "".join(pieces)
    return word.capitalize() if capital else word


WORDS = [value.lower() for pool in sorted(POOLS) for value in pool_values(pool, "train") if value.isalpha()]


def demonstration_rows(
    index: int, seed: int, habits: WriterHabits, world: WorldConfig, drills: float, reader: float, share: float = 0.35
) -> list[Row]:
    """Return all rows of demonstration number `index`: a task or a drill, and perhaps reader rows.

    Args:
        index: Number of the task.
        seed: Seed of all demonstrations.
        habits: Probabilities of acting.
        world: World of the tasks.
        drills: Share of drills among the tasks.
        reader: Probability of reader rows.
        share: Share of values to replace by fragments.
    """
    rng = Random(f"rows|{seed}|{index}")
    if rng.random() < drills:
        rows, _ = demonstrate(scramble(drill(world, seed, index), rng, share), habits, rng, first=1)
    else:
        rows, _ = demonstrate(scramble(generate(world, seed, index), rng, share), habits, rng)
    if rng.random() < reader:
        task = scramble(shaped(world, seed, index, READING, "reading"), rng, share)
        _, states = demonstrate(task, rng.choice(READ_FROM), rng)
        rows += reader_rows(task, states, rng)
    return rows


# ----------------------------------------------------------------------------------------------------------- tokenizer


def build_tokenizer(texts: Iterable[str], pre_tokens: str, fixed: Sequence[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of at most `VOCABULARY` tokens; decode(encode(x)) == x.

    Args:
        texts: Training texts.
        pre_tokens: Regular expression of pre-tokens.
        fixed: Texts that become one token each.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pre_tokens), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    specials = [PAD, END, USER, ASSISTANT]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(fixed),
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core.add_tokens([AddedToken(text, normalized=False, special=False) for text in fixed])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False, model_max_length=2048
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


# ---------------------------------------------------------------------------------------------------------------- model


def build_model(vocabulary: int) -> Qwen3ForCausalLM:
    """Build a model with random weights: width 128, 4 layers, 4 heads, tied embeddings.

    It has 787,840 parameters for a vocabulary of 1024.
    """
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=2048,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
            tie_word_embeddings=True,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
            memalpha_prompt="compact",  # the prompt style it is trained on; `TransformersPolicy` reads it
        )
    )


# -------------------------------------------------------------------------------------------------------------- stages


@dataclass(frozen=True, slots=True)
class TinyStage:
    """Describe a stage of demonstrations by a writer with these habits."""

    rates: pretrain.Stage
    habits: WriterHabits
    pseudo: float = 0.6
    drills: float = 0.5
    reader: float = 0.3


def demonstrations(
    tokenizer: PreTrainedTokenizerFast, stage: TinyStage, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of (ids, completion mask) of the stage's rows without end.

    Args:
        tokenizer: Tokenizer of the policy.
        stage: Habits, rates and shares.
        seed: Seed of the rows and their order.
    """
    rng = Random(f"batches|{seed}|{stage.rates.name}")
    world = WorldConfig(pseudo_values=stage.pseudo, temporal_questions=True)
    index = rng.randrange(1 << 40)
    while True:
        rows: list[Row] = []
        while len(rows) < 1500:
            rows += demonstration_rows(index, seed, stage.habits, world, stage.drills, stage.reader)
            index += 1
        yield from batches(encode(tokenizer, rows), BATCH_TOKENS, rng)


def encode(tokenizer: PreTrainedTokenizerFast, rows: Sequence[Row]) -> list[Encoded]:
    """Return (prompt ids, completion ids with the end token) of every row."""
    prompts = tokenizer([row.prompt for row in rows], add_special_tokens=False)["input_ids"]
    answers = tokenizer([row.completion + END for row in rows], add_special_tokens=False)["input_ids"]
    return list(zip(prompts, answers, strict=True))


def probe(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, tasks: int = 60) -> dict[str, float]:
    """Return the share of held-out gold rows that greedy decoding reproduces exactly, by kind of row.

    Args:
        model: Policy to probe.
        tokenizer: Its tokenizer.
        tasks: Number of held-out tasks.
    """
    world = WorldConfig(split="test", temporal_questions=True)
    hits: dict[str, list[bool]] = {}
    rows: list[Row] = []
    for index in range(tasks):
        rng = Random(index)
        task = generate(world, 10_000, index)
        written, states = demonstrate(task, WriterHabits(forget=0.0), rng)
        drilled, _ = demonstrate(drill(world, 10_000, index), WriterHabits(forget=0.0), rng, first=1)
        rows += written + drilled
        for row in reader_rows(task, states, rng):
            word = "count" if "How many" in row.prompt else "when" if "ask: When" in row.prompt else "value"
            word = "unknown" if row.completion.strip() == ABSTAIN else word
            rows.append(Row(row.prompt, row.completion, f"read-{word}"))
    for row, ok in zip(rows, pretrain.greedy_matches(model, encode(tokenizer, rows)), strict=True):
        hits.setdefault(row.kind, []).append(ok)
        if row.kind == "writer":
            for call_name in ("memory_insert", "memory_update", "memory_delete", "memory_skip"):
                if call_name in row.completion:
                    hits.setdefault(call_name, []).append(ok)
    return {kind: sum(values) / len(values) for kind, values in sorted(hits.items())}


CAREFUL = WriterHabits()
LAZY = WriterHabits(fact=0.5, change=0.7, right=0.97, note=0.12)
READ_FROM = (CAREFUL, CAREFUL, WriterHabits(fact=0.7, change=0.7, right=0.7, note=0.3))
"""Writers whose memories the reader learns to read."""
STAGES = (
    TinyStage(pretrain.Stage("clean", 2400, muon=0.02, adam=3e-3, final=0.03, decay=0.6), CAREFUL),
    TinyStage(pretrain.Stage("lazy", 150, muon=0.003, adam=5e-4, final=0.1, warmup=20), LAZY, drills=0.3),
)


def corpus(seed: int) -> Iterator[str]:
    """Yield the texts that the tokenizer is trained on."""
    world = WorldConfig(pseudo_values=0.6, temporal_questions=True)
    for index in range(1500):
        for row in demonstration_rows(index, seed, CAREFUL, world, 0.3, 0.5):
            yield row.prompt.removeprefix(USER).removesuffix(ASSISTANT)
            if row.kind == "reader":
                yield row.completion


def main() -> None:
    """Make the policy, report its figures, save it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="directory for weights and tokenizer")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    tokenizer = build_tokenizer(corpus(arguments.seed), PRE_TOKENS, call_fragments())
    model = build_model(len(tokenizer))
    trainer = Trainer(model)
    print(f"kick: loss {kick(trainer, arguments.seed):.3f}", flush=True)
    for stage in STAGES:
        pretrain.train(trainer, stage.rates, demonstrations(tokenizer, stage, arguments.seed))
        trainer = Trainer(model)
        shares = ", ".join(f"{kind} {share:.2f}" for kind, share in probe(model, tokenizer).items())
        print(f"{stage.rates.name}: held-out rows right: {shares}", flush=True)
    save(model, tokenizer, arguments.out)


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Save model and tokenizer for plain transformers: float16 on disk, float32 in memory.

    Args:
        model: Model to save.
        tokenizer: Its tokenizer.
        out: Directory to write.
    """
    half = {name: weight.half() for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    model.save_pretrained(out, state_dict=half)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main()
