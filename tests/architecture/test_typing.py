"""The public names as a strict type checker sees them from outside: decorated functions keep their types."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = '''
"""What a user might write."""

from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, assert_type

from dovetail import (
    ArgTransform,
    CacheHint,
    Client,
    Context,
    Depends,
    prompt,
    Server,
    ServerLimits,
    SyncClient,
    testing,
    tool,
    ToolError,
    Transform,
)
from dovetail.middleware import (
    LogRequests,
    MaskErrors,
    RateLimit,
    ResponseCache,
    ResponseLimit,
    Retry,
    Telemetry,
    Timing,
)


@dataclass
class Day:
    day: int
    sky: str


@dataclass
class Pool:
    size: int


@asynccontextmanager
async def lifespan():
    yield Pool(3)


hint = CacheHint(1000)
app = Server("typed", limits=ServerLimits(), cache_hints=hint, lifespan=lifespan, middleware=[Timing(), LogRequests()])
for one in (ResponseCache(["x"]), MaskErrors(), RateLimit(1), ResponseLimit(1000), Retry()):
    app.middleware(one)
other = Server("other", middleware=[Telemetry()])
transform = Transform(name="b", arguments={"c": ArgTransform(value=1)})
unmount = app.mount(other, "x", transforms={"a": transform}, tags=["t"])
assert_type(unmount, Callable[[], None])


def rate(ctx: Context[Pool]) -> float:
    assert_type(ctx.lifespan, Pool)
    return 1.1 * ctx.lifespan.size


@app.tool
async def plain(city: str, days: int = 3) -> list[Day]:
    return [Day(days, city)]


@app.tool("named", title="Named", read_only=True, tags=["a"])
def named(city: str, rate: Annotated[float, Depends(rate)]) -> str:
    raise ToolError(city)


@app.resource("city://{name}", cache_hint=CacheHint(5))
def city(name: str) -> str:
    return name


@app.prompt
def packing(city: str) -> str:
    return city


@app.completion("packing", "city")
def cities(value: str) -> list[str]:
    return [value]


class Books:
    @tool(name="find")
    def find(self, title: str) -> int:
        return len(title)

    @prompt
    def write(self, title: str) -> str:
        return title


assert_type(named("a", 1.0), str)
assert_type(city("a"), str)
assert_type(packing("a"), str)
assert_type(cities("a"), list[str])
assert_type(Books().find("a"), int)
app.include(Books())


@app.tool
async def ask(ctx: Context) -> str:
    day = await ctx.elicit("Which?", Day)
    assert_type(day, Day)
    return day.sky


@app.tool
def wait(ctx: Context) -> int:
    seats = ctx.wait(ctx.elicit("How many?", int))
    assert_type(seats, int)
    assert_type(ctx.headers.get("X-Tenant"), str | None)
    return seats


app.restrict("named", tags=["a"], visible_to=lambda principal: principal is not None)
with testing.override(rate, lambda: 2.0):
    app.run("http", port=8000, sessions=False)


async def use() -> None:
    assert_type(await plain("Oslo"), list[Day])
    async with Client(app, middleware=[Timing()]) as client:
        assert_type(client, Client)
        assert_type(await client.call("plain", into=list[Day], city="Oslo"), list[Day])
        assert_type(await client.call("count", into=int), int)
        anything = await client.call("plain", city="Oslo")
        print(anything)


def use_sync() -> None:
    with SyncClient(app) as client:
        assert_type(client.call("plain", into=Day, city="Oslo"), Day)


work: Coroutine[Any, Any, list[Day]] = plain("Oslo")
work.close()
'''
WRONG = """
from dovetail import Client, Server

app = Server("typed", limts=None)


@app.tool(titel="x")
def f() -> int:
    return 1


f("too many")
app.tool(f, nmae="x")
app.run("http", prot=1)


async def use(client: Client) -> str:
    return await client.call("f", into=int)
"""


def _check(folder: Path, text: str) -> tuple[int, str]:
    checker = Path(sys.executable).with_name("basedpyright")
    if not checker.exists() and shutil.which("basedpyright") is None:
        pytest.skip("basedpyright is not installed")
    (folder / "program.py").write_text(text, encoding="utf-8")
    settings = '{"typeCheckingMode": "strict", "pythonVersion": "3.11", "include": ["program.py"]}'
    (folder / "pyrightconfig.json").write_text(settings, encoding="utf-8")
    command = [str(checker), "--pythonpath", sys.executable, "-p", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    return ran.returncode, ran.stdout


@pytest.mark.timeout(120)
def test_the_public_names_are_typed(tmp_path: Path) -> None:
    status, said = _check(tmp_path, PROGRAM)
    assert status == 0, said


@pytest.mark.timeout(120)
def test_mistakes_are_found(tmp_path: Path) -> None:
    _, said = _check(tmp_path, WRONG)
    found = {int(line.split(":")[1]) for line in said.splitlines() if "program.py:" in line and "error" in line}
    assert {4, 7, 12, 13, 14, 18} <= found, said
