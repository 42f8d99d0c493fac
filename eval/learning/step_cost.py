"""CPU seconds of a demo step, in this version and in another checkout, measured alternately in processes of their own.

    python eval/learning/step_cost.py --baseline ../memalpha-before --repeats 3

The cost of a step is the difference between a run of many steps and one of few, so that loading, evaluations and the
report cancel. Writes `step-cost.json` and `step-cost.md` to --results.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import format_deviation, make_parser, opening, save

STEPS = (2, 12)
SETTINGS = ("eval_tasks=1", "validation_tasks=0")
CHECKOUT = Path(__file__).parents[2]


def cpu_seconds(checkout: Path, steps: int) -> float:
    """Return the CPU seconds of a demo run of `steps` steps with the package in `checkout`."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "demo", f"max_steps={steps}", f"out={folder}/run", *SETTINGS]
        environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
        process = subprocess.Popen(
            [sys.executable, "-m", "memalpha", *words], env=environment, cwd=folder, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"memalpha {' '.join(words)} in {checkout} ended with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime


def revision(checkout: Path) -> str:
    """Return the commit of a checkout."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Measure, and write the record."""
    parser = make_parser(__doc__)
    parser.add_argument("--baseline", type=Path, required=True, help="checkout of the version to compare with")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    checkouts = {"before": arguments.baseline, "now": CHECKOUT}
    costs: dict[str, list[float]] = {name: [] for name in checkouts}
    for _ in range(arguments.repeats):
        for name, checkout in checkouts.items():
            few, many = (cpu_seconds(checkout, steps) for steps in STEPS)
            costs[name].append((many - few) / (STEPS[1] - STEPS[0]))
            print(f"{name}: {costs[name][-1]:.2f} CPU seconds a step", file=sys.stderr, flush=True)
    ratio = statistics.mean(costs["now"]) / statistics.mean(costs["before"])
    record: dict[str, Any] = {
        "revisions": {name: revision(checkout) for name, checkout in checkouts.items()},
        "cpu_seconds": costs,
        "ratio": ratio,
    }
    lines = [
        *opening("CPU seconds of a demo step"),
        "",
        "| version | commit | CPU seconds a step |",
        "|---|---|---|",
        *(f"| {name} | {record['revisions'][name]} | {format_deviation(values)} |" for name, values in costs.items()),
        "",
        f"Ratio of the means: {ratio:.2f}; mean ± standard deviation of {arguments.repeats} runs.",
    ]
    save(arguments.results / "step-cost", record, "\n".join(lines))


if __name__ == "__main__":
    main()
