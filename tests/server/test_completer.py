"""Test the input of a completer and the handling of its result."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dovetail import Completion
from dovetail.server.items.completer import MAX_VALUES, Completer, build_completion, find_matching


def test_a_completer_takes_the_value_and_if_it_likes_the_other_arguments() -> None:
    class Cities:
        def method(self, value: str, others: dict[str, str]) -> list[str]:
            raise NotImplementedError

    assert Completer(lambda value: [value]).build_arguments("os", {"a": "b"}) == ("os",)
    assert Completer(lambda value, others: [value]).build_arguments("os", {"a": "b"}) == ("os", {"a": "b"})
    assert Completer(Cities().method).build_arguments("os", {}) == ("os", {})
    assert Completer(lambda value, /, *, option=1: [value]).build_arguments("os", {}) == ("os",)


@pytest.mark.parametrize("function", [lambda: ["a"], lambda a, b, c: [], lambda *, value: []])
def test_no_other_shape_is_a_completer(function: Any) -> None:
    with pytest.raises(TypeError, match=r"\(value\).*\(value, arguments\)"):
        Completer(function)


@example(["x"] * 100)
@example(["x"] * 101)
@given(st.lists(st.text(max_size=4), max_size=250))
def test_an_answer_holds_a_hundred_values_and_tells_of_the_rest(values: list[str]) -> None:
    found = build_completion(values)
    assert found.values == values[:100]
    assert found.total == len(values)
    assert found.has_more is (len(values) > MAX_VALUES)


@example(["x"] * 101, None, None)
@example(["x"] * 101, 5000, False)
@example(["x"] * 100, 5000, True)
@given(st.lists(st.text(max_size=4), max_size=250), st.none() | st.integers(0, 1000), st.none() | st.booleans())
def test_total_and_has_more_of_the_author_are_kept_unless_values_are_cut(
    values: list[str], total: int | None, more: bool | None
) -> None:
    found = build_completion(Completion(values=values, total=total, has_more=more))
    assert found.values == values[:100]
    if len(values) > MAX_VALUES:
        assert found.has_more is True
        assert found.total == (total or len(values))
    else:
        assert (found.total, found.has_more) == (total, more)


def test_values_need_not_be_text_or_a_list() -> None:
    assert build_completion(None).values == []
    assert build_completion(()).values == []
    assert build_completion((1, 2.5)).values == ["1", "2.5"]  # pyright: ignore[reportArgumentType]


def test_a_list_of_the_authors_is_not_handed_on() -> None:
    values = ["a"]
    found = build_completion(Completion(values=values))
    values.append("b")
    assert found.values == ["a"]


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("", ["Oslo", "Ostrava", "Rome", "Öskemen"]),
        ("os", ["Oslo", "Ostrava"]),
        ("OST", ["Ostrava"]),
        ("om", ["Rome"]),
        ("ö", ["Öskemen"]),
        ("x", []),
    ],
)
def test_choices_begin_with_what_was_typed_or_else_contain_it(typed: str, found: list[str]) -> None:
    assert find_matching(("Oslo", "Ostrava", "Rome", "Öskemen"), typed) == found
