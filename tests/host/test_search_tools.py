"""Test the three search tools that replace all others, and their output."""

import json
from typing import Any

import pytest

from dovetail.errors import InvalidParams
from dovetail.host.catalog import Catalog
from dovetail.host.catalog_item import ServerDefinitions
from dovetail.host.search_tools import SEARCH_TOOL_BY_NAME, create_search_catalog, run_search_tool
from dovetail.search.tool_search import parse_inner_call
from dovetail.wire.prompts import Prompt
from dovetail.wire.tools import CallToolResult, Tool


def catalog() -> Catalog:
    tools = [
        Tool(name=f"tool{number}", description="Adds numbers.\n" + "x" * 999, input_schema={"type": "object"})
        for number in range(60)
    ]
    return Catalog.from_servers({"s": ServerDefinitions(tools=tools, prompts=[Prompt(name="p")])})


def said(result: CallToolResult) -> Any:
    return json.loads(result.content[0].text)  # pyright: ignore[reportAttributeAccessIssue]


def test_the_three_stand_for_all_tools_and_for_nothing_else() -> None:
    found = create_search_catalog(catalog())
    assert [one.model_name for one in found.tools] == ["host__call_tool", "host__describe_tool", "host__search_tools"]
    assert [one.name for one in found.prompts] == ["p"]
    assert {one.model_name for one in found.tools} | {one.full_name for one in found.tools} == {*SEARCH_TOOL_BY_NAME}


@pytest.mark.parametrize(("limit", "number"), [(3, 3), (50, 50), (51, 10), (0, 10), ("5", 10), (True, 10), (None, 10)])
def test_a_search_is_bounded_and_brief(limit: Any, number: int) -> None:
    found = said(run_search_tool(catalog(), "search_tools", {"query": "add numbers", "limit": limit}))
    assert len(found) == number
    assert all(len(one["description"]) <= 200 and "\n" not in one["description"] for one in found)


def test_a_description_is_whole_and_has_the_name_to_call() -> None:
    told = said(run_search_tool(catalog(), "describe_tool", {"name": "s.tool7"}))
    assert told["name"] == "s__tool7"
    assert len(told["description"]) > 999
    assert run_search_tool(catalog(), "describe_tool", {"name": "s.none"}).is_error
    assert run_search_tool(catalog(), "describe_tool", {}).is_error


def test_the_call_within() -> None:
    assert parse_inner_call({"name": "s.t", "arguments": {"a": 1}}) == ("s.t", {"a": 1})
    assert parse_inner_call({"name": "s.t"}) == ("s.t", {})


@pytest.mark.parametrize("wrong", [{}, {"name": 1}, {"name": "t", "arguments": []}, {"name": "t", "arguments": "{}"}])
def test_an_invalid_call(wrong: Any) -> None:
    with pytest.raises(InvalidParams):
        parse_inner_call(wrong)
