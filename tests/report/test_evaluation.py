"""The page's part on an evaluation: figures and losses from records, every failure to open, anchors that lead there."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from test_page import page_of

from memalpha.config import EvalConfig, parse_overrides
from memalpha.errors import DataError
from memalpha.qa.report import Record, save_records
from memalpha.report.charts import Bar, stacked_bars
from memalpha.report.evaluation import CLASS_LABELS, MAX_FAILURES, RIGHT
from memalpha.report.page import write_report


def record(number: int, loss: str | None = None, *, ability: str = "temporal", **more: object) -> Record:
    right = loss is None
    asked = f"Question <{number}>?"
    base = Record(f"t{number % 3}", 0, f"q{number}", ability, None, asked, "a & b", ("Oslo",), right, right)
    fields = base.as_json() | {"system": "rag:chunks", "loss": loss, "ceiling": True, "tokens": 100} | more
    return Record.from_json(fields)


def save(folder: Path, name: str, records: list[Record]) -> None:
    (folder / "eval").mkdir(parents=True, exist_ok=True)
    save_records(records, folder / "eval" / f"{name}.jsonl")


@pytest.fixture
def evaluated(tmp_path: Path) -> Path:
    """Two systems: one lost an answer in each class, the other most of its answers in one."""
    folder = tmp_path / "suite"
    losses = [loss for loss in CLASS_LABELS if loss not in (RIGHT, "not_found", "partly_retrieved")]
    save(folder, "rag-chunks", [record(n, loss) for n, loss in enumerate(losses)] + [record(n) for n in range(7, 10)])
    fields = {"system": "writer", "feedback": "Question: x\nLost: <there>."}
    many = [record(n, "not_retrieved", **fields) for n in range(MAX_FAILURES + 5)]
    save(folder, "writer", [*many, record(99, system="writer", ability="extraction")])
    return folder


def test_an_evaluation_without_training_has_a_page(evaluated: Path) -> None:
    page = page_of(evaluated)
    assert "suite: rag:chunks, writer" in page.text and "not finished" not in page.text
    assert not page.tags & {"script", "link", "img", "iframe"}
    assert "rag:chunks" in page.text  # the system's name, not the file's
    assert page.text.index("rag:chunks (10)") < page.text.index("writer (46)")  # the better one first
    assert "10 questions of 3 conversations" in page.text


def test_figures_and_waterfall_are_those_of_the_records(evaluated: Path) -> None:
    text = (write_report(evaluated)).read_text(encoding="utf-8")
    row = re.search(r'<th scope="row">all</th>(.*?)</tr>', text)
    assert row is not None
    cells = re.findall(r'<td class="n">(.*?)</td>', row[1])
    # n, written, kept, retrieved, answered; the ceiling, of how many, and what was answered of those; then a count for
    # each class, which leads to its failures
    assert cells[:8] == ["10", "0.700", "0.600", "0.500", "0.300", "1.000", "10", "0.300"]
    assert [re.sub("<.*?>", "", cell) for cell in cells[8:]] == ["1"] * 7
    bars = dict(re.findall(r"<title>(rag:chunks \(10\), [^:]+): ([\d.%]+)</title>", text))
    assert bars["rag:chunks (10), answered right"] == "30.0%"
    assert bars["rag:chunks (10), ceiling"] == "100.0%"
    assert len(bars) == 9


def test_a_ceiling_of_some_questions_is_no_line_on_all_of_them(tmp_path: Path) -> None:
    save(tmp_path, "rag", [record(1), record(2, "not_retrieved"), record(3, ability="abstention", ceiling=None)])
    text = write_report(tmp_path).read_text(encoding="utf-8")
    bars = dict(re.findall(r"<title>([^<:]*\(\d\), ceiling): ([\d.%]+)</title>", text))
    assert bars == {"temporal (2), ceiling": "100.0%"}, "none for all three, of which two name evidence"
    row = re.search(r'<th scope="row">all</th>(.*?)</tr>', text)
    assert row is not None and re.findall(r'"n">(.*?)</td>', row[1])[4:8] == ["0.667", "1.000", "2", "0.500"]


def test_answers_without_a_verdict_are_told(tmp_path: Path) -> None:
    save(tmp_path, "rag", [record(1), record(2)])
    (tmp_path / "eval" / "rag.unjudged.json").write_text('[{"task": "t"}]', encoding="utf-8")
    assert "Rag:chunks: no judge gave a readable verdict on 1 of 3 answers" in page_of(tmp_path).text


def test_the_page_leads_with_set_up_ceiling_and_warnings(tmp_path: Path) -> None:
    for name, loss in (("rag", None), ("empty", "never_written")):
        records = [record(n, loss, system=name) for n in range(4)]
        save(tmp_path, name, [*records, record(4, gold=(), system=name, ceiling=None)])
        summary = {"reader": "copy <(floor)>", "metric": "exact", "ceiling": 0.25, "accuracy": 1.0}
        (tmp_path / "eval" / f"{name}.json").write_text(json.dumps(summary), encoding="utf-8")
    source = {"config": {"benchmark": "tasks", "data": "/data/mine.jsonl"}, "note": "taken by default: metric=f1"}
    (tmp_path / "eval" / "summary.json").write_text(json.dumps(source), encoding="utf-8")
    text = page_of(tmp_path).text
    lead = (
        "The reader copy <(floor)> answered 5 questions of 3 conversations, scored by exact; shown the evidence itself"
    )
    heads = ("Taken by default", "Shown the evidence", "Systems on the same questions")
    order = ("mine.jsonl: rag", lead, "25.0%", *heads)
    assert sorted(order, key=text.index) == list(order)
    assert "empty memory: 0.200" in text and "answerable: 1.000" in text and "empty (5)" not in text
    assert "…" not in text and "No intervals" in text
    for name in ("rag", "empty"):
        save(tmp_path, name, [record(n, task=f"t{n}", system=name) for n in range(10)])
    assert "1.000 … 1.000" in page_of(tmp_path).text


def test_every_link_leads_somewhere_and_every_failure_opens(evaluated: Path) -> None:
    text = write_report(evaluated).read_text(encoding="utf-8")
    ids = re.findall(r'id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    links = re.findall(r'href="#([^"]+)"', text)
    assert len(links) == 8 and set(links) <= set(ids)
    assert text.count("✗") == 7 + MAX_FAILURES
    assert "… and 5 more in eval/writer.jsonl." in text
    assert "Question &lt;0&gt;?" in text and "a &amp; b" in text and "Lost: &lt;there&gt;." in text


def test_a_training_run_whose_losses_are_known_shows_them(run: Path) -> None:
    before = page_of(run).text
    assert "where the answers were lost" not in before
    save(run, "after", [record(1, "never_written", system=""), record(2, system="")])
    page = page_of(run).text
    assert "marks the ceiling" in page
    save(run, "after", [record(1, "never_written", system="", ceiling=None), record(2, system="", ceiling=None)])
    page = page_of(run).text
    assert "marks the ceiling" not in page
    assert "80%\u00a0±\u00a03 after" in page and "where the answers were lost" in page and "after training (2)" in page


def test_records_without_losses_make_no_page(tmp_path: Path) -> None:
    save(tmp_path, "old", [replace(record(1, "never_written"), error_class=None), record(2)])
    with pytest.raises(DataError, match="whose wrong answers were classified"):
        write_report(tmp_path)


def test_bars_fill_their_width() -> None:
    svg = stacked_bars([Bar("x <y>", (("loss-right", "right", 0.75), ("loss-not_found", "lost", 0.25)), line=0.9)])
    widths = [float(width) for width in re.findall(r'class="part [^"]+"[^>]* width="([\d.]+)"', svg)]
    assert widths == pytest.approx([258.0, 86.0])
    assert "x &lt;y&gt;" in svg and "ceiling: 90.0%" in svg


def test_the_foot_has_the_command_of_an_evaluation(evaluated: Path) -> None:
    settings = {"benchmark": "synthetic", "systems": ("rag", "tiny"), "seeds": (1,), "reader": {"k": 3}, "out": "x"}
    config = EvalConfig.model_validate(settings)
    provenance = {"config": config.model_dump(mode="json"), "versions": {"memalpha": "9.8"}}
    (evaluated / "eval" / "summary.json").write_text(json.dumps(provenance), encoding="utf-8")
    text = page_of(evaluated).text
    command = next(line for line in text.splitlines() if "memalpha eval" in line)
    words = shlex.split(command[command.index("memalpha eval") :].split("The run was made")[0])
    assert words[:3] == ["memalpha", "eval", "synthetic"] and words[-1] == f"out={evaluated}-again"
    again = EvalConfig.model_validate({"benchmark": "synthetic", **parse_overrides(words[3:-1]), "out": "x"})
    assert again == config
    assert "The run was made by memalpha 9.8." in text
