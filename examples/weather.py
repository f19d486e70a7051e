"""Forecasts from a web service: a tool, resources, a prompt and completion from annotated functions.

The variable WEATHER_URL names the service. Without it, the example uses a fake on loopback and needs no network.
"""

import json
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, TypedDict
from urllib.error import HTTPError
from urllib.parse import quote, unquote
from urllib.request import urlopen

from dovetail import Context, Server, ToolError

CITIES = ("Bergen", "Berlin", "Oslo", "Paris")


class Day(TypedDict):
    day: int
    sky: str
    high: Annotated[int, "Degrees Celsius"]


class Fake(BaseHTTPRequestHandler):
    """A fake service that returns a week for each city, computed from its name."""

    def do_GET(self) -> None:
        city = unquote(self.path).removeprefix("/forecast/")
        week = [Day(day=day, sky=("rain", "sun", "snow")[(len(city) + day) % 3], high=day) for day in range(8)]
        self.send_response(200 if city in CITIES else 404)
        self.end_headers()
        self.wfile.write(json.dumps(week).encode())


@asynccontextmanager
async def service() -> AsyncIterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Fake) as fake:
        threading.Thread(target=fake.serve_forever, args=(0.05,), daemon=True).start()
        yield os.environ.get("WEATHER_URL", f"http://127.0.0.1:{fake.server_port}")
        fake.shutdown()


app = Server("weather", version="1.0.0", instructions="Forecasts for a few cities.", lifespan=service)


@app.tool(read_only=True)
def forecast(city: Annotated[str, "Name of the city, in English"], ctx: Context[str], days: int = 3) -> list[Day]:
    """Forecast the weather."""
    try:
        week: list[Day] = json.load(urlopen(f"{ctx.lifespan}/forecast/{quote(city, safe='')}", timeout=5))
    except HTTPError:
        raise ToolError(f"No forecasts for {city}. Known cities: {', '.join(CITIES)}.") from None
    return week[1 : days + 1]


@app.resource("weather://cities/{city}", mime_type="text/plain")
def city_page(city: str, ctx: Context[str]) -> str:
    """Tomorrow in one city."""
    return f"{city}: {forecast(city, ctx)[0]['sky']}"


@app.prompt
def packing_list(city: Annotated[str, "Where to"], days: int = 3) -> str:
    """What to pack for a trip."""
    return f"Look up the forecast for {days} days in {city}, then write a short packing list."


@app.completion("packing_list", "city")
@app.completion("weather://cities/{city}", "city")
def known_cities(value: str) -> list[str]:
    return [city for city in CITIES if city.lower().startswith(value.lower())]


if __name__ == "__main__":
    app.run()
