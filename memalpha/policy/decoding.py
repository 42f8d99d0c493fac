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

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from memalpha.policy.decoding_rows import DecodingRows
from memalpha.types import Completion, SampleRequest

PROMPT_END = 16
"""Tokens of a prompt in which its template may have opened a thought."""

JOIN_SHARE = 0.25
"""Waiting rows enter when they are this share of the running ones: a prefill costs about as much as a step."""


REPEATS = 3
"""Equal blocks in a row that end a reply with `stop_repeats`."""

REPEATED_TOKENS = 24
"""Least tokens that these blocks have together: shorter ones repeat in good replies too."""

LARGE_VOCABULARY = 4096
"""Size from which float32 logits are drawn from by blocks: float64 sums of them all cost a fifth of a decode step."""

BLOCK = 256
"""Tokens of a block: the sums of a row and a block of its weights are about as many numbers."""


def ends_in_repeats(ids: Sequence[int]) -> bool:
    """Return True if the ids end in `REPEATS` or more equal blocks of at least `REPEATED_TOKENS` together."""
    for length in range(1, len(ids) // REPEATS + 1):
        if ids[-1] != ids[-1 - length]:
            continue
        span = max(REPEATS * length, REPEATED_TOKENS)
        if span <= len(ids) and ids[len(ids) - span + length :] == ids[len(ids) - span : -length]:
            return True
    return False


class ThoughtEnd(NamedTuple):
    """Ids around a thought: the ones that open and close it, and those that are forced after its budget."""

    open_id: int
    close_id: int
    forced: tuple[int, ...]


class CompletedIds(NamedTuple):
    """A request that has ended, with the ids of its prompt and completion."""

    request: SampleRequest
    prompt: Sequence[int]
    ids: Sequence[int]


@dataclass(slots=True)
class _Row:
    """A request under way.

    Attributes:
        limit: most tokens of prompt and completion.
        most: most tokens of the completion as known now; less than `limit` allows once a thought has ended.
        thinking: True while the reply is within a thought with a budget.
        forced: range of ids that were forced.
    """

    ticket: int
    request: SampleRequest
    prompt: tuple[int, ...]
    limit: int
    noise: list[float]
    most: int
    thinking: bool
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    forced: tuple[int, int] = (0, 0)

    def forced_id(self, end: ThoughtEnd) -> int | None:
        """Return the id that comes next if it is not free: the end of a thought that has used up its budget."""
        count = len(self.ids)
        if self.thinking and count == self.request.thinking_tokens:
            self.thinking = False
            self.forced = (count, count + len(end.forced))
            self.most = self.forced[1] + self.request.max_new_tokens
        first, last = self.forced
        return end.forced[count - first] if first <= count < last else None

    def follow_thought(self, end: ThoughtEnd) -> None:
        """Note whether the last id has opened or closed a thought."""
        if self.request.thinking_tokens and len(self.ids) == 1 and not self.thinking:
            self.thinking = self.ids[0] == end.open_id
            if not self.thinking:
                self.most = self.request.max_new_tokens
        elif self.thinking and self.ids[-1] == end.close_id:
            self.thinking, self.most = False, len(self.ids) + self.request.max_new_tokens


@dataclass(eq=False)
class DecodingQueue:
    """Queue of a model's requests; see `base.SamplingQueue`.

    Requests enter in the order of `submit`, the longest prompts of one `submit` first. The weights must not change
    while requests are under way.

    Args:
        encode: returns the prompt ids of requests; raises `PromptTooLong` for one beyond the model.
        decode: returns the texts of completions.
        make_rows: returns empty rows of the current weights.
        eos_ids: ids that end a completion.
        thought_end: ids around a thought, with which `thinking_tokens` is a budget of its own; None: thoughts and reply
            share their tokens.
        batch_rows: most rows under way.
        batch_tokens: most rows x (prompt + new tokens of the longest) under way, unless one row alone needs more.
        stop_repeats: end replies that repeat themselves (`ends_in_repeats`) as if they had no tokens left.
    """

    encode: Callable[[Sequence[SampleRequest]], list[list[int]]]
    decode: Callable[[Sequence[CompletedIds]], list[str]]
    make_rows: Callable[[], DecodingRows]
    eos_ids: frozenset[int]
    thought_end: ThoughtEnd | None = None
    _: KW_ONLY
    batch_rows: int
    batch_tokens: int
    stop_repeats: bool = False

    def __post_init__(self) -> None:
        self._submitted = 0
        self.close()

    def submit(self, requests: Sequence[SampleRequest]) -> list[int]:
        """Add requests and return their tickets. Raises `PromptTooLong` if one is beyond the model; none is added."""
        prompts = self.encode(requests) if requests else []
        tickets = list(range(self._submitted, self._submitted + len(requests)))
        self._submitted += len(requests)
        rows = [
            self._make_row(ticket, request, prompt)
            for ticket, request, prompt in zip(tickets, requests, prompts, strict=True)
        ]
        self._waiting += sorted(rows, key=lambda row: (-len(row.prompt), row.prompt, row.ticket))
        return tickets

    def _make_row(self, ticket: int, request: SampleRequest, prompt: Sequence[int]) -> _Row:
        most, end, thinking = request.max_new_tokens + request.thinking_tokens, self.thought_end, False
        if request.thinking_tokens and end is not None:
            most += len(end.forced)
            # The template may have opened the thought: its mark stands among the last tokens of the prompt.
            marks = [id for id in prompt[-PROMPT_END:] if id in (end.open_id, end.close_id)]
            thinking = marks[-1:] == [end.open_id]
        noise = sampling_uniforms(request.key, most).tolist() if request.temperature else []
        return _Row(ticket, request, tuple(prompt), len(prompt) + most, noise, most, thinking)

    @torch.inference_mode()
    def collect(self) -> list[tuple[int, Completion]]:
        """Decode until a request ends; return all that ended in that step as (ticket, completion), by ticket."""
        while self._waiting or self._running:
            count = self._count_entering()
            first = len(self._running) if count else 0
            if count:
                if not self._running:
                    self._rows = self.make_rows()
                entering = [self._waiting.popleft() for _ in range(count)]
                logits = self._rows.enter([row.prompt for row in entering], [row.limit for row in entering])
                self._running += entering
            else:
                logits = self._rows.step([row.ids[-1] for row in self._running])
            drawing = self._running[first:]
            draw_tokens(logits, drawing, self.thought_end)
            ended = [
                index
                for index, row in enumerate(drawing, first)
                if row.ids[-1] in self.eos_ids
                or len(row.ids) >= row.most
                or (self.stop_repeats and ends_in_repeats(row.ids))
            ]
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
        texts = self.decode([CompletedIds(row.request, row.prompt, row.ids) for row in rows])
        return [
            (
                row.ticket,
                Completion(
                    text=text,
                    prompt_ids=row.prompt,
                    completion_ids=tuple(row.ids),
                    logprobs=tuple(row.logprobs),
                    temperature=row.request.temperature,
                    stop_reason="eos" if row.ids[-1] in self.eos_ids else "length",
                    forced=row.forced if row.forced[0] < len(row.ids) else (0, 0),
                ),
            )
            for row, text in zip(rows, texts, strict=True)
        ]


def draw_tokens(logits: torch.Tensor, rows: Sequence[_Row], thought_end: ThoughtEnd | None = None) -> None:
    """Draw the next token of each row and append it with its log-prob at the sampling temperature.

    Args:
        logits: (rows, vocabulary).
        rows: requests under way; temperature 0 takes the best token, whose log-prob is that at temperature 1.
        thought_end: ids that replace the drawn ones where a thought has used up its budget.
    """
    if logits.dtype != torch.float64:
        logits = logits.float()
    temperatures = [row.request.temperature for row in rows]
    if any(temperature not in (0, 1) for temperature in temperatures):
        heat = [temperature or 1.0 for temperature in temperatures]
        logits = logits / torch.tensor(heat, dtype=logits.dtype, device=logits.device)[:, None]
    log_total: torch.Tensor | None = None
    if any(temperatures):
        uniforms = [row.noise[len(row.ids)] if row.noise else 0.0 for row in rows]
        noise = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
        if logits.dtype == torch.float32 and logits.shape[1] >= LARGE_VOCABULARY:
            token, log_total = draw_by_blocks(logits, noise)
        else:
            logits = torch.log_softmax(logits, dim=-1)
            # float64 sums: a float32 CDF over a large vocabulary is off by more than the rare tokens' probability.
            cdf = logits.double().exp().cumsum(dim=-1)
            token = torch.searchsorted(cdf, noise * cdf[:, -1:], right=True)
        if not all(temperatures):
            greedy = torch.tensor([not temperature for temperature in temperatures], device=logits.device)
            token = torch.where(greedy[:, None], logits.argmax(dim=-1, keepdim=True), token)
    else:
        logits = torch.log_softmax(logits, dim=-1)
        token = logits.argmax(dim=-1, keepdim=True)
    thinkers = [row for row in rows if row.request.thinking_tokens] if thought_end is not None else []
    if thinkers and thought_end is not None:
        for index, row in enumerate(rows):
            if row.request.thinking_tokens and (forced := row.forced_id(thought_end)) is not None:
                token[index, 0] = forced
    values = logits.gather(1, token)
    if log_total is not None:
        values = values - log_total
    for row, id, logprob in zip(rows, token[:, 0].tolist(), values[:, 0].float().tolist(), strict=True):
        row.ids.append(id)
        row.logprobs.append(logprob)
    for row in thinkers:
        row.follow_thought(thought_end)  # type: ignore[arg-type]  # there are none without it


def draw_by_blocks(logits: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a token of each row by inverse CDF: first its block, then the token within the block.

    Probabilities are those of float32 exponentials up to a relative error of float32's rounding, also of rare tokens:
    a block's sum is off by a share of itself, and sums over blocks are float64.

    Args:
        logits: (rows, vocabulary), float32.
        noise: uniforms in [0, 1), (rows, 1), float64.

    Returns:
        Tokens (rows, 1), and the log of the sums of the exponentials (rows, 1), float64.
    """
    rows, vocabulary = logits.shape
    peak = logits.amax(dim=-1, keepdim=True)
    weights = logits.new_zeros(rows, vocabulary + -vocabulary % BLOCK)
    torch.sub(logits, peak, out=weights[:, :vocabulary]).exp_()
    blocks = weights.view(rows, -1, BLOCK)
    sums = blocks.sum(dim=-1).double()
    ends = sums.cumsum(dim=-1)
    target = noise * ends[:, -1:]
    block = torch.searchsorted(ends, target, right=True)
    mass = sums.gather(1, block)
    share = ((target - ends.gather(1, block)) / mass + 1).clamp(0, 1 - 2**-53)
    inner = blocks[torch.arange(rows, device=logits.device), block[:, 0]].double().cumsum(dim=-1)
    offset = torch.searchsorted(inner, share * inner[:, -1:], right=True)
    return block * BLOCK + offset, ends[:, -1:].log() + peak


def sampling_uniforms(key: Sequence[int], steps: int) -> np.ndarray:
    """Return `steps` float64 uniforms in [0, 1) with 53 random bits each.

    The upper 24 bits and the lower 29 bits come from two streams of SHAKE-256. A longer stream begins with the shorter
    one. With 24 bits alone, most tokens of a vocabulary of 152,000 could never be drawn from a sharp distribution.

    Args:
        key: integers that name the request.
        steps: number of uniforms.

    Returns:
        Array (steps,).
    """
    seed = repr(tuple(int(part) for part in key)).encode()
    upper = _words(seed, steps) >> 8
    lower = _words(seed + b" lower bits", steps) >> 3
    return (upper + lower * 2.0**-29) * 2.0**-24


def _words(seed: bytes, count: int) -> np.ndarray:
    """Return the first `count` 32-bit words of a seed's stream."""
    return np.frombuffer(hashlib.shake_256(seed).digest(4 * count), dtype="<u4")
