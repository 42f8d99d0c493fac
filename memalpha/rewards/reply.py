"""Helpers to read replies and columns, and the marker of an unscored row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memalpha.agent.parsing import after_thinking
from memalpha.errors import RewardError

UNSCORED: Any = object()
"""Value of a reward function for a row that it failed to score.

The whole row then has no reward, since a sum without this component would be too low. None means that the function
does not apply: the other functions' sum is the reward.
"""


def reply_text(completion: Any, *, thinking: bool = True) -> str:
    """Return a completion as text: the text itself, or the content of its last message.

    Args:
        completion: Text or list of messages.
        thinking: Keep a leading think part.
    """
    text = completion
    if not isinstance(completion, str):
        content = completion[-1].get("content") if completion else ""
        parts = content if isinstance(content, list) else [{"text": content}]
        text = "".join(part.get("text") or "" for part in parts)
    return text if thinking else text[after_thinking(text) :]


def read_column(columns: Mapping[str, Sequence[Any]], name: str) -> Sequence[Any]:
    """Return a column, or raise `RewardError` if it is missing."""
    if name not in columns:
        raise RewardError(f"column {name!r} is missing (there are {', '.join(sorted(columns)) or 'none'})")
    return columns[name]
