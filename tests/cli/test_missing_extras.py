"""Commands where extras are not installed: what needs none runs, and the others name the extra, without a traceback."""

from __future__ import annotations

import json
import subprocess
import sys

# torch stands for `train`, httpx2 for `eval` and `client`: transformers brings httpx2, so it is never missing there.
BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

MISSING = {"torch", "transformers", "trl", "peft", "datasets", "safetensors", "httpx2", "huggingface_hub", "pyarrow",
           "rouge_score", "mcp", "fastapi", "uvicorn", "prometheus_client", "psycopg", "gguf", "sentence_transformers"}


class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())

import contextlib, io, json

from memalpha.cli.main import main

results = []
for words in json.loads(sys.stdin.read()):
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


def test_without_extras(tmp_path):
    data, db = "data/example.jsonl", str(tmp_path / "a.db")
    commands = {
        ("add", db, "Ana's city: Porto"): None,
        ("ask", db, "What is Ana's city?"): None,
        ("audit", db): None,
        ("show", db, "--html", str(tmp_path / "a.html")): None,
        ("data", "check", data): None,
        ("eval", "tasks", f"data={data}", "systems=[add_all,rag]", "reader.kind=copy", "metric=f1", "limit=1"): None,
        ("config", "demo", "--keys"): None,
        ("train", "demo"): "train",
        ("train", "sft", "--plan"): "train",
        ("check-policy", "tiny"): "train",
        ("fetch", "smol"): "",  # the first extra that brings what is missing
        ("eval", "tasks", f"data={data}", "systems=http://localhost:1/v1#m"): "eval",
        ("eval", "longmemeval", "systems=rag"): "eval",
        ("serve", db, "--http", "127.0.0.1:0", "--read-only"): "serve",
        ("serve", db, "--mcp", "--read-only"): "serve",
        ("add", "postgresql://127.0.0.1:1/x", "a"): "postgres",
    }
    process = subprocess.run(
        [sys.executable, "-c", BLOCKED], input=json.dumps(list(commands)), capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    for (words, extra), (code, message) in zip(commands.items(), json.loads(process.stdout), strict=True):
        assert code == (0 if extra is None else 2), (words, code, message)
        if extra is not None:
            assert "pip install" in message and f"[{extra}" in message, (words, message)
