"""Records and reports: one record per question, and of each evaluated system summary metrics, tables and files.

The tables of all systems of an evaluation are text, CSV and Markdown, with the provenance of the figures.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import json
import math
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined

from memalpha.config import EvalConfig
from memalpha.errors import ConfigError, DataError
from memalpha.policy.base import format_bill
from memalpha.qa.memory_reward import conversation_tokens, count_changes_by_id, memory_tokens
from memalpha.qa.scoring.stats import ScoredAnswer, group_values, mean
from memalpha.store.memory import html_table
from memalpha.text_files import parse_json, read_text, write_json
from memalpha.types import Task, Trajectory, TrajectoryGroup

TEMPLATES = Environment(
    loader=PackageLoader("memalpha", "data"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
"""Templates of the package's Markdown and text files."""


@dataclass(frozen=True, slots=True)
class Record:
    """Hold one answered question of one rollout, or of one evaluated system.

    Attributes:
        task: Id of the task.
        rollout: Index of the rollout; 0 for a system.
        question_id: Id of the question.
        ability: Category of the question; "none" without one.
        kind: Kind of the question (`Question.meta["kind"]`), if it has one.
        question: Text of the question.
        answer: Text of the answer.
        gold: Accepted answers; empty where the right answer is to abstain.
        score: Score by the metric, 0 to 1.
        correct: True if the score counts as right.
        retrieved: Ids of the retrieved passages, best first.
        written: True if the support of the answer was ever written; None if that is unknown.
        live: True if the support was in the memory when the question was asked; None if that is unknown.
        stale: True if the answer gives a value that no longer held.
        conflict: True if the conflict rule refused the answer.
        system: Name of the evaluated system.
        abstained: True if the answer is an abstention.
        tokens: Length of the retrieved text (characters / 4).
        evidence_recall: Share of the evidence turns that the retrieved passages come from; None without evidence.
        support_retrieved: True if the support was among the retrieved passages; None if that is unknown.
        error_class: Class of a wrong answer, see `error_analysis`; None if right or not classified.
        searches: The reader's own searches: each with its `query` and the ids it `retrieved`.
        left_out: Number of live entries that did not fit a reader of the whole memory; None for other readers.
        rule: Rule that found the support (`facts`, `turns`, `chunks`, `answers`); None if not classified or no answer.
        ceiling: True if the same reader is right when shown the evidence; None if it was not asked.
        scores: Further metrics by name.
        feedback: The error in words; see `error_analysis.feedback`.
        truncated: True if the answer of a language model was cut at its most tokens.
    """

    task: str
    rollout: int
    question_id: str
    ability: str
    kind: str | None
    question: str
    answer: str
    gold: tuple[str, ...]
    score: float
    correct: bool
    retrieved: tuple[str, ...] = ()
    written: bool | None = None
    live: bool | None = None
    stale: bool = False
    conflict: bool = False
    system: str = ""
    abstained: bool = False
    tokens: int = 0
    evidence_recall: float | None = None
    support_retrieved: bool | None = None
    error_class: str | None = None
    ceiling: bool | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    feedback: str = ""
    truncated: bool = False
    rule: str | None = None
    searches: tuple[Mapping[str, Any], ...] = ()
    left_out: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the record as one line of `eval/<name>.jsonl`."""
        return {_JSON_KEYS.get(name, name): getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Record:
        """Build a record from a line of `eval/<name>.jsonl`. Raises `TypeError` naming wrong fields."""
        attributes = {_ATTRIBUTES.get(key, key): value for key, value in fields.items()}
        lists: dict[str, Any] = {name: tuple(attributes.get(name, ())) for name in ("gold", "retrieved", "searches")}
        return cls(**{"rollout": 0, "kind": None, "answer": "", **attributes, **lists})


_JSON_KEYS = {"error_class": "loss", "support_retrieved": "found"}
"""Attribute -> key in files, where they differ."""
_ATTRIBUTES = {key: attribute for attribute, key in _JSON_KEYS.items()}


def save_records(records: Iterable[Record], path: str | Path) -> None:
    """Write records as JSON Lines."""
    # A model's text may hold half a surrogate pair, which only an escape can carry.
    lines = [json.dumps(record.as_json()) + "\n" for record in records]
    Path(path).write_text("".join(lines), encoding="utf-8")


def load_records(path: str | Path) -> list[Record]:
    """Load the records of one `eval/<name>.jsonl`.

    Raises:
        DataError: The file cannot be read, or a line is no record; names file, line and field.
    """
    records, text = [], read_text(Path(path)).rstrip("\n")
    for number, line in enumerate(text.split("\n") if text else (), start=1):
        where = f"{path}:{number}"
        item = parse_json(line, where)
        if not isinstance(item, dict) or "gold" not in item:
            raise DataError(f"{where}: not a record of an evaluation")
        try:
            record = Record.from_json(item)
        except TypeError as error:  # names missing and unknown fields
            raise DataError(f"{where}: not a record of an evaluation, or one of another version: {error}") from error
        if not isinstance(record.score, int | float) or not isinstance(record.correct, bool):
            raise DataError(f"{where}: 'score' is a number and 'correct' true or false in a record")
        records.append(record)
    return records


CHANGED = ("updated", "retracted")
"""Kinds of questions (`Question.meta["kind"]`) that have a stale answer (`meta["stale"]`)."""


def estimate_tokens(text: str) -> int:
    """Return the length in tokens where systems share no tokenizer: characters / 4, rounded up."""
    return -(-len(text) // 4)


def scored_answers(records: Iterable[Record], value: Literal["score", "correct"]) -> list[ScoredAnswer]:
    """Return the scores of records, or 1 for each correct one and 0 for the others, for statistics."""
    return [ScoredAnswer(record.task, record.ability, float(getattr(record, value))) for record in records]


def mean_and_error(clusters: Iterable[Sequence[float]]) -> tuple[float | None, float | None]:
    """Return the mean over all values and its standard error over clusters.

    The error is that of a ratio estimator, since clusters may differ in size. Both are None without values; the error
    is None for a single cluster.
    """
    non_empty = [values for values in clusters if values]
    total = sum(len(values) for values in non_empty)
    if not total:
        return None, None
    center = sum(sum(values) for values in non_empty) / total
    if len(non_empty) < 2:
        return center, None
    squares = sum((sum(values) - center * len(values)) ** 2 for values in non_empty)
    return center, (squares * len(non_empty) / (len(non_empty) - 1)) ** 0.5 / total


def accuracy_of(records: Iterable[Record]) -> dict[str, float | None]:
    """Return `accuracy`, the share of right answers, and `se`, its standard error over tasks."""
    by_task = group_values((record.task, float(record.correct)) for record in records)
    accuracy, error = mean_and_error(by_task.values())
    return {"accuracy": accuracy, "se": error}


def accuracy_by_ability(records: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """Return `accuracy`, `se`, `score` and `n` of each ability, in order of their names."""
    by_ability = group_values((record.ability, record) for record in records)
    return {
        ability: {**accuracy_of(group), "score": mean([record.score for record in group]), "n": len(group)}
        for ability, group in sorted(by_ability.items())
    }


def summarize(
    records: Sequence[Record], trajectories: Sequence[Trajectory], count_tokens: Callable[[str], int] = estimate_tokens
) -> dict[str, Any]:
    """Return the metrics of one system as a dictionary; a metric that cannot be measured is None.

    | metric                              | meaning                                                             |
    |-------------------------------------|---------------------------------------------------------------------|
    | `accuracy`, `se`                    | share of questions answered right; standard error over conversations |
    | `score`                             | mean of the metric itself                                           |
    | `answerable_accuracy`               | accuracy over questions that have an answer                         |
    | `update_accuracy`                   | accuracy over questions of kind "updated"                           |
    | `retract_accuracy`                  | accuracy over questions of kind "retracted"                         |
    | `stale_rate`                        | share of both kinds answered with an outdated value                 |
    | `valid_calls`, `duplicates`         | shares of calls that were ok, and that repeated an entry            |
    | `update_share`, `delete_share`      | shares of calls that updated and deleted                            |
    | `update_hit`, `delete_hit`          | see `memory_reward.count_changes_by_id`                             |
    | `memory_tokens`                     | tokens of the final memory, mean over trajectories                  |
    | `conversation_tokens`               | tokens that were read, mean over trajectories                       |

    Args:
        records: Records of all questions.
        trajectories: Rollouts that built the memories; empty for a system without a writer.
        count_tokens: Counts the tokens of a text.
    """
    changed = [record for record in records if record.kind in CHANGED]
    results = [result for trajectory in trajectories for turn in trajectory.turns for result in turn.results]
    codes = Counter(result.code for result in results)
    by_id = sum(map(count_changes_by_id, trajectories), Counter[str]())
    rewards = [trajectory.reward.total for trajectory in trajectories if trajectory.reward is not None]
    return {
        **accuracy_of(records),
        "score": mean([record.score for record in records]),
        "answerable_accuracy": accuracy_of(record for record in records if record.gold)["accuracy"],
        "update_accuracy": accuracy_of(record for record in records if record.kind == "updated")["accuracy"],
        "retract_accuracy": accuracy_of(record for record in records if record.kind == "retracted")["accuracy"],
        "stale_rate": mean([record.stale for record in changed]),
        "reward": mean(rewards),
        "valid_calls": mean([result.ok for result in results]),
        "duplicates": _ratio(codes["duplicate"], len(results)),
        "update_share": _ratio(codes["updated"], len(results)),
        "delete_share": _ratio(codes["deleted"], len(results)),
        "update_hit": _ratio(by_id["update hit"], by_id["update"]),
        "delete_hit": _ratio(by_id["delete hit"], by_id["delete"]),
        "memory_tokens": mean([memory_tokens(rollout.states[-1], count_tokens) for rollout in trajectories]),
        "conversation_tokens": mean([conversation_tokens(rollout.task, count_tokens) for rollout in trajectories]),
        "by_ability": accuracy_by_ability(records),
    }


def _ratio(total: float, count: int) -> float | None:
    return total / count if count else None


@dataclass(frozen=True, slots=True)
class Report:
    """Hold the evaluation of one system.

    Attributes:
        name: Name of the system.
        summary: Metrics of `summarize`, the reader's name and the metric.
        records: One record per question.
        groups: Trajectories that built the memories.
        unjudged: Answers without a readable verdict as JSON values (`judge.judge_records`); no metric counts them.
    """

    name: str
    summary: dict[str, Any]
    records: tuple[Record, ...]
    groups: tuple[TrajectoryGroup, ...] = ()
    unjudged: tuple[Mapping[str, Any], ...] = ()

    def _accuracy_rows(self) -> list[tuple[str, str, str, str]]:
        """Return ability, accuracy, standard error and number of questions; "all" is the last row."""
        overall = {"accuracy": self.summary["accuracy"], "se": self.summary["se"], "n": len(self.records)}
        rows = [*self.summary["by_ability"].items(), ("all", overall)]
        return [(label, format_cell(row["accuracy"]), format_cell(row["se"]), str(row["n"])) for label, row in rows]

    def _repr_html_(self) -> str:
        setup = ", ".join(f"{key} {self.summary[key]}" for key in ("reader", "metric") if key in self.summary)
        return html_table(f"{self.name}: {setup}", ("ability", "accuracy", "± se", "questions"), self._accuracy_rows())

    def table(self) -> None:
        """Print accuracy by ability and the summary's metrics."""
        print("\n".join(align_columns([(self.name, "accuracy", "± se", "questions"), *self._accuracy_rows()])), "\n")
        rest = {key: value for key, value in self.summary.items() if not isinstance(value, dict | list | tuple)}
        rows = [(key, format_cell(value)) for key, value in rest.items() if key not in ("accuracy", "se")]
        print("\n".join(align_columns([("measure", "value"), *rows])))

    def save(self, directory: str | Path) -> Path:
        """Write `eval/<name>.json` (the summary) and `eval/<name>.jsonl` (a line per question) under `directory`."""
        folder = make_result_folder(directory)
        stem = file_stem(self.name)
        write_json(folder / f"{stem}.json", self.summary)
        save_records(self.records, folder / f"{stem}.jsonl")
        unjudged_path = folder / f"{stem}.unjudged.json"
        unjudged_path.unlink(missing_ok=True)  # an earlier evaluation may have left one
        if self.unjudged:
            write_json(unjudged_path, self.unjudged)
        return folder / f"{stem}.json"

    @classmethod
    def load(cls, directory: str | Path, name: str) -> Report:
        """Return a report that `save` wrote, without its trajectories and the texts of unjudged answers.

        Raises:
            DataError: A file cannot be read, or is none that `save` wrote.
        """
        path = Path(directory) / "eval" / f"{file_stem(name)}.json"
        return cls(name, parse_json(read_text(path), str(path)), tuple(load_records(path.with_suffix(".jsonl"))))


def format_cell(value: Any) -> str:
    """Format a table cell: three decimals, none above 10, "-" for None; other values as text."""
    if value is None or not isinstance(value, float):
        return "-" if value is None else str(value)
    return f"{value:,.0f}" if value > 10 else f"{value:.3f}"


def format_interval(interval: Sequence[float] | None) -> str:
    """Format an interval: "0.100 to 0.250", "" for None."""
    return "" if interval is None else "{:.3f} to {:.3f}".format(*interval)


def align_columns(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Return rows of cells as lines of aligned columns, of which the first `left` are flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:left], widths, strict=False)]
        cells += [cell.rjust(width) for cell, width in zip(row[left:], widths[left:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def file_stem(name: str) -> str:
    """Return the file name of a system, without suffix."""
    return name.replace(":", "-").replace("/", "-")


def make_result_folder(directory: str | Path) -> Path:
    """Create and return `directory`/eval; call it before the work starts.

    Raises:
        ConfigError: The folder cannot be created.
    """
    folder = Path(directory) / "eval"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"out: cannot write results to {folder}: {error.strerror}") from error
    return folder


# -------------------------------------------------------------------------------------------------------------- tables

LOW_CEILING = 0.5
"""Accuracy on the evidence itself below which a table says which reader and metric to take."""
SUMMARY = "summary"
"""Name of the file that holds the summaries of all systems."""
COLUMNS = (
    "accuracy", "score", "answerable_accuracy", "stale_rate", "ceiling", "ceiling_n", "ceiling_answered",
    "evidence_recall", "evidence_recall@10", "tokens", "memory_tokens", "searches", "left_out", "reader_truncated",
    "unjudged",
)  # fmt: skip
_TERMINAL_HEADS = {
    "score": "score", "answerable_accuracy": "answerable", "stale_rate": "stale", "ceiling_answered": "of the same",
    "evidence_recall": "evidence", "tokens": "tokens shown", "memory_tokens": "memory tokens", "unjudged": "unjudged",
}  # fmt: skip
"""Columns that a terminal shows beside accuracy, with their headers."""
_PACKAGES = ("memalpha", "numpy", "faiss-cpu", "torch", "transformers", "sentence-transformers")


def table_rows(reports: Sequence[Report]) -> tuple[list[str], list[list[Any]]]:
    """Return header and rows: a row per system, the columns that have values, the score by ability."""
    columns = [name for name in COLUMNS if _has_column(reports, name)]
    abilities = _abilities(reports)
    header = ["system", "questions", *columns[:1], "low", "high", *columns[1:], *abilities]
    rows = []
    for report in reports:
        low, high = report.summary.get("accuracy_interval") or (None, None)
        first, *figures = (report.summary.get(name) for name in columns)
        rows.append([report.name, len(report.records), first, low, high, *figures, *_scores(report, abilities)])
    return header, rows


def _scores(report: Report, abilities: Sequence[str]) -> list[float | None]:
    return [report.summary["by_ability"].get(ability, {}).get("score") for ability in abilities]


def _has_column(reports: Sequence[Report], name: str) -> bool:
    return any(report.summary.get(name) is not None for report in reports)


def _abilities(reports: Sequence[Report]) -> list[str]:
    return sorted({ability for report in reports for ability in report.summary["by_ability"]})


def as_markdown(reports: Sequence[Report]) -> str:
    """Format the table as Markdown, below a line on the common setup."""
    header, rows = table_rows(reports)
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(format_cell(value) for value in row) + " |" for row in rows]
    return "\n\n".join([_common_setup(reports), "\n".join(lines), *warnings_of(reports), *format_bills(reports)]) + "\n"


def print_table(reports: Sequence[Report]) -> None:
    """Print the main metrics and the score by ability; the files hold all of them."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 160  # files and pipes need no narrow table
    console.print(_common_setup(reports))
    heads_of = {"accuracy": "accuracy", "": "95 %", **_TERMINAL_HEADS}
    heads_of = {name: label for name, label in heads_of.items() if not name or _has_column(reports, name)}
    if all(report.summary["score"] == report.summary["accuracy"] for report in reports):
        del heads_of["score"]
    if all(report.summary["ceiling_n"] in (None, len(report.records)) for report in reports):
        heads_of.pop("ceiling_answered", None)  # equal to the accuracy

    def print_grid(title: str | None, heads: Iterable[str], cells_of: Callable[[Report], Iterable[Any]]) -> None:
        grid = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0), title=title)
        grid.add_column("system", overflow="fold", min_width=12)
        for head in heads:
            grid.add_column(head, justify="right", overflow="fold", min_width=11 if head == "95 %" else 5)
        for report in reports:
            grid.add_row(report.name, *map(format_cell, cells_of(report)))
        console.print(grid)

    def figures_of(report: Report) -> list[Any]:
        interval = report.summary["accuracy_interval"]
        values = {**report.summary, "": interval and "{:.3f}-{:.3f}".format(*interval)}
        return [values.get(name) for name in heads_of]

    print_grid(None, heads_of.values(), figures_of)
    if len(abilities := _abilities(reports)) > 1:
        print_grid("score by ability", abilities, lambda report: _scores(report, abilities))
    for line in (*warnings_of(reports), *format_bills(reports)):
        console.print(line)


def _common_setup(reports: Sequence[Report]) -> str:
    summary = reports[0].summary
    ceiling = ""
    if summary["ceiling"] is not None:
        share = f"{summary['ceiling']:.3f} of the {summary['ceiling_n']:,} questions"
        ceiling = f"; shown the raw evidence it is right in {share} that name some"
    reader, metric, budget, k = (summary.get(name) for name in ("reader", "metric", "budget", "k"))
    rules = group_values((report.summary["conflicts"], report.name) for report in reports)
    listed = [f"{rule} ({', '.join(names)})" if len(rules) > 1 else rule for rule, names in rules.items()]
    rule = "" if list(rules) == ["keep"] else f"; conflicts: {'; '.join(listed)}"
    shown = "" if k is None else f", the best {k} passages of a search"
    return f"reader: {reader}{rule}{ceiling}; metric: {metric}; budget: {budget} tokens (characters / 4){shown}"


def ceiling_of(reports: Sequence[Report]) -> tuple[float, str] | None:
    """Return the reader's accuracy when shown the best text there is, and what that is; None if unknown.

    Where no question names evidence, the system `full` is the ceiling: the reader sees the whole conversation.
    """
    if (ceiling := reports[0].summary.get("ceiling")) is not None:
        return ceiling, "the evidence itself"
    full_accuracies = [report.summary["accuracy"] for report in reports if report.name == "full" and report.summary]
    return (full_accuracies[0], "the whole conversation (full)") if full_accuracies else None


_BILLED = ("paid", "cached", "prompt_tokens", "completion_tokens", "doubted", "refused", "cost")


def warnings_of(reports: Sequence[Report]) -> list[str]:
    """Return what a reader of the figures has to know: a low ceiling, what has no verdict, was cut off or left out.

    Args:
        reports: Reports of all systems; the summary of a report may be empty.
    """
    notes, summary = [], reports[0].summary
    ceiling, view = ceiling_of(reports) or (1.0, "")
    if ceiling < LOW_CEILING:
        is_floor = "(floor)" in summary["reader"]
        reader = "a language model (reader.kind=policy reader.policy=MODEL)" if is_floor else "a stronger reader"
        metric = " and a metric that takes other words for the same (metric=f1 or judge)"
        notes.append(
            f"shown {view}, the reader is right in less than {LOW_CEILING:.0%} of the questions: most errors "
            f"are its own. To compare memories, take {reader}{metric if summary['metric'] == 'exact' else ''}"
        )
    if reports[0].records and not any(record.gold for record in reports[0].records):
        notes.append("no question has an accepted answer (`answers`), so abstaining is right everywhere")
    notes += [
        f"{report.name}: its memory is empty in all conversations; of a writer, `memalpha check-policy` tells whether "
        "its calls can be read"
        for report in reports
        if report.name != "empty" and report.summary.get("memory_tokens") == 0 and not report.summary.get("tokens")
    ]
    notes += [
        f"{report.name}: no judge gave a readable verdict on {unjudged:,} of {unjudged + len(report.records):,} "
        f"answers; they are in no figure and no denominator (eval/{file_stem(report.name)}.unjudged.json)"
        for report in reports
        if (unjudged := report.summary.get("unjudged"))
    ]
    notes += [
        f"{report.name}: {empty:,} of {len(report.records):,} answers are empty and count as wrong: the endpoint "
        f"filters them, or the model's thoughts take all of its tokens (eval/{file_stem(report.name)}.jsonl)"
        for report in reports
        if report.summary.get("reader_truncated") is not None
        and (empty := sum(not record.answer.strip() and not record.truncated for record in report.records))
    ]
    notes += [
        f"{report.name}: {truncated:,} of {len(report.records):,} answers were cut at reader.max_new_tokens, "
        "which may make them wrong: raise it, or set reader.thinking_tokens for a model that thinks first"
        for report in reports
        if report.summary.get("reader_truncated") and (truncated := sum(record.truncated for record in report.records))
    ]
    return notes + [
        f"{report.name}: at {len(counts):,} of {len(report.records):,} questions the oldest entries were left out, "
        f"{max(counts):,} at most: raise reader.context_tokens if the reader's context has room"
        for report in reports
        if (counts := [record.left_out for record in report.records if record.left_out])
    ]


def format_bills(reports: Sequence[Report]) -> list[str]:
    """Return a line for each role and endpoint: its answers, tokens and cost over all systems and the ceiling."""
    totals: dict[str, dict[str, float]] = {}
    for bills in (reports[0].summary.get("ceiling_bills"), *(report.summary.get("bills") for report in reports)):
        for name, bill in (bills or {}).items():
            if "paid" in bill:
                total = totals.setdefault(name, dict.fromkeys(_BILLED, 0.0))
                for key in _BILLED:
                    count = bill.get(key, 0)  # earlier summaries count less
                    total[key] += math.nan if count is None else count
    return [format_bill(name, total) for name, total in totals.items()]


def save_results(folder: Path, reports: Sequence[Report], source: Mapping[str, Any]) -> None:
    """Write `summary.json`, `systems.csv` and `systems.md` into `folder`.

    Args:
        folder: The `eval` folder.
        reports: Reports of all systems.
        source: Provenance of the evaluation; see `provenance`.
    """
    # Atomically: a full disk must not leave half a summary, which would refuse to resume.
    write_json(folder / f"{SUMMARY}.json", {**source, "systems": {report.name: report.summary for report in reports}})
    header, rows = table_rows(reports)
    with (folder / "systems.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    (folder / "systems.md").write_text(as_markdown(reports), encoding="utf-8")


def check_names(systems: Sequence[str]) -> None:
    """Check that no two systems would be written to the same file.

    Raises:
        ConfigError: Two names give one file name, or one gives the summary's.
    """
    by_stem = {SUMMARY: "the summary of the evaluation"}
    for name in dict.fromkeys(systems):
        stem = file_stem(name)
        if stem in by_stem:
            raise ConfigError(
                f"systems: {name!r} and {by_stem[stem]!r} would both be written to eval/{stem}.json: evaluate them "
                "with an out of their own"
            )
        by_stem[stem] = name


def check_folder(folder: Path, systems: Sequence[str], source: Mapping[str, Any]) -> None:
    """Check that `folder` holds no results of other systems on other tasks, or by another reader, metric or budget.

    The report page and `memalpha compare` would read them as one evaluation. The same systems are overwritten.

    Args:
        folder: The `eval` folder.
        systems: Names of the systems to evaluate.
        source: Provenance of the new evaluation; see `provenance`.

    Raises:
        ConfigError: The folder holds other systems that were evaluated otherwise, or its summary cannot be read.
    """
    path = folder / f"{SUMMARY}.json"
    try:
        previous = json.loads(path.read_text(encoding="utf-8"))
        other_systems = sorted({file.stem for file in folder.glob("*.jsonl")} - {file_stem(name) for name in systems})
        differing = [] if previous["tasks_sha256"] == source["tasks_sha256"] else ["tasks"]
        before, now = previous["config"], json.loads(json.dumps(source["config"]))
        differing += [key for key in ("reader", "metric", "context_tokens") if before[key] != now[key]]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"out: {path} is not of an evaluation ({error}): name another") from error
    if other_systems and differing:
        raise ConfigError(
            f"out: {folder} holds {', '.join(other_systems)} with other {' and '.join(differing)}: name another "
            "folder, or remove it"
        )


def provenance(config: EvalConfig, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return what reproduces the figures: configuration, versions, and the SHA-256 of the tasks as asked."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(task.model_dump_json().encode("utf-8", "surrogatepass"))
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"config": config.model_dump(mode="json"), "versions": versions, "tasks_sha256": digest.hexdigest()}
