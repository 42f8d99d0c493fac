"""An algorithm of your own: REINFORCE with one baseline for the whole step.

Run from a checkout; `algorithm=MODULE:CLASS` finds modules on the path and in the working directory:

    python examples/own_algorithm.py
    PYTHONPATH=examples memalpha train demo algorithm=own_algorithm:Reinforce out=runs/reinforce
"""

import argparse
import json
from pathlib import Path

from memalpha import train
from memalpha.train.algorithms.base import (
    Algorithm,
    Annotation,
    add_reference_kl,
    build_rows,
    set_advantages,
    turn_penalties,
)


class Reinforce(Algorithm):
    """Set the advantage of a turn to its reward minus the mean over all turns of the step."""

    def annotate(self, groups, score):
        """Return one row per turn, in the order of groups, trajectories, turns, and the baseline for metrics.jsonl."""
        rows, costs = add_reference_kl(build_rows(groups, self.config.loss.entropy_coef), score, self.config)
        rewards = [
            reward + penalty
            for group, group_penalties in zip(groups, turn_penalties(groups, costs), strict=True)
            for trajectory, penalties in zip(group.trajectories, group_penalties, strict=True)
            for reward, penalty in zip(trajectory.reward.turns, penalties, strict=True)
        ]
        baseline = sum(rewards) / len(rewards)
        return Annotation(set_advantages(rows, [reward - baseline for reward in rewards]), {"baseline": baseline})


def main():
    """Train the tiny writer for some steps and print reward and baseline of each."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", default="runs/reinforce")
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    sizes = {"tasks_per_step": 2, "group_size": 2, "eval_tasks": 1, "validation_tasks": 1}
    train("demo", algorithm="own_algorithm:Reinforce", out=options.out, max_steps=options.steps, **sizes)
    for line in (Path(options.out) / "metrics.jsonl").read_text().splitlines():
        metrics = json.loads(line)
        if "baseline" in metrics:
            print(f"step {metrics['step']}: reward {metrics['reward']:.3f}, baseline {metrics['baseline']:.3f}")


if __name__ == "__main__":
    main()
