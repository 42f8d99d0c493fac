"""Rows under way in a model's forward pass: prompts enter, every step adds a token to each row, finished rows leave.

`SlotRows` lets rows enter while others run. It needs a cache that keeps one column per token. `PaddedRows` takes any
other cache (sliding windows, state-space layers), where rows enter together and leave one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from memalpha.policy.base import shared_length
from memalpha.policy.kv_cache import (
    KeyValueSlots,
    SlotLayer,
    bias_after,
    cache_argument,
    is_state_space,
    make_cache,
    takes_positions,
)
from memalpha.policy.model_files import is_quantized

Prompt = Sequence[int]

PASS_TOKENS = 128
"""Prompt tokens that a further forward pass must save: it costs SmolLM2-135M on a CPU about 40 itself."""

GPU_PASS_TOKENS = 1024
"""The same on other devices, where starting a pass of some dozens of layers takes as long as many tokens; estimated."""

GRAPHED_FAMILIES = ("llama", "qwen2", "qwen3")
"""Model types whose decode steps run as CUDA graphs."""


class DecodingRows(Protocol):
    """Rows of one model, in order of entry until `keep` reorders them."""

    joinable: bool
    """True if rows may enter while others run."""

    def enter(self, prompts: Sequence[Prompt], limits: Sequence[int]) -> torch.Tensor:
        """Add rows behind those under way.

        Args:
            prompts: ids of each new row; equal prompts are computed once, and so may be what all have in front.
            limits: most tokens of each new row, prompt included.

        Returns:
            Logits (new rows, vocabulary) of the first new token.
        """
        ...

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Append a token to each row; return the logits (rows, vocabulary) of the next."""
        ...

    def keep(self, order: Sequence[int]) -> None:
        """Keep the rows of `order`: new row i is old row `order[i]`, which is i or comes after all new rows."""
        ...


class SlotRows:
    """Rows that enter at any time.

    Args:
        model: model whose cache is plain (`has_plain_cache`).
        batch_tokens: most rows x columns of the cache, unless one row alone needs more.
    """

    joinable = True

    def __init__(self, model: Any, batch_tokens: int) -> None:
        self.model = model
        self.graphs: StepGraphs | None = StepGraphs() if can_be_graphed(model) else None
        self.cache: Any = DynamicCache(config=model.config)
        self.slots = KeyValueSlots(len(self.cache.layers), batch_tokens)
        self.views = [_SlotView(layer) for layer in self.slots.layers]
        self.cache.layers = self.views

    def enter(self, prompts: Sequence[Prompt], limits: Sequence[int]) -> torch.Tensor:
        """Prefill and add rows behind those under way; see `DecodingRows.enter`."""
        distinct, owner = _distinct(prompts)
        pass_tokens = PASS_TOKENS if self.model.device.type == "cpu" else GPU_PASS_TOKENS
        shared = shared_tokens(distinct, pass_tokens) if takes_positions(self.model) else 0
        front: Any = make_cache(self.model)
        if shared:
            _prefill(self.model, front, [distinct[0][:shared]])
        first, grow = self.slots.enter([len(prompt) for prompt in prompts], limits)
        if grow and self.graphs is not None:
            self.graphs = StepGraphs()  # those recorded write to memory that is given up
        logits: dict[int, torch.Tensor] = {}
        for group in length_groups([len(prompt) for prompt in distinct], pass_tokens, shared):
            chosen = [distinct[index] for index in group]
            cache: Any = make_cache(self.model)
            if shared:
                cache.layers = [layer.repeated(len(chosen), max(map(len, chosen))) for layer in front.layers]
            logits |= zip(group, _prefill(self.model, cache, chosen, shared), strict=True)
            if grow:
                for slots, layer in zip(self.slots.layers, cache.layers, strict=True):
                    slots.reserve(self.slots.rows, self.slots.columns, layer.keys, layer.values)
                grow = False
            cache_row = {index: number for number, index in enumerate(group)}
            rows = [row for row, index in enumerate(owner) if index in cache_row]
            self._store(cache, [cache_row[owner[row]] for row in rows], [first + row for row in rows], shared)
        return torch.stack([logits[index] for index in owner])

    def _store(self, cache: Any, sources: Sequence[int], targets: Sequence[int], shared: int) -> None:
        """Copy rows of a prefilled cache into slots.

        Args:
            cache: keys and values, padded on the left of what is not shared.
            sources: row in the cache for each slot.
            targets: row in the slots likewise.
            shared: columns that are shared.
        """
        device = self.model.device
        lengths = torch.tensor([self.slots.lengths[row] for row in targets], device=device)[:, None]
        source, target = torch.tensor(sources, device=device)[:, None], torch.tensor(targets, device=device)
        width = int(lengths.max())
        # Columns after a prompt hold copies of its last one; they are never attended to.
        columns = torch.arange(width, device=device).expand(len(targets), width)
        columns = torch.where(columns < shared, columns, (columns + width - lengths).clamp_max(width - 1))
        for slots, layer in zip(self.slots.layers, cache.layers, strict=True):
            slots.keys[target, :, :width] = layer.keys[source, :, columns].transpose(1, 2)
            slots.values[target, :, :width] = layer.values[source, :, columns].transpose(1, 2)

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Append a token to each row; return the next logits."""
        inputs = torch.tensor([tokens, self.slots.lengths])
        if self.graphs is not None:
            logits = self.graphs.step(self.padded_pass, inputs, self.slots.rows, self.model.device)
        else:
            ids, columns = inputs.to(self.model.device)
            width = max(self.slots.lengths) + 1
            mask = (torch.arange(width, device=columns.device) <= columns[:, None]).long()
            logits = self._pass(ids, columns, mask, width)
        self.slots.lengths = [length + 1 for length in self.slots.lengths]
        return logits

    def padded_pass(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return a step's logits by a pass whose shape is the same whatever the lengths are.

        It reads all columns that the slots have, and hides those that a row has not. Rows of padding have length 0 and
        write to slots that hold no row.

        Args:
            inputs: ids, and lengths before the step (2, rows), on the model's device.
        """
        ids, columns = inputs
        bias = bias_after(columns, self.slots.columns, self.model.dtype)
        return self._pass(ids, columns, bias[:, None, None], self.slots.columns)

    def _pass(self, ids: torch.Tensor, columns: torch.Tensor, mask: torch.Tensor, width: int) -> torch.Tensor:
        rows = torch.arange(len(ids), device=ids.device)
        for view in self.views:
            view.rows, view.columns, view.width = rows, columns, width
        return self.model(
            input_ids=ids[:, None],
            attention_mask=mask,
            position_ids=columns[:, None],
            use_cache=True,
            **{cache_argument(self.model): self.cache},
        ).logits[:, -1]

    def keep(self, order: Sequence[int]) -> None:
        """Keep the rows of `order`; see `DecodingRows.keep`."""
        self.slots.keep(order)
        if not self.slots.rows and self.graphs is not None:  # the memory has been given up
            self.graphs = StepGraphs()


def can_be_graphed(model: Any) -> bool:
    """Return True if a decode step of the model can be recorded as a CUDA graph.

    It must be on one CUDA device and be of a family whose pass never asks the device for a value: no experts, no
    quantized weights, no positions that are scaled by the longest one.
    """
    config, devices = model.config, {parameter.device for parameter in model.parameters()}
    return (
        len(devices) == 1
        and devices.pop().type == "cuda"
        and config.model_type in GRAPHED_FAMILIES
        and not is_quantized(model)
        and config._attn_implementation in ("sdpa", "eager")
        and config.rope_parameters["rope_type"] in ("default", "linear", "llama3", "yarn")
    )


class StepGraphs:
    """CUDA graphs of decode steps, one for each number of rows, rounded up to a power of two.

    A step of some dozens of layers starts a thousand kernels, one by one from Python, which takes longer than they
    run. A graph starts them at once. The first step with a number of rows runs plainly, as CUDA wants it before it
    records; the second is recorded. All graphs share their memory, so logits hold until the next step.
    """

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.graphs: dict[int, tuple[Any, torch.Tensor, torch.Tensor]] = {}

    def step(
        self, run: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor, most_rows: int, device: torch.device
    ) -> torch.Tensor:
        """Return the logits (rows, vocabulary) that `run` gives for inputs (2, rows).

        Args:
            run: pass of fixed shape; see `SlotRows.padded_pass`.
            inputs: its inputs, on the host.
            most_rows: rows that there is memory for.
            device: device of the pass.
        """
        count = inputs.shape[1]
        rows = min(1 << (count - 1).bit_length(), most_rows)
        inputs = torch.nn.functional.pad(inputs, (0, rows - count))
        if rows in self.graphs:
            graph, held, logits = self.graphs[rows]
            held.copy_(inputs)
        elif rows not in self.seen:
            self.seen.add(rows)
            return run(inputs.to(device))[:count]
        else:
            held, graph = inputs.to(device), torch.cuda.CUDAGraph()
            pool = next((graph.pool() for graph, _, _ in self.graphs.values()), None)
            # Other threads may use the device meanwhile: another agent's policy, a reader.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                logits = run(held)
            self.graphs[rows] = graph, held, logits
        graph.replay()
        return logits[:count]


class PaddedRows:
    """Rows that enter together, padded on the left to one length.

    Args:
        model: any causal model.
    """

    joinable = False

    def __init__(self, model: Any) -> None:
        self.model = model

    def enter(self, prompts: Sequence[Prompt], limits: Sequence[int]) -> torch.Tensor:
        """Prefill the rows of an empty batch; see `DecodingRows.enter`."""
        self.cache: Any = make_cache(self.model)
        distinct, indices = _distinct(prompts)
        logits = _prefill(self.model, self.cache, distinct)
        owner = torch.tensor(indices, device=logits.device)
        if len(distinct) < len(prompts):
            self.cache.reorder_cache(owner)
        lengths = [len(prompt) for prompt in prompts]
        self.position = torch.tensor(lengths, device=logits.device)[:, None]
        width = max(lengths)
        steps = max(limit - length for limit, length in zip(limits, lengths, strict=True))
        self.mask = torch.arange(width + steps, device=logits.device) >= width - self.position
        self.width = width
        self.rows = list(range(len(prompts)))
        return logits[owner]

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Append a token to each row; return the next logits."""
        ids = torch.zeros_like(self.position)
        rows = torch.tensor(self.rows, device=ids.device)
        ids[rows, 0] = torch.tensor(tokens, device=ids.device)
        self.width += 1
        # A state-space model masks its input, not a cache: of a step only the new token, which is never padding.
        width = 1 if is_state_space(self.model) else self.width
        logits = self.model(
            input_ids=ids,
            attention_mask=self.mask[:, self.width - width : self.width].long(),
            position_ids=self.position,
            use_cache=True,
            **{cache_argument(self.model): self.cache},
        ).logits[:, -1]
        self.position = self.position + 1
        return logits[rows]

    def keep(self, order: Sequence[int]) -> None:
        """Keep the rows of `order`; the cache drops the others when they are a tenth of its rows."""
        self.rows = [self.rows[row] for row in order]
        if self.rows and len(self.rows) <= 0.9 * len(self.position):
            indices = torch.tensor(self.rows, device=self.position.device)
            self.cache.reorder_cache(indices)
            self.position, self.mask = self.position[indices], self.mask[indices]
            self.rows = list(range(len(order)))


class _SlotView(DynamicLayer):
    """A `SlotLayer` as a model's cache layer: a step writes each row at its own column.

    Attributes:
        rows: Rows that the next step writes to (rows,).
        columns: Their columns (rows,).
        width: Number of columns that the step reads.
    """

    rows: torch.Tensor
    columns: torch.Tensor
    width: int

    def __init__(self, slots: SlotLayer) -> None:
        super().__init__()
        self.slots = slots
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any):
        """Write one column of each row and return views of all keys and values."""
        keys, values = self.slots.keys, self.slots.values
        keys[self.rows, :, self.columns] = key_states[:, :, 0]
        values[self.rows, :, self.columns] = value_states[:, :, 0]
        rows = slice(len(self.rows))
        return keys[rows, :, : self.width], values[rows, :, : self.width]

    def get_seq_length(self) -> int:
        """Return the number of columns before the step."""
        return self.width - 1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of columns that a step reads, and offset 0."""
        return self.width, 0


def _distinct(prompts: Sequence[Prompt]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the distinct prompts, and each prompt's index among them."""
    unique: dict[tuple[int, ...], int] = {}
    owner = [unique.setdefault(tuple(prompt), len(unique)) for prompt in prompts]
    return list(unique), owner


def shared_tokens(prompts: Sequence[tuple[int, ...]], pass_tokens: int) -> int:
    """Return how many tokens in front of all distinct prompts are computed apart, once for all of them.

    Each prompt keeps a token of its own, whose logits are needed. 0 if that would not save `pass_tokens`.
    """
    shared = min(shared_length(min(prompts), max(prompts)), min(map(len, prompts)) - 1)
    return shared if shared * (len(prompts) - 1) >= pass_tokens else 0


def length_groups(lengths: Sequence[int], pass_tokens: int, shared: int = 0) -> list[list[int]]:
    """Return indices of prompts in groups that are computed together, so that passes and padding cost least.

    Args:
        lengths: tokens of each prompt.
        pass_tokens: tokens that cost as much as a pass apart from its tokens.
        shared: tokens of each prompt that are computed already.
    """
    order = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    costs, starts = [0], [0]
    for end, index in enumerate(order, 1):
        width = lengths[index] - shared
        cost, start = min((costs[start] + (end - start) * width + pass_tokens, start) for start in range(end))
        costs.append(cost)
        starts.append(start)
    groups, end = [], len(order)
    while end:
        groups.append(order[starts[end] : end])
        end = starts[end]
    return groups


def _prefill(model: Any, cache: Any, prompts: Sequence[Prompt], shared: int = 0) -> torch.Tensor:
    """Compute prompts into `cache`, padded on the left of what is not yet in it.

    Args:
        model: any causal model.
        cache: a cache (`make_cache`), with a row for each prompt if tokens are shared.
        prompts: ids of each row.
        shared: tokens in front of all prompts whose keys and values the cache has.

    Returns:
        Logits (prompts, vocabulary) after them.
    """
    width = max(len(prompt) for prompt in prompts)
    ids = np.zeros((len(prompts), width - shared), dtype=np.int64)
    visible = np.zeros((len(prompts), width), dtype=np.int64)
    visible[:, :shared] = 1
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = prompt[shared:]
        visible[row, width - len(prompt) + shared :] = 1
    mask = torch.from_numpy(visible).to(model.device)
    return model(
        input_ids=torch.from_numpy(ids).to(model.device),
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp_min(0)[:, shared:],
        use_cache=True,
        logits_to_keep=1,
        **{cache_argument(model): cache},
    ).logits[:, -1]
