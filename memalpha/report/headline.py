"""Top of the page: accuracy before and after with intervals, the model, and its most frequent error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from memalpha.qa.records import Record
from memalpha.qa.scoring.stats import ScoredAnswer, compare_paired
from memalpha.report.charts import Z95
from memalpha.report.evaluation import CLASS_LABELS

RESAMPLES = 2_000

Systems = Mapping[str, Mapping[str, Any]]
RecordsBySystem = Mapping[str, Sequence[Record]]


def render_headline(
    summary: Mapping[str, Any],
    systems: Systems,
    records: RecordsBySystem,
    config: Mapping[str, Any],
    name: str,
) -> str:
    """Return the HTML of the headline.

    Args:
        summary: The run's `summary.json`.
        systems: Summaries by system (`before`, `after`, baselines) that have an accuracy.
        records: Records by system, as far as they were saved; they give the paired interval and the error classes.
        config: The run's configuration, {} if it cannot be read.
        name: Name of the run.
    """
    if "pairs" in summary:
        return _headline_of_loss(summary, name, "pairs", "trained on", "pair loss", "validation_pair_loss")
    if "rows" in summary and "after" not in systems:
        return _headline_of_loss(summary, name, "rows", "imitated", "loss", "validation_loss", " (evaluate=false)")
    if "before" not in systems or "after" not in systems:
        return (
            f"<h1>{escape(name)}: not finished</h1><p>The evaluation after training is missing. The command that "
            "started the run resumes it from its last checkpoint.</p>"
        )
    before, after = systems["before"], systems["after"]
    difference = difference_interval(before, after, records)
    is_noise = difference is not None and difference[0] <= 0 <= difference[1]
    noise = " (no difference beyond noise)" if is_noise else ""
    notes = [
        _model_sentence(summary, config),
        _gap_sentence(systems),
        _empty_sentence(records),
        _error_sentence(records, after),
    ]
    parts = [
        f"<h1>Answers right from memory alone: {accuracy_with_error(before)} before training, "
        f"{accuracy_with_error(after)} after{noise}</h1>",
        '<p class="lead">A writer read conversations it had never seen and took notes with tool calls. Then questions '
        f"were answered from the notes alone. {_difference_sentence(before, after, difference)}</p>",
        '<ul class="facts">' + "".join(f"<li>{item}</li>" for item in notes if item) + "</ul>",
        f'<p class="soft">{" · ".join(escape(fact) for fact in _facts(summary))}</p>',
    ]
    return "".join(parts)


def empty_memory_accuracy(records: RecordsBySystem) -> float | None:
    """Return the accuracy of an empty memory: the share of questions whose right answer is to abstain."""
    answered = next((list(rows) for name in ("after", "before") if (rows := records.get(name))), None)
    return sum(not record.gold for record in answered) / len(answered) if answered else None


def accuracy_with_error(system: Mapping[str, Any]) -> str:
    """Format an accuracy with the half-width of its 95&nbsp;% interval, in points."""
    error = system.get("se")
    return f"{system['accuracy']:.0%}" + ("" if error is None else f"&nbsp;±&nbsp;{100 * Z95 * error:.0f}")


def difference_interval(
    before: Mapping[str, Any], after: Mapping[str, Any], records: RecordsBySystem
) -> tuple[float, float] | None:
    """Return the 95&nbsp;% interval of the difference in accuracy; None for a single conversation.

    It is paired by question if the records of both are there; otherwise it comes from the two standard errors.

    Args:
        before: Summary before training.
        after: Summary after training.
        records: Records by system, as far as they were saved.
    """
    first, second = (
        {_key(record): float(record.correct) for record in records.get(name, ())} for name in ("before", "after")
    )
    if first and first.keys() == second.keys():
        rows = [[ScoredAnswer(key[0], "", values[key]) for key in first] for values in (first, second)]
        paired = compare_paired(rows[0], rows[1], resamples=RESAMPLES).difference
        return None if paired.low is None or paired.high is None else (paired.low, paired.high)
    if before.get("se") is None or after.get("se") is None:
        return None
    middle, half = after["accuracy"] - before["accuracy"], Z95 * (before["se"] ** 2 + after["se"] ** 2) ** 0.5
    return middle - half, middle + half


# ----------------------------------------------------------------------------------------------------------- sentences


def _key(record: Record) -> tuple[str, int, str]:
    return record.task, record.rollout, record.question_id


def _difference_sentence(
    before: Mapping[str, Any], after: Mapping[str, Any], interval: tuple[float, float] | None
) -> str:
    points = 100 * (after["accuracy"] - before["accuracy"])
    if interval is None:
        return f"The difference is {points:+.1f} points; a single conversation has no interval."
    low, high = (100 * value for value in interval)
    span = f"{points:+.1f} points (95&nbsp;% interval {low:+.1f} to {high:+.1f})"
    if low <= 0 <= high:
        return f"The difference, {span}, is no difference beyond noise."
    return f"The difference is {span}."


def _model_sentence(summary: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    size = f"{summary['policy_parameters']:,} parameters" if "policy_parameters" in summary else ""
    policy = config.get("policy")
    model = f"<code>{escape(str(policy))}</code> ({size})" if policy and size else f"a model of {size}" if size else ""
    if not model:
        return ""
    by = f" by {escape(str(config['algorithm']))}" if config.get("algorithm") else ""
    trained, tested = _worlds(config)
    training = f", trained{by} on {trained} and tested on {tested}" if trained else ""
    return f"The writer is {model}{training}."


def _worlds(config: Mapping[str, Any]) -> tuple[str, str]:
    """Describe the training data and the held-out data; empty where the configuration does not tell."""
    data = config.get("data")
    held_out = config.get("eval_data")
    if not isinstance(data, str):
        return "", ""
    if data == "synthetic":
        preset = _preset(config.get("world")) or "demo"
        test_preset = _preset(config.get("eval_world")) or preset
        trained = f"generated conversations of the <code>{escape(preset)}</code> world"
        other = "" if test_preset == preset else f" of the <code>{escape(test_preset)}</code> world"
        tested = f"its held-out split{other}" if not held_out else f"<code>{escape(str(held_out))}</code>"
        return trained, tested
    if data == "babi":
        return "bAbI stories", f"<code>{escape(str(held_out))}</code>" if held_out else "stories it held out"
    tested = f"<code>{escape(str(held_out))}</code>" if held_out else "tasks held out from it"
    return f"<code>{escape(data)}</code>", tested


def _preset(world: object) -> str | None:
    return str(world["preset"]) if isinstance(world, Mapping) and "preset" in world else None


def _gap_sentence(systems: Systems) -> str:
    if "oracle" not in systems:
        return ""
    before, after, oracle = (systems[name]["accuracy"] for name in ("before", "after", "oracle"))
    if oracle <= before or after <= before:
        return ""
    closed = (after - before) / (oracle - before)
    return f"Training closed {closed:.0%} of the gap to a writer that does everything right."


def _empty_sentence(records: RecordsBySystem) -> str:
    share = empty_memory_accuracy(records)
    if share is None:
        return ""
    return f"An empty memory would score {share:.0%}: it abstains, which is right where a question has no answer."


def _error_sentence(records: RecordsBySystem, after: Mapping[str, Any]) -> str:
    """Name the most frequent error class and the weakest kind of question after training."""
    answers = list(records.get("after", ()))
    counts = Counter(record.error_class for record in answers if record.error_class)
    sentence = ""
    if counts:
        name, count = counts.most_common(1)[0]
        wrong = sum(counts.values())
        label = CLASS_LABELS.get(str(name), str(name))
        sentence = (
            f"The most frequent error after training is <em>{escape(label)}</em>: {count / len(answers):.1%} of all "
            f"questions, {count / wrong:.0%} of the wrong answers."
        )
    abilities = {
        key: cell["accuracy"] for key, cell in after.get("by_ability", {}).items() if cell.get("accuracy") is not None
    }
    if len(abilities) > 1:
        weakest = min(abilities, key=lambda key: abilities[key])
        sentence += f" The weakest kind of question is <em>{escape(weakest)}</em>, {abilities[weakest]:.0%} right."
    return sentence


def _facts(summary: Mapping[str, Any]) -> list[str]:
    counts = {"tasks": "held-out conversations", "questions": "questions"}
    facts = [f"{summary[key]:,} {label}" for key, label in counts.items() if key in summary]
    if "best_step" in summary:
        facts.append(f"weights after step {summary['best_step']} of {summary['steps']}, best on validation tasks")
    facts += [f"{summary['minutes']:.1f} minutes"] if "minutes" in summary else []
    facts += [f"seed {summary['seed']}"] if "seed" in summary else []
    return [*facts, f"± is a 95 % interval ({Z95} standard errors over conversations), in points"]


def _headline_of_loss(
    summary: Mapping[str, Any], name: str, unit: str, verb: str, loss: str, key: str, why: str = ""
) -> str:
    """Return the headline of a run without questions: its held-out loss, under `key`, before and after."""
    before, after = (summary[when].get(key) for when in ("before", "after"))
    held_out = f"{summary[f'validation_{unit}']:,} {unit} held out"
    losses = held_out if before is None else f"{loss} {before:.3f} before, {after:.3f} after on {held_out}"
    return (
        f"<h1>{escape(name)}: {losses}</h1><p>{summary[unit]:,} {unit} were {verb} in {summary['steps']} steps; the "
        f"weights are those after step {summary['best_step']}. No questions were asked{why}.</p>"
    )
