"""What a run starts from: its device, its start weights, and the engine that trains them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TypeVar

import torch

from memalpha.config import LearnerConfig
from memalpha.errors import ConfigError, PolicyError
from memalpha.policy.load import absolute_policy_name, load_policy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.learner.distributed import World
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.losses import LossSettings
from memalpha.train.trainers.checkpoint import weights_fingerprint
from memalpha.train.trainers.directory import RunDirectory

C = TypeVar("C", bound=LearnerConfig)


@dataclass(frozen=True, slots=True)
class RunStart:
    """Hold what a run starts from.

    Attributes:
        policy: Policy that is trained.
        fingerprint: Hash of its weights before training.
        time: Time of the start (`time.monotonic`).
    """

    policy: TransformersPolicy
    fingerprint: str
    time: float


def check_device(name: str) -> None:
    """Raise `ConfigError` if torch cannot use this device here."""
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, ValueError) as error:  # AssertionError: torch was built without it
        raise ConfigError(f"device: {name!r} cannot be used here ({str(error).splitlines()[0]}): try cpu") from error


def resolve_init_from(config: C) -> C:
    """Replace `init_from` by a checkpoint path in `policy`; a resumed run keeps the one it started from.

    Raises:
        ConfigError: `init_from` holds no checkpoint, or is this run itself.
    """
    if config.init_from is None or "policy" in config.model_fields_set:  # a run's own config.yaml names both
        return config
    if config.init_from.resolve() == config.out.resolve():
        raise ConfigError(f"init_from: {config.init_from} is this run's own out: name the run before it")
    directory = RunDirectory(config.out)
    recorded = directory.load_settings() if directory.saved_steps() else {}
    if recorded.get("init_from") == str(config.init_from) and isinstance(recorded.get("policy"), str):
        return config.model_copy(update={"policy": recorded["policy"]})
    return config.model_copy(update={"policy": str(RunDirectory(config.init_from).best_checkpoint())})


def load_start(config: LearnerConfig) -> RunStart:
    """Load the start policy on the run's device and hash its weights.

    Raises:
        PolicyError: The policy has no weights.
    """
    started_at = time.monotonic()
    is_frozen = config.lora is not None  # trained weights are float32
    policy = load_policy(
        config.policy, dtype=config.compute.dtype if is_frozen else "float32", device=config.compute.device
    )
    if not isinstance(policy, TransformersPolicy):
        raise PolicyError(f"policy {config.policy!r} has no weights: only a transformers model can be trained")
    return RunStart(policy, weights_fingerprint(policy.model), started_at)


def build_engine(
    policy: TransformersPolicy,
    config: LearnerConfig,
    loss: LossSettings,
    world: World,
    *,
    reference: bool = False,
    value_learning_rate: float | None = None,
) -> Engine:
    """Build the engine of the policy's weights, or of new adapters in its layers.

    Args:
        policy: Policy at its start weights.
        config: Adapters, optimizer, precision and micro-batch settings.
        loss: Settings of the loss.
        world: Processes of the run.
        reference: Keep log-probs of the start weights available.
        value_learning_rate: Learning rate of a value head; None trains none.
    """
    model = policy.model
    if config.lora is not None:
        model = add_lora(model, config.lora, absolute_policy_name(config.policy), config.seed)
    return Engine(model, config, loss, reference=reference, value_learning_rate=value_learning_rate, world=world)
