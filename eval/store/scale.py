"""Measure the store's costs by its size: `OMP_NUM_THREADS=1 python eval/store/scale.py`.

Stores of 2k, 20k, 200k and 1M made-up facts are filled with `insert_many`, vectors given (384 numbers each). They are
searched with questions of three to six words of one fact. A fact is eleven words and a number: six words of one of
3,000 topics and five of everyday frequency (Zipf) among 21,000 English words. Its vector is the sum of its words'
vectors from the static table, projected to 384 dimensions, plus 0.6 as much noise of its own. This is harder than
sentence models make it, since the nearest facts are not much nearer than others. Facts are in two categories.

Each measurement is CPU time (`process_time`), one thread. Opening and searching are those of a fresh process, with the
index file and (up to 200k) with it deleted. Resident memory is the process's VmRSS after 200 searches less what it was
before the store was opened, with Python, numpy and FAISS loaded. Recall@10 is against `exact=True` with vectors of
float32, on 50 questions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from memalpha.store.embedding import load_embedder, normalize
from memalpha.store.indexing.cache import index_files
from memalpha.store.search.vectors import PRECISIONS, Precision
from memalpha.store.store import MemoryStore

DIM, TOPICS, NOISE_WEIGHT = 384, 3000, 0.6
SIZES = (2_000, 20_000, 200_000, 1_000_000)
PAGE_SIZE = 10_000
SEARCHES, COMPARED_QUESTIONS = 200, 50


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
        add_seconds = (
            time_cpu(lambda: [store.insert("semantic", f"A note by itself: {number}") for number in range(100)])[1]
            / 100
        )
        build = time_cpu(store.build_index)[1]
    disk = Path(path).stat().st_size * 1e-6
    index = sum(file.stat().st_size for file in index_files(path)) * 1e-6
    return {
        "insert_us": spent / count * 1e6,
        "add_ms": add_seconds * 1e3,
        "build_s": build,
        "disk": disk,
        "index": index,
    }


def search(path: str, size: int, vectors: Precision) -> dict[str, float]:
    """Open an existing store and time searches; the first call for a store must use float32.

    Args:
        path: Store file.
        size: Number of entries.
        vectors: Precision of the vectors in memory.
    """
    embedder = PrecomputedEmbedder(f"{path}.asked.npz")
    questions = embedder.questions
    before, has_index_file = memory()["rss"], index_files(path)
    store, open_seconds = time_cpu(lambda: MemoryStore.open(path, embedder=embedder, vectors=vectors))
    _, first_seconds = time_cpu(lambda: store.search(questions[0]))
    if not has_index_file:
        store.build_index()  # waits for what the search has begun in the background
    times = sorted(time_cpu(lambda q=q: store.search(q))[1] * 1e3 for q in questions)
    resident = memory()
    shares, exact, exact_path = [], [], Path(f"{path}.right.json")
    exact_ids = json.loads(exact_path.read_text()) if exact_path.exists() else {}
    for question in questions[:COMPARED_QUESTIONS]:
        exact_hits, spent = time_cpu(lambda question=question: store.search(question, exact=True))
        exact_ids.setdefault(question, [hit.entry.id for hit in exact_hits])
        hit_ids = {hit.entry.id for hit in store.search(question)}
        shares.append(len(hit_ids.intersection(exact_ids[question])) / len(exact_hits))
        exact.append(spent * 1e3)
    exact_path.write_text(json.dumps(exact_ids))
    new, add = time_cpu(lambda: store.insert("semantic", "One more note, and a search after it"))
    _, after = time_cpu(lambda: store.search(questions[1]))
    _, delete = time_cpu(lambda: store.delete(new.id))
    store.close()
    return {
        "reopen_s": open_seconds + first_seconds,
        "p50_ms": times[len(times) // 2],
        "p95_ms": times[int(len(times) * 0.95)],
        "recall": float(np.mean(shares)),
        "exact_ms": float(np.median(exact)),
        "add_ms": add * 1e3,
        "after_add_ms": after * 1e3,
        "delete_ms": delete * 1e3,
        "before": before,
        **resident,
    }


def run_step(step: str, path: str, size: int, vectors: Precision = "float32") -> dict[str, float]:
    """Run a step in a process of its own.

    Args:
        step: "fill" or "search".
        path: Store file.
        size: Number of entries.
        vectors: Precision of the vectors in memory.
    """
    command = [sys.executable, __file__, "--step", step, "--path", path, "--size", str(size), "--vectors", vectors]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def _rebuild_seconds(path: str, size: int, vectors: Precision) -> float:
    """Rebuild the index from the rows and return the seconds to the first answer."""
    for file in index_files(path):
        file.unlink()
    return run_step("search", path, size, vectors)["reopen_s"]


def run(sizes: list[int], folder: str) -> list[dict[str, Any]]:
    """Return all measurements: one row per size and precision of vectors."""
    rows = []
    for size in sizes:
        path = str(Path(folder) / f"{size}.db")
        filled: dict[str, Any] = {"size": size} | run_step("fill", path, size)
        for vectors in PRECISIONS:
            rebuild_seconds = None
            if vectors != "float32":
                rebuild_seconds = _rebuild_seconds(path, size, vectors)
            row: dict[str, Any] = filled | {"vectors": vectors} | run_step("search", path, size, vectors)
            row["index"] = sum(file.stat().st_size for file in index_files(path)) * 1e-6
            if rebuild_seconds is None and size < 10**6:
                rebuild_seconds = _rebuild_seconds(path, size, vectors)
            row["without_s"] = rebuild_seconds
            row["resident"] = row["rss"] - row["before"]
            row["rss_of_vectors"] = row["resident"] * 1e6 / (size * DIM * 4)
            rows.append(row)
            print(json.dumps(row), flush=True)
        for file in Path(folder).iterdir():
            file.unlink()
    return rows


COLUMNS = {
    "entries": "{size:,}",
    "vectors": "{vectors}",
    "p50, ms": "{p50_ms:.1f}",
    "p95, ms": "{p95_ms:.1f}",
    "recall@10": "{recall:.3f}",
    "exact, ms": "{exact_ms:.1f}",
    "insert, us each": "{insert_us:.0f}",
    "one insert, ms": "{add_ms:.2f}",
    "search after it, ms": "{after_add_ms:.1f}",
    "delete, ms": "{delete_ms:.2f}",
    "index built, s": "{build_s:.2f}",
    "reopen to first answer, s": "{reopen_s:.2f}",
    "without index file, s": "{without_s}",
    "resident, MB": "{resident:,.0f}",
    "of float32 vectors": "{rss_of_vectors:.2f}",
    "store, MB": "{disk:,.0f}",
    "index file, MB": "{index:,.0f}",
}


def page(rows: list[dict[str, Any]]) -> str:
    """Return the table as Markdown."""
    lines = [
        "# The store by size",
        "",
        "`OMP_NUM_THREADS=1 python eval/store/scale.py --out eval/results/store-scale`",
        "",
    ]
    lines += [f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, CPU seconds of one thread.", ""]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for row in rows:
        cells = row | {"without_s": "-" if row["without_s"] is None else f"{row['without_s']:.2f}"}
        lines.append("| " + " | ".join(text.format(**cells) for text in COLUMNS.values()) + " |")
    return "\n".join(lines) + "\n"


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 380, 64, 190, 40, 44


def picture(rows: list[dict[str, Any]]) -> str:
    """Draw the CPU time of a search over the entries as SVG, on logarithmic axes: default and exact."""
    rows = [row for row in rows if row["vectors"] == "float32"]
    lines = [("95th percentile", "p95_ms", "#1a7f64"), ("every entry looked at", "exact_ms", "#b5533c")]
    sizes = [row["size"] for row in rows]
    times = [row[key] for row in rows for _, key, _ in lines]
    ends = np.floor(np.log10(min(times))), np.ceil(np.log10(max(times)))

    def x(size: float) -> float:
        span = np.log10(sizes[-1] / sizes[0]) or 1.0
        return LEFT + (WIDTH - LEFT - RIGHT) * float(np.log10(size / sizes[0]) / span)

    def y(ms: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * float((np.log10(ms) - ends[0]) / (ends[1] - ends[0]))

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" '
        f'font-size="12" fill="#444"><rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="20" font-size="14">CPU time of one search, by entries in the store</text>',
    ]
    for power in range(int(ends[0]), int(ends[1]) + 1):
        height = y(10.0**power)
        parts.append(f'<path d="M{LEFT} {height:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{10.0**power:g} ms</text>')
    for size in sizes:
        parts.append(f'<text x="{x(size):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{size:,}</text>')
    for label, key, colour in lines:
        points = [(x(row["size"]), y(row[key])) for row in rows]
        point_text = " ".join(f"{across:.1f},{up:.1f}" for across, up in points)
        parts.append(f'<polyline points="{point_text}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3" fill="{colour}"/>' for across, up in points]
        last = f"{label}: {rows[-1][key]:.1f} ms"
        parts.append(f'<text x="{points[-1][0] + 8:.1f}" y="{points[-1][1] - 6:.1f}" fill="{colour}">{last}</text>')
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="eval/results/store-scale", help="where the results go, without suffix")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--step", choices=("fill", "search"), help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--vectors", choices=PRECISIONS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        arguments = (options.path, options.size)
        print(json.dumps(fill(*arguments) if options.step == "fill" else search(*arguments, options.vectors)))
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = run(options.sizes, folder)
    Path(f"{options.out}.json").write_text(json.dumps(rows, indent=1) + "\n")
    Path(f"{options.out}.md").write_text(page(rows))
    Path(f"{options.out}.svg").write_text(picture(rows))


if __name__ == "__main__":
    main()
