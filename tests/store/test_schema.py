import pytest

from memalpha.errors import ConfigError, UnknownCategory
from memalpha.store.schema import LIFE, MEM_ALPHA, Category, MemorySchema, count_core_tokens, load_schema


def test_the_shipped_schemas() -> None:
    assert load_schema("mem-alpha") is MEM_ALPHA
    assert MEM_ALPHA.category_names == ("semantic", "episodic")
    assert len(load_schema("life").categories) == 9
    assert MEM_ALPHA.core
    assert LIFE.core
    assert MEM_ALPHA.core_limit == LIFE.core_limit == 512


def test_check_names_the_valid_categories() -> None:
    assert MEM_ALPHA.check_category("semantic") == "semantic"
    for wrong in ("values", "", None, 3):
        with pytest.raises(UnknownCategory, match="semantic, episodic"):
            MEM_ALPHA.check_category(wrong)


def test_own_yaml(tmp_path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("name: support\ncategories: {customer: Who it is.}\ncore: false\ncore_limit: 64\n")
    assert load_schema(path) == MemorySchema("support", (Category("customer", "Who it is."),), False, 64)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\ncategories: {a: b}\ncolour: red", "unknown key 'colour'"),
        ("name: x\ncategories: {}", "at least one category"),
        ("name: x\ncategories: {'a b': c}", "'a b' must start with a letter"),
        ("name: x\ncategories: [a]", "categories: a mapping"),
        ("categories: {a: b}", "name: a text is needed"),
        ("name: x\ncategories: {a: b}\ncore: 3", "core: true or false"),
        ("name: x\ncategories: {a: b}\ncore_limit: 0", "at least 1"),
        ("name: x\ncategories: {a: b}\ncore_limit: big", "core_limit: a whole number"),
        ("name: x\ncategories: {a: b}\nevents: [c]", "events: 'c' is no category"),
        ("name: x\ncategories: {a: b}\nevents: a", "events: a list of category names"),
        ("- a", "must hold a mapping"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_bad_schema_is_refused(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_schema(str(path))
    assert "bad.yaml" in str(caught.value) or "'x'" in str(caught.value)


def test_no_such_schema(tmp_path) -> None:
    with pytest.raises(ConfigError, match="mem-alpha, life"):
        load_schema("nine")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_schema(tmp_path / "none.yaml")


def test_json_round_trip_and_fit() -> None:
    assert MemorySchema.from_json(LIFE.to_json()) == LIFE
    described = MemorySchema("mem-alpha", (Category("semantic", "x"), Category("episodic", "y")))
    assert described.is_compatible_with(MEM_ALPHA)
    assert not LIFE.is_compatible_with(MEM_ALPHA)
    assert not MemorySchema("mem-alpha", MEM_ALPHA.categories, core_limit=100).is_compatible_with(MEM_ALPHA)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("Ana lives in Porto.", 5), ("東京に住む", 5), ("a" * 16, 1), ("a" * 17, 2), ("!" * 17, 2), ("a,b", 3)],
)
def test_core_tokens(text: str, tokens: int) -> None:
    assert count_core_tokens(text) == tokens
