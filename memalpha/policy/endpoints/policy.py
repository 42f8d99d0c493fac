"""Policy behind an OpenAI-compatible endpoint.

It returns text and tool calls without token ids, so it cannot be trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from memalpha.config import EndpointConfig
from memalpha.errors import PolicyError
from memalpha.policy.endpoints.client import EndpointClient, Reply, RequestBatch, estimate_tokens
from memalpha.policy.hermes import CLOSE, END_THINK, OPEN, THINK
from memalpha.policy.noise import request_seed
from memalpha.policy.plain_text import break_control_tokens
from memalpha.types import Completion, SampleRequest


class EndpointPolicy:
    """Sample from `http://host:port/v1#model` or `openai:MODEL`.

    A request with a temperature sends a seed derived from its key, so that samples of one prompt differ and each is
    cached. Servers may ignore the seed. Raises `PolicyError` like `EndpointClient`.
    """

    def __init__(self, name: str, config: EndpointConfig | None = None) -> None:
        self.client = EndpointClient(name, config)
        self.name = name
        self._room = "max_completion_tokens" if name.startswith("openai:") else "max_tokens"

    def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return one completion per request, in order.

        Raises `PolicyError` if the endpoint refuses or does not answer.
        """
        replies = self.client.ask([self.body(request) for request in requests])
        return [make_completion(request, reply) for request, reply in zip(requests, replies, strict=True)]

    def open_queue(self) -> EndpointQueue:
        """Return a queue that sends each request when it is submitted."""
        return EndpointQueue(self)

    def count_tokens(self, text: str) -> int:
        """Estimate the tokens of `text` as UTF-8 bytes / 4, without the endpoint's tokenizer."""
        return estimate_tokens(text)

    def statistics(self) -> dict[str, Any]:
        """Return the usage so far (`accounting.Bill`)."""
        return self.client.bill.as_json()

    def body(self, request: SampleRequest) -> dict[str, Any]:
        """Return the chat-completion body of a request."""
        body: dict[str, Any] = {
            "messages": [_as_text(message) for message in request.messages],
            "temperature": request.temperature,
            self._room: request.max_new_tokens + request.thinking_tokens,
        }
        if request.chat_template_kwargs:
            body["chat_template_kwargs"] = dict(request.chat_template_kwargs)
        if request.tools:
            body["tools"] = [dict(tool) for tool in request.tools]
        if request.temperature > 0 and request.key:
            body["seed"] = request_seed(request.key)
        return body


class EndpointQueue:
    """Requests at an endpoint; see `base.SamplingQueue`. Cache, limits, retries and errors are those of `sample`.

    Args:
        policy: policy whose client sends the requests.
    """

    def __init__(self, policy: EndpointPolicy) -> None:
        self.policy = policy
        self._submitted = 0
        self._reset()

    def _reset(self) -> None:
        self._batch = RequestBatch()
        self._flying: dict[Future[Reply], tuple[int, SampleRequest]] = {}
        self._ended: SimpleQueue[Future[Reply]] = SimpleQueue()

    def submit(self, requests: Sequence[SampleRequest]) -> list[int]:
        """Send requests, as the concurrency allows, and return their tickets."""
        tickets = list(range(self._submitted, self._submitted + len(requests)))
        self._submitted += len(requests)
        for ticket, request in zip(tickets, requests, strict=True):
            future = self.policy.client.start(self.policy.body(request), self._batch)
            self._flying[future] = ticket, request
            future.add_done_callback(self._ended.put)
        return tickets

    def collect(self) -> list[tuple[int, Completion]]:
        """Wait for an answer; return all that have come as (ticket, completion), by ticket.

        Raises:
            PolicyError: a request was refused, or all its tries failed; requests in flight are awaited and cached.
        """
        completions = []
        try:
            while self._flying and (not completions or not self._ended.empty()):
                future = self._ended.get()
                ticket, request = self._flying.pop(future)
                completions.append((ticket, make_completion(request, future.result())))
        except CancelledError:
            self.close()
            raise PolicyError(f"{self.policy.name}: stopped") from None
        except PolicyError as error:
            self._batch.error = self._batch.error or error
            wait(self._flying)
            error = self._batch.error
            self._reset()
            raise error from None
        except BaseException:  # a Ctrl-C
            self.close()
            raise
        return sorted(completions, key=lambda completion: completion[0])

    def close(self) -> None:
        """Drop all requests under way: those in flight are finished and cached, nothing more is sent."""
        self._batch.error = self._batch.error or PolicyError(f"{self.policy.name}: stopped")
        for future in self._flying:
            future.cancel()
        self._reset()


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in which no user or tool spells out a control token of any family."""
    if message["role"] in ("system", "assistant") or not isinstance(message.get("content"), str):
        return dict(message)
    return {**message, "content": break_control_tokens(message["content"])}


def make_completion(request: SampleRequest, reply: Reply) -> Completion:
    """Return the completion of a request that got this reply."""
    return Completion(
        completion_text(reply),
        temperature=request.temperature,
        stop_reason="length" if reply.finish_reason in ("length", "max_tokens") else "eos",
    )


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
        with suppress(ValueError):  # keep the text: the tolerant parser reads it or reports it as malformed
            while isinstance(arguments, str):
                arguments = json.loads(arguments)
        body = {"name": function.get("name"), "arguments": {} if arguments is None else arguments}
    return f"{OPEN}\n{json.dumps(body, ensure_ascii=False)}\n{CLOSE}\n"
