"""`VllmPolicy`: the trained policy, sampled on a vLLM server.

Prompts are rendered and completions are read by the policy in this process: its tokenizer, template and end ids. The
server gets ids and returns ids, so nothing is tokenized twice. Its noise is its own: a request gets other tokens than
from the sampler of this process.

`VllmClient` speaks to the server: a request that gets no answer, a server error or an answer that cannot be true is
repeated. After the last try `PolicyError` says what was wrong; a token that the server did not send never stands for
one that it did. Routes (vLLM 0.32): `/v1/completions`, `/v1/models`, `/v1/load_lora_adapter` and
`/v1/unload_lora_adapter` (the server needs `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`), `/collective_rpc` and
`/reset_prefix_cache` (`VLLM_SERVER_DEV_MODE=1`). The development routes ask for no password: run the server on the
loopback or a private network only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2 as httpx

from memalpha.config.sampling import SamplerConfig
from memalpha.endpoint_calls import describe_status, is_retryable, read_error
from memalpha.errors import PolicyError
from memalpha.policy.base import LOWEST_LOGPROB, first_invalid_logprob, request_seed, sample_with
from memalpha.policy.decoding import CompletedIds
from memalpha.policy.server import RequestBatch, RequestQueue, RetryableError, ServerThread
from memalpha.text_files import parse_json_or_none
from memalpha.types import Completion, SampleRequest

if TYPE_CHECKING:
    from memalpha.policy.transformers import TransformersPolicy


_HINT = "sampler.retries, sampler.timeout"


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Tokens of one completion, the end of sequence included, and their log-probs.

    Attributes:
        prompt: Ids of the prompt.
        ids: The tokens, at least one.
        logprobs: Their log-probs at the sampling temperature.
        is_complete: True if it ended with an end-of-sequence token.
    """

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """Prompt of one completion and how it is sampled.

    Attributes:
        prompt: Prompt ids.
        model: Name of the model, or of an adapter, at the server.
        max_tokens: Most new tokens.
        temperature: Sampling temperature; 0 is greedy.
        seed: Seed of its noise; None lets the server choose.
        end_ids: Ids that end a completion.
    """

    prompt: tuple[int, ...]
    model: str
    max_tokens: int
    temperature: float
    seed: int | None
    end_ids: frozenset[int]

    def body(self) -> dict[str, Any]:
        """Return the request's body; every way to bend the distribution is named and off."""
        body = {
            "model": self.model,
            "prompt": list(self.prompt),
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stop_token_ids": sorted(self.end_ids),
            "n": 1,
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "min_tokens": 0,
            "ignore_eos": False,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }
        return body if self.seed is None else {**body, "seed": self.seed}

    def read(self, answer: Any) -> SampledTokens:
        """Return the completion of an answer's JSON. Raises `ValueError` if something about it cannot be true."""
        try:
            choice = answer["choices"][0]
            ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            model, echo, reason = answer["model"], choice["prompt_token_ids"], choice["finish_reason"]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"the answer has no {error}") from None
        if model != self.model:
            raise ValueError(f"the answer comes from model {model!r}, asked was {self.model!r}")
        if echo != list(self.prompt):
            raise ValueError("the answer does not repeat the ids of the prompt")
        are_ids = isinstance(ids, list) and all(type(id) is int and id >= 0 for id in ids)
        if not are_ids or not 0 < len(ids) <= self.max_tokens:
            raise ValueError(f"the answer's token_ids are not 1 to {self.max_tokens} ids")
        if not isinstance(logprobs, list) or len(logprobs) != len(ids):
            raise ValueError("the answer does not have a log-prob for each token")
        if (invalid := first_invalid_logprob(logprobs)) is not None:
            raise ValueError(
                f"the answer gives {logprobs[invalid]!r} for token {invalid}, which is no log-prob of a sampled "
                f"token: it is at most 0 and above {LOWEST_LOGPROB:g} (-9999.0 and -inf stand for none)"
            )
        has_end = ids[-1] in self.end_ids
        if self.end_ids.intersection(ids[:-1]) or (reason == "stop") != has_end:
            raise ValueError(f"the answer ends by {reason!r}, which its ids do not show")
        if not has_end and not (reason == "length" and len(ids) == self.max_tokens):
            raise ValueError(f"the answer breaks off after {len(ids)} of {self.max_tokens} tokens ({reason!r})")
        return SampledTokens(self.prompt, tuple(ids), tuple(map(float, logprobs)), has_end)


class VllmClient(ServerThread):
    """Client of one server; it works in its own thread, which ends with `close` or with the last reference.

    Args:
        config: Address, limits and retries.
    """

    def __init__(self, config: SamplerConfig) -> None:
        self.config = config
        super().__init__(config.url.partition("#")[0], config.address, config)

    # ------------------------------------------------------------------------------------------------ completions

    def submit(self, request: TokenRequest) -> Future[SampledTokens]:
        """Sample in the background; the future raises `PolicyError` after the last try."""
        return self.start(self._sample(request))

    def sample(self, requests: Sequence[TokenRequest]) -> list[SampledTokens]:
        """Return one completion per request, in order. Raises `PolicyError` after the last try of one."""
        futures = [self.submit(request) for request in requests]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    # ------------------------------------------------------------------------------------------------ weights

    def base_model(self) -> str:
        """Return the server's name of the model that it was started with."""
        answer = self.call("GET", "/v1/models")
        try:
            names = [model["id"] for model in answer["data"] if not model.get("parent")]
        except (KeyError, TypeError, AttributeError):
            names = []
        if not names:
            raise PolicyError(f"{self.name}: /v1/models lists no model: is this a vLLM server?")
        return str(names[0])

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load the LoRA adapter of `folder` as model `name`."""
        hint = "start the server with --enable-lora --max-lora-rank RANK and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
        self.call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}, hint)

    def unload_adapter(self, name: str) -> None:
        """Remove an adapter; one that is not there is no error."""
        self.call("POST", "/v1/unload_lora_adapter", {"lora_name": name}, absent=(400, 404))

    def load_weights(self, folder: Path, version: str) -> None:
        """Load all weights from `folder` through the worker extension and forget cached keys and values.

        Args:
            folder: Model directory, as the server sees it.
            version: Name of these weights, which `weights_version` then returns.
        """
        for result in self._extension("memalpha_load", str(folder), version):
            if not isinstance(result, Mapping) or result.get("version") != version:
                reason = result.get("error") if isinstance(result, Mapping) else result
                raise PolicyError(f"{self.name} did not load the weights of {folder}: {reason}")
        end, path = time.monotonic() + self.config.timeout, "/reset_prefix_cache"
        while isinstance(answer := self.call("POST", path), Mapping) and answer.get("success") is False:
            if time.monotonic() > end:
                raise PolicyError(f"{self.name} keeps cached keys and values: another client has requests under way")
            time.sleep(0.05)  # requests that have just ended may still hold some

    def weights_version(self) -> str | None:
        """Return the version of the last `load_weights`; None since a start of the server."""
        versions = set(self._extension("memalpha_version"))
        return versions.pop() if len(versions) == 1 else None

    def close(self) -> None:
        """Close the connections, which drops requests under way, and the thread."""
        self.give_up()
        super().close()

    def _extension(self, method: str, *arguments: str) -> list[Any]:
        """Call a method of the worker extension in all workers and return their results."""
        hint = (
            "start the server with VLLM_SERVER_DEV_MODE=1 and "
            "--worker-extension-cls memalpha.policy.vllm.worker_extension.WeightsExtension"
        )
        answer = self.call("POST", "/collective_rpc", {"method": method, "args": list(arguments)}, hint)
        results = answer.get("results") if isinstance(answer, Mapping) else None
        if not isinstance(results, list) or not results:
            raise PolicyError(f"{self.name}: {method} gave no results ({hint})")
        return results

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, hint: str = "", absent: Sequence[int] = ()
    ) -> Any:
        """Send a request of the control routes, with retries while the server cannot be reached.

        Args:
            method: HTTP method.
            path: Route.
            body: JSON object.
            hint: What to change if the server refuses.
            absent: Statuses that stand for an answer of None.

        Returns:
            The JSON of the answer, or its text.

        Raises:
            PolicyError: The server refuses, or gives no answer.
        """

        async def attempt() -> Any:
            response = await self.send(method, path, body)
            if response.status_code in absent:
                return None
            if response.status_code != 200:
                refusal = f"{self.name} refused {path} ({_describe_status(response)})"
                raise PolicyError(f"{refusal}: {hint}" if hint else refusal)
            data = parse_json_or_none(response.content)
            return response.text if data is None else data

        return self.run(self.retry(attempt, _HINT))

    # ------------------------------------------------------------------------------------------------ in the loop

    async def _sample(self, request: TokenRequest) -> SampledTokens:
        body = request.body()

        async def attempt() -> SampledTokens:
            response = await self.send("POST", "/v1/completions", body)
            if response.status_code != 200:
                reason = _describe_status(response)
                if is_retryable(response.status_code):
                    raise RetryableError(reason)
                raise PolicyError(f"{self.name} refused a request ({reason})")
            try:
                return request.read(parse_json_or_none(response.content))
            except ValueError as error:
                raise RetryableError(str(error)) from error

        async with self.slots:
            return await self.retry(attempt, _HINT)


def _describe_status(response: httpx.Response) -> str:
    """Return the status and the server's message on one line."""
    message = read_error(parse_json_or_none(response.content), response.text)
    return describe_status(response.status_code, response.headers, message)


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
        return sample_with(self.open_queue(), requests)

    def open_queue(self) -> RequestQueue:
        """Return an empty queue, once the server has the current weights."""
        self.refresh()
        return RequestQueue(self)

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

    def start(self, requests: Sequence[SampleRequest], batch: RequestBatch) -> list[Future[SampledTokens]]:
        """Send requests in the background; see `RequestQueue`."""
        return [self.client.submit(tokens) for tokens in self.token_requests(requests)]

    def finish(self, requests: Sequence[SampleRequest], replies: Sequence[SampledTokens]) -> list[Completion]:
        """Return the completions of sampled tokens."""
        pairs = list(zip(requests, replies, strict=True))
        texts = self.local.completion_texts(
            [CompletedIds(request, reply.prompt, reply.ids) for request, reply in pairs]
        )
        return [
            Completion(
                text=text,
                prompt_ids=reply.prompt,
                completion_ids=reply.ids,
                logprobs=reply.logprobs,
                temperature=request.temperature,
                stop_reason="eos" if reply.is_complete else "length",
                weights_step=self.version,
            )
            for (request, reply), text in zip(pairs, texts, strict=True)
        ]
