"""Supported releases of TRL, and checks that the private methods in use still have the expected form.

The trainers override private methods of `GRPOTrainer`, which change between releases. A release outside the range, a
method with other parameters, or tensors of another shape raise an error: training never goes wrong silently.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from memalpha.errors import TrainingError, install_command

MIN_RELEASE, MAX_RELEASE = (1, 16), (1, 17)
"""Supported releases (major, minor): MIN_RELEASE <= release < MAX_RELEASE. GRPOTrainer of 1.15 needs Triton."""
RANGE = f"trl>={'.'.join(map(str, MIN_RELEASE))},<{'.'.join(map(str, MAX_RELEASE))}"

TRL_METHODS: Mapping[str, tuple[str, ...]] = {
    "_prepare_inputs": ("self", "generation_batch"),
    "_generate_and_score_completions": ("self", "inputs"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
    "_tokenize_prompts": ("self", "prompts"),
    "_generate": ("self", "prompts"),
    "_get_per_token_logps_and_entropies": ("self", "model", "input_ids", "attention_mask", "logits_to_keep"),
    "_compute_loss": ("self", "model", "inputs"),
    "_save_checkpoint": ("self", "model", "trial"),
    "_load_optimizer_and_scheduler": ("self", "checkpoint"),
}
"""First parameters of each method that is overridden or called; later parameters must have defaults."""


def require_trl() -> None:
    """Raise `TrainingError` unless an installed release of TRL is in `RANGE`."""
    try:
        version = metadata.version("trl")
    except metadata.PackageNotFoundError:
        raise TrainingError(f"memalpha.integrations.trl needs TRL: {install_command('train')}") from None
    release = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not MIN_RELEASE <= release < MAX_RELEASE:
        raise TrainingError(
            f"memalpha.integrations.trl builds on private methods of TRL's GRPOTrainer and was tested with {RANGE}; "
            f"installed is trl {version}: pip install '{RANGE}'"
        )


def require_methods(trainer: type, names: Sequence[str]) -> None:
    """Raise `TrainingError` if one of TRL's methods in `TRL_METHODS` is missing or has other parameters."""
    for name in names:
        method = getattr(trainer, name, None)
        if method is None:
            raise _incompatible(f"{trainer.__name__}.{name} is missing")
        parameters = list(inspect.signature(method).parameters.values())
        expected = TRL_METHODS[name]
        if tuple(parameter.name for parameter in parameters[: len(expected)]) != expected or any(
            extra.default is extra.empty and extra.kind not in (extra.VAR_POSITIONAL, extra.VAR_KEYWORD)
            for extra in parameters[len(expected) :]
        ):
            raise _incompatible(f"{trainer.__name__}.{name}{inspect.signature(method)}, expected {', '.join(expected)}")


def require(condition: bool, problem: str) -> None:
    """Raise `TrainingError` with `problem` unless `condition` holds for TRL's output."""
    if not condition:
        raise _incompatible(problem)


def _incompatible(problem: str) -> TrainingError:
    try:
        version = metadata.version("trl")
    except metadata.PackageNotFoundError:  # a checkout on the path
        version = "(of unknown version)"
    return TrainingError(
        f"trl {version} differs from what memalpha.integrations.trl expects: {problem}. Nothing was trained; install "
        f"another release of '{RANGE}', and please report this"
    )


def batch_rows(batch: Any) -> list[dict[str, Any]]:
    """Return a generation batch as a list of rows; TRL passes a list or a mapping of columns."""
    if isinstance(batch, Mapping):
        columns = dict(batch)
        sizes = {name: len(values) for name, values in columns.items()}
        require(len(set(sizes.values())) == 1, f"a batch whose columns have the lengths {sizes}")
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    require(
        isinstance(batch, Sequence) and all(isinstance(row, Mapping) for row in batch) and len(batch) > 0,
        f"a batch of type {type(batch).__name__}, expected a list of rows",
    )
    return list(batch)
