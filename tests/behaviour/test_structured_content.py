"""Test structured content: its value, its schema and its text in each protocol version."""

import json
import logging
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NotRequired, TypedDict

import jsonschema_rs
import msgspec
import pydantic
import pytest

from behaviour.manifest import requirement
from behaviour.request_helpers import call, error_text, text
from dovetail import CallToolResult, Server, TextContent
from support.driver import STATELESS, connect


@dataclass
class Point:
    x: int
    y: int


@dataclass
class Node:
    """A type that refers to itself, so that its schema has definitions."""

    name: str
    children: list["Node"]


class Loose(TypedDict):
    a: int
    b: NotRequired[str]


VALUES: dict[str, Any] = {
    "point": {"x": 1, "y": 2},
    "tree": {"name": "root", "children": [{"name": "leaf", "children": []}]},
    "mapping": {"b": 1, "a": 2},
    "loose": {"a": 1},
    "points": [{"x": 1, "y": 2}, {"x": 3, "y": 4}],
    "empty": [],
    "integer": 7,
    "number": 0.5,
    "boolean": False,
    "maybe": None,
    "either": {"x": 1, "y": 2},
    "mixed": {"a": 1},
    "forest": [{"name": "alone", "children": []}],
}


def server(**options: Any) -> Server:
    app = Server("structured", **options)

    @app.tool
    def point() -> Point:
        return Point(1, 2)

    @app.tool
    def tree() -> Node:
        return Node("root", [Node("leaf", [])])

    @app.tool
    def mapping() -> dict[str, int]:
        return {"b": 1, "a": 2}

    @app.tool
    def loose() -> Loose:
        return {"a": 1}

    @app.tool
    def points() -> list[Point]:
        return [Point(1, 2), Point(3, 4)]

    @app.tool
    def empty() -> list[int]:
        return []

    @app.tool
    def integer() -> int:
        return 7

    @app.tool
    def number() -> float:
        return 0.5

    @app.tool
    def boolean() -> bool:
        return False

    @app.tool
    def maybe() -> int | None:
        return None

    @app.tool
    def either() -> Point | None:
        return Point(1, 2)

    @app.tool
    def mixed() -> dict[str, int] | list[int]:
        return {"a": 1}

    @app.tool
    def forest() -> list[Node]:
        return [Node("alone", [])]

    return app


@requirement("structured.any-json")
async def test_a_server_can_send_every_json_value_as_it_is(revision: str, transport: str) -> None:
    async with connect(server(wrap_results=False), transport, revision) as peer:
        schemas = {one["name"]: one["outputSchema"] for one in (await peer.request("tools/list"))["tools"]}
        for name, value in VALUES.items():
            result = await call(peer, name)
            assert result["structuredContent"] == value
            assert json.loads(text(result)) == value
            jsonschema_rs.validate(schemas[name], value)


OBJECTS = ("point", "tree", "mapping", "loose")


async def check_wrapped(app: Server, revision: str, transport: str) -> None:
    async with connect(app, transport, revision) as peer:
        schemas = {one["name"]: one["outputSchema"] for one in (await peer.request("tools/list"))["tools"]}
        for name, value in VALUES.items():
            result = await call(peer, name)
            schema = schemas[name]
            assert schema["type"] == "object"
            assert ("x-fastmcp-wrap-result" in schema) == (name not in OBJECTS)
            assert name in OBJECTS or (list(schema["properties"]), schema["required"]) == (["result"], ["result"])
            assert result["structuredContent"] == (value if name in OBJECTS else {"result": value}), name
            assert json.loads(text(result)) == value
            jsonschema_rs.validate(schema, result["structuredContent"])


@requirement("structured.value", "structured.wrapped", revisions=("2025-06-18", "2025-11-25", STATELESS))
async def test_a_value_that_is_not_an_object_is_under_result(revision: str, transport: str) -> None:
    await check_wrapped(server(), revision, transport)


@requirement("structured.wrapped", revisions=("2025-06-18", "2025-11-25"))
async def test_handshake_versions_have_no_bare_values(revision: str, transport: str) -> None:
    await check_wrapped(server(wrap_results=False), revision, transport)


@requirement("structured.wrapped", revisions=("2025-06-18", "2025-11-25", STATELESS))
async def test_values_of_tools_without_a_schema_are_wrapped_too(revision: str, transport: str) -> None:
    app = Server("untyped")

    @app.tool
    def numbers():  # type: ignore[no-untyped-def]
        return [1, 2]

    @app.tool
    def made() -> CallToolResult:
        return CallToolResult(content=[], structured_content=[1, 2])

    @app.tool
    def mapping():  # type: ignore[no-untyped-def]
        return {"result": 1}

    async with connect(app, transport, revision) as peer:
        assert not any("outputSchema" in one for one in (await peer.request("tools/list"))["tools"])
        assert (await call(peer, "numbers"))["structuredContent"] == {"result": [1, 2]}
        assert (await call(peer, "made"))["structuredContent"] == {"result": [1, 2]}
        assert (await call(peer, "mapping"))["structuredContent"] == {"result": 1}


@requirement("structured.wrapped", revisions=("draft",))
async def test_the_draft_dialect_wraps_as_the_handshake_revisions_do(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        assert (await call(peer, "points"))["structuredContent"] == {"result": VALUES["points"]}
        assert (await call(peer, "either"))["structuredContent"] == {"result": VALUES["either"]}


@requirement("structured.text-only")
async def test_the_first_revisions_have_only_the_text(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        assert not any("outputSchema" in one for one in (await peer.request("tools/list"))["tools"])
        for name, value in VALUES.items():
            result = await call(peer, name)
            assert "structuredContent" not in result
            assert json.loads(text(result)) == value


@requirement("structured.conforms")
async def test_a_value_that_breaks_its_schema_is_not_sent(
    revision: str, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = Server("broken")

    @app.tool
    def count() -> int:
        return "seven"  # type: ignore[return-value]

    @app.tool
    def point() -> Point:
        return {"x": 1, "y": "secret"}  # type: ignore[return-value]

    async with connect(app, transport, revision) as peer:
        for name in ("count", "point"):
            with caplog.at_level(logging.ERROR, "dovetail"):
                result = await call(peer, name)
            assert result["isError"] is True
            assert "structuredContent" not in result
            assert "seven" not in error_text(result)
            assert "secret" not in error_text(result)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


class Struct(msgspec.Struct):
    n: Annotated[int, msgspec.Meta(ge=0)]


@dataclass
class Checked:
    n: Annotated[int, msgspec.Meta(ge=0)]
    built: ClassVar[int] = 0

    def __post_init__(self) -> None:
        Checked.built += 1


class Model(pydantic.BaseModel):
    n: int = pydantic.Field(ge=0)


@requirement("structured.conforms", revisions=("2025-11-25", STATELESS))
@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (Struct, Struct(5), [Struct(-5), Struct("text")]),  # type: ignore[arg-type]
        (list[Struct], [Struct(5)], [[Struct(-5)]]),
        (Struct | None, Struct(5), [Struct(-5)]),
        (Point, Point(1, 2), [Point("a", 2), Point(1, 2.5)]),  # type: ignore[arg-type]
        (Node, Node("a", [Node("b", [])]), [Node("a", [Node(1, [])])]),  # type: ignore[arg-type]
        (Checked, Checked(5), [Checked(-5)]),
        (Model, Model(n=5), [Model.model_construct(n=-5)]),
    ],
)
async def test_the_fields_of_an_instance_are_checked(
    revision: str, transport: str, annotation: Any, good: Any, bad: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    app = Server("instances")
    values = [good, *bad]

    def give(index: int) -> Any:
        return values[index]

    give.__annotations__["return"] = annotation
    app.add_tool(give)
    built = Checked.built
    async with connect(app, transport, revision) as peer:
        assert "structuredContent" in await call(peer, "give", index=0)
        for index in range(1, len(values)):
            with caplog.at_level(logging.ERROR, "dovetail"):
                result = await call(peer, "give", index=index)
            assert result["isError"] is True
            assert "structuredContent" not in result
    assert Checked.built == built  # the check runs no code of the author


@requirement("structured.author-schema")
async def test_an_authors_output_schema_is_published_and_kept(
    revision: str, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = Server("author")
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0}},
        "required": ["n"],
    }

    @app.tool(output_schema=schema)
    def untyped(n: int) -> Any:
        return {"n": n}

    @app.tool(output_schema=schema)
    def whole(n: int) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=f"n is {n}")], structured_content={"n": n})

    @app.tool(output_schema=schema)
    def forgotten(n: int) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=f"n is {n}")])

    @app.tool(output_schema=schema)
    def failed(n: int) -> CallToolResult:
        return CallToolResult(content=[TextContent(text="no")], is_error=True)

    @app.tool(output_schema={"type": "string", "maxLength": 3})
    def word(n: int) -> str:
        return "a" * n

    @app.tool(output_schema={"type": "string", "maxLength": 3})
    def letters(n: int) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=f"{n} letters")], structured_content="a" * n)

    @app.tool(output_schema={"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}}]})
    def nested(n: int) -> Any:
        value: Any = None
        for _ in range(n):
            value = [value]
        return value

    async with connect(app, transport, revision) as peer:
        listed = {one["name"]: one["outputSchema"] for one in (await peer.request("tools/list"))["tools"]}
        assert listed["untyped"] == schema
        untyped = await call(peer, "untyped", n=4)
        assert untyped["structuredContent"] == {"n": 4}
        assert json.loads(text(untyped)) == {"n": 4}
        whole = await call(peer, "whole", n=4)
        assert whole["structuredContent"] == {"n": 4}
        assert text(whole) == "n is 4"
        assert error_text(await call(peer, "failed", n=4)) == "no"
        word = (await call(peer, "word", n=2))["structuredContent"]
        assert word == (await call(peer, "letters", n=2))["structuredContent"] == {"result": "aa"}
        nested = (await call(peer, "nested", n=2))["structuredContent"]
        jsonschema_rs.validate(listed["nested"], nested)
        with pytest.raises(jsonschema_rs.ValidationError):
            jsonschema_rs.validate(listed["nested"], {"result": [[5]]})
        with caplog.at_level(logging.CRITICAL, "dovetail"):
            broken = [await call(peer, "untyped", n=-1), await call(peer, "whole", n=-1)]
            broken += [await call(peer, "forgotten", n=1), await call(peer, "word", n=4)]
            broken += [await call(peer, "letters", n=4)]
        for result in broken:
            assert result["isError"] is True
            assert "structuredContent" not in result
