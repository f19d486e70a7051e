"""A server with items of each kind, which also runs as a program: `python library_server.py [http|unix PATH]`."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import dovetail
from dovetail import (
    Context,
    Depends,
    Image,
    PromptMessage,
    ResourceContents,
    RouteRequest,
    Server,
    TextContent,
    ToolError,
    current_principal,
    get_context,
)
from dovetail.errors import ResourceNotFound
from dovetail.extensions import Extension, Params, Result
from dovetail.middleware import CallNext, Exchange

BOOKS = {1: "Emma", 2: "Dracula"}
PNG = b"\x89PNG\r\n\x1a\n"


class HelloParams(Params):
    first_name: str


class HelloResult(Result):
    greeting: str


class HeardParams(Params):
    first_name: str


hello = Extension("com.example/hello", settings={"languages": ["en"]})


@hello.method("com.example/hello/say")
async def say_hello(params: HelloParams, exchange: Exchange) -> HelloResult:
    await exchange.notify("notifications/com.example/hello/heard", HeardParams(first_name=params.first_name))
    return HelloResult(greeting=f"Hello, {params.first_name}!")


@hello.middleware
async def mark_request(exchange: Exchange, call_next: CallNext) -> Any:
    exchange.extra["marked by"] = [*exchange.extra.get("marked by", []), "extension"]
    return await call_next(exchange)


@dataclass
class Loan:
    book: str
    days: int = 14


@dataclass
class Seat:
    row: int
    window: bool = True


def open_database() -> Iterator[dict[int, str]]:
    yield dict(BOOKS)


Database = Annotated[dict[int, str], Depends(open_database)]


@asynccontextmanager
async def open_library(app: Server) -> AsyncIterator[str]:
    yield f"{app.name} is open"


def create_server() -> Server:
    """Create the server."""
    app = Server("library", version="1.2", instructions="Be quiet.", lifespan=open_library, extensions=[hello])
    add_tools(app)
    add_tools_with_context(app)
    add_resources(app)
    add_prompts(app)

    @app.middleware
    async def refuse_banned(exchange: Exchange, call_next: CallNext) -> Any:
        exchange.extra["marked by"] = ["server"]
        if exchange.meta.get("com.example/banned"):
            raise ToolError("You are banned.")
        return await call_next(exchange)

    @app.route("/opening-hours")
    def opening_hours(request: RouteRequest) -> dict[str, Any]:
        return {"open": "9 to 18", "query": dict(request.query)}

    return app


def add_tools(app: Server) -> None:
    @app.tool
    async def echo(text: str) -> str:
        """Return the text."""
        return text

    @app.tool(read_only=True)
    def find(number: int, books: Database) -> str:
        """Find a book, in a thread."""
        assert threading.current_thread() is not threading.main_thread()
        if number not in books:
            raise ToolError(f"there is no book {number}")
        return books[number]

    @app.tool
    async def lend(number: int, days: Annotated[int, "At most 28"] = 14) -> Loan:
        return Loan(BOOKS[number], days)

    @app.tool
    async def count_books() -> int:
        return len(BOOKS)

    @app.tool
    async def show_cover() -> list[str | Image]:
        return ["the cover", Image(PNG, mime_type="image/png")]

    @app.tool
    async def break_down() -> str:
        raise ValueError("a secret of the server")

    @app.tool(scopes=["books:burn"])
    async def burn() -> str:
        return "burned"

    @app.tool
    async def read_forever() -> str:
        await asyncio.Event().wait()
        return "never"

    @app.tool
    async def describe_process() -> tuple[int, str]:
        return os.getpid(), dovetail.__path__[0]

    @app.tool
    async def end_process() -> None:
        os._exit(3)


def add_tools_with_context(app: Server) -> None:
    @app.tool
    async def describe_call(ctx: Context) -> dict[str, Any]:
        assert get_context().request_id == ctx.request_id
        return {
            "version": ctx.protocol_version,
            "client": ctx.client_info.name if ctx.client_info else None,
            "lifespan": ctx.lifespan,
            "principal": current_principal(),
            "marked by": ctx.extra["marked by"],
        }

    @app.tool
    async def count_visits(ctx: Context) -> int:
        visits = await ctx.session_state.get("visits", 0) + 1
        await ctx.session_state.set("visits", visits)
        return visits

    @app.tool
    async def print_pages(pages: int, ctx: Context) -> str:
        for page in range(1, pages + 1):
            await ctx.progress(page, total=pages, message=f"page {page}")
        await ctx.debug("quiet")
        await ctx.warning({"ink": "low"})
        return "printed"

    @app.tool
    async def reserve(ctx: Context) -> str:
        ticket = await ctx.once("ticket", lambda: "ticket 1")
        seat = await ctx.elicit("Which seat?", Seat)
        return f"{ticket}, row {seat.row}, {'window' if seat.window else 'aisle'}"

    @app.tool
    def reserve_in_thread(ctx: Context) -> int:
        return ctx.wait(ctx.elicit("Which seat?", Seat)).row

    @app.tool
    async def summarize(ctx: Context) -> str:
        result = await ctx.sample("What is it about?", max_tokens=10)
        assert isinstance(result.content, TextContent)
        return result.content.text

    @app.tool
    async def list_roots(ctx: Context) -> list[str]:
        return [root.uri for root in await ctx.list_roots()]

    @app.tool
    async def find_twice(number: int, ctx: Context) -> list[str]:
        results = [await ctx.call_tool("find", {"number": number}) for _ in range(2)]
        return [result.text for result in results]

    @app.tool
    async def recommend(ctx: Context) -> str:
        prompt = await ctx.get_prompt("review", {"book": "Emma", "stars": "5"})
        text = (await ctx.read_resource("library://books/1")).contents[0].text
        return f"{text}: {len(prompt.messages)} messages"

    @app.tool
    async def change_book(number: int) -> None:
        app.notify_resource_updated(f"library://books/{number}")

    @app.tool
    async def change_tools() -> None:
        app.notify_tools_changed()


def add_resources(app: Server) -> None:
    @app.resource("library://opening-hours", mime_type="text/plain")
    def opening_hours() -> str:
        """When the library is open."""
        return "9 to 18"

    @app.resource("library://logo", mime_type="image/png")
    async def logo() -> bytes:
        return PNG

    @app.resource("library://books/{number}")
    def book(number: int) -> str:
        if number not in BOOKS:
            raise ResourceNotFound(f"library://books/{number}")
        return BOOKS[number]

    @app.resource("library://shelf")
    def shelf() -> list[ResourceContents]:
        return [ResourceContents(uri=f"library://books/{number}", text=title) for number, title in BOOKS.items()]

    @app.completion("library://books/{number}", "number")
    def complete_number(value: str) -> list[str]:
        return [str(number) for number in BOOKS if str(number).startswith(value)]


def add_prompts(app: Server) -> None:
    @app.prompt
    def review(book: str, stars: int = 3) -> list[str | PromptMessage]:
        """Review a book."""
        answer = PromptMessage(role="assistant", content=TextContent(text="I have read it."))
        return [f"Review {book} with {stars} stars.", answer]

    @app.completion("review", "book")
    def complete_book(value: str) -> list[str]:
        return [title for title in BOOKS.values() if title.startswith(value)]


app = create_server()

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["http"]:
            app.run("http", port=0)
        case ["unix", path]:
            app.run("unix", path=path)
        case _:
            app.run()
