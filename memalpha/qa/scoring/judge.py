"""Language models that judge answers: any endpoint, any local model, several with weights.

A verdict is one word of a few, read from one position; "INVALID" is not "VALID". A reply without a readable verdict is
asked for once more. An item without any verdict has no score, and never the score 0. An endpoint that fails raises.
`agreement` measures a judge against known labels; `memalpha judge check` uses labels that ship.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import resources
from pathlib import Path
from threading import Lock
from typing import Any

from memalpha.agent.parsing import after_thinking
from memalpha.arguments import brief_repr, is_finite_number
from memalpha.config import JudgeConfig
from memalpha.errors import ConfigError, DataError, PolicyError
from memalpha.policy.base import BilledPolicy, Policy, sample_checked
from memalpha.policy.load import load_policy
from memalpha.policy.reply_cache import cache_frozen
from memalpha.qa.scoring.judge_prompts import (
    BENCHMARKS,
    SYSTEM,
    Item,
    JudgePrompt,
    Write,
    item_of,
    prompts_of,
    score_of,
)
from memalpha.text_files import decode_text
from memalpha.types import SampleRequest

__all__ = ["Item", "Judge", "Judgement", "Vote", "Write", "agreement", "item_of", "load_judge", "read_verdict"]


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
        votes = [
            {"judge": vote.judge, "score": vote.score, "verdicts": list(vote.verdicts)}
            | ({"replies": list(vote.replies)} if vote.score is None else {})
            for vote in self.votes
        ]
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
        self._request = partial(
            SampleRequest,
            max_new_tokens=max_new_tokens,
            thinking_tokens=thinking_tokens,
            chat_template_kwargs=chat_template_kwargs or {},
        )
        self.name = "judge:" + "+".join(policy.name for policy in self.policies)
        self.unreadable = dict.fromkeys((policy.name for policy in self.policies), 0)
        self._lock = Lock()

    def judge(self, items: Sequence[Item | Write]) -> list[Judgement]:
        """Judge items in one batch; equal prompts are asked once.

        An empty prediction is wrong without asking.

        Raises:
            PolicyError: An endpoint fails.
        """
        prompts_by_item = [[] if _is_empty_prediction(item) else prompts_of(item) for item in items]
        unique = list({prompt.prompt: prompt for prompts in prompts_by_item for prompt in prompts}.values())
        with ThreadPoolExecutor(len(self.policies)) as pool:
            verdicts_by_policy = list(pool.map(lambda policy: self.verdicts(policy, unique), self.policies))
        return [self._judgement(prompts, verdicts_by_policy) for prompts in prompts_by_item]

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
        by_policy = {}
        for policy in self.policies:
            bill = policy.statistics() if isinstance(policy, BilledPolicy) else {}
            by_policy[policy.name] = {**bill, "unreadable": self.unreadable[policy.name]}
        return by_policy

    def verdicts(
        self, policy: Policy, prompts: Sequence[JudgePrompt], system: str = SYSTEM
    ) -> dict[str, tuple[str | None, str]]:
        """Ask one judge; an unreadable reply is asked for once more.

        Args:
            policy: The judge.
            prompts: Prompts with their possible verdicts.
            system: System message.

        Returns:
            Verdict (None if unreadable) and last reply, by prompt text.
        """
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

    def _judgement(
        self, prompts: Sequence[JudgePrompt], verdicts_by_policy: Sequence[Mapping[str, tuple[str | None, str]]]
    ) -> Judgement:
        if not prompts:
            return Judgement(0.0, ())
        votes = []
        for policy, answers in zip(self.policies, verdicts_by_policy, strict=True):
            verdicts, replies = zip(*(answers[prompt.prompt] for prompt in prompts), strict=True)
            values = [prompt.verdicts[word] for prompt, word in zip(prompts, verdicts, strict=True) if word is not None]
            score = score_of(prompts, values) if len(values) == len(prompts) else None
            votes.append(Vote(policy.name, score, verdicts, replies))
        pairs = zip((vote.score for vote in votes), self.weights, strict=True)
        weighted = [(score, weight) for score, weight in pairs if score is not None]
        weight = sum(weight for _, weight in weighted)
        return Judgement(sum(score * share for score, share in weighted) / weight if weighted else None, tuple(votes))


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
    policies = [load_policy(name, endpoint=config.endpoint) for name in config.judges]
    return Judge(
        policies,
        config.weights,
        max_new_tokens=config.max_new_tokens,
        thinking_tokens=config.thinking_tokens,
        chat_template_kwargs=config.chat_template_kwargs,
        frozen=True,
    )


def _is_empty_prediction(item: Item | Write) -> bool:
    return isinstance(item, Item) and not item.prediction.strip()


def _messages(prompt: JudgePrompt, system: str, unreadable: str | None = None) -> tuple[Mapping[str, str], ...]:
    first = ({"role": "system", "content": system}, {"role": "user", "content": prompt.prompt})
    if unreadable is None:
        return first
    retry = f'No verdict could be read. Reply with {{"verdict": "..."}} alone, one of: {", ".join(prompt.verdicts)}.'
    return (*first, {"role": "assistant", "content": unreadable}, {"role": "user", "content": retry})


# ----------------------------------------------------------------------------------------------------- verdicts

_DECODER = json.JSONDecoder(strict=False)
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
    fields = _verdict_fields(text)
    candidates = (_NAMED_VERDICT.findall(text) if fields is None else fields) or [text]
    folded = {_WRAPPING.sub("", str(value)).casefold() if isinstance(value, str | int) else "" for value in candidates}
    return by_folded.get(folded.pop()) if len(folded) == 1 else None


def _verdict_fields(text: str) -> list[Any] | None:
    """Return the values of "verdict" in the outermost JSON objects of a text; None without such an object."""
    values, position, is_json = [], text.find("{"), False
    while position >= 0:
        try:
            value, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            is_json = is_json or isinstance(value, dict)
            if isinstance(value, dict):
                values += [value[name] for name in value if name.casefold() == "verdict"]
        position = text.find("{", end)
    return values if is_json else None


# -------------------------------------------------------------------------------------------------- known labels


@dataclass(frozen=True, slots=True)
class LabelledItem:
    """Item with a known score."""

    item: Item | Write
    label: float
    id: str


_ITEM_FIELDS = ("question", "prediction", "category", "benchmark", "refused", "date")
_LIST_FIELDS = ("gold", "rubric", "keypoints")
_WRITE_FIELDS = ("kind", "chunk", "category", "content", "before", "timestamp")

_ALLOWED_VALUES = {"benchmark": BENCHMARKS, "kind": ("insert", "update", "delete", "core_update", "nothing")}


def load_labels(path: str | Path | None = None) -> list[LabelledItem]:
    """Load labelled items from JSON Lines.

    A line is an answer: {"question", "gold": [...], "prediction", "label": 0..1, and "benchmark", "category",
    "refused", "rubric", "date" where they matter}. Or it is a write: {"kind", "chunk", "content", "label", ...}. The
    fields are those of `judge_prompts.Item` and `Write`.

    Args:
        path: File; default: the labels that ship.

    Raises:
        DataError: A line is invalid; names file, line and field.
    """
    source = resources.files("memalpha") / "data" / "judge_labels.jsonl" if path is None else Path(path)
    try:
        # Not splitlines(): JSON strings may hold U+2028 and the like.
        lines = decode_text(source.read_bytes(), str(source)).split("\n")
    except OSError as error:
        raise DataError(f"{source} cannot be read ({error})") from error
    labelled = [_parse_label(line, f"{source}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not labelled:
        raise DataError(f"{source} holds no labelled item")
    return labelled


def _parse_label(line: str, where: str) -> LabelledItem:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error})") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: a JSON object is needed")
    is_write = "chunk" in row
    texts, lists = (_WRITE_FIELDS, ()) if is_write else (_ITEM_FIELDS, _LIST_FIELDS)
    for name, value in row.items():
        if name in lists and not (isinstance(value, list) and all(isinstance(part, str) for part in value)):
            raise DataError(f"{where}: field {name!r}: a list of texts is needed")
        if name in texts and not isinstance(value, str):
            raise DataError(f"{where}: field {name!r}: a text is needed")
        if name not in (*texts, *lists, "label", "id"):
            raise DataError(f"{where}: field {name!r} is not known; there are {', '.join((*texts, *lists))}, label, id")
        if name in _ALLOWED_VALUES and value not in _ALLOWED_VALUES[name]:
            raise DataError(f"{where}: field {name!r}: {value!r} is none of {', '.join(_ALLOWED_VALUES[name])}")
    if missing := [name for name in (("kind",) if is_write else ("question", "prediction")) if name not in row]:
        raise DataError(f"{where}: field {missing[0]!r} is missing")
    label, id = row.pop("label", None), str(row.pop("id", where))
    if isinstance(label, bool) or not isinstance(label, int | float) or not 0 <= label <= 1:
        raise DataError(f"{where}: field 'label': a number from 0 to 1 is needed, the score that is right")
    if is_write:
        return LabelledItem(Write(**row), float(label), id)
    fields = {**row, **{name: tuple(row.get(name, ())) for name in lists}}
    return LabelledItem(Item(**fields), float(label), id)


def agreement(labels: Sequence[float], scores: Sequence[float | None]) -> dict[str, Any]:
    """Measure the agreement of scores with labels: `accuracy` and Cohen's `kappa` (1960) over judged items.

    A score agrees if its own label is the nearest of all labels that occur. `leniency` is the mean score minus the mean
    label. Values are None if nothing was judged; kappa also if chance alone would always agree.
    """
    classes = sorted(set(labels))
    pairs = [
        (label, min(classes, key=lambda candidate: (abs(candidate - score), candidate)))
        for label, score in zip(labels, scores, strict=True)
        if score is not None
    ]
    judged = [(label, score) for label, score in zip(labels, scores, strict=True) if score is not None]
    n = len(pairs)
    accuracy = sum(label == nearest for label, nearest in pairs) / n if n else None
    chance = sum(
        sum(label == value for label, _ in pairs) * sum(nearest == value for _, nearest in pairs) for value in classes
    ) / max(1, n * n)
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
    by_benchmark = {}
    for kind in sorted(set(kinds)):
        indices = [index for index, item_kind in enumerate(kinds) if item_kind == kind]
        by_benchmark[kind] = agreement([labels[index] for index in indices], [scores[index] for index in indices])
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
