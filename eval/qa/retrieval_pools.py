#!/usr/bin/env python
"""What the words around raw spans bring on dialogue and documents:

    python eval/qa/retrieval_pools.py DATA --embedders static minilm --out eval/results/retrieval-pools.json

DATA holds, in any folder below it, `locomo10.json` (snap-research/LoCoMo), `friendsqa_dev.json`, `friendsqa_tst.json`
(emorynlp/FriendsQA), `hotpotqa_train.json`, `musique_train.json` (OSU-NLP-Group/HippoRAG, branch legacy) and
`xquad.en.json` (google-deepmind/xquad), and the folder `chats` of mohammadtavakoli78/BEAM. Every pool is
a `MemoryStore` of its own, its spans entries with a source and a turn:

| set                 | pool                    | span                         | source       | evidence             |
|---------------------|-------------------------|------------------------------|--------------|----------------------|
| locomo              | a conversation          | `<date> <speaker>: <text>`   | conversation | turns                |
| friendsqa           | an episode              | `<speaker>: <text>`          | episode      | utterances with one  |
|                     |                         |                              |              | of the answers       |
| xquad               | 12 articles             | `<sentence>`                 | paragraph    | the answer's sentence|
| hotpotqa            | the paragraphs of 20    | `<title>: <sentence>`        | paragraph    | sentences            |
|                     | questions, shuffled     |                              |              |                      |
| hotpotqa-paragraphs | the same                | `<title>: <sentence>`        | paragraph    | paragraphs, found by |
|                     |                         |                              |              | any of the sentences |
| musique             | the same                | `<title>: <paragraph>`       | itself       | paragraphs           |
| musique-sentences   | the same                | `<title>: <sentence>`        | paragraph    | paragraphs, as above |
| beam-100K, -500K, -1M | a chat                  | `<role>: <message>`          | chat         | messages             |
| locomo-shuffled, …  | the same, in an order   | the same                     | one list     | the same             |
|                     | that means nothing      |                              |              |                      |

Rows: the routes dense, bm25 and flat (`sum`), `neighbours`, the default search, and `spans`, the default with the
reranker of that name. Gains are those of `neighbours` over `sum` and of `spans` over `neighbours`, the intervals 95 %
of 10,000 paired bootstrap samples, over conversations, episodes, chats or questions.
`--half odd` (or even) takes conversations, episodes and chats with odd numbers, every second question of other sets:
constants that are chosen on one half are reported on the other.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memalpha.qa.search_benchmark import EvidenceQuestion, EvidenceRanks, rank_evidence, summarize_ranks
from memalpha.qa.systems import raw_fields, turn_passages
from memalpha.store.embedding import CachedEmbedder, Embedder, load_embedder
from memalpha.store.store import MemoryStore
from memalpha.tasks.datasets import locomo
from memalpha.types import MemoryEntry

ROWS: dict[str, dict[str, Any]] = {  # row: options of the search
    "dense": {"route": "dense"},
    "bm25": {"route": "bm25"},
    "sum": {"route": "flat"},
    "neighbours": {},
    "spans": {"reranker": "spans"},
}
BASES = {"neighbours": "sum", "spans": "neighbours"}  # row: the row that it is compared with
FIGURES = ("recall@1", "recall@5", "recall@10", "mrr")
BATCH = 20  # questions that share a pool of paragraphs
ARTICLES = 12  # that share a pool
SENTENCE = re.compile(r'(?<=[.!?])\s+(?=[A-Z"])')  # what is between two
DIALOGUES = ("locomo", "friendsqa", "beam-100K", "beam-500K", "beam-1M", "locomo-shuffled", "friendsqa-shuffled")


class Pool(NamedTuple):
    """Facts for `MemoryStore.insert_many`, and questions whose evidence are values of one field of them.

    `number` is the pool's own; None counts pools from 0.
    """

    facts: list[dict[str, Any]]
    questions: list[EvidenceQuestion]
    unit: str = "turn"
    number: int | None = None


def search_function(store: MemoryStore, how: dict[str, Any]) -> Callable[[Sequence[str], int], list[list[MemoryEntry]]]:
    """Return a store's search with some options, as `rank_evidence` needs it."""
    return lambda queries, k: [[hit.entry for hit in hits] for hits in store.search_many(queries, k, **how)]


def locomo_pools(data: Path) -> Iterator[Pool]:
    """Yield a pool for each conversation of LoCoMo."""
    for task in locomo.load(_file(data, "locomo10.json")):
        facts = [raw_fields(piece, chunk) for chunk in task.chunks for piece in turn_passages(chunk)]
        questions = [
            EvidenceQuestion(question.question, question.category, question.evidence)
            for question in task.questions
            if question.evidence
        ]
        yield Pool(facts, questions)


def friendsqa_pools(data: Path) -> Iterator[Pool]:
    """Yield a pool for each episode of FriendsQA."""
    scenes: dict[str, list[dict[str, Any]]] = {}
    for part in ("dev", "tst"):
        for scene in json.loads(_file(data, f"friendsqa_{part}.json").read_text(encoding="utf-8"))["data"]:
            scenes.setdefault(scene["title"].rsplit("_", 1)[0], []).append(scene)
    for episode, episode_scenes in sorted(scenes.items()):
        facts, questions = [], []
        for number, scene in enumerate(sorted(episode_scenes, key=lambda scene: scene["title"])):
            (paragraph,) = scene["paragraphs"]
            for utterance in paragraph["utterances:"]:
                text = f"{', '.join(utterance['speakers'])}: {utterance['utterance']}"
                facts.append(_span(text, episode, number, f"{scene['title']}:{utterance['uid']}"))
            for question in paragraph["qas"]:
                gold = dict.fromkeys(f"{scene['title']}:{answer['utterance_id']}" for answer in question["answers"])
                questions.append(EvidenceQuestion(question["question"], "all", tuple(gold)))
        yield Pool(facts, questions)


def xquad_pools(data: Path) -> Iterator[Pool]:
    """Yield a pool for every 12 articles of XQuAD."""
    articles = json.loads(_file(data, "xquad.en.json").read_text(encoding="utf-8"))["data"]
    for start in range(0, len(articles), ARTICLES):
        facts, questions = [], []
        for article in articles[start : start + ARTICLES]:
            for number, paragraph in enumerate(article["paragraphs"]):
                source, text = f"{article['title']} {number}", paragraph["context"]
                starts = [0, *(gap.end() for gap in SENTENCE.finditer(text))]
                ends = [*starts[1:], len(text)]
                for index, bounds in enumerate(zip(starts, ends, strict=True)):
                    facts.append(_span(text[slice(*bounds)].strip(), source, None, f"{source}:{index}"))
                for question in paragraph["qas"]:
                    sentence = bisect_right(starts, question["answers"][0]["answer_start"]) - 1
                    questions.append(EvidenceQuestion(question["question"], "all", (f"{source}:{sentence}",)))
        yield Pool(facts, questions)


def hotpotqa_pools(data: Path, *, paragraphs_only: bool = False) -> Iterator[Pool]:
    """Yield a pool for every 20 questions of HotpotQA."""
    items = json.loads(_file(data, "hotpotqa_train.json").read_text(encoding="utf-8"))
    for batch in _batches(items):
        paragraphs = {title: sentences for item in batch for title, sentences in item["context"]}
        facts = [
            _span(f"{title}: {text.strip()}", title, None, f"{title}:{number}")
            for title in _shuffled(paragraphs)
            for number, text in enumerate(paragraphs[title])
            if text.strip()
        ]
        questions = []
        turns = {fact["turn"] for fact in facts}
        for item in batch:
            gold = item["supporting_facts"]
            names = [title if paragraphs_only else f"{title}:{number}" for title, number in gold]
            names = [name for name in dict.fromkeys(names) if paragraphs_only or name in turns]
            if names:
                questions.append(EvidenceQuestion(item["question"], item["type"], tuple(names)))
        yield Pool(facts, questions, "source" if paragraphs_only else "turn")


def musique_pools(data: Path, *, sentences: bool = False) -> Iterator[Pool]:
    """Yield a pool for every 20 questions of MuSiQue."""
    items = json.loads(_file(data, "musique_train.json").read_text(encoding="utf-8"))
    for batch in _batches(items):
        numbers: dict[tuple[str, str], str] = {}  # two paragraphs may share a title
        questions = []
        for item in batch:
            keys = [(paragraph["title"], paragraph["paragraph_text"]) for paragraph in item["paragraphs"]]
            for key in keys:
                numbers.setdefault(key, str(len(numbers)))
            gold = [
                numbers[key]
                for key, paragraph in zip(keys, item["paragraphs"], strict=True)
                if paragraph["is_supporting"]
            ]
            questions.append(EvidenceQuestion(item["question"], item["id"].split("__")[0], tuple(gold)))
        facts = []
        for title, text in _shuffled(numbers):
            parts = SENTENCE.split(text) if sentences else [text]
            source = numbers[title, text]
            facts += [_span(f"{title}: {part}", source, None, f"{source}:{index}") for index, part in enumerate(parts)]
        yield Pool(facts, questions, "source")


def beam_pools(data: Path, size: str) -> Iterator[Pool]:
    """Yield a pool for each chat of BEAM, by number; questions without evidence (abstention) are left out."""
    folders = (folder for folder in _file(data, f"chats/{size}").iterdir() if folder.is_dir())
    for folder in sorted(folders, key=lambda folder: int(folder.name)):
        short = folder / "chat_trunecated.json"  # the spelling of the data
        chat = json.loads((short if short.exists() else folder / "chat.json").read_text(encoding="utf-8"))
        facts = [
            _span(f"{message['role']}: {message['content']}", folder.name, number, str(int(message["id"])))
            for number, batch in enumerate(chat)
            for turn in batch["turns"]
            for message in turn
            if message["content"].strip()
        ]
        turns, questions = {fact["turn"] for fact in facts}, []
        probing = folder / "probing_questions" / "probing_questions.json"
        for kind, items in json.loads(probing.read_text(encoding="utf-8")).items():
            for item in items:
                gold = list(dict.fromkeys(_numbers(item.get("source_chat_ids"))))
                if kind != "abstention" and gold and turns.issuperset(gold):
                    questions.append(EvidenceQuestion(item["question"], kind, tuple(gold)))
        yield Pool(facts, questions, number=int(folder.name))


def _numbers(value: Any) -> Iterator[str]:
    """Yield the message numbers in nested lists and objects of them, some of them as text."""
    if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
        yield str(int(value))
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)


def as_list(pool: Pool) -> Pool:
    """Return a pool whose spans are one list in random order: neighbours have nothing to do with each other."""
    facts = [pool.facts[index] for index in _shuffled(range(len(pool.facts)))]
    return pool._replace(facts=[fact | {"source": "list", "chunk": None} for fact in facts])


SETS: dict[str, Callable[[Path], Iterator[Pool]]] = {
    "locomo": locomo_pools,
    "friendsqa": friendsqa_pools,
    "xquad": xquad_pools,
    "hotpotqa": hotpotqa_pools,
    "hotpotqa-paragraphs": lambda data: hotpotqa_pools(data, paragraphs_only=True),
    "musique": musique_pools,
    "musique-sentences": lambda data: musique_pools(data, sentences=True),
    "beam-100K": lambda data: beam_pools(data, "100K"),
    "beam-500K": lambda data: beam_pools(data, "500K"),
    "beam-1M": lambda data: beam_pools(data, "1M"),
    "locomo-shuffled": lambda data: map(as_list, locomo_pools(data)),
    "friendsqa-shuffled": lambda data: map(as_list, friendsqa_pools(data)),
    "xquad-shuffled": lambda data: map(as_list, xquad_pools(data)),
    "hotpotqa-shuffled": lambda data: map(as_list, hotpotqa_pools(data)),
}


def take_half(pools: Sequence[Pool], half: str, *, by_question: bool) -> list[Pool]:
    """Return the pools whose numbers are even or odd, or all pools with every second question.

    Args:
        pools: Pools of a set, in order.
        half: "even" or "odd"; questions are counted over all pools, from 0.
        by_question: Halve the questions.
    """
    rest, first = int(half == "odd"), 0
    halves = []
    for index, pool in enumerate(pools):
        if by_question:
            halves.append(pool._replace(questions=pool.questions[(rest - first) % 2 :: 2]))
            first += len(pool.questions)
        elif (index if pool.number is None else pool.number) % 2 == rest:
            halves.append(pool)
    return halves


def measure(pool: Pool, embedder: Embedder) -> dict[str, list[EvidenceRanks]]:
    """Return the ranks of a pool's questions by row."""
    with MemoryStore.open(":memory:", embedder=embedder) as store:
        stored = store.insert_many(pool.facts)
        # A line that was said before is stored once: it is found where the first is.
        units = {fact[pool.unit]: getattr(entry, pool.unit) for fact, entry in zip(pool.facts, stored, strict=True)}
        questions = [
            question._replace(gold=tuple(units[name] for name in question.gold)) for question in pool.questions
        ]
        return {
            row: rank_evidence(questions, search_function(store, how), lambda entry: getattr(entry, pool.unit))
            for row, how in ROWS.items()
        }


def gain(ranks: Sequence[Sequence[EvidenceRanks]], base: Sequence[Sequence[EvidenceRanks]], k: int = 10) -> list[float]:
    """Return the gain in mean recall@k over questions and its 95 % interval, resampling groups of questions."""
    pairs = zip(ranks, base, strict=True)
    differences = [
        [a.recall(k) - b.recall(k) for a, b in zip(group, base_group, strict=True)] for group, base_group in pairs
    ]
    sums, sizes = np.array([sum(group) for group in differences]), np.array([len(group) for group in differences])
    resampled = np.random.default_rng(0).integers(0, len(sums), (10_000, len(sums)))
    means = sums[resampled].sum(axis=1) / sizes[resampled].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return [round(float(value), 4) for value in (sums.sum() / sizes.sum(), low, high)]


def main(argv: Sequence[str] | None = None) -> None:
    """Print a Markdown row for each set, embedder and score; write all metrics to --out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--embedders", nargs="+", default=["static"])
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--half", choices=("even", "odd"), help="one half of each set")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    results: list[dict[str, Any]] = []
    titles = ("set", "embedder", "score", *FIGURES, "tokens@10", "gain in recall@1", "gain in recall@10")
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for name in options.sets:
        try:
            pools = list(SETS[name](options.data))
        except FileNotFoundError as missing:
            parser.exit(2, f"{name}: {missing}\n")
        if options.half is not None:
            pools = take_half(pools, options.half, by_question=name not in DIALOGUES)
        for embedder in map(load_embedder, options.embedders):
            pool_ranks = [measure(pool, CachedEmbedder(embedder)) for pool in pools]
            for row in ROWS:
                groups: list[list[EvidenceRanks]] = [ranks[row] for ranks in pool_ranks]
                base = [ranks[BASES.get(row, row)] for ranks in pool_ranks]
                summary = summarize_ranks([item for group in groups for item in group])
                if name not in DIALOGUES:  # by question: four or five pools are too few
                    groups, base = (
                        [[item] for group in sets_of_groups for item in group] for sets_of_groups in (groups, base)
                    )
                gains = [gain(groups, base, k) for k in (1, 10) if row in BASES]
                results.append({"set": name, "embedder": embedder.name, "score": row, **summary, "gains": gains})
                texts = [f"{mean:+.3f} ({low:+.3f} to {high:+.3f})" for mean, low, high in gains] or ["", ""]
                figures = [f"{summary[key]:.3f}" for key in FIGURES]
                cells = [name, embedder.name, row, *figures, f"{summary['tokens@10']:.0f}", *texts]
                print(f"| {' | '.join(cells)} |", flush=True)
            if options.out is not None:
                options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _span(text: str, source: str, chunk: int | None, turn: str) -> dict[str, Any]:
    return {"category": "episodic", "content": text, "source": source, "chunk": chunk, "turn": turn}


def _batches(items: Sequence[Any]) -> list[Sequence[Any]]:
    return [items[start : start + BATCH] for start in range(0, len(items), BATCH)]


def _shuffled(items: Iterable[Any]) -> list[Any]:
    ordered = sorted(items)
    random.Random(0).shuffle(ordered)
    return ordered


def _file(data: Path, name: str) -> Path:
    path = next(iter(sorted(data.rglob(name))), None)
    if path is None:
        raise FileNotFoundError(f"no {name} below {data}")
    return path


if __name__ == "__main__":
    main()
