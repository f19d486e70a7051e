"""Test the page about one tool, prompt or resource."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from cli.command_process import SAMPLE_SERVER, RunCommand
from dovetail.cli.item_page import format_item
from dovetail.cli.target_argument import TargetOptions
from dovetail.cli.tool_arguments import read_arguments
from dovetail.wire.tools import Tool, ToolAnnotations


def test_a_tool_has_a_page_with_a_command_that_works(run_here: RunCommand, url: str) -> None:
    page = run_here("info", url, "add").check_success().out
    assert page.startswith("add\n  Add two numbers.")
    assert re.search(r"a +integer +required +The first\.", page)
    assert re.search(r"b +integer +default 1 +The second\.", page)
    command = shlex.split(page.rstrip().rpartition("\n")[2])
    assert command == ["dovetail", "call", url, "add", "a=1"]
    assert run_here(*command[1:]).check_success().out == "2\n"


def test_help_after_a_tool_is_the_same_page(run_here: RunCommand, url: str) -> None:
    page = run_here("info", url, "add").check_success().out
    assert run_here("call", url, "add", "--help").check_success().out == page
    assert run_here("call", url, "-h", "add", "a=1").check_success().out == page
    assert run_here("call", url, "--help").check_success().out.startswith("Usage: dovetail call")


def test_prompts_resources_and_templates_have_pages(run_here: RunCommand, url: str) -> None:
    assert re.search(r"city +required", run_here("info", url, "packing").check_success().out)
    assert f"dovetail read {url} notes://all" in run_here("info", url, "notes://all").check_success().out
    assert run_here("info", url, "note").check_success().out.startswith("notes://{name}")
    assert run_here("info", url, "add", "--json").check_success().json["inputSchema"]["required"] == ["a"]


def test_unknown_names(run_here: RunCommand, url: str) -> None:
    for words in (("info", url, "ad"), ("call", url, "ad", "--help")):
        refused = run_here(*words)
        assert refused.code == 2
        assert "'add'" in refused.err
    assert run_here("info", url, "add", "more").code == 2
    assert run_here("info", SAMPLE_SERVER).check_success().out.startswith("name:               served\n")


SEARCHED = """
from dovetail import Server
app = Server("nest", search=True)
@app.tool
def count_nuts(shelf: int) -> str:
    return f"{shelf!r}"
@app.prompt
def packing_list(city: str) -> str:
    return city
@app.resource("notes://today")
def today() -> str:
    return "buy tea"
"""
# A server whose tools have the names of the search tools, but other arguments.
NAMESAKES = """
from dovetail import Server
app = Server("third")
@app.tool
def search_tools(query: str) -> str:
    return "hand tools"
@app.tool
def describe_tool(name: str) -> str:
    return "A hammer is a tool."
@app.tool
def call_tool(name: str) -> str:
    return "called"
"""
# A server that has all arguments of the search tools, but describes no tool.
UNREADABLE = NAMESAKES.replace("query: str", "query: str, limit: int = 1").replace(
    "call_tool(name: str)", "call_tool(name: str, arguments: dict[str, int] = {})"
)


def test_tools_that_are_not_listed(run_here: RunCommand, tmp_path: Path) -> None:
    file = tmp_path / "nest.py"
    file.write_text(SEARCHED)
    page = run_here("call", file, "count_nuts", "--help").check_success().out
    assert re.search(r"shelf +integer +required", page)
    assert run_here("call", file, "count_nuts", "shelf=2").check_success().out == "2\n"
    for words in (("info", file, "cuont_nuts"), ("call", file, "cuont_nuts")):
        refused = run_here(*words)
        assert refused.code == 2
        assert "search_tools" in refused.err
    for name, suggestion in (("packing_lst", "packing_list"), ("notes://tody", "notes://today")):
        refused = run_here("info", file, name)
        assert refused.code == 2
        assert f"unknown name '{name}'. Did you mean '{suggestion}'? To find names, call search_tools" in refused.err


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        (NAMESAKES, ". Available: search_tools, describe_tool, call_tool"),
        (UNREADABLE, ". To find names, call search_tools"),
    ],
)
def test_another_server_has_tools_with_the_names_of_the_search_tools(
    run_here: RunCommand, tmp_path: Path, source: str, hint: str
) -> None:
    file = tmp_path / "third.py"
    file.write_text(source)
    for words, noun in ((("info", file, "hammer"), "name"), (("call", file, "hammer", "--help"), "tool")):
        refused = run_here(*words)
        assert refused.code == 2
        assert f"unknown {noun} 'hammer'{hint}" in refused.err


def describe(schema: dict[str, Any], **options: Any) -> str:
    return format_item(Tool(name="t", input_schema=schema, **options), TargetOptions(args=("s.py", "t")))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 14}, "integer, 1 to 14"),
        ({"type": "string", "minLength": 1, "pattern": "^a"}, "string, at least 1 characters, matching ^a"),
        ({"enum": ["c", "f", None]}, '"c" | "f" | null'),
        ({"type": "array", "items": {"type": "number"}, "maxItems": 3}, "list of number, at most 3 items"),
        ({"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}, "string, date or null"),
        ({"oneOf": [{"const": 1}, {"const": 2}]}, "1 | 2"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "object of integer"),
        ({}, "any value"),
    ],
)
def test_types_are_described(schema: dict[str, Any], text: str) -> None:
    assert f"x  {text}  optional" in describe({"properties": {"x": schema}})


def test_fields_of_fields_are_listed_and_circles_end() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
    page = describe({"properties": {"list": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}})
    assert re.findall(r"(?m)^( +)next ", page) == ["    ", "      ", "        "]


def test_annotations_and_result() -> None:
    result = {"type": "object", "properties": {"sum": {"type": "integer", "description": "The sum."}}}
    page = describe({}, output_schema=result, annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
    assert re.search(r"Result\n  sum  integer  The sum\.\n", page)
    assert "Annotations\n  reads only\n  stays within the server\n" in page


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"examples": ["$(reboot)"]}}},
        {"properties": {"a": {"examples": ["@~/.ssh/id_rsa"]}}},
        {"properties": {"a": {"examples": [["@/etc/passwd"]], "type": "array"}}},
        {"properties": {"a": {"examples": ["x\x1b[2J\nrm -rf ~"]}}},
        {"properties": {"--output": {"examples": [".bashrc"]}}},
        {"properties": {"a b;c": {"examples": ["x"]}, "d=": {"default": 1}}, "required": ["a b;c", "d="]},
        {"properties": {"a": {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}}},
    ],
)
def test_an_example_sends_only_its_own_values(schema: dict[str, Any]) -> None:
    command = describe(schema).rpartition("Example\n")[2].strip()
    assert "\n" not in command
    assert "\x1b" not in command
    verb, target, tool, *words = shlex.split(command)[1:]
    assert (verb, target, tool) == ("call", "s.py", "t")
    options = [word.removeprefix("--arguments=") for word in words if word.startswith("-")]
    arguments = read_arguments([word for word in words if not word.startswith("-")], schema, *options)
    assert arguments.keys() == schema["properties"].keys()
    examples = {name: field["examples"][0] for name, field in schema["properties"].items() if "examples" in field}
    assert arguments | examples == arguments


@pytest.mark.parametrize("name", ["--force", "-o", "a\x1b[2J", "a\nb"])
def test_a_name_that_cannot_be_typed_has_no_example(name: str) -> None:
    page = format_item(Tool(name=name, input_schema={}), TargetOptions(args=("s.py", name)))
    assert "dovetail" not in page
    assert "\x1b" not in page


def test_a_schema_that_grows_with_each_level() -> None:
    definitions: dict[str, Any] = {
        f"d{level}": {
            "type": "object",
            "properties": {f"p{index}": {"$ref": f"#/$defs/d{level + 1}"} for index in range(60)},
            "required": [f"p{index}" for index in range(60)],
            "anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 60,
        }
        for level in range(8)
    }
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "required": ["a"], "$defs": definitions}
    page = format_item(Tool(name="grow", input_schema=schema), TargetOptions(args=["server.py"]))
    assert "dovetail call server.py grow" in page
