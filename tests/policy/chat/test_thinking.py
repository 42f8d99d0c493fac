"""The budget of thoughts: closed by force, not trained on, never taken from the reply."""

from __future__ import annotations

import numpy as np
import pytest

from memalpha.policy.decoding import ThoughtEnd
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.data.samples import policy_gradient_sample
from memalpha.types import SampleRequest, Turn
from tests.support.tiny import exact_logprobs, tiny_model, tiny_tokenizer

OPEN, CLOSE = "<think>", "</think>"


@pytest.fixture
def thinker() -> TransformersPolicy:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([OPEN, CLOSE])
    tokenizer.chat_template = (
        "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking %}<think>{% else %}<think></think>{% endif %}"
        "{% endif %}"
    )
    return TransformersPolicy(tiny_model(vocab=len(tokenizer)), tokenizer, "thinker")


def sample(policy: TransformersPolicy, count: int = 24, **settings):
    messages = ({"role": "user", "content": "a"},)
    return policy.sample(
        [SampleRequest(messages, key=(0, n), temperature=1.0, max_new_tokens=6, **settings) for n in range(count)]
    )


def test_a_thought_is_closed_at_its_budget_and_the_reply_keeps_its_tokens(thinker):
    close = thinker.tokenizer.convert_tokens_to_ids(CLOSE)
    forced = tuple(thinker.tokenizer(f"\n{CLOSE}\n\n", add_special_tokens=False)["input_ids"])
    kinds = set()
    for completion in sample(thinker, thinking_tokens=5):
        ids = completion.completion_ids
        first, last = completion.forced
        if last:
            kinds.add("forced")
            assert first == 5 and ids[first:last] == forced and close not in ids[:5]
            assert len(ids) - last <= 6 and (ids[-1] in thinker.eos_ids or len(ids) - last == 6)
            assert completion.text.startswith(f"{OPEN}\n") and completion.text.count(CLOSE) >= 1
        elif close in ids[:5]:
            kinds.add("closed")
            assert len(ids) - ids.index(close) - 1 <= 6
        else:
            kinds.add("ended")
            assert len(ids) <= 5 and ids[-1] in thinker.eos_ids
    assert "forced" in kinds


def test_recorded_log_probs_are_the_models_also_of_forced_tokens(thinker):
    for completion in sample(thinker, 6, thinking_tokens=5):
        expected = exact_logprobs(thinker.model, completion.prompt_ids, completion.completion_ids)
        assert np.abs(np.array(completion.logprobs) - expected.numpy()).max() < 1e-4


def test_nothing_is_learnt_from_forced_tokens(thinker):
    completion = next(c for c in sample(thinker, thinking_tokens=5) if c.forced[1])
    row = policy_gradient_sample(Turn(0, completion), 1.0)
    first, last = completion.forced
    assert not row.pg[first:last].any() and row.pg[:first].all() and row.pg[last:].all()


def test_without_a_budget_thinking_is_off(thinker):
    [completion] = sample(thinker, 1)
    assert thinker.tokenizer.decode(completion.prompt_ids).endswith("<think></think>")
    assert completion.forced == (0, 0) and len(completion.completion_ids) <= 6


def test_a_conversation_that_writes_the_mark_opens_no_thought():
    from memalpha.policy.decoding import DecodingQueue

    queue = DecodingQueue(list, list, list, frozenset(), ThoughtEnd(7, 8, (8,)), batch_rows=1, batch_tokens=1)
    request = SampleRequest((), max_new_tokens=3, thinking_tokens=2)
    assert not queue._make_row(0, request, [7, *range(100, 130)]).thinking
    assert queue._make_row(0, request, [*range(100, 130), 7]).thinking
