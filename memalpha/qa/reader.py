"""Readers by configuration. They live in `agent.answer`, because a `MemoryAgent` answers too."""

from __future__ import annotations

from memalpha.agent.copying_reader import CopyReader
from memalpha.agent.reader import Answer, ExtractiveReader, PolicyReader, Reader, Reading
from memalpha.config import ReaderConfig
from memalpha.errors import ConfigError
from memalpha.policy.base import Policy, load_policy

__all__ = ["Answer", "CopyReader", "ExtractiveReader", "PolicyReader", "Reader", "Reading", "load_reader"]


def load_reader(config: ReaderConfig | str, policy: Policy | None = None) -> Reader:
    """The reader of a configuration, or by name: "extractive", "copy", or a policy's name or directory.

    `policy` answers where `config.policy` names none; it must stay frozen while something is trained against it. It is
    prompted in the style it was trained on unless the configuration sets `prompt`. Raises `ConfigError` where no policy
    is given at all.
    """
    if isinstance(config, str):
        floors = {"extractive": ReaderConfig(), "copy": ReaderConfig(kind="copy")}
        config = floors.get(config) or ReaderConfig(kind="policy", policy=config)
    if config.kind == "copy":
        return CopyReader(config)
    if config.kind == "extractive":
        return ExtractiveReader(config)
    if config.policy is not None:
        policy = load_policy(config.policy)
    if policy is None:
        raise ConfigError("reader.policy: name the policy that answers (kind=policy), or use reader.kind=extractive")
    if "prompt" not in config.model_fields_set:
        config = config.model_copy(update={"prompt": getattr(policy, "prompt", "full")})
    return PolicyReader(policy, config)
