"""Test the accepted forms of a lifespan."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import pytest

from dovetail import Client, Context, Server
from support.mentions import mentions


async def seen(app: Server) -> Any:
    @app.tool
    async def look(ctx: Context[Any]) -> str:
        return str(ctx.lifespan)

    async with Client(app) as client:
        value = await client.call("look")
    await app.stop()
    return value


async def test_one_with_a_parameter_is_given_the_server() -> None:
    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[str]:
        yield f"life of {server.name}"

    assert await seen(Server("x", lifespan=lifespan)) == "life of x"


async def test_one_whose_parameter_has_a_default_keeps_it() -> None:
    @asynccontextmanager
    async def lifespan(pool: str = "pool") -> AsyncIterator[str]:
        yield pool

    assert await seen(Server("x", lifespan=lifespan)) == "pool"


async def bare() -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def greedy(one: Any, two: Any) -> AsyncIterator[None]:
    yield


def plain() -> Iterator[None]:
    yield


async def barren() -> None:
    pass


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (bare, "bare"),
        (plain, "plain"),
        (contextmanager(plain), "plain"),
        (3, "3"),
        (asynccontextmanager(cast("Any", barren)), "barren"),
        (greedy, "lifespan"),
    ],
)
def test_an_invalid_lifespan_is_refused(given: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Server("x", lifespan=given)


async def test_one_that_failed_is_tried_again() -> None:
    tries: list[int] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("not up yet")
        yield "up"

    app = Server("x", lifespan=lifespan)
    with pytest.raises(OSError, match="not up yet"):
        await app.start()
    assert await seen(app) == "up"
    assert len(tries) == 2


@asynccontextmanager
async def empty() -> AsyncIterator[None]:
    for _ in ():
        yield


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        (lambda: None, TypeError, "None"),
        (lambda: {"a": 1}, TypeError, "{'a': 1}"),
        (empty, RuntimeError, r"empty \(test_lifespan.py:\d+\)"),
    ],
)
async def test_what_turns_out_to_be_no_lifespan_is_named(given: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        await Server("x", lifespan=given).start()


async def test_one_that_yields_again_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def twice() -> AsyncIterator[None]:
        yield
        yield

    app = Server("x", lifespan=twice)
    await app.start()
    await app.stop()
    assert mentions(caplog.text, "twice")
