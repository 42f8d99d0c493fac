"""Training rows of the SmolLM2 writer: seeded, gold lines parse and apply, held-out phrasings stay out."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from make_smol_rows import FOCUS_PARTS, FOCUS_SHARES, SHARES, is_hard, main, make_rows, token_counter
from smol.dates import draw_past, draw_planned
from smol.kinds import load_kinds, load_phrasings, load_pools
from smol.passages import Passage, gold_sentence, load_passages, passage_rows
from smol.rows import SmolRow
from smol.worlds import DEMO_WORLD, PHRASES, held_out_tasks, select_phrases

from memalpha.agent.forms import parse_lines
from memalpha.errors import DataError
from memalpha.tasks.load import load_tasks
from memalpha.tasks.synthetic.worlds import generate
from memalpha.types import SpeakerTurn

ROWS = 400


@pytest.fixture(scope="module")
def rows() -> list[SmolRow]:
    return make_rows(ROWS, 3, None, token_counter(None))[0]


def test_equal_seeds_give_equal_rows_in_the_declared_mixture(rows: list[SmolRow]) -> None:
    first, again, other = (make_rows(50, seed, None, token_counter(None))[0] for seed in (3, 3, 4))
    assert first == again != other
    counts = Counter(row.part for row in rows)
    total = sum(share for part, share in SHARES.items() if part != "passages")
    for part in counts:
        assert counts[part] == round(ROWS * SHARES[part] / total)
        assert 10 < len({row.prompt for row in rows if row.part == part}) == counts[part]
    assert {row.part for row in rows[:60]} == set(counts)


def test_focus_takes_hard_rows_in_its_own_shares() -> None:
    rows, _ = make_rows(120, 3, None, token_counter(None), focus=True)
    counts = Counter(row.part for row in rows)
    total = sum(share for part, share in FOCUS_SHARES.items() if part != "passages")
    assert counts == {part: round(120 * share / total) for part, share in FOCUS_SHARES.items() if part != "passages"}
    writers = [row for row in rows if row.part in FOCUS_PARTS and row.kind == "writer"]
    assert 0.74 < sum(map(is_hard, writers)) / len(writers) < 0.9
    view = "memory\na#1 a: b\nc#1 c: d\ne#1 e: f\ng#1 g: h\nchunk 2024-01-01\nuser: Hi."
    row = SmolRow("demo", "writer", view, "~a#1 a: z")
    assert is_hard(row) and not is_hard(replace(row, prompt=view.replace("g#1 g: h\n", "")))
    assert not is_hard(replace(row, completion="+semantic a: z"))
    assert is_hard(SmolRow("demo", "writer", "memory\nchunk 2024-01-01\nuser: Hi.", "\n".join(["+semantic a: b"] * 4)))


def test_gold_lines_parse_and_name_entries_of_the_view(rows: list[SmolRow]) -> None:
    names: Counter[str] = Counter()
    for row in rows:
        if row.kind == "reader":
            assert row.prompt.startswith("facts\n") and row.completion == row.completion.strip() != ""
            continue
        view = row.prompt.partition("\nchunk")[0].splitlines()[1:]
        contents = {line.split(" ")[0]: line.partition(" ")[2] for line in view}
        assert len(view) <= 20
        for call in parse_lines(row.completion):
            assert call.error is None, row.completion
            names[call.name] += 1
            if "id" in call.arguments:
                assert call.arguments["id"] in contents, row
                assert call.arguments.get("content") != contents[call.arguments["id"]]
            elif "content" in call.arguments:
                assert call.arguments["category"] in ("semantic", "episodic")
    assert set(names) == {"memory_insert", "memory_update", "memory_delete", "memory_skip"}


def test_held_out_phrasings_are_in_no_row(rows: list[SmolRow]) -> None:
    text = "\n".join(row.prompt for row in rows if row.part == "paraphrase")
    assert set(load_phrasings()) >= {f"{kind}.{key}" for kind, table in PHRASES.items() for key in table}
    for kind, table in PHRASES.items():
        for key, phrases in table.items():
            training, held_out = select_phrases(kind, key, "train"), select_phrases(kind, key, "held-out")
            assert len(held_out) == len(phrases) // 4 and not set(training) & set(held_out)
            for phrase in held_out:
                fixed = max((part.split("}")[-1] for part in phrase.split("{")), key=len)
                assert len(fixed) < 18 or fixed not in text, phrase


def test_reward_tasks_are_training_tasks_half_of_them_in_other_words(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    assert main(["--tasks", str(path), "--count", "6"]) == 0
    tasks = load_tasks(str(path))
    plain = [generate(DEMO_WORLD, 40_000, index) for index in range(6)]
    assert [task.chunks == other.chunks for task, other in zip(tasks, plain, strict=True)] == [True, False] * 3
    assert [task.questions for task in tasks] == [task.questions for task in plain]


def test_held_out_tasks_load_and_hold_their_gold(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    assert main(["--held-out", str(path), "--count", "5"]) == 0
    tasks = load_tasks(str(path))
    assert [task.id for task in tasks] == [task.id for task in held_out_tasks(5)]
    for task in tasks:
        turns = {turn.id: turn.text for chunk in task.chunks for turn in chunk.turns}
        for operation in task.gold_operations:
            if operation.content:
                assert operation.content.partition(": ")[2] in turns[operation.turn or ""]
        assert task.questions


def test_relative_times_are_resolved_by_the_calendar() -> None:
    rng, day = Random(0), date(2024, 1, 3)  # a Wednesday
    past = {words: stored for words, stored, _ in (draw_past(rng, day) for _ in range(400))}
    assert past["yesterday"] == "on 2024-01-02" and past["last Friday"] == "on 2023-12-29"
    assert past["last month"] == "in December 2023" and past["last year"] == "in 2023"
    planned = {words: stored for words, stored, _ in (draw_planned(rng, day) for _ in range(400))}
    assert planned["tomorrow"] == "on 2024-01-04" and planned["this Friday"] == "on 2024-01-05"
    assert planned["next month"] == "in February 2024"


def test_kinds_of_facts_name_pools_and_values() -> None:
    kinds = load_kinds()
    assert len(kinds) >= 60
    for kind in kinds:
        assert kind.says and set(kind.pools) <= set(load_pools())
        for _, answer in kind.asks:
            assert answer.strip("{}") in kind.pools, kind.key


def test_missing_passages_are_named_and_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match=r"xquad.en.json: missing; .*--without-passages"):
        load_passages(tmp_path)
    out = tmp_path / "rows.jsonl"
    assert main(["--out", str(out), "--count", "40", "--data", str(tmp_path)]) == 2
    assert main(["--out", str(out), "--count", "40", "--without-passages"]) == 0
    values = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert all(set(value) == {"prompt", "completion"} for value in values)
    assert "| dialogue |" in capsys.readouterr().out


def test_gold_sentence_keeps_the_answer_and_drops_what_follows() -> None:
    text = "The tower (built 1889) is 330 metres tall, while the hill beside it is only a little lower."
    turns = (SpeakerTurn(speaker="Tower", text=text), SpeakerTurn(speaker="Tower", text="It is grey."))
    passage = Passage(turns, (("How tall is the tower?", "330 metres", 0),))
    assert gold_sentence(passage, 0) == "Tower: The tower is 330 metres tall."
    assert gold_sentence(passage, 1) is None
    rows = [row for index in range(30) for row in passage_rows([passage], 0, index) if row.kind == "writer"]
    assert {row.completion for row in rows} <= {"+semantic Tower: The tower is 330 metres tall."} and rows
