"""What a run starts from: its device, its start weights, and the engine that trains them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TypeVar

import torch

from memalpha.config import LearnerConfig
from memalpha.errors import ConfigError, PolicyError
from memalpha.policy.load import absolute_policy_name, load_policy
from memalpha.policy.model_files import weights_fingerprint
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.learner.distributed import World
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora, add_tokens
from memalpha.train.learner.losses import LossSettings
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.progress import Display
from memalpha.types import SampleRequest

C = TypeVar("C", bound=LearnerConfig)

SMALL_MODEL = 50_000_000
"""Models below are toys: no setting of theirs is commented on."""

LARGE_MODEL = 300_000_000
"""From here on float32 and a CPU are commented on."""

MAX_RATE_FACTOR = 30
"""Learning rates above this multiple of the default are commented on; supervised rates are up to 20 times higher."""


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
        config.policy,
        dtype=config.compute.dtype if is_frozen else "float32",
        device=config.compute.device,
        loading=config.compute,
        batching=config.batching,
    )
    if not isinstance(policy, TransformersPolicy):
        raise PolicyError(f"policy {config.policy!r} has no weights: only a transformers model can be trained")
    if config.compute.load_in_4bit and any("lora_" in name for name, _ in policy.model.named_parameters()):
        raise ConfigError(
            f"compute.load_in_4bit: policy {config.policy!r} holds adapters, which are not merged into weights in "
            "4 bits: write a merged policy first (memalpha merge POLICY FOLDER) and start from it"
        )
    if config.lora is not None:
        add_tokens(policy, config.lora.trainable_tokens)
    return RunStart(policy, weights_fingerprint(policy.model), started_at)


def settle_defaults(config: C, start: RunStart, display: Display) -> C:
    """Return the settings with the defaults that depend on the model, and show these and what does not suit it.

    Args:
        config: Settings of the run.
        start: Start policy.
        display: Shows the learning rate if the settings name none, and settings that suit small models only.
    """
    parameters, settled = start.policy.parameters, config.with_learning_rate(start.policy.parameters)
    if settled is not config:
        trained = "all weights" if config.lora is None else "lora"
        display.log(
            f"learning rate {settled.optimizer.learning_rate:g}: the default for {trained} of a model of "
            f"{parameters:,} (set learning_rate for another)"
        )
    notes = settings_of_small_models(settled, parameters)
    uses_cpu = torch.device(config.compute.device).type == "cpu" and config.compute.device_map is None
    if uses_cpu and config.compute.dtype == "bfloat16" and (slowdown := bfloat16_slowdown()) > 1.5:
        notes.append(
            f"dtype=bfloat16: products take {slowdown:.0f} times as long as in float32 on this CPU, which has no "
            "instructions for them: leave it out"
        )
    for note in notes:
        display.log(note)
    return settled


def bfloat16_slowdown() -> float:
    """Measure how many times as long as in float32 a matrix product takes in bfloat16 on this CPU."""
    seconds = []
    for dtype in (torch.float32, torch.bfloat16):
        factors = torch.ones(2, 256, 256, dtype=dtype)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            torch.nn.functional.linear(factors[0], factors[1])
            times.append(time.perf_counter() - start)
        seconds.append(min(times))
    return seconds[1] / seconds[0]


def settings_of_small_models(config: LearnerConfig, parameters: int) -> list[str]:
    """Return a sentence for each setting of `config` that suits models of a million weights, not this one.

    Args:
        config: Settings with a learning rate.
        parameters: Weights of the model.
    """
    compute, notes = config.compute, []
    size = f"a model of {parameters / 1e9:.2g} billion weights"
    if parameters >= LARGE_MODEL and torch.device(compute.device).type == "cpu" and compute.device_map is None:
        notes.append(f"device=cpu: a step of {size} takes hours on a CPU: set device=cuda")
    if parameters >= LARGE_MODEL and compute.dtype == "float32":
        notes.append(
            f"dtype=float32: {size} takes {parameters * 4 / 1e9:.0f} GB in float32, and its passes are slow: set "
            "dtype=bfloat16 (trained weights stay float32)"
        )
    sampling = config.rl_sampling
    if parameters >= SMALL_MODEL and sampling is not None and sampling.dtype == "float64":
        notes.append(f"sampling.dtype=float64: a copy of {size} in float64 samples: leave it out for such a model")
    default = config.replace(learning_rate=None).with_learning_rate(parameters).optimizer.peak_rate
    if parameters >= SMALL_MODEL and config.optimizer.peak_rate > MAX_RATE_FACTOR * default:
        notes.append(
            f"learning_rate={config.optimizer.peak_rate:g}: more than {MAX_RATE_FACTOR} times the {default:g} that "
            f"suits {size}: lower it, or leave it out"
        )
    return notes


def check_device_map(config: LearnerConfig, world: World, *, reference: bool = False) -> None:
    """Check that the run can use a device map, if it sets one.

    Args:
        config: Settings of the run.
        world: Processes of the run.
        reference: True if the run needs a frozen copy of its start.

    Raises:
        ConfigError: There are several processes, or the whole model has to be copied.
    """
    if config.compute.device_map is None:
        return
    if world.size > 1:
        raise ConfigError(
            "compute.device_map: spreads a model over the devices of one process: leave it out under accelerate launch"
        )
    if reference and config.lora is None:
        raise ConfigError(
            "compute.device_map: a KL or preferences need a frozen copy of all weights, which cannot be made of a "
            "spread model: set lora={}, whose reference is the model without adapters"
        )


def check_sampling_dtype(policy: TransformersPolicy, dtype: str) -> None:
    """Raise `ConfigError` if the model cannot sample in this precision; draws one token."""
    request = SampleRequest(messages=({"role": "user", "content": "Hello"},), key=(0,), max_new_tokens=1)
    try:
        policy.sample([request])
    except (RuntimeError, NotImplementedError, ValueError) as error:
        raise ConfigError(
            f"sampling.dtype: {type(policy.model).__name__} cannot sample in {dtype} "
            f"({' '.join(str(error).split())[:160]}): leave it out"
        ) from error


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
    check_device_map(config, world, reference=reference)
    model = policy.model
    if config.lora is not None:
        name, token_ids = absolute_policy_name(config.policy), add_tokens(policy, config.lora.trainable_tokens)
        model = add_lora(model, config.lora, name, config.seed, token_ids=token_ids)
    samples_here = config.rl_sampling is None or config.rl_sampling.sampler is None
    return Engine(
        model,
        config,
        loss,
        reference=reference,
        value_learning_rate=value_learning_rate,
        world=world,
        keeps_whole=samples_here,
    )
