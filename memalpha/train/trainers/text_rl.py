"""Reinforcement learning on prompts: rewards score the replies; there is no memory and no reader.

The weights evaluated as "after" are those with the best accuracy on the validation tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from memalpha.config import TextConfig
from memalpha.config.common import import_object
from memalpha.environments.engine import RolloutEngine, is_single_turn
from memalpha.errors import ConfigError, DataError
from memalpha.qa.evaluate import Evaluator
from memalpha.qa.report import Record
from memalpha.rewards.evaluate import TextScorer, check_rewards, text_summary
from memalpha.train.algorithms import build_algorithm
from memalpha.train.learner.distributed import World
from memalpha.train.rollouts.ahead import make_source
from memalpha.train.rollouts.epochs import Curriculum
from memalpha.train.rollouts.reflection import FeedbackFunction, TextReflection
from memalpha.train.rollouts.text_tasks import PythonInputs, TextTaskSource, build_environment
from memalpha.train.rollouts.weight_sync import connect_sampler, make_sampler
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.evaluations import TaskEvaluations
from memalpha.train.trainers.progress import Display
from memalpha.train.trainers.rl import ReinforcementStep, build_algorithm_engine
from memalpha.train.trainers.start import load_start, settle_defaults
from memalpha.train.trainers.trainer import Trainer
from memalpha.types import TextTask, Trajectory


def text_trainer(config: TextConfig, directory: RunDirectory, inputs: PythonInputs | None = None) -> Trainer:
    """Compose a run that reinforces replies to prompts, or play in an environment of the user's own.

    Args:
        config: Settings of the run.
        directory: Run directory.
        inputs: Python objects that the settings cannot hold.
    """
    inputs, world = inputs or PythonInputs(), directory.world
    source = TextTaskSource(config, inputs.tasks, inputs.eval_data)
    environment = build_environment(config, inputs)
    check_rewards(source.known_tasks, environment)
    scorer = TextScorer(environment)
    feedback = _feedback_function(config, inputs, scorer)
    start = load_start(config)
    policy, display = start.policy, Display(quiet=not world.is_main)
    config = settle_defaults(config, start, display)
    for note in source.notes:
        display.log(note)
    sampler = make_sampler(policy, config)
    rollouts, evaluated = (
        RolloutEngine[TextTask](
            sampler,
            environment,
            system_prompt=config.system_prompt,
            max_new_tokens=config.sampling.max_new_tokens,
            thinking_tokens=config.sampling.thinking_tokens,
            chat_template_kwargs=config.sampling.chat_template_kwargs,
            max_turns=config.max_turns,
            retry_prompt=None if config.erl is None else config.erl.retry_prompt,
        )
        for _ in range(2)
    )
    reflection = config.erl and TextReflection(scorer, config.erl, policy.count_tokens, feedback)
    worker = RolloutWorker(rollouts, scorer, config, world, reflection)
    algorithm = build_algorithm(config)
    advice, limit = algorithm.advice_tokens, config.sampling.max_new_tokens
    room = (policy.positions or 0) - limit - config.sampling.thinking_tokens - advice
    for task in source.known_tasks if policy.positions is not None else ():
        length = len(policy.render_request(rollouts.first_request(task)))
        if length > room:
            raise DataError(
                f"data: the prompt of task {task.id!r} has {length} tokens, policy {policy.name!r} has room for "
                f"{max(room, 0)} ({policy.positions} less max_new_tokens={limit}"
                + (f" and {advice} of advice)" if advice else ")")
            )
    tasks = source
    if config.curriculum is not None:
        tasks = Curriculum(config.curriculum, source.tasks_of_level, config.tasks_per_step, config.seed)
    engine = build_algorithm_engine(policy, config, algorithm, world)
    training_step = ReinforcementStep(
        config,
        directory,
        tasks=tasks,
        worker=worker,
        algorithm=algorithm,
        engine=engine,
        attempt_metrics=partial(_attempt_metrics, rollouts, config, world),
        task_fields=lambda task: {"prompt": task.text},
        component_prefix="rewards/",
        source=make_source(config, tasks, worker, sampler),
        sampler_metrics=connect_sampler(sampler, engine, config, rollouts, source.batch, directory.path),
    )
    evaluations = TaskEvaluations(
        Evaluator(evaluated, scorer, world),
        source.validation,
        source.held_out,
        directory,
        display,
        measures=("accuracy", "reward"),
        score="accuracy" if scorer.can_succeed else "reward",
        stop_below=config.evaluation.stop_below,
    )
    directory.claim(config, source.fingerprint)
    return Trainer(config, directory, start, engine, training_step, evaluations, display)


def _feedback_function(config: TextConfig, inputs: PythonInputs, scorer: TextScorer) -> FeedbackFunction | None:
    """Return the user's feedback function, if any; check that reflection is possible if the algorithm reflects."""
    path = config.erl.feedback_func if config.erl is not None else None
    imported = None if path is None else import_object(path, "feedback_func")
    feedback = inputs.feedback_func or imported
    if feedback is not None and not callable(feedback):
        raise ConfigError(f"feedback_func: {feedback!r} is not callable")
    if feedback is not None and config.algorithm != "erl":
        raise ConfigError(f"feedback_func: has no effect with algorithm={config.algorithm}; leave it out")
    if config.algorithm == "erl" and not scorer.can_succeed:
        raise ConfigError(
            "rewards: algorithm=erl looks again at replies that are no success, and none of these parts says what "
            "is one (a reward model has no maximum): add a part that does, with weight 0 if it is not to count"
        )
    return feedback


def _attempt_metrics(
    rollouts: RolloutEngine[TextTask],
    config: TextConfig,
    world: World,
    records: Sequence[Record],
    attempts: Sequence[Trajectory[TextTask]],
    tasks: int,
) -> dict[str, Any]:
    """Return reward, accuracy, lengths, rollouts without a reward and those that outgrew the context.

    Args:
        rollouts: Engine of the training rollouts, and of nothing else; its count of outgrown ones is reset.
        config: Settings of the run.
        world: Processes that share the rollouts.
        records: Records of the attempts.
        attempts: Attempts with a reward.
        tasks: Number of tasks that were drawn.
    """
    summary = text_summary(records, attempts)
    metrics = {name: summary[name] for name in ("reward", "accuracy", "reply_tokens", "turns")}
    metrics["unscored"] = tasks * config.sampling.group_size - len(attempts)
    if not is_single_turn(rollouts.environment):
        metrics["outgrown"] = sum(world.gather([rollouts.outgrown]))
        rollouts.outgrown = 0
    return metrics
