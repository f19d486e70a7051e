"""A token issuer without a network: keys, tokens, and a flow runner with canned responses."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from joserfc import jws, jwt
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from dovetail.oauth.flow import AcquireLock, FetchResponse, Flow, Now
from dovetail.protocol.interfaces.http_types import HTTPRequest
from dovetail.wire.codec import encode

ISSUER = "https://login.example"
RESOURCE = "https://mcp.example/mcp"
NOW = 1_800_000_000.0

LENIENT_REGISTRY = jws.JWSRegistry(algorithms=["ES256"], strict_check_header=False)
# Invalid payloads that anyone with a key can sign.
UNREADABLE = {
    "deep": b'{"a":' * 1200 + b"1" + b"}" * 1200,
    "surrogate": b'{"jti":"\\ud800","sub":"\\ud800"}',
    "twice": b'{"jti":"a","jti":"b"}',
    "broken": b'{"jti":"\xff"}',
    "number": b'{"iat":NaN}',
    "list": b"[1]",
    "nothing": b"",
}

AnswerHttpCall = Callable[[HTTPRequest], FetchResponse]


class Issuer:
    """Keys by name, the tokens they sign, and the metadata documents."""

    def __init__(self, url: str = ISSUER) -> None:
        self.url = url
        self.keys: dict[str, Any] = {}
        self.calls: list[str] = []
        self.down = False
        self.add_key("one")

    def add_key(self, name: str, kind: str = "EC") -> None:
        made = {
            "EC": lambda: ECKey.generate_key("P-256"),
            "RSA": lambda: RSAKey.generate_key(2048),
            "OKP": lambda: OKPKey.generate_key("Ed25519"),
        }
        self.keys[name] = made[kind]()

    def jwks(self) -> dict[str, Any]:
        return {"keys": [{**key.as_dict(private=False), "kid": name} for name, key in self.keys.items()]}

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Return valid claims with these changes. None removes a claim."""
        good = {
            "iss": self.url, "sub": "ada", "aud": RESOURCE, "exp": int(NOW) + 300, "iat": int(NOW) - 5,
            "client_id": "editor", "scope": "files:read",
        }  # fmt: skip
        return {name: value for name, value in (good | changes).items() if value is not None}

    def token(self, by: str = "one", *, alg: str = "ES256", typ: str | None = "at+jwt", **changes: Any) -> str:
        header = {"alg": alg, "kid": by} | ({} if typ is None else {"typ": typ})
        return jwt.encode(header, self.claims(**changes), self.keys[by], algorithms=[alg])

    def sign_payload(self, header: dict[str, Any], payload: bytes, by: str = "one") -> str:
        """Sign any bytes with a valid signature."""
        return jws.serialize_compact(
            header, payload, self.keys[by], algorithms=[header["alg"]], registry=LENIENT_REGISTRY
        )

    def __call__(self, call: HTTPRequest) -> FetchResponse:
        """Answer an HTTP request to this issuer."""
        self.calls.append(call.url)
        if self.down:
            return FetchResponse(0)
        documents: dict[str, Any] = {
            self.url + "/.well-known/oauth-authorization-server": {"issuer": self.url, "jwks_uri": self.url + "/jwks"},
            self.url + "/jwks": self.jwks(),
        }
        found = documents.get(call.url)
        return FetchResponse(404) if found is None else FetchResponse(200, {}, encode(found))


def sign_with_secret(secret: str | bytes, claims: Mapping[str, Any], **header: Any) -> str:
    """Return a token signed with a shared secret."""
    key = OctKey.import_key(secret)
    return jwt.encode({"alg": "HS256", "typ": "at+jwt", **header}, dict(claims), key, algorithms=["HS256"])


def run_flow(flow: Flow[Any], web: AnswerHttpCall = lambda _: FetchResponse(0), now: float = NOW) -> Any:
    """Run a flow to its end, at a fixed time."""
    answer: Any = None
    while True:
        try:
            wish = flow.send(answer)
        except StopIteration as done:
            return done.value
        match wish:
            case HTTPRequest():
                answer = web(wish)
            case Now():
                answer = now
            case AcquireLock():
                answer = None
            case _:
                raise AssertionError(wish)


def current_claims(**changes: Any) -> dict[str, Any]:
    """Return claims for tokens that a running server verifies."""
    now = int(time.time())
    return {"exp": now + 300, "iat": now - 5} | changes
