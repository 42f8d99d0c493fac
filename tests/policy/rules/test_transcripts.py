"""Thirty short transcripts in the usual forms: what the heuristic writer must keep, and what it must not store."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from memalpha.agent.agent import MemoryAgent
from memalpha.store.store import MemoryStore

TRANSCRIPTS = json.loads((Path(__file__).parent / "transcripts.json").read_text(encoding="utf-8"))
FORMS = {"user:": 5, "User:": 5, "names": 7, "plain": 3, "chat JSON": 5, "mixed languages": 5}


def written(transcript) -> list[str]:
    store = MemoryStore.open(":memory:", embedder="hash")
    agent = MemoryAgent("sentence_rules", store)
    for part in transcript["read"]:
        agent.read(part, timestamp=transcript.get("timestamp"))
    return [entry.content for entry in store.list()]


def test_recall_and_precision_over_golden_transcripts():
    assert Counter(transcript["form"] for transcript in TRANSCRIPTS) == FORMS
    missed, wrong, kept = [], [], 0
    for transcript in TRANSCRIPTS:
        contents = written(transcript)
        found = [fact for fact in transcript["keep"] if any(fact in content for content in contents)]
        kept += len(found)
        missed += [(fact, contents) for fact in transcript["keep"] if fact not in found]
        wrong += [(text, contents) for text in transcript["drop"] if any(text in content for content in contents)]
    recall, precision = kept / (kept + len(missed)), kept / (kept + len(wrong))
    assert recall >= 0.95, missed
    assert precision >= 0.95, wrong
