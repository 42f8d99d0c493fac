"""Train the network of `memalpha/agent/answer_spans.py`: `python scripts/make_answer_spans.py XQUAD FRIENDSQA`.

XQUAD is a folder with XQuAD's files xquad.LANGUAGE.json (google-deepmind/xquad), FRIENDSQA one with FriendsQA's files
(emorynlp/FriendsQA). Of XQuAD the articles with even numbers are learnt, sentence by sentence, so that the others can
judge; of FriendsQA the development episodes. Takes half a minute on one core. Writes `memalpha/weights/spans/spans.npz`
and prints the token F1 on what was not learnt, beside that of whole sentences.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from memalpha.agent.answer_spans import WEIGHTS, best_span, word_features
from memalpha.agent.transcript import split_label
from memalpha.qa.scoring.metrics import best_score
from memalpha.store.search.lexical import words
from memalpha.tasks.load import load_tasks

LANGUAGES = ("ar", "de", "el", "en", "es", "hi", "ru", "th", "tr", "vi", "zh")
SENTENCES, MAX_WORDS, HIDDEN, STEPS = 500, 80, 32, 400
SENTENCE = re.compile(r".+?(?:[.!?\u0964](?=\s|$)|[\u3002\uff01\uff1f]|$)", re.DOTALL)

Example = tuple[str, str, tuple[str, ...]]
Rows = tuple[NDArray[np.float64], NDArray[np.float64]]


def xquad_examples(path: Path, first: int) -> Iterator[Example]:
    """Yield question, sentence that holds the answer, and answers, of every second article from the `first` on."""
    for article in json.loads(path.read_text(encoding="utf-8"))["data"][first::2]:
        for paragraph in article["paragraphs"]:
            sentences = list(SENTENCE.finditer(paragraph["context"]))
            for question in paragraph["qas"]:
                start = question["answers"][0]["answer_start"]
                for sentence in sentences:
                    if sentence.start() <= start < sentence.end():
                        yield question["question"], sentence[0].strip(), (question["answers"][0]["text"],)


def friendsqa_examples(folder: Path, variant: str) -> Iterator[Example]:
    """Yield question, utterance that holds the answer, and answers, of FriendsQA's "dev" or "test" episodes."""
    for task in load_tasks("friendsqa", data=folder, variant=variant):
        turns = {turn.id: turn.text for chunk in task.chunks for turn in chunk.turns}
        for question in task.questions:
            if question.answers and question.evidence:
                text = turns[question.evidence[0]]
                yield question.question, split_label(text)[1] or text, question.answers


def rows(examples: Iterator[Example], count: int) -> Iterator[Rows]:
    """Yield the features of each word and whether it belongs to the answer, of `count` random examples."""
    shuffled = list(examples)
    random.Random(0).shuffle(shuffled)
    for question, text, answers in shuffled[:count]:
        found, features = word_features(question, text)
        start = next((at for answer in answers if (at := text.lower().find(answer.lower())) >= 0), -1)
        end = start + len(next((answer for answer in answers if answer.lower() in text.lower()), ""))
        terms = {*words(" ".join(answers))}
        is_in = [
            match.start() < end and match.end() > start if start >= 0 else not terms.isdisjoint(words(match[0]))
            for match in found
        ]
        if 0 < len(found) <= MAX_WORDS and any(is_in):
            yield features, np.array(is_in, dtype=float)


def train(sets: list[tuple[list[Rows], float]]) -> dict[str, NDArray[np.float32]]:
    """Train the network: each example of a set counts alike, each set by its weight."""
    parts = [(*row, np.full(len(row[1]), weight / len(of) / len(row[1]))) for of, weight in sets for row in of]
    features, targets, weights = (torch.tensor(np.concatenate(part)).float() for part in zip(*parts, strict=True))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(features.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses = nn.functional.binary_cross_entropy_with_logits(net(features)[:, 0], targets, reduction="none")
        loss = (losses * weights).sum() / weights.sum()
        loss.backward()
        optimizer.step()
        schedule.step()
    print(f"{len(targets):,} words, loss {loss.item():.3f}")
    arrays = [parameter.detach().numpy() for parameter in net.parameters()]
    return dict(zip(("hidden", "hidden_bias", "out", "out_bias"), (*arrays[:2], arrays[2][0], arrays[3]), strict=True))


def main() -> None:
    """Train and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("xquad", type=Path)
    parser.add_argument("friendsqa", type=Path)
    options = parser.parse_args()
    files = {language: options.xquad / f"xquad.{language}.json" for language in LANGUAGES}
    sets = [(list(rows(xquad_examples(file, 0), SENTENCES)), 1.0) for file in files.values()]
    sets.append((list(rows(friendsqa_examples(options.friendsqa, "dev"), SENTENCES)), 6.0))
    np.savez(WEIGHTS, allow_pickle=False, **train(sets))
    judged = {language: list(xquad_examples(file, 1)) for language, file in files.items()}
    for name, examples in {**judged, "friendsqa": list(friendsqa_examples(options.friendsqa, "test"))}.items():
        spans = mean(best_score("f1", best_span(question, text), answers) for question, text, answers in examples)
        whole = mean(best_score("f1", text, answers) for _, text, answers in examples)
        print(f"{name}: {len(examples)} questions, spans {spans:.3f}, whole {whole:.3f}")


if __name__ == "__main__":
    main()
