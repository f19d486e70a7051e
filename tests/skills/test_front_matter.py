"""The front matter of skills is parsed as YAML 1.2 core, and hostile text is refused within limits."""

import sys
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dovetail.skills.front_matter import (
    FrontMatterError,
    check_fields,
    is_same_json,
    parse_front_matter,
    write_front_matter,
)


def parse(head: str) -> dict[str, Any]:
    return parse_front_matter(f"---\n{head}\n---\n\nBody.\n".encode())


@pytest.fixture(params=["C", "Python"], autouse=True)
def _loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "C":
        if not hasattr(yaml, "CSafeLoader"):
            pytest.skip("PyYAML has no C extension here")
    else:
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2024-01-01", "2024-01-01"),
        ("2024-01-01T10:00:00Z", "2024-01-01T10:00:00Z"),
        ("yes", "yes"),
        ("on", "on"),
        ("NO", "NO"),
        ("true", True),
        ("False", False),
        ("TRUE", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("012", 12),
        ("0o17", 15),
        ("0x1F", 31),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("12:30:00", "12:30:00"),
        ("-7", -7),
        ("1.50", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1.0.0", "1.0.0"),
        ("18446744073709551615", 2**64 - 1),
        ("'12'", "12"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ("[a, 1, [true]]", ["a", 1, [True]]),
        ("{a: {b: c}}", {"a": {"b": "c"}}),
        ("{<<: {a: 1}}", {"<<": {"a": 1}}),
        ("|\n  two\n  lines\n", "two\nlines\n"),
        (">-\n  one\n  line", "one line"),
        ("käse 🧀", "käse 🧀"),
    ],
)
def test_values_follow_the_core_schema_of_yaml_1_2(text: str, value: Any) -> None:
    parsed = parse(f"field: {text}")["field"]
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    "head",
    [
        "name: a\nname: b",
        "metadata: {a: 1, a: 2}",
        "1: one",
        "true: x",
        "[a]: x",
        "field: .inf",
        "field: .nan",
        "field: 1e999",
        f"field: {10**30}",
        f"field: {'9' * 5000}",
        "field: !!python/object/apply:os.system [id]",
        "field: !!binary aGk=",
        "field: !!int 1",
        "field: !!set {a}",
        "field: !custom 1",
        "field: &a [*a]",
        "field: *missing",
        "a: 1\n--- x\n...",
        "field: [1",
        "\tfield: 1",
        "- a list",
        "just text",
        "",
        "field: \x07",
    ],
)
def test_front_matter_that_is_not_plain_json_is_refused(head: str) -> None:
    with pytest.raises(FrontMatterError):
        parse(head)


@pytest.mark.parametrize("value", ["Use this: now", ".nan", "-.inf", "1e999"])
def test_a_value_that_needs_quotes_says_so_and_is_accepted_in_quotes(value: str) -> None:
    with pytest.raises(FrontMatterError, match="in quotes"):
        parse(f"field: {value}")
    assert parse(f'field: "{value}"') == {"field": value}


def test_only_a_number_that_is_too_large_is_called_too_large() -> None:
    for value, is_too_large in ((".nan", False), (".inf", False), ("1e999", True)):
        with pytest.raises(FrontMatterError) as caught:
            parse(f"field: {value}")
        assert ("too large" in str(caught.value)) is is_too_large


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"# No front matter",
        b" ---\nname: a\n---\n",
        b"---\nname: a\n",
        b"---\nname: a\n----\n",
        b"---\nname: \xff\n---\n",
        b"---\r",
        b"---\n" + b"a: " + b"x" * 70_000 + b"\n---\n",
    ],
)
def test_a_file_without_complete_front_matter_is_refused(data: bytes) -> None:
    with pytest.raises(FrontMatterError):
        parse_front_matter(data)


@pytest.mark.parametrize(
    "data",
    [
        b"---\nname: a\n---\n",
        b"---\nname: a\n---",
        b"---\r\nname: a\r\n---\r\nBody",
        b"\xef\xbb\xbf---\nname: a\n---\nBody\n---\n",
        b"---\nname: a\n--- \t\nBody",
    ],
)
def test_front_matter_ends_at_the_second_line_of_hyphens(data: bytes) -> None:
    assert parse_front_matter(data) == {"name": "a"}


BOMBS = {
    "aliases": "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "\n".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]" for i in range(9)),
    "few aliases": "a: &a [" + "x, " * 1000 + "x]\n" + "\n".join(f"k{i}: [*a, *a]" for i in range(6)),
    "depth": "a: " + "[" * 30_000,
    "block depth": "\n".join("  " * level + "a:" for level in range(200)),
    "values": "a: [" + "x," * 20_000 + "x]",
    "keys": "\n".join(f"k{i}: 1" for i in range(6000)),
    "anchors": "\n".join(f"k{i}: &a{i} 1" for i in range(3500)),
    "digits": "a: " + "1" * 60_000,
    "quotes": 'a: "' + "\\x00" * 15_000,
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_yaml_bomb_is_refused(bomb: str) -> None:
    assert len(bomb) < 64 * 1024
    with pytest.raises(FrontMatterError):
        parse(bomb)


def test_a_few_aliases_are_resolved() -> None:
    assert parse("a: &x [1, 2]\nb: *x\nc: &y text\nd: *y") == {"a": [1, 2], "b": [1, 2], "c": "text", "d": "text"}


@pytest.mark.parametrize("name", ["a", "git-workflow", "a" * 64, "x1-2"])
def test_a_valid_name_is_accepted(name: str) -> None:
    check_fields({"name": name, "description": "Do it."})


@pytest.mark.parametrize(
    "fields",
    [
        {"description": "x"},
        {"name": "a"},
        {"name": "A", "description": "x"},
        {"name": "-a", "description": "x"},
        {"name": "a-", "description": "x"},
        {"name": "a--b", "description": "x"},
        {"name": "a" * 65, "description": "x"},
        {"name": "a\n", "description": "x"},
        {"name": "..", "description": "x"},
        {"name": "a/b", "description": "x"},
        {"name": 1, "description": "x"},
        {"name": "a", "description": ""},
        {"name": "a", "description": "  "},
        {"name": "a", "description": 1},
        {"name": "a", "description": "x" * 1025},
    ],
)
def test_an_invalid_name_or_description_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(FrontMatterError):
        check_fields(fields)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": True}, {"a": 1}, False),
        ({"a": [False]}, {"a": [0]}, False),
        ({"a": None}, {}, False),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": {"b": [1, "x"]}}, {"a": {"b": [1, "x"]}}, True),
        ({"a": [1, 2]}, {"a": [1]}, False),
    ],
)
def test_json_values_are_compared_by_type_and_value(first: Any, second: Any, same: bool) -> None:
    assert is_same_json(first, second) is same
    assert is_same_json(second, first) is same


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(fields=st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4))
def test_written_front_matter_is_read_back_unchanged(fields: dict[str, Any]) -> None:
    assert is_same_json(parse_front_matter(write_front_matter(fields).encode()), fields)


def test_a_missing_yaml_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ImportError, match=r"dovetail-mcp\[skills\]"):
        parse("name: a")
