"""A small run directory with the files that a finished training run leaves."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ABILITIES = {"extraction": 0.9, "knowledge-update": 0.8, "multi-session": 0.6, "temporal": 0.4, "abstention": 0.95}


def system(scale: float) -> dict[str, Any]:
    """One system's summary whose figures are multiples of `scale`."""
    shares = ("accuracy", "update_accuracy", "retract_accuracy", "update_hit", "delete_hit", "valid_calls")
    figures: dict[str, Any] = {key: round(scale * 0.95, 3) for key in shares}
    figures |= {"se": 0.014, "stale_rate": 0.2 * (1 - scale), "memory_tokens": 61.0, "conversation_tokens": 412.0}
    figures["by_ability"] = {name: {"accuracy": scale * best, "se": 0.02, "n": 240} for name, best in ABILITIES.items()}
    return figures


def walked(writes: bool) -> dict[str, Any]:
    """One system's side of `example.json`; `writes`: it updates and deletes, else it only inserts and errs once."""
    fields = {"category": "semantic", "content": "city: Oslo"}
    insert = {"name": "memory_insert", "arguments": fields, "raw": "", "ok": True, "code": "inserted", "message": ""}
    insert |= fields | {"entry_id": "city#e", "before": None}
    change = insert | {"name": "memory_update", "code": "updated", "content": "city: Rome", "before": "city: Oslo"}
    broken = insert | {"name": "", "raw": '<tool_call>{"name": <b>', "ok": False, "code": "malformed", "entry_id": None}
    oslo = {"id": "city#e", "category": "semantic", "content": "city: Oslo", "timestamp": "2024-05-01"}
    cat = {"id": "pet#k", "category": "semantic", "content": "pet: cat", "timestamp": "2024-05-01"}
    rome = oslo | {"content": "city: Rome", "timestamp": "2024-05-09"}
    second = {"calls": [change] if writes else [broken], "core": "", "memory": [rome] if writes else [oslo, cat]}
    answer = {"question_id": "q1", "ability": "knowledge-update", "question": "Where do I live?", "gold": ["Rome"]}
    answer |= {"asked_after_chunk": 1, "answer": "Rome" if writes else "Oslo", "correct": writes}
    pet = answer | {"question_id": "q2", "question": "Which pet do I have?", "gold": [], "ability": "abstention"}
    pet |= {"answer": "" if writes else "cat", "correct": writes}
    first = {"calls": [insert], "core": "", "memory": [oslo, cat]}
    return {"chunks": [first, second], "answers": [answer, pet]}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of 50 steps."""
    folder = tmp_path / "demo"
    (folder / "eval").mkdir(parents=True)
    summary = {"seed": 7, "steps": 50, "best_step": 40, "tasks": 200, "questions": 1431, "minutes": 4.25}
    summary |= {"policy_parameters": 774400, "before": system(0.48), "after": system(0.84)}
    summary |= {"baselines": {"append_only": system(0.7), "oracle": system(1.04)}}
    (folder / "summary.json").write_text(json.dumps(summary))
    steps = []
    for step in range(50):
        done = 1 - 0.96**step
        line = {"step": step, "reward": 0.9 + 0.7 * done, "accuracy": 0.35 + 0.4 * done, "entropy": 0.3 - 0.2 * done}
        line |= {"update_share": abs(0.1 - step / 120), "delete_share": 0.05 + 0.0008 * step}
        line |= {"valid_calls": 0.93 + 0.05 * done, "memory_tokens": 60 + 4 * done}
        if step % 10 == 0:
            line |= {"validation_accuracy": 0.46 + 0.38 * done, "validation_se": 0.03}
        steps.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(steps) + "\n")
    chunks = [
        {"timestamp": "2024-05-01", "text": "user: I live in Oslo, with a cat.\nassistant: <Nice> & cosy!"},
        {"timestamp": "2024-05-09", "text": "user: I moved to Rome. The cat stayed behind, I have no pet any more."},
    ]
    example = {"task": "t0", "chunks": chunks, "systems": {"before": walked(False), "after": walked(True)}}
    (folder / "eval" / "example.json").write_text(json.dumps(example))
    (folder / "config.yaml").write_text("seed: 7\ngroup_size: 8\n")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine: the page is not opened in a browser")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()
