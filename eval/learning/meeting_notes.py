"""Follow README's road on the twenty notes of examples/data/meetings.json, with a stand-in for the teacher.

    python eval/learning/meeting_notes.py runs/notes

The teacher is a script behind an endpoint (tests/support/meeting_teacher.py). It knows the facts of the notes: it asks
about them, answers and writes without fault. So the figures show what a small model learns from a good teacher's rows,
not how good a teacher is.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from meeting_teacher import reply
from standin import StandIn

NOTES = Path(__file__).parents[2] / "examples" / "data" / "meetings.json"

COMMANDS = (
    "data check {notes}",
    "data ask {notes} --policy {teacher} --out train.jsonl --held-out held-out.jsonl",
    "data write train.jsonl --policy {teacher} --best-of 4 --student smol --out rows.jsonl",
    "train smollm2-sft policy=smol source=rows.jsonl {data} schedule_steps=24 eval_steps=8 out=runs/sft",
    "train smollm2 init_from=runs/sft reward.credit=calls {data} schedule_steps=12 eval_steps=4 out=runs/grpo",
    "report runs/grpo",
    "eval runs/grpo data=held-out.jsonl systems=trained,append-only out=runs/beside",
)


def main() -> None:
    """Run the commands in a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the files and runs")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with StandIn(reply) as server:
        teacher = f"{server.url}#stand-in"
        reader = f"reader.kind=policy reader.policy={teacher} reward.metric=contains"
        data = f"data=train.jsonl eval_data=held-out.jsonl {reader}"
        for command in COMMANDS:
            line = command.format(notes=NOTES, teacher=teacher, data=data)
            print(f"$ memalpha {line}", flush=True)
            subprocess.run([sys.executable, "-m", "memalpha", *shlex.split(line)], cwd=folder, check=True)


if __name__ == "__main__":
    main()
