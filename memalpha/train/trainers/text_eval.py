"""`memalpha eval` on text tasks: evaluate a run's best checkpoint, or any policy, on the held-out tasks.

Needs torch only if the policy does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memalpha.arguments import check_path
from memalpha.config import TextConfig, read_config, shipped_configs, training_config
from memalpha.errors import ConfigError
from memalpha.policy.load import load_policy
from memalpha.qa.report import Report, make_result_folder
from memalpha.rewards.evaluate import check_tasks, evaluate_text
from memalpha.train.rollouts.text_tasks import TextTaskSource, build_environment

TRAINED_NAME = "trained"
"""Name of a run's best checkpoint in results."""


def resolve_text_run(name: str, overrides: Mapping[str, Any]) -> tuple[TextConfig, Path | None, str] | None:
    """Resolve a run directory, a shipped configuration or a YAML file to a text run.

    A directory evaluates its best checkpoint, anything else the configuration's start policy; `policy` overrides both.
    Nothing is written without `out`.

    Args:
        name: Directory, shipped name or YAML path.
        overrides: Configuration keys; `policy` is the policy to evaluate, `out` where results go.

    Returns:
        Configuration, output directory (None: write nothing) and name of the policy; None if `name` is no text run.

    Raises:
        ConfigError: The directory has no best checkpoint yet.
    """
    keys = dict(overrides)
    run_config = Path(name) / "config.yaml"
    check_path("config", name, error=ConfigError)
    source = str(run_config) if run_config.is_file() else name
    if source not in shipped_configs() and not Path(source).is_file():
        return None
    if read_config(source).get("task") != "text":
        return None
    out = keys.pop("out", None)
    label = str(keys["policy"]) if "policy" in keys else None
    if run_config.is_file() and label is None:
        best = Path(name) / "checkpoints" / "best"
        if not best.is_dir():
            raise ConfigError(f"{name} has no checkpoints/best: validate in training, or name policy=CHECKPOINT")
        keys["policy"], label = str(best), TRAINED_NAME
    config = training_config(source, keys)
    assert isinstance(config, TextConfig)
    return config, None if out is None else Path(out), label or config.policy


def evaluate_text_run(
    config: TextConfig,
    out: Path | None = None,
    name: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Reply greedily to the held-out tasks with `config.policy` and score the replies. Raises as a run would.

    Args:
        config: Configuration of the text run.
        out: Directory for results; None writes nothing.
        name: Name of the policy in the report; default: the policy's own.
        progress: Called with `(done, total)` tasks.

    Returns:
        Report of the evaluation.
    """
    if out is not None:
        make_result_folder(out)
    source = TextTaskSource(config)
    environment = build_environment(config.model_copy(update={"out": out}))  # cache of endpoint answers
    check_tasks(source.held_out, environment)
    policy = load_policy(
        config.policy,
        dtype=config.compute.dtype,
        device=config.compute.device,
        loading=config.compute,
        batching=config.sampling,
    )
    sampling = config.sampling
    report = evaluate_text(
        policy,
        source.held_out,
        environment=environment,
        system_prompt=config.system_prompt,
        max_new_tokens=sampling.max_new_tokens,
        thinking_tokens=sampling.thinking_tokens,
        chat_template_kwargs=sampling.chat_template_kwargs,
        max_turns=config.max_turns,
        name=name,
        progress=progress,
    )
    if out is not None:
        report.save(out)
    return report
