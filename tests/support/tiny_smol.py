"""A random Llama in the place of SmolLM2, in a cache of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import tiny_llama, tiny_tokenizer

from memalpha.policy.smol.base_model import base_folder, write_base_record


def write_random_base(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make `cache` the user's cache and write a base into it; returns the base's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    model = tiny_llama()
    model.generation_config.eos_token_id = 0
    model.save_pretrained(base_folder())
    tiny_tokenizer().save_pretrained(base_folder())
    write_base_record(base_folder())
    return base_folder()
