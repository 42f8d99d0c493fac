"""`load_text_tasks`: load prompts with their columns as `TextTask`s, by name or from any file.

`arithmetic` and `programs` are generated. Your own JSON, JSON Lines and CSV files arrive as they are written: a cell of
CSV is a text (007, NA, ""), a value of JSON keeps its type. Everything else goes through `datasets`: GSM8K (Cobbe et
al. 2021, arXiv 2110.14168) and MATH (Hendrycks et al. 2021, arXiv 2103.03874) from the hub or a folder with their
files, Parquet files, a folder that `save_to_disk` wrote, or any hub id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from types import NoneType
from typing import Any, get_args

from pydantic import ValidationError

from memalpha.arguments import brief_repr, check_path, check_texts, check_type
from memalpha.errors import DataError, required_packages
from memalpha.hub import hub_reachable
from memalpha.tasks.formats.files import check_selection, iter_csv_rows
from memalpha.tasks.synthetic import arithmetic, programs
from memalpha.tasks.synthetic.phrases import Split, words
from memalpha.text_files import parse_json, split_json_items
from memalpha.types import TextTask

Rows = Iterable[dict[str, Any]]

GENERATED: Mapping[str, Callable[[Split, int, int, int], list[TextTask]]] = {
    "arithmetic": arithmetic.tasks,
    "programs": programs.tasks,
}
"""Endless generated data sets by name: (split, seed, start, count) returns tasks."""
DEFAULT_LIMIT = 500
"""Number of generated tasks without a limit."""

FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
"""Format of a file by its suffix."""

EVALUATION_SPLITS = ("test", "validation")
"""Names in `datasets.Split` of the splits that are not for training."""


@dataclass(frozen=True, slots=True)
class HubTextSet:
    """Describe a named data set: its source, configurations, and the meaning of its columns.

    Attributes:
        source: Repository on the hub.
        configs: Names of its configurations.
        columns: Our column names by theirs.
        category: Column that becomes the task's category.
        normalize_answer: Extract the comparable answer from the answer column.
    """

    source: str
    configs: tuple[str, ...]
    columns: Mapping[str, str]
    category: str | None = None
    normalize_answer: Callable[[str], str] = field(default=str)


_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|\\boxed\s+([^\s${}]+)")


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last closed `\boxed{...}`.

    Braces are counted (`\{` is none); of nested boxes, the inner one counts. `\fbox{...}` and `\boxed 5` are boxes too.

    Returns:
        The content; None without a box.
    """
    for match in reversed(list(_BOX.finditer(text))):
        if match[1] is not None:
            return match[1]
        depth, position = 1, match.end()
        while position < len(text) and depth:
            if text[position] == "\\":
                position += 1
            else:
                depth += {"{": 1, "}": -1}.get(text[position], 0)
            position += 1
        if not depth:
            return text[match.end() : position - 1].strip()
    return None


HUB_SETS: Mapping[str, HubTextSet] = {
    "gsm8k": HubTextSet(
        "openai/gsm8k",
        ("main",),
        {"prompt": "question", "solution": "answer", "answer": "answer"},
        normalize_answer=lambda text: text.rsplit("####", 1)[-1].strip().replace(",", ""),
    ),
    "math": HubTextSet(
        "EleutherAI/hendrycks_math",
        words("algebra counting_and_probability geometry intermediate_algebra number_theory prealgebra precalculus"),
        {"prompt": "problem", "answer": "solution"},
        category="level",
        normalize_answer=lambda text: last_boxed(text) or text,
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
    """Load the tasks of a named data set, a file, a folder, or a hub id.

    Split "train" never gives rows of another split. A named set therefore takes no single file as `data`, for a file
    does not say which split it holds. A folder that `save_to_disk` wrote from a test or validation split is refused.

    Args:
        name_or_path: `arithmetic`, `programs`, `gsm8k`, `math`, a file, a folder, or a hub id.
        columns: Our column names by theirs: `{"prompt": "question", "answer": "target"}`. Only `prompt` (a text or chat
            messages) is required; other columns keep their own names.
        split: Split of the hub or folder, "train" or "test"; a single file is read whole.
        limit: Return the first `limit` tasks only; MATH's subjects take turns.
        seed: Seed of generated sets.
        data: Folder with the files of a named set; default: the hub.

    Raises:
        DataError: A name, file, split or column is missing, a row has no prompt, or the set is empty.
    """
    check_path("tasks", name_or_path, error=DataError)
    name = str(name_or_path)
    check_type("columns", columns, (Mapping, NoneType), error=DataError)
    for pair in (columns or {}).items():
        check_texts("columns", pair, error=DataError)
    if not isinstance(split, str) or split not in get_args(Split):
        raise DataError(f"split {brief_repr(split)}: {' or '.join(get_args(Split))} is needed")
    check_selection(seed, data, limit)
    if name in GENERATED:
        if columns or data is not None:
            raise DataError(f"{name}: is made here: leave out {'columns' if columns else 'data'}")
        return GENERATED[name](split, seed, 0, DEFAULT_LIMIT if limit is None else limit)
    if name in HUB_SETS:
        hub_set = HUB_SETS[name]
        if data is not None and Path(data).is_file():
            raise DataError(
                f"{name}: {data} is a file, which does not say which split it holds: give the data set's folder, or "
                "the file alone as tasks of your own"
            )
        renamed = {**hub_set.columns, **(columns or {})}
        tasks_by_config = []
        for config in hub_set.configs:
            rows = _read(hub_set.source if data is None else str(data), split, config, name)
            label = f"{name}-{config}" if len(hub_set.configs) > 1 else name
            config_tasks = _tasks(islice(rows, limit), renamed, f"{label}-{split}", label, hub_set.category)
            for task in config_tasks:
                task.columns["answer"] = hub_set.normalize_answer(str(task.columns["answer"]))
            tasks_by_config.append(config_tasks)
        in_turn = zip_longest(*tasks_by_config)  # any slice has tasks of all configurations
        return [task for tasks in in_turn for task in tasks if task is not None][:limit]
    if data is not None:
        raise DataError(f"{name}: data belongs to named data sets only ({', '.join(HUB_SETS)}); give the path itself")
    rows = _read(name, split, None, name)
    return _tasks(islice(rows, limit), columns or {}, Path(name).stem, name)


def _read(source: str, split: str, config: str | None, name: str) -> Rows:
    """Read the rows of one split: an own file as it is written, anything else through `datasets`."""
    path = Path(source)
    kind = FORMATS.get(path.suffix)
    files = [path]  # the file, or the files of a split in a folder without a card, are read as they are written
    if path.is_dir() and not (path / "README.md").exists():
        files = sorted(file for file in path.glob(f"{split}*") if re.split(r"[-_.]", file.name)[0] == split)
    if config is None and files and all(f.is_file() and FORMATS.get(f.suffix) in ("csv", "json") for f in files):
        if not (own_rows := [row for file in files for row in _read_own_file(file)]):
            raise DataError(f"{name}: holds no row")
        names = dict.fromkeys(column for row in own_rows for column in row)
        return [{column: row.get(column) for column in names} for row in own_rows]
    with required_packages(f"{name}: reading it", "datasets", error=DataError):
        import datasets
    from datasets.exceptions import DatasetGenerationError

    if kind is not None and not path.is_file():
        raise DataError(f"{name}: no such file")
    try:
        if path.is_file():
            if kind is None:
                raise DataError(f"{name}: files are {', '.join(FORMATS)}, not {path.suffix or 'without a suffix'}")
            rows: Any = datasets.load_dataset(kind, data_files=str(path), split="train")
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
            # The library's cache identifies a folder with a card by name alone: it would confuse another folder of
            # that name, or one whose files have changed, with it.
            with TemporaryDirectory() as cache:
                rows = datasets.load_dataset(source, config, split=split, cache_dir=cache, keep_in_memory=True)
        else:
            from huggingface_hub import constants

            # Its client would retry for minutes.
            if not constants.HF_HUB_OFFLINE and not hub_reachable():
                raise OSError("the hub does not answer; HF_HUB_OFFLINE=1 takes what its cache has")
            rows = datasets.load_dataset(source, config, split=split)
    except (OSError, ValueError, DatasetGenerationError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        why += f": {' '.join(str(error.__cause__).split())}" if error.__cause__ is not None else ""
        if name in HUB_SETS:
            columns = ", ".join(f"{ours}: {theirs}" for ours, theirs in HUB_SETS[name].columns.items())
            why += (
                f" (without the hub: get the data set {HUB_SETS[name].source} and name its folder: data=PATH, in a "
                "configuration data_folder=PATH; plain files, such as train.jsonl, are tasks of your own: name their "
                f"folder in place of {name}, with the columns {{{columns}}})"
            )
        elif config is None and not Path(name).exists():
            names = ", ".join([*GENERATED, *HUB_SETS])
            why += f" (names are {names}; anything else is a file, a folder or a hub id)"
        raise DataError(f"{name}: cannot be read: {why}") from error
    if not len(rows):
        raise DataError(f"{name}: holds no row")
    return rows


def _read_own_file(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a CSV, JSON or JSON Lines file as they are written.

    Raises:
        DataError: The file cannot be read, or a row is no JSON object; names the line.
    """
    if path.suffix in (".csv", ".tsv"):
        yield from (row for _, row in iter_csv_rows(path, separator="\t" if path.suffix == ".tsv" else ","))
        return
    for location, text in split_json_items(path.read_bytes(), str(path)):
        if not isinstance(row := parse_json(text, location), dict):
            raise DataError(f"{location}: a JSON object is needed, a row of named columns")
        yield row


def _tasks(
    rows: Rows, columns: Mapping[str, str], label: str, name: str, category: str | None = None
) -> list[TextTask]:
    tasks, row_of_id = [], dict[str, int]()
    for number, row in enumerate(rows):
        renamed = {**row}
        for our_name, column in columns.items():
            if column not in row:
                raise DataError(f"{name}: columns.{our_name}: there is no column {column!r}, but {', '.join(row)}")
            renamed[our_name] = row[column]
        for column in set(columns.values()) - columns.keys():
            renamed.pop(column, None)
        if "prompt" not in renamed:
            raise DataError(f"{name}: no column 'prompt', but {', '.join(row)}: say which it is: columns.prompt=NAME")
        prompt = _prompt(renamed.pop("prompt"), f"{name}: row {number}")
        row_category = renamed.get("category", renamed.get(category) if category else None)
        row_category = None if row_category in (None, "") else str(row_category)
        row_id = renamed.pop("id", None)
        id = f"{label}-{number}" if row_id in (None, "") else str(row_id)
        if (other := row_of_id.setdefault(id, number)) != number:
            raise DataError(f"{name}: row {number}: id {id!r} is that of row {other} too: ids are unique")
        try:
            tasks.append(TextTask(id=id, prompt=prompt, columns=renamed, category=row_category))
        except ValidationError as error:
            problem = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise DataError(f"{name}: row {number}: prompt: {problem}") from error
    return tasks


def _prompt(value: Any, location: str) -> str | tuple[dict[str, str], ...]:
    if isinstance(value, str) and value:
        return value
    keys, parts = ("role", "content"), value if isinstance(value, list) else []
    if not parts or not all(isinstance(part, Mapping) and isinstance(part.get(k), str) for part in parts for k in keys):
        excerpt = json.dumps(value, ensure_ascii=False, default=str)[:80]
        raise DataError(f"{location}: prompt: a text or chat messages (role and content), not {excerpt}")
    for number, message in enumerate(parts):
        for name, part in message.items():
            if name not in keys and part not in (None, "", [], {}):
                raise DataError(
                    f"{location}: prompt[{number}].{name}: a prompt's message has role and content, and no other "
                    "field reaches the policy: write it into content, or leave it out"
                )
    return tuple({key: message[key] for key in keys} for message in parts)
