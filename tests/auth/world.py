"""A world made of values for flows to run in: documents by URL, a user who agrees, a clock."""

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from dovetail.auth.flow import Flow, HttpAnswer, HttpCall, Now, Pause, RedirectUri, ShowCode, Visit

SERVER = "https://mcp.example.com/mcp"
ISSUER = "https://login.example.com"
PRM = "https://mcp.example.com/.well-known/oauth-protected-resource/mcp"
ASM = "https://login.example.com/.well-known/oauth-authorization-server"
REDIRECT = "http://127.0.0.1:5000/callback"

Given = HttpAnswer | Mapping[str, Any] | Callable[[HttpCall], Any]


def answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpAnswer:
    return HttpAnswer(status, headers or {}, json.dumps(body).encode())


def resource(**changes: Any) -> dict[str, Any]:
    return {"resource": SERVER, "authorization_servers": [ISSUER]} | changes


def server(issuer: str = ISSUER, **changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "issuer": issuer,
        "authorization_endpoint": f"{issuer}/authorize",
        "token_endpoint": f"{issuer}/token",
        "registration_endpoint": f"{issuer}/register",
        "code_challenge_methods_supported": ["S256"],
    }
    return {name: value for name, value in (document | changes).items() if value is not None}


def form(call: HttpCall) -> dict[str, str]:
    return dict(parse_qsl(call.body.decode(), strict_parsing=True))


class World:
    """What answers a flow's wishes, and what it was asked."""

    def __init__(self, places: Mapping[str, Given] | None = None, *, now: float = 1000.0) -> None:
        self.places: dict[str, Given] = dict(places or {})
        self.now = now
        self.calls: list[HttpCall] = []
        self.visited: list[dict[str, str]] = []
        self.shown: list[ShowCode] = []
        self.paused: list[float] = []
        self.known: list[list[str]] = []
        self.redirect: dict[str, str] = {"code": "the-code"}
        self.came_back: Callable[[dict[str, str]], dict[str, str]] = lambda query: {"state": query["state"]}

    @property
    def urls(self) -> list[str]:
        return [call.url for call in self.calls]

    def sent_to(self, url: str) -> list[HttpCall]:
        return [call for call in self.calls if call.url == url]

    def run(self, flow: Flow[Any]) -> Any:
        """What a flow comes to in this world."""
        given: Any = None
        while True:
            try:
                wish = flow.send(given)
            except StopIteration as done:
                return done.value
            given = self._grant(wish)

    def _grant(self, wish: Any) -> Any:
        match wish:
            case HttpCall():
                return self._call(wish)
            case Now():
                return self.now
            case Pause():
                self.paused.append(wish.seconds)
                self.now += wish.seconds
                return None
            case RedirectUri():
                self.known.append(list(wish.known))
                return REDIRECT
            case Visit():
                query = dict(parse_qsl(urlsplit(wish.url).query, strict_parsing=True))
                assert wish.state == query["state"]
                self.visited.append(query)
                return self.came_back(query) | self.redirect
            case ShowCode():
                self.shown.append(wish)
                return None
            case _:
                raise AssertionError(f"what is {wish!r}?")

    def _call(self, call: HttpCall) -> HttpAnswer:
        self.calls.append(call)
        found = self.places.get(call.url, HttpAnswer(404))
        if callable(found):
            found = found(call)
        return found if isinstance(found, HttpAnswer) else answer(found)


def guarded(**changes: Any) -> World:
    """A world in which everything goes well."""
    places: dict[str, Given] = {
        PRM: resource(),
        ASM: server(),
        f"{ISSUER}/register": answer({"client_id": "registered"}, 201),
        f"{ISSUER}/token": {"access_token": "the-token", "token_type": "Bearer", "expires_in": 60},
    }
    return World(places | changes)
