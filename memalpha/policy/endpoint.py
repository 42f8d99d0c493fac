"""Policy behind an OpenAI-compatible chat endpoint, and its client, which stores every paid answer.

The policy returns text and tool calls without token ids, so it cannot be trained.

All requests of a batch run concurrently, within the rate limits. Transient failures (429, 5xx, no answer, a truncated
answer) are retried. An answer is on disk before it is used.

If the server stays unavailable, the batch ends with an error. Finished answers stay in the cache, so a repeated batch
sends only the rest.

The bill counts each answer once. It uses the server's `usage` if plausible, otherwise our estimate (UTF-8 bytes / 4). A
prompt count is plausible between a quarter and four times the estimate. An answer's count is plausible from a quarter
of the estimate up to the request's limit, because a model may think without showing it.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

import httpx2 as httpx

from memalpha.arguments import unique_keys
from memalpha.config import EndpointConfig
from memalpha.endpoint_calls import describe_status, is_retryable, parse_name, read_error, read_key, retry_after
from memalpha.errors import PolicyError
from memalpha.policy.base import request_seed, sample_with
from memalpha.policy.chat.text import CLOSE, END_THINK, OPEN, THINK, plain_message
from memalpha.policy.reply_cache import AnswerCache, answer_key
from memalpha.policy.server import RequestBatch, RequestQueue, RetryableError, ServerThread
from memalpha.text_files import parse_json_or_none
from memalpha.types import Completion, SampleRequest

MESSAGE_OVERHEAD = 8
"""Approximate number of tokens that a chat template adds to each message."""
MINUTE = 60.0
_MIN_WAIT = 1e-3
"""Shortest wait in seconds; a shorter one may not advance the clock."""


@dataclass(slots=True)
class Bill:
    """Requests, tokens and costs of one client.

    `asked` = `paid` + `cached` + `shared` + requests without an answer.

    Attributes:
        asked: requests of the caller.
        paid: answers of the server.
        cached: answers from the cache.
        shared: requests that waited for an equal request in flight.
        doubted: answers whose `usage` was missing or implausible.
        refused: answers to the caller, paid or not, in which the model refuses (`message.refusal`).
        prompt_tokens: billed tokens of prompts.
        completion_tokens: billed tokens of answers.
        cost: price of paid answers; None without prices. Only the server knows what a failed try cost.
    """

    asked: int = 0
    paid: int = 0
    cached: int = 0
    shared: int = 0
    doubted: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """Message of an endpoint, its finish reason, and its billed tokens.

    `message` holds `content`, `tool_calls`, `function_call` and `refusal` where present.
    """

    message: Mapping[str, Any]
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text as UTF-8 bytes / 4, rounded up."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


def plausible_count(count: Any, least: int, most: int) -> int | None:
    """Return the server's token count if plausible, otherwise None.

    Args:
        count: value from the server's `usage`.
        least: smallest plausible count.
        most: largest plausible count.

    Returns:
        `count` if it is an integer within the bounds.
    """
    return count if type(count) is int and max(0, least) <= count <= most else None


@dataclass(slots=True)
class Usage:
    """Time and tokens of one request within the last minute."""

    at: float
    tokens: int


class Window:
    """Limit requests and tokens in any 60 seconds; None for no limit.

    Times are seconds of one clock.
    """

    def __init__(self, requests: int | None = None, tokens: int | None = None) -> None:
        self.requests = requests
        self.tokens = tokens
        self._spent: deque[Usage] = deque()

    def wait(self, now: float, tokens: int) -> float:
        """Return the seconds until a request of `tokens` fits; 0 if it fits now.

        A request above the limit never fits; the caller must refuse it.
        """
        while self._spent and self._spent[0].at + MINUTE <= now:
            self._spent.popleft()
        until, requests, total = now, len(self._spent), sum(spent.tokens for spent in self._spent) + tokens
        for spent in self._spent:
            if requests < (self.requests or inf) and total <= (self.tokens or inf):
                break
            until, requests, total = spent.at + MINUTE, requests - 1, total - spent.tokens
        return max(until - now, _MIN_WAIT) if until > now else 0.0

    def take(self, now: float, tokens: int) -> Usage:
        """Register a request; its `tokens` may be corrected later."""
        self._spent.append(usage := Usage(now, tokens))
        return usage


class EndpointClient(ServerThread):
    """Client of one model at one endpoint; `submit` works from any thread or event loop.

    It works in its own thread, which ends with `close` or with the last reference.

    Args:
        name: `http://host:port/v1#model` or `openai:MODEL`.
        config: limits, retries, prices, cache and key of the endpoint.

    Raises:
        PolicyError: if the name is invalid or the key is missing.
    """

    def __init__(self, name: str, config: EndpointConfig | None = None) -> None:
        self.config = config or EndpointConfig()
        base, self.model = parse_name(name)
        key_variable = self.config.key_env or ("OPENAI_API_KEY" if name.startswith("openai:") else None)
        key = read_key(name, key_variable, " (or name it in endpoint.key_env)") if key_variable is not None else None
        self.room_field = "max_completion_tokens" if name.startswith("openai:") else "max_tokens"
        self.prices = self.config.prices.get(name)
        self.bill = Bill(cost=0.0 if self.prices else None)
        self.cache = AnswerCache(self.config.cache) if self.config.cache is not None else None
        self._kept = f"what was answered is kept in {self.cache.path}" if self.cache is not None else ""
        self._window = Window(self.config.requests_per_minute, self.config.tokens_per_minute)
        super().__init__(name, base, self.config, key, " (endpoint.timeout)")

    def reset_in_child(self, state: object) -> None:
        """Forget the requests of the parent, too."""
        super().reset_in_child(state)
        self._flying: dict[str, asyncio.Task[Reply]] = {}
        self._queue = asyncio.Lock()

    # ------------------------------------------------------------------------------------------------ for callers

    def submit(self, request: Mapping[str, Any], batch: RequestBatch) -> Future[Reply]:
        """Ask in the background; the future raises `PolicyError`, or `CancelledError` after `give_up`.

        A request is a chat-completion body without its `model`. Equal requests are sent once. An error of the request
        ends those of the same `batch` that are not yet sent.
        """
        return self.start(self._answer(request, batch))

    def check(self) -> None:
        """Raise `PolicyError` unless the server responds, accepts the key and has the model.

        The check is free if the server lists the model; otherwise it costs an answer of one token.
        """
        self.run(self._check())

    def close(self) -> None:
        """Close the thread, the connections and the cache; the client cannot be reused."""
        super().close()
        if self.cache is not None:
            self.cache.close()

    # ------------------------------------------------------------------------------------------------- in the loop

    async def _answer(self, request: Mapping[str, Any], batch: RequestBatch) -> Reply:
        """Return the reply from the cache, an equal request in flight, or the server."""
        self.bill.asked += 1
        body = {**request, "model": self.model, **self.config.parameters}
        body = {name: value for name, value in body.items() if value is not None}
        key = answer_key(f"{self.base}#{self.model}", body)
        if (task := self._flying.get(key)) is not None:
            self.bill.shared += 1
        elif self.cache is not None and (cached_reply := self.cache.get(key)) is not None:
            self.bill.cached += 1
            reply = Reply(**cached_reply)
        else:
            task = self._flying[key] = asyncio.create_task(self._send_and_cache(key, body, batch))

            def forget(done: asyncio.Task[Reply]) -> None:
                del self._flying[key]
                if not done.cancelled():
                    done.exception()  # mark the exception as retrieved even if nobody awaits it

            task.add_done_callback(forget)
        if task is not None:
            try:
                reply = await asyncio.shield(task)  # other requests may await the same task
            except asyncio.CancelledError:
                batch.error = PolicyError(f"{self.name}: stopped")
                raise
        self.bill.refused += "refusal" in reply.message
        return reply

    async def _send_and_cache(self, key: str, body: Mapping[str, Any], batch: RequestBatch) -> Reply:
        async with self.slots:
            try:
                reply = await self._send(body, batch)
                # An empty answer may be a fault of the server: the same command asks again.
                if self.cache is not None and (reply.message or reply.finish_reason in _CUT):
                    fields = {name: getattr(reply, name) for name in Reply.__slots__}  # `asdict` would descend
                    reply = Reply(**self.cache.put(key, f"{self.base}#{self.model}", fields))
                return reply
            except PolicyError as error:
                batch.error = batch.error or error
                raise

    async def _send(self, body: Mapping[str, Any], batch: RequestBatch) -> Reply:
        texts = [str(message["content"]) for message in body["messages"]]
        texts += [json.dumps(body["tools"])] if body.get("tools") else []
        prompt = sum(map(estimate_tokens, texts)) + MESSAGE_OVERHEAD * len(texts)
        max_new_tokens = body.get("max_tokens") or body.get("max_completion_tokens") or 0
        tokens, limit = prompt + max_new_tokens, self.config.tokens_per_minute
        if limit is not None and tokens > limit:
            raise PolicyError(
                f"{self.name}: one request takes {tokens} tokens (prompt and room to answer), "
                f"endpoint.tokens_per_minute is {limit}: it can never be sent"
            )

        async def attempt() -> Reply:
            async with self._queue:  # wait in line until the rate limits allow a try
                while True:
                    if batch.error is not None:
                        raise batch.error
                    now = self.clock()
                    seconds = max(self._quiet_until - now, self._window.wait(now, tokens))
                    if seconds <= 0:
                        break
                    await self.sleep(seconds)
                usage = self._window.take(now, tokens)
            reply = self._read(await self.send("POST", "/chat/completions", body), prompt, max_new_tokens)
            usage.tokens = reply.prompt_tokens + reply.completion_tokens
            return reply

        reply = await self.retry(attempt, self._kept or "set endpoint.cache to keep answers")
        self.bill.paid += 1
        self.bill.prompt_tokens += reply.prompt_tokens
        self.bill.completion_tokens += reply.completion_tokens
        if self.bill.cost is not None and self.prices is not None:
            counts = (reply.prompt_tokens, reply.completion_tokens)
            self.bill.cost += sum(price * count for price, count in zip(self.prices, counts, strict=True)) / 1e6
        return reply

    def _read(self, response: httpx.Response, prompt: int, max_new_tokens: int) -> Reply:
        """Parse the reply of a response.

        Raises `RetryableError` if a retry may succeed, otherwise `PolicyError`.
        """
        status, data = response.status_code, parse_json_or_none(response.content)
        is_whole = status == 200 and isinstance(data, Mapping)
        choices = data.get("choices") if is_whole else None
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
        if (message := _message(choice)) is not None:
            usage = data["usage"] if isinstance(data.get("usage"), Mapping) else {}
            calls = message["tool_calls"] if isinstance(message.get("tool_calls"), list) else []
            parts = [call.get("function") for call in calls if isinstance(call, Mapping)]
            texts = [f"{part.get('name')}{part.get('arguments')}" for part in parts if isinstance(part, Mapping)]
            estimated_tokens = estimate_tokens("".join([message.get("content") or "", *texts]))
            prompt_tokens = plausible_count(usage.get("prompt_tokens"), prompt // 4, prompt * 4)
            completion_tokens = plausible_count(
                usage.get("completion_tokens"),
                (estimated_tokens - MESSAGE_OVERHEAD) // 4,
                max_new_tokens or estimated_tokens * 4,
            )
            self.bill.doubted += prompt_tokens is None or completion_tokens is None
            fields = {name: message[name] for name in _FIELDS if message.get(name)}
            finish = choice.get("finish_reason")
            return Reply(
                fields,
                finish if isinstance(finish, str) else None,
                prompt if prompt_tokens is None else prompt_tokens,
                estimated_tokens if completion_tokens is None else completion_tokens,
            )
        error_text = read_error(data, response.text, self._key)
        if is_whole and not (data.get("error") or choice.get("error")):
            raise RetryableError(f"a whole response without an answer: {error_text}", complete=True)
        if status == 200:
            raise RetryableError(f"half an answer, or none: {error_text}" if error_text else "an empty answer")
        reason = describe_status(status, response.headers, error_text)
        if "insufficient_quota" in response.text or "billing_hard_limit_reached" in response.text:  # for good
            raise PolicyError(f"{self.name} refused: {reason}" + (f" ({self._kept})" if self._kept else ""))
        if is_retryable(status):
            raise RetryableError(reason, retry_after(response.headers))
        if status in (401, 403):
            hint = f"name its variable in endpoint.key_env, or write openai:{self.model} and set OPENAI_BASE_URL"
            hint = "" if self._key else f"; no key was sent: {hint}={self.base} and OPENAI_API_KEY"
            raise PolicyError(f"{self.name} does not take the key ({reason}){hint}")
        raise PolicyError(f"{self.name} refused a request ({'; '.join(filter(None, (reason, self._kept)))})")

    async def _check(self) -> None:
        model_names: list[str] = []
        try:
            response = await self.send("GET", "/models")
        except RetryableError as error:
            raise PolicyError(f"{self.name}: the server {error}") from error
        if response.status_code in (401, 403):
            self._read(response, 0, 0)
        with suppress(KeyError, TypeError):  # not every server lists its models
            model_names = [str(model["id"]) for model in parse_json_or_none(response.content)["data"]]
        if self.model in model_names:
            return
        probe = {"model": self.model, "messages": [{"role": "user", "content": "Hello"}], self.room_field: 1}
        self.bill.asked += 1
        try:
            await self._send({**probe, **self.config.parameters}, RequestBatch())
        except PolicyError as error:
            hint = f"is {self.base} the whole address? Most end in /v1"
            if model_names:
                hint = f"it lists {', '.join(model_names[:8])}"
            raise PolicyError(f"{error}: is there a model {self.model!r}?; {hint}") from error


_FIELDS = ("content", "tool_calls", "function_call", "refusal")
_CUT = ("length", "max_tokens")  # reasons of servers
_THOUGHTS = ("thinking", "reasoning")  # types of content parts that are no part of the reply


def _message(choice: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the message of a choice; None if there is none, or an error beside it."""
    message = choice.get("message")
    if not isinstance(message, Mapping) or choice.get("error"):  # routers pass on the error of a provider
        return None
    content = message.get("content")
    if isinstance(content, list):  # a list of parts, which may hold thoughts
        parts = [{"text": part} if isinstance(part, str) else part for part in content]
        texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") not in _THOUGHTS]
        return {**message, "content": "".join(text for text in texts if isinstance(text, str))}
    return message if content is None or isinstance(content, str) else None


class EndpointPolicy:
    """Sample from `http://host:port/v1#model` or `openai:MODEL`.

    A request with a temperature sends a seed derived from its key, so that samples of one prompt differ and each is
    cached. Servers may ignore the seed. Raises `PolicyError` like `EndpointClient`.
    """

    def __init__(self, name: str, config: EndpointConfig | None = None) -> None:
        self.client = EndpointClient(name, config)
        self.name = name

    def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return one completion per request, in order.

        Raises `PolicyError` if the endpoint refuses or does not answer.
        """
        return sample_with(self.open_queue(), requests)

    def open_queue(self) -> RequestQueue:
        """Return a queue that sends each request when it is submitted."""
        return RequestQueue(self, is_paid=True)

    def start(self, requests: Sequence[SampleRequest], batch: RequestBatch) -> list[Future[Reply]]:
        """Send requests in the background; see `RequestQueue`."""
        return [self.client.submit(self.body(request), batch) for request in requests]

    def finish(self, requests: Sequence[SampleRequest], replies: Sequence[Reply]) -> list[Completion]:
        """Return the completions of requests that got these replies."""
        return [
            Completion(
                completion_text(reply),
                temperature=request.temperature,
                stop_reason="length" if reply.finish_reason in _CUT else "eos",
            )
            for request, reply in zip(requests, replies, strict=True)
        ]

    def confirm(self) -> None:
        """Accept all replies."""

    def count_tokens(self, text: str) -> int:
        """Estimate the tokens of `text` as UTF-8 bytes / 4, without the endpoint's tokenizer."""
        return estimate_tokens(text)

    def statistics(self) -> dict[str, Any]:
        """Return the usage so far (`Bill`)."""
        return asdict(self.client.bill)

    def body(self, request: SampleRequest) -> dict[str, Any]:
        """Return the chat-completion body of a request."""
        body: dict[str, Any] = {
            "messages": [plain_message(message) for message in request.messages],
            "temperature": request.temperature,
            self.client.room_field: request.max_new_tokens + request.thinking_tokens,
        }
        if request.chat_template_kwargs:
            body["chat_template_kwargs"] = dict(request.chat_template_kwargs)
        if request.tools:
            body["tools"] = [dict(tool) for tool in request.tools]
        if request.temperature > 0 and request.key:
            body["seed"] = request_seed(request.key)
        return body


def completion_text(reply: Reply) -> str:
    """Return a reply as text, with structured calls as Hermes blocks for `agent.parsing`.

    Thinking before structured calls is dropped: an unclosed `<think>` would hide them.
    """
    text = reply.message.get("content") or reply.message.get("refusal") or ""
    calls = reply.message.get("tool_calls") or reply.message.get("function_call")
    calls = [calls] if isinstance(calls, Mapping) else calls  # the legacy field, and servers that send a single call
    if not isinstance(calls, list) or not calls:
        return text
    if END_THINK in text or text.lstrip().startswith(THINK):
        text = text.rpartition(END_THINK)[2].lstrip() if END_THINK in text else ""
    return "".join(([text.rstrip() + "\n"] if text.strip() else []) + [_block(call) for call in calls])


def _block(call: Any) -> str:
    body, function = call, call.get("function", call) if isinstance(call, Mapping) else None
    if isinstance(function, Mapping):
        arguments = function.get("arguments", function.get("parameters"))
        with suppress(ValueError, RecursionError):  # the tolerant parser reads the text or reports it as malformed
            while isinstance(arguments, str):
                arguments = json.loads(arguments, object_pairs_hook=unique_keys)
        body = {"name": function.get("name"), "arguments": {} if arguments is None else arguments}
    return f"{OPEN}\n{json.dumps(body, ensure_ascii=False)}\n{CLOSE}\n"
