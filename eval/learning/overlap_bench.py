"""Measure the time that overlapping saves with a slow judge: `python eval/learning/overlap_bench.py`.

The demo's training steps, answers scored by a judge behind a real local HTTP endpoint (a process of its own, whose
verdicts are a hash of the prompt) that takes --latency seconds for each answer, at most --concurrency at once: one
that is far away (all is asked at once), and one with a queue (the default of 8 at once). For each the same steps with
`overlap` 1, 2 and 4, one optimizer step each (`minibatches=1`), rounds in turn, so that what else the machine does
hits all alike. Medians over the steps but the first of each run; seconds are wall time.
Writes `overlap-bench.json` and `overlap-bench.md` to --results.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from memalpha.config import training_config
from memalpha.train.api import train

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import command, make_parser, read_metrics, save, versions

PARTS = (1, 2, 4)
FIGURES = ("step", "waited", "rest")


def serve(latency: float, port: Any) -> None:
    """Serve an OpenAI-compatible endpoint with one model "judge" forever; its port goes into `port`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lengths = [line for line in head.decode().split("\r\n") if line.lower().startswith("content-length:")]
                body = await reader.readexactly(int(lengths[0].split(":")[1])) if lengths else b""
                reply: dict[str, Any] = {"data": [{"id": "judge"}]}
                if body:
                    await asyncio.sleep(latency)
                    word = ("correct", "wrong")[hashlib.sha256(body).digest()[0] % 2]
                    message = {"role": "assistant", "content": json.dumps({"verdict": word})}
                    reply = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
                text = json.dumps(reply).encode()
                kind = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                writer.write(f"{kind}Content-Length: {len(text)}\r\n\r\n".encode() + text)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def run(port: int, overlap: int, out: Path, concurrency: int, arguments: argparse.Namespace) -> list[dict[str, float]]:
    """Train one run and return the seconds of each step but the first.

    Args:
        port: Port of the judge.
        overlap: Parts that a step is cut into.
        out: Folder of the run.
        concurrency: Requests at once.
        arguments: Arguments of the command line.
    """
    endpoint = {"concurrency": concurrency}
    judge = {"judges": [f"http://127.0.0.1:{port}/v1#judge"], "endpoint": endpoint}
    config = training_config(
        "demo",
        {
            "out": out,
            "reader": {"kind": "extractive"},
            "reward": {"metric": "judge", "judge": judge},
            "overlap": overlap,
            "minibatches": 1,
            "max_steps": arguments.steps + 1,
            "eval_tasks": 1,
            "validation_tasks": 0,
            "save_every": 1000,
        },
    )
    train(config)
    steps = []
    for line in read_metrics(out)[1:]:
        step = line["sample_seconds"] + line["train_seconds"]
        steps.append({"step": step, "waited": line["wait_seconds"], "rest": step - line["wait_seconds"]})
    return steps


def measure(latency: float, concurrency: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one result per number of parts, with one judge.

    Args:
        latency: Seconds that an answer takes.
        concurrency: Requests at once.
        arguments: Arguments of the command line.
    """
    context = multiprocessing.get_context("spawn")
    port: Any = context.Queue()
    server = context.Process(target=serve, args=(latency, port), daemon=True)
    server.start()
    number = port.get()
    steps: dict[int, list[dict[str, float]]] = {parts: [] for parts in PARTS}
    try:
        for turn in range(arguments.rounds):
            for parts in PARTS:
                with tempfile.TemporaryDirectory() as folder:
                    steps[parts] += run(number, parts, Path(folder) / "run", concurrency, arguments)
                print(f"latency {latency:g} s, round {turn + 1}, overlap {parts}: done", file=sys.stderr, flush=True)
    finally:
        server.terminate()
    return [
        {"latency": latency, "concurrency": concurrency, "overlap": parts, "steps": len(part_steps)}
        | {figure: summary(part_steps, figure) for figure in FIGURES}
        for parts, part_steps in steps.items()
    ]


def summary(steps: list[dict[str, float]], figure: str) -> dict[str, float]:
    """Return median, lowest and highest value."""
    values = [step[figure] for step in steps]
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def table(record: dict[str, Any]) -> str:
    """Format the record as Markdown."""
    text = [
        "# What overlapping saves where a judge is slow",
        "",
        f"The demo's steps ({record['rows']}), every answer scored by a judge behind a local HTTP endpoint. Seconds",
        f"a step, median (lowest to highest) of {record['steps']} steps; `waited`: nothing was sampled or learnt",
        "meanwhile. `overlap=1` is a run without overlapping. All is sampled before the first update, so the last",
        "part's answers are waited for after all sampling: of a judge that is far away only learning is hidden, of one",
        "with a queue sampling too. Sampling and learning in parts have smaller batches, and cost more for it.",
        "",
        "| seconds an answer takes | at once | overlap | a step | waited | the rest |",
        "|---|---|---|---|---|---|",
    ]
    for result in record["results"]:
        cells = (
            "{median:.1f} ({low:.1f} to {high:.1f})".format(**result["step"]),
            "{median:.1f}".format(**result["waited"]),
            "{median:.1f}".format(**result["rest"]),
        )
        text.append(
            f"| {result['latency']:g} | {result['concurrency']} | {result['overlap']} | " + " | ".join(cells) + " |"
        )
    text += ["", "```", record["command"], "```", "", record["where"], ""]
    return "\n".join(text)


def main() -> None:
    """Measure, record and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--latency", type=float, nargs="+", default=[6.0, 0.25])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[256, 8])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    judges = zip(arguments.latency, arguments.concurrency, strict=True)
    results = [result for latency, concurrency in judges for result in measure(latency, concurrency, arguments)]
    record = {
        "command": command(),
        "where": f"{versions()}; {os.cpu_count()} cores, one torch thread.",
        "rows": "8 tasks, 8 rollouts each",
        "steps": arguments.steps * arguments.rounds,
        "results": results,
    }
    save(arguments.results / "overlap-bench", record, table(record))


if __name__ == "__main__":
    main()
