"""Compare the learner's update with trl's on the same ragged rows: `python eval/learning/update_bench.py`.

One update = forward, backward, clip and AdamW in float32 over the rows of one step of memory construction: 8 rollouts
read a conversation, each chunk in a context of its own. Every measurement is a fresh process with one thread, and the
systems take turns. Speed is real tokens (prompt + completion, no padding) per CPU-second of the process, so that other
jobs on the machine count little. Memory is what the process's peak (VmHWM) lies above its size with the model built:
gradients, optimizer state and all that the passes need. An update of the longest row goes before, so that optimizer
state and buffers are there. All rows differ: nothing is shared between them.

Systems, all with equally many padded tokens in a micro-batch at most:

- `memalpha`: `Engine.update`.
- `trl`: `GRPOTrainer._compute_loss` and the trainer's own optimizer. As in its `train`, every row is padded to the
  longest prompt and the longest completion of the whole step. Its micro-batches are of 1 row, its fastest and leanest
  here, or of 4.
- `trl, rows sorted`: rows by length, each micro-batch cut to its own longest. trl does not do this: it shows what is
  left of the difference without the padding.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser, opening, save

Row = tuple[list[int], list[int], float]
"""Prompt ids, completion ids, advantage."""

# width, layers, heads, key-value heads, width of the MLP, vocabulary
SHAPES = {
    "0.8M": (128, 4, 4, 2, 320, 1024),
    "20M": (448, 7, 7, 7, 1152, 8192),
    "125M": (768, 12, 12, 4, 2944, 32768),
}
# rollouts, chunks, repeats
STEPS = {"0.8M": (4, 4, 3), "20M": (2, 6, 3), "125M": (2, 3, 2)}
SYSTEMS = ("memalpha", "trl", "trl, rows sorted")
PACKAGES = ("torch", "transformers", "trl", "numpy", "memalpha")


def build(size: str) -> Any:
    """Build a Qwen3 of random weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    width, layers, heads, shared, inner, vocabulary = SHAPES[size]
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        head_dim=width // heads,
        tie_word_embeddings=True,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def draw(rollouts: int, chunks: int, vocabulary: int) -> list[Row]:
    """Draw the rows of one step, in random order: prompts of 200 to 1200 tokens, completions of 20 to 300.

    Both are log-normal; the prompts of a chunk are alike but for the memories. Lengths are quantiles, so that steps of
    any size have the same spread.

    Args:
        rollouts: Number of rollouts.
        chunks: Rows of each rollout.
        vocabulary: Number of token ids.
    """
    random = np.random.default_rng(0)

    def quantiles(median: float, sigma: float, count: int) -> np.ndarray:
        normal = statistics.NormalDist(np.log(median), sigma)
        return np.exp([normal.inv_cdf((i + 0.5) / count) for i in range(count)])

    chunk = np.repeat(quantiles(520, 0.4, chunks), rollouts)
    prompts = np.clip(chunk * random.uniform(0.9, 1.1, len(chunk)), 200, 1200).astype(int)
    completions = random.permutation(np.clip(quantiles(90, 0.6, len(chunk)), 20, 300).astype(int))
    rows = []
    for prompt, completion in random.permutation(np.stack([prompts, completions], 1)).tolist():
        ids = random.integers(1, vocabulary, prompt + completion).tolist()
        rows.append((ids[:prompt], ids[prompt:], float(random.normal())))
    return rows


def status(field: str) -> float:
    """Return VmRSS or VmHWM of this process in MiB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"/proc/self/status has no {field}")


def width(rows: list[Row]) -> int:
    """Return the tokens of a row as trl pads it."""
    return max(len(prompt) for prompt, _, _ in rows) + max(len(completion) for _, completion, _ in rows)


def memalpha_update(model: Any, case: dict[str, Any], rows: list[Row]) -> tuple[Callable[[list[Row]], object], int]:
    """Return memalpha's update function, and the padded tokens of `rows`.

    Args:
        model: Model to update.
        case: Settings of the measurement.
        rows: Rows of the step.
    """
    from memalpha.config import TrainConfig
    from memalpha.train.data.samples import TrainingSample, pack, policy_gradient_sample, split_micro_batches
    from memalpha.train.learner.engine import Engine
    from memalpha.train.learner.losses import LossSettings
    from memalpha.types import Completion, Turn

    tokens = case["padded_rows"] * width(rows)
    config = TrainConfig(
        out=Path("unused"),
        loss_type="dapo",
        microbatch_tokens=tokens,
        gradient_checkpointing=case["checkpointing"],
    )
    learner = Engine(model, config, LossSettings.from_config(config.loss, 16))
    level = -float(np.log(model.config.vocab_size))

    def sample(row: Row) -> TrainingSample:
        prompt, completion, advantage = tuple(row[0]), tuple(row[1]), row[2]
        done = Completion("", prompt, completion, (level,) * len(completion), 1.0, "length")
        return policy_gradient_sample(Turn(0, done), advantage)

    samples = [sample(row) for row in rows]
    parts = split_micro_batches(samples, tokens)
    padded = sum(pack([samples[i] for i in part]).input_ids.numel() for part in parts)
    return lambda part: learner.update([sample(row) for row in part], 1e-5), padded


def trl_update(model: Any, case: dict[str, Any], rows: list[Row]) -> tuple[Callable[[list[Row]], object], int]:
    """Return trl's update function (its trainer's loss and optimizer), and the padded tokens of `rows`.

    Args:
        model: Model to update.
        case: Settings of the measurement.
        rows: Rows of the step.
    """
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer.utils import pad

    size = case["padded_rows"]
    level = -float(np.log(model.config.vocab_size))
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0}, "<pad>"))
    settings = GRPOConfig(
        tempfile.mkdtemp(),
        per_device_train_batch_size=size,
        gradient_accumulation_steps=len(rows) // size,
        num_generations=len(rows),
        loss_type="dapo",
        temperature=1.0,
        bf16=False,
        gradient_checkpointing=case["checkpointing"],
        report_to="none",
        use_cpu=True,
    )
    trainer = GRPOTrainer(
        model,
        lambda **_: [],
        settings,
        train_dataset=Dataset.from_dict({"prompt": [""]}),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<pad>"),
    )
    optimizer = trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = settings.gradient_accumulation_steps  # `train` sets these two
    if case["checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()

    def padded(values: list[Any], side: str) -> torch.Tensor:
        return pad([torch.tensor(value) for value in values], padding_value=0, padding_side=side)

    def window(part: list[Row]) -> dict[str, torch.Tensor]:
        prompts, completions, advantages = zip(*part, strict=True)
        return {
            "prompt_ids": padded(prompts, "left"),
            "prompt_mask": padded([[1] * len(row) for row in prompts], "left"),
            "completion_ids": padded(completions, "right"),
            "completion_mask": padded([[1] * len(row) for row in completions], "right"),
            "old_per_token_logps": padded([[level] * len(row) for row in completions], "right"),
            "advantages": torch.tensor(advantages),
        }

    def batches(part: list[Row]) -> list[dict[str, torch.Tensor]]:
        places = range(0, len(part), size)
        if case["system"] == "trl, rows sorted":
            part = sorted(part, key=lambda row: len(row[0]) + len(row[1]), reverse=True)
            return [window(part[at : at + size]) for at in places]
        full_window = window(part)
        return [{name: value[at : at + size] for name, value in full_window.items()} for at in places]

    def update(part: list[Row]) -> None:
        count = torch.tensor(sum(len(completion) for _, completion, _ in part))
        for batch in batches(part):
            trainer._compute_loss(model, {**batch, "num_items_in_batch": count}).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return update, sum(batch["prompt_ids"].numel() + batch["completion_ids"].numel() for batch in batches(rows))


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Measure one update in this process, which makes no other."""
    import torch

    torch.set_num_threads(1)
    model = build(case["size"])
    rollouts, chunks, _ = STEPS[case["size"]]
    rows = draw(rollouts, chunks, model.config.vocab_size)
    update, padded = (memalpha_update if case["system"] == "memalpha" else trl_update)(model, case, rows)
    built = status("VmRSS")
    update([max(rows, key=lambda row: len(row[0]) + len(row[1]))])
    start = time.process_time()
    update(rows)
    seconds = time.process_time() - start
    tokens = sum(len(prompt) + len(completion) for prompt, completion, _ in rows)
    return {
        **case,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "rows": len(rows),
        "real_tokens": tokens,
        "microbatch_tokens": case["padded_rows"] * width(rows),
        "padding": padded / tokens,
        "cpu_seconds": seconds,
        "tokens_per_cpu_second": tokens / seconds,
        "peak_mib": status("VmHWM") - built,
    }


def plan(sizes: list[str], repeats: int | None) -> list[dict[str, Any]]:
    """List all measurements in turns: all systems of a size, then again; other settings once, at 20M."""
    cases = []
    for size in sizes:
        for turn in range(STEPS[size][2] if repeats is None else repeats):
            measurements = [(1, False, system) for system in SYSTEMS]
            if size == "20M" and not turn:
                measurements += [(*setting, system) for setting in ((4, False), (1, True)) for system in SYSTEMS[:2]]
            cases += [
                {"size": size, "padded_rows": rows, "checkpointing": checkpointing, "system": system}
                for rows, checkpointing, system in measurements
            ]
    return cases


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return medians and ranges over the repeats of each setting, and ratios to trl.

    `ratio_of_passes`: the ratio of memory without gradients and AdamW's moments, 12 bytes a parameter for everybody.
    """
    setting, measured = ("size", "padded_rows", "checkpointing"), ("tokens_per_cpu_second", "peak_mib")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault(tuple(result[name] for name in (*setting, "system")), []).append(result)
    lines = []
    for key, repeats in groups.items():
        line = {name: value for name, value in repeats[0].items() if name not in (*measured, "cpu_seconds")}
        trl_results, state_mib = groups[(*key[:-1], "trl")], 12 * line["parameters"] / 2**20
        for name in measured:
            values = [result[name] for result in repeats]
            middle = statistics.median(values)
            line[name] = {"median": middle, "least": min(values), "most": max(values)}
            other = statistics.median(result[name] for result in trl_results)
            line[name]["ratio"] = middle / other
            if name == "peak_mib":
                line[name]["ratio_of_passes"] = (middle - state_mib) / (other - state_mib)
        lines.append({**line, "repeats": len(repeats)})
    return lines


def table(lines: list[dict[str, Any]]) -> str:
    """Format all results as Markdown."""

    def spread(value: dict[str, float]) -> tuple[str, str]:
        cell = f"{value['median']:,.0f}"
        if value["least"] < value["most"]:
            cell += f" ({value['least']:,.0f} to {value['most']:,.0f})"
        return cell, f"{value['ratio']:.2f}"

    head = (
        "parameters",
        "rows, tokens of the step",
        "padded tokens of a micro-batch, at most",
        "layers recomputed",
        "system",
    )
    head = (*head, "padding", "tokens per CPU-second", "ratio", "peak MiB", "ratio", "ratio of the passes")
    text = [
        *opening("One update: memalpha beside trl", PACKAGES),
        "One thread, float32, random weights, ragged rows; what is measured and how: the head of the script. Medians",
        "(least to most). Tokens are real ones; `padding` is computed / real tokens; memory is the peak above the",
        "process with the model built. Ratios are to `trl` in the same setting; that of the passes leaves out what",
        "both hold, gradients and AdamW's moments: 12 bytes a parameter.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
    ]
    for line in lines:
        cells = (
            f"{line['parameters'] / 1e6:.1f}M",
            f"{line['rows']}, {line['real_tokens']:,}",
            f"{line['microbatch_tokens']:,} ({line['padded_rows']} of trl's rows)",
            "yes" if line["checkpointing"] else "no",
            line["system"],
            f"{line['padding']:.2f}",
            *spread(line["tokens_per_cpu_second"]),
            *spread(line["peak_mib"]),
            f"{line['peak_mib']['ratio_of_passes']:.2f}",
        )
        text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def main() -> None:
    """Measure, record and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--repeats", type=int, help="of the main setting (default: 3, at 125M 2)")
    parser.add_argument("--case", help=argparse.SUPPRESS)  # one measurement in this process, as JSON
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(json.loads(arguments.case))))
        return
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    results = []
    for case in plan(arguments.sizes, arguments.repeats):
        command = [sys.executable, __file__, "--case", json.dumps(case)]
        done = subprocess.run(command, env={**os.environ, **quiet}, stdout=subprocess.PIPE, check=True, text=True)
        results.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    lines = summary(results)
    save(arguments.results / "update-bench", {"summary": lines, "measurements": results}, table(lines))


if __name__ == "__main__":
    main()
