"""Named reward functions and their weighted sum.

A reward function has TRL's signature: `function(prompts=..., completions=..., completion_ids=..., **columns)`. Every
column is a list as long as `prompts`, and each function gets copies of its own. `completion_ids` are the sampled token
ids, where the policy records them. TRL's other arguments (`trainer_state`, `log_extra`, `log_metric`, `environments`)
come from TRL's trainers alone: a function that cannot do without them is refused. The function returns a number for
each row, or None for rows to which it does not apply. It may be `async`. A function without `**kwargs` gets only the
columns in its signature.

An exception or an invalid value stops scoring with an error that names function and row. It never counts as 0.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, SupportsFloat, runtime_checkable

import numpy as np

from memalpha.agent.parsing import after_thinking
from memalpha.arguments import brief_repr, name_of
from memalpha.environments.engine import Bounded
from memalpha.errors import ConfigError, MemalphaError, RewardError
from memalpha.policy.loop import LoopThread
from memalpha.types import LARGEST_REWARD, Reward

UNSCORED: Any = object()
"""Value of a reward function for a row that it failed to score.

The whole row then has no reward, since a sum without this component would be too low. None means that the function
does not apply: the other functions' sum is the reward.
"""


def reply_text(completion: Any, *, thinking: bool = True) -> str:
    """Return a completion as text: the text itself, or the content of its last message.

    Args:
        completion: Text or list of messages.
        thinking: Keep a leading think part.
    """
    text = completion
    if not isinstance(completion, str):
        content = completion[-1].get("content") if completion else ""
        parts = content if isinstance(content, list) else [{"text": content}]
        text = "".join(part.get("text") or "" for part in parts)
    return text if thinking else text[after_thinking(text) :]


def read_column(columns: Mapping[str, Sequence[Any]], name: str) -> Sequence[Any]:
    """Return a column, or raise `RewardError` if it is missing."""
    if name not in columns:
        raise RewardError(f"column {name!r} is missing (there are {', '.join(sorted(columns)) or 'none'})")
    return columns[name]


_LOOP_NAME = "rewards"
LOOP = LoopThread(_LOOP_NAME)
"""Event loop of async reward functions. It stays open between calls, so clients that belong to it can be reused."""
close_loop = LOOP.close
"""Cancel the work of async reward functions and stop their event loop; the next call starts a new one."""


def _submit(work: Coroutine[Any, Any, Any]) -> Future[Any]:
    """Schedule a coroutine on the loop; one that runs there would wait for itself."""
    if threading.current_thread().name == f"memalpha {_LOOP_NAME}":
        work.close()
        raise RewardError("an async reward function cannot call others and wait: await them in it")
    return LOOP.start(work)


_OWN_COLUMNS = ("prompts", "completions", "completion_ids")
_TRL_ARGUMENTS = ("trainer_state", "log_extra", "log_metric", "environments")
"""Further keyword arguments of TRL that are not data columns."""


@dataclass(frozen=True)
class RewardFunction:
    """A reward function with its name, weight and required columns.

    Calling it calls the function, awaits an async one and checks the values, so TRL accepts it as a reward function.

    Attributes:
        name: Name of the reward component.
        function: The callable, in TRL's signature.
        weight: Weight in the sum.
        columns: Columns that the function requires.
        maximum: Largest unweighted value, that of a fully correct reply; infinite if there is none.
    """

    name: str
    function: Callable[..., Any]
    weight: float = 1.0
    columns: tuple[str, ...] = ()
    maximum: float = 1.0

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Return a number or None for each row.

        Args:
            prompts: Texts or lists of messages.
            completions: One per prompt.
            columns: Lists as long as `prompts`.

        Raises:
            RewardError: The function raised, or returned something other than finite numbers and None.
        """
        values = _values([self], prompts, completions, columns)[0]
        return [None if value is UNSCORED else value for value in values]


@runtime_checkable
class CompletionJudge(Protocol):
    """Judge of completions, such as one of TRL's."""

    def judge(self, *args: Any, **kwargs: Any) -> Any:
        """Return a verdict for each prompt."""
        ...


@runtime_checkable
class _Named(Protocol):
    name: str


@runtime_checkable
class _Columned(Protocol):
    columns: Sequence[str] | None


def named(function: Any, name: str | None = None, weight: float | None = None) -> RewardFunction:
    """Wrap a callable as a `RewardFunction`.

    The attributes `columns` and `maximum` of the callable are used if it has them. Without `columns`, every parameter
    without a default is a required column.

    Args:
        function: A callable, or a `RewardFunction` to rename or reweight.
        name: Name of the component (default: the attribute `name`, else the function's or class's name).
        weight: Weight in the sum (default: that of a `RewardFunction`, else 1).

    Raises:
        ConfigError: `function` is a class or not callable.
    """
    if isinstance(function, RewardFunction):
        return replace(function, name=name or function.name, weight=function.weight if weight is None else weight)
    if not callable(function) or inspect.isclass(function):
        problem = "a class: make an object of it" if inspect.isclass(function) else "not callable"
        usage = "a reward function is called (prompts, completions, **columns)"
        raise ConfigError(f"reward {function!r} is {problem}; {usage}")
    inner: object = function.func if isinstance(function, partial) else function
    name = name or (inner.name if isinstance(inner, _Named) else None) or name_of(inner)
    given: object = function
    columns = given.columns if isinstance(given, _Columned) else None
    needed = parameter_names(function)[0] if columns is None else tuple(columns)
    maximum = float(given.maximum) if isinstance(given, Bounded) else 1.0
    return RewardFunction(str(name), function, 1.0 if weight is None else weight, needed, maximum)


def check_names(functions: Iterable[RewardFunction]) -> None:
    """Raise `ConfigError` if two functions have the same name: one of their components would be lost."""
    counts = Counter(function.name for function in functions)
    if repeated := sorted(name for name, count in counts.items() if count > 1):
        raise ConfigError(f"rewards: {repeated[0]!r} names {counts[repeated[0]]} parts: give each a 'name' of its own")


def check_columns(functions: Iterable[RewardFunction], columns: Iterable[str]) -> None:
    """Raise `ConfigError` if a required column is missing or a column name is reserved."""
    column_names = list(columns)
    for name in column_names:
        if name in (*_OWN_COLUMNS, *_TRL_ARGUMENTS):
            raise ConfigError(f"column {name!r}: reward functions get something else by that name; rename it")
    for function in functions:
        for name in function.columns:
            if name in _TRL_ARGUMENTS:
                raise ConfigError(_explain_missing(function, name, ""))
            if name not in column_names and name != "completion_ids":
                names = ", ".join(sorted(column_names)) or "none"
                advice = f"name the data's column for it (columns: {{{name}: ...}})"
                raise ConfigError(
                    f"reward {function.name!r} needs the column {name!r}; the tasks have {names}: {advice}"
                )


def score_texts(
    functions: Sequence[RewardFunction],
    prompts: Sequence[Any],
    completions: Sequence[Any],
    columns: Mapping[str, Sequence[Any]],
) -> list[Reward]:
    """Score each completion by the weighted sum of reward functions.

    Args:
        functions: Reward functions, in the order of their components.
        prompts: Texts or lists of messages.
        completions: One per prompt; see `score_texts_or_none`.
        columns: Lists as long as `prompts`.

    Returns:
        One single-turn reward per row.

    Raises:
        RewardError: No function applies to a row, or one could not score it.
    """
    rewards = score_texts_or_none(functions, prompts, completions, columns)
    scored = [reward for reward in rewards if reward is not None]
    if len(scored) < len(rewards):
        why = f"no reward function applies (None from {', '.join(function.name for function in functions)})"
        raise RewardError(f"row {rewards.index(None)}: {why}, or one could not score it")
    return scored


def score_texts_or_none(
    functions: Sequence[RewardFunction],
    prompts: Sequence[Any],
    completions: Sequence[Any],
    columns: Mapping[str, Sequence[Any]],
) -> list[Reward | None]:
    """Score each completion by the weighted sum of reward functions; None for unscored rows.

    Async functions run concurrently in one shared event loop, which has its own thread, so the caller may be in a loop
    too. The other functions run one after another in the calling thread.

    Args:
        functions: Reward functions, in the order of their components.
        prompts: Texts or lists of messages.
        completions: One per prompt. The completion of a list of messages becomes one too if it is a text.
        columns: Lists as long as `prompts`.

    Returns:
        One single-turn reward per row, with a component for each function that applies. None if no function applies or
        one returns `UNSCORED`.

    Raises:
        RewardError: A function raised or returned an invalid value. Errors of memalpha keep their class; all messages
            name the function.
        ConfigError: Two functions have the same name.
    """
    check_names(functions)
    values = _values(functions, prompts, completions, columns)
    rewards: list[Reward | None] = []
    for row in range(len(prompts)):
        pairs = [(function.name, column[row]) for function, column in zip(functions, values, strict=True)]
        components = {name: value for name, value in pairs if value is not None}
        if not components or UNSCORED in components.values():
            rewards.append(None)
            continue
        weights = {function.name: function.weight for function in functions if function.name in components}
        total = _weighted_sum(components, weights, row)
        rewards.append(Reward((total,), {name: (value,) for name, value in components.items()}, weights, total))
    return rewards


def _weighted_sum(components: Mapping[str, float], weights: Mapping[str, float], row: int) -> float:
    """Return the sum of weighted components. Raises `RewardError` naming the parts if it is too large."""
    terms = {name: weights[name] * value for name, value in components.items()}
    is_finite = all(abs(term) <= LARGEST_REWARD for term in terms.values())
    total = math.fsum(terms.values()) if is_finite else math.inf
    if not abs(total) <= LARGEST_REWARD:
        parts = ", ".join(f"reward {name!r}: {weights[name]:g} times {components[name]:g}" for name in terms)
        advice = "lower the weight, or bound the values"
        raise RewardError(f"{parts}, row {row}: the sum is beyond {LARGEST_REWARD:g}: {advice}")
    return total


def parameter_names(function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Return (columns without a default, all accepted names) of a callable; None accepts any name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some callables made in C
        return (), None
    by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    required = (name for name, parameter in by_name.items() if parameter.default is parameter.empty)
    needed = tuple(name for name in required if name not in ("prompts", "completions"))
    accepts_any = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters)
    return needed, None if accepts_any else tuple(by_name)


# ---------------------------------------------------------------------------------------------------------- calling


def _values(
    functions: Sequence[RewardFunction],
    prompts: Sequence[Any],
    completions: Sequence[Any],
    columns: Mapping[str, Sequence[Any]],
) -> list[list[float | None]]:
    """Call every function and return its checked values, one list per function."""
    if len(prompts) != len(completions):
        raise RewardError(f"{len(prompts)} prompts and {len(completions)} completions: one each is needed")
    for name, values in columns.items():
        if name not in _TRL_ARGUMENTS and len(values) != len(prompts):
            raise RewardError(f"column {name!r} has {len(values)} values for {len(prompts)} rows: one each is needed")
    if not prompts:
        return [[] for _ in functions]
    replies = _as_messages(prompts, completions)
    calls = [partial(_call, function, prompts, replies, columns) for function in functions]
    results: list[Any] = [None] * len(calls)
    futures: dict[int, Future[Any]] = {}
    try:
        for number, function in enumerate(functions):
            inner = function.function.func if isinstance(function.function, partial) else function.function
            if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__):
                futures[number] = _submit(_await_call(calls[number]))
        for number, call in enumerate(calls):
            if number not in futures and inspect.isawaitable(result := call()):
                futures[number] = _submit(_await_call(lambda result=result: result))
            elif number not in futures:
                results[number] = result
        for number, future in futures.items():
            with _name_errors(functions[number]):
                results[number] = future.result()
    finally:
        for future in futures.values():
            future.cancel()
    return [_check_values(function, result, len(prompts)) for function, result in zip(functions, results, strict=True)]


def call_function(
    function: Callable[..., Any],
    name: str,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    columns: Mapping[str, Sequence[Any]],
) -> Any:
    """Call a user's function on completions in the way reward functions are called.

    Args:
        function: Callable with a reward function's signature; it may be async and return anything.
        name: Name in error messages.
        prompts: Texts or lists of messages.
        completions: One per prompt.
        columns: Lists as long as `prompts`.

    Returns:
        The function's result, awaited if it is async.

    Raises:
        RewardError: The function raised, or a required column is missing.
    """
    reward = RewardFunction(name, function, columns=parameter_names(function)[0])
    result = _call(reward, prompts, _as_messages(prompts, completions), columns)
    if inspect.isawaitable(result):
        with _name_errors(reward):
            return _submit(_await_call(lambda: result)).result()
    return result


def _as_messages(prompts: Sequence[Any], completions: Sequence[Any]) -> list[Any]:
    """Return completions with the texts that answer message prompts turned into messages."""
    return [
        [{"role": "assistant", "content": reply}] if isinstance(reply, str) and not isinstance(prompt, str) else reply
        for prompt, reply in zip(prompts, completions, strict=True)
    ]


def _call(
    function: RewardFunction, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
) -> Any:
    """Call a function on copies of its own, so that what it changes in place reaches no other one."""
    if missing := [name for name in function.columns if name not in columns]:
        error = ConfigError if missing[0] in (*_OWN_COLUMNS, *_TRL_ARGUMENTS) else RewardError
        raise error(_explain_missing(function, missing[0], ", ".join(sorted(columns)) or "none"))
    accepted = parameter_names(function.function)[1]
    kwargs = {"prompts": list(prompts), "completions": list(completions), **columns}
    kwargs = {name: value for name, value in kwargs.items() if accepted is None or name in accepted}
    kwargs = {name: value if name in _TRL_ARGUMENTS else _copy(value) for name, value in kwargs.items()}
    with _name_errors(function):
        return function.function(**kwargs)


def _explain_missing(function: RewardFunction, name: str, column_names: str) -> str:
    if name == "completion_ids":
        return (
            f"reward {function.name!r} needs completion_ids, and the policy records no token ids (an endpoint gives "
            "texts): give the parameter a default, or sample from a model of your own"
        )
    if name in _TRL_ARGUMENTS:
        return f"reward {function.name!r} needs {name}, which TRL's trainers alone give: give the parameter a default"
    return f"reward {function.name!r} needs the column {name!r}, and the rows have {column_names}"


def _copy(value: Any) -> Any:
    """Return a copy of lists, dictionaries, sets and arrays at any depth; other objects are shared."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    if type(value) is tuple:
        return tuple(map(_copy, value))
    return value.copy() if isinstance(value, set | bytearray | np.ndarray) else value


@contextmanager
def _name_errors(function: RewardFunction) -> Iterator[None]:
    """Prefix errors with the function's name; foreign exceptions become `RewardError`."""
    prefix = f"reward {function.name!r}"
    try:
        yield
    except (CancelledError, asyncio.CancelledError) as error:
        raise RewardError(f"{prefix}: its work was cancelled") from error
    except MemalphaError as error:
        if str(error).startswith(prefix):
            raise
        raise type(error)(f"{prefix}: {error}") from error
    except (Exception, SystemExit) as error:  # exec() of a reply that calls exit() would end the run without a word
        problem = f"{type(error).__name__}: {error}".rstrip(": ")
        raise RewardError(f"{prefix} raised {problem}") from error


def _check_values(function: RewardFunction, values: Any, rows: int) -> list[float | None]:
    """Return the function's values as floats and None, or raise `RewardError`."""
    is_number = getattr(values, "shape", None) == ()  # an array or tensor without a dimension has no length
    if is_number or isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Collection):
        needed = f"a list of {rows} numbers (or None) is needed"
        raise RewardError(f"reward {function.name!r} gave {brief_repr(values)}: {needed}")
    numbers = list(values)
    if len(numbers) != rows:
        raise RewardError(f"reward {function.name!r} gave {len(numbers)} values for {rows} rows: one each is needed")
    for row, value in enumerate(numbers):
        if value is None or value is UNSCORED:
            continue
        numbers[row] = math.nan
        if isinstance(value, SupportsFloat):
            with suppress(TypeError, ValueError, OverflowError):
                numbers[row] = float(value)
        if not math.isfinite(numbers[row]):
            problem = f"{brief_repr(value)} is not a finite number"
            advice = "return a float, or None where the function does not apply"
            raise RewardError(f"reward {function.name!r}, row {row}: {problem}; {advice}")
    return numbers


async def _await_call(call: Callable[[], Any]) -> Any:
    try:
        return await call()
    except SystemExit as error:  # would end the loop's thread, and the caller would wait for ever
        raise RewardError(f"raised SystemExit: {error}") from error
