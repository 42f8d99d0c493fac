"""Check training on a real vLLM server: tokens, log-probs, weight sync, refusals, sampling ahead, killed processes.

    scripts/check-vllm [FOLDER]

makes the server's environment and runs this with `--vllm` (its command) and `--work` (a folder for models and runs).
The shipped policy `tiny` is served in float32 on one CPU core. Log-probs are compared with a float64 forward of
transformers over the same tokens. Times are wall seconds. Writes RESULTS/vllm-check.md and vllm-check.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import make_parser, opening, read_metrics, save

from memalpha.config import TrainConfig, training_config
from memalpha.environments.memory_writing import memory_engine
from memalpha.errors import PolicyError
from memalpha.policy.load import load_policy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.policy.vllm.policy import VllmPolicy
from memalpha.store.embedding import load_embedder
from memalpha.tasks.synthetic import worlds
from memalpha.train.api import train
from memalpha.train.data.samples import policy_gradient_sample
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.rollouts.weight_sync import WeightSync, make_sampler
from memalpha.types import Completion, SampleRequest, Turn

ROOT = Path(__file__).resolve().parents[2]
EXTENSION = "memalpha.policy.vllm.worker_extension.WeightsExtension"
PROCESSED = ("--logprobs-mode", "processed_logprobs")
TRAINING = (*PROCESSED, "--enable-lora", "--max-lora-rank", "16", "--worker-extension-cls", EXTENSION)
REQUESTS = 32
STEPS = 6


@contextmanager
def serve(vllm: Path, model: Path, *flags: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Serve a model; yield the `sampler.url` and the server's process, whose group is killed at the end.

    Args:
        vllm: The command `vllm` of an environment.
        model: Directory of the model.
        flags: Further flags.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "LD_PRELOAD": os.environ.get("LIBRARIES", ""),
        "HF_HUB_OFFLINE": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(max(os.sched_getaffinity(0))),
        "VLLM_NO_USAGE_STATS": "1",
    }
    words = [str(vllm), "serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    words += ["--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "64", "--no-enable-chunked-prefill"]
    with (model.parent / f"server-{port}.log").open("wb") as log:
        process = subprocess.Popen(
            [*words, *flags], env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        while process.poll() is None:
            with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                break
            time.sleep(0.5)
        else:
            raise SystemExit(f"the server ended with {process.returncode}: see {log.name}")
        yield f"vllm:http://127.0.0.1:{port}", process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a server with all its workers (SIGKILL)."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Learner:
    """Policy, engine and sync of a run, without its tasks.

    Args:
        model: Directory of the policy.
        url: The `sampler.url`.
        work: Folder for the weights that are handed over.
        lora: Settings of adapters; None trains all weights.
    """

    def __init__(self, model: Path, url: str, work: Path, lora: dict[str, Any] | None = None) -> None:
        sampler = {"url": url, "retries": 1}
        changes = {"out": str(work / "none"), "sampling": {"dtype": None, "sampler": sampler}, "lora": lora}
        config = training_config("demo", {**changes, "policy": str(model)})
        assert isinstance(config, TrainConfig)
        local = load_policy(model)
        assert isinstance(local, TransformersPolicy)
        trained = local.model if config.lora is None else add_lora(local.model, config.lora, str(model))
        sampler_policy = make_sampler(local, config)
        assert isinstance(sampler_policy, VllmPolicy)
        self.local, self.policy = local, sampler_policy
        rollouts = memory_engine(local, config.agent, load_embedder("hash"))
        tasks = worlds.tasks(worlds.WorldConfig(), 7, 0, REQUESTS)
        self.prompts = [rollouts.first_request(task) for task in tasks]
        self.engine = Engine(trained, config)
        self.sync = WeightSync(self.policy, self.engine, self.prompts[:4], work / "weights")

    def requests(self, temperature: float) -> list[SampleRequest]:
        """Return the prompts as requests at a temperature."""
        return [
            SampleRequest(p.messages, p.tools, key=(i,), temperature=temperature, max_new_tokens=48)
            for i, p in enumerate(self.prompts)
        ]

    def gaps(self, completions: Sequence[Completion]) -> np.ndarray:
        """Return |server - float64 forward| of all tokens."""
        model = self.local.model.double()
        gaps = [logprob_gaps(model, asdict(completion)) for completion in completions]
        self.local.model.float()
        return np.concatenate(gaps)

    def learn(self, completions: Sequence[Completion]) -> None:
        """Take an optimizer step on completions, all with advantage 1."""
        rows = [policy_gradient_sample(Turn(0, completion), 1.0) for completion in completions]
        self.engine.update(rows, 1e-2)
        self.engine.weights_step += 1


def logprob_gaps(model: Any, record: Mapping[str, Any]) -> np.ndarray:
    """Return |server - model| of a completion's tokens.

    Args:
        model: Model in float64.
        record: Fields of a completion, or a line of turns.jsonl.
    """
    prompt, ids = list(record["prompt_ids"]), list(record["completion_ids"])
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    truth = torch.log_softmax(logits / (record["temperature"] or 1.0), -1)
    return np.abs(truth.gather(1, torch.tensor(ids)[:, None])[:, 0].numpy() - np.array(record["logprobs"]))


def check_tokens(learner: Learner, record: dict[str, Any]) -> None:
    """Record agreement of log-probs at two temperatures, and the time of a first sync."""
    for temperature in (1.0, 0.7):
        completions = learner.policy.sample(learner.requests(temperature))
        gaps = learner.gaps(completions)
        record[f"logprobs at temperature {temperature}"] = {
            "max": float(gaps.max()),
            "mean": float(gaps.mean()),
            "tokens": len(gaps),
            "ended": sum(completion.stop_reason == "eos" for completion in completions),
        }


def check_syncs(learner: Learner, count: int) -> dict[str, Any]:
    """Return times and agreement of `count` syncs, each after an optimizer step."""
    completions, maxima = learner.policy.sample(learner.requests(1.0)), []
    learner.sync.pop_metrics()
    seconds, canary = [], []
    for _ in range(count):
        learner.learn(completions)
        completions = learner.policy.sample(learner.requests(1.0))
        maxima.append(float(learner.gaps(completions).max()))
        metrics = learner.sync.pop_metrics()
        seconds.append(metrics["sync_seconds"])
        canary.append(metrics["sync_gap"])
    return {"max after": max(maxima), "canary": max(canary), "seconds": sorted(seconds)}


def refusal(action: Callable[[], Any]) -> str:
    """Return the message of the `PolicyError` that an action raises; "" if it raises none."""
    try:
        action()
    except PolicyError as error:
        return str(error)
    return ""


def check_refusals(learner: Learner, work: Path, record: dict[str, Any]) -> None:
    """Record a bad folder, after which the server lives, and a reload past the extension that the canary finds.

    Args:
        learner: Connected learner of all weights.
        work: Folder for files.
        record: Gets the results.
    """
    client = learner.policy.client
    record["bad folder"] = refusal(lambda: client.load_weights(work / "nothing", "x"))
    learner.policy.sample(learner.requests(1.0)[:2])
    completions = learner.policy.sample(learner.requests(1.0))
    learner.learn(completions)

    def bare_reload(folder: Path, version: str) -> None:
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        client.call("POST", "/collective_rpc", body)
        client.call("POST", "/reset_prefix_cache")

    load, client.load_weights = client.load_weights, bare_reload  # type: ignore[method-assign]
    record["bare reload"] = refusal(lambda: learner.policy.sample(learner.requests(1.0)))
    client.load_weights = load  # type: ignore[method-assign]


def check_kill(vllm: Path, model: Path, work: Path, record: dict[str, Any]) -> None:
    """Kill the server in a step of a run, resume on another one, and record the steps.

    Args:
        vllm: The command `vllm`.
        model: Directory of the policy.
        work: Folder of the run.
        record: Gets the results.
    """
    out = work / "run"
    settings: dict[str, Any] = {"policy": str(model), "out": str(out), "max_steps": 3, "eval_tasks": 2}
    settings |= {"validation_tasks": 0, "tasks_per_step": 2, "group_size": 4}
    sampling: dict[str, Any] = {"dtype": None, "keep_tokens": False}

    def run(url: str) -> dict[str, Any]:
        return train("demo", **settings, sampling={**sampling, "sampler": {"url": url, "retries": 1}})

    with serve(vllm, model, *TRAINING) as (url, process):

        def kill_in_second_step() -> None:
            while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").stat().st_size:
                time.sleep(0.01)
            time.sleep(0.3)
            kill(process)

        killer = threading.Thread(target=kill_in_second_step)
        killer.start()
        message = refusal(lambda: run(url))
        killer.join()
    saved = sorted(path.name for path in (out / "checkpoints").glob("step-*"))
    with serve(vllm, model, *TRAINING) as (url, _):
        run(url)
    metrics = read_metrics(out)
    record["killed"] = {
        "message": message,
        "checkpoints": saved,
        "steps": [line["step"] for line in metrics],
        "mismatch": max(line["mismatch_max"] for line in metrics),
    }


def check_ahead(url: str, model: Path, work: Path) -> dict[str, Any]:
    """Train with `staleness=1` and return what the run's files show.

    Each turn's log-probs are computed again in float64 with the weights that its record names.

    Args:
        url: The `sampler.url`.
        model: Directory of the policy.
        work: Folder of the run.
    """
    out = work / "ahead"
    settings: dict[str, Any] = {"policy": str(model), "out": str(out), "schedule_steps": STEPS, "eval_tasks": 1}
    settings |= {"validation_tasks": 0, "tasks_per_step": 2, "group_size": 4, "minibatches": 1, "warmup_steps": 0}
    settings["reader"] = {"kind": "extractive"}
    sampling = {"dtype": None, "keep_tokens": True, "stop_unreadable": False, "staleness": 1, "sampler": {"url": url}}
    train("demo", **settings, loss={"old_logprobs": "recomputed", "importance_cap": 2}, sampling=sampling)
    metrics = read_metrics(out)
    turns = [json.loads(line) for line in (out / "turns.jsonl").read_text(encoding="utf-8").splitlines()]
    gap = 0.0
    for step in sorted({turn["weights_step"] for turn in turns}):
        weights = AutoModelForCausalLM.from_pretrained(out / "checkpoints" / f"step-{step}", dtype=torch.float64).eval()
        named = [turn for turn in turns if turn["weights_step"] == step]
        gap = max(gap, *(float(logprob_gaps(weights, turn).max()) for turn in named))
    return {
        "steps": [line["step"] for line in metrics],
        "turns": len(turns),
        "tokens": sum(len(turn["completion_ids"]) for turn in turns),
        "turns by age": dict(sorted(Counter(turn["step"] - turn["weights_step"] for turn in turns).items())),
        "tasks learned": len({turn["task"] for turn in turns}),
        "dropped": int(sum(line["dropped_groups"] for line in metrics)),
        "gap to named weights": gap,
        "mismatch_max": max(line["mismatch_max"] for line in metrics),
    }


def page(record: dict[str, Any]) -> list[str]:
    """Return Markdown lines of the results."""
    lines = ["| log-probs against a float64 forward | tokens | max | mean |", "|" + "---|" * 4]
    for temperature in ("1.0", "0.7"):
        row = record[f"logprobs at temperature {temperature}"]
        lines.append(f"| temperature {temperature} | {row['tokens']:,} | {row['max']:.1e} | {row['mean']:.1e} |")
    lines += [
        "",
        "| sync | seconds with canary | canary's gap | max after, all tokens |",
        "|" + "---|" * 4,
    ]
    for name in ("weights", "adapters"):
        row = record[name]
        seconds = ", ".join(f"{value:.2f}" for value in row["seconds"])
        lines.append(f"| {name} | {seconds} | {row['canary']:.1e} | {row['max after']:.1e} |")
    lines += [
        "",
        f"- raw log-probs (the server's default): `{record['raw']}`",
        f"- a folder that is not there, after which the server goes on: `{record['bad folder']}`",
        f"- `reload_weights` without the extension: `{record['bare reload']}`",
    ]
    if (killed := record.get("killed")) is not None:
        lines += [
            f"- kill -9 of the server in step 1: `{killed['message']}`",
            f"- checkpoints then: {', '.join(killed['checkpoints'])}; resumed on another server, steps in "
            f"metrics.jsonl: {killed['steps']}, mismatch_max {killed['mismatch']:.1e}",
        ]
    ahead = record["ahead"]
    ages = ", ".join(f"{count} of age {age}" for age, count in ahead["turns by age"].items())
    return [
        *lines,
        "",
        "With `staleness=1`, 2 groups of 4 a step:",
        "",
        f"- steps in metrics.jsonl: {ahead['steps']}; {ahead['tasks learned']} groups learned from, {ahead['dropped']} "
        "dropped as stale",
        f"- {ahead['turns']:,} turns with {ahead['tokens']:,} tokens: {ages} in steps; log-probs against a float64 "
        f"forward with the weights that each turn names: max {ahead['gap to named weights']:.1e}",
        f"- `mismatch_max` of the steps: up to {ahead['mismatch_max']:.3f}",
    ]


def main() -> None:
    """Check, record and print."""
    parser: argparse.ArgumentParser = make_parser(__doc__)
    parser.add_argument("--vllm", type=Path, required=True, help="the command vllm of its environment")
    parser.add_argument("--work", type=Path, required=True, help="folder for models and runs, made anew")
    parser.add_argument("--skip-kill", action="store_true", help="leave out the killed server, two starts more")
    parser.add_argument("--syncs", type=int, default=5, help="syncs of each kind")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vllm, work = arguments.vllm.absolute(), arguments.work.absolute()
    shutil.rmtree(work, ignore_errors=True)
    model = work / "model"
    shutil.copytree(ROOT / "memalpha" / "weights" / "tiny", model)
    record: dict[str, Any] = {}
    with serve(vllm, model, "--worker-extension-cls", EXTENSION) as (url, _):
        raw = Learner(model, url, work / "raw")
        record["raw"] = refusal(lambda: raw.policy.sample(raw.requests(1.0)))
    with serve(vllm, model, *TRAINING) as (url, _):
        adapters = Learner(model, url, work / "adapters", {"r": 8})
        record["adapters"] = check_syncs(adapters, arguments.syncs)
        learner = Learner(model, url, work / "whole")
        check_tokens(learner, record)
        record["weights"] = check_syncs(learner, arguments.syncs)
        check_refusals(learner, work, record)
        record["ahead"] = check_ahead(url, model, work)
    if not arguments.skip_kill:
        check_kill(vllm, model, work, record)
    for name in ("raw", "bad folder", "bare reload"):
        record[name] = record[name].replace(str(work), "WORK")
    python = vllm.parent / "python"
    versions = "from importlib.metadata import version as v; print(v('vllm-cpu'), v('torch'), v('transformers'))"
    server = subprocess.run([python, "-c", versions], capture_output=True, text=True, check=True).stdout.split()
    text = [
        *opening("Training on a real vLLM server, on CPU", started_by="scripts/check-vllm"),
        f"{time.strftime('%Y-%m-%d')}.",
        f"Server: vllm-cpu {server[0]}, torch {server[1]}, transformers {server[2]}, float32, one core.",
        "The policy is the shipped `tiny`. Wall seconds; server and learner on one core each.",
        "",
        *page(record),
    ]
    save(arguments.results / "vllm-check", record, "\n".join(text) + "\n")
    passed = (
        max(record[name]["max after"] for name in ("weights", "adapters")) < 1e-4
        and all(record[name] for name in ("raw", "bad folder", "bare reload"))
        and ("killed" not in record or record["killed"]["steps"] == [0, 1, 2])
        and record["ahead"]["steps"] == list(range(STEPS))
        and record["ahead"]["tasks learned"] == 2 * STEPS
        and max(record["ahead"]["turns by age"]) == 1
        and record["ahead"]["gap to named weights"] < 1e-4
    )
    print(json.dumps({"passed": passed}))
    raise SystemExit(not passed)


if __name__ == "__main__":
    main()
