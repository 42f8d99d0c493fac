"""Studies: variants over seeds, what is refused before anything starts, and the tables of finished runs."""

from __future__ import annotations

import json

import pytest

from memalpha.errors import ConfigError, TrainingError
from memalpha.qa.report import Record
from memalpha.train.study import collect_results, format_results, load_study, run_study


def study_file(path, **changes):
    variants = {"plain": {"sampling.groups": "conversation"}, "chunk": {}}
    fields = {"out": str(path / "study"), "base": "demo", "seeds": [0, 1], "variants": variants}
    file = path / "study.yaml"
    file.write_text(json.dumps(fields | changes), encoding="utf-8")  # JSON is YAML
    return file


def finished_run(folder, correct, tokens, validation, counted="sampled_tokens"):
    """Write what a finished run leaves: its answers on four conversations, and three steps of metrics."""
    (folder / "eval").mkdir(parents=True)
    records = [
        Record(
            task=f"t{task}", rollout=0, question_id=f"q{n}", ability="one", kind=None, question="?", answer="a",
            gold=("a",), score=float((task + n) % 10 < correct), correct=(task + n) % 10 < correct, stale=False,
            conflict=False, abstained=False, truncated=False,
        )
        for task in range(4)
        for n in range(10)
    ]  # fmt: skip
    (folder / "eval" / "after.jsonl").write_text("".join(json.dumps(record.as_json()) + "\n" for record in records))
    lines = [
        {"step": step, "tokens": 1, counted: tokens, "validation_accuracy": value}
        for step, value in enumerate(validation)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = {
        "before": {"accuracy": 0.1},
        "after": {"accuracy": correct / 10, "update_hit": 0.5, "delete_hit": None},
        "start_validation": {"validation_accuracy": 0.0},
        "software": {},
    }
    (folder / "summary.json").write_text(json.dumps(summary))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": {"plain": {}, "typo": {"sampling.grups": "chunk"}}}, r"variant typo: .*sampling.grups.*groups"),
        ({"variants": {"plain": {}}}, "variants"),
        ({"variants": {"plain": {}, "../up": {}}}, "'../up' names a folder"),
        ({"variants": {"chunk": {}, "same": {"sampling.groups": "chunk"}}}, "chunk and same have equal settings"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [0, 0]}, "a seed is named twice"),
        ({"base": "no-such"}, "no-such"),
        ({"settings": {"seed": 5}}, "variant plain: seed: the study gives each run its own"),
        ({"variants": {"plain": {}, "moved": {"out": "x"}}}, "variant moved: out: the study gives"),
        ({"base": "reward", "variants": {"a": {"data": "x"}, "b": {"data": "y"}}}, "variant a: .*no questions"),
        ({"base": "sft", "settings": {"evaluate": False}, "variants": {"a": {}, "b": {"tasks": 9}}}, "no questions"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_run_starts(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        load_study(study_file(tmp_path, **changes))
    assert not (tmp_path / "study").exists()


def test_the_tables_compare_equal_questions_and_equal_tokens(tmp_path):
    study = load_study(study_file(tmp_path))
    for seed in (0, 1):
        finished_run(study.run("plain", seed), 4, 100, [0.2, None, 0.4])
        finished_run(study.run("chunk", seed), 6 + seed, 200, [0.3, 0.5, 0.7], "tokens")  # as of a supervised run
    results = collect_results(study)
    plain, chunk = results["variants"]["plain"], results["variants"]["chunk"]
    assert results["before"] == 0.1 and results["conversations"] == 4 and results["questions"] == 40
    assert plain["mean"][0] == pytest.approx(0.4) and chunk["mean"][0] == pytest.approx(0.65)
    assert chunk["against"][0] == pytest.approx(0.25) and plain["against"] is None
    assert plain["sampled_tokens"] == [300, 300] and chunk["sampled_tokens"] == [600, 600]
    assert results["budgets"] == [75, 150, 225, 300], "tokens that both reached"
    # Between validations at 0, 100 and 300 tokens: 0.0, 0.2 and 0.4; at 0, 200, 400 and 600: 0.0, 0.3, 0.5 and 0.7.
    assert [value for value, _ in plain["curve"]] == pytest.approx([0.15, 0.25, 0.325, 0.4])
    assert [value for value, _ in chunk["curve"]] == pytest.approx([0.1125, 0.225, 0.325, 0.4])
    assert set(plain["figures"]) == {"update_hit"}, "a figure that a run does not have is left out"
    page = format_results(results)
    assert "| chunk | 0.650 [" in page and "| chunk | the base's | 0.600, 0.700 |" in page
    assert "`sampling.groups=conversation` | 0.400, 0.400" in page
    assert "| 600 |" in page and "| variant | 75 | 150 | 225 | 300 |" in page  # tokens, however few


def test_finished_runs_are_not_started_again_and_others_settings_are_refused(tmp_path):
    study = load_study(study_file(tmp_path))
    for variant in study.variants:
        for seed in study.seeds:
            finished_run(study.run(variant, seed), 5, 100, [0.2])
            settings = {"base": "demo", **study.overrides(variant, seed)}
            (study.out / f"{variant}-{seed}.json").write_text(json.dumps(settings))
    lines: list[str] = []
    run_study(study, lines.append)
    assert not lines and (study.out / "study.md").exists()
    changed = load_study(study_file(tmp_path, settings={"reward.calls": 0.2}))
    with pytest.raises(TrainingError, match=r"4 of 4 runs failed.*plain-0 was made with other settings"):
        run_study(changed, lines.append)


def test_a_run_that_fails_is_named_with_its_log(tmp_path):
    settings = {"data": str(tmp_path / "nothing.jsonl")}
    study = load_study(study_file(tmp_path, seeds=[0], settings=settings))
    finished_run(study.run("chunk", 0), 5, 100, [0.2])
    (study.out / "chunk-0.json").write_text(json.dumps({"base": "demo", **study.overrides("chunk", 0)}))
    with pytest.raises(TrainingError, match=r"1 of 2 runs failed.*: plain-0 ended with 2 \(.*log"):
        run_study(study, print)
