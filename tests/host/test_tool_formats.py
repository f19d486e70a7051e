"""Test converting tool definitions to each provider's format, and reading calls back."""

from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.host.catalog_item import CatalogEntry
from dovetail.host.tool_formats import (
    lint_tools,
    parse_anthropic_call,
    parse_gemini_call,
    parse_openai_call,
    to_anthropic_tools,
    to_gemini_tools,
    to_openai_tools,
)
from dovetail.wire.tools import Tool


def offered(schema: dict[str, Any], description: str = "Does it.") -> CatalogEntry:
    tool = Tool(name="t", description=description, input_schema=schema)
    return CatalogEntry(server="s", name="t", full_name="s.t", model_name="s__t", definition=tool)


PLAIN = {"type": "object", "properties": {"a": {"type": "integer"}}}


def test_each_maker_has_its_own_words() -> None:
    (chat,), (flat,) = to_openai_tools([offered(PLAIN)]), to_openai_tools([offered(PLAIN)], api="responses")
    assert chat == {"type": "function", "function": {"name": "s__t", "description": "Does it.", "parameters": PLAIN}}
    assert flat == {"type": "function", "name": "s__t", "description": "Does it.", "parameters": PLAIN}
    assert to_anthropic_tools([offered(PLAIN)]) == [{"name": "s__t", "description": "Does it.", "input_schema": PLAIN}]
    (made,) = to_gemini_tools([offered(PLAIN)])
    assert made["functionDeclarations"][0]["parametersJsonSchema"] == PLAIN
    assert to_gemini_tools([]) == []
    with pytest.raises(ValueError, match="responses"):
        to_openai_tools([], api="other")
    with pytest.raises(ValueError, match="gemini"):
        lint_tools([], "other")


def test_keywords_refused_by_a_provider_move_to_the_description() -> None:
    """What was valid stays valid: the schema only becomes wider."""
    given: dict[str, Any] = PLAIN | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    (made,) = to_anthropic_tools([offered(given)])
    assert made["input_schema"] == PLAIN
    assert 'anyOf: [{"required":["a"]},{"required":["b"]}]' in made["description"]
    assert "anyOf" in given  # the declaration itself is nobody's to change
    (empty,) = to_openai_tools([offered({})])
    assert empty["function"]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("read", "call"),
    [
        (parse_openai_call, {"function": {"name": "t", "arguments": '{"a": 1}'}}),
        (parse_openai_call, {"name": "t", "arguments": {"a": 1}}),
        (parse_openai_call, SimpleNamespace(function=SimpleNamespace(name="t", arguments='{"a": 1}'))),
        (parse_anthropic_call, SimpleNamespace(name="t", input={"a": 1})),
        (parse_gemini_call, {"functionCall": {"name": "t", "args": {"a": 1}}}),
        (parse_gemini_call, SimpleNamespace(name="t", args={"a": 1})),
    ],
)
def test_calls_read_back(read: Any, call: Any) -> None:
    assert read(call) == ("t", {"a": 1})


def test_no_arguments_are_none() -> None:
    assert parse_openai_call({"name": "t", "arguments": " "}) == ("t", {})
    assert parse_anthropic_call({"name": "t", "input": None}) == ("t", {})


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        ({"name": "t", "arguments": "{"}, "JSON: Expecting"),
        ({"name": "t", "arguments": "[1]"}, "JSON object"),
        ({"name": 5, "arguments": "{}"}, "tool"),
        ({}, "tool"),
    ],
)
def test_what_cannot_be_read(call: Any, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        parse_openai_call(call)
