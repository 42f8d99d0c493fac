"""Reward functions of your own: one for a memory run, one for a text run.

    python examples/own_reward.py
    PYTHONPATH=examples memalpha train demo \
      'reward.functions=[{function: own_reward:short_memory, name: short, weight: .1}]' out=runs/short
"""

import argparse
import json
from pathlib import Path

from memalpha import train

LIMIT = 20


def short_memory(trajectory, records):
    """Return 1 for a right answer from no entries, falling to 0 at LIMIT entries; 0 without a right answer."""
    if not any(record.correct and record.gold for record in records):
        return 0.0  # an empty memory must not earn
    entries = len(trajectory.states[-1].list())
    return max(0.0, 1.0 - entries / LIMIT)


def has_digits(completions, **columns):
    """Return 1 for each reply that contains a digit, else 0."""
    return [float(any(letter.isdigit() for letter in text)) for text in completions]


def last_metrics(run):
    """Return the last line of a run's metrics.jsonl."""
    return json.loads((Path(run) / "metrics.jsonl").read_text().splitlines()[-1])


def main():
    """Train one step of a memory run and of a text run, and print the metrics of both functions."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", default="runs/own-reward")
    parser.add_argument("--steps", type=int, default=1)
    options = parser.parse_args()
    sizes = {"max_steps": options.steps, "tasks_per_step": 2, "group_size": 2, "eval_tasks": 1, "validation_tasks": 1}
    memory_run, text_run = Path(options.out) / "memory", Path(options.out) / "text"
    short = {"function": "own_reward:short_memory", "name": "short", "weight": 0.1}
    train("demo", reward={"functions": [short]}, out=memory_run, **sizes)
    print(f"short: {last_metrics(memory_run)['short']:.3f}")
    digits = {"kind": "python", "function": "own_reward:has_digits", "name": "digits", "weight": 0.2}
    train("arithmetic", rewards=[{"kind": "math"}, digits], out=text_run, **sizes)
    print(f"digits: {last_metrics(text_run)['rewards/digits']:.3f}")


if __name__ == "__main__":
    main()
