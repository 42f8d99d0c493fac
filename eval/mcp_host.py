"""An MCP host: a LoCoMo conversation into a store by `memory_read`, questions, the server anew, the questions again.

    python eval/mcp_host.py --data locomo10.json
    python eval/mcp_host.py --data locomo10.json --policy tiny --chunk 1000 --sessions 2

The host is the official client library (`mcp`). It starts `memalpha serve STORE --policy POLICY --mcp` as hosts do, a
process spoken to on stdin and stdout. Session by session goes through `memory_read`, each question through
`memory_search`, and the host answers from the best hit with the copying floor of `memalpha.agent.copying_reader`, no
language model. Then the server is ended, started anew on the same file, and asked again. The same conversation is
also read by a `MemoryAgent` in this process: serving must change nothing.

Writes the transcript to RESULTS/mcp-host.md and mcp-host.json, under the policy's name; other policies' stay. LoCoMo is
CC BY-NC 4.0: what is quoted of it is cut to a few words.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mcp import Client, StdioServerParameters

from memalpha import MemoryAgent, MemoryStore, __version__
from memalpha.agent.copying_reader import copy_answer
from memalpha.agent.reader import Answer
from memalpha.qa.scoring.metrics import is_correct, score_question
from memalpha.tasks.chunking import split_text
from memalpha.tasks.datasets.locomo import load
from memalpha.types import Chunk, Question, Task

K = 8
SHOWN = 10
"""Questions that the page shows."""


def main() -> None:
    """Read, ask, restart, ask; compare; write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="locomo10.json")
    parser.add_argument("--conversation", type=int, default=0, help="which of the ten")
    parser.add_argument("--sessions", type=int, default=None, help="only the first so many")
    parser.add_argument("--policy", default="heuristic")
    parser.add_argument("--chunk", type=int, default=4000, help="longest chunk in characters")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    task = load(given.data)[given.conversation]
    if given.sessions is not None:
        task = first_sessions(task, given.sessions)
    with TemporaryDirectory(prefix="mcp-host-") as folder:
        record = asyncio.run(host(task, Path(folder) / "memory.db", given.policy, given.chunk))
        record["same_without_a_server"] = record.pop("memory") == alone(task, given.policy, given.chunk)
    options = {"--policy": given.policy, "--chunk": given.chunk, "--sessions": given.sessions}
    chosen = [f"{name} {value}" for name, value in options.items() if value not in (None, "heuristic", 4000)]
    command = " ".join(["python eval/mcp_host.py --data locomo10.json", *chosen])
    record |= {"command": command, "conversation": task.id, "chunk": given.chunk, "memalpha": __version__}
    file = given.results / "mcp-host.json"
    records = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    records[given.policy] = record
    file.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (given.results / "mcp-host.md").write_text(page(records), encoding="utf-8")
    print(
        json.dumps({key: record[key] for key in ("figures", "same_after_restart", "same_without_a_server")}, indent=1)
    )


def first_sessions(task: Task, count: int) -> Task:
    """The task cut to its first sessions, and the questions whose evidence lies in them."""
    chunks = task.chunks[:count]
    turns = {turn.id for chunk in chunks for turn in chunk.turns}
    questions = tuple(asked for asked in task.questions if asked.evidence and turns.issuperset(asked.evidence))
    return task.model_copy(update={"chunks": chunks, "questions": questions})


async def host(task: Task, store: Path, policy: str, chunk: int) -> dict[str, Any]:
    """What was called and what came of it."""
    arguments = ["-m", "memalpha", "serve", str(store), "--policy", policy, "--chunk", str(chunk), "--mcp"]
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS") if name in os.environ}
    server = StdioServerParameters(command=sys.executable, args=arguments, env=kept)
    calls: list[dict[str, Any]] = []
    async with Client(server) as memory:
        tools = [tool.name for tool in (await memory.list_tools()).tools]
        protocol = memory.protocol_version
        for session in task.chunks:
            text, source = session.render(), f"{task.id}/session-{session.index + 1}"
            steps: list[float] = []

            async def progress(done: float, of: float | None, message: str | None, steps: list[float] = steps) -> None:
                steps.append(done)

            asked = {"text": text, "timestamp": session.timestamp, "source": source}
            result = await memory.call_tool("memory_read", asked, progress_callback=progress)
            read = result.structured_content
            codes = Counter(item["code"] for item in read.get("results", ())) or Counter([read.get("code")])
            told = {"source": source, "timestamp": session.timestamp, "characters": len(text)}
            calls.append(
                {"tool": "memory_read", **told, "chunks": read.get("chunks"), "progress": len(steps), "calls": codes}
            )
            assert not result.is_error, read
        edits = await by_hand(memory)
        before = [await ask(memory, question) for question in task.questions]
        held = await contents(memory)
    async with Client(server) as memory:  # another process, on the same file
        after = [await ask(memory, question) for question in task.questions]
        again = await contents(memory)
    answers = [scored(question, found) for question, found in zip(task.questions, before, strict=True)]
    return {
        "policy": policy,
        "protocol": protocol,
        "tools": tools,
        "reads": calls,
        "edits": edits,
        "questions": answers,
        "figures": figures(answers, held),
        "answers_sha256": {"before": digest(before), "after": digest(after)},
        "same_after_restart": before == after and held == again,
        "memory": held,
    }


async def by_hand(memory: Client) -> list[dict[str, Any]]:
    """A fact of the host's own: stored, twice, corrected, ended, and ended once more, which fails."""
    done = []

    async def call(name: str, **arguments: Any) -> dict[str, Any]:
        result = await memory.call_tool(name, arguments)
        told = result.structured_content
        done.append(
            {
                "tool": name,
                "arguments": arguments,
                "is_error": result.is_error,
                "code": told["code"],
                "id": told["entry_id"],
            }
        )
        return told

    fact = {"category": "semantic", "content": "Host's note: the tea is in the left cupboard"}
    made = await call("memory_insert", **fact)
    await call("memory_insert", **fact)
    await call("memory_update", id=made["entry_id"], content="Host's note: the tea is in the right cupboard")
    await call("memory_delete", id=made["entry_id"])
    await call("memory_delete", id=made["entry_id"])
    return done


async def ask(memory: Client, question: Question) -> dict[str, Any]:
    """The hits of a question, and the host's answer from the best."""
    result = await memory.call_tool("memory_search", {"query": question.question, "k": K})
    hits = result.structured_content["hits"]
    answer = copy_answer(question.question, hits[0]["content"], hits[0].get("timestamp")) if hits else "unknown"
    return {"answer": answer, "hits": hits}


async def contents(memory: Client) -> list[dict[str, Any]]:
    """All that the memory holds, page by page."""
    found, after = [], {}
    while True:
        page = (await memory.call_tool("memory_list", {"limit": 200, **after})).structured_content
        found += page["entries"]
        if page["next"] is None:
            return found
        after = {"after": page["next"]}


def alone(task: Task, policy: str, chunk: int) -> list[dict[str, Any]]:
    """The same texts read by an agent in this process, and what its memory holds, in the same form."""
    with MemoryStore.open(":memory:") as store:
        agent = MemoryAgent(policy, store)
        for session in task.chunks:
            for number, piece in enumerate(split_text(session.render(), chunk)):
                agent.read(Chunk(text=piece, timestamp=session.timestamp, index=number), source="alone")
        return [
            {"id": entry.id, "category": entry.category, "content": entry.content}
            | ({"timestamp": entry.timestamp} if entry.timestamp else {})
            for entry in store.list()
        ]


def scored(question: Question, found: dict[str, Any]) -> dict[str, Any]:
    """One question's line of the record, quotes cut short."""
    score = score_question(question, Answer(found["answer"], not found["hits"]))
    assert score is not None
    return {
        "id": question.id,
        "category": question.category,
        "question": few(question.question),
        "answer": few(found["answer"]),
        "hits": [hit["id"] for hit in found["hits"]],
        "f1": round(score, 4),
        "right": is_correct(question, score),
    }


def few(text: str, words: int = 8) -> str:
    """The first words of a text."""
    parts = text.split()
    return " ".join(parts[:words]) + (" …" if len(parts) > words else "")


def figures(answers: list[dict[str, Any]], held: list[dict[str, Any]]) -> dict[str, Any]:
    """Scores by category, with the standard error over questions."""
    found: dict[str, Any] = {"entries": len(held), "questions": len(answers)}
    for name in ("all", *sorted({item["category"] for item in answers})):
        some = [item["f1"] for item in answers if name in ("all", item["category"])]
        mean = sum(some) / len(some)
        spread = (sum((value - mean) ** 2 for value in some) / max(1, len(some) - 1) / len(some)) ** 0.5
        right = sum(item["right"] for item in answers if name in ("all", item["category"]))
        found[name] = {"questions": len(some), "right": right, "f1": round(mean, 4), "se": round(spread, 4)}
    return found


def digest(answers: list[dict[str, Any]]) -> str:
    """SHA-256 of answers and hits, scores included."""
    return hashlib.sha256(json.dumps(answers, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def page(records: dict[str, dict[str, Any]]) -> str:
    """The transcripts, policy by policy."""
    lines = INTRODUCTION.strip().splitlines()
    for policy, record in records.items():
        lines += ["", f"## {policy}", "", "```", record["command"], "```", ""]
        restarted = "identical" if record["same_after_restart"] else "DIFFERENT"
        without = "the same memory" if record["same_without_a_server"] else "ANOTHER MEMORY"
        before, after = (record["answers_sha256"][when][:16] for when in ("before", "after"))
        lines += [
            f"Protocol {record['protocol']}; tools {', '.join(record['tools'])}.",
            f"Answers, hits and scores of the restarted server: **{restarted}** (sha256 {before}, then {after}).",
            f"The same texts read without a server: **{without}**.",
            "",
            "| questions | number | right (F1 of one half) | official F1 | s.e. |",
            "|---|---|---|---|---|",
        ]
        for name, of in record["figures"].items():
            if isinstance(of, dict):
                lines.append(f"| {name} | {of['questions']} | {of['right']} | {of['f1']:.3f} | {of['se']:.3f} |")
        lines += ["", f"Entries in the end: {record['figures']['entries']}.", "", "```"]
        for call in record["reads"]:
            did = ", ".join(f"{count} {code}" for code, count in call["calls"].items())
            lines.append(
                f"memory_read   {call['source']} ({call['timestamp']}, {call['characters']} characters, "
                f"{call['chunks']} chunks) → {did}"
            )
        for call in record["edits"]:
            told = call["arguments"].get("content") or call["arguments"]["id"]
            lines.append(f"{call['tool']:<13} {told!r} → {call['code']}{', isError' if call['is_error'] else ''}")
        for item in record["questions"][:SHOWN]:
            found = f"{len(item['hits'])} hits; answer {item['answer']!r}, F1 {item['f1']}"
            lines.append(f"memory_search {item['question']!r} → {found}")
        lines += [f"… {len(record['questions']) - SHOWN} more", "(server ended, started anew on the same file)"]
        for item in record["questions"][:SHOWN]:
            lines.append(f"memory_search {item['question']!r} → the same")
        lines += [f"… {len(record['questions']) - SHOWN} more, the same", "```"]
    return "\n".join(lines) + "\n"


INTRODUCTION = """
# An MCP host reads a LoCoMo conversation, asks, restarts the server and asks again

Made by `eval/mcp_host.py` with the official client library over stdio; its docstring says how. The host answers from
the best hit with the copying floor, no language model; quotes are cut to a few words, and the JSON beside this page has
every question's hits and score. LoCoMo: Maharana et al., ACL 2024, CC BY-NC 4.0.

What these small policies can answer is little, and not what is shown here. `heuristic` keeps sentences that state
something about whoever speaks, by rules; it resolves no pronoun and no "yesterday", and what is said in other forms is
never written. `tiny` was trained on made-up conversations in a short form of their own: of talk like this it keeps
nothing (`eval/LOG.md`). The host's answer is a run of words of one entry, or its date: a list, a reason, a yes or a
count is out of its reach. To hold the figures against: shown the evidence itself, the same reader is right in 0.21 of
all questions, and with `heuristic` in 0.104 of the answerable ones of all ten conversations (`systems-locomo.md`).
"""

if __name__ == "__main__":
    main()
