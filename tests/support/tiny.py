"""A random, tiny Qwen3 with a byte tokenizer: the smallest real policy, made in milliseconds, for tests only."""

from __future__ import annotations

import copy

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from memalpha.policy.transformers import TransformersPolicy

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIALS = ["<|end|>", "<|user|>", "<|assistant|>"]
BROKEN_CALLS = [f"<tool_call>{number}" for number in range(6)]
VOCABULARY = len(SPECIALS) + 256 + len(BROKEN_CALLS)

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "bos_token_id": None,
}
"""Settings of a decoder of two layers."""


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, three specials, and six that open a broken call: so random rollouts differ in reward."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(SPECIALS + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.add_tokens(BROKEN_CALLS)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.chat_template = TEMPLATE
    return fast


def tiny_model(
    seed: int = 0, vocab: int = VOCABULARY, width: int = 32, layers: int = 2, scale: float = 4.0, tied: bool = True
):
    """Random weights, times `scale` so that the distribution is far from uniform."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
        tie_word_embeddings=tied,
        max_position_embeddings=4096,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return model


def tiny_llama(seed: int = 0):
    """A random Llama: no norms of queries and keys, a head of its own."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=False,
        rms_norm_eps=1e-5,
    )
    return nudged(LlamaForCausalLM(config), seed, 0.1)


def nudged(model, seed: int, size: float = 0.02):
    """A copy of the model after a random step of what trains."""
    model = copy.deepcopy(model)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(size * torch.randn_like(parameter))
    return model


def tiny_policy(seed: int = 0, **kwargs) -> TransformersPolicy:
    return TransformersPolicy(tiny_model(seed, **kwargs), tiny_tokenizer(), "random-tiny")


def exact_logprobs(model, prompt, completion, temperature: float = 1.0) -> torch.Tensor:
    """Return the log-probs of a completion by one unpadded float64 forward without a cache."""
    exact = copy.deepcopy(model).double().eval()
    with torch.no_grad():
        logits = exact(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor([*completion])[:, None])[:, 0]


def rewriting(open_queue, change):
    """Wrap `TransformersPolicy.open_queue` so that each completion is what `change` makes of the sampled one."""

    def opened(*policy):
        queue = open_queue(*policy)
        collect = queue.collect
        queue.collect = lambda: [(ticket, change(completion)) for ticket, completion in collect()]
        return queue

    return opened
