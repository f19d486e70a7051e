"""Test the estimated number of simultaneous states of a pattern."""

import pytest

from dovetail.schemas.regex_cost import MAX_STATES, count_concurrent_states


@pytest.mark.parametrize(
    ("pattern", "places"),
    [
        ("", 1),
        ("foo", 4),
        ("^foo$", 2),
        ("^[a-z0-9-]{1,64}$", 2),
        ("^[0-9a-f]{8}-[0-9a-f]{4}$", 2),
        (r"^\d{4}-\d\d-\d\d$", 2),
        ("^(a|b)$", 3),
        ("^(?:ab|cd)x{9}$", 3),
        ("^(?:a|bc)x{9}$", 12),  # widths differ, so the text no longer tells where it is
        ("^a|b{100}", 102),
        (r"^[^@]+@[a-z]+\.[a-z]+$", 7),
        ("[01]*1[01]{100}2", 104),
        ("^[01]*1[01]{100}2", 104),
        ("(?:[01]*1[01]{8}){20}2", 202),
        ("^(?:a*b){20}$", 41),
        ("^.$", 3),
        (r"^\S$", 3),
        (r"^[\s\S]$", 3),
        (r"^[\p{L}]$", 3),
        ("^é$", 3),
        (r"^\-\/\.\ \_\cA$", 2),
        (r"\bfoo\b", 4),
        ("a+?b", 3),
        ("((a{1,999}){1,999}){1,999}", MAX_STATES),
    ],
)
def test_places_are_counted(pattern: str, places: int) -> None:
    assert count_concurrent_states(pattern) == places


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)(", "(?=a)b", "(?i)a", "(?<n>a)", r"(a)\1", "[a", "[]a]", "[a[b]]", "a{b", "\\",
        r"^(?:\A|x){100}x{300}", r"a\z", r"\<a\>", r"\Ga", r"\Ra",
    ],
)  # fmt: skip
def test_what_is_not_understood_counts_as_the_worst(pattern: str) -> None:
    assert count_concurrent_states(pattern) == MAX_STATES


@pytest.mark.parametrize("repeat", ["{0}", "?", "*", "{0,3}"])
def test_an_optional_anchor_does_not_count(repeat: str) -> None:
    assert count_concurrent_states(f"^{repeat}1[01]{{300}}2") > 300
    assert count_concurrent_states("^1[01]{300}2") == 2


@pytest.mark.parametrize("pattern", ["(" * 1000, "(" * 500 + "a" + ")" * 500, "(?:" * 51 + "a" + ")" * 51])
def test_deeply_nested_groups_count_as_the_worst(pattern: str) -> None:
    assert count_concurrent_states(pattern) == MAX_STATES


def test_nested_groups_cost_nothing() -> None:
    assert count_concurrent_states("(" * 50 + "a" + ")" * 50) == 2
