"""`train`: evaluate, then steps of (collect, annotate, update), then evaluate again; resumable at any time.

Step n samples with the weights of `checkpoints/step-n` and its update makes those of `step-(n+1)`. Everything a step
does is a function of (config, weights, optimizer, step), so a run that was killed and started again on the same
directory ends with the same weights bit for bit. The weights evaluated "after" are those with the best accuracy on the
validation tasks (the last ones without validation tasks).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch

from memalpha.agent.builder import Builder
from memalpha.config import ReaderConfig, TrainConfig, build_config, load_config, merge
from memalpha.errors import CheckpointError
from memalpha.policy.base import Policy, in_own_style, load_policy
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.policy.transformers_ import TransformersPolicy
from memalpha.qa.evaluator import Record, Report, evaluate, summarize
from memalpha.qa.reader import load_reader
from memalpha.qa.reward import RewardModel
from memalpha.qa.walk import choose_example, walk, write_example
from memalpha.store.embedding import load_embedder
from memalpha.train.algorithms.grpo import GRPO
from memalpha.train.checkpoint import (
    append_lines,
    check_out,
    checkpoint_path,
    cut_lines,
    load_checkpoint,
    load_weights,
    locked,
    point_best,
    prune_checkpoints,
    read_json,
    save_checkpoint,
    saved_steps,
    write_json,
)
from memalpha.train.collect import TaskSource, collect
from memalpha.train.learner import Learner, learning_rate
from memalpha.train.progress import Display
from memalpha.train.rundir import check_device, check_settings, finished, trainable_policy, undivided, write_settings
from memalpha.train.samples import TrainingSample
from memalpha.types import Trajectory, TrajectoryGroup

ALGORITHMS = {"grpo": GRPO}
"""`TrainConfig.algorithm` by name."""

BASELINES = {"append_only": "append-only", "oracle": "oracle"}


def train(config: TrainConfig | str | Path, **overrides: Any) -> dict[str, Any]:
    """Run or resume a training run and return its summary (also `summary.json` in the run directory).

    `config` is a configuration, a shipped name or a YAML path; `overrides` are its keys (nested ones as mappings). A
    Ctrl-C saves a checkpoint that the same call resumes, and comes out as `KeyboardInterrupt`.
    """
    if isinstance(config, TrainConfig):
        given = config.model_dump(exclude_unset=True)  # what was not set stays so, as if read from a file
        settings = build_config(TrainConfig, merge(given, overrides), "overrides")
    else:
        settings = load_config(TrainConfig, config, overrides)
    check_out(settings.out)
    check_device(settings.device)
    run = _Run(settings)
    with locked(run.out):
        return run.go()


class _Run:
    """One process's work on a run directory."""

    def __init__(self, config: TrainConfig) -> None:
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        self.config = config
        self.out = config.out
        self.began = time.monotonic()
        self.display = Display()
        self.source = TaskSource(config)
        self.policy = trainable_policy(config)
        self.config = config = _in_own_styles(config, self.policy)
        if config.sample_dtype is not None:
            self.policy.sample_in(config.sample_dtype)
        self.embedder = load_embedder(config.agent.embedder)
        readers = [
            reader.model_copy(update={"conflicts": reader.conflicts or "refuse"})
            for reader in (config.reader, config.training_reader or config.reader)
        ]
        frozen = any(reader.kind == "policy" and reader.policy is None for reader in readers)
        start = trainable_policy(config) if frozen else None
        self.reader, self.training_reader = (load_reader(reader, start) for reader in readers)
        self.rewards = RewardModel(config.reward, self.policy.count_tokens)
        self.builder = Builder(self.policy, config.agent, self.embedder)
        self.source.check(self.policy, config.agent, self.builder.schema)
        self.learner = Learner(self.policy.model, config)
        self.algorithm = ALGORITHMS[config.algorithm](config)
        self.step = 0
        self.consistent = True
        self.minutes_before = self.learning_before = self.learning = 0.0
        self.best: dict[str, Any] | None = None
        self.final: dict[str, Any] | None = None

    # ------------------------------------------------------------------------------------------------- the whole run

    def go(self) -> dict[str, Any]:
        """Resume if there is something to resume, train to the end, evaluate."""
        config = self.config
        stop = config.schedule_steps if config.max_steps is None else config.max_steps
        check_settings(self.out, config)
        summary = finished(self.out, stop)
        if summary is not None:
            self.display.say(f"{self.out}: this run is finished; its summary is in {self.out / 'summary.json'}")
            return summary
        try:
            if saved_steps(self.out):
                self._resume(stop)
            else:
                self._start()
            self._steps(stop)
        except KeyboardInterrupt:
            self._interrupted()
            raise
        self._save()
        return self._finish()

    def _start(self) -> None:
        for name in ("metrics.jsonl", "turns.jsonl", "trajectories.jsonl"):
            cut_lines(self.out / name, 0)
        write_settings(self.out, self.config)
        for note in self.rewards.notes([*self.source.batch(0), *self.source.held_out]):
            self.display.say(note)
        before = self._evaluate("before", self.policy)
        example = choose_example(self.source.held_out)
        task, group = self.source.held_out[example], before.groups[example]
        write_example(self.out / "eval" / "example.json", task, {"before": (group.trajectories[0], before.records)})
        if all(task.gold_operations for task in self.source.held_out):
            for name, kind in BASELINES.items():
                self._evaluate(name, ScriptedPolicy(kind))
        else:
            self.display.say("no baselines: not every held-out task carries gold operations")
        self._validate({})
        self._save()

    def _resume(self, stop: int) -> None:
        step = saved_steps(self.out)[-1]
        if step > stop:
            raise CheckpointError(f"{self.out} is already at step {step}, beyond max_steps={stop}")
        self.consistent = False
        state = load_checkpoint(checkpoint_path(self.out, step), self.policy, self.learner)
        self.minutes_before, self.learning_before = state["minutes"], state["learning_minutes"]
        self.best = state["best"]
        self.algorithm.state = state["algorithm"]
        for name in ("metrics.jsonl", "turns.jsonl", "trajectories.jsonl"):
            cut_lines(self.out / name, step)
        write_settings(self.out, self.config)
        if self.best:  # the link may name the end of a shorter run
            point_best(self.out, self.best["step"])
        self.step, self.consistent = step, True
        self.display.say(f"resuming {self.out} at step {self.step}")

    def _steps(self, stop: int) -> None:
        config, first, started = self.config, self.step, time.monotonic()
        with self.display.steps(self.step, stop) as show:
            while self.step < stop:
                begun = time.monotonic()
                tasks = self.source.batch(self.step * config.tasks_per_step)
                groups, records = collect(self.builder, tasks, self.training_reader, self.rewards, config, self.step)
                samples = self.algorithm.annotate(groups, self.learner.forward)
                sampled = time.monotonic()
                with undivided(self.display.say):
                    self.consistent = False
                    line = {"step": self.step, **self._figures(groups, records), **self._update(samples)}
                    line |= {"sample_seconds": sampled - begun, "train_seconds": time.monotonic() - sampled}
                    self._write_trajectories(groups, samples)
                    self.step += 1
                    if self.step % config.validate_every == 0 or self.step == stop:
                        self._validate(line)
                    append_lines(self.out / "metrics.jsonl", [line])
                    self.learning = (time.monotonic() - started) / 60
                    if config.keep_tokens or self.step % config.save_every == 0 or self._is_best():
                        self._save()
                    self.consistent = True
                show(self.step, line, self.learning / (self.step - first) * (stop - self.step))

    def _finish(self) -> dict[str, Any]:
        if self.final is None or self.final["step"] != self.step:
            self._validate({})
        chosen = self.step
        if self.best and self.final:
            chosen = _better(self.best, self.final)["step"]
            point_best(self.out, chosen)
        load_weights(checkpoint_path(self.out, chosen), self.policy)
        after = self._evaluate("after", self.policy)
        path = self.out / "eval" / "example.json"
        example = read_json(path)
        place = [task.id for task in self.source.held_out].index(example["task"])
        example["systems"]["after"] = walk(after.groups[place].trajectories[0], after.records)
        write_json(path, example)
        systems = {
            name: read_json(self.out / "eval" / f"{name}.json")
            for name in ("before", "after", *BASELINES)
            if (self.out / "eval" / f"{name}.json").exists()
        }
        summary = {
            "seed": self.config.seed,
            "steps": self.step,
            "best_step": chosen,
            "tasks": len(self.source.held_out),
            "questions": len(after.records),
            "policy_parameters": self.policy.parameters,
            "minutes": self._minutes(),
            "learning_minutes": self.learning_before + self.learning,
            "before": systems.pop("before"),
            "after": systems.pop("after"),
            "baselines": systems,
        }
        write_json(self.out / "summary.json", summary)
        return summary

    # --------------------------------------------------------------------------------------------------- one step

    def _update(self, samples: Sequence[TrainingSample]) -> dict[str, Any]:
        """All optimizer steps on one step's samples; means over them, but the first one's ratio deviation."""
        config = self.config
        rate = learning_rate(self.step, config)
        stats: list[dict[str, float]] = []
        for iteration in range(config.num_iterations):
            order = list(range(len(samples)))
            Random(f"{config.seed}|{self.step}|{iteration}").shuffle(order)
            for part in range(config.minibatches):
                chosen = order[part :: config.minibatches]
                if chosen:
                    stats.append(self.learner.update([samples[i] for i in chosen], rate))
        mean = {name: sum(s[name] for s in stats) / len(stats) for name in stats[0]}
        mean.pop("tokens")
        return {
            **mean,
            "ratio_deviation": max(s["ratio_deviation"] for s in stats),
            "sampler_mismatch": stats[0]["ratio_deviation"],
            "tokens": sum(len(sample.completion_ids) for sample in samples),
        }

    def _figures(self, groups: Sequence[TrajectoryGroup], records: Sequence[Record]) -> dict[str, Any]:
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        summary = summarize(records, trajectories, self.policy.count_tokens)
        keep = ("reward", "accuracy", "valid_calls", "duplicates", "update_share", "delete_share", "update_hit")
        line = {name: summary[name] for name in (*keep, "delete_hit", "memory_tokens")}
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        line["calls"] = sum(len(turn.calls) for turn in turns) / len(trajectories)
        line["truncated"] = sum(turn.completion.stop_reason == "length" for turn in turns) / len(turns)
        rewards = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
        for name in rewards[0].components:
            values = [value for reward in rewards for value in reward.components[name]]
            line[name] = sum(values) / len(values)
        return line

    def _write_trajectories(self, groups: Sequence[TrajectoryGroup], samples: Sequence[TrainingSample]) -> None:
        """trajectories.jsonl: the first task's rollouts, readable. turns.jsonl: every turn's tokens, if kept."""
        shown = [_readable(self.step, trajectory) for trajectory in groups[0].trajectories]
        append_lines(self.out / "trajectories.jsonl", shown)
        if not self.config.keep_tokens:
            return
        rewards = [
            value
            for group in groups
            for trajectory in group.trajectories
            if trajectory.reward
            for value in trajectory.reward.turns
        ]
        append_lines(
            self.out / "turns.jsonl",
            (
                {
                    "step": self.step,
                    "task": sample.task,
                    "rollout": sample.rollout,
                    "chunk": sample.chunk,
                    "prompt_ids": list(sample.prompt_ids),
                    "completion_ids": list(sample.completion_ids),
                    "logprobs": sample.logprobs.tolist(),
                    "temperature": sample.temperature,
                    "advantage": float(sample.advantages[0]),
                    "reward": reward,
                }
                for sample, reward in zip(samples, rewards, strict=True)
            ),
        )

    # ----------------------------------------------------------------------------------------- evaluation, checkpoints

    def _report(self, name: str, policy: Policy, tasks: Sequence[Any], progress: Any = None) -> Report:
        return evaluate(
            policy,
            tasks,
            self.reader,
            config=self.config.agent,
            reward=self.config.reward,
            count_tokens=self.policy.count_tokens,
            embedder=self.embedder,
            name=name,
            progress=progress,
        )

    def _evaluate(self, name: str, policy: Policy) -> Report:
        """Greedy, on the held-out tasks; saved as `eval/<name>.json` and `.jsonl`."""
        with self.display.work(f"evaluating {name} on {len(self.source.held_out)} held-out tasks") as progress:
            report = self._report(name, policy, self.source.held_out, progress)
        report.save(self.out)
        self.display.say(f"{name}: accuracy {report.summary['accuracy']:.3f}")
        return report

    def _validate(self, line: dict[str, Any]) -> None:
        """Accuracy on the validation tasks, into `line`.

        `best` is the best of the scheduled steps (a tie goes to the later one), `final` the last one. Off schedule only
        the end of a run is validated: it may be chosen there, and is forgotten when the run goes on.
        """
        if not self.source.validation:
            return
        summary = self._report("validation", self.policy, self.source.validation).summary
        accuracy = summary["accuracy"]
        line |= {"validation_accuracy": accuracy, "validation_se": summary["se"]}
        if accuracy is not None:
            self.final = {"step": self.step, "accuracy": accuracy}
            if self.step % self.config.validate_every == 0:
                self.best = _better(self.best, self.final)

    def _is_best(self) -> bool:
        return self.best is not None and self.best["step"] == self.step

    def _save(self) -> None:
        state = {
            "position": self.step * self.config.tasks_per_step,
            "seed": self.config.seed,
            "algorithm": self.algorithm.state,
            "best": self.best,
            "minutes": self._minutes(),
            "learning_minutes": self.learning_before + self.learning,
        }
        save_checkpoint(self.out, self.step, self.policy, self.learner, state)
        if self._is_best():
            point_best(self.out, self.step)
        if not self.config.keep_tokens:
            prune_checkpoints(self.out, self.config.keep_checkpoints, [self.best["step"]] if self.best else [])

    def _minutes(self) -> float:
        return self.minutes_before + (time.monotonic() - self.began) / 60

    # --------------------------------------------------------------------------------------------------- interruption

    def _interrupted(self) -> None:
        if self.consistent and saved_steps(self.out):
            self._save()
        steps = saved_steps(self.out)
        if steps:
            self.display.say(f"stopped: {self.out} holds a checkpoint of step {steps[-1]}; the same command resumes it")
        else:
            self.display.say(f"stopped before training began: the same command starts {self.out} again")


def _better(one: dict[str, Any] | None, two: dict[str, Any]) -> dict[str, Any]:
    """The validation with the higher accuracy; `two`, the later one, where they are equal."""
    return two if one is None or two["accuracy"] >= one["accuracy"] else one


def _in_own_styles(config: TrainConfig, policy: TransformersPolicy) -> TrainConfig:
    """Writer and readers prompted as the run's policy was trained; a reader with another policy as that one was."""
    found: dict[str, Any] = {"agent": in_own_style(config.agent, policy)}
    for name in ("reader", "training_reader"):
        reader: ReaderConfig | None = getattr(config, name)
        if reader is not None and reader.kind == "policy" and "prompt" not in reader.model_fields_set:
            found[name] = in_own_style(reader, load_policy(reader.policy) if reader.policy else policy)
    return config.model_copy(update=found)


def _readable(step: int, trajectory: Trajectory) -> Mapping[str, Any]:
    reward = trajectory.reward
    return {
        "step": step,
        "task": trajectory.task.id,
        "rollout": trajectory.rollout,
        "reward": reward.total if reward else None,
        "components": {name: list(values) for name, values in reward.components.items()} if reward else {},
        "turns": [
            {"chunk": turn.chunk, "text": turn.completion.text, "results": [result.code for result in turn.results]}
            for turn in trajectory.turns
        ],
        "memory": [entry.content for entry in trajectory.states[-1].list()],
    }
