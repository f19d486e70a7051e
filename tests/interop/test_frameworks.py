"""Test mounting in Starlette, FastAPI, Litestar, Django and AWS Lambda."""

import asyncio
import json
import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail import Client
from interop import frameworks

pytestmark = [pytest.mark.interop, pytest.mark.timeout(60)]

FRAMEWORKS = ["starlette", "fastapi", "litestar", "django"]


@asynccontextmanager
async def serving(name: str, lifespan: str = "auto") -> AsyncIterator[str]:
    pytest.importorskip(name)
    uvicorn = pytest.importorskip("uvicorn")
    application = getattr(frameworks, name)()
    config = uvicorn.Config(application, port=0, log_level="critical", lifespan=lifespan)
    web = uvicorn.Server(config)
    web.install_signal_handlers = lambda: None
    listener = socket.create_server(("127.0.0.1", 0))
    task = asyncio.create_task(web.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        web.should_exit = True
        await task


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("lifespan", ["on", "off"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_two_servers_beside_a_page(framework: str, lifespan: str, revision: str) -> None:
    async with serving(framework, lifespan) as url:
        for name in ("one", "two"):
            heard: list[Any] = []
            async with Client(f"{url}/{name}/mcp", protocol_version=revision) as client:
                result = await client.call_tool("pool", progress_handler=lambda *told, heard=heard: heard.append(told))
                assert f"pool of {name}" in str(result.content)
                assert len(heard) == 1
        with await asyncio.to_thread(urllib.request.urlopen, url + "/", timeout=20) as page:
            assert page.read() == b"a page"


def event(method: str, params: dict[str, Any], *, stateless: bool) -> dict[str, Any]:
    """What API Gateway hands to a function."""
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream", "host": "x.example"}
    if stateless:
        headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": method, "mcp-name": params.get("name", "")}
        own = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = params | {"_meta": own}
    else:
        headers |= {"mcp-protocol-version": "2025-11-25"}
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": "/mcp",
        "rawQueryString": "",
        "headers": headers,
        "requestContext": {
            "http": {"method": "POST", "path": "/mcp", "protocol": "HTTP/1.1", "sourceIp": "203.0.113.9"},
            "domainName": "x.example",
            "stage": "$default",
        },
        "body": json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}),
        "isBase64Encoded": False,
    }


@pytest.mark.parametrize("stateless", [True, False], ids=["stateless", "handshake"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:mangum")
def test_a_function_of_aws_lambda(stateless: bool) -> None:
    mangum = pytest.importorskip("mangum")
    app = frameworks.server("function")
    loop = asyncio.new_event_loop()  # the runtime's, which stays from one invocation to the next
    asyncio.set_event_loop(loop)
    handler = mangum.Mangum(app.asgi(sessions=False, allowed_hosts=["x.example"]), lifespan="off")
    try:
        for _ in range(3):
            reply = handler(event("tools/call", {"name": "pool", "arguments": {}}, stateless=stateless), object())
            assert reply["statusCode"] == 200, reply
            body = reply["body"]
            data = body.partition("data: ")[2].splitlines()[0] if body.startswith(("event:", "data:", "id:")) else body
            assert json.loads(data)["result"]["content"][0]["text"] == "pool of function"
    finally:
        loop.run_until_complete(app.stop())
        asyncio.set_event_loop(None)
        loop.close()
