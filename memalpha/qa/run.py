"""An evaluation from its configuration: what `memalpha eval` runs on tasks with questions."""

from __future__ import annotations

from collections.abc import Callable

from memalpha.config import EvalConfig
from memalpha.errors import ConfigError
from memalpha.policy.base import load_policy
from memalpha.qa.evaluator import Report, evaluate
from memalpha.qa.reader import load_reader
from memalpha.tasks.load import load_tasks


def run_evaluation(config: EvalConfig, progress: Callable[[int, int], None] | None = None) -> Report:
    """Evaluate `config.system` on the synthetic world or on a task file; saved under `config.out` where that is set.

    Writer and reader are prompted in the style their policy was trained on unless the configuration names one. Raises
    `ConfigError` where the benchmark needs a file and has none.
    """
    if config.benchmark == "synthetic":
        tasks = load_tasks("synthetic", config.limit, world=config.world, seed=config.seed)
    elif config.data is None:
        raise ConfigError("data: name the task file (JSON Lines), for example data=mine.jsonl")
    else:
        tasks = load_tasks(config.data, config.limit)
    policy = load_policy(config.system)
    agent = config.agent
    if "prompt" not in agent.model_fields_set:
        agent = agent.model_copy(update={"prompt": getattr(policy, "prompt", "full")})
    settings, answering = config.reader, policy
    if settings.kind == "policy":
        answering = load_policy(settings.policy) if settings.policy else policy
        if "prompt" not in settings.model_fields_set:
            settings = settings.model_copy(update={"prompt": getattr(answering, "prompt", "full")})
        settings = settings.model_copy(update={"policy": None})
    reader = load_reader(settings, answering)
    report = evaluate(policy, tasks, reader, config=agent, seed=config.seed, progress=progress)
    if config.out is not None:
        report.save(config.out)
    return report
