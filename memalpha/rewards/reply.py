"""What reward functions read of a row: the text of a reply, a column; and the value of a row that none could score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memalpha.agent.parsing import after_thinking
from memalpha.errors import RewardError

UNSCORED: Any = object()
"""What a function gives for a row that it should have scored and could not: the whole row then has no reward, since a
sum without this part would be a low one. (None: it does not apply, and the others' sum is the reward.)"""


def reply_text(completion: Any, *, thinking: bool = True) -> str:
    """A completion as text: itself, or what its last message says. `thinking` False: without a leading think part."""
    text = completion
    if not isinstance(completion, str):
        content = completion[-1].get("content") if completion else ""
        parts = content if isinstance(content, list) else [{"text": content}]
        text = "".join(part.get("text") or "" for part in parts)
    return text if thinking else text[after_thinking(text) :]


def read_column(columns: Mapping[str, Sequence[Any]], name: str) -> Sequence[Any]:
    """A column that a reward of ours reads. Raises `RewardError` where it is missing."""
    if name not in columns:
        raise RewardError(f"column {name!r} is missing (there are {', '.join(sorted(columns)) or 'none'})")
    return columns[name]
