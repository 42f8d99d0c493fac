"""Call the public functions with hostile values: `python eval/reach/fuzz_calls.py --results eval/results`.

Every parameter that `inspect.signature` shows gets every value of `hostile_calls/values.py`, one at a time, the others
being valid; then a seeded sample of two at a time. Settings of the configurations get them too. A call may return, or
raise a `MemalphaError`, a `TypeError` of the call itself (an unknown or missing argument), or for the pydantic models
`ValidationError`. Anything else is a fault. So are a call of over 20 s, and a store that no longer reads, searches and
writes.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from common import make_parser, opening, save
from hostile_calls.targets import MODELS, Context, Target, config_targets, targets
from hostile_calls.values import hostile_values, make_paths

from memalpha.errors import MemalphaError

MAX_SECONDS = 60  # what is looked for is a call without an end; a busy machine is slow
CONFIGS = {"demo": "train", "sft": "train", "dpo": "train", "reward": "train", "arithmetic": "train", "tasks": "eval"}
BINDING = re.compile(r"unexpected keyword argument|missing \d+ required|positional argument|multiple values")


class TooSlow(BaseException):
    """A call that took over `MAX_SECONDS`."""


def _stop(number: int, frame: Any) -> None:
    raise TooSlow


def call(function: Callable[..., Any], arguments: dict[str, Any], *, is_model: bool = False) -> tuple[str, str]:
    """Return what a call came to ("returned", "refused" or "fault") and the error.

    Args:
        function: Callable.
        arguments: Arguments by name.
        is_model: Let `ValidationError` pass.
    """
    previous = signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
    try:
        result = function(**arguments)
        if isinstance(result, Iterator):
            for _ in islice(result, 50):
                pass
        return "returned", ""
    except MemalphaError as error:
        str(error).encode("utf-8", "surrogatepass")
        return "refused", ""
    except ValidationError as error:
        return ("refused", "") if is_model else ("fault", _describe(error))
    except TypeError as error:
        is_binding = BINDING.search(str(error)) and _depth(error) <= 2
        return ("refused", "") if is_binding or " at " not in _describe(error) else ("fault", _describe(error))
    except (Exception, TooSlow) as error:  # noqa: BLE001 every other error is what this looks for
        return "fault", _describe(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _depth(error: BaseException) -> int:
    """Return the number of frames below `call`."""
    return len(traceback.extract_tb(error.__traceback__)) - 1


def _describe(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/memalpha/" in f.filename.replace("eval/", "")]
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    try:
        text = str(error)
    except Exception as other:  # noqa: BLE001 an error without a message
        text = f"(no message: {other!r})"
    return f"{type(error).__name__}: {text[:120]}{place}"


def parameters_of(function: Callable[..., Any], target: Target) -> list[str]:
    """Return the names of a callable's parameters, those that `**fields` takes included."""
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind not in kinds] + list(target.extra)


class Fuzz:
    """Runs calls and counts what they came to.

    Args:
        folder: Empty folder.
        keep: Returns True for the calls to make; None for all.
    """

    def __init__(self, folder: Path, keep: Callable[[], bool] | None = None) -> None:
        self.folder, self.keep = folder, keep or (lambda: True)
        make_paths(folder)
        self.values = hostile_values(folder)
        self.counts: dict[str, Counter[str]] = {}
        self.faults: dict[str, str] = {}

    def try_target(self, name: str, target: Target, rng: random.Random | None = None, pairs: int = 0) -> None:
        """Call a target with every value for every parameter, or with pairs of values.

        Args:
            name: Name of the target.
            target: Callable with valid arguments.
            rng: Draws the pairs.
            pairs: Number of pairs; 0 for single values.
        """
        context = Context(self.folder)
        counts = self.counts.setdefault(name, Counter())
        function = target.make(context)
        parameters = parameters_of(function, target)
        if not parameters:
            parameters, pairs = ["nonsense"], 0
        plans = (
            [{rng.choice(parameters): rng.choice([*self.values]) for _ in "ab"} for _ in range(pairs)]
            if rng and pairs
            else [{parameter: value} for parameter in parameters for value in self.values]
        )
        for plan in plans:
            if (
                not self.keep()
                or plan.keys() & set(target.omitted)
                or any(target.is_excluded(*pair) for pair in plan.items())
            ):
                continue
            if context.count > 40 or context.store.count() < 3:
                context.store.close()
                context = Context(self.folder)
            context.count += 1
            hostile = {parameter: self.values[value]() for parameter, value in plan.items()}
            label = f"{name}({', '.join(f'{p}={v}' for p, v in plan.items())})"
            outcome, error = call(target.make(context), target.valid(context) | hostile, is_model=name in MODELS)
            if outcome != "fault":
                probe, error = call(context.probe, {})
                if probe != "returned":
                    outcome, error = "fault", f"the store afterwards: {error}"
            if outcome == "fault":
                self.faults[label] = error
                context = Context(self.folder)
            counts[outcome] += 1
        context.store.close()

    def try_configs(self, names: Mapping[str, str]) -> None:
        """Load configurations, by name and class, with every value for every setting."""
        for name, load in config_targets(names):
            for value, make in self.values.items():
                if self.keep():
                    outcome, error = call(load, {"value": make()})
                    self.counts.setdefault(f"settings of {name.partition(':')[0]}", Counter())[outcome] += 1
                    if outcome == "fault":
                        self.faults[f"{name}={value}"] = error


def run(share: float, seed: int, *, pairs: int = 0, only: str = "", slow: bool = True) -> Fuzz:
    """Run the calls in a folder of their own, which is removed.

    Args:
        share: Share of the calls that are made, drawn by `seed`.
        seed: Seed of the draws.
        pairs: Further calls per target with two hostile values.
        only: Part of the names of targets; "" for all.
        slow: Include targets that load models.
    """
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.chdir(folder):
            fuzz = Fuzz(Path(folder), lambda: rng.random() < share)
            for name, target in targets().items():
                if only in name and (slow or "*" not in target.slow):
                    fuzz.try_target(name, target if slow else replace(target, omitted=target.slow))
                    if pairs:
                        fuzz.try_target(name, target, rng, pairs)
            if not only or only == "settings":
                fuzz.try_configs(CONFIGS if slow else {"tasks": "eval"})
    return fuzz


def main() -> None:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="share of the calls")
    parser.add_argument("--pairs", type=int, default=200, help="calls per target with two hostile values")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of the names of targets")
    options = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    with contextlib.suppress(ImportError):  # the first import alone takes longer than a call may
        import sentence_transformers  # noqa: F401
    started = time.process_time()
    fuzz = run(options.share, options.seed, pairs=options.pairs, only=options.only)
    for label, error in fuzz.faults.items():
        print(f"{label}: {error}", file=sys.stderr)
    if options.only:
        sys.exit(bool(fuzz.faults))
    rows = {name: dict(counts) for name, counts in fuzz.counts.items()}
    total = sum(fuzz.counts.values(), Counter())
    page = opening("Hostile values in the public functions", ("memalpha", "numpy", "pydantic"))
    page += ["", f"{total.total():,} calls of {len(rows)} functions and groups of settings, {len(fuzz.values)} values,"]
    page += [f"{time.process_time() - started:.0f} s of CPU: {total['fault']} faults.", ""]
    page += ["| function | calls | returned | refused | faults |", "|---|---|---|---|---|"]
    page += [
        f"| {name} | {count.total():,} | {count['returned']:,} | {count['refused']:,} | {count['fault']} |"
        for name, count in fuzz.counts.items()
    ]
    record = {"seed": options.seed, "pairs": options.pairs, "rows": rows, "faults": fuzz.faults}
    save(options.results / "fuzz-calls", record, "\n".join(page))
    sys.exit(bool(fuzz.faults))


if __name__ == "__main__":
    main()
