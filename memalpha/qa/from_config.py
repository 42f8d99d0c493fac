"""Run an evaluation from its configuration, or with the settings of a training run (`memalpha eval`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import Any

from memalpha.agent.reader import Reader
from memalpha.arguments import check_path
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
from memalpha.config.groups import LoadingConfig
from memalpha.config.sampling import EvalSamplingConfig
from memalpha.config.training import drop_unused_settings
from memalpha.errors import ConfigError, DataError, did_you_mean
from memalpha.policy.base import with_prompt_style
from memalpha.policy.load import load_policy, resolve_checkpoint
from memalpha.policy.reply_cache import AnswerCache, keep_replies
from memalpha.qa.evaluate import run_systems
from memalpha.qa.memory_reward import check_categories
from memalpha.qa.progress import show_progress
from memalpha.qa.reader import load_reader, with_default_reader
from memalpha.qa.report import Report, check_folder, check_names, provenance, save_results
from memalpha.qa.scoring.judge import load_judge
from memalpha.qa.systems import EvaluatedSystem, is_writer, load_system
from memalpha.store.schema import load_schema
from memalpha.tasks.catalog import MODULES, get_data_set
from memalpha.tasks.chunking import rechunk
from memalpha.tasks.load import load_evaluation_tasks, load_tasks
from memalpha.text_files import lock_file, parse_json_or_none, write_json
from memalpha.types import Task

MARKER = ".unfinished"
"""File in the folder `eval` of an evaluation under way: its provenance, and the systems that are done."""


REPLIES = ".replies.sqlite"
"""File beside it with the replies that local policies gave so far (`policy.reply_cache`)."""


class UnfinishedEvaluation:
    """Marks a folder while an evaluation is under way.

    Attributes:
        reports: Reports by system: those that an interrupted evaluation of the same provenance left, and new ones.
        replies_path: File for the replies of local policies.

    Raises:
        ConfigError: The reports that the marker names cannot be read.
    """

    def __init__(self, folder: Path, systems: Sequence[str], provenance: Mapping[str, Any]) -> None:
        """Read what an earlier evaluation left, and mark the folder.

        Args:
            folder: The `eval` folder.
            systems: Names of the systems to evaluate.
            provenance: Provenance of the evaluation (`report.provenance`).
        """
        self._path, self.replies_path = folder / MARKER, folder / REPLIES
        self._provenance = json.loads(json.dumps(provenance))
        self.reports: dict[str, Report] = {}
        marker = parse_json_or_none(self._path.read_bytes()) if self._path.is_file() else None
        marker = marker if isinstance(marker, dict) else {}
        previous = marker.get("provenance")
        if isinstance(previous, dict):
            previous.pop("data_sha256", None)  # of earlier checkouts: the tasks have a digest of their own
        if previous == self._provenance:
            names = [name for name in marker.get("finished", ()) if name in systems]
            try:
                self.reports = {name: Report.load(folder.parent, name) for name in names}
            except DataError as error:
                raise ConfigError(
                    f"{folder} holds an interrupted evaluation that cannot be read ({error}): remove {self._path} to "
                    "begin again"
                ) from error
        elif self._path.is_file():
            note = "is of other settings, tasks or versions: every system is evaluated anew"
            print(f"note: the interrupted evaluation in {folder} {note}", file=sys.stderr)
        self._write()

    def add(self, report: Report) -> None:
        """Save the report of a system, and note that it is done."""
        report.save(self._path.parent.parent)
        self.reports[report.name] = report
        self._write()

    def end(self) -> None:
        """Remove the mark and the replies, whose file is closed: every system is done."""
        self._path.unlink(missing_ok=True)
        self.replies_path.unlink(missing_ok=True)

    def _write(self) -> None:
        write_json(self._path, {"finished": list(self.reports), "provenance": self._provenance})


TRAINED_SYSTEM = "trained"
"""Name of a run's best checkpoint among `systems`."""

TRAINING_KEYS = {"algorithm", "optimizer", "policy", "reward"}
"""Settings that a configuration of a training run has and an evaluation has not."""


def load_settings(name: str, overrides: Mapping[str, Any] | None = None) -> EvalConfig:
    """Load the evaluation of a name: a run directory, a configuration, or a data set.

    Args:
        name: Directory of a training run, a shipped configuration, a YAML file, or a data set with default settings.
        overrides: Keys that replace those of the configuration.

    Raises:
        ConfigError: The name is none of these; lists the known ones.
    """
    check_path("config", name, error=ConfigError)
    if (Path(name) / "config.yaml").is_file():
        return load_run_settings(Path(name), overrides)
    if name in MODULES and not (name in shipped_configs() and "benchmark" in read_config(name)):
        return build_config(EvalConfig, merge({"benchmark": name}, overrides or {}), name)
    path = Path(name)
    if not path.is_file() and path.suffix not in (".yaml", ".yml") and name not in shipped_configs():
        evaluations = _shipped_evaluations()
        near = did_you_mean(name, (*evaluations, *MODULES))
        raise ConfigError(
            f"no configuration {name!r}{near}: give a YAML file, a run's directory, one of "
            f"{', '.join(evaluations)}, or a data set: {', '.join(MODULES)}"
        )
    if TRAINING_KEYS & read_config(name).keys():
        raise ConfigError(
            f"{name} configures training: evaluate a run that `memalpha train {name}` made, by its directory. "
            f"Configurations of evaluations: {', '.join(_shipped_evaluations())}"
        )
    return load_config(EvalConfig, name, overrides)


def _shipped_evaluations() -> list[str]:
    return [name for name in shipped_configs() if "benchmark" in read_config(name)]


def load_run_settings(run: Path, overrides: Mapping[str, Any] | None = None) -> EvalConfig:
    """Load the settings with which a training run evaluated its writer.

    The best checkpoint (the newest one of a run that never validated) is prompted, read and scored as in the run, on
    the run's `eval_data`, or on the conversations of a world or streams of bAbI that it held out. A run that held out
    a part of its own file needs `data`. The name "trained" among `systems` is the best checkpoint.

    Raises:
        ConfigError: The run trained no memory writer.
        PolicyError: The run has no checkpoint, or the best one is gone.
    """
    overrides = dict(overrides or {})
    run_config = training_config(run)
    if isinstance(run_config, RewardModelConfig):
        raise ConfigError(f"{run} trained a reward model, which writes no memory: use it by reward.model.path={run}")
    if isinstance(run_config, PreferenceConfig):
        raise ConfigError(
            f"{run} asked no questions: evaluate its checkpoints/best with systems={run}/checkpoints/best"
        )
    if isinstance(run_config, TextConfig):
        raise ConfigError(f"{run} trained replies to prompts, and keeps no memory: memalpha eval {quote(str(run))}")
    reader = run_config.reader.model_copy(update={"conflicts": run_config.reader.conflicts or "refuse"})
    if reader.is_model and reader.policy is None:
        reader = reader.model_copy(update={"policy": run_config.policy})
    fields: dict[str, Any] = {
        "systems": TRAINED_SYSTEM,
        "agent": run_config.agent.model_dump(),
        "reader": reader.model_dump(),
        "metric": None if run_config.reward.metric in ("question", "cited") else run_config.reward.metric,
        "judge": None if run_config.reward.judge is None else run_config.reward.judge.model_dump(),
        "device": run_config.compute.device,
        "dtype": run_config.compute.dtype,
        "compute": run_config.compute.model_dump(include=set(LoadingConfig.model_fields)),
        "sampling": run_config.sampling.model_dump(include=set(EvalSamplingConfig.model_fields)),
    }
    if run_config.evaluation.data is not None:
        fields["data"] = run_config.evaluation.data
    elif "data" not in overrides and run_config.data == "synthetic":
        world, seeds = run_config.held_out_world.model_dump(), (run_config.held_out_seed,)
        fields |= {"benchmark": "synthetic", "world": world, "seeds": seeds, "limit": run_config.evaluation.tasks}
    elif "data" not in overrides and run_config.data == "babi":
        streams = run_config.evaluation.babi or run_config.babi
        fields |= {"benchmark": "babi", "babi": streams.model_dump(), "limit": run_config.evaluation.tasks}
        fields["seeds"] = (run_config.held_out_seed,)
    drop_unused_settings(fields, overrides)
    if overrides.get("benchmark") == "state":  # nobody reads there
        del fields["reader"], fields["metric"]
    settings = build_config(EvalConfig, merge(fields, overrides), str(run))
    if settings.benchmark == "tasks" and settings.data is None:
        figures = f"{run} divided {run_config.data} itself (figures on what it held out: {run / 'summary.json'})"
        raise ConfigError(f"data: name a file of other conversations: {figures}")
    if TRAINED_SYSTEM not in settings.systems:
        return settings
    if settings.data not in (None, *MODULES) and Path(settings.data).resolve() == Path(run_config.data).resolve():
        print(f"data: {run} was trained on {run_config.data}: its figures there are not held out", file=sys.stderr)
    checkpoint = resolve_checkpoint(run)
    systems = tuple(str(checkpoint) if name == TRAINED_SYSTEM else name for name in settings.systems)
    return settings.model_copy(update={"systems": systems})


def run_evaluation(config: EvalConfig) -> list[Report]:
    """Evaluate `config.systems` on its benchmark; save each report under `config.out` as it is done.

    If an evaluation of the same configuration and tasks was interrupted there, the systems that it finished are not
    evaluated again. Without `out` the files lie in a temporary folder. Writers and reader are prompted in the style of
    their policy unless the configuration names one.

    Args:
        config: Benchmark, systems, reader, metric, budget.

    Raises:
        ConfigError: The benchmark is unknown or lacks its file, `out` holds other systems on other tasks, or another
            evaluation writes there.
    """
    check_names(config.systems)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch if config.out is None else config.out) / "eval"
        with lock_file(folder / ".lock", "another evaluation", ConfigError):
            return _run_evaluation(config, folder)


def _run_evaluation(config: EvalConfig, folder: Path) -> list[Report]:
    tasks = load_config_tasks(config)
    if config.benchmark == "tasks":
        config, default_metric, note = with_default_reader(config, tasks)
        if note is not None:
            print(note, file=sys.stderr)
    else:
        default_metric, note = get_data_set(config.benchmark).metric, None
    provenance_fields = provenance(config, tasks)
    if note is not None:
        provenance_fields["note"] = note
    check_folder(folder, config.systems, provenance_fields)
    unfinished = UnfinishedEvaluation(folder, config.systems, provenance_fields)
    reports = unfinished.reports
    if reports:
        print(f"resuming: {', '.join(reports)} done (remove {folder / MARKER} to begin again)", file=sys.stderr)
    with closing(AnswerCache(unfinished.replies_path, cheap=True)) as replies:
        systems = [load_config_system(config, name, replies) for name in config.systems if name not in reports]
        if any(map(is_writer, config.systems)):
            data_source = f"data: {config.data}" if config.benchmark == "tasks" else config.benchmark
            check_categories(tasks, load_schema(config.agent.memory_schema), data_source)
        reader = load_config_reader(config, replies)

        def in_order() -> list[Report]:
            return [reports[name] for name in config.systems if name in reports]

        try:
            with show_progress("chunks") as progress:
                if systems:
                    run_systems(
                        systems,
                        tasks,
                        reader,
                        budget=config.context_tokens,
                        metric=config.metric,
                        default_metric=default_metric,
                        k=config.reader.k,
                        embedder=config.agent.embedder,
                        agent=config.agent,
                        judge=None if config.judge is None else load_judge(config.judge.kept_in(config.out)),
                        progress=progress,
                        on_report=unfinished.add,
                        check_reader=config.sampling.stop_unreadable,
                    )
        finally:  # keep finished reports if a system, a judge or an endpoint fails
            if reports:
                save_results(folder, in_order(), provenance_fields)
    unfinished.end()
    return in_order()


def load_config_system(config: EvalConfig, name: str, replies: AnswerCache | None = None) -> EvaluatedSystem:
    """Load a system of an evaluation, on its device and in its precision.

    Args:
        config: Its settings.
        name: Name of the system.
        replies: File in which the replies of a local policy are kept.
    """
    return load_system(name, replies=replies, **_loading_options(config))


def _loading_options(config: EvalConfig) -> dict[str, Any]:
    """Return how policies are loaded: arguments of `load_policy` and `load_system`."""
    return {
        "device": config.device,
        "dtype": config.dtype,
        "endpoint": config.endpoint.kept_in(config.out),
        "loading": config.compute,
        "batching": config.sampling,
    }


def load_config_tasks(config: EvalConfig) -> list[Task]:
    """Load the tasks of a configuration for every seed, cut to `chunk_tokens`."""
    if config.benchmark == "tasks":
        if config.data is None:
            raise ConfigError("data: name the task file (JSON Lines), for example data=mine.jsonl")
        tasks = load_evaluation_tasks(config.data, config.limit)
    elif config.benchmark not in MODULES:
        raise ConfigError(f"benchmark: no data set {config.benchmark!r}: give tasks or one of {', '.join(MODULES)}")
    else:
        options = dict(config.options)
        if config.benchmark == "synthetic":
            options["world"] = config.world
        if config.benchmark == "babi":
            options["streams_of"] = config.babi
        load = partial(load_tasks, config.benchmark, config.limit, data=config.data, variant=config.variant, **options)
        tasks = [task for seed in config.seeds for task in load(seed=seed)]
    return cut_chunks(config, tasks)


def cut_chunks(config: EvalConfig, tasks: Iterable[Task]) -> list[Task]:
    """Return the tasks with chunks of at most `config.chunk_tokens`, if it is set."""
    return [task if config.chunk_tokens is None else rechunk(task, config.chunk_tokens) for task in tasks]


def load_config_reader(config: EvalConfig, replies: AnswerCache | None = None) -> Reader:
    """Load the one reader of an evaluation, on its device and in its precision.

    Args:
        config: Its settings.
        replies: File in which the replies of a local policy are kept.
    """
    settings = config.reader
    if not settings.is_model or settings.policy is None:
        return load_reader(settings)
    policy = load_policy(settings.policy, setting="reader.policy", **_loading_options(config))
    kept = keep_replies(policy, replies)
    return load_reader(with_prompt_style(settings, kept).model_copy(update={"policy": None}), kept, frozen=True)
