"""Base of trainers that evaluate on memory tasks: readers, frozen policies and greedy evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from memalpha.agent.reader import Reader
from memalpha.config import ReaderConfig, SFTConfig, TrainConfig
from memalpha.environments.memory_writing import memory_engine
from memalpha.policy.base import Policy, with_prompt_style
from memalpha.policy.load import load_policy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.evaluate import Evaluator, MemoryScorer
from memalpha.qa.memory_reward import MemoryReward
from memalpha.qa.reader import load_reader
from memalpha.qa.report import Report
from memalpha.store.embedding import load_embedder
from memalpha.train.learner.distributed import World
from memalpha.train.trainers.base import Trainer

T = TypeVar("T", TrainConfig, SFTConfig)


class EvaluatedTrainer(Trainer[T]):
    """A trainer with readers, other policies by name, and evaluations on memory tasks."""

    def __init__(self, config: T, world: World) -> None:
        super().__init__(config, world)
        self._frozen_policies: dict[str, Policy] = {}
        self.config = self._with_trained_prompts()
        self.embedder = load_embedder(config.agent.embedder)
        self.rewards = MemoryReward(self.config.reward.kept_in(self.out), self.policy.count_tokens)

    def _load_readers(self, *settings: ReaderConfig) -> list[Reader]:
        """Load readers; they refuse conflicts by default and use the start policy if none is named."""
        resolved = [reader.model_copy(update={"conflicts": reader.conflicts or "refuse"}) for reader in settings]
        return [
            load_reader(
                reader.model_copy(update={"policy": None}),
                self._load_frozen_policy(reader.policy or self.config.policy) if reader.kind == "policy" else None,
            )
            for reader in resolved
        ]

    def _load_frozen_policy(self, name: str) -> Policy:
        """Load a policy that is not trained, once per name, on the run's device and in its precision."""
        if name not in self._frozen_policies:
            endpoint = self.config.endpoint.kept_in(self.out)
            policy = load_policy(
                name, dtype=self.config.compute.dtype, device=self.config.compute.device, endpoint=endpoint
            )
            if isinstance(policy, TransformersPolicy):
                policy.model.requires_grad_(False)
            self._frozen_policies[name] = policy
        return self._frozen_policies[name]

    def _with_trained_prompts(self) -> T:
        """Return the settings with writer and readers prompted in the style that each policy was trained in."""
        config = self.config
        updates: dict[str, Any] = {
            "agent": with_prompt_style(config.agent, self.policy),
            "reader": self._with_trained_prompt(config.reader),
        }
        if config.reward.reader is not None:
            reader = self._with_trained_prompt(config.reward.reader)
            updates["reward"] = config.reward.model_copy(update={"reader": reader})
        return config.model_copy(update=updates)

    def _with_trained_prompt(self, reader: ReaderConfig) -> ReaderConfig:
        if reader.kind != "policy" or "prompt" in reader.model_fields_set:
            return reader
        return with_prompt_style(reader, self._load_frozen_policy(reader.policy) if reader.policy else self.policy)

    def _evaluate_on(
        self, name: str, policy: Policy, tasks: Sequence[Any], reader: Reader, progress: Any = None
    ) -> Report:
        """Evaluate `policy` greedily on the tasks, with all processes."""
        engine = memory_engine(policy, self.config.agent, self.embedder)
        scorer = MemoryScorer(reader, self.rewards, self.embedder)
        return Evaluator(engine, scorer, self.world).evaluate(name, tasks, progress=progress)

    def _evaluate_and_save(self, name: str, policy: Policy, tasks: Sequence[Any], reader: Reader) -> Report:
        """Evaluate on held-out tasks; save `eval/<name>.json` and `eval/<name>.jsonl`."""
        with self.display.task_progress(f"evaluating {name} on {len(tasks)} held-out tasks") as progress:
            report = self._evaluate_on(name, policy, tasks, reader, progress)
        if self.world.is_main:
            report.save(self.out)
        self.display.log(f"{name}: accuracy {report.summary['accuracy']:.3f}")
        return report
