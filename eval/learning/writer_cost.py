"""Measure what a writer costs to start and to read short texts alone: `python eval/learning/writer_cost.py [WRITER]`.

In a fresh process: seconds to import and load it, then the CPU seconds of each text, one after the other into one
memory as an app gives them, and the process's largest memory. The texts are the README's app example and a few
messages like it. What is written for each text stands beside it. The cost of chunks that are read together is in
smol-writer.md. Writes writer-cost.json and writer-cost.md to --results.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser, opening, save

TEXTS = (
    ("2025-01-10", "Ana: I live in Porto now.\nAna: My dog is called Rex."),
    ("2025-01-11", "Ana: I work as a nurse."),
    ("2025-01-12", "Ana: How are you today?"),
    ("2025-02-01", "Ana: I moved to Braga. My favorite color is green."),
    ("2025-02-02", "Ana: I no longer have a dog."),
)


def measure(writer: str) -> dict[str, Any]:
    """Load a writer and let it read the texts, in this process."""
    started, cpu_started = time.monotonic(), time.process_time()
    from memalpha import MemoryAgent, MemoryStore

    store = MemoryStore.open(":memory:")
    agent = MemoryAgent(writer, store)
    result: dict[str, Any] = {
        "load_seconds": time.monotonic() - started,
        "load_cpu_seconds": time.process_time() - cpu_started,
        "texts": [],
    }
    for date, text in TEXTS:
        cpu_started = time.process_time()
        reply = agent.read(text, timestamp=date, source="chat-7")
        seconds = time.process_time() - cpu_started
        results = [[item.call.name, item.code, dict(item.call.arguments)] for item in reply.results]
        result["texts"].append({"text": text, "cpu_seconds": seconds, "results": results})
    result["memory"] = [entry.content for entry in store.list()]
    result["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return result


def table(runs: list[dict[str, Any]]) -> list[str]:
    """Format the runs: the start, then each text."""

    def spread(values: list[float], digits: int = 1) -> str:
        middle, low, high = (f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
        return f"{middle} ({low} to {high})"

    lines = ["| what | median (least to most) |", "|---|---|"]
    for key, name, digits in (
        ("load_cpu_seconds", "CPU seconds to import and load", 1),
        ("load_seconds", "seconds to import and load, beside other work", 1),
        ("peak_gib", "largest memory, GiB", 2),
    ):
        lines.append(f"| {name} | {spread([run[key] for run in runs], digits)} |")
    lines += ["", "| text | CPU seconds | calls |", "|---|---|---|"]
    for index, text in enumerate(runs[0]["texts"]):
        seconds = [run["texts"][index]["cpu_seconds"] for run in runs]
        calls = "; ".join(
            " ".join([f"{name.removeprefix('memory_')} ({code})", *map(str, arguments.values())])
            for name, code, arguments in text["results"]
        )
        lines.append(f"| {text['text'].replace(chr(10), ' / ')} | {spread(seconds, 2)} | {calls} |")
    return [*lines, "", f"Memory at the end: {'; '.join(runs[0]['memory'])}."]


def main() -> None:
    """Measure in fresh processes and write the record."""
    parser = make_parser(__doc__)
    parser.add_argument("writer", nargs="?", default="smol")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--once", action="store_true", help="measure in this process and print the record")
    arguments = parser.parse_args()
    if arguments.once:
        print("RESULT " + json.dumps(measure(arguments.writer)))
        return
    runs = []
    for _ in range(arguments.repeats):
        words = [sys.executable, __file__, arguments.writer, "--once"]
        process = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        runs.append(json.loads(process.stdout.rpartition("RESULT ")[2]))
    title = f"The cost of the writer {arguments.writer}, a text at a time"
    save(arguments.results / "writer-cost", runs, "\n".join([*opening(title), "", *table(runs)]))


if __name__ == "__main__":
    main()
