"""An evaluation from its configuration, or as a training run made its own: what `memalpha eval` runs on questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID

from memalpha.config import (
    EvalConfig,
    PreferenceConfig,
    RewardModelConfig,
    TextConfig,
    build_config,
    load_config,
    merge,
    read_config,
    shipped_configs,
    training_config,
)
from memalpha.errors import ConfigError
from memalpha.policy.base import in_own_style, load_policy
from memalpha.qa.protocol import run_systems
from memalpha.qa.reader import Reader, load_reader
from memalpha.qa.report import Report, result_folder
from memalpha.qa.reporting.tables import check_folder, check_names, provenance, save_results
from memalpha.qa.scoring.gold import check_categories
from memalpha.qa.scoring.judge import Judge, load_judge
from memalpha.qa.systems.builtin import Source, Writer, load_source
from memalpha.store.embedding import load_embedder
from memalpha.store.schema import load_schema
from memalpha.tasks.catalog import MODULES, data_set
from memalpha.tasks.chunking import recut
from memalpha.tasks.load import load_tasks
from memalpha.tasks.splits import load_evaluation_tasks
from memalpha.types import Task

TRAINED = "trained"
"""Among the systems of a run directory's evaluation: the run's best checkpoint."""


def settings_of(name: str, overrides: Mapping[str, Any] | None = None) -> EvalConfig:
    """The evaluation that a name stands for: a training run's directory, a configuration (shipped, or a YAML file), or
    a data set with everything else as default. Raises `ConfigError` for anything else, with what there is."""
    if (Path(name) / "config.yaml").is_file():
        return settings_of_run(Path(name), overrides)
    if name in MODULES and not (name in shipped_configs() and "benchmark" in read_config(name)):
        return build_config(EvalConfig, merge({"benchmark": name}, overrides or {}), name)
    path = Path(name)
    if not path.is_file() and path.suffix not in (".yaml", ".yml") and name not in shipped_configs():
        raise ConfigError(
            f"no configuration {name!r}: give a YAML file, a run's directory, one of {', '.join(shipped_configs())}, "
            f"or a data set: {', '.join(MODULES)}"
        )
    return load_config(EvalConfig, name, overrides)


def settings_of_run(run: Path, overrides: Mapping[str, Any] | None = None) -> EvalConfig:
    """How a training run evaluated its writer: `checkpoints/best`, prompted, read and scored as in the run.

    On the run's `eval_data`; a run that held out a part of its own file needs `data`, a synthetic one is evaluated on
    other conversations of its held-out world, one on bAbI on the streams it held out. Among `systems`, "trained" is the
    best checkpoint, so that it can stand beside others. Raises `ConfigError` where RUN has no best checkpoint yet.
    """
    overrides = dict(overrides or {})
    trained = training_config(run / "config.yaml")
    if isinstance(trained, RewardModelConfig):
        raise ConfigError(f"{run} trained a reward model, which writes no memory: use it by reward.model.path={run}")
    if isinstance(trained, PreferenceConfig):
        raise ConfigError(
            f"{run} asked no questions: evaluate its checkpoints/best with systems=[{run}/checkpoints/best]"
        )
    if isinstance(trained, TextConfig):
        raise ConfigError(f"{run} trained replies to prompts, and keeps no memory: memalpha eval {run}")
    reader = trained.reader.model_copy(update={"conflicts": trained.reader.conflicts or "refuse"})
    if reader.kind == "policy" and reader.policy is None:
        reader = reader.model_copy(update={"policy": trained.policy})
    found: dict[str, Any] = {
        "systems": TRAINED,
        "agent": trained.agent.model_dump(),
        "reader": reader.model_dump(),
        "metric": None if trained.reward.metric in ("question", "cited") else trained.reward.metric,
        "judge": None if trained.reward.judge is None else trained.reward.judge.model_dump(),
        "device": trained.device,
        "dtype": trained.dtype,
    }
    if trained.eval_data is not None:
        found["data"] = trained.eval_data
    elif "data" not in overrides and trained.data == "synthetic":
        world = trained.eval_world or trained.world.model_copy(update={"split": "test"})
        found |= {"benchmark": "synthetic", "world": world.model_dump(), "limit": trained.eval_tasks}
    elif "data" not in overrides and trained.data == "babi":
        streams = trained.eval_babi or trained.babi
        found |= {"benchmark": "babi", "babi": streams.model_dump(), "limit": trained.eval_tasks}
    settings = build_config(EvalConfig, merge(found, overrides), str(run))
    if TRAINED not in settings.systems:
        return settings
    best = run / "checkpoints" / "best"
    if not best.is_dir():
        raise ConfigError(f"{run} has no checkpoints/best: validate in training, or name systems=[CHECKPOINT]")
    named = tuple(str(best) if name == TRAINED else name for name in settings.systems)
    return settings.model_copy(update={"systems": named})


def run_evaluation(config: EvalConfig, progress: Callable[[str, int, int], None] | None = None) -> list[Report]:
    """Evaluate `config.systems` on its benchmark; saved under `config.out` where that is set, each as it is done.

    Writers and reader are prompted in the style their policy was trained on unless the configuration names one.
    `progress(system, done, total)` counts what was read (default: a bar on stderr). Raises `ConfigError` where the
    benchmark is none or needs a file and has none, and where `out` holds other systems on other tasks.
    """
    if config.out is not None:
        check_names(config.systems)
    folder = None if config.out is None else result_folder(config.out)
    tasks = tasks_of(config)
    source = provenance(config, tasks)
    if folder is not None:
        check_folder(folder, config.systems, source)
    endpoint = config.endpoint.kept_in(config.out)
    sources = [
        load_source(name, device=config.device, dtype=config.dtype, endpoint=endpoint) for name in config.systems
    ]
    if any(isinstance(source, Writer) for source in sources):
        place = f"data: {config.data}" if config.benchmark == "tasks" else config.benchmark
        check_categories(tasks, load_schema(config.agent.memory_schema), place)
    reader = reader_of(config)
    done: list[Report] = []
    try:
        if progress is not None:
            return _run(config, sources, tasks, reader, progress, done)
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
            return _run(config, sources, tasks, reader, _shown_by(bars), done)
    finally:  # where a system, a judge or an endpoint failed, what is done stays
        if folder is not None and done:
            save_results(folder, done, source)


def _run(
    config: EvalConfig,
    sources: Sequence[Source],
    tasks: Sequence[Task],
    reader: Reader,
    progress: Callable[[str, int, int], None],
    done: list[Report],
) -> list[Report]:
    """The reports, each in `done` and saved as soon as it is there."""

    def finished(report: Report) -> None:
        done.append(report)
        if config.out is not None:
            report.save(config.out)

    return run_systems(
        sources,
        tasks,
        reader,
        budget=config.context_tokens,
        metric=config.metric,
        default_metric="exact" if config.benchmark == "tasks" else data_set(config.benchmark).metric,
        k=config.reader.k,
        embedder=load_embedder(config.agent.embedder),
        agent=config.agent,
        judge=_judge_of(config),
        progress=progress,
        finished=finished,
    )


def _judge_of(config: EvalConfig) -> Judge | None:
    if config.judge is None:
        return None
    endpoint = config.judge.endpoint.kept_in(config.out)
    return load_judge(config.judge.model_copy(update={"endpoint": endpoint}))


def _shown_by(bars: Progress) -> Callable[[str, int, int], None]:
    known: dict[str, TaskID] = {}

    def progress(name: str, done: int, total: int) -> None:
        if name not in known:
            known[name] = bars.add_task(name, total=total)
        bars.update(known[name], completed=done)

    return progress


def tasks_of(config: EvalConfig) -> list[Task]:
    """The tasks of a configuration: of its data set, under each seed, or of its task file; cut to `chunk_tokens`."""
    tasks = _named_tasks(config)
    return tasks if config.chunk_tokens is None else [recut(task, config.chunk_tokens) for task in tasks]


def _named_tasks(config: EvalConfig) -> list[Task]:
    if config.benchmark == "tasks":
        if config.data is None:
            raise ConfigError("data: name the task file (JSON Lines), for example data=mine.jsonl")
        return load_evaluation_tasks(config.data, config.limit)
    if config.benchmark not in MODULES:
        raise ConfigError(f"benchmark: no data set {config.benchmark!r}: give tasks or one of {', '.join(MODULES)}")
    options = dict(config.options)
    if config.benchmark == "synthetic":
        options["world"] = config.world
    if config.benchmark == "babi":
        options["streams_of"] = config.babi
    return [
        task
        for seed in config.seeds
        for task in load_tasks(
            config.benchmark, config.limit, data=config.data, variant=config.variant, seed=seed, **options
        )
    ]


def reader_of(config: EvalConfig) -> Reader:
    """The one reader of an evaluation, on the device and in the precision that it names."""
    settings = config.reader
    if settings.kind != "policy" or settings.policy is None:
        return load_reader(settings)
    endpoint = config.endpoint.kept_in(config.out)
    policy = load_policy(settings.policy, device=config.device, dtype=config.dtype, endpoint=endpoint)
    return load_reader(in_own_style(settings, policy).model_copy(update={"policy": None}), policy)
