"""Default learning rates: by the number of weights, by LoRA, by supervised or reinforcement learning.

Two laws pass through the rate that trained the shipped policies (0.8 million weights, 4e-4) and a published one:

- Reinforcement learning, 4e-4 (N / 0.8e6) ** -0.7: 1e-6 at 4 billion weights, the rate of Mem-alpha (arXiv 2509.25911)
  and TRL's default of GRPO.
- Supervised learning, 4e-4 (N / 0.8e6) ** -0.35: 2e-5 at 4 billion, TRL's default of its SFTTrainer.

LoRA takes ten times the rate of all weights, whatever its rank (Schulman and Thinking Machines Lab 2025, "LoRA Without
Regret"): 2e-4 for supervised learning at 4 billion, the rate of QLoRA (arXiv 2305.14314). Between the two ends the laws
are a guess, so they give one significant digit. Models below 0.8 million weights get the rate at 0.8 million.
"""

from __future__ import annotations

REFERENCE_PARAMETERS = 0.8e6
REFERENCE_RATE = 4e-4
REINFORCEMENT_EXPONENT = -0.7
SUPERVISED_EXPONENT = -0.35
LORA_FACTOR = 10.0


def default_learning_rate(parameters: int, *, lora: bool = False, supervised: bool = False) -> float:
    """Return the peak learning rate of a run that sets none, to one significant digit.

    Args:
        parameters: Weights of the model, without adapters.
        lora: Only low-rank adapters are trained.
        supervised: The run imitates rows; otherwise it reinforces rollouts.
    """
    exponent = SUPERVISED_EXPONENT if supervised else REINFORCEMENT_EXPONENT
    rate = REFERENCE_RATE * max(1.0, parameters / REFERENCE_PARAMETERS) ** exponent
    return float(f"{rate * (LORA_FACTOR if lora else 1.0):.0e}")
