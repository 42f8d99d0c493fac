"""The page says what the run directory says, needs no network, and names what is missing."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import memalpha
from memalpha.cli.train import demo, format_outcome
from memalpha.errors import DataError
from memalpha.qa.report import Record, save_records
from memalpha.report.evaluation import CHANGES
from memalpha.report.page import write_report

VOID = {"meta", "br", "input", "img", "hr", "link"}


class Checker(HTMLParser):
    """Collects the text and fails on tags that do not close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.text += data


def change(path: Path, **fields: Any) -> None:
    """Replace top-level fields of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def page_of(run: Path) -> Checker:
    checker = Checker()
    checker.feed(write_report(run).read_text(encoding="utf-8"))
    assert not checker.open
    return checker


def test_the_page_is_one_file_without_network_or_script(run: Path) -> None:
    path = write_report(run)
    text = path.read_text(encoding="utf-8")
    assert path == run / "report.html"
    assert not page_of(run).tags & {"script", "link", "img", "iframe"}
    assert not re.search(r"(?:src|url)\s*[=(]|href=\"[^#]|https?://|@import", text)
    assert "prefers-color-scheme: dark" in text and "width=device-width" in text


def test_the_headline_and_the_figures_are_the_summary_s(run: Path) -> None:
    text = page_of(run).text
    assert "46%\u00a0±\u00a03 before training, 80%\u00a0±\u00a03 after" in text
    assert "200 held-out conversations" in text and "1,431 questions" in text and "seed 7" in text
    assert "step 40 of 50" in text
    assert "closed 64% of the gap" in text  # (.798 - .456) / (.988 - .456)
    for word in ("append only", "oracle", "knowledge-update", "abstention", "update", "Entropy", "validation"):
        assert word in text


def test_no_gain_is_not_called_one(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    change(run / "summary.json", after=summary["after"] | {"accuracy": summary["before"]["accuracy"] - 0.1})
    text = page_of(run).text
    assert "46%\u00a0±\u00a03 before training, 36%\u00a0±\u00a03 after" in text and "closed" not in text


def test_without_baselines_and_changes_the_page_does_not_speak_of_them(run: Path) -> None:
    summary, unknown = json.loads((run / "summary.json").read_text()), dict.fromkeys(CHANGES)
    assert "does every operation right" in page_of(run).text and "kept true?" in page_of(run).text
    systems = {name: summary[name] | unknown for name in ("before", "after")}
    change(run / "summary.json", baselines={}, **systems)
    text = page_of(run).text
    assert "No oracle" in text and "does every operation right" not in text and "kept true?" not in text


def test_the_conversation_shows_calls_memory_and_answers(run: Path) -> None:
    text = page_of(run).text
    assert "<Nice> & cosy!" in text  # escaped in the source, so a reader sees it as it was said
    assert "city: Oslo → city: Rome" in text
    assert '<tool_call>{"name": <b>' in text and "malformed" in text
    assert "✓ Rome" in text and "✗ Oslo" in text and "✓ unknown" in text and "not known" in text


def test_curves_begin_with_the_validation_of_the_start(run: Path) -> None:
    assert "validation 0.460 → " in page_of(run).text
    state = {"start_validation": {"validation_accuracy": 0.125, "validation_se": 0.0}}
    (run / "checkpoints" / "step-50").mkdir(parents=True)
    (run / "checkpoints" / "step-50" / "state.json").write_text(json.dumps(state))
    text = page_of(run).text
    assert "validation 0.125 → 0.766" in text and "validation, step 0: 0.125" in text
    assert "validation, step 1: 0.460 ± 0.0588" in text and "validation, step 41:" in text
    (run / "starts.jsonl").write_text('{"step": 0, "scheduled_steps": 80}\n')
    assert "Steps 1 to 50 of 80" in page_of(run).text


def test_small_figures_keep_their_digits_and_missing_intervals_are_not_spoken_of(run: Path) -> None:
    lines = [{"step": step, "update_kl": 0.0004 / (step + 1), "validation_loss": 2.0 - step} for step in range(2)]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    text = page_of(run).text
    assert "KL 0.000400 → 0.000200" in text and "0.0003" in text and "Bars: 95 % intervals" in text
    assert "step 40 of 50, lowest loss on held-out rows" in text and "With 95 % intervals; questions" in text
    change(run / "summary.json", tasks=9)
    assert "Bars: 95 % intervals" not in page_of(run).text and "With 95 % intervals" not in page_of(run).text


def test_an_unfinished_run_is_called_so(run: Path) -> None:
    (run / "summary.json").unlink()
    (run / "eval" / "example.json").unlink()
    (run / "starts.jsonl").write_text('{"step": 0, "version": "0.0.9", "commit": "abc"}\n')
    text = page_of(run).text
    assert "not finished" in text and "Reward" in text
    assert f"memalpha train {run} resumes it" in text and "made by memalpha 0.0.9, commit abc" in text


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a run directory"):
        write_report(tmp_path)


def test_text_that_utf8_cannot_hold_is_shown_escaped(run: Path) -> None:
    path = run / "eval" / "example.json"
    example = json.loads(path.read_text(encoding="utf-8"))
    example["chunks"][0]["text"] = "half \ud800"
    path.write_text(json.dumps(example))
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").split("\n")
    lines[0] = lines[0][:-1] + ', "note": "one\u2028line"}'
    (run / "metrics.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert "half \\ud800" in write_report(run).read_text(encoding="utf-8")


@pytest.mark.parametrize("line", ['{"step": 50,', '{"reward": 1}'])
def test_a_broken_line_is_named(run: Path, line: str) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl:51"):
        write_report(run)


def test_the_line_that_a_kill_cut_and_a_metric_without_a_number_are_left_out(run: Path) -> None:
    page = write_report(run).read_text(encoding="utf-8")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 50, "rew')
    assert write_report(run).read_text(encoding="utf-8") == page
    with (run / "metrics.jsonl").open("a") as file:
        file.write('ard": NaN, "entropy": Infinity}\n')
    assert "nan" not in write_report(run).read_text(encoding="utf-8").lower()


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe\xfd", b"[1]"])
@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "eval/example.json"])
def test_garbage_in_a_run_directory_is_named(run: Path, name: str, content: bytes) -> None:
    (run / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        write_report(run)


def test_a_configuration_that_is_no_text_does_not_hide_the_results(run: Path) -> None:
    (run / "config.yaml").write_bytes(b"\xff\xfe")
    assert "Answers right" in write_report(run).read_text(encoding="utf-8")


def test_the_walk_stands_right_under_the_headline(run: Path) -> None:
    text = page_of(run).text
    order = ("Answers right", "One conversation, before and after", "The results", "Steps 1 to 50", "Reproduce")
    assert sorted(order, key=text.index) == list(order)


def test_one_of_several_conversations_is_chosen_without_a_script(run: Path) -> None:
    assert "<input" not in write_report(run).read_text(encoding="utf-8"), "one conversation needs no choice"
    path = run / "eval" / "example.json"
    example = json.loads(path.read_text())
    hostile = json.loads(path.read_text()) | {"task": "t1"}
    hostile["chunks"][0]["text"] = "</pre><script>alert(1)</script>"
    path.write_text(json.dumps(example | {"more": [hostile] * 8}))
    html = write_report(run).read_text(encoding="utf-8")
    assert page_of(run).tags & {"script", "img", "iframe"} == set()
    assert "&lt;script&gt;alert(1)" in html
    assert html.count('type="radio"') == html.count('<div class="panel ') == 6
    assert html.count(" checked>") == 1 and "0/2 → 2/2 right" in html
    for number in range(1, 7):
        assert f"#walk-{number}:checked ~ .panel-{number}" in html and f'id="walk-{number}"' in html


def answers(right: int, system: str) -> list[Record]:
    """A hundred answers in ten conversations, the first `right` of them right; every fifth question has no answer."""
    records = []
    for number in range(100):
        gold, is_right = () if number % 5 == 0 else ("b",), number < right
        error = None if is_right else "answered_wrong" if number % 3 else "never_written"
        named = Record(f"t{number % 10}", 0, f"q{number}", "x", None, "?", "a", gold, float(is_right), is_right)
        records.append(replace(named, system=system, error_class=error))
    return records


def test_the_difference_has_a_paired_interval_and_the_errors_a_name(run: Path) -> None:
    for name, right in (("before", 40), ("after", 80)):
        save_records(answers(right, name), run / "eval" / f"{name}.jsonl")
        summary = json.loads((run / "summary.json").read_text())
        change(run / "summary.json", **{name: summary[name] | {"accuracy": right / 100}})
    text = page_of(run).text
    assert "+40.0 points (95\u00a0% interval +40.0 to +40.0)" in text and "noise" not in text  # 4 more in each
    assert "An empty memory would score 20%" in text and "dashed line is an empty memory (0.20)" in text
    assert "most frequent error after training is retrieved, answered wrong: 13.0% of all questions, 65% of" in text
    assert "weakest kind of question is temporal" in text


def test_a_difference_within_its_interval_is_called_noise(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    change(run / "summary.json", after=summary["after"] | {"accuracy": summary["before"]["accuracy"] + 0.02})
    text = page_of(run).text
    assert "after (no difference beyond noise)" in text and "is no difference beyond noise" in text
    change(run / "summary.json", tasks=9)
    text = page_of(run).text
    assert "noise" not in text and "below ten conversations there is no interval" in text and "± is a" not in text


def test_the_model_and_its_worlds_are_named(run: Path) -> None:
    (run / "config.yaml").write_text(
        "policy: <tiny>\nalgorithm: grpo\ndata: synthetic\nworld: {preset: demo}\nevaluation: {world: {preset: full}}\n"
    )
    text = page_of(run).text
    assert "<tiny> (774,400 parameters), trained by GRPO on generated conversations of the demo world" in text
    assert "tested on its held-out split of the full world" in text
    (run / "config.yaml").write_text("policy: tiny\ndata: mine.jsonl\nevaluation: {data: other.jsonl}\n")
    assert "on mine.jsonl and tested on other.jsonl" in page_of(run).text
    (run / "config.yaml").write_text("data: [1\n")
    assert "a model of 774,400 parameters." in page_of(run).text


def test_the_foot_has_the_command_and_the_version(run: Path) -> None:
    text = page_of(run).text
    assert f"memalpha train {run}/config.yaml out={run}-again" in text
    assert "the run did not record its version" in text
    change(run / "summary.json", software={"version": "9.8", "commit": "abc<"})
    assert "The run was made by memalpha 9.8, commit abc<." in page_of(run).text


# ------------------------------------------------------------------------------------------------------------ the demo


def test_the_demo_says_where_the_page_is_and_what_to_try(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {}

    def train(config: str, **overrides: object) -> dict[str, object]:
        arguments.update(overrides, config=config)
        return json.loads((run / "summary.json").read_text())

    monkeypatch.setattr(memalpha, "train", train)
    demo(seed=7, out=run, policy="tiny")
    assert arguments == {"config": "demo", "seed": 7, "out": run, "policy": "tiny"}
    text = capsys.readouterr().out
    assert (run / "report.html").exists() and str(run / "report.html") in text
    assert "memalpha search ana.db" in text and "--seed 8" in text


def test_the_outcome_is_a_table_of_the_summary(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    lines = format_outcome(summary)
    [after] = [line for line in lines if line.startswith("after training")]
    assert after.split()[2:] == ["0.80", "0.80", "0.80", "0.03"]
    assert any(line.startswith("append only") for line in lines) and any(line.startswith("oracle") for line in lines)
    assert "200 conversations" in lines[0] and "1,431 questions" in lines[0]
