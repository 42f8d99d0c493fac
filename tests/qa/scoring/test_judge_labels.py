"""Agreement of judges with known labels, those that ship and those of a file."""

from __future__ import annotations

import pytest
from scripted_judge import Says, part

from memalpha.errors import DataError
from memalpha.qa.scoring.judge import BENCHMARKS, Judge, agreement, check_judge, load_labels, prompts_of


def test_agreement_of_known_cases():
    assert agreement([1, 1, 0, 0], [1, 1, 0, 0])["kappa"] == 1.0
    assert agreement([1, 1, 0, 0], [0, 0, 1, 1]) == {
        "items": 4,
        "unreadable": 0,
        "accuracy": 0.0,
        "kappa": -1.0,
        "leniency": 0.0,
    }
    # 45 both yes, 15 only the judge, 25 only the label, 15 both no: Cohen's kappa is 3/23.
    labels, scores = [1] * 45 + [0] * 15 + [1] * 25 + [0] * 15, [1] * 45 + [1] * 15 + [0] * 25 + [0] * 15
    result = agreement(labels, scores)
    assert result["accuracy"] == 0.6 and result["kappa"] == pytest.approx(3 / 23)
    assert result["leniency"] == pytest.approx(-0.1)
    graded = agreement([0, 0.5, 1, 1], [0.1, 0.6, 0.9, None])
    assert (graded["accuracy"], graded["unreadable"], graded["items"]) == (1.0, 1, 4)
    assert agreement([1], [None])["accuracy"] is None and agreement([1, 1], [1, 1])["kappa"] is None
    assert agreement([1, 0], [1, 1])["leniency"] == 0.5


def test_a_judge_is_checked_against_labels():
    labelled = load_labels()
    truth = {
        prompt_item.prompt: (entry.label, prompt_item) for entry in labelled for prompt_item in prompts_of(entry.item)
    }

    def perfect(prompt, nth):
        label, prompt_item = truth[prompt]
        if "partial" in prompt_item.verdicts:
            points = {"names the pond": label > 0, "names the deadline in May": label == 1}
            return "full" if points[part(prompt, "point")] else "none"
        if "fluent" in prompt_item.verdicts:
            return "fluent"
        if "1" in prompt_item.verdicts:
            matched = ("apartment", "employer", "buyer")
            return str(next(number for number, word in enumerate(matched, 1) if word in part(prompt, "line")))
        return next(word for word, worth in prompt_item.verdicts.items() if worth == label)

    result = check_judge(Judge([Says(perfect)]), labelled)
    assert (result["accuracy"], result["kappa"], result["disagreed"], result["leniency"]) == (1.0, 1.0, [], 0.0)
    assert set(result["by_benchmark"]) == {*BENCHMARKS, "writes"}
    kind = check_judge(Judge([Says(lambda prompt, nth: next(iter(truth[prompt][1].verdicts)))]), labelled)
    assert kind["by_benchmark"]["locomo"]["leniency"] > 0.5 and kind["kappa"] == pytest.approx(0.0, abs=0.01)
    assert {"locomo-vague-1", "locomo-vague-5"} <= {entry["id"] for entry in kind["disagreed"]}
    assert kind["by_judge"]["says"]["accuracy"] == kind["accuracy"]


def test_a_number_is_an_id_too(tmp_path):
    path = tmp_path / "labels.jsonl"
    path.write_text('{"question": "q", "prediction": "p", "label": 1, "id": 7}\n')
    assert [labelled.id for labelled in load_labels(path)] == ["7"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "not JSON"),
        ("[]", "a JSON object"),
        ('{"question": "q", "prediction": "p", "gold": ["a"]}', "label: Field required"),
        ('{"question": "q", "prediction": "p", "label": true}', "label: Input should be a valid number"),
        ('{"question": "q", "prediction": "p", "label": 2}', "label: Input should be less than or equal to 1"),
        ('{"question": "q", "label": 1}', "prediction: Field required"),
        ('{"question": "q", "prediction": "p", "gold": "a", "label": 1}', "gold: Input should be a valid array"),
        ('{"question": "q", "prediction": 3, "label": 1}', "prediction: Input should be a valid string"),
        (
            '{"question": "q", "prediction": "p", "benchmark": "x", "label": 1}',
            "benchmark: Input should be 'generic'",
        ),
        ('{"question": "q", "prediction": "p", "answers": [], "label": 1}', "answers: Extra inputs are not permitted"),
        ('{"chunk": "c", "label": 1}', "kind: Field required"),
        ('{"chunk": "c", "kind": "add", "label": 1}', "kind: Input should be 'insert', 'update'"),
    ],
)
def test_a_label_file_that_is_none(row, message, tmp_path):
    path = tmp_path / "labels.jsonl"
    path.write_text(f'\n{{"question": "q", "prediction": "p", "label": 0.5}}\n{row}\n')
    with pytest.raises(DataError, match=rf"labels\.jsonl:3: .*{message}"):
        load_labels(path)
    path.write_text("\n")
    with pytest.raises(DataError, match="holds no labelled item"):
        load_labels(path)
