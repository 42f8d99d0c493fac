"""Built-in systems by name: baselines, writers, and custom ones with the methods of `systems.base.System`.

| name          | content, and passages for a question                                                                |
|---------------|-----------------------------------------------------------------------------------------------------|
| `empty`       | nothing                                                                                             |
| `append-only` | every line as an entry of a memory, verbatim; the k best                                            |
| `rag`         | raw turns with their date and the words around them, the store's default search; the k best         |
| `rag:chunks`  | the same over windows of up to 256 tokens of consecutive turns, never across a chunk                |
| `full`        | the whole conversation, newest turn first, whatever the budget                                      |
| `window`      | the last turns that fit into the budget, newest first                                               |
| `oracle`      | the evidence turns of the question: the reader's accuracy on them is its ceiling                    |
| `facts`       | a task's own facts (`Task.meta["observations"]`) as an imported memory; the k best                  |
| a policy      | a writer: "smol", "tiny", "scripted:KIND", a checkpoint's directory, a hub id, an endpoint          |
| `a.module:factory` | a custom system: the factory returns an object with the three methods of `System`              |

A factory is called once per task. It gets the evaluation's `embedder` and `k` if it takes these keywords.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from typing import Any, Protocol, cast

from memalpha.config import AgentConfig
from memalpha.endpoint_calls import ENDPOINT_PREFIXES
from memalpha.environments.memory_writing import memory_engine
from memalpha.errors import ConfigError, EvaluationError, MemalphaError, did_you_mean
from memalpha.policy.base import NAMED_POLICIES, RULE_POLICIES, Policy, with_prompt_style
from memalpha.policy.load import load_policy
from memalpha.policy.reply_cache import AnswerCache, keep_replies
from memalpha.qa.memory_reward import memory_tokens
from memalpha.qa.report import estimate_tokens
from memalpha.qa.systems.base import (
    Historical,
    Inspectable,
    Passage,
    Retrieval,
    System,
    WrittenMemory,
    as_passage,
    question_chunk,
    questions_by_chunk,
)
from memalpha.qa.systems.baselines import (
    EmptySystem,
    RecentSystem,
    SearchSystem,
    cut_to_budget,
    fact_passages,
    passage_tokens,
    turn_passages,
    turn_texts_of,
    window_passages,
)
from memalpha.store.embedding import Embedder
from memalpha.store.in_memory import WorkingMemory
from memalpha.types import Chunk, Question, Task, TrajectoryGroup

BUILT_IN = ("empty", "append-only", "rag", "rag:chunks", "full", "window", "oracle", "facts")

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class SystemSettings:
    """Settings that all systems of an evaluation share.

    Attributes:
        budget: Tokens (characters / 4) that a system may show for a question.
        k: Passages that searching systems return.
        embedder: Embedder of the systems that search.
        agent: Prompts and tools of a writer.
        is_searchable: Keep all systems, for a reader that searches them by itself (`Retrieval.search`).
    """

    budget: int
    k: int
    embedder: Embedder
    agent: AgentConfig = field(default_factory=AgentConfig)
    is_searchable: bool = False


@dataclass(frozen=True, slots=True)
class Retrievals:
    """Everything one system returned in an evaluation.

    Attributes:
        by_task: Retrievals as [task][question], in the order of the tasks.
        sizes: Tokens of the memory at the end of each task.
        groups: Trajectories of a writer.
    """

    by_task: list[list[Retrieval]]
    sizes: list[int]
    groups: tuple[TrajectoryGroup, ...] = ()


class EvaluatedSystem(Protocol):
    """System as the evaluation runs it: it returns passages for all questions of all tasks."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    def retrieve(self, tasks: Sequence[Task], settings: SystemSettings, progress: Progress | None = None) -> Retrievals:
        """Return the passages for every question at the time it is asked.

        Args:
            tasks: Tasks to read.
            settings: Budget, k, embedder, prompts.
            progress: Called with (chunks read, all chunks).
        """
        ...


# ---------------------------------------------------------------------------------------------------- kinds of systems


@dataclass(frozen=True, slots=True)
class Streamed:
    """System that reads a conversation chunk by chunk, a new one for every task.

    A question sees the chunks up to the one it is asked after.

    Attributes:
        name: Name in reports.
        make: Creates the system of a task: `make(task, settings)`.
        exempt: True if its passages are not cut at the budget.
    """

    name: str
    make: Callable[[Task, SystemSettings], System]
    exempt: bool = False

    def retrieve(self, tasks: Sequence[Task], settings: SystemSettings, progress: Progress | None = None) -> Retrievals:
        """Return the passages for every question; arguments as in `EvaluatedSystem.retrieve`.

        Raises:
            EvaluationError: The system raised; names task, chunk and line of the system's code.
        """
        total, chunks_read, by_task, sizes = sum(len(task.chunks) for task in tasks), 0, [], []
        for task in tasks:
            with self._name_errors(task):
                system = self.make(task, settings)
            by_question: dict[str, Retrieval] = {}
            history: dict[tuple[str | None, str], Passage] = {}
            turn_texts, asked = turn_texts_of(task), questions_by_chunk(task)
            for chunk in task.chunks:
                with self._name_errors(task, chunk):
                    system.read(chunk)
                    if isinstance(system, Inspectable) and not isinstance(system, Historical):
                        history.update(((entry.id, entry.text), entry) for entry in system.entries())
                if questions := asked.get(chunk.index):
                    with self._name_errors(task, chunk):
                        retrievals = list(self._ask(system, questions, history, turn_texts, settings.budget))
                    if settings.is_searchable:
                        search = self._make_search(system, task, chunk, turn_texts, settings)
                        retrievals = [replace(item, search=search) for item in retrievals]
                    by_question.update((item.question.id, item) for item in retrievals)
                chunks_read += 1
                if progress is not None:
                    progress(chunks_read, total)
            by_task.append([by_question[question.id] for question in task.questions])
            with self._name_errors(task):
                sizes.append(system.size())
        return Retrievals(by_task, sizes)

    @contextmanager
    def _name_errors(self, task: Task, chunk: Chunk | None = None) -> Iterator[None]:
        """Re-raise foreign exceptions as EvaluationError with task, chunk and line of the system's code."""
        try:
            yield
        except MemalphaError:
            raise
        except Exception as error:
            frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename != __file__]
            lines = [
                f" ({frame.filename}, line {frame.lineno})" for frame in frames if frame.filename == frames[0].filename
            ]
            where = f"task {task.id!r}" + ("" if chunk is None else f", chunk {chunk.index}")
            raise EvaluationError(
                f"system {self.name}: {where}: {type(error).__name__}: {error}{''.join(lines[-1:])}"
            ) from error

    def _ask(
        self,
        system: System,
        questions: Sequence[Question],
        seen_entries: Mapping[tuple[str | None, str], Passage],
        turn_texts: Mapping[str, str],
        budget: int,
    ) -> Iterator[Retrieval]:
        entries = tuple(system.entries()) if isinstance(system, Inspectable) else None
        history = None if entries is None else tuple(seen_entries.values())
        if isinstance(system, Historical):
            history = tuple(system.history())
        size = system.size()
        for question in questions:
            selected = self._context(system, question.question, turn_texts, budget)
            yield Retrieval(question, selected, passage_tokens(selected), size, entries=entries, history=history)

    def _context(self, system: System, query: str, turn_texts: Mapping[str, str], budget: int) -> tuple[Passage, ...]:
        context = system.context(query)
        if isinstance(context, str) or not isinstance(context, Iterable):
            raise ConfigError(f"system {self.name}: context() gives a list, not {type(context).__name__}")
        passages = [Passage(item) if isinstance(item, str) else item for item in context]
        for passage in passages:
            if not isinstance(passage, Passage):
                kind = type(passage).__name__
                raise ConfigError(f"system {self.name}: context() gives passages or texts, not {kind}")
        return cut_to_budget(passages, None if self.exempt else budget, turn_texts=turn_texts)[1]

    def _make_search(
        self, system: System, task: Task, chunk: Chunk, turn_texts: Mapping[str, str], settings: SystemSettings
    ) -> Callable[[str], tuple[Passage, ...]]:
        """Return a search of the system as it is after `chunk`; one that reads on is made anew up to there."""

        @cache
        def system_then() -> System:
            if chunk.index == task.chunks[-1].index:
                return system
            remade = self.make(task, settings)
            for earlier in task.chunks[: chunk.index + 1]:
                remade.read(earlier)
            return remade

        def search(query: str) -> tuple[Passage, ...]:
            with self._name_errors(task, chunk):
                return self._context(system_then(), query, turn_texts, settings.budget)

        return search


@dataclass(frozen=True, slots=True)
class Writer:
    """Policy that writes a memory per task; the k best entries are the passages."""

    name: str
    policy: Policy

    def retrieve(self, tasks: Sequence[Task], settings: SystemSettings, progress: Progress | None = None) -> Retrievals:
        """Return the passages for every question. The policy writes one memory a task.

        Args:
            tasks: Tasks with their questions.
            settings: Sizes, embedder and prompt settings that all systems share.
            progress: Called with (chunks read, all chunks).
        """
        agent = with_prompt_style(settings.agent, self.policy)
        groups = memory_engine(self.policy, agent, settings.embedder).roll_out(tasks, progress=progress)
        sizes = [memory_tokens(group.trajectories[0].states[-1], estimate_tokens) for group in groups]
        return Retrievals([self._retrieve_for_task(group, settings) for group in groups], sizes, tuple(groups))

    def _retrieve_for_task(self, group: TrajectoryGroup, settings: SystemSettings) -> list[Retrieval]:
        [trajectory], task = group.trajectories, group.task
        by_question: dict[str, Retrieval] = {}
        written = WrittenMemory(trajectory)
        turn_texts, asked = turn_texts_of(task), questions_by_chunk(task)
        for index, state in enumerate(trajectory.states):
            if not (questions := asked.get(index)):
                continue
            memory, size = WorkingMemory(state, settings.embedder), memory_tokens(state, estimate_tokens)
            entries, history = written.after(index)

            def find(query: str, memory: WorkingMemory = memory) -> tuple[Passage, ...]:
                passages = [as_passage(hit.entry) for hit in memory.search(query, settings.k)]
                return cut_to_budget(passages, settings.budget, memory.core, turn_texts)[1]

            search = find if settings.is_searchable else None
            hits_by_question = memory.search_many([question.question for question in questions], settings.k)
            for question, hits in zip(questions, hits_by_question, strict=True):
                core, selected = cut_to_budget(
                    [as_passage(hit.entry) for hit in hits], settings.budget, state.core, turn_texts
                )
                tokens = passage_tokens(selected) + estimate_tokens(core)
                by_question[question.id] = Retrieval(
                    question, selected, tokens, size, core, entries, history, state.core, search
                )
        return [by_question[question.id] for question in task.questions]


@dataclass(frozen=True, slots=True)
class Oracle:
    """System that returns the turns a question's evidence names, as far as they have been read."""

    name: str = "oracle"

    def retrieve(self, tasks: Sequence[Task], settings: SystemSettings, progress: Progress | None = None) -> Retrievals:
        """Return the passages for every question. They are the turns that its evidence names.

        Args:
            tasks: Tasks with their questions.
            settings: Sizes, embedder and prompt settings that all systems share.
            progress: Called with (chunks read, all chunks).
        """
        by_task = []
        for number, task in enumerate(tasks, start=1):
            lines = [(chunk.index, passage) for chunk in task.chunks for passage in turn_passages(chunk)]
            turns = {
                turn: (chunk, replace(passage, order=order))  # later turns get a greater order, as in all systems
                for order, (chunk, passage) in enumerate(lines)
                for turn in passage.turns
            }
            items = []
            for question in task.questions:
                last = question_chunk(question, task)
                evidence = tuple(turns[id][1] for id in question.evidence if id in turns and turns[id][0] <= last)
                _, selected = cut_to_budget(evidence, settings.budget, turn_texts=turn_texts_of(task))
                tokens, size = passage_tokens(selected), passage_tokens(evidence)
                items.append(Retrieval(question, selected, tokens, size, entries=evidence, history=evidence))
            by_task.append(items)
            if progress is not None:
                progress(number, len(tasks))
        used = [{passage.id: passage for item in items for passage in item.entries or ()} for items in by_task]
        return Retrievals(by_task, [passage_tokens(passages.values()) for passages in used])


# ------------------------------------------------------------------------------------------------------------ loading

_FACTORY_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def load_system(name: str, *, replies: AnswerCache | None = None, **loading: Any) -> EvaluatedSystem:
    """Load a system by name; the table above lists the names.

    Args:
        name: Name of a system, a policy, or `package.module:factory`.
        replies: File in which the replies of a local policy are kept (`policy.reply_cache`).
        loading: How a policy is loaded: keywords of `policy.load.load_policy`.

    Raises:
        ConfigError: No system has this name.
        PolicyError: The policy cannot be loaded.
    """

    def search(split: Callable[[Chunk], Sequence[Passage]], settings: SystemSettings, raw: bool = True) -> System:
        return SearchSystem(name, split, settings.k, settings.embedder, raw=raw)

    makers: dict[str, Callable[[Task, SystemSettings], System]] = {
        "empty": lambda task, settings: EmptySystem(),
        "append-only": lambda task, settings: search(turn_passages, settings, raw=False),
        "rag": lambda task, settings: search(turn_passages, settings),
        "rag:chunks": lambda task, settings: search(window_passages, settings),
        "window": lambda task, settings: RecentSystem(name, settings.budget),
        "full": lambda task, settings: RecentSystem(name, None),
        "facts": lambda task, settings: search(fact_passages(task), settings, raw=False),
    }
    if name in makers:
        return Streamed(name, makers[name], exempt=name == "full")
    if name == "oracle":
        return Oracle()
    if _is_factory(name):
        return Streamed(name, load_factory(name))
    if re.fullmatch(r"[\w.-]+", name) and name not in (*NAMED_POLICIES, *RULE_POLICIES) and not Path(name).exists():
        near = did_you_mean(name, (*BUILT_IN, *NAMED_POLICIES, *RULE_POLICIES))
        raise ConfigError(
            f"no system {name!r}{near}: there are {', '.join(BUILT_IN)}; a policy: "
            f"{', '.join((*NAMED_POLICIES, *RULE_POLICIES))}, "
            "scripted:KIND, a directory, owner/name on a hub, an endpoint; and your own as package.module:factory"
        )
    return Writer(name, keep_replies(load_policy(name, **loading), replies))


def as_system(system: str | Policy | EvaluatedSystem) -> EvaluatedSystem:
    """Return the system of a name, or of a policy that writes."""
    if isinstance(system, str):
        return load_system(system)
    return Writer(system.name, system) if isinstance(system, Policy) else system


def is_writer(name: str) -> bool:
    """Return True if a system's name means a policy that writes a memory."""
    return not (name in BUILT_IN or _is_factory(name))


def _is_factory(name: str) -> bool:
    return bool(_FACTORY_PATH.fullmatch(name)) and not name.startswith(("scripted:", *ENDPOINT_PREFIXES))


def load_factory(path: str) -> Callable[[Task, SystemSettings], System]:
    """Import `package.module:factory` and return a function that creates a system per task.

    Modules of the working directory are found too.

    Raises:
        ConfigError: The factory is missing, cannot be called, or its systems lack one of the three methods.
    """
    module, _, attribute = path.partition(":")
    if (working_directory := str(Path.cwd())) not in sys.path:
        sys.path.append(working_directory)
    try:
        factory = getattr(import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"system {path}: there is no module {error.name!r} here; write package.module:factory"
        ) from error
    except Exception as error:
        frame = extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"system {path}: {module} cannot be imported: {type(error).__name__}: {error} ({frame.filename}, line "
            f"{frame.lineno})"
        ) from error
    if not callable(factory):
        raise ConfigError(f"system {path}: {module} has no {attribute!r} that can be called")
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # some callables written in C have no signature
        parameters = {}

    supported = ("embedder", "k")
    if needed := [
        key
        for key, parameter in parameters.items()
        if key not in supported
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]:
        raise ConfigError(f"system {path}: it needs {', '.join(needed)}, and is given embedder and k alone")

    def make(task: Task, settings: SystemSettings) -> System:
        common = {"embedder": settings.embedder, "k": settings.k}
        system = factory(**{key: common[key] for key in supported if key in parameters})
        if missing := [method for method in ("read", "context", "size") if not callable(getattr(system, method, None))]:
            raise ConfigError(
                f"system {path}: what it makes lacks {', '.join(missing)}: see memalpha.qa.systems.System"
            )
        return cast(System, system)

    return make
