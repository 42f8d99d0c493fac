"""The page's part on an evaluation: metrics of every system, error analysis, and the wrong answers themselves.

Everything is computed from the records (`eval/*.jsonl`). Wrong answers are `<details>` with an anchor each, so the page
needs no script. Of many in one class, the first are shown and the rest counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from memalpha.qa.error_analysis import ERROR_CLASSES, Waterfall, waterfall
from memalpha.qa.records import Record
from memalpha.qa.reporting.compare import load_records
from memalpha.qa.scoring.stats import Estimate, ScoredAnswer, estimate, micro
from memalpha.report.charts import Bar, stacked_bars, swatch

MAX_FAILURES = 40  # failures of one class of one system
RESAMPLES = 2_000
RIGHT = "right"
CLASS_LABELS = {
    RIGHT: "answered right",
    "answered_wrong": "retrieved, answered wrong",
    "should_have_abstained": "should have abstained",
    "partly_retrieved": "partly retrieved",
    "not_retrieved": "held, not retrieved",
    "not_found": "not among what was retrieved",
    "overwritten_or_deleted": "overwritten or deleted",
    "written_wrong": "written wrong",
    "never_written": "never written",
    "gold_faulty": "gold answer faulty",
}
"""Label of each part of a bar, from right answers to support that was never written."""
STAGES = ("written", "kept", "retrieved", "answered")
STALE = "stale, of all questions"
CEILING = ("ceiling", "of", "answered of these")
"""Three columns whose denominator are the questions that name evidence."""

Systems = Mapping[str, Sequence[Record]]


def load_systems(folder: Path) -> dict[str, list[Record]]:
    """Load the records of an `eval` folder by file, best mean score first.

    Files with an unclassified wrong answer are left out; the result is {} if all are.
    """
    files = {path.stem: load_records(path) for path in sorted(folder.glob("*.jsonl"))}
    classified = {
        name: records for name, records in files.items() if all(r.correct or r.error_class for r in records) and records
    }
    return dict(sorted(classified.items(), key=lambda item: -micro(_rows(item[1]))))


def load_unjudged_counts(folder: Path) -> dict[str, int]:
    """Count the answers without a verdict by file of an `eval` folder; no record holds them."""
    suffix = ".unjudged.json"
    interval = {path: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"*{suffix}"))}
    return {path.name.removesuffix(suffix): len(left) for path, left in interval.items()}


def render_evaluation(systems: Systems, titles: Mapping[str, str], unjudged: Mapping[str, int] | None = None) -> str:
    """Return the HTML of the systems' metrics, error analysis and wrong answers; "" without systems.

    Args:
        systems: Records by file name.
        titles: Labels of some systems; others use the name in their records.
        unjudged: Number of answers without a verdict, by file name.
    """
    if not systems:
        return ""
    names = {name: titles.get(name) or records[0].system or name for name, records in systems.items()}
    falls = {name: waterfall(records) for name, records in systems.items()}
    overall = {names[name]: fall[-1] for name, fall in falls.items() if fall}
    present = {RIGHT, *(error_class for fall in overall.values() for error_class in fall.error_counts)}
    legend = "".join(
        f"<li>{swatch(_css_kind(error_class))}{escape(label)}</li>"
        for error_class, label in CLASS_LABELS.items()
        if error_class in present
    )
    about = (
        "All questions of each system: answered right (left), and the classes of wrong answers, from support that was "
        "retrieved to support that was never written (right)."
    )
    if any(fall.ceiling is not None for fall in overall.values()):
        about += (
            " The line marks the ceiling: the accuracy of the same reader when it is shown the evidence itself. If "
            "only some questions name evidence, the tables below have the ceiling over those."
        )
    bars = stacked_bars([_bar(name, fall) for name, fall in overall.items()])
    parts = [
        "<h2>Systems on the same questions</h2>",
        _figures({names[name]: records for name, records in systems.items()}),
        *_unjudged_note({names[name]: count for name, count in (unjudged or {}).items() if name in names}),
        "<h2>Error analysis: where the answers were lost</h2>",
        f'<figure><figcaption>{about}</figcaption><ul class="legend">{legend}</ul>{bars}</figure>',
    ]
    parts += [_by_ability(name, names[name], fall, _rule_counts(systems[name])) for name, fall in falls.items() if fall]
    parts.append("<h2>Wrong answers</h2><p>By system and error class; click one to open it.</p>")
    parts += [_failures(name, names[name], records) for name, records in systems.items()]
    return "\n".join(parts)


def _rows(records: Sequence[Record]) -> list[ScoredAnswer]:
    return [ScoredAnswer(record.task, record.ability, float(record.score)) for record in records]


def _css_kind(error_class: str) -> str:
    return f"error-{error_class}"


def _bar(label: str, fall: Waterfall) -> Bar:
    counts = {RIGHT: round(fall.answered * fall.n), **fall.error_counts}
    shares = [(_css_kind(name), CLASS_LABELS[name], counts[name] / fall.n) for name in CLASS_LABELS if counts.get(name)]
    return Bar(f"{label} ({fall.n})", tuple(shares), fall.ceiling if fall.ceiling_n == fall.n else None)


def _figures(systems: Systems) -> str:
    head = ("system", "score", "95 %", "macro", "95 %", "evidence recall", "tokens retrieved", "abstained", STALE)
    rows = []
    for name, records in systems.items():
        plain, macro = (estimate(_rows(records), macro=each, resamples=RESAMPLES) for each in (False, True))
        recalls = [record.evidence_recall for record in records if record.evidence_recall is not None and record.gold]
        cells = [_share(plain.value), _interval(plain), _share(macro.value), _interval(macro), _share(_mean(recalls))]
        cells += [f"{sum(record.tokens for record in records) / len(records):,.0f}"]
        cells += [_share(_mean([float(getattr(record, key)) for record in records])) for key in ("abstained", "stale")]
        rows.append(_row(name, cells))
    records = next(iter(systems.values()))
    about = (
        f"{len(records):,} questions of {len({record.task for record in records}):,} conversations. Score: each "
        "question's own metric, averaged over questions; macro: over abilities. Intervals: BCa bootstrap over "
        f"conversations. {STALE.capitalize()}: wrong answers with a value that no longer held."
    )
    return f'<p>{about}</p><div class="card scroll"><table>{_head(head)}{"".join(rows)}</table></div>'


def _unjudged_note(unjudged: Mapping[str, int]) -> list[str]:
    text = ", ".join(f"{count:,} answers of {escape(name)}" for name, count in unjudged.items())
    return [f'<p class="soft">In no figure, because no judge gave a readable verdict: {text}.</p>'] if text else []


def _rule_counts(records: Sequence[Record]) -> str:
    """Return how many questions' support each rule of the error analysis found, as text; "" if unknown."""
    counts = Counter(record.rule for record in records if record.rule)
    return ", ".join(f"{rule} {count:,}" for rule, count in sorted(counts.items()))


def _by_ability(name: str, title: str, falls: Sequence[Waterfall], rule_counts: str) -> str:
    classes = [error_class for error_class in CLASS_LABELS if error_class in falls[-1].error_counts]
    rows = []
    for fall in falls:
        cells = [f"{fall.n:,}", *(_share(getattr(fall, stage)) for stage in STAGES)]
        cells += [_share(fall.ceiling), f"{fall.ceiling_n:,}", _share(fall.ceiling_answered)]
        is_overall = fall.ability == "all"
        for error_class in classes:
            count = fall.error_counts.get(error_class, 0)
            is_link = is_overall and count
            cells.append(f'<a href="#{_anchor(name, error_class)}">{count:,}</a>' if is_link else f"{count:,}")
        rows.append(_row(fall.ability, cells))
    head = ("ability", "n", *STAGES, *CEILING, *(CLASS_LABELS[error_class] for error_class in classes))
    bars = stacked_bars([_bar(fall.ability, fall) for fall in falls[:-1]]) if len(falls) > 2 else ""
    return (
        f"<details><summary>{escape(title)}: by ability</summary>"
        f'<div class="card scroll wrap"><table>{_head(head)}{"".join(rows)}</table></div>'
        + (f"<figure>{bars}</figure>" if bars else "")
        + '<p class="soft">Written, kept, retrieved, answered: the share of all n questions that got that far. '
        "Ceiling: of the questions that name evidence, the share that the same reader has right when shown it; beside "
        "it the share that the system has right of these."
        + (f" The support of the answer was found by these rules: {rule_counts}." if rule_counts else "")
        + "</p></details>"
    )


def _failures(name: str, title: str, records: Sequence[Record]) -> str:
    parts = []
    for error_class in CLASS_LABELS:
        failed = [record for record in records if record.error_class == error_class]
        if not failed:
            continue
        items = "".join(_failure(name, record) for record in failed[:MAX_FAILURES])
        more = len(failed) - MAX_FAILURES
        rest = f'<p class="soft">… and {more:,} more in eval/{escape(name)}.jsonl.</p>' if more > 0 else ""
        parts.append(
            f'<details id="{_anchor(name, error_class)}"><summary>{swatch(_css_kind(error_class))}'
            f"{escape(CLASS_LABELS[error_class])}: {len(failed):,}</summary>"
            f'<p class="soft">In short: {escape(ERROR_CLASSES[error_class])}.</p>{items}{rest}</details>'
        )
    return f'<div class="card failures"><h3>{escape(title)}</h3>{"".join(parts) or "<p>None.</p>"}</div>'


def _failure(name: str, record: Record) -> str:
    gold = " or ".join(record.gold) or "not known"
    answer = record.answer or "(nothing)"
    classified = record.feedback or (
        f"Question: {record.question}\nAnswered: {answer}\nRight: {gold}\n"
        f"Retrieved: {' | '.join(record.retrieved[:20]) or '(nothing)'}"
    )
    facts = [record.ability, f"task {record.task}", record.question_id, f"score {record.score:.2f}"]
    facts += [] if record.evidence_recall is None else [f"evidence recall {record.evidence_recall:.2f}"]
    facts += [] if record.rule is None else [f"support by {record.rule}"]
    facts += [] if record.ceiling is None else [f"with the evidence itself {'right' if record.ceiling else 'wrong'}"]
    anchor = _anchor(name, record.task, record.question_id, str(record.rollout))
    text = f'<span class="nope">✗ {escape(_short(answer))}</span> <span class="yes">{escape(_short(gold))}</span>'
    return (
        f'<details id="{anchor}"><summary>{escape(record.question)} {text}</summary>'
        f'<p class="soft">{" · ".join(map(escape, facts))}</p><pre>{escape(classified)}</pre></details>'
    )


def _anchor(*parts: str) -> str:
    return escape("-".join("".join(c if c.isalnum() else "-" for c in part) for part in parts))


def _short(text: str, length: int = 60) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _head(names: Sequence[str]) -> str:
    first, *rest = map(escape, names)
    return f"<tr><th>{first}</th>" + "".join(f'<th class="n">{name}</th>' for name in rest) + "</tr>"


def _row(label: str, cells: Sequence[str]) -> str:
    return (
        f'<tr><th scope="row">{escape(label)}</th>' + "".join(f'<td class="n">{cell}</td>' for cell in cells) + "</tr>"
    )


def _interval(interval: Estimate) -> str:
    return "-" if interval.low is None or interval.high is None else f"{interval.low:.3f} … {interval.high:.3f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
