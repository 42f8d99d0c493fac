#!/usr/bin/env python
"""Measure the overlap of training sets and test sets in a folder (`memalpha.tasks.overlap`):

    python eval/qa/overlap.py DATA --out eval/results/overlap.json

DATA holds a folder for each set, named as in `FOLDERS`. Every set is a training set and a test set; labelled sets train
on their training split (one example a label, so that a stream holds little else than what is asked), FriendsQA on dev.
A Markdown row for every pair that shares anything goes to stdout, all pairs to --out, with CPU seconds and words read.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memalpha.tasks.load import load_tasks
from memalpha.tasks.overlap import find_overlap

FOLDERS = {
    "babi": None,
    "locomo": "locomo",
    "friendsqa": "friendsqa",
    "hotpotqa": "hotpotqa_small",
    "musique": "hotpotqa_small",
    "xquad": "xquad_en",
    "banking77": "banking77",
    "clinc150": "clinc150",
    "nlu": "nlu",
    "trec": "trec",
}
LABELLED = ("banking77", "clinc150", "nlu", "trec")
HEADER = "| training set | test set | questions | asked | said | 13 words | inside | on passages | shared whole |"


def main(argv: Sequence[str] | None = None) -> None:
    """Compare every pair of sets, and a set with itself if its two sides differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args(argv)
    sides: dict[str, dict[str, Any]] = {"train": {}, "test": {}}
    for name, folder in FOLDERS.items():
        data = None if folder is None else arguments.data / folder
        for side, sets in sides.items():
            options: dict[str, Any] = {"split": side, "examples": 1} if name in LABELLED else {}
            if name == "friendsqa":
                options["variant"] = "dev" if side == "train" else "test"
            sets[name] = load_tasks(name, data=data, **options)
    rows: list[dict[str, Any]] = []
    print(HEADER, "|---" * HEADER.count("| ") + "|", sep="\n")
    for train in FOLDERS:
        for test in FOLDERS:
            if train == test and train not in (*LABELLED, "friendsqa"):
                continue
            start = time.process_time()
            report = find_overlap(sides["train"][train], sides["test"][test], examples=3)
            row = {"train": train, "test": test, "questions": report.questions, "reasons": report.reasons}
            row |= {"leaked": len(report.leaked), "inside": len(report.inside), "resting": len(report.resting)}
            row |= {"passages": report.passages, "words": report.sizes["train"]["words"]}
            row |= {"cpu_seconds": round(time.process_time() - start, 3)}
            row["examples"] = [[example.reason, example.text, example.train_text] for example in report.examples]
            rows.append(row)
            if report.leaked or report.inside or report.resting:
                counts = [report.reasons[key] for key in ("question", "said", "question n-gram")]
                counts += [len(report.inside), len(report.resting), report.passages["whole"]]
                print(f"| {train} | {test} | {report.questions} | {' | '.join(map(str, counts))} |")
    read, seconds = (sum(row[key] for row in rows) for key in ("words", "cpu_seconds"))
    print(f"{len(rows)} pairs, {read:,} training words, {seconds:.1f} s of CPU", file=sys.stderr)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
