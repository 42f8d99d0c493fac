"""Stand-in for a language model that knows the meetings of examples/data/meetings.json: asks, answers and writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Fact(NamedTuple):
    """What one thing of a meeting is: topic, question, and its values in order of time."""

    topic: str
    question: str
    values: tuple[str, ...]


_FILE = Path(__file__).parents[1] / "data" / "meeting_facts.json"
FACTS = [Fact(topic, question, tuple(values)) for topic, question, values in json.loads(_FILE.read_text("utf-8"))]
_BY_QUESTION = {fact.question: fact for fact in FACTS}


def reply(body: Mapping[str, Any]) -> str | dict[str, Any]:
    """Answer a chat completion as a model that asks, reads or writes."""
    system, user = body["messages"][0]["content"], body["messages"][-1]["content"]
    if "JSON list" in system:
        return json.dumps([_ask(fact, value, user) for fact, value in _stated(user)][:3])
    if "Question: " in user:
        return _read(*user.rsplit("Question: ", 1))
    if "tools" in body:
        memory, _, chunk = user.partition("New part of the conversation")
        return {"role": "assistant", "content": None, "tool_calls": list(_write(memory, chunk))}
    return "Hello."


def _pattern(value: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w,]){re.escape(value)}(?!\w)")


def _stated(text: str) -> Iterator[tuple[Fact, str]]:
    """Yield the facts of a text with the value that it states last; notes of other meetings share no two values."""
    for fact in FACTS:
        values = [value for value in fact.values if _pattern(value).search(text)]
        if values:
            yield fact, values[-1]


def _ask(fact: Fact, value: str, text: str) -> dict[str, str]:
    sentence = next(part for part in re.split(r"(?<=[.!?])\s+", text) if _pattern(value).search(part))
    quote = re.sub(r"^.*?(?:user|assistant): ", "", sentence, flags=re.DOTALL)
    return {"question": fact.question, "answer": value, "quote": quote.split("\n")[0].removesuffix("</part>")}


def _read(notes: str, question: str) -> str:
    """Return what the newest note says about a question: the value under its topic, else one that it mentions."""
    answer = "unknown"
    if question not in _BY_QUESTION:
        return answer
    fact = _BY_QUESTION[question]
    for line in notes.split("\n"):
        topic, colon, value = line.removeprefix("- ").partition(": ")
        values = [value for value in fact.values if _pattern(value).search(line)]
        if colon and topic == fact.topic:
            answer = re.sub(r" \(\d{4}-.*\)$", "", value)
        elif values:
            answer = values[-1]
    return answer


def _write(memory: str, chunk: str) -> Iterator[dict[str, Any]]:
    """Yield calls that insert or update a note `topic: value` for each fact of a chunk."""
    for number, (fact, value) in enumerate(_stated(chunk)):
        known = re.search(rf"^\W*\[?([\w#-]+)\]?.*?\b{fact.topic}: ([^\n(]*)", memory, re.MULTILINE)
        content = f"{fact.topic}: {value}"
        if known and known[2].strip() == value:
            continue
        arguments = {"id": known[1], "content": content} if known else {"category": "semantic", "content": content}
        function = {"name": f"memory_{'update' if known else 'insert'}", "arguments": json.dumps(arguments)}
        yield {"type": "function", "id": f"call-{number}", "function": function}
