"""Rows to imitate: a prompt and a completion each, as exact token ids, weighted for the cross-entropy stream alone.

Four sources make them. A scripted writer that speaks in the policy's tokens (`Demonstrator`: gold operations, or any
`scripted:KIND`); the policy's own rollouts, of which each task's best is kept (rejection sampling: Yuan et al. 2023,
arXiv 2308.01825); the same from the `turns.jsonl` of an earlier run; a user's JSON Lines. Nothing that was sampled is
tokenized again, nothing is ever cut short: a row that the model cannot take is refused by name.

What is not imitated: a turn of which a call failed or whose reply was cut off, and rollouts of a group whose rewards
are all equal, for there the reward chooses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from memalpha.agent.prompts import writer_messages
from memalpha.config import AgentConfig
from memalpha.errors import DataError
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.store.schema import MemorySchema
from memalpha.train.data.chat_format import (
    check_room,
    decode,
    encode,
    encode_prompt,
    encode_reply,
    format_message,
    format_validation_error,
    read_lines,
    read_objects,
    render_messages,
    reply_text,
    validate_messages,
    validate_tools,
)
from memalpha.train.data.samples import TrainingSample, cross_entropy_sample
from memalpha.types import Chunk, Completion, Observation, SampleRequest, Trajectory, TrajectoryGroup, Turn, ViewEntry


class Demonstrator:
    """A scripted writer that speaks in the tokens of `policy`, so that what it writes can be trained on.

    Prompts are rendered and measured as the policy's own, so it sees what the policy would see. `sample` raises
    `DataError` for a reply that these tokens cannot say.
    """

    def __init__(self, script: ScriptedPolicy, policy: TransformersPolicy) -> None:
        self.name = script.name
        self.count_tokens = policy.count_tokens
        self._script = script
        self._policy = policy

    def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """The script's replies with the ids of their prompts and of themselves; no log-probs were sampled with."""
        completions = []
        for request, reply in zip(requests, self._script.sample(requests), strict=True):
            seen = request.observation
            where = f"task {seen.task.id!r}, chunk {seen.chunk.index}" if seen and seen.task else self.name
            ids = encode_reply(self._policy, reply.text, where)
            prompt = self._policy.render(request.messages, request.tools)
            check_room(self._policy, len(prompt) + len(ids), where)
            if len(ids) > request.max_new_tokens:
                raise DataError(
                    f"{where}: the demonstration has {len(ids)} tokens, agent.max_new_tokens={request.max_new_tokens} "
                    "would cut it short: raise it"
                )
            completions.append(Completion(reply.text, tuple(prompt), ids))
        return completions


def is_imitable(turn: Turn) -> bool:
    """Whether all its calls were executed and its reply came to an end."""
    return turn.completion.stop_reason != "length" and all(result.ok for result in turn.results)


def imitation_rows(trajectories: Iterable[Trajectory]) -> tuple[list[TrainingSample], int]:
    """Rows of all turns but those of which a call failed or whose reply was cut off, and how many these were."""
    rows, left_out = [], 0
    for trajectory in trajectories:
        for turn in trajectory.turns:
            said = turn.completion
            if not is_imitable(turn):
                left_out += 1
                continue
            place = {"task": trajectory.task.id, "rollout": trajectory.rollout, "chunk": turn.chunk}
            rows.append(cross_entropy_sample(said.prompt_ids, said.completion_ids, **place))
    return rows, left_out


def best_rollouts(groups: Iterable[TrajectoryGroup]) -> list[Trajectory]:
    """The rollout of each group with the highest reward (the first of equals); none of a group without a spread."""
    chosen = []
    for group in groups:
        rated = [(trajectory.reward.total, trajectory) for trajectory in group.trajectories if trajectory.reward]
        best = max(reward for reward, _ in rated)
        if best > min(reward for reward, _ in rated):
            chosen.append(next(trajectory for reward, trajectory in rated if reward == best))
    return chosen


# ------------------------------------------------------------------------------------------------- logged trajectories


class _LoggedTurn(BaseModel):
    step: int
    task: str
    rollout: int
    chunk: int
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    reward: float
    ok: bool
    role: str = "attempt"


def load_best_rollouts(
    run: Path, policy: TransformersPolicy, agent: AgentConfig, schema: MemorySchema
) -> tuple[list[list[TrainingSample]], int]:
    """The best attempts in `run`'s turns.jsonl as rows, a list for each task of which a group has a best, and how many
    turns were left out because a call failed or they were cut off.

    A rollout's reward is the mean of its turns', as in the run. Raises `DataError` for a line that is no turn, and for
    turns that are not in the tokens of `policy` or not prompted as `agent` says: an id outside its vocabulary, a prompt
    that does not decode to a text of these same ids, or one without the beginning and end that all prompts have.
    """
    path = run / "turns.jsonl"
    turns: list[tuple[str, _LoggedTurn]] = []
    for where, raw in read_lines(path):
        try:
            turn = _LoggedTurn.model_validate_json(raw)
        except ValidationError as error:
            problem = format_validation_error(error).removeprefix(".")
            raise DataError(f"{where}: {problem}: not a turn that a run wrote (keep_tokens=true)") from error
        if turn.role == "attempt":  # a second one has prompts with advice
            turns.append((where, turn))
    begins, ends = _prompt_frame(policy, agent, schema)
    vocabulary = policy.model.config.get_text_config().vocab_size
    known: set[tuple[int, ...]] = set()
    for where, turn in turns:
        ids = turn.prompt_ids + turn.completion_ids
        if not turn.completion_ids or not all(0 <= id < vocabulary for id in ids):
            raise DataError(f"{where}: holds ids that are none of policy {policy.name!r}: it was another policy's run")
        if turn.prompt_ids in known:
            continue
        known.add(turn.prompt_ids)
        text = decode(policy, turn.prompt_ids)
        if not text.startswith(begins) or not text.endswith(ends):
            raise DataError(
                f"{where}: the prompt does not begin and end as those of policy {policy.name!r} with this agent's "
                "prompt and memory_schema: give the settings and the policy of that run"
            )
        if encode(policy, text) != list(turn.prompt_ids):
            raise DataError(f"{where}: the prompt is not in the tokens of policy {policy.name!r}: it was another's run")
    by_task: dict[str, list[TrainingSample]] = {}
    left_out = 0
    for group in _rollout_groups([turn for _, turn in turns]):
        means = [sum(turn.reward for turn in rollout) / len(rollout) for rollout in group]
        if max(means) == min(means):
            continue
        best = group[means.index(max(means))]
        kept = [turn for turn in best if turn.ok and turn.completion_ids[-1] in policy.eos_ids]
        left_out += len(best) - len(kept)
        by_task.setdefault(best[0].task, []).extend(map(_row, kept))
    return list(by_task.values()), left_out


def _row(turn: _LoggedTurn) -> TrainingSample:
    place = {"task": turn.task, "rollout": turn.rollout, "chunk": turn.chunk}
    return cross_entropy_sample(turn.prompt_ids, turn.completion_ids, **place)


def _rollout_groups(turns: Iterable[_LoggedTurn]) -> Iterator[list[list[_LoggedTurn]]]:
    """Turns by group and rollout, as they follow each other: a task may come twice in one step."""
    group: list[list[_LoggedTurn]] = []
    for (step, task, rollout), found in groupby(turns, key=lambda turn: (turn.step, turn.task, turn.rollout)):
        last = group[-1][-1] if group else None
        if last and ((step, task) != (last.step, last.task) or rollout < last.rollout):
            yield group
            group = []
        group.append(list(found))
    if group:
        yield group


def _prompt_frame(policy: TransformersPolicy, agent: AgentConfig, schema: MemorySchema) -> tuple[str, str]:
    """The text that every writer prompt begins with, and the one it ends with."""
    views = (
        Observation(Chunk(text="a")),
        Observation(Chunk(text="b", timestamp="2024-05-01"), "x"),
        Observation(Chunk(text="c"), "", (ViewEntry("y#0", "semantic", "z"),)),
    )
    texts = [decode(policy, policy.render(*writer_messages(seen, agent, schema))) for seen in views]
    return _common_prefix(texts), _common_prefix([text[::-1] for text in texts])[::-1]


def _common_prefix(texts: Sequence[str]) -> str:
    """The longest beginning that all have in common."""
    return "".join(letters[0] for letters in takewhile(lambda some: len(set(some)) == 1, zip(*texts, strict=False)))


# ---------------------------------------------------------------------------------------------------- a user's own rows

_KEYS = ("prompt", "completion", "messages", "tools")


def load_rows(path: Path, policy: TransformersPolicy) -> list[list[TrainingSample]]:
    """The rows of a JSON Lines file in TRL's formats, a list for each line.

    `{"prompt", "completion"}`: the prompt is a text, taken as it is, or messages, which go through the policy's chat
    template (with `"tools"`, if there are any); the completion is a text or one assistant message. `{"messages"}`:
    every assistant message is a completion, what stands before it the prompt. Tool calls of an assistant message become
    the text of calls that the agent reads. Raises `DataError` with file, line and field for anything else, and for a
    row longer than the model takes.
    """
    found = []
    for where, value in read_objects(path, _KEYS):
        rows = []
        for prompt, reply, field in _prompts_and_replies(value, policy, where):
            if not prompt:
                raise DataError(f"{where}: {field}: there is no prompt before it")
            ids = encode_reply(policy, reply, f"{where}: {field}")
            check_room(policy, len(prompt) + len(ids), where)
            rows.append(cross_entropy_sample(prompt, ids, task=where))
        found.append(rows)
    return found


def _prompts_and_replies(
    value: Mapping[str, Any], policy: TransformersPolicy, where: str
) -> Iterator[tuple[Sequence[int], str, str]]:
    """(prompt ids, reply, field of the reply) of one line."""
    tools = validate_tools(value, where)
    if ("messages" in value) == ("prompt" in value or "completion" in value):
        raise DataError(f"{where}: write either prompt and completion, or messages")
    if "messages" in value:
        messages = validate_messages(value["messages"], f"{where}: messages")
        replies = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if not replies:
            raise DataError(f"{where}: messages: none is the assistant's, so there is nothing to imitate")
        for place in replies:
            field = f"messages[{place}]"
            before = render_messages(policy, messages[:place], tools, f"{where}: {field}")
            yield before, format_message(messages[place], f"{where}: {field}"), field
        return
    for key in ("prompt", "completion"):
        if key not in value:
            raise DataError(f"{where}: {key}: missing")
    ids = encode_prompt(value["prompt"], tools, policy, where)
    yield ids, reply_text(value["completion"], f"{where}: completion"), "completion"
