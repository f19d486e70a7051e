"""The token endpoint: how a client proves who it is there, and what a token response means."""

import re
from collections.abc import Mapping
from typing import Any, Final

from dovetail.auth import proofs
from dovetail.auth.documents import AuthorizationServer, secure
from dovetail.auth.flow import Flow, HttpAnswer, Now, basic, failure, post_form
from dovetail.auth.login import EARLY, Login, Registered, Token
from dovetail.auth.settings import Signer
from dovetail.errors import LoginFailed
from dovetail.wire.shape import replace

FORGOTTEN: Final = ("invalid_client", "unauthorized_client")  # what is said of a client nobody knows
_USABLE: Final = re.compile(r"[\x21-\x7e]+")
_LONGEST: Final = 10 * 365 * 86400.0  # what lives longer need not be watched


def request_token(
    server: AuthorizationServer,
    client: Registered,
    fields: Mapping[str, str],
    *,
    key: dict[str, Any] | None = None,
    signer: Signer | None = None,
) -> Flow[Token]:
    """A token for this grant; with a DPoP key, one bound to it. The signer proves who a client is that has a key."""
    endpoint = server.token_endpoint
    if endpoint is None or not secure(endpoint):
        raise LoginFailed("the authorization server names no token endpoint that is safe to use")
    form, headers = yield from _proved(server, client, fields, signer)
    answer, _ = yield from ask_token(endpoint, form, headers, key)
    if answer.status != 200:
        raise failure("token", answer)
    now: float = yield Now()
    return issued(answer, now, key)


def ask_token(
    endpoint: str,
    form: Mapping[str, str],
    headers: dict[str, str],
    key: dict[str, Any] | None,
    nonce: str | None = None,
) -> Flow[tuple[HttpAnswer, str | None]]:
    """What the endpoint answers, and the nonce its next proof repeats; asked once more where it wants another."""
    answer = yield from _send(endpoint, form, headers, key, nonce)
    wanted = answer.headers.get("dpop-nonce")
    if key is not None and wanted and (answer.json() or {}).get("error") == "use_dpop_nonce":
        answer = yield from _send(endpoint, form, headers, key, wanted)
    return answer, answer.headers.get("dpop-nonce") or wanted or nonce


def issued(answer: HttpAnswer, now: float, key: dict[str, Any] | None) -> Token:
    """The token in a response, bound to the key if there is one."""
    token = read_token(answer, now)
    # RFC 9449, section 5: a token that is not bound to the key was not issued as it was asked for.
    if (token.token_type == "DPoP") != (key is not None):
        raise LoginFailed(f"the token is of type {token.token_type}, which is not what was asked for")
    return token


def _proved(
    server: AuthorizationServer, client: Registered, fields: Mapping[str, str], signer: Signer | None
) -> Flow[tuple[dict[str, str], dict[str, str]]]:
    if client.method != "private_key_jwt" or signer is None:
        return prove(client, fields)
    now: float = yield Now()
    return prove(client, fields, proofs.client_assertion(signer, client.client_id, server.issuer, now))


def _send(
    endpoint: str, form: Mapping[str, str], headers: dict[str, str], key: dict[str, Any] | None, nonce: str | None
) -> Flow[HttpAnswer]:
    if key is None:
        return (yield from post_form(endpoint, form, headers))
    now: float = yield Now()
    proof = proofs.dpop(key, "POST", endpoint, now, nonce=nonce)
    return (yield from post_form(endpoint, form, headers | {"dpop": proof}))


def prove(
    client: Registered, fields: Mapping[str, str], assertion: str | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """The form and headers of a request to the token endpoint, by the client's way of proving who it is."""
    form = dict(fields)
    match client.method:
        case "client_secret_basic" if client.client_secret is not None:
            # Servers of the official SDK look the client up by the form, however it proves who it is.
            form["client_id"] = client.client_id
            return form, {"authorization": basic(client.client_id, client.client_secret)}
        case "client_secret_post" if client.client_secret is not None:
            return form | {"client_id": client.client_id, "client_secret": client.client_secret}, {}
        case "private_key_jwt" if assertion is not None:
            kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
            return form | {
                "client_id": client.client_id,
                "client_assertion_type": kind,
                "client_assertion": assertion,
            }, {}
        case _ if client.client_id:
            return form | {"client_id": client.client_id}, {}
        case _:
            return form, {}


def read_token(answer: HttpAnswer, now: float) -> Token:
    """The token in a response; LoginFailed if there is none that can be used."""
    said = answer.json() or {}
    access, kind = said.get("access_token"), said.get("token_type", "Bearer")
    if not isinstance(access, str) or not _USABLE.fullmatch(access):
        raise LoginFailed("the token response holds no access token that can be used")
    if not isinstance(kind, str) or kind.lower() not in ("bearer", "dpop"):
        raise LoginFailed("the token is of a type this client does not know")
    lifetime, refresh, scope = seconds(said.get("expires_in")), said.get("refresh_token"), said.get("scope")
    return Token(
        access_token=access,
        token_type="DPoP" if kind.lower() == "dpop" else "Bearer",
        expires_at=None if lifetime is None else now + lifetime,
        refresh_token=refresh if isinstance(refresh, str) else None,
        scope=scope if isinstance(scope, str) else None,
        early=EARLY if lifetime is None else min(EARLY, lifetime / 2),
    )


def seconds(said: Any) -> float | None:
    """A time span in a response, within reason; some servers write it as a string."""
    if isinstance(said, str) and said.isascii() and said.isdigit():
        said = int(said[:12])
    if not isinstance(said, int | float) or said != said:
        return None
    return float(max(0.0, min(said, _LONGEST)))


def refresh(login: Login, signer: Signer | None = None) -> Flow[Login]:
    """The login with a fresh token, or without any if the server wants a new login.

    A rotated refresh token replaces the old. A client the server no longer knows is not to be used again.
    """
    token = login.token
    if token is None or token.refresh_token is None:
        return login
    fields = {"grant_type": "refresh_token", "refresh_token": token.refresh_token, "resource": login.resource}
    try:
        fresh = yield from request_token(login.server, login.client, fields, key=login.key, signer=signer)
    except LoginFailed as exc:
        if exc.reason in FORGOTTEN:
            return replace(login, token=None, client=replace(login.client, refused=True))
        if exc.reason == "invalid_grant":
            return replace(login, token=None)
        raise
    kept = fresh.refresh_token or token.refresh_token
    return replace(login, token=replace(fresh, refresh_token=kept, scope=fresh.scope or token.scope))


def revoke(login: Login, signer: Signer | None = None) -> Flow[bool]:
    """Tell the authorization server that the token is not used any more; whether it was told. RFC 7009."""
    token, endpoint = login.token, login.server.revocation_endpoint
    if token is None or endpoint is None or not secure(endpoint):
        return False
    # The refresh token first: with it, what came of it ends too.
    kind = "access_token" if token.refresh_token is None else "refresh_token"
    fields = {"token": token.refresh_token or token.access_token, "token_type_hint": kind}
    form, headers = yield from _proved(login.server, login.client, fields, signer)
    answer = yield from post_form(endpoint, form, headers)
    return answer.status == 200
