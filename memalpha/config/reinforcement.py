"""`ReinforcementConfig`: the algorithms and their settings, whatever a run's tasks are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from memalpha.config.algorithms import VETTED, ERLConfig, PPOConfig, RolloutDPOConfig
from memalpha.config.learner import RolloutConfig

POLICY_GRADIENT = (
    *("loss_type", "loss_constant", "importance_sampling_level", "epsilon", "epsilon_high", "delta"),
    *("old_logprobs", "importance_cap", "beta", "kl_estimator", "kl_in", "use_bias_correction_kl", "entropy_coef"),
    *("scale_rewards", "advantage_floor"),
)
"""Settings of `ReinforcementConfig` that only a policy gradient reads."""


class ReinforcementConfig(RolloutConfig):
    """What a run of any algorithm reads, of tasks of any kind. Names follow TRL's `GRPOConfig` where the meaning is the
    same.

    Picking an `algorithm` and nothing else is its vetted setting (`config.algorithms.VETTED`).
    """

    algorithm: Literal["grpo", "rloo", "ppo", "dpo", "erl"] = Field(
        default="grpo", description="see memalpha.train.algorithms"
    )
    tasks_per_step: int = Field(default=8, gt=0)
    top_p: float = 1.0
    top_k: int = 0
    loss_type: Literal["grpo", "dapo", "dr_grpo", "cispo"] = Field(
        default="dr_grpo",
        description="what a step's summed loss is divided by: each row's length and the rows (grpo), all tokens (dapo, "
        "cispo), or rows x loss_constant (dr_grpo); cispo clips the ratio as a weight of log-probs",
    )
    loss_constant: float = Field(
        default=16.0, gt=0.0, description="dr_grpo: the constant, in tokens (TRL: max_completion_length)"
    )
    importance_sampling_level: Literal["token", "sequence"] = Field(
        default="token",
        description="a ratio a token, or one a completion: its geometric mean (GSPO), with algorithm=rloo its product",
    )
    epsilon: float = Field(default=0.2, gt=0.0, description="lower clip range of the ratio")
    epsilon_high: float | None = Field(
        default=None, gt=0.0, description="upper clip range (default: epsilon); cispo: the largest weight (default 5)"
    )
    delta: float | None = Field(
        default=None, gt=0.0, description="also bounds the ratio of bad tokens (two-sided clip; default: it does not)"
    )
    old_logprobs: Literal["sampled", "recomputed"] = Field(
        default="sampled",
        description="denominator of the ratio: the sampler's own record, or the learner's pass before the first update "
        "of a step (where sampler and learner differ in precision or engine, as with dtype=bfloat16 and all weights "
        "trained: they are sampled from as float32 unless sample_dtype=bfloat16)",
    )
    importance_cap: float | None = Field(
        default=None,
        gt=0.0,
        description="old_logprobs=recomputed: weigh each token by min(old / sampled, cap) (default: no such weight)",
    )
    beta: float = Field(default=0.0, ge=0.0, description="weight of the KL to the frozen start policy")
    kl_estimator: Literal["k1", "k2", "k3"] = Field(default="k3", description="Schulman's estimators of that KL")
    kl_in: Literal["loss", "reward"] = Field(
        default="loss", description="where it acts: on each token's loss, or as a component of each turn's reward"
    )
    use_bias_correction_kl: bool = Field(
        default=True, description="kl_in=loss: the estimate times the ratio, whose gradient is unbiased (as in TRL)"
    )
    entropy_coef: float = Field(
        default=0.0, ge=0.0, description="weight of the entropy bonus, a mean over a step's tokens (as in TRL)"
    )
    scale_rewards: Literal["group", "batch", "none"] = Field(
        default="group",
        description="divide advantages by the standard deviation of rewards in the group, in the whole step, or not",
    )
    advantage_floor: float = Field(default=0.01, gt=0.0, description="added to the standard deviation of scale_rewards")
    num_iterations: int = Field(default=1, gt=0, description="passes over a step's samples (TRL: inner epochs)")
    minibatches: int = Field(default=2, gt=0, description="optimizer steps per pass")
    overlap: int = Field(
        default=1,
        gt=0,
        description="a step's tasks in so many parts: while a reader or judge behind an endpoint is asked about one, "
        "others are sampled and learnt from (each adds to one optimizer step with minibatches=1, or is one of its own)",
    )
    ppo: PPOConfig | None = Field(default=None, description="algorithm=ppo: its own settings (default: theirs)")
    dpo: RolloutDPOConfig | None = Field(default=None, description="algorithm=dpo: its own settings (default: theirs)")
    erl: ERLConfig | None = Field(default=None, description="algorithm=erl: its own settings (default: theirs)")

    keep_tokens: bool = Field(
        default=False, description="write turns.jsonl and a checkpoint per step, for outside checks"
    )
    sample_dtype: Literal["bfloat16", "float32", "float64"] | None = Field(
        default=None, description="precision of the sampler (default: the policy's); float64 for exact log-probs on CPU"
    )

    def _alone(self) -> bool:
        return self.algorithm == "ppo"

    @model_validator(mode="wrap")
    @classmethod
    def _vetted(cls, given: Any, handler: ModelWrapValidatorHandler[ReinforcementConfig]) -> ReinforcementConfig:
        """What the algorithm brings along, under what is named; it does not count as set."""
        if not isinstance(given, Mapping):
            return handler(given)
        brought = dict(VETTED.get(str(given.get("algorithm", "grpo")), {}))
        if given.get("algorithm") == "rloo" and given.get("importance_sampling_level") == "sequence":
            brought["loss_type"] = "grpo"
        if given.get("algorithm") == "erl" and _erl_algorithm(given.get("erl")) == 1:
            brought["scale_rewards"] = "batch"
        made = handler({**brought, **given})
        made.model_fields_set.difference_update(set(brought) - set(given))
        return made

    @model_validator(mode="after")
    def _possible(self) -> ReinforcementConfig:
        if self.top_p != 1.0 or self.top_k != 0:
            raise ValueError(
                "top_p/top_k: truncated sampling biases every importance ratio; training samples with temperature only "
                "(top_p=1, top_k=0)"
            )
        if self.importance_cap is not None and self.old_logprobs == "sampled":
            raise ValueError(
                "importance_cap: with old_logprobs=sampled the ratio itself corrects for the sampler; set "
                "old_logprobs=recomputed, or leave importance_cap out"
            )
        if self.kl_estimator == "k1" and self.kl_in == "loss" and self.beta and not self.use_bias_correction_kl:
            raise ValueError(
                "kl_estimator: k1's gradient in the loss is 0 on average without the ratio, so nothing is held back; "
                "set use_bias_correction_kl=true, kl_in=reward or another estimator"
            )
        if self.erl is not None and self.algorithm != "erl":
            raise ValueError(f"erl: has no effect with algorithm={self.algorithm}; leave it out")
        if self.algorithm == "rloo":
            if self.scale_rewards != "none":
                raise ValueError("scale_rewards: rloo compares with the mean of the others and divides by nothing")
            if self.importance_sampling_level == "sequence" and self.loss_type != "grpo":
                raise ValueError(
                    "loss_type: with one ratio a completion rloo's loss is a mean over completions: leave it out"
                )
        if self.algorithm == "ppo":
            if self.scale_rewards != "none":
                raise ValueError("scale_rewards: ppo compares no rollouts of a group; see ppo.whiten_advantages")
            if self.importance_sampling_level == "sequence":
                raise ValueError("importance_sampling_level: ppo has an advantage a token, so a ratio a token")
            if self.loss_type != "dapo":
                raise ValueError(
                    f"loss_type: ppo's clipped loss is a mean over tokens, as its value loss is, not {self.loss_type}: "
                    "leave it out"
                )
            if self.ppo is not None and self.ppo.kl_target is not None and not self.beta:
                raise ValueError("ppo.kl_target: beta follows it and must start above 0")
        elif self.ppo is not None:
            raise ValueError(f"ppo: has no effect with algorithm={self.algorithm}; leave it out")
        if self.delta is not None and self.delta <= 1 + (self.epsilon_high or self.epsilon):
            raise ValueError("delta: bounds the ratio above what the clip does: it must be above 1 + epsilon_high")
        for name, wherefore in self._without_effect():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name}: has no effect {wherefore}; leave it out")
        return self

    @model_validator(mode="after")
    def _in_parts(self) -> ReinforcementConfig:
        """What of a step can be learnt before the rest of it has its rewards."""
        if self.overlap == 1:
            return self
        if self.overlap > self.tasks_per_step:
            raise ValueError(f"overlap: {self.overlap} parts need a task each, tasks_per_step is {self.tasks_per_step}")
        if self.minibatches not in (1, self.overlap):
            raise ValueError(
                f"overlap: a minibatch is a part or the whole step: set minibatches={self.overlap} or minibatches=1"
            )
        whole = {
            f"algorithm={self.algorithm}": self.algorithm not in ("grpo", "rloo"),
            f"num_iterations={self.num_iterations}": self.num_iterations > 1,
            "scale_rewards=batch": self.scale_rewards == "batch",
        }
        for setting, needs in whole.items():
            if needs:
                raise ValueError(f"overlap: {setting} needs all rewards of a step at once: set overlap=1")
        return self

    def _without_effect(self) -> list[tuple[str, str]]:
        """Settings that nothing reads in this configuration, and why."""
        if self.algorithm == "dpo":
            return [
                (name, "with algorithm=dpo, whose loss has settings of its own (dpo.*)") for name in POLICY_GRADIENT
            ]
        found = [("dpo", f"with algorithm={self.algorithm}")]
        if not self.beta:
            found += [(name, "with beta=0, which asks for no KL") for name in ("kl_in", "kl_estimator")]
        if not self.beta or self.kl_in == "reward":
            found.append(("use_bias_correction_kl", "where no KL is in the loss"))
        if self.loss_type != "dr_grpo":
            found.append(("loss_constant", f"with loss_type={self.loss_type}"))
        if self.loss_type == "cispo":
            found += [
                (name, "with loss_type=cispo, which clips weights at epsilon_high") for name in ("epsilon", "delta")
            ]
        if self.scale_rewards == "none":
            found.append(("advantage_floor", "with scale_rewards=none, which divides by nothing"))
        return found


def _erl_algorithm(given: Any) -> Any:
    return given.get("algorithm") if isinstance(given, Mapping) else getattr(given, "algorithm", None)
