"""vLLM's weight transfer over gloo, for a server without GPUs: NCCL's group and broadcasts are replaced, nothing else.

`--worker-extension-cls eval.reach.vllm_gloo.GlooExtension --weight-transfer-config '{"backend": "gloo"}'` makes a
server with it; `vllm_check.py` starts one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer.factory import (  # type: ignore[import-not-found]
    WeightTransferEngineFactory,
)
from vllm.distributed.weight_transfer.nccl_engine import (  # type: ignore[import-not-found]
    NCCLWeightTransferEngine,
)

from memalpha.policy.vllm.worker_extension import WeightsExtension, repack_head

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from gloo_transfer import TIMEOUT, make_group, send


class GlooEngine(NCCLWeightTransferEngine):
    """vLLM's engine with another group; messages, loading and versions are its own."""

    def init_transfer_engine(self, init_info: Any) -> None:
        """Join the learner's group."""
        store = dist.TCPStore(init_info.master_address, init_info.master_port, is_master=False, timeout=TIMEOUT)
        self._gloo = make_group(store, init_info.rank_offset, init_info.world_size)

    def receive_weights(self, update_info: Any) -> None:
        """Receive each tensor and load it, as vLLM's engine does."""
        for name, dtype, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True):
            weight = torch.empty(shape, dtype=getattr(torch, dtype))
            send(self._gloo, weight)
            self.model.load_weights([(name, weight)])

    def finish_weight_update(self) -> None:
        """Finish as vLLM's engine does, and pack a CPU's output embedding anew."""
        super().finish_weight_update()
        repack_head(self.model)


class GlooExtension(WeightsExtension):
    """Importing this registers the engine in a worker."""


if "gloo" not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine("gloo", GlooEngine)
