"""`RowTrainer`: a `GRPOTrainer` whose updates may have any number of rows instead of one per prompt.

Supported releases of TRL, and checks that the private methods in use still have the expected form.

The trainers override private methods of `GRPOTrainer`, which change between releases. A release outside the range, a
method with other parameters, or tensors of another shape raise an error: training never goes wrong silently.

Rows of TRL's batches: select, concatenate, pad with dead rows. Shapes: B rows, P prompt and T completion tokens.

A dead row has one prompt token and a completion without counted tokens. Dead rows give every process and micro-batch
equally many rows: `split_tensor_dict` drops a remainder, and gathering rows hangs if processes have different numbers.
"""

from __future__ import annotations

import inspect
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import torch
from accelerate.utils import gather_object

from memalpha.errors import TrainingError, install_command

MIN_RELEASE, MAX_RELEASE = (1, 16), (1, 17)
"""Supported releases (major, minor): MIN_RELEASE <= release < MAX_RELEASE. GRPOTrainer of 1.15 needs Triton."""
RANGE = f"trl>={'.'.join(map(str, MIN_RELEASE))},<{'.'.join(map(str, MAX_RELEASE))}"

TRL_METHODS: Mapping[str, tuple[str, ...]] = {
    "_prepare_inputs": ("self", "generation_batch"),
    "_generate_and_score_completions": ("self", "inputs"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
    "_tokenize_prompts": ("self", "prompts"),
    "_generate": ("self", "prompts"),
    "_get_per_token_logps_and_entropies": ("self", "model", "input_ids", "attention_mask", "logits_to_keep"),
    "_compute_loss": ("self", "model", "inputs"),
    "_save_checkpoint": ("self", "model", "trial"),
    "_load_optimizer_and_scheduler": ("self", "checkpoint"),
}
"""First parameters of each method that is overridden or called; later parameters must have defaults."""


def require_trl() -> None:
    """Raise `TrainingError` unless an installed release of TRL is in `RANGE`."""
    try:
        version = metadata.version("trl")
    except metadata.PackageNotFoundError:
        raise TrainingError(f"memalpha.integrations.trl needs TRL: {install_command('train')}") from None
    release = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not MIN_RELEASE <= release < MAX_RELEASE:
        raise TrainingError(
            f"memalpha.integrations.trl builds on private methods of TRL's GRPOTrainer and was tested with {RANGE}; "
            f"installed is trl {version}: pip install '{RANGE}'"
        )


def require_methods(trainer: type, names: Sequence[str]) -> None:
    """Raise `TrainingError` if one of TRL's methods in `TRL_METHODS` is missing or has other parameters."""
    for name in names:
        method = getattr(trainer, name, None)
        if method is None:
            raise _incompatible(f"{trainer.__name__}.{name} is missing")
        parameters = list(inspect.signature(method).parameters.values())
        expected = TRL_METHODS[name]
        if tuple(parameter.name for parameter in parameters[: len(expected)]) != expected or any(
            extra.default is extra.empty and extra.kind not in (extra.VAR_POSITIONAL, extra.VAR_KEYWORD)
            for extra in parameters[len(expected) :]
        ):
            raise _incompatible(f"{trainer.__name__}.{name}{inspect.signature(method)}, expected {', '.join(expected)}")


def require(condition: bool, problem: str) -> None:
    """Raise `TrainingError` with `problem` unless `condition` holds for TRL's output."""
    if not condition:
        raise _incompatible(problem)


def _incompatible(problem: str) -> TrainingError:
    return TrainingError(
        f"trl {metadata.version('trl')} differs from what memalpha.integrations.trl expects: {problem}. Nothing was "
        f"trained; install another release of '{RANGE}', and please report this"
    )


def check_batch(batch: Any) -> None:
    """Raise `TrainingError` unless a generation batch is a list of rows."""
    is_rows = isinstance(batch, list) and len(batch) > 0 and all(isinstance(row, Mapping) for row in batch)
    require(is_rows, f"a batch of type {type(batch).__name__}, expected a list of rows")


require_trl()

from trl.trainer.grpo_trainer import GRPOTrainer  # noqa: E402

ROW_SCALE = "row_scale"
"""Rows of a batch per real row, a scalar, for losses that divide by rows."""


class RowTrainer(GRPOTrainer):
    """Base of `ERLTrainer` and `MultiContextGRPOTrainer`; use one of them."""

    args: Any
    model: Any
    accelerator: Any
    num_generations: Any
    max_completion_length: Any
    _tokenizer: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        require_methods(GRPOTrainer, tuple(TRL_METHODS))
        super().__init__(*args, **kwargs)

    def _balance_rows(self, rows: Rows) -> Rows:
        """Add dead rows so that every process and micro-batch has equally many, and correct the loss for them.

        Losses that divide by tokens (`dapo`, `cispo`, `vespo`; `bnpo` within a micro-batch) give dead rows no weight.
        Losses that divide by the rows of a micro-batch are multiplied by rows / real rows of the whole batch.
        """
        row_count, steps = len(rows["prompt_ids"]), self.args.steps_per_generation
        total_rows = sum(self._gather_values([row_count]))
        rows = add_dead_rows(rows, round_up(self._max_over_processes(row_count), steps), self._tokenizer.pad_token_id)
        count = len(rows["prompt_ids"]) * self.accelerator.num_processes
        scale = count / max(1, total_rows) if self.loss_type in ROW_MEAN_LOSSES else 1.0
        device = self.accelerator.device
        rows[ROW_SCALE] = torch.tensor(scale, device=device)
        rows[ITEM_COUNT] = self.accelerator.gather(rows["completion_mask"].sum()).sum()
        return rows

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        scale = inputs.get(ROW_SCALE)
        if scale is None or float(scale) == 1.0:
            return super()._compute_loss(model, inputs)
        # The policy gradient is proportional to advantages, the KL to beta; the entropy bonus is a mean over tokens.
        beta = self.beta
        self.beta = beta * float(scale)
        try:
            return super()._compute_loss(model, {**inputs, "advantages": inputs["advantages"] * scale})
        finally:
            self.beta = beta

    def _record_metric(self, name: str, value: float) -> None:
        """Log a metric of this batch; values of one log line are averaged."""
        self._metrics["train"][name].append(float(value))

    def _max_over_processes(self, count: int) -> int:
        """Return the largest of the processes' counts."""
        return max(self._gather_values([count]))

    def _gather_values(self, values: Sequence[Any]) -> list[Any]:
        """Return the values of all processes, in the order of processes."""
        return list(gather_object(list(values)))

    def _local_rows(self, values: torch.Tensor, size: int) -> torch.Tensor:
        """Return this process's `size` rows out of the rows of all processes."""
        first = self.accelerator.process_index * size
        return values[first : first + size]

    @contextmanager
    def _temporarily(self, **changes: Any) -> Iterator[dict[str, list[float]]]:
        """Set attributes for the block, redirect metrics and logged texts, and yield the redirected metrics."""
        metrics: dict[str, list[float]] = defaultdict(list)
        changes = {
            "_metrics": {"train": metrics, "eval": defaultdict(list)},
            "_logs": {
                name: defaultdict(deque) if isinstance(logs, dict) else deque() for name, logs in self._logs.items()
            },
            **changes,
        }
        before = {name: getattr(self, name) for name in changes}
        try:
            for name, value in changes.items():
                setattr(self, name, value)
            yield metrics
        finally:
            for name, value in before.items():
                setattr(self, name, value)


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
        others = {"advantages": {(size,)}, RATIO: {(size, 1)}}  # shapes beside a value a token
        shapes = {(size, prompt[1] if name in LEFT_PADDED else completion[1]), *others.get(name, ())}
        require(tuple(tensor.shape) in shapes, f"{name} of the shape {tuple(tensor.shape)}, expected {sorted(shapes)}")
    return rows


def select_rows(rows: Rows, indices: Sequence[int]) -> Rows:
    """Return the rows at `indices`."""
    return {name: tensor[list(indices)] for name, tensor in rows.items()}


def concat_rows(parts: Sequence[Rows], pad_id: int) -> Rows:
    """Concatenate rows of several batches, padded to the longest prompt and completion."""
    rows: Rows = {}
    for name in parts[0]:
        tensors = [part[name] for part in parts]
        if tensors[0].dim() == 2 and not (name == RATIO and all(tensor.shape[1] == 1 for tensor in tensors)):
            width = max(tensor.shape[1] for tensor in tensors)
            value = pad_id if name.endswith("_ids") else float(name == RATIO)
            gaps = [width - tensor.shape[1] for tensor in tensors]
            sides = [(gap, 0) if name in LEFT_PADDED else (0, gap) for gap in gaps]
            tensors = [torch.nn.functional.pad(*tensor, value=value) for tensor in zip(tensors, sides, strict=True)]
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

    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    return dict(zip(names, (*pad(prompts, True), *pad(completions, False)), strict=True))


def round_up(count: int, parts: int) -> int:
    """Return the smallest multiple of `parts` that is at least `count`."""
    return -(-count // parts) * parts
