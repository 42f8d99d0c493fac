"""All systems on LoCoMo, bAbI streams or the synthetic suite, by one protocol: the recorded tables of `memalpha eval`.

    python eval/qa/systems.py locomo --data locomo10.json --audit errors.json
    python eval/qa/systems.py babi --trained runs/babi/checkpoints/best
    python eval/qa/systems.py synthetic --trained runs/demo/checkpoints/best

The synthetic suite: the full world's held-out streams of 8k, 30k, 120k and 400k tokens, one stream a seed, five seeds;
what is averaged are questions, intervals are over streams. Writers of the demo's size see 64 tokens at a time (their
window is 2,048), on the lengths of --writer-tokens only: they read about 900 tokens a second. bAbI is read three times:
by rules that understand statements and facts alike (`babi_reader`), by the extractive floor, and by the start of the
trained writer, which understands facts alone.

Writes NAME.json to --results, and its tables into NAME.md, between the marks there. A run that measures some systems or
lengths leaves the others as they are recorded, on the same tasks. What an evaluation leaves of answers goes to --out; a
system that has been measured there is not measured again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from babi_reader import RuleReader

from memalpha.agent.reader import Reader
from memalpha.config import EvalConfig, load_config
from memalpha.qa.evaluate import run_systems
from memalpha.qa.from_config import load_config_tasks, run_evaluation
from memalpha.qa.report import Report, provenance

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser

BASELINES = ("empty", "append-only", "rag", "rag:chunks", "full", "window", "oracle")
REFERENCES = ("scripted:append-only", "scripted:oracle")
LENGTHS = (8_000, 30_000, 120_000, 400_000)
FIGURES = (
    "accuracy", "accuracy_interval", "answerable_accuracy", "score", "update_accuracy", "retract_accuracy",
    "stale_rate", "abstained", "ceiling", "ceiling_n", "ceiling_answered", "evidence_recall", "evidence_recall@10",
    "tokens", "memory_tokens", "conversation_tokens", "losses", "unjudged",
)  # fmt: skip


def measured(
    settings: EvalConfig, label: str, names: Mapping[str, str], reader: Reader | None = None
) -> list[dict[str, Any]]:
    """Evaluate each system and return its row: metrics, accuracy by ability, cost. Rows are saved in `settings.out`.

    Args:
        settings: The evaluation.
        label: Name of the set.
        names: Label of a system, if it is not its name.
        reader: Reader that replaces the one of the settings.
    """
    rows_path = Path(str(settings.out)) / "rows.json"
    previous = json.loads(rows_path.read_text(encoding="utf-8")) if rows_path.is_file() else []
    rows = []
    for system in settings.systems:
        if recorded_rows := [row for row in previous if row["system"] == names.get(system, system)]:
            rows += recorded_rows
            continue
        began, cpu = time.perf_counter(), time.process_time()
        single = settings.model_copy(update={"systems": (system,)})
        [report] = run_evaluation(single) if reader is None else read_by(reader, single)
        summary = report.summary
        rows.append(
            {
                "set": label,
                "system": names.get(system, system),
                "questions": len(report.records),
                **{name: summary.get(name) for name in FIGURES},
                "by_ability": {name: part["accuracy"] for name, part in summary["by_ability"].items()},
                "cpu_s": round(time.process_time() - cpu, 1),
                "wall_s": round(time.perf_counter() - began, 1),
            }
        )
        print(f"{label}: {rows[-1]['system']}: {rows[-1]['accuracy']:.3f} ({rows[-1]['cpu_s']} s)", file=sys.stderr)
        other_rows = [row for row in previous if row["system"] not in {done["system"] for done in rows}]
        rows_path.write_text(json.dumps([*other_rows, *rows], indent=1) + "\n", encoding="utf-8")
    return rows


def read_by(reader: Reader, settings: EvalConfig) -> list[Report]:
    """Run an evaluation with a reader that no configuration can name."""
    return run_systems(
        settings.systems,
        load_config_tasks(settings),
        reader,
        budget=settings.context_tokens,
        metric=settings.metric,
        k=settings.reader.k,
        agent=settings.agent,
        on_report=lambda report: report.save(Path(str(settings.out))) and None,
    )


def figure(value: Any) -> str:
    """Format a cell: three decimals, counts without, intervals as a range."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return " to ".join(figure(item) for item in value)
    return f"{value:,.0f}" if abs(value) > 10 else f"{value:.3f}"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the rows of one set as Markdown, without empty columns."""
    names = {
        "accuracy": "accuracy", "accuracy_interval": "95 %", "answerable_accuracy": "answerable", "score": "score",
        "stale_rate": "stale answers", "evidence_recall": "evidence shown", "tokens": "tokens shown",
        "memory_tokens": "tokens held", "cpu_s": "CPU s",
    }  # fmt: skip
    names = {key: name for key, name in names.items() if any(row[key] is not None for row in rows)}
    if all(row["score"] == row["accuracy"] for row in rows):
        del names["score"]
    abilities = sorted({ability for row in rows for ability in row["by_ability"]})
    head = ["system", *names.values(), *abilities]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [figure(row[key]) for key in names] + [figure(row["by_ability"].get(ability)) for ability in abilities]
        lines.append("| " + " | ".join([row["system"], *cells]) + " |")
    return "\n".join(lines)


def losses(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the number of wrong answers by error class for each system."""
    classes = sorted({name for row in rows for name in row["losses"]})
    head = ["system", "right", *(name.replace("_", " ") for name in classes)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        right = row["questions"] - sum(row["losses"].values())
        lines.append("| " + " | ".join([row["system"], *map(str, [right, *map(row["losses"].get, classes)])]) + " |")
    return "\n".join(lines).replace("None", "")


MARKS = ("<!-- tables -->", "<!-- end of tables -->")


def recorded(stem: Path, sets: Sequence[Mapping[str, Any]]) -> None:
    """Merge `sets` into `stem`.json and its page: new rows replace old ones of their systems."""
    previous_sets = (
        json.loads(stem.with_suffix(".json").read_text(encoding="utf-8")) if stem.with_suffix(".json").exists() else []
    )
    by_set = {entry["set"]: entry for entry in previous_sets}
    for entry in sets:
        previous = by_set.get(entry["set"], {"tasks_sha256": "", "rows": []})
        earlier_rows = previous["rows"] if previous["tasks_sha256"] == entry["tasks_sha256"] else []
        rows = {row["system"]: row for row in (*earlier_rows, *entry["rows"])}
        by_set[entry["set"]] = {**entry, "rows": sorted(rows.values(), key=lambda row: _position(row["system"]))}
    ordered = sorted(
        by_set.values(), key=lambda entry: entry["config"]["world"]["tokens"] or 0
    )  # the lengths of a suite
    stem.with_suffix(".json").write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    page = stem.with_suffix(".md")
    text = page.read_text(encoding="utf-8") if page.exists() else "\n".join(MARKS)
    head, _, rest = text.partition(MARKS[0])
    tables = "\n".join(section(entry) for entry in ordered)
    page.write_text(f"{head}{MARKS[0]}\n\n{tables}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}", encoding="utf-8")


def _position(system: str) -> int:
    order = (*BASELINES, "facts", *REFERENCES, "tiny", "babi", "trained")
    return order.index(system) if system in order else len(order)


def section(entry: Mapping[str, Any]) -> str:
    """Format the tables of one set."""
    first = entry["rows"][0]
    right, count = first["ceiling"], first["ceiling_n"]
    ceiling = (
        f"Shown the evidence itself, the reader is right in {right:.3f} of the {count:,} questions that name some.\n\n"
    )
    return (
        f"## {entry['set']} ({first['questions']:,} questions)\n\n{ceiling}{table(entry['rows'])}\n\n"
        f"Where the wrong answers were lost, in questions:\n\n{losses(entry['rows'])}\n"
    )


def _origin(settings: EvalConfig, reader: Reader | None) -> dict[str, Any]:
    """Return `provenance` without the paths of this machine."""
    origin = provenance(settings, load_config_tasks(settings))
    keys = (
        "benchmark", "variant", "seeds", "limit", "chunk_tokens", "world", "babi", "context_tokens", "reader", "agent",
    )  # fmt: skip
    origin["config"] = {name: origin["config"][name] for name in keys}
    if reader is not None:
        origin["config"]["reader"] = {"name": reader.name, "k": settings.reader.k, "conflicts": reader.conflicts}
    return origin


def main() -> None:
    """Run the chosen evaluations and record them."""
    parser = make_parser(__doc__, out=Path("runs/systems"), seeds=[0, 1, 2, 3, 4])
    parser.add_argument("suite", choices=("locomo", "babi", "synthetic"))
    parser.add_argument("--data", help="locomo: locomo10.json")
    parser.add_argument("--audit", help="locomo: the third-party audit's errors.json")
    parser.add_argument("--trained", help="babi, synthetic: a trained writer's checkpoint")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="synthetic: tokens of a stream")
    parser.add_argument(
        "--writer-tokens", type=int, nargs="*", default=LENGTHS[:1], help="synthetic: of these, writers"
    )
    parser.add_argument("--outside", nargs="*", default=[], help="further systems, as package.module:factory")
    parser.add_argument("--systems", nargs="*", help="babi, synthetic: only these (default: all)")
    args = parser.parse_args()
    plans: list[tuple[str, EvalConfig]] = []
    readers: dict[str, Reader] = {}
    if args.suite == "locomo":
        overrides: dict[str, Any] = {
            "data": args.data,
            "systems": ["empty", *BASELINES[1:7], "facts", "oracle", *args.outside],
        }
        if args.audit:
            overrides["options"] = {"audit": args.audit}
        plans.append(("LoCoMo", load_config(EvalConfig, "locomo", overrides)))
    elif args.suite == "babi":
        writers = [*REFERENCES, "babi", *([args.trained] if args.trained else [])]
        shared: dict[str, Any] = {
            "benchmark": "babi", "babi": {"stories": 6}, "limit": 12, "seeds": args.seeds, "context_tokens": 1024,
            "agent": {"prompt": "compact", "view_related": 12, "view_recent": 0, "max_new_tokens": 72},
            "systems": args.systems or [*BASELINES, *args.outside, *writers],
        }  # fmt: skip
        # One reads raw statements and facts alike, one quotes, one knows the facts that trained writers note.
        readers["bAbI, read by rules"] = RuleReader()
        floor = {"kind": "extractive", "k": 12, "conflicts": "newest"}
        start = {"kind": "policy", "policy": "babi", "prompt": "compact", "k": 12, "conflicts": "newest"}
        for label, metric, reader in (
            ("bAbI, read by rules", "exact", floor),
            ("bAbI, read by the extractive floor", "contains", floor),
            ("bAbI, read by the writers' start", "exact", start),
        ):
            plans.append((label, EvalConfig.model_validate({**shared, "metric": metric, "reader": reader})))
    else:
        for tokens in args.lengths:
            shared = {
                "benchmark": "synthetic", "world": {"preset": "full", "split": "test", "tokens": tokens}, "limit": 1,
                "seeds": args.seeds, "metric": "contains", "context_tokens": 1024,
                "reader": {"kind": "extractive", "k": 20, "conflicts": "refuse"},
                "systems": args.systems or [*BASELINES, *args.outside, *REFERENCES],
            }  # fmt: skip
            if args.systems is None or args.systems:
                plans.append((f"{tokens:,} tokens", EvalConfig.model_validate(shared)))
            if tokens in args.writer_tokens:
                shared |= {
                    "chunk_tokens": 64, "systems": ["tiny", *([args.trained] if args.trained else [])],
                    "agent": {"prompt": "compact", "max_new_tokens": 128, "view_tokens": 384},
                }  # fmt: skip
                plans.append((f"{tokens:,} tokens, read 64 at a time", EvalConfig.model_validate(shared)))
    names = {str(args.trained): "trained", **{name: name.rpartition(":")[2] for name in args.outside}}
    sets = []
    for label, settings in plans:
        folder = args.out / args.suite / label.replace(",", "").replace("'", "").replace(" ", "-")
        settings = settings.model_copy(update={"out": folder})
        rows = measured(settings, label, names, readers.get(label))
        sets.append({"set": label, "rows": rows, **_origin(settings, readers.get(label))})
        recorded(args.results / f"systems-{args.suite}", sets)  # after each, so that a long run can be ended


if __name__ == "__main__":
    main()
