"""`memalpha config`: shipped configurations, every setting with type, default and meaning."""

from __future__ import annotations

from functools import reduce
from importlib import resources
from typing import Annotated, Any

import yaml
from pydantic import BaseModel
from typer import Argument, Option

from memalpha import config as configs  # whose names are imported when they are asked for
from memalpha.cli.options import Result
from memalpha.config import load_config, read_config, shipped_configs
from memalpha.config.files import Setting, format_value, settings_of


def kinds() -> dict[str, type[BaseModel]]:
    """Return the kinds of configuration by name; a shipped name means its own kind."""
    return {
        "train": configs.TrainConfig,
        "text": configs.TextConfig,
        "sft": configs.SFTConfig,
        "preferences": configs.PreferenceConfig,
        "reward": configs.RewardModelConfig,
        "eval": configs.EvalConfig,
    }


def config(name: Annotated[str | None, Argument()] = None, keys: Annotated[bool, Option()] = False) -> Result:
    """Show shipped configurations and their settings.

    Without NAME it lists the configurations; with --keys alone, every setting of a training run. With NAME it prints
    that configuration as a run would record it.

    Example: memalpha config demo --keys

    Args:
        name: A shipped configuration or a YAML file; none lists them.
        keys: Print every setting: type, default, meaning, and the value in NAME.

    Raises:
        ConfigError: There is no configuration of that name, or it does not fit.
    """
    if name is None and not keys:
        presets = resources.files("memalpha") / "config" / "presets"
        texts = {shipped: (presets / f"{shipped}.yaml").read_text(encoding="utf-8") for shipped in shipped_configs()}
        first_lines = {shipped: text.splitlines()[0].lstrip("# ") for shipped, text in texts.items()}
        return Result(first_lines, "\n".join(f"{key:<14} {text}" for key, text in first_lines.items()))
    kind, loaded = _load(name or "train")
    if not keys:
        values = loaded.model_dump(mode="json") if loaded else {path: item.default for path, item in settings_of(kind)}
        return Result(values, yaml.safe_dump(values, sort_keys=False).rstrip())
    rows = {path: _describe(path, setting, loaded) for path, setting in settings_of(kind)}
    lines = []
    for path, row in rows.items():
        value = format_value(row["value"]) if "value" in row else row["default"]
        value = f", here {value}" if value != row["default"] else ""
        lines.append(f"{path}: {row['type']} = {row['default']}{value}\n    {row['meaning']}")
    return Result(rows, "\n".join(lines))


def _load(name: str) -> tuple[type[BaseModel], BaseModel | None]:
    """Return the kind of a configuration and the configuration; None if `name` is a kind itself."""
    if name in kinds() and name not in shipped_configs():
        return kinds()[name], None
    raw = read_config(name)
    if "benchmark" in raw:
        loaded: BaseModel = load_config(configs.EvalConfig, name)
    else:
        needs_data = raw.get("algorithm") in ("preferences", "reward") and "data" not in raw
        loaded = configs.training_config(name, {"data": "DATA.jsonl"} if needs_data else {})
    return type(loaded), loaded


def _describe(path: str, setting: Setting, loaded: BaseModel | None) -> dict[str, Any]:
    row: dict[str, Any] = {"type": setting.type, "default": setting.default, "meaning": setting.meaning}
    if loaded is not None and path.split(".")[0] in loaded.model_fields_set:
        row["value"] = reduce(lambda value, name: getattr(value, name, None), path.split("."), loaded)
        row["value"] = row["value"].model_dump(mode="json") if isinstance(row["value"], BaseModel) else row["value"]
    return row
