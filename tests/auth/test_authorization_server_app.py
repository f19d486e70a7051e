"""Test the authorization server as an ASGI app: logins over HTTP, its options and its outgoing requests."""

import asyncio
import http.client
import json
import logging
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from dovetail import Client, Context, Server, storage
from dovetail.auth import (
    AuthorizationServer,
    ClientCredentials,
    Guard,
    OAuth,
    Principal,
    ProviderMetadata,
    RegisteredClient,
    UpstreamProvider,
)
from dovetail.auth.authorization_server_app import is_local_authorization_server
from dovetail.auth.flow_runner import FlowRunner
from dovetail.auth.sqlite_store import SQLiteStore
from dovetail.errors import LoginFailed
from dovetail.oauth.authorization_server.store import StoreUnavailable, TokenGrant
from dovetail.oauth.authorization_server.token_issuer import OAuthTokenIssuer
from dovetail.oauth.guard.claims import VerificationUnavailable
from dovetail.oauth.login.saved_login import Token
from dovetail.protocol.sealer import Sealer
from dovetail.transports.http1.asgi_lifespan import StartupFailed, run_lifespan
from dovetail.transports.http_client.http_client import HTTPClient
from dovetail.wire.codec import encode
from support.fake_service import AsgiRequest
from support.live_server import serve_app
from support.processes import run_process

HOME = "http://localhost:8000"
SECRET = "a secret of many letters"


def create_sealer() -> Sealer:
    """The sealer of a server with SECRET."""
    return Sealer(SECRET, purpose="authorization server")


FORM = [(b"content-type", b"application/x-www-form-urlencoded")]
Browse = Callable[[str], Awaitable[None]]


class Browser:
    """Follows redirects and keeps cookies, by origin."""

    def __init__(self) -> None:
        self._fetcher = HTTPClient()
        self._cookies: dict[str, bytes] = {}

    async def go(self, method: str, url: str, form: dict[str, str] | None = None) -> str:
        """The page it ends at."""
        while True:
            origin = urlsplit(url).netloc
            headers = [*FORM] if form is not None else []
            headers += [(b"cookie", self._cookies[origin])] if origin in self._cookies else []
            reply = await self._fetcher.fetch(method, url, headers, urlencode(form).encode() if form else b"")
            text = (await reply.read()).decode()
            if b"set-cookie" in reply.headers:
                self._cookies[origin] = reply.headers[b"set-cookie"].partition(b";")[0]
            if reply.status != 303:
                return text
            method, url, form = "GET", reply.headers[b"location"].decode(), None

    async def close(self) -> None:
        await self._fetcher.close()


def browser(pages: list[str] | None = None, **fields: str) -> Browse:
    """A browser whose user agrees to everything, filling in these fields."""

    async def browse(url: str) -> None:
        one = Browser()
        text = await one.go("GET", url)
        while "<form" in text or "refresh" in text:
            if pages is not None:
                pages.append(text)
            if "<form" in text:
                found = dict(re.findall(r'name="(request|csrf)" value="([^"]+)"', text))
                action = re.findall(r'action="([^"]+)"', text)[0]
                text = await one.go("POST", action, found | {"decision": "allow"} | fields)
            else:
                text = await one.go("GET", unescape(re.findall(r'href="([^"]+)"', text)[0]))
        await one.close()

    return browse


def login(pages: list[str] | None = None, **fields: str) -> OAuth:
    return OAuth(token_store="memory", open_browser=browser(pages, **fields), timeout=20)


def pair(url: str, supported: Sequence[str] | None = (), **options: Any) -> tuple[AuthorizationServer, Server]:
    authority = AuthorizationServer(issuer=url, resources=[url + "/mcp"], **options)
    app = Server("x", auth=Guard(authority.verifier(), scopes_supported=supported))

    @app.tool
    async def who(ctx: Context) -> str:
        assert ctx.principal is not None
        return f"{ctx.principal.subject} {' '.join(sorted(ctx.principal.scopes))}".strip()

    @app.tool(scopes=["write"])
    def write() -> str:
        return "written"

    @app.tool
    async def upstream(ctx: Context) -> str:
        return str(await authority.upstream_token(ctx.principal))

    return authority, app


def both(**options: Any) -> Callable[[str], Any]:
    def make(url: str) -> Any:
        authority, app = pair(url, **options)
        return authority.wrap(app.asgi())

    return make


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25", "2025-03-26"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_login_from_the_first_request_to_a_step_up(revision: str, kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"users": {"ada": "pw"}}
    if kind == "sqlite":
        options |= {"store": tmp_path / "kept.db", "secret_key": "a secret of many letters"}
    pages: list[str] = []
    async with serve_app(both(**options)) as url:
        settings = login(pages, username="ada", password="pw")
        async with Client(url + "/mcp", auth=settings, protocol_version=revision) as client:
            assert await client.call("who") == "ada"
            assert await client.call("write") == "written"
            assert await client.call("who") == "ada write"
    assert len(pages) == 2


async def test_a_store_that_is_locked_makes_callers_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storage, "_DATABASE_TIMEOUT_S", 0.01)
    path = tmp_path / "kept.db"
    authority = AuthorizationServer(issuer=HOME, users={"ada": "pw"}, store=path, secret_key=SECRET)

    async def register() -> AsgiRequest:
        body = encode({"redirect_uris": ["http://127.0.0.1/callback"]})
        return await AsgiRequest(authority, "POST", "/register", body).wait_done()

    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    answer = await register()
    blocker.execute("ROLLBACK")
    blocker.close()
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    assert (await register()).status == 201
    await authority.close()
    records = [record for record in caplog.records if "store" in record.getMessage()]
    assert [record.exc_info for record in records] == [None]


async def test_a_token_is_neither_accepted_nor_rejected_while_the_store_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept.db"
    token = (await _log_in(path, "ada"))["access_token"]
    store = SQLiteStore(path)
    verifier = AuthorizationServer(issuer=HOME, users={"ada": "pw"}, store=store, secret_key=SECRET).verifier()

    async def fail(*_: Any) -> Any:
        raise StoreUnavailable("database is locked")

    monkeypatch.setattr(store, "get", fail)
    with pytest.raises(VerificationUnavailable):
        await FlowRunner({}).run(verifier.verify(token, (HOME + "/mcp",)))
    monkeypatch.undo()
    assert (await FlowRunner({}).run(verifier.verify(token, (HOME + "/mcp",)))).subject == "ada"
    store.close()


async def test_a_login_asks_for_the_scopes_the_tools_take() -> None:
    pages: list[str] = []
    async with serve_app(both(supported=None)) as url, Client(url + "/mcp", auth=login(pages)) as client:
        assert "write" in [tool.name for tool in await client.list_tools()]
        assert await client.call("who") == "developer write"
    assert len(pages) == 1


async def test_development_mode_says_so(caplog: pytest.LogCaptureFixture) -> None:
    pages: list[str] = []
    with caplog.at_level(logging.WARNING, "dovetail"):
        async with serve_app(both()) as url, Client(url + "/mcp", auth=login(pages)) as client:
            assert await client.call("who") == "developer"
    assert "'developer'" in caplog.text
    assert "developer" in pages[0]


@pytest.mark.parametrize(("options", "most"), [({}, 100), ({"max_registrations_per_hour": 3}, 3)])
async def test_a_developer_may_register_often(
    options: dict[str, Any], most: int, caplog: pytest.LogCaptureFixture
) -> None:
    document = json.dumps({"redirect_uris": ["http://127.0.0.1/x"]}).encode()
    async with serve_app(both(**options)) as url:
        fetcher, statuses = HTTPClient(), list[int]()
        for _ in range(most + 2):
            reply = await fetcher.fetch("POST", url + "/register", [(b"content-type", b"application/json")], document)
            await reply.read()
            statuses.append(reply.status)
        await fetcher.close()
    assert statuses == [201] * most + [429] * 2
    assert caplog.text.count("max_registrations_per_hour=") == 1


async def test_users_by_a_function() -> None:
    async def check(name: str, password: str) -> str | None:
        return f"user:{name}" if password == "good" else None

    async with serve_app(both(users=check)) as url:
        settings = login(username="eve", password="good")
        async with Client(url + "/mcp", auth=settings) as client:
            assert await client.call("who") == "user:eve"


async def test_a_provider_upstream_over_http() -> None:
    """The provider is an authorization server of ours, with a page that names the user."""

    def provider(url: str) -> Any:
        known = RegisteredClient("proxy", redirect_uris=["http://127.0.0.1/callback"], client_secret="s3cret")
        made = AuthorizationServer(issuer=url, clients=[known], resources=[url])

        async def whole(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] != "/userinfo":
                await made(scope, receive, send)
                return
            body = b'{"sub": "ada", "name": "Ada"}'
            length = (b"content-length", b"%d" % len(body))
            await send({"type": "http.response.start", "status": 200, "headers": [length]})
            await send({"type": "http.response.body", "body": body})

        return whole

    async with serve_app(provider) as up:
        facts = ProviderMetadata(
            name="Up",
            authorization_endpoint=up + "/authorize",
            token_endpoint=up + "/token",
            userinfo_endpoint=up + "/userinfo",
            token_endpoint_auth_method="client_secret_basic",
        )
        upstream = UpstreamProvider(facts, client_id="proxy", client_secret="s3cret")
        async with serve_app(both(upstream=upstream)) as url:
            pages: list[str] = []
            async with Client(url + "/mcp", auth=login(pages)) as client:
                assert await client.call("who") == "Up:ada"
                token = await client.call("upstream")
                assert token.count(".") == 2  # the provider's own, for the server's own use


async def test_a_program_logs_in_as_itself() -> None:
    known = RegisteredClient("nightly", client_secret="s3cret", scopes=["write"])
    async with serve_app(both(clients=[known])) as url:
        settings = ClientCredentials(client_id="nightly", client_secret="s3cret", issuer=url)
        async with Client(url + "/mcp", auth=settings) as client:
            assert await client.call("write") == "written"
            assert await client.call("who") == "nightly write"


async def test_a_user_who_refuses() -> None:
    async with serve_app(both()) as url:
        with pytest.raises(LoginFailed, match="access_denied"):
            async with Client(url + "/mcp", auth=login(decision="deny")) as client:
                await client.call("who")


async def test_below_a_path() -> None:
    authority = AuthorizationServer(issuer="http://127.0.0.1:8000/auth")
    for path, root in (
        ("/.well-known/oauth-authorization-server/auth", ""),
        ("/auth/.well-known/oauth-authorization-server", "/auth"),
        ("/auth/jwks", "/auth"),
        ("/auth/jwks", ""),
        ("/x/jwks", "/x"),
    ):
        assert (await AsgiRequest(authority, "GET", path, root_path=root).wait_done()).status == 200, path
    assert (await AsgiRequest(authority, "GET", "/nothing").wait_done()).status == 404


async def test_what_is_not_below_the_issuer_is_the_applications() -> None:
    asked: list[str] = []

    async def mine(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"mine"})

    application = AuthorizationServer(issuer=HOME + "/auth").wrap(mine)
    for path in ("/token", "/callback", "/auth/jwks", "/.well-known/oauth-authorization-server/auth"):
        assert (await AsgiRequest(application, "GET", path).wait_done()).status == 200
    assert asked == ["/token", "/callback"]


async def _log_in(path: Path, subject: str, upstream: str | None = None) -> dict[str, Any]:
    """Store a login in the file of an authorization server, as if the user had logged in; its tokens."""
    store = SQLiteStore(path)
    issuing = OAuthTokenIssuer(HOME, store, create_sealer(), access_token_ttl=60, refresh_token_ttl=60)
    grant = TokenGrant(family="f", client_id="nightly", subject=subject, resource=HOME + "/mcp", upstream=upstream)
    tokens = await FlowRunner({}).run(issuing.issue_tokens(grant, time.time(), refreshable=True))
    store.close()
    return tokens


async def _renewed(path: Path, users: dict[str, str] | None = None, **options: Any) -> Callable[[], Awaitable[int]]:
    """What a renewal by a user who is logged in is answered with, whenever it is asked for."""
    authority = AuthorizationServer(issuer=HOME, users=users, store=path, secret_key=SECRET, **options)
    said = await _log_in(path, "ada")

    async def renew() -> int:
        form = {"grant_type": "refresh_token", "client_id": "nightly", "refresh_token": said["refresh_token"]}
        there = [*FORM, (b"host", b"localhost:8000")]
        response = await AsgiRequest(authority, "POST", "/token", urlencode(form).encode(), there).wait_done()
        said.update(json.loads(response.body))
        return response.status

    return renew


@pytest.mark.parametrize("kind", ["table", "plain", "async"])
async def test_a_removed_user_cannot_refresh(kind: str, tmp_path: Path) -> None:
    users = {"ada": "pw"}
    plain = None if kind == "table" else lambda subject: subject in users  # pyright: ignore[reportUnknownLambdaType]

    async def later(subject: str) -> bool:
        return subject in users

    client = RegisteredClient("nightly", redirect_uris=["http://127.0.0.1/"])
    renew = await _renewed(
        tmp_path / "kept.db", users, clients=[client], is_active_user=later if kind == "async" else plain
    )
    assert await renew() == 200
    del users["ada"]
    assert await renew() == 400


async def test_revoking_a_user_and_whose_tokens_are_the_providers(tmp_path: Path) -> None:
    path, up = tmp_path / "kept.db", UpstreamProvider("github", client_id="a", client_secret="b")
    authority = AuthorizationServer(issuer=HOME, upstream=up, store=path, secret_key=SECRET)
    await _log_in(path, "github:1", create_sealer().seal_text(encode(Token(access_token="adas")), b"f"))
    claims = {"sid": "f"}
    assert await authority.upstream_token(Principal("github:1", issuer=HOME, claims=claims)) == "adas"
    for other in (
        Principal("github:1", issuer="https://other.example", claims=claims),
        Principal("github:2", issuer=HOME, claims=claims),
        Principal("github:1", claims=claims),
        Principal("github:1", issuer=HOME),
        None,
    ):
        assert await authority.upstream_token(other) is None
    assert await authority.revoke_user("github:1") == 1
    assert await authority.upstream_token(Principal("github:1", issuer=HOME, claims=claims)) is None


async def test_other_names_are_not_served() -> None:
    authority = AuthorizationServer(issuer="http://127.0.0.1:8000")
    assert (await AsgiRequest(authority, "GET", "/jwks", headers={"host": "evil.example"}).wait_done()).status == 421


@pytest.mark.parametrize(("client", "warnings"), [("127.0.0.1", 1), ("203.0.113.9", 0)])
async def test_an_address_that_a_proxy_sends_in_vain_is_logged_once(
    client: str, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    authority = AuthorizationServer(issuer="http://127.0.0.1:8000")
    for _ in range(3):
        headers = {"host": "127.0.0.1:8000", "x-forwarded-for": "198.51.100.1, 203.0.113.9"}
        request = AsgiRequest(authority, "GET", "/jwks", headers=headers, client=(client, 50000))
        assert (await request.wait_done()).status == 200
    assert caplog.text.count("FORWARDED_ALLOW_IPS=127.0.0.1") == warnings


async def test_bodies_are_bounded() -> None:
    authority = AuthorizationServer(issuer="http://127.0.0.1:8000")
    assert (await AsgiRequest(authority, "POST", "/token", body=b"x" * 70_000).wait_done()).status == 413
    assert (await AsgiRequest(authority, "POST", "/token", body=[b"x" * 40_000] * 2).wait_done()).status == 413


def test_mistakes() -> None:
    up = UpstreamProvider("github", client_id="a", client_secret="b")
    wrong: list[dict[str, Any]] = [
        {"issuer": "http://login.example", "users": {}},
        {"issuer": "https://login.example?x=1", "users": {}},
        {"issuer": "https://login.example#x", "users": {}},
        {"issuer": "https://u@login.example", "users": {}},
        {"issuer": "https://login.example"},  # nobody would log in
        {"issuer": "https://login.example", "users": {}, "upstream": up},
        {"issuer": "https://login.example", "users": {}, "store": "kept.db"},  # without a secret
        {"issuer": "https://login.example", "users": {}, "secret_key": "short"},
        {"issuer": "https://login.example", "users": {}, "resources": ["files"]},
        {"issuer": "https://login.example", "users": {}, "resources": ["https://files.example#x"]},
        {"issuer": "https://login.example", "users": {}, "scopes_supported": ['a"b']},
    ]
    for options in wrong:
        with pytest.raises(ValueError, match=r"issuer|users|secret|resources|scope"):
            AuthorizationServer(**options)
    with pytest.raises(TypeError, match="users"):
        AuthorizationServer(issuer="https://login.example", users=["ada"])  # pyright: ignore[reportArgumentType]


async def test_one_resource_and_scopes_may_be_one_text() -> None:
    authority = AuthorizationServer(issuer=HOME, resources=f"{HOME}/mcp", scopes_supported="read write")
    metadata = await AsgiRequest(authority, "GET", "/.well-known/oauth-authorization-server").wait_done()
    assert metadata.last["scopes_supported"] == ["read", "write"]
    query = urlencode(
        {
            "response_type": "code",
            "client_id": await _register(authority),
            "code_challenge": "x" * 43,
            "code_challenge_method": "S256",
            "resource": f"{HOME}/mcp",
        }
    )
    asked = await AsgiRequest(authority, "GET", "/authorize", query_string=query.encode()).wait_done()
    assert asked.status == 200


async def _register(authority: AuthorizationServer) -> str:
    body = json.dumps({"redirect_uris": ["http://127.0.0.1:1/x"]}).encode()
    return (await AsgiRequest(authority, "POST", "/register", body).wait_done()).last["client_id"]


async def test_documents_of_strangers_are_not_fetched_from_this_network() -> None:
    """Where a client says its document is, is no reason to look around in this network."""
    asked: list[str] = []

    async def canary(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])

    authority = AuthorizationServer(issuer="http://127.0.0.1:8000")
    async with serve_app(lambda _: canary) as url:
        port = urlsplit(url).port
        names = ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433", "127.1"]
        for name in names:
            query = urlencode({"client_id": f"https://{name}:{port}/client.json"}).encode()
            answer = await AsgiRequest(authority, "GET", "/authorize", query_string=query).wait_done()
            assert answer.status == 400
    assert asked == []
    await authority.close()


async def test_steps_in_threads_come_one_at_a_time(tmp_path: Path) -> None:
    authority = AuthorizationServer(
        issuer="http://127.0.0.1:8000",
        store=tmp_path / "kept.db",
        secret_key="a secret of many letters",
        max_registrations_per_hour=1000,
    )
    body = b'{"redirect_uris": ["http://127.0.0.1/cb"]}'
    visits = [AsgiRequest(authority, "POST", "/register", body=body) for _ in range(30)]
    await asyncio.gather(*(one.wait_done() for one in visits))
    assert len({one.last["client_id"] for one in visits}) == 30
    await authority.close()


# What only looks like a secret


@pytest.mark.parametrize(
    "options",
    [
        {"users": {"ada": ""}}, {"users": {"ada": " "}}, {"users": {"": "pw"}}, {"users": {"ada": None}},
        {"introspection_clients": {"files": ""}}, {"introspection_clients": {"files": "\n"}},
    ],
)  # fmt: skip
def test_a_blank_secret_is_anyones(options: dict[str, Any]) -> None:
    """As comes of a variable of the environment that is not set."""
    with pytest.raises(ValueError, match=r"users=|introspection_clients="):
        AuthorizationServer(issuer=HOME, **options)


@pytest.mark.parametrize("secret", ["", "  "])
def test_a_client_with_a_blank_secret_is_anyone(secret: str) -> None:
    with pytest.raises(ValueError, match="client_secret="):
        RegisteredClient("nightly", client_secret=secret)


def test_less_than_none_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="allow_registration=False"):
        AuthorizationServer(issuer=HOME, max_registrations_per_hour=-1)


# Several processes


@pytest.mark.parametrize("kind", ["alone", "wrapped", "fallback"])
async def test_a_server_with_another_secret_key_does_not_start(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create_app(secret_key: str) -> Any:
        authority = AuthorizationServer(issuer=HOME, store=tmp_path / "store.db", secret_key=secret_key)
        server = Server("server", auth=authority.verifier())
        if kind == "wrapped":
            return authority.wrap(server.asgi())
        return authority if kind == "alone" else server.asgi(fallback=authority)

    async def read_keys(app: Any) -> Any:
        async with run_lifespan(app):
            return json.loads((await AsgiRequest(app, "GET", "/jwks").wait_done()).body)["keys"]

    keys, closed_stores = await read_keys(create_app(SECRET)), []
    close = SQLiteStore.close
    monkeypatch.setattr(SQLiteStore, "close", lambda store: (closed_stores.append(store), close(store)))
    with pytest.raises(StartupFailed, match="secret_key"):
        await read_keys(create_app("another secret of letters"))
    assert len(closed_stores) == 1
    assert await read_keys(create_app(SECRET)) == keys


@pytest.mark.parametrize("how", ["fallback", "auth", "guard"])
def test_several_workers_need_a_store_they_share(how: str, tmp_path: Path) -> None:
    authority = AuthorizationServer(issuer=HOME)
    auth = {"auth": authority.verifier(), "guard": Guard(authority.verifier())}.get(how)
    more: dict[str, Any] = {"fallback": authority} if how == "fallback" else {}
    with pytest.raises(ValueError, match=r"workers[\s\S]*store="):
        Server("files", auth=auth).run("http", port=0, workers=2, sessions=False, **more)
    shared = AuthorizationServer(issuer=HOME, store=tmp_path / "kept.db", secret_key="a secret of many letters")
    assert not is_local_authorization_server(shared)


WORKERS = """
import sys
from dovetail import Server
from dovetail.auth import AuthorizationServer

port = int(sys.argv[1])
home = f"http://127.0.0.1:{port}"
authority = AuthorizationServer(
    issuer=home, resources=home + "/mcp", store=sys.argv[2], secret_key="a secret of letters"
)
app = Server("files", auth=authority.verifier())
app.run("http", port=port, workers=2, sessions=False, fallback=authority)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
def test_workers_that_share_a_file_are_one_server(free_port: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKERS, str(free_port), str(tmp_path / "kept.db")]
    with run_process(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while f"127.0.0.1:{free_port}/mcp" not in process.stderr.readline():
            assert process.poll() is None
        try:
            said = {_asked(free_port, "GET", "/jwks") for _ in range(20)}
            assert len(said) == 1
            about = json.dumps({"redirect_uris": ["http://127.0.0.1/cb"]})
            client = json.loads(_asked(free_port, "POST", "/register", about))["client_id"]
            query = urlencode(
                {
                    "response_type": "code", "client_id": client, "redirect_uri": "http://127.0.0.1/cb",
                    "code_challenge": "x" * 43, "code_challenge_method": "S256",
                    "resource": f"http://127.0.0.1:{free_port}/mcp",
                }
            )  # fmt: skip
            for _ in range(20):
                assert "Allow" in _asked(free_port, "GET", f"/authorize?{query}")
        finally:
            process.terminate()
            process.communicate(timeout=20)


def _asked(port: int, method: str, path: str, body: str | None = None) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, body, {"content-type": "application/json"})
    answer = connection.getresponse().read().decode()
    connection.close()
    return answer
