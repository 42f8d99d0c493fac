"""Cost of learning with adapters on the last layers: hidden states below them computed in each pass, and once per row.

    python eval/learning/frozen_layers.py MODEL [--first 15 20 25] [--dtype float32] [--repeats 3]

`MODEL` is a transformers directory, such as the one that `memalpha fetch smol` prints. Rows are gold replies of the
demo world under the compact prompt in the line form. Each variant runs in a process of its own: CPU seconds of forward
and backward passes over all rows, without the optimizer's step, and its largest memory. "first epoch" computes the
hidden states, "later" takes them. The gradient is that of adapters after a random step, since the second factor starts
at 0. Writes frozen-layers.json and frozen-layers.md to --results.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser, opening, save

LIMIT_GB = 4.0


def measure(model: str, layers: int, cached: bool, rows: int, repeats: int, dtype: str, path: Path) -> dict[str, Any]:
    """Measure one variant in this process; write its gradient to a file.

    Args:
        model: Transformers directory.
        layers: Number of last layers with adapters.
        cached: Keep the hidden states below them.
        rows: Number of rows.
        repeats: Passes after the first.
        dtype: Precision of the passes.
        path: Where the gradient goes (npy).
    """
    import torch
    from learning_speed import gold_rows

    from memalpha.config import LoraConfig, SFTConfig
    from memalpha.policy.transformers import TransformersPolicy
    from memalpha.train.learner.engine import Engine
    from memalpha.train.learner.lora import add_lora
    from memalpha.train.learner.losses import LossSettings

    torch.set_num_threads(1)
    policy = TransformersPolicy.from_pretrained(model)
    samples = gold_rows(policy, rows)
    lora = LoraConfig(r=16, layers=layers, frozen_cache_gb=LIMIT_GB if cached else None)
    compute = {"microbatch_tokens": 2048, "dtype": dtype}
    config = SFTConfig.model_validate(
        {"out": "unused", "lora": lora, "compute": compute, "optimizer": {"learning_rate": 1e-4}}
    )
    engine = Engine(add_lora(policy.model, lora, "model"), config, LossSettings(normalizer="token"))
    generator = torch.Generator().manual_seed(0)
    for parameter in engine.trainable.values():
        parameter.data.add_(0.01 * torch.randn(parameter.shape, generator=generator))
    samples, seconds, loss = engine.normalized(samples), [], 0.0
    for _ in range(repeats + 1):
        engine.optimizer.zero_grad(set_to_none=True)
        start = time.process_time()
        loss = engine.forward_backward(samples)["loss"]
        seconds.append(time.process_time() - start)
    gradients = [parameter.grad.flatten().double() for parameter in engine.trainable.values()]  # type: ignore[union-attr]
    np.save(path, torch.cat(gradients).numpy())
    return {
        "first": seconds[0],
        "later": seconds[1:],
        "loss": loss,
        "tokens": sum(sample.length for sample in samples),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "kept_mb": 0.0 if engine.frozen is None else engine.frozen.bytes / 1e6,
    }


def table(results: dict[str, Any], rows: int) -> list[str]:
    """Format the figures of all variants.

    Args:
        results: Figures by "first layer, variant".
        rows: Rows of a pass.
    """
    lines = [
        "| first adapted layer | hidden states below | CPU-s a row, first epoch | later epochs | peak GiB | kept MB "
        "a row | loss differs | gradient differs |",
        "|---" * 8 + "|",
    ]
    for name, figures in results.items():
        first, variant = name.split(", ")
        later = [seconds / rows for seconds in figures["later"]]
        cells = [f"{figures['first'] / rows:.2f}"]
        cells.append(f"{statistics.median(later):.2f} ({min(later):.2f} to {max(later):.2f})")
        cells += [f"{figures['peak_gib']:.2f}", f"{figures['kept_mb'] / rows:.2f}" if figures["kept_mb"] else ""]
        cells += [f"{figures[key]:.1e}" if key in figures else "" for key in ("loss_differs", "gradient_differs")]
        lines.append(f"| {first} | {variant} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Measure every variant in its own process and write the record."""
    parser = make_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--first", type=int, nargs="+", default=[15, 20, 25], help="index of the first adapted layer")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3, help="passes after the first")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--one", nargs=3, metavar=("LAYERS", "CACHED", "FILE"), help="one variant, in this process")
    arguments = parser.parse_args()
    if arguments.one:
        layers, cached, path = arguments.one
        figures = measure(
            arguments.model,
            int(layers),
            cached == "1",
            arguments.rows,
            arguments.repeats,
            arguments.dtype,
            Path(path),
        )
        print(json.dumps(figures))
        return
    total = json.loads((Path(arguments.model) / "config.json").read_text(encoding="utf-8"))["num_hidden_layers"]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for first in arguments.first:
            plain: dict[str, Any] = {}
            for cached in (False, True):
                path = Path(folder) / f"{first}-{cached}.npy"
                options = ["--rows", str(arguments.rows), "--repeats", str(arguments.repeats)]
                variant = ["--dtype", arguments.dtype, "--one", str(total - first), str(int(cached)), str(path)]
                process = subprocess.run(
                    [sys.executable, __file__, arguments.model, *options, *variant], stdout=subprocess.PIPE, check=True
                )
                figures = json.loads(process.stdout)
                if cached:
                    figures["loss_differs"] = abs(figures["loss"] - plain["loss"]) / plain["loss"]
                    gradients = [np.load(Path(folder) / f"{first}-{kind}.npy") for kind in (False, True)]
                    figures["gradient_differs"] = float(
                        np.linalg.norm(gradients[1] - gradients[0]) / np.linalg.norm(gradients[0])
                    )
                plain = plain or figures
                results[f"{first}, {'once per row' if cached else 'in each pass'}"] = figures
                print(first, cached, figures, file=sys.stderr, flush=True)
    stem = "frozen-layers" if arguments.dtype == "float32" else f"frozen-layers-{arguments.dtype}"
    page = [*opening("Hidden states below the adapters, computed once per row"), "", *table(results, arguments.rows)]
    save(arguments.results / stem, results, "\n".join(page))


if __name__ == "__main__":
    main()
