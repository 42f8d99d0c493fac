"""Environments: rewards of a step in one batch, episodes of several turns, noise by key, preferences in both orders."""

from __future__ import annotations

import asyncio
import math

import pytest
from fake_policy import FakePolicy
from tiny import tiny_policy

from memalpha.environments import RolloutEngine, Step, rollouts
from memalpha.environments.engine import reflection_messages, sum_rewards, with_advice
from memalpha.errors import ConfigError, DataError, RewardError
from memalpha.rewards.environments import MultiObjective, PreferenceComparison, TextGeneration
from memalpha.rewards.evaluate import TextScorer, evaluate_text
from memalpha.types import TextTask

TASKS = [TextTask(id=str(n), prompt=f"say {n}", columns={"answer": str(n)}, category="ab"[n % 2]) for n in range(4)]


def says(answer) -> FakePolicy:
    """A policy that answers by a function of the last message."""
    return FakePolicy(lambda request: answer(request.messages[-1]["content"]), "says")


def right(completions, answer):
    return [float(text == own) for text, own in zip(completions, answer, strict=True)]


class Guess:
    """The number is guessed: three tries, told whether it is higher."""

    def reset(self, task):
        self.number, self.left = int(task.columns["answer"]), 3
        return f"guess a number from 0 to 3 ({task.id})"

    def step(self, reply):
        self.left -= 1
        if int(reply) == self.number:
            return Step({"found": 1.0, "tries": 0.0})
        return Step({"found": 0.0, "tries": -0.1}, self.left == 0, "higher" if int(reply) < self.number else "lower")


def test_rewards_are_one_batch_and_components_are_seen():
    asked = []

    def short(completions):
        asked.append(len(completions))
        return [1.0 - len(text) / 10 for text in completions]

    policy = says(lambda text: text[-1])
    groups = rollouts(policy, TASKS, MultiObjective({"right": right, "short": short}, {"short": 0.5}), 3)
    assert [*map(len, policy.batches)] == [12] and asked == [12]
    reward = groups[2].trajectories[1].reward
    assert reward.components == {"right": (1.0,), "short": (0.9,)} and reward.total == pytest.approx(1.45)
    environment = TextGeneration(right)
    assert environment.reset(TASKS[3]) == "say 3" and environment.step("3") == Step({"right": 1.0})
    with pytest.raises(ConfigError, match="'long' is none of right"):
        MultiObjective({"right": right}, {"long": 1.0})


def test_an_episode_of_several_turns():
    seen = []

    def answer(text):
        seen.append(text)
        return {"higher": "3", "lower": "0"}.get(text, "2")

    policy = says(answer)
    engine = RolloutEngine(policy, Guess, system_prompt="Play.")
    [[found], [zero], [one], [three]] = [
        group.trajectories for group in engine.roll_out([TASKS[2], *TASKS[:2], TASKS[3]])
    ]
    assert [*map(len, policy.batches)] == [4, 3, 1], "all that go on are one batch"
    assert found.reward.total == 1.0 and len(found.turns) == 1
    assert [turn.chunk for turn in zero.turns] == [0, 1] and zero.reward.total == pytest.approx(0.9)
    assert zero.reward.components == {"found": (1.0, 1.0), "tries": (-0.1, -0.1)} and "tries" in zero.reward.shared
    assert one.reward.total == pytest.approx(-0.3) and len(one.turns) == 3
    assert TextScorer(Guess).success(one.reward) == 0
    assert [message["content"] for message in one.states[2]] == [
        "Play.", "guess a number from 0 to 3 (1)", "2", "lower", "0", "higher"]  # fmt: skip
    assert three.reward.total == pytest.approx(0.9)
    report = evaluate_text(policy, TASKS, environment=Guess)
    assert report.summary["accuracy"] == 0.25 and report.summary["rewards"]["found"] == 0.75


def test_an_episode_without_an_end_ends():
    class Endless:
        def reset(self, task):
            return task.prompt

        def step(self, reply):
            return 0.25, False, [{"role": "user", "content": "on its own"}]

    [group] = RolloutEngine(says(str.upper), Endless, max_turns=3).roll_out(TASKS[:1])
    assert len(group.trajectories[0].turns) == 3 and group.trajectories[0].reward.total == 0.75
    assert group.trajectories[0].states[2] == ({"role": "user", "content": "on its own"},)


def test_an_episode_that_outgrows_the_policy_ends():
    class Long:
        def reset(self, task):
            return task.prompt

        def step(self, reply):
            return 0.5, False, "x" * 3000

    engine = RolloutEngine(tiny_policy(), Long, max_new_tokens=4)
    [group] = engine.roll_out(TASKS[:1])
    assert len(group.trajectories[0].turns) == 2 and engine.outgrown == 1
    assert group.trajectories[0].reward.total == 1.0


def test_preferences_are_asked_in_both_orders():
    asked = []

    def first_wins(prompts, pairs):
        asked.extend(pairs)
        return [0] * len(pairs)

    def longer(prompts, pairs):
        return [int(len(two) > len(one)) for one, two in pairs]

    async def later(prompts, pairs):
        await asyncio.sleep(0)
        return longer(prompts, pairs)

    class Judge:  # as TRL's
        def judge(self, prompts, completions, shuffle_order=True):
            assert shuffle_order is False
            return longer(prompts, completions)

    task = TextTask(id="a", prompt="say", columns={"answer": "long"})
    assert PreferenceComparison(first_wins).score([task], ["x"])[0].total == 0.5
    assert asked == [["x", "long"], ["long", "x"]]
    for judge in (longer, later, Judge()):
        environment = PreferenceComparison(judge)
        assert [one.total for one in environment.score([task] * 2, ["longer", "no"])] == [1.0, 0.0]
        assert evaluate_text(says(lambda _: "longer"), [task], environment=environment).summary["reward"] == 1.0
    assert PreferenceComparison(lambda prompts, pairs: [-1] * len(pairs)).score([task], ["x"]) == [None]
    with pytest.raises(RewardError, match="0, 1 or -1 for each"):
        PreferenceComparison(lambda prompts, pairs: [2] * len(pairs)).score([task], ["x"])


def test_what_fails_names_the_environment_and_its_task():
    class Silent(Guess):
        def step(self, reply):
            return Step(0.0, False)

    with pytest.raises(RewardError, match="no observation to reply to"):
        RolloutEngine(says(str), Silent).roll_out(TASKS)
    with pytest.raises(ConfigError, match="would be shared by all rollouts"):
        RolloutEngine(says(str), Guess())
    with pytest.raises(DataError, match="two tasks have the id '0'"):
        evaluate_text(says(str), [TASKS[0]] * 2, right)
    with pytest.raises(ConfigError, match="needs the column 'answer'"):
        evaluate_text(says(str), [TextTask(id="a", prompt="b")], right)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (type("Wants", (Guess,), {"__init__": lambda self, door: None}), "making .*Wants.* raised TypeError: .*'door'"),
        (type("Mute", (Guess,), {"reset": lambda self, task: None}), "an observation is a text or messages .*not None"),
        (lambda: object(), "gives object, which has no reset and step"),
        (type("Zero", (Guess,), {"maximum": 0.0}), "maximum 0.0: the reward of a success is above 0"),
        (type("Open", (Guess,), {"maximum": None}), "maximum None"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused_in_words(kind, message):
    with pytest.raises((ConfigError, RewardError), match=message):
        evaluate_text(says(str), TASKS, environment=kind)


def test_what_nothing_can_be_said_of_is_in_no_figure():
    def silent(completions, answer):
        return [None if own == "1" else 1.0 for own in answer]

    report = evaluate_text(says(str), TASKS, silent)
    assert report.summary["unscored"] == 1 and report.summary["accuracy"] == 1.0 and len(report.records) == 3
    with pytest.raises(RewardError, match="no reward function applies to any of 1 replies"):
        evaluate_text(says(str), TASKS[1:2], silent)


def test_columns_that_only_some_tasks_have():
    odd = [task.model_copy(update={"columns": {"kind": "x"}}) for task in TASKS[:2]]

    def kinds(completions, kind):
        return [None if own is None else 1.0 for own in kind]

    report = evaluate_text(says(lambda text: text[-1]), [*odd, *TASKS[2:]], [kinds, lambda completions: [0.5] * 4])
    assert report.summary["rewards"]["kinds"] == 1.0
    environment = TextGeneration([kinds, right])
    assert [one and one.total for one in environment.score(TASKS[2:], ["2", "x"])] == [1.0, 0.0], "a batch without kind"


def test_success_by_an_environment_s_own_maximum():
    class Ten(Guess):
        maximum = 10.0

    for make in (Ten, lambda: Ten()):
        engine = RolloutEngine(says(lambda text: text[-2] if text[-1] == ")" else "0"), make)
        [group] = engine.roll_out(TASKS[2:3])
        assert TextScorer(make).success(group.trajectories[0].reward) == pytest.approx(0.1)


def test_advice_and_reflection_stand_in_the_last_user_message():
    messages = ({"role": "system", "content": "S"}, {"role": "user", "content": "{attempt}?"})
    assert with_advice(messages, "") is messages
    assert with_advice(messages, "{prompt}")[1]["content"] == "{attempt}?\n\nAdvice: {prompt}"
    asked = reflection_messages(messages, "mine", 0.5, "math: wrong.", ["count\ntwice"])
    assert asked[0] == messages[0]
    assert asked[1]["content"] == (
        "{attempt}?\n\nYour reply:\nmine\n\nReward 0.5. math: wrong.\nEarlier advice that helped:\n- count twice\n"
        "What should the next reply do differently? Answer in one or two sentences."
    )


@pytest.mark.parametrize("reward", ["1", None, 10**400, 1e39, math.nan, {}, {"a": [1]}])
def test_a_reward_that_no_learner_can_use_is_refused_with_its_place(reward):
    with pytest.raises(RewardError, match=r"^Guess: (its )?rewards? .*a number (within .*)?is needed"):
        sum_rewards([reward], "Guess")
