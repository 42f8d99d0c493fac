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
from collections.abc import Iterator, Mapping
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
from memalpha.qa.compare import load_records
from memalpha.qa.scoring.stats import ScoredAnswer, compare_paired, estimate
from memalpha.tasks.catalog import MODULES, get_data_set
from memalpha.train.trainers.directory import CARD_FILE, VALUE_HEAD, RunDirectory
from memalpha.train.trainers.progress import VALIDATION_METRICS

SMOL_REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Repository of smol's base on the model hub."""
HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
"""Error of the hub's HTTP client, which is another package from version 2 of huggingface_hub on."""
version = cache(metadata.version)  # reading it takes milliseconds, and every checkpoint has a card
_PACKAGES = ("torch", "transformers", "tokenizers", "peft")
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
    base, results, data = find_base(config.policy), summary or {}, _data(config)
    known = get_data_set(data) if data in MODULES else None
    kind, usage = _kind_and_usage(config, name or str(_shorten(config.out)))
    weights = "all weights" if config.lora is None else f"LoRA adapters of rank {config.lora.r}"
    licence = "The base states no licence where it was loaded from: look it up, it binds this model, too."
    if base.licence is not None:
        licence = f"The weights are under the licence of their base: {base.licence}."
    data_licence = "The licence of the training data is its owner's to say."
    if known is not None:
        data_licence = f"Training data `{data}`: {known.licence}."
    sections = {
        "Use": "\n".join(["```python", *usage, "```"]),
        "Results": "\n".join(_results(config, state, results)),
        "Training": _training(config, state, base),
        "What it cannot do": "\n".join(f"- {limit}" for limit in _limits(config, results)),
        "Licence": f"{licence} {data_licence}",
        "Citation": "\n".join(_citation(_method(config))),
    }
    hub_id = known.source.removeprefix("hub:") if known is not None and known.source.startswith("hub:") else None
    after, evaluations = results.get("after") or {}, None
    if "accuracy" in after:
        evaluations = [
            EvalResult(
                task_type="text-generation",
                dataset_type=hub_id or Path(_data(config, held_out=True) or "tasks").name,
                dataset_name=f"held-out tasks of {_data_label(config, held_out=True)}",
                metric_type=after.get("metric", "accuracy"),
                metric_name="accuracy",
                metric_value=round(after["accuracy"], 4),
            )
        ]
    head = ModelCardData(
        base_model=base.hub_id,
        license=base.licence,
        library_name="transformers" if config.lora is None else "peft",
        pipeline_tag=None if isinstance(config, RewardModelConfig) else "text-generation",
        tags=["memalpha", _method(config), *(["agent-memory"] if isinstance(config, RunConfig) else [])],
        datasets=None if hub_id is None else [hub_id],
        model_name=(name or config.out.name) if evaluations else None,
        eval_results=evaluations,
    )
    trained = f"Trained from {base.label} with memalpha ({_method(config)}, {weights}), step {state['step']}."
    parts = [f"---\n{head.to_yaml()}\n---", f"# {name or config.out.name}", f"{kind}.\n\n{trained}"]
    text = "\n\n".join([*parts, *(f"## {title}\n\n{text}" for title, text in sections.items())]) + "\n"
    return _ENDPOINT.sub("http://HOST", text)


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


def _kind_and_usage(config: LearnerConfig, name: str) -> tuple[str, list[str]]:
    """Return what kind of model a run makes, and lines of Python that use it."""
    if isinstance(config, RunConfig):
        return (
            "A memory writer: it reads a conversation chunk by chunk and keeps a categorized memory with tool calls "
            "(insert, update, delete), from which questions are answered later"
        ), [
            "from memalpha import MemoryAgent, MemoryStore",
            "",
            f'agent = MemoryAgent("{name}", MemoryStore.open("memory.db"))',
            'agent.read("Ana: I moved to Porto last week.", timestamp="2025-01-10")',
            'print(agent.ask("Where does Ana live?").text)',
        ]
    if isinstance(config, RewardModelConfig):
        return "A reward model that scores replies to prompts", [
            "from memalpha import load_reward_model",
            "",
            f'print(load_reward_model("{name}").score(["What is 2 + 2?"], ["4"]))',
        ]
    package, kind = ("transformers", "AutoModelForCausalLM")
    if config.lora is not None:
        package, kind = ("peft", "AutoPeftModelForCausalLM")
    usage = [f"from {package} import {kind}", "", f'model = {kind}.from_pretrained("{name}")']
    return "A policy that answers prompts", usage


def _results(config: LearnerConfig, state: Values, results: Values) -> Iterator[str]:
    """Yield the lines of the results: held-out before and after, or validations of a run that goes on."""
    before, after = results.get("before") or {}, results.get("after") or {}
    if "accuracy" in before and "accuracy" in after:
        yield from _accuracies(config, results)
    elif before and after:
        names = [key for key, value in after.items() if isinstance(value, int | float) and key in before]
        yield "| held out | before | after |\n|---|---|---|"
        yield from (f"| {name.replace('_', ' ')} | {before[name]:.3f} | {after[name]:.3f} |" for name in names)
    else:
        start, best = state.get("start_validation") or {}, state.get("best")
        shown = {name: start[name] for name in VALIDATION_METRICS if name in start}
        texts = [f"{name.replace('_', ' ')} {value:.3f} at the start" for name, value in shown.items()]
        texts += [f"score {best['score']:.3f} at the best step so far ({best['step']})"] if best else []
        validations = f"{', '.join(texts)}." if texts else "nothing was validated."
        yield f"Step {state['step']} of a run; {validations} Held-out results come at the end of a run."


def _accuracies(config: LearnerConfig, results: Values) -> Iterator[str]:
    folder = config.out / "eval"
    systems = {"before": results["before"], "after": results["after"], **results.get("baselines", {})}
    rows: dict[str, list[ScoredAnswer]] = {}
    for name in systems:
        records = load_records(path) if (path := folder / f"{name}.jsonl").is_file() else ()
        rows[name] = [ScoredAnswer(record.task, record.ability, float(record.correct)) for record in records]
    tasks, questions = results.get("tasks"), results.get("questions")
    measured = "".join(f", {key} `{systems['after'][key]}`" for key in ("reader", "metric") if key in systems["after"])
    held_out = _data_label(config, held_out=True)
    yield f"Accuracy on {questions} questions of {tasks} held-out tasks of {held_out}{measured}.\n"
    yield "| | accuracy | 95 % interval |\n|---|---|---|"
    for name, values in systems.items():
        value, interval = estimate(rows[name]) if rows[name] else None, "-"
        if value is not None:
            bounds = value.interval
            interval = f"{bounds[0]:.3f} to {bounds[1]:.3f}" if bounds else f"none: {value.clusters} conversations"
        yield f"| {name.replace('_', ' ')} | {values['accuracy']:.3f} | {interval} |"
    if rows["before"] and [row[:2] for row in rows["before"]] == [row[:2] for row in rows["after"]]:
        difference = compare_paired(rows["before"], rows["after"]).difference
        verdict = f"{difference.clusters} conversations are too few for an interval"
        if difference.interval is not None:
            low, high = difference.interval
            noise = " (no difference beyond noise)" if low <= 0 <= high else ""
            verdict = f"95 % interval {low:+.3f} to {high:+.3f}{noise}"
        yield f"\nDifference {difference.value:+.3f}, paired by question: {verdict}."


def _training(config: LearnerConfig, state: Values, base: Base) -> str:
    metrics, starts = (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
        for path in (config.out / "metrics.jsonl", config.out / "starts.jsonl")
    )
    recorded, software = starts[-1] if starts else {}, state.get("software") or {}
    memalpha = f"memalpha {software.get('version')}"
    memalpha += f" (commit {software['commit']})" if software.get("commit") else ""
    done = [line for line in metrics if line["step"] < state["step"]]
    kinds = {"sampled": "sampled_tokens", "trained": "tokens"}
    sums = {word: sum(line.get(key, 0) for line in done) for word, key in kinds.items()}
    rows = {
        "base": base.label,
        **_lineage(config),
        "data": _data_label(config),
        **_rows(config),
        "method": _method(config),
        "steps": f"{state['step']}",
        "tokens": ", ".join(f"{count:,} {word}" for word, count in sums.items() if count) or "-",
        "learning rate": f"{config.optimizer.learning_rate:g}" if config.optimizer.learning_rate else "default",
        "seed": str(config.seed),
        "minutes": f"{state.get('minutes', 0):.1f}",
        "software": ", ".join([memalpha, *(f"{name} {version(name)}" for name in _PACKAGES)])
        + f", Python {platform.python_version()}",
    }
    table = "\n".join(["| | |\n|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())])
    return (
        f"```bash\n{_command(recorded.get('command', ''))}\n```\n\n{table}\n\nAll settings: `config.yaml` of the run."
    )


def _rows(config: LearnerConfig) -> dict[str, str]:
    """Return the file of rows that a supervised run imitates, and who wrote them if `memalpha data write` says so."""
    if not (isinstance(config, SFTConfig) and config.source.endswith(".jsonl")):
        return {}
    path = Path(config.source)
    try:
        lines = path.with_suffix(".scores.jsonl").read_text(encoding="utf-8").splitlines()
        teachers = sorted({json.loads(line)["teacher"] for line in lines} - {""})
    except (OSError, ValueError, KeyError, TypeError):
        teachers = []
    return {"rows": "; ".join([f"`{_shorten(path)}`", *(f"written by {teacher}" for teacher in teachers)])}


def _lineage(config: LearnerConfig) -> dict[str, str]:
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
        facts = [_method(earlier), f"data {_data_label(earlier)}"]
        facts += [f"rows {rows}" for rows in _rows(earlier).values()]
        if isinstance(earlier, SFTConfig) and not earlier.source.endswith(".jsonl"):
            facts.append(f"source `{_shorten(Path(earlier.source))}`")
        base = Path(earlier.policy)
        runs[run] = f"run `{run.name}` ({', '.join(facts)}) from `{'/'.join(base.parts[-3:])}`"
        folder = base
    return {"base made by": "; before it ".join(runs.values())} if runs else {}


def _citation(method: str) -> Iterator[str]:
    """Yield the lines of the citations: the method's paper, if it has one, and memalpha."""
    yield "```bibtex"
    if method in PAPERS:
        title, number = PAPERS[method]
        yield f"@misc{{{method}, title={{{title}}}, eprint={{{number}}}, archivePrefix={{arXiv}}}}"
    release = f"version={{{version('memalpha')}}}"
    yield f"@software{{memalpha, title={{memalpha}}, author={{The memalpha developers}}, {release}}}"
    yield "```"


def _limits(config: LearnerConfig, results: Values) -> Iterator[str]:
    """Yield sentences on what the model cannot do, with the figures that the run has of it."""
    after = results.get("after") or {}
    measured = dict.fromkeys([_data_label(config), _data_label(config, held_out=True)])
    yield f"It was trained and measured on {' and '.join(measured)} alone, on no other text or language."
    if (parameters := results.get("policy_parameters", SMALL_MODEL)) < SMALL_MODEL:
        yield f"It has {parameters / 1e6:.1f}M parameters: a model of this size knows nothing beyond its training data."
    if not isinstance(config, RunConfig):
        return
    yield "It writes, a reader answers: with another reader or metric the accuracies differ."
    yield "It keeps what people say, true or not; see memalpha's guide to trust before you let strangers write."
    records = load_records(path) if (path := config.out / "eval" / "after.jsonl").is_file() and after else []
    wrong = [record.error_class for record in records if record.error_class]
    if wrong:
        worst = max(sorted(set(wrong)), key=wrong.count)
        share, share_of_worst = len(wrong) / len(records), wrong.count(worst) / len(records)
        yield f"{share:.0%} of the answers are wrong; most often: {worst.replace('_', ' ')} ({share_of_worst:.0%})."
    if after.get("stale_rate"):
        yield f"{after['stale_rate']:.0%} of the questions on what changed get an outdated answer."


def _method(config: LearnerConfig) -> str:
    return "reward model" if isinstance(config, RewardModelConfig) else dict(config)["algorithm"]


def _data(config: LearnerConfig, *, held_out: bool = False) -> str:
    """Return the name or path of the training data, or of the held-out data; "" if they were given in Python."""
    own = dict(config.evaluation).get("data") if held_out else None
    return str(own or dict(config)["data"] or "")


def _data_label(config: LearnerConfig, *, held_out: bool = False) -> str:
    data = _data(config, held_out=held_out)
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
