"""Options of a search: one list of keywords, checked once, on every kind of memory."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path

import pytest

from memalpha.errors import StoreError
from memalpha.store.async_store import AsyncMemoryStore
from memalpha.store.embedding import HashEmbedder
from memalpha.store.memory import Memory, WorkingMemory
from memalpha.store.schema import load_schema
from memalpha.store.search.ranking import SEARCH_KEYWORDS, SearchOptions
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore

OPTIONS = {field.name: field.default for field in fields(SearchOptions) if field.init}


@pytest.fixture(params=["store", "working"])
def memory(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "store":
        with MemoryStore.open(tmp_path / "ana.db", embedder=HashEmbedder(16)) as store:
            yield store
    else:
        yield WorkingMemory(MemoryState(load_schema("mem-alpha")), HashEmbedder(16))


@pytest.mark.parametrize("kind", [Memory, WorkingMemory, MemoryStore, AsyncMemoryStore])
def test_every_kind_of_memory_shows_the_keywords(kind: type) -> None:
    _, text, *keywords = inspect.signature(kind.search).parameters.values()
    assert text.name == "query" and text.default is inspect.Parameter.empty
    assert {keyword.name: keyword.default for keyword in keywords} == OPTIONS
    assert [keyword.kind.name for keyword in keywords[:2]] == ["POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY"]
    assert {"k", *SEARCH_KEYWORDS} == OPTIONS.keys()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"route": "best"}, "route 'best' is not one of soft, flat"),
        ({"k": -1}, "k -1: a whole number from 0"),
        ({"k": 2.5}, r"k 2\.5: a whole number from 0"),
        ({"k": "3"}, "k '3': a whole number from 0"),
        ({"k": None}, "k None: a whole number from 0"),
        ({"k": True}, "k True: a whole number from 0"),
        ({"around": -1}, "around -1: a whole number from 0"),
        ({"where": {"n": {"$near": 1}}}, "unknown operator"),
    ],
)
def test_a_bad_option_is_refused_before_anything_is_embedded(
    memory: Memory, options: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HashEmbedder, "encode", lambda *_: pytest.fail("embedded"))
    with pytest.raises(StoreError, match=message):
        memory.search("bird", **options)
    with pytest.raises(StoreError, match=message):
        memory.search_many([], **options)
    with pytest.raises(TypeError, match=r"search_many\(\) got an unexpected keyword argument 'whatever'"):
        memory.search_many([], whatever=1)


@pytest.mark.parametrize("options", [{"as_of": 0}, {"around": 5}])
def test_a_working_memory_says_what_only_a_store_can(options: dict) -> None:
    memory = WorkingMemory(MemoryState(load_schema("mem-alpha")), HashEmbedder(16))
    with pytest.raises(StoreError, match="only a MemoryStore"):
        memory.search("bird", **options)
    assert memory.search("bird", exact=True) == []
