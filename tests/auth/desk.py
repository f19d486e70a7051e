"""An authorization server in the hand: its flows driven by values, with browsers and clients that are plain objects."""

import re
from base64 import b64encode
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from dovetail.auth import proofs
from dovetail.auth.flow import Alone, Flow, HttpAnswer, HttpCall, Now, SignIn, StillUser, Stranger
from dovetail.auth.server.authority import Authority
from dovetail.auth.server.clients import known_client
from dovetail.auth.server.issuing import Issuing, OwnTokens
from dovetail.auth.server.settings import Settings
from dovetail.auth.server.store import Shelf, Store
from dovetail.auth.server.upstream import Upstream, Vault
from dovetail.auth.server.web import Request, Response
from dovetail.wire.codec import decode, encode

ISSUER = "https://login.example"
RESOURCE = "https://mcp.example/mcp"
NOW = 1_800_000_000.0
HOME = "http://127.0.0.1:7777/callback"
EDITOR = known_client("editor", redirect_uris=[HOME, "https://editor.example/back"], client_name="The Editor")


class Desk:
    """One authorization server, its clock, and its web."""

    def __init__(
        self,
        *,
        upstream: Upstream | None = None,
        store: Store | None = None,
        vault: Vault | None = None,
        login_time: float = 30 * 86400.0,
        **settings: Any,
    ) -> None:
        self.now = NOW
        self.store: Store = store or Shelf()
        self.vault = vault or Vault("a secret of many letters")
        warn = settings.get("warn")
        self.issuing = Issuing(
            ISSUER, self.store, self.vault, access_time=900, refresh_time=86400, login_time=login_time, warn=warn
        )
        facts: dict[str, Any] = {"issuer": ISSUER, "name": "login", "resources": (RESOURCE,), "clients": (EDITOR,)}
        if upstream is None and "passwords" not in settings:
            facts["user"] = "developer"
        self.authority = Authority(Settings(**facts | settings), self.store, self.issuing, upstream, self.vault)
        self.verifier = OwnTokens(self.issuing, ())
        self.users: dict[str, str] = {"ada": "pw"}
        self.gone: set[str] = set()  # subjects that are no users any more
        self.documents: dict[str, HttpAnswer] = {}
        self.fetched: list[str] = []
        self.called: list[HttpCall] = []
        self.answers: dict[str, Any] = {}

    def drive(self, flow: Flow[Any]) -> Any:
        answer: Any = None
        while True:
            try:
                wish = flow.send(answer)
            except StopIteration as done:
                return done.value
            match wish:
                case Now():
                    answer = self.now
                case Alone():
                    answer = None
                case SignIn():
                    answer = wish.name if self.users.get(wish.name) == wish.password else None
                case StillUser():
                    answer = wish.subject not in self.gone
                case Stranger():
                    self.fetched.append(wish.url)
                    answer = self.documents.get(wish.url, HttpAnswer(0))
                case HttpCall():
                    self.called.append(wish)
                    answer = self._web(wish)
                case _:
                    raise AssertionError(wish)

    def _web(self, call: HttpCall) -> HttpAnswer:
        said = self.answers.get(call.url)
        if isinstance(said, HttpAnswer):
            return said
        return HttpAnswer(404) if said is None else HttpAnswer(200, {}, encode(said))

    def ask(
        self, method: str, path: str, query: str = "", body: bytes = b"", address: str = "1.2.3.4", **headers: str
    ) -> Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.drive(
            self.authority.handle(
                Request(method=method, path=path, query=query, headers=named, body=body, address=address)
            )
        )

    def post(self, path: str, fields: dict[str, str], **headers: str) -> Response:
        kind = {"content_type": "application/x-www-form-urlencoded"}
        return self.ask("POST", path, body=urlencode(fields).encode(), **kind | headers)

    def register(self, document: Any, **headers: str) -> Response:
        return self.ask("POST", "/register", body=encode(document), **{"content_type": "application/json"} | headers)

    def token(self, **fields: str) -> Response:
        return self.post("/token", {"client_id": "editor"} | fields)


def said(response: Response) -> Any:
    return decode(response.body)


def header(response: Response, name: str) -> str:
    found = [value for key, value in response.headers if key == name]
    assert len(found) == 1, (name, response.headers)
    return found[0]


def place(response: Response) -> tuple[str, dict[str, str]]:
    """Where a redirect leads, and with what."""
    assert response.status == 303, response
    parts = urlsplit(header(response, "location"))
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    assert len(dict(pairs)) == len(pairs), "something was said twice"
    return parts._replace(query="").geturl(), dict(pairs)


class Browser:
    """Keeps a cookie, shows a page, sends its form."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.cookie: str | None = None
        self.form: dict[str, str] = {}

    def open(self, **changes: str | None) -> Response:
        self.verifier, challenge = proofs.challenge_pair()
        good: dict[str, str | None] = {
            "response_type": "code", "client_id": "editor", "redirect_uri": HOME, "state": "s&1",
            "code_challenge": challenge, "code_challenge_method": "S256", "resource": RESOURCE, "scope": "read",
        }  # fmt: skip
        query = urlencode({name: value for name, value in (good | changes).items() if value is not None})
        return self.go("/authorize", query)

    def go(self, path: str, query: str) -> Response:
        response = self.desk.ask("GET", path, query, **self._cookies())
        for name, value in response.headers:
            if name == "set-cookie":
                self.cookie = value.partition(";")[0]
        found = re.findall(r'name="(request|csrf)" value="([^"]+)"', response.body.decode())
        self.form = dict(found) or self.form
        return response

    def _cookies(self) -> dict[str, str]:
        return {} if self.cookie is None else {"cookie": self.cookie}

    def decide(self, decision: str = "allow", headers: dict[str, str] | None = None, **fields: str) -> Response:
        return self.desk.post(
            "/consent", self.form | {"decision": decision} | fields, **self._cookies() | (headers or {})
        )

    def code(self, **changes: str | None) -> str:
        """The code for a good request."""
        self.open(**changes)
        return place(self.decide())[1]["code"]

    def tokens(self, **changes: str | None) -> dict[str, Any]:
        code = self.code(**changes)
        response = self.desk.token(
            grant_type="authorization_code",
            code=code,
            code_verifier=self.verifier,
            redirect_uri=HOME,
            resource=RESOURCE,
        )
        assert response.status == 200, response
        return said(response)


def basic(name: str, secret: str) -> str:
    return "Basic " + b64encode(f"{name}:{secret}".encode()).decode()


def query_of(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
