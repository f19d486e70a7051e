"""Tokens with every possible flaw, at every entry point of a running server, are refused.

If the issuer cannot be reached, no token is accepted.
"""

import base64
import hashlib
import hmac
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from harness import record_measurement

from dovetail import Context, Server
from dovetail.auth import Guard, IntrospectionVerifier, JWTVerifier
from dovetail.transports.http_client.http_client import HTTPClient
from support.fake_issuer import Issuer
from support.fake_service import LATEST_HANDSHAKE, initialize, mirror_headers, request, stateless_request
from support.live_server import serve_app

WELL_KNOWN = "/.well-known/oauth-protected-resource"


class World:
    """An issuer that is served, a server that trusts it, and whoever knocks."""

    def __init__(self, url: str, issuer: Issuer, other: Issuer, fetcher: HTTPClient) -> None:
        self.url, self.issuer, self.other, self.fetcher = url, issuer, other, fetcher
        self.resource = url + "/mcp"

    def claims(self, **changes: Any) -> dict[str, Any]:
        now = int(time.time())
        return {"iss": self.issuer.url, "aud": self.resource, "exp": now + 300, "iat": now - 5} | changes

    def good(self, **changes: Any) -> str:
        return self.issuer.token(**self.claims(**changes))

    async def knock(self, method: str, path: str, headers: dict[str, str], body: Any = None) -> int:
        given = {"accept": "application/json, text/event-stream", "content-type": "application/json"} | headers
        raw = b"" if body is None else json.dumps(body).encode()
        pairs = [(name.encode(), value.encode("latin-1")) for name, value in given.items()]
        reply = await self.fetcher.fetch(method, self.url + path, pairs, raw)
        status = reply.status
        if "event-stream" in reply.headers.get(b"content-type", b"").decode():
            await reply.close()
        else:
            await reply.read()
        return status


@pytest.fixture
async def world() -> AsyncIterator[World]:
    issuer, other = Issuer(), Issuer("https://other.example")
    issuer.add_key("rsa", "RSA")

    async def web(scope: Any, receive: Any, send: Any) -> None:
        documents = {
            "/.well-known/oauth-authorization-server": {"issuer": issuer.url, "jwks_uri": issuer.url + "/jwks"},
            "/jwks": issuer.jwks(),
            "/introspect": {"active": False},
        }
        found = None if issuer.down else documents.get(scope["path"])
        body = json.dumps(found).encode()
        head = {"type": "http.response.start", "status": 500 if found is None else 200}
        await send(head | {"headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    def make(url: str) -> Any:
        asking = IntrospectionVerifier(
            introspection_endpoint=issuer.url + "/introspect", client_id="a", client_secret="b"
        )
        app = Server("x", auth=Guard(JWTVerifier(issuer=issuer.url), asking))

        @app.tool
        def who(ctx: Context) -> str:
            return str(ctx.principal)

        return app.asgi()

    async with serve_app(lambda _: web) as place:
        issuer.url = place
        async with serve_app(make) as url:
            fetcher = HTTPClient()
            yield World(url, issuer, other, fetcher)
            await fetcher.close()


def unsigned(claims: dict[str, Any], alg: str) -> str:
    return f"{_part({'alg': alg, 'typ': 'JWT'})}.{_part(claims)}."


def by_public_key(world: World, claims: dict[str, Any]) -> list[str]:
    key = world.issuer.keys["rsa"]
    found: list[str] = []
    for secret in (key.as_pem(private=False), json.dumps(key.as_dict(private=False)).encode()):
        signed = f"{_part({'alg': 'HS256', 'typ': 'JWT', 'kid': 'rsa'})}.{_part(claims)}"
        digest = hmac.digest(secret, signed.encode(), hashlib.sha256)
        found.append(f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}")
    return found


def _part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def flawed(world: World) -> dict[str, str]:
    """A token for each thing that can be wrong with one."""
    now, good = int(time.time()), world.good
    mine = world.resource
    changes: dict[str, dict[str, Any]] = {
        "no audience": {"aud": None}, "another audience": {"aud": "https://other.example/mcp"},
        "the origin as audience": {"aud": world.url}, "a longer audience": {"aud": mine + "/x"},
        "an audience of objects": {"aud": [{"x": mine}]}, "an empty audience": {"aud": []},
        "the issuer as audience": {"aud": world.issuer.url},
        "another issuer": {"iss": "https://other.example"}, "no issuer": {"iss": None},
        "an issuer with a slash": {"iss": world.issuer.url + "/"}, "several issuers": {"iss": [world.issuer.url]},
        "expired": {"exp": now - 3600}, "no end": {"exp": None}, "an end in words": {"exp": str(now + 300)},
        "an end that is true": {"exp": True}, "an end before its time": {"exp": -1}, "not yet": {"nbf": now + 3600},
        "not yet, in words": {"nbf": "later"}, "made tomorrow": {"iat": now + 86400},
        "nobody": {"sub": None, "client_id": None}, "a subject that is a number": {"sub": 7},
        "bound to a key": {"cnf": {"jkt": "x"}}, "bound to a certificate": {"cnf": {"x5t#S256": "x"}},
    }  # fmt: skip
    tokens = {name: good(**change) for name, change in changes.items()}
    tokens |= {f"unsigned, {alg}": unsigned(world.claims(sub="ada"), alg) for alg in ("none", "None", "HS256", "ES256")}
    for number, token in enumerate(by_public_key(world, world.claims(sub="ada"))):
        tokens[f"signed with the public key, {number}"] = token
    for typ in ("dpop+jwt", "logout+jwt", "secevent+jwt"):
        tokens[f"of the type {typ}"] = world.issuer.token(typ=typ, **world.claims())
    tokens["signed by another"] = world.other.token(**world.claims())
    tokens["signed by another, under a name of the issuer's"] = world.other.token(by="one", **world.claims())
    head, body, signature = good().split(".")
    tokens["another body"] = f"{head}.{good(sub='root').split('.')[1]}.{signature}"
    tokens["another head"] = f"{_part({'alg': 'ES256', 'kid': 'rsa'})}.{body}.{signature}"
    tokens["no signature"] = f"{head}.{body}."
    tokens["half a signature"] = f"{head}.{body}.{signature[: len(signature) // 2]}"
    tokens["opaque"] = "opaque-and-unknown"
    return tokens


def doors(world: World, token: str) -> list[Callable[[], Any]]:
    """Every way in, of both eras and of the oldest transport."""
    sent = {"authorization": f"Bearer {token}"}
    message = stateless_request(name="who", arguments={})
    listen = stateless_request("subscriptions/listen", notifications={"toolsListChanged": True})
    session = {"mcp-session-id": "A" * 32, "mcp-protocol-version": LATEST_HANDSHAKE}
    return [
        lambda: world.knock("POST", "/mcp", sent | mirror_headers(message), message),
        lambda: world.knock("POST", "/mcp", sent | mirror_headers(listen), listen),
        lambda: world.knock("POST", "/mcp", sent, initialize(LATEST_HANDSHAKE)),
        lambda: world.knock("POST", "/mcp", sent | session, request(name="who")),
        lambda: world.knock("GET", "/mcp", sent | session),
        lambda: world.knock("DELETE", "/mcp", sent | session),
        lambda: world.knock("GET", "/sse", sent),
        lambda: world.knock("POST", "/messages?session_id=x", sent, request(name="who")),
        lambda: world.knock("POST", "/mcp/", sent | mirror_headers(message), message),
        lambda: world.knock("GET", "/other", sent),
    ]


async def test_no_flawed_token_is_let_through(world: World) -> None:
    message = stateless_request(name="who", arguments={})
    good = {"authorization": f"Bearer {world.good()}"}
    assert await world.knock("POST", "/mcp", good | mirror_headers(message), message) == 200
    tokens = flawed(world)
    tried, let_through = 0, list[str]()
    for name, token in tokens.items():
        for place, door in enumerate(doors(world, token)):
            tried += 1
            status = await door()
            if status != 401:
                let_through.append(f"{name}, door {place}: {status}")
    assert let_through == []
    record_measurement("flawed tokens", len(tokens), "")
    record_measurement("tried", tried, "")


async def test_every_route_asks(world: World) -> None:
    """The inventory: without credentials only the metadata is given out."""
    paths = ["/mcp", "/mcp/", "/sse", "/messages", "/", "/live", "/ready", "/admin", "/mcp/x", "//mcp", "/MCP"]
    for path, method in itertools.product(paths, ("GET", "POST", "PUT", "DELETE", "PATCH")):
        assert await world.knock(method, path, {}) == 401, (method, path)
    for path in (WELL_KNOWN, WELL_KNOWN + "/mcp"):
        assert await world.knock("GET", path, {}) == 200
        assert await world.knock("POST", path, {}) == 405


async def test_keys_that_turn_and_an_issuer_that_goes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, minutes = time.time, 0
    monkeypatch.setattr(time, "time", lambda: clock() + 60 * minutes)
    message = stateless_request(name="who", arguments={})

    async def with_token(token: str) -> int:
        """Send a request a minute later: an unknown key is looked up again."""
        nonlocal minutes
        minutes += 1
        return await world.knock(
            "POST", "/mcp", {"authorization": f"Bearer {token}"} | mirror_headers(message), message
        )

    assert await with_token(world.good()) == 200
    world.issuer.add_key("two")
    del world.issuer.keys["rsa"]
    assert await with_token(world.issuer.token("two", **world.claims())) == 200
    gone = world.issuer.keys.pop("one")
    assert await with_token(world.issuer.token("two", **world.claims(sub="b"))) == 200
    world.issuer.keys["three"] = gone
    world.issuer.down = True
    # A key nobody has seen, and nobody to ask: refused, though not for good.
    assert await with_token(world.issuer.token("three", **world.claims())) == 503
    assert await with_token(world.issuer.token("two", **world.claims(sub="c"))) == 200
    assert await with_token("opaque") == 503
    world.issuer.down = False
    assert await with_token(world.issuer.token("three", **world.claims())) == 200
