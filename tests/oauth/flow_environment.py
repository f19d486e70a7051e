"""An environment without I/O for flows: documents by URL, a user who agrees, and a clock."""

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from dovetail.oauth.flow import FetchResponse, Flow, Now, OpenBrowser, Pause, ReserveRedirectURI, ShowCode
from dovetail.protocol.interfaces.http_types import HTTPRequest

SERVER = "https://mcp.example.com/mcp"
ISSUER = "https://login.example.com"
RESOURCE_METADATA_URL = "https://mcp.example.com/.well-known/oauth-protected-resource/mcp"
SERVER_METADATA_URL = "https://login.example.com/.well-known/oauth-authorization-server"
REDIRECT = "http://127.0.0.1:5000/callback"

Reply = FetchResponse | Mapping[str, Any] | Callable[[HTTPRequest], Any]


def json_answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> FetchResponse:
    return FetchResponse(status, headers or {}, json.dumps(body).encode())


def resource_metadata(**changes: Any) -> dict[str, Any]:
    return {"resource": SERVER, "authorization_servers": [ISSUER]} | changes


def server_metadata(issuer: str = ISSUER, **changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "issuer": issuer,
        "authorization_endpoint": f"{issuer}/authorize",
        "token_endpoint": f"{issuer}/token",
        "registration_endpoint": f"{issuer}/register",
        "code_challenge_methods_supported": ["S256"],
    }
    return {name: value for name, value in (document | changes).items() if value is not None}


def parse_form(call: HTTPRequest) -> dict[str, str]:
    return dict(parse_qsl(call.body.decode(), strict_parsing=True))


class FlowEnvironment:
    """Performs the actions of a flow, and records them."""

    def __init__(self, replies_by_url: Mapping[str, Reply] | None = None, *, now: float = 1000.0) -> None:
        self.replies_by_url: dict[str, Reply] = dict(replies_by_url or {})
        self.now = now
        self.calls: list[HTTPRequest] = []
        self.visited_queries: list[dict[str, str]] = []
        self.shown_codes: list[ShowCode] = []
        self.pauses: list[float] = []
        self.known_redirect_uris: list[list[str]] = []
        self.redirect: dict[str, str] = {"code": "the-code"}
        self.make_redirect: Callable[[dict[str, str]], dict[str, str]] = lambda query: {"state": query["state"]}

    @property
    def urls(self) -> list[str]:
        return [call.url for call in self.calls]

    def calls_to(self, url: str) -> list[HTTPRequest]:
        return [call for call in self.calls if call.url == url]

    def run_flow(self, flow: Flow[Any]) -> Any:
        """Run a flow, and return its result."""
        given: Any = None
        while True:
            try:
                wish = flow.send(given)
            except StopIteration as done:
                return done.value
            given = self._handle_wish(wish)

    def _handle_wish(self, wish: Any) -> Any:
        match wish:
            case HTTPRequest():
                return self._answer_http_call(wish)
            case Now():
                return self.now
            case Pause():
                self.pauses.append(wish.seconds)
                self.now += wish.seconds
                return None
            case ReserveRedirectURI():
                self.known_redirect_uris.append(list(wish.registered_uris))
                return REDIRECT
            case OpenBrowser():
                query = dict(parse_qsl(urlsplit(wish.url).query, strict_parsing=True))
                assert wish.state == query["state"]
                self.visited_queries.append(query)
                return self.make_redirect(query) | self.redirect
            case ShowCode():
                self.shown_codes.append(wish)
                return None
            case _:
                raise AssertionError(f"what is {wish!r}?")

    def _answer_http_call(self, call: HTTPRequest) -> FetchResponse:
        self.calls.append(call)
        found = self.replies_by_url.get(call.url, FetchResponse(404))
        if callable(found):
            found = found(call)
        return found if isinstance(found, FetchResponse) else json_answer(found)


def create_working_environment(**changes: Any) -> FlowEnvironment:
    """Create an environment in which everything works."""
    places: dict[str, Reply] = {
        RESOURCE_METADATA_URL: resource_metadata(),
        SERVER_METADATA_URL: server_metadata(),
        f"{ISSUER}/register": json_answer({"client_id": "registered"}, 201),
        f"{ISSUER}/token": {"access_token": "the-token", "token_type": "Bearer", "expires_in": 60},
    }
    return FlowEnvironment(places | changes)
