"""The page's part on one conversation: what was said, what each writer did, what it then knew and answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

TITLES = {"before": "Before training", "after": "After training"}


def conversation(example: Mapping[str, Any]) -> str:
    """HTML of one walked conversation (`eval/example.json`, see `memalpha.qa.reporting.example`)."""
    systems = {name: example["systems"][name] for name in TITLES if name in example["systems"]}
    parts = [
        "<h2>One conversation, before and after</h2>",
        "<p>The first held-out conversation in which, by its gold operations, a fact changes and another is taken back "
        "(where there is none, the first of all), chosen for that alone. Each part is read with nothing but the notes "
        "taken so far.</p>",
    ]
    for number, chunk in enumerate(example["chunks"]):
        date = f' <span class="soft">{escape(chunk["timestamp"])}</span>' if chunk.get("timestamp") else ""
        columns = "".join(_column(TITLES[name], walked["chunks"], number) for name, walked in systems.items())
        parts.append(f'<h3 class="part">Part {number + 1}{date}</h3><pre>{escape(chunk["text"])}</pre>')
        parts.append(f'<div class="two">{columns}</div>')
    parts.append(_answers(systems))
    return "\n".join(parts)


def _column(title: str, steps: Sequence[Mapping[str, Any]], number: int) -> str:
    step = steps[number]
    earlier = {entry["id"]: entry["content"] for entry in (steps[number - 1]["memory"] if number else ())}
    calls = "".join(_call(call) for call in step["calls"]) or '<li class="soft">no call</li>'
    now = {entry["id"] for entry in step["memory"]}
    lines = [_entry(entry, earlier) for entry in step["memory"]]
    lines += [
        f'<li class="gone"><code>{escape(key)}</code> {escape(text)}</li>'
        for key, text in earlier.items()
        if key not in now
    ]
    core = f'<p class="soft">core: {escape(step["core"])}</p>' if step.get("core") else ""
    memory = "".join(lines) or '<li class="soft">empty</li>'
    return (
        f'<div class="card"><h3>{title}</h3><ul class="calls">{calls}</ul>'
        f'<span class="soft">memory after it</span>{core}<ul class="memory">{memory}</ul></div>'
    )


def _call(call: Mapping[str, Any]) -> str:
    tag = f'<span class="tag {"ok" if call["ok"] else "no"}">{escape(call["code"].replace("_", " "))}</span>'
    if not call["ok"]:
        return f"<li>{tag}<code>{escape(call['raw'] or call['name'])}</code></li>"
    where = f"<code>{escape(call['entry_id'])}</code> " if call.get("entry_id") else ""
    if call["code"] == "updated":
        return f"<li>{tag}{where}{escape(call['before'] or '')} → {escape(call['content'] or '')}</li>"
    text = call.get("content") or call.get("before") or ""
    return f"<li>{tag}{where}{escape(text)}</li>"


def _entry(entry: Mapping[str, Any], earlier: Mapping[str, str]) -> str:
    tag = ""
    if entry["id"] not in earlier:
        tag = '<span class="tag">new</span>'
    elif earlier[entry["id"]] != entry["content"]:
        tag = '<span class="tag">changed</span>'
    date = f' <span class="soft">{escape(entry["timestamp"])}</span>' if entry.get("timestamp") else ""
    return f"<li>{tag}<code>{escape(entry['id'])}</code> {escape(entry['content'])}{date}</li>"


def _answers(systems: Mapping[str, Mapping[str, Any]]) -> str:
    by_question = {name: {item["question_id"]: item for item in walked["answers"]} for name, walked in systems.items()}
    first = next(iter(systems.values()))["answers"] if systems else []
    head = "".join(f"<th>{TITLES[name].lower()}</th>" for name in systems)
    rows = []
    for item in sorted(first, key=lambda item: item["asked_after_chunk"]):
        gold = " or ".join(item["gold"]) if item["gold"] else "not known"
        cells = "".join(_answer(by_question[name].get(item["question_id"])) for name in systems)
        rows.append(
            f'<tr><td>{escape(item["question"])}<br><span class="soft">after part {item["asked_after_chunk"] + 1}'
            f" · {escape(item['ability'] or '')}</span></td><td>{escape(gold)}</td>{cells}</tr>"
        )
    return (
        '<h3 class="part">The questions, answered from that memory</h3><div class="card scroll"><table>'
        f"<tr><th>question</th><th>right answer</th>{head}</tr>{''.join(rows)}</table></div>"
    )


def _answer(item: Mapping[str, Any] | None) -> str:
    if item is None:
        return "<td>not asked</td>"
    sign, name = ("✓", "yes") if item["correct"] else ("✗", "nope")
    return f'<td><span class="{name}">{sign} {escape(item["answer"] or "unknown")}</span></td>'
