"""Servers mounted in web frameworks with one line each, as users write them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dovetail import Context, Server


def server(name: str) -> Server:
    """Create a server whose lifespan must run, although no framework passes it on."""

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        yield f"pool of {name}"

    app = Server(name, lifespan=lifespan)

    @app.tool
    async def pool(ctx: Context) -> str:
        """What the lifespan yields."""
        await ctx.progress(1)
        return ctx.lifespan

    return app


def starlette() -> Any:
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Mount, Route

    async def page(_: Any) -> Any:
        return PlainTextResponse("a page")

    return Starlette(
        routes=[Mount("/one", server("one").asgi()), Mount("/two", server("two").asgi()), Route("/", page)]
    )


def fastapi() -> Any:
    from fastapi import FastAPI
    from fastapi.responses import PlainTextResponse

    web = FastAPI()
    web.mount("/one", server("one").asgi())
    web.mount("/two", server("two").asgi())
    web.get("/", response_class=PlainTextResponse)(lambda: "a page")
    return web


def litestar() -> Any:
    from litestar import Litestar, MediaType, asgi, get

    @get("/", media_type=MediaType.TEXT, sync_to_thread=False)
    def page() -> str:
        return "a page"

    return Litestar(
        [
            asgi("/one", is_mount=True, copy_scope=True)(server("one").asgi()),
            asgi("/two", is_mount=True, copy_scope=True)(server("two").asgi()),
            page,
        ]
    )


def django() -> Any:
    from django.conf import settings

    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="not one")
    from django.core.asgi import get_asgi_application
    from django.http import HttpResponse
    from django.urls import path

    globals()["urlpatterns"] = [path("", lambda _: HttpResponse("a page", content_type="text/plain"))]
    return server("one").asgi(
        path="/one/mcp", fallback=server("two").asgi(path="/two/mcp", fallback=get_asgi_application())
    )
