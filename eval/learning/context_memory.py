"""Measure the learner's memory by context length: `python eval/learning/context_memory.py`.

A random Qwen3 of 4 layers and 2.7 million weights takes one optimizer step (float32, AdamW, one process, CPU) on one
row: half prompt, half completion. Each case runs in a process of its own. Its peak is the kernel's (VmHWM), reset when
the engine stands, less the memory then. `whole logits` are the bytes that all logits of the completion would take at
once; the learner computes them in blocks of `compute.head_tokens`.
Writes `context-memory.json` and `context-memory.md` to --results.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser, opening, save

WIDTH, LAYERS, VOCABULARY = 128, 4, 16000
MiB = 1 << 20


def memory(name: str) -> float:
    """Return a figure of /proc/self/status (VmRSS, VmHWM) in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"/proc/self/status has no {name}")


def measure(context: int, checkpointing: bool, head_tokens: int) -> None:
    """Take a step and print its memory as JSON.

    Args:
        context: Tokens of the row.
        checkpointing: Recompute activations in the backward pass.
        head_tokens: Completion tokens whose logits exist at once.
    """
    import numpy as np
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from memalpha.config import TrainConfig
    from memalpha.train.data.samples import cross_entropy_sample
    from memalpha.train.learner.engine import Engine

    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=1 << 16,
        tie_word_embeddings=True,
    )
    compute = {"gradient_checkpointing": checkpointing, "head_tokens": head_tokens, "microbatch_tokens": context}
    with tempfile.TemporaryDirectory() as out:
        engine = Engine(Qwen3ForCausalLM(shape), TrainConfig(out=Path(out), learning_rate=1e-4, compute=compute))
    noise = np.random.default_rng(0).integers(0, VOCABULARY, context).tolist()
    row = cross_entropy_sample(noise[: context // 2], noise[context // 2 :])
    engine.update([cross_entropy_sample(noise[:8], noise[8:16])], 1e-4)  # Adam's states are there
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before, start = memory("VmRSS"), time.process_time()
    engine.update([row], 1e-4)
    result = {"peak": memory("VmHWM") - before, "seconds": time.process_time() - start}
    print(json.dumps({**result, "weights": sum(weight.numel() for weight in engine.model.parameters())}))


def run(context: int, checkpointing: bool, head_tokens: int) -> dict[str, Any]:
    """Return the figures of a case.

    Args:
        context: Tokens of the row.
        checkpointing: Recompute activations in the backward pass.
        head_tokens: Completion tokens whose logits exist at once.
    """
    words = [sys.executable, __file__, "--case", str(context), str(int(checkpointing)), str(head_tokens)]
    output = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    case = {"context": context, "checkpointing": checkpointing, "head_tokens": head_tokens}
    print(case, output, file=sys.stderr, flush=True)
    return {**case, **json.loads(output.splitlines()[-1])}


def page(results: list[dict[str, Any]]) -> str:
    """Format all results as Markdown."""
    lines = [
        *opening("The learner's memory by context length"),
        f"{results[0]['weights'] / 1e6:.1f} million weights, {LAYERS} layers, width {WIDTH}, vocabulary {VOCABULARY};",
        "one row a step, half of it completion. MiB at the peak of a step above those before it; CPU seconds of it.",
        "",
        "| context | checkpointing | head_tokens | peak | KiB a token | whole logits | CPU-s |",
        "|" + "---|" * 7,
    ]
    for result in results:
        context = result["context"]
        lines.append(
            f"| {context:,} | {'yes' if result['checkpointing'] else 'no'} | {result['head_tokens']:,} | "
            f"{result['peak']:,.0f} | {1024 * result['peak'] / context:.1f} | "
            f"{context // 2 * VOCABULARY * 4 / MiB:,.0f} | {result['seconds']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, record and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--contexts", type=int, nargs="+", default=[2048, 4096, 8192, 16384, 32768])
    parser.add_argument("--case", type=int, nargs=3, help="measure this case: context, checkpointing, head_tokens")
    arguments = parser.parse_args()
    if arguments.case is not None:
        context, checkpointing, head_tokens = arguments.case
        measure(context, bool(checkpointing), head_tokens)
        return
    cases = [(context, checkpointing, 1024) for checkpointing in (True, False) for context in arguments.contexts]
    cases.append((arguments.contexts[-1], True, arguments.contexts[-1] // 2))
    results = [run(*case) for case in cases]
    save(arguments.results / "context-memory", {"cases": results}, page(results))


if __name__ == "__main__":
    main()
