"""Loading of tasks from any source, by name or path, and from the split meant for training or evaluation."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from memalpha.arguments import check_path, check_type
from memalpha.config import WorldConfig
from memalpha.errors import ConfigError, DataError, did_you_mean
from memalpha.tasks.catalog import MODULES, get_data_set, load_set, loader_options, locate, read_set, validate_options
from memalpha.tasks.chunking import rechunk
from memalpha.tasks.dataset_info import DataSet
from memalpha.tasks.formats.chats import build_chats, is_chat_folder, load_chat_folder, load_chats, load_message_lines
from memalpha.tasks.formats.csv import load_csv
from memalpha.tasks.formats.files import check_selection
from memalpha.tasks.formats.jsonl import check_tasks, drop_empty, from_dataset, load_jsonl, save_jsonl
from memalpha.tasks.formats.messages import holds_conversations
from memalpha.tasks.formats.whatsapp import NO_CHAT
from memalpha.text_files import parse_json_or_none, read_text, split_json_items
from memalpha.types import Task

if TYPE_CHECKING:
    from datasets import Dataset

TABLES = (".csv", ".tsv")


def load_tasks(
    name_or_path: str | Path | Dataset,
    limit: int | None = None,
    *,
    data: str | Path | None = None,
    variant: str | None = None,
    world: WorldConfig | None = None,
    seed: int = 0,
    chunk_tokens: int | None = None,
    **options: Any,
) -> list[Task]:
    """Load the tasks of a named data set, of your own task file, or of a `datasets.Dataset`.

    `memalpha data list` shows the names. Anything else is the path of a JSON Lines or CSV file, of a folder with two
    CSV tables, of an exported chat, or of a folder of such chats (`tasks.formats`). A chat has no questions: `memalpha
    data ask` makes some.

    Args:
        name_or_path: Name of a data set, path of a task file, or a `datasets.Dataset` (`tasks.formats.jsonl`).
        limit: Return the first `limit` tasks only.
        data: Official file of the set or its folder, for sets that neither ship nor come from a hub.
        variant: Part or size of the set; default: its first.
        world: Synthetic world, for `"synthetic"` only.
        seed: Seed, for sets with randomness.
        chunk_tokens: Split longer chunks between turns, in tokens (characters / 4).
        **options: Further options of the set's loader; of a chat exported as text `dates`: "day-first" or
            "month-first".

    Raises:
        DataError: A name or option is unknown, a file is missing or bad, or the data set is empty.
    """
    dataset = _as_dataset(name_or_path)
    if dataset is None:
        check_path("tasks", name_or_path, error=DataError)
    name = str(name_or_path) if dataset is None else "a Dataset"
    check_type("variant", variant, (str, NoneType), error=DataError)
    check_selection(seed, data, limit, chunk_tokens)
    if chunk_tokens is not None:
        tasks = load_tasks(name_or_path, limit, data=data, variant=variant, world=world, seed=seed, **options)
        return [rechunk(task, chunk_tokens) for task in tasks]
    if world is not None:
        options["world"] = world
    if seed != 0:
        options["seed"] = seed
    if name in MODULES:
        for option in ("world", "seed"):
            if option in options and option not in loader_options(name):
                sets = ", ".join(repr(other) for other in MODULES if option in loader_options(other))
                raise DataError(f"{name}: {option} belongs to sets {sets} only")
        return _checked(name, load_set(name, limit, data=data, variant=variant, **options))
    path = Path(name)
    holds_chats = is_chat_folder(path)
    suffix = path.suffix.lower()
    is_task_file = path.is_dir() and not holds_chats
    dates = None if is_task_file else options.pop("dates", None)
    selection = {**options, "data": data, "variant": variant}
    if of_sets := [key for key, value in selection.items() if key in options or value is not None]:
        raise DataError(f"{name}: {of_sets[0]} belongs to named data sets only; a file takes limit and chunk_tokens")
    if dataset is not None:
        rows = list(map(drop_empty, dataset.select(range(min(limit or len(dataset), len(dataset)))).to_list()))
        if not holds_conversations(rows):
            return from_dataset(rows)
        return build_chats((f"row-{n}", f"row {n}", row) for n, row in enumerate(rows))
    if not path.exists() and not path.suffix:
        near = did_you_mean(name, MODULES)
        raise DataError(f"no data set {name!r}{near}: give the path of a task file or one of {', '.join(MODULES)}")
    if holds_chats:
        return load_chat_folder(path, dates)[:limit]
    tasks = None if is_task_file else load_chats(path, dates)
    if tasks is None:
        if path.is_file() and suffix not in (".json", ".jsonl", ".ndjson", *TABLES):
            text = read_text(path)
            parts = (text.lstrip().partition("\n")[0], text)  # an object or list, or one a line
            if suffix == ".txt" or not any(isinstance(parse_json_or_none(part), dict | list) for part in parts):
                raise DataError(f"{path}:1: {NO_CHAT}" if text.strip() else f"{path}: is empty")
        if suffix in (".jsonl", ".ndjson") and path.is_file():
            tasks = load_message_lines(path)
        if tasks is None:
            tasks = load_csv(path) if suffix in TABLES or path.is_dir() else load_jsonl(path)
    return tasks[:limit]


def holds_tasks(path: Path) -> bool:
    """Return False for a table or log without a column or field of tasks or messages: `memalpha read` takes the text.

    Raises:
        DataError: The file cannot be read.
    """
    if path.suffix.lower() in TABLES:
        header = read_text(path).partition("\n")[0]
        return not {"question", "context", "text"}.isdisjoint(name.strip(' "') for name in re.split("[,;\t]", header))
    if path.suffix.lower() != ".ndjson":
        return True
    items = split_json_items(read_text(path).encode(), str(path))
    first = parse_json_or_none(items[0][1]) if items else None
    return not isinstance(first, dict) or not {"chunks", "messages", "role", "content"}.isdisjoint(first)


def _as_dataset(value: Any) -> Dataset | None:
    """Return a `datasets.Dataset` as it is, None for anything else; does not import the package.

    Raises:
        DataError: It is a set of several splits, or is read as a stream.
    """
    datasets = sys.modules.get("datasets")
    if datasets is None or isinstance(value, str | Path):
        return None
    if isinstance(value, datasets.DatasetDict | datasets.IterableDatasetDict):
        raise DataError(f"this Dataset has splits: give one of them ({', '.join(map(repr, value))})")
    if isinstance(value, datasets.IterableDataset):
        raise DataError("this Dataset is a stream: load it with streaming=False")
    return value if isinstance(value, datasets.Dataset) else None


def load_training_tasks(source: str, *, on_evaluation_split: bool = False) -> list[Task]:
    """Load the tasks that a training run takes from its `data`.

    A named data set gives its training split (`DataSet.training_variants`, `DataSet.training_options`). A task file is
    read whole: its owner decides what it holds.

    Args:
        source: Name of a data set, or the path of a task file.
        on_evaluation_split: Load the set's default evaluation split instead of its training split.

    Raises:
        ConfigError: The set has no training split, or `on_evaluation_split` is set for a task file.
        DataError: The files are missing or do not fit.
    """
    if source not in MODULES:
        if on_evaluation_split:
            raise ConfigError(
                f"train_on_evaluation_split: has no effect with data={source}, which is no named data set; leave it out"
            )
        return load_tasks(source)
    dataset = get_data_set(source)
    if on_evaluation_split:
        return _load_split(dataset, dataset.evaluation_variant, {})
    if not dataset.has_training_split:
        raise ConfigError(
            f"data: {source} is for evaluation only: no split of it is marked for training, and a score on tasks that "
            "were trained on measures nothing; train on a set with a training split (memalpha data list NAME shows "
            "it) or on a task file of your own, or set train_on_evaluation_split=true and report no score on it"
        )
    return _load_split(dataset, dataset.training_variant, dict(dataset.training_options))


def load_evaluation_tasks(source: str, limit: int | None = None) -> list[Task]:
    """Load held-out tasks of a named data set or a task file.

    A named data set gives its first variant that is no training split.

    Args:
        source: Name of a data set, or the path of a task file.
        limit: Return the first `limit` tasks only.

    Raises:
        DataError: The files are missing or do not fit.
    """
    return load_tasks(source, limit, variant=get_data_set(source).evaluation_variant if source in MODULES else None)


def _load_split(dataset: DataSet, variant: str | None, options: dict[str, object]) -> list[Task]:
    try:
        path = locate(dataset, variant, None)
    except DataError as error:
        selection = [f"variant={variant}"] if variant is not None else []
        selection += [f"{key}={value}" for key, value in options.items()]
        command = " ".join(["memalpha data prepare", dataset.name, "tasks.jsonl data=PATH", *selection])
        raise DataError(f"data: {error}; then write a task file ({command}) and train with data=tasks.jsonl") from error
    return _checked(dataset.name, read_set(dataset.name, path, variant, validate_options(dataset.name, options)))


def _checked(name: str, tasks: list[Task]) -> list[Task]:
    """Return the tasks of a named set. Raises `DataError` for one of files that no task file could hold."""
    try:
        return tasks if get_data_set(name).ships else list(check_tasks(tasks))
    except DataError as error:
        raise DataError(f"{name}: {error}") from error


def check_outputs(path: Path, held_out: Path | None, sources: Iterable[str | Path]) -> None:
    """Refuse task files that could not be read back, are one file, or would replace what they are made from.

    Args:
        path: The task file to write.
        held_out: The second task file, if any.
        sources: Files that the tasks are read from; names of data sets do no harm.

    Raises:
        ConfigError: The message names the file.
    """
    if held_out is not None and held_out.absolute() == path.absolute():
        raise ConfigError(f"--held-out {held_out}: name another file than --out")
    for target in (path, held_out):
        if target is None:
            continue
        if target.suffix != ".jsonl":
            raise ConfigError(f"{target}: tasks are written as JSON Lines: name a .jsonl file")
        if any(target.resolve() == Path(source).resolve() for source in sources):
            raise ConfigError(f"{target}: is the file that is read: name another file to write")


def hold_out(tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """Set a fifth of the tasks aside.

    It is chosen by a hash of the conversations: equal ones are on one side, and the order of the tasks has no part.

    Returns:
        Four fifths and a fifth.

    Raises:
        DataError: There are fewer than two different conversations.
    """
    texts = ["\n\n".join(chunk.render() for chunk in task.chunks) for task in tasks]
    ordered = sorted(set(texts), key=lambda text: hashlib.sha256(text.encode("utf-8", "replace")).digest())
    if len(ordered) < 2:
        raise DataError(
            "--held-out: there is one conversation, and whole ones are held out: make it a task for each customer, "
            "project or chat, or leave --held-out out"
        )
    fifth = set(ordered[: max(1, len(ordered) // 5)])
    sides: tuple[list[Task], list[Task]] = ([], [])
    for task, text in zip(tasks, texts, strict=True):
        sides[text in fifth].append(task)
    return sides


def save_tasks(tasks: Sequence[Task], path: Path, held_out: Path | None = None) -> None:
    """Write tasks to a task file, and a fifth of them to another one.

    Args:
        tasks: The tasks.
        path: The task file.
        held_out: File of the fifth (`hold_out`); None writes all tasks to `path`.

    Raises:
        DataError: There are fewer than two different conversations, or a file cannot be written.
    """
    rest, fifth = (tasks, []) if held_out is None else hold_out(tasks)
    save_jsonl(rest, path)
    if held_out is not None:
        save_jsonl(fifth, held_out)
