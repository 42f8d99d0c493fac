"""Commands where extras are not installed: what needs none runs, and the others name the extra, without a traceback."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

MISSING = {"torch", "transformers", "trl", "peft", "datasets", "safetensors", "huggingface_hub", "pyarrow",
           "rouge_score", "mcp", "fastapi", "uvicorn", "prometheus_client", "psycopg", "gguf", "sentence_transformers"}


class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())

import contextlib, importlib.metadata, io, json


def no_metadata(name):
    raise importlib.metadata.PackageNotFoundError(name)


is_installed, commands = json.loads(sys.stdin.read())
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
    results.append([code, err.getvalue()[-300:]])
print(json.dumps(results))
"""


@pytest.mark.parametrize("is_installed", [True, False], ids=["installed", "source tree"])
def test_without_extras(is_installed, tmp_path):
    data, db = "data/example.jsonl", str(tmp_path / "a.db")
    commands = {
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
    process = subprocess.run(
        [sys.executable, "-c", BLOCKED],
        input=json.dumps([is_installed, list(commands)]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    for (words, hint), (code, message) in zip(commands.items(), json.loads(process.stdout), strict=True):
        assert code == (0 if hint is None else 2), (words, code, message)
        assert hint is None or hint in message, (words, message)
