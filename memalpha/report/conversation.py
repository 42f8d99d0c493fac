"""The page's part on conversations: text, each writer's calls, its memory and its answers.

The reader of the page chooses among the recorded conversations by radio buttons and CSS, without a script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

TITLES = {"before": "Before training", "after": "After training"}
MAX_CONVERSATIONS = 6
"""Conversations that the page offers, at most; the template's CSS has as many rules."""
OPEN_PARTS = 4
"""Parts of a conversation that are open; the others are folded."""

Walk = Mapping[str, Any]


def render_conversations(example: Mapping[str, Any]) -> str:
    """Return the HTML of the recorded conversations (`eval/example.json`, see `qa.reporting.example`)."""
    walks = [example, *example.get("more", ())][:MAX_CONVERSATIONS]
    about = (
        "<p>Held-out conversations in which, by their gold operations, a fact changes and another is taken back (if "
        "there are none, the first ones). They are chosen for that alone, not for their results. Each part is read "
        "with nothing but the notes taken so far.</p>"
    )
    parts = ["<h2>One conversation, before and after</h2>", about]
    if len(walks) == 1:
        return "\n".join([*parts, _render_walk(example)])
    choices = [
        f'<input type="radio" name="walk" id="walk-{number}"{" checked" if number == 1 else ""}>'
        f'<label for="walk-{number}">{_title(number, walk)}</label>'
        for number, walk in enumerate(walks, start=1)
    ]
    panels = [
        f'<div class="panel panel-{number}">{_render_walk(walk)}</div>' for number, walk in enumerate(walks, start=1)
    ]
    return "\n".join(
        [*parts, f'<div class="walks">{"".join(choices)}', *panels, "</div>"]
    )  # radio buttons and panels are siblings, as the CSS selects them


def _title(number: int, walk: Walk) -> str:
    """Return the label of a conversation: its number, and the writers' right answers."""
    scores = []
    for name in TITLES:
        if answers := walk["systems"].get(name, {}).get("answers"):
            right = sum(bool(answer["correct"]) for answer in answers)
            scores.append(f"{right}/{len(answers)}")
    return f"{number}" + (f' <span class="soft">{" → ".join(scores)} right</span>' if scores else "")


def _render_walk(walk: Walk) -> str:
    systems = {name: walk["systems"][name] for name in TITLES if name in walk["systems"]}
    parts = [_part(number, chunk, systems) for number, chunk in enumerate(walk["chunks"])]
    html = parts[:OPEN_PARTS]
    if folded := parts[OPEN_PARTS:]:
        html.append(f"<details><summary>{len(folded)} more parts</summary>{''.join(folded)}</details>")
    return "\n".join([*html, _answers(systems)])


def _part(number: int, chunk: Mapping[str, Any], systems: Mapping[str, Walk]) -> str:
    date = f' <span class="soft">{escape(chunk["timestamp"])}</span>' if chunk.get("timestamp") else ""
    columns = "".join(_column(TITLES[name], walk["chunks"], number) for name, walk in systems.items())
    return (
        f'<h3 class="part">Part {number + 1}{date}</h3><pre>{escape(chunk["text"])}</pre>'
        f'<div class="two">{columns}</div>'
    )


def _column(title: str, steps: Sequence[Walk], number: int) -> str:
    step = steps[number]
    earlier = {entry["id"]: entry["content"] for entry in (steps[number - 1]["memory"] if number else ())}
    calls = "".join(_call(call) for call in step["calls"]) or '<li class="soft">no call</li>'
    current = {entry["id"] for entry in step["memory"]}
    lines = [_entry(entry, earlier) for entry in step["memory"]]
    lines += [
        f'<li class="deleted"><code>{escape(key)}</code> {escape(text)}</li>'
        for key, text in earlier.items()
        if key not in current
    ]
    core = f'<p class="soft">core: {escape(step["core"])}</p>' if step.get("core") else ""
    memory = "".join(lines) or '<li class="soft">empty</li>'
    return (
        f'<div class="card"><h3>{title}</h3><ul class="calls">{calls}</ul>'
        f'<span class="soft">memory after this part</span>{core}<ul class="memory">{memory}</ul></div>'
    )


def _call(call: Mapping[str, Any]) -> str:
    tag = f'<span class="tag {"ok" if call["ok"] else "no"}">{escape(call["code"].replace("_", " "))}</span>'
    if not call["ok"]:
        return f"<li>{tag}<code>{escape(call['raw'] or call['name'])}</code></li>"
    entry = f"<code>{escape(call['entry_id'])}</code> " if call.get("entry_id") else ""
    if call["code"] == "updated":
        return f"<li>{tag}{entry}{escape(call['before'] or '')} → {escape(call['content'] or '')}</li>"
    text = call.get("content") or call.get("before") or ""
    return f"<li>{tag}{entry}{escape(text)}</li>"


def _entry(entry: Mapping[str, Any], earlier: Mapping[str, str]) -> str:
    tag = ""
    if entry["id"] not in earlier:
        tag = '<span class="tag">new</span>'
    elif earlier[entry["id"]] != entry["content"]:
        tag = '<span class="tag">changed</span>'
    date = f' <span class="soft">{escape(entry["timestamp"])}</span>' if entry.get("timestamp") else ""
    return f"<li>{tag}<code>{escape(entry['id'])}</code> {escape(entry['content'])}{date}</li>"


def _answers(systems: Mapping[str, Walk]) -> str:
    by_question = {name: {item["question_id"]: item for item in walk["answers"]} for name, walk in systems.items()}
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
