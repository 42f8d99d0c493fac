"""Measure what a reply costs in each form of calls: `python eval/learning/call_forms.py POLICY... [--results DIR]`.

For the gold replies of held-out conversations of the demo's world: tokens of a prompt with an empty memory and chunk,
tokens of a reply, and CPU seconds to decode a batch of replies of that length (prompts included; greedy, random text of
the model itself, cut at that length). Writes call-forms.json and call-forms.md to --results.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from memalpha import load_policy
from memalpha.agent.agent import build_request
from memalpha.agent.forms import format_calls
from memalpha.agent.parsing import parse_calls
from memalpha.config import AgentConfig, WorldConfig
from memalpha.environments.memory_writing import memory_engine
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.store.embedding import load_embedder
from memalpha.store.schema import load_schema
from memalpha.tasks.synthetic import worlds
from memalpha.train.rollouts.memory_tasks import HELD_OUT_SEED
from memalpha.types import Chunk, Observation, ToolCall

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser, opening, save

REPLIES, BATCH = 200, 8
STYLES = (("full", "native"), ("full", "hermes"), ("full", "lines"), ("compact", "native"), ("compact", "lines"))


def gold_replies() -> list[tuple[ToolCall, ...]]:
    """Return the calls of the first gold replies of the world."""
    tasks = worlds.tasks(WorldConfig(preset="demo", split="test"), HELD_OUT_SEED, 0, REPLIES // 2)
    groups = memory_engine(ScriptedPolicy("oracle"), AgentConfig(), load_embedder("hash")).roll_out(tasks)
    turns = [turn for group in groups for rollout in group.trajectories for turn in rollout.turns]
    return [parse_calls(turn.completion.text) for turn in turns[:REPLIES]]


def measure(policy: TransformersPolicy, replies: list[tuple[ToolCall, ...]], prompt: str, form: str) -> dict[str, Any]:
    """Return tokens of prompt and reply, and the CPU seconds of a reply of mean length.

    Args:
        policy: Policy whose tokens are counted and that decodes.
        replies: Calls of each gold reply.
        prompt: Prompt style.
        form: Form of calls.
    """
    agent = AgentConfig.model_validate({"prompt": prompt, "form": form})
    texts = [format_calls(calls, agent.reply_form) for calls in replies]
    if form == "native":
        texts = [policy.chat.write_reply(text) for text in texts]
    mean = sum(map(policy.count_tokens, texts)) / len(texts)
    request = build_request(Observation(Chunk(text="")), agent, load_schema("mem-alpha"))
    requests = [replace(request, max_new_tokens=round(mean), key=(0, i), temperature=1.0) for i in range(BATCH)]
    started = time.process_time()
    policy.sample(requests)
    seconds = (time.process_time() - started) / BATCH
    return {"prompt_tokens": len(policy.render_request(request)), "reply_tokens": mean, "cpu_seconds": seconds}


def main() -> None:
    """Measure all policies in all forms and write the record."""
    parser = make_parser(__doc__)
    parser.add_argument("policies", nargs="+", help="names or directories of policies")
    arguments = parser.parse_args()
    replies = gold_replies()
    results: dict[str, dict[str, Any]] = {}
    table = ["| policy | prompt, form | prompt tokens | tokens a reply | CPU-s a reply |", "|---" * 5 + "|"]
    for name in arguments.policies:
        policy = load_policy(name)
        assert isinstance(policy, TransformersPolicy), f"{name} has no tokens"
        for prompt, form in STYLES:
            result = measure(policy, replies, prompt, form)
            results.setdefault(name, {})[f"{prompt}, {form}"] = result
            table.append(
                f"| {name} | {prompt}, {form} | {result['prompt_tokens']} | {result['reply_tokens']:.1f} "
                f"| {result['cpu_seconds']:.2f} |"
            )
    about = f"{len(replies)} gold replies of the demo's held-out world; batches of {BATCH}, one thread."
    save(arguments.results / "call-forms", results, "\n".join([*opening("Forms of calls"), "", about, "", *table]))


if __name__ == "__main__":
    main()
