"""Names of endpoints, their keys, and what is checked before the first request."""

from __future__ import annotations

import json
import re

import pytest
from hostile import HostileServer
from standin import HttpStandIn

from memalpha.config import EndpointConfig
from memalpha.config.sampling import SamplerConfig
from memalpha.endpoint_calls import describe_status, parse_name
from memalpha.errors import PolicyError
from memalpha.policy.load import load_policy


def test_names_of_endpoints(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    assert parse_name("http://localhost:8000/v1/#org/model") == ("http://localhost:8000/v1", "org/model")
    assert parse_name("http://h:1/@org/v1#m") == ("http://h:1/@org/v1", "m")
    assert parse_name("openai:gpt") == ("https://api.openai.com/v1", "gpt")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1/")
    assert parse_name("openai:gpt") == ("http://127.0.0.1:9/v1", "gpt")
    for name in ("http://localhost/v1", "openai:", "http://#m", "http:///v1#m", "http://h:x/v1#m", "https://[/v1#m"):
        with pytest.raises(PolicyError, match=r"names no model|is not the address"):
            parse_name(name)
    for base in ("me:secret@host/v1", "me:sec/secret@host/v1", "host/v1?key=secret"):
        for name in (f"http://{base}#m", f"http://{base}"):
            with pytest.raises(PolicyError, match="key_env") as error:
                parse_name(name)
            assert "secret" not in str(error.value)
        with pytest.raises(ValueError, match="password or a query"):
            SamplerConfig(url=f"vllm:http://{base}")


def test_a_missing_key_is_said_before_anything_is_sent(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(PolicyError, match="set the environment variable OPENAI_API_KEY"):
        load_policy("openai:gpt")
    with pytest.raises(PolicyError, match="MY_KEY"):
        load_policy("http://127.0.0.1:1/v1#m", endpoint=EndpointConfig(key_env="MY_KEY"))


def test_keys_go_where_they_are_meant_to_and_into_no_message(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-for-openai")
    monkeypatch.setenv("MY_KEY", "wrong-key")
    with HostileServer(key="right") as server:
        with pytest.raises(PolicyError, match=r"does not take the key .*no key was sent: .*endpoint\.key_env"):
            load_policy(server.name)
        assert not any("authorization" in headers for headers in server.headers), "a URL gets no key unasked"
        with monkeypatch.context() as environment:  # for commands without endpoint.key_env, as the message says
            with pytest.raises(PolicyError) as error:
                load_policy(server.name)
            name, address, variable = re.findall(
                r"write (\S+) and set OPENAI_BASE_URL=(\S+) and (\w+)", str(error.value)
            )[0]
            environment.setenv("OPENAI_BASE_URL", address)
            environment.setenv(variable, "right")
            load_policy(name)
        with pytest.raises(PolicyError, match="does not take the key") as error:
            load_policy(server.name, endpoint=EndpointConfig(key_env="MY_KEY"))
        assert "wrong-key" not in str(error.value)
        monkeypatch.setenv("MY_KEY", "right")
        assert load_policy(server.name, endpoint=EndpointConfig(key_env="MY_KEY")).count_tokens("abcde") == 2


def test_an_unreachable_server_and_an_unknown_model_are_said_at_once():
    with HostileServer() as server:
        load_policy(server.name)
        assert not server.seen, "a listed model costs nothing to check"
        with pytest.raises(PolicyError, match=r"model_not_found.*is there a model 'other'\?; it lists m"):
            load_policy(server.name.replace("#m", "#other"))
        server.models = None
        load_policy(server.name)
        assert server.bodies[-1]["max_tokens"] == 1, "no list: one token tells"
        server.models = ["something/else"]
        load_policy(server.name)
    with pytest.raises(PolicyError, match="cannot be reached"):
        load_policy(server.name)
    answers = {"/models": (404, {}), "/chat/completions": (404, {}), "/v1/models": (301, {"Location": "https://h/v1"})}
    answers["/v1/chat/completions"] = answers["/v1/models"]
    with HttpStandIn(lambda method, path, body: (*answers[path], b"")) as server:
        with pytest.raises(PolicyError, match=rf"status 404.*is {server.url} the whole address\? Most end in /v1"):
            load_policy(f"{server.url}#m")
        with pytest.raises(PolicyError, match=r"status 301: a redirect to https://h/v1, which shows the address"):
            load_policy(f"{server.url}/v1#m")


def test_the_endpoint_itself_is_checked_with_its_own_parameters():
    with HostileServer(models=None) as server:
        load_policy(server.name, endpoint=EndpointConfig(parameters={"top_p": 1}))
        assert json.loads(json.dumps(server.bodies[-1]))["top_p"] == 1
    assert describe_status(401, {"location": "https://sso/x"}, "invalid key") == "status 401: invalid key"
    assert "secret" not in describe_status(302, {"location": "https://sso/x?token=secret"}, "")
    for parameters in ({"stream": True}, {"n": 2}, {"model": "other"}, {"messages": []}):
        with pytest.raises(ValueError, match=f"{next(iter(parameters))}: each request asks the named model"):
            EndpointConfig(parameters=parameters)
    EndpointConfig(parameters={"stream": False, "n": None, "model": None})
