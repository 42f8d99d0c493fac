"""Metrics of one answer: exact match, token F1, containment, each question's own metric, and cited evidence.

Every metric is in 0..1 and an empty prediction scores 0. `score_answer` handles abstention. The rules of published
benchmarks are in `official`; `score_question` applies the one that a question names.

Replies that cite their evidence have three components (the PersonaMem reward):

| component  | score                                                                                       |
|------------|---------------------------------------------------------------------------------------------|
| `format`   | 0.1 for an answer line, 0.05 for an evidence line, 0.05 for a line of reasoning             |
| `answer`   | the question's own score, 0 to 1                                                            |
| `evidence` | 0.1 for every cited note that is evidence, -0.05 for every other, clamped to -0.1 .. 0.3    |

A cited number without a note counts as a wrong one. `cited` is the sum divided by its maximum, 1.5, and at least 0, so
that it is a score in 0..1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

from memalpha.agent.reader import Answer, Cited
from memalpha.arguments import check_function, name_errors, to_float
from memalpha.config.common import import_object
from memalpha.errors import ConfigError, did_you_mean
from memalpha.qa.scoring import official
from memalpha.store.search.lexical import UNSPACED
from memalpha.store.values import FULL_DATE, contains, holds_answer, is_same, tokens
from memalpha.types import Question, Task

if TYPE_CHECKING:
    from memalpha.qa.systems import Passage

Metric = Callable[[str, str], float]


def exact_match(prediction: str, gold: str) -> float:
    """Return 1 if both are equal after `normalize`, which keeps numbers, names and dates apart."""
    return float(is_same(prediction, gold))


def containment(prediction: str, gold: str) -> float:
    """Return 1 if the gold answer occurs in the prediction as a run of whole tokens."""
    return float(contains(prediction, gold))


def token_f1(prediction: str, gold: str) -> float:
    """Return the harmonic mean of precision and recall over normalized tokens with multiplicity.

    Where both texts hold a whole date, its tokens count together: another day of the same month earns nothing. Of
    scripts written without spaces every character is a token, as in CMRC 2018 and KorQuAD.
    """
    texts = [" ".join(tokens(text)) for text in (prediction, gold)]
    if all(map(FULL_DATE.search, texts)):
        texts = [FULL_DATE.sub(" ".join([r"\1-\2-\3"] * 3), text) for text in texts]
    return official.bag_f1(texts[0].split(), texts[1].split())


METRICS: Mapping[str, Metric] = {"exact": exact_match, "f1": token_f1, "contains": containment}
CORRECT_FROM = {
    "exact": 1.0, "squad-exact": 1.0, "contains": 1.0, "substring": 1.0, "eventqa": 1.0, "label": 1.0, "choice": 1.0,
    "judge": 1.0, "f1": 0.5, "squad-f1": 0.5, "locomo-f1": 0.5, "recall@5": 0.5, "keywords": 0.5, "parts": 0.5,
    "rouge": 0.5, "rubric": 0.5, "keypoint-f1": 0.5,
}  # fmt: skip
"""Score from which an answer counts as correct, by metric."""


def best_score(metric: str, prediction: str, answers: Sequence[str]) -> float:
    """Return the best score over the accepted answers; 0 if there are none.

    Args:
        metric: A key of `METRICS`.
        prediction: Text of the answer.
        answers: Accepted answers.

    Raises:
        KeyError: The metric is unknown.
    """
    scorer = METRICS[metric]
    return max((scorer(prediction, answer) for answer in answers), default=0.0)


def is_refusal(answer: Answer, answers: Sequence[str]) -> bool:
    """Return True if an answer abstains and holds none of the accepted answers."""
    return answer.abstained and not any(holds_answer(answer.text, accepted) for accepted in answers)


def score_answer(metric: str, answer: Answer, answers: Sequence[str]) -> float:
    """Score an answer, abstention and the conflict rule included.

    Without accepted answers an abstention scores 1. Otherwise it scores 0, unless it holds an accepted answer ("none").
    An answer that the conflict rule refused scores 0.

    Args:
        metric: A key of `METRICS`.
        answer: Answer of the reader.
        answers: Accepted answers.
    """
    if answer.conflict:
        return 0.0
    if not answers:
        return float(answer.abstained)
    if is_refusal(answer, answers):
        return 0.0
    return best_score(metric, answer.text, answers)


def score_question(question: Question, answer: Answer, default: str = "exact") -> float | None:
    """Score an answer by the question's own metric (`meta["metric"]`), else by `default`.

    The conflict rule applies as in `score_answer`, and for ours and SQuAD's metrics abstention too. The official
    scripts know no abstention where there is an answer: a summary that says "not mentioned" about one thing is scored
    as any other. An adversarial question of LoCoMo is right if the reply holds one of its refusals, or abstains
    otherwise. Its official prompt asks the reader for just these words.

    Args:
        question: Question that was asked.
        answer: Answer of the reader.
        default: Metric of questions that name none.

    Returns:
        The score, or None if the metric is in `JUDGED` and waits for a verdict.

    Raises:
        ConfigError: The metric is unknown.
    """
    metric = str(question.meta.get("metric", default))
    if metric in JUDGED:
        return None
    score = load_metric(metric, f"question {question.id!r}: meta.metric")
    if metric == "locomo-f1" and question.category == "adversarial":
        return 0.0 if answer.conflict else float(answer.abstained or official.locomo_f1(answer.text, "", 5) > 0)
    refuses = metric in _ABSTENTION_METRICS and is_refusal(answer, question.answers)
    if answer.conflict or not question.answers or refuses:
        return score_answer("exact", answer, question.answers)
    return score(answer.text, question)


def official_scores(question: Question, answer: Answer) -> dict[str, float]:
    """Return the official script's scores where they differ from the question's own score.

    `rouge` adds ROUGE-1, -2 and -L (of the gold answer with the best ROUGE-L). `choice (official)` and `parts
    (official)` follow the scripts of PersonaMem and Mem-alpha with their quirks.
    """
    metric, text = str(question.meta.get("metric", "")), answer.text
    if not question.answers or metric not in ("rouge", "choice", "parts"):
        return {}
    if metric == "rouge":
        return dict(max((official.rouge(text, gold) for gold in question.answers), key=lambda scores: scores["rougeL"]))
    rule = official.parts_share
    if metric == "choice":
        rule = partial(official.choice_score, options=question.meta.get("choices"))
    return {f"{metric} (official)": max(rule(text, gold, official=True) for gold in question.answers)}


def is_correct(question: Question, score: float, default: str = "exact") -> bool:
    """Return True if a score by the question's own metric counts as correct.

    Args:
        question: Question with its metric.
        score: Score of the answer.
        default: Metric of questions that name none.
    """
    return score >= CORRECT_FROM.get(str(question.meta.get("metric", default)), 0.5)


def _best_over_answers(metric: Callable[[str, str], float]) -> Callable[[str, Question], float]:
    return lambda text, question: max(metric(text, gold) for gold in question.answers)


QUESTION_METRICS: Mapping[str, Callable[[str, Question], float]] = {
    "f1": _best_over_answers(token_f1),
    "contains": _best_over_answers(containment),
    "exact": lambda text, q: max(best_score("exact", part, q.answers) for part in (text, official.answer_line(text))),
    "squad-exact": lambda text, q: official.strict_match(text, q.answers),
    "squad-f1": _best_over_answers(
        lambda text, gold: (token_f1 if UNSPACED.search(text + gold) else official.squad_f1)(text, gold)
    ),
    "substring": lambda text, q: official.substring_match(text, q.answers),
    "eventqa": lambda text, q: official.all_mentioned(text, q.answers),
    "label": _best_over_answers(official.numeric_label),
    "locomo-f1": lambda text, q: max(official.locomo_f1(text, gold, q.category or "single-hop") for gold in q.answers),
    "recall@5": lambda text, q: official.recommendation_recall(text, q.answers, candidates=q.meta.get("candidates")),
    "choice": lambda text, q: max(
        official.choice_score(text, gold, options=q.meta.get("choices")) for gold in q.answers
    ),
    "keywords": lambda text, q: official.keyword_share(text, q.answers[0] if len(q.answers) == 1 else q.answers),
    "parts": _best_over_answers(official.parts_share),
    "rouge": _best_over_answers(lambda text, gold: official.rouge(text, gold)["rougeL"]),
}
"""Metrics of one answer by name, for a question with accepted answers; each in 0..1."""
_ABSTENTION_METRICS = (*METRICS, "squad-exact", "squad-f1")
"""Metrics under which a refusal is worth 0 where there is an answer."""
JUDGED = ("judge", "rubric", "keypoint-f1")
"""Metrics that need a judge's verdict."""


@cache
def load_metric(name: str, key: str) -> Callable[[str, Question], float]:
    """Return the metric of a name, or a function of yours: `module:function`, of the reply and the question.

    Args:
        name: A key of `QUESTION_METRICS`, or `module:function`; modules of the working directory are found too.
        key: Setting or field that error messages name.

    Raises:
        ConfigError: No metric has this name, or your function cannot be found or returns no score in 0..1.
    """
    if name in QUESTION_METRICS:
        return QUESTION_METRICS[name]
    if ":" not in name:
        names = (*QUESTION_METRICS, *JUDGED)
        known = f"one of {', '.join(names)}, or yours as module:function"
        raise ConfigError(f"{key}: no metric {name!r}{did_you_mean(name, names)}: {known}")
    function = import_object(name, key)
    check_function(f"{key}: {name}", function, ["the reply", "the question"], error=ConfigError)

    def score(text: str, question: Question) -> float:
        with name_errors(f"metric {name}, question {question.id!r}: raised", ConfigError):
            result = function(text, question)
        value = to_float(result, f"metric {name}", error=ConfigError)
        if not 0 <= value <= 1:
            raise ConfigError(f"metric {name} gave {value:g}: a number from 0 to 1 is needed")
        return value

    return score


MAX_SCORE = 1.5


def cited_scores(reply: Cited, answer: float, notes: Sequence[bool]) -> dict[str, float]:
    """Return the components and `cited`.

    Args:
        reply: Parsed reply.
        answer: Score of the answer.
        notes: True for each note that is evidence, in the order that the reader saw.
    """
    form = 0.1 * (reply.answer is not None) + 0.05 * (reply.evidence is not None) + 0.05 * (reply.reasoning is not None)
    numbers = reply.evidence or ()
    hits = sum(0 < number <= len(notes) and notes[number - 1] for number in numbers)
    evidence = min(0.3, max(-0.1, 0.1 * hits - 0.05 * (len(numbers) - hits)))
    return replace_answer_score({"cited.format": form, "cited.evidence": evidence}, answer)


def replace_answer_score(scores: Mapping[str, float], answer: float) -> dict[str, float]:
    """Recompute the composite score with a new answer score (used after judging)."""
    form, evidence = scores["cited.format"], scores["cited.evidence"]
    parts = {"cited.format": form, "cited.answer": answer, "cited.evidence": evidence}
    return parts | {"cited": max(0.0, form + answer + evidence) / MAX_SCORE}


def evidence_notes(task: Task, question: Question, notes: Sequence[str], passages: Sequence[Passage]) -> list[bool]:
    """Return True for each note that comes from the question's evidence.

    A note is evidence if it comes from one of the evidence turns. A passage that names no turn is evidence if its chunk
    holds such a turn.

    Args:
        task: Task of the question.
        question: Question with its evidence.
        notes: Passage ids, or `#index` for passages without one.
        passages: Passages that the reader saw.
    """
    evidence = set(question.evidence)
    chunks = {chunk.index for chunk in task.chunks if any(turn.id in evidence for turn in chunk.turns)}
    by_id = {passage.id or f"#{index}": passage for index, passage in enumerate(passages)}
    cited_passages = [by_id[id] for id in notes]
    return [not evidence.isdisjoint(note.turns) if note.turns else note.chunk in chunks for note in cited_passages]
