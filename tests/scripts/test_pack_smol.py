"""Packing an adapter: what is left out is what matters least for its size, over all layers."""

import pytest

torch = pytest.importorskip("torch")
from pack_smol import Factors, combine, fit  # noqa: E402


def update(rank, rows, columns, scale, seed):
    noise = torch.Generator().manual_seed(seed)
    draw = {"generator": noise, "dtype": torch.float64}
    return Factors(torch.randn(rank, columns, **draw), scale * torch.randn(rows, rank, **draw))


def test_a_sum_that_fits_is_exact_and_else_the_smallest_parts_go():
    adapters = [{"q": update(3, 8, 8, 1.0, 0), "v": update(2, 4, 8, 0.01, 1)}, {"q": update(2, 8, 8, 0.5, 2)}]
    exact = combine(adapters)
    assert torch.allclose(exact["q"].b @ exact["q"].a, sum(adapter["q"].b @ adapter["q"].a for adapter in adapters))
    assert fit(exact, sum(part.size for part in exact.values())) == exact
    cut = fit(exact, 3 * 16)
    assert cut.keys() == {"q"} and len(cut["q"].a) == 3  # v is small
    whole = exact["q"].b @ exact["q"].a
    error = torch.linalg.matrix_norm(whole - cut["q"].b @ cut["q"].a)
    assert torch.allclose(error, torch.linalg.svdvals(whole)[3:].square().sum().sqrt())
