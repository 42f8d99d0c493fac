"""Worker extension of vLLM that loads all weights from a directory, safely.

It runs inside the server: `vllm serve MODEL --worker-extension-cls
memalpha.policy.vllm.worker_extension.WeightsExtension`, with memalpha on its path (`PYTHONPATH`, or `pip install
--no-deps memalpha` there). It imports nothing else of memalpha.

Why not vLLM's own `reload_weights` alone (0.32):

- An error inside it leaves layers without weights, and the next request ends the server. What can be refused is refused
  before, in words.
- On a CPU an output embedding that shares the weights of the input embedding keeps its old, packed copy. Log-probs were
  off by up to 0.1, without a message.
- Nothing tells which weights a server holds. A server that was started again has the first ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
"""File that names the parts of weights in several files."""

SHAPE_KEYS = (
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "tie_word_embeddings"),
)
"""Keys of config.json that must be those of the loaded model."""


class WeightsExtension:
    """Methods that vLLM adds to its worker class; `collective_rpc` calls them in every worker."""

    model_runner: Any
    _memalpha_version: str | None = None

    def memalpha_load(self, folder: str, version: str) -> dict[str, Any]:
        """Load the weights of a directory and name them `version`.

        Returns:
            `version`, or `error` with what was wrong; an error before the load leaves the old weights in place.
        """
        runner = self.model_runner
        problem = find_problem(Path(folder), runner.model_config.hf_config.to_dict())
        if problem is not None:
            return {"error": problem}
        self._memalpha_version = None
        try:
            runner.reload_weights(weights_path=folder)
        except (OSError, ValueError, RuntimeError, KeyError, AssertionError) as error:
            return {"error": f"the server has no whole weights now and must be started again: {error!r}"}
        repack_head(runner.get_model())
        self._memalpha_version = version
        return {"version": version}

    def memalpha_version(self) -> str | None:
        """Return the version of the last load; None since the start."""
        return self._memalpha_version


def find_problem(folder: Path, model: dict[str, Any]) -> str | None:
    """Return why a directory cannot be loaded into the model with this configuration; None if it can."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        files = ["model.safetensors"]
        if (folder / INDEX).is_file():
            files = sorted(set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        return f"{folder} is no model directory that this machine can read ({error})"
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        return f"{folder} lacks {', '.join(missing)}"
    other = [key for key in SHAPE_KEYS if key in config and key in model and config[key] != model[key]]
    if other:
        return f"{folder} holds a model of another shape ({', '.join(other)}): the old weights stay"
    return None


def repack_head(model: Any) -> None:
    """Give a CPU's packed output embedding its new weights; other devices keep no copy."""
    head = getattr(model, "lm_head", None)
    head = getattr(head, "base_layer", head)
    if head is None or not hasattr(head, "cpu_linear"):
        return
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm  # type: ignore[import-not-found]

    dispatch_cpu_unquantized_gemm(head, remove_weight=False)
