"""A tiny policy on disk and trainers of a few steps on it, offline."""

from __future__ import annotations

import pytest
from tiny import tiny_model, tiny_tokenizer
from trl_toy import COMMON, say, tasks, upper

from memalpha.integrations.trl import ERLConfig, ERLTrainer


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    """Return a directory with a random model."""
    path = tmp_path_factory.mktemp("policy")
    tiny_model().save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return str(path)


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setattr("trl.GRPOTrainer._send_telemetry", lambda self: None)


@pytest.fixture
def make_trainer(policy, tmp_path):
    """Return a function that builds an `ERLTrainer` (or `kind` with `config`) from settings."""

    def make(kind=ERLTrainer, config=ERLConfig, *, chat=False, data=None, reward=upper, peft_config=None, **settings):
        kwargs = {"feedback_func": settings.pop("feedback_func", say)} if issubclass(kind, ERLTrainer) else {}
        if "reward_processing_classes" in settings:
            kwargs["reward_processing_classes"] = settings.pop("reward_processing_classes")
        args = config(str(tmp_path / "run"), **{**COMMON, **settings})
        return kind(
            policy,
            reward,
            args,
            train_dataset=tasks(chat) if data is None else data,
            processing_class=tiny_tokenizer(),
            peft_config=peft_config,
            **kwargs,
        )

    return make
