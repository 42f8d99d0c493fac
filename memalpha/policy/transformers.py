"""Policy over a Hugging Face causal LM: exact ids, float32 log-probs, keyed noise.

`model.generate` is not used: log-probs at the sampling temperature would need all logits in memory, its noise depends
on the batch, and it runs finished rows to the end. The decode loop here differs in three ways:

- Identical prompts are prefilled once and expanded. Batches are sorted by length, and finished rows leave batch and
  cache.
- Token t of a request is drawn by inverse CDF with the t-th uniform of a stream keyed by `request.key` alone. Batch
  composition, resuming and the number of processes do not change the samples.
- `logprobs` are the log-softmax of float32 logits / temperature, including the end-of-sequence token.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from memalpha.errors import PolicyError, PromptTooLong, install_command
from memalpha.policy.kv_cache import make_cache
from memalpha.policy.model_files import hide_progress_bars, is_reward_model, load_adapter, load_model
from memalpha.types import Completion, SampleRequest

STYLE_KEY = "memalpha_prompt"
STYLES = ("full", "compact")


class TransformersPolicy:
    """Sample from `model`, which the learner updates in place.

    `prompt` is the prompt style that the model was trained on. It is read under "memalpha_prompt" from config.json,
    then tokenizer_config.json, and defaults to "full".

    Args:
        model: causal language model; it is put into evaluation mode.
        tokenizer: its tokenizer, with a chat template.
        name: name in reports and error messages.
        batch_tokens: most (prompt + new) tokens x rows per batch.
        batch_rows: most rows per batch.

    Raises:
        PolicyError: if the tokenizer has no chat template or no end-of-sequence token.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        name: str = "transformers",
        *,
        batch_tokens: int = 65536,
        batch_rows: int = 128,
    ) -> None:
        if not tokenizer.chat_template:
            raise PolicyError(f"policy {name!r}: its tokenizer has no chat template; use a chat or instruction model")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.prompt = _prompt_style(model, tokenizer, name)
        self.batch_tokens = batch_tokens
        self.batch_rows = batch_rows
        self.positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._twin: Any = None
        self.eos_ids = _eos_ids(model, tokenizer, name)
        self.count_tokens = lru_cache(maxsize=1 << 16)(self._count_tokens)

    @classmethod
    def from_pretrained(cls, path: str | Path, *, dtype: str = "float32", device: str = "cpu") -> TransformersPolicy:
        """Load model and tokenizer from a directory or a hub id.

        Args:
            path: directory or hub id.
            dtype: torch dtype of the weights.
            device: torch device of the weights.

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
        model, tokenizer = load_model(path, dtype, device)
        return cls(model, tokenizer, str(path))

    def set_sampling_dtype(self, dtype: str) -> None:
        """Sample with a copy of the model in `dtype`, synchronized before each call.

        With "float64" the log-probs of a tiny, sharp model are exact to float32's last digits, at two thirds of the CPU
        speed. With float32, one or two tokens in a thousand are off by more than 1e-5 (none by more than 1e-4).
        """
        target = getattr(torch, dtype)
        is_different = target != self.model.dtype
        self._twin = copy.deepcopy(self.model).to(target).requires_grad_(False) if is_different else None

    def save(self, folder: str | Path) -> None:
        """Write a plain transformers directory (weights, configuration, tokenizer)."""
        with hide_progress_bars():
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    @property
    def parameters(self) -> int:
        """Number of distinct parameters (tied ones counted once)."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def _count_tokens(self, text: str) -> int:
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])  # type: ignore[arg-type]

    def render(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Return the prompt ids of one conversation, rendered by the model's chat template."""
        return self._encode([self._text(messages, tools)])[0]

    def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return one completion per request, in order.

        Temperature 0 decodes greedily; its log-probs are those at temperature 1.
        """
        if not requests:
            return []
        if self._twin is not None:
            self._twin.load_state_dict(self.model.state_dict())
        prompts = self._encode([self._text(request.messages, request.tools) for request in requests])
        self._check_room(requests, prompts)
        completions: list[Completion | None] = [None] * len(requests)
        for batch in self._batches(requests, prompts):
            with torch.inference_mode():
                ids, logprobs, lengths = self._decode([prompts[i] for i in batch], [requests[i] for i in batch])
            rows = [tuple(row[:length]) for row, length in zip(ids, lengths, strict=True)]
            finished = [row[-1] in self.eos_ids for row in rows]
            texts = self.tokenizer.batch_decode(
                [list(row[:-1] if end else row) for row, end in zip(rows, finished, strict=True)],
                skip_special_tokens=False,
                clean_up_tokenization_spaces=False,
            )
            for slot, i in enumerate(batch):
                completions[i] = Completion(
                    text=texts[slot],
                    prompt_ids=tuple(prompts[i]),
                    completion_ids=rows[slot],
                    logprobs=tuple(logprobs[slot][: lengths[slot]]),
                    temperature=requests[i].temperature,
                    stop_reason="eos" if finished[slot] else "length",
                )
        return [completion for completion in completions if completion is not None]

    def _check_room(self, requests: Sequence[SampleRequest], prompts: Sequence[list[int]]) -> None:
        for request, prompt in zip(requests, prompts, strict=True):
            if self.positions is not None and len(prompt) + request.max_new_tokens > self.positions:
                raise PromptTooLong(
                    f"a prompt of {len(prompt)} tokens and {request.max_new_tokens} new ones are more than the "
                    f"{self.positions} that policy {self.name!r} takes",
                    "read smaller chunks or lower view_tokens or max_new_tokens",
                )

    def _text(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]]) -> str:
        text = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            add_generation_prompt=True,
            tokenize=False,
        )
        assert isinstance(text, str)
        return text

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of rendered prompts; the template has written the special tokens."""
        unique = list(dict.fromkeys(texts))
        encoded = self.tokenizer(unique, add_special_tokens=False)["input_ids"]
        ids = dict(zip(unique, encoded, strict=True))  # type: ignore[arg-type]
        return [ids[text] for text in texts]

    def _batches(self, requests: Sequence[SampleRequest], prompts: Sequence[list[int]]) -> list[list[int]]:
        """Return batches of request indices, longest prompts first.

        A batch ends when it reaches `batch_tokens` or `batch_rows`.
        """
        order = sorted(range(len(requests)), key=lambda i: (-len(prompts[i]), prompts[i], i))
        batches: list[list[int]] = []
        width = 0
        for i in order:
            length = len(prompts[i]) + requests[i].max_new_tokens
            fits = batches and len(batches[-1]) < self.batch_rows
            if fits and max(width, length) * (len(batches[-1]) + 1) <= self.batch_tokens:
                batches[-1].append(i)
                width = max(width, length)
            else:
                batches.append([i])
                width = length
        return batches

    def _decode(
        self, prompts: Sequence[list[int]], requests: Sequence[SampleRequest]
    ) -> tuple[list[list[int]], list[list[float]], list[int]]:
        """Decode one batch.

        Returns ids and log-probs (rows, steps) and lengths (rows,). Values after a row's length are 0.
        """
        model = self.model if self._twin is None else self._twin
        device = model.device
        unique: dict[tuple[int, ...], int] = {}
        prompt_index = torch.tensor(
            [unique.setdefault(tuple(prompt), len(unique)) for prompt in prompts], device=device
        )
        width = max(len(prompt) for prompt in unique)
        padded = np.zeros((len(unique), width), dtype=np.int64)
        visible = np.zeros((len(unique), width), dtype=np.int64)
        for row, prompt in enumerate(unique):
            padded[row, width - len(prompt) :] = prompt
            visible[row, width - len(prompt) :] = 1
        input_ids = torch.from_numpy(padded).to(device)
        mask = torch.from_numpy(visible).to(device)
        steps = max(request.max_new_tokens for request in requests)
        limit = torch.tensor([request.max_new_tokens for request in requests], device=device)
        temperatures = torch.tensor([request.temperature for request in requests], device=device)[:, None]
        sampler = _Sampler(temperatures, _uniforms(requests, steps).to(device))
        eos = torch.tensor(sorted(self.eos_ids), device=device)

        cache = make_cache(model)
        logits = model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp_min(0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        if len(unique) < len(prompts):
            cache.batch_select_indices(prompt_index)
            logits, mask = logits[prompt_index], mask[prompt_index]
        rows = torch.arange(len(prompts), device=device)
        position = mask.sum(1, keepdim=True)
        mask = torch.cat([mask, mask.new_ones(len(prompts), steps)], dim=1)

        ids = torch.zeros(len(prompts), steps, dtype=torch.long, device=device)
        logprobs = torch.zeros(len(prompts), steps, device=device)
        lengths = torch.zeros(len(prompts), dtype=torch.long, device=device)
        active = torch.ones(len(prompts), dtype=torch.bool, device=device)
        for step in range(steps):
            token, logprob = sampler.draw(logits, rows, step)
            ids[rows, step] = token
            logprobs[rows, step] = logprob.float()
            finished = active & (torch.isin(token, eos) | (limit[rows] == step + 1))
            lengths[rows[finished]] = step + 1
            active = active & ~finished
            remaining = int(active.sum())
            if remaining == 0:
                break
            if remaining <= 0.9 * len(rows):  # dropping rows copies the cache, so wait until 10% are finished
                keep = active.nonzero()[:, 0]
                cache.batch_select_indices(keep)
                rows, token, position, mask, active = rows[keep], token[keep], position[keep], mask[keep], active[keep]
            logits = model(
                input_ids=token[:, None],
                attention_mask=mask[:, : width + step + 1],
                position_ids=position,
                past_key_values=cache,
                use_cache=True,
            ).logits[:, -1]
            position = position + 1
        return ids.tolist(), logprobs.tolist(), lengths.tolist()


def merge_adapter(base: TransformersPolicy, folder: str | Path) -> TransformersPolicy:
    """Merge the LoRA adapter of `folder` into the weights of `base` in place.

    A tokenizer in `folder` replaces that of `base`. Raises `PolicyError` if the adapter cannot be read or does not fit
    this base.
    """
    try:
        import peft
    except ModuleNotFoundError as error:
        raise PolicyError(f"{folder} holds a LoRA adapter, which needs peft: {install_command('train')}") from error
    try:
        config = peft.PeftConfig.from_pretrained(str(folder))
        if not isinstance(config, peft.LoraConfig):
            raise PolicyError(f"{folder} holds a {config.peft_type} adapter: only LoRA can be merged")
        config.base_model_name_or_path = None  # otherwise peft warns that the base has another name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft uses deprecated names of transformers
            tuned = peft.get_peft_model(base.model, config)
        load_adapter(tuned, folder)
        model: Any = tuned.merge_and_unload()
        has_tokenizer = (Path(folder) / "tokenizer_config.json").is_file()
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True) if has_tokenizer else base.tokenizer
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise PolicyError(f"cannot merge the LoRA adapter of {folder} into {base.name!r}: {error}") from error
    return TransformersPolicy(model.requires_grad_(True), tokenizer, str(folder))


class _Sampler:
    """Draw one token per row.

    Args:
        temperatures: (rows, 1); 0 for greedy decoding.
        noise: (rows, steps) uniforms in [0, 1).
    """

    def __init__(self, temperatures: torch.Tensor, noise: torch.Tensor) -> None:
        self.greedy = temperatures == 0
        self.heat = torch.where(self.greedy, torch.ones_like(temperatures), temperatures)
        self.noise = noise
        self.all_greedy = bool(self.greedy.all())
        self.any_greedy = bool(self.greedy.any())
        self.tempered = bool((self.heat != 1).any())

    def draw(self, logits: torch.Tensor, rows: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the tokens of one step.

        Args:
            logits: (rows, vocabulary) logits of the active rows.
            rows: (rows,) indices of the active rows in the batch.
            step: index of the new token.

        Returns:
            Tokens (rows,) and their log-probs (rows,) at the sampling temperature.
        """
        if logits.dtype != torch.float64:
            logits = logits.float()
        if self.tempered:
            logits = logits / self.heat[rows]
        logprobs = torch.log_softmax(logits, dim=-1)
        if self.all_greedy:
            token = logprobs.argmax(dim=-1, keepdim=True)
        else:
            # float64 sums: a float32 CDF over a large vocabulary is off by more than the rare tokens' probability.
            cdf = logprobs.double().exp().cumsum(dim=-1)
            token = torch.searchsorted(cdf, self.noise[rows, step, None] * cdf[:, -1:], right=True)
            if self.any_greedy:
                token = torch.where(self.greedy[rows], logprobs.argmax(dim=-1, keepdim=True), token)
        return token[:, 0], logprobs.gather(1, token)[:, 0]


def _uniforms(requests: Sequence[SampleRequest], steps: int) -> torch.Tensor:
    """Return (requests, steps) float64 uniforms in [0, 1), 24 bits each.

    Each row depends only on its `request.key`.
    """
    noise = np.empty((len(requests), steps))
    for row, request in enumerate(requests):
        words = hashlib.shake_256(repr(tuple(int(part) for part in request.key)).encode()).digest(4 * steps)
        noise[row] = (np.frombuffer(words, dtype="<u4") >> 8) * 2.0**-24
    return torch.from_numpy(noise)


def _prompt_style(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str) -> str:
    """Return the prompt style from the model's or the tokenizer's configuration."""
    candidates = (getattr(model.config, STYLE_KEY, None), tokenizer.init_kwargs.get(STYLE_KEY))
    style = next((style for style in candidates if style is not None), "full")
    if style not in STYLES:
        raise PolicyError(f"policy {name!r}: {STYLE_KEY} {style!r} in its config.json is none of {', '.join(STYLES)}")
    return style


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str) -> frozenset[int]:
    """Return all end-of-sequence ids of the tokenizer and the generation configuration."""
    eos_ids: set[int] = set()
    generation = getattr(model, "generation_config", None)
    for ids in (getattr(tokenizer, "eos_token_id", None), getattr(generation, "eos_token_id", None)):
        if ids is not None:
            eos_ids.update([ids] if isinstance(ids, int) else ids)
    if not eos_ids:
        raise PolicyError(f"policy {name!r} has no end-of-sequence token; set eos_token in its tokenizer")
    return frozenset(eos_ids)
