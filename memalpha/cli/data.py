"""The commands on data sets: list, prepare, check, overlap."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from memalpha.cli.store import AsJson, plain, print_result
from memalpha.config import parse_overrides
from memalpha.errors import ConfigError

if TYPE_CHECKING:
    from memalpha.tasks.checks.contamination import Overlap
    from memalpha.tasks.checks.verify import DataCheck
    from memalpha.tasks.dataset_info import DataSet

_SHOWN = 20

Name = Annotated[str, typer.Argument(metavar="NAME", help="A data set's name, or a task file.")]
Options = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="data=PATH, variant=…, limit=…, and the set's own options."),
]


def list_(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this one, with all that is known.")] = None,
    as_json: AsJson = False,
) -> None:
    """List data sets and how to get them.

    With a NAME: source, licence, files with their checksums, variants, options, counts, known faults.

    Example: memalpha data list locomo
    """
    from memalpha.tasks.catalog import data_set, data_sets, options_of

    if name is not None:
        known = data_set(name)
        print_result({**plain(known), "options": options_of(name)}, as_json, "\n".join(_details(known)))
        return
    sets = data_sets()
    lines = [
        f"{of.name:<17} {of.about}\n{'':<17} {of.counts}\n{'':<17} {_how(of)}{_size(of)}; {of.licence}" for of in sets
    ]
    print_result([{**plain(of), "options": options_of(of.name)} for of in sets], as_json, "\n".join(lines))


def prepare(
    name: Name,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The task file to write (JSON Lines).")],
    pairs: Options = None,
    data: Annotated[Path | None, typer.Option(help="The same as data=PATH.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first tasks.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of sets with randomness in them.")] = None,
    as_json: AsJson = False,
) -> None:
    """Turn a data set into a task file.

    What lives on a hub is fetched. A task file given as NAME is checked line by line and copied. Says what the tasks
    hold.

    Example: memalpha data prepare locomo locomo.jsonl data=locomo10.json
    """
    from memalpha.tasks.formats.jsonl import overview, save_jsonl
    from memalpha.tasks.load import load_tasks

    options = _options(parse_overrides(pairs or []))
    for key, value in (("data", data), ("limit", limit), ("seed", seed)):
        if value is not None and key in options:
            raise ConfigError(f"--{key} and {key}=: give one of them")
        if value is not None:
            options[key] = value
    with _status(f"reading {name}"):
        tasks = load_tasks(name, **options)
        save_jsonl(tasks, out)
    held = overview(tasks)
    kinds = ", ".join(f"{name} {count}" for name, count in held["categories"].items())
    lines = [
        f"{held['tasks']} tasks: {out}",
        f"{held['chunks']} chunks, the longest of {held['longest_chunk']} characters",
        f"{held['questions']} questions, {held['to_abstain']} of them without an answer",
        f"gold operations in {held['with_gold']} of {held['tasks']} tasks" + (f": {kinds}" if kinds else ""),
    ]
    print_result({**held, "path": str(out)}, as_json, "\n".join(lines))


def check(name: Name, pairs: Options = None, as_json: AsJson = False) -> None:
    """Check a data set: checksums, counts, ids, evidence.

    Exit code 1 where something is wrong: files that are not the known ones, counts that differ, a file that cannot be
    read, ids that occur twice, evidence that is not there. Faults that the official files have are listed.

    Example: memalpha data check locomo data=locomo10.json audit=errors.json
    """
    from memalpha.tasks.checks.verify import check as look

    with _status(f"checking {name}"):
        found = look(name, **_options(parse_overrides(pairs or [])))
    print_result(found, as_json, "\n".join(_checked(found)))
    if found.problems:
        raise typer.Exit(1)


def overlap(
    train: Annotated[str, typer.Argument(metavar="TRAIN", help="The training set: a name or a task file.")],
    test: Annotated[str, typer.Argument(metavar="TEST", help="The test set.")],
    pairs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="train.data=PATH, test.variant=… (as above); n=13, common=10, examples=20."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What a training set has of a test set: shared questions, passages and n-grams.

    Says how many test questions are in the training set themselves, how many rest on passages of it, and where. Exit
    code 1 where there are any.

    Example: memalpha data overlap trec trec train.data=trec train.split=train test.data=trec
    """
    from memalpha.tasks.checks.contamination import overlap as compare
    from memalpha.tasks.load import load_tasks

    given = parse_overrides(pairs or [])
    sides = {side: given.pop(side, {}) for side in ("train", "test")}
    for side, options in sides.items():
        if not isinstance(options, Mapping):
            raise ConfigError(f"{side}={options!r}: name an option, as in {side}.data=PATH")
    if unknown := set(given) - {"n", "common", "examples"}:
        raise ConfigError(
            f"{sorted(unknown)[0]}: not an option of overlap: write train.…, test.…, n=, common= or examples="
        )
    for key, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"{key}={value!r}: a whole number is needed")
    with _status(f"reading {train} and {test}"):
        trained, tested = (
            load_tasks(name, **_options(sides[side])) for name, side in ((train, "train"), (test, "test"))
        )
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"{train} beside {test}", total=len(trained))
        found = compare(trained, tested, progress=lambda: progress.advance(bar), **given)
    print_result(found, as_json, "\n".join(_overlap(found, train, test)))
    if found.leaked or found.inside or found.resting:
        raise typer.Exit(1)


COMMANDS = (list_, prepare, check, overlap)


# ------------------------------------------------------------------------------------------------------------ helpers


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides as keyword arguments of `load_tasks`: YAML takes a path or variant that looks like a number for one."""
    options = {key: str(value) if key in ("data", "variant") else value for key, value in given.items()}
    if not isinstance(options.get("limit", 1), int):
        raise ConfigError(f"limit={options['limit']!r}: a whole number is needed")
    return options


def _status(text: str) -> AbstractContextManager[object]:
    return Console(stderr=True).status(text)


def _how(known: DataSet) -> str:
    if known.ships:
        return "made here" if known.source == "made here" else "ships"
    kind, _, where = known.source.partition(":")
    return f"hub {where}" if kind == "hub" else f"data=PATH from GitHub {where}"


def _size(known: DataSet) -> str:
    """Of the files of the default variant, where all are known."""
    sizes = [file.size for file in known.files_for(None)]
    return f", {sum(size or 0 for size in sizes) / 1e6:,.1f} MB" if sizes and None not in sizes else ""


def _details(known: DataSet) -> list[str]:
    from memalpha.tasks.catalog import options_of

    lines = [
        f"{known.name}: {known.about}",
        f"source     {known.source}" + (f", revision {known.revision}" if known.revision else ""),
        f"licence    {known.licence}",
        f"ships      {'yes' if known.ships else 'no'}",
        f"holds      {known.counts}",
        f"metric     {known.metric}",
    ]
    lines += [f"variants   {', '.join(known.variants)} (the first is the default)"] if known.variants else []
    lines.append(f"training   {_training_split(known)}")
    options = [f"{key}={value}" for key, value in options_of(known.name).items()]
    lines += [f"options    {', '.join(options)}"] if options else []
    for file in known.files:
        size = f", {file.size:,} bytes" if file.size is not None else ""
        lines.append(f"file       {file.path}{size}" + (f", sha256 {file.sha256}" if file.sha256 else ""))
    return lines + [f"fault      {fault}" for fault in known.faults]


def _training_split(known: DataSet) -> str:
    if not known.has_training_split:
        return "no split: for evaluation only"
    options = {"variant": known.training_variant} if known.training_variants else {}
    options |= known.training_options.get("world", known.training_options)
    others = f" (or variant={'|'.join(known.training_variants[1:])})" if known.training_variants[1:] else ""
    return ", ".join(f"{key}={value}" for key, value in options.items()) + others


def _checked(found: DataCheck) -> list[str]:
    lines = [f"{found.name}{f' ({found.variant})' if found.variant else ''}"]
    said = {
        "known": "the known file",
        "other": "not the known file",
        "missing": "missing",
        "unknown": "no known checksum",
    }
    for file in found.files:
        size = f", {file.size:,} bytes" if file.size is not None else ""
        lines.append(f"file       {file.path}: {said.get(file.state, file.state)}{size}")
    lines.append("holds      " + ", ".join(f"{count:,} {key.replace('_', ' ')}" for key, count in found.counts.items()))
    held = found.evidence
    lines.append(
        f"evidence   named by {held['named']:,} of {held['answered']:,} answerable questions; it holds the answer in "
        f"{held['holds']:,}" + (f"; {held['unknown']} ids of turns that are not there" if held["unknown"] else "")
    )
    lines += [f"marked     {held[key]:,} questions as {key}" for key in ("faulty", "leaked") if held[key]]
    lines += [f"fault      {fault}" for fault in found.faults]
    lines += [f"PROBLEM    {problem}" for problem in found.problems[:_SHOWN]]
    if len(found.problems) > _SHOWN:
        lines.append(f"PROBLEM    {len(found.problems) - _SHOWN} more (--json has all)")
    return [*lines, "sound" if not found.problems else f"{len(found.problems)} problems"]


def _overlap(found: Overlap, train: str, test: str) -> list[str]:
    from memalpha.tasks.checks.contamination import INSIDE, LEAKED, RESTING

    lines = [
        f"{side:<6} {name}: " + ", ".join(f"{count:,} {key}" for key, count in found.sizes[side].items())
        for side, name in (("train", train), ("test", test))
    ]
    said = {
        "question": "are asked in training, word for word",
        "said": "stand in the training text, word for word",
        "within": "stand inside a longer training text (look at the examples)",
        "question n-gram": f"have {found.n} words in a row in common with a training text",
        "passage": f"rest on one of {found.n} words or more that stands there whole",
        "passage n-gram": f"rest on one that has {found.n} words in a row in common with a training text",
    }
    for what, reasons, affected in (
        ("are in the training set", LEAKED, found.leaked),
        ("may be in it, too", INSIDE, found.inside),
        ("rest on passages of the training set", RESTING, found.resting),
    ):
        share = len(affected) / max(1, found.questions)
        lines.append(f"{len(affected):,} of {found.questions:,} test questions ({share:.1%}) {what}")
        lines += [f"{found.reasons[reason]:>8,} {said[reason]}" for reason in reasons if affected]
    lines.append(f"{found.passages['whole']:,} passages are shared whole, {found.passages['n-gram']:,} in part")
    for example in found.examples:
        lines.append(f"{example.reason}: {example.task}/{example.question}: {example.text}")
        lines.append(f"{'':>{len(example.reason)}}  {example.train}: {example.train_text}")
    return lines
