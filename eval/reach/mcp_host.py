"""Run an MCP host: read a LoCoMo conversation, ask questions, restart the server, ask again.

    python eval/reach/mcp_host.py --data locomo10.json
    python eval/reach/mcp_host.py --data locomo10.json --policy tiny --chunk 1000 --sessions 2

The host is the official client library (`mcp`). It starts `memalpha serve STORE --policy POLICY --mcp` as hosts do, a
process addressed over stdin and stdout. Each session goes through `memory_read`, each question through
`memory_search`. The host answers from the best hit with the copying floor of `memalpha.agent.copying_reader`, without a
language model. Then the server is ended, restarted on the same file, and asked again. A `MemoryAgent` in this process
reads the same conversation: serving must change nothing.

Writes the transcript to RESULTS/mcp-host.md and mcp-host.json under the policy's name; other policies' transcripts are
kept. LoCoMo is CC BY-NC 4.0: quotes are cut to a few words.
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
SHOWN_QUESTIONS = 10
"""Questions that the page shows."""


def main() -> None:
    """Read, ask, restart, ask; compare; write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="locomo10.json")
    parser.add_argument("--conversation", type=int, default=0, help="which of the ten")
    parser.add_argument("--sessions", type=int, default=None, help="only the first so many")
    parser.add_argument("--policy", default="add_all")
    parser.add_argument("--chunk", type=int, default=4000, help="longest chunk in characters")
    parser.add_argument("--results", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    task = load(options.data)[options.conversation]
    if options.sessions is not None:
        task = first_sessions(task, options.sessions)
    with TemporaryDirectory(prefix="mcp-host-") as folder:
        record = asyncio.run(host(task, Path(folder) / "memory.db", options.policy, options.chunk))
        record["same_without_a_server"] = record.pop("memory") == read_without_server(
            task, options.policy, options.chunk
        )
    settings = {"--policy": options.policy, "--chunk": options.chunk, "--sessions": options.sessions}
    extra_arguments = [f"{name} {value}" for name, value in settings.items() if value not in (None, "add_all", 4000)]
    command = " ".join(["python eval/reach/mcp_host.py --data locomo10.json", *extra_arguments])
    record |= {"command": command, "conversation": task.id, "chunk": options.chunk, "memalpha": __version__}
    file = options.results / "mcp-host.json"
    records = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    records[options.policy] = record
    file.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (options.results / "mcp-host.md").write_text(page(records), encoding="utf-8")
    print(
        json.dumps({key: record[key] for key in ("figures", "same_after_restart", "same_without_a_server")}, indent=1)
    )


def first_sessions(task: Task, count: int) -> Task:
    """Return the task cut to its first sessions, with the questions whose evidence lies in them."""
    chunks = task.chunks[:count]
    turns = {turn.id for chunk in chunks for turn in chunk.turns}
    questions = tuple(
        question for question in task.questions if question.evidence and turns.issuperset(question.evidence)
    )
    return task.model_copy(update={"chunks": chunks, "questions": questions})


async def host(task: Task, store: Path, policy: str, chunk: int) -> dict[str, Any]:
    """Serve, read, ask, restart, ask again, and return the record of calls and answers.

    Args:
        task: Conversation and questions.
        store: Store file.
        policy: Name of the policy.
        chunk: Longest chunk in characters.
    """
    command = ["-m", "memalpha", "serve", str(store), "--policy", policy, "--chunk", str(chunk), "--mcp"]
    environment = {name: os.environ[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS") if name in os.environ}
    server = StdioServerParameters(command=sys.executable, args=command, env=environment)
    calls: list[dict[str, Any]] = []
    async with Client(server) as memory:
        tools = [tool.name for tool in (await memory.list_tools()).tools]
        protocol = memory.protocol_version
        for session in task.chunks:
            text, source = session.render(), f"{task.id}/session-{session.index + 1}"
            steps: list[float] = []

            async def record_progress(
                progress: float, total: float | None, message: str | None, steps: list[float] = steps
            ) -> None:
                steps.append(progress)

            arguments = {"text": text, "timestamp": session.timestamp, "source": source}
            result = await memory.call_tool("memory_read", arguments, progress_callback=record_progress)
            read = result.structured_content
            codes = Counter(item["code"] for item in read.get("results", ())) or Counter([read.get("code")])
            session_record = {"source": source, "timestamp": session.timestamp, "characters": len(text)}
            calls.append(
                {
                    "tool": "memory_read",
                    **session_record,
                    "chunks": read.get("chunks"),
                    "progress": len(steps),
                    "calls": codes,
                }
            )
            assert not result.is_error, read
        edits = await edit_by_hand(memory)
        before = [await ask(memory, question) for question in task.questions]
        entries = await contents(memory)
    async with Client(server) as memory:  # another process, on the same file
        after = [await ask(memory, question) for question in task.questions]
        entries_after = await contents(memory)
    answers = [question_record(question, answer) for question, answer in zip(task.questions, before, strict=True)]
    return {
        "policy": policy,
        "protocol": protocol,
        "tools": tools,
        "reads": calls,
        "edits": edits,
        "questions": answers,
        "figures": summarize_answers(answers, entries),
        "answers_sha256": {"before": digest(before), "after": digest(after)},
        "same_after_restart": before == after and entries == entries_after,
        "memory": entries,
    }


async def edit_by_hand(memory: Client) -> list[dict[str, Any]]:
    """Insert a fact twice, update it, delete it, and delete it again, which fails; return the calls."""
    records = []

    async def call(name: str, **arguments: Any) -> dict[str, Any]:
        result = await memory.call_tool(name, arguments)
        content = result.structured_content
        records.append(
            {
                "tool": name,
                "arguments": arguments,
                "is_error": result.is_error,
                "code": content["code"],
                "id": content["entry_id"],
            }
        )
        return content

    fact = {"category": "semantic", "content": "Host's note: the tea is in the left cupboard"}
    inserted = await call("memory_insert", **fact)
    await call("memory_insert", **fact)
    await call("memory_update", id=inserted["entry_id"], content="Host's note: the tea is in the right cupboard")
    await call("memory_delete", id=inserted["entry_id"])
    await call("memory_delete", id=inserted["entry_id"])
    return records


async def ask(memory: Client, question: Question) -> dict[str, Any]:
    """Return the hits of a question and the host's answer from the best hit."""
    result = await memory.call_tool("memory_search", {"query": question.question, "k": K})
    hits = result.structured_content["hits"]
    answer = copy_answer(question.question, hits[0]["content"], hits[0].get("timestamp")) if hits else "unknown"
    return {"answer": answer, "hits": hits}


async def contents(memory: Client) -> list[dict[str, Any]]:
    """Return all entries of the memory, page by page."""
    entries, after = [], {}
    while True:
        page = (await memory.call_tool("memory_list", {"limit": 200, **after})).structured_content
        entries += page["entries"]
        if page["next"] is None:
            return entries
        after = {"after": page["next"]}


def read_without_server(task: Task, policy: str, chunk: int) -> list[dict[str, Any]]:
    """Read the same texts with an agent in this process and return its entries in the same form.

    Args:
        task: Conversation.
        policy: Name of the policy.
        chunk: Longest chunk in characters.
    """
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


def question_record(question: Question, answer: dict[str, Any]) -> dict[str, Any]:
    """Return one question's line of the record, with quotes cut short."""
    score = score_question(question, Answer(answer["answer"], not answer["hits"]))
    assert score is not None
    return {
        "id": question.id,
        "category": question.category,
        "question": first_words(question.question),
        "answer": first_words(answer["answer"]),
        "hits": [hit["id"] for hit in answer["hits"]],
        "f1": round(score, 4),
        "right": is_correct(question, score),
    }


def first_words(text: str, words: int = 8) -> str:
    """Return the first words of a text."""
    parts = text.split()
    return " ".join(parts[:words]) + (" …" if len(parts) > words else "")


def summarize_answers(answers: list[dict[str, Any]], entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return scores by category, with the standard error over questions."""
    summary: dict[str, Any] = {"entries": len(entries), "questions": len(answers)}
    for name in ("all", *sorted({item["category"] for item in answers})):
        f1_scores = [item["f1"] for item in answers if name in ("all", item["category"])]
        mean = sum(f1_scores) / len(f1_scores)
        standard_error = (
            sum((value - mean) ** 2 for value in f1_scores) / max(1, len(f1_scores) - 1) / len(f1_scores)
        ) ** 0.5
        correct = sum(item["right"] for item in answers if name in ("all", item["category"]))
        summary[name] = {
            "questions": len(f1_scores),
            "right": correct,
            "f1": round(mean, 4),
            "se": round(standard_error, 4),
        }
    return summary


def digest(answers: list[dict[str, Any]]) -> str:
    """Return the SHA-256 of answers and hits, scores included."""
    return hashlib.sha256(json.dumps(answers, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def page(records: dict[str, dict[str, Any]]) -> str:
    """Return the transcripts as Markdown, policy by policy."""
    lines = INTRODUCTION.strip().splitlines()
    for policy, record in records.items():
        lines += ["", f"## {policy}", "", "```", record["command"], "```", ""]
        restarted = "identical" if record["same_after_restart"] else "DIFFERENT"
        serverless = "the same memory" if record["same_without_a_server"] else "ANOTHER MEMORY"
        before, after = (record["answers_sha256"][time][:16] for time in ("before", "after"))
        lines += [
            f"Protocol {record['protocol']}; tools {', '.join(record['tools'])}.",
            f"Answers, hits and scores of the restarted server: **{restarted}** (sha256 {before}, then {after}).",
            f"The same texts read without a server: **{serverless}**.",
            "",
            "| questions | number | right (F1 of one half) | official F1 | s.e. |",
            "|---|---|---|---|---|",
        ]
        for name, scores in record["figures"].items():
            if isinstance(scores, dict):
                lines.append(
                    f"| {name} | {scores['questions']} | {scores['right']} | {scores['f1']:.3f} | {scores['se']:.3f} |"
                )
        lines += ["", f"Entries in the end: {record['figures']['entries']}.", "", "```"]
        for call in record["reads"]:
            code_counts = ", ".join(f"{count} {code}" for code, count in call["calls"].items())
            lines.append(
                f"memory_read   {call['source']} ({call['timestamp']}, {call['characters']} characters, "
                f"{call['chunks']} chunks) → {code_counts}"
            )
        for call in record["edits"]:
            edited = call["arguments"].get("content") or call["arguments"]["id"]
            lines.append(f"{call['tool']:<13} {edited!r} → {call['code']}{', isError' if call['is_error'] else ''}")
        for item in record["questions"][:SHOWN_QUESTIONS]:
            outcome = f"{len(item['hits'])} hits; answer {item['answer']!r}, F1 {item['f1']}"
            lines.append(f"memory_search {item['question']!r} → {outcome}")
        lines += [
            f"… {len(record['questions']) - SHOWN_QUESTIONS} more",
            "(server ended, started anew on the same file)",
        ]
        for item in record["questions"][:SHOWN_QUESTIONS]:
            lines.append(f"memory_search {item['question']!r} → the same")
        lines += [f"… {len(record['questions']) - SHOWN_QUESTIONS} more, the same", "```"]
    return "\n".join(lines) + "\n"


INTRODUCTION = """
# An MCP host reads a LoCoMo conversation, asks, restarts the server and asks again

Made by `eval/reach/mcp_host.py` with the official client library over stdio; its docstring says how. The host answers
from the best hit with the copying floor, no language model; quotes are cut to a few words, and the JSON beside this
page has every question's hits and score. LoCoMo: Maharana et al., ACL 2024, CC BY-NC 4.0.

What these small policies can answer is little, and not what is shown here. The writer of this record kept
sentences that state something about whoever speaks, by rules that have been rewritten since; what was said in other
forms was never written. `tiny` was trained on made-up conversations in a short form of their own: of talk like this it
keeps nothing (`eval/LOG.md`). The host's answer is a run of words of one entry, or its date: a list, a reason, a yes or
a count is out of its reach. To hold the figures against: shown the evidence itself, the same reader is right in 0.21 of
all questions, and with the former rules in 0.104 of the answerable ones of all ten (`systems-locomo.md`).
"""

if __name__ == "__main__":
    main()
