"""Texts inside prompts: calls in Hermes' form, tools spelled out, and what somebody else wrote.

Scripted policies emit Hermes' calls, models are trained on them, and `agent.parsing` reads them. Tools are spelled out
for templates that drop them or cannot write several calls in a reply.

What a user says and what a memory holds may spell out the end of a turn, a call, a thought, or the tag that encloses it
in a prompt. It stays text (`plain_text`): a mark of structure gets a blank after its first sign (`< |im_end|>`), which
no template, server or reader takes for the mark. Other text is unchanged, byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, END_THINK = "<think>", "</think>"


def format_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return one Hermes block, including the newline after the close tag."""
    body = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"{OPEN}\n{body}\n{CLOSE}\n"


# Of ChatML, Llama, Qwen, Phi, gpt-oss and others; DeepSeek; Gemma; Exaone; Mistral and Llama 2; BERT and GLM; Seed;
# MiniMax; Nemotron and T5. Marks with words of their own inside (`<function=name>`) are known by how they begin.
_CONTROL_TOKENS = re.compile(
    r"""
      <\|[^\s<>|]{1,64}\|?> | <[^\s<>|]{1,64}\|>
    | <\uff5c[^\uff5c<>]{1,64}\uff5c> | <\uff5c
    | \[\|[^\s\[\]|]{1,64}\|\]
    | </?(?:start|end)_of_(?:turn|text|role|image|utterance)> | <(?:begin|end)of(?:text|turn|sentence)>
    | </?(?:s|bos|eos|eot|eod|pad|unk|mask|sep|sop|eop|cls|system|user|assistant|tool|model)>
    | <</?SYS>>
    | \[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT)|THINK|ARGS|CALL_ID|MODEL_SETTINGS)\]
    | \[(?:CLS|SEP|MASK|gMASK|sMASK|UNK|PAD|BOS|EOS)\]
    | </?seed:[\w:]+> | \]~!?b\[? | \[e~\[
    | <(?:SPECIAL|extra_id|reserved)_\d+> | </?(?:TOOLCALL|AVAILABLE_TOOLS|TOOL_RESPONSE)>
    | <(?=/?(?:\w+:)?(?:tool_calls?|tool_response|tool_output|tools|function_calls?|function|invoke|parameter)\b)
    | <(?=/?(?:arg_key|arg_value|image|video|audio)>)
    | <(?=/?(?:think|thinking|thought)>)
    """,
    re.VERBOSE,
)
_PROMPT_TAGS = re.compile(r"<(?=/?(?:memory|core_memory|semantic_memory|episodic_memory|new_chunk)\b)")
# Control characters but tabs and line ends; marks that turn the direction of what follows; invisible copies of ASCII.
_HIDDEN = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")


def break_control_tokens(text: str, pattern: re.Pattern[str] = _CONTROL_TOKENS) -> str:
    """Return the text with a blank in each control token.

    Args:
        text: Text of a message.
        pattern: What is a control token; by default, those of all families.
    """
    return pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)


def plain_message(
    message: Mapping[str, Any],
    pattern: re.Pattern[str] = _CONTROL_TOKENS,
    trusted_roles: Sequence[str] = ("system", "assistant"),
) -> dict[str, Any]:
    """Return a copy of a message in which nobody but `trusted_roles` spells out a control token."""
    if message["role"] in trusted_roles or not isinstance(message.get("content"), str):
        return dict(message)
    return {**message, "content": break_control_tokens(message["content"], pattern)}


def special_token_pattern(tokenizer: Any) -> re.Pattern[str]:
    """Return the pattern of a tokenizer's special tokens, the longest first; tokens of one character stay."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    tokens = sorted(added | {*tokenizer.all_special_tokens}, key=len, reverse=True)
    return re.compile("|".join(re.escape(token) for token in tokens if len(token) > 1) or r"(?!)")


def plain_text(text: str) -> str:
    """Return a stored or spoken text for a prompt: without hidden characters, its marks of structure broken."""
    return _PROMPT_TAGS.sub("< ", break_control_tokens(_HIDDEN.sub("", text)))


def plain_line(text: str) -> str:
    """Return `plain_text` as one line, for lists in which a line is an entry."""
    return plain_text(" ".join(text.splitlines()))


def enclose(name: str, text: str) -> str:
    """Return a text between `<name>` and `</name>`, which it cannot close."""
    return f"<{name}>\n{text.replace(f'</{name}>', f'< /{name}>')}\n</{name}>"


_FORM = f"""\
You act by calling tools. A call is one block of exactly this form, with the tool's name and its arguments as JSON:

{OPEN}
{{"name": "the tool", "arguments": {{"parameter": "value"}}}}
{CLOSE}

Write one block after another to make several calls, and nothing after the last block. The tools are:
"""


def describe_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the form of a call, the tools with their parameters, and a worked example.

    Args:
        tools: tools in OpenAI's function format.
    """
    functions = [tool["function"] for tool in tools]
    lines, calls = [_FORM], []
    for function in functions:
        lines.append(f"- {function['name']}: {function.get('description', '')}".rstrip(": "))
        parameters = function.get("parameters", {})
        properties, required = parameters.get("properties", {}), parameters.get("required", ())
        lines += [
            f"  - {name} ({_kind(schema)}{'' if name in required else ', optional'}): {schema.get('description', '')}"
            for name, schema in properties.items()
        ]
        arguments = {}  # of the example: a listed value, 0, or the parameter's description
        for name in (name for name in required if name in properties):
            schema = properties[name]
            default = 0 if schema.get("type") in ("number", "integer") else str(schema.get("description", "text"))
            arguments[name] = schema["enum"][0] if schema.get("enum") else default
        calls.append(format_call(function["name"], arguments))
    lines += ["", "A reply with its calls looks like this, with your own values:", "", "".join(calls[:2])]
    return "\n".join(lines).rstrip()


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    kind = schema.get("type", "string")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
