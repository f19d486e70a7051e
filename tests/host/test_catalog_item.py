"""Test catalog items: the size of a definition and the name on its server."""

from dovetail.host.catalog_item import estimate_tokens, get_item_name
from dovetail.wire.prompts import Prompt
from dovetail.wire.resources import Resource, ResourceTemplate
from dovetail.wire.tools import Tool


def test_a_tool_costs_what_a_model_reads_of_it() -> None:
    schema = {"type": "object"}
    short = Tool(name="t", input_schema=schema)
    long = Tool(name="t", description="x" * 4_000, input_schema=schema)
    unseen = Tool(name="t", title="x" * 4_000, input_schema=schema, output_schema={"description": "x" * 4_000})
    assert estimate_tokens(long) - estimate_tokens(short) == 1_000
    assert estimate_tokens(unseen) == estimate_tokens(short) > 0


def test_names_at_home() -> None:
    assert get_item_name(Tool(name="t", input_schema={})) == "t"
    assert get_item_name(Prompt(name="p")) == "p"
    assert get_item_name(Resource(uri="a:b", name="r")) == "a:b"
    assert get_item_name(ResourceTemplate(uri_template="a:{b}", name="r")) == "a:{b}"
