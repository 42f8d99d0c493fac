"""Kill a writer of mem0 on its FAISS backend while it adds, and count lost or mixed-up memories.

    pip install mem0ai faiss-cpu   # in an environment of its own
    python eval/store/crash_mem0.py --kills 60 --out mem0.json

The counterpart of `crash.py`. Every kill begins with a copy of a store of 1,000 memories. A process adds more, one by
one (`infer=False`, with an embedder that hashes the text), prints each id after `add` has returned, and is killed
(SIGKILL) after a random time. The store is then opened again. An acknowledged memory is `lost` if `get` does not
return it. It is `mixed` if `get` returns another text, or if a search with its own text ranks another memory first.
`bad` counts the kills after which a memory was lost or mixed, or the store could not be opened or read.
"""

import argparse
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": tempfile.mkdtemp(), "OPENAI_API_KEY": "none"}

import numpy as np
from mem0 import Memory  # pyright: ignore

logging.disable(logging.ERROR)
DIM, INITIAL_MEMORIES, MAX_WRITER_SECONDS = 384, 1000, 0.25
USER_SCOPE = {"user_id": "ana"}


class Embedder:
    """Embedder that draws a unit vector from a text's hash."""

    def embed(self, text, memory_action=None):
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
        vector = np.random.default_rng(seed).normal(size=DIM)
        return (vector / np.linalg.norm(vector)).tolist()

    def embed_batch(self, texts, memory_action=None):
        return [self.embed(text) for text in texts]


def open_memory(folder):
    """Open the store in a folder."""
    vectors = {"embedding_model_dims": DIM, "collection_name": "crash", "path": str(folder / "vectors")}
    vectors["distance_strategy"] = "cosine"
    memory = Memory.from_config(
        {"vector_store": {"provider": "faiss", "config": vectors}, "history_db_path": str(folder / "history.db")}
    )
    memory.embedding_model = Embedder()
    return memory


def write(folder, seed, number):
    """Add `number` memories, or without end if it is 0, and print each.

    Args:
        folder: Folder of the store.
        seed: Seed of the texts.
        number: Number of memories; 0 for no end.
    """
    memory, rng, count = open_memory(folder), random.Random(seed), 0
    while count < number or not number:
        count += 1
        text = f"fact {rng.randrange(1000)}: {seed} {count} " + "x" * rng.randrange(300)
        result = memory.add([{"role": "user", "content": text}], **USER_SCOPE, infer=False)
        print(json.dumps([result["results"][0]["id"], text]), flush=True)


def check(folder, acknowledged, rng):
    """Count lost and mixed-up memories.

    Args:
        folder: Folder of the store.
        known: Acknowledged texts by id.
        rng: Source of the sample of searched texts.
    """
    memory, counts = open_memory(folder), Counter()
    for id, text in acknowledged.items():
        stored = memory.get(id)
        counts["lost"] += stored is None
        counts["mixed"] += stored is not None and stored["memory"] != text
    for id in rng.sample(sorted(acknowledged), 20):
        hits = memory.search(acknowledged[id], filters=USER_SCOPE, top_k=1)["results"]
        counts["mixed"] += bool(hits) and hits[0]["id"] != id and hits[0]["memory"] != acknowledged[id]
    return counts


def run(kills, seed):
    """Kill a writer `kills` times and return the counts."""
    rng, counts = random.Random(seed), Counter()
    with tempfile.TemporaryDirectory() as name:
        initial_folder, initial_memories = Path(name) / "first", {}
        initial_folder.mkdir()
        command = [sys.executable, __file__, "--write", str(initial_folder), f"{seed}", str(INITIAL_MEMORIES)]
        writer_output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        initial_memories = dict(map(json.loads, writer_output.splitlines()))
        assert not check(initial_folder, initial_memories, rng).total(), "a store that nobody killed is sound"
        for number in range(kills):
            folder = Path(name) / "now"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(initial_folder, folder)
            command = [sys.executable, __file__, "--write", str(folder), f"{seed}.{number}", "0"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            lines = [process.stdout.readline()]
            time.sleep(rng.random() * MAX_WRITER_SECONDS)
            process.send_signal(signal.SIGKILL)
            text = "".join([*lines, process.communicate()[0]])
            added = dict(map(json.loads, text[: text.rfind("\n") + 1].splitlines()))
            counts["acknowledged"] += len(added)
            try:
                faults = check(folder, initial_memories | added, rng)
            except (OSError, ValueError, KeyError, RuntimeError) as error:
                print(f"kill {number}: {type(error).__name__}: {error}", file=sys.stderr)
                faults = Counter(unreadable=1)
            counts += faults
            counts["bad"] += bool(faults.total())
    names = ("acknowledged", "bad", "lost", "mixed", "unreadable")
    return {"kills": kills, "seed": seed, "stored_before": INITIAL_MEMORIES} | {name: counts[name] for name in names}


def main():
    """Run the command line."""
    if sys.argv[1:2] == ["--write"]:
        write(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = run(options.kills, options.seed)
    print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
