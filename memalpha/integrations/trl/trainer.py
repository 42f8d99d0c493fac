"""`ERLTrainer`: experiential reinforcement learning (2026, arXiv 2602.13949) in the place of TRL's `GRPOTrainer`.

One step, all of its sampling before any update, with the weights it begins with:

1. first attempts, exactly as `GRPOTrainer` makes and scores them: reward r1;
2. the gate: attempts with r1 >= `reward_threshold` have succeeded. At least, not more than: where the threshold is the
   largest reward there is (1.0 of most reward functions), ">" would never be true;
3. a reflection on each of the others, from the prompt, the attempt, its feedback, r1 and what has helped before; all of
   them one call of `generate`;
4. a second attempt from the prompt and the reflection alone, all of them another call; its reward r2 is that of the
   original prompt and the original row's columns;
5. reflections whose second attempt has succeeded go into the reflection memory, in all processes alike;
6. one GRPO update over attempts (r1), reflections (r2) and second attempts (r2), one mean over all of them. Advantages
   are TRL's, by prompt and role: groups have any size here, and the only one of its group has advantage 0;
7. internalization: the cross-entropy of second attempts with r2 > `internalization_threshold`, of the very ids that
   were sampled, after the original prompt: `internalization_coef` x (their share of all attempts) x (a mean over their
   tokens, at the sampling temperature), added to the loss of 6. With `algorithm=2` it has updates of its own after
   those of 6, one more pass over the generation's micro-batches; updates with nothing to imitate are left out.

Log-probs, references, importance ratios and masks of all rows are TRL's own: `_generate_and_score_completions` runs
once for each role, on what was sampled already. An update has up to three times the rows of GRPO's, so a micro-batch
has up to three times `per_device_train_batch_size` (and a forward pass of up to as many imitated ones): lower it where
memory is short. Evaluation is first attempts alone. Where no attempt is reflected on, a step is bit for bit GRPO's.

A prompt that leaves no room in the model's context for `max_completion_length` tokens is not used: the oldest advice
goes first; then the attempt has no second one (`erl/no_room`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from memalpha.errors import CheckpointError, ConfigError, TrainingError
from memalpha.integrations.trl.base import RowTrainer
from memalpha.integrations.trl.config import ERLConfig
from memalpha.integrations.trl.guard import batch_rows, require
from memalpha.integrations.trl.phases import (
    AdviceMemory,
    RewardNumber,
    extract_advice,
    format_advice,
    message_text,
    replace_text,
    template_fields,
)
from memalpha.integrations.trl.rows import (
    Rows,
    add_dead_rows,
    check_rows,
    concat_rows,
    round_up,
    rows_from_ids,
    select_rows,
)

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR  # isort: skip
from trl.trainer.utils import is_async_callable, start_event_loop_in_daemon  # isort: skip

logger = logging.getLogger(__name__)

FeedbackFunc = Callable[..., Any]
"""`(prompts, completions, **columns) -> list[str]`, sync or async: what was wrong with each attempt, in words. It takes
what a reward function takes (`completion_ids` and `trainer_state` too), for those attempts that are reflected on."""

STATE = "reflections.json"
"""The reflection memory in a checkpoint's folder."""


@dataclass(frozen=True, slots=True)
class First:
    """This process's first attempts, as they were scored; `rewards` (rows of all processes, reward functions)."""

    prompts: Sequence[Any]
    completions: Sequence[Any]
    completion_ids: Sequence[Sequence[int]]
    rewards: torch.Tensor


@dataclass(frozen=True, slots=True)
class Sampled:
    """One completion, ids as they were sampled, with log-probs where the sampler gives them (vLLM)."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    completion: Any
    logprobs: Sequence[float] | None


@dataclass(slots=True)
class Second:
    """What follows the first attempt at place `place` of this process's batch, whose reward was `before`."""

    place: int
    before: float
    feedback: str
    reflection: Sampled | None = None
    retry: Sampled | None = None
    reward: float = float("nan")

    @property
    def advice(self) -> str:
        return "" if self.reflection is None else extract_advice(self.reflection.completion)


class ERLTrainer(RowTrainer):
    """`GRPOTrainer` with reflections and second attempts; takes all that it takes, and `feedback_func`.

    Without `feedback_func` the feedback is empty. Raises `ConfigError` for what cannot be had here: tools,
    environments, a `rollout_func`, images. The figures of each phase are logged as `erl/...` (docs/trl.md).
    """

    _tag_names = ["trl", "erl"]  # noqa: RUF012  # as TRL has it
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
        *more: Any,
        feedback_func: FeedbackFunc | None = None,
        **named: Any,
    ) -> None:
        if args is None:
            name = str(model if isinstance(model, str) else model.config._name_or_path)
            args = ERLConfig(f"{name.rstrip('/').split('/')[-1] or 'model'}-ERL")
        if not isinstance(args, ERLConfig):
            raise ConfigError(
                f"args: ERLTrainer takes an ERLConfig, not a {type(args).__name__}: it has all settings of GRPOConfig, "
                "so that only the name changes"
            )
        if feedback_func is not None and "feedback" not in template_fields(args.reflection_system_prompt):
            raise ConfigError("feedback_func: reflection_system_prompt has no {feedback} to put it in")
        own = ("tools", "rollout_func", "environment_factory")
        for name in own:
            if named.get(name):
                raise ConfigError(f"{name}: ERLTrainer samples attempts, reflections and second attempts itself")
        super().__init__(model, reward_funcs, args, *more, **named)
        if self.tools or self.rollout_func is not None or self.environment_factories is not None:
            raise ConfigError(f"{', '.join(own)}: ERLTrainer samples everything itself")
        if self._is_vlm:
            raise ConfigError("processing_class: ERLTrainer's prompts are text; give a tokenizer, not a processor")
        if args.algorithm == 2:
            if self.is_deepspeed_enabled:
                raise ConfigError("algorithm: 2 leaves updates out, which DeepSpeed cannot do: use algorithm=1")
            self.num_iterations += 1  # TRL's loop, schedule and sampler count the pass as one more
        self.feedback_func = feedback_func
        self.reflections = AdviceMemory(args.memory_size)
        self._given: torch.Tensor | None = None
        self._first: First | None = None
        self._imitated: list[Rows] = []
        self._imitation_weight = 0.0

    # ---------------------------------------------------------------------------------------------- the seven phases

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        inputs = batch_rows(inputs)
        if self.model.training:
            self._imitated = []
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        first, self._first = self._first, None
        require(first is not None, "rewards do not come from _calculate_rewards")
        assert first is not None
        if not self.model.training:
            self._log_seconds(len(inputs), [])
            return output
        attempts = check_rows(output, len(inputs))
        seconds, no_room = self._second_attempts(inputs, first)
        rewards = self._score(inputs, first, seconds)
        self._log_seconds(len(inputs), seconds)
        everybody = self._gather_values([_told(one) for one in seconds])
        kept = self._remember(everybody)
        self._figures(first, everybody, sum(self._gather_values([no_room])), kept)
        if not everybody:
            return output
        self._to_imitate(attempts, seconds)
        parts = [attempts, *(self._role(role, first.prompts, seconds, rewards) for role in ("retry", "reflection"))]
        rows = self._balance_rows(concat_rows(parts, self._tokenizer.pad_token_id))
        self._metrics["train"]["num_tokens"] = [self.state.num_input_tokens_seen]
        return rows

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor:
        if self._given is not None:
            return self._given
        rewards: torch.Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        shape = (len(prompts) * self.accelerator.num_processes, len(self.reward_funcs))
        require(tuple(rewards.shape) == shape, f"rewards of the shape {tuple(rewards.shape)}, expected {shape}")
        self._first = First(prompts, completions, completion_ids_list, rewards)
        return rewards

    def _second_attempts(self, inputs: Sequence[dict[str, Any]], first: First) -> tuple[list[Second], int]:
        """What follows each attempt that has not succeeded, and how many of these had no room for it.

        A reward of NaN (no function applies to the row) is below no threshold.
        """
        before = self._local_rows(self._totals(first.rewards), len(inputs)).tolist()
        seconds = [Second(place, r, "") for place, r in enumerate(before) if r < self.args.reward_threshold]
        gated = len(seconds)
        for one, told in zip(seconds, self._feedback(inputs, first, seconds), strict=True):
            one.feedback = told
        recalled = self.reflections.newest(self.args.memory_top_k) if self.args.enable_memory else []
        asked = [(one, self._reflecting(one, first, recalled)) for one in seconds]
        asked = [(one, prompt) for one, prompt in asked if prompt is not None]
        for (one, _), sampled in zip(
            asked, self._sample([prompt for _, prompt in asked], first.prompts[0]), strict=True
        ):
            one.reflection = sampled
        again = [(one, self._retrying(one, first)) for one, _ in asked]
        again = [(one, prompt) for one, prompt in again if prompt is not None]
        for (one, _), sampled in zip(
            again, self._sample([prompt for _, prompt in again], first.prompts[0]), strict=True
        ):
            one.retry = sampled
        return [one for one, _ in again], gated - len(again)

    def _feedback(self, inputs: Sequence[dict[str, Any]], first: First, seconds: Sequence[Second]) -> Sequence[str]:
        func = self.feedback_func
        if func is None or not seconds:
            return [""] * len(seconds)
        places = [one.place for one in seconds]
        names = [name for name in inputs[0] if name not in ("prompt", "completion", "completion_ids")]
        given = {
            "prompts": [first.prompts[i] for i in places],
            "completions": [first.completions[i] for i in places],
            "completion_ids": [first.completion_ids[i] for i in places],
            "trainer_state": self.state,
            **{name: [inputs[i][name] for i in places] for name in names},
        }
        found = self._await(func(**given)) if is_async_callable(func) else func(**given)
        if not isinstance(found, list | tuple) or len(found) != len(places):
            told = len(found) if isinstance(found, list | tuple) else type(found).__name__
            raise TrainingError(
                f"feedback_func: returned {told} for {len(places)} attempts; it must be a text for each"
            )
        for number, text in enumerate(found):
            if not isinstance(text, str):
                raise TrainingError(f"feedback_func: returned {text!r} as number {number}, not a text ('' for none)")
        return found

    def _await(self, coroutine: Any) -> Any:
        """The result of a coroutine, in the event loop that async reward functions run in."""
        if not self._has_async_funcs:
            self.async_loop_thread, self.async_loop, ready = start_event_loop_in_daemon(name="ERLTrainer-AsyncLoop")
            ready.wait()
            self._has_async_funcs = True
        return asyncio.run_coroutine_threadsafe(coroutine, self.async_loop).result()

    def _reflecting(self, one: Second, first: First, recalled: Sequence[str]) -> Any:
        """The prompt of a reflection, or None without room."""
        prompt, rest = first.prompts[one.place], list(recalled)
        while True:
            text = self.args.reflection_system_prompt.format(
                prompt=message_text(prompt),
                attempt=message_text(first.completions[one.place]),
                feedback=one.feedback,
                reward=RewardNumber(one.before),
                memory=format_advice(rest),
            )
            if self._fits(replace_text(prompt, text)):
                return replace_text(prompt, text)
            if not rest:
                return None
            del rest[0]

    def _retrying(self, one: Second, first: First) -> Any:
        """The prompt of a second attempt, or None without room; without advice it is the original one."""
        prompt = first.prompts[one.place]
        if not one.advice:
            return prompt
        text = self.args.retry_system_prompt.format(prompt=message_text(prompt), reflection=one.advice)
        return replace_text(prompt, text) if self._fits(replace_text(prompt, text)) else None

    def _fits(self, prompt: Any) -> bool:
        positions = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if positions is None:
            return True
        return len(self._tokenize_prompts([prompt])[0][0]) + self.max_completion_length <= positions

    def _sample(self, prompts: Sequence[Any], filler: Any) -> list[Sampled]:
        """A completion of each prompt, in one call; processes take part with equally many prompts."""
        most = self._max_over_processes(len(prompts))
        if not most:
            return []
        with self._temporarily(num_generations=1):  # of each prompt
            found = self._generate([*prompts, *([filler] * (most - len(prompts)))])
        require(isinstance(found, tuple) and len(found) == 8, "_generate does not return its eight values")
        prompt_ids, completion_ids, _, completions, logprobs, *_ = found
        sizes = [len(one) for one in (prompt_ids, completion_ids, completions, logprobs or completions)]
        require(set(sizes) == {most}, f"{sizes} prompts, completions, texts and log-probs of {most} prompts")
        return [
            Sampled(prompt_ids[i], completion_ids[i], completions[i], logprobs[i] if logprobs else None)
            for i in range(len(prompts))
        ]

    def _score(self, inputs: Sequence[dict[str, Any]], first: First, seconds: Sequence[Second]) -> torch.Tensor:
        """Rewards of second attempts in the places of the first (rows of all processes, functions), NaN elsewhere."""
        most, size = self._max_over_processes(len(seconds)), len(inputs)
        found = first.rewards.new_full((size, len(self.reward_funcs)), float("nan"))
        if most:
            fill = most - len(seconds)  # reward functions gather, so all processes ask about as many
            retries = [one.retry for one in seconds if one.retry is not None]
            places = [*(one.place for one in seconds), *([0] * fill)]
            given = super()._calculate_rewards(
                [inputs[i] for i in places],
                [first.prompts[i] for i in places],
                [*(one.completion for one in retries), *([first.completions[0]] * fill)],
                [*(list(one.completion_ids) for one in retries), *([list(first.completion_ids[0])] * fill)],
            )
            places = places[: len(seconds)]
            found[places] = self._local_rows(given, most)[: len(seconds)]
            for one, reward in zip(seconds, self._totals(found)[places].tolist(), strict=True):
                one.reward = reward
        return self.accelerator.gather(found)

    def _totals(self, rewards: torch.Tensor) -> torch.Tensor:
        """The weighted sum of each row's rewards; NaN where no function applies."""
        totals = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
        return totals.masked_fill(rewards.isnan().all(1), float("nan"))

    def _remember(self, everybody: Sequence[dict[str, Any]]) -> int:
        """Keep advice that helped, in the same order in every process; returns how much."""
        if not self.args.enable_memory:
            return 0
        helped = [one["advice"] for one in everybody if one["after"] >= self.args.reward_threshold and one["advice"]]
        for text in helped:
            self.reflections.add(text)
        return len(helped)

    def _role(self, role: str, prompts: Sequence[Any], seconds: Sequence[Second], rewards: torch.Tensor) -> Rows:
        """TRL's rows of what was sampled in a role.

        TRL sees every attempt's place, so that groups are its own; NaN rewards are left out of a group's baseline.
        """
        sampled: dict[int, Sampled] = {one.place: getattr(one, role) for one in seconds}
        end = self.eos_token_ids[0]
        every = [sampled.get(place, Sampled([end], [end], None, [0.0])) for place in range(len(prompts))]
        given = {
            "prompt_ids": [list(one.prompt_ids) for one in every],
            "completion_ids": [list(one.completion_ids) for one in every],
            "logprobs": [list(one.logprobs or ()) for one in every] if self.use_vllm else None,
        }
        seen, own = self.state.num_input_tokens_seen, list(self._pending_metrics)
        with self._temporarily(rollout_func=lambda prompts, trainer: given, _given=rewards) as metrics:
            output: dict[str, Any] = super()._generate_and_score_completions([{"prompt": one} for one in prompts])
        self.state.num_input_tokens_seen = seen
        if role == "retry":
            for name, values in metrics.items():
                if name.startswith("rewards/") or name in own:
                    self._metrics["train"][f"retry/{name}"] += values
        rows = check_rows(output, len(prompts))
        scored = (~rewards.isnan().all(1)).view(-1, self.num_generations).sum(1)
        alone = self._local_rows((scored < 2).repeat_interleave(self.num_generations), len(prompts))
        rows["advantages"] = rows["advantages"].masked_fill(alone.to(rows["advantages"].device), 0.0)
        return select_rows(rows, sorted(sampled))

    # -------------------------------------------------------------------------------------------- internalization

    def _to_imitate(self, attempts: Rows, seconds: Sequence[Second]) -> None:
        """Second attempts after their original prompts, a share for each micro-batch until the next are sampled."""
        args = self.args
        if not args.enable_internalization:
            return
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        prompts, replies = [], []
        for one in seconds:
            if one.retry is None or not one.reward > args.internalization_threshold:
                continue
            if self.mask_truncated_completions and one.retry.completion_ids[-1] not in ends:
                continue
            ids, mask = attempts["prompt_ids"][one.place], attempts["prompt_mask"][one.place]
            prompts.append(ids[mask.bool()].tolist())
            replies.append(list(one.retry.completion_ids))
        whole = self._gather_values([len(reply) for reply in replies])
        self._record_metric("erl/internalized", len(whole))
        if not whole:
            return
        steps, pad = args.steps_per_generation, self._tokenizer.pad_token_id
        rows = rows_from_ids(prompts, replies, pad, self.accelerator.device)
        rows = add_dead_rows(rows, round_up(self._max_over_processes(len(replies)), steps), pad)
        self._imitated = [{name: tensor[step::steps] for name, tensor in rows.items()} for step in range(steps)]
        attempted = len(attempts["prompt_ids"]) * self.accelerator.num_processes
        self._imitation_weight = args.internalization_coef * len(whole) / attempted / sum(whole)

    def _internalizing(self) -> bool:
        """Whether this micro-batch is of algorithm 2's last pass."""
        passed = self._step // self.args.steps_per_generation % self.num_iterations
        return self.args.algorithm == 2 and passed == self.num_iterations - 1

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        inputs = super()._prepare_inputs(generation_batch)
        if not self.model.training or not self._imitated:
            return inputs
        rows = self._imitated[self._step % self.args.steps_per_generation]
        if self.args.algorithm == 2:
            return {"imitated": rows, "alone": True} if self._internalizing() else inputs
        return {**inputs, "imitated": rows}

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """As TRL's; without a gradient, and so without an update, where algorithm 2 has nothing to imitate."""
        if self._internalizing() and not self._imitated:
            self._step += 1
            return torch.zeros((), device=self.accelerator.device)
        return super().training_step(model, inputs, num_items_in_batch)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        rows = inputs.get("imitated")
        if rows is None:
            return super()._compute_loss(model, inputs)
        part = self._imitation(model, rows)
        return part if inputs.get("alone") else super()._compute_loss(model, inputs) + part

    def _imitation(self, model: Any, rows: Rows) -> torch.Tensor:
        """The cross-entropy of a micro-batch's share of what is imitated."""
        ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
        mask = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
        found = self._get_per_token_logps_and_entropies(model, ids, mask, rows["completion_ids"].shape[1])
        require(isinstance(found, tuple) and found[0].shape == rows["completion_ids"].shape, "log-probs of other shape")
        # Of `steps` micro-batches of the generation, an update sees so many; processes are averaged.
        window = self.current_gradient_accumulation_steps
        share = self.accelerator.num_processes * self.args.steps_per_generation / window * self._imitation_weight
        part = -(found[0] * rows["completion_mask"]).sum() * share
        self._record_metric("erl/internalization_loss", self.accelerator.gather(part.detach()).mean().item() * window)
        return part

    # ---------------------------------------------------------------------------------------- figures, checkpoints

    def _figures(self, first: First, everybody: Sequence[dict[str, Any]], no_room: int, kept: int) -> None:
        """What phases 1 to 6 came to, of all processes."""
        attempts, seconds = self._totals(first.rewards), len(everybody)
        self._record_metric("erl/attempt_reward", attempts.nanmean().item())
        self._record_metric("erl/gated", (seconds + no_room) / len(attempts))
        self._record_metric("erl/no_room", no_room)
        self._record_metric("erl/memory", len(self.reflections))
        self._record_metric("erl/memory_added", kept)
        self._record_metric("erl/rows", len(attempts) + 2 * seconds)
        if not seconds:
            return
        self._record_metric("erl/reflection_tokens", sum(one["tokens"] for one in everybody) / seconds)
        self._record_metric("erl/empty_reflections", sum(not one["advice"] for one in everybody) / seconds)
        self._record_metric(
            "erl/retry_success", sum(one["after"] >= self.args.reward_threshold for one in everybody) / seconds
        )
        scored = [one for one in everybody if one["after"] == one["after"]]
        if scored:
            self._record_metric("erl/retry_reward", sum(one["after"] for one in scored) / len(scored))
            self._record_metric("erl/retry_gain", sum(one["after"] - one["before"] for one in scored) / len(scored))

    def _log_seconds(self, size: int, seconds: Sequence[Second]) -> None:
        """Reflections, second attempts and their rewards as columns of the logged completions."""
        if not self.log_completions:
            return
        columns: dict[str, list[Any]] = {
            name: [None] * size for name in ("reflection", "second_attempt", "second_reward")
        }
        for one in seconds:
            columns["reflection"][one.place] = one.advice
            columns["second_attempt"][one.place] = message_text(one.retry.completion) if one.retry else None
            columns["second_reward"][one.place] = one.reward
        for name, values in columns.items():
            self._logs["extra"][name].extend(self._gather_values(values))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            kept = self.reflections.newest(self.args.memory_size)
            (folder / STATE).write_text(json.dumps(kept, ensure_ascii=False), encoding="utf-8")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        path = None if checkpoint is None else Path(checkpoint) / STATE
        if path is None:
            return
        if not path.exists():
            logger.warning("%s is not there (a checkpoint of GRPOTrainer?): the reflection memory begins empty", path)
            return
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(kept, list) or not all(isinstance(text, str) for text in kept):
                raise ValueError("not a list of texts")
        except ValueError as error:
            raise CheckpointError(f"{path} cannot be read ({error}): resume from another checkpoint") from error
        self.reflections = AdviceMemory(self.args.memory_size, kept)


def _told(one: Second) -> dict[str, Any]:
    """What of a second attempt all processes know."""
    tokens = 0 if one.reflection is None else len(one.reflection.completion_ids)
    return {"before": one.before, "after": one.reward, "advice": one.advice, "tokens": tokens}
