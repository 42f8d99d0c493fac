"""`TextTask`: a prompt as a text or as messages, and what is refused."""

from __future__ import annotations

import pickle

import pytest
from pydantic import ValidationError

from memalpha.types import Completion, TextTask, Trajectory, TrajectoryGroup, Turn


def test_a_prompt_is_a_text_or_messages() -> None:
    plain = TextTask(id="a", prompt="2 + 2?", columns={"answer": "4"}, category="easy")
    assert (plain.text, plain.messages) == ("2 + 2?", ({"role": "user", "content": "2 + 2?"},))
    chat = TextTask.model_validate(
        {"id": "b", "prompt": [{"role": "system", "content": "Short."}, {"role": "user", "content": "2 + 2?"}]}
    )
    assert chat.text == "Short.\n\n2 + 2?"
    assert chat.messages[1] == plain.messages[0]
    assert TextTask.model_validate_json(chat.model_dump_json()) == chat


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ("", "empty"),
        ([], "empty"),
        ([{"role": "user"}], "nothing else; see 'content'"),
        ([{"role": "u", "content": "x", "n": "y"}], "nothing else; see 'n'"),
    ],
)
def test_a_prompt_that_cannot_be_replied_to_is_refused(prompt: object, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        TextTask.model_validate({"id": "a", "prompt": prompt})


def test_a_trajectory_over_one_goes_between_processes() -> None:
    task = TextTask(id="a", prompt="2 + 2?")
    group = TrajectoryGroup(task, (Trajectory(task, 0, (Turn(0, Completion("4")),), ()),))
    assert pickle.loads(pickle.dumps(group)) == group
