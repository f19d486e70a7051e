"""ASGI apps around our servers, as users write them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dovetail_server import app as everything
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from dovetail import Context, Server

entered: list[str] = []


@asynccontextmanager
async def opened() -> AsyncIterator[str]:
    """Yield a value that functions need before the first call."""
    entered.append("database")
    yield f"database {len(entered)}"


other = Server("other", lifespan=opened)


@other.tool
def greet(name: str, ctx: Context) -> str:
    """Greet in another way."""
    return f"Good day, {name}, from {ctx.lifespan}."


async def page(request: Request) -> PlainTextResponse:
    """A page of the surrounding app."""
    return PlainTextResponse("a page")


alone = everything.asgi()
lively = other.asgi()

# No lifespan is passed on: Starlette does not run the lifespan of a mounted app.
side_by_side = Starlette(
    routes=[
        Mount("/one", everything.asgi()),
        Mount("/two/deep", other.asgi(path="/")),
        Route("/", page),
    ]
)
