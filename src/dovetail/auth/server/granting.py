"""Granting: the endpoints programs call about tokens: get them, end them, ask about them.

Whoever asks proves first who it is, and may fail at that only so often.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

from dovetail.auth import proofs
from dovetail.auth.claims import Rejected, Unavailable
from dovetail.auth.flow import Flow, Now, StillUser
from dovetail.auth.possession import Possession
from dovetail.auth.server import clients
from dovetail.auth.server.clients import acts
from dovetail.auth.server.issuing import Issuing
from dovetail.auth.server.proving import Proving, Refused, basic, claimed, refused
from dovetail.auth.server.settings import Settings
from dovetail.auth.server.store import Client, Grant, Store, pack
from dovetail.auth.server.throttle import Throttle
from dovetail.auth.server.web import Request, Response, document, failure, same, slow
from dovetail.wire.shape import replace

_VERIFIER: Final = re.compile(r"[A-Za-z0-9\-._~]{43,128}")
_LONGEST_NAME: Final = 4096


class Granting:
    """The tokens of one authorization server, as clients and resource servers ask for and about them."""

    def __init__(self, settings: Settings, store: Store, issuing: Issuing, proving: Proving) -> None:
        self._settings = settings
        self._store = store
        self._issuing = issuing
        self._proving = proving
        self._known = frozenset(one.client_id for one in settings.clients)
        self._possession = Possession()
        self._failures = Throttle(settings.failures, 60.0)  # of one client, from one address
        self._issued = Throttle(settings.issues, 60.0)

    def token(self, request: Request) -> Flow[Response]:
        """A token response, or why there is none. OAuth 2.1, section 3.2"""
        now: float = yield Now()
        fields = request.fields
        if fields is None:
            return failure("invalid_request", "the body must be a form without repeated fields")
        here = _here(request, fields)
        client = yield from self._authenticated(request, fields, now)
        if self._issued.full(here, now):
            return slow(self._issued.wait)
        try:
            said = yield from self._granted(client, request, fields, now)
        except Refused:
            self._failures.count(here, now)
            raise
        self._issued.count(here, now)
        return document(said)

    def _authenticated(self, request: Request, fields: Mapping[str, str], now: float) -> Flow[Client]:
        """The client that asks. Counted as a failure until it has proved who it is: many may try at once."""
        here = _here(request, fields)
        if self._failures.full(here, now):
            raise Refused(slow(self._failures.wait))
        self._failures.count(here, now)
        client = yield from self._proving.client(request, fields, now)
        self._failures.forgive(here)
        return client

    def _granted(self, client: Client, request: Request, fields: Mapping[str, str], now: float) -> Flow[dict[str, Any]]:
        jkt = self._proved(request, now)
        match fields.get("grant_type"):
            case "authorization_code":
                return self._by_code(client, fields, jkt, now)
            case "refresh_token":
                return (yield from self._by_refresh(client, fields, jkt, now))
            case "client_credentials" if acts(client):
                return self._by_itself(client, fields, jkt, now)
            case "client_credentials":
                raise refused("unauthorized_client", "only a program that is known here gets tokens for itself")
            case _:
                raise refused("unsupported_grant_type", f"grant_type must be one of {', '.join(clients.GRANTS)}")

    def _proved(self, request: Request, now: float) -> str | None:
        """The key the tokens are to be bound to, if the client shows one. RFC 9449, section 5"""
        proof = request.headers.get("dpop")
        if proof is None:
            return None
        try:
            return self._possession.check(proof, method="POST", url=self._settings.at("/token"), token=None, now=now)
        except (Rejected, Unavailable) as exc:
            raise refused("invalid_dpop_proof", str(exc)) from None

    def _by_code(self, client: Client, fields: Mapping[str, str], jkt: str | None, now: float) -> dict[str, Any]:
        code = self._issuing.redeem(fields.get("code", ""), now)
        if code is None or code.grant.client_id != client.client_id:
            raise refused("invalid_grant", "the code is not good, or not any more")
        verifier = fields.get("code_verifier", "")
        if not _VERIFIER.fullmatch(verifier) or not same(proofs.digest(verifier), code.challenge):
            raise refused("invalid_grant", "the code_verifier does not belong to the code")
        if fields.get("redirect_uri", code.redirect_uri) != code.redirect_uri:
            raise refused("invalid_grant", "the redirect_uri is not the one of the code")
        self._check_resource(fields, code.grant.resource)
        grant = replace(code.grant, jkt=jkt)
        self._use(client, now)
        refreshable = "refresh_token" in client.grant_types
        return self._issuing.tokens(grant, now, refreshable=refreshable, code=fields["code"])

    def _by_refresh(
        self, client: Client, fields: Mapping[str, str], jkt: str | None, now: float
    ) -> Flow[dict[str, Any]]:
        text = fields.get("refresh_token", "")
        known = self._issuing.known(text, now)
        if known is not None and known.client_id != client.client_id:
            raise refused("invalid_grant", "the refresh token is another client's")
        if known is not None and known.jkt is not None and known.jkt != jkt:
            raise refused("invalid_grant", "the refresh token is bound to a key, of which there is no proof")
        if known is not None:
            self._check_resource(fields, known.resource)
            wanted = tuple(dict.fromkeys(fields["scope"].split())) if "scope" in fields else None
            if wanted is not None and not set(wanted) <= set(known.scopes):
                raise refused("invalid_scope", "more is asked for than was granted")
        else:
            wanted = None
        if known is not None and known.subject and (yield StillUser(known.subject)) is not True:
            self._issuing.end(known.family, now)
        said = self._issuing.renew(text, now, wanted)
        if said is None:
            raise refused("invalid_grant", "the refresh token is not good, or not any more")
        self._use(client, now)
        return said

    def _by_itself(self, client: Client, fields: Mapping[str, str], jkt: str | None, now: float) -> dict[str, Any]:
        """Tokens of a program that acts for no user; of what it asks for, what it may have. RFC 6749, section 4.4"""
        resource = self._settings.resource_of(fields)
        if resource is None:
            raise refused("invalid_target", "resource must name a server this one issues tokens for")
        wanted = fields["scope"].split() if "scope" in fields else client.scopes
        # Without a subject: a program's id may be the name of a user. RFC 9068, section 5
        grant = Grant(
            family=secrets.token_urlsafe(16),
            client_id=client.client_id,
            subject="",
            resource=resource,
            scopes=tuple(one for one in dict.fromkeys(wanted) if one in client.scopes),
            jkt=jkt,
        )
        return self._issuing.tokens(grant, now, refreshable=False)

    def _check_resource(self, fields: Mapping[str, str], granted: str) -> None:
        if fields.get("resource", granted).rstrip("/") != granted.rstrip("/"):
            raise refused("invalid_target", "the resource is not the one that was granted")

    def _use(self, client: Client, now: float) -> None:
        if client.client_id not in self._known and not client.by_document:
            self._store.put("client", client.client_id, pack(client), now + clients.UNUSED, now)

    def revoke(self, request: Request) -> Flow[Response]:
        """RFC 7009: whatever is told, the answer is the same."""
        now: float = yield Now()
        fields = request.fields or {}
        client = yield from self._authenticated(request, fields, now)
        token = fields.get("token", "")
        found = self._issuing.known(token, now)
        claims = None if found is not None else self._issuing.claims(token, now)
        if found is not None and found.client_id == client.client_id:
            self._issuing.end(found.family, now)
        elif claims is not None and claims.get("client_id") == client.client_id:
            self._issuing.end(str(claims["sid"]), now)
        return Response(200, (("cache-control", "no-store"),))

    def introspect(self, request: Request) -> Flow[Response]:
        """RFC 7662, for the resource servers that were named."""
        now: float = yield Now()
        name, secret = basic(request) or ("", "")
        here = f"asker {name[:_LONGEST_NAME]} {request.address}"
        if self._failures.full(here, now):
            return slow(self._failures.wait)
        known = self._settings.askers.get(name)
        if known is None or not same(secret, known):
            self._failures.count(here, now)
            return failure("invalid_client", "who asks is not known", 401).having(("www-authenticate", "Basic"))
        claims = self._issuing.claims((request.fields or {}).get("token", ""), now)
        return document({"active": False} if claims is None else claims | {"active": True})


def _here(request: Request, fields: Mapping[str, str]) -> str:
    return f"client {(claimed(request, fields) or '')[:_LONGEST_NAME]} {request.address}"
