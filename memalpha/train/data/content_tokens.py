"""Tokens of contents in a writer's reply.

Most tokens of a call are its form, which a model learns first. The loss over contents alone says what it has learnt to
write.
"""

from __future__ import annotations

import re

import numpy as np

from memalpha.policy.hermes import OPEN
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.data.samples import TrainingSample

_JSON_CONTENT = re.compile(r'"(?:new_)?content": "((?:[^"\\]|\\.)*)"')
_LINE_CONTENT = re.compile(r"^(?:=|[+~]\S+ (?:@\S+ )?)(.+)$", re.MULTILINE)


def content_spans(text: str, form: str) -> list[tuple[int, int]]:
    """Return the ranges of characters that hold contents.

    Args:
        text: Reply as `agent.forms.format_calls` writes it.
        form: Form of the reply (`config.reply_form`).
    """
    is_lines = form == "lines" and not text.lstrip().startswith(OPEN)
    return [match.span(1) for match in (_LINE_CONTENT if is_lines else _JSON_CONTENT).finditer(text)]


def content_tokens(policy: TransformersPolicy, row: TrainingSample, form: str) -> np.ndarray:
    """Return True (T,) for the completion tokens of a row that hold a character of a content.

    Args:
        policy: Policy whose tokens the row has.
        row: Row with T completion tokens.
        form: Form of the replies.
    """
    ids = list(row.completion_ids)
    prefixes = policy.tokenizer.batch_decode(
        [ids[:count] for count in range(len(ids) + 1)], skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    # A prefix that ends within a character's bytes decodes to one replacement character for them.
    starts = np.array([len(prefix.rstrip("\ufffd")) for prefix in prefixes[:-1]])
    ends = np.array([len(prefix) for prefix in prefixes[1:]])
    mask = np.zeros(len(ids), dtype=bool)
    for start, end in content_spans(prefixes[-1], form):
        mask |= (ends > start) & (starts < end)
    return mask
