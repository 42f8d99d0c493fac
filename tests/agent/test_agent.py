"""What a writer is shown, what its reply does, and that many rollouts at once are the same as one by one."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memalpha.agent.agent import MemoryAgent
from memalpha.agent.observe import observe
from memalpha.agent.prompts import CORE_CUT, render_view
from memalpha.config import AgentConfig
from memalpha.environments import Start, memory_engine
from memalpha.errors import ConfigError, DataError, InvalidContent
from memalpha.policy.hermes import format_call
from memalpha.policy.noise import noise_key
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.embedding import HashEmbedder
from memalpha.store.in_memory import WorkingMemory
from memalpha.store.schema import load_schema
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore
from memalpha.types import Chunk, Completion, Task

CONFIG = AgentConfig(prompt="compact", embedder="hash", view_related=2, view_recent=3)
SCHEMA = load_schema("mem-alpha")


def memory(*contents: str) -> WorkingMemory:
    fresh = WorkingMemory(MemoryState.empty(SCHEMA), HashEmbedder(64))
    for content in contents:
        fresh.insert("semantic", content)
    return fresh


def shown(target, text="zzz", config=CONFIG, count=len):
    return [entry.content for entry in observe(target, Chunk(text=text), config, count).entries]


FACTS = ["city: Oslo", "pet: cat", "job: nurse", "car: Volvo", "book: Dune", "band: Blur"]


def test_view_is_retrieved_and_recent_oldest_first():
    view = shown(memory(*FACTS), "Guess what, my pet ran away!", config=CONFIG.model_copy(update={"view_related": 1}))
    assert view == ["pet: cat", "car: Volvo", "book: Dune", "band: Blur"]


def test_an_updated_entry_is_recent_but_keeps_its_place():
    target = memory(*FACTS)
    target.update(target.list()[0].id, "city: Rome")
    assert shown(target, config=CONFIG.model_copy(update={"view_related": 0})) == [
        "city: Rome",
        "book: Dune",
        "band: Blur",
    ]


WORDS = st.lists(st.text("abcé", min_size=1, max_size=15), max_size=300).flatmap(
    lambda words: st.sampled_from([" ", "\n", "  \n"]).map(lambda gap: gap.join(words))
)
COUNTS = {"characters": len, "bytes": lambda text: len(text.encode()), "words": lambda text: len(text.split())}


@pytest.mark.parametrize("style", ["compact", "full"])
@given(budget=st.integers(1, 1200), core=WORDS, count=st.sampled_from(list(COUNTS)))
@example(budget=1, core="Ana", count="characters")
@example(budget=1024, core=" ".join(["abcdefghijklmno"] * 300), count="bytes")
def test_view_keeps_the_budget_whatever_the_core_memory(style, budget, core, count):
    target = memory(*FACTS)
    target.core_update(core)
    config = CONFIG.model_copy(update={"view_tokens": budget, "prompt": style})
    seen = observe(target, Chunk(text="my pet"), config, COUNTS[count])
    size = COUNTS[count](render_view(seen.core, seen.entries, style))
    assert size <= max(budget, COUNTS[count](render_view(CORE_CUT, (), style)))
    if budget >= 700 and count != "words":
        assert seen.entries and "pet: cat" in [entry.content for entry in seen.entries]
    kept, cut, _ = seen.core.partition(CORE_CUT)
    assert seen.core == target.core or (cut and target.core.startswith(kept.rstrip()) and len(target.core) > 3)
    assert not cut or target.core[len(kept.rstrip()) :][:1].isspace() or len(kept.split()) <= 1


def test_a_core_memory_is_cut_after_a_line_or_else_a_word():
    target = memory(*FACTS)
    config = CONFIG.model_copy(update={"view_tokens": 400, "prompt": "full"})
    for gap, word in (("\n", "one two three"), (" ", "four-five")):
        target.core_update(gap.join([word] * 60))
        kept = observe(target, Chunk(text="my pet"), config, len).core.removesuffix(CORE_CUT)
        assert kept and set(kept.strip().split(gap)) == {word}


def test_the_lowest_ranked_entry_is_dropped_first():
    target = memory(*FACTS)
    views = []
    for budget in range(400, 0, -1):
        view = shown(target, "my pet", CONFIG.model_copy(update={"view_tokens": budget}))
        if not views or view != views[-1]:
            views.append(view)
    assert views[0] == shown(target, "my pet")
    assert [len(view) for view in views] == list(range(len(views[0]), -1, -1))
    assert views[-2] == ["pet: cat"]  # the best retrieved stays longest
    assert all(set(after) < set(before) for before, after in itertools.pairwise(views))


class Script:
    """A policy that replies with given texts in turn, and notes what it was asked."""

    name = "script"
    prompt = "full"

    def __init__(self, *texts):
        self.texts, self.batches = list(texts), []

    def sample(self, requests):
        self.batches.append(list(requests))
        return [Completion(self.texts.pop(0)) for _ in requests]

    def count_tokens(self, text):
        return len(text)


def test_agent_reads_and_answers():
    target = memory("city: Oslo")
    id = target.list()[0].id
    reply = format_call("memory_update", {"id": id, "content": "city: Rome"}) + format_call(
        "memory_delete", {"id": "no"}
    )
    policy = Script(reply, "Rome")
    agent = MemoryAgent(policy, target, CONFIG)
    turn = agent.read("I moved to Rome.", timestamp="2024-05-01", source="chat-7")
    assert [result.code for result in turn.results] == ["updated", "unknown_id"]
    assert [operation.kind for operation in turn.operations] == ["update"]
    entry = target.get(id)
    assert (entry.content, entry.timestamp, entry.source, entry.chunk) == ("city: Rome", "2024-05-01", "chat-7", 0)
    assert agent.ask("Where do I live?").text == "Rome"
    assert policy.batches[1][0].messages[-1]["content"] == "facts\ncity: Rome (2024-05-01)\nask: Where do I live?"


def test_metadata_of_a_read_stand_beside_what_an_entry_has():
    store = MemoryStore.open(":memory:", embedder="hash")
    entry = store.insert("semantic", "Ana lives in Rome", metadata={"topic": "home", "user": "?"})
    reply = "".join(
        format_call(name, arguments)
        for name, arguments in (
            ("memory_update", {"id": entry.id, "content": "Ana lives in Porto"}),
            ("memory_insert", {"category": "semantic", "content": "Ana has a dog"}),
        )
    )
    agent = MemoryAgent(ScriptedPolicy("fixed", text=reply), store)
    agent.read("I moved to Porto. I have a dog.", metadata={"user": "ana"})
    assert [dict(kept.metadata) for kept in store.list()] == [{"topic": "home", "user": "ana"}, {"user": "ana"}]
    with pytest.raises(InvalidContent, match="metadata"):
        agent.read("Hello.", metadata={"user": object()})
    assert agent.chunks_read == 1, "nothing is asked for what cannot be stored"


def test_a_chunk_whose_timestamp_is_no_date_is_the_callers_mistake():
    policy = Script()
    with pytest.raises(InvalidContent, match="'May 1st' is no ISO 8601"):
        MemoryAgent(policy, memory(), CONFIG).read("I moved to Rome.", timestamp="May 1st")
    assert policy.batches == []


def test_a_scripted_agent_answers_with_the_floor():
    agent = MemoryAgent(ScriptedPolicy("add-all"), memory("city: Oslo"))
    agent.read("pet: cat")
    assert agent.ask("Which city is home?").text == "Oslo"
    assert agent.ask("What is my job?").abstained


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"memory_schema": "mem-alpha"}, "memory_schema: the store has schema 'life'"),
        ({"embedder": "static"}, "embedder: the store was made with 'hash'"),
    ],
)
@pytest.mark.parametrize("durable", [False, True])
def test_the_store_decides_its_schema_and_embedder(named, says, durable):
    life = load_schema("life")
    store = WorkingMemory(MemoryState.empty(life), HashEmbedder(16))
    if durable:
        store = MemoryStore.open(":memory:", life, "hash")
    with pytest.raises(ConfigError, match=says):
        MemoryAgent(ScriptedPolicy("add-all"), store, AgentConfig(**named))
    own = AgentConfig(memory_schema="life", embedder="hash")
    for config in (None, AgentConfig(view_recent=3), own):
        policy = Script(format_call("memory_insert", {"category": "values", "content": f"honesty {config}"}))
        agent = MemoryAgent(policy, store, config)
        assert [result.code for result in agent.read("I value honesty.").results] == ["inserted"]
        [[asked]] = policy.batches
        assert "psychological_defense" in asked.messages[0]["content"]
        category = asked.tools[0]["function"]["parameters"]["properties"]["category"]
        assert category["enum"] == list(life.category_names)


@pytest.mark.parametrize("config", [None, AgentConfig(view_recent=3)])
def test_an_agent_reads_and_answers_in_the_style_of_its_policy(config):
    policy = Script(format_call("memory_skip", {}), "Oslo")
    policy.prompt = "compact"
    agent = MemoryAgent(policy, memory("city: Oslo"), config)
    agent.read("hello")
    agent.ask("Where?")
    [[read], [asked]] = policy.batches
    assert [message["role"] for message in read.messages + asked.messages] == ["user", "user"]
    assert read.messages[0]["content"].startswith("memory\n") and not read.tools
    assert asked.messages[0]["content"].startswith("facts\n")


def _task(id, *texts):
    return Task(id=id, chunks=tuple(Chunk(text=text, timestamp="2024-05-01") for text in texts))


class Noisy:
    """Writes its request's key, so that a rollout's memory shows all that decided it."""

    name = "noisy"

    def __init__(self):
        self.batches = []

    def sample(self, requests):
        self.batches.append(len(requests))
        return [
            Completion(
                format_call(
                    "memory_insert", {"category": "semantic", "content": f"{r.key} of {len(r.messages[0]['content'])}"}
                )
            )
            for r in requests
        ]

    def count_tokens(self, text):
        return len(text)


def test_engine_is_lock_step_and_independent_of_its_batch():
    tasks = [_task("a", "one", "two", "three"), _task("b", "four"), _task("c", "five", "six")]
    policy, seen = Noisy(), []
    groups = memory_engine(policy, CONFIG, HashEmbedder(16)).roll_out(
        tasks, 2, 1.0, seed=5, step=7, progress=lambda done, total: seen.append((done, total))
    )
    assert policy.batches == [6, 4, 2] and seen == [(6, 12), (10, 12), (12, 12)]
    assert [[t.rollout for t in group.trajectories] for group in groups] == [[0, 1]] * 3
    for number, group in enumerate(groups):
        assert group.task is tasks[number]
        for trajectory in group.trajectories:
            assert [turn.chunk for turn in trajectory.turns] == list(range(len(group.task.chunks)))
            assert [len(state.entries) for state in trajectory.states] == [turn.chunk + 1 for turn in trajectory.turns]
            keys = [entry.content.split(" of ")[0] for entry in trajectory.states[-1].list()]
            assert keys == [str((5, 7, number, trajectory.rollout, turn.chunk)) for turn in trajectory.turns]
    alone = memory_engine(Noisy(), CONFIG, HashEmbedder(16)).roll_out(tasks[:1], 1, 1.0, seed=5, step=7)
    assert alone[0].trajectories[0].states == groups[0].trajectories[0].states


class Echo(Noisy):
    """Writes the key it samples with, and remembers its prompts."""

    def __init__(self):
        super().__init__()
        self.requests = []

    def sample(self, requests):
        self.requests += requests
        return super().sample(requests)


def test_second_attempts_carry_their_advice_and_draw_noise_of_their_own():
    tasks = [_task("a", "one", "two"), _task("b", "four")]
    policy = Echo()
    engine = memory_engine(policy, CONFIG, HashEmbedder(16))
    first = engine.roll_out(tasks, 1, 1.0, seed=5, step=7, first_index=3)
    keys = {request.key for request in policy.requests}
    policy.requests.clear()
    starts = [Start(tasks[1], 4, 2, "mind the cats"), Start(tasks[0], 3, 0, ""), Start(tasks[0], 3, 1, "mind the dogs")]
    retries = engine.run(starts, 1.0, 5, 7, role="retry")
    assert policy.batches[-2:] == [3, 2]
    assert [(t.task.id, t.rollout, t.role, len(t.turns)) for t in retries] == [
        ("b", 2, "retry", 1),
        ("a", 0, "retry", 2),
        ("a", 1, "retry", 2),
    ]
    assert not keys & {request.key for request in policy.requests}
    assert [request.observation.advice for request in policy.requests][:3] == ["mind the cats", "", "mind the dogs"]
    assert all(("mind the" in r.messages[-1]["content"]) == bool(r.observation.advice) for r in policy.requests)
    assert noise_key(5, 7, 3, 0, 1, "reflection") != noise_key(5, 7, 3, 0, 1, "retry")
    assert first[0].trajectories[0].role == "attempt"


@pytest.mark.parametrize("backend", ["state", "store"])
def test_what_was_changed_since_it_was_shown_is_not_changed_by_a_proposal(backend):
    class Fixed(ScriptedPolicy):
        def sample(self, requests):
            calls = [
                ("memory_update", {"id": ids[0], "content": "Ana lives in Faro."}),
                ("memory_update", {"id": ids[1], "content": "Tom has two dogs."}),
                ("memory_update", {"id": ids[1], "content": "Tom has three dogs."}),
                ("memory_delete", {"id": ids[2]}),
                ("memory_delete", {"id": ["no id"]}),
                ("core_memory_update", {"content": "the writer's"}),
            ]
            return [Completion("".join(format_call(*call) for call in calls)) for _ in requests]

    fresh = WorkingMemory(MemoryState.empty(SCHEMA), HashEmbedder(64))
    memory = MemoryStore.open(":memory:", embedder="hash") if backend == "store" else fresh
    ids = [memory.insert("semantic", text).id for text in ("Ana lives in Porto.", "Tom has a dog.", "Eva sings.")]
    agent = MemoryAgent(Fixed("add-all"), memory)
    proposal = agent.propose("Ana: Faro it is.")
    assert memory.list()[0].content == "Ana lives in Porto.", "nothing is written yet"
    memory.update(ids[0], "Ana lives in Oslo.")
    memory.delete(ids[2])
    memory.core_update("the user's")
    turn = agent.apply(proposal, source="chat")
    codes = [result.code for result in turn.results]
    assert codes == ["conflict", "updated", "updated", "unknown_id", "invalid_arguments", "conflict"]
    assert [entry.content for entry in memory.list()] == ["Ana lives in Oslo.", "Tom has three dogs."]
    assert memory.core == "the user's" and {op.source for op in turn.operations} == {"chat"}
    again = agent.read("Ana: Faro it is.")
    assert again.results[0].code == "updated" and again.results[-1].code == "core_updated"


def test_the_prompt_without_advice_keeps_the_memory_that_the_retry_made():
    task = _task("a", "one", "two", "three")
    policy = Echo()
    engine = memory_engine(policy, CONFIG.model_copy(update={"view_recent": 1}), HashEmbedder(16))
    [retry] = engine.run([Start(task, 0, 0, "mind the cats")], 1.0, role="retry")
    for told, plain in zip(policy.requests, engine.environment.without_advice(retry), strict=True):
        (told_message,), (message,) = told.messages, plain.messages
        assert "advice\nmind the cats\n" in told_message["content"]
        assert told_message["content"].replace("advice\nmind the cats\n", "") == message["content"]
        assert told.observation.entries == plain.observation.entries
    assert len(plain.observation.entries) == 2  # what the retry wrote for the chunks before


def test_engine_embeds_a_step_in_one_batch():
    class Counting(HashEmbedder):
        calls = 0

        def encode(self, texts):
            self.calls += 1
            return super().encode(texts)

    from memalpha.store.embedding import CachedEmbedder

    inner = Counting(16)
    config = CONFIG.model_copy(update={"view_recent": 1})
    tasks = [_task(str(n), *(f"fact {n} {m}" for m in range(4))) for n in range(3)]
    memory_engine(ScriptedPolicy("add-all"), config, CachedEmbedder(inner)).roll_out(tasks, 2)
    assert inner.calls == 2  # chunks 2 and 3: before, every entry is recent and nothing is searched


MESSAGES = [
    {"role": "user", "content": [{"type": "text", "text": "I live in Porto."}], "timestamp": "2024-05-01"},
    {"role": "assistant", "content": "A fine city."},
    {"role": "user", "content": "I have a dog.", "timestamp": "2024-05-03"},
]


def test_chat_messages_are_read_and_streamed():
    store = MemoryStore.open(":memory:", embedder="hash")
    agent = MemoryAgent("add_all", store)
    agent.read("Tom: Hello.")
    turn = agent.read(MESSAGES, source="chat-7")
    assert [(entry.content, entry.timestamp, entry.chunk, entry.source) for entry in store.list()[1:]] == [
        ("I live in Porto.", "2024-05-01", 1, "chat-7"),
        ("I have a dog.", "2024-05-03", 2, "chat-7"),
    ]
    assert len(turn.calls) == len(turn.results) == len(turn.operations) == 2 and turn.chunk == 2
    streamed = MemoryAgent("add_all", MemoryStore.open(":memory:", embedder="hash")).stream(MESSAGES)
    assert [operation.content for operation in streamed] == ["I live in Porto.", "I have a dog."]
    with pytest.raises(DataError, match=r"messages\[0\]\.content: is missing"):
        agent.read([{"role": "user"}])
    for nothing in ([], {"role": "user"}, None):
        with pytest.raises(DataError, match="a list of chat messages is needed"):
            agent.read(nothing)
    with pytest.raises(DataError, match="the list of messages is empty"):
        agent.read([])
    with pytest.raises(InvalidContent, match=r"text is needed, not list; MemoryAgent.* takes chat messages"):
        store.add(MESSAGES)
    with pytest.raises(DataError, match="no words of a user"):
        agent.read([{"role": "system", "content": "Be kind."}])
