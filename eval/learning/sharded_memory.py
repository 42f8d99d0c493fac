"""Measure the memory of two processes that share a model: `python eval/learning/sharded_memory.py`.

Two processes (gloo, CPU) train a random Qwen3 of --millions weights in float32 with AdamW under FSDP2: two updates, a
checkpoint, and loading it. Once with the whole copy that a sampler in the process needs, once sharded only, as beside
a sampler on a server. The peak is the kernel's (VmHWM), reset after the imports.
Writes `sharded-memory.json` and `sharded-memory.md` to --results.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser, opening, save

STAGES = ("engine", "updates", "checkpoint", "loading")


def memory(name: str) -> float:
    """Return a figure of /proc/self/status (VmRSS, VmHWM) in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"/proc/self/status has no {name}")


def work(folder: Path, millions: int, keeps_whole: bool) -> None:
    """Train in one of two processes and print its memory as JSON.

    Args:
        folder: Folder for the checkpoint.
        millions: Weights of the model, in millions.
        keeps_whole: Keep a whole copy in each process.
    """
    import numpy as np
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from memalpha.config import TrainConfig
    from memalpha.policy.load import load_policy
    from memalpha.train.data.samples import cross_entropy_sample
    from memalpha.train.learner.distributed import join_world
    from memalpha.train.learner.engine import Engine
    from memalpha.train.trainers.checkpoint import load_checkpoint, write_checkpoint

    torch.set_num_threads(1)
    world = join_world("cpu")
    tokenizer = getattr(load_policy("tiny"), "tokenizer")  # noqa: B009  # of the trained policies only
    width, vocabulary = 768, 16000
    layers = max(1, round((millions * 1e6 - vocabulary * width) / 9.5e6))
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=12,
        head_dim=64,
        tie_word_embeddings=True,
    )
    noise = np.random.default_rng(0)
    rows = [
        cross_entropy_sample(noise.integers(0, 16000, 24).tolist(), noise.integers(0, 16000, 8).tolist())
        for _ in range(2)
    ]
    rows = [replace(row, task=str(number)) for number, row in enumerate(rows)]
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    result: dict[str, Any] = {"before": memory("VmRSS")}
    start = time.process_time()
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    settings = TrainConfig(out=folder, learning_rate=1e-4, sharding="fsdp", microbatch_tokens=32)
    engine = Engine(model, settings, world=world, keeps_whole=keeps_whole)
    result["weights"] = sum(parameter.numel() for parameter in engine.model.parameters())
    result["engine"] = memory("VmHWM")
    for _ in range(2):
        engine.update(rows, 1e-4)
    result["updates"] = memory("VmHWM")
    path = folder / "step-1"
    write_checkpoint(path, SimpleNamespace(tokenizer=tokenizer), engine, {"step": 1})  # type: ignore[arg-type]
    result["checkpoint"] = memory("VmHWM")
    expected = engine.forward(rows)
    load_checkpoint(path, engine)
    result["loading"] = memory("VmHWM")
    assert all(np.array_equal(a, b) for a, b in zip(engine.forward(rows), expected, strict=True))
    result["cpu"] = time.process_time() - start
    print(json.dumps(result))


def run(millions: int, keeps_whole: bool) -> list[dict[str, Any]]:
    """Return the figures of two processes.

    Args:
        millions: Weights of the model, in millions.
        keeps_whole: Keep a whole copy in each process.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        words = [sys.executable, __file__, "--millions", str(millions), "--work", folder]
        processes = [
            subprocess.Popen(
                [*words, *(["--whole"] if keeps_whole else [])],
                env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in (0, 1)
        ]
        outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a process failed")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def main() -> None:
    """Measure, record and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--millions", type=int, default=125, help="weights of the model, in millions")
    parser.add_argument("--work", type=Path, help="be one of the two processes, with this folder")
    parser.add_argument("--whole", action="store_true", help="be one that keeps a whole copy")
    arguments = parser.parse_args()
    if arguments.work is not None:
        work(arguments.work, arguments.millions, arguments.whole)
        return
    record = {name: run(arguments.millions, name == "whole copy") for name in ("whole copy", "sharded only")}
    peaks = {name: max(result["loading"] for result in results) for name, results in record.items()}
    lines = [
        *opening("Memory of two processes that share a model"),
        f"{record['sharded only'][0]['weights'] / 1e6:.0f} million weights, float32, AdamW, FSDP2 on gloo. MB of a",
        "process at its highest so far, after each stage; the larger of the two. `before`: after the imports.",
        "",
        "| | before | " + " | ".join(STAGES) + " | CPU-s |",
        "|" + "---|" * (len(STAGES) + 3),
    ]
    for name, results in record.items():
        cells = [f"{max(result[stage] for result in results):,.0f}" for stage in ("before", *STAGES)]
        lines.append(f"| {name} | {' | '.join(cells)} | {max(result['cpu'] for result in results):.0f} |")
    lines += ["", f"Peak, sharded only against whole copy: {peaks['sharded only'] / peaks['whole copy']:.2f}."]
    save(arguments.results / "sharded-memory", record, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
