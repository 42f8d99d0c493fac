"""Model card of a checkpoint, `README.md`: base, data, command, results with intervals, limits, licence and citation.

Its head is what the model hub reads (`huggingface_hub.ModelCardData`). Paths are shortened to their last part, and
hosts are left out, those of endpoints too: a card is made to be published. `push_run` publishes a run's best checkpoint
with its card.
"""

from __future__ import annotations

import json
import platform
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import CommitOperationAdd, EvalResult, HfApi, ModelCard, ModelCardData, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from memalpha.config import LearnerConfig, RewardModelConfig, training_config
from memalpha.config.training import RunConfig, SFTConfig
from memalpha.errors import CheckpointError, ConfigError, PolicyError
from memalpha.hub import hub_reachable
from memalpha.policy.base import NAMED_POLICIES, SHIPPED_POLICIES
from memalpha.policy.load import adapter_chain
from memalpha.qa.report import TEMPLATES, Record, load_records, scored_answers
from memalpha.qa.scoring.stats import compare_paired, estimate
from memalpha.tasks.catalog import MODULES, get_data_set
from memalpha.train.trainers.directory import CARD_FILE, VALUE_HEAD, RunDirectory
from memalpha.train.trainers.progress import VALIDATION_METRICS

SMOL_REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Repository of smol's base on the model hub."""
HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
"""Error of the hub's HTTP client, which is another package from version 2 of huggingface_hub on."""
version = cache(metadata.version)  # reading it takes milliseconds, and every checkpoint has a card
_PACKAGES = ("memalpha", "torch", "transformers", "tokenizers", "peft")
SMALL_MODEL = 50_000_000
"""Models with fewer weights are toys: they know nothing beyond their training data, and suit any setting."""

_ENDPOINT = re.compile(r"https?://[^\s#/`'\"]+(?=[^\s#`'\"]*#)")  # of a policy's name, http://HOST/v1#MODEL

PAPERS = {
    "grpo": ("DeepSeekMath (Shao et al. 2024)", "2402.03300"),
    "rloo": ("Back to Basics (Ahmadian et al. 2024)", "2402.14740"),
    "ppo": ("Proximal Policy Optimization (Schulman et al. 2017)", "1707.06347"),
    "dpo": ("Direct Preference Optimization (Rafailov et al. 2023)", "2305.18290"),
    "preferences": ("Direct Preference Optimization (Rafailov et al. 2023)", "2305.18290"),
    "erl": ("Experiential Reinforcement Learning (2026)", "2602.13949"),
}
"""Paper of each method and its arXiv number."""

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Base:
    """Hold what a run started from: a label, and hub id and licence where they are known."""

    label: str
    hub_id: str | None
    licence: str | None


def render_card(config: LearnerConfig, state: Values, summary: Values | None = None, *, name: str | None = None) -> str:
    """Return the card of a checkpoint, from the files of its run.

    Args:
        config: Configuration of the run, with its directory as `out`.
        state: State of the checkpoint, as in its `state.json`.
        summary: Summary of the run if it chose this checkpoint, which the results are of; None: validations only.
        name: Name that loads the model; None: the run's directory.
    """
    results, data, method, base = summary or {}, _data(config), _method(config), find_base(config.policy)
    known = get_data_set(data) if data in MODULES else None
    hub_id = known.source.removeprefix("hub:") if known is not None and known.source.startswith("hub:") else None
    before, after, held_out = results.get("before") or {}, results.get("after") or {}, _data(config, held_out=True)
    is_writer, is_reward_model = isinstance(config, RunConfig), isinstance(config, RewardModelConfig)
    title, held_out_label = name or config.out.name, _label(held_out)
    evaluations = None
    if "accuracy" in after:
        evaluations = [
            EvalResult(
                task_type="text-generation",
                dataset_type=hub_id or Path(held_out or "tasks").name,
                dataset_name=f"held-out tasks of {held_out_label}",
                metric_type=after.get("metric", "accuracy"),
                metric_name="accuracy",
                metric_value=round(after["accuracy"], 4),
            )
        ]
    head = ModelCardData(
        base_model=base.hub_id,
        license=base.licence,
        library_name="transformers" if config.lora is None else "peft",
        pipeline_tag=None if is_reward_model else "text-generation",
        tags=["memalpha", method, *(["agent-memory"] if is_writer else [])],
        datasets=None if hub_id is None else [hub_id],
        model_name=title if evaluations else None,
        eval_results=evaluations,
    )
    systems, difference = [], None
    if "accuracy" in before and "accuracy" in after:
        summaries = {"before": before, "after": after, **results.get("baselines", {})}
        rows = {system: scored_answers(_load_records(config, system), "correct") for system in summaries}
        systems = [(key, summaries[key]["accuracy"], estimate(own) if own else None) for key, own in rows.items()]
        if rows["before"] and [row[:2] for row in rows["before"]] == [row[:2] for row in rows["after"]]:
            difference = compare_paired(rows["before"], rows["after"]).difference
    start, best = state.get("start_validation") or {}, state.get("best")
    shown = {key: start[key] for key in VALIDATION_METRICS if key in start}
    validations = [f"{key.replace('_', ' ')} {value:.3f} at the start" for key, value in shown.items()]
    validations += [f"score {best['score']:.3f} at the best step so far ({best['step']})"] if best else []
    metrics, starts = (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
        for path in (config.out / "metrics.jsonl", config.out / "starts.jsonl")
    )
    done = [line for line in metrics if line["step"] < state["step"]]
    kinds = {"sampled": "sampled_tokens", "trained": "tokens"}
    sums = {word: sum(line.get(key, 0) for line in done) for word, key in kinds.items()}
    records = _load_records(config, "after") if is_writer and after else []
    errors = [record.error_class for record in records if record.error_class]
    values: dict[str, Any] = {"config": config, "state": state, "results": results, "method": method, "title": title}
    values |= {"base": base, "head": head.to_yaml(), "before": before, "after": after, "held_out": held_out_label}
    values |= {"systems": systems, "difference": difference, "validations": validations, "known": known, "data": data}
    values |= {"is_writer": is_writer, "is_reward_model": is_reward_model, "small_model": SMALL_MODEL}
    values |= {"model": name or _shorten(config.out), "data_label": _label(data), "paper": PAPERS.get(method)}
    values |= {"command": _command(starts[-1].get("command", "") if starts else ""), "rows": _rows(config)}
    values |= {"tokens": [f"{count:,} {word}" for word, count in sums.items() if count], "lineage": _lineage(config)}
    values |= {"versions": {package: version(package) for package in _PACKAGES}, "python": platform.python_version()}
    values |= {"software": state.get("software") or {}, "errors": errors, "answers": len(records)}
    values |= {"worst": max(sorted(set(errors)), key=errors.count, default="")}
    text = TEMPLATES.get_template("model_card.md.jinja").render(values)
    return _ENDPOINT.sub("http://HOST", text)


def _load_records(config: LearnerConfig, system: str) -> list[Record]:
    """Return the records of a system's held-out answers; none without its file."""
    return load_records(path) if (path := config.out / "eval" / f"{system}.jsonl").is_file() else []


def find_base(policy: str) -> Base:
    """Return what is known of a start policy; of a checkpoint what its own card says."""
    if policy in SHIPPED_POLICIES:
        return Base(f"`{policy}` (ships with memalpha)", None, "apache-2.0")
    if policy in NAMED_POLICIES:
        return Base(f"`{policy}` (SmolLM2-135M-Instruct)", SMOL_REPOSITORY, "apache-2.0")
    folder = Path(policy)
    if folder.is_dir():
        data = _card_data(folder / "README.md")
        hub_id = data.get("base_model")
        label = f"`{'/'.join(folder.resolve().parts[-3:])}`"
        return Base(label, hub_id if isinstance(hub_id, str) else None, data.get("license"))
    cached = try_to_load_from_cache(policy, "README.md")
    data = _card_data(Path(cached)) if isinstance(cached, str) else {}
    return Base(f"`{policy}`", policy, data.get("license"))


def _card_data(path: Path) -> dict[str, Any]:
    """Return the head of a model card; {} if there is none that can be read."""
    try:
        return ModelCard(path.read_text(encoding="utf-8"), ignore_metadata_errors=True).data.to_dict()
    except (OSError, ValueError, yaml.YAMLError):
        return {}


def _rows(config: LearnerConfig) -> str:
    """Return the file of rows that a supervised run imitates, and who wrote them if `memalpha data write` says so."""
    if not (isinstance(config, SFTConfig) and config.source.endswith(".jsonl")):
        return ""
    path = Path(config.source)
    try:
        lines = path.with_suffix(".scores.jsonl").read_text(encoding="utf-8").splitlines()
        teachers = sorted({json.loads(line)["teacher"] for line in lines} - {""})
    except (OSError, ValueError, KeyError, TypeError):
        teachers = []
    return "; ".join([f"`{_shorten(path)}`", *(f"written by {teacher}" for teacher in teachers)])


def _lineage(config: LearnerConfig) -> list[str]:
    """Return which runs made the start policy, the newest first, as far as their directories are there."""
    runs: dict[Path, str] = {}
    folder = Path(config.policy)
    while folder.parent.name == "checkpoints" and (run := folder.resolve().parents[1]) not in runs:
        if not (run / "config.yaml").is_file():
            break
        try:
            earlier = training_config(run)
        except ConfigError:  # this card is no place to refuse another run's settings
            runs[run] = f"run `{run.name}`, whose settings this version cannot read"
            break
        facts = [_method(earlier), f"data {_label(_data(earlier))}"]
        facts += [f"rows {rows}"] if (rows := _rows(earlier)) else []
        if isinstance(earlier, SFTConfig) and not earlier.source.endswith(".jsonl"):
            facts.append(f"source `{_shorten(Path(earlier.source))}`")
        base = Path(earlier.policy)
        runs[run] = f"run `{run.name}` ({', '.join(facts)}) from `{'/'.join(base.parts[-3:])}`"
        folder = base
    return list(runs.values())


def _method(config: LearnerConfig) -> str:
    return "reward model" if isinstance(config, RewardModelConfig) else dict(config)["algorithm"]


def _data(config: LearnerConfig, *, held_out: bool = False) -> str:
    """Return the name or path of the training data, or of the held-out data; "" if they were given in Python."""
    own = dict(config.evaluation).get("data") if held_out else None
    return str(own or dict(config)["data"] or "")


def _label(data: str) -> str:
    if not data:
        return "tasks given in Python"
    return f"the set `{data}`" if data in MODULES else f"`{_shorten(Path(data))}`"


def _command(recorded: str) -> str:
    """Return the command that was recorded at the start, with paths shortened to their last part."""
    words = [str(_shorten(Path(word))) if "=" not in word else word for word in shlex.split(recorded)]
    pairs = [word.partition("=") for word in words]
    words = [
        f"{key}={value if '://' in value else _shorten(Path(value))}" if equals else key for key, equals, value in pairs
    ]
    if words[:1] == ["__main__.py"]:
        words[0] = "memalpha"
    elif words and words[0].endswith(".py"):
        words.insert(0, "python")
    return shlex.join(words)


def _shorten(path: Path) -> Path:
    return Path(path.name) if path.is_absolute() else path


RESUME_ONLY = ("optimizer", "state.json", VALUE_HEAD, CARD_FILE, ".")
"""Beginnings of the names of files that only resuming needs; the card is made anew."""


def push_run(run: str | Path, repository: str, *, private: bool = False) -> tuple[str, list[str]]:
    """Upload the best checkpoint of a run in one commit, without what only resuming needs.

    The repository is created if it is missing. Token and address of the hub come from its own client (`HF_TOKEN`,
    `hf auth login`, `HF_ENDPOINT`).

    Args:
        run: Run directory.
        repository: OWNER/NAME on the hub.
        private: Make a new repository private.

    Returns:
        Address of the repository, names of the files.

    Raises:
        CheckpointError: `run` is no run directory.
        ConfigError: The run has no checkpoint yet, its adapters' base is a folder here, or the name is invalid.
        PolicyError: The hub cannot be reached, or refuses.
    """
    directory = RunDirectory(Path(run))
    if not directory.load_settings():
        raise CheckpointError(f"{run} holds no config.yaml: name the directory of a training run")
    if "/" not in repository:
        raise ConfigError(f"{repository!r} names no owner: give OWNER/NAME")
    folder = directory.best_checkpoint()
    base, *adapters = adapter_chain(folder)
    if adapters and Path(base).is_dir():
        raise ConfigError(
            f"{folder} holds adapters of {base}, which nobody else has: write a merged model (memalpha merge "
            f"{shlex.quote(str(run))} FOLDER) and upload that folder (hf upload)"
        )
    if not hub_reachable():
        raise PolicyError("the model hub cannot be reached from here: nothing was uploaded")
    state = directory.read_json(f"checkpoints/{folder.name}/state.json")
    summary = directory.read_json("summary.json") if (directory.path / "summary.json").is_file() else {}
    chosen = summary if summary.get("best_step") == state["step"] else None
    card = render_card(training_config(directory.path), state, chosen, name=repository)
    files = sorted(path for path in folder.iterdir() if not path.name.startswith(RESUME_ONLY))
    operations = [CommitOperationAdd(path.name, path) for path in files]
    operations.append(CommitOperationAdd(CARD_FILE, card.encode("utf-8", "backslashreplace")))
    api = HfApi()
    try:
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.create_commit(repository, operations, commit_message=f"{directory.path.name}, {folder.name}")
    except HFValidationError as error:
        raise ConfigError(f"{repository!r} is no name of a repository: {error}") from error
    except HfHubHTTPError as error:
        code = error.response.status_code
        login = ": log in with `hf auth login`, or set HF_TOKEN to a token that may write" if code in (401, 403) else ""
        raise PolicyError(f"the hub refused {repository} ({code}){login or f': {error}'}") from error
    except (OSError, HTTP_ERROR) as error:
        raise PolicyError(f"the connection to the hub broke ({error}): the same command uploads again") from error
    return str(address), [operation.path_in_repo for operation in operations]
