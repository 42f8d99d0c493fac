"""Count the memory of forward and backward passes without doing them.

A pass of the run's own code is executed on fake tensors (`torch._subclasses.fake_tensor`): shapes, types and autograd
are real, the numbers are not there. A dispatch mode adds up the storages that live at the same time. So the count
follows the architecture, the adapters, checkpointing and the loss head, and has no constants to fit. Memory inside a
kernel is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from transformers import masking_utils
from transformers.integrations import moe

from memalpha.config.groups import ComputeConfig
from memalpha.errors import PolicyError
from memalpha.policy.kv_cache import cache_argument, is_state_space, make_cache
from memalpha.policy.model_files import first_sentence
from memalpha.train.learner.token_logprobs import TokenScorer, unwrap_peft

EQUAL_LAYERS, MIXED_LAYERS = 3, 6
"""Layers of the smaller model from which a larger one is extrapolated; 6 hold the usual periods of mixed layers."""
SCANNED_TOKENS = 8
"""Tokens of the shorter row from which a state-space model's memory is extrapolated."""
_LOCAL_SCALAR = torch.ops.aten._local_scalar_dense.default
_DEVICE = torch.ops.prim.device.default


class StorageCounter(TorchDispatchMode):
    """Count the bytes of storages that live at once; those that exist before it are not counted.

    A number that code asks for (`item`) is 1, because fake tensors have none: every block of rows counts as trained.

    Args:
        existing: Tensors whose storages exist already.

    Attributes:
        live: Bytes that live now.
        peak: Most bytes that lived at once.
    """

    def __init__(self, existing: Iterator[torch.Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in existing}
        self._counted: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count the storages of its results."""
        if func is _LOCAL_SCALAR:
            return 1
        result = func(*args, **(kwargs or {}))
        if func is not _DEVICE:
            tree_map_only(torch.Tensor, self._count, result)
        return result

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known or key in self._counted:
            return
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)

        def forget(_: Any) -> None:
            self.live -= size
            del self._counted[key]

        self._counted[key] = weakref.ref(storage, forget)


def extrapolate_layers(model: Any, measure: Callable[[], int], last: int | None = None) -> int:
    """Return `measure()` for the whole model, from two smaller ones if it has many layers.

    Memory is linear in the number of equal layers; a pass through dozens of fake ones takes half a minute.

    Args:
        model: Fake model; a few of its layers are taken out while `measure` runs.
        measure: Counts bytes of the model as it then is.
        last: Only this many last layers use memory; None: all.
    """
    base = unwrap_peft(model)
    settings: Any = base.config.get_text_config()
    count = int(settings.num_hidden_layers)
    stacks = [
        (part, name)
        for part in base.modules()
        for name, child in part.named_children()
        if isinstance(child, torch.nn.ModuleList) and len(child) == count
    ]
    kinds = getattr(settings, "layer_types", None) or ()
    has_own_kinds = bool(kinds) and "layer_types" in vars(settings)  # others follow from the number of layers
    few = MIXED_LAYERS if len(set(kinds)) > 1 else EQUAL_LAYERS
    more = 2 * few
    if count <= more or len(stacks) != 1:
        return measure()
    part, name = stacks[0]
    layers = getattr(part, name)
    sizes = []
    try:
        for layer_count in (few, more):
            setattr(part, name, layers[:layer_count] if last is None else layers[-layer_count:])
            settings.num_hidden_layers = layer_count
            if has_own_kinds:
                settings.layer_types = kinds[:layer_count] if last is None else kinds[-layer_count:]
            sizes.append(measure())
    finally:
        setattr(part, name, layers)
        settings.num_hidden_layers = count
        if has_own_kinds:
            settings.layer_types = kinds
    return sizes[1] + ((last or count) - more) * (sizes[1] - sizes[0]) // (more - few)


def extrapolate_width(model: Any, measure: Callable[[int], int], width: int) -> int:
    """Return `measure(width)`, from two short rows if the model is a state-space one.

    Its memory is linear in the tokens, and transformers' plain form of it takes a step for each.

    Args:
        model: Fake model.
        measure: Counts bytes of a pass over rows of some tokens.
        width: Tokens of a row.
    """
    if not is_state_space(model) or width <= 2 * SCANNED_TOKENS:
        return measure(width)
    less, more = measure(SCANNED_TOKENS), measure(2 * SCANNED_TOKENS)
    return more + round((width / SCANNED_TOKENS - 2) * (more - less))


@contextmanager
def _no_masks_for_tracing() -> Iterator[None]:
    """Let transformers leave out the causal mask, as it does for real tensors: for fake ones it builds one."""
    masks: Any = masking_utils
    is_tracing = masks.is_tracing
    masks.is_tracing = lambda *_: False
    try:
        yield
    finally:
        masks.is_tracing = is_tracing


@contextmanager
def _no_kernels_of_experts() -> Iterator[None]:
    """Let experts take transformers' plain product of groups: torch's kernel for fake tensors knows bfloat16 only.

    Both have the same inputs and outputs.
    """
    can_use_kernel = getattr(moe, "_can_use_grouped_mm", None)
    moe._can_use_grouped_mm = lambda *_: False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        moe._can_use_grouped_mm = can_use_kernel  # type: ignore[attr-defined]


@contextmanager
def explain_failures(model: Any) -> Iterator[None]:
    """Re-raise what an architecture raises in the block as `PolicyError` that names the model.

    Any code of transformers may run there, on fake tensors that it was not written for.
    """
    try:
        yield
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError) as error:
        name = type(unwrap_peft(model)).__name__
        raise PolicyError(
            f"{name} cannot be planned ({type(error).__name__}: {first_sentence(error)}): its config.json does not "
            "fit, or its architecture or this transformers needs real tensors; run without a plan, or take another one"
        ) from error


def count_cache(model: Any, mode: FakeTensorMode, *, width: int) -> int:
    """Return the bytes that a row of `width` tokens leaves in the cache: keys and values, or states.

    Args:
        model: Fake model.
        mode: Mode that it was made in.
        width: Tokens of the row.
    """
    with mode, torch.no_grad(), _no_kernels_of_experts():
        cache = make_cache(model)
        _run_prefill(model, cache, 1, width)
        contents = [value for layer in cache.layers for name, value in vars(layer).items() if name != "stores"]
        tensors = [value for value in tree_flatten(contents)[0] if isinstance(value, torch.Tensor)]
        return sum(tensor.nbytes for tensor in tensors)


def _run_prefill(model: Any, cache: Any, rows: int, width: int) -> None:
    ids = torch.zeros(rows, width, dtype=torch.long)
    mask = torch.ones(rows, width, dtype=torch.long)
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        use_cache=True,
        logits_to_keep=1,
        **{cache_argument(model): cache},
    )


@contextmanager
def fake_tensors() -> Iterator[FakeTensorMode]:
    """Make all tensors of the block fake ones."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        yield mode


def count_learning(
    model: Any,
    mode: FakeTensorMode,
    compute: ComputeConfig,
    *,
    rows: int,
    width: int,
    targets: int,
    accumulated: bool,
    values: bool = False,
    entropy: bool = False,
) -> tuple[int, int]:
    """Count one micro-batch's forward and backward pass through `TokenScorer`.

    Args:
        model: Fake model (or `PeftModel`) as the learner holds it.
        mode: Mode that the model was made in.
        compute: Precision, checkpointing and head settings.
        rows: Rows of the micro-batch (B).
        width: Padded length of a row (L).
        targets: Completion tokens (N).
        accumulated: True if the gradients of an earlier micro-batch are there already.
        values: Add a value head.
        entropy: The loss has a term of entropy.

    Returns:
        Peak bytes beside the weights, gradients included, and the bytes of the gradients.
    """
    with mode:
        scorer = TokenScorer(
            model,
            head_tokens=compute.head_tokens,
            autocast=compute.dtype == "bfloat16",
            checkpointing=compute.gradient_checkpointing,
            values=values,
        )
        arguments = (
            torch.zeros(rows, width, dtype=torch.long),
            torch.zeros(targets, dtype=torch.long),
            torch.zeros(targets, dtype=torch.long),
            torch.ones(targets),
        )

    def passes() -> None:
        logprobs, entropies, estimates = scorer(*arguments)
        loss = logprobs.sum() + entropies.sum() if entropy else logprobs.sum()
        if estimates is not None:
            loss = loss + estimates.sum()
        del logprobs, entropies, estimates
        loss.backward()

    return count_training(scorer, mode, passes, accumulated=accumulated)


def count_training(
    module: torch.nn.Module, mode: FakeTensorMode, passes: Callable[[], None], *, accumulated: bool
) -> tuple[int, int]:
    """Count `passes`, which adds a gradient to the trainable parameters of `module`.

    Args:
        module: Fake module.
        mode: Mode that it was made in.
        passes: Runs the forward and backward pass.
        accumulated: True if the gradients of an earlier pass are there already.

    Returns:
        Peak bytes beside the weights, gradients included, and the bytes of the gradients.
    """
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    gradients = sum(parameter.nbytes for parameter in trained)
    with mode:
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter) if accumulated else None
        earlier_gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
        counter = StorageCounter(iter([*module.parameters(), *module.buffers(), *earlier_gradients]))
        with counter, _no_masks_for_tracing(), _no_kernels_of_experts():
            passes()
        for parameter in trained:
            parameter.grad = None
    return counter.peak + sum(gradient.nbytes for gradient in earlier_gradients), gradients


def count_prefill(model: Any, mode: FakeTensorMode, *, rows: int, width: int) -> int:
    """Return the peak bytes of a prefill, beside the weights.

    Args:
        model: Fake model.
        mode: Mode of `fake_tensors`.
        rows: Prompts that are read together.
        width: Tokens of each prompt.
    """
    with mode, torch.no_grad():
        counter = StorageCounter(iter([*model.parameters(), *model.buffers()]))
        with counter, _no_kernels_of_experts():
            cache: Any = make_cache(model)
            _run_prefill(model, cache, rows, width)
        return counter.peak
