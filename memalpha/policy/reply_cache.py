"""Keep replies: those of a frozen policy in memory or on disk, and the paid answers of endpoints on disk."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock, RLock
from typing import Any

from memalpha.errors import PolicyError
from memalpha.forks import ForkAware
from memalpha.policy.base import Policy, SamplingQueue, is_endpoint, open_queue, sample_checked, sample_with
from memalpha.types import Completion, SampleRequest

MAX_REPLIES = 4096
"""Replies that a cache keeps; the least recently used is dropped first."""


class ReplyCache(ForkAware):
    """Ask a policy whose weights never change, and keep its replies.

    A greedy reply depends on its request alone (`Policy.sample`), so results equal those without a cache. Kept are text
    and stop reason, under the SHA-256 of the request. Several threads may use one cache.

    Args:
        policy: Frozen policy. Never the one that is trained: its replies change with its weights.
        max_replies: Replies that are kept.

    Attributes:
        requests: Requests so far.
        hits: Requests that an earlier call had answered.
    """

    def __init__(self, policy: Policy, max_replies: int = MAX_REPLIES) -> None:
        self.policy, self.max_replies = policy, max_replies
        self.requests = self.hits = 0
        self._replies: OrderedDict[bytes, Completion] = OrderedDict()
        self._lock = Lock()
        self.watch_forks()

    def reset_in_child(self, state: object) -> None:
        """Take a new lock, and an empty cache: another thread may have been changing it."""
        self._lock, self._replies = Lock(), OrderedDict()

    def __len__(self) -> int:
        return len(self._replies)

    def ask(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return one reply per greedy request, in order, without token ids.

        Raises:
            PolicyError: The policy cannot answer.
        """
        keys = [_request_key(request) for request in requests]
        with self._lock:
            replies = {key: self._replies[key] for key in keys if key in self._replies}
            for key in replies:
                self._replies.move_to_end(key)
            self.requests += len(keys)
            self.hits += sum(key in replies for key in keys)
        new = {key: request for key, request in zip(keys, requests, strict=True) if key not in replies}
        if new:
            completions = sample_checked(self.policy, list(new.values()))
            sampled = {
                key: Completion(completion.text, stop_reason=completion.stop_reason)
                for key, completion in zip(new, completions, strict=True)
            }
            replies |= sampled
            with self._lock:
                self._replies |= sampled
                while len(self._replies) > self.max_replies:
                    self._replies.popitem(last=False)
        return [replies[key] for key in keys]

    def pop_hit_share(self) -> float | None:
        """Return the share of hits since the last call, and start counting anew; None without requests."""
        with self._lock:
            share = self.hits / self.requests if self.requests else None
            self.requests = self.hits = 0
        return share


def cache_frozen(policy: Policy) -> ReplyCache | None:
    """Return a cache for a frozen policy; None for an endpoint, which keeps its answers itself (`endpoint.cache`)."""
    return None if is_endpoint(policy) else ReplyCache(policy)


_SCHEMA = "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, model TEXT NOT NULL, answer TEXT NOT NULL)"
# An answer that is there stays: the update only makes SQLite return it.
_PUT = "INSERT INTO answers VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET answer = answers.answer RETURNING answer"


def answer_key(model: str, request: Mapping[str, Any]) -> str:
    """Return the sha256 of the model's full name and the request body."""
    return hashlib.sha256(json.dumps([model, request], sort_keys=True).encode()).hexdigest()


class AnswerCache(ForkAware):
    """Map keys to answers in one SQLite file, for any number of models and processes.

    An answer returned by `put` survives a crash of the process, and of the machine unless it was made with
    `cheap=True`.

    Raises:
        PolicyError: The file cannot be used.
    """

    def __init__(self, path: str | Path, *, cheap: bool = False) -> None:
        self.path, self._is_cheap = Path(path), cheap
        self.reset_in_child(None)
        self._execute(_SCHEMA)
        self.watch_forks()

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self.path, timeout=60.0, isolation_level=None, check_same_thread=False)
        with suppress(sqlite3.OperationalError):  # SQLite does not wait here: another process is just doing the same
            db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={'NORMAL' if self._is_cheap else 'FULL'}")  # NORMAL: no wait for the disk
        return db

    def _execute(self, statement: str, *values: str) -> Any:
        """Return the JSON value in the first column of a statement's first row; None without a row."""
        try:
            with self._lock:
                if self._db is None:
                    self._db = self._open()
                rows = self._db.execute(statement, values).fetchall()
            return json.loads(str(rows[0][0])) if rows else None
        except (OSError, ValueError, sqlite3.Error) as error:
            raise PolicyError(
                f"cache {self.path} cannot be used ({error}): name another file, or remove a damaged one"
            ) from error

    def before_fork(self) -> bool:
        """Close the connection, as SQLite allows none across a fork; return True if this thread holds the lock."""
        is_held = self._lock.acquire(timeout=5)
        if is_held and self._db is not None:
            self._db.close()
            self._db = None
        return is_held

    def after_fork(self, state: bool) -> None:
        """Let the other threads go on."""
        if state:
            self._lock.release()

    def reset_in_child(self, state: object) -> None:
        """Take a new lock; the next call opens a connection."""
        self._lock, self._db = RLock(), None

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the answer stored under `key`, or None."""
        return self._execute("SELECT answer FROM answers WHERE key = ?", key)

    def put(self, key: str, model: str, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Store an answer and return the stored one.

        Args:
            key: key from `answer_key`.
            model: full name of the model, stored with the answer.
            answer: JSON-serializable answer.

        Returns:
            The stored answer; that of another process if it was first.

        Raises:
            PolicyError: if the file cannot be written or read.
        """
        return self._execute(_PUT, key, model, json.dumps(answer))

    def __len__(self) -> int:
        return self._execute("SELECT count(*) FROM answers")

    def close(self) -> None:
        """Close the file."""
        self.unwatch_forks()
        if self._db is not None:
            self._db.close()


_TRAITS = ("prompt", "form", "sizes", "quotes", "positions", "render_request")
"""Members of the protocols in `policy.base`, which `isinstance` finds on the object alone from Python 3.12 on."""


class KeptReplies:
    """Local policy whose replies are kept in a file, so that an evaluation that was stopped does not sample them again.

    A reply depends on its request alone (`Policy.sample`). Kept are text and stop reason, by the request and the
    weights. Everything else is the policy's own. Several processes may use one file.

    Args:
        policy: Policy with its weights in this process, as `load_policy` returned it.
        file: File of the replies; the caller closes it.
    """

    def __init__(self, policy: Any, file: AnswerCache) -> None:
        self.policy = policy
        self.name: str = policy.name
        self._file = file
        self._fingerprint: str = policy.fingerprint()
        for trait in _TRAITS:
            with suppress(AttributeError):
                setattr(self, trait, getattr(policy, trait))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def count_tokens(self, text: str) -> int:
        """Return the length of `text` in the policy's tokens."""
        return self.policy.count_tokens(text)

    def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return one completion per request, in order, without token ids."""
        return sample_with(self.open_queue(), requests)

    def open_queue(self) -> SamplingQueue:
        """Return a queue that gives kept replies first."""
        return _KeptQueue(self, open_queue(self.policy))

    def find(self, request: SampleRequest) -> tuple[str, Completion | None]:
        """Return the key of a request, and its completion if it is kept."""
        key = hashlib.sha256(self._fingerprint.encode() + _request_key(request)).hexdigest()
        reply = self._file.get(key)
        return key, None if reply is None else Completion(**reply, temperature=request.temperature)

    def keep(self, key: str, completion: Completion) -> Completion:
        """Keep a completion under the key of its request, and return it as it is kept."""
        self._file.put(key, self.name, {"text": completion.text, "stop_reason": completion.stop_reason})
        return Completion(completion.text, temperature=completion.temperature, stop_reason=completion.stop_reason)


class _KeptQueue:
    """Queue whose kept replies come first; the others are sampled by the policy's own queue."""

    def __init__(self, replies: KeptReplies, queue: SamplingQueue) -> None:
        self._replies, self._queue = replies, queue
        self._found: list[tuple[int, Completion]] = []
        self._sampled: dict[int, tuple[int, str]] = {}  # ticket and key by the ticket of the policy's queue
        self._submitted = 0

    def submit(self, requests: Sequence[SampleRequest]) -> list[int]:
        """Add requests and return their tickets."""
        tickets = list(range(self._submitted, self._submitted + len(requests)))
        self._submitted += len(requests)
        missing = []
        for ticket, request in zip(tickets, requests, strict=True):
            key, completion = self._replies.find(request)
            if completion is None:
                missing.append((request, ticket, key))
            else:
                self._found.append((ticket, completion))
        inner = self._queue.submit([request for request, _, _ in missing]) if missing else []
        self._sampled.update((number, (ticket, key)) for number, (_, ticket, key) in zip(inner, missing, strict=True))
        return tickets

    def collect(self) -> list[tuple[int, Completion]]:
        """Return kept replies at once, else wait for the policy's queue."""
        if self._found:
            completions, self._found = self._found, []
            return completions
        completions = []
        for number, completion in self._queue.collect():
            ticket, key = self._sampled.pop(number)
            completions.append((ticket, self._replies.keep(key, completion)))
        return completions

    def close(self) -> None:
        """Drop all requests under way."""
        self._found, self._sampled = [], {}
        self._queue.close()


def keep_replies(policy: Policy, file: AnswerCache | None) -> Policy:
    """Return a local policy with its replies kept in a file.

    Args:
        policy: Policy from `load_policy`.
        file: File of the replies; None keeps nothing.

    Returns:
        The policy itself if it is scripted or an endpoint, which keeps its answers itself (`endpoint.cache`).
    """
    if file is None or is_endpoint(policy) or policy.name.startswith("scripted:"):
        return policy
    return KeptReplies(policy, file)


def _request_key(request: SampleRequest) -> bytes:
    """Return the SHA-256 of all that a reply depends on."""
    fields = (
        [dict(message) for message in request.messages],
        [dict(tool) for tool in request.tools],
        request.max_new_tokens,
        request.thinking_tokens,
        dict(request.chat_template_kwargs),
        request.native_calls,
        (request.temperature, request.key) if request.temperature else None,
    )
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=repr).encode()).digest()
