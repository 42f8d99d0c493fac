"""Use memalpha where the machine says no: `python eval/reach/environments.py` (Linux, as root).

Environments: a read-only file, folder and mount (the first two as a user without rights, for root passes them), the
umasks 077 and 000, a full and a nearly full disk (a tmpfs), and few descriptors (RLIMIT_NOFILE, every limit with 1 to
40 free ones). In each, forked processes open a store, search it, add a fact, serve it over HTTP and train a step, with
the commands themselves. An outcome is the right answer, or exit code 2 with a message. A traceback, another exit code,
a wrong answer or over 60 s is a fault. Then, with rights and room again, the store must open, hold what was
acknowledged and nothing else, and take a write, and `doctor` must find nothing. A run that stopped must go on.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import traceback
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import command, make_parser, opening, save

from memalpha.cli.main import main as run_memalpha
from memalpha.store.checks.integrity import examine
from memalpha.store.store import MemoryStore

NOBODY = 65534
MAX_SECONDS = 60
FACTS = ("Ana lives in Oslo", "Ben likes tea")
NEW = "Cleo plays chess"
STEP = (
    "arithmetic max_steps=1 schedule_steps=1 group_size=2 tasks_per_step=1 max_new_tokens=4 eval_tasks=1 "
    "validation_tasks=1 stop_unreadable=false"
)


def run_command(words: list[str]) -> tuple[int, str]:
    """Run `memalpha WORDS` in this process; return the exit code (-1 for an exception) and the output.

    Args:
        words: Words of the command line.
    """
    output = io.StringIO()
    sys.argv = ["memalpha", *words]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            run_memalpha()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 0, output.getvalue()
        except BaseException:  # noqa: BLE001 every exception that a command lets through is a fault
            return -1, output.getvalue() + traceback.format_exc()


def judge(code: int, output: str, right: str) -> str:
    """Return "right", "refused: MESSAGE" or "fault: TEXT".

    Args:
        code: Exit code.
        output: Output of the command.
        right: Text that a right answer holds.
    """
    if code == 0:
        return "right" if right in output else f"fault: a wrong answer: {output[-300:]}"
    if code == 2 and "Traceback" not in output and "memalpha: " in output:
        return f"refused: {output.strip().splitlines()[-1].removeprefix('memalpha: ')}"
    return f"fault: exit code {code}: {output[-1500:]}"


def open_store(path: Path) -> str:
    """Open a store for reading and writing."""
    from memalpha.errors import MemalphaError

    try:
        with MemoryStore.open(path) as store:
            return "right" if store.count() == len(FACTS) else "fault: wrong count"
    except MemalphaError as error:
        return f"refused: {error}"
    except BaseException:  # noqa: BLE001 as above
        return f"fault: {traceback.format_exc()[-1500:]}"


def serve(path: Path) -> str:
    """Serve a store, search and add over HTTP, and stop the server."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 2)
        os.close(reading)
        os.close(writing)
        sys.argv = ["memalpha", "serve", str(path), "--policy", "add_all", "--http", "127.0.0.1:0"]
        try:
            sys.stderr = os.fdopen(2, "w", buffering=1)
            run_memalpha()
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else 0)
        except BaseException:  # noqa: BLE001 as above
            traceback.print_exc(file=sys.stderr)
            os._exit(70)
        os._exit(0)
    os.close(writing)
    printed, url, replies = "", "", []
    with os.fdopen(reading, errors="replace") as lines:
        for line in lines:
            printed += line
            if match := re.search(r"http://[\d.]+:\d+", line):
                url = match[0]
                break
        if url:
            replies = [
                request(f"{url}/v1/search", {"query": "Ana"}),
                request(f"{url}/v1/entries", {"content": NEW, "category": "semantic"}),
            ]
            os.kill(child, signal.SIGTERM)
            printed += lines.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if not url:
        return judge(code, printed, "?")
    (search, found), (add, added) = replies
    if code != 0 or 500 in (search, add):
        return f"fault: exit {code}, HTTP {search}, {add}: {printed[-1500:]}"
    found_text = "right" if search == 200 and FACTS[0] in found else f"refused ({search}: {found[:150]})"
    added_text = "right" if add in (200, 201) else f"refused ({add}: {added[:150]})"
    if found_text == added_text == "right":
        return "right, added"
    return f"search {found_text}, add {added_text}" + (", added" if added_text == "right" else "")


def request(url: str, body: dict[str, Any]) -> tuple[int, str]:
    """Send a JSON body; return status and text of the answer."""
    message = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(message, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


ACTIONS: dict[str, Callable[[Path], str]] = {
    "open": open_store,
    "search": lambda path: judge(*run_command(["search", str(path), "Where does Ana live?"]), FACTS[0]),
    "add": lambda path: judge(*run_command(["add", str(path), NEW, "--json"]), NEW),
    "serve": serve,
    "train": lambda path: judge(*run_command(["train", *STEP.split(), f"out={path.parent / 'run'}"]), "accuracy"),
}


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """Mount a tmpfs on a folder during the block."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "memalpha", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def make_store(path: Path) -> None:
    """Make the store that every action begins with."""
    with MemoryStore.open(path) as store:
        store.add_many(FACTS)


def drop_rights() -> None:
    """Become a user without rights."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _read_only_file(path: Path) -> None:
    path.chmod(0o444)
    path.parent.chmod(0o777)


def _read_only_folder(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY)
    path.parent.chmod(0o555)


def _fill(path: Path, room: int) -> None:
    """Fill the disk of a path up to some bytes."""
    with (path.parent / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    filler = path.parent / "filler"
    os.truncate(filler, max(0, filler.stat().st_size - room))


def _mount_read_only(path: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", path.parent], check=True)


def _lower_descriptors(more: int) -> None:
    """Allow as many descriptors as are open, and some more."""
    used = {int(link.name) for link in Path("/proc/self/fd").iterdir()}
    free = [number for number in range(max(used) + more + 1) if number not in used]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[more - 1] + 1, free[more - 1] + 1))


class Environment:
    """What is done before and within the process that acts.

    Args:
        prepare: Changes the store's folder, as root.
        enter: Changes the process that acts.
        size: Size of a tmpfs for the folder, such as "2m"; "" for none.
    """

    def __init__(
        self,
        prepare: Callable[[Path], None] = lambda path: None,
        enter: Callable[[], None] = lambda: None,
        size: str = "",
    ) -> None:
        self.prepare, self.enter, self.size = prepare, enter, size


ENVIRONMENTS: dict[str, Environment] = {
    "as usual": Environment(),
    "read-only file": Environment(_read_only_file, drop_rights),
    "read-only folder": Environment(_read_only_folder, drop_rights),
    "read-only mount": Environment(_mount_read_only, size="16m"),
    "umask 077": Environment(enter=lambda: void(os.umask(0o077))),
    "umask 000": Environment(enter=lambda: void(os.umask(0o000))),
    "full disk": Environment(lambda path: _fill(path, 0), size="64m"),
    "disk with 16 kB": Environment(lambda path: _fill(path, 16384), size="64m"),
    "disk with 64 kB": Environment(lambda path: _fill(path, 65536), size="64m"),
    **{f"{more} descriptors": Environment(enter=lambda m=more: _lower_descriptors(m)) for more in range(1, 41)},
}


def void(_: Any) -> None:
    """Ignore a value."""


def act(action: str, environment: Environment, path: Path) -> str:
    """Return what an action comes to in a forked process within an environment.

    Args:
        action: Name in `ACTIONS`.
        environment: Environment to enter.
        path: Path of the store.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setpgid(0, 0)
        os.chdir(path.parent)
        try:
            environment.enter()
            outcome = ACTIONS[action](path)
        except BaseException:  # noqa: BLE001 the parent judges it
            outcome = f"fault: {traceback.format_exc()[-1500:]}"
        os.write(writing, outcome.encode("utf-8", "replace"))
        os._exit(0)
    os.close(writing)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(child, signal.SIGKILL))
    signal.alarm(MAX_SECONDS)
    with os.fdopen(reading, "rb") as pipe:
        outcome = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    signal.alarm(0)
    return outcome if status == 0 and outcome else f"fault: the process ended with {status}: {outcome[:500]}"


def inspect_after(path: Path, outcome: str, action: str) -> str:
    """Return what is wrong with the store once the environment is as usual; "" if nothing is.

    Args:
        path: Path of the store.
        outcome: What the action came to.
        action: Name of the action.
    """
    was_added = (action == "add" and outcome == "right") or outcome.endswith("added")
    with MemoryStore.open(path) as store:
        contents = [entry.content for entry in store.list()]
        if contents[: len(FACTS)] != list(FACTS) or (NEW in contents) != was_added:
            return f"the store holds {contents}"
        store.add("a fact afterwards")
        if store.search("afterwards", 1)[0].entry.content != "a fact afterwards":
            return "the store does not find a new fact"
    problems = [str(problem) for problem in examine(path).problems]
    modes = {f.name: stat.S_IMODE(f.stat().st_mode) for f in path.parent.glob("a.db*") if f.is_file()}
    if any(mode & 0o077 for mode in modes.values()):
        problems.append(f"others may read {modes}")
    return "; ".join(problems)


def run_cell(name: str, action: str, folder: Path) -> str:
    """Return what an action comes to in an environment; "fault" is its first word if something is wrong.

    Args:
        name: Name in `ENVIRONMENTS`.
        action: Name in `ACTIONS`.
        folder: Empty folder.
    """
    environment, path = ENVIRONMENTS[name], folder / "store" / "a.db"
    path.parent.mkdir()
    with mounted(path.parent, f"size={environment.size}") if environment.size else contextlib.nullcontext():
        make_store(path)
        environment.prepare(path)
        outcome = act(action, environment, path)
        if environment.size:
            subprocess.run(["mount", "-o", "remount,rw", path.parent], check=True)
        (path.parent / "filler").unlink(missing_ok=True)
        path.parent.chmod(0o755)
        path.chmod(0o600)
        after = inspect_after(path, outcome, action)
        if action == "train" and outcome.startswith("refused") and not after:
            again = act(action, Environment(), path)
            after = "" if again == "right" else f"the same command, once it can write: {again}"
        shutil.rmtree(path.parent / "run", ignore_errors=True)
    return outcome if outcome.startswith("fault") or not after else f"fault: afterwards: {after} (after: {outcome})"


def warm_up(actions: list[str]) -> None:
    """Do every action once: later processes, forked from this one, may be unable to read Python's own files."""
    "localhost".encode("idna")
    with tempfile.TemporaryDirectory() as folder:
        for action in actions:
            path = Path(folder) / action / "a.db"
            path.parent.mkdir()
            make_store(path)
            if action == "serve":  # its parts are imported here, and not in the process that serves
                import uvicorn.lifespan.on
                import uvicorn.loops.auto
                import uvicorn.protocols.http.auto
                import uvicorn.protocols.websockets.auto

                import memalpha.integrations.server.http
                import memalpha.integrations.server.page
                import memalpha.report.memory_page.page

                void((uvicorn, memalpha))
                continue
            outcome = ACTIONS[action](path)
            assert outcome == "right", outcome


def main() -> None:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--actions", nargs="+", choices=list(ACTIONS), default=list(ACTIONS))
    parser.add_argument("--environments", nargs="+", help="part of the names")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("needs root, to mount a disk and to become another user")
    started_by = command()  # commands in this process have arguments of their own
    warm_up(options.actions)
    rows: dict[str, dict[str, str]] = {}
    for name in ENVIRONMENTS:
        if options.environments and not any(part in name for part in options.environments):
            continue
        for action in options.actions:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder).chmod(0o755)
                outcome = run_cell(name, action, Path(folder))
            rows.setdefault(name, {})[action] = outcome.replace(folder, "")
            print(f"{name}, {action}: {rows[name][action]}", file=sys.stderr)
    faults = sum(outcome.startswith("fault") for row in rows.values() for outcome in row.values())
    if not options.environments:
        save(options.results / "environments", rows, "\n".join(_page(rows, options.actions, started_by)))
    sys.exit(faults > 0)


def _page(rows: dict[str, dict[str, str]], actions: list[str], started_by: str) -> list[str]:
    """Return the lines of the page."""
    few = {name: row for name, row in rows.items() if name.endswith("descriptors")}
    page = [*opening("Where the machine says no", ("memalpha",), started_by=started_by), ""]
    page += [f"| environment | {' | '.join(actions)} |", f"|---|{'---|' * len(actions)}"]
    for name, row in rows.items():
        if name not in few:
            page.append(f"| {name} | {' | '.join(row[action].replace('|', '/') for action in actions)} |")
    words = [Counter(row[action].split(":")[0].split(" ")[0] for row in few.values()) for action in actions]
    counts = [", ".join(f"{word} {number}" for word, number in count.items()) for count in words]
    page.append(f"| {len(few)} limits of descriptors | {' | '.join(counts)} |")
    return page


if __name__ == "__main__":
    main()
