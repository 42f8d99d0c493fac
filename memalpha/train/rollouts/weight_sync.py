"""Sampler and learner apart: a vLLM server gets the learner's weights, and every sync is checked by log-probs.

Before the first rollout after a change of the weights, `WeightSync.refresh` writes them to a folder that both sides
see. With LoRA these are the adapters, which the server loads under a new name; otherwise a whole model, which our
worker extension loads (`policy.vllm.worker_extension`). Then comes the canary: the server samples a few fixed prompts,
the learner computes the log-probs of the same tokens, and a mean gap beyond the tolerance stops the run.

The first sync also probes what a client cannot see. Its prompts are sampled at temperature 0.5: log-probs that fit the
learner only at temperature 1 are raw ones, and log-probs that are all too high come from truncated sampling.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from peft import PeftModel

from memalpha.config import ReinforcementConfig
from memalpha.errors import ConfigError, PolicyError
from memalpha.policy.base import Policy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.policy.vllm.policy import VllmPolicy
from memalpha.train.data.samples import TrainingSample, policy_gradient_sample
from memalpha.train.learner.engine import Engine
from memalpha.train.rollouts.epochs import TrainingTasks
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.types import Completion, SampleRequest, Turn

CANARY_PROMPTS = 4
CANARY_TOKENS = 16
PROBE_TEMPERATURE = 0.5

DEFAULT_TOLERANCES = {"float32": 1e-4, "bfloat16": 0.03}
"""`sampler.tolerance` by `compute.dtype`. vLLM 0.32 on a CPU was off by 5e-7 in float32 and 7e-3 in bfloat16."""


class WeightSync:
    """Give a server the learner's weights and check that it samples with them.

    Args:
        policy: Policy on the server; its queues call `refresh` and `confirm`.
        engine: Owner of the weights.
        prompts: Prompts of the canary, at least one.
        folder: Folder of the weights that are handed over; earlier ones in it are removed.
    """

    def __init__(self, policy: VllmPolicy, engine: Engine, prompts: Sequence[SampleRequest], folder: Path) -> None:
        config = engine.config
        assert isinstance(config, ReinforcementConfig)
        self.policy, self.engine, self.folder = policy, engine, folder.absolute()
        self.temperature = config.sampling.temperature
        self.tolerance = policy.config.tolerance or DEFAULT_TOLERANCES[config.compute.dtype]
        self.prompts = [
            replace(prompt, key=(index,), max_new_tokens=min(CANARY_TOKENS, prompt.max_new_tokens))
            for index, prompt in enumerate(prompts)
        ]
        self.has_adapters = isinstance(engine.model, PeftModel)
        self._run = secrets.token_hex(3)
        self._count = 0
        self._version = ""
        self._seconds: list[float] = []
        self._gaps: list[float] = []
        self._retries = 0
        policy.refresh, policy.confirm = self.refresh, self.confirm

    def refresh(self) -> None:
        """Give the server the current weights if it has others. Every process must call this.

        Raises:
            PolicyError: The server cannot be reached, refuses the weights, or samples with others.
        """
        engine, world = self.engine, self.engine.world
        if self._version and self.policy.version == engine.weights_step:
            return
        start = time.monotonic()
        is_first = not self._version
        self._count += 1
        partial = world.run_on_main(lambda: self._prepare_folder(with_weights=not engine.is_sharded))
        if engine.is_sharded:
            engine.write_shards(partial)
        self._version = world.run_on_main(lambda: self._load(partial))
        self.policy.model = self._version if self.has_adapters else world.run_on_main(self.policy.client.base_model)
        self.policy.version = engine.weights_step
        if is_first:
            self._probe()
        rows = self._sample_canary(self.temperature)
        gap = _mean_gap(rows, engine.forward(rows))
        if gap > self.tolerance:
            raise PolicyError(
                f"{self.policy.client.name}: after the sync of step {engine.weights_step} its log-probs are off by "
                f"{gap:.2g} on average, sampler.tolerance is {self.tolerance:g}: the server does not sample with the "
                "learner's weights"
            )
        self._seconds.append(time.monotonic() - start)
        self._gaps.append(gap)

    def confirm(self) -> None:
        """Raise `PolicyError` if the server was started again since the sync; adapters show it in every answer."""
        if self.has_adapters:
            return
        if self.policy.client.weights_version() != self._version:
            raise PolicyError(
                f"{self.policy.client.name} has lost the weights of step {self.policy.version}: it was started again, "
                "or another run uses it"
            )

    def pop_metrics(self) -> dict[str, float]:
        """Return duration and canary of the syncs since the last call, and the number of repeated requests."""
        seconds, self._seconds = self._seconds, []
        gaps, self._gaps = self._gaps, []
        retries, self._retries = self.policy.client.retries - self._retries, self.policy.client.retries
        return {"sync_seconds": sum(seconds), "sync_gap": max(gaps, default=0.0), "sampler_retries": float(retries)}

    def _prepare_folder(self, *, with_weights: bool) -> Path:
        """Make the folder that the weights are written to, under a name that no server loads."""
        partial = self.folder / f".memalpha-{self._run}-{self._count}.part"
        try:
            if not self._version:
                for old in (*self.folder.glob("memalpha-*"), *self.folder.glob(".memalpha-*.part")):
                    shutil.rmtree(old)
            partial.mkdir(parents=True)
            if with_weights:
                self.engine.write(partial)
        except OSError as error:
            raise ConfigError(f"sampler.url: weights cannot be written to {self.folder} ({error})") from error
        return partial

    def _load(self, partial: Path) -> str:
        """Let the server load the weights of a folder, remove earlier ones, and return their name."""
        client, previous = self.policy.client, self._version
        version = partial.name.removeprefix(".").removesuffix(".part")
        target = partial.with_name(version)
        try:
            partial.replace(target)
        except OSError as error:
            raise ConfigError(f"sampler.url: weights cannot be written to {self.folder} ({error})") from error
        if self.has_adapters:
            client.load_adapter(version, target)
            if previous:
                client.unload_adapter(previous)
        else:
            client.load_weights(target, version)
        if previous:
            shutil.rmtree(self.folder / previous, ignore_errors=True)
        return version

    def _sample_canary(self, temperature: float) -> list[TrainingSample]:
        """Return the server's completions of the canary's prompts as rows, the same in every process."""
        requests = [replace(prompt, temperature=temperature) for prompt in self.prompts]
        token_requests = self.policy.token_requests(requests)
        completions: list[Completion] = self.engine.world.run_on_main(
            lambda: self.policy.finish(requests, self.policy.client.sample(token_requests))
        )
        return [policy_gradient_sample(Turn(0, completion)) for completion in completions]

    def _probe(self) -> None:
        """Raise `PolicyError` unless the server returns log-probs of the whole distribution at the temperature."""
        name, engine = self.policy.client.name, self.engine
        rows = self._sample_canary(PROBE_TEMPERATURE)
        tempered = engine.forward(rows)
        gap = _mean_gap(rows, tempered)
        if gap <= self.tolerance:
            return
        untempered = engine.forward([replace(row, temperature=1.0) for row in rows])
        if _mean_gap(rows, untempered) <= self.tolerance:
            raise PolicyError(
                f"{name} returns log-probs before the temperature: start it with --logprobs-mode processed_logprobs"
            )
        excess = np.concatenate([row.logprobs - logprobs for row, logprobs in zip(rows, tempered, strict=True)])
        if excess.min() >= -self.tolerance:
            raise PolicyError(
                f"{name} returns log-probs that are {gap:.2g} too high on average, never too low: it truncates the "
                "distribution (top-p, top-k or min-p); start it with --generation-config vllm"
            )
        raise PolicyError(
            f"{name} does not sample with the learner's weights: log-probs are off by {gap:.2g} on average, "
            f"sampler.tolerance is {self.tolerance:g}. Start it with the run's policy (adapters: their base) in the "
            "learner's precision (--dtype float32), or set sampler.tolerance"
        )


def make_sampler(policy: TransformersPolicy, config: ReinforcementConfig) -> Policy:
    """Return what rollouts are sampled with: `policy` itself, or on the server of `sampler.url`."""
    settings = config.sampling.sampler
    return policy if settings is None else VllmPolicy(policy, settings)


def connect_sampler(
    worker: RolloutWorker[Any], engine: Engine, tasks: TrainingTasks[Any], out: Path
) -> Callable[[], dict[str, Any]]:
    """Let a sampler on a server follow the engine's weights; the server is contacted by the first rollout.

    Args:
        worker: Samples rollouts with the result of `make_sampler`.
        engine: Owner of the weights.
        tasks: Training tasks, of which the first give the canary's prompts.
        out: Run directory, for weights without a folder of their own.

    Returns:
        A function that returns the sampler's metrics of a step; {} for a sampler in this process.
    """
    sampler = worker.engine.policy
    if not isinstance(sampler, VllmPolicy):
        return dict
    folder = sampler.config.folder or out / "sampler"
    prompts = [worker.engine.first_request(task) for task in tasks.batch(0)[:CANARY_PROMPTS]]
    return WeightSync(sampler, engine, prompts, folder).pop_metrics


def _mean_gap(rows: Sequence[TrainingSample], logprobs: Sequence[np.ndarray]) -> float:
    """Return the mean |server - learner| over all tokens."""
    return float(np.mean(np.abs(np.concatenate([row.logprobs for row in rows]) - np.concatenate(list(logprobs)))))
