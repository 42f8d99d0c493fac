"""Random programs on a store, compared with the naive model of `eval/store/model.py`."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.sqlite
MODEL = Path(__file__).parents[2] / "eval" / "store" / "model.py"


@pytest.fixture(scope="module")
def model():
    spec = importlib.util.spec_from_file_location("store_model", MODEL)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore::memalpha.errors.UnknownFieldWarning")
@pytest.mark.parametrize("seed", [6])
def test_a_store_is_what_a_naive_model_says(model, seed: int) -> None:
    counts = model.run(seed, 45)
    assert counts["searches"] == 45 and len(counts) > 12
