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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pretrain
import torch
from pretrain import Encoded, Trainer, batches, kick
from tiny_rows import (
    ASSISTANT,
    CAREFUL,
    END,
    LAZY,
    PAD,
    USER,
    Row,
    WriterHabits,
    demonstrate,
    demonstration_rows,
    reader_rows,
)
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from memalpha.agent.parsing import format_call
from memalpha.agent.prompts import ABSTAIN
from memalpha.config import WorldConfig
from memalpha.tasks.synthetic.worlds import drill, generate

VOCABULARY = 1024
BATCH_TOKENS = 3072
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# One token for a line's end with its punctuation, "key:", a date's part, an id's suffix: prompts are a third shorter.
PRE_TOKENS = r"#[a-z0-9]|-\d+| ?\(?\d+|'(?:s|t|re|ve|m|ll|d)\b| ?\p{L}+:?| ?[^\s\p{L}\p{N}#]+\n?|#|\s+(?!\S)|\s+"


def call_fragments(*categories: str) -> list[str]:
    """Return the fixed parts of the calls, each of which becomes one token."""
    calls = [
        *(format_call("memory_insert", {"category": category, "content": "\x07"}) for category in categories),
        format_call("memory_update", {"id": "\x07", "content": "\x07"}),
        format_call("memory_delete", {"id": "\x07"}),
        format_call("memory_skip", {}),
    ]
    return list(dict.fromkeys(part for call in calls for part in call.split("\\u0007")))


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

    def rows(self, index: int, seed: int) -> list[Row]:
        """Return the rows of one demonstration."""
        world = WorldConfig(pseudo_values=self.pseudo, temporal_questions=True)
        return demonstration_rows(index, seed, self.habits, world, self.drills, self.reader)


def demonstrations(
    tokenizer: PreTrainedTokenizerFast, stage: Any, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of (ids, completion mask) of the stage's rows without end.

    Args:
        tokenizer: Tokenizer of the policy.
        stage: Stage with `rates` and `rows`.
        seed: Seed of the rows and their order.
    """
    rng = Random(f"batches|{seed}|{stage.rates.name}")
    index = rng.randrange(1 << 40)
    while True:
        rows: list[Row] = []
        while len(rows) < 1500:
            rows += stage.rows(index, seed)
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


def make_policy(
    corpus: Callable[[int], Iterator[str]],
    pre_tokens: str,
    fixed: Sequence[str],
    stages: Sequence[Any],
    demonstrations: Callable[..., Iterator[tuple[torch.Tensor, torch.Tensor]]],
    probe: Callable[[Qwen3ForCausalLM, PreTrainedTokenizerFast], dict[str, float]],
    *,
    is_writer: bool = True,
    halve: bool = False,
) -> None:
    """Make a policy by the options of the command line: tokenizer, kick, stages with their figures, files.

    Args:
        corpus: Yields the tokenizer's texts of a seed.
        pre_tokens: Regular expression of pre-tokens.
        fixed: Texts that become one token each.
        stages: Stages with `rates`.
        demonstrations: Yields the batches of (tokenizer, stage, seed).
        probe: Returns the figures after a stage.
        is_writer: Name the writer's prompt style in the model's configuration.
        halve: Round the weights to float16 after each stage, as if they came from disk.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="directory for weights and tokenizer")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    tokenizer = build_tokenizer(corpus(arguments.seed), pre_tokens, fixed)
    model = build_model(len(tokenizer))
    if not is_writer:
        delattr(model.config, "memalpha_prompt")
    print(f"{len(tokenizer)} tokens, {model.num_parameters()} parameters", flush=True)
    trainer = Trainer(model)
    print(f"kick: loss {kick(trainer, arguments.seed):.3f}", flush=True)
    for stage in stages:
        pretrain.train(trainer, stage.rates, demonstrations(tokenizer, stage, arguments.seed))
        if halve:
            for weight in model.parameters():
                weight.data = weight.data.half().float()
        trainer = Trainer(model)
        shares = ", ".join(f"{kind} {share:.2f}" for kind, share in probe(model, tokenizer).items())
        print(f"{stage.rates.name}: right: {shares}", flush=True)
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
    make_policy(corpus, PRE_TOKENS, call_fragments("semantic", "episodic"), STAGES, demonstrations, probe)
