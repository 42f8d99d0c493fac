"""Pack the adapter of a trained run as the shipped policy smol: `scripts/pack_smol.py RUN --command "memalpha …"`.

Takes the best checkpoint of a run directory, or a checkpoint. If its base is another run's adapter (supervised, then
reinforced), the adapters of all runs become one: their factors are concatenated, which is exact but for rounding. If
that takes more than 12 MB, the parts of all layers with the largest singular values for their size are kept. A packed
adapter may itself be the base of a further run. With `--float8` a number takes one byte and has 3 mantissa bits, so the
same file holds twice the rank. Writes the folder with

- `adapter_model.safetensors`, bfloat16 or float8_e4m3fn, at most 12 MB,
- `adapter_config.json` with `smol-base` as its base,
- `memalpha.json`: SHA-256 of the base's GGUF file and of the adapter, prompt style, form of calls, and of each run its
  command, algorithm, steps and rows,
- the tokenizer's files, or its chat template, if they differ from the base's.

Prints the relative error of the packed update, ||packed - trained|| / ||trained|| over all adapted weights.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import yaml
from safetensors.torch import load_file, save_file

from memalpha.errors import MemalphaError, PolicyError
from memalpha.policy.base import ADAPTER_CONFIG
from memalpha.policy.load import adapter_chain, load_policy, policy_path
from memalpha.policy.smol import fetch
from memalpha.policy.smol.base_model import (
    ADAPTER_WEIGHTS,
    GGUF_SHA256,
    RECORD,
    SMOL_BASE,
    adapter_folder,
    file_sha256,
    read_record,
)
from memalpha.policy.transformers import TransformersPolicy

MAX_BYTES, HEADER_BYTES = 12_000_000, 64_000
ROW_SIZES = {"view_tokens": 256, "max_new_tokens": 160, "chunk_tokens": 120}
"""Sizes of the training rows: `MemoryAgent` uses them for this policy."""
A, B = ".lora_A.weight", ".lora_B.weight"
PREFIX = "base_model.model."
FLOAT8, FLOAT8_PEAK = torch.float8_e4m3fn, 256.0
"""Type of the numbers with `--float8`, and the most that a factor's peak is scaled to; the type ends at 448."""
UNSUPPORTED = ("use_dora", "use_rslora", "modules_to_save", "trainable_token_indices")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@dataclass(frozen=True, slots=True)
class Factors:
    """Update `b @ a` of one weight, mostly in float64: a (rank, in), b (out, rank)."""

    a: torch.Tensor
    b: torch.Tensor

    @property
    def size(self) -> int:
        """Numbers of both factors."""
        return self.a.numel() + self.b.numel()

    def cut(self, rank: int) -> Factors:
        """Return the best approximation of a rank, by singular values."""
        left, left_factor = torch.linalg.qr(self.b)
        right, right_factor = torch.linalg.qr(self.a.T)
        u, singular_values, v = torch.linalg.svd(left_factor @ right_factor.T, full_matrices=False)
        root = singular_values[:rank].sqrt()
        return Factors(root[:, None] * (v[:rank] @ right.T), (left @ u[:, :rank]) * root)

    def in_float8(self) -> tuple[Factors, float]:
        """Return the factors in float8 and the scale of their product, a power of two."""
        balanced = self.cut(len(self.a))
        exponents = [math.floor(math.log2(FLOAT8_PEAK / float(part.abs().max()))) for part in (balanced.a, balanced.b)]
        a, b = (part * 2.0**exponent for part, exponent in zip((balanced.a, balanced.b), exponents, strict=True))
        return Factors(a.to(FLOAT8), b.to(FLOAT8)), 2.0 ** -sum(exponents)


def read_factors(folder: Path) -> dict[str, Factors]:
    """Return an adapter's updates by the name of the layer that they belong to; the scale is in `b`.

    Raises:
        PolicyError: The adapter is no plain LoRA.
    """
    config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    if unsupported := [key for key in UNSUPPORTED if config.get(key)]:
        raise PolicyError(f"{folder / ADAPTER_CONFIG}: {unsupported[0]} cannot be packed: only plain LoRA")
    tensors = load_file(folder / ADAPTER_WEIGHTS)
    names = {name.removesuffix(A) for name in tensors if name.endswith(A)}
    if tensors.keys() != {name + suffix for name in names for suffix in (A, B)}:
        raise PolicyError(f"{folder / ADAPTER_WEIGHTS} holds more than the factors of LoRA")
    alphas = config.get("alpha_pattern") or {}
    if not {PREFIX + name for name in alphas.keys() | (config.get("rank_pattern") or {}).keys()} <= names:
        raise PolicyError(f"{folder / ADAPTER_CONFIG}: a pattern of ranks that names no layer in full cannot be packed")
    factors = {}
    for name in sorted(names):
        a, layer = tensors[name + A].double(), name.removeprefix(PREFIX)
        scale = alphas.get(layer, config["lora_alpha"]) / len(a)
        factors[layer] = Factors(a, tensors[name + B].double() * scale)
    return factors


def combine(adapters: list[dict[str, Factors]]) -> dict[str, Factors]:
    """Return the sum of adapters, exactly; a layer's rank is the sum of its ranks."""
    layers = dict.fromkeys(name for adapter in adapters for name in adapter)
    sums = {}
    for name in layers:
        parts = [adapter[name] for adapter in adapters if name in adapter]
        sums[name] = Factors(torch.cat([part.a for part in parts]), torch.cat([part.b for part in parts], dim=1))
    return sums


def fit(updates: Mapping[str, Factors], numbers: int) -> dict[str, Factors]:
    """Cut updates so that their factors have at most `numbers` numbers, with the least error that ranks allow.

    A singular value's part of the error is its square, and its place takes a row of `a` and a column of `b`.
    """
    if sum(update.size for update in updates.values()) <= numbers:
        return dict(updates)
    whole = {name: update.cut(len(update.a)) for name, update in updates.items()}
    places = []
    for name, update in whole.items():
        width = update.a.shape[1] + update.b.shape[0]
        places += [(float(norm) / width, width, name) for norm in update.a.square().sum(1) * update.b.square().sum(0)]
    ranks = dict.fromkeys(whole, 0)
    for _, width, name in sorted(places, reverse=True):
        if width <= numbers:
            numbers -= width
            ranks[name] += 1
    return {
        name: Factors(update.a[: ranks[name]], update.b[:, : ranks[name]])
        for name, update in whole.items()
        if ranks[name]
    }


def relative_error(
    exact: Mapping[str, Factors], tensors: Mapping[str, torch.Tensor], scales: Mapping[str, float]
) -> float:
    """Return ||packed - exact|| / ||exact|| over all layers.

    Args:
        exact: Updates by layer.
        tensors: Factors as they are stored.
        scales: Scale of the stored product, by layer.
    """
    error = total = 0.0
    for name, update in exact.items():
        trained = update.b @ update.a
        if name in scales:
            packed = scales[name] * tensors[PREFIX + name + B].double() @ tensors[PREFIX + name + A].double()
            error += float((packed - trained).square().sum())
        else:
            error += float(trained.square().sum())
        total += float(trained.square().sum())
    return math.sqrt(error / total) if total else 0.0


def describe_runs(checkpoint: Path, command: str | None) -> list[dict[str, Any]]:
    """Return what a checkpoint was trained with: algorithm, steps, rows or rollouts, minutes, commit, command.

    A packed adapter gives the runs of its record.
    """
    if (record := read_record(checkpoint)) is not None:
        return [*record["runs"], {"packed_to_rank": record["rank"], "packing_error": record["packing_error"]}]
    state = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
    config = yaml.safe_load((checkpoint.parent.parent / "config.yaml").read_text(encoding="utf-8"))
    algorithm, step = config.get("algorithm", "grpo"), state["step"]
    run: dict[str, Any] = {"algorithm": algorithm, "steps": step, "seed": config["seed"]}
    if algorithm == "sft":
        run["rows"] = step * config["optimizer"]["batch_rows"]
    else:
        run["rollouts"] = step * config["sampling"]["tasks_per_step"] * config["sampling"]["group_size"]
    run |= {"learning_minutes": round(state["learning_minutes"], 1), "commit": state["software"]["commit"]}
    return [run | ({"command": command} if command else {})]


def write_adapter_config(folder: Path, ranks: Mapping[str, int], scales: Mapping[str, float]) -> None:
    """Write peft's configuration of factors.

    Args:
        folder: Folder to write to.
        ranks: Rank of each layer.
        scales: Scale of each layer's product.
    """
    layers, rank = list(ranks), min(ranks.values())
    higher = {name: number for name, number in ranks.items() if number > rank}
    alphas = {name: scales[name] * number for name, number in ranks.items()}
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=rank,
        rank_pattern=dict(higher),
        alpha_pattern={name: alpha for name, alpha in alphas.items() if alpha != rank},
        target_modules=layers,
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    config.base_model_name_or_path = SMOL_BASE
    config.save_pretrained(str(folder))
    path = folder / ADAPTER_CONFIG
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**values, "target_modules": layers}, indent=1) + "\n", encoding="utf-8")


def copy_tokenizer(checkpoint: Path, base: Path, out: Path) -> None:
    """Copy the tokenizer of a checkpoint if its tokens differ from the base's, else its chat template if it differs."""
    changed = [name for name in TOKENIZER_FILES if _content(checkpoint / name) not in (None, _content(base / name))]
    for name in TOKENIZER_FILES if "tokenizer.json" in changed else {"chat_template.jinja"} & {*changed}:
        if (checkpoint / name).is_file():
            shutil.copy(checkpoint / name, out / name)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def pack(run: str | Path, out: Path, commands: list[str], *, float8: bool = False) -> float:
    """Write the folder of the shipped adapter.

    Args:
        run: Run directory or checkpoint.
        out: Folder to write; an older one is replaced.
        commands: Command of each run of the chain, the first run first.
        float8: Store the factors in 8 bits a number instead of bfloat16.

    Returns:
        Relative error of the packed update.

    Raises:
        PolicyError: The base is not `smol-base`, or the adapters cannot be packed.
    """
    base, *names = adapter_chain(run)
    if not names:
        raise PolicyError(f"{run} holds no LoRA adapter: train with lora={{r: 16}}")
    weights = Path(policy_path(base)) / "model.safetensors"
    if not weights.is_file() or fetch.weights_sha256(weights.parent) != fetch.WEIGHTS_SHA256:
        raise PolicyError(f"{names[0]}: its base {base!r} holds other weights than {SMOL_BASE!r}: train on {SMOL_BASE}")
    folders = [Path(policy_path(name)) for name in names]
    if commands and len(commands) != len(folders):
        raise PolicyError(f"{len(commands)} commands for {len(folders)} runs ({', '.join(names)}): give one for each")
    exact = combine([read_factors(folder) for folder in folders])
    packed = fit(exact, (MAX_BYTES - HEADER_BYTES) // (1 if float8 else 2))
    stored, scales = {}, dict.fromkeys(packed, 1.0)
    for name, update in packed.items():
        if float8:
            stored[name], scales[name] = update.in_float8()
        else:
            stored[name] = Factors(update.a.bfloat16(), update.b.bfloat16())
    tensors = {
        f"{PREFIX}{name}{suffix}": factor.contiguous()
        for name, update in stored.items()
        for suffix, factor in ((A, update.a), (B, update.b))
    }
    policy = load_policy(run, device="meta")
    assert isinstance(policy, TransformersPolicy)
    partial = out.with_name(f".{out.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file(tensors, partial / ADAPTER_WEIGHTS, {"format": "pt"})
    assert (partial / ADAPTER_WEIGHTS).stat().st_size <= MAX_BYTES
    ranks = {name: len(update.a) for name, update in packed.items()}
    write_adapter_config(partial, ranks, scales)
    copy_tokenizer(folders[-1], Path(policy_path(SMOL_BASE)), partial)
    error = relative_error(exact, tensors, scales)
    record = {
        "base": SMOL_BASE,
        "gguf_sha256": GGUF_SHA256,
        "memalpha_prompt": policy.prompt,
        "memalpha_form": policy.form,
        "memalpha_sizes": ROW_SIZES,
        "memalpha_quotes": True,
        "adapter_sha256": file_sha256(partial / ADAPTER_WEIGHTS),
        "rank": max(ranks.values()),
        "packing_error": float(f"{error:.3g}"),
        "runs": [
            run
            for folder, command in zip(folders, commands or [None] * len(folders), strict=True)
            for run in describe_runs(folder.resolve(), command)
        ],
    }
    (partial / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(out, ignore_errors=True)
    partial.replace(out)
    return error


def main() -> None:
    """Pack an adapter and print what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN_OR_CHECKPOINT")
    parser.add_argument("--out", type=Path, default=adapter_folder(), help="folder to write (default: the package's)")
    parser.add_argument("--float8", action="store_true", help="store factors in 8 bits a number, for twice the rank")
    parser.add_argument("--command", action="append", default=[], help="command of a run, the first run first")
    options = parser.parse_args()
    try:
        error = pack(options.run, options.out, options.command, float8=options.float8)
    except MemalphaError as problem:
        raise SystemExit(f"pack_smol: {problem}") from problem
    for path in sorted(options.out.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path}")
    print(f"relative error of the update: {error:.2e}")


if __name__ == "__main__":
    main()
