"""Recorded embedders: a file's name of a model is never loaded unless the caller names it as well."""

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from memalpha.errors import EmbedderError, StoreError
from memalpha.store import embedding
from memalpha.store.embedding import HashEmbedder, RecordedEmbedder, SentenceTransformerEmbedder, embedder_record
from memalpha.store.store import MemoryStore

FOLDER = "models/notes"


class FolderEmbedder(HashEmbedder):
    """Hash embedder under the name of a relative folder, so that a store file records that folder."""

    name = FOLDER


@pytest.fixture
def store_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a store that records the folder `models/notes`, with a model there whose own module leaves a mark."""
    model = tmp_path / FOLDER
    model.mkdir(parents=True)
    (model / "notes_module.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'executed')!r}).touch()\nclass Notes:\n    pass\n"
    )
    modules = [{"idx": 0, "name": "0", "path": "", "type": "notes_module.Notes"}]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "config_sentence_transformers.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(model))
    path = tmp_path / "somebody.db"
    with MemoryStore.open(path, embedder=FolderEmbedder()) as store:
        store.insert("semantic", "Ana lives in Lisbon.")
        store.insert("semantic", "Ana has a cat.")
    return path


USES = {
    "search": lambda store: store.search("Where does Ana live?"),
    "search by words": lambda store: store.search("Where does Ana live?", route="bm25"),
    "search of several": lambda store: store.search_many(["Ana", "cat"]),
    "past search": lambda store: store.search("Ana", as_of=1),
    "insert": lambda store: store.insert("semantic", "Ana has a dog."),
    "insert many": lambda store: store.insert_many([{"category": "semantic", "content": "Ana has a dog."}]),
    "embedder": lambda store: store.load_embedder(),
    "search of a fork": lambda store: store.fork("other").search("Ana"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_recorded_folder_is_not_loaded(store_path, monkeypatch, use):
    monkeypatch.setattr(embedding, "load_embedder", lambda name: pytest.fail(f"{name} was loaded"))
    with (
        MemoryStore.open(store_path) as store,
        pytest.raises(
            StoreError, match=r"records the embedder '.*embedder='models/notes'.*--embedder.*pass the object"
        ),
    ):
        use(store)
    assert not (store_path.parent / "executed").exists()


@pytest.mark.parametrize(
    "record",
    [
        "{",
        "[]",
        '{"name": "hash"}',
        '{"name": ["hash"], "dim": 2, "probe": [0, 1]}',
        '{"name": "hash", "dim": "2", "probe": [0, 1]}',
        '{"name": "hash", "dim": 2, "probe": []}',
        '{"name": "hash", "dim": 2, "probe": ["a"]}',
    ],
)
def test_an_invalid_record_is_refused(record):
    with pytest.raises(StoreError, match=r"^ana\.db: its record of the embedder"):
        RecordedEmbedder("ana.db", record, None)


class ShiftedEmbedder(HashEmbedder):
    """Hash embedder with other vectors under the same name: the first component moved, or further components."""

    def __init__(self, shift: float, more: int = 0) -> None:
        super().__init__(8)
        self.shift, self.more = shift, more
        self.dim += more

    def encode(self, texts):
        rows = HashEmbedder(8).encode(texts)
        rows[:, 0] += self.shift
        return np.pad(rows, ((0, 0), (0, self.more)))


@pytest.mark.parametrize(
    ("shift", "more", "is_same"),
    [(0.0, 0, True), (0.0098, 0, True), (-0.0098, 0, True), (0.0102, 0, False), (0, 1, False)],
)
def test_a_recorded_embedder_is_recognised_by_its_probe(shift, more, is_same):
    record = embedder_record(HashEmbedder(8))
    recorded = RecordedEmbedder("ana.db", record, embedder := ShiftedEmbedder(shift, more))
    if is_same:
        assert recorded.load() is recorded.load() and recorded.load().inner is embedder
        return
    with pytest.raises(EmbedderError, match=rf"another version of the embedder .*dimension 8, now {8 + more}; "):
        recorded.load()


def test_a_model_is_loaded_without_its_code_and_by_safetensors_first(monkeypatch):
    options = []

    class Model:
        def __init__(self, name, **kwargs):
            options.append(kwargs)

        def encode(self, texts, **_):
            return np.ones((len(texts), 2))

    package = ModuleType("sentence_transformers")
    package.__spec__ = ModuleSpec("sentence_transformers", None)
    monkeypatch.setattr(package, "SentenceTransformer", Model, raising=False)
    monkeypatch.setitem(sys.modules, "sentence_transformers", package)
    SentenceTransformerEmbedder("a/model")
    assert options[0]["trust_remote_code"] is False
    assert options[0]["model_kwargs"] == {"use_safetensors": None}
