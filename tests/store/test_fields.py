"""The table of an entry's fields, and what is made of it."""

from __future__ import annotations

from dataclasses import fields

import pytest

from memalpha.store import fields as table
from memalpha.store.backends.sqlite import DDL, is_same_sql
from memalpha.store.fields import Field, columns, listed, new_defaults, sql_default, stored_types
from memalpha.store.io.jsonl import Line
from memalpha.types import MemoryEntry, Operation


def test_entries_and_operations_have_the_fields_in_their_order() -> None:
    entry, operation = ([item.name for item in fields(record)] for record in (MemoryEntry, Operation))
    assert entry == [*table.ENTRY_NAMES, "version", "valid_from", "valid_to"]
    assert operation == ["kind", *table.OPERATION_NAMES]
    assert {*Line.model_fields} == {"seq", "time", "head", *operation}


def test_defaults_are_those_of_an_entry_and_nobody_shares_them() -> None:
    entry = MemoryEntry("a", "b", "c")
    assert {name: getattr(entry, name) for name in table.NAMES} == dict.fromkeys(table.NAMES) | new_defaults()
    assert new_defaults()["metadata"] is not new_defaults()["metadata"]


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


def test_definitions_are_compared_by_their_words() -> None:
    assert is_same_sql("CREATE TABLE\n a (b,\n c)", "CREATE TABLE a (b, c);")
    assert not is_same_sql("CREATE TABLE a (b, d)", "CREATE TABLE a (b, c);") and not is_same_sql(None, "CREATE;")
    assert "confidence" not in DDL
