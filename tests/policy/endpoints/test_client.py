"""The endpoint client against a real server that fails: each answer once, the bill right, limits kept."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from hostile import FAULTS, HostileServer

from memalpha.config import EndpointConfig
from memalpha.errors import PolicyError
from memalpha.policy.endpoint import EndpointClient, EndpointPolicy, estimate_tokens
from memalpha.types import SampleRequest


class Clock:
    """Time that passes only in sleeps."""

    def __init__(self) -> None:
        self.now, self.slept = 1000.0, []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


class Client(EndpointPolicy):
    """A policy whose client has a fake clock, and the client's attributes."""

    def __init__(self, name: str, config: EndpointConfig, clock: Clock) -> None:
        super().__init__(name, config)
        self.client.clock, self.client.sleep = clock, clock.sleep

    def __getattr__(self, name: str):
        return getattr(self.client, name)


def client_of(server: HostileServer, *, clock: Clock | None = None, **settings) -> Client:
    return Client(server.name, EndpointConfig(**{"timeout": 30.0, **settings}), clock or Clock())


def ask(text: str, **more) -> SampleRequest:
    return SampleRequest(({"role": "user", "content": text},), **{"max_new_tokens": 16, **more})


def texts(replies) -> list[str]:
    return [reply.text for reply in replies]


# ------------------------------------------------------------------------------------------------------- faults


def test_every_item_is_answered_once_whatever_the_server_does(tmp_path):
    """Each prompt meets up to three faults, in any order; answers, bill and cache are those of a kind server."""
    rng = Random(0)
    plan = {f"item {n}": rng.choices(FAULTS, k=rng.randrange(4)) for n in range(60)}
    plan = {text: [f for f in faults if f != "hang"] for text, faults in plan.items()}
    plan["item 7"] = ["hang", "500"]
    prompts = sorted(plan, key=lambda text: rng.random())

    def fault(prompt, nth):
        return plan[prompt][nth - 1] if nth <= len(plan[prompt]) else None

    def usage(prompt, text):
        return {"prompt_tokens": estimate_tokens(prompt) + 5, "completion_tokens": estimate_tokens(text)}

    with HostileServer(fault=fault, usage=usage) as server:
        prices = {server.name: (10.0, 100.0)}
        client = client_of(server, timeout=1.0, cache=tmp_path / "a.sqlite", prices=prices)
        assert texts(client.sample([ask(text) for text in prompts])) == [f"echo {text}" for text in prompts]
        assert server.answered == dict.fromkeys(prompts, 1)
        bill = client.bill
        assert (bill.asked, bill.paid, bill.cached, bill.shared, bill.doubted) == (60, 60, 0, 0, 0)
        assert sum(server.seen.values()) == 60 + sum(map(len, plan.values()))
        assert bill.prompt_tokens == sum(estimate_tokens(text) + 5 for text in prompts)
        assert bill.completion_tokens == sum(estimate_tokens(f"echo {text}") for text in prompts)
        assert bill.cost == pytest.approx((bill.prompt_tokens * 10 + bill.completion_tokens * 100) / 1e6)
        again = client_of(server, cache=tmp_path / "a.sqlite", prices=prices)
        assert texts(again.sample([ask(text) for text in reversed(prompts)])) == [
            f"echo {t}" for t in reversed(prompts)
        ]
        assert (again.bill.cached, again.bill.paid, again.bill.cost) == (60, 0, 0.0)
        again.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_stays_down_ends_the_batch_and_keeps_what_is_done(fault, tmp_path):
    cache = tmp_path / "a.sqlite"
    with HostileServer(fault=lambda prompt, nth: fault if prompt == "bad" else None) as server:
        timeout = 1.0 if fault == "hang" else 30.0  # none of the others may run out of it on a busy machine
        client = client_of(server, timeout=timeout, retries=1, concurrency=1, cache=cache)
        with pytest.raises(PolicyError, match=r"gave no answer in 2 tries, the last: .*a\.sqlite"):
            client.sample([ask(text) for text in ("one", "two", "bad", "four")])
        assert server.seen["bad"] == 2 and "four" not in server.seen, "nothing more is sent to a server that is down"
        assert len(client.cache) == 2
        server.fault = lambda prompt, nth: None
        assert texts(client.sample([ask(t) for t in ("one", "two", "bad", "four")])) == [
            f"echo {t}" for t in ("one", "two", "bad", "four")
        ]
        assert server.answered == dict.fromkeys(("one", "two", "bad", "four"), 1)
        assert (client.bill.paid, client.bill.cached) == (4, 2)


def test_an_error_waits_for_the_answers_under_way(tmp_path):
    with HostileServer(fault=lambda prompt, nth: "400" if prompt == "bad" else None) as server:
        refused: list[float] = []

        def hold(prompt: str) -> bool:
            if server.seen["bad"] and not refused:
                refused.append(time.monotonic())
            return prompt == "slow" and (not refused or time.monotonic() < refused[0] + 0.3)

        server.hold = hold
        client = client_of(server, concurrency=2, cache=tmp_path / "a.sqlite")
        with pytest.raises(
            PolicyError, match=r"refused a request \(status 400: not now; what was answered is kept in .*a\.sqlite"
        ):
            client.sample([ask("slow"), ask("bad"), ask("third")])
        assert server.answered == {"slow": 1} and len(client.cache) == 1, "it was paid"


def test_without_a_server_the_batch_ends_too(tmp_path):
    with HostileServer() as server:
        pass
    client = client_of(server, retries=3, cache=tmp_path / "a.sqlite")
    with pytest.raises(PolicyError, match=r"no answer in 4 tries, the last: cannot be reached.*kept in .*a\.sqlite"):
        client.sample([ask("a"), ask("b")])
    assert client.bill.paid == 0
    client.close()


def test_retry_after_is_waited_for_by_all():
    clock = Clock()
    with HostileServer(fault=lambda prompt, nth: "429 30" if (prompt, nth) == ("a", 1) else None) as server:
        client = client_of(server, clock=clock, concurrency=1)
        client.sample([ask("a"), ask("b")])
        assert clock.now - 1000.0 >= 30.0


def test_waits_grow_and_are_jittered():
    clock = Clock()
    with HostileServer(fault=lambda prompt, nth: "500") as server:
        client = client_of(server, clock=clock, retries=30, max_wait=20.0)
        with pytest.raises(PolicyError, match="status 500: not now"):
            client.sample([ask("a")])
    assert len(clock.slept) == 30 and max(clock.slept) <= 20.0 and len(set(clock.slept)) == 30
    assert all(wait <= 2.0**attempt for attempt, wait in enumerate(clock.slept))
    assert max(clock.slept[5:]) > 5.0


@pytest.mark.parametrize(
    ("fault", "tries", "message"),
    [
        *((status, 1, f"status {status}: not now") for status in ("400", "404", "422", "403")),
        ("429 3600", 1, "in 1 tries.*asks to wait 3600 s"),
        ("quota", 1, "refused: status 429: You exceeded your quota"),
        ("no choices", 3, r"in 3 tries.* a whole response without an answer: .*choices.*\[\]"),
    ],
)
def test_what_will_not_pass_is_not_tried_again(fault, tries, message):
    clock = Clock()
    with HostileServer(fault=lambda prompt, nth: fault) as server:
        with pytest.raises(PolicyError, match=message):
            client_of(server, clock=clock, max_wait=60.0).sample([ask("a")])
        assert server.seen["a"] == tries and len(clock.slept) == tries - 1


@pytest.mark.parametrize(("reason", "second"), [("stop", "Porto"), ("length", "")])
def test_an_empty_answer_is_kept_only_if_it_was_cut_off(tmp_path, reason, second):
    messages = [
        {"content": text or None, "reasoning_content": "So.", "finish_reason": reason} for text in ("", "Porto")
    ]
    with HostileServer(reply=lambda prompt, body: messages[server.seen[prompt] - 1]) as server:
        client = client_of(server, cache=tmp_path / "a.sqlite")
        assert texts(client.sample([ask("a")])) == [""] and texts(client.sample([ask("a")])) == [second]


# ------------------------------------------------------------------------------------------------------- the bill


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [],
        {"prompt_tokens": 10**9, "completion_tokens": 10**9},
        {"prompt_tokens": 0, "completion_tokens": 0},
        {"prompt_tokens": -5, "completion_tokens": -1},
        {"prompt_tokens": "12", "completion_tokens": True},
        {"prompt_tokens": 1e3, "completion_tokens": None},
    ],
)
def test_a_lie_about_tokens_is_not_billed(usage):
    prompt, text = "word " * 200, "reply " * 100
    with HostileServer(reply=lambda *_: text, usage=lambda *_: usage) as server:
        client = client_of(server, prices={server.name: (1.0, 1.0)})
        client.sample([ask(prompt, max_new_tokens=400)])
        assert client.bill.doubted == 1
        assert 250 <= client.bill.prompt_tokens <= 260 and 150 <= client.bill.completion_tokens <= 160
        assert client.bill.cost == pytest.approx((client.bill.prompt_tokens + client.bill.completion_tokens) / 1e6)


def test_unseen_thinking_is_billed_up_to_what_was_allowed():
    usage = {"prompt_tokens": 9, "completion_tokens": 400}
    with HostileServer(usage=lambda *_: usage) as server:
        client = client_of(server)
        client.sample([ask("a", max_new_tokens=400)])
        assert (client.bill.completion_tokens, client.bill.doubted, client.bill.cost) == (400, 0, None)
        client.sample([ask("b", max_new_tokens=399)])
        assert client.bill.doubted == 1 and client.bill.completion_tokens < 420


# -------------------------------------------------------------------------------------------------- once, and limits


def test_refusals_are_counted_from_the_cache_too(tmp_path):
    def reply(prompt, body):
        return {"role": "assistant", "content": None, "refusal": "I can't."} if prompt == "bad" else "yes"

    with HostileServer(reply) as server:
        for paid in (2, 0):
            client = client_of(server, cache=tmp_path / "a.sqlite")
            assert texts(client.sample([ask("bad"), ask("good")])) == ["I can't.", "yes"]
            assert (client.bill.paid, client.bill.refused) == (paid, 1)
            client.close()


def test_equal_requests_under_way_are_asked_once():
    with HostileServer() as server:
        client = client_of(server)
        replies = client.sample([ask("a"), ask("b"), ask("a"), ask("a", temperature=1.0)])
        assert texts(replies) == ["echo a", "echo b", "echo a", "echo a"]
        assert server.answered == {"a": 2, "b": 1}, "other parameters are another request"
        assert (client.bill.asked, client.bill.paid, client.bill.shared) == (4, 3, 1)


def test_from_many_threads_and_inside_a_running_loop():
    with HostileServer() as server:
        client = client_of(server)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda n: texts(client.sample([ask("x"), ask(str(n))])), range(8)))
        assert found == [["echo x", f"echo {n}"] for n in range(8)]

        async def inside():
            return texts(client.sample([ask("within")]))

        assert asyncio.run(inside()) == ["echo within"]
        assert client.bill.asked == 17


def test_limits_per_minute_hold_for_tries():
    """On a fake clock: the times of all tries, failed ones too."""
    clock, sent = Clock(), []
    with HostileServer(fault=lambda prompt, nth: "500" if nth == 1 and int(prompt) % 3 == 0 else None) as server:
        client = client_of(server, clock=clock, requests_per_minute=7, tokens_per_minute=200, concurrency=4)
        send = client.send

        async def spied(*call):
            sent.append(clock.now)
            return await send(*call)

        client.client.send = spied
        client.sample([ask(str(n)) for n in range(20)])
    assert len(sent) == 27
    assert all(sum(first <= at < first + 60.0 for at in sent) <= 7 for first in sent)


def test_a_request_that_can_never_be_sent_is_refused():
    with HostileServer() as server:
        client = client_of(server, tokens_per_minute=100)
        with pytest.raises(PolicyError, match=r"takes 1\d\d tokens .*tokens_per_minute is 100"):
            client.sample([ask("a", max_new_tokens=100)])
        assert not server.seen


# ------------------------------------------------------------------------------------------------------------ cache


def test_the_key_of_an_answer_is_all_that_was_asked(tmp_path):
    with HostileServer(models=["m"]) as server:
        client = client_of(server, cache=tmp_path / "a.sqlite")
        asked = [
            ask("a"),
            ask("a", temperature=0.5),
            ask("a", max_new_tokens=17),
            ask("a", tools=({"x": 1},)),
            ask("b"),
        ]
        client.sample(asked)
        client.sample(asked)
        assert (client.bill.paid, client.bill.cached) == (5, 5)
        other = client_of(server, cache=tmp_path / "a.sqlite", parameters={"top_p": 0.5, "max_tokens": None})
        other.sample(asked[:1])
        assert (other.bill.paid, other.bill.cached) == (1, 0)
        assert server.bodies[-1]["top_p"] == 0.5 and "max_tokens" not in server.bodies[-1]
        client.close()
        other.close()


def test_a_file_that_is_no_cache_is_named(tmp_path):
    (tmp_path / "a.sqlite").write_bytes(b"not a database, but long enough to be looked at " * 100)
    with pytest.raises(PolicyError, match=r"a\.sqlite cannot be used"):
        EndpointClient("http://127.0.0.1:1/v1#m", EndpointConfig(cache=tmp_path / "a.sqlite"))


KILLED = """
import sys
from memalpha.config import EndpointConfig
from memalpha.policy.endpoint import EndpointPolicy
from memalpha.types import SampleRequest
policy = EndpointPolicy(sys.argv[1], EndpointConfig(cache=sys.argv[2], concurrency=4))
requests = [SampleRequest(({"role": "user", "content": str(n)},), max_new_tokens=16) for n in range(30)]
policy.sample(requests)
"""


def test_ctrl_c_ends_a_batch_quietly_and_nothing_is_paid_twice(tmp_path):
    cache = tmp_path / "a.sqlite"
    with HostileServer(fault=lambda prompt, nth: "hang" if int(prompt) >= 12 else None) as server:
        command = [sys.executable, "-c", KILLED, server.name, str(cache)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while _rows(cache) < 12:  # a process that is killed then has written them, too
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
        assert told.rstrip().endswith("KeyboardInterrupt") and "never retrieved" not in told and "destroyed" not in told
        server.fault = lambda prompt, nth: None
        client = client_of(server, cache=cache)
        assert texts(client.sample([ask(str(n)) for n in range(30)])) == [f"echo {n}" for n in range(30)]
        assert server.answered == {str(n): 1 for n in range(30)}
        assert (client.bill.cached, client.bill.paid) == (12, 18)


def test_asking_in_other_threads_can_be_given_up(tmp_path):
    with HostileServer() as server:
        server.hold = lambda prompt: prompt == "slow"
        client = client_of(server, cache=tmp_path / "a.sqlite", concurrency=2)
        found: list[Exception] = []

        def wait() -> None:
            with pytest.raises(PolicyError, match="stopped") as told:
                client.sample([ask(text) for text in ("quick", "slow", "third", "fourth")])
            found.append(told.value)

        thread = threading.Thread(target=wait)
        thread.start()
        while not server.seen["slow"]:
            time.sleep(0.002)
        client.give_up()
        thread.join(30)
        assert len(found) == 1 and not thread.is_alive()
        server.hold = lambda prompt: False
        assert texts(client.sample([ask("slow"), ask("quick")])) == ["echo slow", "echo quick"]
        assert server.seen["slow"] == server.seen["quick"] == 1, "what was under way is kept"


RACING = """
import sys
from memalpha.policy.reply_cache import AnswerCache
sys.stdin.readline()
cache = AnswerCache(sys.argv[1])
print([cache.put(str(n), "m", {"by": sys.argv[2]})["by"] for n in range(20)])
"""


def test_processes_that_share_a_cache_agree(tmp_path):
    """They make the file at the same time; whoever was first with an answer, all of them have that one."""
    command = [sys.executable, "-c", RACING, str(tmp_path / "a.sqlite")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*command, str(n)], **pipes) for n in range(2)]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[0] for process in processes]
    assert len(set(said)) == 1 and said[0].count("'") == 40


def _rows(path: Path) -> int:
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
            return db.execute("SELECT count(*) FROM answers").fetchone()[0]
    except sqlite3.Error:
        return 0
