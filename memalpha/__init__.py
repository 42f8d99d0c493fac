"""memalpha: train, evaluate and use memory agents.

The public names, loaded on first use: `import memalpha` itself reads no model library, no index and no configuration,
so that a program which only needs the store never pays for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memalpha.agent.agent import MemoryAgent
    from memalpha.config import EvalConfig, TrainConfig
    from memalpha.errors import MemalphaError
    from memalpha.policy.load import load_policy, load_reward_model
    from memalpha.qa.evaluate import evaluate
    from memalpha.rewards.evaluate import evaluate_text
    from memalpha.store.async_store import AsyncMemoryStore
    from memalpha.store.checks.audit import audit
    from memalpha.store.embedding import load_embedder
    from memalpha.store.search.ranking import Boost
    from memalpha.store.store import MemoryStore
    from memalpha.tasks.formats.jsonl import to_dataset
    from memalpha.tasks.load import load_tasks
    from memalpha.tasks.text_tasks import load_text_tasks
    from memalpha.train.api import train, train_on_preferences, train_reward_model
    from memalpha.types import Chunk, MemoryEntry, Operation, Question, Task, TextTask

__version__ = "0.1.0"

_NAMES = {
    "agent.agent": "MemoryAgent",
    "config": "EvalConfig TrainConfig",
    "errors": "MemalphaError",
    "policy.load": "load_policy load_reward_model",
    "qa.evaluate": "evaluate",
    "rewards.evaluate": "evaluate_text",
    "store.async_store": "AsyncMemoryStore",
    "store.checks.audit": "audit",
    "store.embedding": "load_embedder",
    "store.search.ranking": "Boost",
    "store.store": "MemoryStore",
    "tasks.formats.jsonl": "to_dataset",
    "tasks.load": "load_tasks",
    "tasks.text_tasks": "load_text_tasks",
    "train.api": "train train_on_preferences train_reward_model",
    "types": "Chunk MemoryEntry Operation Question Task TextTask",
}
"""Public names by the module that defines them."""
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

# The function and the package of the training side have one name. Python sets it to the package when that is first
# imported, and never again: so that comes first.
import_module("memalpha.train")
del globals()["train"]

_TRAINING_LIBRARIES = ("torch", "transformers", "safetensors", "peft", "accelerate")

__all__ = [
    "AsyncMemoryStore",
    "Boost",
    "Chunk",
    "EvalConfig",
    "MemalphaError",
    "MemoryAgent",
    "MemoryEntry",
    "MemoryStore",
    "Operation",
    "Question",
    "Task",
    "TextTask",
    "TrainConfig",
    "__version__",
    "audit",
    "evaluate",
    "evaluate_text",
    "load_embedder",
    "load_policy",
    "load_reward_model",
    "load_tasks",
    "load_text_tasks",
    "to_dataset",
    "train",
    "train_on_preferences",
    "train_reward_model",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'memalpha' has no attribute {name!r}")
    try:
        value = getattr(import_module(f"memalpha.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _TRAINING_LIBRARIES:
            raise
        from memalpha.errors import PolicyError, install_command

        raise PolicyError(f"memalpha.{name} needs {error.name}: {install_command('train')}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
