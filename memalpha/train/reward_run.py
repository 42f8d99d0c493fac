"""Reward models: `memalpha train reward`, or `train_reward_model` from Python.

A step takes `batch_pairs` lines of the data (`train.reward_data`), in a seeded order that is new in every pass, and
lowers the mean of their losses (`train.reward_engine`) by one update of the trunk, or of adapters in it, and the head.
What validates: the loss of lines that are held out (`eval_data`, or the last fifth of the file).

For plain pairs with `pooling: last` loss and gradient are those of TRL's RewardTrainer, and the files are its too: each
loads what the other wrote, to the same scores. The run itself is not that trainer: it has no other pooling, no
objectives and no ratings, drops rows that are too long where they are refused here, and steps, validation, metrics and
checkpoints that resume bit for bit would be other ones than every run's here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memalpha.config import RewardModelConfig, build_config
from memalpha.errors import CheckpointError, DataError
from memalpha.policy.base import lasting_name
from memalpha.policy.reward_model_ import Head, with_head
from memalpha.train.checkpoint import check_out, saved_steps
from memalpha.train.distributed import World
from memalpha.train.engine import learning_rate
from memalpha.train.lora import add_lora
from memalpha.train.passes import nth, steps_of
from memalpha.train.preference_data import write_pairs
from memalpha.train.reward_data import Compared, Judged, fingerprint_of, read_judged
from memalpha.train.reward_engine import RewardEngine
from memalpha.train.run import Run, launch

OWN_DATA = "preferences.jsonl"
"""Where a run directory holds pairs that came from Python."""


def train_reward_model(
    prompts: Sequence[str | Sequence[Mapping[str, Any]]],
    chosen: Sequence[str | Sequence[Mapping[str, Any]]],
    rejected: Sequence[str | Sequence[Mapping[str, Any]]],
    *,
    policy: str | Path,
    out: str | Path,
    **settings: Any,
) -> dict[str, Any]:
    """Train a reward model that puts `chosen[i]` above `rejected[i]` as a reply to `prompts[i]`; returns the run's
    summary. `load_reward_model(out)` gives the model.

    A prompt is a text, taken as it is, or chat messages; a reply is a text or a list of one assistant message.
    `settings` are keys of `RewardModelConfig` (`pooling="mean"`, `epochs=2`, `lora={}`, ...). The pairs are kept in the
    run directory `out`; the same call goes on with a run that was stopped.

    Raises `ConfigError` for settings, `DataError` for pairs that cannot be learnt from, with their line in
    `out/preferences.jsonl`, and `CheckpointError` where `out` holds another run.
    """
    given = {**settings, "policy": str(policy), "out": Path(out), "data": Path(out) / OWN_DATA}
    config = build_config(RewardModelConfig, given, "train_reward_model")
    check_out(config.out)
    config.out.mkdir(parents=True, exist_ok=True)
    write_pairs(config.out / OWN_DATA, prompts, chosen, rejected, begun=bool(saved_steps(config.out)))
    return launch(RewardModelRun, config)


class RewardModelRun(Run[RewardModelConfig]):
    """Each step learns from `batch_pairs` lines."""

    engine: RewardEngine

    def __init__(self, config: RewardModelConfig, world: World) -> None:
        super().__init__(config, world)
        self.schedule = config
        policy = self.policy
        head = Head(config.pooling, config.objectives)
        model = with_head(policy.model, head, policy.tokenizer, config.policy)
        if config.lora is not None:
            whole = ["score", *(["pool"] if head.pooling == "attention" else [])]
            # By peft's task type no library takes a head that pools otherwise for one on the last token.
            task_type = "SEQ_CLS" if head.pooling == "last" else "FEATURE_EXTRACTION"
            name = lasting_name(config.policy)
            model = add_lora(model, config.lora, name, config.seed, whole=whole, task_type=task_type)
        self.engine = RewardEngine(model, config, head, world)
        self.judged: list[Judged] = []
        self.held_out: list[Judged] = []
        self.fingerprint = ""
        self.tokens = 0
        self.before: dict[str, float] = {}

    def _length(self) -> int:
        config = self.config
        self.judged, self.held_out = self.world.once(self._read)
        self.fingerprint = fingerprint_of([*self.judged, *self.held_out])
        steps = steps_of(config, len(self.judged), config.batch_pairs)
        self.schedule = config.model_copy(update={"schedule_steps": steps})
        return steps

    def _read(self) -> tuple[list[Judged], list[Judged]]:
        config, objectives = self.config, list(self.config.objectives)
        judged = read_judged(config.data, self.policy, objectives)
        if config.eval_data is not None:
            held_out = read_judged(config.eval_data, self.policy, objectives)[: config.validation_pairs]
        else:
            cut = len(judged) - min(config.validation_pairs, max(1, len(judged) // 5))
            judged, held_out = judged[:cut], judged[cut:]
        if not judged:
            raise DataError(f"data: {config.data} has one line, which validates: add some, or set validation_pairs=0")
        for number, name in enumerate(objectives):
            if len(objectives) > 1 and not any(_says(one, number) for one in judged):
                raise DataError(
                    f"data: no line of {config.data} that is learnt from says anything of objective {name!r}"
                )
        ratings = sum(not isinstance(one, Compared) for one in judged)
        told = f" and {ratings} ratings" if ratings else ""
        self.display.say(f"{len(judged) - ratings} pairs{told} to learn from, {len(held_out)} lines to validate")
        return judged, held_out

    def _begin(self) -> None:
        """Nothing but the first validation."""

    def _prepare(self) -> list[Judged]:
        config = self.config
        first = self.step * config.batch_pairs
        return [nth(self.judged, first + number, str(config.seed)) for number in range(config.batch_pairs)]

    def _learn(self, prepared: list[Judged]) -> dict[str, Any]:
        line = self.engine.update(prepared, learning_rate(self.step, self.schedule))
        tokens = sum(len(prompt) + len(reply) for one in prepared for prompt, reply in one.rows)
        self.tokens += tokens
        return {**line, "tokens": tokens}

    def _score(self, line: dict[str, Any]) -> float | None:
        found = self._validation()
        line |= found
        if self.step == 0:
            self.before = found
        return -found["validation_pair_loss"] if found else None

    def _validation(self) -> dict[str, float]:
        """The engine's figures of what is held out."""
        if not self.held_out:
            return {}
        scores = self.engine.scores(self.held_out)
        figures = self.engine.figures(self.held_out, scores)
        figures = {f"validation_{'pair_loss' if name == 'loss' else name}": value for name, value in figures.items()}
        return {name: value for name, value in figures.items() if np.isfinite(value)}

    def _end(self, chosen: int) -> dict[str, Any]:
        return {
            "pairs": len(self.judged),
            "validation_pairs": len(self.held_out),
            "tokens": self.tokens,
            "before": self.before,
            "after": self._validation(),
        }

    def _state(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "before": self.before, "pairs": self.fingerprint}

    def _restore(self, state: dict[str, Any]) -> None:
        if state["pairs"] != self.fingerprint:
            raise CheckpointError(
                f"{self.out} began with other lines than data={self.config.data} (or eval_data) holds now: put back "
                "what was there, or start again in another out"
            )
        self.tokens, self.before = state["tokens"], state["before"]


def _says(one: Judged, objective: int) -> bool:
    """Whether an objective's output learns from a line."""
    if isinstance(one, Compared):
        return one.objective is None or one.objective == objective
    return not np.isnan(one.scores[objective])
