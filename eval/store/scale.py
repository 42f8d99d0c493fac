"""Measure the store's costs by its size: `OMP_NUM_THREADS=1 python eval/store/scale.py`.

Stores of 2k, 20k, 200k and 1M made-up facts are filled with `insert_many`, vectors given (384 numbers each). They are
searched with questions of three to six words of one fact. A fact is eleven words and a number: six words of one of
3,000 topics and five of everyday frequency (Zipf) among 21,000 English words. Its vector is the sum of its words'
vectors from the static table, projected to 384 dimensions, plus 0.6 as much noise of its own. This is harder than
sentence models make it, since the nearest facts are not much nearer than others. Facts are in two categories.

Each measurement is CPU time (`process_time`), one thread; the machine's load stands beside it. Opening and searching
are those of a fresh process; reopening is the best of `REOPENINGS`, below a million entries. The first search above
50,000 entries trains the approximate index. Resident memory is the process's VmRSS after 200 searches less what it was
before the store was opened, with Python, numpy and FAISS loaded. Recall@10 is against `exact=True`, on 50 questions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import opening, save

from memalpha.store.embedding import load_embedder, normalize
from memalpha.store.search.ranking import Route
from memalpha.store.store import MemoryStore

DIM, TOPICS, NOISE_WEIGHT = 384, 3000, 0.6
SIZES = (2_000, 20_000, 200_000, 1_000_000)
PAGE_SIZE = 10_000
SEARCHES, COMPARED_QUESTIONS, REOPENINGS = 200, 50, 5


class World:
    """Facts by number, the questions about them, and the embedder of both."""

    name, dim = "made-up-384", DIM

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        static = load_embedder("static")
        table = (resources.files("memalpha") / "store" / "static" / "vocabulary.txt").read_text(encoding="utf-8")
        words = sorted({word for word in table.split("\n") if word.isascii() and word.isalpha() and len(word) > 2})
        self.words = np.array(words, object)
        rng.shuffle(self.words)
        self.number = {word: number for number, word in enumerate(self.words)}
        ranks = np.arange(len(words))
        self.frequency = 1 / (ranks + 20.0)
        self.frequency /= self.frequency.sum()
        turn = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0][: static.dim]
        weights = np.log(2 + ranks / 20)[:, None]
        self.vectors = (static.encode(list(self.words)) * weights @ turn).astype(np.float32)
        self.topics = rng.integers(200, len(words), (TOPICS, 40))
        self.popular = 1 / (np.arange(TOPICS) + 10.0)
        self.popular /= self.popular.sum()

    def encode(self, texts: list[str]) -> np.ndarray:
        """Return the vectors of texts from their words alone, float32 `(n, DIM)`."""
        rows = np.zeros((len(texts), DIM), np.float32)
        for row, text in enumerate(texts):
            word_ids = [self.number[word] for word in text.lower().strip("?.").split() if word in self.number]
            rows[row] = self.vectors[word_ids].sum(axis=0)
        return normalize(rows)

    def page(self, start: int) -> tuple[list[str], np.ndarray]:
        """Return `PAGE_SIZE` facts and their vectors."""
        rng = np.random.default_rng([1, start])
        topics = rng.choice(TOPICS, PAGE_SIZE, p=self.popular)
        of_topic = self.topics[topics[:, None], (rng.random((PAGE_SIZE, 6)) ** 1.5 * 40).astype(int)]
        words = np.concatenate([of_topic, rng.choice(len(self.words), (PAGE_SIZE, 5), p=self.frequency)], axis=1)
        noise = normalize(rng.normal(size=(PAGE_SIZE, DIM)).astype(np.float32))
        vectors = normalize(normalize(self.vectors[words].sum(axis=1)) + NOISE_WEIGHT * noise)
        numbers = rng.integers(0, 10**6, PAGE_SIZE).tolist()
        texts = [
            f"{' '.join(fact_words).capitalize()} {number}."
            for fact_words, number in zip(self.words[words], numbers, strict=True)
        ]
        return texts, vectors

    def facts(self, size: int) -> Iterator[tuple[list[dict[str, str]], np.ndarray]]:
        """Yield pages of facts with their vectors."""
        for start in range(0, size, PAGE_SIZE):
            texts, vectors = self.page(start)
            count = min(PAGE_SIZE, size - start)
            categories = ["episodic" if len(text) % 3 == 0 else "semantic" for text in texts]
            pairs = zip(categories[:count], texts[:count], strict=True)
            yield [{"category": category, "content": text} for category, text in pairs], vectors[:count]

    def questions(self, count: int, size: int) -> list[str]:
        """Return questions, each of some words of a fact."""
        rng = np.random.default_rng(9)
        pages = [self.page(int(page) * PAGE_SIZE)[0] for page in rng.integers(0, max(1, size // PAGE_SIZE), 8)]
        questions = []
        for _ in range(count):
            page = pages[int(rng.integers(len(pages)))]
            words = page[int(rng.integers(min(size, PAGE_SIZE)))].strip(".").split()[:-1]
            chosen_words = sorted(rng.permutation(len(words))[: int(rng.integers(3, 7))])
            questions.append("Which " + " ".join(words[index].lower() for index in chosen_words) + "?")
        return questions


class PrecomputedEmbedder:
    """Embedder of a process that only searches: precomputed vectors by text, zeros for other texts."""

    name, dim = World.name, DIM

    def __init__(self, path: str) -> None:
        with np.load(path, allow_pickle=False) as archive:
            self.questions = archive["texts"].tolist()[1:]
            self._vectors = dict(zip(archive["texts"].tolist(), archive["vectors"], strict=True))

    @staticmethod
    def save(path: str, world: World, questions: list[str]) -> None:
        """Save the vectors of the questions and of the text by which a store recognizes its embedder.

        Args:
            path: Archive to write.
            world: Embedder of the texts.
            questions: Questions of the searches.
        """
        texts = ["Ana moved to Lisbon in 2024.", *questions]
        np.savez(path, texts=np.array(texts), vectors=world.encode(texts))

    def encode(self, texts: list[str]) -> np.ndarray:
        """Return the vectors of texts, float32 `(n, DIM)`."""
        zero_vector = np.zeros(DIM, np.float32)
        return np.array([self._vectors.get(text, zero_vector) for text in texts], np.float32)


def time_cpu(work: Any) -> tuple[Any, float]:
    """Return the result of `work` and its CPU seconds."""
    start = time.process_time()
    return work(), time.process_time() - start


def memory() -> dict[str, float]:
    """Return the resident memory of this process in MB, now and at its peak."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {name: int(lines[key].split()[0]) * 1.024e-3 for name, key in (("rss", "VmRSS"), ("peak", "VmHWM"))}


def fill(path: str, size: int) -> dict[str, float]:
    """Make a store and return the costs of each kind of write."""
    world, spent, count = World(), 0.0, 0
    PrecomputedEmbedder.save(f"{path}.asked.npz", world, world.questions(SEARCHES, size))
    with MemoryStore.open(path, embedder=world) as store:
        for facts, vectors in world.facts(size):
            spent += time_cpu(lambda facts=facts, vectors=vectors: store.insert_many(facts, vectors))[1]
            count += len(facts)
    return {"insert_us": spent / count * 1e6, "disk": Path(path).stat().st_size * 1e-6}


def reopen(path: str) -> tuple[MemoryStore, dict[str, float]]:
    """Open a store and search it once; return it with the seconds to the first answer."""
    embedder = PrecomputedEmbedder(f"{path}.asked.npz")
    store, open_seconds = time_cpu(lambda: MemoryStore.open(path, embedder=embedder))
    first_seconds = time_cpu(lambda: store.search(embedder.questions[0]))[1]
    return store, {"reopen_s": open_seconds + first_seconds}


def search(path: str) -> dict[str, float]:
    """Open an existing store and time searches."""
    questions = PrecomputedEmbedder(f"{path}.asked.npz").questions
    before = memory()["rss"]
    store, figures = reopen(path)
    figures |= measure_route(store, questions, "soft") | measure_route(store, questions, "dense")
    figures["resident"] = memory()["rss"] - before
    new, add = time_cpu(lambda: store.insert("semantic", "One more note, and a search after it"))
    _, after = time_cpu(lambda: store.search(questions[1]))
    _, delete = time_cpu(lambda: store.delete(new.id))
    store.close()
    return figures | {"add_ms": add * 1e3, "after_add_ms": after * 1e3, "delete_ms": delete * 1e3}


def measure_route(store: MemoryStore, questions: list[str], route: Route) -> dict[str, float]:
    """Return percentiles of a search in ms, that of an exact one, and recall@10, named after the route.

    Args:
        store: Store to search.
        questions: Questions of the searches.
        route: Route of the searches.
    """
    times = sorted(time_cpu(lambda q=q: store.search(q, route=route))[1] * 1e3 for q in questions)
    shares, exact = [], []
    for question in questions[:COMPARED_QUESTIONS]:
        hits, spent = time_cpu(lambda q=question: store.search(q, route=route, exact=True))
        exact_ids = {hit.entry.id for hit in hits}
        shares.append(len(exact_ids & {hit.entry.id for hit in store.search(question, route=route)}) / len(exact_ids))
        exact.append(spent * 1e3)
    return {
        f"{route}_p50_ms": times[len(times) // 2],
        f"{route}_p95_ms": times[int(len(times) * 0.95)],
        f"{route}_recall": float(np.mean(shares)),
        f"{route}_exact_ms": float(np.median(exact)),
    }


def run_step(step: str, path: str, size: int) -> dict[str, float]:
    """Run a step in a process of its own.

    Args:
        step: "fill", "reopen" or "search".
        path: Store file.
        size: Number of entries.
    """
    command = [sys.executable, __file__, "--step", step, "--path", path, "--size", str(size)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def run(sizes: list[int], folder: str) -> list[dict[str, Any]]:
    """Return all measurements, one row per size."""
    rows = []
    for size in sizes:
        path = str(Path(folder) / f"{size}.db")
        row: dict[str, Any] = {"size": size} | run_step("fill", path, size) | run_step("search", path, size)
        if size < 10**6:
            row["reopen_s"] = min(run_step("reopen", path, size)["reopen_s"] for _ in range(REOPENINGS))
        row |= {"rss_of_vectors": row["resident"] * 1e6 / (size * DIM * 4), "load": os.getloadavg()[0]}
        rows.append(row)
        print(json.dumps(row), flush=True)
        for file in Path(folder).iterdir():
            file.unlink()
    return rows


COLUMNS = {
    "entries": "{size:,}",
    "p50, ms": "{soft_p50_ms:.1f}",
    "p95, ms": "{soft_p95_ms:.1f}",
    "recall@10": "{soft_recall:.3f}",
    "exact, ms": "{soft_exact_ms:.1f}",
    "dense p95, ms": "{dense_p95_ms:.1f}",
    "dense recall@10": "{dense_recall:.3f}",
    "dense exact, ms": "{dense_exact_ms:.1f}",
    "insert, us each": "{insert_us:.0f}",
    "one insert, ms": "{add_ms:.2f}",
    "search after it, ms": "{after_add_ms:.1f}",
    "delete, ms": "{delete_ms:.2f}",
    "reopen to first answer, s": "{reopen_s:.2f}",
    "resident, MB": "{resident:,.0f}",
    "of the vectors": "{rss_of_vectors:.2f}",
    "store, MB": "{disk:,.0f}",
    "load": "{load:.0f}",
}


def page(rows: list[dict[str, Any]]) -> str:
    """Return the table as Markdown."""
    lines = [*opening("The store by size", ["faiss-cpu", "numpy"]), "CPU seconds of one thread.", ""]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(text.format(**row) for text in COLUMNS.values()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="eval/results/store-scale", help="where the results go, without suffix")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--step", choices=("fill", "reopen", "search"), help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step == "fill":
        print(json.dumps(fill(options.path, options.size)))
    elif options.step:
        print(json.dumps(reopen(options.path)[1] if options.step == "reopen" else search(options.path)))
    else:
        with tempfile.TemporaryDirectory() as folder:
            rows = run(options.sizes, folder)
        save(Path(options.out), rows, page(rows))


if __name__ == "__main__":
    main()
