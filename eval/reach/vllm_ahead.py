"""Check `sampling.staleness` on a real vLLM server; a part of `scripts/check-vllm`.

A run with staleness learns from short conversations, with a long one after every four; a second run updates weights in
flight. Its process is killed with SIGKILL once a checkpoint holds queued groups, and the same command resumes it on the
same server. A checkpoint of every step is kept, so each turn's log-probs are computed again in float64 with the weights
that its record names.
"""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "learning"))

from common import read_metrics
from rollouts_ahead import write_conversations

STALENESS = {False: 1, True: 3}
"""Staleness of a run without and with updates in flight; with 3 the long conversation is not dropped."""
STEPS = 6
TASKS_PER_STEP = 2
GROUP_SIZE = 4
LENGTHS = (2, 2, 2, 2, 30)
"""Chunks of the conversations, in turn."""


def check_ahead(url: str, model: Path, work: Path, *, in_flight: bool = False) -> dict[str, Any]:
    """Train with staleness, kill the process, resume it, and return what its files show.

    Args:
        url: The `sampler.url`.
        model: Directory of the policy.
        work: Folder of the run and of its tasks.
        in_flight: Give new weights to completions under way.
    """
    out, data = work / ("in-flight" if in_flight else "ahead"), work / "ahead.jsonl"
    write_conversations(data, 60, LENGTHS)
    words = [sys.executable, "-m", "memalpha", "train", "demo", f"policy={model}", f"data={data}", f"out={out}"]
    words += [f"sampling.sampler.url={url}", f"sampling.staleness={STALENESS[in_flight]}", f"max_steps={STEPS}"]
    words += ["sampling.dtype=null", "sampling.keep_tokens=true", "reader.kind=extractive"]
    words += [f"tasks_per_step={TASKS_PER_STEP}", f"group_size={GROUP_SIZE}", f"schedule_steps={STEPS}"]
    words += ["minibatches=1", "loss.old_logprobs=recomputed", "loss.importance_cap=2", "warmup_steps=0"]
    words += [f"sampling.in_flight_updates={in_flight}".lower()]
    words += ["eval_tasks=1", "validation_tasks=0", "stop_unreadable=false"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    killed = kill_with_queue(process, out)
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    return {"in flight": in_flight, "killed at": killed["step"], **run_record(out, killed)}


def kill_with_queue(process: subprocess.Popen[bytes], out: Path) -> dict[str, Any]:
    """Kill a training process once a checkpoint holds queued groups; return the state of its last checkpoint.

    Args:
        process: The process.
        out: Its run directory.
    """
    while process.poll() is None:
        state = last_state(out)
        if state is not None and state["step"] >= 2 and state["rollouts"]["groups"]:
            process.send_signal(signal.SIGKILL)
            process.wait()
            state = last_state(out)
            assert state is not None
            return state
        time.sleep(0.02)
    raise SystemExit(f"{out}: the run ended with {process.returncode} before it could be killed")


def last_state(out: Path) -> dict[str, Any] | None:
    """Return the state of the last checkpoint; None without any."""
    steps = [int(path.name.removeprefix("step-")) for path in out.glob("checkpoints/step-*")]
    if not steps:
        return None
    return json.loads((out / "checkpoints" / f"step-{max(steps)}" / "state.json").read_text(encoding="utf-8"))


def run_record(out: Path, killed: dict[str, Any]) -> dict[str, Any]:
    """Return figures of a run that was killed and resumed.

    Args:
        out: Run directory.
        killed: State of the checkpoint that the run was resumed from.
    """
    metrics = read_metrics(out)
    turns = [json.loads(line) for line in (out / "turns.jsonl").read_text(encoding="utf-8").splitlines()]
    learned = defaultdict(set)
    for turn in turns:
        learned[turn["task"]].add(turn["step"])
    recorded = {(turn["task"], turn["rollout"], turn["chunk"]): turn["completion_ids"] for turn in turns}
    queued = [json.loads(zlib.decompress(base64.b64decode(text))) for text in killed["rollouts"]["groups"]]
    own_gaps, ratios = logprob_gaps(out, turns)
    last = last_state(out)
    assert last is not None
    rollouts = last["rollouts"]
    mismatch = {line["step"]: line["mismatch_max"] for line in metrics}
    return {
        "steps": [line["step"] for line in metrics],
        "turns": len(turns),
        "tokens": int(sum(len(turn["completion_ids"]) for turn in turns)),
        "turns by age": dict(sorted(Counter(turn["step"] - turn["weights_step"] for turn in turns).items())),
        "turns of several spans": sum(len(spans_of(turn)) > 1 for turn in turns),
        "tasks learned": len(learned),
        "tasks learned twice": sum(len(steps) > 1 for steps in learned.values()),
        "queued at kill": len(queued),
        "queued and learned": sum(is_learned(group, recorded) for group in queued),
        "started": rollouts["next"],
        "dropped": int(sum(line["dropped_groups"] for line in metrics)),
        "left": len(rollouts["groups"]) + len(rollouts["unfinished"]),
        "long learned": sum(int(task[1:]) % len(LENGTHS) == len(LENGTHS) - 1 for task in learned),
        "gap to named weights": own_gaps,
        "mismatch_max": max(mismatch.values()),
        "mismatch error": max(abs(mismatch[step] - value) for step, value in ratios.items()),
        "sync_gap": max(line["sync_gap"] for line in metrics),
    }


def is_learned(group: dict[str, Any], recorded: dict[tuple[str, int, int], Sequence[int]]) -> bool:
    """Return True if all turns of an encoded group were learned from, token by token."""
    return all(
        recorded.get((group["task"], trajectory["rollout"], turn["chunk"])) == turn["completion"]["completion_ids"]
        for trajectory in group["trajectories"]
        for turn in trajectory["turns"]
    )


def spans_of(turn: dict[str, Any]) -> list[list[int]]:
    """Return (step of the weights, number of tokens) of each span of a line of turns.jsonl."""
    return turn.get("weights_spans") or [[turn["weights_step"], len(turn["completion_ids"])]]


def logprob_gaps(out: Path, turns: Sequence[dict[str, Any]]) -> tuple[float, dict[int, float]]:
    """Return the largest |server - float64| with the named weights, and by step that with the learner's weights.

    Args:
        out: Run directory with a checkpoint of every step.
        turns: Lines of turns.jsonl.
    """
    own_gap, ratios = 0.0, defaultdict(float)
    learned = {turn["step"] for turn in turns}
    for step in sorted(learned | {step for turn in turns for step, _ in spans_of(turn)}):
        model = AutoModelForCausalLM.from_pretrained(out / "checkpoints" / f"step-{step}", dtype=torch.float64).eval()
        for turn in turns:
            steps = np.repeat([step for step, _ in spans_of(turn)], [count for _, count in spans_of(turn)])
            if step != turn["step"] and step not in steps:
                continue
            ids, start = turn["completion_ids"], len(turn["prompt_ids"])
            with torch.inference_mode():
                logits = model(torch.tensor([turn["prompt_ids"] + ids])).logits[0, start - 1 : -1]
            logprobs = torch.log_softmax(logits / turn["temperature"], -1).gather(1, torch.tensor(ids)[:, None])[:, 0]
            gaps = np.abs(logprobs.numpy() - np.array(turn["logprobs"]))
            own_gap = max(own_gap, float(gaps[steps == step].max(initial=0.0)))
            if step == turn["step"]:
                ratios[step] = max(ratios[step], float(gaps.max()))
    return own_gap, dict(ratios)


def has_passed(record: dict[str, Any]) -> bool:
    """Return True if a record of `check_ahead` shows no step lost or repeated, and the log-probs that it should."""
    return (
        record["steps"] == list(range(STEPS))
        and record["tasks learned"] == STEPS * TASKS_PER_STEP
        and not record["tasks learned twice"]
        and max(record["turns by age"]) <= STALENESS[record["in flight"]]
        and max(record["turns by age"]) > 0
        and record["queued at kill"] > 0
        and record["started"] == record["tasks learned"] + record["dropped"] + record["left"]
        and (record["turns of several spans"] if record["in flight"] else record["dropped"]) > 0
        and record["gap to named weights"] < 1e-4
        and record["mismatch error"] < 1e-4
    )


def page(record: dict[str, Any]) -> list[str]:
    """Return Markdown lines of a record of `check_ahead`."""
    is_in_flight = record["in flight"]
    settings = f"`staleness={STALENESS[is_in_flight]}`" + " and `in_flight_updates`" * is_in_flight
    of_spans = f", {record['turns of several spans']} of several spans" if is_in_flight else ""
    ages = ", ".join(f"{count} of age {age}" for age, count in record["turns by age"].items())
    return [
        f"With {settings}, {TASKS_PER_STEP} groups of {GROUP_SIZE} a step, conversations of 2 chunks, every fifth of "
        "30:",
        "",
        f"- kill -9 of the training process after step {record['killed at']} with {record['queued at kill']} groups in "
        f"the queue; resumed on the same server, steps in metrics.jsonl: {record['steps']}; of the queued groups "
        f"{record['queued and learned']} were learned from token by token",
        f"- groups: {record['started']} started, {record['tasks learned']} learned from (twice: "
        f"{record['tasks learned twice']}), {record['dropped']} dropped as stale, {record['left']} queued or under way "
        "at the end",
        f"- {record['turns']:,} turns with {record['tokens']:,} tokens: {ages} in steps{of_spans}; log-probs against a "
        f"float64 forward with the weights that each turn names: max {record['gap to named weights']:.1e}",
        f"- `mismatch_max` of the steps: up to {record['mismatch_max']:.3f}; off by at most "
        f"{record['mismatch error']:.1e} from float64 with the learner's weights",
    ]
