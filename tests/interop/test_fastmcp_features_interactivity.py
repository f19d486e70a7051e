"""Test rows of fastmcp_features.csv about the messages between a call and its client, icons and pages."""

import enum
from dataclasses import dataclass
from typing import Any, Literal

import pytest

pytest.importorskip("fastmcp", reason="fastmcp is not installed")

import mcp_types as types
from fastmcp import Client as FastClient
from fastmcp import Context as FastContext
from fastmcp import FastMCP
from fastmcp.client.elicitation import ElicitResult as FastElicitResult

from dovetail import (
    Client,
    Completion,
    Context,
    ElicitationCancelled,
    ElicitationDeclined,
    Icon,
    Server,
    get_context,
)
from interop.fastmcp_pairs import MODES, connect, connect_in_era, create_pair, greet, leave, list_tools

pytestmark = [
    pytest.mark.interop,
    # fastmcp warns about its own dependencies.
    pytest.mark.filterwarnings("ignore::Warning"),
]

# Progress and logs


@pytest.mark.parametrize("era", MODES)
async def test_progress(era: str) -> None:
    fast, app = create_pair()

    @fast.tool(name="work")
    async def fast_work(ctx: FastContext) -> str:
        await ctx.report_progress(1, 2, "half")
        return "done"

    @app.tool
    async def work(ctx: Context) -> str:
        await ctx.progress(1, 2, "half")
        return "done"

    for server in (fast, app):
        updates: list[Any] = []

        async def note(*update: Any, updates: list[Any] = updates) -> None:
            updates.append(update)

        async with connect_in_era(server, era) as client:
            await client.call_tool("work", {}, progress_handler=note)
            await client.call_tool("work", {})
        assert updates == [(1, 2, "half")]


async def test_progress_of_all_calls() -> None:
    """A client of fastmcp takes a handler for all calls. dovetail takes a handler for each call."""
    fast, app = create_pair()
    updates: list[float] = []

    @fast.tool
    async def work(ctx: FastContext) -> str:
        await ctx.report_progress(1, 2)
        return "done"

    async def note(progress: float, total: float | None, message: str | None) -> None:
        updates.append(progress)

    async with FastClient(fast, progress_handler=note) as client:
        await client.call_tool("work")
    assert updates == [1]
    options: Any = {"progress_handler": note}
    with pytest.raises(TypeError):
        Client(app, **options)


async def test_logs_without_a_handler(caplog: pytest.LogCaptureFixture) -> None:
    """A client of fastmcp passes messages of the server to `logging`. A client of dovetail drops them."""
    fast, app = create_pair()
    caplog.set_level("DEBUG")

    @fast.tool(name="work")
    async def fast_work(ctx: FastContext) -> str:
        await ctx.warning("late")
        return "done"

    @app.tool
    async def work(ctx: Context) -> str:
        await ctx.warning("late")
        return "done"

    counts: list[int] = []
    for server in (fast, app):
        caplog.clear()
        async with connect(server) as client:
            await client.call_tool("work", {})
            await client.list_tools()
        counts.append(len([record for record in caplog.records if record.levelname == "WARNING"]))
    assert counts == [1, 0]


@pytest.mark.parametrize("era", MODES)
async def test_logs(era: str) -> None:
    """Both send all levels, loggers and structured data. dovetail sends `debug` only if the client wants it."""
    fast, app = create_pair()

    @fast.tool(name="work")
    async def fast_work(ctx: FastContext) -> str:
        await ctx.debug("begin")
        await ctx.info("saved", extra={"id": 7})
        await ctx.log("late", level="alert", logger_name="clock")
        return "done"

    @app.tool
    async def work(ctx: Context) -> str:
        await ctx.debug("begin")
        await ctx.info({"msg": "saved", "extra": {"id": 7}})
        await ctx.log("alert", "late", logger="clock")
        return "done"

    for server, options in ((fast, {}), (app, {"log_level": "debug"}), (app, {})):
        records: list[Any] = []

        async def note(record: Any, records: list[Any] = records) -> None:
            records.append(record)

        async with connect_in_era(server, era, log_handler=note, **options) as client:
            await client.call_tool("work", {})
            await client.list_tools()
        levels = [record.level for record in records]
        assert levels == (["info", "alert"] if server is app and not options else ["debug", "info", "alert"])
        assert records[-2].data == {"msg": "saved", "extra": {"id": 7}}
        assert records[-1].logger == "clock"


# Questions to the client


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Seat:
    row: int
    window: bool


@pytest.mark.parametrize(
    ("form", "answer", "expected"),
    [
        (str, {"value": "12A"}, "12A"),
        (int, {"value": 3}, 3),
        (bool, {"value": True}, True),
        (Literal["small", "large"], {"value": "small"}, "small"),
        (Size, {"value": "small"}, Size.SMALL),
        (Seat, {"row": 3, "window": True}, Seat(3, True)),
    ],
)
async def test_types_of_questions(form: Any, answer: dict[str, Any], expected: Any) -> None:
    fast, app = create_pair()
    values: list[Any] = []

    @fast.tool(name="ask")
    async def fast_ask(ctx: FastContext) -> str:
        result: Any = await ctx.elicit("Which?", form)
        values.append(result.data)
        return result.action

    @app.tool
    async def ask(ctx: Context) -> str:
        values.append(await ctx.elicit("Which?", form))
        return "accept"

    async def reply(*_: Any) -> dict[str, Any]:
        return answer

    for server in (fast, app):
        async with connect_in_era(server, "handshake", elicitation_handler=reply) as client:
            assert (await client.call_tool("ask", {})).content[0].text == "accept"
    assert values == [expected, expected]


async def test_refused_questions() -> None:
    fast, app = create_pair()

    @fast.tool(name="ask")
    async def fast_ask(ctx: FastContext) -> str:
        return (await ctx.elicit("Which?", str)).action

    @app.tool
    async def ask(ctx: Context) -> str:
        try:
            return await ctx.elicit("Which?", str)
        except ElicitationDeclined:
            return "decline"
        except ElicitationCancelled:
            return "cancel"

    for action, error in {"decline": ElicitationDeclined, "cancel": ElicitationCancelled}.items():

        async def fast_refuse(*_: Any, action: Any = action) -> Any:
            return FastElicitResult(action=action)

        def refuse(question: Any, error: type[Exception] = error) -> Any:
            raise error

        for server, handler in ((fast, fast_refuse), (app, refuse)):
            async with connect_in_era(server, "handshake", elicitation_handler=handler) as client:
                assert (await client.call_tool("ask", {})).content[0].text == action


async def test_parameters_of_sampling() -> None:
    """The handlers get the messages and the parameters of the request, and may return text."""
    fast, app = create_pair()
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="Which row?"))

    @fast.tool(name="guess")
    async def fast_guess(ctx: FastContext) -> str:
        session: Any = ctx.session  # the method is deprecated
        reply = await session.create_message(messages=[message], max_tokens=9, system_prompt="Be brief.")
        return reply.content.text

    @app.tool
    async def guess(ctx: Context) -> str:
        reply: Any = await ctx.sample("Which row?", max_tokens=9, system_prompt="Be brief.")
        return reply.content.text

    async def fast_think(messages: Any, params: Any, context: Any) -> str:
        return f"{messages[0].content.text} {params.system_prompt} {params.max_tokens}"

    def think(params: Any) -> str:
        return f"{params.messages[0].content.text} {params.system_prompt} {params.max_tokens}"

    for server, handler in ((fast, fast_think), (app, think)):
        async with connect_in_era(server, "handshake", sampling_handler=handler) as client:
            assert (await client.call_tool("guess", {})).content[0].text == "Which row? Be brief. 9"


async def test_roots() -> None:
    fast, app = create_pair()

    @fast.tool(name="roots")
    async def fast_roots(ctx: FastContext) -> list[str]:
        session: Any = ctx.session  # the method is deprecated
        return [str(root.uri) for root in (await session.list_roots()).roots]

    @app.tool
    async def roots(ctx: Context) -> list[str]:
        return [str(root.uri) for root in await ctx.list_roots()]

    async def find(*_: Any) -> list[str]:
        return ["file:///a"]

    for server in (fast, app):
        for value in (["file:///a"], find):
            async with connect_in_era(server, "handshake", roots=value) as client:
                assert (await client.call_tool("roots", {})).structured_content == {"result": ["file:///a"]}


# Completion


async def test_completion() -> None:
    """dovetail completes a `Literal` without code."""
    towns = {"no": ["Oslo", "Bergen"], "fr": ["Paris"]}
    methods: list[str] = []

    def visit(country: str, town: str, mood: Literal["happy", "sad"] = "sad") -> str:
        return town

    def show_town(country: str, town: str) -> str:
        return town

    fast, app = create_pair()
    for server in (fast, app):
        server.prompt(visit)
        server.resource("town://{country}/{town}", name="town")(show_town)

    @fast.completion
    def fast_complete(ref: Any, argument: Any, context: Any) -> Any:
        if argument.name != "town":
            return None
        country = (context.arguments or {}).get("country", "") if context else ""
        values = [town for town in towns.get(country, []) if town.startswith(argument.value)]
        return types.Completion(values=values, total=40, has_more=True)

    def complete(value: str, arguments: dict[str, str]) -> Completion:
        methods.append("completion" if get_context().request_id else "")
        values = [town for town in towns.get(arguments.get("country", ""), []) if town.startswith(value)]
        return Completion(values=values, total=40, has_more=True)

    app.completion("visit", "town")(complete)
    app.completion("town://{country}/{town}", "town")(complete)
    references: list[Any] = [
        types.PromptReference(type="ref/prompt", name="visit"),
        types.ResourceTemplateReference(type="ref/resource", uri="town://{country}/{town}"),
    ]
    results: list[Any] = []
    async with FastClient(fast) as client:
        for reference in references:
            argument = {"name": "town", "value": "O"}
            results.append(await client.complete(reference, argument, context_arguments={"country": "no"}))
        assert (await client.complete(references[0], {"name": "mood", "value": "h"})).values == []
    async with Client(app) as client:
        known = {"country": "no"}
        results.append(await client.complete("town", "O", context=known, prompt="visit"))
        results.append(await client.complete("town", "O", context=known, template="town://{country}/{town}"))
        assert (await client.complete("mood", "h", prompt="visit")).values == ["happy"]
    assert [(result.values, result.total, result.has_more) for result in results] == [(["Oslo"], 40, True)] * 4
    assert methods == ["completion", "completion"]


# Icons and pages


def _return_day(day: str) -> str:
    return day


async def test_icons() -> None:
    picture: dict[str, Any] = {"src": "data:image/gif;base64,R0lGODlh", "sizes": ["48x48"], "theme": "dark"}
    fast_icons = [types.Icon(mime_type="image/gif", **picture)]
    icons = [Icon(mime_type="image/gif", **picture)]
    for app, own in ((FastMCP("x", icons=fast_icons), fast_icons), (Server("x", icons=icons), icons)):
        server: Any = app
        server.tool(greet, icons=own)
        server.resource("note://today", icons=own)(lambda: "buy tea")
        server.resource("note://{day}", name="day", icons=own)(_return_day)
        server.prompt(greet, icons=own)
        async with connect(server) as client:
            items = [
                client.server_info,
                *await client.list_tools(),
                *await client.list_resources(),
                *await client.list_resource_templates(),
                *await client.list_prompts(),
            ]
        assert len(items) == 5
        for (icon,) in [item.icons for item in items]:
            assert (icon.src, icon.mime_type, icon.sizes, icon.theme) == (
                picture["src"],
                "image/gif",
                ["48x48"],
                "dark",
            )


async def test_pages() -> None:
    fast, app = FastMCP("x", list_page_size=1), Server("x", page_size=1)
    for server in (fast, app):
        for function in (greet, leave):
            server.tool(function)
        assert await list_tools(server) == ["greet", "leave"]
    async with connect(fast) as client:
        assert len((await client.list_tools_mcp()).tools) == 1
    async with Client(app) as client:
        assert len((await client.list_tools_page()).tools) == 1
