"""A guarded MCP server and its authorization server on one loopback port, and the user who logs in there.

The server records all requests. Tests change its responses through its attributes.
"""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from dovetail import Client
from dovetail.auth import OAuth

TIMEOUT_S = 20.0


class HttpRequest(NamedTuple):
    """An HTTP request."""

    verb: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode()))


class HttpReply(NamedTuple):
    """An HTTP response. Bytes are a page, anything else is JSON."""

    status: int
    body: Any = None
    headers: dict[str, str] = {}  # noqa: RUF012


class GuardedServer:
    """Serves `/mcp`, which needs a token with the scopes in `need`, and the authorization server."""

    def __init__(self) -> None:
        self.asked: list[HttpRequest] = []
        self.url = self.origin = ""
        self.port = 0
        self.valid: dict[str, set[str]] = {}  # access tokens and their scopes
        self.refreshable: set[str] = set()
        self.clients: set[str] = set()
        self.codes: dict[str, str] = {}
        self.need: set[str] = set()
        self.granted: Callable[[set[str]], set[str]] = lambda asked: asked
        self.accepts: Callable[[str], bool] = lambda token: True
        self.expires_in: float | None = 3600
        # by path: returns an HttpReply, or None for the default
        self.says: dict[str, Callable[[HttpRequest], Any]] = {}
        self.server: dict[str, Any] = {}  # changes to the server metadata
        self.issued = 0
        self._connections: set[asyncio.Task[None]] = set()

    def count(self, path: str, **fields: str) -> int:
        return len([one for one in self.asked if one.path == path and fields.items() <= one.form.items()])

    @property
    def logins(self) -> int:
        return self.count("/authorize")

    @property
    def refreshes(self) -> int:
        return self.count("/token", grant_type="refresh_token")

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(asyncio.create_task(self._serve(reader, writer)))

    async def close(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
                verb, target, _ = first.split()
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in rest)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                parts = urlsplit(target)
                asked = HttpRequest(verb, parts.path, dict(parse_qsl(parts.query)), headers, body)
                self.asked.append(asked)
                writer.write(_encode_reply(await self._handle_request(asked)))

    async def _handle_request(self, asked: HttpRequest) -> HttpReply:
        if asked.path in self.says:
            said = self.says[asked.path](asked)
            said = await said if asyncio.iscoroutine(said) else said
            if said is not None:
                return said
        known = {
            "/mcp": self.mcp,
            "/.well-known/oauth-protected-resource/mcp": self._resource,
            "/.well-known/oauth-authorization-server": self._server,
            "/register": self._register,
            "/authorize": self.authorize,
            "/token": self.token,
        }
        return known[asked.path](asked) if asked.path in known else HttpReply(404)

    def mcp(self, asked: HttpRequest) -> HttpReply:
        token = asked.headers.get("authorization", "").partition(" ")[2]
        if token not in self.valid or not self.accepts(token):
            return HttpReply(401, None, {"www-authenticate": "Bearer"})
        if not self.need <= self.valid[token]:
            wanted = " ".join(sorted(self.need))
            return HttpReply(403, None, {"www-authenticate": f'Bearer error="insufficient_scope", scope="{wanted}"'})
        message = json.loads(asked.body)
        if "id" not in message:
            return HttpReply(202)
        result = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {}}
        return HttpReply(200, {"jsonrpc": "2.0", "id": message["id"], "result": result})

    def _resource(self, _: HttpRequest) -> HttpReply:
        return HttpReply(200, {"resource": self.url, "authorization_servers": [self.origin]})

    def _server(self, _: HttpRequest) -> HttpReply:
        document = {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        }
        return HttpReply(200, document | self.server)

    def _register(self, _: HttpRequest) -> HttpReply:
        self.clients.add(client := self._create_token("client"))
        return HttpReply(201, {"client_id": client})

    def authorize(self, asked: HttpRequest) -> HttpReply:
        query = asked.query
        if query["client_id"] not in self.clients:
            return HttpReply(400, {"error": "nobody knows this client"})
        self.codes[code := self._create_token("code")] = query.get("scope", "")
        back = urlencode({"code": code, "state": query["state"], "iss": self.origin})
        return HttpReply(302, None, {"location": f"{query['redirect_uri']}?{back}"})

    def token(self, asked: HttpRequest) -> HttpReply:
        form = asked.form
        if form.get("client_id") not in self.clients:
            return HttpReply(401, {"error": "invalid_client"})
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self.refreshable:
                return HttpReply(400, {"error": "invalid_grant"})
            self.refreshable.remove(form["refresh_token"])
            return self.issue(set().union(*self.valid.values()))
        if form.get("code") not in self.codes:
            return HttpReply(400, {"error": "invalid_grant"})
        return self.issue(self.granted(set(self.codes.pop(form["code"]).split())))

    def issue(self, scopes: set[str]) -> HttpReply:
        """Issue a new access token and a new refresh token. The old refresh token becomes invalid."""
        self.valid[access := self._create_token("access")] = scopes
        self.refreshable.add(refresh := self._create_token("refresh"))
        said: dict[str, Any] = {"access_token": access, "token_type": "Bearer", "refresh_token": refresh}
        return HttpReply(200, said | ({} if self.expires_in is None else {"expires_in": self.expires_in}))

    def _create_token(self, kind: str) -> str:
        self.issued += 1
        return f"{kind}-{self.issued}"


def _encode_reply(reply: HttpReply) -> bytes:
    page = isinstance(reply.body, bytes)
    body: bytes = reply.body if page else b"" if reply.body is None else json.dumps(reply.body).encode()
    headers = {"content-type": "text/html" if page else "application/json"} | reply.headers
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {reply.status} X\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def run_guarded_server(
    name: str | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[GuardedServer]:
    """Run the server. With a name, its metadata says that it is at port 443 of that host."""
    place = GuardedServer()
    async with await asyncio.start_server(place.connected, "127.0.0.1", 0, ssl=tls) as listening:
        place.port = listening.sockets[0].getsockname()[1]
        place.origin = f"https://{name}" if name is not None else f"http://127.0.0.1:{place.port}"
        place.url = f"{place.origin}/mcp"
        try:
            yield place
        finally:
            await place.close()


async def http_get(url: str) -> tuple[int, dict[str, str], bytes]:
    """Send a GET on a new connection, and return status, headers and body."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    with closing(writer):
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        writer.write(f"GET {target} HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:])}
        return int(head[0].split()[1]), headers, await reader.readexactly(int(headers.get("content-length", 0)))


class User:
    """A user with a browser who agrees to everything, once the test allows it."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.ready = asyncio.Event()
        self.ready.set()
        self.called = asyncio.Event()
        self._browsers: set[asyncio.Task[None]] = set()

    async def open(self, url: str) -> None:
        """Open a page in a separate task. Errors of the page do not reach the program."""
        self.opened.append(url)
        self.called.set()
        self._browsers.add(asyncio.create_task(self._browse(url)))

    async def _browse(self, url: str) -> None:
        await self.ready.wait()
        status, headers, _ = await http_get(url)
        if status == 302:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await http_get(headers["location"])

    async def close(self) -> None:
        for task in self._browsers:
            task.cancel()
        await asyncio.gather(*self._browsers, return_exceptions=True)


def oauth_settings(user: User, **settings: Any) -> OAuth:
    given: dict[str, Any] = {"open_browser": user.open, "token_store": "memory", "timeout": TIMEOUT_S} | settings
    return OAuth(**given)


def create_client(server: GuardedServer, user: User, **settings: Any) -> Client:
    return Client(server.url, auth=oauth_settings(user, **settings))


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
