"""`memalpha eval` on text tasks: a run's best checkpoint, or any policy, on the tasks that a text run holds out.

No torch is needed where the policy needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memalpha.config import TextConfig, read_config, shipped_configs, training_config
from memalpha.environments.evaluate import check_tasks, make_text_report, text_records
from memalpha.environments.rollouts import Player
from memalpha.errors import ConfigError
from memalpha.policy.load import load_policy
from memalpha.qa.report import Report, make_result_folder
from memalpha.train.rollouts.text_inputs import build_environment
from memalpha.train.rollouts.text_tasks import TextTaskSource

TRAINED_NAME = "trained"
"""What a run's best checkpoint is called."""


def resolve_text_run(name: str, overrides: Mapping[str, Any]) -> tuple[TextConfig, Path | None, str] | None:
    """The text run that a name stands for (its directory, a shipped configuration, a YAML file), where results go, and
    what the policy is called; None for anything else.

    `policy` names what is evaluated: of a directory its best checkpoint, else the configuration's start. Nothing is
    written without `out`. Raises `ConfigError` where a directory has no best checkpoint yet.
    """
    over = dict(overrides)
    own = Path(name) / "config.yaml"
    source = str(own) if own.is_file() else name
    if source not in shipped_configs() and not Path(source).is_file():
        return None
    if read_config(source).get("task") != "text":
        return None
    out = over.pop("out", None)
    called = str(over["policy"]) if "policy" in over else None
    if own.is_file() and called is None:
        best = Path(name) / "checkpoints" / "best"
        if not best.is_dir():
            raise ConfigError(f"{name} has no checkpoints/best: validate in training, or name policy=CHECKPOINT")
        over["policy"], called = str(best), TRAINED_NAME
    config = training_config(source, over)
    assert isinstance(config, TextConfig)
    return config, None if out is None else Path(out), called or config.policy


def evaluate_text_run(
    config: TextConfig,
    out: Path | None = None,
    name: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Greedy replies of `config.policy` to the held-out tasks; saved under `out`. Raises as a run of it would."""
    if out is not None:
        make_result_folder(out)
    source = TextTaskSource(config)
    environment = build_environment(config.model_copy(update={"out": out}))  # where paid answers are kept
    check_tasks(source.held_out, environment)
    policy = load_policy(config.policy, dtype=config.dtype, device=config.device)
    player = Player(
        policy,
        environment,
        system_prompt=config.system_prompt,
        max_new_tokens=config.max_new_tokens,
        max_turns=config.max_turns,
    )
    groups = player.scored(player.build(source.held_out, progress=progress))
    report = make_text_report(name or policy.name, player, groups, text_records(player, groups))
    if out is not None:
        report.save(out)
    return report
