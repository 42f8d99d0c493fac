"""Consolidation: what rules change, what a model may change, the log with its reasons, and undo in one step."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from fake_policy import FakePolicy
from typer.testing import CliRunner

from memalpha.agent.agent import MemoryAgent
from memalpha.agent.consolidate import METADATA_KEY, apply_consolidation, propose_consolidation, undo_consolidation
from memalpha.agent.parsing import format_call
from memalpha.cli.main import app
from memalpha.config import AgentConfig
from memalpha.errors import ConfigError, StoreError
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.memory import WorkingMemory
from memalpha.store.store import MemoryStore


def model_of(reply: Callable[[str], Sequence[tuple[str, dict[str, object]]]]) -> FakePolicy:
    """A policy that replies with the calls that `reply` makes of the user's message."""
    return FakePolicy(
        lambda request: "".join(format_call(*call) for call in reply(request.messages[-1]["content"])), "model"
    )


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore.open(":memory:", embedder="hash")


def contents(store: MemoryStore) -> list[str]:
    return [entry.content for entry in store.list()]


def test_rules_change_what_is_certain_and_nothing_else(store):
    store.add("Ana likes tea.", timestamp="2024-01-01")
    store.add("ana likes  tea", timestamp="2024-02-01")
    store.add("Tom likes Ana.")
    store.add("Ana likes Tom.")  # the same words say another thing
    store.insert("episodic", "ana likes tea", timestamp="2024-03-02", source="chat", chunk=3, turn="3.1")  # raw
    for content in ("Ana is vegan.", "Ana is vegan?", "password: abcD", "password: ABCd"):
        store.add(content)
    store.add("[obsolete] Ana lives in Rome.")
    store.add("hobby: chess", timestamp="2024-01-01")
    store.add("hobby: running", timestamp="2024-02-01")  # may both hold
    before, position = contents(store), store.snapshot()

    proposal = propose_consolidation(store)
    assert contents(store) == before
    assert store.snapshot() == position
    assert [(change.operation.kind, change.before) for change in proposal.changes] == [
        ("delete", "Ana likes tea."),
        ("delete", "[obsolete] Ana lives in Rome."),
    ]
    assert len(proposal.unsure) == 1
    assert "has a later date" in proposal.unsure[0]

    result = apply_consolidation(store, proposal)
    assert result.applied
    assert not result.refused
    reasons = [op.source for _, _, op in store.log(position)]
    assert [reason.startswith(f"consolidation {position}: ") for reason in reasons] == [True] * 2
    assert not any("tea" in reason for reason in reasons if "same as" not in reason)
    assert propose_consolidation(store).changes == ()  # nothing is left to do

    undo_consolidation(store)
    assert contents(store) == before
    with pytest.raises(StoreError, match="no consolidation"):
        undo_consolidation(store)


def test_what_has_a_key_of_its_own_stays(store):
    for key in ("ana:city", "ben:city"):
        store.upsert(key, "Porto")
    store.add("porto.", timestamp="2024-01-01")
    ids = [change.operation.id for change in propose_consolidation(store).changes]
    assert ids == [] and store.get("ben:city").content == "Porto"
    store.add("Porto!", timestamp="2025-01-01")
    assert [change.before for change in propose_consolidation(store).changes] == ["porto."]


def test_a_model_merges_and_rewrites_the_core_and_its_mistakes_are_refused(store):
    with store.writing_as(speaker="Ana"):
        origin = {"source": "chat", "chunk": 3, "metadata": {"user": "ana"}}
        tea = store.add("Ana likes green tea.", timestamp="2024-01-01", **origin)
    drink = store.add("Ana's favourite drink is tea.", timestamp="2024-01-02")
    store.core_update("Ana.")
    model = model_of(
        lambda text: [
            ("memory_update", {"id": tea.id, "content": "Ana's favourite drink is green tea.", "reason": "merged"}),
            ("memory_delete", {"id": drink.id, "reason": f"is in {tea.id}"}),
            ("core_memory_update", {"content": "Ana drinks green tea.", "reason": "summary"}),
            ("memory_delete", {"id": "gone", "reason": "x"}),
            ("memory_insert", {"category": "semantic", "content": "Ana likes coffee."}),
            ("memory_update", {"id": tea.id, "reason": "no content"}),
            ("memory_update", {"id": tea.id, "content": 5}),
            ("memory_update", {"id": tea.id, "content": "Ana.", "timestamp": "soon"}),
            ("memory_delete", {"id": [tea.id]}),
            ("core_memory_update", {"content": ["x"]}),
        ]
    )
    agent = MemoryAgent(model, store)
    proposal = agent.consolidate()
    assert [change.reason for change in proposal.changes] == ["merged", f"is in {tea.id}", "summary"]
    assert len(proposal.refused) == 7
    assert contents(store) == ["Ana likes green tea.", "Ana's favourite drink is tea."]
    shown = model.requests[0].messages[-1]["content"]
    assert all(part in shown for part in ("Ana.", tea.id, drink.id, "2024-01-02"))
    assert {tool["function"]["name"] for tool in model.requests[0].tools} == {
        "memory_update", "memory_delete", "core_memory_update"
    }  # fmt: skip
    position = store.snapshot()
    agent.consolidate(dry_run=False)
    assert contents(store) == ["Ana's favourite drink is green tea."]
    assert store.core == "Ana drinks green tea."
    entry = store.get(tea.id)
    assert (entry.timestamp, entry.source, entry.chunk, entry.speaker) == ("2024-01-01", "chat", 3, "Ana")
    assert entry.metadata == {"user": "ana", METADATA_KEY: f"consolidation {position}: merged"}
    core_operation = list(store.log(position))[-1][2]
    assert core_operation.source == f"consolidation {position}: summary"
    undo_consolidation(store)
    assert (contents(store), store.core) == (["Ana likes green tea.", "Ana's favourite drink is tea."], "Ana.")


def test_a_large_memory_is_shown_in_groups_of_related_entries(store):
    for number in range(6):
        store.add(f"Ana grows roses in garden {number}.")
        store.add(f"Tom repairs clocks at shop {number}.")
    model = model_of(lambda text: [])
    propose_consolidation(store, model, AgentConfig(view_tokens=60))
    views = [request.messages[-1]["content"] for request in model.requests]
    assert len(views) > 1
    assert sum(view.count("] (") for view in views) == 12  # each entry once
    assert "Tom" not in views[0] or "Ana" not in views[1]
    assert views[0].count("roses") >= 5


def test_what_others_changed_meanwhile_stays(store):
    first = store.add("Ana likes tea.", timestamp="2024-01-01")
    store.add("ana likes tea", timestamp="2024-02-01")
    proposal = propose_consolidation(store)
    store.update(first.id, "Ana likes mate.")
    result = apply_consolidation(store, proposal)
    assert result.changes == ()
    assert "was changed after the proposal" in result.refused[0]
    assert store.get(first.id).content == "Ana likes mate."


def test_undo_is_refused_after_others_wrote(store):
    store.add("Ana likes tea.")
    store.add("ana likes tea")
    apply_consolidation(store, propose_consolidation(store))
    store.add("Tom is here.")
    with pytest.raises(StoreError, match="written since"):
        undo_consolidation(store)


def test_what_cannot_consolidate_is_refused(store):
    store.add("Ana likes tea.")
    model = model_of(lambda text: pytest.fail("not asked"))
    with pytest.raises(ConfigError, match="instruction-tuned"):
        propose_consolidation(store, model, AgentConfig(prompt="compact"))
    with pytest.raises(ConfigError, match="a MemoryStore is needed"):
        MemoryAgent(model, WorkingMemory(store.state, store.load_embedder())).consolidate()
    assert MemoryAgent(ScriptedPolicy("add-all"), store).consolidate().changes == ()


def test_the_command_lists_writes_and_undoes(tmp_path):
    path = str(tmp_path / "a.db")
    with MemoryStore.open(path, embedder="hash") as store:
        store.add("Ana likes tea.", timestamp="2024-01-01")
        store.add("ana likes tea", timestamp="2024-02-01")
    listed = CliRunner().invoke(app, ["consolidate", path])
    assert "1 change proposed; --apply writes them" in listed.stdout
    assert "  - Ana likes tea." in listed.stdout
    written = json.loads(CliRunner().invoke(app, ["consolidate", path, "--apply", "--json"]).stdout)
    assert (written["applied"], len(written["changes"])) == (True, 1)
    assert CliRunner().invoke(app, ["consolidate", path]).stdout.strip() == "nothing to change"
    assert "1 operation undone" in CliRunner().invoke(app, ["consolidate", path, "--undo"]).stdout
    with MemoryStore.open(path) as store:
        assert contents(store) == ["Ana likes tea.", "ana likes tea"]
    assert isinstance(CliRunner().invoke(app, ["consolidate", path, "--undo", "--apply"]).exception, ConfigError)
