"""Scores of an answer against the accepted ones: exact match, token F1, containment, and LoCoMo's official F1.

Every metric is in 0..1 and an empty prediction scores 0. Abstention is judged apart: see `score_answer`.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from memalpha.agent.answer import Answer
from memalpha.agent.text import contains, same
from memalpha.store.slots import normalize
from memalpha.store.stem import stem

Metric = Callable[[str, str], float]


def exact_match(prediction: str, gold: str) -> float:
    """1 if equal after SQuAD's normalisation."""
    return float(same(prediction, gold))


def containment(prediction: str, gold: str) -> float:
    """1 if the gold answer occurs in the prediction as a run of whole tokens."""
    return float(contains(prediction, gold))


def token_f1(prediction: str, gold: str) -> float:
    """Harmonic mean of precision and recall over normalised tokens, counted with multiplicity (SQuAD)."""
    return _f1(normalize(prediction).split(), normalize(gold).split())


METRICS: Mapping[str, Metric] = {"exact": exact_match, "f1": token_f1, "contains": containment}
RIGHT = {"exact": 1.0, "f1": 0.5, "contains": 1.0}
"""The score from which an answer counts as correct where a yes or no is needed."""


def best_score(metric: str, prediction: str, answers: Sequence[str]) -> float:
    """The best score over the accepted answers; 0 if there are none. `KeyError` for an unknown metric."""
    scorer = METRICS[metric]
    return max((scorer(prediction, answer) for answer in answers), default=0.0)


def score_answer(metric: str, answer: Answer, answers: Sequence[str]) -> float:
    """What an answer is worth, abstention and the conflict rule included.

    No accepted answers: 1 for an abstention. Otherwise an abstention is worth 0, unless it is an accepted answer to the
    letter ("none"). An answer from a slot in conflict is worth 0 whatever it says.
    """
    if answer.conflict:
        return 0.0
    if not answers:
        return float(answer.abstained)
    if answer.abstained and not any(same(answer.text, accepted) for accepted in answers):
        return 0.0
    return best_score(metric, answer.text, answers)


LOCOMO_CATEGORIES = {"multi-hop": 1, "temporal": 2, "open-domain": 3, "single-hop": 4, "adversarial": 5}
_LOCOMO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_LOCOMO_ARTICLES = re.compile(r"\b(a|an|the|and)\b")
_LOCOMO_REFUSALS = ("no information available", "not mentioned")


def locomo_f1(prediction: str, gold: str, category: int | str) -> float:
    """LoCoMo's official score of one answer (Maharana et al., ACL 2024), by question category.

    Porter-stemmed token F1. Category 1 (multi-hop) splits both sides at commas and averages, over the gold parts, the
    best F1 of any predicted part; category 3 keeps the gold before its first ";"; 2 and 4 are plain; 5 (adversarial)
    is 1 if the prediction holds a refusal. The stemmer is Porter's own; the official script uses NLTK's variant, which
    differs on a few words ("dying", "news").
    """
    number = LOCOMO_CATEGORIES[category] if isinstance(category, str) else category
    if number == 5:
        return float(any(phrase in prediction.lower() for phrase in _LOCOMO_REFUSALS))
    if number == 3:
        gold = gold.split(";")[0].strip()
    if number == 1:
        parts = [_locomo_tokens(part) for part in prediction.split(",")]
        golds = [_locomo_tokens(part) for part in gold.split(",")]
        return sum(max(_f1(part, wanted) for part in parts) for wanted in golds) / len(golds)
    if number not in (2, 3, 4):
        raise ValueError(f"LoCoMo has the categories 1 to 5, not {category!r}")
    return _f1(_locomo_tokens(prediction), _locomo_tokens(gold))


def _locomo_tokens(text: str) -> list[str]:
    plain = text.lower().translate(_LOCOMO_PUNCTUATION)
    return [stem(word) for word in _LOCOMO_ARTICLES.sub(" ", plain).split()]


def _f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    shared = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * shared / (len(predicted) + len(gold)) if shared else 0.0
