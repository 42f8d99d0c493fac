"""TRL's judges as rewards here, and memalpha's rewards in TRL's own trainer."""

from __future__ import annotations

import pytest
from trl import GRPOConfig, GRPOTrainer
from trl_toy import tasks

from memalpha.config.rewards import FormatPart
from memalpha.errors import ConfigError, RewardError
from memalpha.integrations.trl import from_trl_judge
from memalpha.rewards.base import load_rewards, score_texts

CHAT = [{"role": "user", "content": "Q"}]


class BaseBinaryJudge:
    """As TRL named it."""


class Same(BaseBinaryJudge):
    def judge(self, prompts, completions, gold_completions=None, shuffle_order=True):
        if gold_completions is None:
            return [int("yes" in one) for one in completions]
        return [-1 if not gold else int(one == gold) for one, gold in zip(completions, gold_completions, strict=True)]


class Longer:
    """Prefers the longer one; of equals the first."""

    def judge(self, prompts, completions, shuffle_order=True):
        assert all(isinstance(one, str) for one in prompts)
        return [-1 if "?" in one + two else int(len(two) > len(one)) for one, two in completions]


class ByLength:
    def judge(self, prompts, completions, shuffle_order=True):
        return [sorted(range(len(own)), key=lambda at: -len(own[at])) for own in completions]


def reply(text):
    return [{"role": "assistant", "content": text}]


def test_a_binary_judge():
    reward = from_trl_judge(Same())
    assert reward.__name__ == "Same" and reward(["a", "b"], ["yes", "no"]) == [1.0, 0.0]
    reward = from_trl_judge(Same(), gold="answer")
    assert reward([CHAT] * 3, [reply("x"), reply("y"), reply("z")], answer=["x", "z", ""]) == [1.0, 0.0, None]
    with pytest.raises(RewardError, match="Same: no column 'answer'"):
        reward(["a"], ["b"])
    [scored] = score_texts(load_rewards([from_trl_judge(Same())]), ["a"], ["yes"], {})
    assert scored.total == 1.0 and scored.components == {"Same": (1.0,)}


def test_a_pairwise_judge():
    reward = from_trl_judge(Longer(), kind="pairwise")
    assert reward(["a", "a", "a", "b"], ["1", "333", "22", "4"]) == [0.0, 1.0, 0.5, None]
    assert reward(["a", "a", "a"], ["1", "22", "?"]) == [0.0, 1.0, None]
    assert reward(["a", "a"], ["12", "34"]) == [0.5, 0.5], "each first once"
    reward = from_trl_judge(Longer(), kind="pairwise", against="old")
    assert reward(["a", "a"], ["1", "333"], old=["22", "22"]) == [0.0, 1.0]


def test_a_ranking_judge():
    reward = from_trl_judge(ByLength(), kind="rank")
    assert reward(["a", "b", "a", "a"], ["1", "x", "333", "22"]) == [0.0, None, 1.0, 0.5]


class Broken:
    def __init__(self, found):
        self.found = found

    def judge(self, prompts, completions, *more, **named):
        return self.found


@pytest.mark.parametrize(
    ("kind", "found", "told"),
    [
        ("binary", [2, 1], "judged 2, expected"),
        ("binary", [1], "judged 1 of 2"),
        ("pairwise", [0], "judged 1 of 2"),
        ("rank", [[0, 0]], r"ranked 2 completions as \[0, 0\]"),
    ],
)
def test_what_no_judge_says_is_an_error(kind, found, told):
    with pytest.raises(RewardError, match=f"Broken: {told}"):
        from_trl_judge(Broken(found), kind=kind)(["a", "a"], ["1", "2"])


def test_what_is_no_judge_is_refused():
    for given, named, told in (
        (object(), {}, "judge: object has no method"),
        (Longer(), {}, "kind: Longer has none"),
        (Longer(), {"kind": "pairwise", "gold": "x"}, "gold: has no effect"),
        (Same(), {"against": "x"}, "against: has no effect"),
    ):
        with pytest.raises(ConfigError, match=told):
            from_trl_judge(given, **named)


async def kinds(prompts, completions, kind):
    return [float(one == "word") if one else None for one in kind]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_our_rewards_are_trl_reward_functions(made):
    """As they are, with names, None and all, an async one among them."""
    parts = [FormatPart(kind="format", pattern="[a-z]+", match="search"), kinds, from_trl_judge(Same())]
    functions = load_rewards(parts)
    trainer = made(
        GRPOTrainer,
        GRPOConfig,
        data=tasks(True),
        reward=list(functions),
        reward_weights=[1.0, 2.0, 0.5],
        max_steps=1,
    )
    trainer.train()
    line = trainer.state.log_history[0]
    means = {name: line[f"rewards/{name}/mean"] for name in ("format", "kinds", "Same")}
    assert 0 < means["format"] < 1
    assert line["reward"] == pytest.approx(means["format"] + 2 * means["kinds"] + 0.5 * means["Same"])
