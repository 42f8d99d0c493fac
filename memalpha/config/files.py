"""Configuration files in YAML, shipped or user-defined, with `key=value` overrides.

`settings_of` lists all settings with their types, defaults and descriptions; `setting_synonyms` has their names in
other trainers.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from memalpha.arguments import check_path, is_file
from memalpha.errors import ConfigError, did_you_mean
from memalpha.text_files import parse_yaml

C = TypeVar("C", bound=BaseModel)


def shipped_configs() -> list[str]:
    """Return the names of the shipped configurations."""
    folder = resources.files("memalpha") / "config" / "presets"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def parse_overrides(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse `["reward.beta=0.1", "seed=7"]` into a nested mapping.

    Values are YAML. A mapping adds to what was said of its group before; null clears the group.

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
            node |= merge(node, {last: parse_yaml(text) if text else None})
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
        names, near = ", ".join(shipped_configs()), did_you_mean(str(name), shipped_configs())
        if path.suffix in (".yaml", ".yml"):
            problem = f"{path}: there is no such file: give a YAML file, or the name of a shipped one"
        elif path.parent != Path() and not near:  # a path, of a run more likely than of a configuration
            problem = f"{name}: there is no such run or file: give a run directory, a YAML file or one of {names}"
        else:
            problem = f"no configuration {str(name)!r}{near}: give a YAML file or one of {names}"
        raise ConfigError(problem) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else (error.strerror or str(error)).lower()
        raise ConfigError(f"{label} cannot be read: {reason}") from error
    if path.suffix == ".jsonl":
        word = quote(f"data={label}")
        raise ConfigError(
            f"{label} holds data, not settings: name a configuration and pass the file to it, as in "
            f"`memalpha eval tasks {word}` or `memalpha train demo {word}`"
        )
    try:
        data = parse_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{label} is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{label} must hold a mapping of keys to values")
    return data


def build_config(
    kind: type[C],
    data: Mapping[str, Any],
    label: str,
    overrides: Mapping[str, Any] | None = None,
    siblings: Iterable[type[BaseModel]] = (),
) -> C:
    """Validate settings.

    Args:
        kind: Configuration class.
        data: Settings by key, groups as mappings.
        label: Source of the settings, named in error messages.
        overrides: Those of the settings that were set on top of the source, which is not to blame for them.
        siblings: Other kinds of runs, whose settings a key may be meant for.

    Raises:
        ConfigError: Keys are unknown or values invalid; the message names each key.
    """
    try:
        return kind.model_validate(dict(data))
    except ValidationError as error:
        lines, is_of_source = [], False
        for item in error.errors():
            is_of_source |= not _is_set(item["loc"], overrides or {})
            key = ".".join(str(part) for part in item["loc"])
            if item["type"] == "extra_forbidden":
                near, name = _nearest(key, kind, siblings), str(item["loc"][-1])
                hint = f" (did you mean {near!r}?)" if near else ""
                hint = " (other kinds of runs have it, this one has not)" if near == "" else hint
                if near is not None and "." in name and near.endswith(name):  # dots are for the command line alone
                    *groups, last = name.split(".")
                    nested = f"{''.join(f'{group}: {{' for group in groups)}{last}: ...{'}' * len(groups)}"
                    hint = f" (groups are nested here: {nested})"
                lines.append(f"unknown key {key!r}{hint}")
            elif item["type"] == "missing":
                lines.append(f"{key}: is required: write it into the file, or {key}=VALUE on the command line")
            elif item["input"] is None and item["type"].endswith("_type"):
                lines.append(f"{key}: has no value")
            else:
                message = format_problem(item)
                lines.append(f"{key}: {message}" if key else message)
        raise ConfigError(f"{label}: " * is_of_source + "; ".join(lines)) from error


_NEEDED = {"string_type": "a text", "path_type": "a text", "tuple_type": "a list", "list_type": "a list"}
_NEEDED |= dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a mapping {key: value}")


def format_problem(item: Mapping[str, Any]) -> str:
    """Return what pydantic says of one setting, in words that need no knowledge of it."""
    context = {name: str(value).replace("'", "") for name, value in item.get("ctx", {}).items()}
    if item["type"] == "union_tag_invalid":
        return f"{context['discriminator']} {context['tag']!r} is none of {context['expected_tags']}"
    if item["type"] == "union_tag_not_found":
        return f"has no {context['discriminator']}, which says what it is"
    value = item["input"]
    if item["type"] in ("path_type", "string_type") and isinstance(value, int | float | date):
        return f"a text is needed, and YAML reads {value} as {type(value).__name__}: put it in quotes, '\"{value}\"'"
    if item["type"] in _NEEDED:
        form = f": write [{value}]" if _NEEDED[item["type"]] == "a list" and isinstance(value, str) else ""
        return f"{_NEEDED[item['type']]} is needed, not {value!r:.80}{form}"
    return str(item["msg"]).removeprefix("Value error, ")


def _is_set(path: Sequence[int | str], overrides: Mapping[str, Any]) -> bool:
    """Return True if overrides hold the key of a path; what is inside a plain value belongs to that value."""
    node: Any = overrides
    for part in path:
        if not isinstance(node, Mapping):
            return True
        if part not in node:
            return False
        node = node[part]
    return bool(path)


def load_config(kind: type[C], name: str | Path, overrides: Mapping[str, Any] | None = None) -> C:
    """Load a shipped configuration or a YAML file, with overrides; `training_config` loads those of training runs.

    Args:
        kind: Configuration class.
        name: A shipped configuration's name, or the path of a YAML file.
        overrides: Settings on top of it.

    Raises:
        ConfigError: The configuration does not exist or a setting does not fit.
    """
    over = overrides or {}
    return build_config(kind, merge(read_config(name), over), str(name), over)


def _nearest(key: str, kind: type[BaseModel], siblings: Iterable[type[BaseModel]]) -> str | None:
    """Return the full name of the setting that an unknown key most likely means; "" for one of a sibling, or None."""
    settings = [path for path, _ in settings_of(kind)]
    leaf = key.split(".")[-1]
    if leaf in (synonyms := setting_synonyms()):  # nearest by letters would only mislead where this run has none
        return next((name for name in synonyms[leaf].split() if name in settings and name != key), None)
    names = {path.split(".")[-1]: path for path in reversed(settings)}  # the first of a name, as agent before judge
    if leaf not in names and any(f".{key}." in f".{path}." for of in siblings for path, _ in settings_of(of)):
        return ""
    matches = get_close_matches(leaf, names | {name: name for name in kind.model_fields}, 1, 0.66)
    return names.get(matches[0], matches[0]) if matches else None


@cache
def setting_synonyms() -> Mapping[str, str]:
    """Return full names of settings, apart by blanks, by a name in other trainers (`data/setting_synonyms.yaml`).

    Of several, a run has the first that its kind knows.
    """
    text = (resources.files("memalpha") / "data" / "setting_synonyms.yaml").read_text(encoding="utf-8")
    return {name: settings for settings, names in yaml.safe_load(text).items() for name in names.split()}


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
        annotation = field.annotation
        members = [member for member in get_args(annotation) or (annotation,) if member is not types.NoneType]
        is_single = len(members) == 1 and get_origin(annotation) in (None, Union, types.UnionType)
        group: Any = members[0] if is_single else None  # of `Group` or `Group | None`
        if not isinstance(group, type) or not issubclass(group, BaseModel):
            default = (
                "(required)" if field.is_required() else format_value(field.get_default(call_default_factory=True))
            )
            yield prefix + name, Setting(_format_type(annotation), default, field.description or "")
            continue
        if field.default is None:
            yield prefix + name, Setting("group | none", "none", field.description or group.__doc__ or "")
        yield from settings_of(group, f"{prefix}{name}.")


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
    if origin is Annotated:
        return _format_type(members[0])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    name = annotation.__name__ if isinstance(annotation, type) else str(annotation).removeprefix("typing.")
    return {"str": "text", "Path": "path", "Any": "any"}.get(name, name)


def format_value(value: Any) -> str:
    """Format a value as YAML shows it, on one line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(format_value, value))}]"
    return "{}" if value == {} else str(value)
