"""Names, types, defaults and descriptions of all settings, and their names in other trainers."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

SYNONYMS: Mapping[str, str] = {
    "adam_beta1": "optimizer.adam_betas",
    "adam_beta2": "optimizer.adam_betas",
    "batch_size": "sampling.tasks_per_step",
    "betas": "optimizer.adam_betas",
    "bf16": "compute.dtype",
    "clip_eps": "loss.epsilon",
    "clip_range": "loss.epsilon",
    "cliprange": "loss.epsilon",
    "entropy_coeff": "loss.entropy_coef",
    "eval_every": "evaluation.eval_steps",
    "fp16": "compute.dtype",
    "fsdp": "compute.sharding",
    "grad_clip": "optimizer.max_grad_norm",
    "inner_epochs": "optimizer.num_iterations",
    "kl_coef": "loss.beta",
    "logging": "report_to",
    "lr": "optimizer.learning_rate",
    "max_completion_length": "sampling.max_new_tokens",
    "max_tokens": "sampling.max_new_tokens",
    "model": "policy",
    "model_name": "policy",
    "model_name_or_path": "policy",
    "n_rollouts": "sampling.group_size",
    "num_epochs": "optimizer.epochs",
    "num_generations": "sampling.group_size",
    "num_train_epochs": "optimizer.epochs",
    "output_dir": "out",
    "precision": "compute.dtype",
    "rollouts": "sampling.group_size",
    "steps": "max_steps",
    "temp": "sampling.temperature",
    "wandb": "report_to",
    "warmup": "optimizer.warmup_steps",
}
"""Name of a setting in other trainers -> its full name here."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a configuration, in words.

    Attributes:
        type: Type as one writes it: `int`, `float | none`, `grpo | dapo`, a list.
        default: Default value as YAML shows it; "(required)" if there is none.
        meaning: Description of the field.
    """

    type: str
    default: str
    meaning: str


def settings_of(kind: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Setting]]:
    """Yield every setting of a configuration by full name, those of groups after their group's name.

    Args:
        kind: Configuration class.
        prefix: Put before each name, for the groups of another configuration.
    """
    for name, field in kind.model_fields.items():
        group = _group_class(field.annotation)
        if group is None:
            default = (
                "(required)" if field.is_required() else format_value(field.get_default(call_default_factory=True))
            )
            yield prefix + name, Setting(_format_type(field.annotation), default, field.description or "")
            continue
        if field.default is None:
            yield prefix + name, Setting("group | none", "none", field.description or group.__doc__ or "")
        yield from settings_of(group, f"{prefix}{name}.")


def _group_class(annotation: Any) -> type[BaseModel] | None:
    """Return the configuration class of a group: of `Group` or `Group | None`."""
    members = [member for member in get_args(annotation) or (annotation,) if member is not type(None)]
    is_group = len(members) == 1 and isinstance(members[0], type) and issubclass(members[0], BaseModel)
    if is_group and get_origin(annotation) in (None, Union, types.UnionType):
        return members[0]
    return None


def _format_type(annotation: Any) -> str:
    origin, members = get_origin(annotation), get_args(annotation)
    if annotation is type(None):
        return "none"
    if origin is Literal:
        return " | ".join(map(str, members))
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(_format_type(member) for member in members))
    if origin in (tuple, list):
        parts = [_format_type(member) for member in members if member is not Ellipsis]
        return f"list of {parts[0]}" if Ellipsis in members or origin is list else f"[{', '.join(parts)}]"
    if origin is dict:
        return "mapping"
    if hasattr(annotation, "__metadata__"):
        return _format_type(members[0])
    return {"str": "text", "Path": "path", "Any": "any"}.get(
        getattr(annotation, "__name__", ""), _type_name(annotation)
    )


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    return getattr(annotation, "__name__", str(annotation))


def format_value(value: Any) -> str:
    """Format a value as YAML shows it, on one line."""
    if value is None or value is PydanticUndefined:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(format_value, value))}]"
    return "{}" if value == {} else str(value)


def value_of(config: BaseModel, path: str) -> Any:
    """Return the value of a setting by full name; None inside a group that is not set."""
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name, None)
    return value
