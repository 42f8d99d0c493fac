"""A client for OpenAI-compatible chat endpoints that loses nothing it paid for.

All requests of a batch are under way together, within limits; each is tried again after what may pass (429, 5xx, no
answer, half an answer), and its answer is on disk before it is used. A server that stays away ends the batch with an
error: what came until then is kept, and the same batch asks only for the rest.

The bill counts each answer once, by the server's `usage` where that is possible at all, else by our own estimate
(UTF-8 bytes / 4). Possible is: for the prompt between a quarter and four times the estimate; for the answer at least a
quarter of it, and at most as many tokens as the request allows (a model may think unseen). Tries without an answer are
counted (`lost`) but not priced: what a server takes for them only the server knows.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent import futures
from contextlib import suppress
from dataclasses import asdict, dataclass
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx

from memalpha.config import EndpointConfig
from memalpha.errors import PolicyError
from memalpha.policy.endpoints.cache import AnswerCache, answer_key
from memalpha.policy.endpoints.rate_limit import Window, backoff, retry_after

OPENAI = "https://api.openai.com/v1"
_RETRYABLE_STATUSES = frozenset((408, 409, 425, 429))
"""Statuses below 500 after which another try may succeed."""
_QUOTA_ERRORS = ("insufficient_quota", "billing_hard_limit_reached")
"""Errors that come as 429 and do not pass."""
_MESSAGE_OVERHEAD = 8
"""Tokens that a chat template adds to each message, roughly."""


@dataclass(slots=True)
class Bill:
    """What a client has asked and paid for. `cost` and `saved` (by the cache) are None without prices.

    `asked` = `paid` + `cached` + `shared` (equal to one under way) + those without an answer. `tries` are
    requests sent; `lost` ones brought no usable answer. `doubted`: answers whose `usage` was missing or impossible.
    """

    asked: int = 0
    paid: int = 0
    cached: int = 0
    shared: int = 0
    tries: int = 0
    lost: int = 0
    doubted: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    saved: float | None = None

    def as_json(self) -> dict[str, Any]:
        """All figures."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Reply:
    """An endpoint's message (role, content, tool_calls, ...), why it ended, and its billed tokens."""

    message: Mapping[str, Any]
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int


class _RetryableError(Exception):
    """A failed try that may succeed when repeated, `after` seconds at the earliest."""

    def __init__(self, reason: str, after: float | None = None, *, lost: bool = True) -> None:
        super().__init__(reason)
        self.after = after
        self.lost = lost


@dataclass(slots=True)
class _Batch:
    """What is asked in one call. With its first error, nothing more of it is sent."""

    error: PolicyError | None = None


def estimate_tokens(text: str) -> int:
    """Tokens of a text where no tokenizer is known: UTF-8 bytes / 4, rounded up."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


def parse_name(name: str) -> tuple[str, str]:
    """(base URL, model) of `http://host:port/v1#model` or `openai:MODEL` (OPENAI_BASE_URL). Raises `PolicyError`."""
    if name.startswith("openai:"):
        base, model = os.environ.get("OPENAI_BASE_URL") or OPENAI, name.removeprefix("openai:")
    else:
        base, _, model = name.partition("#")
    if not model:
        raise PolicyError(f"{name!r} names no model: write http://HOST:PORT/v1#MODEL or openai:MODEL")
    try:
        parts = urlsplit(base)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid, parts = False, urlsplit("")
    if not is_valid:
        raise PolicyError(f"{base!r} is not the address of an endpoint: write http://HOST:PORT/v1#MODEL")
    if parts.username or parts.password:
        raise PolicyError(
            "an address with a password would stand in reports: put the key in a variable (endpoint.key_env)"
        )
    return base.rstrip("/"), model


class EndpointClient:
    """One model of one endpoint. `ask` may be called from any thread, inside a running event loop too.

    It works in a thread of its own, which ends with `close` or with the last reference. `clock` and `sleep` are for
    tests. Raises `PolicyError` for a name that is none and for a missing key.
    """

    def __init__(
        self,
        name: str,
        config: EndpointConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.name = name
        self.config = config or EndpointConfig()
        self.base, self.model = parse_name(name)
        self._key = _read_key(name, self.config)
        self._clock, self._sleep = clock, sleep
        self.prices = self.config.prices.get(name)
        self.bill = Bill(*([0] * 9), *((0.0, 0.0) if self.prices else ()))
        self.cache = AnswerCache(self.config.cache) if self.config.cache is not None else None
        self._window = Window(self.config.requests_per_minute, self.config.tokens_per_minute)
        self._quiet_until = 0.0
        self._rng = Random()
        self._flying: dict[str, asyncio.Task[Reply]] = {}
        self._lock = threading.Lock()
        self._waiting: set[futures.Future[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._http: httpx.AsyncClient | None = None
        self._slots = asyncio.Semaphore(self.config.concurrency)
        self._queue = asyncio.Lock()

    # ------------------------------------------------------------------------------------------------ for callers

    def ask(self, requests: Sequence[Mapping[str, Any]]) -> list[Reply]:
        """The answer to each request (a chat-completion body without its `model`), in order; equal ones asked once.

        Raises `PolicyError` where a request is refused, or stays without an answer after all tries: then the others
        that were under way are waited for and kept.
        """
        return self._run(self._ask(requests)) if requests else []

    def check(self) -> None:
        """Raise `PolicyError` unless the server is there, takes the key and has the model.

        It costs nothing where the server lists its models, this one among them; else an answer of one token.
        """
        self._run(self._check())

    def give_up(self) -> None:
        """End every `ask` of other threads with a `PolicyError`: nothing more is sent, what is under way is kept."""
        with self._lock:
            waiting = list(self._waiting)
        for future in waiting:
            future.cancel()

    def close(self) -> None:
        """End the thread, the connections and the cache's file. Using the client again is an error."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            if self._http is not None:
                asyncio.run_coroutine_threadsafe(self._http.aclose(), loop).result()
            self._stop()
        if self.cache is not None:
            self.cache.close()

    # ------------------------------------------------------------------------------------------------- in the loop

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=self._loop.run_forever, name=f"memalpha {self.model}", daemon=True)
                thread.start()
                self._stop = weakref.finalize(self, _stop_loop, self._loop, thread)
            loop = self._loop
            future = asyncio.run_coroutine_threadsafe(work, loop)
            self._waiting.add(future)
        try:
            return future.result()
        except futures.CancelledError:
            raise PolicyError(f"{self.name}: stopped") from None
        finally:
            future.cancel()  # where a Ctrl-C ended the wait
            with self._lock:
                self._waiting.discard(future)

    async def _ask(self, requests: Sequence[Mapping[str, Any]]) -> list[Reply]:
        batch = _Batch()
        try:
            done = await asyncio.gather(*(self._answer(request, batch) for request in requests), return_exceptions=True)
        except asyncio.CancelledError:
            batch.error = PolicyError(f"{self.name}: stopped")
            raise
        if batch.error is not None:
            raise batch.error
        for reply in done:
            if isinstance(reply, BaseException):
                raise reply
        return done  # type: ignore[return-value]

    async def _answer(self, request: Mapping[str, Any], batch: _Batch) -> Reply:
        """From the cache, from an equal request under way, or from the server."""
        self.bill.asked += 1
        body = {**request, "model": self.model, **self.config.parameters}
        body = {name: value for name, value in body.items() if value is not None}
        key = answer_key(f"{self.base}#{self.model}", body)
        if (task := self._flying.get(key)) is not None:
            self.bill.shared += 1
        elif self.cache is not None and (cached_reply := self.cache.get(key)) is not None:
            self.bill.cached += 1
            reply = Reply(**cached_reply)
            if self.bill.saved is not None:
                self.bill.saved += self._price(reply)
            return reply
        else:
            task = self._flying[key] = asyncio.create_task(self._send_and_cache(key, body, batch))
            task.add_done_callback(lambda done: self._on_done(key, done))
        return await asyncio.shield(task)  # others may wait for it too

    def _on_done(self, key: str, task: asyncio.Task[Reply]) -> None:
        del self._flying[key]
        if not task.cancelled():
            task.exception()  # seen, whoever waits

    async def _send_and_cache(self, key: str, body: Mapping[str, Any], batch: _Batch) -> Reply:
        async with self._slots:
            try:
                reply = await self._send_with_retries(body, batch)
                if self.cache is not None:
                    reply = Reply(**self.cache.put(key, f"{self.base}#{self.model}", asdict(reply)))
                return reply
            except PolicyError as error:
                batch.error = batch.error or error
                raise

    async def _send_with_retries(self, body: Mapping[str, Any], batch: _Batch) -> Reply:
        prompt = _estimate_prompt_tokens(body)
        max_new_tokens = body.get("max_tokens") or body.get("max_completion_tokens") or 0
        self._refuse_oversized(prompt + max_new_tokens)
        reason = ""
        for attempt in range(self.config.retries + 1):
            usage = await self._wait_for_turn(prompt + max_new_tokens, batch)
            self.bill.tries += 1
            try:
                response = await self._send("POST", "/chat/completions", body)
                reply = self._read(response, prompt, max_new_tokens)
            except _RetryableError as error:
                reason = str(error)
                self.bill.lost += error.lost
                if error.after is not None and error.after > self.config.max_wait:
                    reason += f"; it asks to wait {error.after:.0f} s, endpoint.max_wait is {self.config.max_wait:.0f}"
                    break
                self._quiet_until = max(self._quiet_until, self._clock() + (error.after or 0.0))
                if attempt < self.config.retries:
                    await self._sleep((error.after or 0.0) + backoff(attempt, self.config.max_wait, self._rng))
                continue
            usage.tokens = reply.prompt_tokens + reply.completion_tokens
            self.bill.paid += 1
            self.bill.prompt_tokens += reply.prompt_tokens
            self.bill.completion_tokens += reply.completion_tokens
            if self.bill.cost is not None:
                self.bill.cost += self._price(reply)
            return reply
        hint = "set endpoint.cache to keep answers"
        if self.cache is not None:
            hint = f"what was answered is kept in {self.cache.path}"
        raise PolicyError(f"{self.name} gave no answer in {attempt + 1} tries, the last: {reason} ({hint})")

    def _refuse_oversized(self, tokens: int) -> None:
        limit = self.config.tokens_per_minute
        if limit is not None and tokens > limit:
            raise PolicyError(
                f"{self.name}: one request takes {tokens} tokens (prompt and room to answer), "
                f"endpoint.tokens_per_minute is {limit}: it can never be sent"
            )

    async def _wait_for_turn(self, tokens: int, batch: _Batch) -> Any:
        """Wait until a try may go out, one after the other."""
        async with self._queue:
            while True:
                if batch.error is not None:
                    raise batch.error
                now = self._clock()
                wait = max(self._quiet_until - now, self._window.wait(now, tokens))
                if wait <= 0:
                    return self._window.take(now, tokens)
                await self._sleep(wait)

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        """One try. `_Passing` where nothing, or nothing whole, came back."""
        if self._http is None:
            headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=self.config.concurrency)
            self._http = httpx.AsyncClient(headers=headers, timeout=None, limits=limits)
        content = None if body is None else json.dumps(body).encode()
        try:
            async with asyncio.timeout(self.config.timeout):  # the whole of it: a server may also drip
                return await self._http.request(
                    method, self.base + path, content=content, headers={"Content-Type": "application/json"}
                )
        except TimeoutError as error:
            raise _RetryableError(f"no answer within {self.config.timeout:g} s (endpoint.timeout)") from error
        except httpx.ConnectError as error:
            raise _RetryableError(f"cannot be reached ({error})", lost=False) from error
        except httpx.HTTPError as error:
            raise _RetryableError(f"the connection broke ({error or type(error).__name__})") from error
        except (httpx.InvalidURL, UnicodeError) as error:
            raise PolicyError(f"{self.name} is not the address of an endpoint: {error}") from error

    def _read(self, response: httpx.Response, prompt: int, max_new_tokens: int) -> Reply:
        """The reply in a response. `_Passing` where a further try may bring one, `PolicyError` where none can."""
        status = response.status_code
        try:
            data = response.json()
        except ValueError:  # also half of a character
            data = None
        if status == 200 and isinstance(data, Mapping) and (message := _message(data)) is not None:
            usage = data.get("usage")
            usage = usage if isinstance(usage, Mapping) else {}
            estimated_tokens = _estimate_message_tokens(message)
            prompt_tokens = _plausible_count(usage.get("prompt_tokens"), prompt // 4, prompt * 4)
            completion_tokens = _plausible_count(
                usage.get("completion_tokens"),
                (estimated_tokens - _MESSAGE_OVERHEAD) // 4,
                max_new_tokens or estimated_tokens * 4,
            )
            self.bill.doubted += prompt_tokens is None or completion_tokens is None
            fields = {name: message[name] for name in ("content", "tool_calls", "refusal") if message.get(name)}
            finish = data["choices"][0].get("finish_reason")
            return Reply(
                fields,
                finish if isinstance(finish, str) else None,
                prompt if prompt_tokens is None else prompt_tokens,
                estimated_tokens if completion_tokens is None else completion_tokens,
            )
        error_text = self._error_text(data, response.text)
        if status == 200:
            raise _RetryableError(f"half an answer, or none: {error_text}" if error_text else "an empty answer")
        reason = f"status {status}" + (f": {error_text}" if error_text else "")
        if any(word in error_text for word in _QUOTA_ERRORS):
            raise PolicyError(f"{self.name} refused: {reason}")
        if status in _RETRYABLE_STATUSES or status >= 500:
            raise _RetryableError(reason, retry_after(response.headers), lost=status >= 500)
        if status in (401, 403):
            hint = "" if self._key else "; no key was sent: name its environment variable in endpoint.key_env"
            raise PolicyError(f"{self.name} does not take the key ({reason}){hint}")
        raise PolicyError(f"{self.name} refused a request ({reason})")

    def _error_text(self, data: Any, text: str) -> str:
        """The server's own words about an error, on one line, without our key."""
        error = data.get("error", data.get("detail")) if isinstance(data, Mapping) else None
        if isinstance(error, Mapping):
            error = " ".join(str(error[name]) for name in ("code", "message") if error.get(name))
        words = " ".join((error if isinstance(error, str) else text).split())
        return (words.replace(self._key, "***") if self._key else words)[:300]

    async def _check(self) -> None:
        model_names: list[str] = []
        try:
            response = await self._send("GET", "/models")
        except _RetryableError as error:
            raise PolicyError(f"{self.name}: the server {error}") from error
        if response.status_code in (401, 403):
            self._read(response, 0, 0)
        with suppress(ValueError, KeyError, TypeError):  # not every server has a list
            model_names = [str(model["id"]) for model in response.json()["data"]]
        if self.model in model_names:
            return
        field = "max_completion_tokens" if self.name.startswith("openai:") else "max_tokens"
        probe = {"model": self.model, "messages": [{"role": "user", "content": "Hello"}], field: 1}
        self.bill.asked += 1
        try:
            await self._send_with_retries({**probe, **self.config.parameters}, _Batch())
        except PolicyError as error:
            hint = f"; it lists {', '.join(model_names[:8])}" if model_names else ""
            raise PolicyError(f"{error}: is there a model {self.model!r}?{hint}") from error

    def _price(self, reply: Reply) -> float:
        prompt, generated = self.prices or (0.0, 0.0)
        return (reply.prompt_tokens * prompt + reply.completion_tokens * generated) / 1e6


def _read_key(name: str, config: EndpointConfig) -> str | None:
    variable = config.key_env or ("OPENAI_API_KEY" if name.startswith("openai:") else None)
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise PolicyError(
            f"{name} needs a key: set the environment variable {variable} (or name it in endpoint.key_env)"
        )
    if not (key.isascii() and key.isprintable()):
        raise PolicyError(f"{name}: the key in {variable} holds characters that no key has")
    return key


def _stop_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Stop a client's thread; what is still under way (after a Ctrl-C) is given up."""

    async def give_up() -> None:
        pending = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        loop.stop()

    asyncio.run_coroutine_threadsafe(give_up(), loop)
    if thread is not threading.current_thread():
        thread.join()
        loop.close()


def _message(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The message of the first choice; None where the body holds none."""
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        return None
    message = choices[0].get("message")
    if not isinstance(message, Mapping):
        return None
    content = message.get("content")
    if isinstance(content, list):  # parts of text
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return {**message, "content": "".join(text for text in texts if isinstance(text, str))}
    return message if content is None or isinstance(content, str) else None


def _estimate_message_tokens(message: Mapping[str, Any]) -> int:
    """Of the text, and of names and arguments of calls: what surrounds them is the server's."""
    calls = message.get("tool_calls")
    parts = [call.get("function") for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    parts = [f"{part.get('name')}{part.get('arguments')}" for part in parts if isinstance(part, Mapping)]
    return estimate_tokens("".join([message.get("content") or "", *parts]))


def _estimate_prompt_tokens(body: Mapping[str, Any]) -> int:
    tools = body.get("tools")
    texts = [str(message["content"]) for message in body["messages"]] + ([json.dumps(tools)] if tools else [])
    return sum(map(estimate_tokens, texts)) + _MESSAGE_OVERHEAD * len(texts)


def _plausible_count(count: Any, least: int, most: int) -> int | None:
    possible = isinstance(count, int) and not isinstance(count, bool) and max(0, least) <= count <= most
    return count if possible else None
