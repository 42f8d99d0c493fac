"""Training rows of the SmolLM2 writer: the script runs, and held-out phrasings stay out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from make_smol_rows import main, make_rows, token_counter
from smol.kinds import load_phrasings
from smol.passages import load_passages
from smol.rows import SmolRow
from smol.worlds import PHRASES, select_phrases

from memalpha.errors import DataError

ROWS = 400


@pytest.fixture(scope="module")
def rows() -> list[SmolRow]:
    return make_rows(ROWS, 3, None, token_counter(None))[0]


def test_held_out_phrasings_are_in_no_row(rows: list[SmolRow]) -> None:
    text = "\n".join(row.prompt for row in rows if row.part == "paraphrase")
    assert set(load_phrasings()) >= {f"{kind}.{key}" for kind, table in PHRASES.items() for key in table}
    for kind, table in PHRASES.items():
        for key, phrases in table.items():
            training, held_out = select_phrases(kind, key, "train"), select_phrases(kind, key, "held-out")
            assert len(held_out) == len(phrases) // 4 and not set(training) & set(held_out)
            for phrase in held_out:
                fixed = max((part.split("}")[-1] for part in phrase.split("{")), key=len)
                assert len(fixed) < 18 or fixed not in text, phrase


def test_missing_passages_are_named_and_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match=r"xquad.en.json: missing; .*--without-passages"):
        load_passages(tmp_path)
    out = tmp_path / "rows.jsonl"
    assert main(["--out", str(out), "--count", "40", "--data", str(tmp_path)]) == 2
    assert main(["--out", str(out), "--count", "40", "--without-passages"]) == 0
    values = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert all(set(value) == {"prompt", "completion"} for value in values)
    assert "| dialogue |" in capsys.readouterr().out
