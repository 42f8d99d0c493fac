"""How long processes wait for each other: micro-batches dealt in turn, against balanced ones.

    python eval/learning/microbatch_balance.py    # writes eval/results/microbatch-balance.md

Rows are those of shipped runs with their real lengths, drawn as a run draws an update. A process's time is counted as
the padded tokens of its micro-batches. With FSDP all processes go through a round together, so a round takes as long
as its largest micro-batch; with DDP they meet at the end of an update. Waiting is the share of that time in which a
process does nothing. A micro-batch that is split costs nothing extra in this count.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any

from memalpha.config import training_config
from memalpha.train.data.samples import balance_micro_batches, padded_tokens, split_micro_batches
from memalpha.train.plan.model import build_shape
from memalpha.train.plan.workload import plan_workload

RUNS = ("demo", "sft")
PROCESSES = (2, 4, 8)
UPDATES = 40
ROWS = 64
"""Rows of an update."""
TOKENS = 2048
"""Most padded tokens of a micro-batch."""
RESULT = Path(__file__).parent.parent / "results" / "microbatch-balance.md"


def waiting(sizes: list[list[int]]) -> dict[str, float]:
    """Return the waiting share with FSDP and DDP of micro-batch sizes per process."""
    work = sum(map(sum, sizes))
    rounds = max(map(len, sizes))
    in_step = sum(max(size[number] if number < len(size) else 0 for size in sizes) for number in range(rounds))
    return {
        "FSDP": 1 - work / (len(sizes) * in_step),
        "DDP": 1 - work / (len(sizes) * max(map(sum, sizes))),
    }


def measure(lengths: list[int], processes: int) -> list[dict[str, dict[str, float]]]:
    """Return the waiting shares of both ways for each update."""
    results = []
    for seed in range(UPDATES):
        drawn = Random(seed).choices(lengths, k=ROWS)
        rows: Any = [
            SimpleNamespace(length=length, prompt_ids=(number,), completion_ids=())
            for number, length in enumerate(drawn)
        ]
        parts = split_micro_batches(rows, TOKENS)
        sizes = [padded_tokens(rows, part) for part in parts]
        balanced = [
            padded_tokens(rows, part)
            for part in balance_micro_batches(parts, processes, lambda part, rows=rows: padded_tokens(rows, part))
        ]
        dealt: list[list[int]] = [[] for _ in range(processes)]
        for first in range(0, len(balanced), processes):
            round_sizes = balanced[first : first + processes]
            ranks = range(processes) if first // processes % 2 == 0 else range(processes - 1, -1, -1)
            for rank, size in zip(ranks, round_sizes, strict=False):
                dealt[rank].append(size)
        results.append(
            {
                "in turn": waiting([sizes[rank::processes] for rank in range(processes)]),
                "balanced": waiting(dealt),
            }
        )
    return results


def main() -> None:
    """Measure all runs and write the page."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    lines = [
        "# Waiting of processes for each other's micro-batches",
        "",
        "`python eval/learning/microbatch_balance.py`: counted in padded tokens, not timed. "
        f"{UPDATES} drawn updates of {ROWS} rows",
        f"each, micro-batches of at most {TOKENS} tokens; mean ± standard deviation over updates.",
        "",
        "| rows of | processes | sharding | in turn | balanced |",
        "|---|---|---|---|---|",
    ]
    ranges = []
    for run in RUNS:
        config = training_config(run, {})
        model = build_shape(config.policy, config.compute.dtype, config.compute)
        lengths = sorted(row.length for row in plan_workload(config, model.policy).rows)
        ranges.append(f"{run} {lengths[0]} to {lengths[-1]} tokens (median {lengths[len(lengths) // 2]})")
        for processes in PROCESSES:
            results = measure(lengths, processes)
            for kind in ("FSDP", "DDP"):
                cells = []
                for way in ("in turn", "balanced"):
                    values = [result[way][kind] for result in results]
                    cells.append(f"{100 * mean(values):.1f} ± {100 * stdev(values):.1f} %")
                lines.append(f"| {run} | {processes} | {kind} | {cells[0]} | {cells[1]} |")
    lines += ["", "Lengths of rows: " + "; ".join(ranges) + "."]
    RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
