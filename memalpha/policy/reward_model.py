"""Reward models: the trunk of a causal language model and a linear head that says what a reply to a prompt is worth.

A row is a prompt and a reply as TRL's RewardTrainer makes one: a chat is rendered whole by the chat template, with all
that it writes after the reply; texts are joined, the end token is put after them, and both are encoded as one. The
reply begins with the first id that is not the prompt's alone. One vector of a row goes into the head, which has an
output for each named objective; a score is their weighted sum. The vector is, by `pooling`,

    last       the hidden state of the last token that is not padding: what transformers' models for sequence
               classification take, so that the files of such a model are theirs (and TRL's), both ways
    mean       the mean of the hidden states of the reply's tokens, those after it included
    attention  their mean weighted by softmax(q h), with a vector q that is learnt and 0 at first: then it is `mean`

The prompt's tokens are left out of the two means: their hidden states are the same for every reply. Rows are padded to
the right, where no token of a causal model sees what comes after it: a score depends on its own row alone.

Files: a transformers directory, `ForSequenceClassification`, and `reward_model.json` (pooling, objectives with their
weights). Another pooling than `last` has its name in that of the weights' file, which
transformers would otherwise load and score with the last token; q lies in `pool.safetensors`. Or a LoRA adapter of
which the head is a part (`modules_to_save`), whose configuration names the base. Without `reward_model.json` a
directory is what transformers or TRL's RewardTrainer wrote: `last`, one output.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2.exceptions import TemplateError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from memalpha.errors import PolicyError, install_command
from memalpha.policy.model_files import hide_progress_bars, is_reward_model, load_adapter, load_model
from memalpha.policy.transformers import TransformersPolicy

HEAD_FILE = "reward_model.json"
POOL_FILE = "pool.safetensors"
POOLINGS = ("last", "mean", "attention")
DEFAULT_OBJECTIVE = "reward"
"""The objective's name where there is one alone."""

Prompt = str | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Head:
    """What a score is made of: `pooling`, and the objectives' names with their weights, in the order of the outputs."""

    pooling: str
    objectives: Mapping[str, float]

    def write(self, folder: Path) -> None:
        """Write `reward_model.json`."""
        value = {"pooling": self.pooling, "objectives": dict(self.objectives)}
        (folder / HEAD_FILE).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")

    @property
    def variant(self) -> str | None:
        """A word in the names of the weights' files, so that nobody takes them for those of another pooling."""
        return None if self.pooling == "last" else self.pooling


def read_head(folder: Path) -> Head | None:
    """What `reward_model.json` says; None where there is none. Raises `PolicyError` for one that is not ours."""
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
    """q h for every hidden state h; q is 0 at first. No `Linear`: adapters are for those."""

    def __init__(self, width: int, device: torch.device | str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, device=device))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(B, L, H) → (B, L), float32 at least."""
        return hidden.to(self.weight.dtype) @ self.weight


def add_reward_head(source: PreTrainedModel, head: Head, tokenizer: PreTrainedTokenizerBase, name: str) -> Any:
    """A model for sequence classification on the trunk of `source`, which it shares, with a head that is 0.

    Raises `PolicyError` for an architecture of which transformers has no such model.
    """
    config = copy.deepcopy(source.config)
    config.num_labels = len(head.objectives)
    config.id2label = dict(enumerate(head.objectives))
    config.label2id = {label: number for number, label in config.id2label.items()}
    text = config.get_text_config()
    if text.pad_token_id is None:  # by which transformers finds a row's last token
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
    """Give a model whose head pools by attention its q."""
    if head.pooling == "attention":
        model.pool = Attention(model.score.in_features, model.device)


def unwrap_peft(model: Any) -> Any:
    """The transformers model itself; under peft, with the adapters in its layers."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


class RewardScorer(nn.Module):
    """`model` (from `add_reward_head`, or a `PeftModel`) as a function from rows to scores; all parameters are read
    inside its `forward`. `autocast`: the trunk's passes in bfloat16, whatever its weights are in."""

    def __init__(self, model: Any, pooling: str, *, autocast: bool = False) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling
        self.autocast = autocast

    def forward(self, input_ids: torch.Tensor, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """(B, K) scores, float32 at least, of rows `input_ids` (B, L), right-padded, whose replies are the tokens from
        `first` to `last` (B,), the latter included."""
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


Ids = Sequence[int]
Row = tuple[Ids, Ids]
"""A prompt's ids and a reply's, with what stands after it."""


def encode_row(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, reply: str, tools: Sequence[Mapping[str, Any]] = ()
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A row's ids; the prompt is a text or chat messages. The template's own errors are raised as they are."""
    if isinstance(prompt, str):
        prompt_ids, row_ids = _ids(tokenizer, prompt), _ids(tokenizer, f"{prompt}{reply}{tokenizer.eos_token or ''}")
    else:
        chat, tool_list = [dict(message) for message in prompt], [dict(tool) for tool in tools]
        chat_tools: Any = tool_list or None
        whole_chat = [*chat, {"role": "assistant", "content": reply}]
        # Not `add_generation_prompt` for the whole: the reply stands as the template has it, with what comes after.
        texts: list[Any] = [
            tokenizer.apply_chat_template(messages, tools=chat_tools, add_generation_prompt=add_prompt, tokenize=False)
            for messages, add_prompt in ((chat, True), (whole_chat, False))
        ]
        prompt_ids, row_ids = (_ids(tokenizer, str(text), special=False) for text in texts)
    common_length = next(
        (index for index, pair in enumerate(zip(prompt_ids, row_ids, strict=False)) if pair[0] != pair[1]),
        len(prompt_ids),
    )
    cut = min(common_length, len(row_ids) - 1)
    return tuple(row_ids[:cut]), tuple(row_ids[cut:])


def _ids(tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool = True) -> list[int]:
    ids: Any = tokenizer(text, add_special_tokens=special)["input_ids"]
    return ids


def pack_rows(
    rows: Sequence[Row], pooling: str, pad: int | None, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `RewardScorer` takes. With `last` a row ends with its last token that is not `pad`, as transformers has it
    (a reply's end too, where that is the token that pads)."""
    width = max(len(prompt) + len(reply) for prompt, reply in rows)
    ids = np.full((len(rows), width), 0 if pad is None else pad, dtype=np.int64)
    last = []
    for number, (prompt, reply) in enumerate(rows):
        row = (*prompt, *reply)
        ids[number, : len(row)] = row
        indices = range(len(row) - 1, -1, -1)
        non_padding = (index for index in indices if row[index] != pad)
        last.append(next(non_padding, 0) if pooling == "last" else len(row) - 1)
    first = torch.tensor([len(prompt) for prompt, _ in rows], device=device)
    return torch.from_numpy(ids).to(device), first, torch.tensor(last, device=device)


class RewardModel:
    """Scores replies. `batch_tokens` bounds the padded tokens of one pass; `name` goes into messages."""

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        head: Head,
        name: str = "reward model",
        *,
        batch_tokens: int = 16384,
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.head = head
        self.name = name
        self.batch_tokens = batch_tokens
        text = model.config.get_text_config()
        self.pad = text.pad_token_id
        self.positions = getattr(text, "max_position_embeddings", None)
        self._scorer = RewardScorer(model, head.pooling)
        self._weights = np.array(list(head.objectives.values()))

    @property
    def objectives(self) -> Mapping[str, float]:
        """Their names and weights."""
        return self.head.objectives

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Prompt]) -> list[float]:
        """What each completion is worth as a reply to its prompt: the weighted sum over the objectives.

        A prompt is a text, taken as it is, or chat messages; a completion is a text or one assistant message. Raises
        `PolicyError` for what is neither, and for a row that is longer than the model takes.
        """
        return (self._scores(prompts, completions) @ self._weights).tolist()

    def scores(self, prompts: Sequence[Prompt], completions: Sequence[Prompt]) -> list[dict[str, float]]:
        """The same by objective, without weights."""
        return [dict(zip(self.objectives, row, strict=True)) for row in self._scores(prompts, completions).tolist()]

    def score_ids(self, rows: Sequence[Row]) -> np.ndarray:
        """(rows, objectives) scores, float64 as an array, of rows of ids."""
        index_of = {
            row: index
            for index, row in enumerate(
                dict.fromkeys((tuple(prompt_ids), tuple(reply_ids)) for prompt_ids, reply_ids in rows)
            )
        }
        distinct = list(index_of)  # rollouts of a sharp policy often agree
        scores = np.zeros((len(distinct), len(self.objectives)))
        order = sorted(range(len(distinct)), key=lambda i: -len(distinct[i][0]) - len(distinct[i][1]))
        while order:
            width = len(distinct[order[0]][0]) + len(distinct[order[0]][1])
            count = max(1, self.batch_tokens // width)
            batch, order = order[:count], order[count:]
            packed = pack_rows([distinct[i] for i in batch], self.head.pooling, self.pad, self.model.device)
            with torch.inference_mode():
                scores[batch] = self._scorer(*packed).double().cpu().numpy()
        return scores[[index_of[tuple(prompt_ids), tuple(reply_ids)] for prompt_ids, reply_ids in rows]]

    def encode(self, prompt: Prompt, completion: Prompt) -> Row:
        """A row's ids. Raises `PolicyError` as `score` does."""
        if not isinstance(prompt, str) and not self.tokenizer.chat_template:
            raise PolicyError(f"reward model {self.name!r}: its tokenizer has no chat template: give prompts as texts")
        try:
            row = encode_row(self.tokenizer, prompt, _text_of(completion, self.name))
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
        """Write what `load_reward_model` reads, adapters merged."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_reward_model(self.model, self.head, folder)
        self.tokenizer.save_pretrained(folder)

    def _scores(self, prompts: Sequence[Prompt], completions: Sequence[Prompt]) -> np.ndarray:
        return self.score_ids([self.encode(*pair) for pair in zip(prompts, completions, strict=True)])


def _text_of(completion: Prompt, name: str) -> str:
    if isinstance(completion, str):
        return completion
    [message, *further_messages] = completion or [{}]
    content = message.get("content")
    if (
        further_messages
        or message.get("role") != "assistant"
        or not isinstance(content, str)
        or message.get("tool_calls")
    ):
        raise PolicyError(f"reward model {name!r}: a completion is a text or one message of the assistant with content")
    return content


# --------------------------------------------------------------------------------------------------------------- files


def write_reward_model(model: Any, head: Head, folder: Path) -> None:
    """Write all weights of a model from `add_reward_head`, and what its head is."""
    tensors = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("pool.")}
    with hide_progress_bars():
        model.save_pretrained(folder, state_dict=tensors, variant=head.variant)
    if head.pooling == "attention":
        save_file({"weight": model.pool.weight.detach().cpu().contiguous()}, folder / POOL_FILE)
    head.write(folder)


def read_reward_model(
    folder: str | Path, head: Head | None, dtype: str, device: str
) -> tuple[Any, Head, PreTrainedTokenizerBase]:
    """Read what `write_reward_model` wrote beside a tokenizer, or transformers alone (`head` None), or a hub id."""
    variant = None if head is None else head.variant
    kind = AutoModelForSequenceClassification
    model, tokenizer = load_model(folder, dtype, device, "reward model", kind=kind, variant=variant)
    outputs = getattr(model, "score", None)
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
    """A reward model whose weights are all in a directory, or that of a hub id. Raises `PolicyError`."""
    if (Path(folder) / "config.json").is_file() and not is_reward_model(folder):
        raise PolicyError(
            f"{folder} holds a language model without the head of a reward model: train one on it "
            f"(memalpha train reward policy={folder} data=PAIRS.jsonl)"
        )
    model, head, tokenizer = read_reward_model(folder, read_head(Path(folder)), dtype, device)
    return RewardModel(model, tokenizer, head, folder)


def load_from_adapter(folder: str, base: RewardModel | TransformersPolicy) -> RewardModel:
    """A reward model whose LoRA adapter, the head with it, lies in `folder`; merged into `base`, in place.

    Raises `PolicyError` where it cannot be read, is not one for this base, or has no head.
    """
    try:
        import peft
    except ModuleNotFoundError as error:
        raise PolicyError(f"{folder} holds a LoRA adapter, which needs peft: {install_command('train')}") from error
    head = read_head(Path(folder))
    try:
        config = peft.PeftConfig.from_pretrained(folder)
        if not isinstance(config, peft.LoraConfig):
            raise PolicyError(f"{folder} holds a {config.peft_type} adapter: only LoRA can be merged")
        tensors = load_file(Path(folder) / "adapter_model.safetensors")
        outputs = next((tensor.shape[0] for name, tensor in tensors.items() if name.endswith("score.weight")), None)
        if outputs is None:
            raise PolicyError(f"{folder} holds an adapter without the head of a reward model (modules_to_save: score)")
        if head is None:
            head = Head(
                "last",
                {DEFAULT_OBJECTIVE: 1.0} if outputs == 1 else {f"LABEL_{number}": 1.0 for number in range(outputs)},
            )
        model: Any = base.model
        if isinstance(base, TransformersPolicy):
            model = add_reward_head(base.model, head, base.tokenizer, base.name)
        config.base_model_name_or_path = None  # else peft warns that the base in memory has another name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft calls transformers by names on their way out
            tuned = peft.get_peft_model(model, config)
        load_adapter(tuned, folder)
        merged: Any = tuned.merge_and_unload()
        has_tokenizer = (Path(folder) / "tokenizer_config.json").is_file()
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True) if has_tokenizer else base.tokenizer
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise PolicyError(f"cannot merge the LoRA adapter of {folder} into {base.name!r}: {error}") from error
    return RewardModel(merged, tokenizer, head, folder)
