"""Test the options of tools, resources and prompts."""

import asyncio
import inspect
import sys
import types
from datetime import timedelta
from typing import Any

import pytest

from dovetail import CacheHint, Context, Server, ToolAnnotations, ToolError, prompt, resource, tool
from dovetail.errors import PromptNotFound, ResourceNotFound, ToolNotFound
from dovetail.server.items.compiled_function import RunOptions
from dovetail.server.items.item_options import PromptOptions, ResourceOptions, ToolOptions
from dovetail.server.items.prompt import Prompt
from dovetail.server.items.resource import Resource, ResourceTemplate
from dovetail.server.items.tool import Tool
from dovetail.server.server import get_dispatcher
from server.direct_client import Client, text
from support.list_capabilities import ALL_LISTS
from support.mentions import mentions, values


async def listed(app: Server, what: str = "tools") -> dict[str, Any]:
    return {one["name"]: one for one in (await Client(app).request(f"{what}/list"))[what]}


def test_options_are_what_the_classes_take() -> None:
    def keywords(kind: type) -> set[str]:
        parameters = inspect.signature(kind).parameters.values()
        return {one.name for one in parameters if one.kind is one.KEYWORD_ONLY} | RunOptions.__annotations__.keys()

    access = {"scopes", "visible_to"}  # the server's own: who may use it is not part of what it is
    of_server = {"wrap_results"}
    assert keywords(Tool) - of_server == set(ToolOptions.__annotations__) - access
    assert keywords(Prompt) == set(PromptOptions.__annotations__) - access
    assert keywords(Resource) == set(ResourceOptions.__annotations__) - access
    assert keywords(ResourceTemplate) == set(ResourceOptions.__annotations__) - access - {"size"}


async def test_hints_have_short_names() -> None:
    app = Server("x")

    @app.tool(read_only=True, open_world=False)
    def look() -> str: ...

    @app.tool(annotations=ToolAnnotations(title="Wipe"), destructive=True, idempotent=True)
    def wipe() -> str: ...

    tools = await listed(app)
    assert tools["look"]["annotations"] == {"readOnlyHint": True, "openWorldHint": False}
    assert tools["wipe"]["annotations"] == {"title": "Wipe", "destructiveHint": True, "idempotentHint": True}
    with pytest.raises(ValueError, match="read_only=True"):
        app.add_tool(look, name="other", read_only=True, annotations=ToolAnnotations(read_only_hint=False))


async def test_tags_and_version_are_published() -> None:
    app = Server("x")
    said = {"dovetail/tags": ["a", "b"], "dovetail/version": "2.0", "x.example/own": 1}

    @app.tool(tags={"b", "a"}, version="2.0", meta={"x.example/own": 1})
    def one() -> str: ...

    @app.prompt(tags=["b", "a"], version="2.0", meta={"x.example/own": 1})
    def two() -> str: ...

    @app.resource("x://a", tags=["b", "a"], version="2.0", meta={"x.example/own": 1})
    def three() -> str: ...

    assert (await listed(app))["one"]["_meta"] == said
    assert (await listed(app, "prompts"))["two"]["_meta"] == said
    assert (await listed(app, "resources"))["three"]["_meta"] == said
    with pytest.raises(TypeError, match=r"tags=\['a'\]"):
        app.add_tool(one, name="four", tags="a")


async def test_a_limit_lets_few_in_at_once_and_the_others_wait() -> None:
    app = Server("x")
    inside = most = 0
    gate = asyncio.Event()

    @app.tool(max_concurrency=2)
    async def slow(n: int, ctx: Context) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await gate.wait()
        inside -= 1
        return n

    client = Client(app)
    calls = [asyncio.get_running_loop().create_task(client.call("slow", {"n": n})) for n in range(5)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert inside == 2
    gate.set()
    assert [text(one) for one in await asyncio.gather(*calls)] == list("01234")
    assert most == 2
    with pytest.raises(ValueError, match=values("max_concurrency", 1)):
        app.add_tool(slow, name="none", max_concurrency=0)


async def test_a_limit_holds_on_every_loop() -> None:
    app = Server("x")

    @app.tool(max_concurrency=1)
    async def slow() -> int:
        await asyncio.sleep(0)
        return 1

    async def twice() -> list[str]:
        client = Client(app)
        return [text(one) for one in await asyncio.gather(client.call("slow"), client.call("slow"))]

    assert await twice() == ["1", "1"]
    assert await asyncio.to_thread(lambda: asyncio.run(twice())) == ["1", "1"]


async def test_what_is_disabled_is_neither_listed_nor_found_and_keeps_its_place() -> None:
    app = Server("x", capabilities=ALL_LISTS)
    heard: list[str] = []

    class Ear:
        def is_subscribed(self, method: str, uri: str | None) -> bool:
            return True

        def deliver(self, method: str, uri: str | None) -> None:
            heard.append(method)

        def send_to_session(self, session_id: str, method: str, message: bytes) -> bool:
            return False

    for name in ("a", "b", "c"):
        app.add_tool(lambda: "x", name=name, enabled=name != "b", tags=[name])
    app.add_prompt(lambda: "x", name="p", enabled=False)
    app.add_resource(lambda: "x", "x://r", tags=["c"])
    app.add_resource(lambda n: n, "x://t/{n}", tags=["c"])
    client = Client(app)
    assert list(await listed(app)) == ["a", "c"]
    with pytest.raises(ToolNotFound):
        await client.call("b")
    with pytest.raises(PromptNotFound):
        await client.request("prompts/get", {"name": "p"})
    get_dispatcher(app).subscribe(Ear())
    app.enable("b", "p")
    await asyncio.sleep(0)
    assert sorted(heard) == ["notifications/prompts/list_changed", "notifications/tools/list_changed"]
    assert list(await listed(app)) == ["a", "b", "c"]
    assert list(await listed(app, "prompts")) == ["p"]
    app.disable("a", tags=["c"])
    assert list(await listed(app)) == ["b"]
    for uri in ("x://r", "x://t/1"):
        with pytest.raises(ResourceNotFound):
            await client.request("resources/read", {"uri": uri})
    app.enable(tags=["c"])
    assert (await client.request("resources/read", {"uri": "x://t/1"}))["contents"][0]["text"] == "1"
    with pytest.raises(ValueError, match=values("zzz")):
        app.enable("zzz")
    with pytest.raises(ValueError, match=values("a")):
        app.add_tool(lambda: "x", name="a")


class Desk:
    """Methods marked one by one."""

    def __init__(self, owner: str) -> None:
        self.owner = owner

    @tool
    def greet(self, name: str) -> str:
        """Greet someone."""
        return f"{self.owner} greets {name}"

    @tool("bye", read_only=True)
    async def leave(self) -> str:
        return f"{self.owner} leaves"

    @resource("desk://{drawer}", cache_hint=CacheHint(ttl_ms=5))
    def drawer(self, drawer: str) -> str:
        return drawer

    @prompt()
    def ask(self, what: str) -> str:
        return what

    @tool
    @staticmethod
    def size() -> int:
        return 3

    @property
    def broken(self) -> str:
        raise AssertionError

    def helper(self) -> None:
        raise AssertionError


class Calculator:
    """Nothing marked."""

    def add(self, a: int, b: int) -> int:
        return a + b

    @classmethod
    def zero(cls) -> int:
        return 0

    def _hidden(self) -> None: ...


async def test_objects_are_added_with_what_is_marked() -> None:
    app = Server("x")
    app.include(Desk("Ada"))
    client = Client(app)
    tools = await listed(app)
    assert list(tools) == ["greet", "bye", "size"]
    assert tools["greet"]["description"] == "Greet someone."
    assert tools["bye"]["annotations"] == {"readOnlyHint": True}
    assert text(await client.call("greet", {"name": "Bo"})) == "Ada greets Bo"
    assert text(await client.call("bye")) == "Ada leaves"
    assert (await client.request("resources/read", {"uri": "desk://top"}))["ttlMs"] == 5
    assert list(await listed(app, "prompts")) == ["ask"]
    assert Desk("Eve").greet("Bo") == "Eve greets Bo"


async def test_objects_without_marks_offer_their_public_methods() -> None:
    app = Server("x")
    app.include(Calculator(), prefix="calc_")
    assert list(await listed(app)) == ["calc_add", "calc_zero"]
    assert text(await Client(app).call("calc_add", {"a": 1, "b": 2})) == "3"
    with pytest.raises(TypeError, match=values("Calculator.add")):
        app.include(Calculator)
    with pytest.raises(TypeError, match="object"):
        app.include(object())


async def test_modules_offer_their_own_functions_only() -> None:
    module = types.ModuleType("shopping")
    sys.modules["shopping"] = module
    try:
        exec(  # noqa: S102
            "from os.path import join\nfrom dovetail import ToolError\n"
            "def price(item: str) -> float:\n    'What it costs.'\n    return 2.5\n"
            "def _secret(): ...\nclass Thing: ...\n",
            module.__dict__,
        )
        app = Server("x")
        app.include(module)
    finally:
        del sys.modules["shopping"]
    tools = await listed(app)
    assert list(tools) == ["price"]
    assert text(await Client(app).call("price", {"item": "x"})) == "2.5"


async def test_a_function_is_added_by_its_mark() -> None:
    @resource("x://one")
    def one() -> str:
        return "1"

    def two() -> str:
        raise ToolError("two")

    app = Server("x")
    app.include(one)
    app.include(two)
    assert (await Client(app).request("resources/read", {"uri": "x://one"}))["contents"][0]["text"] == "1"
    assert list(await listed(app)) == ["two"]
    with pytest.raises(TypeError, match="URI"):
        resource(one)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("plain", [True, False])
async def test_a_revealed_error_is_shown_and_the_rest_is_masked_and_logged_once(
    plain: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = Server("x")
    raised: list[Exception] = [LookupError("no such city"), KeyError(), ToolError("said"), ValueError("secret")]

    def fail(n: int) -> str:
        raise raised[n]

    async def fail_async(n: int, ctx: Context) -> str:
        raise raised[n]

    app.add_tool(fail if plain else fail_async, name="fail", expose_errors=(LookupError,))
    client = Client(app)
    told = [(await client.call("fail", {"n": n}))["content"][0]["text"] for n in range(4)]
    assert told[:3] == ["no such city", "KeyError", "said"]
    assert mentions(told[3], "fail")
    assert "secret" not in told[3]
    (record,) = caplog.records
    assert told[3].rpartition(" ")[2] in record.getMessage()
    assert record.exc_info
    assert repr(record.exc_info[1]) == "ValueError('secret')"
    with pytest.raises(TypeError, match="expose_errors"):
        app.add_tool(fail, name="other", expose_errors=[LookupError("no class")])  # pyright: ignore[reportArgumentType]


async def test_debug_shows_what_is_masked_otherwise() -> None:
    app = Server("x", debug=True)
    app.add_tool(lambda: 1 / 0, name="fail")
    shown = (await Client(app).call("fail"))["content"][0]["text"]
    assert shown.startswith("tool fail failed: ZeroDivisionError: division by zero [")


async def test_hints_as_the_specification_spells_them() -> None:
    app = Server("x")
    app.add_tool(lambda: "", name="look", annotations={"readOnlyHint": True, "title": "Look"}, open_world=False)
    annotations = (await listed(app))["look"]["annotations"]
    assert annotations == {"title": "Look", "readOnlyHint": True, "openWorldHint": False}


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"readonlyHint": True}, values("annotations", "readonlyHint", "readOnlyHint")),
        ("readOnlyHint", values("annotations", "ToolAnnotations", "dict")),
        ({"readOnlyHint": "yes"}, "readOnlyHint|look"),
    ],
)
def test_hints_that_are_none(annotations: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Server("x").add_tool(lambda: "", name="look", annotations=annotations)


UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"title": 3}, "title=.*3"),
    ({"timeout": "2"}, "timeout="),
    ({"max_concurrency": 1.5}, r"max_concurrency=.*1\.5"),
    ({"max_concurrency": "2"}, "max_concurrency=.*'2'"),
    ({"max_concurrency": True}, "max_concurrency=.*True"),
    ({"enabled": "no"}, "enabled=.*True.*False"),
    ({"run_in_thread": 1}, "run_in_thread=.*True.*False"),
    ({"icons": ["x"]}, "icons=.*Icon"),
    ({"icons": "x"}, "icons=.*Icon"),
    ({"meta": [1]}, "meta="),
]


@pytest.mark.parametrize(("options", "words"), UNFIT)
def test_options_of_the_wrong_kind_are_named(options: dict[str, Any], words: str) -> None:
    app = Server("x")
    for add in (app.add_tool, app.add_prompt, lambda f, **more: app.add_resource(f, "x://y", **more)):
        with pytest.raises(TypeError, match=words):
            add(lambda: "x", **{"name": "y"} | options)
    assert not get_dispatcher(app).capabilities().tools


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cache_hints": 60}, "cache_hints=.*CacheHint"),
        ({"cache_hints": {"tools/list": 60}}, "cache_hints=.*CacheHint"),
        ({"large_results": True}, "large_results=.*LargeResultSettings"),
        ({"recording": True}, "recording="),
        ({"icons": ["x"]}, "icons="),
        ({"debug": "yes"}, "debug=.*True.*False"),
        ({"capabilities": {"tools": {}}}, "capabilities=.*ServerCapabilities"),
        ({"secret_keys": "s" * 16}, "secret_keys="),
    ],
)
def test_options_of_servers_of_the_wrong_kind_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Server("x", **options)


async def test_options_in_other_forms() -> None:
    app = Server("x")

    @app.tool(expose_errors=ValueError, timeout=timedelta(minutes=1))
    def fail() -> str:
        raise ValueError("told")

    assert "told" in str(await Client(app).call("fail"))
    with pytest.raises(TypeError, match=r"cache_hint=.*CacheHint"):
        app.resource("x://y", cache_hint=60)(lambda: "x")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="timeout"):
        app.add_tool(fail, name="never", timeout=timedelta())
