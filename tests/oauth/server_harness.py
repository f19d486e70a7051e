"""An authorization server without I/O: the harness runs its flows, and browsers and clients are plain objects."""

import asyncio
import re
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from dovetail.oauth.authorization_server.authorization_endpoint import AuthorizationEndpoints
from dovetail.oauth.authorization_server.clients import RegisteredClient, get_client_record
from dovetail.oauth.authorization_server.identity_provider import UpstreamProvider, get_identity_provider
from dovetail.oauth.authorization_server.responses import Request
from dovetail.oauth.authorization_server.settings import AuthorizationServerSettings
from dovetail.oauth.authorization_server.store import AuthorizationStore, InMemoryStore
from dovetail.oauth.authorization_server.token_issuer import LocalTokenVerifier, OAuthTokenIssuer
from dovetail.oauth.flow import (
    AcquireLock,
    Await,
    CheckUserActive,
    FetchResponse,
    FetchUntrusted,
    Flow,
    Now,
    VerifyPassword,
)
from dovetail.oauth.pkce import create_pkce_pair
from dovetail.protocol.interfaces.http_types import HTTPRequest, HTTPResponse
from dovetail.protocol.sealer import Sealer
from dovetail.wire.codec import decode, encode

ISSUER = "https://login.example"
RESOURCE = "https://mcp.example/mcp"
NOW = 1_800_000_000.0
REDIRECT_URI = "http://127.0.0.1:7777/callback"
EDITOR = RegisteredClient(
    "editor", redirect_uris=[REDIRECT_URI, "https://editor.example/back"], client_name="The Editor"
)


def complete(awaitable: Any) -> Any:
    """Return the result of a store's coroutine. A store in memory never waits, and a file may use threads."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with asyncio.Runner() as runner:
            return runner.run(awaitable)
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, awaitable).result()


class ServerHarness:
    """An authorization server with its clock and its HTTP responses."""

    def __init__(
        self,
        *,
        upstream: UpstreamProvider | None = None,
        store: AuthorizationStore | None = None,
        sealer: Sealer | None = None,
        login_time: float = 30 * 86400.0,
        **settings: Any,
    ) -> None:
        self.now = NOW
        self.address = "1.2.3.4"  # the address of the client
        self.store: AuthorizationStore = store or InMemoryStore()
        self.sealer = sealer or Sealer("a secret of many letters", purpose="test")
        self.issuing = OAuthTokenIssuer(
            ISSUER,
            self.store,
            self.sealer,
            access_token_ttl=900,
            refresh_token_ttl=86400,
            login_ttl=login_time,
        )
        settings["clients"] = tuple(map(get_client_record, settings.get("clients", (EDITOR,))))
        facts: dict[str, Any] = {"issuer": ISSUER, "name": "login", "resources": (RESOURCE,)}
        if upstream is None and "has_passwords" not in settings:
            facts["development_user"] = "developer"
        self.authority = AuthorizationEndpoints(
            AuthorizationServerSettings(**facts | settings),
            self.store,
            self.issuing,
            None if upstream is None else get_identity_provider(upstream),
            self.sealer,
        )
        self.verifier = LocalTokenVerifier(self.issuing, ())
        self.users: dict[str, str] = {"ada": "pw"}
        self.removed_subjects: set[str] = set()  # subjects that are not users any more
        self.documents: dict[str, FetchResponse] = {}
        self.fetched_urls: list[str] = []
        self.http_calls: list[HTTPRequest] = []
        self.answers: dict[str, Any] = {}

    def run_flow(self, flow: Flow[Any]) -> Any:
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                wish = flow.send(answer) if error is None else flow.throw(error)
            except StopIteration as done:
                return done.value
            error = None
            match wish:
                case Await():
                    try:
                        answer = complete(wish.awaitable)
                    except Exception as exc:
                        error = exc
                case Now():
                    answer = self.now
                case AcquireLock():
                    answer = None
                case VerifyPassword():
                    answer = wish.name if self.users.get(wish.name) == wish.password else None
                case CheckUserActive():
                    answer = wish.subject not in self.removed_subjects
                case FetchUntrusted():
                    self.fetched_urls.append(wish.url)
                    answer = self.documents.get(wish.url, FetchResponse(0))
                case HTTPRequest():
                    self.http_calls.append(wish)
                    answer = self._answer_http_call(wish)
                case _:
                    raise AssertionError(wish)

    def _answer_http_call(self, call: HTTPRequest) -> FetchResponse:
        said = self.answers.get(call.url)
        if isinstance(said, FetchResponse):
            return said
        return FetchResponse(404) if said is None else FetchResponse(200, {}, encode(said))

    def send_request(
        self, method: str, path: str, query: str = "", body: bytes = b"", address: str | None = None, **headers: str
    ) -> HTTPResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.run_flow(
            self.authority.handle(
                Request(
                    method=method, path=path, query=query, headers=named, body=body, address=address or self.address
                )
            )
        )

    def post(self, path: str, fields: dict[str, str], **headers: str) -> HTTPResponse:
        kind = {"content_type": "application/x-www-form-urlencoded"}
        return self.send_request("POST", path, body=urlencode(fields).encode(), **kind | headers)

    def register(self, document: Any, **headers: str) -> HTTPResponse:
        return self.send_request(
            "POST", "/register", body=encode(document), **{"content_type": "application/json"} | headers
        )

    def token(self, **fields: str) -> HTTPResponse:
        return self.post("/token", {"client_id": "editor"} | fields)


def decode_body(response: HTTPResponse) -> Any:
    return decode(response.body)


def get_header(response: HTTPResponse, name: str) -> str:
    assert name in response.headers, response.headers
    return response.headers[name]


def parse_redirect(response: HTTPResponse) -> tuple[str, dict[str, str]]:
    """Return the target of a redirect and its parameters."""
    assert response.status_code == 303, response
    parts = urlsplit(get_header(response, "location"))
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    assert len(dict(pairs)) == len(pairs), "something was said twice"
    return parts._replace(query="").geturl(), dict(pairs)


class Browser:
    """A browser that keeps a cookie, opens a page and submits its form."""

    def __init__(self, harness: ServerHarness) -> None:
        self.harness = harness
        self.cookie: str | None = None
        self.form: dict[str, str] = {}

    def open(self, **changes: str | None) -> HTTPResponse:
        self.verifier, challenge = create_pkce_pair()
        good: dict[str, str | None] = {
            "response_type": "code", "client_id": "editor", "redirect_uri": REDIRECT_URI, "state": "s&1",
            "code_challenge": challenge, "code_challenge_method": "S256", "resource": RESOURCE, "scope": "read",
        }  # fmt: skip
        query = urlencode({name: value for name, value in (good | changes).items() if value is not None})
        return self.get_page("/authorize", query)

    def get_page(self, path: str, query: str) -> HTTPResponse:
        response = self.harness.send_request("GET", path, query, **self._cookies())
        for name, value in response.headers.items():
            if name == "set-cookie":
                self.cookie = value.partition(";")[0]
        found = re.findall(r'name="(request|csrf)" value="([^"]+)"', response.body.decode())
        self.form = dict(found) or self.form
        return response

    def _cookies(self) -> dict[str, str]:
        return {} if self.cookie is None else {"cookie": self.cookie}

    def submit_consent(
        self, decision: str = "allow", headers: dict[str, str] | None = None, **fields: str
    ) -> HTTPResponse:
        return self.harness.post(
            "/consent", self.form | {"decision": decision} | fields, **self._cookies() | (headers or {})
        )

    def request_code(self, **changes: str | None) -> str:
        """Return the code of a valid request."""
        self.open(**changes)
        return parse_redirect(self.submit_consent())[1]["code"]

    def request_tokens(self, **changes: str | None) -> dict[str, Any]:
        code = self.request_code(**changes)
        response = self.harness.token(
            grant_type="authorization_code",
            code=code,
            code_verifier=self.verifier,
            redirect_uri=REDIRECT_URI,
            resource=RESOURCE,
        )
        assert response.status_code == 200, response
        return decode_body(response)


def basic_credentials(name: str, secret: str) -> str:
    return "Basic " + b64encode(f"{name}:{secret}".encode()).decode()


def parse_query(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
