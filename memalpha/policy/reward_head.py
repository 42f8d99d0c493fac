"""Reward head: pooling, objectives, and the scorer over a language model's trunk.

`policy.reward_model` describes rows, poolings and files.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from memalpha.errors import PolicyError

HEAD_FILE = "reward_model.json"
POOLINGS = ("last", "mean", "attention")


@dataclass(frozen=True, slots=True)
class Head:
    """Pooling and weighted objectives of a reward head.

    `objectives` maps each name to its weight, in the order of the head's outputs.
    """

    pooling: str
    objectives: Mapping[str, float]

    def write(self, folder: Path) -> None:
        """Write `reward_model.json`."""
        value = {"pooling": self.pooling, "objectives": dict(self.objectives)}
        (folder / HEAD_FILE).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")

    @property
    def variant(self) -> str | None:
        """Suffix of the weights' file names; None for pooling `last`."""
        return None if self.pooling == "last" else self.pooling


def read_head(folder: Path) -> Head | None:
    """Read `reward_model.json`; return None if it is missing.

    Raises `PolicyError` for an invalid file.
    """
    path = folder / HEAD_FILE
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        pooling, objectives = value["pooling"], value["objectives"]
        objectives_by_name = {str(name): float(weight) for name, weight in objectives.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PolicyError(f"{path} is not what a reward model writes ({error!r}): put it back") from error
    if pooling not in POOLINGS or not objectives_by_name:
        raise PolicyError(f"{path}: pooling {pooling!r} is none of {', '.join(POOLINGS)}, or there is no objective")
    return Head(pooling, objectives_by_name)


class Attention(nn.Module):
    """Compute q h for every hidden state h, with q initialized to 0.

    It is not an `nn.Linear`, so that LoRA adapters do not target it.
    """

    def __init__(self, width: int, device: torch.device | str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, device=device))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits (B, L), at least float32, for hidden states (B, L, H)."""
        return hidden.to(self.weight.dtype) @ self.weight


def add_reward_head(source: PreTrainedModel, head: Head, tokenizer: PreTrainedTokenizerBase, name: str) -> Any:
    """Build a sequence classification model on the trunk of `source`.

    Args:
        source: causal language model; the new model shares its trunk.
        head: pooling and objectives; the head's weights start at 0.
        tokenizer: gives the padding token if the configuration has none.
        name: the policy's name in error messages.

    Returns:
        The transformers model, with `pool` for attention pooling.

    Raises:
        PolicyError: if transformers has no sequence classification model for this architecture.
    """
    config = copy.deepcopy(source.config)
    config.num_labels = len(head.objectives)
    config.id2label = dict(enumerate(head.objectives))
    config.label2id = {label: number for number, label in config.id2label.items()}
    text = config.get_text_config()
    if text.pad_token_id is None:  # transformers finds the last token of a row by it
        text.pad_token_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    trunk = source.base_model
    try:
        with torch.device("meta"):
            model: Any = AutoModelForSequenceClassification.from_config(config)
    except ValueError as error:
        raise PolicyError(
            f"policy {name!r}: transformers has no model for sequence classification of this kind ({config.model_type})"
        ) from error
    if type(model.base_model) is not type(trunk) or not isinstance(getattr(model, "score", None), nn.Linear):
        raise PolicyError(f"policy {name!r}: {type(model).__name__} is no linear head on the trunk of a language model")
    setattr(model, model.base_model_prefix, trunk)
    width = model.score.in_features
    model.score = nn.Linear(width, len(head.objectives), bias=False, device=source.device)
    nn.init.zeros_(model.score.weight)
    add_attention_pool(model, head)
    return model


def add_attention_pool(model: Any, head: Head) -> None:
    """Add the attention module to a model whose head pools by attention."""
    if head.pooling == "attention":
        model.pool = Attention(model.score.in_features, model.device)


def unwrap_peft(model: Any) -> Any:
    """Return the transformers model inside a `PeftModel`; adapters stay in its layers."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


class RewardScorer(nn.Module):
    """Map packed rows to scores; all parameters are read inside `forward`.

    Args:
        model: model from `add_reward_head`, or a `PeftModel` around it.
        pooling: one of `POOLINGS`.
        autocast: run the trunk in bfloat16 whatever the dtype of its weights.
    """

    def __init__(self, model: Any, pooling: str, *, autocast: bool = False) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling
        self.autocast = autocast

    def forward(self, input_ids: torch.Tensor, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Return the scores of packed rows.

        Args:
            input_ids: (B, L) token ids, padded on the right.
            first: (B,) index of each reply's first token.
            last: (B,) index of each reply's last token, inclusive.

        Returns:
            (B, K) scores per objective, at least float32.
        """
        model = unwrap_peft(self.model)
        trunk = model.base_model
        with torch.autocast(input_ids.device.type, torch.bfloat16, enabled=self.autocast):
            hidden = trunk(input_ids=input_ids, use_cache=False).last_hidden_state
        hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        if self.pooling == "last":
            pooled = hidden[torch.arange(len(hidden), device=hidden.device), last]
        else:
            positions = torch.arange(hidden.shape[1], device=hidden.device)
            is_outside = (positions < first[:, None]) | (positions > last[:, None])
            logits = model.pool(hidden) if self.pooling == "attention" else hidden.new_zeros(hidden.shape[:2])
            weights = logits.masked_fill(is_outside, -torch.inf).softmax(1)
            pooled = (weights[:, None, :] @ hidden)[:, 0]
        return model.score(pooled)
