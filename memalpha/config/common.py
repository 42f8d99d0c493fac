"""Settings that training and evaluation share: tasks, writer, reader, endpoints, judge, reward."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from memalpha.errors import ConfigError, describe_exception


def import_object(name: str, key: str) -> Any:
    """Import the object `module:name`; modules of the working directory are found too.

    Args:
        name: `package.module:object`, or a dotted path behind the colon.
        key: Configuration key that error messages name.

    Raises:
        ConfigError: The name has another form, nothing is found there, or its module fails.
    """
    module, colon, path = name.partition(":")
    if not (colon and module.strip() and path.strip()):
        raise ConfigError(f"{key}: {name!r}: write module:name, for example my_rewards:short_answers")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # for what the module imports later
    sys.path.insert(0, here)
    missing = f"{key}: {name!r} cannot be found ({{}}), also not in {here}"
    try:
        value: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(missing.format(error)) from error
        cause = describe_exception(error)
        if isinstance(error, SyntaxError):  # its own text holds a place too
            cause = f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
        raise ConfigError(f"{key}: {name!r}: its module fails: {cause}") from error
    finally:
        sys.path.remove(here)
    try:
        for attribute in path.split("."):
            value = getattr(value, attribute)
    except AttributeError as error:
        raise ConfigError(missing.format(error)) from error
    except Exception as error:  # of a module's own `__getattr__`
        raise ConfigError(f"{key}: {name!r}: {describe_exception(error)}") from error
    return value


ONE_IS_A_LIST = BeforeValidator(
    lambda value: tuple(map(str.strip, value.split(","))) if isinstance(value, str) else value
)
"""For settings that are lists of names: a text stands for a list, its names apart by commas."""
Share = Annotated[float, Field(ge=0.0, le=1.0)]


def _parts_of(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _parts_of(part)


class Config(BaseModel):
    """Base of every configuration: frozen, with unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_boolean_as_number(cls, data: Any) -> Any:
        """Refuse true and false where pydantic would take 1 and 0."""
        for name, field in cls.model_fields.items() if isinstance(data, Mapping) else ():
            value, kinds = data.get(name), set(_parts_of(field.annotation))
            items = value if isinstance(value, list | tuple) else [value]
            if kinds & {int, float} and bool not in kinds and any(isinstance(item, bool) for item in items):
                raise ValueError(f"{name}: give another value than true or false")
        return data

    def kept_in(self, folder: Path | str | None) -> Self:
        """Return a copy whose paid answers are cached in `folder`, unless a cache is set."""
        if folder is None:
            return self
        parts = {name: part for name, part in self if isinstance(part, Config)}
        copies = {name: part.kept_in(folder) for name, part in parts.items()}
        changes = {name: copy for name, copy in copies.items() if copy is not parts[name]}
        return self.model_copy(update=changes) if changes else self

    def refuse_unread(self, names: Iterable[str], reason: str, *, group: str = "") -> None:
        """Raise `ValueError` if one of the settings has another value than its default, though nothing reads it.

        Args:
            names: Names of settings.
            reason: Why nothing reads them, such as "with algorithm=dpo".
            group: Name of this group of settings in front of theirs, such as "loss.".
        """
        for name in names:
            if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                raise ValueError(f"{group}{name}: has no effect {reason}; leave it out")


def refuse_together(setting: str, exclusions: Mapping[str, bool], problem: str = "does not work with {}") -> None:
    """Raise `ValueError` if a setting meets one that excludes it.

    Args:
        setting: The setting, which is in use.
        exclusions: Names of what excludes it, and whether each is in use.
        problem: What is wrong; `{}` is the name of the other.
    """
    for other, is_used in exclusions.items():
        if is_used:
            raise ValueError(f"{setting}: {problem.format(other)}; leave one of them out")


class WorldConfig(Config):
    """Synthetic world (`tasks.synthetic`): `preset` sets its size, `split` the values in use."""

    preset: Literal["demo", "full", "state"] = Field(
        default="demo",
        description="demo: short conversations; full: streams of any length; state: each fact in a situation of its "
        "own, such as corrected, ended by another change, claimed by others",
    )
    split: Literal["train", "test"] = Field(default="train", description="which values it may use")
    pseudo_values: Share = Field(default=0.0, description="share of values replaced by pseudo-words (training)")
    tokens: PositiveInt | None = Field(
        default=None, description="full and state: length of a conversation, in tokens (characters / 4)"
    )
    temporal_questions: bool = Field(default=False, description="demo preset: also ask when an event happened")
    drills: Share = Field(
        default=0.0,
        description="demo preset: share of conversations of two chunks, one that fills the memory and one that changes "
        "it (training)",
    )


class BabiConfig(Config):
    """Streams of bAbI stories (`tasks.datasets.babi`)."""

    tasks: tuple[Literal[1, 2, 6, 8, 9, 11, 12, 13], ...] = Field(
        default=(1, 2, 6, 8, 9, 11, 12, 13), min_length=1, description="bAbI's task numbers"
    )
    stories: int = Field(default=4, gt=0, le=6, description="stories interleaved in one stream")
    folder: str | None = Field(
        default=None, description="folder of the official English files (default: the shipped ones)"
    )


class ChatConfig(Config):
    """How a language model is asked: its thoughts and the arguments of its chat template."""

    thinking_tokens: NonNegativeInt = Field(
        default=0, description="budget of thoughts before a reply, beside max_new_tokens; 0 turns thinking off"
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="further arguments of the chat template; an endpoint is sent them as they are (thinking there is "
        "off only with {enable_thinking: false})",
    )


HIDDEN_INSTRUCTIONS = (
    "the compact prompt cannot show them, because its policy was trained on exact bytes; leave them out, or choose a "
    "policy with prompt=full"
)
"""Reason why `agent.instructions` are refused with the compact prompt."""

MEM_ALPHA_AGENT = {"view_tokens": 3072, "view_related": 0, "view_recent": 5, "max_new_tokens": 2048}
"""Defaults of an agent with `prompt: mem-alpha`: what the checkpoints were trained with (prompts of 6,144 tokens)."""


def reply_form(prompt: str, form: str) -> str:
    """Return the form in which a writer's reply is read: "mem-alpha", "lines" or "hermes".

    Native calls are Hermes here: a policy gives the calls of every model family in that form.
    """
    return prompt if prompt == "mem-alpha" else "lines" if form == "lines" else "hermes"


class AgentConfig(ChatConfig):
    """Prompt of the writer and its view of the memory.

    With `prompt: mem-alpha` the view holds the `view_recent` entries of each category that were stored last, and
    `MEM_ALPHA_AGENT` has the defaults.
    """

    memory_schema: str = Field(default="mem-alpha", description="mem-alpha, life, or a YAML file of your own")
    embedder: str = Field(
        default="static",
        description="static, hash, minilm, openai:MODEL, http://HOST/v1#MODEL, or a model's hub id or folder",
    )
    prompt: Literal["full", "compact", "mem-alpha"] = Field(
        default="full",
        description="prompt style; compact is the tiny policies', mem-alpha that of Mem-alpha's checkpoints "
        "(agent.mem_alpha)",
    )
    form: Literal["native", "hermes", "lines"] = Field(
        default="native",
        description="form of its calls: native, as the model's chat template writes them; hermes, JSON blocks that the "
        "prompt spells out; lines, one short line a call (agent.replies)",
    )
    prompt_file: Path | None = Field(
        default=None,
        description="prompt=mem-alpha: YAML or JSON file with the texts `system` and `user`, in place of ours",
    )
    view_tokens: PositiveInt = Field(default=1024, description="budget of the memory view, in the policy's tokens")
    view_related: NonNegativeInt = Field(default=8, description="entries retrieved for the chunk")
    view_recent: NonNegativeInt = Field(
        default=8, description="most recent entries; prompt=mem-alpha: of each category"
    )
    max_new_tokens: PositiveInt = Field(default=1024, description="tokens of a reply to one chunk, at most")
    tools: tuple[str, ...] = Field(
        default=(), description="tools of your own beside the five: module:Class, derived from agent.tools.Tool"
    )
    instructions: str | None = Field(
        default=None, description="your own words on what to remember, shown to the writer with every chunk"
    )

    @property
    def reply_form(self) -> str:
        """Form in which the writer's reply is read: "mem-alpha", "lines" or "hermes"."""
        return reply_form(self.prompt, self.form)

    @field_validator("instructions")
    @classmethod
    def _not_blank(cls, instructions: str | None) -> str | None:
        if instructions is not None and not instructions.strip():
            raise ValueError("empty: say what to remember, or leave it out")
        return instructions

    @model_validator(mode="wrap")
    @classmethod
    def _add_style_defaults(cls, data: Any, handler: ModelWrapValidatorHandler[AgentConfig]) -> AgentConfig:
        """Put the style's defaults under the given settings; they do not count as set."""
        if not isinstance(data, Mapping) or data.get("prompt") != "mem-alpha":
            return handler(data)
        config = handler({**MEM_ALPHA_AGENT, **data})
        config.model_fields_set.difference_update(set(MEM_ALPHA_AGENT) - set(data))
        return config

    @model_validator(mode="after")
    def _check_style(self) -> AgentConfig:
        if self.instructions is not None and self.prompt == "compact":
            raise ValueError(f"instructions: {HIDDEN_INSTRUCTIONS}")
        if self.prompt != "mem-alpha":
            self.refuse_unread(["prompt_file"], f"with prompt={self.prompt}")
            return self
        self.refuse_unread(["tools", "form"], "with prompt=mem-alpha, which has its own")
        if self.view_related:
            raise ValueError(
                "view_related: prompt=mem-alpha shows the last entries of each category, none by search; leave it out"
            )
        return self


class ReaderConfig(ChatConfig):
    """Frozen reader that answers questions from retrieved memory."""

    kind: Literal["extractive", "copy", "policy", "agentic", "full-memory"] = Field(
        default="extractive",
        description="who answers: a rule over `name: value` notes, a network that copies words, or a policy: from one "
        "search, after further searches of its own (agentic), or from all entries that fit (full-memory)",
    )
    policy: str | None = Field(
        default=None, description="the policy that answers, where one does (default: the trained run's start)"
    )
    prompt: Literal["full", "compact"] = Field(
        default="full", description="prompt style; compact is the tiny policies'"
    )
    k: PositiveInt = Field(default=8, description="entries retrieved per question")
    conflicts: Literal["keep", "refuse", "newest"] | None = Field(
        default=None,
        description="two current values of one slot: keep both, refuse to answer from them, or read only the newest "
        "(default: refuse in training runs, keep elsewhere)",
    )
    cite: bool = Field(
        default=False, description="of a policy: ask for answer, evidence and reasoning, one line each (agent.reader)"
    )
    searches: PositiveInt = Field(
        default=4, description="kind=agentic: calls of search_memory per question, at most; each finds k entries"
    )
    context_tokens: PositiveInt = Field(
        default=7168,
        description="kind=full-memory: tokens of core memory and entries shown, as the policy counts them; its context "
        "needs room for question and answer beside them",
    )
    max_new_tokens: PositiveInt = Field(default=32, description="tokens of an answer, at most")

    @model_validator(mode="after")
    def _refuse_unasked_policy(self) -> ReaderConfig:
        if self.policy is not None and not self.is_model:
            raise ValueError(f"policy: reader.kind={self.kind} asks no policy: set reader.kind=policy, or leave it out")
        return self

    def refuse_unused(self) -> None:
        """Raise `ValueError` for a setting of a run or an evaluation that its kind of reader does not read."""
        self.refuse_unread(UNUSED_BY_READER[self.kind], f"with reader.kind={self.kind}", group="reader.")

    @property
    def is_model(self) -> bool:
        """True if a policy answers."""
        return self.kind in ("policy", "agentic", "full-memory")


_OF_MODELS = ("policy", "prompt", "cite", "searches", "context_tokens", "max_new_tokens", *ChatConfig.model_fields)
UNUSED_BY_READER = {
    "extractive": _OF_MODELS,
    "copy": _OF_MODELS,
    "policy": ("searches", "context_tokens"),
    "agentic": ("context_tokens",),
    "full-memory": ("searches",),
}
"""Settings that a kind of reader does not read."""


class EndpointConfig(Config):
    """Calls of OpenAI-compatible endpoints (`policy.endpoint`); limits hold for each endpoint."""

    concurrency: PositiveInt = Field(default=8, description="concurrent requests")
    requests_per_minute: PositiveInt | None = Field(default=None, description="requests in any 60 seconds")
    tokens_per_minute: PositiveInt | None = Field(
        default=None, description="tokens in any 60 seconds: prompt tokens plus the most that may be generated"
    )
    timeout: PositiveFloat = Field(default=120.0, description="seconds until a request times out")
    retries: NonNegativeInt = Field(
        default=8, description="retries after status 429 or 5xx and missing or incomplete answers"
    )
    max_wait: PositiveFloat = Field(
        default=60.0, description="longest wait before a retry, in seconds; a server that asks for more counts as down"
    )
    cache: Path | None = Field(
        default=None, description="SQLite file of paid answers (default: answers.sqlite in the run's out; else none)"
    )
    key_env: str | None = Field(
        default=None,
        description="environment variable with the key (default: OPENAI_API_KEY for openai:MODEL, no key for a URL)",
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict,
        description="further fields of each request; they override the defaults, and null removes a field",
    )
    prices: dict[str, tuple[float, float]] = Field(
        default_factory=dict,
        description="prices by endpoint name: of a million prompt tokens and of a million generated tokens",
    )

    @field_validator("parameters")
    @classmethod
    def _asks_for_one_answer(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        """Refuse what would send another request than the caller's, or bring an answer that is not read whole."""
        allowed = {"messages": (), "model": (None,), "n": (None, 1), "stream": (None, False)}
        for name in parameters.keys() & allowed:
            if parameters[name] not in allowed[name]:
                raise ValueError(f"{name}: each request asks the named model for one whole answer; leave it out")
        return parameters

    def kept_in(self, folder: Path | str | None) -> Self:
        """Return a copy with the cache in `folder`, unless a cache is set."""
        if self.cache is not None or folder is None:
            return self
        return self.model_copy(update={"cache": Path(folder) / "answers.sqlite"})


class JudgeConfig(ChatConfig):
    """Language models that judge answers (`qa.scoring.judge`)."""

    judges: tuple[str, ...] = Field(
        min_length=1, description="policies: http://HOST/v1#MODEL, openai:MODEL, a directory or a hub id"
    )
    weights: tuple[float, ...] | None = Field(default=None, description="one weight per judge (default: equal)")
    max_new_tokens: PositiveInt = Field(default=512, description="room for a verdict with its reason")
    endpoint: EndpointConfig = EndpointConfig()

    @model_validator(mode="after")
    def _a_weight_each(self) -> JudgeConfig:
        if len(set(self.judges)) < len(self.judges):
            raise ValueError("judges: one is named twice, and would vote the same twice; use weights")
        weights = self.weights
        if weights is not None and (len(weights) != len(self.judges) or min(weights) <= 0):
            raise ValueError(f"weights: {len(self.judges)} judges need as many weights, all above 0")
        return self


class LearntReward(Config):
    """Reward model (`memalpha train reward`) as a component of a reward."""

    path: str = Field(min_length=1, description="a run directory, a checkpoint, any directory of one, or a hub id")
    weight: float = Field(default=1.0, description="weight of the score")
    device: str = Field(default="cpu", description="torch device on which it scores")


class MemoryFunction(Config):
    """User-defined reward function of a memory run, one number per rollout."""

    function: str = Field(description="package.module:name of a callable (trajectory, records) -> float")
    name: str = Field(default="function", pattern=r"^\w+$", description="name of the component in metrics and files")
    weight: float = Field(default=1.0, description="weight of the component in the reward")


class CreditConfig(Config):
    """Settings of `reward.credit: calls` (`memalpha.train.algorithms.credit`)."""

    share: NonNegativeFloat = Field(
        default=0.25, description="weight of the turn's advantage, which credit is added to (0: calls rot)"
    )
    gamma: Share = Field(default=0.5, description="discount of later turns' effects on an answer")
    failed: NonNegativeFloat = Field(default=0.5, description="cost of a failed call, centred over the group's calls")
    duplicate: NonNegativeFloat = Field(default=0.25, description="cost of a duplicate, centred likewise")
    end: NonNegativeFloat = Field(
        default=0.5, description="weight of what no call of the reply explains, which its end gets"
    )


class RewardConfig(Config):
    """Weights of r_t = r1 + r2_t + beta r3 + gamma r4_t, and the rules of each component."""

    preset: Literal["default", "published"] = Field(
        default="default", description="published: as the code of Mem-alpha; default: its perverse cases repaired"
    )
    accuracy: NonNegativeFloat = Field(default=1.0, description="weight of r1, the accuracy; 0 only records it")
    calls: NonNegativeFloat = Field(default=1.0, description="weight of r2, the share of successful calls")
    beta: NonNegativeFloat = Field(default=0.05, description="weight of r3")
    gamma: NonNegativeFloat = Field(default=0.1, description="weight of r4")
    metric: Literal["exact", "f1", "contains", "question", "cited", "judge"] = Field(
        default="exact",
        description="score of an answer for r1; question: each question's own metric, cited: that metric with the "
        "reply's form and evidence (qa.scoring.metrics; needs reader.cite)",
    )
    content: Literal["gold", "state", "judge", "copied"] = Field(
        default="gold",
        description="validity of a write, for r4: by the task's gold operations word for word, by the judge, or "
        "(copied) if its names, numbers and values stand in the chunk; state: what a turn did to the facts of the gold "
        "operations, in any words",
    )
    reader: ReaderConfig | None = Field(
        default=None, description="reader of the reward, if other than the run's, which evaluations use"
    )
    judge: JudgeConfig | None = Field(default=None, description="for metric=judge and content=judge")
    model: LearntReward | None = Field(
        default=None, description="reward model that scores the final memory given the conversation, as a component"
    )
    functions: tuple[MemoryFunction, ...] = Field(default=(), description="user-defined functions, one component each")
    credit: Literal["turn", "calls"] = Field(
        default="turn",
        description="what a token learns from: the advantage of its turn, or (calls) that and what its call did to the "
        "answers (grpo, rloo, erl)",
    )
    credit_settings: CreditConfig = Field(default=CreditConfig(), description="credit=calls: its settings")

    @field_validator("metric", mode="before")
    @classmethod
    def _no_function(cls, name: object) -> object:
        if isinstance(name, str) and ":" in name:
            own = f"question, with {{'meta': {{'metric': {name!r}}}}} at each question of the data"
            raise ValueError(f"for a function of yours take {own}; one that scores whole rollouts: reward.functions")
        return name

    @model_validator(mode="after")
    def _a_judge(self) -> RewardConfig:
        for name in ("metric", "content"):
            if getattr(self, name) == "judge" and self.judge is None:
                raise ValueError(f"{name}: judge needs one: name it in judge.judges")
        if self.reader is not None:
            self.reader.refuse_unused()
        names = ["r1", "r2", "r3", "r4", "model", *(function.name for function in self.functions)]
        if len(set(names)) < len(names):
            raise ValueError(f"functions: two components have one name ({', '.join(names)}): set name")
        weights = [self.accuracy, self.calls, self.beta, self.gamma, *(function.weight for function in self.functions)]
        if not any(weights) and not (self.model and self.model.weight):
            raise ValueError("accuracy, calls, beta and gamma are 0, and so is every reward: set a weight")
        if "judge" not in (self.metric, self.content):
            self.refuse_unread(["judge"], "without metric=judge or content=judge")
        if self.credit == "turn":
            self.refuse_unread(["credit_settings"], "with credit=turn")
        elif self.metric == "judge":
            raise ValueError("credit: calls would ask the judge of every memory of every rollout; set another metric")
        elif not self.accuracy:
            raise ValueError("credit: calls are credited with answers, which accuracy=0 leaves out of the reward")
        return self


class TrustConfig(Config):
    """Trust rule: what a speaker may change. What lacks the right waits in quarantine for a review."""

    owner: str = Field(
        default="user",
        min_length=1,
        description="speaker whose word counts over all others'; user is a chat's person without a name",
    )
    max_deletes: NonNegativeInt = Field(default=2, description="deletes of one chunk that are done; further ones wait")
    max_delete_share: Share = Field(
        default=0.5, description="share of the entries that one chunk's deletes may reach, one at least"
    )
    key_speakers: dict[str, str] = Field(
        default_factory=dict,
        description="speaker by name of the server's key: what comes with the key counts as said by this speaker",
    )
