"""The shipped policy for text tasks: plain files of bounded size, digits one by one, a start with room to learn."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from memalpha import load_policy  # noqa: E402
from memalpha.environments.prompts import REFLECTION_PROMPT, RETRY_PROMPT  # noqa: E402
from memalpha.tasks.synthetic import arithmetic, programs  # noqa: E402
from memalpha.types import SampleRequest, TextTask  # noqa: E402

FOLDER = Path(str(resources.files("memalpha"))) / "weights" / "tiny-text"


@pytest.fixture(scope="module")
def policy():
    torch.set_num_threads(1)
    return load_policy("tiny-text")


def replies(policy, prompts: list[str]) -> list[str]:
    requests = [SampleRequest(({"role": "user", "content": prompt},), max_new_tokens=48) for prompt in prompts]
    return [completion.text for completion in policy.sample(requests)]


def right(policy, tasks: list[TextTask]) -> float:
    completions = replies(policy, [task.text for task in tasks])
    return sum(a == task.columns["solution"] for a, task in zip(completions, tasks, strict=True)) / len(tasks)


def test_weights_are_small_and_plain(policy) -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 4 * 2**20
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER)
    assert model.dtype == torch.float32 and 0.5e6 < model.num_parameters() < 0.9e6
    ids = policy.tokenizer("47+12=59", add_special_tokens=False)["input_ids"]
    assert len(ids) == 8 and policy.tokenizer.decode(ids) == "47+12=59"


def test_the_start_has_room_to_learn(policy) -> None:
    assert 0.2 < right(policy, arithmetic.tasks("test", 5, 0, 90)) < 0.7
    assert 0.2 < right(policy, programs.tasks("test", 5, 0, 90)) < 0.7


def test_it_reflects_and_follows_advice(policy) -> None:
    tasks = programs.tasks("test", 6, 0, 60)
    tried = replies(policy, [task.text for task in tasks])
    wrong = [(task, reply) for task, reply in zip(tasks, tried, strict=True) if reply != task.columns["solution"]]
    assert wrong
    prompts = [
        REFLECTION_PROMPT.format(
            prompt=task.text, attempt=reply, reward=0.0, feedback=f"{task.columns['tests'][0]} fails.", memory=""
        )
        for task, reply in wrong
    ]
    again = [
        RETRY_PROMPT.format(prompt=task.text, reflection=advice)
        for (task, _), advice in zip(wrong, replies(policy, prompts), strict=True)
    ]
    solved = replies(policy, again)
    share = sum(reply == task.columns["solution"] for reply, (task, _) in zip(solved, wrong, strict=True)) / len(wrong)
    assert share > 0.8
