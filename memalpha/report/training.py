"""The page's part on training: one chart per metric over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memalpha.report.charts import Series, line_chart

Curve = tuple[str, str, tuple[float | None, float | None], tuple[tuple[str, str, str], ...]]
"""Title, caption, range of y, lines as (metric key, label, colour)."""

CURVES: tuple[Curve, ...] = (
    (
        "Reward",
        "Total reward of a step's rollouts: mean, smallest and largest.",
        (None, None),
        (("reward", "mean", "after"), ("reward_min", "smallest", "before"), ("reward_max", "largest", "before")),
    ),
    (
        "Accuracy",
        "Sampled rollouts on training tasks; points: greedy on validation tasks, with 95 % intervals.",
        (0.0, 1.0),
        (("accuracy", "training", "before"), ("validation_accuracy", "validation", "after")),
    ),
    (
        "Cross-entropy",
        "Per completion token, in nats: rows of each step; points: rows held out.",
        (0.0, None),
        (
            ("train_loss", "training", "before"),
            ("validation_loss", "validation", "after"),
            ("validation_content_loss", "validation, contents", "extra"),
        ),
    ),
    (
        "Preferences",
        "Share of pairs whose chosen side the model prefers; points: pairs held out.",
        (0.0, 1.0),
        (("accuracies", "training", "before"), ("validation_accuracies", "validation", "after")),
    ),
    (
        "Parts of the reward",
        "r1 answers, r2 valid calls, r3 compression, r4 content; means of a step.",
        (None, 1.0),
        (("r1", "r1", "after"), ("r2", "r2", "before"), ("r3", "r3", "append_only"), ("r4", "r4", "oracle")),
    ),
    ("Valid calls", "Share of tool calls that executed.", (None, 1.0), (("valid_calls", "valid calls", "after"),)),
    (
        "Updates and deletes",
        "Their share of all calls that changed the memory.",
        (0.0, None),
        (("update_share", "update", "after"), ("delete_share", "delete", "append_only")),
    ),
    (
        "Right updates and deletes",
        "Share of the changes that the conversations ask for which were made to the right entry.",
        (0.0, 1.0),
        (("update_hit", "updates", "after"), ("delete_hit", "deletes", "append_only")),
    ),
    (
        "Nothing to prefer",
        "Share of groups whose rollouts all have equal rewards: they teach nothing.",
        (0.0, 1.0),
        (("flat", "flat groups", "before"),),
    ),
    (
        "Size of a step",
        "KL of an update, in nats per token: how far the policy moved.",
        (0.0, None),
        (("update_kl", "KL", "after"),),
    ),
    (
        "Largest step",
        "Largest change of a token's log-prob from the sampler's.",
        (0.0, None),
        (("old_max", "largest", "before"), ("old_p99", "99th percentile", "after")),
    ),
    (
        "Speed",
        "Tokens per second.",
        (0.0, None),
        (("sampled_tokens_per_second", "sampled", "after"), ("trained_tokens_per_second", "trained", "before")),
    ),
    ("Entropy", "Of the sampled tokens, in nats.", (0.0, None), (("entropy", "entropy", "extra"),)),
    (
        "Value function",
        "Share of the returns' variance that it explains.",
        (None, 1.0),
        (("explained_variance", "explained variance", "after"),),
    ),
    ("Memory", "Mean tokens of the final memory.", (0.0, None), (("memory_tokens", "tokens", "oracle"),)),
)


def draw_training(metrics: Sequence[Mapping[str, Any]], curves: Sequence[Curve]) -> list[tuple[Any, ...]]:
    """Return title, caption, chart and legend of each curve; a metric that is missing has none."""
    figures = []
    for title, about, (low, high), lines in curves:
        series = [line for key, label, kind in lines if (line := _series(metrics, key, label, kind)).points]
        if not series:
            continue
        top = None if high is None else max(high, *(y for line in series for _, y in line.points))
        legend = [
            (line.kind, f"{line.label} {line.points[0][1]:.2f} → {line.points[-1][1]:.2f}", not line.dots)
            for line in series
        ]
        figures.append((title, about, line_chart(series, low=low, high=top), legend))
    return figures


def _series(metrics: Sequence[Mapping[str, Any]], key: str, label: str, kind: str) -> Series:
    lines = [line for line in metrics if isinstance(line.get(key), int | float)]
    points = tuple((float(line["step"]), float(line[key])) for line in lines)
    is_sparse = key.startswith("validation")
    errors = tuple(float(line.get("validation_se") or 0.0) for line in lines) if is_sparse else ()
    return Series(kind, label, points, errors, dots=is_sparse)
