"""Hostile values in public functions: a sample of what `eval/reach/fuzz_calls.py` tries in full."""

import importlib.util
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sqlite
REACH = Path(__file__).parents[1] / "eval" / "reach"


@pytest.fixture
def load_script(monkeypatch: pytest.MonkeyPatch):
    """Return a function that imports a script of `eval/reach`; what it puts on the path goes afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def load(name: str):
        spec = importlib.util.spec_from_file_location(name, REACH / f"{name}.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in [name for name in sys.modules if name.partition(".")[0] in ("common", "hostile_calls")]:
        del sys.modules[name]


def test_a_hostile_value_gives_a_memalpha_error(load_script) -> None:
    fuzz = load_script("fuzz_calls").run(0.025, 23, slow=False)
    assert fuzz.faults == {}
    assert sum(counts["refused"] for counts in fuzz.counts.values()) > 300


def test_a_fault_is_found(load_script, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script("fuzz_calls")
    monkeypatch.setattr(script.Context, "probe", lambda context: context.store.nothing)
    assert script.run(0.3, 23, only="MemoryStore.count").faults
