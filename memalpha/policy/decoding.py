"""Continuous batching: `DecodingQueue` decodes requests that start and end at different times.

`model.generate` is not used: log-probs at the sampling temperature would need all logits in memory, its noise depends
on the batch, and it runs finished rows to the end. The loop here differs in three ways:

- Finished rows leave after each step, and waiting ones enter between steps. Equal prompts that enter together are
  computed once.
- Token t of a request is drawn by inverse CDF with the t-th uniform of a stream keyed by `request.key` alone. Batch
  composition, resuming and the number of processes do not change the samples.
- `logprobs` are the log-softmax of float32 logits / temperature, including the end-of-sequence token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from memalpha.policy.decoding_rows import DecodingRows
from memalpha.policy.noise import sampling_uniforms
from memalpha.types import Completion, SampleRequest

JOIN_SHARE = 0.25
"""Waiting rows enter when they are this share of the running ones: a prefill costs about as much as a step."""


@dataclass(slots=True)
class _Row:
    """A request under way. `limit` is the most tokens of prompt and completion."""

    ticket: int
    request: SampleRequest
    prompt: tuple[int, ...]
    limit: int
    noise: list[float]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class DecodingQueue:
    """Queue of a model's requests; see `queue.SamplingQueue`.

    Requests enter in the order of `submit`, the longest prompts of one `submit` first. The weights must not change
    while requests are under way.

    Args:
        encode: returns the prompt ids of requests; raises `PromptTooLong` for one beyond the model.
        decode: returns the text of completion ids, for several completions.
        make_rows: returns empty rows of the current weights.
        eos_ids: ids that end a completion.
        batch_rows: most rows under way.
        batch_tokens: most rows x (prompt + new tokens of the longest) under way, unless one row alone needs more.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[SampleRequest]], list[list[int]]],
        decode: Callable[[Sequence[Sequence[int]]], list[str]],
        make_rows: Callable[[], DecodingRows],
        eos_ids: frozenset[int],
        *,
        batch_rows: int,
        batch_tokens: int,
    ) -> None:
        self._encode = encode
        self._decode = decode
        self._make_rows = make_rows
        self.eos_ids = eos_ids
        self.batch_rows = batch_rows
        self.batch_tokens = batch_tokens
        self._submitted = 0
        self.close()

    def submit(self, requests: Sequence[SampleRequest]) -> list[int]:
        """Add requests and return their tickets. Raises `PromptTooLong` if one is beyond the model; none is added."""
        prompts = self._encode(requests) if requests else []
        tickets = list(range(self._submitted, self._submitted + len(requests)))
        self._submitted += len(requests)
        rows = [
            _Row(
                ticket,
                request,
                tuple(prompt),
                len(prompt) + request.max_new_tokens,
                sampling_uniforms(request.key, request.max_new_tokens).tolist() if request.temperature else [],
            )
            for ticket, request, prompt in zip(tickets, requests, prompts, strict=True)
        ]
        self._waiting += sorted(rows, key=lambda row: (-len(row.prompt), row.prompt, row.ticket))
        return tickets

    @torch.inference_mode()
    def collect(self) -> list[tuple[int, Completion]]:
        """Decode until a request ends; return all that ended in that step as (ticket, completion), by ticket."""
        while self._waiting or self._running:
            count = self._count_entering()
            first = len(self._running) if count else 0
            if count:
                if not self._running:
                    self._rows = self._make_rows()
                entering = [self._waiting.popleft() for _ in range(count)]
                logits = self._rows.enter([row.prompt for row in entering], [row.limit for row in entering])
                self._running += entering
            else:
                logits = self._rows.step([row.ids[-1] for row in self._running])
            drawing = self._running[first:]
            draw_tokens(logits, drawing)
            ended = [index for index, row in enumerate(drawing, first) if self._has_ended(row)]
            if ended:
                return self._remove(ended)
        return []

    def close(self) -> None:
        """Drop all requests under way."""
        self._waiting: deque[_Row] = deque()
        self._running: list[_Row] = []
        self._rows: Any = None

    def _count_entering(self) -> int:
        """Return the number of waiting rows to enter before the next step."""
        running = len(self._running)
        if running and (not self._rows.joinable or len(self._waiting) < JOIN_SHARE * running):
            return 0
        longest = max((row.limit for row in self._running), default=0)
        count = 0
        for row in self._waiting:
            longest = max(longest, row.limit)
            rows = running + count + 1
            if rows > 1 and (rows > self.batch_rows or rows * longest > self.batch_tokens):
                break
            count += 1
        return count if count >= JOIN_SHARE * running else 0

    def _has_ended(self, row: _Row) -> bool:
        return row.ids[-1] in self.eos_ids or len(row.ids) == row.request.max_new_tokens

    def _remove(self, ended: Sequence[int]) -> list[tuple[int, Completion]]:
        """Take the rows of these indices out of the batch and return their completions."""
        done = set(ended)
        rows = sorted((self._running[index] for index in ended), key=lambda row: row.ticket)
        order = [index for index in range(len(self._running)) if index not in done]
        tail = [index for index in order if index >= len(order)]
        # The last rows move into the gaps, so that few rows move.
        order = [index if index not in done else tail.pop() for index in range(len(order))]
        self._running = [self._running[index] for index in order]
        self._rows.keep(order)
        has_eos = [row.ids[-1] in self.eos_ids for row in rows]
        texts = self._decode([row.ids[:-1] if eos else row.ids for row, eos in zip(rows, has_eos, strict=True)])
        return [
            (
                row.ticket,
                Completion(
                    text=text,
                    prompt_ids=row.prompt,
                    completion_ids=tuple(row.ids),
                    logprobs=tuple(row.logprobs),
                    temperature=row.request.temperature,
                    stop_reason="eos" if eos else "length",
                ),
            )
            for row, text, eos in zip(rows, texts, has_eos, strict=True)
        ]


def draw_tokens(logits: torch.Tensor, rows: Sequence[_Row]) -> None:
    """Draw the next token of each row and append it with its log-prob at the sampling temperature.

    Args:
        logits: (rows, vocabulary).
        rows: requests under way; temperature 0 takes the best token, whose log-prob is that at temperature 1.
    """
    if logits.dtype != torch.float64:
        logits = logits.float()
    temperatures = [row.request.temperature for row in rows]
    if any(temperature not in (0, 1) for temperature in temperatures):
        heat = [temperature or 1.0 for temperature in temperatures]
        logits = logits / torch.tensor(heat, dtype=logits.dtype, device=logits.device)[:, None]
    logprobs = torch.log_softmax(logits, dim=-1)
    if not any(temperatures):
        token = logprobs.argmax(dim=-1, keepdim=True)
    else:
        uniforms = [row.noise[len(row.ids)] if row.noise else 0.0 for row in rows]
        # float64 sums: a float32 CDF over a large vocabulary is off by more than the rare tokens' probability.
        cdf = logprobs.double().exp().cumsum(dim=-1)
        noise = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
        token = torch.searchsorted(cdf, noise * cdf[:, -1:], right=True)
        if not all(temperatures):
            greedy = torch.tensor([not temperature for temperature in temperatures], device=logits.device)
            token = torch.where(greedy[:, None], logprobs.argmax(dim=-1, keepdim=True), token)
    values = logprobs.gather(1, token).float()
    for row, id, logprob in zip(rows, token[:, 0].tolist(), values[:, 0].tolist(), strict=True):
        row.ids.append(id)
        row.logprobs.append(logprob)
