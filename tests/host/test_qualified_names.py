"""Test qualified names: unique, stable and short, and refused server names."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dovetail.host.qualified_names import (
    MAX_NAME_CHARS,
    check_server_name,
    make_full_name,
    make_model_name,
    make_server_name,
    split_full_name,
)

SHAPE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")

# Names made of what is near the seams: separators, dots, digits, look-alikes, and lengths around the limit.
tricky = st.text(alphabet="ab_-._9XБ\u0456\u202e é", max_size=12) | st.text(max_size=80)
parts = st.sampled_from(["ab", "a_", "_a", "x-", "__"])
long = st.tuples(parts, st.integers(15, 80)).map(lambda pair: pair[0] * pair[1])
names = tricky | long
servers = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)


@given(names, names)
@example("", "")
@example("9lives", "x")
@example("", "9._.9")
@example("_", "9")
@example("a" * 64, "b" * 64)
def test_what_a_model_sees_fits_every_maker(server: str, tool: str) -> None:
    made = make_model_name(server, tool)
    assert SHAPE.fullmatch(made)
    assert "___" not in made  # where the parts meet can be seen


@given(st.lists(st.tuples(names, names), max_size=30))
def test_no_two_pairs_share_a_name(pairs: list[tuple[str, str]]) -> None:
    seen: dict[str, tuple[str, str]] = {}
    for pair in pairs:
        assert seen.setdefault(make_model_name(*pair), pair) == pair


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b__c"), ("a__b", "c")),
        (("a_", "b"), ("a", "_b")),
        (("a", "_b"), ("a_", "_b")),
        (("a", "b"), ("A", "b")),
        (("a", "b.c"), ("a", "b_c")),
        (("a", "b c"), ("a", "b-c")),
        (("a", "b"), ("a", "\u0432")),
        (("a", "x" * 80), ("a", "x" * 81)),
        (("ab", "c"), ("a", "bc")),
        (("a", ""), ("", "a")),
    ],
)
def test_pairs_that_look_alike_stay_apart(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert make_model_name(*one) != make_model_name(*other)


@given(names, names, names)
def test_a_digest_cannot_be_offered_as_a_name(server: str, tool: str, other: str) -> None:
    """A server that calls its tool by what another pair is exposed as, or by its end, is not taken for it."""
    taken = make_model_name(server, tool)
    start, _, rest = taken.partition("__")
    most, _, last = taken.rpartition("__")
    for pair in ((start, rest), (most, last), (other, taken), (other, rest), (taken, other)):
        assert pair == (server, tool) or make_model_name(*pair) != taken


def test_names_are_the_same_for_ever() -> None:
    assert make_model_name("github", "create_issue") == "github__create_issue"
    assert make_model_name("github", "repo.delete") == "github__repo_delete__klabfuyqya7l2"
    assert make_model_name("9", "_x") == "_9__x__2vkiptngt2dm4"
    assert len(make_model_name("s" * 64, "t" * 64)) == MAX_NAME_CHARS - 1  # a digit in front would take the other


@given(servers, st.text(max_size=40))
def test_a_full_name_can_be_split_again(server: str, tool: str) -> None:
    assert split_full_name(make_full_name(server, tool)) == (server, tool)


@pytest.mark.parametrize("name", ["", "tool", ".tool"])
def test_an_invalid_full_name(name: str) -> None:
    with pytest.raises(ValueError, match=r"server\.tool"):
        split_full_name(name)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "g\u0456thub", "a/b", "a\n", "x" * 65])
def test_a_bad_name_of_a_server_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="64"):
        check_server_name(name)


@given(names)
def test_a_cleaned_name_is_a_good_one(name: str) -> None:
    assert check_server_name(make_server_name(name))


@given(servers)
def test_a_good_name_stays(name: str) -> None:
    assert make_server_name(name) == name == check_server_name(name)


def test_names_that_are_not_ascii_leave_a_mark() -> None:
    assert make_server_name("My Server") == "My-Server"
    assert make_server_name("g\u0456thub") != make_server_name("g\u0457thub")  # two Cyrillic letters
    assert make_server_name("東京") != make_server_name("大阪")
    assert make_server_name("x" * 70) != make_server_name("x" * 71)
