"""Reinforcement learning on prompts: rewards score the replies; there is no memory and no reader.

The weights evaluated as "after" are those with the best accuracy on the validation tasks.

Feedback for reflections comes from the user's function `feedback_func(prompts, completions, **columns) -> list[str]`,
as in erl-trainer. Without one it comes from the rewards: it names the parts that a reply misses, and never the expected
answer unless `tell_answer` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from memalpha.arguments import name_of
from memalpha.config import ERLSettings, TextConfig
from memalpha.config.common import import_object
from memalpha.environments.engine import is_single_turn, reflection_messages
from memalpha.errors import ConfigError, DataError, RewardError
from memalpha.qa.evaluate import Evaluator
from memalpha.qa.report import Record
from memalpha.rewards.base import call_function
from memalpha.rewards.environments import TextGeneration, columns_of, prompt_of
from memalpha.rewards.evaluate import TextScorer, check_rewards, text_summary
from memalpha.store.embedding import Embedder, load_embedder
from memalpha.train.algorithms import build_algorithm
from memalpha.train.rollouts.epochs import Curriculum
from memalpha.train.rollouts.reflection import Reflecting, ReflectionCandidate, truncate_text
from memalpha.train.rollouts.text_tasks import TextTaskSource, build_environment, text_engine
from memalpha.train.rollouts.weight_sync import make_sampler
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.evaluations import TaskEvaluations
from memalpha.train.trainers.progress import Display
from memalpha.train.trainers.rl import ReinforcementStep, build_algorithm_engine
from memalpha.train.trainers.trainer import Trainer, load_with_defaults
from memalpha.types import SampleRequest, TextTask, Trajectory

FeedbackFunction = Callable[..., Any]


def text_trainer(
    config: TextConfig,
    directory: RunDirectory,
    *,
    rewards: Any = None,
    tasks: Sequence[TextTask] | None = None,
    eval_data: Sequence[TextTask] | None = None,
    environment: Any = None,
    feedback_func: FeedbackFunction | None = None,
) -> Trainer:
    """Compose a run that reinforces replies to prompts, or play in an environment of the user's own.

    Args:
        config: Settings of the run.
        directory: Run directory.
        rewards: Reward function, or a list of functions and reward parts.
        tasks: Tasks for training and, without `eval_data`, for evaluation.
        eval_data: Held-out tasks.
        environment: Environment class.
        feedback_func: Function that gives feedback on replies.
    """
    world = directory.world
    if tasks is not None and directory.saved_steps():  # earlier versions recorded what has no effect beside tasks
        columns = {} if config.evaluation.data is None else config.dataset.columns
        config = config.replace(limit=None, columns=columns)
    source = TextTaskSource(config, tasks, eval_data)
    environment = build_environment(config, rewards, environment)
    check_rewards(source.known_tasks, environment)
    scorer = TextScorer(environment)
    feedback = _feedback_function(config, feedback_func, scorer)
    display = Display(quiet=not world.is_main)
    config, start = load_with_defaults(config, display)
    policy = start.policy
    for note in source.notes:
        display.log(note)
    sampler = make_sampler(policy, config)
    rollouts, evaluated = (text_engine(config, sampler, environment) for _ in range(2))
    reflection = TextReflection(scorer, config.erl or ERLSettings(), policy.count_tokens, feedback)
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
    training_tasks = source if config.curriculum is None else Curriculum(config.curriculum, source)
    engine = build_algorithm_engine(policy, config, algorithm, world)
    training_step = TextStep(directory, tasks=training_tasks, worker=worker, algorithm=algorithm, engine=engine)
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
    names = [name_of(environment)]
    code = {"environment": environment, "feedback_func": feedback, "algorithm": algorithm}
    if isinstance(environment, TextGeneration):
        names = [f"{part.name} * {part.weight:g}" for part in environment.rewards]
        code |= {part.name: part.function for part in environment.rewards}
    directory.claim(config, source.fingerprint, names, code)
    return Trainer(config, directory, start, engine, training_step, evaluations, display)


class TextStep(ReinforcementStep):
    """Step of a policy that replies to prompts."""

    component_prefix = "rewards/"

    def attempt_metrics(
        self, records: Sequence[Record], attempts: Sequence[Trajectory[TextTask]], tasks: int
    ) -> dict[str, Any]:
        """Return reward, accuracy, lengths, rollouts without a reward and those that outgrew the context."""
        summary, engine = text_summary(records, attempts), self.worker.engine
        metrics = {name: summary[name] for name in ("reward", "accuracy", "reply_tokens", "turns")}
        metrics["unscored"] = tasks * self.config.sampling.group_size - len(attempts)
        if not is_single_turn(engine.environment):
            metrics["outgrown"] = sum(self.worker.world.gather([engine.outgrown]))
            engine.outgrown = 0  # evaluations have an engine of their own
        return metrics

    def task_fields(self, task: TextTask) -> dict[str, Any]:
        """Return the prompt."""
        return {"prompt": task.text}


@dataclass(eq=False)
class TextReflection(Reflecting[TextTask]):
    """Feedback and prompts for second attempts at text tasks (`worker.Reflecting`).

    Args:
        scorer: Scorer of the attempts; its environment says what their parts are worth.
        settings: Settings of the algorithm.
        count_tokens: Token counter of the policy.
        feedback_func: The user's feedback function; None takes feedback from the rewards.
    """

    scorer: TextScorer
    settings: ERLSettings
    count_tokens: Callable[[str], int]
    feedback_func: FeedbackFunction | None = None

    @cached_property
    def embedder(self) -> Embedder:
        """Embedder for advice that is recalled by similarity; a text run embeds nothing else."""
        return load_embedder("static")

    def feedback(
        self, attempts: Sequence[Trajectory[TextTask]], records: Sequence[Sequence[Record]], budget: int
    ) -> list[str]:
        """Describe what went wrong in each attempt, in at most `budget` tokens.

        Args:
            attempts: Rollouts to reflect on.
            records: Scored answers of each attempt; unused, since text tasks have no questions.
            budget: Tokens of one description, at most.
        """
        if self.feedback_func is None:  # what a reply misses, part by part
            environment, texts = self.scorer.environment, []
            parts = environment.rewards if isinstance(environment, TextGeneration) else ()
            maxima = {part.name: part.maximum for part in parts}
            for attempt in attempts:
                assert attempt.reward is not None
                sentences, answer = [], attempt.task.columns.get("answer")
                for name, (value, *_) in attempt.reward.components.items():
                    maximum = maxima.get(name, 1.0)
                    if value <= 0 < maximum:
                        sentences.append(f"{name}: wrong.")
                    elif value < maximum:
                        sentences.append(f"{name}: {value:g} of {maximum:g}.")
                if self.settings.tell_answer and sentences and answer is not None:
                    sentences.append(f"The answer is {answer}.")
                texts.append(" ".join(sentences))
        else:
            tasks = [attempt.task for attempt in attempts]
            replies = [attempt.turns[-1].completion.text for attempt in attempts]
            prompts = [prompt_of(task) for task in tasks]
            result = call_function(self.feedback_func, "feedback_func", prompts, replies, columns_of(tasks))
            texts = list(result) if isinstance(result, list | tuple) else [result]
            if len(texts) != len(attempts) or not all(isinstance(text, str) for text in texts):
                gave = f"feedback_func gave {texts!r:.80} for {len(attempts)} replies"
                raise RewardError(f"{gave}: a text each is needed")
        return [truncate_text(text, self.count_tokens, budget) for text in texts]

    def prompt(self, candidate: ReflectionCandidate, earlier: Sequence[str]) -> tuple[Mapping[str, str], ...]:
        """Return the prompt of a reflection: the last prompt and reply, the reward, feedback and earlier advice."""
        attempt = candidate.attempt
        assert attempt.reward is not None
        reply, total = attempt.turns[-1].completion.text, attempt.reward.total
        template = self.settings.reflection_prompt
        return reflection_messages(attempt.states[-1], reply, total, candidate.feedback, earlier, template)

    def without_advice(self, trajectory: Trajectory[TextTask]) -> list[SampleRequest]:
        return [SampleRequest(messages) for messages in trajectory.states]


def _feedback_function(
    config: TextConfig, feedback: FeedbackFunction | None, scorer: TextScorer
) -> FeedbackFunction | None:
    """Return the user's feedback function, if any; check that reflection is possible if the algorithm reflects."""
    path = config.erl.feedback_func if config.erl is not None else None
    if feedback is None and path is not None:
        feedback = import_object(path, "feedback_func")
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
