"""A plan as text for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def format_plan(plan: Mapping[str, Any]) -> str:
    """Return a plan (`plan_run`) as lines of text."""
    model, step, memory, time, disk = (plan[name] for name in ("model", "step", "memory", "time", "disk"))
    capacity = memory["device_bytes"]
    weights = ", ".join(f"{format_bytes(size)} in {dtype}" for dtype, size in model["bytes"].items())
    lines = [
        f"plan of a run: {plan['kind']}, policy {plan['policy']}"
        + (f", {plan['processes']} processes" if plan["processes"] > 1 else ""),
        f"model       {_count(model['parameters'])} parameters, {_count(model['trained'])} trained; {weights}",
        "",
        "a step",
        _line("prompts", f"{step['prompts']:,}, {_tokens(step['prompt_tokens'])}"),
        _line("replies", _tokens(step["completion_tokens"])),
    ]
    for name in ("reader", "judge"):
        calls = step[name]
        if calls["calls"]:
            tokens = f", {calls['prompt_tokens']:,} + {calls['completion_tokens']:,} tokens at most"
            who = calls["policy"] or "a rule, no tokens"
            lines.append(_line(name, f"{calls['calls']:,} calls ({who})" + (tokens if calls["policy"] else "")))
    lines += [
        _line("learner", f"{step['rows']:,} rows in {step['microbatches']:,} micro-batches, {step['updates']} updates"),
        "",
        "memory of each process" + (f", {format_bytes(capacity)} on the device" if capacity else ""),
    ]
    for phase in memory["phases"]:
        mark = "  <- peak" if phase["name"] == memory["peak"]["phase"] else ""
        lines.append(_line(phase["name"], f"{format_bytes(phase['bytes'])}{mark}"))
        parts = sorted(phase["parts"].items(), key=lambda part: -part[1])
        lines.append(_line("", ", ".join(f"{name} {format_bytes(size)}" for name, size in parts if size)))
    if memory["fits"] is not None:
        lines.append(_line("fits" if memory["fits"] else "DOES NOT FIT", memory["advice"] or "yes"))
    lines += ["", "time (an estimate)"]
    if time["phases"] is None:
        lines.append(_line("unknown", "the device is not here"))
    else:
        for name, seconds in time["phases"].items():
            lines.append(_line(name, format_seconds(seconds)))
        total = f"{format_seconds(time['step_seconds'])}; {time['steps']} steps {format_seconds(time['run_seconds'])}"
        lines += [
            _line("a step", f"{total}, without evaluations"),
            _line("basis", f"{time['device']}: {time['basis']}"),
        ]
    checkpoints = f"{disk['checkpoints']} checkpoints of {format_bytes(disk['checkpoint_bytes'])}"
    if disk["sampler_bytes"]:
        checkpoints += f", and {format_bytes(disk['sampler_bytes'])} on their way to the server"
    lines += ["", _line("disk", f"{format_bytes(disk['bytes'])}: {checkpoints}")[2:]]
    lines += [f"note: {note}" for note in plan["notes"]]
    return "\n".join(lines)


def format_bytes(size: float) -> str:
    """Return a size in decimal units."""
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} GB" if size < 100 else f"{size:,.0f} GB"


def format_seconds(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def _line(name: str, text: str) -> str:
    return f"  {name:<10}  {text}"


def _tokens(tokens: Mapping[str, int | None]) -> str:
    expected = "" if tokens["expected"] is None else f", {tokens['expected']:,} expected"
    return f"{tokens['most']:,} tokens at most{expected}"


def _count(number: int) -> str:
    for unit in ("", " thousand", " million"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000  # type: ignore[assignment]
    return f"{number:.3g} billion"
