"""`load_text_tasks`: prompts with what their data set has beside them, by name or from any file, as `TextTask`s.

`arithmetic` and `programs` are made here. Everything else goes through `datasets`: GSM8K (Cobbe et al. 2021,
arXiv 2110.14168) and MATH (Hendrycks et al. 2021, arXiv 2103.03874) from the hub or a folder with their files, files of
one's own (JSON, JSON Lines, CSV, Parquet), a folder that `save_to_disk` wrote, or any hub id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from memalpha.errors import DataError, install_command
from memalpha.hub import hub_reachable
from memalpha.tasks.synthetic import arithmetic, programs
from memalpha.tasks.synthetic.value_pools import Split
from memalpha.types import TextTask

if TYPE_CHECKING:
    from datasets import Dataset

MADE: Mapping[str, Callable[[Split, int, int, int], list[TextTask]]] = {
    "arithmetic": arithmetic.tasks,
    "programs": programs.tasks,
}
"""Data sets without end, by name: (split, seed, first, count) gives so many tasks from number `first` on."""
UNLIMITED = 500
"""How many tasks of these are given when no limit is named."""

FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
"""What `datasets` reads a file as, by its suffix."""

EVALUATION_SPLITS = ("test", "validation")
"""Names that `datasets` gives the splits that are not for training (`datasets.Split`)."""


@dataclass(frozen=True, slots=True)
class Known:
    """A data set by name: where it is, its parts, and which of its columns are what."""

    source: str
    configs: tuple[str, ...]
    columns: Mapping[str, str]
    category: str | None = None
    shown: Callable[[str], str] = field(default=str)
    """The answer as it is to be compared, from that column."""


_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|\\boxed\s+([^\s${}]+)")


def last_boxed(text: str) -> str | None:
    r"""What the last closed `\boxed{...}` holds, braces counted (`\{` is none); in a box of a box, the inner.

    `\fbox{...}` and `\boxed 5` are boxes too. None without one.
    """
    for found in reversed(list(_BOX.finditer(text))):
        if found[1] is not None:
            return found[1]
        depth, at = 1, found.end()
        while at < len(text) and depth:
            if text[at] == "\\":
                at += 1
            else:
                depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        if not depth:
            return text[found.end() : at - 1].strip()
    return None


KNOWN: Mapping[str, Known] = {
    "gsm8k": Known(
        "openai/gsm8k",
        ("main",),
        {"prompt": "question", "solution": "answer", "answer": "answer"},
        shown=lambda text: text.rsplit("####", 1)[-1].strip().replace(",", ""),
    ),
    "math": Known(
        "EleutherAI/hendrycks_math",
        (
            "algebra",
            "counting_and_probability",
            "geometry",
            "intermediate_algebra",
            "number_theory",
            "prealgebra",
            "precalculus",
        ),
        {"prompt": "problem", "answer": "solution"},
        category="level",
        shown=lambda text: last_boxed(text) or text,
    ),
}


def load_text_tasks(
    name_or_path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    split: Split = "train",
    limit: int | None = None,
    seed: int = 0,
    data: str | Path | None = None,
) -> list[TextTask]:
    """Tasks of a named data set (`arithmetic`, `programs`, `gsm8k`, `math`), a file, a folder, or a hub id.

    `columns` says which column is what, ours to theirs: `{"prompt": "question", "answer": "target"}`; `prompt` (a text
    or chat messages) is the only one that must be there, all others are kept under their own names. `data`: a folder
    with a named set's files, in the place of the hub. `split` is the hub's or the folder's ("train", "test"); a single
    file is taken whole. `seed` is for sets that are made. `limit` keeps the first tasks; MATH's subjects take turns.

    Split "train" never gives rows of another split. A named set therefore takes no single file as `data`, for a file
    does not say which split it holds. A folder that `save_to_disk` wrote from a test or validation split is refused.

    Raises `DataError` for a name, file, split or column that is not there, a row without a prompt, and an empty set.
    """
    name = str(name_or_path)
    if limit is not None and limit < 1:
        raise DataError(f"limit {limit}: at least one task is needed")
    if name in MADE:
        if columns or data is not None:
            raise DataError(f"{name}: is made here: leave out {'columns' if columns else 'data'}")
        return MADE[name](split, seed, 0, UNLIMITED if limit is None else limit)
    if name in KNOWN:
        known = KNOWN[name]
        if data is not None and Path(data).is_file():
            raise DataError(
                f"{name}: {data} is a file, which does not say which split it holds: give the data set's folder, or "
                "the file alone as tasks of your own"
            )
        renamed = {**known.columns, **(columns or {})}
        parts = []
        for config in known.configs:
            rows = _read(known.source if data is None else str(data), split, config, name)
            label = f"{name}-{config}" if len(known.configs) > 1 else name
            part = _tasks(_limited(rows, limit), renamed, f"{label}-{split}", label, known.category)
            parts.append([_with_answer(task, known.shown) for task in part])
        return _in_turn(parts)[:limit]
    if data is not None:
        raise DataError(f"{name}: data belongs to named data sets only ({', '.join(KNOWN)}); give the path itself")
    rows = _read(name, split, None, name)
    return _tasks(_limited(rows, limit), dict(columns or {}), Path(name).stem, name)


def _in_turn(parts: Sequence[list[TextTask]]) -> list[TextTask]:
    """One of each part after the other, so that the first so many, and the last, are of all parts."""
    return [task for row in zip_longest(*parts) for task in row if task is not None]


def _limited(rows: Dataset, limit: int | None) -> Dataset:
    return rows if limit is None else rows.select(range(min(limit, len(rows))))


def _with_answer(task: TextTask, shown: Callable[[str], str]) -> TextTask:
    return task.model_copy(update={"columns": {**task.columns, "answer": shown(str(task.columns["answer"]))}})


def _read(source: str, split: str, config: str | None, name: str) -> Dataset:
    """The rows of one split, through `datasets`."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{name}: the package datasets reads it: {install_command('train')}") from error
    from datasets.exceptions import DatasetGenerationError

    path = Path(source)
    if path.suffix in FORMATS and not path.is_file():
        raise DataError(f"{name}: no such file")
    try:
        if path.is_file():
            kind = FORMATS.get(path.suffix)
            if kind is None:
                raise DataError(f"{name}: files are {', '.join(FORMATS)}, not {path.suffix or 'without a suffix'}")
            more: dict[str, Any] = {"delimiter": "\t"} if path.suffix == ".tsv" else {}
            rows: Any = datasets.load_dataset(kind, data_files=str(path), split="train", **more)
        elif (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
            rows = datasets.load_from_disk(str(path))
            if isinstance(rows, datasets.DatasetDict):
                if split not in rows:
                    raise DataError(f"{name}: has no split {split!r}: {', '.join(map(str, rows))}")
                rows = rows[split]
            elif split == "train" and str(rows.split) in EVALUATION_SPLITS:
                raise DataError(
                    f"{name}: holds the split {str(rows.split)!r}, which is not for training: save the training split, "
                    "or its rows as a file (JSON, CSV, Parquet)"
                )
        elif path.exists():
            # The library's cache knows a folder with a card by its name alone: another of that name, or one whose files
            # have changed, would be taken for it.
            with TemporaryDirectory() as cache:
                rows = datasets.load_dataset(source, config, split=split, cache_dir=cache, keep_in_memory=True)
        else:
            _check_hub(name, config)
            rows = datasets.load_dataset(source, config, split=split)
    except (OSError, ValueError, DatasetGenerationError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        cause = f": {' '.join(str(error.__cause__).split())}" if error.__cause__ is not None else ""
        raise DataError(f"{name}: cannot be read: {why}{cause}{_instead(name, config)}") from error
    if not len(rows):
        raise DataError(f"{name}: holds no row")
    return rows


def _check_hub(name: str, config: str | None) -> None:
    """Raises `DataError` at once where the hub does not answer; its client would try for minutes."""
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE and not hub_reachable():
        told = "the hub does not answer; HF_HUB_OFFLINE=1 takes what its cache has"
        raise DataError(f"{name}: cannot be read: {told}{_instead(name, config)}")


def _instead(name: str, config: str | None) -> str:
    """What to do where the hub has not answered, or has no such set."""
    if name in KNOWN:
        got = f"get the data set {KNOWN[name].source}"
        return f" (without the hub: {got} and name its folder: data=PATH, in a configuration data_folder=PATH)"
    if config is None and not Path(name).exists():
        return f" (names are {', '.join([*MADE, *KNOWN])}; anything else is a file, a folder or a hub id)"
    return ""


def _tasks(
    rows: Dataset, columns: Mapping[str, str], label: str, name: str, category: str | None = None
) -> list[TextTask]:
    found = []
    for number, row in enumerate(map(dict[str, Any], rows)):
        renamed = {**row}
        for ours, theirs in columns.items():
            if theirs not in row:
                raise DataError(f"{name}: columns.{ours}: there is no column {theirs!r}, but {', '.join(row)}")
            renamed[ours] = row[theirs]
        for theirs in columns.values():
            if theirs not in columns:
                renamed.pop(theirs, None)
        if "prompt" not in renamed:
            raise DataError(f"{name}: no column 'prompt', but {', '.join(row)}: say which it is: columns.prompt=NAME")
        prompt = _prompt(renamed.pop("prompt"), f"{name}: row {number}")
        named = renamed.get("category") or (renamed.get(category) if category else None)
        given = renamed.pop("id", None)
        found.append(
            TextTask(
                id=f"{label}-{number}" if given is None else str(given),
                prompt=prompt,
                columns=renamed,
                category=None if named is None else str(named),
            )
        )
    return found


def _prompt(value: Any, where: str) -> str | tuple[dict[str, str], ...]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(_is_message(one) for one in value):
        return tuple({"role": one["role"], "content": one["content"]} for one in value)
    told = json.dumps(value, ensure_ascii=False, default=str)[:80]
    raise DataError(f"{where}: prompt: a text or chat messages (role and content), not {told}")


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value.get(key), str) for key in ("role", "content"))
