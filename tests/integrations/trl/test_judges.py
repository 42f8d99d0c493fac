"""TRL's judges as memalpha rewards, and memalpha rewards in TRL's trainer."""

from __future__ import annotations

import pytest
from trl import GRPOConfig, GRPOTrainer
from trl_toy import tasks

from memalpha.config.rewards import FormatPart
from memalpha.errors import ConfigError, RewardError
from memalpha.integrations.trl import from_trl_judge
from memalpha.rewards.base import score_texts
from memalpha.rewards.environments import load_rewards

CHAT = [{"role": "user", "content": "Q"}]


class BaseBinaryJudge:
    """Stand-in with the name of TRL's base class."""


class ExactMatchJudge(BaseBinaryJudge):
    def judge(self, prompts, completions, gold_completions=None, shuffle_order=True):
        if gold_completions is None:
            return [int("yes" in completion) for completion in completions]
        pairs = zip(completions, gold_completions, strict=True)
        return [-1 if not gold else int(completion == gold) for completion, gold in pairs]


class LengthJudge:
    """Prefer the longer completion, the first of equal ones."""

    def judge(self, prompts, completions, shuffle_order=True):
        assert all(isinstance(prompt, str) for prompt in prompts)
        return [-1 if "?" in first + second else int(len(second) > len(first)) for first, second in completions]


class LengthRankJudge:
    def judge(self, prompts, completions, shuffle_order=True):
        return [sorted(range(len(group)), key=lambda i: -len(group[i])) for group in completions]


def chat_reply(text):
    return [{"role": "assistant", "content": text}]


def test_a_binary_judge():
    reward = from_trl_judge(ExactMatchJudge())
    assert reward.__name__ == "ExactMatchJudge" and reward(["a", "b"], ["yes", "no"]) == [1.0, 0.0]
    reward = from_trl_judge(ExactMatchJudge(), gold="answer")
    assert reward([CHAT] * 3, [*map(chat_reply, "xyz")], answer=["x", "z", ""]) == [1.0, 0.0, None]
    with pytest.raises(RewardError, match="ExactMatchJudge: no column 'answer'"):
        reward(["a"], ["b"])
    [scored] = score_texts(load_rewards([from_trl_judge(ExactMatchJudge())]), ["a"], ["yes"], {})
    assert scored.total == 1.0 and scored.components == {"ExactMatchJudge": (1.0,)}


def test_a_pairwise_judge():
    reward = from_trl_judge(LengthJudge(), kind="pairwise")
    assert reward(["a", "a", "a", "b"], ["1", "333", "22", "4"]) == [0.0, 1.0, 0.5, None]
    assert reward(["a", "a", "a"], ["1", "22", "?"]) == [0.0, 1.0, None]
    assert reward(["a", "a"], ["12", "34"]) == [0.5, 0.5], "each pair in both orders"
    reward = from_trl_judge(LengthJudge(), kind="pairwise", against="old")
    assert reward(["a", "a"], ["1", "333"], old=["22", "22"]) == [0.0, 1.0]


def test_a_ranking_judge():
    reward = from_trl_judge(LengthRankJudge(), kind="rank")
    assert reward(["a", "b", "a", "a"], ["1", "x", "333", "22"]) == [0.0, None, 1.0, 0.5]


class Broken:
    def __init__(self, verdicts):
        self.verdicts = verdicts

    def judge(self, prompts, completions, *args, **kwargs):
        return self.verdicts


@pytest.mark.parametrize(
    ("kind", "verdicts", "message"),
    [
        ("binary", [2, 1], "judged 2, expected"),
        ("binary", [1], "judged 1 of 2"),
        ("pairwise", [0], "judged 1 of 2"),
        ("rank", [[0, 0]], r"ranked 2 completions as \[0, 0\]"),
    ],
)
def test_invalid_verdicts_raise(kind, verdicts, message):
    with pytest.raises(RewardError, match=f"Broken: {message}"):
        from_trl_judge(Broken(verdicts), kind=kind)(["a", "a"], ["1", "2"])


def test_invalid_judges_and_options_are_refused():
    for judge, options, message in (
        (object(), {}, "judge: object has no method"),
        (LengthJudge(), {}, "kind: LengthJudge has none"),
        (LengthJudge(), {"kind": "pairwise", "gold": "x"}, "gold: has no effect"),
        (ExactMatchJudge(), {"against": "x"}, "against: has no effect"),
    ):
        with pytest.raises(ConfigError, match=message):
            from_trl_judge(judge, **options)


async def kind_reward(prompts, completions, kind):
    return [float(name == "word") if name else None for name in kind]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_memalpha_rewards_work_in_trl(make_trainer):
    """Names and None are kept, and async functions work."""
    pattern = FormatPart(kind="format", pattern="[a-z]+", match="search")
    functions = list(load_rewards([pattern, kind_reward, from_trl_judge(ExactMatchJudge())]))
    settings = {"reward_weights": [1.0, 2.0, 0.5], "max_steps": 1}
    trainer = make_trainer(GRPOTrainer, GRPOConfig, data=tasks(True), reward=functions, **settings)
    trainer.train()
    line = trainer.state.log_history[0]
    means = {name: line[f"rewards/{name}/mean"] for name in ("format", "kind_reward", "ExactMatchJudge")}
    assert 0 < means["format"] < 1
    assert line["reward"] == pytest.approx(means["format"] + 2 * means["kind_reward"] + 0.5 * means["ExactMatchJudge"])
