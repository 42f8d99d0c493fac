"""Frozen policies and readers of runs on memory tasks; evaluations that a run keeps in `eval/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from memalpha.agent.reader import Reader
from memalpha.config import ReaderConfig, SFTConfig, TrainConfig
from memalpha.policy.base import Policy, with_prompt_style
from memalpha.policy.load import load_policy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.evaluate import Evaluator
from memalpha.qa.reader import load_reader
from memalpha.qa.report import Report
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.progress import Display

M = TypeVar("M", TrainConfig, SFTConfig)


class FrozenPolicies:
    """Policies that a run uses and does not train, loaded once per name, on the run's device and in its precision.

    Args:
        config: Settings of the run.
    """

    def __init__(self, config: TrainConfig | SFTConfig) -> None:
        self.config = config
        self._policies: dict[str, Policy] = {}

    def load(self, name: str) -> Policy:
        """Load a policy, or return it if it has been loaded."""
        if name not in self._policies:
            config = self.config
            endpoint = config.endpoint.kept_in(config.out)
            policy = load_policy(name, dtype=config.compute.dtype, device=config.compute.device, endpoint=endpoint)
            if isinstance(policy, TransformersPolicy):
                policy.model.requires_grad_(False)
            self._policies[name] = policy
        return self._policies[name]

    def load_reader(self, reader: ReaderConfig) -> Reader:
        """Load a reader; it refuses conflicts by default and uses the start policy if none is named."""
        policy = self.load(reader.policy or self.config.policy) if reader.kind == "policy" else None
        conflicts = reader.conflicts or "refuse"
        return load_reader(reader.model_copy(update={"policy": None, "conflicts": conflicts}), policy)

    def with_trained_prompts(self, config: M, trained: Policy) -> M:
        """Return the settings with writer and readers prompted in the style that each policy was trained in.

        Args:
            config: Settings of the run.
            trained: Policy that is trained; it also reads for readers that name none.
        """

        def prompted(reader: ReaderConfig) -> ReaderConfig:
            if reader.kind != "policy" or "prompt" in reader.model_fields_set:
                return reader
            return with_prompt_style(reader, self.load(reader.policy) if reader.policy else trained)

        updates: dict[str, Any] = {
            "agent": with_prompt_style(config.agent, trained),
            "reader": prompted(config.reader),
        }
        if config.reward.reader is not None:
            updates["reward"] = config.reward.model_copy(update={"reader": prompted(config.reward.reader)})
        return config.model_copy(update=updates)


def keep_evaluation(
    evaluator: Evaluator[Any],
    name: str,
    tasks: Sequence[Any],
    directory: RunDirectory,
    display: Display,
    shown: Sequence[str] = ("accuracy",),
) -> Report:
    """Evaluate on held-out tasks; save `eval/<name>.json` and `eval/<name>.jsonl`.

    Args:
        evaluator: Evaluates its policy.
        name: Name of the evaluation.
        tasks: Held-out tasks.
        directory: Run directory.
        display: Shows progress and the result.
        shown: Names of the results to show.
    """
    with display.task_progress(f"evaluating {name} on {len(tasks)} held-out tasks") as progress:
        report = evaluator.evaluate(name, tasks, progress=progress)
    if directory.world.is_main:
        report.save(directory.path)
    display.log(f"{name}: " + ", ".join(f"{measure} {report.summary[measure]:.3f}" for measure in shown))
    return report


def validate_on_tasks(
    evaluator: Evaluator[Any], tasks: Sequence[Any], metrics: dict[str, Any]
) -> Mapping[str, Any] | None:
    """Evaluate on the validation tasks and add accuracy and standard error to `metrics`.

    Args:
        evaluator: Evaluates the trained policy.
        tasks: Validation tasks.
        metrics: Metrics of the step.

    Returns:
        Summary of the evaluation; None without tasks.
    """
    if not tasks:
        return None
    summary = evaluator.evaluate("validation", tasks).summary
    metrics |= {"validation_accuracy": summary["accuracy"], "validation_se": summary["se"]}
    return summary
