"""Evaluations side by side: what is paired, what is refused, the figures, the formats."""

import csv
import io
import json
import random
from dataclasses import asdict

import pytest
from typer.testing import CliRunner

from memalpha.cli.main import app
from memalpha.errors import DataError
from memalpha.qa import compare as comparing
from memalpha.qa.report import Record, save_records
from memalpha.qa.scoring.stats import ScoredAnswer, compare_paired, estimate


def record(task, number, correct, *, score=None, ability="extraction", text="Where?"):
    value = float(correct) if score is None else score
    return Record(task, 0, f"q{number}", ability, None, text, "x", ("Oslo",), value, correct)


def records(rate, seed, conversations=6, questions=8):
    rng = random.Random(seed)
    return [
        record(f"t{task}", number, rng.random() < rate, ability=("extraction", "temporal")[number % 2])
        for task in range(conversations)
        for number in range(questions)
    ]


LOW, HIGH = records(0.3, 1), records(0.8, 2)


def systems(**runs):
    return [comparing.ComparedSystem(name, (tuple(comparison),)) for name, comparison in runs.items()]


def write(folder, comparison, name="system"):
    (folder / "eval").mkdir(parents=True, exist_ok=True)
    save_records(comparison, folder / "eval" / f"{name}.jsonl")
    return str(folder)


def test_figures_are_those_of_stats():
    comparison = comparing.compare(systems(low=LOW, high=HIGH), resamples=500)
    rows = {
        name: [ScoredAnswer(item.task, item.ability, float(item.correct)) for item in of]
        for name, of in (("low", LOW), ("high", HIGH))
    }
    lines = {(line.system, line.ability): line for line in comparison.lines}
    assert list(lines) == [(s, a) for s in ("low", "high") for a in ("all", "macro", "extraction", "temporal")]
    assert lines["low", "all"].mean == estimate(rows["low"], resamples=500)
    assert lines["high", "macro"].mean == estimate(rows["high"], macro=True, resamples=500)
    assert lines["high", "all"].against == compare_paired(rows["low"], rows["high"], resamples=500)
    assert lines["low", "all"].against is lines["high", "macro"].against is None
    temporal = [[row for row in rows[name] if row.group == "temporal"] for name in ("low", "high")]
    assert lines["high", "temporal"].against == compare_paired(*temporal, resamples=500)
    assert (comparison.questions, comparison.conversations, comparison.baseline) == (48, 6, "low")


def test_the_baseline_goes_first():
    comparison = comparing.compare(systems(a=LOW, b=HIGH, c=LOW), baseline="b", resamples=100)
    assert [line.system for line in comparison.lines[::4]] == ["b", "a", "c"]
    all_of_a = next(line for line in comparison.lines if (line.system, line.ability) == ("a", "all"))
    assert all_of_a.against.difference.value < 0
    with pytest.raises(DataError, match="'d' is none of a, b"):
        comparing.compare(systems(a=LOW, b=HIGH), baseline="d")
    with pytest.raises(DataError, match="two systems"):
        comparing.compare(systems(a=LOW))
    with pytest.raises(DataError, match="no question in common"):
        comparing.compare(systems(a=LOW, b=[record("z", 0, True)]), common=True)


def test_score_or_correct():
    half = [record("t0", 0, True, score=0.5), record("t1", 0, False, score=0.4)]
    all_pairs = [record("t0", 0, True, score=1.0), record("t1", 0, True, score=0.9)]
    by_score = comparing.compare(systems(a=half, b=all_pairs), resamples=50)
    by_right = comparing.compare(systems(a=half, b=all_pairs), value="correct", resamples=50)
    assert [comparison.lines[0].mean.value for comparison in (by_score, by_right)] == [0.45, 0.5]
    for comparison in (by_score, by_right):  # McNemar is over right and wrong whatever is averaged
        pair = next(line.against for line in comparison.lines if line.against)
        assert (pair.only_first, pair.only_second, pair.mcnemar) == (0, 1, 1.0)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (HIGH[1:], "1 only of the first, 0 only of the second, such as 'q0' of task 't0'"),
        ([*HIGH, record("t9", 0, True)], "0 only of the first, 1 only of the second, such as 'q0' of task 't9'"),
        ([record("t0", 0, True, text="Who?"), *HIGH[1:]], "1 only of the first, 1 only of the second"),
    ],
)
def test_other_questions_are_refused(other, message):
    with pytest.raises(DataError, match=message):
        comparing.compare(systems(a=LOW, b=other))
    comparison = comparing.compare(systems(a=LOW, b=other), common=True, resamples=50)
    assert comparison.questions == (47 if len(other) < 49 else 48)
    assert sum(comparison.left_out.values()) == abs(len(other) - 48) + 2 * (len(other) == 48)


def test_seeds_are_averaged_by_question_and_their_spread_is_told(tmp_path):
    # A seed's one system may have another name: that of its checkpoint.
    names = [write(tmp_path / f"a{seed}", records(0.5, seed), f"checkpoint {seed}") for seed in range(3)]
    entry, many = comparing.load_systems([names[0], ",".join(names)])
    assert [len(run) for run in many.runs] == [48, 48, 48]
    comparison = comparing.compare([entry, many], resamples=200)
    means = [sum(item.correct for item in records(0.5, seed)) / 48 for seed in range(3)]
    assert comparison.seeds[many.name]["values"] == means
    assert comparison.lines[4].mean.value == pytest.approx(sum(means) / 3)
    assert comparison.lines[4].mean.n == 48
    assert comparison.lines[4].against.mcnemar is None  # a question is not right or wrong over three runs
    assert f"{many.name}: 3 runs, mean" in comparing.as_text(comparison)


def test_what_was_not_evaluated_alike_is_told(tmp_path):
    entry, two, three = (write(tmp_path / name, some) for name, some in (("a", LOW), ("b", HIGH), ("c", HIGH)))
    for name, metric in (("a", "exact"), ("b", "f1")):
        summary = {"reader": "copy (floor)", "metric": metric, "budget": 2048}
        (tmp_path / name / "eval" / "system.json").write_text(json.dumps(summary))
    comparison = comparing.compare(comparing.load_systems([entry, two, three]), resamples=50)
    assert comparison.differ == {"metric": {entry: "exact", two: "f1"}}
    assert f"NOT EVALUATED ALIKE, metric: {entry}: exact; {two}: f1." in comparing.as_text(comparison)
    assert comparing.compare(comparing.load_systems([entry, three]), resamples=50).differ == {}, (
        "what is not known is no difference"
    )
    assert comparing.load_systems([f"{entry},,{two}"])[0].setup["metric"] == "exact or f1"
    (tmp_path / "b" / "eval" / "system.json").write_text("{")
    with pytest.raises(DataError, match=r"system\.json: not JSON"):
        comparing.load_systems([two])


def test_a_run_of_several_systems(tmp_path):
    run = tmp_path / "run"
    write(run, LOW, "before")
    write(run, HIGH, "after")
    (run / "eval" / "example.json").write_text("{}")
    assert list(comparing.load_run(run)) == ["after", "before"]
    assert comparing.load_run(run) == comparing.load_run(run / "eval")
    assert list(comparing.load_run(run / "eval" / "after.jsonl")) == ["after"]
    assert [system.name for system in comparing.load_systems([str(run)])] == ["after", "before"]
    two = write(tmp_path / "two", LOW)
    assert [system.name for system in comparing.load_systems([str(run), two])] == [f"{run}:after", f"{run}:before", two]
    with pytest.raises(DataError, match="evaluated system, not after, before"):
        comparing.load_systems([f"{run},{two}"])
    with pytest.raises(DataError, match="the first seed only system"):
        comparing.load_systems([f"{two},{run}"])
    for again in ([two, two], [two, f"{two}/"], [f"{two},{two}"]):
        with pytest.raises(DataError, match="named twice"):
            comparing.load_systems(again)


def test_records_come_back_as_they_were(tmp_path):
    path = tmp_path / "a.jsonl"
    fields = {"retrieved": ("e1",), "written": True, "live": False, "stale": True, "conflict": True, "system": "rag"}
    fields |= {"abstained": True, "tokens": 17, "evidence_recall": 0.5, "support_retrieved": True, "ceiling": False}
    fields |= {"error_class": "not_retrieved", "scores": {"f1": 0.5}}
    full = [*LOW, Record("t", 1, "q", "x", "updated", "?", "half \ud800 a pair", (), 0.5, False, **fields)]
    save_records(full, path)
    assert comparing.load_records(path) == full


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a.jsonl:1: not JSON"),
        ("[]", "a.jsonl:1: not a record"),
        ('{"task": "t", "gold": []}', "a.jsonl:1: not a record .* 'question_id'"),
        (json.dumps(LOW[0].as_json() | {"score": "high"}), "'score' is a number"),
        (json.dumps(LOW[0].as_json() | {"colour": 1}), "unexpected keyword argument 'colour'"),
    ],
)
def test_a_bad_record_is_named(tmp_path, text, message):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(DataError, match=message):
        comparing.load_run(tmp_path)


def test_a_file_without_records_is_no_system(tmp_path):
    path = write(tmp_path, [], "none")
    write(tmp_path, LOW, "low")
    assert comparing.load_records(tmp_path / "eval" / "none.jsonl") == []
    assert list(comparing.load_run(tmp_path)) == ["low"]
    (tmp_path / "eval" / "low.jsonl").unlink()
    with pytest.raises(DataError, match="no records"):
        comparing.load_systems([path])


def test_formats():
    comparison = comparing.compare(systems(low=LOW, high=HIGH), resamples=200)
    rows = list(csv.reader(io.StringIO(comparing.as_csv(comparison))))
    assert tuple(rows[0]) == comparing.COLUMNS
    assert len(rows) == 9
    assert float(rows[5][4]) == comparison.lines[4].mean.value
    assert rows[1][7:] == [""] * 7
    markdown = comparing.as_markdown(comparison).splitlines()
    assert markdown[0].startswith("| system | ability | n | score | 95 % | against low |")
    assert {line.count("|") for line in markdown[:10]} == {10}
    assert "48 questions of 6 conversations; differences are against low." in markdown
    assert "BCa bootstrap over conversations" in comparing.as_text(comparison)
    assert [rows[5][column] for column in (5, 6, 8, 9, 10)] == [""] * 5, "six conversations say too little"
    few = "No intervals and no bootstrap p below 10 conversations, which say too little; McNemar's p takes questions of"
    assert rows[5][13] and few in comparing.as_text(comparison)  # of McNemar's there is a p
    many = comparing.compare(systems(low=records(0.3, 1, 12), high=records(0.8, 2, 12)), resamples=200)
    row = next(csv.DictReader(line for line in comparing.as_csv(many).splitlines() if not line.startswith("low,")))
    assert float(row["low"]) < float(row["mean"]) < float(row["high"]) and float(row["p"]) < 0.05
    assert "No intervals" not in comparing.as_text(many)
    assert json.loads(json.dumps(asdict(comparison)))["lines"][4]["against"]["p"] < 0.05


def test_the_command(tmp_path):
    low, high = write(tmp_path / "low", LOW), write(tmp_path / "high", HIGH)
    runner = CliRunner()
    done = runner.invoke(app, ["compare", low, high, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["baseline"] == low
    for name in ("x.md", "x.csv", "x.json"):
        done = runner.invoke(app, ["compare", low, high, "--out", str(tmp_path / name), "--value", "correct"])
        assert done.exit_code == 0, done.output
        assert "temporal" in done.stdout
        assert "temporal" in (tmp_path / name).read_text(encoding="utf-8")
    for arguments, message in (
        ([low, str(tmp_path / "nothing")], "no records"),
        ([low, high, "--out", "x.txt"], "write .json, .csv or .md"),
        ([low], "two systems"),
    ):
        with pytest.raises(DataError, match=message):
            runner.invoke(app, ["compare", *arguments], catch_exceptions=False)


def test_the_command_keeps_the_systems_that_are_named(tmp_path):
    single = write(tmp_path / "single", LOW)
    for run, records in (("a", LOW), ("b", HIGH)):
        for system in ("after", "oracle"):
            write(tmp_path / run, records, name=system)
    runs = [single, str(tmp_path / "a"), str(tmp_path / "b")]
    done = CliRunner().invoke(app, ["compare", *runs, "--system", "after", "--json"])
    assert done.exit_code == 0, done.output
    named = {single, f"{runs[1]}:after", f"{runs[2]}:after"}
    assert {line["system"] for line in json.loads(done.stdout)["lines"]} == named
    done = CliRunner().invoke(app, ["compare", runs[1], "--baseline", "oracle", "--system", "after", "--json"])
    assert {line["system"] for line in json.loads(done.stdout)["lines"]} == {"after", "oracle"}
    write(tmp_path / "begun", LOW, name="before")
    write(tmp_path / "begun", LOW, name="oracle")
    with pytest.raises(DataError, match=r"--system after: .*only .*begun:before, .*begun:oracle: .* leave the run out"):
        CliRunner().invoke(
            app, ["compare", *runs, str(tmp_path / "begun"), "--system", "after"], catch_exceptions=False
        )
    with pytest.raises(DataError, match=r"--system befor: there are .*:after"):
        CliRunner().invoke(app, ["compare", *runs, "--system", "befor"], catch_exceptions=False)
