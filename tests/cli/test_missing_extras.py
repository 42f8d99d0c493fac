"""Commands without extras or before torch: what needs none runs, and the others say what they need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import memalpha
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.tasks.load import load_tasks

BLOCKED = """
import json, sys
from importlib.abc import MetaPathFinder

is_installed, missing, commands = json.loads(sys.stdin.read())


class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())

import contextlib, importlib.metadata, io


def no_metadata(name):
    raise importlib.metadata.PackageNotFoundError(name)


if not is_installed:
    importlib.metadata.requires = no_metadata

from memalpha.cli.main import main

results = []
for words in commands:
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["memalpha", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            code = repr(error)
    results.append([code, err.getvalue()[-400:]])
print(json.dumps([results, list(sys.modules)]))
"""
EXTRAS = (
    *("torch", "transformers", "trl", "peft", "datasets", "safetensors", "huggingface_hub", "pyarrow", "rouge_score"),
    *("mcp", "fastapi", "uvicorn", "prometheus_client", "psycopg", "gguf", "sentence_transformers"),
)


def run_commands(
    commands: Sequence[Sequence[str]],
    *,
    is_installed: bool = True,
    missing: Sequence[str] = (),
    cwd: Path | None = None,
) -> tuple[list[tuple[int, str]], list[str]]:
    """Run commands in one new process; return exit code and stderr of each, and the modules that were imported."""
    process = subprocess.run(
        [sys.executable, "-c", BLOCKED],
        input=json.dumps([is_installed, missing, commands]),
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(memalpha.__file__).parents[1])},
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.parametrize("is_installed", [True, False], ids=["installed", "source tree"])
def test_without_extras(is_installed, tmp_path):
    data, db = "data/example.jsonl", str(tmp_path / "a.db")
    commands: dict[tuple[str, ...], str | None] = {
        ("add", db, "Ana's city: Porto"): None,
        ("ask", db, "What is Ana's city?"): None,
        ("audit", db): None,
        ("show", db, "--html", str(tmp_path / "a.html")): None,
        ("data", "check", data): None,
        ("eval", "tasks", f"data={data}", "systems=[add_all,rag]", "reader.kind=copy", "metric=f1", "limit=1"): None,
        ("config", "demo", "--keys"): None,
        ("train", "demo"): "[train]",
        ("train", "sft", "--plan"): "[train]",
        ("check-policy", "tiny"): "[train]",
        ("fetch", "smol"): "pip install",  # the first extra that brings what is missing
        ("eval", "tasks", f"data={data}", "systems=http://localhost:1/v1#m"): "localhost:1",  # endpoints need no extra
        ("eval", "longmemeval", "systems=rag"): "[eval]",
        ("serve", db, "--http", "127.0.0.1:0", "--read-only"): "[serve]",
        ("serve", db, "--mcp", "--read-only"): "[serve]",
        ("add", "postgresql://127.0.0.1:1/x", "a"): "[postgres]",
    }
    if not is_installed:  # the same commands, with other hints
        commands = {words: hint for words, hint in commands.items() if hint is not None or words[0] == "add"}
    results, _ = run_commands(list(commands), is_installed=is_installed, missing=EXTRAS)
    for (words, hint), (code, message) in zip(commands.items(), results, strict=True):
        assert code == (0 if hint is None else 2), (words, code, message)
        assert hint is None or hint in message, (words, message)


def test_what_needs_no_torch_is_refused_before_torch_loads(tmp_path: Path) -> None:
    for name in ("empty.txt", "empty.jsonl"):
        (tmp_path / name).write_text("")
    (tmp_path / "blank.txt").write_text(" \n\n")
    tasks = load_tasks("synthetic", limit=6)
    no_gold = [task.model_copy(update={"gold_operations": ()}) for task in tasks]
    save_jsonl(no_gold, tmp_path / "no-gold.jsonl")
    save_jsonl([*tasks[:3], no_gold[3], *tasks[4:]], tmp_path / "some-gold.jsonl")
    save_jsonl([*tasks[:5], no_gold[5]], tmp_path / "held-out-without-gold.jsonl")
    (tmp_path / "run").mkdir()
    teacher = "memalpha data write"
    refusals = {
        ("demo", "data=empty.txt"): "data: empty.txt is empty",
        ("demo", "evaluation.data=blank.txt"): "evaluation.data: blank.txt is empty",
        ("demo", "data=missing.jsonl"): "give the path of a JSON Lines file",
        ("demo", "data=missing"): "give the path of a task file",
        ("preferences", "data=missing.jsonl"): "data: missing.jsonl: there is no such file",
        ("arithmetic", "data=missing.jsonl"): "data: missing.jsonl: there is no such file",
        ("sft", "data=no-gold.jsonl"): teacher,
        ("sft", "data=some-gold.jsonl", "source=scripted:oracle"): "or set source=best",
        ("sft", "data=no-gold.jsonl", "source=erl"): teacher,
        ("sft", "data=held-out-without-gold.jsonl", "source=nothing"): "source: 'nothing' is none",
        ("sft", "source=missing.jsonl"): teacher,
        ("sft", "source=empty.jsonl"): "source: empty.jsonl is empty",
        ("sft", "source=run"): "only a run with keep_tokens=true writes it",
        ("run",): "run holds no config.yaml",
        ("demo", "max_steps=60"): "set schedule_steps=60",
    }
    results, libraries = run_commands([("train", *words) for words in refusals], cwd=tmp_path)
    assert "torch" not in libraries
    for (words, hint), (code, message) in zip(refusals.items(), results, strict=True):
        assert code == 2 and hint in message, (words, message)
    assert not (tmp_path / "runs").exists()
