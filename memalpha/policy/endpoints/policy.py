"""Policy behind an OpenAI-compatible endpoint.

It returns text and tool calls without token ids, so it cannot be trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from memalpha.config import EndpointConfig
from memalpha.policy.endpoints.accounting import Reply, estimate_tokens
from memalpha.policy.endpoints.client import EndpointClient
from memalpha.policy.hermes import CLOSE, OPEN
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
        replies = self.client.ask([self._body(request) for request in requests])
        return [
            Completion(
                completion_text(reply),
                temperature=request.temperature,
                stop_reason="length" if reply.finish_reason == "length" else "eos",
            )
            for request, reply in zip(requests, replies, strict=True)
        ]

    def count_tokens(self, text: str) -> int:
        """Estimate the tokens of `text` as UTF-8 bytes / 4, without the endpoint's tokenizer."""
        return estimate_tokens(text)

    def statistics(self) -> dict[str, Any]:
        """Return the usage so far (`accounting.Bill`)."""
        return self.client.bill.as_json()

    def _body(self, request: SampleRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "messages": [dict(message) for message in request.messages],
            "temperature": request.temperature,
            self._room: request.max_new_tokens,
        }
        if request.tools:
            body["tools"] = [dict(tool) for tool in request.tools]
        if request.temperature > 0 and request.key:
            words = hashlib.sha256(repr(tuple(int(part) for part in request.key)).encode()).digest()
            body["seed"] = int.from_bytes(words[:4]) >> 1
        return body


def completion_text(reply: Reply) -> str:
    """Return a reply as text, with structured calls as Hermes blocks for `agent.parsing`.

    Thinking before structured calls is dropped: an unclosed `<think>` would hide them.
    """
    text = reply.message.get("content") or reply.message.get("refusal") or ""
    calls = reply.message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return text
    if text.lstrip().startswith("<think>"):
        text = text.partition("</think>")[2].lstrip()
    return "".join(([text.rstrip() + "\n"] if text.strip() else []) + [_block(call) for call in calls])


def _block(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    body: Any = call
    if isinstance(function, Mapping):
        arguments = function.get("arguments", function.get("parameters", {}))
        try:
            parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
        except ValueError:
            parsed = arguments  # keep the text: the tolerant parser reads it or reports it as malformed
        body = {"name": function.get("name"), "arguments": parsed if isinstance(parsed, Mapping) else arguments}
    return f"{OPEN}\n{json.dumps(body, ensure_ascii=False)}\n{CLOSE}\n"
