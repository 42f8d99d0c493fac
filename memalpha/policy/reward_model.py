"""Reward models: a causal language model's trunk and a linear head that scores replies.

A row is a prompt and a reply, built like in TRL's RewardTrainer. A chat is rendered whole by the chat template,
including the template's text after the reply. Plain texts are joined, followed by the end token, and encoded as one.
The reply begins with the first id that differs from the prompt's own ids.

The head maps one pooled vector per row to one output per named objective; the score is their weighted sum. Poolings:

    last       hidden state of the last non-padding token, as in transformers' sequence classification models;
               the files are interchangeable with those of transformers and TRL
    mean       mean of the hidden states of the reply's tokens and all tokens after it
    attention  their mean weighted by softmax(q h), with a learned vector q; q starts at 0, which equals `mean`

Both means leave out the prompt's tokens: their hidden states are the same for every reply. Rows are padded on the
right, so that a score depends on its own row alone.

Files: a transformers directory (`ForSequenceClassification`) with `reward_model.json`, which stores the pooling and the
weighted objectives. For poolings other than `last`, the weights' file name contains the pooling. Otherwise transformers
would load it and score with the last token. `pool.safetensors` stores q.

A LoRA adapter directory stores the head in the adapter (`modules_to_save`), and its configuration names the base. A
directory without `reward_model.json` comes from transformers or TRL's RewardTrainer: pooling `last`, one output.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import torch
from jinja2.exceptions import TemplateError
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from memalpha.errors import PolicyError
from memalpha.policy.base import shared_length
from memalpha.policy.chat.template import check_shown
from memalpha.policy.chat.text import break_control_tokens, plain_message, special_token_pattern
from memalpha.policy.model_files import (
    add_adapter,
    hide_progress_bars,
    is_reward_model,
    load_model,
    max_positions,
    read_adapter_config,
)
from memalpha.policy.transformers import TransformersPolicy

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
    if type(model.base_model) is not type(trunk) or not isinstance(_score_layer(model), nn.Linear):
        raise PolicyError(f"policy {name!r}: {type(model).__name__} is no linear head on the trunk of a language model")
    setattr(model, model.base_model_prefix, trunk)
    width = model.score.in_features
    model.score = nn.Linear(width, len(head.objectives), bias=False, device=source.device)
    nn.init.zeros_(model.score.weight)
    add_attention_pool(model, head)
    return model


def _score_layer(model: nn.Module) -> nn.Module | None:
    """Return the layer `score` of a model; None if it has none."""
    return dict(model.named_children()).get("score")


def add_attention_pool(model: Any, head: Head) -> None:
    """Add the attention module to a model whose head pools by attention."""
    if head.pooling == "attention":
        model.pool = Attention(model.score.in_features, model.device)


def unwrap_peft(model: Any) -> Any:
    """Return the transformers model inside a `PeftModel`; adapters stay in its layers."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


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


POOL_FILE = "pool.safetensors"
BATCH_TOKENS = 16384
"""Most padded tokens of a forward pass."""
DEFAULT_OBJECTIVE = "reward"
"""Name of the objective of a head with one output."""

Prompt = str | Sequence[Mapping[str, Any]]


Ids = Sequence[int]
Row = tuple[Ids, Ids]
"""Prompt ids, and reply ids with everything after the reply."""


def encode_row(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, reply: str, tools: Sequence[Mapping[str, Any]] = ()
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the prompt ids and reply ids of a row; template errors propagate.

    Special tokens that a reply or a message other than the system's spells out stay text.

    Args:
        tokenizer: the model's tokenizer.
        prompt: a text or chat messages.
        reply: text of the reply.
        tools: tool schemas for the chat template; ignored for texts.

    Returns:
        Prompt ids, and reply ids with everything after the reply.
    """
    special_tokens = special_token_pattern(tokenizer)
    reply = break_control_tokens(reply, special_tokens)
    if isinstance(prompt, str):
        prompt_ids, row_ids = _ids(tokenizer, prompt), _ids(tokenizer, f"{prompt}{reply}{tokenizer.eos_token or ''}")
    else:
        chat = [plain_message(message, special_tokens, ("system",)) for message in prompt]
        chat_tools: Any = [dict(tool) for tool in tools] or None
        whole_chat = [*chat, {"role": "assistant", "content": reply}]
        # No `add_generation_prompt` for the whole chat: the template also writes its text after the reply.
        texts = [
            str(tokenizer.apply_chat_template(messages, chat_tools, add_generation_prompt=add_prompt, tokenize=False))
            for messages, add_prompt in ((chat, True), (whole_chat, False))
        ]
        check_shown(chat, texts[1])
        prompt_ids, row_ids = (_ids(tokenizer, text, special=False) for text in texts)
    cut = min(shared_length(prompt_ids, row_ids), len(row_ids) - 1)
    return tuple(row_ids[:cut]), tuple(row_ids[cut:])


def _ids(tokenizer: Any, text: str, *, special: bool = True) -> list[int]:
    return tokenizer(text, add_special_tokens=special)["input_ids"]


def pack_rows(
    rows: Sequence[Row], pooling: str, pad: int | None, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pack rows into the inputs of `RewardScorer.forward`.

    With pooling `last` a row ends with its last token other than `pad`, as in transformers. This also applies if the
    reply itself ends with that token.

    Args:
        rows: prompt ids and reply ids of each row.
        pooling: one of `POOLINGS`.
        pad: id of the padding token; None pads with 0.
        device: torch device of the results.

    Returns:
        `input_ids` (B, L), `first` (B,) and `last` (B,), all int64.
    """
    width = max(len(prompt) + len(reply) for prompt, reply in rows)
    ids = np.full((len(rows), width), 0 if pad is None else pad, dtype=np.int64)
    last = []
    for number, (prompt, reply) in enumerate(rows):
        row = (*prompt, *reply)
        ids[number, : len(row)] = row
        ends = (index for index in reversed(range(len(row))) if pooling != "last" or row[index] != pad)
        last.append(next(ends, 0))
    first = torch.tensor([len(prompt) for prompt, _ in rows], device=device)
    return torch.from_numpy(ids).to(device), first, torch.tensor(last, device=device)


class RewardModel:
    """Score replies to prompts.

    Args:
        model: model from `add_reward_head` or `read_reward_model`, without adapters.
        tokenizer: its tokenizer.
        head: pooling and weighted objectives.
        name: name in error messages.
    """

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, head: Head, name: str = "reward model") -> None:
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.head = head
        self.name = name
        self.pad = model.config.get_text_config().pad_token_id
        self.positions = max_positions(model.config)
        self._scorer = RewardScorer(model, head.pooling)

    @property
    def objectives(self) -> Mapping[str, float]:
        """Weights of the objectives by name."""
        return self.head.objectives

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Prompt]) -> list[float]:
        """Return the score of each completion: the weighted sum over the objectives.

        A prompt is a text, used verbatim, or chat messages. A completion is a text or one assistant message. Raises
        `PolicyError` for other inputs and for rows longer than the model's context window.
        """
        return (self._scores(prompts, completions) @ np.array(list(self.objectives.values()))).tolist()

    def scores(self, prompts: Sequence[Prompt], completions: Sequence[Prompt]) -> list[dict[str, float]]:
        """Return the unweighted scores of each completion by objective."""
        return [dict(zip(self.objectives, row, strict=True)) for row in self._scores(prompts, completions).tolist()]

    def score_ids(self, rows: Sequence[Row]) -> np.ndarray:
        """Return float64 scores (rows, objectives) of encoded rows."""
        keys = [(tuple(prompt_ids), tuple(reply_ids)) for prompt_ids, reply_ids in rows]
        # Rollouts of a sharp policy are often equal. The longest rows come first.
        waiting = sorted(dict.fromkeys(keys), key=lambda row: -len(row[0]) - len(row[1]))
        scores: dict[Row, np.ndarray] = {}
        while waiting:
            count = max(1, BATCH_TOKENS // (len(waiting[0][0]) + len(waiting[0][1])))
            batch, waiting = waiting[:count], waiting[count:]
            packed = pack_rows(batch, self.head.pooling, self.pad, self.model.device)
            with torch.inference_mode():
                scores |= zip(batch, self._scorer(*packed).double().cpu().numpy(), strict=True)
        return np.array([scores[key] for key in keys]).reshape(-1, len(self.objectives))

    def encode(self, prompt: Prompt, completion: Prompt) -> Row:
        """Return the ids of a row. Raises `PolicyError` like `score`."""
        if not isinstance(prompt, str) and not self.tokenizer.chat_template:
            raise PolicyError(f"reward model {self.name!r}: its tokenizer has no chat template: give prompts as texts")
        if not isinstance(completion, str):
            [message, *rest] = completion or [{}]
            text, is_other = message.get("content"), message.get("role") != "assistant" or message.get("tool_calls")
            if rest or is_other or not isinstance(text, str):
                problem = "a completion is a text or one message of the assistant with content"
                raise PolicyError(f"reward model {self.name!r}: {problem}")
            completion = text
        try:
            row = encode_row(self.tokenizer, prompt, completion)
        except TemplateError as error:
            raise PolicyError(f"reward model {self.name!r}: its chat template refuses a prompt: {error}") from error
        length = len(row[0]) + len(row[1])
        if self.positions is not None and length > self.positions:
            raise PolicyError(
                f"reward model {self.name!r} takes {self.positions} tokens, a prompt and its reply have {length}: "
                "shorten them, or train one on a model with more room"
            )
        return row

    def save(self, folder: str | Path) -> None:
        """Write a directory for `load_reward_model`, adapters merged."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_reward_model(self.model, self.head, folder)
        self.tokenizer.save_pretrained(folder)

    def _scores(self, prompts: Sequence[Prompt], completions: Sequence[Prompt]) -> np.ndarray:
        return self.score_ids([self.encode(*pair) for pair in zip(prompts, completions, strict=True)])


# --------------------------------------------------------------------------------------------------------------- files


def write_reward_model(model: Any, head: Head, folder: Path) -> None:
    """Write the weights of a model from `add_reward_head`, and its head's description.

    Args:
        model: model without adapters.
        head: pooling and objectives.
        folder: existing directory.
    """
    tensors = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("pool.")}
    with hide_progress_bars():
        model.save_pretrained(folder, state_dict=tensors, variant=head.variant)
    if head.pooling == "attention":
        save_file({"weight": model.pool.weight.detach().cpu().contiguous()}, folder / POOL_FILE)
    head.write(folder)


def read_reward_model(
    folder: str | Path, head: Head | None, dtype: str, device: str
) -> tuple[Any, Head, PreTrainedTokenizerBase]:
    """Read a model from `write_reward_model`, from transformers, or from the hub.

    Args:
        folder: directory with weights and tokenizer, or a hub id.
        head: content of `reward_model.json`; None for models of transformers or TRL.
        dtype: torch dtype of the trunk; the head is at least float32.
        device: torch device of the weights.

    Returns:
        The model, its head and its tokenizer.

    Raises:
        PolicyError: if the files cannot be loaded or hold no linear head.
    """
    variant = None if head is None else head.variant
    kind = AutoModelForSequenceClassification
    model, tokenizer = load_model(folder, dtype, device, "reward model", kind=kind, variant=variant)
    outputs = _score_layer(model)
    if not isinstance(outputs, nn.Linear):
        raise PolicyError(f"{folder}: {type(model).__name__} has no linear head `score`: it is no reward model")
    if head is None:
        names = [DEFAULT_OBJECTIVE] if outputs.out_features == 1 else list(model.config.id2label.values())
        head = Head("last", dict.fromkeys(names, 1.0))
    if len(head.objectives) != outputs.out_features:
        raise PolicyError(f"{folder}: {HEAD_FILE} names {len(head.objectives)} objectives, the head has others")
    text = model.config.get_text_config()
    if text.pad_token_id is None:
        text.pad_token_id = tokenizer.pad_token_id
    outputs.to(torch.promote_types(outputs.weight.dtype, torch.float32))
    add_attention_pool(model, head)
    if head.pooling == "attention":
        try:
            model.pool.load_state_dict(load_file(Path(folder) / POOL_FILE))
        except (OSError, RuntimeError, SafetensorError) as error:
            raise PolicyError(f"cannot load reward model {str(folder)!r}: {POOL_FILE}: {error}") from error
    return model, head, tokenizer


def load_from_directory(folder: str, dtype: str, device: str) -> RewardModel:
    """Load a reward model with full weights from a directory or a hub id.

    Args:
        folder: directory or hub id.
        dtype: torch dtype of the weights.
        device: torch device of the weights.

    Returns:
        The reward model, named `folder`.

    Raises:
        PolicyError: if it cannot be loaded or is a language model without a head.
    """
    if (Path(folder) / "config.json").is_file() and not is_reward_model(folder):
        raise PolicyError(
            f"{folder} holds a language model without the head of a reward model: train one on it "
            f"(memalpha train reward {quote(f'policy={folder}')} data=PAIRS.jsonl)"
        )
    model, head, tokenizer = read_reward_model(folder, read_head(Path(folder)), dtype, device)
    return RewardModel(model, tokenizer, head, folder)


def load_from_adapter(folder: str, base: RewardModel | TransformersPolicy) -> RewardModel:
    """Merge the LoRA adapter and head of `folder` into `base`, in place.

    Raises `PolicyError` if the adapter cannot be read, does not fit this base, or has no head.
    """
    head = read_head(Path(folder))
    try:
        config = read_adapter_config(folder)
        tensors = load_file(Path(folder) / "adapter_model.safetensors")
        outputs = next((tensor.shape[0] for name, tensor in tensors.items() if name.endswith("score.weight")), None)
        if outputs is None:
            raise PolicyError(f"{folder} holds an adapter without the head of a reward model (modules_to_save: score)")
        if head is None:
            names = [DEFAULT_OBJECTIVE] if outputs == 1 else [f"LABEL_{number}" for number in range(outputs)]
            head = Head("last", dict.fromkeys(names, 1.0))
        model: Any = base.model
        if isinstance(base, TransformersPolicy):
            model = add_reward_head(base.model, head, base.tokenizer, base.name)
        merged: Any = add_adapter(model, config, folder).merge_and_unload()
        has_tokenizer = (Path(folder) / "tokenizer_config.json").is_file()
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True) if has_tokenizer else base.tokenizer
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise PolicyError(f"cannot merge the LoRA adapter of {folder} into {base.name!r}: {error}") from error
    return RewardModel(merged, tokenizer, head, folder)
