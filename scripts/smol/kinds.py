"""Kinds of facts, values and talk of the made-up conversations, from the text files of this folder."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

_FIELD = re.compile(r"\{(a )?(old\.)?(\w+)\}")


@dataclass(slots=True)
class FactKind:
    """Describe a kind of fact: entry template, sentences, questions."""

    key: str
    mode: str
    entry: str
    says: list[str] = field(default_factory=list)
    news: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    asks: list[tuple[str, str]] = field(default_factory=list)
    whens: list[str] = field(default_factory=list)

    @property
    def pools(self) -> list[str]:
        """Names of the pools that the entry draws from."""
        return [name for _, _, name in _FIELD.findall(self.entry) if name not in ("n", "date")]


@cache
def load_kinds() -> tuple[FactKind, ...]:
    """Read `facts.txt`."""
    kinds: list[FactKind] = []
    for line in _data_lines("facts.txt"):
        if match := re.fullmatch(r"\[(\w+)\] (\w) (.*)", line):
            kinds.append(FactKind(match[1], match[2], match[3]))
            continue
        word, _, text = line.partition(" ")
        kind = kinds[-1]
        if word == "ask":
            question, _, answer = text.partition(" => ")
            kind.asks.append((question, answer))
        else:
            {"say": kind.says, "new": kind.news, "end": kind.ends, "when": kind.whens}[word].append(text)
    return tuple(kinds)


@cache
def load_phrasings(file: str) -> dict[str, tuple[str, ...]]:
    """Read a file of phrasings of the demo world, by kind and attribute ("state.city")."""
    phrasings: dict[str, list[str]] = {}
    for line in _data_lines(file):
        if match := re.fullmatch(r"\[(\w+\.\w+)\]", line):
            sentences = phrasings.setdefault(match[1], [])
        else:
            sentences.append(line)
    return {name: tuple(sentences) for name, sentences in phrasings.items()}


@cache
def load_pools() -> dict[str, tuple[tuple[str, ...], bool]]:
    """Read `pools.txt`: values by pool, and True if pseudo-words may replace them."""
    pools = {}
    for line in _data_lines("pools.txt"):
        name, _, values = line.partition(": ")
        pools[name.lstrip("*")] = (tuple(values.split("; ")), name.startswith("*"))
    return pools


@cache
def load_talk() -> dict[str, list[str]]:
    """Read `talk.txt`: lines by kind."""
    talk: dict[str, list[str]] = {}
    for line in _data_lines("talk.txt"):
        if line.startswith("["):
            key = line.strip("[]")
            talk[key] = []
        else:
            talk[key] += line.split("; ") if key == "hyp" else [line]
    return talk


def _data_lines(name: str) -> list[str]:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def fill_fields(template: str, values: dict[str, str], **names: str) -> str:
    """Fill `{pool}`, `{a pool}` (with its article), `{old.pool}` and names; tidy blanks and capitals."""

    def value(match: re.Match[str]) -> str:
        text = names[match[3]] if match[3] in names else values[f"old.{match[3]}" if match[2] else match[3]]
        return f"{'an' if text[:1].lower() in 'aeiou' else 'a'} {text}" if match[1] else text

    text = re.sub(r" +([.,!?])", r"\1", " ".join(_FIELD.sub(value, template).split()))
    return re.sub(r"(^|[.!?] )([a-z])", lambda match: match[1] + match[2].upper(), text)


def fill_fields_plain(template: str, values: dict[str, str]) -> str:
    """Fill fields without tidying capitals."""
    return _FIELD.sub(lambda match: values[match[3]], template).strip('"')
