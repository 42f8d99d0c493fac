"""The chat template of a model: what it can show, how it is asked, and how its replies are read.

Nothing about a family is assumed. The template renders a small conversation, and what comes out decides: whether it has
a system role, whether it shows tools, whether two calls in one reply can be read back, and what thinking does to the
prompt. Calls have one of three formats:

- "hermes": the template's own calls are Hermes blocks.
- "native": its own calls are read through a response template, the tokenizer's or one that TRL keeps.
- "text": the template drops tools, cannot write two calls in one reply, or nothing reads its calls. The prompt then
  spells out tools and Hermes blocks in plain text (`text`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from jinja2.exceptions import TemplateError
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from memalpha.errors import PolicyError, required_packages
from memalpha.policy.chat.replies import END_THINK, THINK, ReplyParser, known_templates
from memalpha.policy.chat.text import CLOSE, OPEN, describe_tools, plain_message, special_token_pattern

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]
CallFormat = Literal["hermes", "native", "text"]
Thinking = Literal["none", "switch", "closed", "always"]

_REFUSALS = (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError)
"""What templates raise for messages they do not take."""
_BLOCK = re.compile(rf"{OPEN}\s*(\{{.*?\}})\s*{CLOSE}\n?", re.DOTALL)
_SYSTEM, _USER, _REPLY, _NEXT = "probe system 6f1c", "probe user 8d2e", "probe reply 3b7a", "probe next 0c9e"
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool_91af",
        "description": "probe description 5c3d",
        "parameters": {
            "type": "object",
            "properties": {"probe_text": {"type": "string", "description": "probe parameter 7e4b"}},
            "required": ["probe_text"],
        },
    },
}
_PROBE_CALLS = (
    {"name": "probe_tool_91af", "arguments": {"probe_text": 'Ana\'s "red" car (2024), {blue}\nand 50 % more'}},
    {"name": "probe_tool_91af", "arguments": {"probe_text": "007"}},
)


class ChatTemplate:
    """Render prompts and read replies with a tokenizer's chat template.

    Args:
        tokenizer: tokenizer with a chat template.
        name: the policy's name, for errors.

    Raises:
        PolicyError: if the template renders no conversation of a user at all.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        self.tokenizer = tokenizer
        self.name = name

    def render(
        self,
        messages: Messages,
        tools: Tools = (),
        *,
        thinking: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt up to where the reply begins.

        Special tokens that a user's message spells out (`<|im_end|>`) get a blank, so that they stay text and nobody
        can write a turn of another role.

        Args:
            messages: chat messages.
            tools: tools in OpenAI's function format.
            thinking: let the model think first, where the template has a say in it. A thought that the template opens
                itself is closed if this is False.
            template_kwargs: further arguments of the template; they override the thinking switch.

        Raises:
            PolicyError: if the template refuses the messages, or leaves one out.
        """
        native_tools = tools if tools and self.call_format != "text" else ()
        if tools and not native_tools:
            messages = [dict(message) for message in messages]
            system = next((message for message in messages if message["role"] == "system"), None)
            if system is None:
                messages.insert(0, _system(describe_tools(tools)))
            else:
                system["content"] += f"\n\n{describe_tools(tools)}"
        arguments = {"enable_thinking": thinking, "thinking": thinking, **(template_kwargs or {})}
        messages = [plain_message(message, self._special_tokens) for message in messages]
        try:
            text = self._apply(self._adapted(messages), native_tools, arguments)
            check_shown(messages, text)
        except _REFUSALS as error:
            raise PolicyError(f"the chat template of policy {self.name!r} refuses the prompt: {error}") from error
        if not thinking and _opens_thought(text):
            text += f"\n{END_THINK}\n\n" if text.endswith(THINK) else f"{END_THINK}\n\n"
        return text

    def read_reply(self, reply: str, prompt_end: str, tools: Tools = (), *, native_calls: bool = True) -> str:
        """Return a reply with thoughts in `<think>` tags and calls as Hermes blocks.

        Args:
            reply: decoded completion, with the token that ended it if there is a `reply_parser`.
            prompt_end: the last characters of its prompt, which may have opened a thought.
            tools: tools of the prompt, whose parameters' types some families' forms do not show.
            native_calls: look for calls in the family's own form; False leaves them as they are.
        """
        parser, in_thought = self.reply_parser, _opens_thought(prompt_end)
        if parser is None:
            reply = f"{THINK}\n{reply}" if in_thought else reply
        elif native_calls and self.call_format != "text":
            reply = parser.to_text(reply, tools, in_thought=in_thought)
        else:  # calls that were asked for in plain text; some come in the family's own form all the same
            spelled_out = parser.to_text(reply, tools, in_thought=in_thought, with_calls=False)
            is_plain = not native_calls or OPEN in spelled_out.rpartition(END_THINK)[2]
            reply = spelled_out if is_plain else parser.to_text(reply, tools, in_thought=in_thought)
        while token := next((token for token in self._end_tokens if reply.endswith(token)), None):
            reply = reply.removesuffix(token)
        return reply

    @cached_property
    def _special_tokens(self) -> re.Pattern[str]:
        return special_token_pattern(self.tokenizer)

    def write_reply(self, text: str) -> str:
        """Return a reply with Hermes blocks in the family's own form, as a model is trained on it."""
        if self.call_format != "native":
            return text
        calls, position, content = [], 0, ""
        for match in _BLOCK.finditer(text):
            try:
                call = json.loads(match[1])
            except (ValueError, RecursionError):
                return text
            if not call.keys() >= {"name", "arguments"}:
                return text
            content += text[position : match.start()]
            position = match.end()
            calls.append({"name": call["name"], "arguments": call["arguments"]})
        if not calls:
            return text
        assert self.reply_parser is not None
        rendered = self._render_reply(calls)
        start, [*_, end] = self.reply_parser.first_call(rendered), self.reply_parser.call_ends(rendered)
        return content + rendered[start:end] + text[position:].lstrip("\n")

    @cached_property
    def thought_marks(self) -> tuple[str, str]:
        """Texts that open and close a thought in this family's replies."""
        return (THINK, END_THINK) if self.reply_parser is None else self.reply_parser.thought_marks

    @cached_property
    def has_parts(self) -> bool:
        """True if the template reads a message's content only as a list of parts."""
        return not self._shows([_user(_USER)], _USER)

    @cached_property
    def has_system_role(self) -> bool:
        """True if the template shows a system message and the user's after it."""
        messages = self._parts([_system(_SYSTEM), _user(_USER)])
        return self._shows(messages, _SYSTEM) and self._shows(messages, _USER)

    @cached_property
    def shows_tools(self) -> bool:
        """True if the template writes name, description and parameters of tools into the prompt."""
        facts = ("probe_tool_91af", "probe description 5c3d", "probe_text")
        messages = self._adapted([_system(_SYSTEM), _user(_USER)])
        return all(self._shows(messages, fact, [_PROBE_TOOL]) for fact in facts)

    @cached_property
    def call_format(self) -> CallFormat:
        """Format of calls in this model's replies; see the module's documentation."""
        return self._detected[0]

    @cached_property
    def reply_parser(self) -> ReplyParser | None:
        """Parser of the family's own replies; None where they are in Hermes form or no response template is known."""
        return self._detected[1]

    @cached_property
    def family(self) -> str:
        """Family of the response template, "hermes", or "unknown"."""
        return self._detected[2]

    @cached_property
    def thinking(self) -> Thinking:
        """Effect of thinking: nothing ("none"), a template argument turns it on ("switch"), the template opens every
        thought and it is closed in the prompt ("closed"), or the model thinks in a channel of its own ("always").
        """
        messages = self._adapted([_system(_SYSTEM), _user(_USER)])
        off, on = (self._apply(messages, (), {"enable_thinking": value, "thinking": value}) for value in (False, True))
        if _opens_thought(off):
            return "closed"
        if on != off:
            return "switch"
        return "always" if self.reply_parser is not None and self.reply_parser.thinks else "none"

    @cached_property
    def end_of_turn(self) -> str:
        """Text that the template writes after an assistant's reply: the mark of its end, or of the user's next turn.

        "" if neither can be told.
        """
        if self._own_end:
            return self._own_end
        messages = [_user(_USER), {"role": "assistant", "content": _REPLY}, _user(_NEXT)]
        text = self._try(self._adapted(messages), generation=False)
        return text.partition(_REPLY)[2].partition(_NEXT)[0]

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """The token that marks the end of a reply, if it is one; some models' configurations do not name it."""
        added = {token.content: id for id, token in self.tokenizer.added_tokens_decoder.items()}
        first = min((token for token in added if token in self._own_end), key=self._own_end.index, default=None)
        return frozenset() if first is None else frozenset({added[first]})

    @cached_property
    def _own_end(self) -> str:
        """Text that the template writes after an assistant's last reply."""
        messages = self._adapted([_user(_USER), {"role": "assistant", "content": _REPLY}])
        return self._try(messages, generation=False).rpartition(_REPLY)[2].strip()

    @cached_property
    def _end_tokens(self) -> tuple[str, ...]:
        """Special tokens that end a reply; a channel's end may stand before the turn's."""
        return tuple(token for token in self.tokenizer.all_special_tokens if token and token in self.end_of_turn)

    @cached_property
    def _detected(self) -> tuple[CallFormat, ReplyParser | None, str]:
        """Format, parser of replies and family of this template."""
        if not self._shows(self._adapted([_user(_USER)]), _USER):
            raise PolicyError(
                f"the chat template of policy {self.name!r} does not show a user's message: use a chat or instruction "
                "model, or mend chat_template in its tokenizer"
            )
        rendered = self._rendered_probe(2) if self.shows_tools else None
        if rendered and _read_hermes(rendered) == list(_PROBE_CALLS):
            return "hermes", None, "hermes"
        own_template = getattr(self.tokenizer, "response_template", None)
        if not self.shows_tools and not own_template:
            return "text", None, "unknown"
        needs = f"policy {self.name!r}: reading its calls, which are in no form known without trl,"
        with required_packages(needs, "trl", error=PolicyError):
            templates = {"its own": own_template} if own_template else known_templates()
        parsers = {family: ReplyParser(template) for family, template in templates.items()}
        for family, parser in parsers.items():
            if rendered and _reads_back(parser, rendered, _PROBE_CALLS):
                return "native", parser, family
        single = self._rendered_probe(1)
        for family, parser in parsers.items():
            if own_template or (single and _reads_back(parser, single, _PROBE_CALLS[:1])):
                return "text", parser, family
        return "text", None, "unknown"

    def _rendered_probe(self, count: int) -> str:
        """Return a reply of `count` calls as the template writes it; "" if it refuses them."""
        try:
            return self._render_reply(_PROBE_CALLS[:count])
        except _REFUSALS:
            return ""

    def _render_reply(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """Return what the template writes after the user's message for a reply of these calls."""
        tool_calls = [
            {"type": "function", "id": f"call{number:05d}", "function": dict(call)} for number, call in enumerate(calls)
        ]
        reply = {"role": "assistant", "content": "", "tool_calls": tool_calls}
        messages = [*self._adapted([_user(_USER)]), reply]
        text = self._apply(messages, [_PROBE_TOOL], {"enable_thinking": False}, generation=False)
        return text.rpartition(_USER)[2]

    def _shows(self, messages: Messages, text: str, tools: Tools = ()) -> bool:
        return text in self._try(messages, tools)

    def _try(self, messages: Messages, tools: Tools = (), *, generation: bool = True) -> str:
        """Return the rendered messages; "" if the template refuses them."""
        try:
            return self._apply(messages, tools, {}, generation=generation)
        except _REFUSALS:
            return ""

    def _adapted(self, messages: Messages) -> list[Mapping[str, Any]]:
        """Return messages in the form that this template takes."""
        if not self.has_system_role:
            system = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
            messages = [message for message in messages if message["role"] != "system"]
            first = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
            if system and first is None:
                messages.insert(0, _user(system))
            elif system and first is not None:
                messages[first] = {**messages[first], "content": f"{system}\n\n{messages[first]['content']}"}
        return self._parts(messages)

    def _parts(self, messages: Messages) -> list[Mapping[str, Any]]:
        return [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            if self.has_parts and isinstance(message.get("content"), str)
            else message
            for message in messages
        ]

    def _apply(self, messages: Messages, tools: Tools, arguments: Mapping[str, Any], *, generation: bool = True) -> str:
        text = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            add_generation_prompt=generation,
            tokenize=False,
            **arguments,
        )
        assert isinstance(text, str)
        return text


def check_shown(messages: Messages, text: str) -> None:
    """Raise `TemplateError` if a message is not in the rendered text: many templates leave unknown roles out.

    They may shorten replies by their thoughts, and write results of tools in another form.
    """
    for number, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        if role == "assistant" or not isinstance(content, str) or content.strip() in text:
            continue
        if role != "tool" or max(re.findall("[A-Za-z0-9]+", content), key=len, default="") not in text:
            raise TemplateError(f"it leaves out message {number} (role {role!r}): give it another role, such as user")


def _opens_thought(text: str) -> bool:
    return text[-len(THINK) - 2 :].rstrip().endswith(THINK)


def _reads_back(parser: ReplyParser, rendered: str, calls: Sequence[Mapping[str, Any]]) -> bool:
    start = parser.first_call(rendered)
    return start >= 0 and _read_hermes(parser.to_text(rendered[start:])) == list(calls)


def _read_hermes(text: str) -> list[Any]:
    """Return the JSON of all Hermes blocks of a text; [] if one is not JSON."""
    try:
        return [json.loads(match[1]) for match in _BLOCK.finditer(text)]
    except ValueError:
        return []


def _system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
