"""Which releases of TRL these trainers were tested with, and checks that what they rely on is as it was.

They override private methods of `GRPOTrainer`, which change from release to release. A release outside the range, a
method with other parameters, or tensors of another shape end in an error that says so: never in wrong training.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from memalpha.errors import TrainingError, install_command

MIN_RELEASE, MAX_RELEASE = (1, 16), (1, 17)
"""Releases from the first on and before the second (major, minor). Of 1.15 the GRPOTrainer itself needs Triton."""
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
"""What is overridden or called, by its first parameters; those after them have defaults."""


def require_trl() -> None:
    """Raise `TrainingError` where no release of TRL in `RANGE` is installed."""
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
    """Raise `TrainingError` where one of TRL's methods in `METHODS` is gone or takes other parameters."""
    for name in names:
        method = getattr(trainer, name, None)
        if method is None:
            raise _incompatible(f"{trainer.__name__}.{name} is gone")
        parameters = list(inspect.signature(method).parameters.values())
        expected = TRL_METHODS[name]
        if tuple(parameter.name for parameter in parameters[: len(expected)]) != expected or any(
            one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
            for one in parameters[len(expected) :]
        ):
            raise _incompatible(f"{trainer.__name__}.{name}{inspect.signature(method)}, expected {', '.join(expected)}")


def require(condition: bool, problem: str) -> None:
    """Raise `TrainingError` that TRL did not give what was expected of it."""
    if not condition:
        raise _incompatible(problem)


def _incompatible(problem: str) -> TrainingError:
    try:
        version = metadata.version("trl")
    except metadata.PackageNotFoundError:  # a checkout on the path
        version = "(of unknown version)"
    return TrainingError(
        f"trl {version} is not as memalpha.integrations.trl knows it: {problem}. Nothing was trained on it; install "
        f"another release of '{RANGE}', and please report this"
    )


def batch_rows(batch: Any) -> list[dict[str, Any]]:
    """A generation batch as a list of rows, whether it comes as one or as a mapping of columns."""
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
