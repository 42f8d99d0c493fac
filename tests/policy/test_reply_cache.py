"""Replies of frozen policies are sampled once, and equal those without a cache; a trained policy has no cache."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from inspect import getattr_static

import pytest
from fake_policy import FakePolicy
from memories import working_memory
from tiny import tiny_model, tiny_policy, tiny_tokenizer

from memalpha.agent.reader import PolicyReader, default_reader
from memalpha.config import AgentConfig, ReaderConfig
from memalpha.policy.endpoint import EndpointPolicy
from memalpha.policy.load import load_policy
from memalpha.policy.reply_cache import AnswerCache, ReplyCache, keep_replies
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.reader import load_reader
from memalpha.qa.scoring.judge import Item, Judge
from memalpha.types import Completion, SampleRequest


def counting() -> FakePolicy:
    """A policy that replies with the length of the prompt."""
    return FakePolicy(lambda request: Completion(str(len(request.messages[0]["content"])), (1,), (2,), (-1.0,)))


def request(text: str, **fields) -> SampleRequest:
    return SampleRequest(({"role": "user", "content": text},), **fields)


def test_equal_requests_are_sampled_once_over_all_calls():
    policy = counting()
    cache = ReplyCache(policy)
    assert [reply.text for reply in cache.ask([request("a"), request("bb"), request("a")])] == ["1", "2", "1"]
    assert [reply.text for reply in cache.ask([request("bb"), request("ccc")])] == ["2", "3"]
    assert [sent.messages[0]["content"] for sent in policy.requests] == ["a", "bb", "ccc"]
    assert (cache.requests, cache.hits, len(cache)) == (5, 1, 3)
    assert cache.pop_hit_share() == 0.2 and cache.pop_hit_share() is None


def test_the_settings_of_a_request_are_part_of_its_key():
    policy = counting()
    cache = ReplyCache(policy)
    thinking_off = {"chat_template_kwargs": {"enable_thinking": False}}
    for fields in ({}, {"max_new_tokens": 8}, {"thinking_tokens": 8}, thinking_off, {"tools": ({"name": "x"},)}):
        cache.ask([request("a", **fields)])
    assert len(policy.requests) == 5
    cache.ask([request("a", key=(1, 2))])
    assert len(policy.requests) == 5, "the key seeds noise, which a greedy reply has none of"


def test_the_least_recently_used_reply_is_dropped():
    policy = counting()
    cache = ReplyCache(policy, max_replies=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        cache.ask([request(text)])
        assert len(cache) <= 2
    assert [sent.messages[0]["content"] for sent in policy.requests] == ["a", "b", "c", "b"]
    assert [reply.text for reply in cache.ask([request(text * 5) for text in "defg"])] == ["5"] * 4


def test_threads_may_share_a_cache():
    cache, wrong = ReplyCache(counting(), max_replies=8), []

    def ask(_):
        for number in range(300):
            (reply,) = cache.ask([request("x" * (number % 20))])
            if reply.text != str(number % 20):
                wrong.append(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))
    assert not wrong and cache.requests == 1200 and len(cache) <= 8


def test_only_a_frozen_reader_keeps_answers(policy_folder):
    memory = working_memory("city: Oslo")
    for reader, calls in (
        (PolicyReader(counting()), 2),
        (load_reader(ReaderConfig(kind="policy"), counting()), 2),
        (PolicyReader(counting(), frozen=True), 1),
        (load_reader(ReaderConfig(kind="policy"), counting(), frozen=True), 1),
    ):
        first, second = reader.answer([("Where?", memory)]), reader.answer([("Where?", memory)])
        assert len(reader.policy.requests) == calls and first == second
    assert load_reader(str(policy_folder)).cache is not None, "loaded for reading alone"
    assert default_reader(tiny_policy(), AgentConfig()).cache is None, "an agent's policy may be in training"
    endpoint = EndpointPolicy("http://localhost:1/v1#reader")
    assert load_reader(ReaderConfig(kind="policy"), endpoint, frozen=True).cache is None, "it has one of its own"


def test_replies_in_a_file_are_those_of_the_weights_and_the_request(tmp_path):
    requests = [request("a"), request("b", temperature=1.0, key=(1,)), request("b", temperature=1.0, key=(2,))]
    settings = {"max_new_tokens": 6}
    requests = [replace(one, **settings) for one in requests]
    plain = tiny_policy().sample(requests)
    with closing(AnswerCache(tmp_path / "replies", cheap=True)) as file:
        for attempt in range(2):
            kept = keep_replies(tiny_policy(), file)
            queue = kept.open_queue()
            assert queue.submit(requests[:1]) == [0] and queue.submit(requests[1:]) == [1, 2]
            replies = {}
            while len(replies) < 3:
                replies.update(queue.collect())
            assert [replies[ticket].text for ticket in range(3)] == [reply.text for reply in plain]
            assert [replies[ticket].stop_reason for ticket in range(3)] == [reply.stop_reason for reply in plain]
            assert [reply.text for reply in kept.sample(requests)] == [reply.text for reply in plain]
            assert len(file) == 3, attempt
        others = keep_replies(TransformersPolicy(tiny_model(1), tiny_tokenizer(), "tiny"), file)
        assert [reply.text for reply in others.sample(requests)] != [reply.text for reply in plain]
        assert len(file) == 6
        # From Python 3.12 on, isinstance of a Protocol looks at the object itself.
        assert getattr_static(others, "form") == others.form and getattr_static(others, "positions") == others.positions
        assert callable(getattr_static(others, "render_request"))
        scripted = load_policy("scripted:oracle")
        assert keep_replies(scripted, file) is scripted and keep_replies(others, None) is others


def test_a_frozen_judge_keeps_replies():
    item = Item("Where?", ("Oslo",), "Oslo, I think")
    for frozen, calls in ((False, 4), (True, 2)):
        policy = counting()
        judge = Judge([policy], frozen=frozen)
        assert judge.judge([item]) == judge.judge([item])
        assert len(policy.requests) == calls, "its replies are unreadable, so each is asked for once more"


@pytest.fixture(scope="module")
def policy_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    tiny_policy().save(folder)
    return folder
