"""Studies: variants of a training run over seeds, compared on equal sampled tokens (`memalpha study STUDY.yaml`).

    out: runs/study
    base: demo                          # a shipped configuration or a file
    settings: {evaluation.tasks: 100}   # of every run
    seeds: [0, 1, 2]
    jobs: 2
    variants:                           # the first is the baseline
      chunk: {}                         # as demo has it
      conversation: {sampling.groups: conversation}

Each run is `memalpha train` in a process of its own, in `out/VARIANT-SEED`. The same command resumes: a finished run is
not started again. `study.json` and `study.md` hold what came out:

- Held-out accuracy after training, mean over conversations and seeds, and the paired difference to the baseline, with
  95 % intervals by a bootstrap over conversations (`qa.compare`).
- Validation accuracy after equal sampled (supervised runs: trained) tokens: at four budgets that all runs reached,
  interpolated between validations, mean and standard deviation over seeds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from pydantic import Field, field_validator

from memalpha.config import SFTConfig, parse_overrides, read_config, training_config
from memalpha.config.common import Config
from memalpha.config.files import build_config
from memalpha.config.training import PairsConfig
from memalpha.errors import ConfigError, TrainingError
from memalpha.qa.compare import ComparedSystem, compare, load_records
from memalpha.qa.report import TEMPLATES
from memalpha.qa.scoring.stats import mean_and_deviation

FIGURES = ("update_hit", "delete_hit", "valid_calls", "duplicates", "memory_tokens")
"""Columns of the table beside accuracy and tokens, if a run has them."""

BUDGETS = (0.25, 0.5, 0.75, 1.0)
"""Shares of the largest number of sampled tokens that all runs reached."""


class StudyConfig(Config):
    """Variants, seeds and shared settings of a study."""

    out: Path = Field(description="folder of the runs and of the results")
    base: str = Field(description="configuration of all runs: a shipped one's name or a YAML file")
    settings: dict[str, Any] = Field(default_factory=dict, description="settings of all runs, over the base")
    seeds: tuple[int, ...] = Field(min_length=1, description="a run of every variant for each")
    jobs: int = Field(default=1, gt=0, description="runs at a time, a core each")
    variants: dict[str, dict[str, Any]] = Field(
        min_length=2, description="settings of each variant by its name; the first is the baseline"
    )

    @field_validator("seeds")
    @classmethod
    def _differ(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed is named twice, and would count one run as two: name each once")
        return seeds

    @field_validator("variants")
    @classmethod
    def _are_names(cls, variants: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name in variants:
            if not name or not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or name[0] == ".":
                raise ValueError(f"{name!r} names a folder: use letters, digits, '-', '_' and '.'")
        return variants

    def overrides(self, variant: str, seed: int) -> dict[str, Any]:
        """Return the settings of one run over the base."""
        return {**self.settings, **self.variants[variant], "seed": seed, "out": str(self.run(variant, seed))}

    def run(self, variant: str, seed: int) -> Path:
        """Return the directory of one run."""
        return self.out / f"{variant}-{seed}"


def load_study(path: str | Path) -> StudyConfig:
    """Read a study and check the configuration of each of its variants.

    Raises:
        ConfigError: The file cannot be read, a setting does not fit, or two variants have equal settings; the message
            names variant and key.
    """
    study = build_config(StudyConfig, read_config(path), str(path))
    names: dict[str, str] = {}
    for variant, settings in study.variants.items():
        try:
            if own := [name for name in ("seed", "out") if name in study.settings or name in settings]:
                raise ConfigError(f"{own[0]}: the study gives each run its own: leave it out")
            config = training_config(study.base, parse_overrides(_words(study.overrides(variant, study.seeds[0]))))
            if isinstance(config, PairsConfig) or (isinstance(config, SFTConfig) and not config.evaluation.evaluate):
                raise ConfigError("its runs answer no questions, by which a study compares them")
        except ConfigError as error:
            raise ConfigError(f"{path}: variant {variant}: {error}") from None
        other = names.setdefault(config.model_copy(update={"out": study.out}).model_dump_json(), variant)
        if other != variant:
            raise ConfigError(
                f"{path}: variants {other} and {variant} have equal settings, since {study.base} has some of them "
                f"already (memalpha config {study.base})"
            )
    return study


def run_study(study: StudyConfig, log: Callable[[str], None]) -> dict[str, Any]:
    """Train what is not finished and return the results, which also stand in `study.json` and `study.md`.

    Args:
        study: The study.
        log: Called with a line for every run that ends.

    Raises:
        TrainingError: A run failed; the message names its log. The others end first.
    """
    study.out.mkdir(parents=True, exist_ok=True)
    pairs = [(variant, seed) for seed in study.seeds for variant in study.variants]
    with ThreadPoolExecutor(study.jobs) as pool:
        failures = [failure for failure in pool.map(partial(_train, study, log), pairs) if failure]
    if failures:
        raise TrainingError(f"{len(failures)} of {len(pairs)} runs failed; the same command resumes: {failures[0]}")
    results = collect_results(study)
    (study.out / "study.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (study.out / "study.md").write_text(format_results(results), encoding="utf-8")
    return results


def _train(study: StudyConfig, log: Callable[[str], None], pair: tuple[str, int]) -> str | None:
    """Train one run in its own process; return what to say if it fails."""
    run, overrides = study.run(*pair), study.overrides(*pair)
    record, settings = study.out / f"{run.name}.json", {"base": study.base, **overrides}
    if (run / "summary.json").exists():
        if not record.exists() or json.loads(record.read_text(encoding="utf-8")) != settings:
            return f"{run} was made with other settings: delete it, or name another out"
        return None
    record.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    path = study.out / f"{run.name}.log"
    with path.open("ab") as output:
        status = subprocess.run(
            [sys.executable, "-m", "memalpha", "train", study.base, *_words(overrides)],
            stdout=output,
            stderr=output,
            env={"OMP_NUM_THREADS": "1", **os.environ},
            check=False,
        ).returncode
    if status:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{run.name} ended with {status} ({path}): {lines[-1] if lines else 'no output'}"
    log(f"{run.name}: accuracy {_load_summary(run)['after']['accuracy']:.3f}")
    return None


def _words(overrides: Mapping[str, Any]) -> list[str]:
    """Return settings as `memalpha train` takes them; their values are YAML, of which JSON is a part."""
    return [f"{key}={json.dumps(value)}" for key, value in overrides.items()]


def collect_results(study: StudyConfig) -> dict[str, Any]:
    """Return the results of finished runs as JSON: by variant, with differences to the baseline."""
    runs = {name: [study.run(name, seed) for seed in study.seeds] for name in study.variants}
    summaries = {name: list(map(_load_summary, paths)) for name, paths in runs.items()}
    curves = {name: list(map(validation_curve, paths)) for name, paths in runs.items()}
    systems = [
        ComparedSystem(name, tuple(tuple(load_records(path / "eval" / "after.jsonl")) for path in paths))
        for name, paths in runs.items()
    ]
    comparison = compare(systems, value="correct")
    means = {line.system: line for line in comparison.lines if line.ability == "all"}
    reached = [curve[-1][0] for of_variant in curves.values() for curve in of_variant if curve]
    budgets = [share * min(reached) for share in BUDGETS] if all(all(of) for of in curves.values()) else []
    variants = {}
    for name, of_seeds in summaries.items():
        line, against = means[name], means[name].against
        values = {
            figure: [summary["after"][figure] for summary in of_seeds]
            for figure in FIGURES
            if all(summary["after"].get(figure) is not None for summary in of_seeds)
        }
        variants[name] = {
            "settings": study.variants[name],
            "accuracy": [summary["after"]["accuracy"] for summary in of_seeds],
            "mean": [line.mean.value, *(line.mean.interval or (None, None))],
            "against": against
            and [
                against.difference.value,
                *(against.difference.interval or (None, None)),
                against.p if against.difference.interval else None,
            ],
            "figures": {figure: mean(numbers) for figure, numbers in values.items()},
            "sampled_tokens": [sum(line["sampled_tokens"] for line in _load_metrics(path)) for path in runs[name]],
            "curve": [mean_and_deviation([interpolate(curve, budget) for curve in curves[name]]) for budget in budgets],
        }
    first = next(iter(summaries.values()))[0]
    return {
        "base": study.base,
        "settings": study.settings,
        "seeds": list(study.seeds),
        "questions": comparison.questions,
        "conversations": comparison.conversations,
        "method": comparison.method,
        "before": first["before"].get("accuracy"),
        "budgets": budgets,
        "variants": variants,
        "software": first["software"],
    }


def validation_curve(run: Path) -> list[tuple[int, float]]:
    """Return (sampled tokens so far, validation accuracy) at the start and at each validation of a run."""
    start = _load_summary(run)["start_validation"].get("validation_accuracy")
    tokens, curve = 0, [] if start is None else [(0, start)]
    for line in _load_metrics(run):
        tokens += line["sampled_tokens"]
        if line.get("validation_accuracy") is not None:
            curve.append((tokens, line["validation_accuracy"]))
    return curve


def _load_summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))


def _load_metrics(run: Path) -> list[dict[str, Any]]:
    steps = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [{"sampled_tokens": step["tokens"], **step} for step in steps]  # a supervised step has `tokens` alone


def interpolate(curve: Sequence[tuple[int, float]], tokens: float) -> float:
    """Return a curve's value at a number of tokens."""
    return float(np.interp(tokens, [at for at, _ in curve], [value for _, value in curve]))


def format_results(results: Mapping[str, Any]) -> str:
    """Format the results as Markdown: one table of the end, one of the curves."""
    figures = [name for name in FIGURES if all(name in item["figures"] for item in results["variants"].values())]
    return TEMPLATES.get_template("study.md.jinja").render(results, figures=figures)
