"""`ERLTrainer` on a tiny model: equality with GRPO, each phase on the sampled tokens, the loss in float64."""

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

from memalpha.errors import ConfigError, RewardError, TrainingError
from memalpha.integrations.trl import ERLConfig, ERLTrainer
from memalpha.integrations.trl.trainer import REFLECTIONS_FILE

pytestmark = [
    pytest.mark.slow,  # CI runs it
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
]


class RecordingTrainer(ERLTrainer):
    """`ERLTrainer` that records the prompts of each call of `generate` and the attempts of each step."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.prompts, self.steps = [], []

    def _generate(self, prompts):
        result = super()._generate(prompts)
        if self.rollout_func is None:
            self.prompts.append(prompts)
        return result

    def _reflect_and_retry(self, inputs, first):
        result = super()._reflect_and_retry(inputs, first)
        self.steps.append((inputs, first, result[0]))
        return result


def gradients_of(model):
    """Return a copy of each parameter's gradient, by name."""
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def next_gradient(trainer):
    """Return the micro-batches and the gradient of the trainer's next update, without the update."""
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
    return parts, gradients_of(trainer.model)


EQUAL_TO_GRPO = {
    "chat": {"chat": True, "num_iterations": 2, "beta": 0.1},
    "a mean over rows": {"loss_type": "grpo", "scale_rewards": "batch"},
    "cut replies masked": {"mask_truncated_completions": True, "max_completion_length": 6},
    "moving reference": {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1},
    "unshuffled, accumulated": {"shuffle_dataset": False, "gradient_accumulation_steps": 4},
}


@pytest.mark.parametrize("name", EQUAL_TO_GRPO)
def test_without_reflections_it_equals_grpo_bit_for_bit(make_trainer, name):
    settings = {"max_steps": 3, **EQUAL_TO_GRPO[name]}
    lora = peft.LoraConfig(r=4, target_modules="all-linear") if name == "chat" else None
    plain = make_trainer(GRPOTrainer, GRPOConfig, peft_config=lora, **settings)
    plain.train()
    ours = make_trainer(peft_config=lora, **settings, reward_threshold=-1.0, enable_internalization=False)
    ours.train()
    expected, actual = weights(plain), weights(ours)
    assert all(torch.equal(expected[name], actual[name]) for name in expected)
    for a, b in zip(plain.state.log_history, ours.state.log_history, strict=True):
        names = [name for name in a if "time" not in name and "second" not in name]
        assert {name: b[name] for name in names} == {name: a[name] for name in names}
    assert {line["erl/gated"] for line in ours.state.log_history if "erl/gated" in line} == {0.0}


@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
def test_each_phase_uses_the_results_of_the_previous(make_trainer, chat):
    scored = []

    def reward(prompts, completions, **columns):
        scored.append((prompts, completions, columns["kind"]))
        return upper(prompts, completions, **columns)

    data = tasks(chat)
    if chat:
        system = {"role": "system", "content": "Be brief."}
        data = data.map(lambda row: {"prompt": [system, *row["prompt"]]})
    trainer = make_trainer(RecordingTrainer, data=data, reward=reward, reward_threshold=0.75, feedback_func=say)
    trainer.reflections.add("Old advice.")
    next_gradient(trainer)
    [(inputs, first, attempts)] = trainer.steps
    r1 = upper(first.prompts, first.completions, kind=[row["kind"] for row in inputs])
    assert [attempt.index for attempt in attempts] == [i for i, reward in enumerate(r1) if reward < 0.75] != []
    first_prompts, reflections, retries = trainer.prompts
    assert len(first_prompts) == 8 and len(reflections) == len(retries) == len(attempts), "two more calls of generate"
    content = (lambda prompt: prompt[-1]["content"]) if chat else (lambda prompt: prompt)
    for attempt, reflecting, retrying in zip(attempts, reflections, retries, strict=True):
        if chat:
            assert reflecting[0] == retrying[0] == system and len(reflecting) == len(retrying) == 2
        row, completion = inputs[attempt.index], first.completions[attempt.index]
        reply = completion[0]["content"] if chat else completion
        said = (f"I wanted {row['kind']}.", f"Reward {r1[attempt.index]:g}.", "Old advice.")
        assert all(part in content(reflecting) for part in (content(row["prompt"]), reply, *said))
        assert content(row["prompt"]) in content(retrying) and attempt.advice in content(retrying)
        assert "I wanted" not in content(retrying) and "Old advice." not in content(retrying)
    assert len(scored) == 2
    prompts, completions, kinds = scored[1]
    assert prompts == [inputs[attempt.index]["prompt"] for attempt in attempts], "the original prompts"
    assert kinds == [inputs[attempt.index]["kind"] for attempt in attempts]
    assert completions == [attempt.retry.completion for attempt in attempts]
    assert [attempt.reward for attempt in attempts] == upper(prompts, completions, kind=kinds)


@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo", "luspo", "sapo"])
def test_the_gradient_equals_a_float64_computation(make_trainer, loss):
    """Recompute the loss in float64 from the sampled tokens of all roles and the imitated attempts."""
    lora = peft.LoraConfig(r=4, target_modules="all-linear") if loss == "dapo" else None
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "temperature": 0.7}
    trainer = make_trainer(
        RecordingTrainer, loss_type=loss, reward_threshold=0.75, internalization_coef=0.3, peft_config=lora, **settings
    )
    torch.manual_seed(5)
    with torch.no_grad():
        for name, weight in trainer.model.named_parameters():
            if "lora_" in name:
                weight.copy_(0.1 * torch.randn(weight.shape))
    model = copy.deepcopy(trainer.accelerator.unwrap_model(trainer.model)).double()
    base = model.get_base_model() if lora else model
    del base.forward  # TRL's patch calls the original's weights
    parts, gradient = next_gradient(trainer)
    [(inputs, first, attempts)] = trainer.steps

    def advantages(rewards):
        """Return group advantages by row."""
        result = {}
        for group in (range(4), range(4, 8)):
            group_rewards = {i: rewards[i] for i in group if i in rewards}
            values = torch.tensor(list(group_rewards.values()), dtype=torch.float64)
            scaled = (values - values.mean()) / (values.std() + 1e-4) if len(values) > 1 else 0 * values
            result |= dict(zip(group_rewards, scaled.tolist(), strict=True))
        return result

    r1 = dict(enumerate(upper(first.prompts, first.completions, kind=[row["kind"] for row in inputs])))
    r2 = {attempt.index: attempt.reward for attempt in attempts}
    prompt_ids = tiny_tokenizer()([row["prompt"] for row in inputs])["input_ids"]
    a1, a2 = advantages(r1), advantages(r2)
    rows = [(prompt_ids[i], first.completion_ids[i], a1[i]) for i in range(8)]
    for attempt in attempts:
        rows += [(s.prompt_ids, s.completion_ids, a2[attempt.index]) for s in (attempt.reflection, attempt.retry)]
    live = len(rows)
    assert live % 4, "the row count must need dead rows"
    assert {len(part["prompt_ids"]) for part in parts} == {-(-live // 4)}

    def logprobs(prompt, completion):
        logits = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1] / 0.7
        return torch.log_softmax(logits, -1).gather(1, torch.tensor(list(completion))[:, None])[:, 0]

    tokens = sum(len(completion) for _, completion, _ in rows)
    total = torch.zeros((), dtype=torch.float64)
    for prompt, completion, advantage in rows:
        by_row = len(completion) * live
        divisors = {"dapo": tokens, "grpo": by_row, "sapo": by_row, "dr_grpo": live * 8, "luspo": live}
        total = total - advantage * logprobs(prompt, completion).sum() / divisors[loss]
    imitated = [attempt for attempt in attempts if attempt.reward > 0]
    count = sum(len(attempt.retry.completion_ids) for attempt in imitated)
    assert imitated and len(imitated) < len(attempts)
    for attempt in imitated:
        row_loss = -logprobs(prompt_ids[attempt.index], attempt.retry.completion_ids).sum()
        total = total + 0.3 * len(imitated) / 8 * row_loss / count
    total.backward()
    expected = gradients_of(model)
    assert expected.keys() == gradient.keys()
    gap = sum(float((gradient[name].double() - expected[name]).square().sum()) for name in expected)
    assert (gap / sum(float(grad.square().sum()) for grad in expected.values())) ** 0.5 < 1e-5


def test_metrics_do_not_depend_on_micro_batches(make_trainer):
    """Weights agree up to rounding: the number of dead rows has no effect."""
    runs = []
    for size, steps in ((8, 1), (1, 8)):
        batches = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps}
        sgd = {"max_steps": 1, "optim": "sgd", "learning_rate": 0.1}
        trainer = make_trainer(loss_type="grpo", reward_threshold=0.75, **batches, **sgd)
        trainer.train()
        runs.append((trainer.state.log_history[0], weights(trainer)))
    (line, expected), (other, moved) = runs
    metrics = {name for name in line if name.startswith(("erl/", "retry/")) or name in ("loss", "reward", "grad_norm")}
    logged = ("attempt_reward", "gated", "reflection_tokens", "retry_reward", "memory", "rows", "internalization_loss")
    assert metrics >= {f"erl/{name}" for name in logged}
    assert {name: other[name] for name in metrics} == pytest.approx({name: line[name] for name in metrics}, rel=1e-4)
    assert all(torch.allclose(moved[name], expected[name], atol=1e-5) for name in expected)


def test_algorithm_2_internalizes_in_updates_of_its_own(make_trainer):
    """The first update has no internalization, the second nothing else; without rows to imitate it is skipped."""
    calls = []

    class LossRecorder(RecordingTrainer):
        def _compute_loss(self, model, inputs):
            calls.append(("imitated" in inputs, "advantages" in inputs))
            return super()._compute_loss(model, inputs)

    settings = {"max_steps": 2, "optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant"}
    two = make_trainer(LossRecorder, algorithm=2, **settings)
    two.train()
    assert calls == [(False, True)] * 2 + [(True, False)] * 2 and len(two.prompts) == 3
    after_two = weights(two)
    single = make_trainer(enable_internalization=False, **settings | {"max_steps": 1})
    single.train()
    after_first = weights(single)
    adamw = {"optim": "adamw_torch", "adam_epsilon": 1e-3}  # does not divide by the rounding of a small gradient
    none = make_trainer(algorithm=2, internalization_threshold=9.0, **settings | adamw)
    none.train()
    adam = make_trainer(enable_internalization=False, **settings | adamw | {"max_steps": 1})
    adam.train()
    assert any(not torch.equal(after_two[name], after_first[name]) for name in after_first)
    expected, actual = weights(adam), weights(none)
    assert all(torch.allclose(expected[name], actual[name], atol=1e-5) for name in expected)
    assert none.state.global_step == 2 and none.state.log_history[1]["grad_norm"] == 0

    trainer = single  # has the weights after the first update; `two` sampled the same completions
    [(inputs, _, attempts)] = two.steps
    imitated = [attempt for attempt in attempts if attempt.reward > 0]
    tokens = sum(len(attempt.retry.completion_ids) for attempt in imitated)
    trainer.model.zero_grad()
    for attempt in imitated:
        prompt = tiny_tokenizer()(inputs[attempt.index]["prompt"])["input_ids"]
        reply = torch.tensor(attempt.retry.completion_ids)
        logits = trainer.model(input_ids=torch.tensor([[*prompt, *reply.tolist()]])).logits[0, len(prompt) - 1 : -1]
        row_loss = torch.nn.functional.cross_entropy(logits, reply, reduction="sum")
        (row_loss * len(imitated) / 8 / tokens).backward()
    norm = torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
    assert two.state.log_history[1]["grad_norm"] == pytest.approx(float(norm), rel=1e-3)
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            assert torch.allclose(after_two[name], parameter - 0.1 * parameter.grad, atol=1e-6), name


def test_evaluation_uses_first_attempts_only(make_trainer):
    trainer = make_trainer(RecordingTrainer, per_device_eval_batch_size=4)
    metrics = trainer.evaluate(tasks().select(range(2)))
    assert len(trainer.prompts) == 2 and trainer.steps == []
    assert not any("erl/" in name for name in metrics) and 0 <= metrics["eval_reward"] <= 1


def test_a_checkpoint_holds_the_reflection_memory(make_trainer, tmp_path):
    """A resumed run ends with the same weights as an uninterrupted one."""
    settings = {"reward_threshold": 0.5, "save_strategy": "steps", "save_steps": 2, "memory_size": 4}
    uninterrupted = make_trainer(max_steps=4, **settings)
    uninterrupted.train()
    texts = json.loads((tmp_path / "run" / "checkpoint-2" / REFLECTIONS_FILE).read_text())
    assert 0 < len(texts) <= 4
    resumed = make_trainer(max_steps=4, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert resumed.reflections.newest(4) == uninterrupted.reflections.newest(4)
    expected, actual = weights(uninterrupted), weights(resumed)
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


async def async_feedback(prompts, completions, **columns):
    return say(prompts, completions, **columns)


def named_feedback(prompts, completions, kind):
    return say(prompts, completions, kind=kind)


@pytest.mark.parametrize("func", [async_feedback, named_feedback, None], ids=["async", "named columns", "none"])
def test_feedback_may_be_async_or_absent(make_trainer, func):
    trainer = make_trainer(RecordingTrainer, feedback_func=func)
    next_gradient(trainer)
    [(inputs, _, attempts)] = trainer.steps
    for attempt in attempts:
        assert attempt.feedback == ("" if func is None else f"I wanted {inputs[attempt.index]['kind']}.")


@pytest.mark.parametrize(
    ("returned", "message"), [(["a"], "returned 1 for"), (None, "returned NoneType for"), ("all", "number 0")]
)
def test_wrong_feedback_is_refused(make_trainer, returned, message):
    trainer = make_trainer(feedback_func=lambda prompts, **_: [None] * len(prompts) if returned == "all" else returned)
    with pytest.raises(TrainingError, match=f"feedback_func: .*{message}"):
        next_gradient(trainer)


def test_a_feedback_function_that_fails_is_named_and_changes_no_rows(make_trainer):
    def clear(completions, tags):
        for names in tags:
            names.clear()
        raise KeyError("tags")

    rows = []

    class Trainer(ERLTrainer):
        def _generate_and_score_completions(self, inputs):
            rows.extend(inputs)
            return super()._generate_and_score_completions(inputs)

    trainer = make_trainer(Trainer, data=tasks().add_column("tags", [["a"]] * 8), feedback_func=clear)
    with pytest.raises(RewardError, match="'feedback_func' raised KeyError: 'tags'"):
        next_gradient(trainer)
    assert rows and all(row["tags"] == ["a"] for row in rows)


def test_reward_models_and_logged_completions_are_as_in_trl(policy, make_trainer, tmp_path):
    """Weights a reward model and a function, and logs second attempts in TRL's table."""
    model = Qwen3ForSequenceClassification.from_pretrained(policy, num_labels=1, dtype=torch.float32)
    trainer = make_trainer(
        RecordingTrainer,
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
    retry_reward = 0.1 * line[f"retry/rewards/{name}/mean"] + line["retry/rewards/upper/mean"]
    assert line["erl/retry_reward"] == pytest.approx(retry_reward, abs=1e-5)
    [table] = (tmp_path / "run" / "completions").glob("*.parquet")
    rows = pd.read_parquet(table)
    [(_, _, attempts)] = trainer.steps
    assert rows["second_attempt"].dropna().tolist() == [attempt.retry.completion for attempt in attempts]
    assert rows["second_reward"].dropna().tolist() == pytest.approx([attempt.reward for attempt in attempts])
    assert rows["reflection"].dropna().tolist() == [attempt.advice for attempt in attempts] and len(rows) == 8


def test_unsupported_arguments_are_refused(make_trainer):
    with pytest.raises(ConfigError, match="args: ERLTrainer takes an ERLConfig, not a GRPOConfig"):
        make_trainer(config=GRPOConfig)
    with pytest.raises(ConfigError, match="feedback_func: reflection_system_prompt has no"):
        make_trainer(reflection_system_prompt="{prompt} {attempt} {memory}")
    with pytest.raises(ConfigError, match="feedback_func: 'say' is not callable"):
        make_trainer(feedback_func="say")
    with pytest.raises(ConfigError, match="rollout_func"):
        ERLTrainer("unused", upper, ERLConfig("unused", bf16=False), rollout_func=lambda *_: {})
