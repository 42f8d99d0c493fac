"""Parts of a text run's reward: `rewards:` lists them, and the reward is their weighted sum."""

from __future__ import annotations

from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from memalpha.config.common import Config, JudgeConfig


class RewardSettings(Config):
    """Settings of any part of a reward."""

    kind: str
    name: str | None = Field(default=None, min_length=1, description="the component's name (default: the kind)")
    weight: float = Field(default=1.0, description="weight of the component in the sum; 0: only recorded")


class MathPart(RewardSettings):
    """Reward 1 if the reply's answer equals the truth (`rewards.math`)."""

    kind: Literal["math"]
    column: str = Field(default="answer", description="the column with the truth: an answer, or a solution with one")


class CodePart(RewardSettings):
    """Share of tests that the reply's program passes in a sandbox (`rewards.code`)."""

    kind: Literal["code"]
    column: str = Field(default="tests", description="the column with the tests: assert lines, or inputs with outputs")
    score: Literal["share", "all"] = Field(default="share", description="the share of tests passed, or all or nothing")
    seconds: PositiveInt = Field(default=4, description="CPU seconds of a program; the clock limit is six times that")
    megabytes: int = Field(default=512, ge=64, description="memory of a program, in megabytes")
    concurrency: NonNegativeInt = Field(default=0, description="programs that run at once (0: one per core)")


class FormatPart(RewardSettings):
    """Reward 1 if a regular expression matches the reply (`rewards.format`)."""

    kind: Literal["format"]
    pattern: str = Field(description="a regular expression; (?s) lets the dot take newlines too")
    match: Literal["full", "search"] = Field(default="full", description="the whole reply, or any part of it")


class SchemaPart(RewardSettings):
    """Reward 1 if the reply's first JSON value fits a JSON schema (`rewards.format`)."""

    kind: Literal["schema"]
    json_schema: dict[str, Any] | Path = Field(description="the schema, or a JSON file that holds it")


class JudgePart(RewardSettings):
    """Grade of a reply by language models, from 0 to 1 (`rewards.judge`)."""

    kind: Literal["judge"]
    judge: JudgeConfig
    template: str = Field(
        default="Grade one reply to a prompt.\n{prompt}\n{completion}",
        description="question to the judges; {prompt}, {completion} and column names are filled in between tags",
    )
    scale: tuple[int, int] = Field(default=(1, 10), description="worst and best grade")

    @field_validator("scale")
    @classmethod
    def _upwards(cls, scale: tuple[int, int]) -> tuple[int, int]:
        if not 0 < scale[1] - scale[0] <= 100:
            raise ValueError("the best grade is 1 to 100 above the worst")
        return scale

    @field_validator("template")
    @classmethod
    def _shows_the_reply(cls, template: str) -> str:
        if "completion" not in template_fields(template):
            raise ValueError("the judges would not see the reply: put {completion} in")
        return template


def template_fields(template: str) -> tuple[str, ...]:
    """Return the names in braces; `{{` is a brace. Raise `ValueError` for other expressions."""
    names = []
    for _, name, form, convert in Formatter().parse(template):
        if name is not None and (form or convert or not name.isidentifier()):
            raise ValueError(f"{{{name}}} is no plain name; write a brace as two")
        names += [] if name is None else [name]
    return tuple(dict.fromkeys(names))


class PythonPart(RewardSettings):
    """User-defined reward function (`rewards.base`)."""

    kind: Literal["python"]
    function: str = Field(description="module:name of a callable, or of a class that makes one")
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="keyword arguments of the class, or fixed ones of the function"
    )


class ModelPart(RewardSettings):
    """Score of a reward model (`memalpha train reward`)."""

    kind: Literal["model"]
    path: str = Field(min_length=1, description="a run directory, a checkpoint, any directory of one, or a hub id")
    device: str = Field(default="cpu", description="torch device on which it scores")
    chat: bool = Field(
        default=True,
        description="turn a text prompt into one user message, as the policy gets it; false: plain text, for a "
        "model that was trained on it",
    )


RewardPart = Annotated[
    MathPart | CodePart | FormatPart | SchemaPart | JudgePart | PythonPart | ModelPart, Field(discriminator="kind")
]
"""A part of any kind, chosen by `kind`."""
