"""Cells of tables and files of reports."""

from pathlib import Path

import pytest

from memalpha.qa.report import Report, format_cell, save_results


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (None, "-"), ("extractive", "extractive"), (True, "True"), (12_345, "12345"), (0.0, "0.000"),
        (0.12349, "0.123"), (-0.5, "-0.500"), (10.0, "10.000"), (10.04, "10"), (10.6, "11"), (12_345.6, "12,346"),
    ],
)  # fmt: skip
def test_a_cell_has_three_decimals_up_to_ten(value, cell):
    assert format_cell(value) == cell


@pytest.mark.parametrize(("name", "stem"), [("oracle", "oracle"), ("policy:org/model", "policy-org-model")])
def test_a_report_of_any_name_lies_in_one_folder(tmp_path, name, stem):
    Report(name, {}, ()).save(tmp_path)
    assert sorted(path.name for path in (tmp_path / "eval").iterdir()) == [f"{stem}.json", f"{stem}.jsonl"]


def test_a_summary_that_cannot_be_written_leaves_the_earlier_one(tmp_path, monkeypatch):
    (tmp_path / "summary.json").write_text("{}")

    def fill_disk(path, text, **_):
        path.write_bytes(b"")
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(Path, "write_text", fill_disk)
    with pytest.raises(OSError, match="no space"):
        save_results(tmp_path, [Report("rag", {}, ())], {})
    assert (tmp_path / "summary.json").read_text() == "{}"
