"""Whatever a server sends as the schema of a tool, the command line reads it without stumbling."""

import contextlib
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.program import Run
from dovetail.cli import completing
from dovetail.cli import list as listing
from dovetail.cli.arguments import read_arguments
from dovetail.cli.asking import Questions
from dovetail.cli.lint import examined
from dovetail.errors import AnswerError
from dovetail.protocol.drift import differences
from dovetail.protocol.profiles import PROFILES, RULES, fitted
from dovetail.wire.elicitation import ElicitParams
from dovetail.wire.tools import Tool

WORDS = (
    "type", "properties", "required", "enum", "const", "anyOf", "oneOf", "allOf", "items", "prefixItems", "$ref",
    "$defs", "format", "minItems", "exclusiveMinimum", "additionalProperties", "description", "default", "a",
)  # fmt: skip
NAMES = ("object", "string", "integer", "number", "array", "boolean", "null", "#", "#/$defs/a", "weird", "a")

leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.sampled_from(NAMES)
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=20,
)
schemas = st.dictionaries(st.sampled_from(WORDS), anything, max_size=6)


@given(schemas, schemas)
def test_no_schema_is_stumbled_over(schema: dict[str, Any], other: dict[str, Any]) -> None:
    tool = Tool(name="t", input_schema=schema)
    for words in (["a=1"], ["a=x,y"], ["a:=null"]):
        with contextlib.suppress(click.UsageError):
            assert "a" in read_arguments(words, schema)
    assert isinstance(listing._arguments(schema), str)  # pyright: ignore[reportPrivateUsage]
    assert isinstance(completing._of_tool(tool), dict)  # pyright: ignore[reportPrivateUsage]
    assert examined([tool], tuple(RULES))
    for profile in PROFILES:
        assert fitted(profile, schema)["type"] == "object"
    old, new = ({"t": {"inputSchema": one, "outputSchema": one}} for one in (schema, other))
    assert [*differences("tool", old, new)] == [] or schema != other
    question = ElicitParams(mode="form", message="?", requested_schema=schema)
    with contextlib.suppress(AnswerError):
        assert "a" in Questions({"a": "1"}, lambda: None).form(question)


MALFORMED = [
    '{"properties": {"c": 5}}',
    '{"properties": {"c": {"enum": 5}}}',
    '{"properties": {"c": {"type": 5}}}',
    '{"properties": {"c": {"anyOf": 5}}}',
    '{"properties": {"c": {"type": ["weird", null]}}}',
    '{"properties": {"c": {}}, "required": 5}',
    '{"properties": [1]}',
]
SERVER = """
import json, sys
SCHEMAS = {schemas!r}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {{"error": {{"code": -32601, "message": "no"}}}}
    if asked["method"] == "initialize":
        answer = {{"result": {{"protocolVersion": "2025-11-25", "capabilities": {{"tools": {{}}}},
                  "serverInfo": {{"name": "odd", "version": "1"}}}}}}
    elif asked["method"] == "tools/list":
        tools = [{{"name": f"t{{at}}", "inputSchema": json.loads(one)}} for at, one in enumerate(SCHEMAS)]
        tools.append({{"name": 5, "inputSchema": {{"type": "object"}}}})
        answer = {{"result": {{"tools": tools}}}}
    elif asked["method"] == "ping":
        answer = {{"result": {{}}}}
    elif asked["method"] == "tools/call":
        answer = {{"result": {{"content": [{{"type": "text", "text": json.dumps(asked["params"]["arguments"])}}]}}}}
    print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"]}} | answer), flush=True)
"""


@pytest.fixture
def odd(tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "odd_server.py"
    path.write_text(SERVER.format(schemas=MALFORMED), encoding="utf-8")
    return ("--era", "handshake", "--", sys.executable, str(path))


def test_malformed_schemas_are_named_not_stumbled_over(run: Run, odd: tuple[str, ...]) -> None:
    listed = run("list", "tools", *odd).good().out
    assert all(f"t{number}" in listed for number in range(len(MALFORMED)))
    assert run("call", "t0", "c=1", *odd).good().out == '{"c": "1"}\n'
    found = run("lint", "--json", *odd)
    assert found.code == 6
    for tool in found.json["tools"]:
        assert any(one["text"].startswith("the input schema: not a schema") for one in tool["findings"]), tool
    assert len(found.json["left_out"]) == 1
    assert "item 7 of tools is left out" in found.json["left_out"][0]
    assert "item 7 of tools is left out" in run("lint", *odd).out
    said = run("doctor", *odd)
    assert said.code == 6
    assert "XX items: left out, since malformed: item 7 of tools" in said.out
    assert "XX schemas" in said.out
