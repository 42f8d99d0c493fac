"""A model whose configuration names the style of Mem-alpha's checkpoints: read, evaluate, serve, imitate, train."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from recipes import add_prompt_tokens
from run_kinds import small_config
from runs import lines
from tiny import rewriting, tiny_model, tiny_tokenizer

from memalpha import load_policy, train
from memalpha.agent.mem_alpha import ARGS, FUNCTION, RESULT, format_block
from memalpha.agent.replies import parse_reply
from memalpha.config import SFTConfig, TrainConfig
from memalpha.config.common import MEM_ALPHA_AGENT
from memalpha.policy.transformers import KNOWN_STYLES, TransformersPolicy

AGENT = {"prompt": "mem-alpha", "embedder": "hash"}
REPLY = "\n".join([
    format_block("new_memory_insert", {"memory_type": "semantic_memory", "content": "Ana lives in Porto."}),
    f"{RESULT}: ok",
    format_block("new_memory_insert", {"memory_type": "semantic_memory", "content": "an invented call"}),
])  # fmt: skip


def make_policy(name: str) -> TransformersPolicy:
    """Make a random tiny Qwen3 of bytes; the fixed lines of the prompts are one token each, so it is fast."""
    tokenizer = tiny_tokenizer()
    add_prompt_tokens(tokenizer)
    return TransformersPolicy(tiny_model(vocab=len(tokenizer)), tokenizer, name)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A policy on disk whose files name the style."""
    path, policy = tmp_path_factory.mktemp("checkpoint"), make_policy("fixture")
    policy.set_prompt_style("mem-alpha")
    policy.save(path)
    return path


@pytest.fixture
def recorded(monkeypatch):
    """Completions have the text of a recorded reply; half of the sampled ones say that nothing is left to store."""

    def replay(completion):
        is_done = completion.temperature and sum(completion.completion_ids) % 2
        return replace(completion, text="Done" if is_done else REPLY)

    monkeypatch.setitem(MEM_ALPHA_AGENT, "max_new_tokens", 12)
    changed = rewriting(TransformersPolicy.open_queue, replay)
    monkeypatch.setattr(TransformersPolicy, "open_queue", changed)


def test_files_name_the_style_and_the_published_model_is_known(checkpoint):
    for name in ("config.json", "tokenizer_config.json"):
        assert json.loads((checkpoint / name).read_text())["memalpha_prompt"] == "mem-alpha"
    assert load_policy(checkpoint).prompt == "mem-alpha"
    assert make_policy(next(iter(KNOWN_STYLES))).prompt == "mem-alpha" and make_policy("other").prompt == "full"


def test_demonstrations_are_written_in_the_protocol(checkpoint, tmp_path):
    settings = {"source": "gold", "agent": {**AGENT, "max_new_tokens": 900}, "tasks": 2, "schedule_steps": 1}
    config = small_config(SFTConfig, checkpoint, tmp_path, **settings)
    train(config, max_steps=1)
    rows = lines(tmp_path / "run" / "rows.jsonl")
    tokenizer = load_policy(checkpoint).tokenizer
    replies = [tokenizer.decode(row["completion_ids"]) for row in rows]
    assert any(reply.startswith(f"{FUNCTION}: new_memory_insert\n{ARGS}: {{") for reply in replies)
    assert not any("<tool_call>" in reply for reply in replies)
    calls = [call for reply in replies for call in parse_reply(reply, "mem-alpha")]
    assert calls and not any(call.error for call in calls)
    [saved] = (tmp_path / "run" / "checkpoints").glob("step-1")
    assert load_policy(saved).prompt == "mem-alpha"


def test_a_step_of_grpo_trains_sampled_replies(checkpoint, recorded, tmp_path):
    agent = {**AGENT, "max_new_tokens": 12}
    settings = {"agent": agent, "reward": {"preset": "published"}, "eval_tasks": 1, "validation_tasks": 1}
    config = small_config(TrainConfig, checkpoint, tmp_path, **settings, group_size=6, tasks_per_step=1)
    train(config, max_steps=1)
    [metrics] = lines(tmp_path / "run" / "metrics.jsonl")[:1]
    assert metrics["calls"] and metrics["sampled_tokens"] == metrics["tokens"] > 0 and metrics["grad_norm"] > 0
    assert metrics["mismatch_kl"] < 1e-8, "prompts and replies are trained as sampled"
