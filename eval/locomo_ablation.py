#!/usr/bin/env python
"""What each part of two-layer search brings on LoCoMo: `python eval/locomo_ablation.py locomo10.json [embedder...]`.

Rows: the sum of scores over the turns' own text, then with the session prior, with the neighbouring turns in the
lexical text, and with both; and the prior over other groups than sessions (the speaker: two groups a conversation).
"""

from __future__ import annotations

import sys
from dataclasses import replace

from memalpha.qa.locomo import documents, measure
from memalpha.store.embedding import load_embedder
from memalpha.store.retrieval import Corpus, Route
from memalpha.tasks.locomo import load_locomo

ROWS: list[tuple[str, str, Route, bool]] = [
    ("sum (flat)", "own", "flat", False),
    ("sum + prior of sessions", "own", "soft", False),
    ("sum + neighbours", "neighbours", "flat", False),
    ("sum + neighbours + prior of sessions (two-layer)", "neighbours", "soft", False),
    ("sum + prior of speakers", "own", "soft", True),
    ("sum + neighbours + prior of speakers", "neighbours", "soft", True),
]


def main(path: str, *embedders: str) -> None:
    """Print one Markdown row a combination and embedder."""
    tasks = load_locomo(path)
    print("| embedder | score | recall@5 | recall@10 | recall@20 | mrr |\n|---|---|---|---|---|---|")
    for embedder in map(load_embedder, embedders or ("static",)):
        for label, text, route, by_speaker in ROWS:
            corpora = []
            for task in tasks:
                made = documents(task, text)
                if by_speaker:
                    speakers = [turn.speaker for chunk in task.chunks for turn in chunk.turns]
                    made = [replace(document, group=speaker) for document, speaker in zip(made, speakers, strict=True)]
                corpora.append(Corpus(embedder, made))
            row = measure(tasks, corpora, route)
            figures = " | ".join(f"{row[key]:.3f}" for key in ("recall@5", "recall@10", "recall@20", "mrr"))
            print(f"| {embedder.name} | {label} | {figures} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
