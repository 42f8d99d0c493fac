"""Groups of settings of sampling: rollouts of a run, batches of a sampler in this process, a vLLM server."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from memalpha.config.common import ChatConfig, Config
from memalpha.endpoint_calls import may_hold_key, split_address


class BatchConfig(Config):
    """Memory of a sampler in this process, and which replies it gives up."""

    batch_tokens: PositiveInt = Field(
        default=65536,
        description="most rows x (prompt + new tokens of the longest) decoded together; the cache of keys and values "
        "holds as many tokens",
    )
    decode_rows: PositiveInt = Field(default=128, description="most rows decoded together")
    stop_repeats: bool = Field(
        default=False,
        description="cut a reply that writes the same tokens three times or more in a row, over at least 24 tokens; it "
        "counts as truncated",
    )


class EvalSamplingConfig(BatchConfig):
    """Sampling of an evaluation, and the check of its reader."""

    stop_unreadable: bool = Field(
        default=True,
        description="stop an evaluation if the first answers of a reader's language model are all empty or over 90 % "
        "cut off; false goes on",
    )


class SamplingConfig(BatchConfig):
    """Rollouts of a task."""

    group_size: int = Field(default=8, ge=2, description="rollouts per task (TRL: num_generations)")
    temperature: PositiveFloat = Field(default=1.0, description="sampling temperature")


SAMPLER_PREFIX = "vllm:"
"""Start of a `sampler.url`."""


class SamplerConfig(Config):
    """A vLLM server that samples the rollouts in place of this process (`policy.vllm`)."""

    url: str = Field(
        description="vllm:http://HOST:PORT#FOLDER; new weights go through FOLDER, which this process and the server "
        "see under the same path (default: sampler in the run's out)"
    )
    tolerance: PositiveFloat | None = Field(
        default=None,
        description="largest mean gap of the server's log-probs to the learner's after a sync, over a few prompts "
        "(default: 1e-4, with compute.dtype=bfloat16 0.03)",
    )
    concurrency: PositiveInt = Field(default=256, description="requests under way at the server")
    timeout: PositiveFloat = Field(default=600.0, description="seconds until a request counts as lost")
    retries: NonNegativeInt = Field(
        default=4, description="retries of a request that got no answer or nonsense; then the run stops"
    )
    max_wait: PositiveFloat = Field(default=10.0, description="longest wait before a retry, in seconds")

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        address = url.removeprefix(SAMPLER_PREFIX).partition("#")[0]
        if may_hold_key(address):
            raise ValueError("an address with a password or a query would stand in config.yaml: leave it out")
        parts = split_address(address)
        if not url.startswith(SAMPLER_PREFIX) or parts is None or parts.path.strip("/"):
            raise ValueError(f"{url!r} names no server: write vllm:http://HOST:PORT, or vllm:http://HOST:PORT#FOLDER")
        return url

    @property
    def address(self) -> str:
        """Address of the server, without a path."""
        return self.url.removeprefix(SAMPLER_PREFIX).partition("#")[0].rstrip("/")

    @property
    def folder(self) -> Path | None:
        """Folder of the weights; None for the default."""
        name = self.url.partition("#")[2]
        return Path(name) if name else None


class RLSamplingConfig(SamplingConfig):
    """Rollouts of a step of reinforcement learning."""

    group_size: PositiveInt = Field(default=8, description="rollouts per task (TRL: num_generations)")
    tasks_per_step: PositiveInt = Field(default=8, description="tasks of a step, each with group_size rollouts")
    top_p: float = Field(default=1.0, description="must stay 1: truncated sampling biases every importance ratio")
    top_k: int = Field(default=0, description="must stay 0: truncated sampling biases every importance ratio")
    dtype: Literal["bfloat16", "float32", "float64"] | None = Field(
        default=None, description="precision of the sampler (default: the policy's); float64: exact log-probs on CPU"
    )
    resample_flat: NonNegativeInt = Field(
        default=0,
        description="rounds in which further tasks are sampled in place of groups with equal rewards (DAPO); 0: none",
    )
    stop_unreadable: bool = Field(
        default=True,
        description="stop a run whose first two steps have no readable tool call, over 90 % truncated replies, or a "
        "reader that is cut off or silent; false lets random weights start",
    )
    staleness: NonNegativeInt = Field(
        default=0,
        description="most steps that the sampler's weights may lie behind the learner's; with a server (`sampler`) "
        "rollouts are sampled while the learner learns, without one they are sampled this many steps before",
    )
    sampler: SamplerConfig | None = Field(
        default=None, description="a vLLM server that samples the rollouts (default: this process does)"
    )
    written_tasks: int = Field(
        default=4, ge=1, description="tasks of each step whose rollouts trajectories.jsonl keeps, in words"
    )
    keep_tokens: bool = Field(
        default=False, description="write turns.jsonl and a checkpoint per step, for outside checks"
    )


class TextSamplingConfig(RLSamplingConfig, ChatConfig):
    """Rollouts of text tasks."""

    max_new_tokens: PositiveInt = Field(default=256, description="tokens of a reply (TRL: max_completion_length)")


class CurriculumConfig(Config):
    """Curriculum from easy to hard: accuracy at a level unlocks the next one."""

    column: str = Field(
        default="level", description="the column of a task that names its level (memory tasks: the key of `meta`)"
    )
    order: tuple[str, ...] = Field(min_length=2, description="levels, the easiest first")
    threshold: float = Field(default=0.8, gt=0.0, le=1.0, description="training accuracy that unlocks the next level")
    window: PositiveInt = Field(
        default=64,
        description="number of latest attempts at the level that the accuracy covers (memory tasks: of answers)",
    )
    review: float = Field(default=0.2, ge=0.0, lt=1.0, description="share of tasks that come from earlier levels")

    @field_validator("order")
    @classmethod
    def _once_each(cls, order: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(order)) < len(order):
            raise ValueError("a level comes twice")
        return order


class MemorySamplingConfig(RLSamplingConfig):
    """Rollouts of memory tasks."""

    groups: Literal["conversation", "chunk"] = Field(
        default="conversation",
        description="what the replies of a group have in common: the conversation, each rollout with a memory of its "
        "own; or at each chunk the memory before it, too (chunk): a reply is then compared with others to the same "
        "prompt, by the questions that can be answered after the chunk, and one reply drawn at random goes on",
    )
    conversation_share: float = Field(
        default=0.0,
        ge=0.0,
        lt=1.0,
        description="groups=chunk: share of the tasks whose rollouts are whole conversations, for what acts at a "
        "distance (the core memory, the size of the memory)",
    )
    questions_per_task: PositiveInt | None = Field(
        default=None,
        description="most questions of a task that the reward of a step asks, drawn anew every step and the same for "
        "all rollouts of the task (the idea of Mem-alpha's sub_sample_question_ratio); evaluations ask all "
        "(default: all)",
    )
    curriculum: CurriculumConfig | None = Field(
        default=None, description="easy tasks of a task file first (default: all at once)"
    )
