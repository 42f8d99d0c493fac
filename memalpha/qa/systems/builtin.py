"""Systems that can be evaluated, by name: baselines, writers, and whatever else has the methods of `system.System`.

| name          | what it keeps, and what it shows for a question                                                     |
|---------------|-----------------------------------------------------------------------------------------------------|
| `empty`       | nothing                                                                                             |
| `append-only` | every line as an entry of a memory, as it was said; the k best                                      |
| `rag`         | raw turns with their date and the words around them, the store's default search; the k best         |
| `rag:chunks`  | the same over windows of up to 256 tokens of consecutive turns, never across a chunk                |
| `full`        | the whole conversation, newest turn first, whatever the budget                                      |
| `window`      | the last turns that fit into the budget, newest first                                               |
| `oracle`      | the evidence turns of the question: what the reader makes of it is its ceiling                      |
| `facts`       | a task's own facts (`Task.meta["observations"]`) as an imported memory; the k best                  |
| `heuristic`   | a writer by rule (`policy.heuristic`)                                                               |
| a policy      | a writer: "tiny", "scripted:KIND", a checkpoint's directory, a hub id, an endpoint                  |
| `a.module:factory` | your own: what the factory returns has the three methods of `System`                           |

A factory is called once a task; where it takes `embedder` or `k` by keyword, it gets those of the evaluation.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from typing import Any, Protocol, cast

from memalpha.agent.builder import Builder
from memalpha.config import AgentConfig, EndpointConfig
from memalpha.errors import ConfigError, EvaluationError, MemalphaError
from memalpha.policy.base import ENDPOINTS, SHIPPED, Policy, in_own_style, load_policy
from memalpha.qa.evaluate import asked_at
from memalpha.qa.memory_reward import memory_tokens
from memalpha.qa.report import characters_by_four
from memalpha.qa.systems.base import Historical, Inspectable, Passage, Shown, System, as_passage
from memalpha.qa.systems.baselines import Empty, Recent, Searched, facts_of, turns_of, windows_of
from memalpha.qa.systems.budget import cut, length, words_of
from memalpha.store.embedding import Embedder
from memalpha.store.in_memory import WorkingMemory
from memalpha.types import Chunk, Question, Task, TrajectoryGroup

BUILT_IN = ("empty", "append-only", "rag", "rag:chunks", "full", "window", "oracle", "facts", "heuristic")

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What all systems of an evaluation have in common: the budget of tokens, how many passages those that search give,
    the embedder they search with, and how a writer is prompted."""

    budget: int
    k: int
    embedder: Embedder
    agent: AgentConfig = field(default_factory=AgentConfig)
    device: str = "cpu"
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Showing:
    """What a system showed: [task][question], in the order of the tasks; the tokens it held at the end of each; and the
    trajectories of a writer."""

    shown: list[list[Shown]]
    sizes: list[int]
    groups: tuple[TrajectoryGroup, ...] = ()


class Source(Protocol):
    """A system as the runner sees it: something that has an answer's material for all questions of all tasks."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def show(self, tasks: Sequence[Task], settings: Settings, progress: Progress | None = None) -> Showing:
        """What it has for every question when that is asked; `progress(done, total)` counts chunks."""
        ...


# ------------------------------------------------------------------------------------------------------- asking systems


@dataclass(frozen=True, slots=True)
class Streamed:
    """A system that reads a conversation chunk by chunk, a new one for every task.

    `make(task, settings)` gives it. A question sees what was read up to the chunk it is asked after. `exempt`: it shows
    all it has, whatever the budget.
    """

    name: str
    make: Callable[[Task, Settings], System]
    exempt: bool = False

    def show(self, tasks: Sequence[Task], settings: Settings, progress: Progress | None = None) -> Showing:
        """See `Source`."""
        total, done, shown, sizes = sum(len(task.chunks) for task in tasks), 0, [], []
        for task in tasks:
            with self._at(task):
                system = self.make(task, settings)
            found: dict[str, Shown] = {}
            ever: dict[tuple[str | None, str], Passage] = {}
            said = words_of(task)
            for chunk in task.chunks:
                with self._at(task, chunk):
                    system.read(chunk)
                    if isinstance(system, Inspectable) and not isinstance(system, Historical):
                        ever.update(((entry.id, entry.text), entry) for entry in system.entries())
                if asked := [question for question in task.questions if asked_at(question, task) == chunk.index]:
                    with self._at(task, chunk):
                        shown_now = list(self._ask(system, asked, ever, said, settings.budget))
                    found.update((item.question.id, item) for item in shown_now)
                done += 1
                if progress is not None:
                    progress(done, total)
            shown.append([found[question.id] for question in task.questions])
            with self._at(task):
                sizes.append(system.size())
        return Showing(shown, sizes)

    @contextmanager
    def _at(self, task: Task, chunk: Chunk | None = None) -> Iterator[None]:
        """Says where the system was when it raised, and the line of its own code; what we raise on purpose stays."""
        try:
            yield
        except MemalphaError:
            raise
        except Exception as error:
            own = [frame for frame in extract_tb(error.__traceback__) if frame.filename != __file__]
            lines = [f" ({one.filename}, line {one.lineno})" for one in own if one.filename == own[0].filename]
            at = f"task {task.id!r}" + ("" if chunk is None else f", chunk {chunk.index}")
            raise EvaluationError(
                f"system {self.name}: {at}: {type(error).__name__}: {error}{''.join(lines[-1:])}"
            ) from error

    def _ask(
        self,
        system: System,
        questions: Sequence[Question],
        ever: Mapping[tuple[str | None, str], Passage],
        said: Mapping[str, str],
        budget: int,
    ) -> Iterator[Shown]:
        held = tuple(system.entries()) if isinstance(system, Inspectable) else None
        before = None if held is None else tuple(ever.values())
        if isinstance(system, Historical):
            before = tuple(system.history())
        size = system.size()
        for question in questions:
            given = system.context(question.question)
            if isinstance(given, str) or not isinstance(given, Iterable):
                raise ConfigError(f"system {self.name}: context() gives a list, not {type(given).__name__}")
            passages = tuple(_passage(item, self.name) for item in given)
            _, kept = cut(passages, None if self.exempt else budget, said=said)
            yield Shown(question, kept, length(kept), size, held=held, ever=before)


@dataclass(frozen=True, slots=True)
class Writer:
    """A policy that writes a memory, all tasks in lock-step; shown are the k entries nearest to the question."""

    name: str
    policy: Policy

    def show(self, tasks: Sequence[Task], settings: Settings, progress: Progress | None = None) -> Showing:
        """See `Source`."""
        agent = in_own_style(settings.agent, self.policy)
        groups = Builder(self.policy, agent, settings.embedder).build(tasks, progress=progress)
        sizes = [memory_tokens(group.trajectories[0].states[-1], characters_by_four) for group in groups]
        return Showing([self._shown(group, settings) for group in groups], sizes, tuple(groups))

    def _shown(self, group: TrajectoryGroup, settings: Settings) -> list[Shown]:
        [trajectory], task = group.trajectories, group.task
        found: dict[str, Shown] = {}
        ever: dict[tuple[str | None, str], Passage] = {}
        said = words_of(task)
        for index, state in enumerate(trajectory.states):
            for turn in (turn for turn in trajectory.turns if turn.chunk == index):
                for operation in turn.operations:
                    if operation.content:
                        passage = Passage(operation.content, operation.id, operation.category, operation.timestamp)
                        ever[operation.id, operation.content] = passage
            asked = [question for question in task.questions if asked_at(question, task) == index]
            if not asked:
                continue
            memory, held = WorkingMemory(state, settings.embedder), tuple(map(as_passage, state.list()))
            size, before = memory_tokens(state, characters_by_four), tuple(ever.values())
            found_hits = memory.search_many([question.question for question in asked], settings.k)
            for question, hits in zip(asked, found_hits, strict=True):
                core, kept = cut([as_passage(hit.entry) for hit in hits], settings.budget, state.core, said)
                tokens = length(kept) + characters_by_four(core)
                found[question.id] = Shown(question, kept, tokens, size, core, held, before, state.core)
        return [found[question.id] for question in task.questions]


@dataclass(frozen=True, slots=True)
class Oracle:
    """The turns that a question's evidence names, as far as they have been said; nothing where it names none."""

    name: str = "oracle"

    def show(self, tasks: Sequence[Task], settings: Settings, progress: Progress | None = None) -> Showing:
        """See `Source`."""
        shown = []
        for number, task in enumerate(tasks, start=1):
            lines = [(chunk.index, passage) for chunk in task.chunks for passage in turns_of(chunk)]
            said = {
                turn: (chunk, replace(passage, order=order))  # as of all systems: the newest of two has the greater
                for order, (chunk, passage) in enumerate(lines)
                for turn in passage.turns
            }
            shown.append([self._shown(question, task, said, settings) for question in task.questions])
            if progress is not None:
                progress(number, len(tasks))
        used = [{passage.id: passage for item in items for passage in item.held or ()} for items in shown]
        return Showing(shown, [length(passages.values()) for passages in used])

    def _shown(
        self, question: Question, task: Task, said: Mapping[str, tuple[int, Passage]], settings: Settings
    ) -> Shown:
        at = asked_at(question, task)
        passages = [said[turn][1] for turn in question.evidence if turn in said and said[turn][0] <= at]
        _, kept = cut(passages, settings.budget, said=words_of(task))
        held = tuple(passages)
        return Shown(question, kept, length(kept), length(held), held=held, ever=held)


def _passage(item: Any, name: str) -> Passage:
    if isinstance(item, str):
        return Passage(item)
    if not isinstance(item, Passage):
        raise ConfigError(f"system {name}: context() gives passages or texts, not {type(item).__name__}")
    return item


# ------------------------------------------------------------------------------------------------------------- by name

_OUTSIDE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def load_source(
    name: str, *, device: str = "cpu", dtype: str = "float32", endpoint: EndpointConfig | None = None
) -> Source:
    """A system by its name (see the table above); `device`, `dtype` and `endpoint` are those of a policy.

    Raises `ConfigError` or `PolicyError` for a name that nothing goes by.
    """
    makers: dict[str, Callable[[Task, Settings], System]] = {
        "empty": lambda task, settings: Empty(),
        "append-only": lambda task, settings: Searched(name, turns_of, settings.k, settings.embedder, raw=False),
        "rag": lambda task, settings: Searched(name, turns_of, settings.k, settings.embedder),
        "rag:chunks": lambda task, settings: Searched(name, windows_of, settings.k, settings.embedder),
        "window": lambda task, settings: Recent(name, settings.budget),
        "full": lambda task, settings: Recent(name, None),
        "facts": lambda task, settings: Searched(name, facts_of(task), settings.k, settings.embedder, raw=False),
    }
    if name in makers:
        return Streamed(name, makers[name], exempt=name == "full")
    if name == "oracle":
        return Oracle()
    if _OUTSIDE.fullmatch(name) and not name.startswith(("scripted:", *ENDPOINTS)):
        return Streamed(name, outside(name))
    if name != "heuristic" and re.fullmatch(r"[\w.-]+", name) and name not in SHIPPED and not Path(name).exists():
        raise ConfigError(
            f"no system {name!r}: there are {', '.join(BUILT_IN)}; a policy: {', '.join(SHIPPED)}, scripted:KIND, a "
            "directory, owner/name on a hub, an endpoint; and your own as package.module:factory"
        )
    policy = "scripted:heuristic" if name == "heuristic" else name
    return Writer(name, load_policy(policy, device=device, dtype=dtype, endpoint=endpoint))


def outside(path: str) -> Callable[[Task, Settings], System]:
    """What makes a system of somebody else's, from `package.module:factory`; modules of the working directory count.

    Raises `ConfigError` where it is not there, cannot be called, or gives something without the three methods.
    """
    module, _, attribute = path.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        factory = getattr(import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"system {path}: there is no module {error.name!r} here; write package.module:factory"
        ) from error
    except Exception as error:
        place = extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"system {path}: {module} cannot be imported: {type(error).__name__}: {error} ({place.filename}, line "
            f"{place.lineno})"
        ) from error
    if not callable(factory):
        raise ConfigError(f"system {path}: {module} has no {attribute!r} that can be called")
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # some of those written in C have none
        parameters = {}

    known = ("embedder", "k")
    if needed := [
        key
        for key, parameter in parameters.items()
        if key not in known
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]:
        raise ConfigError(f"system {path}: it needs {', '.join(needed)}, and is given embedder and k alone")

    def make(task: Task, settings: Settings) -> System:
        common = {"embedder": settings.embedder, "k": settings.k}
        system = factory(**{key: common[key] for key in known if key in parameters})
        if missing := [method for method in ("read", "context", "size") if not callable(getattr(system, method, None))]:
            raise ConfigError(
                f"system {path}: what it makes lacks {', '.join(missing)}: see memalpha.qa.systems.System"
            )
        return cast(System, system)

    return make
