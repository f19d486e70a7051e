"""Test the model adapters, with the providers' client libraries, against a fake provider server."""

import asyncio
import gc
import importlib
import json
import subprocess
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from dovetail import Context, Policy, Server, rule
from dovetail.agent.agent import Agent, FinishedEvent
from dovetail.agent.models.anthropic_model import AnthropicModel
from dovetail.agent.models.openai_model import OpenAIModel
from dovetail.agent.models.preferences import ModelInfo
from dovetail.agent.models.provider_client import ProviderClient
from dovetail.agent.models.provider_messages import ToolAliases
from dovetail.errors import InputRequestError, ModelError
from dovetail.host import Allow, ConsentRequest
from dovetail.host.host import Host
from dovetail.protocol.interfaces.language_model import Model
from dovetail.wire.content import (
    AudioContent,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
    ToolResultContent,
    ToolUseContent,
)
from dovetail.wire.sampling import ModelHint, ModelPreferences, SamplingMessage, ToolChoice
from dovetail.wire.tools import Tool
from support.provider_server import ProviderServer, ScriptedReply

PRICE = (3.0, 15.0)
MAKERS = ("openai", "anthropic")


@pytest.fixture
def maker() -> Iterator[ProviderServer]:
    with ProviderServer() as made:
        yield made


@pytest.fixture(params=MAKERS)
def model(request: pytest.FixtureRequest, maker: ProviderServer) -> Model:
    return made(request.param, maker)


def made(kind: str, maker: ProviderServer, *more: Any) -> Model:
    models = (ModelInfo("large-1", PRICE), *more)
    if kind == "openai":
        return OpenAIModel(*models, base_url=f"{maker.url}/v1", api_key="key-1", max_retries=0)
    return AnthropicModel(*models, base_url=maker.url, api_key="key-1", max_retries=0)


def user(*content: Any) -> SamplingMessage:
    return SamplingMessage(role="user", content=[*content])


def asks(text: str = "hi") -> list[SamplingMessage]:
    return [SamplingMessage(role="user", content=TextContent(text=text))]


async def test_a_reply_with_its_usage(maker: ProviderServer, model: Model) -> None:
    maker.replies = [ScriptedReply("hello")]
    reply = await model.create_message(asks(), max_tokens=50, system_prompt="Be brief.", stop_sequences=["END"])
    assert reply.content == [TextContent(text="hello")]
    assert (reply.model, reply.stop_reason) == ("large-1", "endTurn")
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (100, 10)
    assert reply.usage.cost_usd == pytest.approx((100 * 3 + 10 * 15) / 1e6)
    told = maker.requests[0]
    assert told["max_tokens"] == 50
    assert told.get("stop") or told["stop_sequences"] == ["END"]
    assert "Be brief." in json.dumps(told)
    assert "tools" not in told


@pytest.mark.parametrize(
    ("said", "means"),
    [("length", "maxTokens"), ("content_filter", "content_filter")],
)
async def test_why_openai_stopped(maker: ProviderServer, said: str, means: str) -> None:
    maker.replies = [ScriptedReply("he", stop=said)]
    assert (await made("openai", maker).create_message(asks())).stop_reason == means


@pytest.mark.parametrize(
    ("said", "means"),
    [("max_tokens", "maxTokens"), ("stop_sequence", "stopSequence"), ("refusal", "refusal")],
)
async def test_why_anthropic_stopped(maker: ProviderServer, said: str, means: str) -> None:
    maker.replies = [ScriptedReply("he", stop=said)]
    assert (await made("anthropic", maker).create_message(asks())).stop_reason == means


async def test_tools_under_names_the_maker_takes(maker: ProviderServer, model: Model) -> None:
    """A server may call its tools what it likes; the model's call comes back under that name."""
    odd = Tool(name="files/read.all", description="Reads.", input_schema={"type": "object"})
    maker.replies = [ScriptedReply("ok")]
    await model.create_message(asks(), [odd], tool_choice=ToolChoice(mode="required"))
    told = maker.requests[0]["tools"][0]
    alias = told.get("name") or told["function"]["name"]
    assert maker.requests[0]["tool_choice"] in ("required", {"type": "any"})
    maker.replies = [ScriptedReply(None, (("c1", alias, {"path": "/x"}),))]
    reply = await model.create_message(asks(), [odd])
    assert reply.content == [ToolUseContent(id="c1", name="files/read.all", input={"path": "/x"})]
    assert reply.stop_reason == "toolUse"
    said = SamplingMessage(role="assistant", content=[TextContent(text="wait"), *reply.content])
    answer = ToolResultContent(tool_use_id="c1", content=[TextContent(text="text of x")], is_error=True)
    maker.replies = [ScriptedReply("done")]
    await model.create_message([*asks(), said, user(answer)], [odd])
    sent = json.dumps(maker.requests[-1]["messages"])
    assert alias in sent
    assert "text of x" in sent
    assert "files/read.all" not in sent
    assert (
        '"is_error": true' in sent or '"text of x"' not in sent
    )  # without a flag, the text itself reports the failure


async def test_pictures_and_what_else_a_tool_answers(maker: ProviderServer, model: Model) -> None:
    call = SamplingMessage(role="assistant", content=ToolUseContent(id="c1", name="look", input={}))
    answer = ToolResultContent(
        tool_use_id="c1",
        content=[
            ImageContent(data="UElD", mime_type="image/png"),
            ResourceLink(uri="file:///a", name="a"),
            EmbeddedResource(resource=ResourceContents(uri="file:///b", text="inside b")),
            EmbeddedResource(resource=ResourceContents(uri="file:///c", blob="AA==")),
            AudioContent(data="AA==", mime_type="audio/wav"),
        ],
    )
    maker.replies = [ScriptedReply("a cat")]
    picture = ImageContent(data="aW1nMg==", mime_type="image/jpeg")
    await model.create_message([*asks(), call, user(answer), user(TextContent(text="and"), picture)])
    sent = json.dumps(maker.requests[0]["messages"])
    for part in ("UElD", "aW1nMg==", "file:///a", "inside b", "file:///c", "audio/wav"):
        assert part in sent


async def test_a_structured_value_without_words(maker: ProviderServer, model: Model) -> None:
    call = SamplingMessage(role="assistant", content=ToolUseContent(id="c1", name="look", input={}))
    answer = ToolResultContent(tool_use_id="c1", content=[], structured_content={"degrees": 21})
    maker.replies = [ScriptedReply("warm")]
    await model.create_message([*asks(), call, user(answer)])
    assert "degrees" in json.dumps(maker.requests[0]["messages"])


async def test_sounds_go_where_they_are_taken(maker: ProviderServer) -> None:
    maker.replies = [ScriptedReply("a song")]
    sound = AudioContent(data="AA==", mime_type="audio/mpeg")
    await made("openai", maker).create_message([user(sound)])
    assert maker.requests[0]["messages"][0]["content"][0]["input_audio"] == {"data": "AA==", "format": "mp3"}
    with pytest.raises(ModelError, match="audio"):
        await made("anthropic", maker).create_message([user(sound)])


@pytest.mark.parametrize("kind", MAKERS)
async def test_a_model_the_server_prefers(maker: ProviderServer, kind: str) -> None:
    model = made(kind, maker, ModelInfo("small-1", speed=0.9, intelligence=0.2))
    maker.replies = [ScriptedReply("1"), ScriptedReply("2"), ScriptedReply("3")]
    await model.create_message(asks(), model_preferences=ModelPreferences(hints=[ModelHint(name="small")]))
    await model.create_message(asks(), model_preferences=ModelPreferences(speed_priority=1.0))
    await model.create_message(asks(), model_preferences=ModelPreferences(intelligence_priority=1.0))
    assert [one["model"] for one in maker.requests] == ["small-1", "small-1", "large-1"]


async def test_arguments_that_are_no_json(maker: ProviderServer) -> None:
    maker.replies = [ScriptedReply(None, (("c1", "look", '{"at": '), ("c2", "look", '{"at": 1}')))]
    tool = Tool(name="look", input_schema={"type": "object"})
    reply = await made("openai", maker).create_message(asks(), [tool])
    assert [one.id for one in reply.content if isinstance(one, ToolUseContent)] == ["c1", "c2"]
    assert list(reply.invalid_calls) == ["c1"]


async def test_empty_texts_are_not_sent_to_anthropic(maker: ProviderServer) -> None:
    maker.replies = [ScriptedReply("ok")]
    silent = SamplingMessage(role="assistant", content=TextContent(text=""))
    call = SamplingMessage(
        role="assistant", content=[TextContent(text=" \n"), ToolUseContent(id="c1", name="look", input={})]
    )
    answer = ToolResultContent(tool_use_id="c1", content=[TextContent(text=" ")])
    await made("anthropic", maker).create_message([*asks(), silent, call, user(answer, TextContent(text=""))])
    assert [(message["role"], len(message["content"])) for message in maker.requests[0]["messages"]] == [
        ("user", 1),
        ("assistant", 1),
        ("user", 1),
    ]


@pytest.mark.parametrize("kind", MAKERS)
def test_a_model_works_in_several_event_loops(kind: str) -> None:
    with ProviderServer(ScriptedReply("1"), ScriptedReply("2"), keep_alive=True) as maker:
        model = made(kind, maker)
        assert isinstance(model, OpenAIModel | AnthropicModel)

        async def ask() -> Any:
            async with asyncio.timeout(20):
                return (await model.create_message(asks())).content

        with asyncio.Runner() as first, asyncio.Runner() as second:
            assert [runner.run(ask()) for runner in (first, second)] == [
                [TextContent(text="1")],
                [TextContent(text="2")],
            ]
            for runner in (first, second):
                runner.run(model.close())


def test_the_clients_of_closed_event_loops_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeClient:
        def __init__(self) -> None:
            self.loop = asyncio.get_running_loop()

    package: Any = types.ModuleType("fake_provider")
    package.FakeClient, package.FakeError = FakeClient, RuntimeError
    monkeypatch.setitem(sys.modules, "fake_provider", package)
    provider = ProviderClient("fake_provider", "FakeClient", "FakeError", {})
    clients: list[weakref.ref[Any]] = []

    async def remember(client: Any) -> None:
        clients.append(weakref.ref(client))

    for _ in range(3):
        asyncio.run(provider.send("m", remember))
    gc.collect()
    assert [client() is None for client in clients] == [True, True, False]


@pytest.mark.parametrize("kind", MAKERS)
async def test_closing_a_model_closes_its_connections(maker: ProviderServer, kind: str) -> None:
    maker.replies = [ScriptedReply("1"), ScriptedReply("2")]
    http_client = importlib.import_module(kind).DefaultAsyncHttpxClient()
    options: Any = {"api_key": "k", "http_client": http_client}
    model = (
        OpenAIModel("m", base_url=f"{maker.url}/v1", **options)
        if kind == "openai"
        else AnthropicModel("m", base_url=maker.url, **options)
    )
    await model.close()
    assert not http_client.is_closed
    await model.create_message(asks())
    await model.close()
    assert http_client.is_closed


async def test_what_the_maker_refuses_says_which_model(maker: ProviderServer, model: Model) -> None:
    with pytest.raises(ModelError, match="large-1"):
        await model.create_message(asks(), max_tokens=0)


async def test_no_key_of_openai_goes_elsewhere(maker: ProviderServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    maker.replies = [ScriptedReply("hello")]
    await OpenAIModel("local", base_url=f"{maker.url}/v1").create_message(asks())
    assert "sk-secret" not in json.dumps(maker.headers)


async def test_openai_gets_the_limit_under_its_newer_name(
    maker: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{maker.url}/v1")
    maker.replies = [ScriptedReply("hello")]
    await OpenAIModel("gpt", api_key="k").create_message(asks(), max_tokens=7, temperature=0.5)
    assert maker.requests[0]["max_completion_tokens"] == 7
    assert maker.requests[0]["temperature"] == 0.5


@pytest.mark.parametrize("kind", MAKERS)
def test_a_client_that_is_not_installed(kind: str) -> None:
    """The adapters load without the makers' clients, and say what is missing when they are asked."""
    name = {"openai": "OpenAIModel", "anthropic": "AnthropicModel"}[kind]
    program = f"""
import asyncio, sys
sys.modules[{kind!r}] = None
from dovetail.agent import {name}
from dovetail.errors import InputRequestError, ModelError
try:
    asyncio.run({name}("m").create_message([]))
except ModelError as exc:
    print(exc)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert f"dovetail-mcp[{kind}]" in run.stdout


# With a host


def clock() -> Server:
    app = Server("clock")

    @app.tool
    def now(city: str) -> str:
        """The time in a city."""
        return f"noon in {city}"

    @app.tool
    async def plan(ctx: Context) -> str:
        """Let the host's model use a tool of this server's own."""
        look = Tool(name="look.up", description="Look it up.", input_schema={"type": "object"})
        asked = SamplingMessage(role="user", content=TextContent(text="plan"))
        options: Any = {"max_tokens": 20, "tools": [look], "tool_choice": ToolChoice(mode="required")}
        reply = await ctx.sample([asked], **options)
        blocks = reply.content if isinstance(reply.content, list) else [reply.content]
        (call,) = [one for one in blocks if isinstance(one, ToolUseContent)]
        answer = ToolResultContent(tool_use_id=call.id, content=[TextContent(text=f"found {call.input['what']}")])
        said = SamplingMessage(role="assistant", content=[call])
        last = await ctx.sample(
            [asked, said, SamplingMessage(role="user", content=[answer])], max_tokens=20, tools=[look]
        )
        return f"{call.name} {reply.stop_reason} {getattr(last.content, 'text', '')}"

    @app.tool
    async def poem(ctx: Context) -> str:
        """A poem of the host's model."""
        result = await ctx.sample("a poem", max_tokens=20, model_preferences=ModelPreferences(cost_priority=1.0))
        return str(getattr(result.content, "text", ""))

    return app


@pytest.mark.parametrize("kind", MAKERS)
async def test_an_agent_on_a_maker(maker: ProviderServer, kind: str) -> None:
    """The whole way: prompt, call, consent, result, sampling in between on the same model, answer, bill."""
    asked: list[ConsentRequest] = []

    def consent(request: ConsentRequest) -> Any:
        asked.append(request)
        return Allow()

    model = made(kind, maker, ModelInfo("small-1", (0.1, 0.2), cost=0.9))
    maker.replies = [
        ScriptedReply("I look.", (("c1", "clock__now", {"city": "Rome"}), ("c2", "clock__poem", {}))),
        ScriptedReply("roses are red"),
        ScriptedReply("It is noon."),
    ]
    policy = Policy("ask", [rule("allow", kind="sampling.request")])
    async with Host(policy=policy, consent=consent, model=model) as host:
        host.add("clock", clock())
        events = [event async for event in Agent(host, model).run("What time is it in Rome?")]
    assert [one.type for one in events] == [
        "text",
        "tool_call",
        "tool_result",
        "tool_call",
        "tool_result",
        "text",
        "finished",
    ]
    assert [(one.kind, one.tool) for one in asked] == [("tool.call", "now"), ("tool.call", "poem")]
    done = events[-1]
    assert isinstance(done, FinishedEvent)
    assert (done.text, done.reason) == ("It is noon.", "completed")
    assert done.usage.tool_calls == {"clock.now": 1, "clock.poem": 1}
    assert done.usage.cost_usd == pytest.approx(2 * (100 * 3 + 10 * 15) / 1e6)
    assert [one["model"] for one in maker.requests] == ["large-1", "small-1", "large-1"]
    last = json.dumps(maker.requests[-1]["messages"])
    assert "noon in Rome" in last
    assert "roses are red" in last


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_tools_in_sampling(maker: ProviderServer, kind: str, revision: str) -> None:
    """A server's own tools go to the model and its calls come back to the server, which answers them itself."""
    model = made(kind, maker)
    async with Host(policy=Policy("ask", [rule("allow", kind="*")]), model=model) as host:
        host.add("clock", clock(), protocol_version=revision)
        maker.replies = [ScriptedReply(None, (("c1", alias_of("look.up"), {"what": "x"}),)), ScriptedReply("done")]
        result = await host.call("clock.plan")
    assert result.content[0].text == "look.up toolUse done"
    assert maker.requests[0]["tool_choice"] in ("required", {"type": "any"})
    assert "found x" in json.dumps(maker.requests[1]["messages"])


async def test_an_unreadable_model_call_fails_the_sampling_request(maker: ProviderServer) -> None:
    """It is a failure of the model, rather than a call without arguments, which it was not."""
    async with Host(policy=Policy("ask", [rule("allow", kind="*")]), model=made("openai", maker)) as host:
        host.add("clock", clock(), protocol_version="2025-11-25")
        maker.replies = [ScriptedReply(None, (("c1", alias_of("look.up"), '{"what": '),))]
        with pytest.raises(InputRequestError, match=r"ModelError.*JSON"):
            await host.call("clock.plan")


def alias_of(name: str) -> str:
    return ToolAliases().to_alias(name)
