"""The options of `memalpha search` that choose and order hits."""

import json
import os
import subprocess
import sys
from pathlib import Path

from memalpha.store.store import MemoryStore


def _search(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "memalpha", "search", *arguments]
    return subprocess.run(
        command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False, timeout=120
    )


def test_min_score_and_reranker_reach_the_search(tmp_path: Path) -> None:
    path = tmp_path / "ana.db"
    with MemoryStore.open(str(path), embedder="hash") as store:
        store.add("Ana lives in Porto")
        store.add("Ben plays chess on Mondays")
    query = (str(path), "Where does Ana live?", "--embedder", "hash")
    hits = json.loads(_search(*query, "--json").stdout)
    assert len(hits) == 2 and hits[0]["score"] > hits[1]["score"]
    limit = (hits[0]["score"] + hits[1]["score"]) / 2
    kept = json.loads(_search(*query, "--json", "--min-score", str(limit)).stdout)
    assert [hit["entry"]["id"] for hit in kept] == [hits[0]["entry"]["id"]]

    missing = tmp_path / "no-such-cross-encoder"
    refused = _search(*query, "--reranker", str(missing))
    assert refused.returncode != 0
    assert "reranker" in refused.stderr and missing.name in refused.stderr
    assert "Traceback" not in refused.stderr
