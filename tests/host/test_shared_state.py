"""Test that the questions, answers and slots of a host belong to one caller and one server."""

import asyncio
import json
from typing import Any

import pytest

from dovetail import Policy, Server, rule, testing
from dovetail.auth import Principal
from dovetail.host.consent.consent import Allow, ConsentAnswer, ConsentRequest, Deny
from dovetail.host.host import Host
from support.polling import TIMEOUT_S
from support.scripted_server import ScriptedServer, serve_over_http

OLD = "2025-11-25"
POLICY = Policy("ask", [rule("allow", kind="server.start")])


def database() -> Server:
    app = Server("db")
    app.add_tool(lambda: "dropped", name="echo", description="Drop everything.")
    return app


async def test_a_grant_for_one_server_is_not_for_another_account_at_the_same_url() -> None:
    asked: list[str] = []

    def consent(request: ConsentRequest) -> ConsentAnswer:
        asked.append(request.server)
        return Allow("session")

    async with (
        serve_over_http(ScriptedServer("stateless")) as url,
        Host(policy=POLICY, consent=consent) as host,
        asyncio.timeout(TIMEOUT_S),
    ):
        host.add("home", url, headers={"X-Account": "home"})
        host.add("work", url, headers={"X-Account": "work"})
        host.add("test", database())
        host.add("prod", database())
        for _ in range(2):
            for name in ("home", "work", "test", "prod"):
                await host.call(f"{name}.echo")
    assert asked == ["home", "work", "test", "prod"]


class SlowConsent:
    """A user who answers one question after another."""

    def __init__(self) -> None:
        self.answered: list[str] = []
        self.first_asked = asyncio.Event()
        self.can_answer = asyncio.Event()
        self._lock = asyncio.Lock()

    async def ask(self, request: ConsentRequest) -> ConsentAnswer:
        async with self._lock:
            self.first_asked.set()
            await self.can_answer.wait()
            assert request.arguments is not None
            self.answered.append(request.arguments["who"])
            return Deny()


async def test_one_caller_cannot_keep_the_questions_of_others_waiting() -> None:
    app, user = Server("far"), SlowConsent()

    @app.tool
    def go(who: str) -> str:
        return who

    async with Host(policy=POLICY, consent=user) as host, asyncio.timeout(TIMEOUT_S):
        host.add("far", app)
        served = host.as_server()
        async with (
            testing.connect(served, principal=Principal("mallory")) as mallory,
            testing.connect(served, principal=Principal("ada")) as ada,
        ):
            call = {"name": "far__go", "arguments": {"who": "mallory"}}
            flood = [asyncio.create_task(mallory.request("tools/call", call)) for _ in range(30)]
            await user.first_asked.wait()
            await mallory.ping()
            question = asyncio.create_task(ada.request("tools/call", {"name": "far__go", "arguments": {"who": "ada"}}))
            await ada.ping()
            user.can_answer.set()
            assert (await question)["isError"]
            await asyncio.gather(*flood)
        await served.stop()
    assert user.answered.index("ada") <= 4
    assert user.answered.count("mallory") == 30


class LateQuestion:
    """A handshake server that does not stop a cancelled call, and asks about it later."""

    def __init__(self) -> None:
        self.has_wipe, self.has_wait, self.may_ask = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.has_answer = asyncio.Event()
        self.answers: list[dict[str, Any]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.TaskGroup() as group:
            while line := await reader.readline():
                group.create_task(self._handle(json.loads(line), writer))
        writer.close()

    async def _handle(self, message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        def send(**members: Any) -> None:
            writer.write(json.dumps({"jsonrpc": "2.0", **members}).encode() + b"\n")

        id, tools = message.get("id"), [{"name": name, "inputSchema": {"type": "object"}} for name in ("wipe", "wait")]
        match message.get("method"):
            case "initialize":
                info = {"name": "late", "version": "1"}
                send(id=id, result={"protocolVersion": OLD, "capabilities": {"tools": {}}, "serverInfo": info})
            case "tools/list":
                send(id=id, result={"tools": tools})
            case "tools/call" if message["params"]["name"] == "wipe":
                self.has_wipe.set()
            case "tools/call":
                self.has_wait.set()
                await self.may_ask.wait()
                form = {"message": "Wipe the disk of Anna?", "requestedSchema": {"type": "object", "properties": {}}}
                send(id=900, method="elicitation/create", params=form)
                await self.has_answer.wait()
                send(id=id, result={"content": []})
            case None:
                self.answers.append(message)
                self.has_answer.set()
            case _ if id is not None:
                send(id=id, error={"code": -32601, "message": "unknown"})
            case _:
                pass


@pytest.mark.parametrize("second", ["anna", "otto"])
async def test_a_question_about_a_cancelled_call_is_not_put_to_another_caller(second: str) -> None:
    late, asked = LateQuestion(), list[str]()

    def elicit(name: str) -> Any:
        def answer(_: Any) -> dict[str, Any]:
            asked.append(name)
            return {}

        return answer

    listener = await asyncio.start_server(late.serve, "127.0.0.1", 0)
    target = f"tcp://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with Host(policy=Policy("allow")) as host, asyncio.timeout(TIMEOUT_S):
        host.add("far", target)
        served = host.as_server()

        def connect(name: str) -> Any:
            return testing.connect(
                served, principal=Principal(name), protocol_version=OLD, elicitation_handler=elicit(name)
            )

        async with connect("anna") as first_client, connect(second) as second_client:
            wipe = asyncio.create_task(first_client.call_tool("far__wipe"))
            await late.has_wipe.wait()
            wipe.cancel()
            await asyncio.wait([wipe])
            wait = asyncio.create_task(second_client.call_tool("far__wait"))
            await late.has_wait.wait()
            await first_client.ping()
            late.may_ask.set()
            await asyncio.gather(wait, return_exceptions=True)
        await served.stop()
    listener.close()
    assert asked == (["anna"] if second == "anna" else [])
    assert ("error" in late.answers[0]) is (second == "otto")
