"""Commands on data sets: data list, data prepare, data check, data overlap, data ask, data write."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from memalpha.arguments import counted
from memalpha.cli.options import (
    Result,
    failed_if,
    format_left_out,
    load_policy,
    parse_writer_settings,
    show_status,
    to_json_value,
)
from memalpha.config import AgentConfig, ReaderConfig, parse_overrides
from memalpha.errors import ConfigError
from memalpha.policy.base import BilledPolicy, Policy, format_bill
from memalpha.qa.progress import show_progress
from memalpha.tasks.catalog import get_data_set, list_data_sets, loader_options
from memalpha.tasks.formats.chats import count_left_out
from memalpha.tasks.formats.jsonl import summarize_tasks
from memalpha.tasks.load import check_outputs, load_tasks, save_tasks
from memalpha.text_files import lock_file

if TYPE_CHECKING:
    from memalpha.qa.verify import DataCheck
    from memalpha.tasks.dataset_info import DataSet

FEW_TASKS = 5
"""Fewer than these are too few to train on, a fifth of them held out (`train.rollouts.memory_tasks`)."""
_MAX_PROBLEMS = 20
_MAX_ELSEWHERE = 5

Name = Annotated[str, Argument(metavar="NAME", help="A data set's name, a task file, a chat, or a folder of chats.")]
DataOptions = Annotated[
    list[str] | None,
    Argument(
        metavar="[KEY=VALUE]...", help="data=PATH, variant=…, limit=…, chunk_tokens=…, and the data set's own options."
    ),
]


def list_(name: Annotated[str | None, Argument()] = None) -> Result:
    """List data sets and how to get them.

    With a NAME: source, licence, files with their checksums, variants, options, counts, known faults.

    Example: memalpha data list locomo

    Args:
        name: Show only this data set, in detail.
    """
    infos = list_data_sets() if name is None else [get_data_set(name)]
    values = [{**to_json_value(info), "options": loader_options(info.name)} for info in infos]
    if name is not None:
        return Result(values[0], "\n".join(_format_details(infos[0])))
    lines = []
    for info in infos:
        host, _, location = info.source.partition(":")
        where = f"hub {location}" if host == "hub" else f"data=PATH from GitHub {location}"
        if info.ships:
            where = "generated" if info.source == "made here" else "ships"
        sizes = [file.size for file in info.files_for(None)]
        if sizes and None not in sizes:
            where += f", {sum(size or 0 for size in sizes) / 1e6:,.1f} MB"
        lines.append(f"{info.name:<17} {info.about}\n{'':<17} {info.counts}\n{'':<17} {where}; {info.licence}")
    return Result(values, "\n".join(lines))


def prepare(
    name: Name,
    out: Path,
    overrides: DataOptions = None,
    data: Path | None = None,
    limit: int | None = None,
    seed: int | None = None,
    held_out: Path | None = None,
) -> Result:
    """Convert a data set to a task file.

    Data sets on a hub are downloaded. A task file passed as NAME is checked line by line and copied. Prints counts of
    tasks, chunks and questions.

    Example: memalpha data prepare locomo locomo.jsonl data=locomo10.json

    Args:
        out: The task file to write (JSON Lines).
        data: The same as data=PATH.
        limit: Only the first tasks.
        seed: Seed of a data set that is generated or sampled.

    Raises:
        ConfigError: An option is given twice.
        DataError: The set is unknown, or its files are missing or do not fit.
    """
    options = _load_options(_parse_options(overrides))
    for key, value in (("data", data), ("limit", limit), ("seed", seed)):
        if value is not None and key in options:
            raise ConfigError(f"--{key} and {key}=: give one of them")
        if value is not None:
            options[key] = value
    check_outputs(out, held_out, [name, *([options["data"]] if "data" in options else [])])
    with show_status(f"reading {name}"):
        tasks = load_tasks(name, **options)
        save_tasks(tasks, out, held_out)
        held = 0 if held_out is None else len(load_tasks(held_out))
    counts, left_out = summarize_tasks(tasks), count_left_out(tasks)
    categories = ", ".join(f"{category} {count}" for category, count in counts["categories"].items())
    lines = [
        f"{counted(counts['tasks'] - held, 'task')}: {out}" + (f"; {held} held out: {held_out}" if held else ""),
        f"{counted(counts['chunks'], 'chunk')}, the longest of {counts['longest_chunk']} characters",
        f"{counted(counts['questions'], 'question')}, {counts['to_abstain']} of them without an answer",
        f"gold operations in {counts['with_gold']} of {counted(counts['tasks'], 'task')}"
        + (f": {categories}" if categories else ""),
        *([f"left out   {format_left_out(left_out)}"] if left_out else []),
    ]
    value = {**counts, "left_out": left_out, "held_out": held, "path": str(out)}
    return Result(value, "\n".join(lines))


def check(name: Name, overrides: DataOptions = None) -> Result:
    """Check a data set: checksums, counts, ids, evidence.

    Exits with 1 on problems: files with an unknown checksum, other counts than published, unreadable files, duplicate
    ids, evidence that does not exist. Known faults of the official files are listed.

    Example: memalpha data check locomo data=locomo10.json audit=errors.json

    Raises:
        DataError: The set is unknown, or its files are missing.
    """
    from memalpha.qa.verify import check_data_set as check_data

    with show_status(f"checking {name}"):
        result = check_data(name, **_load_options(_parse_options(overrides)))
    lines = _format_check(result, shlex.join([name, *(overrides or ())]))
    return Result(result, "\n".join(lines), failed_if(result.problems))


def overlap(
    train: str, test: str, overrides: Annotated[list[str] | None, Argument(metavar="[KEY=VALUE]...")] = None
) -> Result:
    """Find the overlap of a training set with a test set: shared questions, passages and n-grams.

    Prints how many test questions are in the training set, how many rest on its passages, and examples. Exits with 1
    if there are any.

    Example: memalpha data overlap trec trec train.data=trec train.split=train test.data=trec

    Args:
        train: The training set: a name or a task file.
        test: The test set.
        overrides: train.data=PATH, test.variant=… (as above); n=13, common=10, examples=20.

    Raises:
        ConfigError: An option does not fit.
        DataError: A set is unknown, or its files are missing.
    """
    from memalpha.tasks.overlap import INSIDE, LEAKED, RESTING, find_overlap

    keys = parse_overrides(overrides or [])
    side_options = {side: keys.pop(side, {}) for side in ("train", "test")}
    for side, options in side_options.items():
        if not isinstance(options, Mapping):
            raise ConfigError(f"{side}={options!r}: name an option, as in {side}.data=PATH")
    if unknown := set(keys) - {"n", "common", "examples"}:
        raise ConfigError(
            f"{sorted(unknown)[0]}: not an option of overlap: write train.…, test.…, n=, common= or examples="
        )
    for key, value in keys.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"{key}={value!r}: a whole number is needed")
    with show_status(f"reading {train} and {test}"):
        train_tasks, test_tasks = (
            load_tasks(name, **_load_options(side_options[side])) for name, side in ((train, "train"), (test, "test"))
        )
    done, title = count(1), f"comparing {train} with {test}"
    with show_progress("tasks") as report:
        result = find_overlap(
            train_tasks, test_tasks, progress=lambda: report(title, next(done), len(train_tasks)), **keys
        )
    lines = [
        f"{side:<6} {name}: " + ", ".join(f"{size:,} {key}" for key, size in result.sizes[side].items())
        for side, name in (("train", train), ("test", test))
    ]
    reasons_text = {
        "question": "are asked in training, word for word",
        "said": "are in the training text, word for word",
        "within": "are part of a longer training text (look at the examples)",
        "question n-gram": f"share {result.n} consecutive words with a training text",
        "passage": f"rest on a passage of {result.n} words or more that is in training as a whole",
        "passage n-gram": f"rest on a passage that shares {result.n} consecutive words with training",
    }
    for description, reasons, affected in (
        ("are in the training set", LEAKED, result.leaked),
        ("may be in the training set", INSIDE, result.inside),
        ("rest on passages of the training set", RESTING, result.resting),
    ):
        share = len(affected) / max(1, result.questions)
        lines.append(f"{len(affected):,} of {result.questions:,} test questions ({share:.1%}) {description}")
        lines += [f"{result.reasons[reason]:>8,} {reasons_text[reason]}" for reason in reasons if affected]
    lines.append(f"{result.passages['whole']:,} passages are shared as a whole, {result.passages['n-gram']:,} in part")
    for example in result.examples:
        lines.append(f"{example.reason}: {example.task}/{example.question}: {example.text}")
        lines.append(f"{'':>{len(example.reason)}}  {example.train}: {example.train_text}")
    return Result(result, "\n".join(lines), failed_if(result.leaked or result.inside or result.resting))


def _parse_options(words: Sequence[str] | None) -> dict[str, Any]:
    """Return the options of a data set; a second file among them is refused with what to do instead."""
    for word in words or ():
        if "=" not in word and Path(word).exists():
            raise ConfigError(
                f"{word}: one file or folder is read: put several exported chats into a folder and name the folder"
            )
    return parse_overrides(words or [])


def _load_options(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides as keyword arguments of `load_tasks`; paths and variants that YAML read as numbers are text."""
    options = {key: str(value) if key in ("data", "variant") else value for key, value in overrides.items()}
    if not isinstance(options.get("limit", 1), int):
        raise ConfigError(f"limit={options['limit']!r}: a whole number is needed")
    return options


def write(
    name: Name,
    policy: Annotated[str, Option()],
    out: Annotated[Path, Option()],
    overrides: DataOptions = None,
    best_of: Annotated[int, Option(min=1)] = 1,
    temperature: Annotated[float | None, Option(min=0)] = None,
    student: str | None = None,
    reader: str | None = None,
    metric: Literal["contains", "exact", "f1", "question"] = "contains",
    settings: list[str] | None = None,
    price: str | None = None,
) -> Result:
    """Let a strong writer write conversations, and keep what answers best as rows to imitate.

    The questions of each conversation judge every attempt; nobody needs gold operations. NAME.scores.jsonl beside the
    rows says for each conversation what it scored and why it was kept or not. Train on the rows with memalpha train sft
    data=TASKS source=OUT.

    Example: memalpha data write mine.jsonl --policy openai:gpt-5-mini --best-of 4 --student smol --out rows.jsonl

    Args:
        policy: The teacher: openai:MODEL, an endpoint, a run, a model.
        out: File of the rows (.jsonl); the same command resumes.
        best_of: Attempts at each conversation; the best one is kept.
        temperature: Sampling temperature (default: 0 for one attempt, 0.7 for several).
        student: The policy that learns from the rows, for its prompt style: smol, tiny, a run.
        reader: Who answers: extractive, copy, or a policy (default: the teacher itself).
        metric: How answers are scored.

    Raises:
        ConfigError: A setting does not fit.
        DataError: The conversations or a file cannot be read or written.
        PolicyError: The teacher did not answer; what is done stays.
    """
    from memalpha.agent.prompts import prompted_config
    from memalpha.qa.reader import PolicyReader, load_reader
    from memalpha.qa.teacher import NO_CALL, RowsFile, load_teacher, write_rows

    file, tasks = RowsFile(out), list(load_tasks(name, **_load_options(_parse_options(overrides))))
    with show_status(f"loading {policy}"):
        teacher = load_teacher(policy, _parse_price(price))
    # A script answers nothing.
    own = "extractive" if teacher.name.startswith("scripted:") else ReaderConfig(kind="policy")
    answers = load_reader(reader or own, teacher, frozen=True)
    lock = lock_file(file.scores_path, "another memalpha data write", ConfigError)
    with lock, show_progress("conversations") as progress:
        file = RowsFile(out)  # again: another process may have ended since
        results = write_rows(
            tasks,
            teacher,
            file,
            reader=answers,
            metric=metric,
            config=parse_writer_settings(settings),
            student=None if student is None else prompted_config(AgentConfig(), load_policy(student)),
            attempts=best_of,
            temperature=(0.7 if best_of > 1 else 0.0) if temperature is None else temperature,
            progress=lambda done, total: progress("writing", done, total),
        )
    reasons = Counter(result.reason for result in results)
    rows = sum(result.rows for result in results)
    lines = [f"{counted(rows, 'row')} of {reasons['kept']} of {counted(len(results), 'conversation')}: {out}"]
    lines += [f"{count} not kept: {reason}" for reason, count in reasons.items() if reason != "kept"]
    lines += [f"{file.repeated} written again: {NO_CALL} in an earlier call"] * bool(file.repeated)
    unread = sum(result.unread for result in results)
    if unread:
        lines.append(f"{counted(unread, 'chunk')} of kept conversations without a row: the reply held no readable call")
    others = sum(bool(result.scores) and result.teacher != file.teacher for result in results)
    if others:
        lines.append(
            f"{counted(others, 'conversation')} kept as an earlier call wrote and scored: see {file.scores_path}"
        )
    asked = [max(result.scores) for result in results if result.scores and result.teacher == file.teacher]
    if asked:
        lines.append(f"mean score of the best attempts {sum(asked) / len(asked):.3f}, answered by {answers.name}")
        only_weak = not rows and not reasons[NO_CALL]
        lines += ["--reader names another to answer: extractive, copy or a model"] * only_weak
        if sum(reasons.values()) > reasons["kept"] + reasons[NO_CALL]:
            lines.append(f"these stay as they are: without {file.scores_path} the same command writes them again")
    if reasons[NO_CALL]:
        lines.append(
            f"{NO_CALL}: look at the replies in {file.scores_path}; memalpha check-policy {policy} says whether its "
            "calls can be read; the same command writes these again"
        )
    value = {"path": str(out), "rows": rows, "conversations": len(results), "reasons": dict(reasons)}
    value |= {"written_again": file.repeated}
    policies = [teacher, answers.policy] if isinstance(answers, PolicyReader) else [teacher]
    lines += _format_bills(*policies)
    return Result(value | _bills(*policies), "\n".join(lines), failed_if(results and not rows))


def ask(
    name: Name,
    policy: Annotated[str, Option()],
    out: Annotated[Path, Option()],
    overrides: DataOptions = None,
    per_chunk: Annotated[int, Option(min=1)] = 3,
    split: Annotated[int | None, Option(min=1)] = None,
    reader: str | None = None,
    metric: Literal["contains", "exact", "f1"] = "contains",
    thinking_tokens: Annotated[int, Option(min=0)] = 0,
    held_out: Path | None = None,
    price: str | None = None,
) -> Result:
    """Let a model ask questions about conversations that have none.

    It asks about each chunk and quotes the words that answer. A question is kept if the chunk alone answers it, and
    nothing at all does not. Its answer is tested again on what was said later: if it changed, the question is asked
    right after its chunk, otherwise at the end. NAME.asked.jsonl beside the tasks says what was dropped and why.
    --held-out sets a fifth of the tasks aside. Questions have the category made and meta.made_by. A chat that
    an app exported is read as it is.

    Example: memalpha data ask chat.txt --policy openai:gpt-5-mini --split 8 --out train.jsonl --held-out held-out.jsonl

    Args:
        policy: The model that asks: openai:MODEL, an endpoint, a model.
        out: The task file (.jsonl) with questions; the same command resumes.
        per_chunk: Most questions of a chunk.
        split: Cut long conversations into tasks of at most this many chunks.
        reader: Who answers again to test the questions (default: the same model).
        metric: How an answer is compared with the question's.
        thinking_tokens: Room for thoughts before each reply, for a model that thinks.

    Raises:
        ConfigError: A setting does not fit.
        DataError: The conversations or a file cannot be read or written.
        PolicyError: The model did not answer; what is done stays.
    """
    from memalpha.qa.questions import UNREADABLE, Asker, ask_file, load_conversations
    from memalpha.qa.reader import PolicyReader, load_reader
    from memalpha.qa.teacher import load_teacher

    options = _load_options(_parse_options(overrides))
    tasks = load_conversations(name, out, options=options, held_out=held_out, split=split)
    with show_status(f"loading {policy}"):
        teacher = load_teacher(policy, _parse_price(price))
    asker = Asker(
        teacher,
        None if reader is None else load_reader(reader),
        number=per_chunk,
        metric=metric,
        thinking_tokens=thinking_tokens,
    )
    tasks, results = ask_file(tasks, asker, out, held_out)
    made = [question for result in results for question in result.kept]
    at_end = sum(question["asked_after_chunk"] is None for question in made)
    reasons = Counter(question["reason"] for result in results for question in result.dropped)
    lines = [
        f"{counted(len(made), 'question')} about {len(tasks)} of "
        + counted(len({result.task for result in results}), "conversation")
        + (f": {out}" + (f" and {held_out}" if held_out else "") if tasks else ""),
        f"{at_end:>6} asked at the end",
        f"{len(made) - at_end:>6} asked earlier: later words change the answer, or are too many to test at once",
        *(f"{count:>6} dropped: {reason}" for reason, count in reasons.most_common()),
        *[f"{asker.repeated:>6} asked again: an earlier reply was no list of questions"] * bool(asker.repeated),
        f"made by {teacher.name}; what was dropped: {out.with_suffix('.asked.jsonl')}",
        *["replies that are no list of questions are asked again by the same command"] * bool(reasons[UNREADABLE]),
        *["what was dropped for another reason stays so; without that file the same command asks about all again"]
        * (reasons.total() > reasons[UNREADABLE]),
    ]
    value = {"path": str(out), "tasks": len(tasks), "chunks": len(results), "questions": len(made)}
    value |= {"at_end": at_end, "dropped": dict(reasons), "asked_again": asker.repeated}
    policies = [teacher, asker.reader.policy] if isinstance(asker.reader, PolicyReader) else [teacher]
    lines += _format_bills(*policies)
    return Result(value | _bills(*policies), "\n".join(lines), failed_if(not made))


def _parse_price(price: str | None) -> tuple[float, float] | None:
    """Parse `PROMPT,GENERATED`."""
    if price is None:
        return None
    try:
        prompt, generated = map(float, price.split(","))
    except ValueError as error:
        raise ConfigError(f"--price {price}: two numbers are needed, as in --price 0.25,2") from error
    return prompt, generated


def _bills(policy: Policy, reader: Policy | None = None) -> dict[str, Any]:
    bills = {"bill": policy, "reader_bill": None if reader is policy else reader}
    return {name: billed.statistics() for name, billed in bills.items() if isinstance(billed, BilledPolicy)}


def _format_bills(*policies: Policy) -> list[str]:
    """Format what the answers of this call cost, for each policy behind an endpoint."""
    billed = [policy for policy in dict.fromkeys(policies) if isinstance(policy, BilledPolicy)]
    return [f"in this call, {format_bill(policy.name, policy.statistics())}" for policy in billed]


def _format_details(info: DataSet) -> list[str]:
    lines = [
        f"{info.name}: {info.about}",
        f"source     {info.source}" + (f", revision {info.revision}" if info.revision else ""),
        f"licence    {info.licence}",
        f"ships      {'yes' if info.ships else 'no'}",
        f"holds      {info.counts}",
        f"metric     {info.metric}",
    ]
    lines += [f"variants   {', '.join(info.variants)} (the first is the default)"] if info.variants else []
    training = "no split: for evaluation only"
    if info.has_training_split:
        selection = {"variant": info.training_variant} if info.training_variants else {}
        selection |= info.training_options.get("world", info.training_options)
        training = ", ".join(f"{key}={value}" for key, value in selection.items())
        training += f" (or variant={'|'.join(info.training_variants[1:])})" if info.training_variants[1:] else ""
    lines.append(f"training   {training}")
    options = [f"{key}={value}" for key, value in loader_options(info.name).items()]
    lines += [f"options    {', '.join(options)}"] if options else []
    for file in info.files:
        size = f", {file.size:,} bytes" if file.size is not None else ""
        lines.append(f"file       {file.path}{size}" + (f", sha256 {file.sha256}" if file.sha256 else ""))
    return lines + [f"fault      {fault}" for fault in info.faults]


def _format_check(result: DataCheck, words: str) -> list[str]:
    lines = [f"{result.name}{f' ({result.variant})' if result.variant else ''}"]
    states = {
        "known": "the known file",
        "other": "not the known file",
        "missing": "missing",
        "unknown": "no known checksum",
        "own": f"a file of your own, read as one of {result.name}",
    }
    for file in result.files:
        size = f", {file.size:,} bytes" if file.size is not None else ""
        lines.append(f"file       {file.path}: {states.get(file.state, file.state)}{size}")
    counts = dict(result.counts)
    longest = counts.pop("longest_chunk")
    held = ", ".join(counted(count, key.removesuffix("s")) for key, count in counts.items())
    lines.append(f"holds      {held}; the longest chunk {counted(longest, 'token')}")
    lines += [f"left out   {format_left_out(result.left_out)}"] if result.left_out else []
    evidence = result.evidence
    if evidence["answered"]:
        lines.append(
            f"evidence   named by {evidence['named']:,} of {evidence['answered']:,} answerable questions; it holds the "
            f"answer in {evidence['holds']:,}"
            + (f"; {evidence['unknown']} ids of turns that are not there" if evidence["unknown"] else "")
        )
    if result.elsewhere:
        some = ", ".join(f"{task} {question}" for task, question in result.elsewhere[:_MAX_ELSEWHERE])
        more = ", …" if len(result.elsewhere) > _MAX_ELSEWHERE else ""
        lines.append(f"           without the answer's words: {some}{more} (look whether the turn is the right one)")
    lines += [
        f"marked     {counted(evidence[key], 'question')} as {key}" + " by a model" * (key == "made")
        for key in ("faulty", "leaked", "made")
        if evidence[key]
    ]
    if result.backwards:
        lines.append(
            f"dates      run backwards in {counted(len(result.backwards), 'task')} ({result.backwards[0]}): chunks are "
            "read as they stand, so sort them, unless they are meant so"
        )
    if result.counts["tasks"] and not result.counts["questions"]:
        lines.append(f"no question: memalpha data ask {words} --policy POLICY --out questions.jsonl makes some")
    if 0 < result.counts["tasks"] < FEW_TASKS:
        lines.append(
            f"few tasks: each is one memory, of a customer, a project or a chat; training needs {FEW_TASKS} or more, "
            "and others that are held out"
        )
    lines += [f"fault      {fault}" for fault in result.faults]
    lines += [f"PROBLEM    {problem}" for problem in result.problems[:_MAX_PROBLEMS]]
    if len(result.problems) > _MAX_PROBLEMS:
        lines.append(f"PROBLEM    {len(result.problems) - _MAX_PROBLEMS} more (--json has all)")
    return [*lines, "sound" if not result.problems else counted(len(result.problems), "problem")]
