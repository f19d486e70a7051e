"""Test that `call` unwraps structured content that a server had to wrap in an object."""

from typing import Any

import msgspec
import pytest

from dovetail import CallToolResult, Client, TextContent
from dovetail.client.result_values import convert_value, extract_value
from scripted_server import ERAS, ScriptedServer, serve_on_socket, text_result, tool_definition


def value(structured: Any, *texts: str, wraps: bool | None = None) -> Any:
    content = [TextContent(text=text) for text in texts]
    return extract_value(CallToolResult(content=[*content], structured_content=structured), is_wrapped=wraps)


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


def test_where_it_is_known_that_nothing_is_wrapped_nothing_is_unwrapped() -> None:
    assert value({"result": 5}, "5", wraps=False) == {"result": 5}


# Into a type


class Verdict(msgspec.Struct):
    result: str
    note: str = ""


class Settings(msgspec.Struct):
    depth: int = 0


@pytest.mark.parametrize(
    ("structured", "kind", "expected"),
    [
        ({"result": "passed"}, Verdict, Verdict("passed")),
        ({"result": {"result": "passed"}}, Verdict, Verdict("passed")),
        ({"result": {"depth": 3}}, Settings, Settings(3)),
        ({"result": 5}, int, 5),
        ({"result": [1]}, list[int], [1]),
        ({"result": 5}, dict[str, int], {"result": 5}),
        ({"result": 5}, Any, 5),
    ],
)
def test_a_type_with_room_for_it_is_tried_with_the_whole(structured: Any, kind: Any, expected: Any) -> None:
    result = CallToolResult(content=[], structured_content=structured)
    assert convert_value(result, kind, is_wrapped=True) == expected


# What the tool's schema says


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


NUMBER, OBJECT = {"type": "integer"}, {"type": "object"}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("output", "handshake", "stateless"),
    [
        (schema(result=NUMBER), 5, {"result": 5}),
        (schema(result=NUMBER, note={"type": "string"}), {"result": 5}, {"result": 5}),
        (schema(result=OBJECT), {"result": 5}, {"result": 5}),
        (schema(), {"result": 5}, {"result": 5}),
        (schema(result=NUMBER) | {"x-fastmcp-wrap-result": True}, 5, 5),
        (None, 5, {"result": 5}),
    ],
)
async def test_a_known_tool_is_unwrapped_by_what_its_schema_says(
    era: str, output: Any, handshake: Any, stateless: Any
) -> None:
    listed = tool_definition("go") if output is None else tool_definition("go", outputSchema=output)
    reactions = {"tools/list": {"tools": [listed]}, "tools/call": text_result("done", structuredContent={"result": 5})}
    async with serve_on_socket(ScriptedServer(era, reactions)) as at, Client(at, validate_results=False) as one:
        await one.list_tools()
        assert await one.call("go") == (handshake if era == "handshake" else stateless)
