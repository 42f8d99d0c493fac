"""`VllmPolicy`: the trained policy, sampled on a vLLM server.

Prompts are rendered and completions are read by the policy in this process: its tokenizer, template and end ids. The
server gets ids and returns ids, so nothing is tokenized twice. Its noise is its own: a request gets other tokens than
from the sampler of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from queue import SimpleQueue
from typing import TYPE_CHECKING

from memalpha.config.sampling import SamplerConfig
from memalpha.errors import PolicyError
from memalpha.policy.decoding import CompletedIds
from memalpha.policy.noise import request_seed
from memalpha.policy.vllm.client import SampledTokens, TokenRequest, VllmClient
from memalpha.types import Completion, SampleRequest

if TYPE_CHECKING:
    from memalpha.policy.transformers import TransformersPolicy


class VllmPolicy:
    """Sample on a server what `local` would sample here.

    Args:
        local: The policy whose weights the server gets; renders prompts and reads replies.
        config: Server, limits and retries.

    Attributes:
        model: Server's name of the weights to sample with; None before the first sync.
        version: Step whose weights these are; stands in every completion.
        refresh: Called before requests enter an empty queue; gives the server the current weights.
        confirm: Called when a queue has run empty; raises `PolicyError` if the server has lost the weights since.
    """

    def __init__(self, local: TransformersPolicy, config: SamplerConfig) -> None:
        self.local = local
        self.config = config
        self.client = VllmClient(config)
        self.name = f"{local.name} on {self.client.name}"
        self.model: str | None = None
        self.version: int | None = None
        self.refresh: Callable[[], None] = lambda: None
        self.confirm: Callable[[], None] = lambda: None

    @property
    def positions(self) -> int | None:
        """Most tokens of prompt and completion; None without a limit."""
        return self.local.positions

    def count_tokens(self, text: str) -> int:
        """Return the length of `text` in the policy's tokens, without special tokens."""
        return self.local.count_tokens(text)

    def render_request(self, request: SampleRequest) -> list[int]:
        """Return the prompt ids of a request."""
        return self.local.render_request(request)

    def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return one completion per request, in order. Raises `PolicyError` if the server gives none."""
        queue = self.open_queue()
        queue.submit(requests)
        completions: dict[int, Completion] = {}
        while len(completions) < len(requests):
            completions.update(queue.collect())
        return [completions[ticket] for ticket in range(len(requests))]

    def open_queue(self) -> VllmQueue:
        """Return an empty queue, once the server has the current weights."""
        self.refresh()
        return VllmQueue(self)

    def token_requests(self, requests: Sequence[SampleRequest]) -> list[TokenRequest]:
        """Return what the server is sent. Raises `PromptTooLong` for a request beyond the model."""
        if self.model is None:
            raise PolicyError(f"{self.name}: the server has not been given any weights yet")
        prompts = self.local.prompt_ids(requests) if requests else []
        return [
            TokenRequest(
                prompt=tuple(prompt),
                model=self.model,
                max_tokens=request.max_new_tokens,
                temperature=request.temperature,
                seed=request_seed(request.key) if request.temperature > 0 and request.key else None,
                end_ids=self.local.eos_ids,
            )
            for request, prompt in zip(requests, prompts, strict=True)
        ]

    def completions(
        self, requests: Sequence[tuple[SampleRequest, TokenRequest]], sampled: Sequence[SampledTokens]
    ) -> list[Completion]:
        """Return the completions of sampled tokens."""
        rows = [
            CompletedIds(request, tokens.prompt, reply.ids)
            for (request, tokens), reply in zip(requests, sampled, strict=True)
        ]
        texts = self.local.completion_texts(rows)
        return [
            Completion(
                text=text,
                prompt_ids=tokens.prompt,
                completion_ids=reply.ids,
                logprobs=reply.logprobs,
                temperature=request.temperature,
                stop_reason="eos" if reply.is_complete else "length",
                weights_step=self.version,
            )
            for (request, tokens), reply, text in zip(requests, sampled, texts, strict=True)
        ]


class VllmQueue:
    """Requests at the server; see `base.SamplingQueue`.

    Args:
        policy: Policy whose client sends the requests.
    """

    def __init__(self, policy: VllmPolicy) -> None:
        self.policy = policy
        self._submitted = 0
        self._reset()

    def _reset(self) -> None:
        self._flying: dict[Future[SampledTokens], tuple[int, SampleRequest, TokenRequest]] = {}
        self._ended: SimpleQueue[Future[SampledTokens]] = SimpleQueue()

    def submit(self, requests: Sequence[SampleRequest]) -> list[int]:
        """Send requests, as the concurrency allows, and return their tickets."""
        tickets = list(range(self._submitted, self._submitted + len(requests)))
        token_requests = self.policy.token_requests(requests)
        self._submitted += len(requests)
        for ticket, request, tokens in zip(tickets, requests, token_requests, strict=True):
            future = self.policy.client.start(tokens)
            self._flying[future] = ticket, request, tokens
            future.add_done_callback(self._ended.put)
        return tickets

    def collect(self) -> list[tuple[int, Completion]]:
        """Wait for a completion; return all that have come as (ticket, completion), by ticket.

        Raises:
            PolicyError: The server gave none, or lost the weights; requests under way are dropped.
        """
        ended: list[tuple[int, SampleRequest, TokenRequest, SampledTokens]] = []
        try:
            while self._flying and (not ended or not self._ended.empty()):
                future = self._ended.get()
                ended.append((*self._flying.pop(future), future.result()))
            if ended and not self._flying:
                self.policy.confirm()
        except CancelledError:
            self.close()
            raise PolicyError(f"{self.policy.name}: stopped") from None
        except BaseException:  # a Ctrl-C among them
            self.close()
            raise
        if not ended:
            return []
        ended.sort(key=lambda item: item[0])
        completions = self.policy.completions(
            [(request, tokens) for _, request, tokens, _ in ended], [reply for *_, reply in ended]
        )
        return [(ticket, completion) for (ticket, *_), completion in zip(ended, completions, strict=True)]

    def cancel(self) -> None:
        """Cancel all requests under way; a `collect` that waits for them in another thread raises `PolicyError`."""
        for future in list(self._flying):
            future.cancel()

    def close(self) -> None:
        """Drop all requests under way; the server stops sampling them."""
        for future in self._flying:
            future.cancel()
        self._reset()
