"""Trust rule of a writer: `agent.trust` says what each part does."""

from __future__ import annotations

from pydantic import Field

from memalpha.config.common import Config


class TrustConfig(Config):
    """Trust rule: what a speaker may change. What lacks the right waits in quarantine for a review."""

    owner: str = Field(
        default="user",
        min_length=1,
        description="speaker whose word counts over all others'; user is a chat's person without a name",
    )
    max_deletes: int = Field(default=2, ge=0, description="deletes of one chunk that are done; further ones wait")
    max_delete_share: float = Field(
        default=0.5, ge=0.0, le=1.0, description="share of the entries that one chunk's deletes may reach, one at least"
    )
    key_speakers: dict[str, str] = Field(
        default_factory=dict,
        description="speaker by name of the server's key: what comes with the key counts as said by this speaker",
    )
