"""Rows of TRL's batches: select, concatenate, pad with dead rows. Shapes: B rows, P prompt and T completion tokens.

A dead row has one prompt token and a completion without counted tokens. Dead rows give every process and micro-batch
equally many rows: `split_tensor_dict` drops a remainder, and gathering rows hangs if processes have different numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from memalpha.integrations.trl.guard import require

Rows = dict[str, torch.Tensor]

REQUIRED = frozenset({"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages"})
TOKEN_COLUMNS = frozenset({"old_per_token_logps", "ref_per_token_logps", "sampling_per_token_logps"})
RATIO = "importance_sampling_ratio"
"""Name of the importance ratio: (B, T), or (B, 1) for ratios of whole completions."""
ITEM_COUNT = "num_items_in_batch"
LEFT_PADDED = frozenset({"prompt_ids", "prompt_mask"})
ROW_MEAN_LOSSES = frozenset({"grpo", "sapo", "dr_grpo", "luspo"})
"""TRL's `loss_type`s that divide by the rows of a micro-batch, dead ones too; the others divide by tokens."""


def check_rows(output: Mapping[str, object], size: int) -> Rows:
    """Return TRL's batch of `size` rows. Raises `TrainingError` for unknown tensors or shapes."""
    allowed = REQUIRED | TOKEN_COLUMNS | {RATIO, ITEM_COUNT}
    require(REQUIRED <= output.keys() <= allowed, f"a batch of {sorted(output)}, known are {sorted(allowed)}")
    rows: Rows = {}
    for name, tensor in output.items():
        require(isinstance(tensor, torch.Tensor), f"{name} is a {type(tensor).__name__}")
        assert isinstance(tensor, torch.Tensor)
        if name != ITEM_COUNT:
            rows[name] = tensor
    prompt, completion = tuple(rows["prompt_ids"].shape), tuple(rows["completion_ids"].shape)
    require(len(prompt) == 2 and len(completion) == 2, f"ids of the shapes {prompt} and {completion}")
    for name, tensor in rows.items():
        shapes = {
            "advantages": {(size,), (size, completion[1])},
            RATIO: {(size, completion[1]), (size, 1)},
        }.get(name, {(size, prompt[1] if name in LEFT_PADDED else completion[1])})
        require(tuple(tensor.shape) in shapes, f"{name} of the shape {tuple(tensor.shape)}, expected {sorted(shapes)}")
    return rows


def select_rows(rows: Rows, indices: Sequence[int]) -> Rows:
    """Return the rows at `indices`."""
    return {name: tensor[list(indices)] for name, tensor in rows.items()}


def _pad_columns(tensor: torch.Tensor, width: int, value: float, left: bool) -> torch.Tensor:
    extra = width - tensor.shape[1]
    return torch.nn.functional.pad(tensor, (extra, 0) if left else (0, extra), value=value)


def concat_rows(parts: Sequence[Rows], pad_id: int) -> Rows:
    """Concatenate rows of several batches, padded to the longest prompt and completion."""
    rows: Rows = {}
    for name in parts[0]:
        tensors = [part[name] for part in parts]
        if tensors[0].dim() == 2 and not (name == RATIO and all(tensor.shape[1] == 1 for tensor in tensors)):
            width = max(tensor.shape[1] for tensor in tensors)
            value = pad_id if name.endswith("_ids") else float(name == RATIO)
            tensors = [_pad_columns(tensor, width, value, name in LEFT_PADDED) for tensor in tensors]
        rows[name] = torch.cat(tensors)
    return rows


def add_dead_rows(rows: Rows, count: int, pad_id: int) -> Rows:
    """Append dead rows until there are `count` rows.

    Args:
        rows: The rows.
        count: Rows of the result.
        pad_id: Token id of the dead rows.
    """
    missing = count - len(rows["prompt_ids"])
    filled_rows = {}
    for name, tensor in rows.items():
        value = pad_id if name.endswith("_ids") else float(name == RATIO)
        dead = tensor.new_full((missing, *tensor.shape[1:]), value)
        if name == "prompt_mask":
            dead[:, -1] = 1  # attention over no token gives NaN
        filled_rows[name] = torch.cat([tensor, dead])
    return filled_rows


def rows_from_ids(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], pad_id: int, device: object
) -> Rows:
    """Pad ids to tensors with masks, prompts on the left, completions on the right.

    Args:
        prompts: Prompt ids of each row.
        completions: Completion ids of each row.
        pad_id: Padding token id.
        device: Device of the tensors.

    Returns:
        Ids and masks (B, P) and (B, T).
    """

    def pad(rows: Sequence[Sequence[int]], left: bool) -> tuple[torch.Tensor, torch.Tensor]:
        width = max((len(row) for row in rows), default=1)
        ids = torch.full((len(rows), width), pad_id)
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        for index, row in enumerate(rows):
            columns = slice(width - len(row), None) if left else slice(len(row))
            ids[index, columns], mask[index, columns] = torch.tensor(row), 1
        return ids.to(device), mask.to(device)  # type: ignore[arg-type]

    prompt_ids, prompt_mask = pad(prompts, True)
    completion_ids, completion_mask = pad(completions, False)
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
    }


def round_up(count: int, parts: int) -> int:
    """Return the smallest multiple of `parts` that is at least `count`."""
    return -(-count // parts) * parts
