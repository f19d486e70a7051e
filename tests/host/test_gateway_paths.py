"""Test which gateway a path selects, and that unknown paths are refused."""

import logging
from typing import Any

import pytest

from dovetail import Server
from dovetail.auth import JWTVerifier
from dovetail.host import Host
from dovetail.host.gateway.gateway import GatewayPaths
from support.fake_issuer import Issuer, current_claims


class App:
    def __init__(self, name: str) -> None:
        self.name = name
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


def create_app(mode: str, only_server: str | None, path: str) -> App | None:
    return None if only_server == "gone" else App(f"{mode} {only_server} {path}")


@pytest.mark.parametrize(
    ("path", "root", "name"),
    [
        ("/mcp", "", None),
        ("/search/mcp", "", "search None /search/mcp"),
        ("/search", "", "search None /search/mcp"),
        ("/servers/one/mcp", "", "merged one /servers/one/mcp"),
        ("/servers/one/", "", "merged one /servers/one/mcp"),
        ("/api/servers/one/mcp", "/api", "merged one /servers/one/mcp"),
        ("/.well-known/oauth-protected-resource/servers/one/mcp", "", "merged one /servers/one/mcp"),
        ("/servers/gone/mcp", "", None),
        ("/servers/one/two/mcp", "", None),
        ("/servers/o.e/mcp", "", None),
        ("/servers//mcp", "", None),
        ("/searching/mcp", "", None),
    ],
)
def test_which_is_meant(path: str, root: str, name: str | None) -> None:
    app = GatewayPaths(create_app).find({"type": "http", "path": path, "root_path": root})
    assert (None if app is None else app.name) == name


async def test_each_is_created_once_and_all_are_closed() -> None:
    paths = GatewayPaths(create_app)
    apps: list[Any] = [paths.find({"path": path}) for path in ("/servers/one/mcp", "/servers/one/mcp", "/search/mcp")]
    assert apps[0] is apps[1]
    await paths.close()
    assert all(app.is_closed for app in apps)


async def ask(app: Any, method: str, path: str, public: bool, token: str = "") -> tuple[int, dict[bytes, bytes], bytes]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"gate.example" if public else b"127.0.0.1:80"), (b"content-type", b"application/json")]
    if token:
        headers.append((b"authorization", f"Bearer {token}".encode()))
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": b""}
    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(one.get("body", b"") for one in sent[1:])


@pytest.mark.parametrize("public_url", [None, "https://gate.example"])
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/.well-known/oauth-protected-resource/servers/NAME/mcp", 200),
        ("POST", "/servers/NAME/mcp", 401),
        ("GET", "/servers/NAME/mcp", 401),
        ("GET", "/servers/NAME", 401),
        ("DELETE", "/.well-known/oauth-protected-resource/servers/NAME/mcp", 405),
    ],
)
async def test_without_a_token_known_and_unknown_servers_get_the_same_answers(
    method: str, path: str, status: int, public_url: str | None
) -> None:
    async with Host() as host:
        host.add("present", Server("present"))
        auth = JWTVerifier(issuer="https://issuer.example", audience="https://gate.example")
        app: Any = host.asgi(auth=auth, public_url=public_url)
        answers: set[Any] = set()
        for name in ("present", "missing"):
            code, headers, body = await ask(app, method, path.replace("NAME", name), public_url is not None)
            assert code == status
            plain = {header: value.replace(name.encode(), b"NAME") for header, value in headers.items()}
            plain.pop(b"content-length", None)
            answers.add((frozenset(plain.items()), body.replace(name.encode(), b"NAME")))
        assert len(answers) == 1
        await app.close()


async def test_an_unreachable_issuer_causes_one_warning_for_all_unknown_servers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    issuer = Issuer("http://127.0.0.1:1")
    token = issuer.token(**current_claims())
    async with Host() as host:
        app: Any = host.asgi(auth=JWTVerifier(issuer=issuer.url), public_url="https://gate.example")
        for name in ("one", "two", "two"):
            status, _, _ = await ask(app, "POST", f"/servers/{name}/mcp", public=True, token=token)
            assert status == 503
        await app.close()
    # The server also logs once a minute that it rejects requests.
    warnings = [record for record in caplog.records if issuer.url in record.getMessage()]
    assert [record.levelno for record in warnings] == [logging.WARNING]
