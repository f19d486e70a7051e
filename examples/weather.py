"""Tools, a resource, a template, a prompt and completion, all from plain annotated functions.

The weather is made up from the city's name, so that this needs no network and answers the same every time.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from dovetail import Server, ToolAnnotations, ToolError

CITIES = {"Bergen": "Norway", "Berlin": "Germany", "Oslo": "Norway", "Paris": "France"}
SKIES = ("clear", "cloudy", "rain", "snow")

app = Server("weather", version="1.0.0", instructions="Forecasts for a few cities. Ask for one day or for several.")


@dataclass
class Day:
    """The weather of one day."""

    day: int
    sky: str
    high: int


@app.tool(annotations=ToolAnnotations(read_only_hint=True))
def forecast(
    city: Annotated[str, "Name of the city, in English"],
    days: Annotated[int, Meta(ge=1, le=7, description="How many days ahead")] = 3,
    unit: Literal["C", "F"] = "C",
) -> list[Day]:
    """Forecast the weather."""
    if city not in CITIES:
        raise ToolError(f"No forecasts for {city}. Known cities: {', '.join(CITIES)}.")
    return [_day(city, number, unit) for number in range(1, days + 1)]


def _day(city: str, number: int, unit: str) -> Day:
    seed = sum(map(ord, city)) + 7 * number
    celsius = seed % 25
    return Day(number, SKIES[seed % len(SKIES)], celsius if unit == "C" else celsius * 9 // 5 + 32)


@app.resource("weather://cities")
def cities() -> dict[str, str]:
    """Every city with a forecast, and its country."""
    return CITIES


@app.resource("weather://cities/{city}", mime_type="text/plain")
def city_page(city: str) -> str:
    """Today in one city."""
    today = _day(city, 0, "C")
    return f"{city}: {today.sky}, {today.high} degrees."


@app.prompt
def packing_list(city: Annotated[str, "Where to"], days: int = 3) -> str:
    """What to pack for a trip."""
    return f"Look up the forecast for {days} days in {city}, then write a short packing list."


@app.complete("packing_list", "city")
@app.complete("weather://cities/{city}", "city")
def known_cities(value: str) -> list[str]:
    """The cities that begin with what was typed."""
    return [city for city in CITIES if city.lower().startswith(value.lower())]


if __name__ == "__main__":
    app.run()
