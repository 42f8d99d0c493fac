"""Compare evaluations: the same questions, paired, with intervals over conversations, by ability.

Everything is computed from the records of evaluations (`eval/*.jsonl`), nothing from a summary. Questions are matched
by task, id, text and accepted answers. Several answers of one system to one question (seeds, rollouts) count as their
mean.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from memalpha.arguments import check_path, counted
from memalpha.errors import DataError
from memalpha.qa.report import Record, align_columns, load_records
from memalpha.qa.scoring import stats
from memalpha.text_files import parse_json, read_text

Value = Literal["score", "correct"]
ALL_ABILITIES = "all"

SETUP_KEYS = ("reader", "conflicts", "metric", "budget", "k")
"""Keys of a summary that tell how its records came about; a comparison reports the ones that differ."""

QuestionKey = tuple[str, str, str, tuple[str, ...]]
"""Task, question id, question, accepted answers."""


@dataclass(frozen=True, slots=True)
class ComparedSystem:
    """One system of a comparison.

    Attributes:
        name: Name in the comparison.
        runs: Records of each run (several seeds are several runs).
        setup: Values of `SETUP_KEYS`, as far as they are recorded.
    """

    name: str
    runs: tuple[tuple[Record, ...], ...]
    setup: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ComparisonLine:
    """One system on one ability, with its paired difference to the baseline (None for the baseline itself)."""

    system: str
    ability: str
    mean: stats.Estimate
    against: stats.Paired | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of `compare`: a line for each system and ability, "all" and "macro" first.

    Attributes:
        value: "score" or "correct".
        baseline: Name of the baseline system.
        questions: Number of compared questions.
        conversations: Number of conversations they belong to.
        lines: Lines by system and ability.
        seeds: For systems of several runs: values, mean and standard deviation of the micro average.
        left_out: Number of questions by system that not all systems answered.
        method: Description of intervals and tests.
        differ: For each of `SETUP_KEYS` that differs, its value by system.
    """

    value: Value
    baseline: str
    questions: int
    conversations: int
    lines: tuple[ComparisonLine, ...]
    seeds: Mapping[str, Mapping[str, Any]]
    left_out: Mapping[str, int]
    method: str
    differ: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def load_run(path: Path) -> dict[str, tuple[tuple[Record, ...], Path]]:
    """Load the records of a run, and the file of each, by system name.

    Args:
        path: Run or evaluation directory, its `eval` folder, or one `.jsonl`.

    Returns:
        Records and file by the system's name if the records tell it, else by the file's.

    Raises:
        DataError: There are no records.
    """
    check_path("run", path, error=DataError)
    folder = path / "eval" if (path / "eval").is_dir() else path
    paths = [path] if path.is_file() else sorted(folder.glob("*.jsonl"))
    files = {file.stem: (tuple(records), file) for file in paths if (records := load_records(file))}
    if not files:
        raise DataError(f"{path}: no records (eval/*.jsonl): not the directory of an evaluation, or one that failed")
    by_system = {records[0].system or stem: (records, file) for stem, (records, file) in files.items()}
    return by_system if len(by_system) == len(files) else files


def _load_setup(files: Iterable[Path]) -> dict[str, str]:
    """Return `SETUP_KEYS` of the summaries beside these files; values that differ are joined by "or"."""
    values: dict[str, dict[str, None]] = {}
    for file in files:
        path = file.with_suffix(".json")
        summary = parse_json(read_text(path), str(path)) if path.exists() else None
        for name in SETUP_KEYS:
            if isinstance(summary, Mapping) and summary.get(name) is not None:
                values.setdefault(name, {})[str(summary[name])] = None
    return {name: " or ".join(values) for name, values in values.items()}


def load_systems(runs: Sequence[str]) -> list[ComparedSystem]:
    """Load the systems of all runs, in order.

    A system is named by its run, and by its own name as well if a run holds several.

    Args:
        runs: Runs; "a,b,c" are the seeds of one experiment.

    Raises:
        DataError: Seeds did not evaluate the same systems, or a run is named twice.
    """
    experiments = [tuple(Path(part).resolve() for part in run.split(",") if part) for run in runs]
    if any(len(set(items)) < len(items) for items in (experiments, *experiments)):
        raise DataError("a run is named twice")
    systems: list[ComparedSystem] = []
    for run_index, run in enumerate(runs):
        parts = [part for part in run.split(",") if part]
        seeds = [load_run(Path(part)) for part in parts]
        if not seeds:
            raise DataError(f"run {run_index + 1} has no name")
        names = list(seeds[0])
        for part, other in zip(parts[1:], seeds[1:], strict=True):
            if len(names) > 1 and set(other) != set(names):
                raise DataError(f"{part} evaluated {', '.join(other)}, not {', '.join(names)}: no other seed of it")
            if len(names) == 1 != len(other):
                raise DataError(f"{part} evaluated {', '.join(other)}, the first seed only {names[0]}")
        for name in names:
            seed_files = tuple(seed[name] if len(names) > 1 else next(iter(seed.values())) for seed in seeds)
            label = f"{run}:{name}" if len(names) > 1 and len(runs) > 1 else name if len(names) > 1 else run
            records, files = zip(*seed_files, strict=True)
            systems.append(ComparedSystem(label, records, _load_setup(files)))
    return systems


def compare(
    systems: Sequence[ComparedSystem],
    *,
    baseline: str | None = None,
    common: bool = False,
    value: Value = "score",
    seed: int = 0,
    resamples: int = stats.RESAMPLES,
) -> Comparison:
    """Compare every system with the baseline on the questions that all of them answered.

    Args:
        systems: Two systems at least.
        baseline: Name of the baseline. Default: the first system.
        common: True compares the questions in common if the systems were not asked the same.
        value: "score" averages each question's metric, "correct" whether it counts as right.
        seed: Seed of the bootstrap.
        resamples: Number of bootstrap resamples.

    Raises:
        DataError: There are fewer than two systems, the baseline is unknown, or the questions differ without `common`.
    """
    if len(systems) < 2:
        raise DataError("a comparison needs two systems at least")
    names = [system.name for system in systems]
    first = baseline or names[0]
    if first not in names:
        raise DataError(f"baseline {first!r} is none of {', '.join(names)}")
    answered = {
        system.name: stats.group_values((_question_key(record), record) for run in system.runs for record in run)
        for system in systems
    }
    keys = _shared_questions(answered, common)
    shared = set(keys)
    correct, rows = ({name: _mean_values(answered[name], keys, by) for name in names} for by in ("correct", value))
    single = all(len(records) == 1 for by_key in answered.values() for records in by_key.values())
    abilities = sorted({row.group for row in rows[first]})
    seeds = {}
    for system in (system for system in systems if len(system.runs) > 1):
        runs = [[float(getattr(r, value)) for r in records if _question_key(r) in shared] for records in system.runs]
        means = [sum(values) / len(values) for values in runs if values]
        mean, deviation = stats.mean_and_deviation(means)
        seeds[system.name] = {"values": means, "mean": mean, "sd": deviation}
    lines, bootstrap = [], {"seed": seed, "resamples": resamples}
    for name in [first, *(name for name in names if name != first)]:
        for ability in (ALL_ABILITIES, "macro", *abilities):
            indices = [n for n, row in enumerate(rows[name]) if ability in (ALL_ABILITIES, "macro", row.group)]
            answers = [rows[name][n] for n in indices]
            average, against = stats.estimate(answers, macro=ability == "macro", **bootstrap), None
            if name != first and ability != "macro":
                against = stats.compare_paired([rows[first][n] for n in indices], answers, **bootstrap)
                pair = [[correct[system][n].value for n in indices] for system in (first, name)]
                against = stats.with_mcnemar(against, *pair) if single else against
            lines.append(ComparisonLine(name, ability, average, against))
    return Comparison(
        value=value,
        baseline=first,
        questions=len(keys),
        conversations=len({key[0] for key in keys}),
        lines=tuple(lines),
        seeds=seeds,
        left_out={name: len(by_key) - len(keys) for name, by_key in answered.items() if len(by_key) > len(keys)},
        method=f"95 % intervals: BCa bootstrap over conversations, {resamples} resamples, seed {seed}; p: paired "
        "bootstrap over conversations; McNemar: exact, over questions that count as correct or not",
        differ={
            rule: by_system
            for rule in SETUP_KEYS
            if len(set((by_system := {s.name: s.setup[rule] for s in systems if rule in s.setup}).values())) > 1
        },
    )


def _question_key(record: Record) -> QuestionKey:
    return record.task, record.question_id, record.question, record.gold


def _shared_questions(answered: Mapping[str, Mapping[QuestionKey, Any]], common: bool) -> list[QuestionKey]:
    (first, keys), *rest = answered.items()
    shared = [key for key in keys if all(key in by_key for _, by_key in rest)]
    if not shared:
        raise DataError("the runs have no question in common")
    for name, by_key in rest:
        if common or by_key.keys() == keys.keys():
            continue
        more, fewer = len(by_key.keys() - keys.keys()), len(keys.keys() - by_key.keys())
        example = next(iter((by_key.keys() - keys.keys()) or (keys.keys() - by_key.keys())))
        raise DataError(
            f"{first} and {name} were not asked the same questions: {fewer} only of the first, {more} only of the "
            f"second, such as {example[1]!r} of task {example[0]!r} ({example[2]!r}); compare the {len(shared)} in "
            "common with --common"
        )
    return shared


def _mean_values(
    answered: Mapping[QuestionKey, Sequence[Record]], keys: Iterable[QuestionKey], value: Value
) -> list[stats.ScoredAnswer]:
    rows = []
    for key in keys:
        values = [float(getattr(record, value)) for record in answered[key]]
        rows.append(stats.ScoredAnswer(key[0], answered[key][0].ability, sum(values) / len(values)))
    return rows


# -------------------------------------------------------------------------------------------------------------- output


COLUMNS = (
    "system", "ability", "n", "conversations", "mean", "low", "high", "difference", "difference_low",
    "difference_high", "p", "only_baseline", "only_system", "mcnemar",
)  # fmt: skip


def comparison_rows(comparison: Comparison) -> list[list[Any]]:
    """Return a row of plain values for each line, by `COLUMNS`; None where a value does not apply.

    Below `MIN_CLUSTERS` conversations there is no interval and no p.
    """
    rows = []
    for line in comparison.lines:
        mean, pair, figures = line.mean, line.against, [None] * 7
        if pair is not None:
            change, interval = pair.difference, pair.difference.interval
            p = None if interval is None else pair.p
            low, high = interval or (None, None)
            figures = [change.value, low, high, p, pair.only_first, pair.only_second, pair.mcnemar]
        low, high = mean.interval or (None, None)
        rows.append([line.system, line.ability, mean.n, mean.clusters, mean.value, low, high, *figures])
    return rows


def as_csv(comparison: Comparison) -> str:
    """Format the comparison as CSV with a header; missing values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(comparison_rows(comparison))
    return text.getvalue()


def as_markdown(comparison: Comparison) -> str:
    """Format the comparison as a Markdown table with notes on its method."""
    rows = [_head(comparison, f"against {comparison.baseline}"), *_text_rows(comparison)]
    cells = ([text.replace("|", "\\|").replace("\n", " ") for text in row] for row in rows)
    head, *lines = (f"| {' | '.join(row)} |" for row in cells)
    return "\n".join([head, "|---|---|" + "--:|" * 7, *lines, "", *_notes(comparison)]) + "\n"


def as_text(comparison: Comparison) -> str:
    """Format the comparison for a terminal."""
    rows = [_head(comparison, "difference"), *_text_rows(comparison)]
    return "\n".join([*align_columns(rows, left=2), "", *_notes(comparison)])


def _head(comparison: Comparison, difference: str) -> list[str]:
    return ["system", "ability", "n", comparison.value, "95 %", difference, "95 %", "p", "McNemar"]


def _notes(comparison: Comparison) -> list[str]:
    notes = [
        f"{counted(comparison.questions, 'question')} of {counted(comparison.conversations, 'conversation')}; "
        f"differences are against {comparison.baseline}.",
        comparison.method + ".",
    ]
    if comparison.conversations < stats.MIN_CLUSTERS:
        few = f"No intervals and no bootstrap p below {stats.MIN_CLUSTERS} conversations, which say too little"
        notes.append(f"{few}; McNemar's p takes questions of one conversation for independent.")
    for key, values in comparison.differ.items():
        listed = "; ".join(f"{name}: {value}" for name, value in values.items())
        notes.append(f"NOT EVALUATED ALIKE, {key}: {listed}.")
    for name, seeds in comparison.seeds.items():
        spread = "" if seeds["sd"] is None else f", standard deviation {seeds['sd']:.3f}"
        notes.append(f"{name}: {len(seeds['values'])} runs, mean {seeds['mean']:.3f}{spread}.")
    for name, count in comparison.left_out.items():
        notes.append(f"{name}: {counted(count, 'question')} left out that not all answered.")
    return notes


def _text_rows(comparison: Comparison) -> list[list[str]]:
    rows = []
    for name, ability, n, _, mean, low, high, difference, below, above, p, _, _, mcnemar in comparison_rows(comparison):
        change = "" if difference is None else f"{difference:+.3f}"
        span = "" if below is None else f"{below:+.3f} … {above:+.3f}"
        figures = [f"{mean:.3f}", "" if low is None else f"{low:.3f} … {high:.3f}", change, span]
        rows.append([name, ability, str(n), *figures, _format_p(p), _format_p(mcnemar)])
    return rows


def _format_p(p: float | None) -> str:
    return "" if p is None else "<.001" if p < 0.001 else f"{p:.3f}"
