"""Settings that do not go together, or that nothing would read, are refused before anything is loaded."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from memalpha.config import (
    LearnerConfig,
    PreferenceConfig,
    RewardModelConfig,
    SFTConfig,
    TextConfig,
    TrainConfig,
    build_config,
)
from memalpha.errors import ConfigError

NEEDED: dict[type[LearnerConfig], dict[str, Any]] = {
    TextConfig: {"data": "arithmetic", "rewards": [{"kind": "format", "pattern": "a"}]},
    PreferenceConfig: {"data": "pairs.jsonl"},
    RewardModelConfig: {"data": "pairs.jsonl"},
}
JUDGED = {"credit": "calls", "metric": "judge", "judge": {"judges": ["http://127.0.0.1:9/v1#m"]}}
SEQUENCE = {"importance_sampling_level": "sequence"}
QLORA = {"load_in_4bit": True, "lora": {}}
REFUSED: dict[type[LearnerConfig], list[tuple[dict[str, Any], str]]] = {
    TrainConfig: [
        ({"kl_in": "reward"}, "kl_in: has no effect with beta=0"),
        ({"kl_estimator": "k2"}, "kl_estimator: has no effect with beta=0"),
        ({"use_bias_correction_kl": False}, "use_bias_correction_kl: has no effect where no KL is in the loss"),
        (
            {"beta": 0.1, "kl_in": "reward", "use_bias_correction_kl": False},
            "use_bias_correction_kl: has no effect where no KL is in the loss",
        ),
        ({"beta": 0.1, "kl_estimator": "k1", "use_bias_correction_kl": False}, "k1's gradient in the loss is 0"),
        ({"loss_type": "dapo", "loss_constant": 8.0}, "loss_constant: has no effect with loss_type=dapo"),
        ({"loss_type": "cispo", "epsilon": 0.3}, "epsilon: has no effect with loss_type=cispo"),
        ({"scale_rewards": "none", "advantage_floor": 0.1}, "advantage_floor: has no effect with scale_rewards=none"),
        ({"delta": 1.1}, "delta: bounds the ratio above what the clip does"),
        ({"group_size": 1}, "rollouts of a task are compared, so at least 2 are needed"),
        ({"group_size": True}, "sampling: group_size: give another value than true or false"),
        ({"adam_betas": [0.9, True]}, "optimizer: adam_betas: give another value than true or false"),
        ({"sharding": False}, "ddp"),
        ({"adam_betas": [0.9, 1.5]}, r"adam_betas\.1: Input should be less than 1"),
        ({"learning_rate": float("inf")}, r"optimizer\.learning_rate: Input should be a finite number"),
        ({"threads": 10**9}, r"compute\.threads: Input should be less than or equal to 1024"),
        ({"agent": {"tools": "mine:Merge"}}, r"agent.tools: a list is needed, not 'mine:Merge': write \[mine:Merge\]"),
        ({"loss": "dapo"}, r"loss: a mapping \{key: value\} is needed, not 'dapo'"),
        ({"data": {"train_files": "x"}}, r"data: a text is needed, not \{'train_files': 'x'\}"),
        ({"seed": 2**63}, "seed: .* less than"),
        ({"out": 2025}, "out: a text is needed, and YAML reads 2025 as int: put it in quotes"),
        ({"out": date(2025, 5, 1)}, "out: a text is needed, and YAML reads 2025-05-01 as date"),
        ({"reward": dict.fromkeys(("accuracy", "calls", "beta", "gamma"), 0)}, "so is every reward: set a weight"),
        ({"algorithm": "rloo", "scale_rewards": "group"}, "scale_rewards: rloo compares with the mean of the others"),
        ({"algorithm": "rloo", **SEQUENCE, "loss_type": "dapo"}, "loss_type: with one ratio a completion"),
        ({"algorithm": "grpo", "ppo": {}}, "ppo: has no effect with algorithm=grpo"),
        ({"algorithm": "ppo", "ppo": {"kl_target": 1.0}}, "kl_target: beta follows it"),
        ({"algorithm": "ppo", "ppo": {"kl_horizon": 5.0}}, "kl_horizon: has no effect"),
        ({"algorithm": "ppo", "scale_rewards": "group"}, "ppo compares no rollouts"),
        ({"algorithm": "ppo", "loss_type": "dr_grpo"}, "loss_type: ppo's clipped loss is a mean over tokens"),
        ({"algorithm": "ppo", "loss_type": "cispo"}, "loss_type: ppo's clipped loss is a mean over tokens"),
        ({"algorithm": "ppo", **SEQUENCE}, "an advantage a token, so a ratio a token"),
        *(
            ({"algorithm": "dpo", name: value}, f"{name}: has no effect with algorithm=dpo")
            for name, value in (
                *(("epsilon", 0.1), ("loss_type", "dapo"), ("beta", 0.1), ("entropy_coef", 0.1)),
                *(("scale_rewards", "none"), ("old_logprobs", "recomputed"), ("kl_in", "reward"), *SEQUENCE.items()),
            )
        ),
        ({"algorithm": "dpo", "dpo": {"loss_type": "ipo", "label_smoothing": 0.1}}, "has no effect with loss_type=ipo"),
        ({"algorithm": "dpo", "dpo": {"margin": -1}}, "dpo.margin: "),
        ({"algorithm": "grpo", "dpo": {}}, "dpo: has no effect with algorithm=grpo"),
        ({"algorithm": "grpo", "erl": {}}, "has no effect with algorithm=grpo"),
        *(
            ({"algorithm": "erl", "erl": erl}, message)
            for erl, message in (
                ({"enable_memory": False, "memory_size": 3}, "memory_size: has no effect with enable_memory=false"),
                ({"enable_internalization": False, "internalization_coef": 2.0}, "internalization_coef"),
                ({"memory_top_k": 4, "memory_size": 3}, "memory_top_k: more than memory_size=3 cannot be shown"),
                ({"reward_threshold": 0.0}, "reward_threshold"),
                ({"algorithm": 3}, "algorithm"),
                ({"retry_prompt": "{prompt}{reflection}"}, "retry_prompt: has no effect on a memory writer"),
            )
        ),
        ({"algorithm": "ppo", "reward": {"credit": "calls"}}, "ppo has a value for each token"),
        ({"algorithm": "dpo", "reward": {"credit": "calls"}}, "dpo compares whole rollouts"),
        ({"reward": JUDGED}, "would ask the judge"),
        ({"reward": {"credit_settings": {"gamma": 0.1}}}, "credit_settings: has no effect with credit=turn"),
        ({"reward": {"credit": "calls", "accuracy": 0}}, "credited with answers"),
        *(
            ({"groups": "chunk", **changes}, rf"sampling.groups: {named}.*whole conversations")
            for changes, named in (
                *(({"algorithm": name}, f"algorithm={name}") for name in ("ppo", "dpo", "erl")),
                (
                    {"reward": {"functions": [{"name": "f", "function": "os:getcwd", "weight": 1.0}]}},
                    "reward.functions",
                ),
                ({"staleness": 1, "sampler": {"url": "vllm:http://localhost:1"}}, "staleness"),
            )
        ),
        ({"conversation_share": 0.5}, "conversation_share: has no effect"),
        ({"staleness": 1, "algorithm": "erl"}, r"sampling\.staleness: does not work with"),
        ({"staleness": 1, "resample_flat": 1}, r"sampling\.staleness: does not work with"),
        ({"resample_flat": 1, "algorithm": "erl"}, "resample_flat: has no use with algorithm=erl"),
        ({"resample_flat": 1, "curriculum": {"order": ["a", "b"]}}, "resample_flat: has no use with a curriculum"),
        ({"load_in_4bit": True}, r"compute\.load_in_4bit: .* set lora"),
        ({**QLORA, "sample_dtype": "float64"}, r"sampling\.dtype: .*load_in_4bit"),
        *(
            ({**changes, "sharding": "fsdp"}, rf"compute\.sharding: fsdp does not .*{named}")
            for changes, named in (
                (QLORA, r"compute\.load_in_4bit"),
                ({"device_map": "auto"}, r"compute\.device_map"),
                ({"offload_optimizer": True}, r"compute\.offload_optimizer"),
                ({"lora": {"trainable_tokens": ["<stop>"]}}, r"lora\.trainable_tokens"),
            )
        ),
        ({"source": "gold"}, "unknown key 'source'"),
    ],
    TextConfig: [
        ({"rewards": [{"kind": "format", "pattern": "a", "weight": 0}]}, "rewards: every weight is 0"),
        ({"environment": "a:B"}, r"rewards: has no effect with an environment.*rewards=\[\] removes"),
        ({"tell_answer": True}, "erl: has no effect with algorithm=grpo"),
        ({"algorithm": "erl", "erl": {"retry_prompt": "{prompt}"}}, "has no place for {reflection}"),
        ({"group_size": 1}, "group_size: rollouts of a task are compared"),
        ({"columns": 3}, "columns"),
        ({"column": {}}, "unknown key 'column'"),
    ],
    SFTConfig: [
        ({"rounds": 2}, "rounds: only source=best samples rows anew"),
        ({"source": "best", "epochs": 1}, "epochs: how many rows source=best will find is not known"),
        ({"source": "best", "rounds": 9, "schedule_steps": 8}, "rounds: 9 rounds need at least as many"),
        ({"max_steps": 9, "schedule_steps": 8}, "max_steps: 9 is beyond schedule_steps 8"),
        ({"epochs": 2, "schedule_steps": 8}, "schedule_steps: has no effect with epochs=2.0"),
        ({"group_size": 1}, "group_size: Input should be greater than or equal to 2"),
        ({"source": "gold", "erl": {}}, "erl: has no effect with source=gold"),
        *(
            ({"source": "erl", "erl": {name: value}}, f"erl.{name}: has no effect with source=erl")
            for name, value in (
                *(("enable_reflection", False), ("enable_internalization", False), ("internalization_coef", 2.0)),
            )
        ),
    ],
    PreferenceConfig: [
        ({"data": None}, "data"),
        ({"dpo": {"margin": 0.1}}, r"unknown key 'dpo.margin'"),
        ({"group_size": 4}, "unknown key 'group_size'"),
        ({"dpo": {"label_smoothing": 0.5}}, "dpo.label_smoothing: "),
        ({"epochs": 2, "schedule_steps": 7}, "schedule_steps: has no effect with epochs=2.0"),
        ({"schedule_steps": 7, "max_steps": 8}, "max_steps: 8 is beyond schedule_steps 7"),
    ],
    RewardModelConfig: [
        ({"objectives": {"a": 0.0}}, "objectives: at least one with another weight than 0"),
        ({"head_tokens": 7}, "head_tokens: has no effect with algorithm=reward"),
        ({"dpo": {"beta": 1}}, "unknown key 'dpo'"),
        ({"pooling": "first"}, "pooling: "),
    ],
}


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [(kind, changes, message) for kind, rows in REFUSED.items() for changes, message in rows],
)
def test_settings_that_do_not_go_together_are_refused(kind, changes, message):
    with pytest.raises(ConfigError, match=message):
        build_config(kind, {"out": "unused", **NEEDED.get(kind, {}), **changes}, "test")
