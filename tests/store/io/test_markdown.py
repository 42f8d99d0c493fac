"""Markdown export and import: live entries are kept exactly, and edits take effect."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stores import new

from memalpha.errors import DataError
from memalpha.store.io.markdown import export_markdown, import_markdown, read_markdown
from memalpha.store.store import MemoryStore
from memalpha.types import Operation

HOSTILE = ["# x", "## semantic", "- x", "  - x", "<!-- x", "-->", "```", "~~~", "> x", "\\", "\\# x", "`{}`"]
HOSTILE += ['`{"id": 1}`', "1. x", "|a|", "***", "---", "a `b` c"]
HOSTILE += ["", " ", "  ", "\t", "\r", "x\r", "\x0b", "\x85", "\u2028", "\ufeff"]
LINES = st.sampled_from(HOSTILE) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8
)
TEXTS = st.lists(LINES, min_size=1, max_size=5).map("\n".join).filter(str.strip)
FACTS = st.fixed_dictionaries(
    {"category": st.sampled_from(["semantic", "episodic"]), "content": TEXTS},
    optional={
        "timestamp": st.sampled_from(["2024-05-01", "2024-05-01T12:00:00+02:00"]),
        "importance": st.sampled_from([0.0, 0.5, 1.0, 2]),
        "metadata": st.dictionaries(TEXTS, TEXTS | st.integers() | st.none() | st.lists(TEXTS), max_size=2),
        "source": TEXTS,
        "chunk": st.integers(0, 9),
        "turn": TEXTS,
        "expires": st.sampled_from(["2999-01-01", "2999-01-01T12:00:00+02:00"]),
    },
)


def origins(store: MemoryStore) -> dict[str, tuple]:
    return {entry.id: (entry.source, entry.chunk, entry.turn) for entry in store.list()}


@given(st.lists(FACTS, max_size=6), st.just("") | TEXTS)
def test_export_and_import_keep_live_entries(tmp_path_factory, facts, core) -> None:
    path = tmp_path_factory.getbasetemp() / "notes.md"
    with new() as store, new() as copy:
        store.insert_many(facts)
        if core:
            store.core_update(core)
        assert export_markdown(store, path) == len(store.list())
        took = import_markdown(copy, path)
        assert copy.state == store.state and origins(copy) == origins(store)
        assert took == copy.snapshot() == len(store.list()) + bool(core)
        text = path.read_bytes()
        assert import_markdown(store, path) == import_markdown(copy, path) == 0  # it all stands there
        export_markdown(copy, path)
        assert path.read_bytes() == text


def test_it_can_be_read_and_edited(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    with new() as store:
        ana = store.insert("semantic", "Ana lives in Lisbon.", timestamp="2024-05-01", source="chat-7", importance=0.5)
        tea = store.insert("semantic", "Ana likes tea.", metadata={"user": "ana"})
        store.insert("episodic", "Ana ran.\n# Not a heading")
        store.core_update("Ana, 34.\n\nNurse.")
        export_markdown(store, path)
        text = path.read_text()
        assert text == (
            "# Memory\n\n## Core memory\n\n> Ana, 34.\n>\n> Nurse.\n\n## semantic\n\n"
            f'- Ana lives in Lisbon.\n  `{{"id": "{ana.id}", "timestamp": "2024-05-01", "importance": 0.5, '
            '"source": "chat-7"}`\n\n'
            f'- Ana likes tea.\n  `{{"id": "{tea.id}", "metadata": {{"user": "ana"}}}}`\n\n## episodic\n\n'
            f'- Ana ran.\n  \\# Not a heading\n  `{{"id": "{store.list()[2].id}"}}`\n'
        )
        edited = text.replace("Lisbon", "Porto").replace("2024-05-01", "2025-01-10").replace("Nurse", "Doctor")
        edited = edited.replace("## episodic\n", "- Ana has a cat.\n- Ben skis.\n- Ben skis.\n\n## episodic\n")
        path.write_text(
            edited.replace(f'- Ana likes tea.\n  `{{"id": "{tea.id}", "metadata": {{"user": "ana"}}}}`\n', "")
        )
        assert import_markdown(store, path) == 4  # the core, Porto, the cat; Ben once
        assert store.get(ana.id).content == "Ana lives in Porto." and store.get(ana.id).timestamp == "2025-01-10"
        assert store.get(ana.id).importance == 0.5 and store.get(tea.id).metadata == {"user": "ana"}
        assert store.core == "Ana, 34.\n\nDoctor." and store.list()[-1].content == "Ben skis."
        store.delete(ana.id)
        assert import_markdown(store, path) == 1 and store.get(ana.id).content == "Ana lives in Porto."


def test_a_document_that_a_formatter_indented_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    with new() as store:
        store.insert("semantic", "Ana's list:\n  one\n\ntwo", metadata={"user": "ana"})
        export_markdown(store, path)
        lines = path.read_text().replace("- ", "-   ").replace("\n  ", "\n    ")
        path.write_text(lines)
        assert "-   Ana" in lines and import_markdown(store, path) == 0
        path.write_text('## semantic\n- It sent `{"id": 1}`\n  `{}`\n')
        assert import_markdown(store, path) == 1 and store.list()[1].content == 'It sent `{"id": 1}`'


@pytest.mark.parametrize("kept", ["Core memory", "> Nurse.", "- Ana", "  one", "# Memory"])
def test_line_ends_of_two_editors_are_no_content(tmp_path: Path, kept: str) -> None:
    path = tmp_path / "notes.md"
    with new() as store:
        store.insert("semantic", "Ana's list:\n  one\n\ntwo", metadata={"user": "ana"})
        store.core_update("Ana, 34.\n\nNurse.")
        export_markdown(store, path)
        lines = path.read_bytes().split(b"\n")
        path.write_bytes(b"\n".join(line if kept.encode() in line else line + b"\r" for line in lines[:-1]) + b"\n")
        assert import_markdown(store, path) == 0 and b"\r\n" in path.read_bytes()
        path.write_bytes(b"\r".join(lines).replace(b"two", b"three"))  # of an old Mac
        assert import_markdown(store, path) == 1 and store.list()[0].content == "Ana's list:\n  one\n\nthree"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- x", "notes.md:1: an entry belongs below the heading"),
        ("# Notes\n* x", "notes.md:2: an entry belongs below the heading"),
        ("1. x\n## semantic\n- y", "notes.md:1: an entry belongs below the heading"),
        ('## semantic\n- x\n  `{"id": "there"}`\n  and y', "notes.md:3: the details `{...}` are the last line"),
        ('## semantic\n- x\n  `{"id": "there"', "notes.md:3: the details `{...}` are the last line"),
        ('## semantic\n- x\n  y `{"id": "there"}`', "notes.md:3: the details `{...}` need a line of their own"),
        ('## semantic\n- x `{"id": "there"}`', "notes.md:2: the details `{...}` need a line of their own"),
        ('## semantic\n- x\n    `{"id": "there"}`', "notes.md:3: the details `{...}` need a line of their own"),
        ("## semantic\n\nx", "notes.md:3: an entry begins with '- '"),
        ("## nope\n- x", "notes.md:2: no category 'nope'"),
        ("## semantic\n- x\n  `{]}`", "notes.md:2: not JSON"),
        ('## semantic\n- x\n  `{"user": 1}`', "notes.md:2: user: the fields are id, timestamp"),
        ('## semantic\n- x\n  `{"chunk": "1"}`', "notes.md:2: chunk: "),
        ('## semantic\n- x\n  `{"timestamp": "May"}`', "notes.md:2: timestamp 'May'"),
        ('## semantic\n- x\n  `{"id": "a"}`\n- y\n  `{"id": "a"}`', "notes.md:4: id 'a': line 2 has it already"),
        ('## episodic\n- x\n  `{"id": "there"}`', "notes.md:2: entry 'there' is of category 'semantic'"),
        ("## Core memory\na\n## Core memory\nb", "notes.md:3: a second section"),
        ("## Core memory\n" + "word " * 600, "notes.md:1: core memory of 600 tokens"),
    ],
)
def test_invalid_input_is_named_and_nothing_is_stored(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "notes.md"
    path.write_text(text)
    with new() as store:
        store.apply(Operation("insert", id="there", category="semantic", content="here"))
        before = store.snapshot()
        with pytest.raises(DataError) as error:
            import_markdown(store, path)
        assert says in str(error.value) and store.snapshot() == before


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.md: cannot be read"):
        read_markdown(tmp_path / "none.md")
