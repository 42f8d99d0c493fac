"""`--set` of read, serve, ask and check-policy: it reaches the prompt, and what does not fit is refused before work."""

from __future__ import annotations

import pytest

from memalpha.store.store import MemoryStore
from memalpha.types import Completion

SKIP = '<tool_call>{"name": "memory_skip", "arguments": {}}</tool_call>'


class Recorder:
    """A policy that keeps its requests and gives one reply."""

    name, prompt = "recorder", "full"

    def __init__(self, text=SKIP, stop_reason="eos"):
        self.reply, self.requests = Completion(text, stop_reason=stop_reason), []

    def sample(self, requests):
        self.requests += requests
        return [self.reply for _ in requests]

    def count_tokens(self, text):
        return len(text.split())


@pytest.fixture
def chat(tmp_path):
    path = tmp_path / "chat.txt"
    path.write_text("Ana: I moved to Porto.")
    return path


@pytest.fixture
def store(tmp_path):
    with MemoryStore.open(tmp_path / "ana.db", embedder="hash") as memory:
        memory.insert("semantic", "city: Porto")
    return tmp_path / "ana.db"


def use(policy, monkeypatch):
    monkeypatch.setattr("memalpha.policy.load.load_policy", lambda name, **_: policy)
    return policy


def settings(*pairs):
    return [word for pair in pairs for word in ("--set", pair)]


def test_read_prompts_the_writer_as_told(memalpha, chat, tmp_path, monkeypatch):
    writer = use(Recorder(), monkeypatch)
    kwargs = "chat_template_kwargs={enable_thinking: true}"
    pairs = settings("max_new_tokens=77", "agent.thinking_tokens=33", kwargs, "instructions=Note cities.")
    assert memalpha("read", tmp_path / "a.db", chat, "--policy", "x", "--embedder", "hash", *pairs)[0] == 0
    [request] = writer.requests
    assert (request.max_new_tokens, request.thinking_tokens) == (77, 33)
    assert request.chat_template_kwargs == {"enable_thinking": True}
    assert request.messages[0]["content"].endswith("Note cities.")


def test_read_takes_another_prompt_and_its_file(memalpha, chat, tmp_path, monkeypatch):
    writer, prompt = use(Recorder("Done"), monkeypatch), tmp_path / "prompt.yaml"
    prompt.write_text('system: "My own words. {{core}} {{semantic}} {{episodic}}"\nuser: "{{chunk}}"\n')
    pairs = settings("prompt=mem-alpha", f"prompt_file={prompt}")
    code, _, err = memalpha("read", tmp_path / "a.db", chat, "--policy", "x", "--embedder", "hash", *pairs)
    assert code == 0, err
    assert writer.requests[0].messages[0]["content"].startswith("My own words.")


def test_serve_prompts_writer_and_reader_as_told(memalpha, tmp_path, monkeypatch):
    use(Recorder(), monkeypatch)
    served = []
    monkeypatch.setattr("memalpha.integrations.server.run.serve_stdio", served.append)
    pairs = settings("max_new_tokens=77", "reader.max_new_tokens=66", "reader.thinking_tokens=5")
    words = ["serve", tmp_path / "a.db", "--mcp", "--policy", "x", "--embedder", "hash", *pairs]
    assert memalpha(*words)[0] == 0
    [service] = served
    assert service._agent.config.max_new_tokens == 77
    assert (service._reader.config.max_new_tokens, service._reader.config.thinking_tokens) == (66, 5)
    assert service._reader.config.prompt == "full"


def test_ask_prompts_the_reader_as_told(memalpha, store, monkeypatch):
    reader = use(Recorder("Porto"), monkeypatch)
    pairs = settings("max_new_tokens=64", "reader.thinking_tokens=256", "prompt=compact")
    code, out, err = memalpha("ask", store, "Which city?", "--policy", "x", "-k", "3", *pairs)
    assert (code, out, err) == (0, "Porto\n", "")
    [request] = reader.requests
    assert (request.max_new_tokens, request.thinking_tokens) == (64, 256)
    assert request.messages[0]["content"].startswith("facts")


def test_ask_says_that_an_answer_was_cut(memalpha, store, monkeypatch):
    use(Recorder("<think> Let me see", "length"), monkeypatch)
    code, out, err = memalpha("ask", store, "Which city?", "--policy", "x")
    assert code == 0 and out == "\n"
    assert "the answer was cut at max_new_tokens" in err and "thinking_tokens=N" in err
    use(Recorder(""), monkeypatch)
    assert "the model's answer is empty" in memalpha("ask", store, "Which city?", "--policy", "x")[2]


READ = ["read", "{new}", "{chat}", "--policy", "x"]
SERVE = ["serve", "{new}", "--mcp", "--policy", "x"]
ASK = ["ask", "{store}", "Which city?", "--policy", "x"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([*READ, "--set", "max_new_token=5"], "unknown key 'max_new_token' (did you mean 'max_new_tokens'?)"),
        ([*READ, "--set", "max_new_tokens"], "is not an override: write key=value"),
        ([*READ, "--set", "max_new_tokens=0"], "--set: max_new_tokens: Input should be greater than 0"),
        ([*READ, "--set", "memory_schema=life"], "use --schema"),
        ([*READ, "--set", "embedder=hash"], "use --embedder"),
        ([*READ, "--set", "prompt_file=p.yaml"], "prompt_file: has no effect with prompt=full"),
        ([*READ, "--set", "prompt=mem-alpha", "--set", "prompt_file=no.yaml"], "no.yaml"),
        ([*READ, "--set", "prompt=mem-alpha", "--schema", "life"], "mem-alpha"),
        ([*READ, "--set", "instructions=a", "--instructions", "b"], "given by --instructions too"),
        ([*SERVE, "--set", "view_token=5"], "did you mean 'view_tokens'?"),
        ([*SERVE, "--set", "reader.k=5"], "use -k"),
        ([*SERVE, "--set", "reader.max_new_tokens=none"], "max_new_tokens"),
        ([*SERVE, "--set", "prompt=mem-alpha", "--schema", "life"], "mem-alpha"),
        (["serve", "{store}", "--mcp", "--read-only", "--set", "max_new_tokens=5"], "has no writer"),
        (["serve", "{store}", "--mcp", "--read-only", "--set", "reader.cite=true"], "name it with --policy"),
        (["ask", "{store}", "Which city?", "--set", "max_new_tokens=5"], "name it with --policy"),
        ([*ASK, "--set", "policy=y"], "use --policy"),
        ([*ASK, "--set", "k=5"], "use -k"),
        ([*ASK, "--set", "max_tokens=5"], "unknown key 'max_tokens'"),
    ],
)
def test_what_does_not_fit_is_refused_before_work(refused, command, message, chat, store, tmp_path, monkeypatch):
    policy, new = use(Recorder(), monkeypatch), tmp_path / "new.db"
    error = refused(*(word.format(new=new, chat=chat, store=store) for word in command))
    assert message in error and not policy.requests and not new.exists()


def test_rules_cannot_be_prompted(refused, store):
    words = ("ask", store, "Which city?", "--policy", "scripted:add-all", "--set", "cite=true")
    assert "follows rules and cannot be prompted" in refused(*words)


def test_check_policy_takes_the_same_keys(memalpha):
    room = [memalpha("check-policy", "tiny", "--set", f"{prefix}max_new_tokens=256")[1] for prefix in ("", "agent.")]
    assert room[0] == room[1] and "room for a chunk" in room[0]
