"""Interface of policies; `policy.load.load_policy` loads one by name.

A policy samples completions for a batch of prompts. It knows nothing of stores, tools or rewards. The agent renders the
prompts and parses the text.

The noise of sampling depends on a request's key alone, whatever the batches and processes (`noise_key`).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from memalpha.arguments import brief_repr, check_count, is_finite_number, name_errors
from memalpha.config import AgentConfig, ReaderConfig
from memalpha.config.common import HIDDEN_INSTRUCTIONS
from memalpha.config.files import build_config
from memalpha.endpoint_calls import ENDPOINT_PREFIXES
from memalpha.errors import ConfigError, PolicyError
from memalpha.types import Completion, SampleRequest

ROLES = ("attempt", "reflection", "retry")
"""Roles of a trajectory (`Trajectory.role`). A role's index is part of its noise keys."""


def noise_key(seed: int, step: int, number: int, rollout: int, turn: int, role: str = "attempt") -> tuple[int, ...]:
    """Return the noise key of one sampled turn.

    Each role has separate keys, so that a retry does not reuse the noise of its attempt.

    Args:
        seed: seed of the run.
        step: training step.
        number: index of the task within the step, over all processes.
        rollout: index of the rollout within its group.
        turn: index of the turn within the rollout.
        role: "attempt", "reflection" or "retry".

    Returns:
        Five integers, plus the index of the role unless it is "attempt".
    """
    key = (seed, step, number, rollout, turn)
    return key if role == "attempt" else (*key, ROLES.index(role))


def request_seed(key: Sequence[int]) -> int:
    """Return the seed, from 0 to 2**31 - 1, that a server gets for a request with this key."""
    words = hashlib.sha256(repr(tuple(int(part) for part in key)).encode()).digest()
    return int.from_bytes(words[:4]) >> 1


def shared_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many ids two sequences have in common at their beginnings."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (left, right) in pairs if left != right), min(len(first), len(second)))


S = TypeVar("S", AgentConfig, ReaderConfig)

ADAPTER_CONFIG = "adapter_config.json"
"""File that marks a directory as a LoRA adapter instead of a full model."""

SHIPPED_POLICIES = ("babi", "tiny", "tiny-text")
"""Policies whose weights come with the package."""

NAMED_POLICIES = (*SHIPPED_POLICIES, "smol", "smol-base")
"""Names that never stand for a directory; smol and its base need `memalpha fetch smol`."""


RULE_POLICIES = {"add_all": "scripted:add-all"}
"""Scripted policies that work without gold operations, by their short names."""


_OPENAI_MODEL = re.compile(r"(gpt|chatgpt)-|o[1-9](-|$)", re.IGNORECASE)
_OTHER_HOSTED_MODEL = re.compile(r"(claude|gemini|mistral|deepseek|grok|command|sonar)-", re.IGNORECASE)


@runtime_checkable
class Policy(Protocol):
    """Sample completions for prompts. `name` appears in reports and run directories."""

    name: str

    def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return one completion per request, in order.

        Sampled ids depend only on the request (messages, key, temperature), never on the rest of the batch. Log-probs
        may differ by rounding with the batch's shape. Raises `PolicyError` if the policy cannot answer.
        """
        ...

    def count_tokens(self, text: str) -> int:
        """Return the length of `text` in the policy's tokens, without special tokens."""
        ...


@runtime_checkable
class StyledPolicy(Protocol):
    """Policy that was trained on prompts of one style (`AgentConfig.prompt`)."""

    prompt: str


@runtime_checkable
class FormedPolicy(Protocol):
    """Policy that was trained on calls of one form (`AgentConfig.form`)."""

    form: str


@runtime_checkable
class SizedPolicy(Protocol):
    """Policy that was trained on rows of some sizes: tokens by the name of a setting."""

    sizes: dict[str, int]


@runtime_checkable
class QuotingPolicy(Protocol):
    """Policy whose entries `MemoryAgent` writes in the words of what it read, if `quotes` is True."""

    quotes: bool


@runtime_checkable
class RenderingPolicy(Policy, Protocol):
    """Policy whose prompts are rendered here; `positions` is the most tokens of a prompt and its reply, if known."""

    positions: int | None

    def render_request(self, request: SampleRequest) -> list[int]:
        """Return the token ids of a prompt."""
        ...


@runtime_checkable
class QueueingPolicy(Policy, Protocol):
    """Policy that begins a request before the others have ended."""

    def open_queue(self) -> SamplingQueue:
        """Return a new queue."""
        ...


@runtime_checkable
class BilledPolicy(Policy, Protocol):
    """Policy that counts what its calls cost, as one behind an endpoint does."""

    def statistics(self) -> dict[str, Any]:
        """Return the usage so far (`policy.endpoint.Bill`)."""
        ...


def format_bill(name: str, bill: Mapping[str, Any]) -> str:
    """Format what the answers of an endpoint cost, from its `Bill`, and how many refuse or have no token counts."""
    cached = " (free here; what an interrupted start paid is not counted)" if bill["cached"] else ""
    refused = f", {bill['refused']:,.0f} refused (`message.refusal`) and taken as they are" if bill["refused"] else ""
    doubted = f", of {bill['doubted']:,.0f} answers estimated" if bill["doubted"] else ""
    return (
        f"{name}: {bill['paid']:,.0f} answers paid, {bill['cached']:,.0f} from the cache{cached}, "
        f"{bill['prompt_tokens']:,.0f} + {bill['completion_tokens']:,.0f} tokens{doubted}{refused}"
        + ("" if bill["cost"] is None or math.isnan(bill["cost"]) else f", cost {bill['cost']:,.4f}")
    )


def is_endpoint(policy: Policy) -> bool:
    """Return True for a policy behind an endpoint (`policy.endpoint`), without importing its client."""
    return policy.name.startswith(ENDPOINT_PREFIXES)


LOWEST_LOGPROB = -1000.0
"""No sampled token has a log-prob as low as this."""


def first_invalid_logprob(values: Sequence[Any]) -> int | None:
    """Return the index of the first value that cannot be a sampled token's log-prob; None if all can."""
    checks = (is_finite_number(value) and LOWEST_LOGPROB < value <= 1e-6 for value in values)
    return next((index for index, is_valid in enumerate(checks) if not is_valid), None)


@contextmanager
def wrap_outside_errors(kind: str, maker: Any) -> Iterator[str]:
    """Raise what an object of any make raises as `PolicyError`; yield its name for further messages.

    Args:
        kind: Word for the object in the message.
        maker: The object. What one of memalpha's own raises beside `MemalphaError` is a bug and stays as it is.
    """
    name = brief_repr(getattr(maker, "name", type(maker).__name__))
    is_own = type(maker).__module__.partition(".")[0] == "memalpha"
    with name_errors(f"{kind} {name} raised", PolicyError, is_own=is_own):
        yield name


def sample_checked(policy: Policy, requests: Sequence[SampleRequest]) -> list[Completion]:
    """Sample completions from a policy of any make, and check them.

    Args:
        policy: Policy that samples. An error of one of memalpha's own keeps its class.
        requests: Prompts.

    Returns:
        One completion per request, in order.

    Raises:
        PolicyError: The policy raised, or returned another number of completions, no text, or log-probs that are not
            those of sampled tokens or not one per id.
    """
    with wrap_outside_errors("policy", policy) as name:
        completions = [*policy.sample(requests)]
    if len(completions) != len(requests):
        raise PolicyError(f"policy {name} returned {len(completions)} completions for {len(requests)} requests")
    for completion in completions:
        if not isinstance(completion, Completion) or not isinstance(completion.text, str):
            raise PolicyError(f"policy {name} returned {brief_repr(completion)}: a Completion with a text is needed")
        if completion.logprobs and len(completion.logprobs) != len(completion.completion_ids):
            raise PolicyError(f"policy {name} returned log-probs that are not one for each sampled id")
        if (invalid := first_invalid_logprob(completion.logprobs)) is not None:
            raise PolicyError(
                f"policy {name} returned {completion.logprobs[invalid]!r} as log-prob of token {invalid}: one of a "
                f"sampled token is at most 0 and above {LOWEST_LOGPROB:g} (-9999.0 and -inf stand for none)"
            )
    return completions


class SamplingQueue(Protocol):
    """Requests under way, each known by its ticket: its index among all submitted requests.

    A queue belongs to one thread. Sampled ids are those of `Policy.sample`: they depend on the request alone.
    """

    def submit(self, requests: Sequence[SampleRequest]) -> list[int]:
        """Add requests and return their tickets."""
        ...

    def collect(self) -> list[tuple[int, Completion]]:
        """Wait for a completion; return all that are there as (ticket, completion), [] if none is under way.

        Raises:
            PolicyError: The policy cannot answer. The queue is then unusable.
        """
        ...

    def close(self) -> None:
        """Drop all requests under way."""
        ...


class BatchQueue:
    """Queue of a policy that only samples in batches: `collect` samples all waiting requests.

    Args:
        policy: Policy that samples.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._waiting: list[SampleRequest] = []
        self._submitted = 0

    def submit(self, requests: Sequence[SampleRequest]) -> list[int]:
        """Add requests and return their tickets."""
        first = self._submitted
        self._waiting += requests
        self._submitted += len(requests)
        return list(range(first, self._submitted))

    def collect(self) -> list[tuple[int, Completion]]:
        """Sample all waiting requests in one call; return (ticket, completion) in order."""
        if not self._waiting:
            return []
        requests, self._waiting = self._waiting, []
        return list(enumerate(sample_checked(self.policy, requests), self._submitted - len(requests)))

    def close(self) -> None:
        """Drop the waiting requests."""
        self._waiting = []


def open_queue(policy: Policy) -> SamplingQueue:
    """Return a queue of the policy's own kind, or a `BatchQueue`."""
    return policy.open_queue() if isinstance(policy, QueueingPolicy) else BatchQueue(policy)


def sample_with(queue: SamplingQueue, requests: Sequence[SampleRequest]) -> list[Completion]:
    """Submit requests to a queue without others and return their completions, in order."""
    tickets = queue.submit(requests)
    completions: dict[int, Completion] = {}
    while len(completions) < len(requests):
        completions.update(queue.collect())
    return [completions[ticket] for ticket in tickets]


def count_checked(policy: Policy, text: str) -> int:
    """Return a policy's count of the tokens of a text.

    Raises:
        PolicyError: The policy raised, or returned something else than a whole number from 0.
    """
    with wrap_outside_errors("count_tokens of policy", policy):
        count = policy.count_tokens(text)
    check_count("the policy's count of tokens", count, error=PolicyError)
    return count


def with_prompt_style(settings: S, policy: Policy) -> S:
    """Return `settings` with the policy's prompt style, form of calls and sizes unless they set them explicitly.

    A style has defaults of its own for settings that are not set. Readers of `mem-alpha` policies are prompted as
    `full`: those policies were trained to write only.

    Raises:
        ConfigError: Settings do not fit the policy's style, such as instructions with the compact one.
    """
    style = policy.prompt if isinstance(policy, StyledPolicy) else "full"
    if isinstance(settings, ReaderConfig):
        if "prompt" in settings.model_fields_set:
            return settings
        return settings.model_copy(update={"prompt": reader_style(style)})
    sizes = {key: value for key, value in trained_sizes(policy).items() if key in type(settings).model_fields}
    values = {
        "prompt": style,
        "form": policy.form if isinstance(policy, FormedPolicy) else "native",
        **sizes,
        **settings.model_dump(exclude_unset=True),
    }
    if "form" not in settings.model_fields_set and values["prompt"] == "mem-alpha":
        del values["form"]
    if values.keys() == settings.model_fields_set:
        return settings
    if values["prompt"] == "compact" and settings.instructions is not None:
        raise ConfigError(f"agent.instructions: policy {policy.name!r}: {HIDDEN_INSTRUCTIONS}")
    return build_config(type(settings), values, "agent")


def trained_sizes(policy: Policy) -> dict[str, int]:
    """Return the sizes in tokens that a policy was trained on, by name (`TransformersPolicy.sizes`)."""
    return policy.sizes if isinstance(policy, SizedPolicy) else {}


def reader_style(style: str) -> Literal["full", "compact"]:
    """Return the prompt style in which a writer of a style is asked questions."""
    return "compact" if style == "compact" else "full"


def endpoint_hint(name: str) -> str:
    """Return how to name an endpoint's model.

    If `name` looks like a provider's model, the hint suggests its full name.
    """
    hint = "A model behind an endpoint is written openai:MODEL or http://host/v1#model"
    if _OPENAI_MODEL.match(name):
        return f"{hint}: try openai:{name}"
    if _OTHER_HOSTED_MODEL.match(name):
        return f"{hint}: try https://HOST/v1#{name} with the provider's OpenAI-compatible address"
    return hint
