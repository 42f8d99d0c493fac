"""`EvalConfig`: settings of one evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from memalpha.config.common import (
    ONE_IS_A_LIST,
    AgentConfig,
    BabiConfig,
    Config,
    EndpointConfig,
    JudgeConfig,
    ReaderConfig,
    WorldConfig,
)
from memalpha.config.groups import LoadingConfig
from memalpha.config.sampling import EvalSamplingConfig

_NO_READER = ("metric", "reader", "context_tokens", "variant", "options")  # without effect where nobody reads
EVAL_K = 20
"""Default number of passages that a searching system shows for a question."""


class EvalConfig(Config):
    """One evaluation: every system gets the same tasks, reader, context budget and metric."""

    benchmark: str = Field(
        default="tasks", description="a data set (memalpha data list), tasks (a task file), search, or state"
    )
    data: str | None = Field(default=None, description="the data set's file or folder, or a task file (JSON Lines)")
    variant: str | None = Field(default=None, description="part or size of the data set (default: its first)")
    options: dict[str, Any] = Field(default={}, description="the data set's own options, as its loader names them")
    out: Path | None = Field(default=None, description="run directory; results are written to its folder eval")
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1, description="seeds of randomized data sets")
    limit: PositiveInt | None = Field(default=None, description="only the first tasks (of each seed)")
    chunk_tokens: PositiveInt | None = Field(
        default=None, description="split longer chunks between turns, in tokens (default: the data set's chunks)"
    )
    world: WorldConfig = WorldConfig(split="test")
    babi: BabiConfig = BabiConfig()
    systems: Annotated[tuple[str, ...], ONE_IS_A_LIST] = Field(
        default=("empty", "append-only", "rag"), min_length=1, description="names of systems: see memalpha.qa.systems"
    )
    context_tokens: PositiveInt = Field(
        default=2048, description="context budget of a question, in tokens (characters / 4)"
    )
    metric: str | None = Field(
        default=None, description="metric of all questions, or yours as module:function (default: the official one)"
    )
    device: str = Field(default="cpu", description="torch device of writers and reader")
    endpoint: EndpointConfig = Field(
        default=EndpointConfig(), description="calls of a writer or reader behind an endpoint"
    )
    judge: JudgeConfig | None = Field(default=None, description="language models that judge answers")
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="precision of writers and reader")
    compute: LoadingConfig = LoadingConfig()
    sampling: EvalSamplingConfig = EvalSamplingConfig()
    agent: AgentConfig = AgentConfig()
    reader: ReaderConfig = Field(
        default=ReaderConfig(k=EVAL_K), description="reader.k: passages that a searching system shows (default 20)"
    )
    embedders: tuple[str, ...] = Field(default=("static",), min_length=1, description="search: embedders to compare")

    @field_validator("reader", mode="before")
    @classmethod
    def _twenty_unless_set(cls, reader: Any) -> Any:
        return {"k": EVAL_K, **reader} if isinstance(reader, Mapping) else reader

    @model_validator(mode="after")
    def _refuse_unused(self) -> Self:
        unused = () if self.benchmark == "search" else ("embedders",)
        for name in (*unused, *(_NO_READER if self.benchmark == "state" else ())):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name}: memalpha eval {self.benchmark} does not use it: leave it out")
        self.reader.refuse_unused()
        return self
