"""A conversation of three days with a fact that changes, for tests of systems and evaluations."""

from __future__ import annotations

from memalpha.types import Chunk, Question, SpeakerTurn, Task


def dated_chunk(*texts: str, chunk: int, day: str) -> Chunk:
    turns = (SpeakerTurn(speaker="Ana", text=text, id=f"{chunk}.{at}") for at, text in enumerate(texts))
    return Chunk(turns=tuple(turns), timestamp=day)


TASK = Task(
    id="talk",
    chunks=(
        dated_chunk("I moved to Oslo yesterday.", "It rains a lot.", chunk=0, day="2024-05-01"),
        dated_chunk("My dog is called Rex.", "He likes the rain.", chunk=1, day="2024-05-08"),
        dated_chunk("I live in Lima now.", "Rex came along.", chunk=2, day="2024-06-01"),
    ),
    questions=(
        Question(
            id="early", question="Where does Ana live?", answers=("Oslo",), evidence=("0.0",), asked_after_chunk=1
        ),
        Question(id="late", question="Where does Ana live?", answers=("Lima",), evidence=("2.0",)),
        Question(id="when", question="When did Ana move to Oslo?", answers=("30 April 2024",), evidence=("0.0",)),
        Question(id="none", question="What is the name of Ana's brother?"),
    ),
    meta={"observations": [{"text": "Ana lives in Lima.", "chunk": 2, "turns": ["2.0"]}]},
)
