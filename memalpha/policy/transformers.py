"""Policy over a Hugging Face causal LM: exact ids and float32 log-probs; `decoding` describes its decode loop."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from memalpha.config.common import reply_form
from memalpha.config.groups import LoadingConfig
from memalpha.config.sampling import BatchConfig
from memalpha.errors import PolicyError, PromptTooLong
from memalpha.policy.base import sample_with
from memalpha.policy.chat.template import ChatTemplate
from memalpha.policy.decoding import PROMPT_END, CompletedIds, DecodingQueue, ThoughtEnd
from memalpha.policy.decoding_rows import DecodingRows, PaddedRows, SlotRows
from memalpha.policy.flat_qwen3 import FlatQwen3, FlatRows, supports_flat
from memalpha.policy.kv_cache import has_plain_cache
from memalpha.policy.model_files import (
    add_adapter,
    count_parameters,
    hide_progress_bars,
    is_quantized,
    is_reward_model,
    load_model,
    max_positions,
    read_adapter_config,
    resize_embeddings,
    weights_fingerprint,
)
from memalpha.policy.smol.base_model import read_adapter_record
from memalpha.types import Completion, SampleRequest

STYLE_KEY = "memalpha_prompt"
STYLES = ("full", "compact", "mem-alpha")
FORM_KEY = "memalpha_form"
FORMS = ("native", "hermes", "lines")
SIZES_KEY = "memalpha_sizes"
SIZES = ("view_tokens", "max_new_tokens", "chunk_tokens")
QUOTES_KEY = "memalpha_quotes"
KNOWN_STYLES = {"YuWangX/Memalpha-4B": "mem-alpha"}
"""Prompt styles of published checkpoints, whose files name none."""


class TransformersPolicy:
    """Sample from `model`, which the learner updates in place.

    `prompt` is the prompt style that the model was trained on, and `form` the form of its calls. They are read under
    "memalpha_prompt" and "memalpha_form" from config.json, then tokenizer_config.json; defaults: "full", "native".
    "memalpha_sizes" may give `sizes` in tokens: "view_tokens" and "max_new_tokens" stand in for the defaults of
    `AgentConfig`, and `MemoryAgent` reads chunks longer than "chunk_tokens" in parts. `quotes` comes from the record of
    a packed adapter alone ("memalpha_quotes"): what is trained further writes in its own words.

    Args:
        model: causal language model; it is put into evaluation mode.
        tokenizer: its tokenizer, with a chat template.
        name: name in reports and error messages.

    Attributes:
        batch_tokens: most (prompt + new) tokens x rows per batch.
        batch_rows: most rows per batch.
        stop_repeats: end replies that repeat themselves.

    Raises:
        PolicyError: if the tokenizer has no chat template or no end-of-sequence token.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str = "transformers") -> None:
        if not tokenizer.chat_template:
            raise PolicyError(f"policy {name!r}: its tokenizer has no chat template; use a chat or instruction model")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.chat = ChatTemplate(tokenizer, name)
        self.prompt = self._recorded(STYLE_KEY, STYLES, KNOWN_STYLES.get(name, "full"))
        self.form = self._recorded(FORM_KEY, FORMS, "native")
        sizes = getattr(model.config, SIZES_KEY, None) or tokenizer.init_kwargs.get(SIZES_KEY) or {}
        is_valid = isinstance(sizes, dict) and sizes.keys() <= {*SIZES}
        if not is_valid or not all(type(value) is int and value > 0 for value in sizes.values()):
            raise PolicyError(
                f"policy {name!r}: {SIZES_KEY} {sizes!r} in its config.json: an object with numbers of tokens under "
                f"{', '.join(SIZES)} is needed"
            )
        self.sizes: dict[str, int] = sizes
        self.quotes = False
        batching = BatchConfig()
        self.batch_tokens, self.batch_rows = batching.batch_tokens, batching.decode_rows
        self.stop_repeats = batching.stop_repeats
        self.positions = max_positions(model.config)
        self._sampling_dtype: torch.dtype | None = None
        self._flat: FlatQwen3 | None = None
        self._twin: Any = None
        self._twin_of: Any = None
        generation: Any = model.generation_config
        named: list[Any] = [tokenizer.eos_token_id, None if generation is None else generation.eos_token_id]
        eos_ids = frozenset(id for ids in named if ids is not None for id in ([ids] if isinstance(ids, int) else ids))
        if not eos_ids:
            raise PolicyError(f"policy {name!r} has no end-of-sequence token; set eos_token in its tokenizer")
        self.eos_ids = eos_ids | self.chat.end_ids
        self.count_tokens = lru_cache(maxsize=1 << 16)(lambda text: len(self._encode([text])[0]))

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *, dtype: str = "float32", device: str = "cpu", loading: LoadingConfig | None = None
    ) -> TransformersPolicy:
        """Load model and tokenizer from a directory or a hub id.

        Args:
            path: directory or hub id.
            dtype: torch dtype of the weights.
            device: torch device of the weights.
            loading: 4 bits, device map and attention.

        Returns:
            The policy, named `path`.

        Raises:
            PolicyError: if there is no such model, or it is a reward model.
        """
        if is_reward_model(path):
            raise PolicyError(
                f"{path} is a reward model, which scores replies and writes none: give it to load_reward_model, or as "
                "reward.model.path"
            )
        model, tokenizer = load_model(path, dtype, device, loading=loading)
        return cls(model, tokenizer, str(path))

    def fingerprint(self) -> str:
        """Return a text that differs for policies whose replies to a request may: weights, chat template, stops."""
        return repr((weights_fingerprint(self.model), self.tokenizer.chat_template, self.stop_repeats))

    def set_sampling_dtype(self, dtype: str) -> None:
        """Sample with a copy of the weights in `dtype`, made whenever requests enter an idle queue.

        With "float64" the log-probs of a tiny, sharp model are exact to float32's last digits, at two thirds of the CPU
        speed. With float32, one or two tokens in a thousand are off by more than 1e-5 (none by more than 1e-4).
        """
        self._sampling_dtype = getattr(torch, dtype)

    def _recorded(self, key: str, choices: Sequence[str], default: str) -> str:
        """Return the value of `key` in the model's configuration, else in the tokenizer's, else the default."""
        candidates = (getattr(self.model.config, key, None), self.tokenizer.init_kwargs.get(key), default)
        value = next(value for value in candidates if value is not None)
        if value not in choices:
            choice_list = ", ".join(choices)
            raise PolicyError(f"policy {self.name!r}: {key} {value!r} in its config.json is none of {choice_list}")
        return value

    @property
    def reply_form(self) -> str:
        """Form in which its replies are read: "mem-alpha", "lines" or "hermes"."""
        return reply_form(self.prompt, self.form)

    def set_prompt_style(self, style: str, form: str = "native") -> None:
        """Set prompt style and form of calls that the weights are trained in; `save` writes both configurations."""
        for key, value, old in ((STYLE_KEY, style, self.prompt), (FORM_KEY, form, self.form)):
            if value != old:
                setattr(self.model.config, key, value)
                self.tokenizer.init_kwargs[key] = value
        self.prompt, self.form = style, form

    def save(self, folder: str | Path) -> None:
        """Write a plain transformers directory (weights, configuration, tokenizer)."""
        with hide_progress_bars():
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    @property
    def parameters(self) -> int:
        """Number of distinct parameters (tied ones counted once)."""
        return count_parameters(self.model)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        thinking: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the prompt ids of one conversation, rendered by the model's chat template.

        Args:
            messages: chat messages.
            tools: tools in OpenAI's function format.
            thinking: let the model think first.
            chat_template_kwargs: further arguments of the chat template.

        Raises:
            PolicyError: if the chat template refuses the messages.
        """
        text = self.chat.render(messages, tools, thinking=thinking, template_kwargs=chat_template_kwargs)
        return self._encode([text])[0]

    def render_request(self, request: SampleRequest) -> list[int]:
        """Return the prompt ids of a request."""
        return self._encode([self._text(request)])[0]

    def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return one completion per request, in order.

        Temperature 0 decodes greedily; its log-probs are those at temperature 1.
        """
        # Not `self.open_queue`, in whose place a caller may have put another.
        return sample_with(TransformersPolicy.open_queue(self), requests)

    def open_queue(self) -> DecodingQueue:
        """Return an empty queue; the weights must not change while it has requests under way."""
        return DecodingQueue(
            self.prompt_ids,
            self.completion_texts,
            self._make_rows,
            self.eos_ids,
            self._thought_end,
            batch_rows=self.batch_rows,
            batch_tokens=self.batch_tokens,
            stop_repeats=self.stop_repeats,
        )

    def _make_rows(self) -> DecodingRows:
        """Return empty rows of the current weights.

        Copies are refreshed each time. Telling whether the weights have changed takes longer than a copy, and version
        counters miss the steps of fused optimizers.
        """
        model, dtype = self.model, self._sampling_dtype or self.model.dtype
        if supports_flat(model, dtype):
            if self._flat is None or self._flat.model is not model or self._flat.dtype != dtype:
                self._flat = FlatQwen3(model, dtype)
            return FlatRows(self._flat.load(), self.batch_tokens)
        if dtype != model.dtype:
            sources = [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]
            is_same = self._twin_of is model and self._twin.dtype == dtype
            targets = [*self._twin.parameters(), *self._twin.buffers()] if is_same else []
            if [tensor.shape for tensor in targets] == [tensor.shape for tensor in sources]:
                for target, source in zip(targets, sources, strict=True):
                    target.detach().copy_(source)
            else:
                twin: Any = copy.deepcopy(model)
                self._twin, self._twin_of = twin.to(dtype).requires_grad_(False), model
            model = self._twin
        return SlotRows(model, self.batch_tokens) if has_plain_cache(model) else PaddedRows(model)

    def prompt_ids(self, requests: Sequence[SampleRequest]) -> list[list[int]]:
        """Return the prompt ids of requests. Raises `PromptTooLong` for one without room for a full reply."""
        prompts = self._encode([self._text(request) for request in requests])
        for request, prompt in zip(requests, prompts, strict=True):
            new_tokens = request.max_new_tokens
            if request.thinking_tokens:
                new_tokens += request.thinking_tokens + (len(self._thought_end.forced) if self._thought_end else 0)
            if self.positions is not None and len(prompt) + new_tokens > self.positions:
                raise PromptTooLong(
                    f"a prompt of {len(prompt)} tokens and {new_tokens} new ones are more than the {self.positions} "
                    f"that policy {self.name!r} takes",
                    "read smaller chunks or lower view_tokens, max_new_tokens or thinking_tokens",
                )
        return prompts

    def completion_texts(self, rows: Sequence[CompletedIds]) -> list[str]:
        """Return the text of completions, read as their family writes replies."""
        keep_end = self.chat.reply_parser is not None
        replies = self._decode(
            [row.ids[:-1] if row.ids[-1] in self.eos_ids and not keep_end else row.ids for row in rows]
        )
        prompt_ends = self._decode([row.prompt[-PROMPT_END:] for row in rows])
        return [
            self.chat.read_reply(reply, prompt_end, row.request.tools, native_calls=row.request.native_calls)
            for reply, prompt_end, row in zip(replies, prompt_ends, rows, strict=True)
        ]

    def _decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return self.tokenizer.batch_decode(
            [list(row) for row in rows], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    @cached_property
    def _thought_end(self) -> ThoughtEnd | None:
        """Ids that end a thought; None if the family's mark is not one token."""
        start, end = self.chat.thought_marks
        start_ids, end_ids, forced = self._encode([start, end, f"\n{end}\n\n"])
        return ThoughtEnd(start_ids[0], end_ids[0], tuple(forced)) if len(start_ids) == len(end_ids) == 1 else None

    def _text(self, request: SampleRequest) -> str:
        thinking, arguments = request.thinking_tokens > 0, request.chat_template_kwargs
        return self.chat.render(request.messages, request.tools, thinking=thinking, template_kwargs=arguments)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of rendered prompts; the template has written the special tokens."""
        unique = list(dict.fromkeys(texts))
        encoded: Any = self.tokenizer(unique, add_special_tokens=False)["input_ids"]
        for row in encoded:
            self.check_embedded(row)
        ids = dict(zip(unique, encoded, strict=True))
        return [ids[text] for text in texts]

    def check_embedded(self, ids: Sequence[int]) -> None:
        """Raise `PolicyError` for a token that the tokenizer was given and the model has no embedding for."""
        rows = self.model.config.get_text_config().vocab_size
        if (largest := max(ids, default=0)) >= rows:
            raise PolicyError(
                f"policy {self.name!r} has embeddings for {rows} tokens, and its tokenizer's "
                f"{self.tokenizer.convert_ids_to_tokens(largest)!r} is number {largest}: it was added to the tokenizer "
                "alone; resize the model (resize_token_embeddings) and save both, or take the token out of the text"
            )


def merge_adapter(base: TransformersPolicy, folder: str | Path) -> TransformersPolicy:
    """Merge the LoRA adapter of `folder` into the weights of `base` in place.

    A tokenizer in `folder` replaces that of `base`, and so does a recorded prompt style. Adapters of a base in 4 bits
    stay in its layers. Raises `PolicyError` if the adapter cannot be read or does not fit this base.
    """
    try:
        config = read_adapter_config(folder)
        if token_ids := config.trainable_token_indices:
            lists = token_ids.values() if isinstance(token_ids, dict) else [token_ids]
            resize_embeddings(base.model, max(max(ids) for ids in lists) + 1)
        tuned = add_adapter(base.model, config, folder)
        # Weights in 4 bits would be rounded again: their adapters stay in the layers.
        is_merged = not is_quantized(base.model)
        model: Any = tuned.merge_and_unload().requires_grad_(True) if is_merged else tuned.get_base_model()
        return with_adapter_files(folder, model, base.tokenizer)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise PolicyError(f"cannot merge the LoRA adapter of {folder} into {base.name!r}: {error}") from error


def with_adapter_files(folder: str | Path, model: Any, tokenizer: PreTrainedTokenizerBase) -> TransformersPolicy:
    """Return a policy named `folder`, an adapter's, with the tokenizer, or chat template, and prompt style there."""
    if (Path(folder) / "tokenizer_config.json").is_file():
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    elif (template := Path(folder) / "chat_template.jinja").is_file():
        tokenizer.chat_template = template.read_text(encoding="utf-8")
    record = read_adapter_record(Path(folder)) or {}
    for key in (STYLE_KEY, FORM_KEY, SIZES_KEY) if record else ():
        value = record.get(key, {})
        setattr(model.config, key, value)
        tokenizer.init_kwargs[key] = value
    policy = TransformersPolicy(model, tokenizer, str(folder))
    policy.quotes = record.get(QUOTES_KEY) is True
    return policy
