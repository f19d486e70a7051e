"""Test tools: compiled at registration, and results that match the published schema."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import jsonschema_rs
import msgspec
import pytest

from dovetail import CallToolResult, Context, Icon, Server, TextContent, ToolAnnotations
from dovetail.server.items.tool import Tool, build_error_result
from server.direct_client import LATEST_HANDSHAKE, NEWEST, Client, error_text, text
from support.mentions import mentions


@dataclass
class Point:
    x: int
    y: int = 0


class Tree(msgspec.Struct):
    name: str
    children: list["Tree"] = []


class Named(TypedDict):
    name: str


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


# Declaration


def test_a_tool_declares_what_its_function_says() -> None:
    declared = Tool(add).declaration
    assert (declared.name, declared.description, declared.title) == ("add", "Add two numbers.", None)
    assert declared.input_schema == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert declared.output_schema is not None
    assert declared.output_schema["properties"] == {"result": {"type": "integer"}}


def test_options_come_first() -> None:
    hints = ToolAnnotations(read_only_hint=True)
    tool = Tool(
        add,
        name="sum",
        title="Sum",
        description="",
        icons=[Icon(src="a:b")],
        annotations=hints,
        meta={"com.example/x": 1},
        timeout=3.0,
        run_in_thread=False,
    )
    declared = tool.declaration
    assert (tool.name, declared.title, declared.description) == ("sum", "Sum", "")
    assert (declared.icons, declared.annotations, declared.meta) == ([Icon(src="a:b")], hints, {"com.example/x": 1})
    assert (tool.runner.timeout, tool.runner.run_in_thread) == (3.0, False)


def test_a_context_is_not_an_argument() -> None:
    async def run(a: int, ctx: Context) -> None: ...

    tool = Tool(run)
    assert list(tool.declaration.input_schema["properties"]) == ["a"]
    assert tool.signature.context == "ctx"


class Counter:
    """Counts."""

    def __call__(self, by: int) -> int:
        return by


@pytest.mark.parametrize("function", [functools.partial(add, b=5), Counter(), lambda a: a])
def test_a_function_without_a_name_of_its_own_is_given_one(function: Callable[..., Any]) -> None:
    assert Tool(function, name="run").name == "run"


@pytest.mark.parametrize("function", [functools.partial(add, b=5), Counter(), lambda a: a])
def test_a_function_without_any_name_is_the_authors_mistake(function: Callable[..., Any]) -> None:
    with pytest.raises((TypeError, ValueError), match="name"):
        Tool(function)


def test_mirrored_parameters_are_compiled() -> None:
    def run(region: Annotated[str, msgspec.Meta(extra_json_schema={"x-mcp-header": "Region"})]) -> str:
        return region

    ((path),) = Tool(run).headers
    assert (path.header, path.path, path.type) == (b"mcp-param-region", ("region",), "string")
    assert Tool(add).headers == ()


async def test_mirrored_parameters_are_compared_where_there_are_headers() -> None:
    app = Server("mirror")

    @app.tool
    def run(region: Annotated[str, msgspec.Meta(extra_json_schema={"x-mcp-header": "Region"})]) -> str:
        return region

    agreeing = {b"mcp-param-region": b"eu"}
    assert text(await Client(app, headers=agreeing).call("run", {"region": "eu"})) == "eu"
    assert text(await Client(app).call("run", {"region": "eu"})) == "eu"
    assert text(await Client(app, LATEST_HANDSHAKE, headers={}).call("run", {"region": "eu"})) == "eu"
    for headers in ({}, {b"mcp-param-region": b"us"}):
        with pytest.raises(Exception, match="mcp-param-region") as caught:
            await Client(app, headers=headers).call("run", {"region": "eu"})
        assert getattr(caught.value, "code", None) == -32020


# Schemas of the author's own


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string", "pattern": "^x+$"}},
    "required": ["a"],
    "additionalProperties": False,
}


def test_a_schema_given_is_the_schema_published() -> None:
    def run(arguments: dict[str, Any]) -> str:
        return str(arguments)

    tool = Tool(run, input_schema=SCHEMA)
    assert tool.declaration.input_schema is SCHEMA
    assert tool.signature.bind({"a": 1}, None) == ((), {"arguments": {"a": 1}})


def test_arguments_are_handed_over_as_one_or_as_keywords() -> None:
    async def open_ended(ctx: Context, **given: Any) -> str:
        return str(given)

    assert Tool(open_ended, input_schema=SCHEMA).signature.bind({"a": 1}, None) == ((), {"a": 1, "ctx": None})


@pytest.mark.parametrize("function", [lambda: 1, lambda a, b: 1])
def test_a_function_that_cannot_take_them_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="input_schema="):
        Tool(function, name="run", input_schema=SCHEMA)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {},
        {"type": "object", "properties": {"a": {"type": "nonsense"}}},
        {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema.json"}}},
        {"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}},
        {"type": "object", "properties": {"a": {"pattern": "("}}},
        {"type": "object", "properties": {"a": {"x-mcp-header": "A", "type": "array"}}},
    ],
)
def test_a_schema_that_cannot_be_kept_is_refused_at_registration(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        Tool(lambda arguments: 1, name="run", input_schema=schema)


async def test_arguments_are_held_against_the_schema() -> None:
    app = Server("strict")
    app.add_tool(lambda arguments: f"{arguments['a']}", name="run", input_schema=SCHEMA)
    client = Client(app)
    assert text(await client.call("run", {"a": 1, "b": "xx"})) == "1"
    said = error_text(await client.call("run", {"a": "x", "b": "y", "c": 1}))
    assert said.startswith("Invalid arguments. ")
    for word in ("`a`: ", "`b`: ", "`c`"):
        assert word in said


async def test_a_hundred_mistakes_are_not_all_listed() -> None:
    app = Server("strict")
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    app.add_tool(lambda arguments: 1, name="run", input_schema=schema)
    said = error_text(await Client(app).call("run", {f"n{number}": "x" * 1000 for number in range(100)}))
    assert said.count("`int`") == 10
    assert len(said) < 5000


async def test_a_hostile_pattern_takes_no_time() -> None:
    app = Server("strict")
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    app.add_tool(lambda arguments: "fine", name="run", input_schema=schema)
    assert mentions(error_text(await Client(app).call("run", {"a": "a" * 5000 + "!"})), "a", "^(a+)+$")


async def test_results_are_held_against_the_authors_schema() -> None:
    app = Server("strict")
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}

    @app.tool(output_schema=schema)
    def run(kind: str) -> Any:
        return {
            "good": {"x": 1},
            "bad": {"x": "one"},
            "whole": CallToolResult(content=[], structured_content={"x": 2}),
            "wrong": CallToolResult(content=[], structured_content={}),
            "bare": CallToolResult(content=[TextContent(text="2")]),
            "failure": CallToolResult(content=[TextContent(text="no")], is_error=True),
        }[kind]

    client = Client(app)
    assert (await client.call("run", {"kind": "good"}))["structuredContent"] == {"x": 1}
    assert (await client.call("run", {"kind": "whole"}))["structuredContent"] == {"x": 2}
    assert error_text(await client.call("run", {"kind": "failure"})) == "no"
    for kind in ("bad", "wrong", "bare"):
        assert mentions(error_text(await client.call("run", {"kind": kind})), "run")


# What is published is what is kept, in every revision


def an_integer() -> int:
    return 4


def an_object() -> Point:
    return Point(1)


def perhaps_an_object() -> Point | None:
    return Point(1)


def perhaps_nothing() -> Point | None:
    return None


def a_list() -> list[Point]:
    return [Point(1), Point(2)]


def one_or_many() -> Point | list[Point]:
    return Point(1)


def many_or_one() -> Point | list[Point]:
    return [Point(1)]


def a_tree() -> Tree:
    return Tree("root", [Tree("leaf")])


def perhaps_a_tree() -> Tree | None:
    return Tree("root")


def a_mapping() -> dict[str, int]:
    return {"a": 1}


def a_typed_dict() -> Named:
    return {"name": "n"}


def a_literal() -> Literal["a", "b"]:
    return "a"


def a_text_or_number() -> str | int:
    return 5


def a_truth() -> bool:
    return True


PUBLISHING = [
    an_integer,
    an_object,
    perhaps_an_object,
    perhaps_nothing,
    a_list,
    one_or_many,
    many_or_one,
    a_tree,
    perhaps_a_tree,
    a_mapping,
    a_typed_dict,
    a_literal,
    a_text_or_number,
    a_truth,
]


@pytest.mark.parametrize("revision", [NEWEST, LATEST_HANDSHAKE, "2025-06-18", "draft"])
@pytest.mark.parametrize("function", PUBLISHING, ids=lambda function: function.__name__)
async def test_the_structured_result_fits_the_schema_that_is_listed(function: Any, revision: str) -> None:
    app = Server("publisher")
    app.add_tool(function)
    client = Client(app, revision)
    (listed,) = (await client.request("tools/list"))["tools"]
    result = await client.call(function.__name__)
    assert "isError" not in result
    jsonschema_rs.validate(listed["outputSchema"], result["structuredContent"])
    assert listed["outputSchema"]["type"] == "object"
    assert isinstance(result["structuredContent"], dict)


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26"])
@pytest.mark.parametrize("function", PUBLISHING, ids=lambda function: function.__name__)
async def test_before_there_were_schemas_the_text_says_it_all(function: Any, revision: str) -> None:
    app = Server("publisher")
    app.add_tool(function)
    client = Client(app, revision)
    (listed,) = (await client.request("tools/list"))["tools"]
    assert "outputSchema" not in listed
    result = await client.call(function.__name__)
    assert set(result) == {"content"}
    newest = await Client(app).call(function.__name__)
    assert text(result) == text(newest)


def test_a_failure_the_model_reads() -> None:
    assert build_error_result("no") == CallToolResult(content=[TextContent(text="no")], is_error=True)
