"""Test converting command line arguments to the types of the schema, and their errors."""

from pathlib import Path
from typing import Any

import click
import pytest

from dovetail.cli.tool_arguments import read_arguments
from dovetail.terminal.form import coerce

SCHEMA: dict[str, Any] = {
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "share": {"type": "number"},
        "loud": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "integer"}},
        "more": {"type": "object"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "pick": {"enum": [1, 2]},
    }
}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("city=Oslo", "Oslo"),
        ("city=3", "3"),
        ("city=a=b", "a=b"),
        ("city:=null", None),
        ("days=3", 3),
        ("share=0.5", 0.5),
        ("loud=yes", True),
        ("loud=False", False),
        ("tags=1,2", [1, 2]),
        ("tags=[1,2]", [1, 2]),
        ("tags=", []),
        ('more={"a":1}', {"a": 1}),
        ("maybe=null", None),
        ("maybe=4", 4),
        ("pick=2", 2),
    ],
)
def test_values_are_what_the_schema_asks_for(word: str, value: Any) -> None:
    (found,) = read_arguments([word], SCHEMA).values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("days=many", "must be an integer"),
        ("loud=perhaps", "must be a boolean"),
        ("more={", "JSON"),
        ("cty=Oslo", "'city'"),
        ("city", "NAME=VALUE"),
        ("city=@nowhere.txt", "nowhere.txt"),
    ],
)
def test_a_wrong_word_is_named(word: str, why: str) -> None:
    with pytest.raises(click.UsageError, match=why):
        read_arguments([word], SCHEMA)


def test_files_and_documents(tmp_path: Path) -> None:
    (tmp_path / "city.txt").write_text("Oslo", encoding="utf-8")
    found = read_arguments([f"city=@{tmp_path / 'city.txt'}"], SCHEMA, '{"days": 2, "city": "Rome"}')
    assert found == {"days": 2, "city": "Oslo"}
    with pytest.raises(click.UsageError, match="object"):
        read_arguments([], SCHEMA, "[1]")


def test_without_a_schema_a_word_is_text() -> None:
    assert coerce("a", "1", {}) == "1"
    assert read_arguments(["anything=1"], {}) == {"anything": "1"}


ROOT: dict[str, Any] = {
    "$defs": {
        "Point": {"type": "object", "properties": {"x": {"type": "integer"}}},
        "Count": {"type": "integer"},
        "Counts": {"type": "array", "items": {"$ref": "#/$defs/Count"}},
        "Loop": {"$ref": "#/$defs/Loop"},
        "Tree": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "integer"}]},
    },
    "allOf": [{"properties": {"inherited": {"$ref": "#/$defs/Count"}}}],
    "properties": {
        "point": {"$ref": "#/$defs/Point"},
        "counts": {"$ref": "#/$defs/Counts"},
        "maybe": {"anyOf": [{"$ref": "#/$defs/Counts"}, {"type": "null"}]},
        "told": {"allOf": [{"$ref": "#/$defs/Count"}], "description": "told"},
        "any": True,
        "none": False,
        "either": {"anyOf": [True, {"type": "integer"}]},
        "one": {"anyOf": [False, {"type": "integer"}]},
        "loop": {"$ref": "#/$defs/Loop"},
        "tree": {"$ref": "#/$defs/Tree"},
        "far": {"$ref": "https://elsewhere.example/schema"},
    },
}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ('point={"x": 1}', {"x": 1}),
        ("counts=1,2", [1, 2]),
        ("maybe=1,2", [1, 2]),
        ("told=3", 3),
        ("inherited=4", 4),
        ("any=1", "1"),
        ("none=1", "1"),
        ("either=1", "1"),
        ("one=1", 1),
        ("loop=1", "1"),
        ("far=1", "1"),
    ],
)
def test_references_parts_and_booleans_are_followed(word: str, value: Any) -> None:
    (found,) = read_arguments([word], ROOT).values()
    assert found == value
    assert type(found) is type(value)


def test_a_schema_that_contains_itself_comes_to_an_end() -> None:
    assert read_arguments(["tree=1"], ROOT)["tree"] in (1, "1")


NUMBERS = {"properties": {"i": {"type": "integer"}, "n": {"type": "number"}, "l": {"type": "array"}}}


@pytest.mark.parametrize(
    "word",
    ["n=nan", "n=inf", "n=-Infinity", "n=1e999", "n:=NaN", "n:=-Infinity", "n:=1e999", "i=1_0", "n=1_0", "i=\u0661",
     "l=[NaN]", "l:=" + "[" * 100_000, "n=x", "other=\udcff"],
)  # fmt: skip
def test_what_json_cannot_say_is_refused(word: str) -> None:
    with pytest.raises(click.UsageError):
        read_arguments([word], NUMBERS | {"additionalProperties": True})


def test_numbers_in_their_spellings() -> None:
    for word, value in (("n=.5", 0.5), ("n=1e3", 1000.0), ("n=-2.", -2.0), ("i=+7", 7), ("i= 8 ", 8)):
        assert [*read_arguments([word], NUMBERS).values()] == [value]
