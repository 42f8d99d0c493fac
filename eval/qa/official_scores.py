"""Our scorers of published sets against the functions of their own repositories, on made-up answers.

    python eval/qa/official_scores.py --locomo FOLDER --mab FOLDER --longmemeval FOLDER --beam FOLDER

Each FOLDER is a checkout: snap-research/locomo (branch code), HUST-AI-HYZ/MemoryAgentBench, xiaowu0162/LongMemEval and
mohammadtavakoli78/BEAM. Only the functions that score are taken from their files, because the files import models and
clients. Answers are drawn from words with marks, numbers, dates, articles and refusals, where rules differ. A
repository that is not given is left out. Exits with 1 if one score differs by more than 1e-9.
"""

from __future__ import annotations

import ast
import re
import string
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from memalpha.qa.scoring import official
from memalpha.qa.scoring.official import retrieval_scores

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser

VOCABULARY = """
    Oslo oslo. the The a an and running runs C C++ C# 35 3.5 -35 1,000 1000 O- O+ yes no unknown cat, dog; don't U.S.
    2024-01-09 09.01.2024 9 January 2024 'Rome' (Lima) * - Answer: answer: not mentioned no information available
"""
Pair = tuple[str, float, float]


def load_functions(path: Path, names: str, **scope: Any) -> dict[str, Any]:
    """Return functions of a file by name, without running the rest of it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    wanted = set(names.split())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in wanted]
    if missing := wanted - {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
        raise SystemExit(f"{path} has no function {', '.join(sorted(missing))}: check out another version")
    space = {"re": re, "string": string, "np": np, "Counter": Counter, "List": list, "Tuple": tuple, **scope}
    exec(compile(tree, str(path), "exec"), space)
    return space


def answers(count: int) -> Iterator[tuple[str, list[str]]]:
    """Yield made-up predictions with their accepted answers; every third prediction holds one of them."""
    for number in range(count):
        rng = Random(number)
        golds = [" ".join(rng.choices(VOCABULARY.split(), k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
        prediction = rng.choice([" ", "\n"]).join(rng.choices(VOCABULARY.split(), k=rng.randint(0, 6)))
        yield (f"{prediction} {rng.choice(golds)}" if number % 3 == 0 else prediction), golds


def compare_locomo(folder: Path, count: int) -> Iterator[Pair]:
    import regex
    from nltk.stem import PorterStemmer

    theirs = load_functions(
        folder / "task_eval/evaluation.py", "normalize_answer f1_score f1", regex=regex, ps=PorterStemmer()
    )
    for prediction, (gold, *_) in answers(count):
        yield "multi-hop", official.locomo_f1(prediction, gold, 1), theirs["f1"](prediction, gold)
        yield "temporal", official.locomo_f1(prediction, gold, 2), theirs["f1_score"](prediction, gold)
        refuses = any(words in prediction.lower() for words in ("no information available", "not mentioned"))
        yield "adversarial", official.locomo_f1(prediction, gold, 5), float(refuses)


def compare_mab(folder: Path, count: int) -> Iterator[Pair]:
    names = "normalize_answer f1_score drqa_exact_match_score substring_exact_match_score"
    theirs = load_functions(
        folder / "utils/eval_other_utils.py", f"{names} drqa_metric_max_over_ground_truths parse_output"
    )
    best: Callable[..., float] = theirs["drqa_metric_max_over_ground_truths"]
    for prediction, golds in answers(count):
        texts = [prediction, theirs["parse_output"](prediction) or ""]
        exact, substring = (
            float(max(best(theirs[name], text, golds) for text in texts))
            for name in ("drqa_exact_match_score", "substring_exact_match_score")
        )
        # Nothing equals an empty text here, also where the script's two sides are both empty.
        if all(theirs["normalize_answer"](text) for text in (*texts, *golds)):
            yield "exact", official.strict_match(prediction, golds), exact
        yield "substring", official.substring_match(prediction, golds), substring
        f1 = theirs["f1_score"](prediction, golds[0])[0]
        sides = {theirs["normalize_answer"](text) for text in (prediction, golds[0])}
        if not sides & {"yes", "no", "noanswer"}:  # a rule of HotpotQA's script, which SQuAD's lacks
            yield "f1", official.squad_f1(prediction, golds[0]), f1


def compare_longmemeval(folder: Path, count: int) -> Iterator[Pair]:
    np.asfarray = lambda values: np.asarray(values, float)  # type: ignore[attr-defined]  # gone in NumPy 2
    theirs = load_functions(folder / "src/retrieval/eval_utils.py", "dcg ndcg evaluate_retrieval")
    for number in range(count):
        rng = Random(number)
        corpus = [f"s{index}" for index in range(rng.randint(1, 12))]
        ranking = rng.sample(range(len(corpus)), len(corpus))
        correct, k = rng.sample(corpus, rng.randint(0, len(corpus))), rng.randint(1, 12)
        ours = retrieval_scores([corpus[index] for index in ranking], correct, k, corpus=corpus, official=True)
        scores = theirs["evaluate_retrieval"](ranking, correct, corpus, k)
        yield from zip(ours, ours.values(), map(float, scores), strict=True)


def compare_beam(folder: Path, count: int) -> Iterator[Pair]:
    from scipy.stats import kendalltau

    scope = {"semantic_align": lambda reference, system, thr: (reference, system), "kendalltau": kendalltau}
    theirs = load_functions(folder / "src/evaluation/compute_metrics.py", "event_ordering_score", **scope)
    for number in range(count):
        rng = Random(number)
        events = [f"event {index}" for index in range(rng.randint(2, 7))]
        predicted = rng.sample([*events, "x", "y"], rng.randint(1, len(events)))
        ours = official.event_order(events, predicted)
        scores = theirs["event_ordering_score"](events, predicted, "semantic", None)
        for name, key in (("precision", "precision"), ("recall", "recall"), ("f1", "f1"), ("tau", "tau_norm")):
            score = float(scores[key])
            if score == score:  # the script's tau is nan where it is undefined; ours is 0
                yield name, ours[name], score


COMPARISONS = {
    "locomo": compare_locomo,
    "mab": compare_mab,
    "longmemeval": compare_longmemeval,
    "beam": compare_beam,
}


def main() -> int:
    """Print a line for each rule; return 1 if a score differs."""
    parser = make_parser(__doc__)
    for name in COMPARISONS:
        parser.add_argument(f"--{name}", type=Path, help="checkout of its repository")
    parser.add_argument("--count", type=int, default=2500, help="made-up answers of each set")
    arguments = vars(parser.parse_args())
    differing = 0
    for name, compare in COMPARISONS.items():
        if (folder := arguments[name]) is None:
            continue
        counts: Counter[str] = Counter()
        for rule, ours, theirs in compare(folder, arguments["count"]):
            counts[rule] += 1
            if abs(ours - theirs) > 1e-9:
                differing += 1
                counts[f"{rule} differ"] += 1
        print(f"{name}: {', '.join(f'{rule} {number:,}' for rule, number in counts.items())}")
    print(f"{differing} scores differ")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
