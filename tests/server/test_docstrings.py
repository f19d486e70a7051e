"""Test parsing docstrings: parameter descriptions and the remaining text."""

from typing import Annotated, Any

import msgspec
import pytest

from dovetail import Server
from dovetail.server.parameters.docstrings import parse
from server.direct_client import Client

GOOGLE = """Forecast the weather.

    Uses three models: all of them slow.

    Args:
        city (str, optional): Name of the city,
            in any language.
        *days: How many days.

            At most ten.

    Returns:
        One entry per day.

    Raises:
        LookupError: no such city.
"""
NUMPY = """Forecast the weather.

    Uses three models: all of them slow.

    Parameters
    ----------
    city : str
        Name of the city,
        in any language.
    days, hours : int
        How many.

    Returns
    -------
    list
        One entry per day.

    Raises
    ------
    LookupError
        No such city.
"""
SPHINX = """Forecast the weather.

    Uses three models: all of them slow.

    :param str city: Name of the city,
        in any language.
    :param days: How many.
    :type days: int
    :returns: One entry per day.
    :raises LookupError: no such city.
"""


def test_google() -> None:
    doc = parse(GOOGLE)
    assert doc.parameters == {"city": "Name of the city, in any language.", "days": "How many days.\n\nAt most ten."}
    assert doc.text == (
        "Forecast the weather.\n\nUses three models: all of them slow.\n\nReturns:\n    One entry per day."
    )


def test_numpy() -> None:
    doc = parse(NUMPY)
    assert doc.parameters == {"city": "Name of the city, in any language.", "days": "How many.", "hours": "How many."}
    assert doc.text.startswith("Forecast the weather.\n\nUses three")
    assert doc.text.endswith("Returns\n-------\nlist\n    One entry per day.")


def test_sphinx() -> None:
    doc = parse(SPHINX)
    assert doc.parameters == {"city": "Name of the city, in any language.", "days": "How many."}
    assert doc.text.endswith("all of them slow.\n\nReturns: One entry per day.")


@pytest.mark.parametrize(
    "text",
    [
        "Only a sentence.",
        "Args: a word that begins a sentence, not a section.",
        "Text.\n\nArgs:\n    none of these lines. Names a parameter: or does it",
        "Text.\n\nExample:\n    >>> f(x=1)",
        "Ratio\n=====\nfoo: bar",
        "See :class:`Thing` and\n:ref:`that`",
        "",
    ],
)
def test_text_that_is_not_a_section_stays(text: str) -> None:
    parsed = parse(text)
    assert (parsed.text, parsed.parameters) == (text, {})
    assert parse(None) == parse("")


class Place(msgspec.Struct):
    """Somewhere.

    Attributes:
        lat: Degrees north.
    """

    lat: float


async def test_descriptions_reach_tools_prompts_and_templates() -> None:
    app = Server("weather")

    @app.tool
    def forecast(city: str, days: Annotated[int, "In days."] = 3, place: Place | None = None) -> str:
        """Forecast.

        Args:
            city: Any language.
            days: Not this one.
        """
        return city

    @app.prompt
    def pack(city: str) -> str:
        """Pack.

        :param city: Where to.
        """
        return city

    @app.resource("city://{name}")
    def profile(name: str) -> str:
        """A city.

        Parameters
        ----------
        name
            Which.
        """
        return name

    client = Client(app)
    (tool,) = (await client.request("tools/list"))["tools"]
    assert tool["description"] == "Forecast."
    properties: dict[str, Any] = tool["inputSchema"]["properties"]
    assert properties["city"]["description"] == "Any language."
    assert properties["days"]["description"] == "In days."
    assert properties["place"]["anyOf"][0]["properties"]["lat"]["description"] == "Degrees north."
    assert properties["place"]["anyOf"][0]["description"] == "Somewhere."
    (prompt,) = (await client.request("prompts/list"))["prompts"]
    assert prompt["description"] == "Pack."
    assert prompt["arguments"] == [{"name": "city", "description": "Where to.", "required": True}]
    (template,) = (await client.request("resources/templates/list"))["resourceTemplates"]
    assert template["description"] == "A city."
