"""`crash.py` for mem0 on its FAISS backend: kill a writer while it adds, and count what is lost or mixed up.

    pip install mem0ai faiss-cpu   # in an environment of its own
    python eval/store/crash_mem0.py --kills 60 --out mem0.json

Every kill begins with a copy of a store of 1,000 memories. A process adds more, one by one (`infer=False`, an embedder
that makes a vector of a text's hash), prints the id of each when `add` has returned, and is killed (SIGKILL) after a
random time. The store is opened again: a memory whose add had returned is `lost` if `get` does not give it, `mixed` if
it gives another text, or if a search with its own text finds another memory first. `bad` are the kills after which
there was any such, or the store could not be opened or read.
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
DIM, STORED, LONGEST = 384, 1000, 0.25
ME = {"user_id": "ana"}


class Embedder:
    """A unit vector from a text's hash."""

    def embed(self, text, memory_action=None):
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
        vector = np.random.default_rng(seed).normal(size=DIM)
        return (vector / np.linalg.norm(vector)).tolist()

    def embed_batch(self, texts, memory_action=None):
        return [self.embed(text) for text in texts]


def opened(folder):
    """The store in a folder."""
    vectors = {"embedding_model_dims": DIM, "collection_name": "crash", "path": str(folder / "vectors")}
    vectors["distance_strategy"] = "cosine"
    memory = Memory.from_config(
        {"vector_store": {"provider": "faiss", "config": vectors}, "history_db_path": str(folder / "history.db")}
    )
    memory.embedding_model = Embedder()
    return memory


def write(folder, seed, number):
    """Add memories, without end if `number` is 0, and say so."""
    memory, rng, count = opened(folder), random.Random(seed), 0
    while count < number or not number:
        count += 1
        text = f"fact {rng.randrange(1000)}: {seed} {count} " + "x" * rng.randrange(300)
        done = memory.add([{"role": "user", "content": text}], **ME, infer=False)
        print(json.dumps([done["results"][0]["id"], text]), flush=True)


def check(folder, known, rng):
    """What is wrong with the acknowledged memories."""
    memory, found = opened(folder), Counter()
    for id, text in known.items():
        there = memory.get(id)
        found["lost"] += there is None
        found["mixed"] += there is not None and there["memory"] != text
    for id in rng.sample(sorted(known), 20):
        hits = memory.search(known[id], filters=ME, top_k=1)["results"]
        found["mixed"] += bool(hits) and hits[0]["id"] != id and hits[0]["memory"] != known[id]
    return found


def run(kills, seed):
    """Kill `kills` times; the counts."""
    rng, found = random.Random(seed), Counter()
    with tempfile.TemporaryDirectory() as name:
        first, known = Path(name) / "first", {}
        first.mkdir()
        command = [sys.executable, __file__, "--write", str(first), f"{seed}", str(STORED)]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        known = dict(map(json.loads, said.splitlines()))
        assert not check(first, known, rng).total(), "a store that nobody killed is sound"
        for number in range(kills):
            folder = Path(name) / "now"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(first, folder)
            command = [sys.executable, __file__, "--write", str(folder), f"{seed}.{number}", "0"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            lines = [process.stdout.readline()]
            time.sleep(rng.random() * LONGEST)
            process.send_signal(signal.SIGKILL)
            text = "".join([*lines, process.communicate()[0]])
            added = dict(map(json.loads, text[: text.rfind("\n") + 1].splitlines()))
            found["acknowledged"] += len(added)
            try:
                wrong = check(folder, known | added, rng)
            except (OSError, ValueError, KeyError, RuntimeError) as error:
                print(f"kill {number}: {type(error).__name__}: {error}", file=sys.stderr)
                wrong = Counter(unreadable=1)
            found += wrong
            found["bad"] += bool(wrong.total())
    names = ("acknowledged", "bad", "lost", "mixed", "unreadable")
    return {"kills": kills, "seed": seed, "stored_before": STORED} | {name: found[name] for name in names}


def main():
    """Read the command line."""
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
