"""The shape of a run's model: built on fake tensors from config.json alone, without its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.pytorch_utils import Conv1D

from memalpha.config import LearnerConfig, LoraConfig
from memalpha.config.groups import LoadingConfig
from memalpha.config.sampling import BatchConfig
from memalpha.errors import PolicyError
from memalpha.hub import hub_reachable
from memalpha.policy.flat_qwen3 import supports_flat
from memalpha.policy.kv_cache import has_plain_cache
from memalpha.policy.load import adapter_chain, policy_path
from memalpha.policy.model_files import check_writes_text
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.learner.lora import add_lora, add_tokens
from memalpha.train.plan.allocation import count_cache, explain_failures, extrapolate_layers, fake_tensors

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in NF4: 4 bits, and for 64 weights a scale of 8 bits, for 256 scales one of 32 bits."""
PROBED_TOKENS = 16
"""Tokens of the rows from which the size of the cache is known."""
CHARACTERS_PER_TOKEN = 4
"""Estimate where the policy's tokenizer is not here."""


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model without its weights.

    Attributes:
        policy: Policy of the fake model; it renders and counts prompts.
        trained: The model as the learner holds it: with adapters, or the policy's own.
        mode: Mode that the model was made in.
        parameters: Number of distinct parameters, without adapters.
        trained_parameters: Number of trained ones.
        bytes_by_dtype: Bytes of the weights in the learner's process.
        mapped_bytes: Bytes of the file of weights, which a CPU keeps mapped while they are packed or cast; 0 where the
            weights stay views of it.
        notes: What the plan had to assume.
    """

    policy: TransformersPolicy
    trained: Any
    mode: FakeTensorMode
    parameters: int
    trained_parameters: int
    bytes_by_dtype: Mapping[str, int]
    mapped_bytes: int = 0
    notes: tuple[str, ...] = field(default=())
    _cache_sizes: dict[int, int] = field(default_factory=dict, repr=False)

    @property
    def bytes(self) -> int:
        """Bytes of the weights in the learner's process."""
        return sum(self.bytes_by_dtype.values())

    @property
    def config(self) -> Any:
        """Configuration of the text model."""
        return self.policy.model.config.get_text_config()

    @property
    def head_parameters(self) -> int:
        """Weights of the output embedding."""
        return int(self.config.vocab_size * self.config.hidden_size)

    @property
    def linear_parameters(self) -> int:
        """Weights of all linear layers but the output embedding."""
        head = self.policy.model.get_output_embeddings()
        linear = {id(part): part for part in self.policy.model.modules() if isinstance(part, torch.nn.Linear | Conv1D)}
        return sum(part.weight.numel() for part in linear.values() if part is not head)

    @property
    def expert_parameters(self) -> int:
        """Weights of all experts: transformers keeps a layer's experts in tensors of three dimensions."""
        experts = {id(weight): weight for weight in self.policy.model.parameters() if weight.dim() == 3}
        return sum(weight.numel() for weight in experts.values() if weight.shape[0] == self._experts)

    @property
    def layer_parameters(self) -> int:
        """Weights of all matrices, without input and output embedding."""
        return self.linear_parameters + self.expert_parameters

    @property
    def active_parameters(self) -> int:
        """Weights of the matrices that a token passes, without the embeddings: of the experts, those it is sent to."""
        if not self._experts:
            return self.linear_parameters
        chosen = _first_number(self.config, "num_experts_per_tok", "top_k_experts", "moe_topk") or self._experts
        return self.linear_parameters + self.expert_parameters * min(chosen, self._experts) // self._experts

    @property
    def _experts(self) -> int:
        return _first_number(self.config, "num_local_experts", "n_routed_experts", "num_experts")

    @property
    def layers(self) -> int:
        """Number of layers."""
        return int(self.config.num_hidden_layers)

    @property
    def attention_width(self) -> int:
        """Width of all query heads together; 0 for a model without attention."""
        heads = _first_number(self.config, "num_attention_heads")
        if not heads:
            return 0
        return heads * (_first_number(self.config, "head_dim") or int(self.config.hidden_size) // heads)

    def cache_bytes(self, dtype: str, tokens: int) -> int:
        """Return the bytes of the keys, values and states of a row in all layers.

        They are counted: layers may keep a window, a latent or a state of fixed size.

        Args:
            dtype: torch dtype of the sampler.
            tokens: Tokens of the row.
        """
        model = self.policy.model
        factor = getattr(torch, dtype).itemsize / model.dtype.itemsize
        if has_plain_cache(model):
            return round(factor * tokens * self._cached_bytes(PROBED_TOKENS) / PROBED_TOKENS)
        if _first_number(self.config, "sliding_window"):
            return round(factor * self._cached_bytes(tokens))
        less, more = self._cached_bytes(PROBED_TOKENS), self._cached_bytes(2 * PROBED_TOKENS)
        return round(factor * (more + (tokens / PROBED_TOKENS - 2) * (more - less)))

    def _cached_bytes(self, tokens: int) -> int:
        if tokens not in self._cache_sizes:
            model = self.policy.model
            self._cache_sizes[tokens] = extrapolate_layers(model, partial(count_cache, model, self.mode, width=tokens))
        return self._cache_sizes[tokens]

    def uses_flat_sampler(self, dtype: str, device: str) -> bool:
        """Return True if the sampler decodes with fused copies of the weights."""
        return torch.device(device).type == "cpu" and supports_flat(self.policy.model, getattr(torch, dtype))


def plan_model(config: LearnerConfig) -> ModelPlan:
    """Build the shape of the start policy as the learner would hold it.

    Args:
        config: Settings of the run.

    Raises:
        PolicyError: config.json is not here, or of no causal language model.
    """
    dtype = config.compute.dtype if config.lora is not None else "float32"
    batching = getattr(config, "sampling", None)
    return build_shape(config.policy, dtype, config.compute, config.lora, config.seed, batching)


def build_shape(
    name: str,
    dtype: str,
    loading: LoadingConfig,
    lora: LoraConfig | None = None,
    seed: int = 0,
    batching: BatchConfig | None = None,
) -> ModelPlan:
    """Build the shape of a policy on fake tensors.

    Args:
        name: Shipped name, directory, run directory or hub id.
        dtype: torch dtype of the weights.
        loading: 4 bits and attention.
        lora: Adapters to train; None trains all weights.
        seed: Seed of the adapters.
        batching: Most tokens and rows that it decodes together.

    Raises:
        PolicyError: config.json is not here, or of no causal language model.
    """
    base, *adapters = adapter_chain(name)
    settings, tokenizer, notes = _read_files(policy_path(base))
    check_writes_text(settings, name)
    stored: torch.dtype = settings.dtype or torch.float32  # before `from_config` changes it
    try:
        with torch.device("meta"):
            kernel = {"attn_implementation": "eager"} if loading.attn_implementation == "eager" else {}
            model = AutoModelForCausalLM.from_config(settings, dtype=getattr(torch, dtype), **kernel)
    except (ValueError, TypeError, RuntimeError, KeyError, AttributeError) as error:
        raise PolicyError(f"policy {name!r}: its config.json gives no model: {error}") from error
    policy = TransformersPolicy(model, tokenizer, name)
    for adapter in adapters:
        policy = policy.with_tokenizer(policy_path(adapter))
    policy.name = name
    if batching is not None:
        policy.batch_tokens, policy.batch_rows = batching.batch_tokens, batching.decode_rows
    parameters = policy.parameters
    trained: Any = model
    if lora is not None:
        with torch.device("meta"), explain_failures(model):
            token_ids = add_tokens(policy, lora.trainable_tokens)
            trained = add_lora(model, lora, name, seed, token_ids=token_ids)
        for parameter in trained.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
    with fake_tensors() as mode:
        _make_fake(trained)
    packed = _packed_parameters(model) if loading.load_in_4bit else set()
    bytes_by_dtype: dict[str, int] = {}
    for parameter in trained.parameters():
        is_packed = id(parameter) in packed
        key = "nf4" if is_packed else str(parameter.dtype).removeprefix("torch.")
        size = round(parameter.numel() * NF4_BYTES) if is_packed else parameter.nbytes
        bytes_by_dtype[key] = bytes_by_dtype.get(key, 0) + size
    trained_parameters = sum(parameter.numel() for parameter in trained.parameters() if parameter.requires_grad)
    is_copied = loading.load_in_4bit or stored != getattr(torch, dtype)
    mapped = parameters * stored.itemsize if is_copied else 0
    return ModelPlan(policy, trained, mode, parameters, trained_parameters, bytes_by_dtype, mapped, tuple(notes))


def _make_fake(model: torch.nn.Module) -> None:
    """Replace the tensors of a model on the meta device by fake ones on the CPU; tied weights stay tied."""
    fakes: dict[int, Any] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                if id(parameter) not in fakes:
                    data = torch.empty(parameter.shape, dtype=parameter.dtype)
                    fakes[id(parameter)] = torch.nn.Parameter(data, requires_grad=parameter.requires_grad)
                module._parameters[name] = fakes[id(parameter)]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def _first_number(settings: Any, *names: str) -> int:
    """Return the first of these settings that is a positive number; 0 without any."""
    numbers = (getattr(settings, name, None) for name in names)
    return next((int(number) for number in numbers if isinstance(number, int) and number > 0), 0)


def _packed_parameters(model: Any) -> set[int]:
    """Return the ids of the parameters that bitsandbytes packs: those of linear layers but the output embedding."""
    head = model.get_output_embeddings()
    layers = (part for part in model.modules() if isinstance(part, torch.nn.Linear) and part is not head)
    return {id(layer.weight) for layer in layers}


def _read_files(name: str) -> tuple[Any, Any, list[str]]:
    """Return the configuration and the tokenizer of a policy, and notes."""
    try:
        settings = _from_hub(AutoConfig, name)
    except (OSError, ValueError) as error:
        raise PolicyError(
            f"policy {name!r}: a plan needs its config.json, which is not on this machine and cannot be fetched: name "
            "a directory that holds one, or connect once"
        ) from error
    try:
        tokenizer = _from_hub(AutoTokenizer, name)
    except (OSError, ValueError):
        tokenizer = None
    if tokenizer is not None and tokenizer.chat_template:
        return settings, tokenizer, []
    missing = "its tokenizer is" if tokenizer is None else "its chat template is"
    return (
        settings,
        CharacterTokenizer(),
        [f"{missing} not here: a token is {CHARACTERS_PER_TOKEN} characters"],
    )


def _from_hub(kind: Any, name: str) -> Any:
    """Load from a directory, the hub's cache, or the hub."""
    try:
        return kind.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError):
        if Path(name).exists() or not hub_reachable():
            raise
        return kind.from_pretrained(name)


class CharacterTokenizer:
    """Stand-in for a tokenizer that is not here: a token is `CHARACTERS_PER_TOKEN` characters."""

    chat_template = "characters"
    eos_token_id = pad_token_id = 0
    eos_token = pad_token = "</s>"
    init_kwargs: Mapping[str, Any] = {}
    added_tokens_decoder: Mapping[int, Any] = {}
    all_special_tokens: Sequence[str] = ()

    def __call__(self, text: Any, **_: Any) -> dict[str, Any]:
        """Return ids for a text, or for each of several."""
        if isinstance(text, str):
            return {"input_ids": self._ids(text)}
        return {"input_ids": [self._ids(item) for item in text]}

    def apply_chat_template(self, messages: Any, tools: Any = None, **_: Any) -> str:
        """Return the messages and tools as one text."""
        return f"{tools or ''}\n" + "\n".join(f"{message['role']}\n{message['content']}" for message in messages)

    @staticmethod
    def _ids(text: str) -> list[int]:
        return [0] * -(-len(text) // CHARACTERS_PER_TOKEN)
