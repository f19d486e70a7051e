"""Forms: definitions as each maker takes them, and their calls read back, whatever shape they come in."""

from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.host.forms import anthropic, findings, gemini, openai, read_anthropic, read_gemini, read_openai
from dovetail.host.offers import Offered
from dovetail.wire.tools import Tool


def offered(schema: dict[str, Any], description: str = "Does it.") -> Offered:
    tool = Tool(name="t", description=description, input_schema=schema)
    return Offered(server="s", name="t", full="s.t", exposed="s__t", declaration=tool)


PLAIN = {"type": "object", "properties": {"a": {"type": "integer"}}}


def test_each_maker_has_its_own_words() -> None:
    (chat,), (flat,) = openai([offered(PLAIN)]), openai([offered(PLAIN)], api="responses")
    assert chat == {"type": "function", "function": {"name": "s__t", "description": "Does it.", "parameters": PLAIN}}
    assert flat == {"type": "function", "name": "s__t", "description": "Does it.", "parameters": PLAIN}
    assert anthropic([offered(PLAIN)]) == [{"name": "s__t", "description": "Does it.", "input_schema": PLAIN}]
    (made,) = gemini([offered(PLAIN)])
    assert made["functionDeclarations"][0]["parametersJsonSchema"] == PLAIN
    assert gemini([]) == []
    with pytest.raises(ValueError, match="responses"):
        openai([], api="other")
    with pytest.raises(ValueError, match="gemini"):
        findings([], "other")


def test_what_a_maker_would_refuse_is_said_in_words_instead() -> None:
    """What was valid stays valid: the schema only becomes wider."""
    given: dict[str, Any] = PLAIN | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    (made,) = anthropic([offered(given)])
    assert made["input_schema"] == PLAIN
    assert 'anyOf: [{"required":["a"]},{"required":["b"]}]' in made["description"]
    assert "anyOf" in given  # the declaration itself is nobody's to change
    (empty,) = openai([offered({})])
    assert empty["function"]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("read", "call"),
    [
        (read_openai, {"function": {"name": "t", "arguments": '{"a": 1}'}}),
        (read_openai, {"name": "t", "arguments": {"a": 1}}),
        (read_openai, SimpleNamespace(function=SimpleNamespace(name="t", arguments='{"a": 1}'))),
        (read_anthropic, SimpleNamespace(name="t", input={"a": 1})),
        (read_gemini, {"functionCall": {"name": "t", "args": {"a": 1}}}),
        (read_gemini, SimpleNamespace(name="t", args={"a": 1})),
    ],
)
def test_calls_read_back(read: Any, call: Any) -> None:
    assert read(call) == ("t", {"a": 1})


def test_no_arguments_are_none() -> None:
    assert read_openai({"name": "t", "arguments": " "}) == ("t", {})
    assert read_anthropic({"name": "t", "input": None}) == ("t", {})


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
        read_openai(call)
