"""Read the conversations of an evaluation with worker processes, each with a system of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from memalpha.config import AgentConfig
from memalpha.config.groups import LoadingConfig
from memalpha.config.sampling import BatchConfig
from memalpha.errors import EvaluationError
from memalpha.policy.endpoints.cache import AnswerCache
from memalpha.qa.systems.builtin import Progress, Retrievals, SystemSettings, load_system
from memalpha.store.embedding import load_embedder
from memalpha.types import Task
from memalpha.workers import LostJob, run_jobs


@dataclass(frozen=True, slots=True)
class SystemLoading:
    """Names and settings with which each worker loads the system; see `load_system` and `SystemSettings`.

    Each worker opens the file `replies` itself.
    """

    name: str
    embedder: str
    device: str = "cpu"
    dtype: str = "float32"
    loading: LoadingConfig | None = None
    batching: BatchConfig | None = None
    replies: Path | None = None


@dataclass(frozen=True, slots=True)
class OverWorkers:
    """System whose conversations are read by worker processes, one at a time each.

    It returns what the system itself returns for all tasks in one process. Questions are answered in this process.

    Attributes:
        system: How each worker loads the system.
        workers: Number of processes.
    """

    system: SystemLoading
    workers: int

    @property
    def name(self) -> str:
        """Name in reports."""
        return self.system.name

    def retrieve(self, tasks: Sequence[Task], settings: SystemSettings, progress: Progress | None = None) -> Retrievals:
        """Return the passages for every question; arguments as in `EvaluatedSystem.retrieve`.

        Raises:
            EvaluationError: The system raised, or a conversation killed its workers.
        """
        start = partial(_start_system, self.system, settings.budget, settings.k, settings.agent)
        total, chunks_read = sum(len(task.chunks) for task in tasks), 0
        parts: list[Retrievals | None] = [None] * len(tasks)
        for (index, task), result in run_jobs(start, enumerate(tasks), self.workers):
            if isinstance(result, LostJob):
                raise EvaluationError(f"system {self.name}: task {task.id!r}: {result.reason}")
            parts[index] = result
            chunks_read += len(task.chunks)
            if progress is not None:
                progress(chunks_read, total)
        in_order = [part for part in parts if part is not None]
        return Retrievals(
            [items for part in in_order for items in part.by_task],
            [size for part in in_order for size in part.sizes],
            tuple(group for part in in_order for group in part.groups),
        )


@contextmanager
def _start_system(
    loading: SystemLoading, budget: int, k: int, agent: AgentConfig
) -> Iterator[Callable[[tuple[int, Task]], Retrievals]]:
    """Load the system in a worker, and yield the function that reads one conversation."""
    with nullcontext() if loading.replies is None else closing(AnswerCache(loading.replies, cheap=True)) as replies:
        system = load_system(
            loading.name,
            device=loading.device,
            dtype=loading.dtype,
            loading=loading.loading,
            batching=loading.batching,
            replies=replies,
        )
        settings = SystemSettings(budget, k, load_embedder(loading.embedder), agent)
        yield lambda job: system.retrieve([job[1]], settings)
