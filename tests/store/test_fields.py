"""The table of an entry's fields, and what is made of it."""

from __future__ import annotations

import pytest

from memalpha.store import fields as table
from memalpha.store.fields import Field, columns, listed, new_defaults, sql_default, stored_types


@pytest.mark.parametrize("in_log", [True, False])
def test_a_new_field_gets_its_column_types_and_default(monkeypatch: pytest.MonkeyPatch, in_log: bool) -> None:
    confidence = Field("confidence", "number", default=0.5, keeps=True)
    monkeypatch.setattr(table, "FIELDS", (*table.FIELDS, confidence))
    types = {"text": "TEXT", "number": "REAL", "whole": "INTEGER"}
    column = columns(types, in_log=in_log, names=(*table.NAMES, "confidence")).split(", ")[-1]
    assert column == ("confidence REAL" if in_log else "confidence REAL NOT NULL")
    assert stored_types(confidence, in_log=in_log) == ((float, int, type(None)) if in_log else (float, int))
    assert (sql_default(confidence), new_defaults()["confidence"]) == ("0.5", 0.5)
    assert listed("NEW", ("key", "confidence")) == "NEW.key, NEW.confidence"
