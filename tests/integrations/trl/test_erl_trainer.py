"""`ERLTrainer` on a tiny model: GRPO where nothing is gated; each phase against what was sampled; loss by float64."""

from __future__ import annotations

import copy
import json

import pandas as pd
import peft
import pytest
import torch
from tiny import tiny_tokenizer
from transformers import Qwen3ForSequenceClassification
from trl import GRPOConfig, GRPOTrainer
from trl_toy import say, tasks, upper, weights

from memalpha.errors import ConfigError, TrainingError
from memalpha.integrations.trl import ERLConfig, ERLTrainer
from memalpha.integrations.trl.trainer import STATE

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


class Watched(ERLTrainer):
    """Keeps what each phase was given and gave."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.asked, self.seen = [], []

    def _generate(self, prompts):
        found = super()._generate(prompts)
        if self.rollout_func is None:
            self.asked.append(prompts)
        return found

    def _second_attempts(self, inputs, first):
        found = super()._second_attempts(inputs, first)
        self.seen.append((inputs, first, found[0]))
        return found


def one_update(trainer):
    """The gradient of the trainer's next update, without making it."""
    trainer.model.train()
    trainer.create_optimizer_and_scheduler(1)
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    rows = trainer.args.per_device_train_batch_size * trainer.args.steps_per_generation
    batch = [{**trainer.train_dataset[i // trainer.num_generations]} for i in range(rows)]
    parts = []
    for _ in range(trainer.args.gradient_accumulation_steps):
        inputs = trainer._prepare_inputs(batch)
        parts.append(inputs)
        loss = trainer.compute_loss(trainer.model, inputs)
        loss.backward()
        trainer._step += 1
    return parts, {name: one.grad.clone() for name, one in trainer.model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("chat", [pytest.param(False, marks=pytest.mark.slow), True], ids=["plain", "chat"])
def test_with_the_gate_closed_it_is_grpo_bit_for_bit(made, chat):
    settings = {"chat": chat, "max_steps": 3, "num_iterations": 2, "beta": 0.1}
    lora = peft.LoraConfig(r=4, target_modules="all-linear") if chat else None
    plain = made(GRPOTrainer, GRPOConfig, peft_config=lora, **settings)
    plain.train()
    ours = made(peft_config=lora, **settings, reward_threshold=-1.0, enable_internalization=False)
    ours.train()
    expected, found = weights(plain), weights(ours)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    for a, b in zip(plain.state.log_history, ours.state.log_history, strict=True):
        assert {name: b[name] for name in a if "time" not in name and "second" not in name} == {
            name: value for name, value in a.items() if "time" not in name and "second" not in name
        }
    assert [line["erl/gated"] for line in ours.state.log_history if "erl/gated" in line] == [0.0, 0.0]


@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
def test_phases_follow_from_one_another(made, chat):
    scored = []

    def reward(prompts, completions, **columns):
        scored.append((prompts, completions, columns["kind"]))
        return upper(prompts, completions, **columns)

    data = tasks(chat)
    if chat:
        system = {"role": "system", "content": "Be brief."}
        data = data.map(lambda row: {"prompt": [system, *row["prompt"]]})
    trainer = made(Watched, data=data, reward=reward, reward_threshold=0.75, feedback_func=say)
    trainer.reflections.add("Old advice.")
    one_update(trainer)
    [(inputs, first, seconds)] = trainer.seen
    r1 = upper(first.prompts, first.completions, kind=[row["kind"] for row in inputs])
    assert [one.place for one in seconds] == [place for place, reward in enumerate(r1) if reward < 0.75] != []
    attempts, reflections, retries = trainer.asked
    assert len(attempts) == 8 and len(reflections) == len(retries) == len(seconds), "two more calls of generate"
    content = (lambda prompt: prompt[-1]["content"]) if chat else (lambda prompt: prompt)
    for one, reflecting, retrying in zip(seconds, reflections, retries, strict=True):
        if chat:
            assert reflecting[0] == retrying[0] == system and len(reflecting) == len(retrying) == 2
        row, told = inputs[one.place], first.completions[one.place]
        said = told[0]["content"] if chat else told
        for part in (
            content(row["prompt"]),
            said,
            f"I wanted {row['kind']}.",
            f"Reward {r1[one.place]:g}.",
            "Old advice.",
        ):
            assert part in content(reflecting)
        assert content(row["prompt"]) in content(retrying) and one.advice in content(retrying)
        assert "I wanted" not in content(retrying) and "Old advice." not in content(retrying)
    assert len(scored) == 2
    prompts, completions, kinds = scored[1]
    assert prompts == [inputs[one.place]["prompt"] for one in seconds], "the original prompts"
    assert kinds == [inputs[one.place]["kind"] for one in seconds]
    assert completions == [one.retry.completion for one in seconds]
    assert [one.reward for one in seconds] == upper(prompts, completions, kind=kinds)


LOSSES = ["dapo", "grpo", *(pytest.param(name, marks=pytest.mark.slow) for name in ("dr_grpo", "luspo", "sapo"))]


@pytest.mark.parametrize("loss", LOSSES)
def test_the_update_is_what_it_says(made, loss):
    """In float64, from what was sampled: attempts, reflections and second attempts, and what is imitated."""
    lora = peft.LoraConfig(r=4, target_modules="all-linear") if loss == "dapo" else None
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "temperature": 0.7}
    trainer = made(
        Watched, loss_type=loss, reward_threshold=0.75, internalization_coef=0.3, peft_config=lora, **settings
    )
    torch.manual_seed(5)
    with torch.no_grad():
        for name, one in trainer.model.named_parameters():
            if "lora_" in name:
                one.copy_(0.1 * torch.randn(one.shape))
    model = copy.deepcopy(trainer.accelerator.unwrap_model(trainer.model)).double()
    base = model.get_base_model() if lora else model
    del base.forward  # TRL's patch calls the original's weights
    parts, gradient = one_update(trainer)
    [(inputs, first, seconds)] = trainer.seen

    def advantages(rewards):
        """By place."""
        found = {}
        for group in (range(4), range(4, 8)):
            own = {place: rewards[place] for place in group if place in rewards}
            values = torch.tensor(list(own.values()), dtype=torch.float64)
            if len(own) > 1:
                found |= dict(zip(own, ((values - values.mean()) / (values.std() + 1e-4)).tolist(), strict=True))
            else:
                found |= dict.fromkeys(own, 0.0)
        return found

    r1 = dict(enumerate(upper(first.prompts, first.completions, kind=[row["kind"] for row in inputs])))
    r2 = {one.place: one.reward for one in seconds}
    prompt_ids = tiny_tokenizer()([row["prompt"] for row in inputs])["input_ids"]
    a1, a2 = advantages(r1), advantages(r2)
    rows = [(prompt_ids[i], first.completion_ids[i], a1[i]) for i in range(8)]
    for one in seconds:
        rows += [(s.prompt_ids, s.completion_ids, a2[one.place]) for s in (one.reflection, one.retry)]
    live = len(rows)
    assert live % 4, "so that there are dead rows"
    assert {len(part["prompt_ids"]) for part in parts} == {-(-live // 4)}

    def logprobs(prompt, completion):
        logits = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1] / 0.7
        return torch.log_softmax(logits, -1).gather(1, torch.tensor(list(completion))[:, None])[:, 0]

    tokens = sum(len(completion) for _, completion, _ in rows)
    total = torch.zeros((), dtype=torch.float64)
    for prompt, completion, advantage in rows:
        own = -advantage * logprobs(prompt, completion).sum()
        total = (
            total
            + own
            / {
                "dapo": tokens,
                "grpo": len(completion) * live,
                "sapo": len(completion) * live,
                "dr_grpo": live * 8,
                "luspo": live,
            }[loss]
        )
    imitated = [one for one in seconds if one.reward > 0]
    count = sum(len(one.retry.completion_ids) for one in imitated)
    assert imitated and len(imitated) < len(seconds)
    for one in imitated:
        own = -logprobs(prompt_ids[one.place], one.retry.completion_ids).sum()
        total = total + 0.3 * len(imitated) / 8 * own / count
    total.backward()
    expected = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    assert expected.keys() == gradient.keys()
    gap = sum(float((gradient[name].double() - expected[name]).square().sum()) for name in expected)
    assert (gap / sum(float(one.square().sum()) for one in expected.values())) ** 0.5 < 1e-5


def test_figures_do_not_depend_on_micro_batches(made):
    """Nor do the weights, but for rounding: dead rows have no say, whatever their number."""
    found = []
    for size, steps in ((8, 1), (1, 8)):
        trainer = made(
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
            loss_type="grpo",
            reward_threshold=0.75,
            max_steps=1,
            optim="sgd",
            learning_rate=0.1,
        )
        trainer.train()
        found.append((trainer.state.log_history[0], weights(trainer)))
    (line, expected), *others = found
    figures = {name for name in line if name.startswith(("erl/", "retry/")) or name in ("loss", "reward", "grad_norm")}
    assert {name for name in figures if name.startswith("erl/")} >= {
        "erl/attempt_reward",
        "erl/gated",
        "erl/reflection_tokens",
        "erl/retry_reward",
        "erl/memory",
        "erl/rows",
        "erl/internalization_loss",
    }
    for other, moved in others:
        assert {name: other[name] for name in figures} == pytest.approx(
            {name: line[name] for name in figures}, rel=1e-4
        )
        assert all(torch.allclose(moved[name], expected[name], atol=1e-5) for name in expected)


def test_algorithm_2_internalizes_in_updates_of_its_own(made):
    """The first update is without it, the second is nothing else, and none where there is nothing to imitate."""
    seen = []

    class Steps(Watched):
        def _compute_loss(self, model, inputs):
            seen.append(("imitated" in inputs, "advantages" in inputs))
            return super()._compute_loss(model, inputs)

    settings = {"max_steps": 2, "optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant"}
    two = made(Steps, algorithm=2, **settings)
    two.train()
    assert seen == [(False, True)] * 2 + [(True, False)] * 2 and len(two.asked) == 3
    after_two = weights(two)
    one = made(enable_internalization=False, **settings | {"max_steps": 1})
    one.train()
    after_one = weights(one)
    none = made(algorithm=2, internalization_threshold=9.0, **settings | {"optim": "adamw_torch"})
    none.train()
    adam = made(enable_internalization=False, **settings | {"max_steps": 1, "optim": "adamw_torch"})
    adam.train()
    assert any(not torch.equal(after_two[name], after_one[name]) for name in after_one)
    expected, found = weights(adam), weights(none)
    assert all(torch.allclose(expected[name], found[name], atol=1e-5) for name in expected)
    assert none.state.global_step == 2 and none.state.log_history[1]["grad_norm"] == 0

    trainer = one  # its weights are those of the first update; what was sampled is what `two` has sampled
    [(inputs, _, seconds)] = two.seen
    imitated = [second for second in seconds if second.reward > 0]
    tokens = sum(len(second.retry.completion_ids) for second in imitated)
    trainer.model.zero_grad()
    for second in imitated:
        prompt = tiny_tokenizer()(inputs[second.place]["prompt"])["input_ids"]
        reply = torch.tensor(second.retry.completion_ids)
        logits = trainer.model(input_ids=torch.tensor([[*prompt, *reply.tolist()]])).logits[0, len(prompt) - 1 : -1]
        own = torch.nn.functional.cross_entropy(logits, reply, reduction="sum")
        (own * len(imitated) / 8 / tokens).backward()
    norm = torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
    assert two.state.log_history[1]["grad_norm"] == pytest.approx(float(norm), rel=1e-3)
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            assert torch.allclose(after_two[name], parameter - 0.1 * parameter.grad, atol=1e-6), name


def test_evaluation_is_first_attempts(made):
    trainer = made(Watched, per_device_eval_batch_size=4)
    figures = trainer.evaluate(tasks().select(range(2)))
    assert len(trainer.asked) == 2 and trainer.seen == []
    assert not any("erl/" in name for name in figures) and 0 <= figures["eval_reward"] <= 1


@pytest.mark.slow
def test_a_checkpoint_holds_the_reflection_memory(made, tmp_path):
    """And a run that goes on from it ends with the very weights of one that was never stopped."""
    settings = {"reward_threshold": 0.5, "save_strategy": "steps", "save_steps": 2, "memory_size": 4}
    whole = made(max_steps=4, **settings)
    whole.train()
    kept = json.loads((tmp_path / "run" / "checkpoint-2" / STATE).read_text())
    assert 0 < len(kept) <= 4
    again = made(max_steps=4, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert again.reflections.newest(4) == whole.reflections.newest(4)
    expected, found = weights(whole), weights(again)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


async def later(prompts, completions, **columns):
    return say(prompts, completions, **columns)


@pytest.mark.parametrize("func", [later, pytest.param(None, marks=pytest.mark.slow)], ids=["async", "none"])
def test_feedback_may_be_async_or_absent(made, func):
    trainer = made(Watched, feedback_func=func)
    one_update(trainer)
    [(inputs, _, seconds)] = trainer.seen
    assert [one.feedback for one in seconds] == [
        "" if func is None else f"I wanted {inputs[one.place]['kind']}." for one in seconds
    ]


@pytest.mark.parametrize(
    ("found", "told"), [(["a"], "returned 1 for"), (None, "returned NoneType for"), ("all", "number 0")]
)
def test_wrong_feedback_is_refused(made, found, told):
    trainer = made(feedback_func=lambda prompts, **_: [None] * len(prompts) if found == "all" else found)
    with pytest.raises(TrainingError, match=f"feedback_func: .*{told}"):
        one_update(trainer)


@pytest.mark.slow
def test_reward_models_and_logged_completions_are_as_in_trl(policy, made, tmp_path):
    """A model and a function with weights; what was said twice stands in TRL's table."""
    model = Qwen3ForSequenceClassification.from_pretrained(policy, num_labels=1, dtype=torch.float32)
    trainer = made(
        Watched,
        reward=[model, upper],
        reward_weights=[0.1, 1.0],
        log_completions=True,
        max_steps=1,
        reward_threshold=0.75,
        reward_processing_classes=[tiny_tokenizer(), None],
    )
    trainer.train()
    line = trainer.state.log_history[0]
    [name] = {name.split("/")[1] for name in line if name.startswith("rewards/")} - {"upper"}
    assert line["reward"] == pytest.approx(0.1 * line[f"rewards/{name}/mean"] + line["rewards/upper/mean"], abs=1e-5)
    assert line["erl/retry_reward"] == pytest.approx(
        0.1 * line[f"retry/rewards/{name}/mean"] + line["retry/rewards/upper/mean"], abs=1e-5
    )
    [table] = (tmp_path / "run" / "completions").glob("*.parquet")
    rows = pd.read_parquet(table)
    [(_, _, seconds)] = trainer.seen
    assert rows["second_attempt"].dropna().tolist() == [one.retry.completion for one in seconds]
    assert rows["second_reward"].dropna().tolist() == pytest.approx([one.reward for one in seconds])
    assert rows["reflection"].dropna().tolist() == [one.advice for one in seconds] and len(rows) == 8


def test_what_cannot_be_had_is_refused(made):
    with pytest.raises(ConfigError, match="args: ERLTrainer takes an ERLConfig, not a GRPOConfig"):
        made(config=GRPOConfig)
    with pytest.raises(ConfigError, match="feedback_func: reflection_system_prompt has no"):
        made(reflection_system_prompt="{prompt} {attempt} {memory}")
    with pytest.raises(ConfigError, match="rollout_func"):
        ERLTrainer("unused", upper, ERLConfig("unused", bf16=False), rollout_func=lambda *_: {})
