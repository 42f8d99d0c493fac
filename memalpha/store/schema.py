"""Memory schemas: the two that ship, `mem-alpha` (the default) and `life`, and custom ones in YAML.

```yaml
name: support
categories: {customer: Who the customer is., issue: What went wrong and when.}
core: true          # optional: a core memory text beside the categories
core_limit: 512     # optional: its limit, in tokens of `count_core_tokens`
events: [issue]     # optional: categories whose entries happen at a time, so that two days are two entries
```
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import yaml

from memalpha.arguments import brief_repr, check_path
from memalpha.errors import ConfigError, UnknownCategory
from memalpha.text_files import parse_yaml

_EVENTS = "episodic", "spatiotemporal_context"  # of the shipped schemas, and of own ones with such a category
_STRUCTURE = attrgetter("name", "category_names", "core", "core_limit", "events")
_NAME = re.compile(r"[^\W\d][\w-]{0,63}")
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_CORE_TOKEN = re.compile(rf"[{_CJK}]|[^\W{_CJK}]{{1,16}}|[^\w\s]{{1,16}}")


@dataclass(frozen=True, slots=True)
class Category:
    """Named kind of memory; its description tells the writer what belongs there."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class MemorySchema:
    """Categories of a memory, and its core memory.

    Attributes:
        name: Name of the schema.
        categories: At least one category.
        core: True if the memory has a core memory text.
        core_limit: Most tokens of the core memory, counted by `count_core_tokens`.
        events: Categories whose entries happen at a time and a place: what happened twice is two entries.

    Raises:
        ConfigError: There is no category, a name is invalid or occurs twice, `events` names none, or the limit is
            below 1.
    """

    name: str
    categories: tuple[Category, ...]
    core: bool = True
    core_limit: int = 512
    events: tuple[str, ...] = _EVENTS

    def __post_init__(self) -> None:
        if not self.categories:
            raise ConfigError(f"schema {self.name!r}: needs at least one category")
        if self.core_limit < 1:
            raise ConfigError(f"schema {self.name!r}: core_limit must be at least 1, not {self.core_limit}")
        for category in self.categories:
            if not _NAME.fullmatch(category.name):
                raise ConfigError(
                    f"schema {self.name!r}: category name {category.name!r} must start with a letter and hold only "
                    "letters, digits, '_' and '-' (64 at most)"
                )
        if len(set(self.category_names)) != len(self.categories):
            raise ConfigError(f"schema {self.name!r}: a category name occurs twice")
        if unknown := set(self.events) - {*_EVENTS, *self.category_names}:
            raise ConfigError(f"schema {self.name!r}: events: {min(unknown)!r} is no category of the schema")

    @property
    def category_names(self) -> tuple[str, ...]:
        """Category names, in the schema's order."""
        return tuple(category.name for category in self.categories)

    @property
    def category_texts(self) -> dict[str, str]:
        """What searches compare a query with, by category: its name and description."""
        return {category.name: f"{category.name}: {category.description}" for category in self.categories}

    @property
    def default_category(self) -> str:
        """Category of a fact that names none: "semantic", or the schema's first."""
        return "semantic" if "semantic" in self.category_names else self.category_names[0]

    def check_category(self, category: object) -> str:
        """Return the category's name, or raise `UnknownCategory` with the names that the schema has."""
        if isinstance(category, str):
            for member in self.categories:
                if member.name == category:
                    return member.name
        raise UnknownCategory(
            f"no category {brief_repr(category)} in schema {self.name!r}: use {', '.join(self.category_names)}"
        )

    def is_compatible_with(self, other: MemorySchema) -> bool:
        """Return True if entries fit both schemas: they differ in descriptions only."""
        return _STRUCTURE(self) == _STRUCTURE(other)

    def describe(self) -> str:
        """Return one line for messages: name, categories, core memory."""
        core = f"core memory of {self.core_limit} tokens" if self.core else "no core memory"
        return f"{self.name!r} ({', '.join(self.category_names)}; {core})"

    def to_json(self) -> str:
        """Return one line of JSON for `from_json`; equal schemas give equal text."""
        categories = {category.name: category.description for category in self.categories}
        data = {"name": self.name, "categories": categories, "core": self.core, "core_limit": self.core_limit}
        if self.events != _EVENTS:  # stores of earlier versions have no such key
            data["events"] = list(self.events)
        return json.dumps(data, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> MemorySchema:
        """Parse the JSON of `to_json`."""
        return _build(json.loads(text), "schema")


def count_core_tokens(text: str) -> int:
    """Count the tokens of a core memory text.

    A token is up to 16 characters of a word or a punctuation run, or one Chinese, Japanese or Korean character. The
    count does not depend on a policy, so a text that fits one store fits all.
    """
    return sum(1 for _ in _CORE_TOKEN.finditer(text))


def load_schema(name: str | Path | MemorySchema) -> MemorySchema:
    """Return a shipped schema by name or a custom one from a YAML file; a schema is returned as it is.

    Raises:
        ConfigError: There is no such schema, or the file is not valid.
    """
    if isinstance(name, MemorySchema):
        return name
    check_path("schema", name, error=ConfigError)
    if str(name) in SHIPPED:
        return SHIPPED[str(name)]
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"no schema {str(name)!r}: use {', '.join(SHIPPED)}, or a .yaml file with own categories")
    return _read_schema(path)


def _read_schema(path: Path) -> MemorySchema:
    try:
        data = parse_yaml(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"schema {path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"schema {path}: not valid YAML: {error}") from error
    return _build(data, str(path))


def _are_texts(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _build(data: Any, label: str) -> MemorySchema:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{label}: must hold a mapping with 'name' and 'categories'")
    unknown = sorted(set(map(str, data)) - {"name", "categories", "core", "core_limit", "events"})
    if unknown:
        raise ConfigError(f"{label}: unknown key {unknown[0]!r}: use name, categories, core, core_limit, events")
    name, categories = data.get("name"), data.get("categories")
    core, core_limit = data.get("core", True), data.get("core_limit", 512)
    events = data.get("events", list(_EVENTS))
    is_mapping = isinstance(categories, Mapping)
    for key, is_valid, needed in (
        ("name", isinstance(name, str) and name, "a text"),
        ("categories", is_mapping and _are_texts([*categories, *categories.values()]), "a mapping of names to texts"),
        ("core", isinstance(core, bool), "true or false"),
        ("core_limit", type(core_limit) is int, "a whole number"),
        ("events", isinstance(events, list) and _are_texts(events), "a list of category names"),
    ):
        if not is_valid:
            raise ConfigError(f"{label}: {key}: {needed} is needed, not {brief_repr(data.get(key))}")
    members = tuple(Category(key, text) for key, text in data["categories"].items())
    return MemorySchema(data["name"], members, core, core_limit, tuple(events))


SHIPPED: Mapping[str, MemorySchema] = {
    name: _read_schema(Path(__file__).parents[1] / "data" / "schemas" / f"{name}.yaml")
    for name in ("mem-alpha", "life")
}
MEM_ALPHA, LIFE = SHIPPED.values()
