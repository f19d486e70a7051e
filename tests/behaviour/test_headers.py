"""Test that the server compares mirrored headers with the body."""

import base64
import json
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from behaviour.manifest import SESSION_REVISIONS, requirement
from behaviour.request_helpers import expect_error, text
from dovetail import Server
from support.driver import Peer, connect


def mirrored(name: str) -> Meta:
    return Meta(extra_json_schema={"x-mcp-header": name})


class Where(Struct):
    zone: Annotated[str, mirrored("Zone")]
    rack: int = 0


def coded(value: str) -> str:
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def server(ran: list[Any] | None = None) -> Server:
    app = Server("mirrored")

    @app.tool
    def run(
        region: Annotated[str, mirrored("Region")],
        count: Annotated[int, mirrored("Count")] = 1,
        dry: Annotated[bool, mirrored("Dry-Run")] = False,
        plain: str = "",
    ) -> str:
        if ran is not None:
            ran.append(region)
        return f"ran in {region}"

    @app.tool(
        input_schema={
            "type": "object",
            "properties": {
                "at": {"type": "object", "properties": {"zone": {"type": "string", "x-mcp-header": "Zone"}}},
                "hint": {"type": "string", "x-mcp-header": "hint"},
            },
        }
    )
    def nested(arguments: dict[str, Any]) -> str:
        return "nested"

    @app.tool
    def place(where: Where) -> str:
        return f"placed in {where.zone}"

    @app.tool("n\u00e4me with \u2603")
    def strange() -> str:
        return "strange"

    @app.tool("=?base64?literal?=")
    def sentinel() -> str:
        return "sentinel"

    @app.prompt("grüß")
    def prompt() -> str:
        return "hello"

    @app.resource("x:{name}")
    def resource(name: str) -> str:
        return name

    return app


async def send(peer: Peer, tool: str, arguments: dict[str, Any], params: dict[str, str | None], **extra: Any) -> Any:
    headers = {f"mcp-param-{name}": value for name, value in params.items()}
    return await peer.request("tools/call", {"name": tool, "arguments": arguments}, headers=headers | extra)


GOOD: list[tuple[dict[str, Any], dict[str, str | None]]] = [
    ({"region": "us-west1"}, {"region": "us-west1"}),
    ({"region": "us-west1"}, {"Region": "us-west1"}),
    ({"region": "us-west1"}, {"REGION": "us-west1"}),
    ({"region": "us-west1"}, {"region": coded("us-west1")}),
    ({"region": "Hello, \u4e16\u754c"}, {"region": "=?base64?SGVsbG8sIOS4lueVjA==?="}),
    ({"region": " padded "}, {"region": coded(" padded ")}),
    ({"region": "a\nb"}, {"region": coded("a\nb")}),
    ({"region": "=?base64?literal?="}, {"region": coded("=?base64?literal?=")}),
    ({"region": "=?base64?"}, {"region": "=?base64?"}),
    ({"region": ""}, {"region": ""}),
    ({"region": "r", "count": 42}, {"region": "r", "count": "42"}),
    ({"region": "r", "count": 42}, {"region": "r", "count": "42.0"}),
    ({"region": "r", "count": 42.0}, {"region": "r", "count": "42"}),
    ({"region": "r", "count": -7}, {"region": "r", "count": "-7"}),
    ({"region": "r", "count": 0}, {"region": "r", "count": "0"}),
    ({"region": "r", "count": 2**53 - 1}, {"region": "r", "count": str(2**53 - 1)}),
    ({"region": "r", "dry": True}, {"region": "r", "dry-run": "true"}),
    ({"region": "r", "dry": False}, {"region": "r", "dry-run": "false"}),
    ({"region": "r", "plain": "x"}, {"region": "r", "plain": "ignored", "unknown": "ignored"}),
]

BAD: list[tuple[dict[str, Any], dict[str, str | None]]] = [
    ({"region": "us-west1"}, {}),
    ({"region": "us-west1"}, {"region": "us-west2"}),
    ({"region": "us-west1"}, {"region": "US-WEST1"}),
    ({"region": "us-west1"}, {"region": ""}),
    ({"region": ""}, {}),
    ({"region": "us-west1"}, {"region": coded("us-west2")}),
    ({"region": "us-west1"}, {"region": "=?BASE64?dXMtd2VzdDE=?="}),
    ({"region": "us-west1"}, {"region": "=?base64?dXMtd2VzdDE?="}),
    ({"region": "us-west1"}, {"region": "=?base64?not base64!?="}),
    ({"region": "us-west1"}, {"region": "=?base64?dXMtd2VzdDF=?="}),
    ({"region": "us-west1"}, {"region": "=?base64?dXMt d2VzdDE=?="}),
    ({"region": "us-west1"}, {"region": "=?base64?/w==?="}),
    ({"region": "=?base64?literal?="}, {"region": "=?base64?literal?="}),
    ({"region": "h\u00e9"}, {"region": "h\u00e9"}),
    ({"region": "r", "count": 42}, {"region": "r"}),
    ({"region": "r", "count": 42}, {"region": "r", "count": "43"}),
    ({"region": "r", "count": 42}, {"region": "r", "count": "42.5"}),
    ({"region": "r", "count": 42}, {"region": "r", "count": "4.2e1"}),
    ({"region": "r", "count": 42}, {"region": "r", "count": "0x2a"}),
    ({"region": "r", "count": 42}, {"region": "r", "count": "+42"}),
    ({"region": "r", "count": 2**53}, {"region": "r", "count": str(2**53)}),
    ({"region": "r", "dry": True}, {"region": "r", "dry-run": "True"}),
    ({"region": "r", "dry": True}, {"region": "r", "dry-run": "1"}),
    ({"region": "r", "dry": False}, {"region": "r"}),
    ({"region": "r"}, {"region": "r", "count": "1"}),
    ({"region": "r"}, {"region": "r", "dry-run": "false"}),
    ({"region": ["r"]}, {"region": "r"}),
    ({"region": {"r": 1}}, {}),
    ({"region": 5.5}, {"region": "5.5"}),
]


@requirement("headers.params", "headers.encoding")
async def test_headers_that_agree_let_the_call_through(transport: str, revision: str) -> None:
    async with connect(server(), transport, revision) as peer:
        for arguments, params in GOOD:
            result = await send(peer, "run", arguments, params)
            assert text(result) == f"ran in {arguments['region']}", (arguments, params)


@requirement("headers.params", "headers.encoding")
async def test_headers_that_disagree_stop_the_call(transport: str, revision: str) -> None:
    ran: list[Any] = []
    async with connect(server(ran), transport, revision) as peer:
        for arguments, params in BAD:
            error = await expect_error(send(peer, "run", arguments, params))
            assert error.code == -32020, (arguments, params)
            assert error.status_code == 400, (arguments, params)  # type: ignore[attr-defined]
    assert ran == []


@requirement("headers.params")
async def test_nested_and_absent_values(transport: str, revision: str) -> None:
    async with connect(server(), transport, revision) as peer:
        for arguments, params in (
            ({"at": {"zone": "z"}}, {"zone": "z"}),
            ({"at": {"zone": None}}, {}),
            ({"at": {}}, {}),
            ({"at": None}, {}),
            ({"hint": None}, {}),
            ({}, {}),
        ):
            result = await send(peer, "nested", arguments, dict(params))
            # A null that the schema does not allow is an error the model reads, not a disagreement.
            assert "content" in result, arguments
        for arguments, params in (
            ({"at": {"zone": "z"}}, {}),
            ({"at": {"zone": "z"}}, {"zone": "y"}),
            ({"at": {}}, {"zone": "z"}),
            ({"zone": "z"}, {"zone": "z"}),
            ({"at": "z"}, {"zone": "z"}),
            ({"hint": None}, {"hint": ""}),
            ({}, {"hint": "null"}),
        ):
            error = await expect_error(send(peer, "nested", dict(arguments), dict(params)))
            assert error.code == -32020, (arguments, params)
        where = {"where": {"zone": "z"}}
        assert text(await send(peer, "place", where, {"zone": "z"})) == "placed in z"
        assert (await expect_error(send(peer, "place", where, {}))).code == -32020


@requirement("headers.name", "headers.encoding")
async def test_a_name_that_no_header_can_hold_is_encoded(transport: str, revision: str) -> None:
    async with connect(server(), transport, revision) as peer:
        for name in ("n\u00e4me with \u2603", "=?base64?literal?="):
            await peer.request("tools/call", {"name": name}, headers={"mcp-name": coded(name)})
        await peer.request("prompts/get", {"name": "grüß"}, headers={"mcp-name": coded("grüß")})
        await peer.request("resources/read", {"uri": "x:a"}, headers={"mcp-name": "x:a"})
        await peer.request("resources/read", {"uri": "x:a"}, headers={"mcp-name": coded("x:a")})


@requirement("headers.name")
async def test_a_name_that_is_missing_or_another_is_refused(transport: str, revision: str) -> None:
    async with connect(server(), transport, revision) as peer:
        cases: list[tuple[str, dict[str, Any], str | None]] = [
            ("tools/call", {"name": "run"}, None),
            ("tools/call", {"name": "run"}, "nested"),
            ("tools/call", {"name": "run"}, "RUN"),
            ("tools/call", {"name": "run"}, coded("nested")),
            ("tools/call", {"name": "=?base64?literal?="}, "=?base64?literal?="),
            ("tools/call", {"name": "n\u00e4me with \u2603"}, "n\u00e4me"),
            ("prompts/get", {"name": "grüß"}, None),
            ("prompts/get", {"name": "grüß"}, "gruss"),
            ("resources/read", {"uri": "x:a"}, None),
            ("resources/read", {"uri": "x:a"}, "x:b"),
            ("tools/call", {}, "run"),
        ]
        for method, params, name in cases:
            error = await expect_error(peer.request(method, params, headers={"mcp-name": name}))
            assert error.code == -32020, (method, params, name)
            assert error.status_code == 400  # type: ignore[attr-defined]
        for method in ("tools/list", "prompts/list"):
            await peer.request(method, headers={"mcp-name": "of no consequence"})


@requirement("headers.params", "headers.name")
async def test_a_header_given_twice_is_refused(transport: str, revision: str) -> None:
    async with connect(server(), transport, revision) as peer:
        message = peer.message("tools/call", {"name": "run", "arguments": {"region": "r"}})
        body = json.dumps({"jsonrpc": "2.0", "id": 1} | message).encode()
        good = peer.headers(message, revision) | {"mcp-param-region": "r"}
        for name, value in (("mcp-param-region", "r"), ("Mcp-Param-Region", "evil"), ("mcp-name", "run")):
            response = await peer.http("POST", None, [*good.items(), (name, value)], body)
            await response.read()
            assert response.status == 400, name
        response = await peer.http("POST", None, list(good.items()), body)
        assert response.status == 200
        await response.read()


@requirement("headers.elsewhere", transports=("memory", "pipe", "sse"))
async def test_without_headers_nothing_is_mirrored(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        result = await peer.request("tools/call", {"name": "run", "arguments": {"region": "r", "count": 2}})
        assert text(result) == "ran in r"


@requirement("headers.elsewhere", revisions=SESSION_REVISIONS, transports=("http",))
async def test_older_revisions_do_not_mirror(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        result = await send(peer, "run", {"region": "r", "count": 2}, {"region": "other"}, **{"mcp-name": "other"})
        assert text(result) == "ran in r"


@pytest.mark.parametrize(
    "properties",
    [
        {"a": {"type": "string", "x-mcp-header": ""}},
        {"a": {"type": "string", "x-mcp-header": "with space"}},
        {"a": {"type": "string", "x-mcp-header": "evil\r\nx"}},
        {"a": {"type": "string", "x-mcp-header": "gr\u00fcn"}},
        {"a": {"type": "string", "x-mcp-header": 5}},
        {"a": {"type": "number", "x-mcp-header": "A"}},
        {"a": {"type": "array", "x-mcp-header": "A"}},
        {"a": {"type": ["string", "null"], "x-mcp-header": "A"}},
        {"a": {"x-mcp-header": "A"}},
        {"a": {"type": "string", "x-mcp-header": "A"}, "b": {"type": "string", "x-mcp-header": "a"}},
        {"a": {"type": "array", "items": {"type": "string", "x-mcp-header": "A"}}},
        {"a": {"anyOf": [{"type": "string", "x-mcp-header": "A"}]}},
        {"a": {"type": "object", "additionalProperties": {"type": "string", "x-mcp-header": "A"}}},
    ],
)
@requirement("headers.registration")
def test_a_mark_that_breaks_the_rules_is_refused_at_once(properties: dict[str, Any]) -> None:
    app = Server("strict")

    def take(arguments: dict[str, Any]) -> str:
        return "taken"

    with pytest.raises(ValueError, match="x-mcp-header"):
        app.add_tool(take, input_schema={"type": "object", "properties": properties})
