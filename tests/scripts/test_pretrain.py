"""Supervised training of the tiny policy: what is trained on, and Muon's steps."""

from __future__ import annotations

from random import Random

import pytest

torch = pytest.importorskip("torch")
from pretrain import Muon, Trainer, batches, collate, kick  # noqa: E402
from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: E402


def small_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            tie_word_embeddings=True,
        )
    )


ROWS = [([5, 6, 7], [8, 1]), ([5], [9, 10, 1]), ([6, 6, 6, 6, 6], [1])]


def test_only_completions_are_marked() -> None:
    ids, marked = collate(ROWS)
    assert ids.tolist() == [[5, 6, 7, 8, 1, 0], [5, 9, 10, 1, 0, 0], [6, 6, 6, 6, 6, 1]]
    assert [row.nonzero()[:, 0].tolist() for row in marked] == [[3, 4], [1, 2, 3], [5]]


def test_loss_is_the_mean_over_marked_tokens() -> None:
    model = small_model()
    ids, marked = collate(ROWS)
    expected, count = 0.0, 0
    for prompt, answer in ROWS:  # one row at a time, without padding
        logprobs = model(input_ids=torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
        expected -= sum(logprobs[len(prompt) + i - 1, token].item() for i, token in enumerate(answer))
        count += len(answer)
    assert Trainer(model).loss(ids, marked).item() == pytest.approx(expected / count, abs=1e-5)


def test_batches_hold_each_row_once_and_about_the_requested_tokens() -> None:
    rng = Random(3)
    rows = [([20 + n] * rng.randint(3, 30), [n % 64, 1]) for n in range(200)]
    rows_in_batches = []
    for ids, marked in batches(rows, 256, rng):
        assert 256 <= ids.numel() < 256 + 2 * ids.shape[1]
        rows_in_batches += [[*row[mark].tolist(), int(row[0])] for row, mark in zip(ids, marked, strict=True)]
    assert len(rows_in_batches) == len({tuple(row) for row in rows_in_batches}) >= 180


def test_muon_steps_are_orthogonal_whatever_the_gradients_scale() -> None:
    torch.manual_seed(1)
    gradient = torch.randn(48, 32)
    moved = []
    for scale in (1e-3, 1e3):
        weight = torch.nn.Parameter(torch.zeros(48, 32))
        weight.grad = gradient * scale
        Muon([weight], lr=1.0).step()
        moved.append(weight.detach().clone())
    assert torch.allclose(*moved, atol=1e-3)
    singular = torch.linalg.svdvals(moved[0]) / (48 / 32) ** 0.5
    assert singular.min() > 0.5 and singular.max() < 1.3
    assert (moved[0] * gradient).sum() < 0  # downhill


def test_kick_is_seeded_and_teaches_copying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretrain.KICK", ((5, 8, 8),))
    assert kick(Trainer(small_model()), seed=4) == kick(Trainer(small_model()), seed=4)
    monkeypatch.setattr("pretrain.KICK", ((80, 8, 8),))
    assert kick(Trainer(small_model()), seed=4) < 1.5  # without copying: log 44 = 3.8
