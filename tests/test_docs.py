"""README and docs: every example runs, and links lead somewhere. Pages run with `-m slow`, and in .ci/run."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import typer
from click import ClickException
from standin import StandIn

import memalpha
from memalpha.cli import app, main
from memalpha.config import (
    SHORT_NAMES,
    EvalConfig,
    TrainConfig,
    load_config,
    parse_overrides,
    shipped_configs,
    training_config,
)
from memalpha.config.files import settings_of
from memalpha.errors import ConfigError
from memalpha.tasks.formats.jsonl import load_jsonl

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "data/README.md")]
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True)
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("memalpha ")
]
GENERATED = ("reference", "results")
"""Folders of the site that `scripts/docs` fills; only the index of results is committed."""
REFERENCE = frozenset(ROOT / "docs" / "reference" / f"{name}.md" for name in ("api", "cli", "config", "modules"))
PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name not in GENERATED)
SMALL = {"max_steps": 1, "tasks_per_step": 1, "group_size": 2, "minibatches": 1, "tasks": 2, "batch_rows": 2}
SMALL |= {"eval_tasks": 2, "validation_tasks": 1, "validate_every": 1, "save_every": 1}
"""What a training command of a page is cut down to."""
MULTI = re.DOTALL | re.MULTILINE
LONG_SCRIPTS = {"scripts/tiny_grpo.py": "tests/scripts/test_tiny_grpo.py"}
"""Scripts that pages run and that take long; the test that runs each at a small size."""


def _commands() -> dict[str, typer.models.CommandInfo]:
    """Return every command by its words, such as `data list`."""
    commands = {command.name or command.callback.__name__: command for command in app.registered_commands}  # type: ignore[union-attr]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        for command in group.typer_instance.registered_commands:
            commands[f"{group.name} {command.name}"] = command
    return commands


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_snippets_run(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Snippets contain assertions, and each prints something."""
    monkeypatch.chdir(tmp_path)
    with StandIn(_reply_as_model) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        exec(compile(PYTHON[number], f"README snippet {number + 1}", "exec"), {})
    assert capsys.readouterr().out.strip()


def _reply_as_model(body: Mapping[str, Any]) -> str:
    """Reply as a model would: one memory call for a chunk, the city for a question."""
    if "memory_insert" not in json.dumps(body):
        return "Porto"
    call = {"name": "memory_insert", "arguments": {"category": "semantic", "content": "Ana lives in Porto."}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def test_shell_snippets_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands run in order in one folder; those that train or download are only checked as configurations."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(ROOT / "data")
    ran, trained = 0, set[str]()
    for _, *words in COMMANDS:
        if words[0] == "train":
            trained.add(str(training_config(words[1], parse_overrides(words[2:])).out))
            continue
        if words[0] in ("report", "compare") and not Path(words[1]).exists():
            assert words[1] in trained, f"memalpha {shlex.join(words)}: no command before it makes {words[1]}"
            continue
        if words[0] == "eval" and words[1].startswith("locomo"):
            load_config(EvalConfig, words[1], parse_overrides([word for word in words[2:] if "=" in word]))
            continue
        _run(words, monkeypatch, capsys)
        ran += 1
    assert ran >= 5
    assert "Porto" in capsys.readouterr().out


def _run(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["memalpha", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None), (words, capsys.readouterr().err)


def _cut_down(words: list[str]) -> list[str] | None:
    """Return a training command at a tiny size; None (after validation) if its policy is not on this machine."""
    settings = training_config(words[0], parse_overrides(words[1:]))
    if settings.policy not in ("tiny", "tiny-text") and not Path(settings.policy).exists():
        return None
    names = {name for name, _ in settings_of(type(settings))}
    return ["train", *words, *(f"{key}={value}" for key, value in SMALL.items() if SHORT_NAMES.get(key, key) in names)]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_step_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blocks run in order in one folder: tasks, named files, Python, commands and their output."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for language, text in re.findall(r"```(\w*)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        if language == "json":
            Path("shown.jsonl").write_text(json.dumps(json.loads(text)))
            load_jsonl("shown.jsonl")
        elif language == "":
            assert text in capsys.readouterr().out
        elif language == "python":
            exec(compile(text, f"{page.name}: {text[:40]}", "exec"), names)
        elif language == "yaml":
            Path(text.split()[1]).write_text(text)
        elif language == "bash":
            for line in text.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words[0] == "python" and words[1] in LONG_SCRIPTS:
                    assert Path(words[1]).name in (ROOT / LONG_SCRIPTS[words[1]]).read_text(encoding="utf-8")
                    continue
                if words[0] == "python":
                    monkeypatch.setattr(sys, "argv", words[1:])
                    runpy.run_path(str(ROOT / words[1]), run_name="__main__")
                    continue
                words = words[words.index("memalpha") + 1 :]
                if words[0] == "train" and (cut := _cut_down(words[1:])) is None:
                    continue
                _run(cut if words[0] == "train" else words, monkeypatch, capsys)
    lines = [line for path in tmp_path.rglob("metrics.jsonl") for line in path.read_text().splitlines()]
    metrics = {key for line in lines for key in json.loads(line)}
    assert {name for row in _table(page, "figure") for name in re.findall(r"`(\w+)`", row[0])} <= metrics
    defaults = TrainConfig(out=tmp_path)
    for keys, values, *_ in _table(page, "key"):
        for key, value in zip(re.findall(r"`([\w.]+)`", keys), values.split(", "), strict=True):
            assert reduce(getattr, SHORT_NAMES.get(key, key).split("."), defaults) == float(value), key


def _table(page: Path, head: str) -> list[list[str]]:
    """Return the cells of a page's table whose first column is `head`."""
    text = page.read_text(encoding="utf-8")
    table = re.search(rf"^\| {head} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()] if table else []


@pytest.mark.parametrize("name", memalpha.__all__)
def test_public_names_have_a_docstring(name: str) -> None:
    value = getattr(memalpha, name)
    assert isinstance(value, str) or value.__doc__


@pytest.mark.parametrize("name", _commands())
def test_commands_have_help_with_an_example(name: str) -> None:
    help_text = _commands()[name].callback.__doc__ or ""
    [example] = re.findall(r"Example: (memalpha .*)", help_text)
    assert example.startswith(f"memalpha {name}") and len(shlex.split(example)) >= 2
    callback: Any = _commands()[name].callback
    assert callback.descriptions.keys() <= callback.__signature__.parameters.keys(), "Args has names that are none"


def test_links_lead_somewhere() -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in (*PROJECT, *PAGES)}
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page, text in pages.items()
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        if "://" not in target
        and not (page.parent / target).exists()
        and not (page in PAGES and (page.parent / target).resolve() in REFERENCE)
    ]
    assert not broken, broken


def _shown_commands() -> dict[str, list[str]]:
    """Return the words of every memalpha command that a page shows, by page and line."""
    commands = {}
    for page in (*PROJECT, *PAGES):
        for kind, block in re.findall(
            r"^```(console|text|sh|bash)\n(.*?)^```", page.read_text(encoding="utf-8"), MULTI
        ):
            for line in block.replace("\\\n", " ").splitlines():
                prompt = r"\$ " if kind == "console" else ""
                if match := re.match(rf"{prompt}(?:[A-Z_]+=\S+ )*memalpha (.*)", line):
                    commands[f"{page.relative_to(ROOT)}: {line}"] = shlex.split(match[1], comments=True)
    return commands


def test_commands_on_pages_have_arguments_that_exist() -> None:
    """Commands for a model, a server or a download run in no test: parse their options and settings."""
    problems, root = list[str](), typer.main.get_command(app)
    commands = _shown_commands()
    for label, words in commands.items():
        rest = list(words)
        command: Any = root
        try:
            while hasattr(command, "commands"):
                command = command.commands[rest.pop(0)]
            context = command.make_context(words[0], rest)
            if words[0] == "train" and context.params["config"] in shipped_configs() and "$" not in "".join(words):
                training_config(context.params["config"], parse_overrides(context.params["overrides"] or []))
        except (KeyError, ClickException, ConfigError) as error:
            problems.append(f"{label}: {error!r}")
    assert not problems and len(commands) > 100, problems


def test_anchors_lead_to_headings() -> None:
    """A link with `#` names a heading of its page, as GitHub and the site spell it."""
    broken = []
    for page in (*PROJECT, *PAGES):
        for target, anchor in re.findall(r"\]\(([^)#\s]*\.md|)#([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path = page.parent / target if target else page
            text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=MULTI) if path.exists() else ""
            heads = [re.sub(r"[^\w\- ]", "", head.lower()) for head in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
            if path.exists() and anchor not in {head.replace(" ", "-") for head in heads}:
                broken.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert not broken, broken


def test_named_modules_hold_what_is_named() -> None:
    """`memalpha.a.b.name` is looked up in the source; "Coming from" also lists names of former versions."""
    missing = []
    for page in (page for page in (*PROJECT, *PAGES) if page.name != "coming-from.md"):
        for dotted in re.findall(r"`(memalpha(?:\.\w+){2,})[(`]", page.read_text(encoding="utf-8")):
            *parents, name = dotted.split(".")
            module = ROOT.joinpath(*parents)
            if module.with_name(f"{parents[-1]}.py").exists():
                source = module.with_name(f"{parents[-1]}.py").read_text(encoding="utf-8")
            else:
                source = (module / "__init__.py").read_text(encoding="utf-8") if module.is_dir() else ""
            is_module = (module / name).is_dir() or (module / f"{name}.py").exists()
            if not (is_module or re.search(rf"\b{name}\b", source)):
                missing.append(f"{page.relative_to(ROOT)}: {dotted}")
    assert not missing, missing


def test_named_paths_exist() -> None:
    texts = [page.read_text(encoding="utf-8") for page in (*PROJECT, *PAGES)]
    path = re.compile(r"(?<![\w/.])(?:\./)?((?:\.ci|data|docs|eval|memalpha|scripts|tests)/[\w./-]*)")
    named = {name.rstrip(".") for text in texts for name in path.findall(text)}
    assert {"data/example.jsonl", "data/README.md", "docs/start/own-data.md", "scripts/demo"} <= named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
