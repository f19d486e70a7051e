"""An authorization server in the hand: its flows driven by values, with browsers and clients that are plain objects."""

import re
from base64 import b64encode
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from dovetail.oauth import proofs
from dovetail.oauth.authorization_server.authorization_endpoint import AuthorizationEndpoints
from dovetail.oauth.authorization_server.clients import RegisteredClient, get_client_record
from dovetail.oauth.authorization_server.identity_provider import SecretSealer, UpstreamProvider, get_identity_provider
from dovetail.oauth.authorization_server.responses import Request, Response
from dovetail.oauth.authorization_server.settings import AuthorizationServerSettings
from dovetail.oauth.authorization_server.store import AuthorizationStore, InMemoryStore
from dovetail.oauth.authorization_server.token_issuer import LocalTokenVerifier, OAuthTokenIssuer
from dovetail.oauth.flow import (
    AcquireLock,
    CheckUserActive,
    FetchUntrusted,
    Flow,
    HTTPRequest,
    HTTPResponse,
    Now,
    VerifyPassword,
)
from dovetail.wire.codec import decode, encode

ISSUER = "https://login.example"
RESOURCE = "https://mcp.example/mcp"
NOW = 1_800_000_000.0
REDIRECT_URI = "http://127.0.0.1:7777/callback"
EDITOR = RegisteredClient(
    "editor", redirect_uris=[REDIRECT_URI, "https://editor.example/back"], client_name="The Editor"
)


class ServerHarness:
    """One authorization server, its clock, and its web."""

    def __init__(
        self,
        *,
        upstream: UpstreamProvider | None = None,
        store: AuthorizationStore | None = None,
        vault: SecretSealer | None = None,
        login_time: float = 30 * 86400.0,
        **settings: Any,
    ) -> None:
        self.now = NOW
        self.store: AuthorizationStore = store or InMemoryStore()
        self.vault = vault or SecretSealer("a secret of many letters")
        warn = settings.get("warn")
        self.issuing = OAuthTokenIssuer(
            ISSUER,
            self.store,
            self.vault,
            access_token_ttl=900,
            refresh_token_ttl=86400,
            login_ttl=login_time,
            warn=warn,
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
            self.vault,
        )
        self.verifier = LocalTokenVerifier(self.issuing, ())
        self.users: dict[str, str] = {"ada": "pw"}
        self.removed_subjects: set[str] = set()  # subjects that are no users any more
        self.documents: dict[str, HTTPResponse] = {}
        self.fetched_urls: list[str] = []
        self.http_calls: list[HTTPRequest] = []
        self.answers: dict[str, Any] = {}

    def run_flow(self, flow: Flow[Any]) -> Any:
        answer: Any = None
        while True:
            try:
                wish = flow.send(answer)
            except StopIteration as done:
                return done.value
            match wish:
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
                    answer = self.documents.get(wish.url, HTTPResponse(0))
                case HTTPRequest():
                    self.http_calls.append(wish)
                    answer = self._answer_http_call(wish)
                case _:
                    raise AssertionError(wish)

    def _answer_http_call(self, call: HTTPRequest) -> HTTPResponse:
        said = self.answers.get(call.url)
        if isinstance(said, HTTPResponse):
            return said
        return HTTPResponse(404) if said is None else HTTPResponse(200, {}, encode(said))

    def send_request(
        self, method: str, path: str, query: str = "", body: bytes = b"", address: str = "1.2.3.4", **headers: str
    ) -> Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.run_flow(
            self.authority.handle(
                Request(method=method, path=path, query=query, headers=named, body=body, address=address)
            )
        )

    def post(self, path: str, fields: dict[str, str], **headers: str) -> Response:
        kind = {"content_type": "application/x-www-form-urlencoded"}
        return self.send_request("POST", path, body=urlencode(fields).encode(), **kind | headers)

    def register(self, document: Any, **headers: str) -> Response:
        return self.send_request(
            "POST", "/register", body=encode(document), **{"content_type": "application/json"} | headers
        )

    def token(self, **fields: str) -> Response:
        return self.post("/token", {"client_id": "editor"} | fields)


def decode_body(response: Response) -> Any:
    return decode(response.body)


def get_header(response: Response, name: str) -> str:
    found = [value for key, value in response.headers if key == name]
    assert len(found) == 1, (name, response.headers)
    return found[0]


def parse_redirect(response: Response) -> tuple[str, dict[str, str]]:
    """Where a redirect leads, and with what."""
    assert response.status == 303, response
    parts = urlsplit(get_header(response, "location"))
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    assert len(dict(pairs)) == len(pairs), "something was said twice"
    return parts._replace(query="").geturl(), dict(pairs)


class Browser:
    """Keeps a cookie, shows a page, sends its form."""

    def __init__(self, harness: ServerHarness) -> None:
        self.harness = harness
        self.cookie: str | None = None
        self.form: dict[str, str] = {}

    def open(self, **changes: str | None) -> Response:
        self.verifier, challenge = proofs.create_pkce_pair()
        good: dict[str, str | None] = {
            "response_type": "code", "client_id": "editor", "redirect_uri": REDIRECT_URI, "state": "s&1",
            "code_challenge": challenge, "code_challenge_method": "S256", "resource": RESOURCE, "scope": "read",
        }  # fmt: skip
        query = urlencode({name: value for name, value in (good | changes).items() if value is not None})
        return self.get_page("/authorize", query)

    def get_page(self, path: str, query: str) -> Response:
        response = self.harness.send_request("GET", path, query, **self._cookies())
        for name, value in response.headers:
            if name == "set-cookie":
                self.cookie = value.partition(";")[0]
        found = re.findall(r'name="(request|csrf)" value="([^"]+)"', response.body.decode())
        self.form = dict(found) or self.form
        return response

    def _cookies(self) -> dict[str, str]:
        return {} if self.cookie is None else {"cookie": self.cookie}

    def submit_consent(self, decision: str = "allow", headers: dict[str, str] | None = None, **fields: str) -> Response:
        return self.harness.post(
            "/consent", self.form | {"decision": decision} | fields, **self._cookies() | (headers or {})
        )

    def request_code(self, **changes: str | None) -> str:
        """The code for a good request."""
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
        assert response.status == 200, response
        return decode_body(response)


def basic_credentials(name: str, secret: str) -> str:
    return "Basic " + b64encode(f"{name}:{secret}".encode()).decode()


def parse_query(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
