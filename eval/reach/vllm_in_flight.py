"""Check `sampling.in_flight_updates` on a real vLLM server; a part of `scripts/check-vllm`.

Completions are under way when new weights come, several times. The server breaks them off, and they go on with their
tokens so far. Each span's log-probs are compared with a float64 forward of the weights that it names.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from memalpha.policy.vllm.in_flight import InFlightRequests
from memalpha.policy.vllm.policy import VllmQueue
from memalpha.types import Completion

UPDATES = 3
REQUESTS = 64
SECONDS = 0.4
"""Time between an update and the next."""


def check_in_flight(learner: Any) -> dict[str, Any]:
    """Update weights while completions are under way and return how many spans they have and their agreement.

    Args:
        learner: `vllm_check.Learner` of all weights or of adapters, connected.
    """
    engine, policy = learner.engine, learner.policy
    rows = policy.sample(learner.requests(1.0))
    queue = VllmQueue(policy, InFlightRequests(policy))
    first = engine.weights_step
    models = {first: copy.deepcopy(engine.model).double()}
    prompts = learner.requests(1.0)
    requests = [replace(prompts[i % len(prompts)], key=(7, i), max_new_tokens=96) for i in range(REQUESTS)]
    queue.submit(requests)
    break_off_seconds = []
    for _ in range(UPDATES):
        time.sleep(SECONDS)
        start = time.monotonic()
        with queue.in_flight.interrupted():  # type: ignore[union-attr]
            break_off_seconds.append(time.monotonic() - start)
            policy.confirm()
            learner.learn(rows)
            policy.refresh()
        models[engine.weights_step] = copy.deepcopy(engine.model).double()
    completions: list[Completion] = []
    while len(completions) < REQUESTS:
        completions += [completion for _, completion in queue.collect()]
    policy.confirm()
    own, other = span_gaps(models, completions)
    spans = [len(completion.weights_spans) or 1 for completion in completions]
    return {
        "completions": len(completions),
        "tokens": sum(len(completion.completion_ids) for completion in completions),
        "by spans": {count: spans.count(count) for count in sorted(set(spans))},
        "max": own,
        "to the version before": other,
        "retries": policy.client.retries,
        "seconds to break off": sorted(break_off_seconds),
    }


def span_gaps(models: Mapping[int, Any], completions: Sequence[Completion]) -> tuple[float, float]:
    """Return the largest |server - float64| of all spans: with their own weights, and with those of the span before.

    Args:
        models: Float64 models by step.
        completions: Completions whose weights are recorded.
    """
    own_gap = other_gap = 0.0
    for completion in completions:
        assert completion.weights_step is not None
        ids, start = completion.completion_ids, len(completion.prompt_ids)
        spans, first = completion.weights_spans or ((completion.weights_step, len(ids)),), 0
        previous = None
        for step, count in spans:
            span = slice(first, first + count)
            for version in (step, previous):
                if version is None:
                    continue
                with torch.inference_mode():
                    tokens = torch.tensor([completion.prompt_ids + ids])
                    logits = models[version](input_ids=tokens).logits[0, start - 1 : -1]
                truth = torch.log_softmax(logits / completion.temperature, -1).gather(1, torch.tensor(ids)[:, None])
                gap = float(np.abs(truth[span, 0].numpy() - np.array(completion.logprobs[span])).max())
                if version == step:
                    own_gap = max(own_gap, gap)
                else:
                    other_gap = max(other_gap, gap)
            first, previous = first + count, step
    return own_gap, other_gap


def has_passed(record: dict[str, Any]) -> bool:
    """Return True if completions went on under new weights, and each span agrees with the weights that it names."""
    return record["completions"] == REQUESTS and max(record["by spans"]) > 1 and record["max"] < 1e-4


def page(records: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return Markdown lines of records by kind of weights."""
    lines = [
        f"With `in_flight_updates`, {REQUESTS} completions under way and {UPDATES} updates, each after {SECONDS} s:",
        "",
        "| sync | completions by spans | tokens | max gap of a span to its own weights | to those of the span before "
        "| seconds to break off |",
        "|" + "---|" * 6,
    ]
    for name, record in records.items():
        spans = ", ".join(f"{count} of {number}" for number, count in record["by spans"].items())
        seconds = ", ".join(f"{value:.2f}" for value in record["seconds to break off"])
        lines.append(
            f"| {name} | {spans} | {record['tokens']:,} | {record['max']:.1e} | "
            f"{record['to the version before']:.2f} | {seconds} |"
        )
    return lines
