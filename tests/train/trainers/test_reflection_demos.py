"""Rows that teach the roles of reflection: what they say, what the second attempts do, and a run on them."""

from __future__ import annotations

import pytest

from memalpha import load_policy
from memalpha.agent.parsing import parse_calls
from memalpha.agent.reader import ExtractiveReader
from memalpha.config import SFTConfig, build_config
from memalpha.environments import MemoryWriting
from memalpha.qa.evaluate import MemoryScorer
from memalpha.qa.memory_reward import MemoryReward
from memalpha.store.embedding import HashEmbedder
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train.api import train
from memalpha.train.data.demonstrations import format_advice, reflection_demo_rows
from memalpha.types import GoldOperation

CONFIG = {"algorithm": "sft", "source": "erl", "policy": "tiny", "erl": {"reflection_tokens": 48}}
CONFIG |= {"agent": {"prompt": "compact", "embedder": "hash", "max_new_tokens": 96}, "group_size": 2, "tasks": 3}
CONFIG |= {"eval_tasks": 2, "validation_tasks": 1, "schedule_steps": 2, "batch_rows": 4}


def config(out, **changes) -> SFTConfig:
    return build_config(SFTConfig, {**CONFIG, "out": str(out), **changes}, "test")


def op(kind: str, content: str = "", replaces: str | None = None) -> GoldOperation:
    return GoldOperation(kind=kind, chunk=0, category="semantic", content=content, replaces=replaces)


def test_advice_names_keys_and_not_values():
    named = [op("insert", "city: Oslo"), op("update", "city: Rome", "city: Oslo"), op("delete", replaces="pet: cat")]
    named += [op("insert", "Ana's job: baker")]
    assert format_advice(named[:3], "compact") == "city:,-pet"
    assert format_advice(named[:4], "full") == "Write down city, ana's job; delete pet."
    assert format_advice([op("insert", "Ana likes tea.")], "full") == "Write down Ana likes tea."
    assert format_advice([], "compact") == format_advice([], "full") == ""


@pytest.fixture(scope="module")
def rows():
    policy, settings = load_policy("tiny"), config("unused")
    writing = MemoryWriting(settings.agent, policy.count_tokens, HashEmbedder(16))
    tasks = synthetic.tasks(settings.world, 5, 0, 4)
    rewards = MemoryReward(settings.reward, policy.count_tokens)
    scorer = MemoryScorer(ExtractiveReader(), rewards, writing.embedder)
    results, _ = reflection_demo_rows(policy, writing, scorer, tasks, settings, first=7)
    again, _ = reflection_demo_rows(policy, writing, scorer, tasks, settings, first=7)
    assert [(r.prompt_ids, r.completion_ids) for r in results] == [(r.prompt_ids, r.completion_ids) for r in again]
    text = policy.tokenizer.decode
    return tasks, [(row, text(row.prompt_ids), text(row.completion_ids).removesuffix("<|end|>")) for row in results]


def test_rows_of_all_roles(rows):
    tasks, rows = rows
    reflections = [row for row in rows if row[1].startswith("<|user|>reflect\n")]
    seconds = [row for row in rows if "\nadvice\n" in row[1] and row not in reflections]
    attempts = [row for row in rows if "\nadvice\n" not in row[1] and row not in reflections]
    assert {row.rollout for row, _, _ in attempts} == {0} and len(attempts) <= 12
    assert 0 < len(reflections) <= 16 and reflections[::2] == reflections[1::2]
    assert any("reflect\nadvice\n" in prompt for _, prompt, _ in reflections)  # earlier advice is shown as in training
    gold = {o.content.partition(": ")[2] for task in tasks for o in task.gold_operations if o.content}
    keys = {(o.content or o.replaces).partition(": ")[0] for task in tasks for o in task.gold_operations}
    for _, prompt, output in reflections:
        assert "ask: " in prompt
        assert {part.strip("-:") for part in output.split(",")} <= keys and not set(output.split(",")) & gold
    for row, prompt, reply in seconds:
        advice = prompt.split("\nadvice\n")[1].split("\n")[0]
        chunk = next(task for task in tasks if task.id == row.task).chunks[row.chunk]
        here = [o for o in next(t for t in tasks if t.id == row.task).gold_at(chunk.index) if o.content]
        written = [call.arguments.get("content") for call in parse_calls(reply)]
        for operation in here:  # what the advice names is done where it is told
            if f"{operation.content.partition(':')[0]}:" in advice.split(","):
                assert operation.content in written


def test_a_run_on_them(tmp_path):
    summary = train(config(tmp_path / "run"))
    assert summary["rows"] > 10 and summary["validation_rows"] > 0
