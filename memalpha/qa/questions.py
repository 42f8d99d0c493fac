"""Let a model ask questions about conversations that have none, and keep those that test memory.

Questions are made from each chunk, and a question is kept if the chunk alone answers it (Fine-Mem: Ma et al. 2026,
arXiv 2601.08435). Beyond the paper: the model must quote the words that answer, which become the evidence; a question
that is answered without the conversation is dropped; and each question is answered again from the chunk and what was
said after it. If that changes the answer, it is asked right after its chunk, otherwise at the end.

Kept questions have the category `made` and `meta.made_by`. Beside the task file, `NAME.asked.jsonl` has a line for each
chunk: what was kept, what was dropped and why. With it a stopped call resumes. A chunk whose reply was no list of
questions is then asked about again: its model, or the model's server, failed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from memalpha.agent.parsing import after_thinking
from memalpha.agent.reader import Item, Reader, RetrievedMemory, check_answers
from memalpha.config import ReaderConfig
from memalpha.errors import ConfigError, DataError
from memalpha.policy.base import Policy, sample_checked
from memalpha.policy.chat.text import enclose, plain_text
from memalpha.qa.progress import show_progress
from memalpha.qa.reader import load_reader
from memalpha.qa.scoring.metrics import is_correct, score_question
from memalpha.qa.systems import passages_as_hits, turn_passages
from memalpha.qa.teacher import REPLY_CHARACTERS, append_lines, read_lines
from memalpha.store.values import contains, is_same
from memalpha.tasks.formats.chats import with_turn_ids
from memalpha.tasks.formats.files import build_task
from memalpha.tasks.load import check_outputs, hold_out, load_tasks, save_tasks
from memalpha.text_files import lock_file
from memalpha.types import Chunk, Question, SampleRequest, Task

UNREADABLE = "the reply is no list of questions"
"""Reason of a chunk that is asked about again when the call resumes."""

CATEGORY = "made"
"""Category of questions that a model made."""

PARALLEL_CHUNKS = 16
"""Chunks that are asked about at the same time; a stopped call loses at most these."""

LATER_CHARACTERS = 40_000
"""Most text that a question is answered from again: its chunk and as many of the following ones as fit."""

ANSWER_TOKENS, QUESTION_TOKENS = 64, 512
"""Room for an answer, and for a question with answer and quote."""

_SYSTEM = """\
You write questions that test what somebody remembers of a conversation, long after it ended. You are shown one part \
of it. Ask about facts worth remembering: who people are, what they have, plan, prefer or decided, and what changed. \
Name people and things, so that each question can be understood without the part; never write "the speaker", "here" or \
"this conversation". The answer is the shortest exact phrase of the part: a name, a date, a value.
Reply with a JSON list of at most {number} objects, and nothing else:
[{{"question": "...", "answer": "...", "quote": "..."}}]
The quote is the sentence of the part that holds the answer, word for word. Reply with [] if nothing is worth asking.\
"""


@dataclass(frozen=True, slots=True)
class AskedChunk:
    """Questions made from one chunk.

    Attributes:
        task: Id of the conversation.
        chunk: Index of the chunk.
        asker: Who asked, answered and scored, as one text.
        digest: Checksum of the text that was read.
        kept: Questions that were kept, as fields of `Question`.
        dropped: Questions that were dropped, each with `question`, `answer` and `reason`; an unreadable reply is one.
            `reply` is its beginning, or what was answered from the chunk instead.
    """

    task: str
    chunk: int
    asker: str
    digest: str
    kept: list[dict[str, Any]] = field(default_factory=list)
    dropped: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Job:
    """One chunk to ask about: its task and the index of the last chunk that is read with it."""

    task: Task
    chunk: Chunk
    last: int
    digest: str


@dataclass(slots=True)
class _Draft:
    """A question under test; `reason` says why it is dropped, None while it is not, and `reply` what was replied."""

    job: _Job
    question: str
    answer: str
    quote: str
    reason: str | None = None
    holds_later: bool = False
    reply: str = ""


class Asker:
    """Make questions from chunks and test them.

    Args:
        policy: Model that asks.
        reader: Who answers. Default: the same model.
        number: Most questions of a chunk.
        metric: Metric that compares answers.
        thinking_tokens: Room for thoughts before a reply.

    Attributes:
        repeated: Chunks that the last call of `ask_tasks` asked about again, because an earlier reply was unreadable.
    """

    def __init__(
        self,
        policy: Policy,
        reader: Reader | None = None,
        *,
        number: int = 3,
        metric: str = "contains",
        thinking_tokens: int = 0,
    ) -> None:
        settings = ReaderConfig(kind="policy", max_new_tokens=ANSWER_TOKENS, thinking_tokens=thinking_tokens)
        self.policy = policy
        self.reader = load_reader(settings, policy, frozen=True) if reader is None else reader
        self.number, self.metric, self.thinking_tokens = number, metric, thinking_tokens
        self.repeated = 0
        self.name = f"{policy.name}, {number} a chunk, answered by {self.reader.name}, {metric}"

    def ask(self, jobs: Sequence[_Job]) -> list[AskedChunk]:
        """Make the questions of several chunks, and test them all at once."""
        requests = [self._request(job) for job in jobs]
        replies = sample_checked(self.policy, requests)
        drafts = [list(_parse(reply.text, job, self.number)) for reply, job in zip(replies, jobs, strict=True)]
        self._test([draft for chunk in drafts for draft in chunk])
        return [self._build(job, chunk) for job, chunk in zip(jobs, drafts, strict=True)]

    def _request(self, job: _Job) -> SampleRequest:
        date = f"The part is of {job.chunk.timestamp}.\n" if job.chunk.timestamp else ""
        messages = (
            {"role": "system", "content": _SYSTEM.format(number=self.number)},
            {"role": "user", "content": date + enclose("part", plain_text(job.chunk.render()))},
        )
        room = QUESTION_TOKENS * self.number
        return SampleRequest(messages, max_new_tokens=room, thinking_tokens=self.thinking_tokens)

    def _test(self, drafts: Sequence[_Draft]) -> None:
        """Set why drafts are dropped, and whether the answers of the others still hold later."""
        for draft, is_right, text in self._answer(drafts, lambda job: [job.chunk]):
            if not is_right:
                draft.reason, draft.reply = "not answered from its chunk alone", text[:REPLY_CHARACTERS]
        for draft, is_right, _ in self._answer(drafts, lambda job: []):
            draft.reason = "answered without the conversation" if is_right else None
        changing = [draft for draft in drafts if draft.job.last > draft.job.chunk.index]
        for draft, is_right, _ in self._answer(changing, lambda job: job.task.chunks[job.chunk.index : job.last + 1]):
            draft.holds_later = is_right

    def _answer(
        self, drafts: Sequence[_Draft], chunks_of: Callable[[_Job], Sequence[Chunk]]
    ) -> list[tuple[_Draft, bool, str]]:
        """Answer the questions that are not dropped from some chunks; return draft, True if right, and the answer."""
        drafts = [draft for draft in drafts if draft.reason is None]
        if not drafts:
            return []
        items: list[Item] = []
        for draft in drafts:
            passages = [passage for chunk in chunks_of(draft.job) for passage in turn_passages(chunk)]
            items.append((draft.question, RetrievedMemory(passages_as_hits(passages))))
        answers = check_answers(self.reader, len(items), lambda: self.reader.answer(items))
        results = []
        for draft, answer in zip(drafts, answers, strict=True):
            question = Question(id="draft", question=draft.question, answers=(draft.answer,))
            score = score_question(question, answer, self.metric) or 0.0
            results.append((draft, is_correct(question, score, self.metric), answer.text))
        return results

    def _build(self, job: _Job, drafts: Sequence[_Draft]) -> AskedChunk:
        kept = [draft for draft in drafts if draft.reason is None]
        turns = [turn for turn in job.chunk.turns if turn.id]
        questions = []
        for number, draft in enumerate(kept):
            # Evidence is the first turn that holds the quote, or the turns that a longer quote holds.
            holding = [turn.id for turn in turns if contains(f"{turn.speaker}: {turn.text}", draft.quote)]
            last = job.last if draft.holds_later else job.chunk.index  # the answer is known to hold up to there
            questions.append(
                {
                    "id": f"made-{job.chunk.index}-{number}",
                    "question": draft.question,
                    "answers": [draft.answer],
                    "category": CATEGORY,
                    "evidence": holding[:1] or [turn.id for turn in turns if contains(draft.quote, turn.text)],
                    "asked_after_chunk": None if last == len(job.task.chunks) - 1 else last,
                    "meta": {"made_by": self.policy.name, "chunk": job.chunk.index, "quote": draft.quote},
                }
            )
        dropped = [
            {"question": draft.question, "answer": draft.answer, "reason": draft.reason}
            | ({"reply": draft.reply} if draft.reply else {})
            for draft in drafts
            if draft.reason is not None
        ]
        return AskedChunk(job.task.id, job.chunk.index, self.name, job.digest, questions, dropped)


def load_conversations(
    data: str, out: Path, *, options: Mapping[str, Any], held_out: Path | None = None, split: int | None = None
) -> list[Task]:
    """Load the conversations of `ask_file`, and check its files before a model is loaded.

    Args:
        data: Name of a data set, a task file, or an exported chat.
        out: The task file to write, `NAME.jsonl`.
        options: Options of the data set.
        held_out: File for a fifth of the tasks.
        split: Cut conversations into tasks of at most this many chunks.

    Raises:
        ConfigError: `out` is another file, or a file cannot be written (`check_outputs`).
        DataError: The conversations cannot be read, or there are too few to hold some out.
    """
    log = out.with_suffix(".asked.jsonl")
    check_outputs(out, held_out, [data, *([options["data"]] if "data" in options else [])])
    if out.exists() and not log.exists():
        raise ConfigError(
            f"--out {out}: is there already, and {log.name}, which memalpha data ask leaves beside it, is not: name "
            "another file"
        )
    tasks = [with_turn_ids(part) for task in load_tasks(data, **options) for part in _split(task, split)]
    if held_out is not None:
        hold_out(tasks)
    return tasks


def ask_file(
    tasks: Sequence[Task], asker: Asker, out: Path, held_out: Path | None = None
) -> tuple[list[Task], list[AskedChunk]]:
    """Make the questions of conversations and write them as a task file.

    Args:
        tasks: Conversations (`load_conversations`).
        asker: Who asks.
        out: The task file, `NAME.jsonl`.
        held_out: File for a fifth of the tasks; `out` gets the others.

    Returns:
        The tasks that have questions, and the results of all chunks.

    Raises:
        ConfigError: Another process writes `out`.
        DataError: A file cannot be read or written.
        PolicyError: The model did not answer; chunks that are done stay.
    """
    log = out.with_suffix(".asked.jsonl")
    with lock_file(log, "another memalpha data ask", ConfigError), show_progress("chunks") as report:
        results = ask_tasks(tasks, asker, log, progress=lambda done, total: report("asking", done, total))
    asked = []
    for task in tasks:
        made = [Question(**question) for result in results if result.task == task.id for question in result.kept]
        fields = {name: value for name, value in task if name != "questions"}
        asked.append(build_task("memalpha data ask", **fields, questions=(*task.questions, *made)))
    asked = [task for task in asked if task.questions]
    if asked:
        save_tasks(asked, out, held_out)
    return asked, results


def ask_tasks(tasks: Sequence[Task], asker: Asker, log: Path, progress: Callable[[int, int], None]) -> list[AskedChunk]:
    """Make the questions of each chunk; those of an earlier call of the same asker are taken from its log.

    A chunk whose reply was no list of questions is asked about again; `asker.repeated` counts these.

    Args:
        tasks: Conversations; their turns have ids.
        asker: Who asks.
        log: File of the results, appended to.
        progress: Called with (chunks done, all).

    Returns:
        The results of all chunks, in order.
    """
    names = AskedChunk.__dataclass_fields__
    lines = [AskedChunk(**{name: line[name] for name in names}) for line in read_lines(log, names, "memalpha data ask")]
    results = {(line.task, line.chunk, line.asker, line.digest): line for line in lines}
    unreadable = {key for key, line in results.items() if UNREADABLE in (item["reason"] for item in line.dropped)}
    jobs = []
    for task in tasks:
        rendered = [f"{chunk.timestamp}\n{chunk.render()}" for chunk in task.chunks]
        for chunk in task.chunks:
            texts = rendered[chunk.index :]
            room, number = LATER_CHARACTERS - len(texts[0]), 1
            while number < len(texts) and len(texts[number]) <= room:
                room -= len(texts[number])
                number += 1
            digest = hashlib.sha256("\n\n".join(texts[:number]).encode("utf-8", "replace")).hexdigest()[:16]
            jobs.append(_Job(task, chunk, chunk.index + number - 1, digest))
    keys = [(job.task.id, job.chunk.index, asker.name, job.digest) for job in jobs]
    todo = [job for job, key in zip(jobs, keys, strict=True) if key not in results or key in unreadable]
    asker.repeated = len(unreadable.intersection(keys))
    for first in range(0, len(todo), PARALLEL_CHUNKS):
        progress(len(jobs) - len(todo) + first, len(jobs))
        new = asker.ask(todo[first : first + PARALLEL_CHUNKS])
        append_lines(log, [asdict(result) for result in new])
        results |= {(result.task, result.chunk, result.asker, result.digest): result for result in new}
    progress(len(jobs), len(jobs))
    asked: dict[str, list[tuple[str, str]]] = {}
    unique = []
    for result in [results[key] for key in keys]:
        earlier = asked.setdefault(result.task, [])
        kept, dropped = [], list(result.dropped)
        for question in result.kept:
            text, [answer] = question["question"], question["answers"]
            if any(is_same(text, other) and is_same(answer, known) for other, known in earlier):
                dropped.append({"question": text, "answer": answer, "reason": "asked before with the same answer"})
            else:
                earlier.append((text, answer))
                kept.append(question)
        unique.append(replace(result, kept=kept, dropped=dropped))
    return unique


def _parse(text: str, job: _Job, number: int) -> Iterator[_Draft]:
    """Yield the questions of a reply; what is wrong with one is its `reason`."""
    reply = text[after_thinking(text) :]
    try:
        items, _ = json.JSONDecoder().raw_decode(reply, reply.index("["))
    except (ValueError, RecursionError):
        yield _Draft(job, "", "", "", UNREADABLE, reply=text[:REPLY_CHARACTERS])
        return
    for item in items[:number]:
        values = [item.get(name) if isinstance(item, Mapping) else None for name in ("question", "answer", "quote")]
        texts = [str(value).strip() if isinstance(value, str | int | float) else "" for value in values]
        draft = _Draft(job, question=texts[0], answer=texts[1], quote=texts[2])
        if not all(texts):
            draft.reason = "no question with answer and quote"
        elif not contains(job.chunk.render(), draft.quote):
            draft.reason = "the quote is not in the chunk"
        yield draft


def _split(task: Task, size: int | None) -> list[Task]:
    """Return a conversation as tasks of at most `size` chunks."""
    if size is None or len(task.chunks) <= size:
        return [task]
    if task.questions or task.gold_operations:
        raise DataError(f"task {task.id!r} has questions or gold operations: --split is for conversations without")
    parts = []
    for number, first in enumerate(range(0, len(task.chunks), size)):
        chunks = enumerate(task.chunks[first : first + size])
        chunks = tuple(chunk.model_copy(update={"index": index}) for index, chunk in chunks)
        parts.append(task.model_copy(update={"id": f"{task.id}-{number}", "chunks": chunks}))
    return parts
