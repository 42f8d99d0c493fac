"""Hidden states below the adapted layers, computed once per row.

With adapters on the last layers only (`lora.layers`) the layers below give a row the same hidden states in every epoch.
`FrozenLayers` keeps these in host memory, and a pass starts at the first adapted layer. It runs transformers' own
forward with the lower layers' `forward` replaced, so masks and positions are the model's own.

Each row passes the lower layers alone. Its hidden states therefore do not depend on the batch it is in, on the limit of
memory or on a resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from memalpha.errors import ConfigError
from memalpha.train.data.samples import Layout, TrainingSample
from memalpha.train.learner.lora import layer_stack
from memalpha.train.learner.token_logprobs import find_trunk, replace_forward, return_states, unwrap_peft

GIGABYTE = 10**9
PROBE_TOKENS = 8


class FrozenLayers:
    """Compute and keep the hidden states that enter the first adapted layer.

    Args:
        model: A `PeftModel` from `add_lora`.
        count: Number of last layers with adapters.
        limit: Most bytes of hidden states to keep; those of further rows are computed in each pass.
        autocast: Run the passes in bfloat16, as the scorer does.

    Attributes:
        layers: Layers below the adapted ones.
        bytes: Bytes of the hidden states kept.

    Raises:
        ConfigError: No layer is below the adapted ones, trained weights are below them, or the model does not compute
            the same from their hidden states.
    """

    def __init__(self, model: Any, count: int, limit: int, *, autocast: bool = False) -> None:
        self._model = unwrap_peft(model)
        stack = layer_stack(self._model, type(self._model).__name__)[1]
        self.layers: list[nn.Module] = list(stack)[: len(stack) - count]
        self._adapted_layers: list[nn.Module] = list(stack)[len(stack) - count :]
        if not self.layers:
            raise ConfigError(
                f"lora.frozen_cache_gb: lora.layers={count} adapts all layers, so none is frozen: leave it out"
            )
        self.limit, self.autocast, self.bytes = limit, autocast, 0
        self._states: dict[tuple[tuple[int, ...], tuple[int, ...]], torch.Tensor] = {}
        self._token_bytes = self._check()

    def batch_states(self, samples: Sequence[TrainingSample], layout: Layout) -> torch.Tensor:
        """Return the hidden states (B, L, H) of a micro-batch; 0 at padding.

        Args:
            samples: Token rows of the micro-batch.
            layout: Where their tokens are computed.
        """
        rows = [self._row_states(sample) for sample in samples]
        batch = rows[0].new_zeros(layout.input_ids.size, rows[0].shape[1])
        for states, nodes in zip(rows, layout.nodes, strict=True):
            batch[torch.from_numpy(nodes)] = states
        return batch.view(*layout.input_ids.shape, -1).to(self._model.device)

    def describe(self, samples: Sequence[TrainingSample]) -> str:
        """Return a sentence on the memory that the rows of a run take."""
        lengths = {(sample.prompt_ids, sample.completion_ids): sample.length - 1 for sample in samples}
        needed = self._token_bytes * sum(lengths.values())
        text = (
            f"hidden states below layer {len(self.layers)}: {needed / GIGABYTE:.2g} GB for {len(lengths)} rows, at "
            f"most {self.limit / GIGABYTE:.2g} GB kept (lora.frozen_cache_gb)"
        )
        if needed > self.limit:
            text += f"; the other {1 - self.limit / needed:.0%} are computed in every pass"
        return text

    def _row_states(self, sample: TrainingSample) -> torch.Tensor:
        """Return the hidden states (T, H) of a row without its last token, in host memory."""
        key = (sample.prompt_ids, sample.completion_ids)
        states = self._states.get(key)
        if states is None:
            ids = torch.tensor([(*sample.prompt_ids, *sample.completion_ids)[:-1]], device=self._model.device)
            with torch.no_grad(), self._precision():
                states = self._compute(ids)[0].cpu().contiguous()
            if self.bytes + states.nbytes <= self.limit:
                self._states[key] = states
                self.bytes += states.nbytes
        return states

    def _compute(self, input_ids: torch.Tensor) -> Any:
        """Return what the last lower layer gives."""
        outputs: list[Any] = []
        hook = self.layers[-1].register_forward_hook(lambda *call: outputs.append(call[-1]))
        try:
            with replace_forward(self._adapted_layers, lambda _: lambda *_args, **_kwargs: outputs[0]):
                find_trunk(self._model)(input_ids=input_ids, use_cache=False)
        finally:
            hook.remove()
        return outputs[0]

    def _check(self) -> int:
        """Check on a probe that a pass from the hidden states is exact; return the bytes of a token."""
        vocabulary = self._model.config.get_text_config().vocab_size
        ids = torch.arange(PROBE_TOKENS, device=self._model.device)[None] * 7 % vocabulary
        trunk = find_trunk(self._model)
        with torch.enable_grad(), self._precision():
            states = self._compute(ids)
        if getattr(states, "requires_grad", False):
            raise ConfigError(
                f"lora.frozen_cache_gb: weights below layer {len(self.layers)} are trained (lora.modules_to_save), so "
                "what the layers below give changes in a run: leave one of them out"
            )
        is_same = isinstance(states, torch.Tensor) and states.dim() == 3
        if is_same:
            with torch.no_grad(), self._precision():
                expected = trunk(input_ids=ids, use_cache=False).last_hidden_state
                with return_states(self.layers, states):
                    actual = trunk(input_ids=ids, use_cache=False).last_hidden_state
            is_same = torch.allclose(actual.float(), expected.float(), rtol=1e-5, atol=1e-5)
        if not is_same:
            raise ConfigError(
                f"lora.frozen_cache_gb: {type(self._model).__name__} computes something else from the hidden states of "
                f"layer {len(self.layers)}: leave it out"
            )
        return states.shape[-1] * states.element_size()

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._model.device.type, torch.bfloat16) if self.autocast else nullcontext()
