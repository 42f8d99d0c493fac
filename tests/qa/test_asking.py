"""Questions that a model makes: what is kept and dropped and why, when they are asked, how a stopped call resumes."""

import itertools
import json

import pytest
from runs import lines
from standin import StandIn

from memalpha import load_tasks
from memalpha.errors import ConfigError, DataError, PolicyError
from memalpha.policy.load import load_policy
from memalpha.qa import questions
from memalpha.qa.questions import Asker, ask_file, load_conversations
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.text_files import lock_file
from memalpha.types import Chunk, Question, SpeakerTurn, Task

FACTS = {
    "launch": ("When is the launch?", r"The launch is on {}."),
    "budget": ("What is the budget?", r"The budget is {}."),
    "sky": ("What colour is the sky?", r"The sky is {}."),
}


def talk(*chunks: str) -> tuple[Chunk, ...]:
    """Return chunks of two turns: a greeting, and sentences."""
    return tuple(
        Chunk(turns=(SpeakerTurn(speaker="Ana", text="Hi."), SpeakerTurn(speaker="Bo", text=text))) for text in chunks
    )


TASKS = [
    Task(id="m1", chunks=talk("The launch is on Monday.", "The budget is 5000 euros. The launch is on Friday.")),
    Task(id="m2", chunks=talk("The sky is blue. The budget is 70 euros.", "Nothing new.")),
]


def reply(body) -> str:
    """Ask for the facts of a part; answer from the newest note that has one, and the colour of the sky always."""
    system, user = body["messages"][0]["content"], body["messages"][-1]["content"]
    if system == user:
        return "Hi."  # the check of the endpoint
    if "JSON list" in system:
        asked = []
        for question, form in FACTS.values():
            head, tail = form.split("{}")
            if head in user:
                answer = user.split(head)[1].split(tail)[0]
                asked.append({"question": question, "answer": answer, "quote": f"{head}{answer}"})
        return f"Here you are: {json.dumps(asked)}" if asked else "[]"
    notes, question = user.rsplit("Question: ", 1)
    head, tail = next(form.split("{}") for text, form in FACTS.values() if text == question)
    return notes.rsplit(head, 1)[1].split(tail)[0] if head in notes else "blue" if "sky" in question else "unknown"


def asked(path, answer=reply, tasks=TASKS, **options):
    """Return tasks, results and requests of a call."""
    save_jsonl(tasks, path / "mine.jsonl")
    with StandIn(answer) as server:
        asker = Asker(load_policy(f"{server.url}#m"), **options)
        asker.name = "stand-in"  # its address differs from server to server
        out = path / "questions.jsonl"
        tasks = load_conversations(str(path / "mine.jsonl"), out, options={})
        return *ask_file(tasks, asker, out), server.bodies[1:]


def test_questions_that_test_memory_are_kept(tmp_path):
    tasks, results, _ = asked(tmp_path)
    made = {(task.id, question.id): question for task in tasks for question in task.questions}
    assert {key: (q.question, q.answers, q.asked_after_chunk, q.evidence) for key, q in made.items()} == {
        ("m1", "made-0-0"): ("When is the launch?", ("Monday",), 0, ("0.1",)),  # later it is Friday
        ("m1", "made-1-0"): ("When is the launch?", ("Friday",), None, ("1.1",)),
        ("m1", "made-1-1"): ("What is the budget?", ("5000 euros",), None, ("1.1",)),
        ("m2", "made-0-0"): ("What is the budget?", ("70 euros",), None, ("0.1",)),
    }
    first = made["m1", "made-0-0"]
    assert first.category == "made" and first.meta["quote"] == "The launch is on Monday" and first.meta["made_by"]
    assert [result.dropped for result in results if result.dropped] == [
        [{"question": "What colour is the sky?", "answer": "blue", "reason": "answered without the conversation"}]
    ]
    assert load_tasks(tmp_path / "questions.jsonl") == tasks


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("I cannot.", "the reply is no list of questions"),
        ('[{"question": "When?", "answer": "Monday"}]', "no question with answer and quote"),
        ('[{"question": "When?", "answer": " ", "quote": "on Monday"}]', "no question with answer and quote"),
        ('["When?"]', "no question with answer and quote"),
        ('[{"question": "When?", "answer": "Monday", "quote": "next Monday"}]', "the quote is not in the chunk"),
        ('[{"question": "When?", "answer": "Friday", "quote": "on Monday"}]', "not answered from its chunk alone"),
    ],
)
def test_what_is_dropped_has_a_reason(tmp_path, text, reason):
    def answer(body):
        return text if "JSON list" in body["messages"][0]["content"] else "Monday"

    task = Task(id="m", chunks=(Chunk(text="The launch is on Monday."),))
    tasks, [result], _ = asked(tmp_path, answer, [task])
    assert not tasks and not (tmp_path / "questions.jsonl").exists()
    assert [dropped["reason"] for dropped in result.dropped] == [reason]


def test_a_question_asked_twice_is_kept_once(tmp_path):
    task = Task(id="m", chunks=talk("The budget is 5 euros.", "As I said: The budget is 5 euros."))
    [kept], results, _ = asked(tmp_path, tasks=[task])
    assert [question.id for question in kept.questions] == ["made-0-0"]
    assert results[1].dropped[0]["reason"] == "asked before with the same answer"


def test_a_stopped_call_resumes_and_changed_text_is_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(questions, "PARALLEL_CHUNKS", 1)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir(), parts.mkdir()
    expected = asked(whole)[0]

    count = itertools.count(1)

    def fail_at_third(policy, requests):
        if next(count) == 3:
            raise PolicyError("no answer")
        return policy.sample(requests)

    with monkeypatch.context() as patched, pytest.raises(PolicyError, match="no answer"):
        patched.setattr(questions, "sample_checked", fail_at_third)
        asked(parts)
    done = len(lines(parts / "questions.asked.jsonl"))
    assert done == 2 and not (parts / "questions.jsonl").exists()
    with (parts / "questions.asked.jsonl").open("a") as file:
        file.write('{"task": "half')  # a line that a crash cut off
    tasks, _, bodies = asked(parts)
    assert sum("JSON list" in str(body) for body in bodies) == 4 - done
    answers = [[[q.answers for q in task.questions] for task in some] for some in (tasks, expected)]
    assert answers[0] == answers[1]
    assert asked(parts)[2] == [], "all done: nobody is asked"
    changed = [TASKS[0], Task(id="m2", chunks=talk("The budget is 80 euros.", "Nothing new."))]
    tasks, _, bodies = asked(parts, tasks=changed)
    assert tasks[1].questions[0].answers == ("80 euros",) and bodies


def test_wrong_use_is_refused_in_words(tmp_path, memalpha):
    save_jsonl(TASKS, tmp_path / "mine.jsonl")
    ask = ("data", "ask", tmp_path / "mine.jsonl", "--policy", "scripted:add-all", "--out")
    assert "name a .jsonl file" in memalpha(*ask, tmp_path / "questions.json")[2]
    assert "is the file that is read" in memalpha(*ask, tmp_path / "mine.jsonl")[2]
    save_jsonl(TASKS, tmp_path / "there.jsonl")
    error = memalpha(*ask, tmp_path / "there.jsonl")[2]
    assert "there.asked.jsonl, which memalpha data ask leaves beside it, is not" in error
    assert "is no endpoint" in memalpha(*ask, tmp_path / "q.jsonl", "--price", "1,2")[2]
    save_jsonl(TASKS[:1], tmp_path / "one.jsonl")
    files = ("--out", tmp_path / "q.jsonl", "--held-out", tmp_path / "held-out.jsonl")
    assert "there is one conversation" in memalpha("data", "ask", tmp_path / "one.jsonl", *ask[3:5], *files)[2]
    assert not (tmp_path / "q.asked.jsonl").exists()  # before anything was asked
    assert "two numbers are needed" in memalpha(*ask, tmp_path / "q.jsonl", "--price", "1")[2]
    question = Question(id="q", question="When?", answers=("Monday",))
    save_jsonl([TASKS[0].model_copy(update={"questions": (question,)})], tmp_path / "has.jsonl")
    with pytest.raises(DataError, match="--split is for conversations without"):
        load_conversations(str(tmp_path / "has.jsonl"), tmp_path / "q.jsonl", options={}, split=1)
    (tmp_path / "other.asked.jsonl").write_text('{"a": 1}\n')
    with StandIn(reply) as server, pytest.raises(DataError, match="not a line that memalpha data ask wrote"):
        asker = Asker(load_policy(f"{server.url}#m"))
        ask_file(TASKS, asker, tmp_path / "other.jsonl")
    with pytest.raises(ConfigError):
        load_conversations(str(tmp_path / "mine.jsonl"), tmp_path / "q.txt", options={})
    for command in (("ask", "--out", tmp_path / "has.jsonl"), ("write", "--out", tmp_path / "rows.txt")):
        told = memalpha("data", command[0], tmp_path / "mine.jsonl", "--policy", "not-there", *command[1:])[2]
        assert "not-there" not in told and str(command[2]) in told  # the file is looked at before the model


def test_the_command_makes_a_task_file_from_a_chat(tmp_path, memalpha):
    chat = tmp_path / "chat.txt"
    days = ["The launch is on Monday.", "The budget is 5 euros.", "The launch is on Friday."]
    chat.write_text("".join(f"[{13 + n}/05/24, 9:00:00] Bo: {text}\n" for n, text in enumerate(days)))
    code, out, _ = memalpha("data", "check", chat, "dates=day-first")
    assert code == 0 and f"no question: memalpha data ask {chat} dates=day-first --policy" in out
    with StandIn(reply) as server:
        name = f"{server.url}#m"
        options = ("--split", 2, "--price", "1000000,0", "--out", tmp_path / "questions.jsonl")
        code, out, _ = memalpha("data", "ask", chat, "--policy", name, *options)
        more = ("--reader", f"{server.url}#r", "--out", tmp_path / "again.jsonl", "--json")
        bills = json.loads(memalpha("data", "ask", chat, "--policy", name, *more)[1])
    assert bills["bill"]["paid"] and bills["reader_bill"]["paid"]
    assert code == 0 and "3 questions about 2 of 2 conversations" in out
    assert "3 asked at the end" in out and "tokens, of 10 answers estimated, cost " in out
    assert f"\nin this call, {name}: 10 answers paid" in out
    assert [task.id for task in load_tasks(tmp_path / "questions.jsonl")] == ["chat-0", "chat-1"]
    files = (tmp_path / "questions.jsonl", tmp_path / "train.jsonl")
    assert memalpha("data", "prepare", *files, "--held-out", tmp_path / "held-out.jsonl")[0] == 0
    assert "another file than --out" in memalpha("data", "prepare", *files, "--held-out", files[1])[2]
    before = files[0].read_bytes()
    for words in (["prepare", files[0], files[0]], ["prepare", *files, "--held-out", files[0]]):
        assert "is the file that is read" in memalpha("data", *words)[2] and files[0].read_bytes() == before
    assert "name a .jsonl file" in memalpha("data", "prepare", chat, tmp_path / "chat.csv")[2]
    sides = [[task.id for task in load_tasks(tmp_path / name)] for name in ("train.jsonl", "held-out.jsonl")]
    assert sorted(map(len, sides)) == [1, 1] and sides[0] != sides[1]
    code, out, _ = memalpha("data", "check", tmp_path / "questions.jsonl")
    assert code == 0 and "3 questions as made by a model" in out and "it holds the answer in 3" in out


def test_only_unreadable_replies_are_asked_again(tmp_path, memalpha):
    save_jsonl(TASKS, tmp_path / "mine.jsonl")
    is_broken = True

    def answer(body):
        """Give one of the parts a reply that is no list, as long as the server is broken."""
        text = reply(body)
        return "Internal error" if is_broken and "Friday" in str(body) and "Here you are" in text else text

    with StandIn(answer) as server:
        words = ("data", "ask", tmp_path / "mine.jsonl", "--policy", f"{server.url}#m", "--out", tmp_path / "q.jsonl")
        code, out, _ = memalpha(*words)
        assert code == 0 and "1 dropped: the reply is no list" in out and "asked again by the same command" in out
        dropped = [question for line in lines(tmp_path / "q.asked.jsonl") for question in line["dropped"]]
        assert "Internal error" in [question.get("reply") for question in dropped]
        is_broken = False
        before = len(server.bodies)
        code, out, _ = memalpha(*words)
        assert sum("JSON list" in str(body) for body in server.bodies[before:]) == 1
        assert code == 0 and "1 asked again" in out and "no list of questions are asked" not in out
        assert [len(task.questions) for task in load_tasks(tmp_path / "q.jsonl")] == [3, 1]
        assert "asked again" not in memalpha(*words)[1]


def test_two_commands_never_write_one_file(tmp_path, memalpha):
    save_jsonl(TASKS, tmp_path / "mine.jsonl")
    rest = (tmp_path / "mine.jsonl", "--policy", "scripted:add-all", "--out", tmp_path / "out.jsonl")
    for command, log in (("ask", "out.asked.jsonl"), ("write", "out.scores.jsonl")):
        with lock_file(tmp_path / log, "a test", ConfigError):
            code, _, err = memalpha("data", command, *rest)
        assert code == 2 and f"in use by another memalpha data {command}: wait for it" in err
    assert not (tmp_path / "out.jsonl").exists()
    memalpha("data", "ask", *rest[:-1], tmp_path / "new" / "out.jsonl")
    assert (tmp_path / "new" / "out.asked.jsonl").exists(), "a missing folder is made"
