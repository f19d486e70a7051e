"""Test that the policy and the user judge exactly what a host or a gateway sends, shows and passes on."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail import Client, Context, MCPError, Policy, PolicyError, RemoteError, Server, TextContent, rule
from dovetail.client.client import mount_client
from dovetail.errors import ElicitationDeclined
from dovetail.host import argument
from dovetail.host.consent.consent import AllowWithChanges, ConsentRequest
from dovetail.host.host import Host
from dovetail.host.policy.policy import PolicyRequest
from dovetail.protocol.exchange import Caller, IncomingExchange
from dovetail.protocol.interfaces.language_model import ModelReply
from dovetail.types import Tool
from support.polling import TIMEOUT_S
from support.scripted_server import ErrorReply, ScriptedServer, encode_http_reply, serve_on_socket, serve_over_http

OLD, NEW = "2025-11-25", "2026-07-28"


@asynccontextmanager
async def gateway(target: Any, *rules: Any, **options: Any) -> AsyncGenerator[tuple[Client, Host]]:
    async with Host(policy=Policy("allow", rules)) as host, asyncio.timeout(TIMEOUT_S):
        host.add("far", target)
        app = host.as_server()
        async with Client(app, **options) as client:
            yield client, host
        await app.stop()


# Questions of servers


def decline(_: Any) -> None:
    return None


def question(method: str, **params: Any) -> dict[str, Any]:
    requests = {"a": {"method": method, "params": params}}
    return {"resultType": "input_required", "inputRequests": requests, "requestState": "s"}


@pytest.mark.parametrize(
    ("plain", "escaped"),
    [('"input_required"', r'"input\u005frequired"'), ('"resultType"', r'"result\u0054ype"')],
)
async def test_a_question_with_escapes_obeys_the_rules_for_questions(plain: str, escaped: str) -> None:
    form = question("elicitation/create", mode="form", message="Password?", requestedSchema={"type": "object"})

    def ask(message: Any) -> bytes:
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": form})
        return encode_http_reply(body.replace(plain, escaped, 1).encode())

    call: dict[str, Any] = {"name": "far__echo", "arguments": {}}
    script = ScriptedServer("stateless", {"tools/call": ask})
    async with (
        serve_over_http(script) as url,
        gateway(url, rule("deny", kind="elicitation.*"), elicitation_handler=decline) as (client, _),
    ):
        with pytest.raises(MCPError):
            await client.request("tools/call", call)
        answers = [message["params"].get("inputResponses") for message in script.received]
        assert {"a": {"action": "decline"}} in answers
        async with gateway(url, elicitation_handler=decline) as (client, _):
            result = await client.request("tools/call", call)
            assert result["inputRequests"]["a"]["params"]["message"] == "Password?"


async def test_a_result_with_escapes_is_not_a_question() -> None:
    text = "é \x1b input_required"
    script = ScriptedServer("stateless", {"tools/call": {"content": [{"type": "text", "text": text}]}})
    async with serve_over_http(script) as url, gateway(url) as (client, _):
        result = await client.call_tool("far__echo")
        assert result.content == [TextContent(text=text)]


async def test_a_member_that_is_repeated_in_a_result_is_passed_on_once() -> None:
    def reply(message: Any) -> bytes:
        first, last = '"resultType":"input_required","inputRequests":{}', '"resultType":"complete","content":[]'
        return encode_http_reply(f'{{"jsonrpc":"2.0","id":{message["id"]},"result":{{{first},{last}}}}}'.encode())

    async with serve_over_http(ScriptedServer("stateless", {"tools/call": reply})) as url, asyncio.timeout(TIMEOUT_S):
        mounted = mount_client(Client(url))
        caller = Caller(protocol_version=NEW, is_stateless=True)
        params: dict[str, Any] = {"name": "echo", "arguments": {}}
        result = await mounted.handle(
            IncomingExchange(id=1, method="tools/call", params=params, meta={}, caller=caller)
        )
        await mounted.stop()
    assert isinstance(result, bytes)
    assert result.count(b"resultType") == 1


async def test_a_denied_question_is_not_passed_on_after_many_rounds() -> None:
    form = question("elicitation/create", mode="form", message="Password?", requestedSchema={"type": "object"})
    asked: list[Any] = []
    async with (
        serve_over_http(ScriptedServer("stateless", {"tools/call": form})) as url,
        gateway(url, rule("deny", kind="elicitation.*"), elicitation_handler=asked.append) as (client, _),
    ):
        with pytest.raises(MCPError):
            await client.call_tool("far__echo")
    assert asked == []


@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list"])
async def test_the_method_of_a_question_decides_its_kind(method: str) -> None:
    messages = [{"role": "user", "content": {"type": "text", "text": "hi"}}]
    asking = question(method, mode="url", url="https://a.example", messages=messages, maxTokens=1)
    asked: list[str] = []

    def answer(*_: Any) -> Any:
        asked.append(method)
        return [] if method == "roots/list" else "hello"

    denied = rule("deny", kind=["sampling.request", "roots.list"])
    async with (
        serve_over_http(ScriptedServer("stateless", {"tools/call": asking})) as url,
        gateway(url, denied, sampling_handler=answer, roots=answer) as (client, _),
    ):
        with pytest.raises(MCPError):
            await client.call_tool("far__echo")
    assert asked == []


@pytest.mark.parametrize("is_denied", [True, False])
async def test_an_error_that_asks_for_a_page_obeys_the_rules_for_pages(*, is_denied: bool) -> None:
    page = {"mode": "url", "elicitationId": "1", "url": "https://a.example/pay", "message": "Pay"}
    script = ScriptedServer("handshake", {"tools/call": ErrorReply(-32042, "pay first", {"elicitations": [page]})})
    visited: list[str] = []

    def visit(request: Any) -> None:
        visited.append(request.url)
        raise ElicitationDeclined

    rules = [rule("deny", kind="elicitation.url")] if is_denied else []
    async with (
        serve_on_socket(script) as target,
        gateway(target, *rules, protocol_version=OLD, url_elicitation_handler=visit) as (client, _),
    ):
        with pytest.raises(MCPError):
            await client.call_tool("far__echo")
    assert visited == ([] if is_denied else ["https://a.example/pay"])


# Arguments


@pytest.mark.parametrize(
    ("schema", "arguments", "expected"),
    [
        ({"force": {"type": "boolean", "default": True}}, {}, "deny"),
        ({"force": {"type": "boolean", "default": True}}, {"force": None}, "deny"),
        ({"force": {"type": "boolean", "default": True}}, {"force": False}, "allow"),
        ({"force": {"type": "boolean", "default": False}}, {}, "allow"),
        ({"force": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": None}}, {}, "allow"),
        ({"force": {"$ref": "#/$defs/Yes"}}, {}, "deny"),
        ({"force": {"type": "boolean"}}, {}, "allow"),
    ],
)
@pytest.mark.parametrize("negated", [False, True])
def test_a_missing_argument_has_its_default(
    schema: dict[str, Any], arguments: dict[str, Any], expected: str, *, negated: bool
) -> None:
    forced = argument("/force").equals(True)
    rules = [rule("allow", tool="remove", unless=forced)] if negated else [rule("deny", tool="remove", when=forced)]
    definitions = {"Yes": {"type": "boolean", "default": True}}
    request = PolicyRequest(
        server="files",
        tool="remove",
        schema={"type": "object", "properties": schema, "$defs": definitions},
    ).with_arguments(arguments)
    assert Policy("deny" if negated else "allow", rules).decide(request).action == expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (argument("/options/mode").equals("wipe"), "deny"),
        (argument("/options/mode").matches("w*"), "deny"),
        (argument("/options/mode").equals("keep"), "allow"),
        (argument("/options/mode").exists(), "allow"),
        (argument("/path").matches("*"), "allow"),
    ],
    ids=str,
)
@pytest.mark.parametrize("arguments", [{}, {"options": {}}])
def test_defaults_of_nested_arguments(condition: Any, expected: str, arguments: dict[str, Any]) -> None:
    options = {"type": "object", "properties": {"mode": {"type": "string", "default": "wipe"}}, "default": {}}
    path = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    schema = {"type": "object", "properties": {"options": options, "path": path}}
    request = PolicyRequest(server="s", tool="t", schema=schema, arguments=arguments)
    assert Policy("allow", [rule("deny", when=condition)]).decide(request).action == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1e20, "deny"),
        ("1e20", "deny"),
        (10**20, "deny"),
        (10**20 + 1, "deny"),  # the same float
        (10**20 + 10**6, "allow"),
        (10**400, "allow"),
        (99, "allow"),
    ],
)
def test_large_numbers_are_compared_by_value(value: Any, expected: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "number"}}}
    request = PolicyRequest(server="s", tool="t", schema=schema).with_arguments({"n": value})
    assert Policy("allow", [rule("deny", when=argument("/n").equals(10**20))]).decide(request).action == expected


async def test_a_call_that_leaves_out_a_denied_default_is_denied() -> None:
    app, ran = Server("files"), list[bool]()

    @app.tool
    def remove(path: str, force: bool = True) -> None:
        ran.append(force)

    denied = rule("deny", tool="remove", when=argument("/force").equals(True))
    async with Host(policy=Policy("allow", [denied])) as host, asyncio.timeout(TIMEOUT_S):
        host.add("files", app)
        with pytest.raises(PolicyError):
            await host.call("files.remove", {"path": "x"})
        await host.call("files.remove", {"path": "x", "force": False})
    assert ran == [False]


@pytest.mark.parametrize("path", ["private", "open"])
async def test_a_rule_about_results_can_depend_on_the_arguments(path: str) -> None:
    app = Server("files")

    @app.tool
    def read(path: str) -> str:
        return f"content of {path}"

    denied = rule("deny", kind="tool.result", when=argument("/path").equals("private"))
    async with gateway(app, denied) as (client, host):
        if path == "private":
            with pytest.raises(PolicyError):
                await host.call("far.read", {"path": path})
            assert (await client.request("tools/call", {"name": "far__read", "arguments": {"path": path}}))["isError"]
        else:
            assert not (await host.call("far.read", {"path": path})).is_error
            assert not (await client.call_tool("far__read", {"path": path})).is_error


# Completions


def prompts() -> Server:
    app = Server("library")

    @app.prompt
    def report(company: str, topic: str) -> str:
        return f"{company} {topic}"

    @app.completion("report", "topic")
    def topics(value: str, known: dict[str, str]) -> list[str]:
        return [f"plans of {known.get('company')}"]

    @app.completion("report", "company")
    def companies(value: str, known: dict[str, str]) -> list[str]:
        return [f"{value} {known}"]

    return app


UNKNOWN = rule("deny", tool="report", unless=argument("/language").equals("en"))
RIVAL = argument("/company").equals("rival")


@pytest.mark.parametrize(
    "rules",
    [
        [UNKNOWN, rule("deny", tool="report", when=RIVAL)],
        [UNKNOWN, rule("deny", tool="report")],
        [UNKNOWN, rule("hide", tool="report")],
        [rule("deny", kind="completion", when=RIVAL)],
        [rule("deny", kind="completion", unless=argument("/company").equals("acme"))],
    ],
    ids=lambda rules: " and ".join(map(str, rules)),
)
async def test_every_rule_that_denies_a_completion_counts(rules: Any) -> None:
    context = {"company": "rival"}
    async with gateway(prompts(), *rules) as (client, host):
        with pytest.raises(PolicyError):
            await host.complete("far", "topic", "", prompt="report", context=context)
        with pytest.raises(RemoteError):
            await client.complete("topic", "", prompt="far__report", context=context)


async def test_a_rule_about_a_name_with_a_slash_applies_to_completions() -> None:
    completed = {"completion": {"values": ["a"]}, "resultType": "complete"}
    denied = rule("deny", tool="p", when=argument("/a~1b").equals("x"))
    async with (
        serve_over_http(ScriptedServer("stateless", {"completion/complete": completed})) as url,
        gateway(url, denied) as (_, host),
    ):
        assert (await host.complete("far", "c", "", prompt="p", context={"a/b": "y"})).values == ["a"]
        with pytest.raises(PolicyError):
            await host.complete("far", "c", "", prompt="p", context={"a/b": "x"})


@pytest.mark.parametrize(
    "template", ["files://{folder}/{name}{", "files://{ folder}/{name}", "files://{folder!}/{name}"]
)
async def test_a_template_that_the_host_cannot_expand_is_not_completed(template: str) -> None:
    completed = {"completion": {"values": ["a"]}, "resultType": "complete"}
    script = ScriptedServer("stateless", {"completion/complete": completed})
    async with (
        serve_over_http(script) as url,
        gateway(url, rule("deny", tool="files://private/*")) as (client, host),
    ):
        with pytest.raises(PolicyError):
            await host.complete("far", "name", "", template=template, context={"folder": "private"})
        with pytest.raises(RemoteError):
            await client.complete("name", "", template=f"far+{template}", context={"folder": "private"})
    assert script.count("completion/complete") == 0


async def test_the_completed_argument_has_one_value() -> None:
    context = {"company": "rival", "topic": "plans"}
    async with gateway(prompts(), rule("deny", tool="report", when=RIVAL)) as (client, host):
        for completion in (
            await host.complete("far", "company", "acme", prompt="report", context=context),
            await client.complete("company", "acme", prompt="far__report", context=context),
        ):
            assert completion.values == ["acme {'topic': 'plans'}"]


async def test_a_question_about_a_completion_shows_its_arguments() -> None:
    asked: list[Any] = []

    def consent(request: ConsentRequest) -> bool:
        asked.append(request.arguments)
        return True

    policy = Policy("allow", [rule("ask", kind="completion")])
    async with Host(policy=policy, consent=consent) as host, asyncio.timeout(TIMEOUT_S):
        host.add("far", prompts())
        app = host.as_server()
        async with Client(app) as client:
            await host.complete("far", "topic", "a", prompt="report", context={"company": "acme"})
            await client.complete("topic", "b", prompt="far__report", context={"company": "acme"})
        await app.stop()
    assert asked == [{"company": "acme", "topic": "a"}, {"company": "acme", "topic": "b"}]


# What the user agrees to


async def test_a_question_about_a_result_shows_all_of_it() -> None:
    result = {
        "content": [{"type": "text", "text": "in the text"}],
        "structuredContent": {"note": "in the structure"},
        "_meta": {"note": "in the metadata"},
        "resultType": "complete",
    }
    shown: list[str] = []

    def consent(request: ConsentRequest) -> bool:
        shown.append(request.text)
        return True

    script = ScriptedServer("stateless", {"tools/call": result})
    policy = Policy("allow", [rule("ask", kind="tool.result")])
    async with serve_over_http(script) as url, Host(policy=policy, consent=consent) as host:
        host.add("far", url)
        await host.call("far.echo")
    assert all(f"in the {part}" in shown[0] for part in ("text", "structure", "metadata"))


class Model:
    async def create_message(self, messages: Any, tools: Any = (), **options: Any) -> ModelReply:
        return ModelReply(content=[TextContent(text="hello")], model="m")


async def test_a_question_about_sampling_shows_all_that_the_model_gets() -> None:
    app, shown = Server("far"), list[str]()

    @app.tool
    async def think(ctx: Context) -> str:
        tool = Tool(name="look", description="Look in the tool", input_schema={"type": "object"})
        await ctx.sample(
            "in the message", system_prompt="in the system prompt", tools=[tool], stop_sequences=["in the stop"]
        )
        return "done"

    def consent(request: ConsentRequest) -> bool:
        shown.append(request.text)
        return True

    policy = Policy("allow", [rule("ask", kind="sampling.request")])
    async with Host(policy=policy, consent=consent, model=Model()) as host, asyncio.timeout(TIMEOUT_S):
        host.add("far", app)
        await host.call("far.think")
    assert all(f"in the {part}" in shown[0] for part in ("message", "system prompt", "tool", "stop"))


async def test_a_request_that_cannot_be_edited_is_not_sent_unchanged() -> None:
    app, read = prompts(), list[str]()

    @app.resource("note:{number}")
    def note(number: str) -> str:
        read.append(number)
        return number

    policy = Policy("ask", [rule("allow", kind="server.start"), rule("ask", kind="completion")])

    def consent(_: ConsentRequest) -> AllowWithChanges:
        return AllowWithChanges({"uri": "note:2"})

    async with Host(policy=policy, consent=consent) as host, asyncio.timeout(TIMEOUT_S):
        host.add("far", app)
        with pytest.raises(PolicyError):
            await host.read_resource("far", "note:1")
        with pytest.raises(PolicyError):
            await host.complete("far", "topic", "", prompt="report")
    assert read == []
