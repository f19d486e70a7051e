"""Offers: what a definition takes of a conversation, and what a thing is called at home."""

from dovetail.host.offers import home_name, tokens_of
from dovetail.wire.prompts import Prompt
from dovetail.wire.resources import Resource, ResourceTemplate
from dovetail.wire.tools import Tool


def test_a_tool_costs_what_a_model_reads_of_it() -> None:
    schema = {"type": "object"}
    short = Tool(name="t", input_schema=schema)
    long = Tool(name="t", description="x" * 4_000, input_schema=schema)
    unseen = Tool(name="t", title="x" * 4_000, input_schema=schema, output_schema={"description": "x" * 4_000})
    assert tokens_of(long) - tokens_of(short) == 1_000
    assert tokens_of(unseen) == tokens_of(short) > 0


def test_names_at_home() -> None:
    assert home_name(Tool(name="t", input_schema={})) == "t"
    assert home_name(Prompt(name="p")) == "p"
    assert home_name(Resource(uri="a:b", name="r")) == "a:b"
    assert home_name(ResourceTemplate(uri_template="a:{b}", name="r")) == "a:{b}"
