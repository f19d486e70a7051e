"""Structured content that is an object only because a server could send nothing else: `call` gives what is inside."""

from typing import Any

import pytest

from dovetail import CallToolResult, TextContent
from dovetail.client.values import value_of


def value(structured: Any, *texts: str, wraps: bool = False) -> Any:
    content = [TextContent(text=text) for text in texts]
    return value_of(CallToolResult(content=[*content], structured_content=structured), wraps=wraps)


@pytest.mark.parametrize(
    ("inner", "texts"),
    [
        ("Hello!", ["Hello!"]),
        ('{"result": 1}', ['{"result": 1}']),
        (5, ["5"]),
        (True, ["true"]),
        ([2, 3], ["2", "3"]),
        ([2, 3], ["[2, 3]"]),
        ([2], ["2"]),
        ([["a"], "b"], ['["a"]', "b"]),
        ([], []),
    ],
)
def test_the_text_says_what_is_inside(inner: Any, texts: list[str]) -> None:
    assert value({"result": inner}, *texts) == inner


@pytest.mark.parametrize(
    ("inner", "texts"),
    [(1, ['{"result": 1}']), (1, ["There is one."]), (1, []), ("a", ["b"]), ([2, 3], ["2", "4"]), ([2, 3], ["2"])],
)
def test_else_the_object_is_meant(inner: Any, texts: list[str]) -> None:
    assert value({"result": inner}, *texts) == {"result": inner}
    assert value({"result": inner}, *texts, wraps=True) == inner


def test_other_objects_stay_as_they_are() -> None:
    assert value({"result": 1, "more": 2}, "1") == {"result": 1, "more": 2}
    assert value({"answer": 1}, "1", wraps=True) == {"answer": 1}
