"""Two servers in one Starlette application, each under its own path. Needs `pip install starlette uvicorn`.

Run `python examples/mounted.py`, then use http://127.0.0.1:8000/weather/mcp and http://127.0.0.1:8000/notes/mcp.
"""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import notes
import uvicorn
import weather
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

SERVERS = {"weather": weather.app, "notes": notes.app}


async def home(_: Request) -> PlainTextResponse:
    """Return a page of the application itself."""
    return PlainTextResponse("\n".join(f"/{name}/mcp" for name in SERVERS))


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Start and stop the servers, because Starlette does not run the lifespan of a mounted application."""
    for server in SERVERS.values():
        await server.start()
    yield
    for server in SERVERS.values():
        await server.stop()


web = Starlette(
    routes=[Route("/", home), *(Mount(f"/{name}", server.asgi()) for name, server in SERVERS.items())],
    lifespan=lifespan,
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    uvicorn.run(web, port=parser.parse_args().port)
