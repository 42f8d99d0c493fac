"""Language models that judge answers and writes: prompts, verdicts, scores, agreement with known labels.

A verdict is one word of a few, read from one position; "INVALID" is not "VALID". A reply without a readable verdict is
asked for once more. An item without any verdict has no score, and never the score 0. An endpoint that fails raises. An
answer without a readable verdict ends a training step too. In an evaluation it is kept apart from the records.
`agreement` measures a judge against known labels; `memalpha judge check` uses labels that ship.

Prompts are in our own words, one per verdict, by benchmark and kind of question. The rules are those of the benchmarks.
Every prompt ends in one JSON object. Its field "verdict" is one of a few words (`JudgePrompt.verdicts`) and comes after
a reason, so that a model thinks before it decides.

| benchmark    | kinds                                                       | verdicts                         |
|--------------|-------------------------------------------------------------|----------------------------------|
| longmemeval  | fact; temporal: one off in a count of days, weeks or months | correct, wrong                   |
|              | is right; knowledge-update: the old answer may stand beside |                                  |
|              | the new; preference: a rubric; abstention                   |                                  |
| locomo       | strict: vaguer than the accepted answer is wrong            | correct, wrong                   |
| halumem      | right, made up, or incomplete                               | correct, hallucination, omission |
| beam         | one prompt per point of the rubric                          | full 1, partial 0.5, none 0      |
|              | event ordering: one per line of the answer, the event of    | 1, 2, ... or none                |
|              | the rubric that it tells; the score is Kendall's tau of the |                                  |
|              | two orders (`official.event_order`)                         |                                  |
| generic      | anything else                                               | correct, wrong                   |
| (key points) | one prompt per key point, per sentence, and for fluency;    | stated/missing,                  |
|              | fluency x F1 of stated points and supported sentences       | supported/unsupported, fluent/broken |
| (writes)     | an operation on the memory, with the chunk it came from     | valid, invalid                   |
| (statements) | a fact, by entries of the memory                            | stated, missing                  |
|              | an entry, by facts                                          | supported, unsupported           |
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from importlib import resources
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError

from memalpha.agent.parsing import after_thinking
from memalpha.agent.prompts import question_with_choices
from memalpha.agent.tools import format_validation_error
from memalpha.arguments import brief_repr, is_finite_number, unique_keys
from memalpha.config import JudgeConfig, RewardConfig
from memalpha.errors import ConfigError, DataError, PolicyError
from memalpha.policy.base import BilledPolicy, Policy, sample_checked
from memalpha.policy.chat.text import enclose
from memalpha.policy.load import load_policy
from memalpha.policy.reply_cache import cache_frozen
from memalpha.qa.scoring.metrics import CORRECT_FROM, JUDGED, replace_answer_score
from memalpha.qa.scoring.official import LONGMEMEVAL_TYPES, event_order, keypoint_f1
from memalpha.qa.scoring.stats import group_values
from memalpha.tasks.formats.files import load_shipped_yaml
from memalpha.text_files import parse_json, read_text
from memalpha.types import Question, SampleRequest, Task, Trajectory, Turn

if TYPE_CHECKING:
    from memalpha.qa.report import Record


Benchmark = Literal["generic", "longmemeval", "locomo", "halumem", "beam"]
WriteKind = Literal["insert", "update", "delete", "core_update", "nothing"]
BENCHMARKS: tuple[Benchmark, ...] = get_args(Benchmark)

_RULES = load_shipped_yaml("judge_rules.yaml")
SYSTEM: str = _RULES["system"]
VERDICTS: Mapping[str, Mapping[str, float]] = _RULES["verdicts"]
"""Verdicts of each rule with their scores; those of "event" are the numbers of the events."""
_LONGMEMEVAL_RULES = {"temporal-reasoning": ("fact", "temporal"), "knowledge-update": ("fact", "updated")}


@dataclass(frozen=True, slots=True)
class Item:
    """Answer to judge.

    Attributes:
        question: Text of the question, with its choices.
        gold: Accepted answers, any of which is right; empty where the right answer is to abstain.
        prediction: Answer to judge.
        category: Category of the question.
        benchmark: Benchmark whose rules apply.
        refused: The data set's remark in place of an answer.
        rubric: Points that are judged one by one instead of `gold`. In BEAM's category "event_ordering" they are
            events, in the order in which an answer should tell them, one per line.
        keypoints: Statements that a summary should make, judged instead of comparing it with `gold`.
        date: Day on which the question was asked.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    question: str
    gold: tuple[str, ...]
    prediction: str
    category: str | None = None
    benchmark: Benchmark = "generic"
    refused: str = ""
    rubric: tuple[str, ...] = ()
    keypoints: tuple[str, ...] = ()
    date: str = ""


@dataclass(frozen=True, slots=True)
class Write:
    """Operation of a writer on the memory while reading `chunk`.

    Attributes:
        kind: "nothing" if nothing was written.
        chunk: Text of the chunk.
        category: Category of the entry.
        content: New content of the entry.
        before: Content that an update or delete ended.
        timestamp: Date of the chunk.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    kind: WriteKind
    chunk: str
    category: str = ""
    content: str = ""
    before: str = ""
    timestamp: str = ""


@dataclass(frozen=True, slots=True)
class Statement:
    """A fact that entries of a memory have to state, or an entry that facts have to bear out.

    Attributes:
        text: The fact, or the entry.
        sources: The entries, or the facts.
        is_entry: True if `text` is an entry.
    """

    text: str
    sources: tuple[str, ...]
    is_entry: bool = False


@dataclass(frozen=True, slots=True)
class JudgePrompt:
    """One prompt, and the score of each possible verdict."""

    prompt: str
    verdicts: Mapping[str, float]


def item_of(question: Question, prediction: str) -> Item:
    """Build the item to judge from a task's question and its answer.

    The rules of judging are those of the question's `meta["benchmark"]`; else beam's for a rubric, longmemeval's for
    its question types (MemoryAgentBench uses them too), and generic ones otherwise.

    Raises:
        DataError: The benchmark is unknown.
    """
    meta = question.meta
    implied = "beam" if meta.get("rubric") else "longmemeval" if question.category in LONGMEMEVAL_TYPES else "generic"
    name = meta.get("benchmark", implied)
    if name not in BENCHMARKS:
        raise DataError(f"question {question.id!r}: no judge knows benchmark {name!r}; use {', '.join(BENCHMARKS)}")
    refused, date = str(meta.get("refused", "")), str(meta.get("date") or "")
    rubric, keypoints = (tuple(map(str, meta.get(field, ()))) for field in ("rubric", "keypoints"))
    text, category = question_with_choices(question, dated=False), question.category
    return Item(text, question.answers, prediction, category, name, refused, rubric, keypoints, date)


def prompts_of(item: Item | Write | Statement) -> list[JudgePrompt]:
    """Return the prompts whose verdicts make the item's score (`score_of`).

    An empty prediction and a statement without sources have none: they are wrong without asking.
    """
    if isinstance(item, Statement):
        if not item.sources:
            return []
        rule, name, sources = ("entry_true", "entry", "facts") if item.is_entry else ("fact_held", "fact", "entries")
        return [_make_prompt([rule], {sources: "\n".join(f"- {text}" for text in item.sources), name: item.text})]
    if isinstance(item, Write):
        text = f"({item.timestamp})\n{item.chunk}" if item.timestamp else item.chunk
        parts = {"part of the conversation": text}
        if item.kind == "nothing":
            return [_make_prompt(["nothing"], parts)]
        if item.kind == "delete":
            return [_make_prompt(["deleted"], {**parts, "deleted entry": item.before})]
        parts |= {"category": item.category} if item.category else {}
        parts |= {"entry that was replaced": item.before} if item.before else {}
        rules = ["written", "core"] if item.kind == "core_update" else ["written"]
        return [_make_prompt(rules, {**parts, "written": item.content})]
    if not item.prediction.strip():
        return []
    question = {"question": item.question, **({"asked on": item.date} if item.date else {})}
    answer = {"answer": item.prediction}
    if item.rubric and item.benchmark == "beam" and item.category == "event_ordering":
        # BEAM's script asks of every pair of event and line whether they are the same, blank lines counted as events.
        # Here a line is asked about once, and blank lines are skipped.
        verdicts = {**{str(number): float(number) for number in range(1, len(item.rubric) + 1)}, "none": 0.0}
        events = "\n".join(f"{number}. {event}" for number, event in enumerate(item.rubric, start=1))
        lines = [line.strip() for line in item.prediction.splitlines() if line.strip()]
        return [_make_prompt(["event"], {**question, "events": events, "line": line}, verdicts) for line in lines]
    if item.rubric:
        return [_make_prompt(["point"], {**question, "point": point, **answer}) for point in item.rubric]
    if item.keypoints:
        summary = {"summary": item.prediction}
        reference = "\nor: ".join(item.gold) or "\n".join(item.keypoints)
        sentences = [text.strip() for text in _SENTENCE.split(item.prediction) if text.strip()]
        return [
            *(_make_prompt(["keypoint"], {**summary, "key point": point}) for point in item.keypoints),
            *(_make_prompt(["sentences"], {"reference": reference, "sentence": sentence}) for sentence in sentences),
            _make_prompt(["fluency"], summary),
        ]
    if not item.gold:
        remark = {"remark": item.refused} if item.refused else {}
        return [_make_prompt(["abstain"], {**question, **remark, **answer})]
    rules: Sequence[str] = {"locomo": ["strict"], "halumem": ["halumem"]}.get(item.benchmark, ["fact"])
    if item.benchmark == "longmemeval":
        kind = item.category or ""
        rules = ["preference"] if kind.endswith("preference") else _LONGMEMEVAL_RULES.get(kind, ["fact"])
    return [_make_prompt(rules, {**question, "accepted answer": "\nor: ".join(item.gold), **answer})]


def _make_prompt(
    rules: Sequence[str], parts: Mapping[str, str], verdicts: Mapping[str, float] | None = None
) -> JudgePrompt:
    """Build a prompt from rules of the data file; `verdicts` are by default those of the first rule."""
    verdicts = VERDICTS[rules[0]] if verdicts is None else verdicts
    rule = "".join(_RULES[name] for name in rules).strip()
    material = "\n".join(enclose(name, text) for name, text in parts.items())
    *words, last = verdicts
    form = f'{{"reason": "one short sentence", "verdict": "{", ".join(words)} or {last}"}}'
    return JudgePrompt(f"{rule}\n\n{material}\n\nReply with one JSON object and nothing else:\n{form}", verdicts)


_FIRST_EVENT = "1"
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


def score_of(prompts: Sequence[JudgePrompt], values: Sequence[float]) -> float:
    """Return an item's score from its prompts' verdicts.

    It is their mean; for a summary with key points `keypoint_f1`, for events in order the `tau` of `event_order`.
    """
    if _FIRST_EVENT in prompts[0].verdicts:
        names, numbers = [], set()  # the first line that tells an event counts, other lines are extra events
        for line, number in enumerate(values):
            names.append(f"event {number:.0f}" if number and number not in numbers else f"line {line}")
            numbers.add(number)
        return event_order([f"event {number}" for number in range(1, len(prompts[0].verdicts))], names)["tau"]
    if "fluent" not in prompts[-1].verdicts:
        return sum(values) / len(values)
    pairs = list(zip(prompts, values, strict=True))
    stated, supported = (
        [value for prompt, value in pairs if word in prompt.verdicts] for word in ("stated", "supported")
    )
    return keypoint_f1(int(sum(stated)), len(stated), int(sum(supported)), len(supported), values[-1])


@dataclass(frozen=True, slots=True)
class Vote:
    """Verdicts of one judge on an item's prompts.

    Attributes:
        judge: Name of the judge.
        score: `score_of` the verdicts; None if one is missing.
        verdicts: A verdict per prompt; None if the reply had none.
        replies: The last reply per prompt.
    """

    judge: str
    score: float | None
    verdicts: tuple[str | None, ...]
    replies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Weighted mean of the readable votes, 0..1; None if no vote was readable."""

    score: float | None
    votes: tuple[Vote, ...]

    def as_json(self) -> dict[str, Any]:
        """Return score and votes, with the replies of unreadable votes only."""
        votes = [asdict(vote) for vote in self.votes]
        for vote in votes:
            if vote["score"] is not None:
                del vote["replies"]
        return {"score": self.score, "votes": votes}


class Judge:
    """Panel of judges.

    Args:
        policies: Models that judge.
        weights: Weight of each. Default: equal.
        max_new_tokens: Length of a reply.
        thinking_tokens: Budget of thoughts before it; 0 turns thinking off.
        chat_template_kwargs: Further arguments of the chat template.
        frozen: The weights of the policies never change, so replies of models in this process are kept
            (`policy.reply_cache`). An endpoint keeps its answers itself.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        weights: Sequence[float] | None = None,
        *,
        max_new_tokens: int = 512,
        thinking_tokens: int = 0,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        frozen: bool = False,
    ) -> None:
        self.policies = list(policies)
        shares = [*(weights or [])]
        is_sound = all(is_finite_number(share) and share >= 0 for share in shares) and (not shares or sum(shares) > 0)
        if not self.policies or (shares and len(shares) != len(self.policies)) or not is_sound:
            raise ConfigError(
                f"judge: {len(self.policies)} policies with the weights {brief_repr(weights)}: at least one policy is "
                "needed, and a number from 0 for each, not all 0"
            )
        self._caches = {id(policy): cache_frozen(policy) if frozen else None for policy in self.policies}
        self.weights = list(weights or [1.0] * len(self.policies))
        self.max_new_tokens = max_new_tokens
        room = {"max_new_tokens": max_new_tokens, "thinking_tokens": thinking_tokens}
        self._request = partial(SampleRequest, **room, chat_template_kwargs=chat_template_kwargs or {})
        self.name = "judge:" + "+".join(policy.name for policy in self.policies)
        self.unreadable = dict.fromkeys((policy.name for policy in self.policies), 0)
        self._lock = Lock()

    def judge(self, items: Sequence[Item | Write | Statement]) -> list[Judgement]:
        """Judge items in one batch; equal prompts are asked once.

        An empty prediction is wrong without asking, and so is a statement without sources.

        Raises:
            PolicyError: An endpoint fails.
        """
        prompts_by_item = list(map(prompts_of, items))
        verdicts_by_policy = self.verdicts([prompt for prompts in prompts_by_item for prompt in prompts])
        judgements = []
        for prompts in prompts_by_item:
            if not prompts:
                judgements.append(Judgement(0.0, ()))
                continue
            votes = []
            for policy, answers in zip(self.policies, verdicts_by_policy, strict=True):
                words, replies = zip(*(answers[prompt.prompt] for prompt in prompts), strict=True)
                values = [prompt.verdicts[word] for prompt, word in zip(prompts, words, strict=True) if word]
                score = score_of(prompts, values) if len(values) == len(prompts) else None
                votes.append(Vote(policy.name, score, words, replies))
            pairs = zip(votes, self.weights, strict=True)
            weighted = [(vote.score, weight) for vote, weight in pairs if vote.score is not None]
            total = sum(weight for _, weight in weighted)
            mean = sum(score * weight for score, weight in weighted) / total if total else None
            judgements.append(Judgement(mean, tuple(votes)))
        return judgements

    def score(self, items: Sequence[Item | Write]) -> list[float]:
        """Return the score of each item, for rewards.

        Raises:
            PolicyError: An item has no readable verdict; it must not become a 0.
        """
        scores = []
        for item, judgement in zip(items, self.judge(items), strict=True):
            if judgement.score is None:
                subject = f"answer {item.prediction!r} to {item.question!r}" if isinstance(item, Item) else repr(item)
                replies = "; ".join(f"{vote.judge}: {vote.replies[-1][:200]!r}" for vote in judgement.votes)
                raise PolicyError(
                    f"no judge gave a readable verdict on {subject[:300]} ({replies}): take another judge, or give it "
                    f"more room (judge.max_new_tokens is {self.max_new_tokens})"
                )
            scores.append(judgement.score)
        return scores

    def statistics(self) -> dict[str, Any]:
        """Return usage (if a judge records it, see `Bill`) and number of unreadable prompts, by judge."""
        bills = {
            policy.name: policy.statistics() if isinstance(policy, BilledPolicy) else {} for policy in self.policies
        }
        return {name: {**bill, "unreadable": self.unreadable[name]} for name, bill in bills.items()}

    def verdicts(self, prompts: Sequence[JudgePrompt], system: str = SYSTEM) -> list[dict[str, tuple[str | None, str]]]:
        """Ask all judges at the same time; equal prompts are asked once, and an unreadable reply once more.

        Args:
            prompts: Prompts with their possible verdicts.
            system: System message.

        Returns:
            For each judge its verdict (None if unreadable) and last reply, by prompt text.
        """
        unique = list({prompt.prompt: prompt for prompt in prompts}.values())
        with ThreadPoolExecutor(len(self.policies)) as pool:
            return list(pool.map(lambda policy: self._ask(policy, unique, system), self.policies))

    def _ask(self, policy: Policy, prompts: Sequence[JudgePrompt], system: str) -> dict[str, tuple[str | None, str]]:
        if not prompts:
            return {}
        replies = self._sample(policy, [_messages(prompt, system) for prompt in prompts])
        verdicts = [read_verdict(reply, prompt.verdicts) for prompt, reply in zip(prompts, replies, strict=True)]
        unreadable = [number for number, verdict in enumerate(verdicts) if verdict is None]
        if unreadable:
            retries = [_messages(prompts[number], system, replies[number]) for number in unreadable]
            for number, reply in zip(unreadable, self._sample(policy, retries), strict=True):
                replies[number], verdicts[number] = reply, read_verdict(reply, prompts[number].verdicts)
        with self._lock:  # several threads call this method
            self.unreadable[policy.name] += verdicts.count(None)
        pairs = zip(verdicts, replies, strict=True)
        return {prompt.prompt: pair for prompt, pair in zip(prompts, pairs, strict=True)}

    def _sample(self, policy: Policy, messages: Iterable[tuple[Mapping[str, str], ...]]) -> list[str]:
        cache = self._caches[id(policy)]
        sample = partial(sample_checked, policy) if cache is None else cache.ask
        return [completion.text for completion in sample([self._request(item) for item in messages])]


def load_judge(config: JudgeConfig) -> Judge:
    """Load the judge of a configuration and check that its endpoints respond.

    Equal configurations share one judge in a process, with one bill and one set of limits.

    Raises:
        PolicyError: An endpoint does not respond.
    """
    return _load_judge(config.model_dump_json())


@lru_cache(maxsize=8)
def _load_judge(text: str) -> Judge:
    config = JudgeConfig.model_validate_json(text)
    policies = [load_policy(name, endpoint=config.endpoint, setting="judges") for name in config.judges]
    options = config.model_dump(include={"weights", "max_new_tokens", "thinking_tokens", "chat_template_kwargs"})
    return Judge(policies, **options, frozen=True)


def _messages(prompt: JudgePrompt, system: str, unreadable: str | None = None) -> tuple[Mapping[str, str], ...]:
    first = ({"role": "system", "content": system}, {"role": "user", "content": prompt.prompt})
    if unreadable is None:
        return first
    retry = f'No verdict could be read. Reply with {{"verdict": "..."}} alone, one of: {", ".join(prompt.verdicts)}.'
    return (*first, {"role": "assistant", "content": unreadable}, {"role": "user", "content": retry})


# ----------------------------------------------------------------------------------------------------- verdicts

_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=unique_keys)
_NAMED_VERDICT = re.compile(
    r"""\bverdict\b["'*`_]*\s*(?:is\b|[:=>\u2013-])[\s"'*`_(\[]*([^\s,;"'*`_()\]}<][^,;"'*`_()\]}<\n]*)""",
    re.IGNORECASE,
)
_TRUTH = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
_WRAPPING = re.compile(r"^[\s\"'`*_.(\[]+|[\s\"'`*_.!)\]]+$")


def read_verdict(reply: str, words: Mapping[str, float] | Iterable[str]) -> str | None:
    """Return the verdict of a reply, one of `words`, or None.

    The verdict is the field "verdict" of a JSON object in the reply, or what follows "verdict" in another form
    (`{'verdict': 'correct'}`, "Verdict: correct"), or the reply is the word and nothing else. A boolean stands for the
    word with the score 1 or 0. A leading `<think>` part does not count. Two different verdicts are none, and so is a
    word that merely contains another.

    Args:
        reply: Reply of a judge.
        words: Verdicts; with their scores, so that booleans can be read.
    """
    by_folded = {word.casefold(): word for word in words}
    if isinstance(words, Mapping) and sorted(words.values()) == [0.0, 1.0]:
        scored = {score: word for word, score in words.items()}
        by_folded = {truth: scored[score] for truth, score in _TRUTH.items()} | by_folded
    text = reply[after_thinking(reply) :]
    fields, position, is_json = [], text.find("{"), False  # "verdict" in the outermost JSON objects
    while position >= 0:
        try:
            value, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            is_json = is_json or isinstance(value, dict)
            if isinstance(value, dict):
                fields += [value[name] for name in value if name.casefold() == "verdict"]
        position = text.find("{", end)
    candidates = (fields if is_json else _NAMED_VERDICT.findall(text)) or [text]
    folded = {_WRAPPING.sub("", str(value)).casefold() if isinstance(value, str | int) else "" for value in candidates}
    return by_folded.get(folded.pop()) if len(folded) == 1 else None


# -------------------------------------------------------------------------------------------------- known labels


@dataclass(frozen=True, slots=True)
class LabelledItem:
    """Item with a known score."""

    item: Item | Write
    label: float
    id: str


_ADAPTERS: Mapping[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (Item, Write)}


def load_labels(path: str | Path | None = None) -> list[LabelledItem]:
    """Load labelled items from JSON Lines.

    A line is an answer: {"question", "gold": [...], "prediction", "label": 0..1, and "benchmark", "category",
    "refused", "rubric", "date" where they matter}. Or it is a write: {"kind", "chunk", "content", "label", ...}. The
    fields are those of `Item` and `Write`.

    Args:
        path: File; default: the labels that ship.

    Raises:
        DataError: A line is invalid; names file, line and field.
    """
    source = Path(path or str(resources.files("memalpha") / "data" / "judge_labels.jsonl"))
    lines = read_text(source).split("\n")  # not splitlines(): JSON strings may hold U+2028 and the like
    labelled = []
    for where, line in ((f"{source}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()):
        row = parse_json(line, where)
        if not isinstance(row, dict):
            raise DataError(f"{where}: a JSON object is needed")
        label, id = row.pop("label", None), row.pop("id", None)
        if not is_finite_number(label) or not 0 <= label <= 1:
            raise DataError(f"{where}: label {label!r:.80}: a number from 0 to 1 is needed")
        if id is not None and type(id) not in (str, int):
            raise DataError(f"{where}: id {id!r:.80}: a text or a whole number is needed")
        row = row if "chunk" in row else {"gold": (), **row}
        try:
            item = _ADAPTERS[Write if "chunk" in row else Item].validate_json(json.dumps(row))
        except ValidationError as error:
            raise DataError(f"{where}: {format_validation_error(error)}") from error
        labelled.append(LabelledItem(item, float(label), where if id is None else str(id)))
    if not labelled:
        raise DataError(f"{source} holds no labelled item")
    return labelled


def agreement(labels: Sequence[float], scores: Sequence[float | None]) -> dict[str, Any]:
    """Measure the agreement of scores with labels: `accuracy` and Cohen's `kappa` (1960) over judged items.

    A score agrees if its own label is the nearest of all labels that occur. `leniency` is the mean score minus the mean
    label. Values are None if nothing was judged; kappa also if chance alone would always agree.
    """
    classes = sorted(set(labels))
    judged = [(label, score) for label, score in zip(labels, scores, strict=True) if score is not None]
    pairs = [(label, min(classes, key=lambda value: (abs(value - score), value))) for label, score in judged]
    n = len(pairs)
    accuracy = sum(label == nearest for label, nearest in pairs) / n if n else None
    counts, nearest_counts = Counter(label for label, _ in pairs), Counter(nearest for _, nearest in pairs)
    chance = sum(counts[value] * nearest_counts[value] for value in classes) / max(1, n * n)
    return {
        "items": len(labels),
        "unreadable": len(labels) - n,
        "accuracy": accuracy,
        "kappa": None if accuracy is None or chance == 1 else (accuracy - chance) / (1 - chance),
        "leniency": sum(score - label for label, score in judged) / n if n else None,
    }


def check_judge(judge: Judge, labelled: Sequence[LabelledItem]) -> dict[str, Any]:
    """Measure `agreement` over all labels, by benchmark and by judge, and list the disagreements.

    The benchmark of operations is "writes".
    """
    judgements = judge.judge([item.item for item in labelled])
    labels = [item.label for item in labelled]
    kinds = [item.item.benchmark if isinstance(item.item, Item) else "writes" for item in labelled]
    scores = [judgement.score for judgement in judgements]
    pairs_by_kind = group_values(zip(kinds, zip(labels, scores, strict=True), strict=True))
    by_benchmark = {kind: agreement(*zip(*pairs, strict=True)) for kind, pairs in sorted(pairs_by_kind.items())}
    by_judge = {
        policy.name: agreement(
            labels, [judgement.votes[index].score if judgement.votes else judgement.score for judgement in judgements]
        )
        for index, policy in enumerate(judge.policies)
    }
    return {
        **agreement(labels, scores),
        "by_benchmark": by_benchmark,
        "by_judge": by_judge,
        "disagreed": [
            {"id": labelled_item.id, "label": labelled_item.label, **judgement.as_json()}
            for labelled_item, judgement in zip(labelled, judgements, strict=True)
            if judgement.score is None or abs(judgement.score - labelled_item.label) >= 0.5
        ],
        "statistics": judge.statistics(),
    }


MAJORITY = 0.5
"""Score above which a vote of judges counts as correct."""

_PUBLISHED: Mapping[str, WriteKind] = {"inserted": "insert", "updated": "update"}
_WRITES: Mapping[str, WriteKind] = {**_PUBLISHED, "core_updated": "core_update", "deleted": "delete"}


@dataclass(frozen=True, slots=True)
class ContentVerdicts:
    """Validity of one turn's writes.

    Attributes:
        writes: A value for each result of the turn; None if it is not judged.
        nothing: Value of writing nothing; None if something was written.
    """

    writes: tuple[float | None, ...]
    nothing: float | None = None


def judge_step(
    config: RewardConfig, judge: Judge, trajectories: Sequence[Trajectory], records: list[list[Record]]
) -> tuple[list[list[Record]], dict[int, tuple[ContentVerdicts, ...]]]:
    """Judge answers (`metric=judge`) and writes (`content=judge`) of a training step in one batch.

    Args:
        config: Reward settings.
        judge: Judge with its endpoints.
        trajectories: Rollouts of the step.
        records: Records as [trajectory][question].

    Returns:
        The records with the judge's scores, and the verdicts on each turn's writes by `id` of the trajectory.

    Raises:
        PolicyError: A verdict is missing.
    """
    items: list[Item | Write] = []
    if config.metric == "judge":
        items += [
            item_of(question, record.answer)
            for trajectory, own in zip(trajectories, records, strict=True)
            for record, question in zip(own, trajectory.task.questions, strict=True)
            if not record.conflict
        ]
    writes: list[list[list[Write | None]]] = []  # [trajectory][turn]
    if config.content == "judge":
        published = config.preset == "published"
        writes = [[_turn_writes(rollout, turn, published) for turn in rollout.turns] for rollout in trajectories]
    items += [write for rollout in writes for turn in rollout for write in turn if write]
    scores = iter(judge.score(items))
    if config.metric == "judge":
        records = [[_with_score(record, 0.0 if record.conflict else next(scores)) for record in own] for own in records]
    contents: dict[int, tuple[ContentVerdicts, ...]] = {}
    for trajectory, by_turn in zip(trajectories, writes, strict=False):
        verdicts = []
        for turn, of_turn in zip(trajectory.turns, by_turn, strict=True):
            values, count = [next(scores) if write else None for write in of_turn], len(turn.results)
            verdicts.append(ContentVerdicts(tuple(values[:count]), values[count] if len(values) > count else None))
        contents[id(trajectory)] = tuple(verdicts)
    return records, contents


def judge_records(
    records: Sequence[Record], tasks: Sequence[Task], judge: Judge
) -> tuple[list[Record], list[dict[str, Any]]]:
    """Add the judge's score as `scores["judge"]` to records, in one batch.

    If the question's own metric (`meta["metric"]`) is a judged one, the score becomes that metric and the record's
    score. Answers that the conflict rule refused are wrong without asking.

    Args:
        records: Records to judge.
        tasks: Tasks of the records.
        judge: Judge with its endpoints.

    Returns:
        Judged records, and the answers without a readable verdict as JSON: fields of their records, score and votes.

    Raises:
        PolicyError: An endpoint of the judge fails.
    """
    questions = {(task.id, question.id): question for task in tasks for question in task.questions}
    pairs = [(record, questions[record.task, record.question_id]) for record in records]
    judgements = judge.judge([item_of(asked, "" if record.conflict else record.answer) for record, asked in pairs])
    judged, unjudged = [], []
    for (record, question), judgement in zip(pairs, judgements, strict=True):
        if judgement.score is None:
            names = ("task", "rollout", "question_id", "system", "question", "answer")
            unjudged.append({name: getattr(record, name) for name in names} | judgement.as_json())
            continue
        metric = str(question.meta.get("metric"))
        names = {"judge", metric} if metric in JUDGED else {"judge"}
        scores = {**record.scores, **dict.fromkeys(sorted(names), judgement.score)}
        if metric in JUDGED:
            record = _with_score(record, judgement.score, metric)
            scores |= replace_answer_score(scores, judgement.score) if "cited.answer" in scores else {}
        judged.append(replace(record, scores=scores))
    return judged, unjudged


def _with_score(record: Record, score: float, metric: str = "judge") -> Record:
    correct = score > MAJORITY if metric == "judge" else score >= CORRECT_FROM[metric]
    return replace(record, score=score, correct=correct, stale=record.stale and not correct)


def _turn_writes(trajectory: Trajectory, turn: Turn, published: bool) -> list[Write | None]:
    """Return the writes of a turn to judge: one per result (None: not judged), or one for writing nothing."""
    chunk = trajectory.task.chunks[turn.chunk]
    text, date = chunk.render(), chunk.timestamp or ""
    kinds = _PUBLISHED if published else _WRITES
    writes = [
        Write(kinds[result.code], text, result.category or "", result.content or "", result.before or "", date)
        if result.code in kinds
        else None
        for result in turn.results
    ]
    silent = not published and not any(result.code in _WRITES or result.code == "duplicate" for result in turn.results)
    return [*writes, Write("nothing", text, timestamp=date)] if silent else writes
