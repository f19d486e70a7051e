"""Test that names of mcp and fastmcp lead to the names of dovetail."""

import re
from typing import Any

import pytest

from dovetail import Client, Context, Server
from dovetail.peer_names import CLIENT_HINTS, CONTEXT_HINTS, SERVER_HINTS

CASES = [(Server, "app", SERVER_HINTS), (Context, "ctx", CONTEXT_HINTS), (Client, "client", CLIENT_HINTS)]


def create(class_: type[Any]) -> Any:
    return class_.__new__(class_)


@pytest.mark.parametrize(("class_", "variable", "hints"), CASES)
def test_every_hint_names_something_that_exists(class_: type[Any], variable: str, hints: dict[str, str]) -> None:
    for name, hint in hints.items():
        assert not hasattr(class_, name)
        with pytest.raises(AttributeError, match=re.escape(hint)):
            getattr(create(class_), name)
        for attribute in re.findall(rf"\b{variable}\.(\w+)", hint):
            assert hasattr(class_, attribute) or attribute in class_.__slots__, (name, attribute)


@pytest.mark.parametrize(
    ("class_", "name", "suggestion"), [(Server, "tol", "tool"), (Context, "elict", "elicit"), (Client, "cal", "call")]
)
def test_a_misspelt_name_is_suggested(class_: type[Any], name: str, suggestion: str) -> None:
    with pytest.raises(AttributeError, match=f"'{suggestion}'"):
        getattr(create(class_), name)


@pytest.mark.parametrize("class_", [Server, Context, Client])
def test_a_private_name_gets_no_suggestion(class_: type[Any]) -> None:
    assert not hasattr(create(class_), "_unknown")
    assert getattr(create(class_), "__wrapped__", None) is None
