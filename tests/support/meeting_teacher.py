"""Stand-in for a language model that knows the meetings of examples/data/meetings.json: asks, answers and writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Fact(NamedTuple):
    """What one thing of a meeting is: topic, question, and its values in order of time."""

    topic: str
    question: str
    values: tuple[str, ...]


def _fact(topic: str, question: str, *values: str) -> Fact:
    return Fact(topic, question, values)


FACTS = [
    _fact("date", "On which day does the bakery website go live?", "3 March", "17 March"),
    _fact("lead", "Who builds the bakery website?", "Tomás", "Priya"),
    _fact("price", "What does Lena pay for the bakery website?", "2,400 euros"),
    _fact("date", "On which day does the team leave Dock Street?", "28 June"),
    _fact("supplier", "Which firm moves the office out of Dock Street?", "Brandt & Sons", "Kowalski"),
    _fact("lead", "Who runs the office move?", "Hanna"),
    _fact("place", "Where is the summer party?", "boat house", "town garden"),
    _fact("lead", "Who looks after the food at the summer party?", "Oskar"),
    _fact("date", "On which day is the summer party?", "12 July"),
    _fact("date", "From which day is payroll done with PayRight?", "1 October", "1 January"),
    _fact("lead", "Who leads the payroll switch?", "Duncan"),
    _fact("price", "What does the PayRight licence cost?", "90 euros"),
    _fact("lead", "Who coordinates the school garden?", "Mrs Okafor", "Mr Lindqvist"),
    _fact("price", "What is the budget of the school garden?", "600 euros", "850 euros"),
    _fact("date", "On which day are the beds of the school garden dug?", "9 April"),
    _fact("date", "On which day does version 4 of the app ship?", "20 May", "2 June"),
    _fact("lead", "Who signs off version 4 of the app?", "Yusuf", "Carla"),
    _fact("place", "Where does the choir sing its concert?", "St Anne's church", "old cinema"),
    _fact("price", "What does a ticket for the choir concert cost?", "8 euros", "10 euros"),
    _fact("lead", "Who conducts the choir concert?", "Ingrid"),
    _fact("supplier", "Which firm repairs the roof?", "Delgado Roofing", "Nordach"),
    _fact("price", "What does the roof repair cost?", "18,500 euros", "19,900 euros"),
    _fact("lead", "Who keeps the keys during the roof repair?", "Mr Haas"),
    _fact("lead", "Who takes the night shifts at the clinic in May?", "Dr Amari", "Dr Petrov"),
    _fact("place", "Where is the clinic's spare pager?", "room 12", "room 7"),
    _fact("lead", "Who is the first guest of the podcast?", "Rosa Lim", "Karl Weiss"),
    _fact("place", "Where is the podcast recorded?", "attic studio", "radio building"),
    _fact("date", "On which day is the podcast recorded?", "11 February"),
    _fact("date", "On which day are the vans delivered?", "15 September", "29 September"),
    _fact("price", "What does a van cost a month?", "310 euros", "295 euros"),
    _fact("lead", "Who keeps the logbook of the vans?", "Greta"),
    _fact("book", "Which book does the book club read next?", "The Glass Bees", "Beloved"),
    _fact("place", "Where does the book club meet?", "Mona's flat", "Sven's place"),
    _fact("date", "On which day does the harbour cafe open?", "1 May", "22 May"),
    _fact("supplier", "Where does the coffee of the harbour cafe come from?", "Tostado", "Kaffa"),
    _fact("price", "What is the rent of the harbour cafe?", "1,200 euros"),
    _fact("place", "Where do the servers move to?", "Rack Hall B", "Rack Hall D"),
    _fact("lead", "Who is on call for the servers?", "Femi", "Anouk"),
    _fact("place", "Where does the marathon team start?", "east gate", "stadium"),
    _fact("lead", "Who collects the fees of the marathon team?", "Luis", "Wanda"),
    _fact("lead", "Who translates the manual into Finnish?", "Katya", "Mikko"),
    _fact("date", "Until which day is the manual translated?", "30 April", "21 May"),
    _fact("date", "On which day does Sunfield install the solar panels?", "18 June", "2 July"),
    _fact("place", "On which building do the solar panels go?", "barn", "stable"),
    _fact("price", "What is the highest salary of the data engineer?", "62,000 euros", "68,000 euros"),
    _fact("date", "On which day does the data engineer start?", "1 September", "1 November"),
    _fact("lead", "Who does the first interviews of the hiring round?", "Amelie"),
    _fact("theme", "What is the theme of the museum night?", "Lost Maps", "Rivers"),
    _fact("lead", "Who guides the groups at the museum night?", "Pavel", "Ilse"),
    _fact("date", "On which day is the well of the allotment drilled?", "7 May", "25 May"),
    _fact("price", "What does every plot of the allotment pay?", "55 euros", "70 euros"),
    _fact("lead", "Who has the key to the shed of the allotment?", "Bruno", "Selma"),
]
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
