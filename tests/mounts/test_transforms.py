"""Test renamed and fixed arguments: errors use the new names, and fixed arguments are hidden."""

import logging
from typing import Annotated, Any

import pytest
from msgspec import Meta

from dovetail import ArgTransform, Client, RemoteError, Server, ToolError, Transform
from support.mentions import mentions, values


def bank() -> Server:
    app = Server("bank")

    @app.tool
    def pay(amount: int, to: str, api_key: Annotated[str, Meta(pattern="^k")] = "k") -> str:
        return f"{amount} to {to} with {api_key}"

    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"amount": {"type": "integer"}, "api_key": {"type": "string", "pattern": "^k"}},
        "required": ["amount"],
        "additionalProperties": False,
    }

    @app.tool(input_schema=schema)
    def order(arguments: dict[str, Any]) -> str:
        return str(arguments)

    @app.prompt
    def plead(amount: int, to: str) -> str:
        return f"{to}, give me {amount}"

    return app


def changed(**arguments: ArgTransform) -> Server:
    """The bank, mounted twice over, so that two servers have words of their own."""
    between, app = Server("between"), Server("outer")
    between.mount(bank(), transforms={name: Transform(arguments=arguments) for name in ("pay", "plead")})
    app.mount(between, "in")
    return app


RENAMED = {"amount": ArgTransform(name="euros")}
SWAPPED = {"amount": ArgTransform(name="to"), "to": ArgTransform(name="amount")}
CALLS: list[tuple[dict[str, ArgTransform], dict[str, Any], tuple[str, ...]]] = [
    (RENAMED, {"to": "me"}, ("euros",)),
    (RENAMED, {"amount": 3, "to": "me"}, ("amount", "euros")),
    (RENAMED, {"euro": 3, "to": "me"}, ("euros", "euro", "euros")),
    (RENAMED, {"euros": "x", "to": "me"}, ("euros", "int", "str")),
    (SWAPPED, {"to": "x", "amount": "me"}, ("to", "int", "str")),
    (SWAPPED, {"to": 3}, ("amount",)),
    ({"to": ArgTransform(value="me")}, {"amount": 3, "to": "you"}, ("to",)),
]


@pytest.mark.parametrize(("arguments", "given", "named"), CALLS)
async def test_errors_use_the_argument_names_of_the_model(
    arguments: dict[str, ArgTransform], given: dict[str, Any], named: tuple[str, ...]
) -> None:
    async with Client(changed(**arguments)) as client:
        result = await client.call_tool("in_pay", given)
    assert result.is_error
    (block,) = result.content
    assert mentions(getattr(block, "text", None), *named)
    assert "amount" not in str(block) or "amount" in named  # the name below the mount


async def test_prompt_errors_use_the_mounted_names() -> None:
    async with Client(changed(**RENAMED)) as client:
        with pytest.raises(RemoteError, match="Missing: `euros`"):
            await client.get_prompt("in_plead", {"to": "you"})
        assert "give me 3" in str(await client.get_prompt("in_plead", {"to": "you", "euros": "3"}))


async def test_two_servers_rename_one_argument() -> None:
    between, app = Server("between"), Server("outer")
    between.mount(bank(), transforms={"pay": Transform(arguments=RENAMED)})
    app.mount(between, transforms={"pay": Transform(arguments={"euros": ArgTransform(name="coins")})})
    async with Client(app) as client:
        with pytest.raises(ToolError, match="Missing: `coins`"):
            await client.call("pay", to="me")
        assert await client.call("pay", coins=3, to="me") == "3 to me with k"


async def test_a_schema_of_the_authors_own() -> None:
    app = Server("outer")
    app.mount(bank(), transforms={"order": Transform(arguments=RENAMED | {"api_key": ArgTransform(value="k1")})})
    async with Client(app) as client:
        for given, words in (
            ({}, "`euros`"),
            ({"euros": "x"}, "`euros`.*`int`"),
            ({"euros": 1, "x": 2}, "`x`"),
        ):
            with pytest.raises(ToolError, match=words):
                await client.call("order", **given)


async def test_fixed_arguments_are_not_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    """A pattern is tried only in calls, so this one is found out by the first."""
    app = Server("outer")
    app.mount(bank(), transforms={"pay": Transform(arguments={"api_key": ArgTransform(value="secret")})})
    async with Client(app) as client:
        with pytest.raises(ToolError, match="pay") as failure:
            await client.call("pay", amount=3, to="me")
        assert "api_key" not in str(failure.value)
        with pytest.raises(ToolError, match=values("to")) as failure:
            await client.call("pay", amount=3)
        assert "api_key" not in str(failure.value)
    assert [one.levelno for one in caplog.records if "api_key" in one.getMessage()] == [logging.ERROR]


UNFIT: list[tuple[str, dict[str, ArgTransform], str]] = [
    ("pay", {"amount": ArgTransform(name="to")}, values("pay", "to")),
    ("plead", {"amount": ArgTransform(name="to")}, values("plead", "to")),
    ("pay", {"amount": ArgTransform(value="many")}, values("pay", "amount", "int", "str")),
]


@pytest.mark.parametrize(("name", "arguments", "words"), UNFIT)
def test_arguments_that_cannot_be_are_refused_at_mount(
    name: str, arguments: dict[str, ArgTransform], words: str
) -> None:
    app = Server("outer")
    with pytest.raises(ValueError, match=words):
        app.mount(bank(), transforms={name: Transform(arguments=arguments)})
    app.mount(bank(), transforms={"pay": Transform(arguments={"amount": ArgTransform(value="3")})})


# Completions


def archive() -> Server:
    app = Server("archive")

    @app.prompt
    def report(tenant: str, topic: str) -> str:
        return f"{tenant} {topic}"

    @app.completion("report", "tenant")
    def tenants(value: str) -> list[str]:
        return ["acme", "rival"]

    @app.completion("report", "topic")
    def topics(value: str, known: dict[str, str]) -> list[str]:
        return [f"{known.get('tenant')} plans"]

    return app


async def complete(app: Server, argument: str, **context: str) -> list[str]:
    async with Client(app) as client:
        return (await client.complete(argument, "", prompt="in_report", context=context)).values


@pytest.mark.parametrize("is_remote", [False, True])
async def test_a_fixed_argument_stays_fixed_in_completions(is_remote: bool) -> None:
    app = Server("outer")
    fixed = {"report": Transform(arguments={"tenant": ArgTransform(value="acme")})}
    app.mount(Client(archive()) if is_remote else archive(), "in", transforms=fixed)
    assert await complete(app, "topic") == ["acme plans"]
    for argument, context in (("tenant", {}), ("topic", {"tenant": "rival"}), ("tenant", {"tenant": "rival"})):
        with pytest.raises(RemoteError) as caught:
            await complete(app, argument, **context)
        assert caught.value.code == -32602
    await app.stop()


async def test_a_renamed_argument_is_renamed_in_the_context_of_completions() -> None:
    app = Server("outer")
    renamed = {"report": Transform(arguments={"tenant": ArgTransform(name="customer")})}
    app.mount(archive(), "in", transforms=renamed)
    assert await complete(app, "topic", customer="rival") == ["rival plans"]
    assert await complete(app, "customer") == ["acme", "rival"]
    for argument, context in (("tenant", {}), ("topic", {"tenant": "rival"})):
        with pytest.raises(RemoteError) as caught:
            await complete(app, argument, **context)
        assert caught.value.code == -32602


async def test_a_fixed_argument_with_a_new_name_stays_fixed_in_completions() -> None:
    app = Server("outer")
    fixed = {"report": Transform(arguments={"tenant": ArgTransform(name="customer", value="acme")})}
    app.mount(archive(), "in", transforms=fixed)
    assert await complete(app, "topic") == ["acme plans"]
    assert await complete(app, "topic", customer="rival") == ["acme plans"]
    for argument in ("customer", "tenant"):
        with pytest.raises(RemoteError):
            await complete(app, argument)


async def test_a_fixed_value_that_is_not_a_text_is_sent_as_json_in_the_context() -> None:
    app, inner = Server("outer"), Server("inner")

    @inner.prompt("report")
    def report(limit: int, topic: str) -> str:
        return f"{limit} {topic}"

    @inner.completion("report", "topic")
    def topics(value: str, known: dict[str, str]) -> list[str]:
        return [f"limit {known['limit']}"]

    app.mount(inner, "in", transforms={"report": Transform(arguments={"limit": ArgTransform(value=3)})})
    assert await complete(app, "topic") == ["limit 3"]
