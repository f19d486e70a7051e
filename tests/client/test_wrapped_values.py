"""Test that `call` unwraps structured content that a server has wrapped in an object, and no other object."""

from datetime import date
from typing import Any

import msgspec
import pytest

from dovetail import CallToolResult, Client, Server, TextContent
from dovetail.client.result_values import convert_value, extract_value
from dovetail.errors import InvalidResult
from support.scripted_server import ERAS, ScriptedServer, serve_on_socket, text_result, tool_definition


def value(structured: Any, *texts: str, wraps: bool | None = None, meta: Any = None) -> Any:
    content = [TextContent(text=text) for text in texts]
    return extract_value(CallToolResult(content=[*content], structured_content=structured, meta=meta), is_wrapped=wraps)


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
        (None, []),
        ("2026-07-28", ['"2026-07-28"']),
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


@pytest.mark.parametrize(
    ("meta", "expected"),
    [({"fastmcp": {"wrap_result": True}}, 5), ({"fastmcp": {}}, {"result": 5}), ({"fastmcp": [1]}, {"result": 5})],
)
def test_a_marked_result_is_unwrapped(meta: Any, expected: Any) -> None:
    assert value({"result": 5}, "five", meta=meta) == expected
    result = CallToolResult(content=[], structured_content={"result": {"a": 5}}, meta=meta)
    assert convert_value(result, dict[str, Any], is_wrapped=None) == (
        {"a": 5} if expected == 5 else {"result": {"a": 5}}
    )


# Into a type


class Verdict(msgspec.Struct):
    result: str
    note: str = ""


class Settings(msgspec.Struct):
    depth: int = 0


class Renamed(msgspec.Struct):
    verdict: str = msgspec.field(name="result")


@pytest.mark.parametrize(
    ("structured", "kind", "expected"),
    [
        ({"result": "passed"}, Verdict, Verdict("passed")),
        ({"result": {"result": "passed"}}, Verdict, Verdict("passed")),
        ({"result": {"depth": 3}}, Settings, Settings(3)),
        ({"result": 5}, int, 5),
        ({"result": [1]}, list[int], [1]),
        ({"result": 5}, dict[str, int], {"result": 5}),
        ({"result": 5}, Any, {"result": 5}),
        ({"result": "passed"}, Renamed, Renamed("passed")),
    ],
)
def test_without_a_mark_the_type_decides(structured: Any, kind: Any, expected: Any) -> None:
    result = CallToolResult(content=[], structured_content=structured)
    assert convert_value(result, kind, is_wrapped=None) == expected


@pytest.mark.parametrize(
    ("structured", "kind", "expected"),
    [
        ({"result": {"result": "passed"}}, Verdict, Verdict("passed")),
        ({"result": {"depth": 3}}, Settings, Settings(3)),
        ({"result": {"a": 5}}, dict[str, int], {"a": 5}),
        ({"result": 5}, Any, 5),
    ],
)
def test_a_value_that_is_known_to_be_wrapped_is_unwrapped_for_every_type(
    structured: Any, kind: Any, expected: Any
) -> None:
    result = CallToolResult(content=[], structured_content=structured)
    assert convert_value(result, kind, is_wrapped=True) == expected
    with pytest.raises(InvalidResult):
        convert_value(CallToolResult(content=[], structured_content={"result": 5}), Verdict, is_wrapped=True)


# What the tool's schema says


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


NUMBER, OBJECT = {"type": "integer"}, {"type": "object"}
MARKED = schema(result=NUMBER) | {"x-fastmcp-wrap-result": True}
WHOLE = {"result": 5}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("output", "text", "expected"),
    [
        (MARKED, "5", 5),
        (MARKED, "done", 5),
        (MARKED, '{"result": 5}', 5),
        (schema(result=NUMBER), "5", 5),
        (schema(result=NUMBER), "done", WHOLE),
        (schema(result=NUMBER), '{"result": 5}', WHOLE),
        (schema(result=NUMBER, note={"type": "string"}), "5", WHOLE),
        (schema(), "5", WHOLE),
        (OBJECT, "5", WHOLE),
        (None, "5", 5),
        (None, "done", WHOLE),
        (None, '{"result": 5}', WHOLE),
    ],
)
async def test_a_known_tool_is_unwrapped_by_what_its_schema_says(
    era: str, output: Any, text: str, expected: Any
) -> None:
    listed = tool_definition("go") if output is None else tool_definition("go", outputSchema=output)
    reactions = {"tools/list": {"tools": [listed]}, "tools/call": text_result(text, structuredContent=WHOLE)}
    async with serve_on_socket(ScriptedServer(era, reactions)) as at, Client(at, validate_results=False) as one:
        await one.list_tools()
        assert await one.call("go") == expected


# Our servers


class Outcome(msgspec.Struct):
    result: int


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("protocol_version", ["2025-06-18", "2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("wrap_results", [True, False])
async def test_values_of_our_servers_arrive_as_they_were_returned(
    wrap_results: bool, protocol_version: str, is_listed: bool
) -> None:
    app = Server("values", wrap_results=wrap_results)
    values = {"number": 5, "nothing": None, "items": [1], "day": date(2026, 7, 28), "outcome": Outcome(5)}
    types = {"number": int, "nothing": int | None, "items": list[int], "day": date, "outcome": Outcome}
    for name, returned in values.items():
        app.add_tool(_return(returned, types[name]), name=name)
    app.add_tool(lambda: {"result": 5}, name="untyped")
    async with Client(app, protocol_version=protocol_version) as client:
        if is_listed:
            await client.list_tools()
        assert await client.call("number") == 5
        assert await client.call("nothing") is None
        assert await client.call("items") == [1]
        assert await client.call("day") == "2026-07-28"
        assert await client.call("day", into=date) == date(2026, 7, 28)
        assert await client.call("outcome") == {"result": 5}
        assert await client.call("outcome", into=Outcome) == Outcome(5)
        assert await client.call("untyped") == {"result": 5}


def _return(value: Any, annotation: Any) -> Any:
    def function() -> Any:
        return value

    function.__annotations__["return"] = annotation
    return function
