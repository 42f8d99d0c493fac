"""The page's part on an evaluation: every system's figures, where its answers were lost, and each failure to open.

Read from the records (`eval/*.jsonl`) alone. Failures are `<details>` with an anchor each, so the page needs no script;
of many in one class the first are shown and the rest counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from memalpha.qa.error_analysis import ERROR_CLASSES, Waterfall, waterfall
from memalpha.qa.records import Record
from memalpha.qa.reporting.compare import load_records
from memalpha.qa.scoring.stats import Estimate, ScoredAnswer, estimate, micro
from memalpha.report.charts import Bar, stacked_bars, swatch

SHOWN = 40  # failures of one class of one system
RESAMPLES = 2_000
RIGHT = "right"
LABELS = {
    RIGHT: "answered rightly",
    "answered_wrong": "retrieved, answered wrong",
    "should_have_abstained": "should have abstained",
    "not_retrieved": "held, not retrieved",
    "not_found": "not among what was retrieved",
    "overwritten_or_deleted": "overwritten or deleted",
    "written_wrong": "written wrong",
    "never_written": "never written",
    "gold_faulty": "gold answer faulty",
}
"""What the parts of a bar are called, from what came through to what was lost first."""
STEPS = ("written", "kept", "retrieved", "answered")
CEILING = ("ceiling", "of", "answered of these")
"""Three columns with a denominator of their own: the questions that name evidence."""

Systems = Mapping[str, Sequence[Record]]


def systems_of(folder: Path) -> dict[str, list[Record]]:
    """Records by file of an `eval` folder, of the files that tell losses, best mean score first; {} where none does."""
    files = {path.stem: load_records(path) for path in sorted(folder.glob("*.jsonl"))}
    told = {
        name: records for name, records in files.items() if all(r.correct or r.error_class for r in records) and records
    }
    return dict(sorted(told.items(), key=lambda item: -micro(_rows(item[1]))))


def unjudged_of(folder: Path) -> dict[str, int]:
    """By file of an `eval` folder, how many answers no judge gave a verdict on; they are in no record."""
    suffix = ".unjudged.json"
    found = {path: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"*{suffix}"))}
    return {path.name.removesuffix(suffix): len(left) for path, left in found.items()}


def evaluation(systems: Systems, titles: Mapping[str, str], unjudged: Mapping[str, int] | None = None) -> str:
    """HTML of the systems' figures, losses and failures; "" where there are none. `titles`: what some are called;
    `unjudged`: of how many answers of some there is no verdict."""
    if not systems:
        return ""
    names = {name: titles.get(name) or records[0].system or name for name, records in systems.items()}
    falls = {name: waterfall(records) for name, records in systems.items()}
    wholes = {names[name]: fall[-1] for name, fall in falls.items() if fall}
    seen = {RIGHT, *(loss for fall in wholes.values() for loss in fall.error_counts)}
    legend = "".join(f"<li>{swatch(_kind(loss))}{escape(label)}</li>" for loss, label in LABELS.items() if loss in seen)
    about = (
        "All questions of each system: answered rightly (left), and what became of the others, from wrong although "
        "retrieved to never written (right)."
    )
    if any(fall.ceiling is not None for fall in wholes.values()):
        about += (
            " The line marks the ceiling: what the same reader has right when shown the evidence itself. Where only "
            "some questions name evidence there is no line: the ceiling stands in the tables below, over those."
        )
    bars = stacked_bars([_bar(name, fall) for name, fall in wholes.items()])
    parts = [
        "<h2>Systems on the same questions</h2>",
        _figures({names[name]: records for name, records in systems.items()}),
        *_left_out({names[name]: count for name, count in (unjudged or {}).items() if name in names}),
        "<h2>Where the answers were lost</h2>",
        f'<figure><figcaption>{about}</figcaption><ul class="legend">{legend}</ul>{bars}</figure>',
    ]
    parts += [_by_ability(name, names[name], fall) for name, fall in falls.items() if fall]
    parts.append("<h2>Failures</h2><p>By system and by where the answer was lost; each opens.</p>")
    parts += [_failures(name, names[name], records) for name, records in systems.items()]
    return "\n".join(parts)


def _rows(records: Sequence[Record]) -> list[ScoredAnswer]:
    return [ScoredAnswer(record.task, record.ability, float(record.score)) for record in records]


def _kind(loss: str) -> str:
    return f"loss-{loss}"


def _bar(label: str, fall: Waterfall) -> Bar:
    counts = {RIGHT: round(fall.answered * fall.n), **fall.error_counts}
    shares = [(_kind(name), LABELS[name], counts[name] / fall.n) for name in LABELS if counts.get(name)]
    return Bar(f"{label} ({fall.n})", tuple(shares), fall.ceiling if fall.ceiling_n == fall.n else None)


def _figures(systems: Systems) -> str:
    head = ("system", "score", "95 %", "macro", "95 %", "evidence recall", "tokens shown", "abstained", "stale")
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
        "conversations."
    )
    return f'<p>{about}</p><div class="card scroll"><table>{_head(head)}{"".join(rows)}</table></div>'


def _left_out(unjudged: Mapping[str, int]) -> list[str]:
    said = ", ".join(f"{count:,} answers of {escape(name)}" for name, count in unjudged.items())
    return [f'<p class="soft">In no figure, because no judge gave a readable verdict: {said}.</p>'] if said else []


def _by_ability(name: str, title: str, falls: Sequence[Waterfall]) -> str:
    lost = [loss for loss in LABELS if loss in falls[-1].error_counts]
    rows = []
    for fall in falls:
        cells = [f"{fall.n:,}", *(_share(getattr(fall, step)) for step in STEPS)]
        cells += [_share(fall.ceiling), f"{fall.ceiling_n:,}", _share(fall.ceiling_answered)]
        whole = fall.ability == "all"
        for loss in lost:
            count = fall.error_counts.get(loss, 0)
            cells.append(f'<a href="#{_anchor(name, loss)}">{count:,}</a>' if whole and count else f"{count:,}")
        rows.append(_row(fall.ability, cells))
    head = ("ability", "n", *STEPS, *CEILING, *(LABELS[loss] for loss in lost))
    bars = stacked_bars([_bar(fall.ability, fall) for fall in falls[:-1]]) if len(falls) > 2 else ""
    return (
        f"<details><summary>{escape(title)}: by ability</summary>"
        f'<div class="card scroll wrap"><table>{_head(head)}{"".join(rows)}</table></div>'
        + (f"<figure>{bars}</figure>" if bars else "")
        + '<p class="soft">Written, kept, retrieved, answered: the share of all n questions that got that far. '
        "Ceiling: of those that name evidence, the share that the same reader has right when shown it; beside it what "
        "the system has right of these.</p></details>"
    )


def _failures(name: str, title: str, records: Sequence[Record]) -> str:
    parts = []
    for loss in LABELS:
        failed = [record for record in records if record.error_class == loss]
        if not failed:
            continue
        items = "".join(_failure(name, record) for record in failed[:SHOWN])
        more = len(failed) - SHOWN
        rest = f'<p class="soft">… and {more:,} more in eval/{escape(name)}.jsonl.</p>' if more > 0 else ""
        parts.append(
            f'<details id="{_anchor(name, loss)}"><summary>{swatch(_kind(loss))}{escape(LABELS[loss])}: {len(failed):,}'
            f'</summary><p class="soft">In short: {escape(ERROR_CLASSES[loss])}.</p>{items}{rest}</details>'
        )
    return f'<div class="card failures"><h3>{escape(title)}</h3>{"".join(parts) or "<p>None.</p>"}</div>'


def _failure(name: str, record: Record) -> str:
    gold = " or ".join(record.gold) or "not known"
    answer = record.answer or "(nothing)"
    told = record.feedback or (
        f"Question: {record.question}\nAnswered: {answer}\nRight: {gold}\n"
        f"Retrieved: {' | '.join(record.retrieved[:20]) or '(nothing)'}"
    )
    facts = [record.ability, f"task {record.task}", record.question_id, f"score {record.score:.2f}"]
    facts += [] if record.evidence_recall is None else [f"evidence recall {record.evidence_recall:.2f}"]
    facts += [] if record.ceiling is None else [f"with the evidence itself {'right' if record.ceiling else 'wrong'}"]
    anchor = _anchor(name, record.task, record.question_id, str(record.rollout))
    said = f'<span class="nope">✗ {escape(_short(answer))}</span> <span class="yes">{escape(_short(gold))}</span>'
    return (
        f'<details id="{anchor}"><summary>{escape(record.question)} {said}</summary>'
        f'<p class="soft">{" · ".join(map(escape, facts))}</p><pre>{escape(told)}</pre></details>'
    )


def _anchor(*parts: str) -> str:
    return escape("-".join("".join(c if c.isalnum() else "-" for c in part) for part in parts))


def _short(text: str, length: int = 60) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _head(names: Sequence[str]) -> str:
    first, *others = map(escape, names)
    return f"<tr><th>{first}</th>" + "".join(f'<th class="n">{name}</th>' for name in others) + "</tr>"


def _row(label: str, cells: Sequence[str]) -> str:
    return (
        f'<tr><th scope="row">{escape(label)}</th>' + "".join(f'<td class="n">{cell}</td>' for cell in cells) + "</tr>"
    )


def _interval(found: Estimate) -> str:
    return "-" if found.low is None or found.high is None else f"{found.low:.3f} … {found.high:.3f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
