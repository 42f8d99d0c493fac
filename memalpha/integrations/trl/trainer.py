"""`ERLTrainer`: experiential reinforcement learning (2026, arXiv 2602.13949) as a replacement of TRL's `GRPOTrainer`.

One step samples everything with its first weights, before any update:

1. First attempts, sampled and scored exactly as `GRPOTrainer` does: reward r1.
2. The gate: attempts with r1 >= `reward_threshold` have succeeded. It is ">=" because a threshold is often the largest
   possible reward (1.0 of most reward functions), which ">" would never reach.
3. A reflection on each failed attempt, from the prompt, the attempt, its feedback, r1 and earlier advice that helped;
   all reflections are one call of `generate`.
4. A second attempt from the prompt and the reflection alone, all in another call. Its reward r2 uses the original
   prompt and the original row's columns.
5. Reflections whose second attempt succeeded go into the reflection memory, the same in all processes.
6. One GRPO update over attempts (r1), reflections (r2) and second attempts (r2), one mean over all of them. Advantages
   are TRL's, by prompt and role: groups have any size, and a group of one has advantage 0.
7. Internalization (`internalization`): cross-entropy of second attempts with r2 > `internalization_threshold`, of the
   sampled ids after the original prompt. Its weight is `internalization_coef` x (their share of all attempts), its
   value a mean over their tokens at the sampling temperature. It is added to the loss of 6. With `algorithm=2` it has
   updates of its own after those of 6, one more epoch over the generation's micro-batches; updates without rows to
   imitate are skipped.

Log-probs, references, importance ratios and masks of all rows are TRL's: `_generate_and_score_completions` runs once
per role on completions that are sampled already. An update has up to three times GRPO's rows. So a micro-batch has up
to three times `per_device_train_batch_size` rows, and as many imitated ones in a further forward pass: lower it if
memory is short. Evaluation uses first attempts only. If no attempt is reflected on, a step equals GRPO's bit for bit.

A prompt must leave room for `max_completion_length` tokens in the model's context. The oldest advice is dropped first;
an attempt whose prompt still has no room gets no second attempt (`erl/no_room`).
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

import torch

from memalpha.arguments import check_count, check_flag
from memalpha.environments.engine import REFLECTION_PROMPT, RETRY_PROMPT
from memalpha.errors import CheckpointError, ConfigError
from memalpha.integrations.trl.attempts import (
    AdviceMemory,
    FirstAttempts,
    ReflectedAttempt,
    SampledCompletion,
    build_reflection_prompt,
    build_retry_prompt,
    check_feedback,
    check_template,
    message_text,
    template_fields,
)
from memalpha.integrations.trl.base import (
    Rows,
    RowTrainer,
    add_dead_rows,
    check_batch,
    check_rows,
    concat_rows,
    require,
    round_up,
    rows_from_ids,
    select_rows,
)
from memalpha.policy.model_files import max_positions
from memalpha.rewards.base import call_function

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR  # isort: skip
from trl.trainer.grpo_config import GRPOConfig  # isort: skip

T = TypeVar("T")


def _setting(default: T, text: str) -> T:
    """Return a field with its help, which transformers' `HfArgumentParser` shows."""
    return field(default=default, metadata={"help": text})


@dataclass
class ERLConfig(GRPOConfig):
    """Settings of `ERLTrainer`: those of `GRPOConfig`, unchanged, and these.

    Raises:
        ConfigError: A value is invalid, a template has unknown or missing fields, or a setting has no effect.
    """

    algorithm: int = _setting(
        1,
        "1: internalization is a term of the one update; 2: it has one more epoch of updates after the others, which "
        "the schedule counts.",
    )
    reward_threshold: float = _setting(
        1.0,
        "Reward from which an attempt has succeeded. Failed first attempts are reflected on; a reflection is kept in "
        "memory if its second attempt succeeds.",
    )
    reflection_system_prompt: str = _setting(
        REFLECTION_PROMPT,
        "Template of the reflection prompt with the fields {prompt} {attempt} {feedback} {reward} {memory}. {prompt} "
        "and {attempt} are required, {memory} too unless enable_memory is false.",
    )
    retry_system_prompt: str = _setting(
        RETRY_PROMPT, "Template of the second attempt's prompt with the fields {prompt} and {reflection}."
    )
    enable_memory: bool = _setting(True, "Keep reflections that helped and show them in later reflection prompts.")
    memory_size: int = _setting(50, "Maximum number of reflections in memory; the oldest is dropped first.")
    memory_top_k: int = _setting(3, "Number of reflections, the newest, in a reflection prompt.")
    enable_internalization: bool = _setting(
        True, "Imitate rewarded second attempts under the original prompt (internalization)."
    )
    internalization_coef: float = _setting(1.0, "Weight of internalization's cross-entropy.")
    internalization_threshold: float = _setting(0.0, "Second attempts with a higher reward are imitated.")

    def __post_init__(self) -> None:
        for name in ("reward_threshold", "internalization_coef", "internalization_threshold"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
                raise ConfigError(f"{name}: {value!r} is not a number; give one")
        for name in ("enable_memory", "enable_internalization"):
            check_flag(name, getattr(self, name), error=ConfigError)
        for name in ("memory_size", "memory_top_k"):
            check_count(name, getattr(self, name), error=ConfigError)
        for name in ("memory_size", "memory_top_k", "internalization_coef"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}: {getattr(self, name)} must be above 0 (enable_... switches a part off)")
        if self.memory_top_k > self.memory_size:
            raise ConfigError(f"memory_top_k: more than memory_size={self.memory_size} cannot be shown")
        if self.algorithm not in (1, 2):
            raise ConfigError(f"algorithm: {self.algorithm!r} is neither 1 (one update) nor 2 (two)")
        if self.algorithm == 2 and not self.enable_internalization:
            raise ConfigError("algorithm: 2 has nothing to do in its own updates with enable_internalization=False")
        if self.algorithm == 2 and self.fp16:
            raise ConfigError(
                "fp16: updates with nothing to imitate are left out (algorithm=2), which fp16's scaler "
                "cannot do: use bf16, or algorithm=1"
            )
        check_template("reflection_system_prompt", self.reflection_system_prompt, memory=self.enable_memory)
        check_template("retry_system_prompt", self.retry_system_prompt)
        without = {
            "enable_memory": ("memory_size", "memory_top_k"),
            "enable_internalization": ("internalization_coef", "internalization_threshold"),
        }
        for switch, names in without.items():
            for name in names:
                if not getattr(self, switch) and getattr(self, name) != type(self).__dataclass_fields__[name].default:
                    raise ConfigError(f"{name}: has no effect with {switch}=False; leave it out")
        super().__post_init__()
        steps, window = self.steps_per_generation or 1, self.gradient_accumulation_steps
        if self.algorithm == 2 and steps % window:
            raise ConfigError(
                f"steps_per_generation: algorithm=2 needs a multiple of gradient_accumulation_steps={window}: "
                "no update may be of both kinds"
            )


logger = logging.getLogger(__name__)

FeedbackFunc = Callable[..., Any]
"""`(prompts, completions, **columns) -> list[str]`, sync or async: feedback on each failed attempt.

It is called for failed attempts only, with a reward function's arguments (`completion_ids` and `trainer_state` too)."""

REFLECTIONS_FILE = "reflections.json"
"""File of the reflection memory in a checkpoint's folder."""


class ERLTrainer(RowTrainer):
    """`GRPOTrainer` with reflections and second attempts; takes its arguments, and `feedback_func`.

    Without `feedback_func` the feedback is empty. Metrics of each phase are logged as `erl/...` (docs/guides/trl.md).

    Raises:
        ConfigError: Tools, environments, a `rollout_func` or images are asked for, which are not supported, or
            `feedback_func` is not callable.
    """

    _tag_names = ["trl", "erl"]  # noqa: RUF012  # as in TRL
    _name = "ERL"
    _paper = {  # noqa: RUF012
        "title": "Experiential Reinforcement Learning",
        "id": "2602.13949",
        "citation": "@misc{erl2026, title={Experiential Reinforcement Learning}, year={2026}, eprint={2602.13949}}",
    }

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: ERLConfig | None = None,
        *more_args: Any,
        feedback_func: FeedbackFunc | None = None,
        **kwargs: Any,
    ) -> None:
        if args is None:
            name = str(model if isinstance(model, str) else model.config.name_or_path)
            args = ERLConfig(f"{name.rstrip('/').split('/')[-1] or 'model'}-ERL")
        if not isinstance(args, ERLConfig):
            raise ConfigError(
                f"args: ERLTrainer takes an ERLConfig, not a {type(args).__name__}: it has all settings of GRPOConfig, "
                "so that only the name changes"
            )
        if feedback_func is not None and not callable(feedback_func):
            raise ConfigError(f"feedback_func: {feedback_func!r} is not callable")
        if feedback_func is not None and "feedback" not in template_fields(args.reflection_system_prompt):
            raise ConfigError("feedback_func: reflection_system_prompt has no {feedback} to put it in")
        unsupported = ("tools", "rollout_func", "environment_factory")
        for name in unsupported:
            if kwargs.get(name):
                raise ConfigError(f"{name}: ERLTrainer samples attempts, reflections and second attempts itself")
        super().__init__(model, reward_funcs, args, *more_args, **kwargs)
        if self.tools or self.rollout_func is not None or self.environment_factories is not None:
            raise ConfigError(f"{', '.join(unsupported)}: ERLTrainer samples everything itself")
        if self._is_vlm:
            raise ConfigError("processing_class: ERLTrainer's prompts are text; give a tokenizer, not a processor")
        if args.algorithm == 2:
            if self.is_deepspeed_enabled:
                raise ConfigError("algorithm: 2 leaves updates out, which DeepSpeed cannot do: use algorithm=1")
            self.num_iterations += 1  # TRL's loop, schedule and sampler count internalization as one more epoch
        self.feedback_func = feedback_func
        self.reflections = AdviceMemory(args.memory_size)
        self._fixed_rewards: torch.Tensor | None = None
        self._first_attempts: FirstAttempts | None = None
        self._imitation_rows: list[Rows] = []
        self._imitation_weight = 0.0

    # ---------------------------------------------------------------------------------------------- phases 1 to 6

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        check_batch(inputs)
        if self.model.training:
            self._imitation_rows = []
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        first, self._first_attempts = self._first_attempts, None
        require(first is not None, "rewards do not come from _calculate_rewards")
        assert first is not None
        if not self.model.training:
            self._log_attempts(len(inputs), [])
            return output
        first_rows = check_rows(output, len(inputs))
        attempts, no_room = self._reflect_and_retry(inputs, first)
        rewards = self._score_retries(inputs, first, attempts)
        self._log_attempts(len(inputs), attempts)
        summaries = self._gather_values([attempt.summary() for attempt in attempts])
        kept = summaries if self.args.enable_memory else []
        helpful = [item["advice"] for item in kept if item["after"] >= self.args.reward_threshold and item["advice"]]
        for text in helpful:  # in the same order in every process
            self.reflections.add(text)
        self._record_phases(first, summaries, sum(self._gather_values([no_room])), len(helpful))
        if not summaries:
            return output
        self._queue_imitation(first_rows, attempts)
        role_rows = [self._rows_of_role(role, first.prompts, attempts, rewards) for role in ("retry", "reflection")]
        rows = self._balance_rows(concat_rows([first_rows, *role_rows], self._tokenizer.pad_token_id))
        self._metrics["train"]["num_tokens"] = [self.state.num_input_tokens_seen]
        return rows

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor:
        if self._fixed_rewards is not None:
            return self._fixed_rewards
        rewards: torch.Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        shape = (len(prompts) * self.accelerator.num_processes, len(self.reward_funcs))
        require(tuple(rewards.shape) == shape, f"rewards of the shape {tuple(rewards.shape)}, expected {shape}")
        self._first_attempts = FirstAttempts(prompts, completions, completion_ids_list, rewards)
        return rewards

    def _reflect_and_retry(
        self, inputs: Sequence[dict[str, Any]], first: FirstAttempts
    ) -> tuple[list[ReflectedAttempt], int]:
        """Sample a reflection and a second attempt for each failed attempt.

        Returns the attempts that have both, and the number of those without room. A reward of NaN (no function applies
        to the row) is not below the threshold.
        """
        before = self._local_rows(self._total_rewards(first.rewards), len(inputs)).tolist()
        failed = [ReflectedAttempt(i, reward) for i, reward in enumerate(before) if reward < self.args.reward_threshold]
        if self.feedback_func is not None and failed:
            rows = [attempt.index for attempt in failed]
            names = [name for name in inputs[0] if name not in ("prompt", "completion", "completion_ids")]
            columns: dict[str, Any] = {"completion_ids": [first.completion_ids[i] for i in rows]}
            columns |= {"trainer_state": self.state, **{name: [inputs[i][name] for i in rows] for name in names}}
            texts = [first.prompts[i] for i in rows], [first.completions[i] for i in rows]
            feedback = check_feedback(call_function(self.feedback_func, "feedback_func", *texts, columns), len(failed))
            for attempt, text in zip(failed, feedback, strict=True):
                attempt.feedback = text
        earlier_advice = self.reflections.newest(self.args.memory_top_k) if self.args.enable_memory else []
        template = self.args.reflection_system_prompt
        prompts = [build_reflection_prompt(attempt, first, earlier_advice, template, self._fits) for attempt in failed]
        reflected = self._sample_role("reflection", failed, prompts, first.prompts[0])
        template = self.args.retry_system_prompt
        prompts = [build_retry_prompt(attempt, first, template, self._fits) for attempt in reflected]
        retried = self._sample_role("retry", reflected, prompts, first.prompts[0])
        return retried, len(failed) - len(retried)

    def _sample_role(
        self, role: str, attempts: Sequence[ReflectedAttempt], prompts: Sequence[Any], filler: Any
    ) -> list[ReflectedAttempt]:
        """Set `role` of each attempt that has a prompt to a sampled completion, and return these attempts.

        Every process takes part with equally many prompts; `filler` makes up for missing ones.
        """
        sampled = [attempt for attempt, prompt in zip(attempts, prompts, strict=True) if prompt is not None]
        count = self._max_over_processes(len(sampled))
        if not count:
            return sampled
        fillers = [filler] * (count - len(sampled))
        with self._temporarily(num_generations=1):  # per prompt
            result = self._generate([*(prompt for prompt in prompts if prompt is not None), *fillers])
        require(isinstance(result, tuple) and len(result) == 8, "_generate does not return its eight values")
        prompt_ids, completion_ids, _, completions, logprobs, *_ = result
        sizes = [len(values) for values in (prompt_ids, completion_ids, completions, logprobs or completions)]
        require(set(sizes) == {count}, f"{sizes} prompts, completions, texts and log-probs of {count} prompts")
        for i, attempt in enumerate(sampled):
            values = prompt_ids[i], completion_ids[i], completions[i], logprobs[i] if logprobs else None
            setattr(attempt, role, SampledCompletion(*values))
        return sampled

    def _fits(self, prompt: Any) -> bool:
        """Return True if the prompt leaves room for a completion in the model's context."""
        limit = max_positions(self.model.config)
        return limit is None or len(self._tokenize_prompts([prompt])[0][0]) + self.max_completion_length <= limit

    def _score_retries(
        self, inputs: Sequence[dict[str, Any]], first: FirstAttempts, attempts: Sequence[ReflectedAttempt]
    ) -> torch.Tensor:
        """Score second attempts, each in the row of its first attempt.

        Returns rewards (rows of all processes, reward functions), NaN in rows without a second attempt.
        """
        count, size = self._max_over_processes(len(attempts)), len(inputs)
        rewards = first.rewards.new_full((size, len(self.reward_funcs)), float("nan"))
        if count:
            missing = count - len(attempts)  # reward functions gather, so all processes score equally many
            retries = [attempt.retry for attempt in attempts if attempt.retry is not None]
            indices = [*(attempt.index for attempt in attempts), *([0] * missing)]
            scores = super()._calculate_rewards(
                [inputs[i] for i in indices],
                [first.prompts[i] for i in indices],
                [*(retry.completion for retry in retries), *([first.completions[0]] * missing)],
                [*(list(retry.completion_ids) for retry in retries), *([list(first.completion_ids[0])] * missing)],
            )
            indices = indices[: len(attempts)]
            rewards[indices] = self._local_rows(scores, count)[: len(attempts)]
            for attempt, reward in zip(attempts, self._total_rewards(rewards)[indices].tolist(), strict=True):
                attempt.reward = reward
        return self.accelerator.gather(rewards)

    def _total_rewards(self, rewards: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of each row's rewards; NaN if no function applies."""
        totals = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
        return totals.masked_fill(rewards.isnan().all(1), float("nan"))

    def _rows_of_role(
        self, role: str, prompts: Sequence[Any], attempts: Sequence[ReflectedAttempt], rewards: torch.Tensor
    ) -> Rows:
        """Return TRL's rows of the completions sampled in a role ("reflection" or "retry").

        TRL gets a row for every first attempt, so that its groups stay as they are. NaN rewards are left out of a
        group's baseline.
        """
        sampled: dict[int, SampledCompletion] = {attempt.index: getattr(attempt, role) for attempt in attempts}
        end_id = self.eos_token_ids[0]
        filler = SampledCompletion([end_id], [end_id], None, [0.0])
        completions = [sampled.get(i, filler) for i in range(len(prompts))]
        rollout = {
            "prompt_ids": [list(completion.prompt_ids) for completion in completions],
            "completion_ids": [list(completion.completion_ids) for completion in completions],
            "logprobs": [list(completion.logprobs or ()) for completion in completions] if self.use_vllm else None,
        }
        tokens_seen, pending = self.state.num_input_tokens_seen, list(self._pending_metrics)
        with self._temporarily(rollout_func=lambda prompts, trainer: rollout, _fixed_rewards=rewards) as metrics:
            output: dict[str, Any] = super()._generate_and_score_completions([{"prompt": p} for p in prompts])
        self.state.num_input_tokens_seen = tokens_seen
        if role == "retry":
            for name, values in metrics.items():
                if name.startswith("rewards/") or name in pending:
                    self._metrics["train"][f"retry/{name}"] += values
        rows = check_rows(output, len(prompts))
        scored = (~rewards.isnan().all(1)).view(-1, self.num_generations).sum(1)
        is_alone = self._local_rows((scored < 2).repeat_interleave(self.num_generations), len(prompts))
        rows["advantages"] = rows["advantages"].masked_fill(is_alone.to(rows["advantages"].device), 0.0)
        return select_rows(rows, sorted(sampled))

    # --------------------------------------------------------------------------------------------- internalization

    def _queue_imitation(self, first_rows: Rows, attempts: Sequence[ReflectedAttempt]) -> None:
        """Queue successful second attempts after their original prompts, one share per micro-batch.

        Args:
            first_rows: Rows of the first attempts, whose prompts are used.
            attempts: Attempts with their scored second attempts.
        """
        args = self.args
        if not args.enable_internalization:
            return
        end_ids = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        prompts, replies = [], []
        for attempt in attempts:
            if attempt.retry is None or not attempt.reward > args.internalization_threshold:
                continue
            if self.mask_truncated_completions and attempt.retry.completion_ids[-1] not in end_ids:
                continue
            ids, mask = first_rows["prompt_ids"][attempt.index], first_rows["prompt_mask"][attempt.index]
            prompts.append(ids[mask.bool()].tolist())
            replies.append(list(attempt.retry.completion_ids))
        lengths = self._gather_values([len(reply) for reply in replies])
        self._record_metric("erl/internalized", len(lengths))
        if not lengths:
            return
        steps, pad_id = args.steps_per_generation, self._tokenizer.pad_token_id
        rows = rows_from_ids(prompts, replies, pad_id, self.accelerator.device)
        rows = add_dead_rows(rows, round_up(self._max_over_processes(len(replies)), steps), pad_id)
        self._imitation_rows = [{name: tensor[step::steps] for name, tensor in rows.items()} for step in range(steps)]
        first_count = len(first_rows["prompt_ids"]) * self.accelerator.num_processes
        self._imitation_weight = args.internalization_coef * len(lengths) / first_count / sum(lengths)

    def _is_internalizing(self) -> bool:
        """Return True if this micro-batch belongs to algorithm 2's last epoch."""
        epoch = self._step // self.args.steps_per_generation % self.num_iterations
        return self.args.algorithm == 2 and epoch == self.num_iterations - 1

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        inputs = super()._prepare_inputs(generation_batch)
        if not self.model.training or not self._imitation_rows:
            return inputs
        rows = self._imitation_rows[self._step % self.args.steps_per_generation]
        if self.args.algorithm == 2:
            return {"imitated": rows, "alone": True} if self._is_internalizing() else inputs
        return {**inputs, "imitated": rows}

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Run TRL's training step; skip it, without a gradient, if algorithm 2 has nothing to imitate.

        Args:
            model: The wrapped model.
            inputs: The generation batch.
            num_items_in_batch: Passed on to TRL.

        Returns:
            The loss; 0 for a skipped step.
        """
        if self._is_internalizing() and not self._imitation_rows:
            self._step += 1
            return torch.zeros((), device=self.accelerator.device)
        return super().training_step(model, inputs, num_items_in_batch)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        rows = inputs.get("imitated")
        if rows is None:
            return super()._compute_loss(model, inputs)
        # The weighted cross-entropy of a micro-batch's imitated rows.
        ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
        mask = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
        result = self._get_per_token_logps_and_entropies(model, ids, mask, rows["completion_ids"].shape[1])
        require(
            isinstance(result, tuple) and result[0].shape == rows["completion_ids"].shape, "log-probs of other shape"
        )
        # An update sees `window` of the generation's micro-batches, and gradients are averaged over processes.
        window = self.current_gradient_accumulation_steps
        scale = self.accelerator.num_processes * self.args.steps_per_generation / window * self._imitation_weight
        loss = -(result[0] * rows["completion_mask"]).sum() * scale
        self._record_metric("erl/internalization_loss", self.accelerator.gather(loss.detach()).mean().item() * window)
        return loss if inputs.get("alone") else super()._compute_loss(model, inputs) + loss

    # ---------------------------------------------------------------------------------------- logs and checkpoints

    def _record_phases(
        self, first: FirstAttempts, summaries: Sequence[dict[str, Any]], no_room: int, memory_added: int
    ) -> None:
        """Record the `erl/...` metrics of phases 1 to 6 over all processes.

        Args:
            first: First attempts.
            summaries: `ReflectedAttempt.summary` of every second attempt.
            no_room: Failed attempts without a second one, because a prompt has no room in the context.
            memory_added: Reflections added to memory in this step.
        """
        rewards, count = self._total_rewards(first.rewards), len(summaries)
        metrics = {
            "attempt_reward": rewards.nanmean().item(),
            "gated": (count + no_room) / len(rewards),
            "no_room": no_room,
            "memory": len(self.reflections),
            "memory_added": memory_added,
            "rows": len(rewards) + 2 * count,
        }
        if count:
            metrics["reflection_tokens"] = sum(summary["tokens"] for summary in summaries) / count
            metrics["empty_reflections"] = sum(not summary["advice"] for summary in summaries) / count
            successes = sum(summary["after"] >= self.args.reward_threshold for summary in summaries)
            metrics["retry_success"] = successes / count
        if scored := [summary for summary in summaries if not math.isnan(summary["after"])]:
            metrics["retry_reward"] = sum(summary["after"] for summary in scored) / len(scored)
            metrics["retry_gain"] = sum(summary["after"] - summary["before"] for summary in scored) / len(scored)
        for name, value in metrics.items():
            self._record_metric(f"erl/{name}", value)

    def _log_attempts(self, size: int, attempts: Sequence[ReflectedAttempt]) -> None:
        """Add reflections, second attempts and their rewards as columns of the logged completions."""
        if not self.log_completions:
            return
        columns: dict[str, list[Any]] = {
            name: [None] * size for name in ("reflection", "second_attempt", "second_reward")
        }
        for attempt in attempts:
            columns["reflection"][attempt.index] = attempt.advice
            columns["second_attempt"][attempt.index] = attempt.retry and message_text(attempt.retry.completion)
            columns["second_reward"][attempt.index] = attempt.reward
        for name, values in columns.items():
            self._logs["extra"][name].extend(self._gather_values(values))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            texts = self.reflections.newest(self.args.memory_size)
            (folder / REFLECTIONS_FILE).write_text(json.dumps(texts, ensure_ascii=False), encoding="utf-8")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        path = None if checkpoint is None else Path(checkpoint) / REFLECTIONS_FILE
        if path is None:
            return
        if not path.exists():
            logger.warning("%s is missing (a checkpoint of GRPOTrainer?): the reflection memory starts empty", path)
            return
        try:
            texts = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise ValueError("not a list of texts")
        except ValueError as error:
            raise CheckpointError(f"{path} cannot be read ({error}): resume from another checkpoint") from error
        self.reflections = AdviceMemory(self.args.memory_size, texts)
