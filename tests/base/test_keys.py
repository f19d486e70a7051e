"""Test that different parts never give the same key."""

from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from dovetail.cluster.redis.redis_connection import build_deployment_prefix
from dovetail.keys import build_key, escape

# Most generated texts would have no special character, so these characters are chosen often.
TEXTS = st.text(st.sampled_from(" :%{}()\0/#ab253A7BD") | st.characters())
PARTS = st.lists(TEXTS, min_size=1, max_size=5)


def split(key: str) -> list[str]:
    return [part.replace("%3A", ":").replace("%25", "%") for part in key.split(":")]


@given(PARTS)
def test_the_parts_can_be_read_from_the_key(parts: list[str]) -> None:
    assert split(build_key(*parts)) == parts


@given(PARTS, PARTS)
def test_different_parts_give_different_keys(first: list[str], second: list[str]) -> None:
    assert (build_key(*first) == build_key(*second)) == (first == second)


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_different_deployments_have_different_prefixes(prefix: str, name: str, other: str, other_name: str) -> None:
    first, second = build_deployment_prefix(prefix, name), build_deployment_prefix(other, other_name)
    assert (first == second) == ((prefix, name) == (other, other_name))
    assert not {"{", "}"} & {*first}


def test_ordinary_parts_stay_readable() -> None:
    assert build_key("2", "notes", "user", "ada lovelace", "diary") == "2:notes:user:ada lovelace:diary"
    assert build_deployment_prefix("dovetail", "issuer https://a.example") == "dovetail:issuer https://a.example"
    assert unquote(escape("50 % of {x}", "{}")) == "50 % of {x}"
