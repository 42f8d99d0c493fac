"""Compare the plan's peak memory with the peak of real training steps on CPU.

    python eval/learning/plan_memory.py            # all cases; writes eval/results/plan-memory.md
    python eval/learning/plan_memory.py --case 0   # one case in this process, as JSON

Random-weight models with the tokenizer of tiny-text train eight steps of `memalpha train arithmetic`, each case in a
fresh process: three Qwen3 in float32, and SmolLM2-135M's Llama in float32 and bfloat16. The measure is the kernel's:
the highest resident size (VmHWM) of the run minus the resident size before it, after the same run on a model of 0.7
million weights, which imports all libraries. MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ of 64 KiB make glibc
return freed blocks, so that the resident size is what the run holds.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

SIZES: dict[str, dict[str, Any]] = {
    "20M": {"hidden_size": 384, "intermediate_size": 1152, "num_hidden_layers": 8, "vocab_size": 12000},
    "54M": {"hidden_size": 576, "intermediate_size": 1600, "num_hidden_layers": 11, "vocab_size": 24000},
    "118M": {"hidden_size": 640, "intermediate_size": 1792, "num_hidden_layers": 22, "vocab_size": 32000},
    "135M": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49152},
}
HEADS = {"135M": (9, 3)}
"""Query heads and key-value heads of a size; default: 8 and 4."""
TRAINED: dict[str, list[str]] = {
    "all weights": [],
    "LoRA r 16": ["lora={r: 16}"],
    "QLoRA r 16": ["lora={r: 16}", "compute.load_in_4bit=true"],
}
"""What is trained, and the settings for it."""
CASES = [
    (size, trained, checkpointing, dtype)
    for size in SIZES
    for dtype in (("float32", "bfloat16") if size == "135M" else ("float32",))
    for trained in TRAINED
    for checkpointing in (False, True)
]
OVERRIDES = [
    *("sampling.group_size=4", "sampling.tasks_per_step=4", "sampling.max_new_tokens=96", "max_steps=8"),
    *("evaluation.tasks=2", "evaluation.validation_tasks=0", "compute.microbatch_tokens=1024"),
    *("sampling.stop_unreadable=false", "loss.entropy_coef=0.001"),  # random replies end nowhere and earn nothing
]
RESULT = Path(__file__).parent.parent / "results" / "plan-memory.md"


def _resident(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def measure(case: int) -> dict[str, Any]:
    """Run one case in this process and return planned and measured bytes."""
    import peft  # noqa: F401  # part of the imports, not of the run
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen3Config

    from memalpha.config import parse_overrides, training_config
    from memalpha.train.api import train
    from memalpha.train.plan import plan_run

    size, trained, checkpointing, dtype = CASES[case]
    heads, shared_heads = HEADS.get(size, (8, 4))
    kind = LlamaConfig if size == "135M" else Qwen3Config
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        policy, out = Path(folder) / "policy", Path(folder) / "run"
        with resources.as_file(resources.files("memalpha") / "weights" / "tiny-text") as tiny:
            AutoTokenizer.from_pretrained(tiny).save_pretrained(policy)
        config = kind(
            **SIZES[size],
            num_attention_heads=heads,
            num_key_value_heads=shared_heads,
            head_dim=64,
            tie_word_embeddings=True,
            max_position_embeddings=2048,
            eos_token_id=1,
            pad_token_id=0,
        )
        model = AutoModelForCausalLM.from_config(config)
        model.save_pretrained(policy)
        del model
        overrides = [*OVERRIDES, f"policy={policy}", f"out={out}", *TRAINED[trained]]
        overrides += [f"compute.gradient_checkpointing={str(checkpointing).lower()}", f"compute.dtype={dtype}"]
        settings = training_config("arithmetic", parse_overrides(overrides))
        if os.environ.get("PLAN_ONLY"):
            peak = plan_run(settings)["memory"]["peak"]
            return {"planned": peak["bytes"], "phase": peak["phase"]}
        warm = [*OVERRIDES, "policy=tiny-text", f"out={folder}/warm", *TRAINED[trained]]
        train(training_config("arithmetic", parse_overrides(warm)))  # what a run imports and starts counts as imports
        gc.collect()
        before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        train(settings)
        return {"measured": _resident("VmHWM") - before}


def run_case(case: int) -> str:
    """Plan and measure one case, each in a fresh process, and return its line of the table."""
    result: dict[str, Any] = {}
    limits = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    for extra in ({"PLAN_ONLY": "1"}, limits):
        command = [sys.executable, __file__, "--case", str(case)]
        done = subprocess.run(command, env=os.environ | extra, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        result |= json.loads(done.stdout.splitlines()[-1])
    size, trained, checkpointing, dtype = CASES[case]
    planned, measured = result["planned"], result["measured"]
    cells = (size, trained, dtype, "yes" if checkpointing else "no", result["phase"], f"{planned / 1e6:.0f}")
    return f"| {' | '.join(cells)} | {measured / 1e6:.0f} | {planned / measured - 1:+.1%} |"


def main() -> None:
    """Measure all cases, each in a process of its own, and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", type=int)
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(json.dumps(measure(arguments.case)))
        return
    names = ("model", "trained", "dtype", "checkpointing", "planned peak", "planned MB", "measured MB", "error")
    lines = [
        f"# Planned and measured memory\n\n`python eval/learning/plan_memory.py`, {platform.machine()}, "
        f"{os.cpu_count()} cores; on CPU, eight steps of `arithmetic` each.\n",
        f"| {' | '.join(names)} |",
        "|---" * len(names) + "|",
    ]
    for case in range(len(CASES)):
        lines.append(run_case(case))
        print(lines[-1], flush=True)
    RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
