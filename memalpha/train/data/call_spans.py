"""`CallSpans`: which call each sampled token belongs to, in Hermes, line, Mem-alpha and native form.

A call's tokens are those after the end of the call before it, up to its own end. So a newline or a `<tool_call>` that
decides to make a further call is part of it. What stands after the last call belongs to the end of the reply.

The tokens are the sampled ids, decoded one by one; nothing is tokenized again. A character of several tokens begins
where the first of them does. Thoughts serve all calls: their tokens get the mean. So do all tokens of a reply whose
calls cannot be found in its tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from memalpha.policy.chat.replies import THINK
from memalpha.policy.hermes import CLOSE
from memalpha.policy.transformers import TransformersPolicy
from memalpha.types import Turn

SHARED = -1
"""Index of tokens that belong to no single call."""

_PARTIAL = "\ufffd"
_CLOSE_TAG = re.compile(r"(?:[\s},]|```)*" + CLOSE)


class CallSpans:
    """Find the call of each sampled token.

    Args:
        policy: Policy that sampled; its tokenizer decodes the ids, its chat template knows the family's form.
    """

    def __init__(self, policy: TransformersPolicy) -> None:
        self._tokenizer, self._chat = policy.tokenizer, policy.chat
        self._pieces: dict[int, str] = {}

    def by_token(self, turn: Turn, numbers: Sequence[float]) -> np.ndarray:
        """Return the number of each completion token, float64 of shape (T,).

        Args:
            turn: Sampled turn.
            numbers: A number per call, then that of the end.
        """
        mean = sum(numbers[:-1]) / len(numbers[:-1]) if turn.calls else numbers[-1]
        return np.array([*numbers, mean])[self.call_indices(turn)]  # SHARED is the last

    def call_indices(self, turn: Turn) -> np.ndarray:
        """Return the index of the call of each completion token: `len(turn.calls)` for the end, or `SHARED`."""
        ids, end = turn.completion.completion_ids, len(turn.calls)
        indices = np.full(len(ids), SHARED)
        text = self._decode(ids)
        starts = self._starts(ids, text)
        first = self._thought_end(turn, text)
        ends = self._call_ends(turn, text, first)
        if starts is not None and ends is not None:
            indices = np.searchsorted(ends, starts, side="right")
            indices[np.array(starts) < first] = SHARED
        if turn.completion.stop_reason == "eos":
            indices[-1] = end
        return indices

    def _decode(self, ids: Sequence[int]) -> str:
        [text] = self._tokenizer.batch_decode(
            [list(ids)], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def _starts(self, ids: Sequence[int], text: str) -> list[int] | None:
        """Return where each token begins in the text; None if the tokens do not join to it."""
        for id in ids:
            if id not in self._pieces:
                self._pieces[id] = self._decode([id])
        pieces = [self._pieces[id] for id in ids]
        if "".join(pieces) != text:
            pieces = decode_in_context(self._decode, ids)
            if "".join(pieces) != text:
                return None
        return [0, *np.cumsum([len(piece) for piece in pieces])[:-1].tolist()]

    def _thought_end(self, turn: Turn, text: str) -> int:
        """Return where the reply begins after a thought in the family's own marks."""
        if not turn.completion.text.lstrip().startswith(THINK):
            return 0
        close = self._chat.thought_marks[1]
        position = text.find(close)
        return len(text) if position < 0 else position + len(close)

    def _call_ends(self, turn: Turn, text: str, first: int) -> list[int] | None:
        """Return where each call ends in the decoded ids; None if that cannot be told."""
        ends: list[int] = []
        for call in turn.calls:
            start = text.find(call.raw, ends[-1] if ends else first)
            if start < 0 or not call.raw:
                break
            end = start + len(call.raw)
            close = _CLOSE_TAG.match(text, end)
            ends.append(close.end() if close else end)
        if len(ends) == len(turn.calls):
            return ends
        parser = self._chat.reply_parser  # its family writes calls in another form than the text of the completion
        ends = [] if parser is None else [first + end for end in parser.call_ends(text[first:])]
        return ends if len(ends) == len(turn.calls) else None


def decode_in_context(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> list[str]:
    """Return the text that each token adds to those before it; "" within a character of several tokens.

    Args:
        decode: Decodes ids.
        ids: Ids of a text.
    """
    pieces: list[str] = []
    context = complete = 0  # ids[context:complete] are decoded before the open ones, which begin a character or a word
    for index in range(len(ids)):
        before, now = decode(ids[context:complete]), decode(ids[context : index + 1])
        is_open = now.endswith(_PARTIAL) and index + 1 < len(ids)
        pieces.append("" if is_open else now[len(before) :])
        if not is_open:
            context, complete = complete, index + 1
    return pieces
