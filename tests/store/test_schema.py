import pytest

from memalpha.errors import ConfigError, UnknownCategory
from memalpha.store.schema import MEM_ALPHA, load_schema


def test_check_names_the_valid_categories() -> None:
    assert MEM_ALPHA.check_category("semantic") == "semantic"
    for wrong in ("values", "", None, 3):
        with pytest.raises(UnknownCategory, match="semantic, episodic"):
            MEM_ALPHA.check_category(wrong)


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
        ("name: x\ncategories: {a: b, a: c}", "the key 'a' occurs twice"),
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
