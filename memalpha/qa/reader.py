"""Load readers from a configuration; `agent.reader` has the readers, since a `MemoryAgent` answers too."""

from __future__ import annotations

from memalpha.agent.copying_reader import CopyReader
from memalpha.agent.reader import Answer, ExtractiveReader, PolicyReader, Reader, Reading
from memalpha.config import ReaderConfig
from memalpha.errors import ConfigError
from memalpha.policy.base import Policy, with_prompt_style
from memalpha.policy.load import load_policy

__all__ = ["Answer", "CopyReader", "ExtractiveReader", "PolicyReader", "Reader", "Reading", "load_reader"]


def load_reader(config: ReaderConfig | str, policy: Policy | None = None, *, frozen: bool = False) -> Reader:
    """Load the reader of a configuration, or by name: "extractive", "copy", or a policy.

    Args:
        config: Configuration, reader name, policy name or directory.
        policy: Policy that answers if `config.policy` names none. It must stay frozen while a writer trains against it.
            It is prompted in the style it was trained on unless the configuration sets `prompt`.
        frozen: The weights of `policy` never change, so its answers are kept. A policy loaded here is always frozen. An
            endpoint keeps its answers itself (`endpoint.cache`).

    Raises:
        ConfigError: The reader needs a policy and there is none.
    """
    if isinstance(config, str):
        floors = {"extractive": ReaderConfig(), "copy": ReaderConfig(kind="copy")}
        config = floors.get(config) or ReaderConfig(kind="policy", policy=config)
    if config.kind == "copy":
        return CopyReader(config)
    if config.kind == "extractive":
        return ExtractiveReader(config)
    if config.policy is not None:
        policy, frozen = load_policy(config.policy), True
    if policy is None:
        raise ConfigError("reader.policy: name the policy that answers (kind=policy), or use reader.kind=extractive")
    return PolicyReader(policy, with_prompt_style(config, policy), frozen=frozen)
