"""An evaluation from its configuration: what `memalpha eval` runs on tasks with questions."""

from __future__ import annotations

import sys
from collections.abc import Callable

from memalpha.config import EvalConfig, RewardConfig
from memalpha.errors import ConfigError
from memalpha.policy.base import in_own_style, load_policy
from memalpha.qa.evaluator import Report, evaluate, result_folder
from memalpha.qa.reader import load_reader
from memalpha.qa.reward import RewardModel
from memalpha.tasks.load import load_tasks


def run_evaluation(
    config: EvalConfig,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Report:
    """Evaluate `config.system` on the synthetic world or on a task file; saved under `config.out` where that is set.

    Writer and reader are prompted in the style their policy was trained on unless the configuration names one. What
    must be known about the reward goes to `say`, a line at a time (default: to stderr). Raises `ConfigError` where the
    benchmark needs a file and has none.
    """
    if config.out is not None:
        result_folder(config.out)
    if config.benchmark == "synthetic":
        tasks = load_tasks("synthetic", config.limit, world=config.world, seed=config.seed)
    elif config.data is None:
        raise ConfigError("data: name the task file (JSON Lines), for example data=mine.jsonl")
    else:
        tasks = load_tasks(config.data, config.limit)
    policy = load_policy(config.system)
    settings, answering = config.reader, policy
    if settings.kind == "policy":
        answering = load_policy(settings.policy) if settings.policy else policy
        settings = in_own_style(settings, answering).model_copy(update={"policy": None})
    reader, agent = load_reader(settings, answering), in_own_style(config.agent, policy)
    for note in RewardModel(RewardConfig(), policy.count_tokens).notes(tasks):
        (say or _to_stderr)(note)
    report = evaluate(policy, tasks, reader, config=agent, seed=config.seed, progress=progress)
    if config.out is not None:
        report.save(config.out)
    return report


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)
