"""The reference writers: the oracle keeps exactly what holds, append-only never changes anything."""

import pytest

from memalpha.agent.parsing import format_call, parse_calls
from memalpha.config import AgentConfig, WorldConfig
from memalpha.environments import memory_engine
from memalpha.errors import PolicyError
from memalpha.policy.load import load_policy
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.embedding import HashEmbedder
from memalpha.tasks.synthetic.worlds import tasks
from memalpha.types import Chunk, GoldOperation, Observation, SampleRequest, SpeakerTurn, Task, ViewEntry

TASKS = tasks(WorldConfig(), 0, 0, 12)
CONFIG = AgentConfig(prompt="compact", embedder="hash")


def build(policy):
    groups = memory_engine(policy, CONFIG, HashEmbedder(16)).roll_out(TASKS)
    return [trajectory for group in groups for trajectory in group.trajectories]


def true_facts(task):
    facts = []
    for operation in task.gold_operations:
        if operation.replaces:
            facts.remove((operation.category, operation.replaces))
        if operation.content:
            facts.append((operation.category, operation.content))
    return sorted(facts)


def test_oracle_ends_with_what_holds():
    for trajectory in build(ScriptedPolicy("oracle")):
        entries = trajectory.states[-1].list()
        assert sorted((entry.category, entry.content) for entry in entries) == true_facts(trajectory.task)
        assert all(result.ok for turn in trajectory.turns for result in turn.results)
    dated = {(o.content, o.timestamp) for task in TASKS for o in task.gold_operations if o.timestamp}
    kept = {(e.content, e.timestamp) for t in build(ScriptedPolicy("oracle")) for e in t.states[-1].list()}
    assert dated and dated <= kept


def test_append_only_keeps_everything_ever_stated():
    for trajectory in build(ScriptedPolicy("append-only")):
        stated = sorted({(o.category, o.content) for o in trajectory.task.gold_operations if o.content})
        assert sorted((e.category, e.content) for e in trajectory.states[-1].list()) == stated
        assert {op.kind for turn in trajectory.turns for op in turn.operations} == {"insert"}


def test_add_all_inserts_what_people_said():
    chunk = Chunk(
        turns=(
            SpeakerTurn(speaker="user", text='I moved to "Rome".'),
            SpeakerTurn(speaker="Ana", text="Me too."),
            SpeakerTurn(speaker="assistant", text="Nice!"),
        )
    )
    (completion,) = ScriptedPolicy("add-all").sample([SampleRequest((), observation=Observation(chunk))])
    calls = [(call.name, call.arguments) for call in parse_calls(completion.text)]
    insert = {"category": "episodic"}
    assert calls == [
        ("memory_insert", insert | {"content": 'I moved to "Rome".'}),
        ("memory_insert", insert | {"content": "Ana: Me too."}),
    ]
    assert completion.prompt_ids == completion.completion_ids == completion.logprobs == ()


def test_add_all_leaves_out_what_an_assistant_said_in_plain_text():
    text = (
        "Ana: hi\nI live in Porto.\n\nAssistant: Great!\nSee https://porto.pt\nuser: My assistant: Bo\n assistant:\nOk"
    )
    (completion,) = ScriptedPolicy("add-all").sample([SampleRequest((), observation=Observation(Chunk(text=text)))])
    contents = [call.arguments["content"] for call in parse_calls(completion.text)]
    assert contents == ["Ana: hi", "I live in Porto.", "user: My assistant: Bo"]


def test_add_all_fits_a_schema_without_events():
    config = AgentConfig(memory_schema="life", embedder="hash")
    (group,) = memory_engine(ScriptedPolicy("add-all"), config, HashEmbedder(16)).roll_out([TASKS[0]])
    assert all(result.ok for turn in group.trajectories[0].turns for result in turn.results)


def test_nothing_to_do_is_an_explicit_skip_and_fixed_is_fixed():
    later = GoldOperation(kind="insert", chunk=1, category="semantic", content="city: Oslo")
    task = Task(id="t", chunks=(Chunk(text="hi"), Chunk(text="I live in Oslo.")), gold_operations=(later,))
    request = SampleRequest((), observation=Observation(task.chunks[0], task=task))
    assert ScriptedPolicy("oracle").sample([request])[0].text == format_call("memory_skip", {})
    assert ScriptedPolicy("fixed", text="hello").sample([request, request])[1].text == "hello"


def test_oracle_updates_by_the_id_in_view_and_inserts_what_was_never_stored():
    gold = (GoldOperation(kind="update", chunk=0, category="semantic", content="city: Rome", replaces="city: Oslo"),)
    task = Task(id="t", chunks=(Chunk(text="x"),), gold_operations=gold)

    def reply(*entries):
        request = SampleRequest((), observation=Observation(task.chunks[0], "", entries, task))
        (call,) = parse_calls(ScriptedPolicy("oracle").sample([request])[0].text)
        return call.name, dict(call.arguments)

    assert reply(ViewEntry("a#1", "semantic", "city: Oslo")) == (
        "memory_update",
        {"id": "a#1", "content": "city: Rome"},
    )
    assert reply(ViewEntry("a#1", "episodic", "city: Oslo"))[0] == "memory_insert"
    assert reply() == ("memory_insert", {"category": "semantic", "content": "city: Rome"})


def test_errors_say_what_to_do():
    with pytest.raises(PolicyError, match="scripted:oracle"):
        load_policy("scripted:magic")
    with pytest.raises(PolicyError, match="another reader"):
        ScriptedPolicy("add-all").sample([SampleRequest(({"role": "user", "content": "Where?"},))])
    with pytest.raises(PolicyError, match="gold operations"):
        load_policy("scripted:oracle").sample([SampleRequest((), observation=Observation(Chunk(text="x")))])


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gpt-4o-mini", "try openai:gpt-4o-mini$"),
        ("o3", "try openai:o3$"),
        ("claude-sonnet-4-5", "try https://HOST/v1#claude-sonnet-4-5 with"),
        ("no/such/folder", "written openai:MODEL or http://host/v1#model$"),
    ],
)
def test_an_unknown_name_says_how_a_hosted_model_is_named(name, hint):
    with pytest.raises(PolicyError, match=hint):
        load_policy(name)


def _gold(*operations):
    made = [
        GoldOperation(kind=kind, chunk=0, category="semantic", content=new, replaces=old)
        for kind, new, old in operations
    ]
    net = Task(id="t", chunks=(Chunk(text="x"),), gold_operations=tuple(made)).gold_at(0)
    return [(operation.kind, operation.content, operation.replaces) for operation in net]


def test_gold_at_folds_what_changes_within_a_chunk():
    assert _gold(("insert", "a", None), ("update", "b", "a")) == [("insert", "b", None)]
    assert _gold(("insert", "a", None), ("delete", "", "a"), ("insert", "c", None)) == [("insert", "c", None)]
    assert _gold(("update", "b", "a"), ("update", "c", "b")) == [("update", "c", "a")]
    assert _gold(("update", "b", "a"), ("delete", "", "b")) == [("delete", "", "a")]
    assert _gold(("insert", "x", None), ("delete", "", "a")) == [("insert", "x", None), ("delete", "", "a")]


def test_add_all_keeps_all_of_a_plain_text_without_a_user_and_no_line_of_a_reply():
    for text, kept in (
        ("Director: Jane\nAssistant: Tom Smith\n\nWe met in Rome.", 3),
        ("user: hi\nassistant: A recipe\nIngredients: eggs\nSteps: cook\nuser: thx", 2),
    ):
        (completion,) = ScriptedPolicy("add-all").sample([SampleRequest((), observation=Observation(Chunk(text=text)))])
        assert len(parse_calls(completion.text)) == kept
