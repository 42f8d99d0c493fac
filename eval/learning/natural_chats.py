"""What writers keep of short natural chats, without a reader: `python eval/learning/natural_chats.py TASKS WRITER...`.

    scripts/make_smol_rows.py --chats --held-out chats.jsonl --count 40 --seed 5
    python eval/learning/natural_chats.py chats.jsonl smol

TASKS is a task file whose gold operations are lines `topic: value`: an entry states such a fact if it has the words of
its value. `natural_chats.jsonl` beside this file has 104 chats by two other authors, language models, who had seen no
training row. There `meta` says which parts an entry must have to state a fact, which show that something false was kept
(a joke, hearsay, a slip), and which are true beside the facts. Every writer reads each chat as a user would let it:
`MemoryAgent(WRITER, store).read(chunk)`. Figures, over the memory after the last chunk:

- kept: share of the facts that still hold and stand in an entry
- updates: share of the changed facts whose new value stands in an entry and whose old one in none
- retractions: share of the ended facts that no entry states, of those that stood in the memory before
- stale: share of entries that state only what no longer holds
- never true: share of entries that state something false (a whole line of the chat does not), or match no fact and are
  no part of a line
- answers: share of right answers of `MemoryAgent.ask`; a question without an answer wants none

Beside the writers stand append-only (every line), add_all (what no assistant said) and the oracle, which has the gold
lines. Intervals are over conversations. Writes STEM.json and STEM.md to --results.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from queue import Empty, Queue
from threading import Condition
from typing import Any

from tqdm import tqdm

from memalpha import MemoryAgent, MemoryStore, load_policy, load_tasks
from memalpha.errors import PolicyError
from memalpha.store.search.lexical import words
from memalpha.store.values import holds_answer
from memalpha.types import Completion, SampleRequest, Task

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser, opening, save

BASELINES = ("append-only", "add_all", "oracle")
THREADS = 12
"""Chats that a model reads at once; their replies are sampled together and equal those of one chat alone."""
FIGURES = ("kept", "updates", "retractions", "stale", "never true", "answers")


@dataclass(slots=True)
class Fact:
    """Hold one fact.

    Attributes:
        chunk: Chunk that says it.
        kind: "insert", "update" or "delete".
        text: The fact in one line; "" for an end.
        stated_by: Alternatives of parts that an entry must have to state it.
        replaces: Fact that it changes or ends.
        is_live: True if it holds after the last chunk.
    """

    chunk: int
    kind: str
    text: str
    stated_by: list[list[str]]
    replaces: Fact | None
    is_live: bool


def facts_of(task: Task) -> list[Fact]:
    """Return the facts of a task, from its `meta` or else from its net gold operations."""
    facts: list[Fact] = []
    by_id: dict[str, Fact] = {}
    for item in task.meta.get("facts", ()):
        kind = {"update": "update", "retraction": "delete"}.get(item["change"], "insert")
        old = by_id.get(item["replaces"])
        kind = "update" if kind == "insert" and old is not None else kind
        by_id[item["id"]] = Fact(item["chunk"], kind, item["text"], item["kept_if"], old, item["live"])
    if by_id:
        return list(by_id.values())
    live: dict[str, Fact] = {}
    for chunk in task.chunks:
        for operation in task.gold_at(chunk.index):
            old = live.pop(operation.replaces, None) if operation.replaces else None
            if old is not None:
                old.is_live = False
            elif operation.kind == "delete":
                continue
            value = operation.content.partition(": ")[2] or operation.content
            stated_by = [words(value)] if operation.content else []
            fact = Fact(chunk.index, operation.kind, operation.content, stated_by, old, bool(operation.content))
            facts.append(fact)
            if operation.content:
                live[operation.content] = fact
    return facts


def has_parts(entry: str, alternatives: Iterable[list[str]]) -> bool:
    """Return True if an entry has all parts of an alternative: each a whole number, or the start of a word."""
    return any(parts and all(_pattern(part).search(entry) for part in parts) for parts in alternatives)


@cache
def _pattern(part: str) -> re.Pattern[str]:
    spaced = r"\s+".join(map(re.escape, part.split()))
    return re.compile(rf"(?<!\w){spaced}" + (r"(?!\d)" if part[-1].isdigit() else ""), re.IGNORECASE)


def states(entry: str, facts: Iterable[Fact]) -> bool:
    """Return True if an entry states one of the facts."""
    return any(has_parts(entry, fact.stated_by) for fact in facts)


def write_oracle(store: MemoryStore, facts: Iterable[Fact], chunk: int) -> None:
    """Write the gold lines of one chunk."""
    ids = {entry.content: entry.id for entry in store.list()}
    for fact in facts:
        if fact.chunk == chunk:
            if fact.replaces is not None and fact.replaces.text in ids:
                store.delete_many([ids[fact.replaces.text]])
            if fact.kind != "delete":
                store.add(fact.text)


def read_chat(name: str, policy: Any, task: Task) -> tuple[list[list[str]], list[bool]]:
    """Let a writer read one chat.

    Args:
        name: Name of the writer.
        policy: The loaded policy; None for append-only and the oracle.
        task: The chat.

    Returns:
        The entries after each chunk, and for each question whether it was answered rightly.
    """
    facts = facts_of(task)
    with MemoryStore.open(":memory:") as store:
        agent = MemoryAgent(policy or "add_all", store)
        memories = []
        for chunk in task.chunks:
            if name == "oracle":
                write_oracle(store, facts, chunk.index)
            elif name == "append-only":
                store.add_many(f"{turn.speaker}: {turn.text}" for turn in chunk.turns)
            else:
                agent.read(chunk)
            memories.append([entry.content for entry in store.list()] + store.core.splitlines())
        answers = []
        for question in task.questions:
            answer = agent.ask(question.question)
            is_right = any(holds_answer(answer.text, accepted) for accepted in question.answers)
            answers.append(answer.abstained if not question.answers else is_right and not answer.abstained)
        return memories, answers


class SampledTogether:
    """Policy of several threads: what they ask for is sampled in one batch as soon as each of them waits."""

    def __init__(self, policy: Any, threads: int) -> None:
        self.policy, self.name, self.count_tokens = policy, policy.name, policy.count_tokens
        self.prompt, self.form, self.sizes, self.quotes = policy.prompt, policy.form, policy.sizes, policy.quotes
        self._threads, self._turn, self._failed = threads, Condition(), False
        self._waiting: list[tuple[Sequence[SampleRequest], list[Completion]]] = []

    def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return one completion per request; samples for all threads if this is the last that waits."""
        completions: list[Completion] = []
        with self._turn:
            self._waiting.append((requests, completions))
            self._sample_if_all_wait()
            self._turn.wait_for(lambda: len(completions) == len(requests) or self._failed)
            if self._failed:
                raise PolicyError("the batch of all threads could not be sampled")
        return completions

    def leave(self) -> None:
        """Stop waiting for the calling thread, which asks for nothing more."""
        with self._turn:
            self._threads -= 1
            self._sample_if_all_wait()

    def _sample_if_all_wait(self) -> None:
        if not self._waiting or len(self._waiting) < self._threads:
            return
        waiting, self._waiting = self._waiting, []
        try:
            results = iter(self.policy.sample([request for requests, _ in waiting for request in requests]))
            for requests, completions in waiting:
                completions += islice(results, len(requests))
        except BaseException:
            self._failed = True  # else the others would wait for ever
            raise
        finally:
            self._turn.notify_all()


def read_chats(name: str, tasks: Sequence[Task]) -> list[tuple[list[list[str]], list[bool]]]:
    """Let a writer read all chats, `THREADS` at a time if it is a model; return `read_chat` of each."""
    progress = tqdm(total=len(tasks), desc=name, disable=None)
    policy = None if name in BASELINES else SampledTogether(load_policy(name), min(THREADS, len(tasks)))
    results: dict[int, tuple[list[list[str]], list[bool]]] = {}
    remaining = Queue[tuple[int, Task]]()
    for item in enumerate(tasks):
        remaining.put(item)

    def work() -> None:
        try:
            while True:
                try:
                    number, task = remaining.get_nowait()
                except Empty:
                    return
                results[number] = read_chat(name, policy, task)
                progress.update()
        finally:
            if policy is not None:
                policy.leave()

    threads = 1 if policy is None else min(THREADS, len(tasks))
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(work) for _ in range(threads)]:
            future.result()
    return [results[number] for number in range(len(tasks))]


def tally(task: Task, memories: list[list[str]], answers: list[bool]) -> dict[str, list[int]]:
    """Count the figures of one chat: for each of `FIGURES` the number of hits and of cases."""
    facts, entries = facts_of(task), memories[-1]
    counts: dict[str, list[int]] = {name: [0, 0] for name in FIGURES}

    def count(name: str, is_hit: bool) -> None:
        counts[name][0] += is_hit
        counts[name][1] += 1

    for fact in facts:
        old = [fact.replaces] if fact.replaces is not None else []
        is_kept = any(states(entry, [fact]) for entry in entries)
        is_old_there = any(states(entry, old) and not states(entry, [fact]) for entry in entries)
        if fact.is_live:
            count("kept", is_kept)
            if fact.kind == "update":
                count("updates", is_kept and not is_old_there)
        if fact.kind == "delete" and any(states(entry, old) for entry in memories[fact.chunk - 1]):
            count("retractions", not is_old_there)
    lines = [" ".join(words(turn.text)) for chunk in task.chunks for turn in chunk.turns]
    false = [parts for statement in task.meta.get("false", ()) for parts in statement["words"]]
    for entry in entries:
        is_true = states(entry, [fact for fact in facts if fact.is_live])
        is_true = is_true or has_parts(entry, task.meta.get("also_true", ()))
        is_stale = states(entry, [fact for fact in facts if not fact.is_live])
        is_quote = any(" ".join(words(entry.partition(": ")[2] or entry)) in line for line in lines)
        count("stale", is_stale and not is_true)
        is_line = " ".join(words(entry.partition(": ")[2])) in lines or " ".join(words(entry)) in lines
        is_false = has_parts(entry, false) and not is_line and not has_parts(entry, task.meta.get("also_true", ()))
        count("never true", is_false or not (is_true or is_stale or is_quote))
    for is_right in answers:
        count("answers", is_right)
    return counts


def estimate(counts: Sequence[dict[str, list[int]]], name: str) -> dict[str, float | int | None]:
    """Return a figure over all chats with its 95 % interval (bootstrap over chats)."""
    import numpy as np

    pairs = np.array([count[name] for count in counts], dtype=np.float64)
    if not pairs[:, 1].sum():
        return {"value": None, "low": None, "high": None, "cases": 0}
    draws = np.random.default_rng(0).integers(len(pairs), size=(2000, len(pairs)))
    sums = pairs[draws].sum(axis=1)
    low, high = np.quantile(sums[:, 0] / np.maximum(1, sums[:, 1]), (0.025, 0.975))
    hits, cases = pairs.sum(axis=0)
    return {"value": hits / cases, "low": float(low), "high": float(high), "cases": int(cases)}


def measure(name: str, tasks: Sequence[Task]) -> dict[str, Any]:
    """Let a writer read all chats and return its figures, its entries and the CPU-seconds of a chunk."""
    started = time.process_time()
    results = read_chats(name, tasks)
    seconds = time.process_time() - started
    counts = [tally(task, *result) for task, result in zip(tasks, results, strict=True)]
    return {
        "figures": {figure: estimate(counts, figure) for figure in FIGURES},
        "entries": {task.id: memories[-1] for task, (memories, _) in zip(tasks, results, strict=True)},
        "entries_of_a_chat": sum(len(memories[-1]) for memories, _ in results) / len(tasks),
        "cpu_seconds_per_chunk": seconds / sum(len(task.chunks) for task in tasks),
    }


def row(name: str, result: dict[str, Any]) -> str:
    """Format one line of the table."""
    cells = []
    for figure in result["figures"].values():
        if figure["value"] is None:
            cells.append("-")
        else:
            cells.append(f"{figure['value']:.2f} ({figure['low']:.2f} to {figure['high']:.2f})")
    cells += [f"{result['entries_of_a_chat']:.1f}", f"{result['cpu_seconds_per_chunk']:.2f}"]
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    """Measure all writers and write the record."""
    parser = make_parser(__doc__)
    parser.add_argument("tasks", type=Path, help="task file with gold operations")
    parser.add_argument("writers", nargs="*", help="names or directories of policies")
    parser.add_argument("--count", type=int, help="the first chats only")
    parser.add_argument("--stem", default="natural-chats", help="name of the record")
    arguments = parser.parse_args()
    tasks = load_tasks(str(arguments.tasks), arguments.count)
    kinds = Counter(fact.kind for task in tasks for fact in facts_of(task))
    results = {}
    table = [
        f"{len(tasks)} chats: {kinds['insert']} new facts, {kinds['update']} updates, {kinds['delete']} retractions.",
        "",
        "| writer | " + " | ".join(FIGURES) + " | entries a chat | CPU-s a chunk |",
        "|---" * (len(FIGURES) + 3) + "|",
    ]
    for name in (*arguments.writers, *BASELINES):
        results[name] = measure(name, tasks)
        table.append(row(name, results[name]))
        print(table[-1], file=sys.stderr, flush=True)
    save(arguments.results / arguments.stem, results, "\n".join([*opening("Natural chats"), "", *table]))


if __name__ == "__main__":
    main()
