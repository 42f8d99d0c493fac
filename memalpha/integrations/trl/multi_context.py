"""`MultiContextGRPOTrainer`: memalpha samples and scores rollouts of many contexts, TRL trains on them.

A rollout over a memory is one row per chunk, each with its own prompt and the advantage of its turn; TRL's trainers
have one row per prompt. Here the prompts of TRL's data set are task indices. The trainer samples `num_generations`
rollouts of each with a `RolloutWorker`, for memory tasks or text tasks. memalpha's GRPO or RLOO computes advantages.
TRL gets the rows with advantages per token and the sampler's log-probs as old log-probs, and dead rows where processes
have unequally many. The update and everything around it (loss type, KL, schedule, LoRA, accumulation, checkpoints,
several processes) is TRL's.

On the same rows the gradient equals that of memalpha's learner (tests/integrations/trl). That learner pads less,
resumes at any step and depends on no private method of another package: use this trainer if you need TRL. A micro-batch
has all rows of `per_device_train_batch_size` rollouts, padded to the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from datasets import Dataset

from memalpha.config import ReinforcementConfig, TrainConfig
from memalpha.environments.memory_writing import memory_engine
from memalpha.errors import ConfigError, TrainingError
from memalpha.integrations.trl.base import Rows, RowTrainer, rows_from_ids
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.evaluate import MemoryScorer
from memalpha.qa.memory_reward import MemoryReward
from memalpha.store.embedding import load_embedder
from memalpha.train.algorithms import ALGORITHMS
from memalpha.train.algorithms.base import annotate
from memalpha.train.data.samples import TrainingSample
from memalpha.train.rollouts.worker import RolloutWorker, drop_unscored
from memalpha.train.trainers.evaluations import FrozenPolicies
from memalpha.train.trainers.trainer import load_start
from memalpha.types import Task

from trl.models.utils import disable_gradient_checkpointing  # isort: skip
from trl.trainer.grpo_config import GRPOConfig  # isort: skip
from trl.trainer.utils import use_adapter  # isort: skip

POLICY_GRADIENT_ALGORITHMS = ("grpo", "rloo")
"""Algorithms that train with a policy gradient only."""


def memory_collector(config: TrainConfig) -> RolloutWorker[Task]:
    """Build policy, writer, reader and reward of a memory run's configuration, for `MultiContextGRPOTrainer`."""
    policy, policies = load_start(config).policy, FrozenPolicies(config)
    if config.reward.reader is not None:
        config = config.model_copy(update={"reader": config.reward.reader})
    config = policies.with_trained_prompts(config, policy)
    reader, embedder = policies.load_reader(config.reader), load_embedder(config.agent.embedder)
    rewards = MemoryReward(config.reward.kept_in(config.out), policy.count_tokens)
    engine = memory_engine(policy, config.agent, embedder)
    return RolloutWorker(engine, MemoryScorer(reader, rewards, embedder), config)


UNUSED_SETTINGS = (
    *("scale_rewards", "reward_weights", "multi_objective_aggregation", "mask_truncated_completions"),
    *("top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs", "cache_implementation"),
    *("chat_template_kwargs", "use_transformers_continuous_batching", "log_completions", "num_generations_eval"),
)
"""Settings of `GRPOConfig` that are ignored: the collector samples and scores."""


class MultiContextGRPOTrainer(RowTrainer):
    """GRPO or RLOO by TRL on rollouts of `collector` over `tasks`.

    Sampling, rewards and advantages follow `collector.config` (`temperature`, `group_size`, `algorithm` and
    `scale_rewards` of a `TrainConfig` or `TextConfig`). The update follows `args`.

    Args:
        collector: Samples and scores rollouts; its policy is trained.
        tasks: Training tasks.
        args: TRL's settings of the update.
        kwargs: Other arguments of `GRPOTrainer` (`peft_config`, `callbacks`, `optimizers`).

    Raises:
        ConfigError: `args` and `collector.config` disagree, or a setting has no effect here.
    """

    _name = "multi-context GRPO"

    def __init__(self, collector: RolloutWorker[Any], tasks: Sequence[Any], args: GRPOConfig, **kwargs: Any) -> None:
        policy, config = collector.policy, collector.config
        if not isinstance(policy, TransformersPolicy):
            raise ConfigError(f"collector: policy {policy.name!r} has no weights to train")
        _check_agreement(config, args)
        if not tasks:
            raise ConfigError("tasks: the list is empty; give at least one")
        numbered = Dataset.from_dict({"prompt": [str(number) for number in range(len(tasks))]})
        super().__init__(
            policy.model, _no_reward, args, train_dataset=numbered, processing_class=policy.tokenizer, **kwargs
        )
        policy.model = self.accelerator.unwrap_model(self.model)  # the sampler uses the trained weights
        self.collector = collector
        self.tasks = list(tasks)
        self.algorithm = ALGORITHMS[config.algorithm](config)
        local_rollouts = args.per_device_train_batch_size * (args.steps_per_generation or 1)
        if local_rollouts % self.num_generations:
            raise ConfigError(
                f"per_device_train_batch_size: {local_rollouts} rollouts per process are not a multiple of "
                f"num_generations={args.num_generations}"
            )
        if config.loss.scale_rewards == "batch" and self.accelerator.num_processes > 1:
            raise ConfigError("scale_rewards: batch would be of each process's own rollouts; choose group or none")

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """Return rows of fresh rollouts: ids and masks (B, P) and (B, T), advantages and old log-probs (B, T)."""
        if not self.model.training:
            raise TrainingError("TRL's evaluation has one row a prompt: use memalpha.evaluate on the policy")
        tasks = [self.tasks[int(row["prompt"])] for row in inputs[:: self.num_generations]]
        step = self.state.global_step * self.args.gradient_accumulation_steps
        step += self._step % self.args.gradient_accumulation_steps
        self.model.eval()
        try:
            sampled = self.collector.sample(tasks, step, self.accelerator.process_index * len(tasks))
            groups, _ = self.collector.score(sampled)
            groups = drop_unscored(groups)
        finally:
            self.model.train()
        samples = annotate(self.algorithm, groups, None).rows  # type: ignore[arg-type]  # only a KL needs it
        rows = self._balance_rows(self._make_rows(samples))
        rewards = self._gather_values(
            [trajectory.reward.total for group in groups for trajectory in group.trajectories if trajectory.reward]
        )
        self._record_metric("reward", sum(rewards) / len(rewards))
        self._record_metric("reward_std", float(torch.tensor(rewards).std()))
        self._record_metric("rows", sum(self._gather_values([len(samples)])))
        lengths = self._gather_values([len(sample.completion_ids) for sample in samples])
        self._record_metric("completions/mean_length", sum(lengths) / len(lengths))
        self.state.num_input_tokens_seen += sum(self._gather_values([sum(sample.length for sample in samples)]))
        self._metrics["train"]["num_tokens"] = [float(self.state.num_input_tokens_seen)]
        return rows

    def _make_rows(self, samples: Sequence[TrainingSample]) -> Rows:
        pad, device = self._tokenizer.pad_token_id, self.accelerator.device
        rows = rows_from_ids(
            [sample.prompt_ids for sample in samples], [sample.completion_ids for sample in samples], pad, device
        )
        for name, field in (("advantages", "advantages"), ("old_per_token_logps", "logprobs")):
            values = torch.zeros(rows["completion_ids"].shape)
            for number, sample in enumerate(samples):
                values[number, : len(sample.completion_ids)] = torch.from_numpy(getattr(sample, field))
            rows[name] = values.to(device)
        if self.beta != 0.0:  # log-probs (B, T) of TRL's reference model, or of the model without its adapter
            ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
            mask = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
            inputs = ids, mask, rows["completion_ids"].shape[1], self.args.per_device_train_batch_size
            reference, scope = self.ref_model, nullcontext()
            if reference is None:
                reference, plain = self.model, self.accelerator.unwrap_model(self.model)
                scope = use_adapter(plain, adapter_name="ref" if "ref" in plain.peft_config else None)
            checkpointing = disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs)
            with torch.no_grad(), checkpointing, scope:
                rows["ref_per_token_logps"] = self._get_per_token_logps_and_entropies(reference, *inputs)[0]
        return rows


def _no_reward(**_: Any) -> list[float]:
    raise TrainingError("rewards come from the collector")


def _check_agreement(config: ReinforcementConfig, args: GRPOConfig) -> None:
    if config.algorithm not in POLICY_GRADIENT_ALGORITHMS:
        raise ConfigError(
            f"algorithm: {config.algorithm} is not a pure policy gradient; "
            f"choose {' or '.join(POLICY_GRADIENT_ALGORITHMS)}"
        )
    for name, memalpha_value, trl_value in (
        ("temperature", config.sampling.temperature, args.temperature),
        ("num_generations", config.sampling.group_size, args.num_generations),
    ):
        if memalpha_value != trl_value:
            raise ConfigError(
                f"{name}: rollouts are sampled with {memalpha_value}, GRPOConfig says {trl_value}: make them equal"
            )
    defaults = {name: GRPOConfig.__dataclass_fields__[name].default for name in UNUSED_SETTINGS}
    if args.loss_type != "dr_grpo":  # that loss divides by it
        defaults["max_completion_length"] = GRPOConfig.__dataclass_fields__["max_completion_length"].default
    for name, default in defaults.items():
        if getattr(args, name) != default:
            raise ConfigError(f"{name}: is the collector's here and not read from GRPOConfig; leave it out")
    if args.pad_to_multiple_of is not None:
        raise ConfigError("pad_to_multiple_of: rows are padded to the longest here; leave it out")
    for name in ("beta", "entropy_coef"):
        if getattr(config.loss, name):
            raise ConfigError(f"{name}: is TRL's here: set it in GRPOConfig, and leave it out of the collector's")
    if config.loss.old_logprobs != "sampled":
        raise ConfigError("old_logprobs: the ratio's denominator is the sampler's record here; leave it out")
    if args.use_vllm or args.eval_strategy != "no":
        raise ConfigError("use_vllm, eval_strategy: memalpha samples and evaluates here; leave them out")
