"""`train`: evaluate, then steps of (collect, annotate, update), then evaluate again; resumable at any time.

A step samples with the weights it starts from. The weights evaluated "after" are those with the best accuracy on the
validation tasks. What every run does is `train.run`; a supervised one (`algorithm: sft`) is `train.sft`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

from memalpha.agent.builder import Builder
from memalpha.config import PreferenceConfig, SFTConfig, TrainConfig, training_config
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.evaluator import Record, Report, summarize
from memalpha.qa.reward import MemoryReward
from memalpha.qa.walk import choose_example, walk, write_example
from memalpha.train.algorithms import ALGORITHMS
from memalpha.train.checkpoint import append_lines, read_json, write_json
from memalpha.train.collect import Collector, TaskSource
from memalpha.train.distributed import World
from memalpha.train.engine import learning_rate
from memalpha.train.losses import LossSettings
from memalpha.train.overlap import Overlap, Part
from memalpha.train.preferences import PreferenceRun
from memalpha.train.run import launch
from memalpha.train.samples import TrainingSample, policy_gradient_sample
from memalpha.train.sft import SFTRun
from memalpha.train.task_run import TaskRun
from memalpha.types import Trajectory, TrajectoryGroup

BASELINES = {"append_only": "append-only", "oracle": "oracle"}
_Collected = tuple[list[TrajectoryGroup], list[Record], list[TrainingSample]]

READABLE = 0.5
"""A reader that gets less than this out of the oracle's memory is spoken of."""


def train(config: TrainConfig | SFTConfig | PreferenceConfig | str | Path, **overrides: Any) -> dict[str, Any]:
    """Run or resume a training run and return its summary (also `summary.json` in the run directory).

    `config` is a configuration, a shipped name or a YAML path; `overrides` are its keys (nested ones as mappings). A
    Ctrl-C saves a checkpoint that the same call resumes, and comes out as `KeyboardInterrupt`.
    """
    settings = training_config(config, overrides)
    if isinstance(settings, PreferenceConfig):
        return launch(PreferenceRun, settings)
    return launch(SFTRun, settings) if isinstance(settings, SFTConfig) else launch(_Run, settings)


class _Run(TaskRun[TrainConfig]):
    """Each step samples rollouts of some tasks and makes those more likely that earned more than their siblings."""

    files = ("metrics.jsonl", "turns.jsonl", "trajectories.jsonl")

    def __init__(self, config: TrainConfig, world: World) -> None:
        self.source = TaskSource(config)
        super().__init__(config, world)
        config = self.config
        self.reader, self.training_reader = self._readers(config.reader, config.training_reader or config.reader)
        self.rewards = MemoryReward(config.reward.kept_in(self.out), self.policy.count_tokens)
        self.builder = Builder(self.policy, config.agent, self.embedder)
        self.collector = Collector(self.builder, self.training_reader, self.rewards, config, world)
        self.algorithm = ALGORITHMS[config.algorithm](config)
        self.source.check(self.policy, config.agent, self.builder.schema, self.algorithm.advice_tokens)
        self.engine = self._new_engine(
            LossSettings.of(config),
            reference=self.algorithm.needs_reference,
            value_learning_rate=self.algorithm.value_learning_rate,
        )
        if config.sample_dtype is not None:  # now that the model is what the learner has made of it
            self.policy.sample_in(config.sample_dtype)
        self.overlap = Overlap(self.collector, self.algorithm, self.engine, config) if config.overlap > 1 else None
        if self.overlap is not None and not self.overlap.waits:
            self.display.say(
                f"overlap={config.overlap}: neither reader nor judge is behind an endpoint, nothing is waited for: a "
                "step's parts are scored and learnt from one after the other"
            )

    def go(self) -> dict[str, Any]:
        """As every run; what other threads do ends with it."""
        with self.overlap or nullcontext():
            return super().go()

    def _length(self) -> int:
        return self.config.schedule_steps

    def _begin(self) -> None:
        held_out = self.source.held_out
        for note in self.rewards.notes([*self.source.batch(0), *held_out]):
            self.display.say(note)
        before = self._evaluate("before", self.policy, held_out, self.reader)
        example = choose_example(held_out)
        task, group = held_out[example], before.groups[example]
        if self.world.main:
            systems = {"before": (group.trajectories[0], before.records)}
            write_example(self.out / "eval" / "example.json", task, systems)
        if all(task.gold_operations for task in held_out):
            baselines = {
                name: self._evaluate(name, ScriptedPolicy(kind), held_out, self.reader)
                for name, kind in BASELINES.items()
            }
            ceiling = baselines["oracle"].summary["answerable_accuracy"]
            if ceiling is not None and ceiling < READABLE:
                self.display.say(
                    f"{self.reader.name} answers {ceiling:.0%} of the answerable questions from the oracle's memory, "
                    "and no training gets above that: see reader.kind, reader.policy, reward.metric, docs/own-data.md"
                )
        else:
            self.display.say("no baselines: not every held-out task carries gold operations")

    def _prepare(self) -> _Collected | list[Part]:
        tasks = self.source.batch(self.step * self.config.tasks_per_step)
        if self.overlap is not None:
            return self.overlap.begin(tasks, self.step)
        self.collector.waited = 0.0
        groups, records = self.algorithm.collect(self.collector, tasks, self.step)
        return groups, records, self.algorithm.annotate(groups, self.engine)

    def _learn(self, prepared: _Collected | list[Part]) -> dict[str, Any]:
        if isinstance(prepared, list):
            assert self.overlap is not None
            learnt = self.overlap.learn(prepared, learning_rate(self.step, self.config))
            groups, records, samples = learnt.groups, learnt.records, learnt.samples
            line = {**self._figures(groups, records), **_figures_of_updates(learnt.stats, learnt.mismatch, samples)}
            line["wait_seconds"] = self.overlap.waited
        else:
            groups, records, samples = prepared
            line = {**self._figures(groups, records), **self._update(samples), "wait_seconds": self.collector.waited}
        self.algorithm.learnt(line)
        if self.world.main:
            self._write_trajectories(groups, samples)
        return line

    def _score(self, line: dict[str, Any]) -> float | None:
        """Accuracy on the validation tasks."""
        if not self.source.validation:
            return None
        summary = self._report("validation", self.policy, self.source.validation, self.reader).summary
        line |= {"validation_accuracy": summary["accuracy"], "validation_se": summary["se"]}
        return summary["accuracy"]

    def _end(self, chosen: int) -> dict[str, Any]:
        after = self._evaluate("after", self.policy, self.source.held_out, self.reader)
        return self.world.once(lambda: self._compare(after))

    def _compare(self, after: Report) -> dict[str, Any]:
        """The example's last part, and all evaluations together."""
        path = self.out / "eval" / "example.json"
        example = read_json(path)
        place = [task.id for task in self.source.held_out].index(example["task"])
        example["systems"]["after"] = walk(after.groups[place].trajectories[0], after.records)
        write_json(path, example)
        systems = {
            name: read_json(self.out / "eval" / f"{name}.json")
            for name in ("before", "after", *BASELINES)
            if name in ("before", "after") or (self.out / "eval" / f"{name}.json").exists()
        }
        return {
            "tasks": len(self.source.held_out),
            "questions": len(after.records),
            "before": systems.pop("before"),
            "after": systems.pop("after"),
            "baselines": systems,
        }

    def _state(self) -> dict[str, Any]:
        return {"position": self.step * self.config.tasks_per_step, "algorithm": self.algorithm.state}

    def _restore(self, state: dict[str, Any]) -> None:
        self.algorithm.state = state["algorithm"]

    def _keeps_all(self) -> bool:
        return self.config.keep_tokens

    # --------------------------------------------------------------------------------------------------- one step

    def _update(self, samples: Sequence[TrainingSample]) -> dict[str, Any]:
        """All optimizer steps on one step's samples, and their figures."""
        config = self.config
        mismatch: dict[str, float] = {}
        if config.old_logprobs == "recomputed":
            samples, mismatch = self.engine.recompute_old(samples, config.importance_cap)
        rate = learning_rate(self.step, config)
        stats: list[dict[str, float]] = []
        others: dict[str, float] = {}
        for number, (name, rows) in enumerate(self.algorithm.updates(samples).items()):
            found: list[dict[str, float]] = []
            units = _units(rows)
            for iteration in range(config.num_iterations):
                order = list(range(len(units)))
                Random(f"{config.seed}|{self.step}|{iteration}" + f"|{number}" * (number > 0)).shuffle(order)
                for part in range(config.minibatches):
                    chosen = [rows[i] for unit in order[part :: config.minibatches] for i in units[unit]]
                    if chosen:
                        found.append(self.engine.update(self.algorithm.refresh(chosen, self.engine), rate))
            if name:
                others[f"{name}_loss"] = sum(figures["loss"] for figures in found) / len(found)
            else:
                stats = found
        return _figures_of_updates(stats, mismatch, samples) | others

    def _figures(self, groups: Sequence[TrajectoryGroup], records: Sequence[Record]) -> dict[str, Any]:
        """Figures of the attempts; `sampled_tokens` are those of all roles."""
        sampled = [one for group in groups for one in group.trajectories if one.reward is not None]
        trajectories = [one for one in sampled if one.role == "attempt"]
        summary = summarize(records, trajectories, self.policy.count_tokens)
        keep = ("reward", "accuracy", "answerable_accuracy", "valid_calls", "duplicates", "update_share")
        keep += ("delete_share", "update_hit", "delete_hit", "memory_tokens")
        line = {name: summary[name] for name in keep}
        attempts = [group for group in groups if group.trajectories[0].role == "attempt"]
        if several := [group for group in attempts if len(group.trajectories) > 1]:
            line["flat"] = sum(map(_is_flat, several)) / len(several)
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        line["calls"] = sum(len(turn.calls) for turn in turns) / len(trajectories)
        line["sampled_tokens"] = sum(len(turn.completion.completion_ids) for one in sampled for turn in one.turns)
        line["truncated"] = sum(turn.completion.stop_reason == "length" for turn in turns) / len(turns)
        rewards = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
        for name in rewards[0].components:
            values = [value for reward in rewards for value in reward.components[name]]
            line[name] = sum(values) / len(values)
        return line

    def _write_trajectories(self, groups: Sequence[TrajectoryGroup], samples: Sequence[TrainingSample]) -> None:
        """trajectories.jsonl: the first task's rollouts, readable. turns.jsonl: every turn's tokens, if kept, and
        whether all its calls were executed; `advantage` is that of its first token in the policy gradient, if any."""
        first = groups[0].task.id
        told = [_readable(self.step, one) for group in groups if group.task.id == first for one in group.trajectories]
        append_lines(self.out / "trajectories.jsonl", told)
        if not self.config.keep_tokens:
            return
        advantages: dict[tuple[str, int, str, int], list[float]] = {}  # lists: a task may come twice in a step
        for row in reversed(samples):
            if row.pg.any():
                advantages.setdefault(_place(row), []).append(float(row.advantages[0]))
        kept = (
            (policy_gradient_sample(turn, task=group.task.id, rollout=one.rollout, role=one.role), turn, reward)
            for group in groups
            for one in group.trajectories
            if one.reward
            for turn, reward in zip(one.turns, one.reward.turns, strict=True)
        )
        append_lines(
            self.out / "turns.jsonl",
            (
                {
                    "step": self.step,
                    "task": sample.task,
                    "rollout": sample.rollout,
                    "role": sample.role,
                    "chunk": sample.chunk,
                    "prompt_ids": list(sample.prompt_ids),
                    "completion_ids": list(sample.completion_ids),
                    "logprobs": sample.logprobs.tolist(),
                    "temperature": sample.temperature,
                    "advantage": own.pop() if (own := advantages.get(_place(sample))) else None,
                    "reward": reward,
                    "ok": all(result.ok for result in turn.results),
                }
                for sample, turn, reward in kept
            ),
        )


def _figures_of_updates(
    stats: Sequence[Mapping[str, float]], mismatch: Mapping[str, float], samples: Sequence[TrainingSample]
) -> dict[str, Any]:
    """Means over a step's updates, maxima of what is one.

    `mismatch_*` compares sampler and learner before the first: over all rows, or those of the first minibatch.
    """
    if not stats:  # nothing to learn from, as when all rollouts of a step are worth the same
        return {"tokens": 0}
    mean = {name: sum(s[name] for s in stats) / len(stats) for name in stats[0]}
    mean.pop("tokens")
    worst = {name: max(s[name] for s in stats) for name in ("old_max", "ratio_deviation")}
    return {
        **mean,
        **worst,
        **(mismatch or {f"mismatch_{name}": stats[0][f"old_{name}"] for name in ("kl", "p99", "max")}),
        "tokens": sum(len(sample.completion_ids) for sample in samples),
    }


def _units(samples: Sequence[TrainingSample]) -> list[list[int]]:
    """Indices of the rows that go into the same optimizer step: those of a unit, or each alone."""
    found: dict[str | int, list[int]] = {}
    for i, sample in enumerate(samples):
        found.setdefault(i if sample.unit is None else sample.unit, []).append(i)
    return list(found.values())


def _place(sample: TrainingSample) -> tuple[str, int, str, int]:
    return sample.task, sample.rollout, sample.role, sample.chunk


def _is_flat(group: TrajectoryGroup) -> bool:
    """Whether all rollouts earned the same at every turn: then there is nothing to choose from."""
    return len({trajectory.reward.turns for trajectory in group.trajectories if trajectory.reward}) == 1


def _readable(step: int, trajectory: Trajectory) -> Mapping[str, Any]:
    reward = trajectory.reward
    return {
        "step": step,
        "task": trajectory.task.id,
        "rollout": trajectory.rollout,
        "role": trajectory.role,
        "reward": reward.total if reward else None,
        "components": {name: list(values) for name, values in reward.components.items()} if reward else {},
        "turns": [
            {"chunk": turn.chunk, "text": turn.completion.text, "results": [result.code for result in turn.results]}
            for turn in trajectory.turns
        ],
        "memory": [entry.content for entry in trajectory.states[-1].list()],
    }
