"""Configuration files in YAML, shipped or user-defined, with `key=value` overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from memalpha.arguments import check_path, is_file
from memalpha.config.groups import expand_short_names
from memalpha.config.keys import SYNONYMS, settings_of
from memalpha.errors import ConfigError, did_you_mean

C = TypeVar("C", bound=BaseModel)


def shipped_configs() -> list[str]:
    """Return the names of the shipped configurations."""
    folder = resources.files("memalpha") / "config" / "presets"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def parse_overrides(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse `["reward.beta=0.1", "seed=7"]` into a nested mapping; values are YAML scalars.

    Raises:
        ConfigError: A word has no `=`, a key is both value and group, or a value is invalid YAML.
    """
    result: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            example = f"data={pair}" if is_file(pair) else "seed=7 or reward.beta=0.1"
            raise ConfigError(f"{pair!r} is not an override: write key=value, for example {example}")
        node = result
        *parents, last = key.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError(f"{pair!r}: {parent!r} already has a plain value")
        try:
            node[last] = yaml.safe_load(text) if text else None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ConfigError(f"{pair!r}: the value is not readable: {error}") from error
    return result


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings recursively; values of `over` replace those of `base`."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def read_config(name: str | Path) -> dict[str, Any]:
    """Return the raw mapping of a shipped configuration (by name) or of a YAML file."""
    check_path("config", name, error=ConfigError)
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        source, label = path, str(path)
    else:
        source, label = resources.files("memalpha") / "config" / "presets" / f"{name}.yaml", f"presets/{name}.yaml"
    try:
        text = source.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError) as error:
        if path.suffix in (".yaml", ".yml"):
            raise ConfigError(
                f"{path}: there is no such file: give a YAML file, or the name of a shipped one"
            ) from error
        near = did_you_mean(str(name), shipped_configs())
        raise ConfigError(
            f"no configuration {str(name)!r}{near}: give a YAML file or one of {', '.join(shipped_configs())}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else (error.strerror or str(error)).lower()
        raise ConfigError(f"{label} cannot be read: {reason}") from error
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{label} is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{label} must hold a mapping of keys to values")
    return data


def build_config(kind: type[C], data: Mapping[str, Any], label: str) -> C:
    """Validate settings.

    Args:
        kind: Configuration class.
        data: Settings by key, groups as mappings.
        label: Source of the settings, named in error messages.

    Raises:
        ConfigError: Keys are unknown or values invalid; the message names each key.
    """
    try:
        return kind.model_validate(dict(data))
    except ValidationError as error:
        lines = []
        for item in error.errors():
            key = ".".join(str(part) for part in item["loc"])
            if item["type"] == "extra_forbidden":
                near = _nearest(key, kind)
                lines.append(f"unknown key {key!r}" + (f" (did you mean {near!r}?)" if near else ""))
            elif item["type"] == "missing":
                lines.append(f"{key}: is required: write it into the file, or {key}=VALUE on the command line")
            else:
                message = item["msg"].removeprefix("Value error, ")
                lines.append(f"{key}: {message}" if key else message)
        raise ConfigError(f"{label}: " + "; ".join(lines)) from error


def load_config(kind: type[C], name: str | Path, overrides: Mapping[str, Any] | None = None) -> C:
    """Load a shipped configuration or a YAML file, with overrides.

    Args:
        kind: Configuration class.
        name: A shipped configuration's name, or the path of a YAML file.
        overrides: Settings on top of it, by full or short name.

    Raises:
        ConfigError: The configuration does not exist or a setting does not fit.
    """
    base, over = read_config(name), dict(overrides or {})
    if "optimizer" in kind.model_fields:  # a training run: its settings have short names
        try:
            base, over = expand_short_names(base, kind), expand_short_names(over, kind)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from error
    return build_config(kind, merge(base, over), str(name))


def _nearest(key: str, kind: type[BaseModel]) -> str | None:
    """Return the full name of the setting that an unknown key most likely means, or None."""
    leaf = key.split(".")[-1]
    if leaf in SYNONYMS and SYNONYMS[leaf].partition(".")[0] in kind.model_fields:
        return SYNONYMS[leaf]
    names = {path.split(".")[-1]: path for path, _ in settings_of(kind)} | {name: name for name in kind.model_fields}
    matches = get_close_matches(leaf, names, 1)
    return names[matches[0]] if matches else None
