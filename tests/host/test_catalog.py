"""Test the catalog: names, order, duplicates, and the tools and calls of models."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.host.catalog import Catalog, ServerDefinitions
from dovetail.schemas.provider_rules import find_violations
from dovetail.types import Prompt, Resource, ResourceTemplate, Tool

EMPTY: dict[str, Any] = {"type": "object", "properties": {}}


def tool(name: str, description: str = "", **schema: Any) -> Tool:
    return Tool(name=name, description=description or None, input_schema=EMPTY | schema)


def catalog(**servers: list[Tool]) -> Catalog:
    return Catalog.from_servers({name: ServerDefinitions(tools=tools) for name, tools in servers.items()})


TWO = catalog(
    github=[tool("search", "Search issues"), tool("create.issue", "Create an issue")],
    docs=[tool("search", "Search pages"), tool("read", "Read a page")],
)


def test_a_tool_is_found_by_each_of_its_names() -> None:
    for one in TWO.tools:
        assert TWO.find(one.full_name) is TWO.find(one.model_name) is one
    bare = TWO.find("read")
    assert bare is not None
    assert bare.full_name == "docs.read"
    assert TWO.find("create.issue") is TWO.find("github.create.issue")
    assert TWO.find("search") is None  # two servers have one
    assert TWO.find("nothing") is None


names = st.text(alphabet="ab_.-é", min_size=1, max_size=6)
servers = st.dictionaries(
    st.from_regex(r"[ab_-]{1,4}", fullmatch=True), st.lists(names, max_size=5, unique=True), max_size=4
)


@given(servers)
def test_every_name_can_be_resolved_and_belongs_to_one_tool(given: dict[str, list[str]]) -> None:
    made = Catalog.from_servers(
        {name: ServerDefinitions(tools=[tool(one) for one in tools]) for name, tools in given.items()}
    )
    assert not made.problems
    assert {(one.server, one.name) for one in made.tools} == {
        (name, one) for name, tools in given.items() for one in tools
    }
    for one in made.tools:
        call = {"name": one.model_name, "input": {"x": 1}}
        assert made.parse_anthropic_call(call) == (one.full_name, {"x": 1})
        assert made.find(one.full_name) is one
    assert len({one.model_name for one in made.tools} | {one.full_name for one in made.tools}) == 2 * len(made.tools)


@given(servers, st.randoms(use_true_random=False))
def test_the_order_is_that_of_the_names(given: dict[str, list[str]], chance: Any) -> None:
    manifests = {name: ServerDefinitions(tools=[tool(one) for one in tools]) for name, tools in given.items()}
    mixed = [*given.items()]
    chance.shuffle(mixed)
    shuffled = {
        name: ServerDefinitions(tools=[tool(one) for one in sorted(tools, reverse=True)]) for name, tools in mixed
    }
    assert Catalog.from_servers(manifests) == Catalog.from_servers(shuffled)


@given(servers, servers)
def test_no_tool_is_renamed_when_a_server_joins(given: dict[str, list[str]], joining: dict[str, list[str]]) -> None:
    def exposed(servers: dict[str, list[str]]) -> dict[str, str]:
        made = Catalog.from_servers(
            {name: ServerDefinitions(tools=[tool(one) for one in tools]) for name, tools in servers.items()}
        )
        return {one.full_name: one.model_name for one in made.tools}

    assert exposed(given).items() <= exposed(joining | given).items()


def test_of_two_things_under_one_name_neither_is_offered() -> None:
    made = catalog(a=[tool("x", "one"), tool("y"), tool("x", "other"), tool("x", "one")], b=[tool("x")])
    assert [one.full_name for one in made.tools] == ["a.y", "b.x"]
    (problem,) = made.problems
    assert "a" in problem.split()
    assert "tool 'x'" in problem
    assert made.find("a.x") is None


def test_a_name_of_two_tools_belongs_to_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    def bare(_: str, tool: str) -> str:
        return tool

    monkeypatch.setattr("dovetail.host.catalog.make_model_name", bare)
    made = catalog(a=[tool("x"), tool("y")], b=[tool("x")], c=[tool("x")])
    assert [one.full_name for one in made.tools] == ["a.y"]
    assert len(made.problems) == 2
    assert all(name in made.problems[0] for name in ("'a.x'", "'b.x'"))


def test_the_same_thing_twice_is_offered_once() -> None:
    made = catalog(a=[tool("x"), tool("x")])
    assert [one.full_name for one in made.tools] == ["a.x"]
    assert not made.problems


def test_everything_of_every_server_is_there() -> None:
    made = Catalog.from_servers(
        {
            "b": ServerDefinitions(
                resources=[Resource(uri="file:///z", name="z"), Resource(uri="file:///a", name="a")],
                resource_templates=[ResourceTemplate(uri_template="file:///{x}", name="t")],
                prompts=[Prompt(name="review")],
            ),
            "a": ServerDefinitions(resources=[Resource(uri="file:///a", name="a")]),
        }
    )
    assert [one.full_name for one in made.resources] == ["a.file:///a", "b.file:///a", "b.file:///z"]
    assert [one.name for one in made.resource_templates] == ["file:///{x}"]
    found = made.find_prompt("b.review")
    assert found is made.find_prompt("b__review") is made.prompts[0]
    assert made.find_prompt("review") is None


def test_tokens_are_counted() -> None:
    small, large = catalog(a=[tool("x")]), catalog(a=[tool("x", "w" * 4000)])
    assert 0 < small.tokens < 40
    assert large.tokens - small.tokens == 1000
    assert TWO.tokens == sum(one.tokens for one in TWO.tools)


def test_a_part_of_a_catalog() -> None:
    some = TWO.filter(["docs.read", "docs.nothing"])
    assert [one.full_name for one in some.tools] == ["docs.read"]
    assert some.find("docs.search") is None
    assert len(TWO.tools) == 4


def test_a_search_finds_what_fits_best() -> None:
    assert [one.full_name for one in TWO.search("search for an issue")][:1] == ["github.search"]
    assert len(TWO.search("search", 1)) == 1


# For models, and back.


def test_the_forms_of_the_makers() -> None:
    made = catalog(docs=[tool("search", "Search pages", properties={"q": {"type": "string"}}, required=["q"])])
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    said = {"name": "docs__search", "description": "Search pages"}
    assert made.to_openai() == [{"type": "function", "function": said | {"parameters": schema}}]
    assert made.to_openai(api="responses") == [{"type": "function", **said, "parameters": schema}]
    assert made.to_anthropic() == [said | {"input_schema": schema}]
    assert made.to_gemini() == [{"functionDeclarations": [said | {"parametersJsonSchema": schema}]}]
    assert Catalog().to_gemini() == []
    with pytest.raises(ValueError, match="chat"):
        made.to_openai(api="edits")


@pytest.mark.parametrize(
    "call",
    [
        {"id": "1", "type": "function", "function": {"name": "docs__read", "arguments": '{"page": 1}'}},
        {"type": "function_call", "name": "docs__read", "arguments": '{"page": 1}'},
        SimpleNamespace(id="1", function=SimpleNamespace(name="docs__read", arguments='{"page": 1}')),
        SimpleNamespace(function=None, name="docs__read", arguments='{"page": 1}'),
    ],
)
def test_calls_of_openai(call: Any) -> None:
    assert TWO.parse_openai_call(call) == ("docs.read", {"page": 1})


def test_calls_of_the_others() -> None:
    use = {"type": "tool_use", "id": "1", "name": "docs__read", "input": {"page": 1}}
    assert (
        TWO.parse_anthropic_call(use) == TWO.parse_anthropic_call(SimpleNamespace(**use)) == ("docs.read", {"page": 1})
    )
    call = {"name": "docs__read", "args": {"page": 1}}
    assert TWO.parse_gemini_call(call) == TWO.parse_gemini_call({"functionCall": call}) == ("docs.read", {"page": 1})
    assert TWO.parse_gemini_call(SimpleNamespace(function_call=SimpleNamespace(**call))) == ("docs.read", {"page": 1})
    assert TWO.parse_gemini_call({"name": "docs__read", "args": None}) == ("docs.read", {})
    assert TWO.parse_openai_call({"name": "docs__read", "arguments": ""}) == ("docs.read", {})


@pytest.mark.parametrize(
    ("call", "about"),
    [
        ({"name": "docs__write", "arguments": "{}"}, "'docs__write'"),
        ({"name": "read", "arguments": "{}"}, "'read'"),  # a model is held to the names it was given
        ({"name": "docs__read", "arguments": "{"}, "JSON: Expecting"),
        ({"name": "docs__read", "arguments": "[1]"}, "JSON object"),
        ({"arguments": "{}"}, "tool"),
    ],
)
def test_a_call_that_cannot_be_made_says_why(call: Any, about: str) -> None:
    with pytest.raises(ValueError, match=about):
        TWO.parse_openai_call(call)


REFUSED = catalog(
    a=[
        Tool(name="either", description="E", input_schema={"anyOf": [{"required": ["x"]}], "properties": {"x": {}}}),
        tool("list", properties={"ids": {"type": "array"}, "deep": {"type": "array", "items": {"type": "array"}}}),
        tool("long", "w" * 5000),
        Tool(name="bare", input_schema={}),
    ]
)


def test_a_definition_refused_by_a_provider_is_reported_and_widened() -> None:
    found = dict(REFUSED.lint("openai"))
    assert found.keys() == {"a.bare", "a.either", "a.list", "a.long"}
    for entry in REFUSED.to_openai():
        one = entry["function"]
        assert not [*find_violations("openai", one["name"], one["description"], one["parameters"])]
    either = next(one for one in REFUSED.to_anthropic() if one["name"] == "a__either")
    assert either["input_schema"] == {"type": "object", "properties": {"x": {}}}
    assert json.dumps([{"required": ["x"]}], separators=(",", ":")) in either["description"]
    with pytest.raises(ValueError, match="provider"):
        REFUSED.lint("nobody")


def test_the_declarations_themselves_stay_as_they_are() -> None:
    before = [json.dumps(one.definition.input_schema) for one in REFUSED.tools]
    REFUSED.to_openai()
    REFUSED.to_gemini()
    assert [json.dumps(one.definition.input_schema) for one in REFUSED.tools] == before
