"""Scores of published benchmarks by the rules of their own scripts, with deviations named.

Each function is one official rule on plain values; `metrics.score_question` chooses by a question's `meta["metric"]`.
An official quirk is never the default: it has a keyword (`official=True`), so that both figures can be had. Callers
pass the verdicts of judges.

| benchmark        | official script                                 | here                                            |
|------------------|-------------------------------------------------|-------------------------------------------------|
| LoCoMo           | snap-research/locomo `task_eval`                | `locomo_f1`                                     |
| LongMemEval      | xiaowu0162/LongMemEval `src`                    | `longmemeval`, `retrieval_scores`               |
| MemoryAgentBench | HUST-AI-HYZ/MemoryAgentBench `utils`            | `substring_match` to `keypoint_f1`              |
| PersonaMem       | bowen-upenn/PersonaMem `inference_standalone`   | `choice_score`                                  |
| BEAM             | mohammadtavakoli78/BEAM `evaluation`            | `event_order`                                   |
| Mem-alpha        | wangyu-ustc/Mem-alpha `evaluate_agent_results`  | `keyword_share`, `parts_share`, `numeric_label` |
| SQuAD, FriendsQA | SQuAD's `evaluate`                              | `squad_f1`, `strict_match`                      |
| QMSum and others | rouge-score, a library (`memalpha[eval]`)       | `rouge`                                         |
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from memalpha.agent.prompts import letter_choices
from memalpha.errors import DataError, required_packages
from memalpha.qa.scoring.stats import mean
from memalpha.store.values import contains, is_same

_PUNCTUATION = str.maketrans("", "", string.punctuation)

# ------------------------------------------------------------------------------------------------------------- LoCoMo

LOCOMO_CATEGORIES = {"multi-hop": 1, "temporal": 2, "open-domain": 3, "single-hop": 4, "adversarial": 5}
_LOCOMO_ARTICLES = re.compile(r"\b(a|an|the|and)\b")
_LOCOMO_REFUSALS = ("no information available", "not mentioned")


def locomo_f1(prediction: str, gold: str, category: int | str) -> float:
    """Return LoCoMo's official score of one answer (Maharana et al., ACL 2024).

    The score is Porter-stemmed token F1 (NLTK's variant of the stemmer), by category:

    - 1 (multi-hop) splits both sides at commas and averages, over the gold parts, the best F1 of any predicted part.
    - 2 and 4 are plain.
    - 3 uses the gold answer before its first ";".
    - 5 (adversarial) is 1 if the prediction holds one of two refusals.

    Args:
        prediction: Text of the answer.
        gold: Accepted answer.
        category: Number 1 to 5, or a name of `LOCOMO_CATEGORIES`.

    Raises:
        ValueError: The category is unknown.
        DataError: nltk is not installed.
    """
    number = LOCOMO_CATEGORIES.get(category) if isinstance(category, str) else category
    if number == 5:
        return float(any(phrase in prediction.lower() for phrase in _LOCOMO_REFUSALS))
    if number == 3:
        gold = gold.split(";")[0].strip()
    if number == 1:
        parts = [_locomo_tokens(part) for part in prediction.split(",")]
        golds = [_locomo_tokens(part) for part in gold.split(",")]
        return sum(max(bag_f1(part, gold_part) for part in parts) for gold_part in golds) / len(golds)
    if number not in (2, 3, 4):
        raise ValueError(f"LoCoMo has the categories 1 to 5, not {category!r}")
    return bag_f1(_locomo_tokens(prediction), _locomo_tokens(gold))


def _locomo_tokens(text: str) -> list[str]:
    plain = text.lower().translate(_PUNCTUATION)
    stem = _nltk_stem()
    return [stem(word) for word in _LOCOMO_ARTICLES.sub(" ", plain).split()]


@lru_cache(maxsize=1)
def _nltk_stem() -> Callable[[str], str]:
    with required_packages("LoCoMo's F1", "nltk", extra="eval", error=DataError):
        from nltk.stem.porter import PorterStemmer  # pyright: ignore[reportMissingImports]
    return lru_cache(maxsize=65536)(PorterStemmer().stem)


def bag_f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    """Return the harmonic mean of precision and recall over tokens with multiplicity."""
    shared = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * shared / (len(predicted) + len(gold)) if shared else 0.0


# --------------------------------------------------------------------------------------------------- MemoryAgentBench

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ANSWER = re.compile("answer:", re.IGNORECASE)


def normalize_text(text: str) -> str:
    """Normalize a text as MemoryAgentBench does: SQuAD's rule with ASCII punctuation."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def answer_line(text: str) -> str:
    """Return the rest of the first line after "Answer:", else the first line (MemoryAgentBench)."""
    match = _ANSWER.search(text)
    line = text[match.end() if match else 0 :].split("\n", 1)[0].strip()
    prefix = _ANSWER.match(line)
    return line[prefix.end() :].strip() if prefix else line


def substring_match(prediction: str, golds: Sequence[str]) -> float:
    """Return 1 if a normalized gold answer is a substring of the prediction or its answer line.

    The match is by characters, not tokens: "oslo" is in "osloer".
    """
    texts = [normalize_text(prediction), normalize_text(answer_line(prediction))]
    return float(any(normalize_text(gold) in text for gold in golds for text in texts))


def strict_match(prediction: str, golds: Sequence[str]) -> float:
    """Return 1 if the prediction or its answer line equals a gold answer after normalization.

    Nothing equals an empty text.
    """
    texts = {normalize_text(prediction), normalize_text(answer_line(prediction))} - {""}
    return float(any(normalize_text(gold) in texts for gold in golds))


def squad_f1(prediction: str, gold: str) -> float:
    """Return SQuAD's token F1, with its normalization (Rajpurkar et al., EMNLP 2016)."""
    return bag_f1(normalize_text(prediction).split(), normalize_text(gold).split())


def all_mentioned(prediction: str, golds: Sequence[str]) -> float:
    """Return 1 if every gold answer occurs in the prediction, ignoring case (EventQA)."""
    return float(all(gold.lower() in prediction.lower() for gold in golds)) if golds else 0.0


def recommendations(text: str) -> list[str]:
    """Return the items of a numbered list from "1." on, without numbers and brackets.

    Without a "1." commas separate items too.
    """
    _, separator, rest = text.partition("1.")
    lines = rest.split("\n") if separator else text.replace(",", "\n").split("\n")
    names = [re.sub(r"\([^()]*\)", "", line.strip()) for line in lines]
    return [" ".join(re.sub(r"^\d+[.)\u3001]?\s*[-\u2014\u2013]?", "", name).split()) for name in names]


def recommendation_recall(
    prediction: str, golds: Sequence[str], k: int = 5, *, candidates: Sequence[str] | None = None
) -> float:
    """Return the share of the gold names among the first `k` recommended.

    Empty lines count as recommendations, as in the script.

    Args:
        prediction: Reply with a numbered list.
        golds: Names that should be recommended.
        k: Number of recommendations that count.
        candidates: Known names. Each recommendation is replaced by the nearest one by edit distance, ignoring case; the
            first of several, where the official script takes any. Default: names are compared as written, ignoring
            case.
    """
    items = recommendations(prediction)[:k]
    if candidates is not None:
        items = [_nearest(item, candidates) for item in items]
    names = {item.lower() for item in items}
    return sum(gold.lower() in names for gold in golds) / len(golds) if golds else 0.0


def _nearest(name: str, candidates: Sequence[str]) -> str:
    best, distance = "", math.inf
    for candidate in candidates:
        if abs(len(candidate) - len(name)) < distance:
            if (edits := _edit_distance(name.lower(), candidate.lower())) < distance:
                best, distance = candidate, edits
            if not distance:
                break
    return best


def _edit_distance(first: str, second: str) -> int:
    """Return the Levenshtein distance."""
    row = list(range(len(second) + 1))
    for row_number, letter in enumerate(first, start=1):
        corner, row[0] = row[0], row_number
        for column, other in enumerate(second, start=1):
            corner, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, corner + (letter != other))
    return row[-1]


def keypoint_f1(stated: int, keypoints: int, supported: int, sentences: int, fluency: float = 1.0) -> float:
    """Return the summary score: fluency x F1 of key points and supported sentences.

    Args:
        stated: Key points that the summary states.
        keypoints: All key points.
        supported: Sentences that the reference supports.
        sentences: All sentences.
        fluency: 0 or 1.

    Raises:
        DataError: A count is larger than its total.
    """
    if not 0 <= stated <= keypoints or not 0 <= supported <= sentences:
        raise DataError(f"key points: {stated} of {keypoints} found and {supported} of {sentences} sentences supported")
    recall = stated / keypoints if keypoints else 0.0
    precision = supported / sentences if sentences else 0.0
    return fluency * 2 * recall * precision / (recall + precision) if recall + precision else 0.0


# --------------------------------------------------------------------------------------------------------- PersonaMem

_BRACKETED = re.compile(r"[(\[{【「『]([a-z])[)\]}】」』]")
_BOXED = re.compile(r"\\boxed\{[\s(]*(?:\\text\{)?([a-z])(?![^\W_])")
_BOLD = re.compile(r"(?:\*\*|__|`)\s*(?:option )?([a-z])(?:[.):]+(?:\s[^*_`]*)?)?\s*(?:\*\*|__|`)")
_MARKUP = re.compile("\\\\(?:text|boxed)|[*`_$\"'{}\\\\\u2018-\u201d]")
_OTHER_LETTER = r"\s*(?:[,/&]|,?\s*\b(?:or|and)\b)\s*\(?[a-z](?![^\W_])"
_NO_DENIAL = (  # 不选A, 不应该选A, 没有选A, 无法选A
    "(?<![不别別没沒])(?<!不[会會该該能可想应應])(?<!不应该)(?<!不應該)(?<![没沒]有)(?<![无無]法)"
)
_UNIT = "(?:选项|選項|[项項]|番(?!目)|번(?!째))"
_STATED = re.compile(
    r"\b(?:answer|i(?:d| would| will|ll)? (?:choose|pick|select|go with)|my (?:choice|pick)"
    r"|(?:correct|right|best) (?:answer|option|choice))(?: is| would be)?\s*:?\s*(?:option )?[(\[]?([a-z])"
    rf"(?=\s*(?:$|[)\].,:;!?\n\u2013\u2014-])| (?:because|since|as|for|but)\b)(?![)\]]?{_OTHER_LETTER})"
    r"|(?<!(?:not|ont) think )(?<!if )\b([a-z])[)\]]? is (?:the )?(?:correct|right|best|answer)\b"
    rf"|{_NO_DENIAL}(?:答案|答え|正解|而是|选择?|選擇?|정답|답)(?:应该?)?[是为為は은]?\s*:?\s*[(\[]?([a-z])"
    rf"(?:\s?{_UNIT})?(?=\s*(?:$|[()\].,:;!。、\n]|です(?!か)|입니다))(?![)\]]?(?:{_OTHER_LETTER}|、\s*[a-z](?![^\W_])))"
    r"|(?:^|[\n,.:;!?、。]) ?(?:我?(?:[认認][为為]|[觉覺]得)|所以|因此|よって|したがって|따라서)?"
    rf"(?:答案|选项|選項|選択肢)? ?[(\[]?([a-z])[)\]]? ?{_UNIT}? ?(?:[是为為がは이가]|才是) ?"
    "(?:最佳|最)?(?:正[确確解]|答案|答え|정답)"
    "的?(?:答案|选项|選項)?(?:です|だ|である|입니다|이다|이에요|예요)?(?= ?(?:$|[,.;!、。\n]|因|から|なぜ|왜))"
    rf"|(?<![a-z])([a-z])[)\]]?\s?{_UNIT}?\s?(?:を選(?:び|択し)ます|だと思います)(?!か)"
)
"""A sentence that says which letter is the answer: "The answer is b because ..."."""
_PREFIX = (
    r"(?:(?:the |my )?(?:final |correct |best |right )*(?:answer|option|choice)(?: is)?\s*:?\s*(?:option )?"
    r"|its |it is |(?:[^\W\d_]+\s+){0,2}[^\W\d_]+\s*:\s*|(?:(?![不别別没沒非除])[^\x00-\x7f]){1,12}\s*)"
)
_BARE = re.compile(rf"^{_PREFIX}?[(\[]?([a-z])[)\]]?\s?{_UNIT}?(?:です|입니다)?[\s.,:;!、。]*$", re.MULTILINE)
_WRONG = (
    r"\W*(?:(?:that |this |it )?(?:is |was )?(?:not (?:correct|right|true|th\w+)|incorrect|wrong|false)"
    "|错|錯|不[对對正是符]|間?違|誤|틀|아니|아닙|오답)"
)
_LEADING = re.compile(
    rf"([a-z])\s?{_UNIT}?(?:です|입니다)?(?:\s?[.):。、\u2013\u2014-](?:\s+|(?=[^\x00-\x7f]))"
    r"|,?\s*(?=because\b|since\b|因[为為]|なぜなら|왜냐))"
    rf"(?!{_WRONG}|(?:or|and|not?|(?:does|is|was)nt)\b|[(\[]?[a-z](?:[)\].,;:。、都和或]|\s*$|\s+(?:or|and)\b))"
)
"""A letter that begins a reply, before its reason: "B. Because he said so"."""
_LABELS = re.compile(
    r"(?<![a-z])([a-z]) ?[):]|(?:\b(?:maybe|perhaps|possibly) |也[许許]|可能是|たぶん|아마 ?)\(?([a-z])\b(?! \w)"
)
_DENIED = re.compile(
    r"\b(?:not?|none|nor|never|neither|nothing|cannot|if|whether|instead|unclear|unsure|except|hardly|doubt|unlikely"
    r"|wrong|incorrect|false|(?:any|every)\w+ but|nicht|kein\w*|nie|weder|falsch|pas|aucune?|jamais|ni|faux|nunca|non"
    r"|não|niet|geen|не|нет)\b|n['\u2019]t\b|[?不没沒無无错錯误誤違吗嗎除]|非(?!常)|な[いく]|なかっ|ません|[でま]すか"
    r"|아[니닙]|않|없|\b[안못] |틀[려렸리린립]"
)
"""Words with which a sentence may name an option that it does not choose."""
_WITH_TEXT = re.compile(
    rf"^\W*{_PREFIX}?([a-z])(\s?[.):、。\u2013\u2014-])?(?:\s+(?=\S)|(?=[^\x00-\x7f]|\())(.*)", re.MULTILINE
)


def choice_score(
    prediction: str, gold: str, *, options: Mapping[str, str] | Sequence[str] | None = None, official: bool = False
) -> float:
    r"""Return 1 if the prediction names the gold option's letter and no other.

    The text after the last `<final_answer>` counts. Of these forms the first that the reply has is read: an option's
    text, `\\boxed{}`, the last sentence that says which is the answer ("The answer is c because ..."), a line of the
    letter alone ("c", "Answer: c.") or before the text of its option ("C. Read a novel"), or the reply's first before a
    reason ("C. Because ..."), brackets, bold, the text of one option alone in a sentence that denies nothing. An
    article is none, nor is a letter that is denied.

    Args:
        prediction: Reply of the reader.
        gold: "(c)", "c", "(c) its text", "c. its text", or with options the text alone.
        options: Text by letter, in any case, or the texts from (a) on; the exact text of an option then counts as its
            letter. Without options any text may follow a letter with a point, bracket or colon.
        official: True follows PersonaMem's script: only letters a to d; any letter that stands alone if none is in
            brackets, so that the article in "a walk" is a vote for (a); and the whole reply if the part after
            `<final_answer>` names none.

    Raises:
        DataError: The gold answer is not a letter, or the options are no texts by letter.
    """
    options = None if options is None else letter_choices(options)
    if others := [name for name in options or () if not re.fullmatch("[a-z]", name)]:
        raise DataError(f'choices: {others[0]!r} is no letter: write {{"A": TEXT, "B": TEXT}} or [TEXT, TEXT]')
    match = re.match(r"\s*\(?\s*([a-z])\s*(?:[).:]|$)", gold.lower())
    texts = {name: normalize_text(option) for name, option in (options or {}).items()}
    named = [name for name, option in texts.items() if option == normalize_text(gold)]
    is_text = len(named) == 1 and (match is None or len(match[0]) < len(gold))  # "C. S. Lewis" is no letter
    gold_letter = named[0] if is_text else match[1] if match is not None else ""
    if not gold_letter or gold_letter not in (options or gold_letter):
        known = f" or text of the options {', '.join(options)}" if options else ""
        raise DataError(f'choice: the gold answer is {gold!r}, not a letter as in "(c)"{known}')
    text = prediction.strip()
    if "<final_answer>" in text:
        text = text.split("<final_answer>")[-1].strip()
    text = text.removesuffix("</final_answer>").strip()
    if official:
        return float({gold_letter} in (_any_letters(text), _any_letters(prediction)))
    lowered = re.sub(r"\s*</?answer>\s*", "\n", unicodedata.normalize("NFKC", text).lower()).strip()
    plain = _MARKUP.sub("", lowered)
    stated = ["".join(groups) for groups in _STATED.findall(plain)][-1:]
    lines = _WITH_TEXT.findall(plain)
    read = [(name, normalize_text(rest)) for name, _, rest in lines if name in texts]
    read = [(name, rest.removeprefix(texts[name])) for name, rest in read if rest.startswith(texts[name])]
    with_text = {name for name, rest in read if not re.match(_WRONG, rest)}
    separated = {letter for letter, mark, _ in lines if mark}
    labels = separated | {"".join(groups) for groups in _LABELS.findall(plain)}
    if options and (first := _LEADING.match(plain)) and {first[1]} | labels <= {first[1]} & options.keys():
        rest = normalize_text(plain[first.end() :])
        if rest and not rest.startswith(tuple(texts.values())):
            with_text.add(first[1])
    boxed, bracketed, bold = (form.findall(lowered) for form in (_BOXED, _BRACKETED, _BOLD))
    whole = {name for name, option in texts.items() if option == normalize_text(text) and len(option) > 1}
    forms = (whole, boxed, stated, {*_BARE.findall(plain), *with_text}, bracketed, bold)
    letters = next((set(form) for form in forms if form), set())
    if not letters and options is None:
        letters = separated
    elif not letters and options and not separated:
        letters = {name for name, option in options.items() if is_same(option, text)}
        inside = [] if letters or _DENIED.search(lowered) else [n for n in options if contains(text, options[n])]
        letters |= {n for n in inside if all(contains(options[n], options[other]) for other in inside)}
    return float(letters == {gold_letter})


def _any_letters(text: str) -> set[str]:
    lowered = text.lower()
    return set(re.findall(r"\(([a-d])\)", lowered)) or set(re.findall(r"\b([a-d])\b", lowered))


# --------------------------------------------------------------------------------------------------------------- BEAM


def event_order(reference: Sequence[str], predicted: Sequence[str]) -> dict[str, float]:
    """Score BEAM's event ordering after the events of the answer are aligned with the reference.

    Args:
        reference: Events in order.
        predicted: Events of the answer; an aligned one has the reference's words.

    Returns:
        `precision`, `recall`, `f1` of the events. `tau`: Kendall's tau-b of the two orders, missing events tied at the
        end, scaled to 0..1 (as in the published tables); 0 if undefined. `score`: tau x f1.
    """
    shared = len(set(reference) & set(predicted))
    wrong, missed = sum(item not in reference for item in predicted), sum(item not in predicted for item in reference)
    precision = shared / (shared + wrong) if shared + wrong else 0.0
    recall = shared / (shared + missed) if shared + missed else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    union = list(dict.fromkeys([*reference, *predicted]))
    ranks = [{item: rank for rank, item in enumerate(order)} for order in (reference, predicted)]
    orders = np.array([[ranked.get(item, len(union)) for item in union] for ranked in ranks])
    signs = np.sign(orders[:, :, None] - orders[:, None, :])[:, *np.triu_indices(len(union), 1)]
    untied = np.count_nonzero(signs, axis=1)
    scaled = (float(signs[0] @ signs[1]) / math.sqrt(untied[0] * untied[1]) + 1) / 2 if all(untied) else 0.0
    return {"precision": precision, "recall": recall, "f1": f1, "tau": scaled, "score": scaled * f1}


# ---------------------------------------------------------------------------------------------------------- Mem-alpha


def keyword_share(prediction: str, keywords: str | Sequence[str]) -> float:
    """Return the share of keywords that occur, ignoring case (BookSum and InfBench).

    Args:
        prediction: Text of the answer.
        keywords: A list, or a text with commas.
    """
    listed = [word.strip() for word in keywords.split(",")] if isinstance(keywords, str) else list(keywords)
    return sum(word.lower() in prediction.lower() for word in listed) / len(listed) if listed else 0.0


def parts_share(prediction: str, gold: str, *, official: bool = False) -> float:
    """Return the share of the gold answer's parts (split at ";") that occur, ignoring case (PerLTQA).

    Args:
        prediction: Text of the answer.
        gold: Accepted answer.
        official: True follows the script: of several parts each is lower-cased but the prediction is not, so that a
            part with a name never matches.
    """
    parts = gold.split(";")
    text = prediction if official and len(parts) > 1 else prediction.lower()
    matches = [(part.strip() if len(parts) > 1 else part).lower() in text for part in parts]
    return sum(matches) / len(parts)


def numeric_label(prediction: str, gold: str) -> float:
    r"""Return 1 if the content of `\\boxed{}` (else the whole text) is the gold label in digits."""
    boxed = re.search(r"\\boxed\{([^}]*)\}", prediction)
    label = (boxed[1] if boxed else prediction).strip().strip("\"'").strip()
    return float(re.fullmatch(r"\d+", label) is not None and label == gold.strip("\"'").strip())


# -------------------------------------------------------------------------------------------------------------- ROUGE


def rouge(prediction: str, gold: str) -> Mapping[str, float]:
    """Return the F-measures of ROUGE-1, ROUGE-2 and ROUGE-L, stemmed, by the rouge-score library.

    QMSum's paper used the older Perl script, whose figures differ in the third digit.

    Raises:
        DataError: rouge-score is not installed.
    """
    return {name: score.fmeasure for name, score in _rouge_scorer().score(gold, prediction).items()}


@lru_cache(maxsize=1)
def _rouge_scorer() -> Any:
    with required_packages("ROUGE", "rouge_score", "nltk", extra="eval", error=DataError):
        from rouge_score.rouge_scorer import RougeScorer  # pyright: ignore[reportMissingImports]
    return RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)


LONGMEMEVAL_TYPES = (
    "single-session-user", "single-session-preference", "single-session-assistant", "multi-session",
    "temporal-reasoning", "knowledge-update",
)  # fmt: skip


def longmemeval(judged: Iterable[tuple[str, str, bool]]) -> dict[str, Any]:
    """Return LongMemEval's table from (question id, question type, is right).

    The official script prints nan as soon as one type is missing; here the mean is over the types that were asked.

    Returns:
        `by_type` (accuracy and n; abstention questions count in their own type too), `task_averaged` (mean of the
        types), `overall`, `abstention` (questions whose id holds "_abs"); None without a question.
    """
    by_type: dict[str, list[bool]] = {name: [] for name in LONGMEMEVAL_TYPES}
    abstention: list[bool] = []
    for id, kind, right in judged:
        by_type.setdefault(kind, []).append(right)
        if "_abs" in id:
            abstention.append(right)
    means = {kind: mean(values) for kind, values in by_type.items()}
    return {
        "by_type": {kind: {"accuracy": means[kind], "n": len(values)} for kind, values in by_type.items()},
        "task_averaged": mean([value for value in means.values() if value is not None]),
        "overall": mean([right for values in by_type.values() for right in values]),
        "abstention": mean(abstention),
    }


def retrieval_scores(
    ranking: Sequence[str],
    correct: Collection[str],
    k: int,
    *,
    corpus: Sequence[str] | None = None,
    official: bool = False,
) -> dict[str, float]:
    """Return LongMemEval's `recall_any`, `recall_all` and `ndcg_any` among the first `k` ids.

    Relevance is 0 or 1 and discounted by log2(rank + 1). Both recalls follow the script: without a correct id, any is 0
    and all is 1.

    Args:
        ranking: Ids, best first.
        correct: Relevant ids.
        k: Number of ids that count.
        corpus: All ids that could be retrieved. Default: those of `ranking`.
        official: True discounts by log2(rank) from rank 2 on, as the published script does; ranks 1 and 2 count the
            same.
    """
    top = set(ranking[:k])
    shift = 0 if official else 1

    def dcg(relevances: Sequence[bool]) -> float:
        return math.fsum(
            1.0 if rank == 1 else 1.0 / math.log2(rank + shift)
            for rank, relevant in enumerate(relevances, start=1)
            if relevant
        )

    relevant_ids = set(correct)
    best = dcg(sorted((id in relevant_ids for id in (ranking if corpus is None else corpus)), reverse=True)[:k])
    return {
        "recall_any": float(any(id in top for id in relevant_ids)),
        "recall_all": float(all(id in top for id in relevant_ids)),
        "ndcg_any": dcg([id in relevant_ids for id in ranking[:k]]) / best if best else 0.0,
    }


def session_scores(turns: Iterable[str], correct: Collection[str], ks: Sequence[int] = (5, 10)) -> dict[str, float]:
    """Return `retrieval_scores` by session at each k.

    A session ranks where its first turn does. LongMemEval leaves out questions without an answer session; for these the
    result is {}.

    Args:
        turns: Retrieved turn ids, best first.
        correct: Ids of the answer sessions.
        ks: Depths; keys are `recall_any@5` and so on.
    """
    if not correct:
        return {}
    ranking = list(dict.fromkeys(turn.rpartition("_")[0] for turn in turns))
    corpus = [*correct, *(session for session in ranking if session not in correct)]
    return {
        f"{name}@{k}": score for k in ks for name, score in retrieval_scores(ranking, correct, k, corpus=corpus).items()
    }
