"""Test that the command line handles any tool schema that a server sends."""

import contextlib
import json
import re
import shlex
import sys
from collections.abc import Callable
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.command_process import RunCommand
from dovetail.cli.answers import AnswerProvider
from dovetail.cli.commands.diff import compare_items
from dovetail.cli.item_lint import lint_tools
from dovetail.cli.item_page import format_item
from dovetail.cli.target_argument import TargetOptions
from dovetail.cli.tool_arguments import read_arguments
from dovetail.errors import InputRequestError
from dovetail.schemas.provider_rules import PROFILES, PROVIDER_RULES, fit_schema
from dovetail.wire.elicitation import ElicitRequestParams
from dovetail.wire.tools import Tool

WORDS = (
    "type", "properties", "required", "enum", "const", "anyOf", "oneOf", "allOf", "items", "prefixItems", "$ref",
    "$defs", "format", "minItems", "exclusiveMinimum", "additionalProperties", "description", "default", "a",
)  # fmt: skip
NAMES = ("object", "string", "integer", "number", "array", "boolean", "null", "#", "#/$defs/a", "weird", "a")

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(NAMES)
)
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
    assert lint_tools([tool], tuple(PROVIDER_RULES))
    assert format_item(tool, TargetOptions(args=("s.py", "t"))).startswith("t\n")
    for profile in PROFILES:
        assert fit_schema(profile, schema)["type"] == "object"
    old, new = ({"t": {"inputSchema": one, "outputSchema": one}} for one in (schema, other))
    assert [*compare_items("tool", old, new)] == [] or schema != other
    question = ElicitRequestParams(mode="form", message="?", requested_schema=schema)
    with contextlib.suppress(InputRequestError):
        assert "a" in AnswerProvider({"a": "1"}, contextlib.nullcontext).fill_form(question)


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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[str]], list[str]]:
    """Write a server whose tools have these schemas; return the words that name it as a target."""

    def write(given: list[str]) -> list[str]:
        path = tmp_path_factory.mktemp("schemas") / "odd_server.py"
        path.write_text(SERVER.format(schemas=given), encoding="utf-8")
        return ["--protocol-version", "handshake", "--", sys.executable, str(path)]

    return write


@pytest.fixture
def odd(server: Callable[[list[str]], list[str]]) -> list[str]:
    return server(MALFORMED)


def test_malformed_schemas_are_named_not_stumbled_over(run: RunCommand, odd: list[str]) -> None:
    listed = run("list", "tools", *odd).check_success().out
    assert all(f"t{number}" in listed for number in range(len(MALFORMED)))
    assert run("call", "t0", "c=1", *odd).check_success().out == '{"c": "1"}\n'
    found = run("lint", "--json", *odd)
    assert found.code == 6
    for tool in found.json["tools"]:
        assert any(issue["rule"] == "protocol" for issue in tool["issues"]), tool
    assert len(found.json["skipped_items"]) == 1
    assert re.search(r"\b7\b.*\btools\b", found.json["skipped_items"][0])
    assert found.json["skipped_items"][0] in run("lint", *odd).out
    said = run("doctor", "--json", *odd)
    assert said.code == 6
    steps = {step["name"]: step for step in said.json["checks"]}
    assert [name for name, step in steps.items() if step["status"] == "fail"] == ["items", "schemas"]
    assert re.search(r"\b7\b", steps["items"]["message"])


@given(st.lists(schemas, min_size=30, max_size=30))
@settings(max_examples=3, deadline=None)
def test_no_schema_stops_lists_and_completion(
    run: RunCommand, server: Callable[[list[str]], list[str]], found: list[Any]
) -> None:
    target = server([json.dumps(schema) for schema in found])
    listed = run("list", "tools", *target).check_success().out
    names = [f"t{number}" for number in range(len(found))]
    assert all(name in listed for name in names)
    line = shlex.join(["dovetail", "call", "t", *target])
    point = line.index(" t ") + 2
    said = run(_DOVETAIL_COMPLETE="zsh", COMP_LINE=line, COMP_POINT=str(point))
    assert {*names} <= {*said.check_success().out.splitlines()}
