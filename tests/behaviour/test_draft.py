"""Test the draft dialect: its progress, its input requests and its error codes."""

import asyncio
import json
from dataclasses import dataclass

from behaviour.manifest import requirement
from dovetail import Context, Server
from support.controlled_server import ControlledServer, call_params, expect_error, text
from support.driver import DRAFT, connect


@dataclass
class Seat:
    row: int


def full() -> Server:
    app = Server("draft")

    @app.tool
    async def working(ctx: Context) -> str:
        await ctx.progress(50, total=100, message="half")
        await ctx.progress(75)
        return "done"

    @app.tool
    async def booking(ctx: Context) -> str:
        return str((await ctx.elicit("Which seat?", Seat)).row)

    @app.resource("x://known")
    async def known() -> str:
        return "x"

    @app.prompt
    async def prompting() -> str:
        return "p"

    return app


@requirement("draft.echo")
async def test_the_dialect_is_echoed_by_its_name(transport: str) -> None:
    async with connect(full(), transport, DRAFT) as peer:
        assert peer.initialize_result["protocolVersion"] == DRAFT
        assert peer.initialize_result["capabilities"]["tools"] == {"listChanged": True}
        assert peer.initialize_result["capabilities"]["resources"] == {"subscribe": True, "listChanged": True}


@requirement("draft.progress")
async def test_progress_is_reported_by_request_id_in_an_object(transport: str) -> None:
    async with connect(full(), transport, DRAFT) as peer:
        assert text(await peer.request("tools/call", call_params("working"), id="op-1")) == "done"
        assert peer.notifications == [
            (
                "notifications/progress",
                {"requestId": "op-1", "progress": {"current": 50, "total": 100, "message": "half"}},
            ),
            ("notifications/progress", {"requestId": "op-1", "progress": {"current": 75}}),
        ]


@requirement("draft.dialog")
async def test_a_question_to_the_user_is_a_dialog(transport: str) -> None:
    asked: list[object] = []

    def answer(params: object) -> object:
        asked.append(params)
        return {"action": "accept", "content": {"row": 12}}

    answers = {"elicitation/createDialog": answer}
    async with connect(full(), transport, DRAFT, capabilities={"elicitation": {}}, answer=answers) as peer:
        assert text(await peer.request("tools/call", call_params("booking"))) == "12"
        assert [method for method, _ in peer.server_requests] == ["elicitation/createDialog"]
        assert len(asked) == 1


@requirement("draft.dialog")
async def test_dialogs_being_opened_and_closed_is_heard(transport: str) -> None:
    async with connect(full(), transport, DRAFT) as peer:
        before = len(peer.messages)
        for method in ("notifications/elicitation/dialog_opened", "notifications/elicitation/dialog_closed"):
            assert await peer.notify(method, {"requestId": 1}) in (None, 202)
        assert await peer.request("ping") == {}
        assert len(peer.messages) == before + 1


@requirement("draft.codes")
async def test_errors_have_the_codes_of_the_dialect(transport: str) -> None:
    async with connect(full(), transport, DRAFT) as peer:
        for method, params, code in (
            ("resources/read", {"uri": "x://unknown"}, -32002),
            ("tools/call", {"name": "unknown"}, -32003),
            ("prompts/get", {"name": "unknown"}, -32004),
            ("no/such", {}, -32601),
            ("tools/call", {"name": 5}, -32602),
        ):
            exc = await expect_error(peer.request(method, params, id="failed"))
            assert exc.code == code, method
            assert peer.messages[-1]["id"] == "failed"


@requirement("draft.duplicate")
async def test_an_id_in_flight_has_a_code_of_its_own(transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, DRAFT) as peer:
        first = peer.start("tools/call", call_params("wait", name="w"), id=9)
        await stage.wait_until_started("w")
        await asyncio.sleep(0)
        peer.ignore(9)
        again = json.dumps({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": call_params("echo", text="x")})
        assert (await peer.raw(again.encode())).code == -32001
        peer.expect(first)
        stage.release("w")
        assert text(await first) == "w is done"


@requirement("draft.shutdown")
async def test_shutdown_is_answered_null(transport: str) -> None:
    async with connect(full(), transport, DRAFT) as peer:
        assert await peer.request("shutdown", id=999) is None
        assert peer.messages[-1] == {"jsonrpc": "2.0", "id": 999, "result": None}


@requirement("draft.not-advertised")
async def test_the_dialect_is_spoken_to_those_who_name_it_only(transport: str) -> None:
    async with connect(full(), transport, "2025-11-25", handshake=False) as peer:
        assert (await peer.initialize("2030-01-01"))["protocolVersion"] == "2025-11-25"
    async with connect(full(), transport, "2026-07-28") as peer:
        assert DRAFT not in (await peer.request("server/discover"))["supportedVersions"]
        headers = {"mcp-protocol-version": DRAFT} if transport == "http" else {}
        meta = {"io.modelcontextprotocol/protocolVersion": DRAFT}
        exc = await expect_error(peer.request("tools/list", meta=meta, headers=headers))
        assert exc.code == -32022
        assert DRAFT not in exc.data["supported"]
