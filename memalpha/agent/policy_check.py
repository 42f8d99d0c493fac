"""Check a writer's policy before anything starts: can it see the tools, and can its calls be read?

The check renders a prompt, writes two calls in the policy's own form, passes them through its tokenizer and reads them
back. It samples nothing, but for an endpoint, whose server renders and parses: that is asked once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from memalpha.agent import mem_alpha
from memalpha.agent.agent import build_request
from memalpha.agent.replies import format_calls, parse_reply
from memalpha.agent.tools import load_tools, tool_schemas
from memalpha.config import AgentConfig
from memalpha.errors import PolicyError
from memalpha.policy.base import Policy, is_endpoint, sample_checked, with_prompt_style
from memalpha.store.schema import MemorySchema, load_schema
from memalpha.types import Chunk, Observation, ToolCall

MIN_CHUNK_TOKENS = 64
"""Room that a prompt must leave for a chunk."""

_PROBE_CHUNK = Chunk(text="Ana: I moved to Lisbon last week, and my new number is 555-0173.")
_CALLS: tuple[tuple[str, dict[str, str]], ...] = (
    ("memory_insert", {"category": "", "content": 'Ana\'s new home (2024): "Lisbon", 3rd floor\n{left side}'}),
    ("memory_delete", {"id": "007"}),
)


@dataclass(frozen=True, slots=True)
class PolicyCheck:
    """Result of a check.

    Attributes:
        policy: Name of the policy.
        template: Family that the chat template was recognized as: "hermes", one of TRL's families, or "unknown";
            "endpoint" where a server renders; "" for policies without a template.
        tools_shown: Tools, their descriptions and their parameters stand in the prompt. None: not known (endpoint).
        calls_read_back: Calls in the policy's own form are read as they were meant.
        thinking: "none", "switch" (off by default), "closed" (the template opens thoughts, which are closed at once),
            "always" (in a channel of its own) or "server" (an endpoint decides).
        format: Form of its calls: "hermes", "native", "text" (spelled out in the prompt), "lines", "compact" or
            "mem-alpha" (of that prompt style), or "server".
        prompt_tokens: Tokens of a writer's prompt with an empty memory and an empty chunk.
        chunk_room: Tokens left for a chunk beside a full view and a full reply; None: no limit is known.
        problems: What keeps the policy from working, in words.
        notes: What is worth knowing.
    """

    policy: str
    template: str
    tools_shown: bool | None
    calls_read_back: bool
    thinking: str
    format: str
    prompt_tokens: int | None = None
    chunk_room: int | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def raise_if_broken(self) -> None:
        """Raise `PolicyError` if there are problems; it names all of them."""
        if self.problems:
            raise PolicyError(f"policy {self.policy!r} cannot write a memory: {'; '.join(self.problems)}")


@runtime_checkable
class _ChatPolicy(Protocol):
    chat: Any


def check_policy(policy: Policy, config: AgentConfig | None = None, schema: MemorySchema | None = None) -> PolicyCheck:
    """Check a policy as a writer of memories.

    Args:
        policy: The policy; of a transformers model only tokenizer and configuration are used.
        config: Prompt style, sizes, thinking.
        schema: Categories of the memory; default: `config.memory_schema`.

    Raises:
        PolicyError: The chat template refuses every conversation, or an endpoint does not answer.
    """
    config = with_prompt_style(config or AgentConfig(), policy)
    schema = schema or load_schema(config.memory_schema)
    if isinstance(policy, _ChatPolicy):
        return _check_template(policy, config, schema)
    if is_endpoint(policy):
        [reply] = sample_checked(policy, [build_request(Observation(_PROBE_CHUNK), config, schema)])
        calls = parse_reply(reply.text, config.reply_form)
        problems = []
        if not any(call.error is None for call in calls):
            cut = " (it was cut off)" if reply.stop_reason == "length" else ""
            problems.append(
                f"its reply to a chunk with two facts holds no readable call{cut}: {reply.text[:200]!r}; check the "
                "server's tool parser, and turn thinking off with chat_template_kwargs={enable_thinking: false} or "
                "raise max_new_tokens"
            )
        return PolicyCheck(policy.name, "endpoint", None, not problems, "server", "server", problems=tuple(problems))
    return PolicyCheck(policy.name, "", True, True, "none", "hermes")


def _check_template(policy: Any, config: AgentConfig, schema: MemorySchema) -> PolicyCheck:
    chat, problems, notes = policy.chat, [], []
    request = build_request(Observation(Chunk(text="")), config, schema)
    prompt = policy.render_request(request)
    prompt_text = policy.tokenizer.decode(prompt, skip_special_tokens=False)
    is_full, is_compact = config.prompt == "full", config.prompt == "compact"
    tools = {} if is_compact else load_tools(config.tools)
    shown = [tool["function"]["name"] for tool in tool_schemas(schema, tools)]
    if config.form == "lines":
        shown = [tool.line_shape() for tool in tools.values()]
    elif config.prompt == "mem-alpha":
        shown = mem_alpha.TOOL_NAMES
    has_tools = not is_compact and all(text in prompt_text for text in shown)
    if not (has_tools or is_compact):
        problems.append("its prompt shows no tools")
    form = config.form if config.form != "native" else chat.call_format if is_full else config.prompt
    read_back = _reads_back(policy, config, schema)
    if not read_back:
        problems.append(f"calls in its form ({form}) are not read back from its tokens: its tokenizer loses characters")
    if not any(id in policy.eos_ids for id in _ids(policy, chat.end_of_turn)):
        notes.append(
            "its template marks the end of a reply with no token that ends sampling: replies may run on to "
            "max_new_tokens; set eos_token in its tokenizer, or eos_token_id in generation_config.json"
        )
    if chat.thinking == "always" and not config.thinking_tokens:
        notes.append("it thinks before it replies whatever its template is told: set thinking_tokens")
    room = None
    if policy.positions is not None:
        room = policy.positions - len(prompt) - config.view_tokens - config.thinking_tokens - config.max_new_tokens
        if room < MIN_CHUNK_TOKENS:
            message = (
                f"the model takes {policy.positions} tokens; a prompt of {len(prompt)}, view_tokens="
                f"{config.view_tokens}, thinking_tokens={config.thinking_tokens} and max_new_tokens="
                f"{config.max_new_tokens} leave {max(room, 0)} for a chunk: lower them"
            )
            # A memory that never fills its view works all the same.
            (problems if room + config.view_tokens < MIN_CHUNK_TOKENS else notes).append(message)
    facts = (policy.name, chat.family, has_tools, read_back, chat.thinking, form, len(prompt), room)
    return PolicyCheck(*facts, tuple(problems), tuple(notes))


def _reads_back(policy: Any, config: AgentConfig, schema: MemorySchema) -> bool:
    """Return True if two calls survive the writer's and the policy's own form, and the tokenizer."""
    calls = [(name, dict(arguments)) for name, arguments in _CALLS]
    calls[0][1]["category"] = schema.category_names[0]
    is_native, chat, exact = config.form == "native", policy.chat, {"clean_up_tokenization_spaces": False}
    reply = format_calls([ToolCall(name, arguments) for name, arguments in calls], config.reply_form)
    text = chat.write_reply(reply) if is_native else reply
    ids = _ids(policy, text + (chat.end_of_turn if chat.reply_parser is not None else ""))
    reply = policy.tokenizer.decode(ids, skip_special_tokens=False, **exact)
    read = parse_reply(chat.read_reply(reply, "", tool_schemas(schema), native_calls=is_native), config.reply_form)
    return [(call.name, call.arguments) for call in read] == calls


def _ids(policy: Any, text: str) -> Sequence[int]:
    return policy.tokenizer(text, add_special_tokens=False)["input_ids"]
