"""Writers of one evaluation in one table: evidence kept and shown, score, tokens, and where answers were lost.

    memalpha eval locomo data=DATA/locomo/locomo10.json limit=2 chunk_tokens=120 \\
        'systems=[append-only,rag,smol]' agent.view_tokens=256 agent.max_new_tokens=160 out=RUNS/locomo
    memalpha eval friendsqa data=DATA/friendsqa limit=2 (the same) out=RUNS/friendsqa
    python eval/qa/writers.py RUNS/locomo RUNS/friendsqa

Evidence counts as kept or shown if an entry ties to the turn that an answerable question cites and says what is asked
for (`memalpha/qa/error_analysis.py`). Writes writers.json and the tables of writers.md to --results.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from memalpha.qa.compare import load_records
from memalpha.qa.error_analysis import ERROR_CLASSES

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser, replace_table

MARK = "<!-- table -->"
UNANSWERABLE = "should_have_abstained"
HEAD = ("set", "writer", "questions", "evidence kept", "evidence shown", "score", "tokens shown", "tokens held")


def measure(run: Path) -> list[dict[str, Any]]:
    """Return a row per writer of an evaluation's folder."""
    rows = []
    for file in sorted((run / "eval").glob("*.jsonl")):
        summary = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
        records = [record for record in load_records(file) if record.error_class != UNANSWERABLE]
        known = [record for record in records if record.live is not None and record.rule != "answers"]
        rows.append(
            {
                "set": run.name,
                "writer": file.stem,
                "questions": len(records),
                "kept": round(sum(bool(record.live) for record in known) / len(known), 4),
                "shown": round(sum(bool(record.support_retrieved) for record in known) / len(known), 4),
                "score": round(sum(record.score for record in records) / len(records), 4),
                "tokens_shown": round(summary["tokens"], 1),
                "tokens_held": round(summary["memory_tokens"]),
                "losses": Counter(record.error_class for record in records if record.error_class),
            }
        )
    return sorted(rows, key=lambda row: -row["kept"])


def tables(rows: list[dict[str, Any]]) -> str:
    """Return the figures and the lost answers as two Markdown tables."""
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    for row in rows:
        cells = [row["set"], row["writer"], f"{row['questions']:,}"]
        cells += [f"{row[key]:.3f}" for key in ("kept", "shown", "score")]
        cells += [f"{row['tokens_shown']:,.0f}", f"{row['tokens_held']:,}"]
        lines.append(f"| {' | '.join(cells)} |")
    names = [name for name in ERROR_CLASSES if any(row["losses"][name] for row in rows)]
    lines += ["", f"| set | writer | {' | '.join(names)} | right |", "|---" * (len(names) + 3) + "|"]
    for row in rows:
        counts = [row["losses"][name] for name in names]
        cells = [row["set"], row["writer"], *map(str, counts), str(row["questions"] - sum(counts))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Read the evaluations, and write the record and its page."""
    parser = make_parser(__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders that `memalpha eval` wrote, named by their set")
    options = parser.parse_args()
    rows = [row for run in options.runs for row in measure(run)]
    (options.results / "writers.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    replace_table(options.results / "writers.md", MARK, tables(rows))
    print(tables(rows))


if __name__ == "__main__":
    main()
