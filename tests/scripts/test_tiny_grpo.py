"""The teaching loop learns."""

from __future__ import annotations

import runpy
from pathlib import Path


def test_the_teaching_loop_learns():
    script = Path(__file__).parents[2] / "scripts" / "tiny_grpo.py"
    assert len(script.read_text().splitlines()) <= 200
    before, after = runpy.run_path(str(script))["main"](steps=8, tasks_per_step=8)
    assert after > before + 0.05
