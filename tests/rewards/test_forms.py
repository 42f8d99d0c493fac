"""Rewards of form: patterns with a time limit, the first JSON value of a reply, schemas."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.config.rewards import FormatPart, SchemaPart
from memalpha.errors import ConfigError, RewardError
from memalpha.rewards import format
from memalpha.rewards.base import score_texts
from memalpha.rewards.environments import load_rewards
from memalpha.rewards.format import NO_VALUE, FormatReward, SchemaReward, first_json
from memalpha.workers import KillableFunction


@pytest.fixture(scope="module", autouse=True)
def one_process():
    processes = KillableFunction(format.fits, seconds=0.5, count=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format, "_PROCESSES", processes)
        yield
    processes.close()


ANSWER = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}


def test_a_pattern_is_the_whole_reply_or_part_of_it():
    think = r"(?s)<think>.*?</think>\s*<answer>.*?</answer>"
    replies = ["<think>a\nb</think>\n<answer>4</answer>", "x <think>a</think><answer>4</answer>", "4"]
    assert FormatReward(think)(["p"] * 3, replies) == [1, 0, 0]
    assert FormatReward(think, "search")(["p"] * 3, replies) == [1, 1, 0]
    messages = [[{"role": "assistant", "content": reply}] for reply in replies]
    assert FormatReward(think)(["p"] * 3, messages, answer=["4"] * 3) == [1, 0, 0]


def test_a_pattern_that_backtracks_without_end_is_cut_off(monkeypatch):
    monkeypatch.setattr("memalpha.rewards.format.TIMEOUT", 0.05)
    function = FormatReward(r"(?:a|a|aa)+b")
    with pytest.warns(RuntimeWarning, match="took over 0.05 s on a reply of 60 characters, which gets 0"):
        assert function(["p"] * 2, ["a" * 60, "aab"]) == [0, 1]


@pytest.mark.parametrize("pattern", ["(", "[a", "(?P<a>x)(?P<a", "a{5,2}"])
def test_what_is_no_pattern_is_refused_at_the_start(pattern):
    with pytest.raises(ConfigError, match=r"rewards\.0: pattern: .* is no regular expression"):
        load_rewards([FormatPart(kind="format", pattern=pattern)])


FIRST_VALUES = [
    ('{"a": 1}', {"a": 1}), (" 3 ", 3), ("null", None), ('So [see above] it is {"a": [1]} or {"b": 2}.', {"a": [1]}),
    ('{"a": 0}\n```json\n{"a": 1}\n```', {"a": 1}), ('```JSON\n[1, 2]\n```\n```json\n{"a": 1}\n```', [1, 2]),
    ('```json\nnot this\n```\n```json\n"this"\n```', "this"), ("```python\nx = [4]\n```", [4]),
    ('```json\n{"a": 1}', {"a": 1}), ('{"a": 1', NO_VALUE), ("{'a': 1}", NO_VALUE), ("", NO_VALUE), ("no", NO_VALUE),
    ("NaN", NO_VALUE), ('{"a": Infinity}', NO_VALUE), ("1e999", NO_VALUE), ("[" * 100_000, NO_VALUE),
    ('{"a":' * 20_000, NO_VALUE), ("[9" + "9" * 5000 + "]", NO_VALUE),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), FIRST_VALUES)
def test_the_first_json_value(text, value):
    found = first_json(text)
    assert found is value or found == value


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES, st.sampled_from([None, 2]))
def test_a_value_comes_back_from_any_dress(value, indent):
    written = json.dumps(value, indent=indent)
    assert first_json(written) == value
    assert first_json(f"Here it is:\n```json\n{written}\n```\nDone.") == value
    if isinstance(value, dict | list):
        assert first_json(f"Here it is: {written}, {{}}.") == value


@given(st.text(alphabet=st.sampled_from('[]{}",:0ae`\n json')))
def test_no_text_raises(text):
    value = first_json(text)
    assert value is NO_VALUE or json.loads(json.dumps(value)) == value


def test_a_schema_holds_or_does_not(tmp_path):
    replies = ['{"answer": 4}', '{"answer": "4"}', "none", '<think>{"answer": 5}</think>{"answer": null}']
    part = SchemaPart(kind="schema", json_schema=ANSWER, weight=0.5)
    (tmp_path / "answer.json").write_text(json.dumps(ANSWER))
    for one in (part, part.model_copy(update={"json_schema": tmp_path / "answer.json"})):
        rewards = score_texts(load_rewards([one]), ["p"] * 4, replies, {})
        assert [reward.total for reward in rewards] == [0.5, 0, 0, 0]


def test_schemas_that_are_none_are_refused_at_the_start(tmp_path):
    (tmp_path / "list.json").write_text("[]")
    for name, said in (("none.json", "cannot be read"), ("list.json", "must hold a JSON object")):
        with pytest.raises(ConfigError, match=rf"rewards\.0: json_schema: .*{said}"):
            load_rewards([SchemaPart(kind="schema", json_schema=tmp_path / name)])
    with pytest.raises(ConfigError, match=r"no JSON schema, at \$\.type: 'integr'"):
        load_rewards([SchemaPart(kind="schema", json_schema={"type": "integr"})])


def test_what_a_schema_never_ends_on_fits_nothing():
    function = SchemaReward({"patternProperties": {"^(a|a|aa)+$": {"type": "string"}}})
    with pytest.warns(RuntimeWarning, match=r"the schema took over 0.5 s of CPU time on a reply of \d+ char"):
        assert function(["p"] * 2, [json.dumps({"a" * 60 + "b": 1}), '{"a": "b"}']) == [0, 1]


def test_a_value_nested_without_end_fits_nothing():
    tree = {"type": "array", "items": {"$ref": "#"}}
    with pytest.warns(RuntimeWarning, match="nested too deep"):
        assert SchemaReward(tree)(["p"] * 2, ["[" * 900 + "]" * 900, "[[], [[]]]"]) == [0, 1]


def test_nothing_is_fetched():
    function = load_rewards([SchemaPart(kind="schema", json_schema={"$ref": "http://127.0.0.1:9/x.json"})])
    with pytest.raises(RewardError, match=r"reward 'schema': .*Unresolvable: http"):
        score_texts(function, ["p"], ["1"], {})
