"""Test dependencies: run once per call, cleaned up, checked at registration and hidden from the model."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from dovetail import Context, Depends, Server, ToolError
from dovetail.testing import override
from server.direct_client import LATEST_HANDSHAKE, NEWEST, Client, error_text, text
from support.mentions import mentions


@pytest.fixture
def log() -> list[str]:
    return []


async def test_every_kind_of_function_and_once_per_call(log: list[str]) -> None:
    app = Server("x")

    def settings() -> dict[str, int]:
        log.append("settings")
        return {"base": 1}

    Settings = Annotated[dict[str, int], Depends(settings)]  # noqa: N806

    async def session(settings: Settings) -> AsyncIterator[int]:
        log.append("open")
        yield settings["base"] + 1
        log.append("close")

    def lock(settings: Settings) -> Iterator[int]:
        log.append(f"lock in {threading.current_thread() is threading.main_thread()}")
        try:
            yield settings["base"] + 2
        finally:
            log.append("unlock")

    async def user(ctx: Context) -> str:
        return ctx.principal or "nobody"

    class Clock:
        def __init__(self, settings: Settings) -> None:
            self.now = settings["base"] + 3

    @app.tool
    async def run(
        a: int,
        session: Annotated[int, Depends(session)],
        lock: Annotated[int, Depends(lock)],
        user: Annotated[str, Depends(user)],
        clock: Annotated[Clock, Depends(Clock)],
        b: int = 7,
    ) -> str:
        log.append("run")
        return f"{a} {session} {lock} {user} {clock.now} {b}"

    client = Client(app, principal="ada")
    (tool,) = (await client.request("tools/list"))["tools"]
    assert list(tool["inputSchema"]["properties"]) == ["a", "b"]
    assert text(await client.call("run", {"a": 5})) == "5 2 3 ada 4 7"
    assert log == ["settings", "open", "lock in False", "run", "unlock", "close"]
    assert "Unknown: `session`" in error_text(await client.call("run", {"a": 5, "session": 9}))


async def test_not_shared_runs_for_each(log: list[str]) -> None:
    app = Server("x")

    def fresh() -> list[int]:
        return []

    @app.tool
    def run(
        one: Annotated[list[int], Depends(fresh, use_cache=False)],
        two: Annotated[list[int], Depends(fresh, use_cache=False)],
    ) -> bool:
        return one is two

    @app.tool
    def shared(one: Annotated[list[int], Depends(fresh)], two: Annotated[list[int], Depends(fresh)]) -> bool:
        return one is two

    client = Client(app)
    assert text(await client.call("run")) == "false"
    assert text(await client.call("shared")) == "true"


@pytest.mark.parametrize("plain", [True, False])
async def test_clean_up_hears_of_a_failure_and_cannot_hide_it(log: list[str], plain: bool) -> None:
    app = Server("x")

    def held() -> Iterator[int]:
        try:
            yield 1
        except ToolError as exc:
            log.append(f"rollback {exc}")

    async def held_async() -> AsyncIterator[int]:
        try:
            yield 1
        except ToolError as exc:
            log.append(f"rollback {exc}")

    @app.tool
    async def run(n: Annotated[int, Depends(held if plain else held_async)]) -> int:
        raise ToolError("no")

    assert error_text(await Client(app).call("run")) == "no"
    assert log == ["rollback no"]


async def test_a_failing_dependency_is_a_failing_tool() -> None:
    app = Server("x")

    def forbidden() -> int:
        raise ToolError("not for you")

    def broken() -> int:
        raise ZeroDivisionError

    @app.tool
    def told(n: Annotated[int, Depends(forbidden)]) -> int:
        return n

    @app.tool
    def masked(n: Annotated[int, Depends(broken)]) -> int:
        return n

    client = Client(app)
    assert error_text(await client.call("told")) == "not for you"
    assert mentions(error_text(await client.call("masked")), "masked")


async def test_clean_up_runs_when_the_call_is_cancelled(log: list[str]) -> None:
    app = Server("x")
    inside = asyncio.Event()

    async def held() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            log.append("closed")

    @app.tool
    async def run(n: Annotated[int, Depends(held)]) -> int:
        inside.set()
        await asyncio.Event().wait()
        return n

    client = Client(app)
    task = asyncio.get_running_loop().create_task(client.call("run"))
    await asyncio.wait_for(inside.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["closed"]


@pytest.mark.parametrize("revision", [NEWEST, LATEST_HANDSHAKE])
async def test_a_dependency_may_ask_and_see_the_arguments(revision: str, log: list[str]) -> None:
    app = Server("x")

    async def confirmed(path: str, ctx: Context) -> AsyncIterator[bool]:
        yield await ctx.elicit(f"Delete {path}?", bool)
        log.append("end")

    @app.tool
    def delete(path: str, sure: Annotated[bool, Depends(confirmed)], force: bool = False) -> str:
        return f"{path} {sure} {force}"

    answers = {"elicitation/create": lambda _: {"action": "accept", "content": {"value": True}}}
    client = Client(app, revision, answers=answers)
    assert text(await client.call_with_input_rounds("delete", {"path": "a.txt"})) == "a.txt True False"
    assert [params["message"] for _, params in client.asked] == ["Delete a.txt?"]
    assert log == ["end"]


async def test_resources_templates_prompts_and_own_schemas_have_them_too() -> None:
    app = Server("x")

    def store() -> dict[str, str]:
        return {"oslo": "rain"}

    Store = Annotated[dict[str, str], Depends(store)]  # noqa: N806

    @app.resource("w://all")
    def everything(store: Store) -> str:
        return ",".join(store)

    @app.resource("w://{city}")
    async def one(city: str, store: Store) -> str:
        return store[city]

    @app.prompt
    def ask(city: str, store: Store) -> str:
        return f"{city}: {store[city]}"

    @app.tool(input_schema={"type": "object"})
    def raw(arguments: dict[str, Any], store: Store, ctx: Context) -> str:
        return f"{arguments} {len(store)} {ctx.request_id}"

    client = Client(app)
    for uri, said in (("w://all", "oslo"), ("w://oslo", "rain")):
        assert (await client.request("resources/read", {"uri": uri}))["contents"][0]["text"] == said
    (prompt,) = (await client.request("prompts/list"))["prompts"]
    assert [one["name"] for one in prompt["arguments"]] == ["city"]
    got = await client.request("prompts/get", {"name": "ask", "arguments": {"city": "oslo"}})
    assert got["messages"][0]["content"]["text"] == "oslo: rain"
    assert text(await client.call("raw", {"a": 1})) == "{'a': 1} 1 1"


async def test_the_lifespan_is_typed_state() -> None:
    @dataclass
    class State:
        rate: float

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[State]:
        yield State(1.5)

    app = Server("x", lifespan=lifespan)

    def rate(ctx: Context[State]) -> float:
        return ctx.lifespan.rate

    @app.tool
    def convert(amount: float, rate: Annotated[float, Depends(rate)], ctx: Context[State]) -> float:
        return amount * rate * ctx.lifespan.rate

    assert text(await Client(app).call("convert", {"amount": 2})) == "4.5"
    await app.stop()


def test_mistakes_are_reported_at_registration() -> None:
    app = Server("x")

    def needy(colour: str) -> int: ...

    def around(n: Annotated[int, Depends(lambda: 1)]) -> int: ...

    around.__annotations__["n"] = Annotated[int, Depends(around)]

    def wants(n: Annotated[int, Depends(needy)]) -> int: ...

    def loops(n: Annotated[int, Depends(around)]) -> int: ...

    def many(*n: Annotated[int, Depends(lambda: 1)]) -> int: ...

    def bare(n: Annotated[int, Depends]) -> int: ...

    for function, words in (
        (wants, "wants.*`colour`.*needy"),
        (loops, "around"),
        (many, "many.*Depends|Depends.*many"),
        (bare, r"Depends\(function\)"),
    ):
        with pytest.raises(TypeError, match=words):
            app.add_tool(function)


def test_a_plain_function_is_bound_as_before() -> None:
    from dovetail.server.invocation import Runner
    from dovetail.server.items.compiled_function import compile_function
    from dovetail.server.parameters.signature import Signature

    def add(a: int, b: int) -> int:
        return a + b

    signature, runner = compile_function(add)
    assert type(signature) is Signature
    assert type(runner) is Runner
    assert signature.context is None


async def test_a_test_puts_something_else_in_the_place_of_a_dependency(log: list[str]) -> None:
    app = Server("x")

    def address() -> str:
        log.append("address")
        return "db.example"

    def database(address: Annotated[str, Depends(address)]) -> Iterator[str]:
        log.append("open")
        yield f"database at {address}"
        log.append("close")

    def rows(db: Annotated[str, Depends(database)]) -> str:
        return f"rows of {db}"

    @app.tool
    def read(table: str, rows: Annotated[str, Depends(rows)], db: Annotated[str, Depends(database)]) -> str:
        return f"{table}: {rows}, {db}"

    async def fake(ctx: Context, table: str) -> AsyncIterator[str]:
        log.append("fake")
        yield f"fake for {table}"
        log.append("gone")

    client = Client(app)
    with override(database, fake):
        assert text(await client.call("read", {"table": "a"})) == "a: rows of fake for a, fake for a"
        with override(rows, lambda: "nothing"):
            assert text(await client.call("read", {"table": "a"})) == "a: nothing, fake for a"
        assert "rows of fake" in text(await client.call("read", {"table": "a"}))
    assert log == ["fake", "gone"] * 3
    assert text(await client.call("read", {"table": "a"})).endswith("database at db.example")


async def test_an_alias_or_a_mark_means_its_function() -> None:
    app = Server("x")

    def number() -> int:
        return 1

    Number = Annotated[int, "how many", Depends(number)]  # noqa: N806

    @app.tool
    def read(number: Number) -> int:
        return number

    for dependency in (Number, Depends(number)):
        with override(dependency, lambda: 2):
            assert text(await Client(app).call("read")) == "2"
        assert text(await Client(app).call("read")) == "1"


async def test_an_override_ends_with_its_block() -> None:
    app = Server("x")

    def number() -> int:
        return 1

    with pytest.raises(KeyError), override(number, lambda: 2):
        raise KeyError

    with override(number, lambda: 3):

        @app.tool
        def read(number: Annotated[int, Depends(number)]) -> int:
            return number

        with override(number, lambda: 4):
            assert text(await Client(app).call("read")) == "4"
        assert text(await Client(app).call("read")) == "3"
    assert text(await Client(app).call("read")) == "1"


@pytest.mark.parametrize(
    ("dependency", "by", "words"),
    [
        (Annotated[int, "a number"], int, r"Annotated\[int, 'a number'\]"),
        (list[int], int, r"list\[int\]"),
        (int, 3, "lambda: 3"),
        (int, Annotated[int, Depends(int)], r"Annotated\[int, "),
        (3, int, "3"),
    ],
)
def test_only_a_function_can_override_a_function(dependency: Any, by: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words), override(dependency, by):
        pass


async def test_a_plain_generator_that_opens_when_the_call_is_over_is_closed(log: list[str]) -> None:
    app = Server("x")
    began, go, closed = threading.Event(), threading.Event(), threading.Event()

    def open_db() -> Iterator[str]:
        began.set()
        go.wait(20)
        try:
            yield "db"
        finally:
            log.append("closed")
            closed.set()

    @app.tool
    async def use(db: Annotated[str, Depends(open_db)]) -> str:
        return db

    call = asyncio.ensure_future(Client(app).call("use"))
    assert await asyncio.to_thread(began.wait, 20)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert log == []
    go.set()
    assert await asyncio.to_thread(closed.wait, 20)
    assert log == ["closed"]
