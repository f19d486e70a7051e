"""Logins without a browser here: a program's own credentials, a company's identity provider, a workload, a device."""

from typing import Any, Final
from urllib.parse import urlsplit

from dovetail.auth.challenge import Challenge
from dovetail.auth.code_flow import choose_scopes, discover, proof_key
from dovetail.auth.documents import AuthorizationServer, origin, secure
from dovetail.auth.flow import Flow, Now, Pause, ShowCode, failure, post_form
from dovetail.auth.login import Login, Registered, Token
from dovetail.auth.registration import check_issuer, choose_method, identify
from dovetail.auth.settings import ClientCredentials, DeviceLogin, EnterpriseLogin, WorkloadIdentity, signer_of
from dovetail.auth.tokens import ask_token, issued, prove, request_token, seconds
from dovetail.errors import LoginFailed, clip
from dovetail.protocol.http import LOOPBACK

JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_DEVICE: Final = "urn:ietf:params:oauth:grant-type:device_code"
_ID_TOKEN: Final = "urn:ietf:params:oauth:token-type:id_token"
_ID_JAG: Final = "urn:ietf:params:oauth:token-type:id-jag"


def by_credentials(
    server_url: str, challenge: Challenge, settings: ClientCredentials, known: Login | None
) -> Flow[Login]:
    """As a program, by its secret or its private key. spec: extensions/oauth-client-credentials"""
    document, server = yield from discover(server_url, challenge, known, settings.issuer)
    check_issuer(server, settings.issuer, _earlier(known))
    if settings.client_secret is not None:
        _check_named(server, server_url, settings.issuer, "client_secret=")
    scopes = choose_scopes(challenge, document, server, settings, known)
    resource = document.resource if document is not None else server_url
    method = "private_key_jwt" if settings.private_key else choose_method(server, True, settings.token_auth_method)
    client = _client(server, settings.client_id, settings.client_secret, method)
    fields = {"grant_type": "client_credentials", "resource": resource} | _scope(scopes)
    key = proof_key(settings.dpop, challenge, document, known)
    token = yield from request_token(server, client, fields, key=key, signer=signer_of(settings))
    return Login(resource=resource, server=server, client=client, token=token, scopes=scopes or [], key=key)


def by_enterprise(
    server_url: str, challenge: Challenge, settings: EnterpriseLogin, known: Login | None, id_token: str
) -> Flow[Login]:
    """The identity provider's ID token becomes a grant for the authorization server. spec: SEP-990"""
    document, server = yield from discover(server_url, challenge, known, settings.issuer)
    check_issuer(server, settings.issuer, _earlier(known))
    scopes = choose_scopes(challenge, document, server, settings, known)
    resource = document.resource if document is not None else server_url
    form = {
        "grant_type": _EXCHANGE,
        "requested_token_type": _ID_JAG,
        "audience": server.issuer,
        "resource": resource,
        "subject_token": id_token,
        "subject_token_type": _ID_TOKEN,
        "client_id": settings.idp_client_id,
    } | _scope(scopes)
    if settings.idp_client_secret is not None:
        form["client_secret"] = settings.idp_client_secret
    answer = yield from post_form(settings.idp_token_endpoint, form)
    said = answer.json() or {}
    grant = said.get("access_token")
    if answer.status != 200 or not isinstance(grant, str):
        raise failure("identity provider", answer)
    if said.get("issued_token_type") != _ID_JAG:
        raise LoginFailed("the identity provider issued another kind of token than was asked for")
    method = choose_method(server, settings.client_secret is not None)
    client = _client(server, settings.client_id, settings.client_secret, method)
    fields = {"grant_type": JWT_BEARER, "assertion": grant, "resource": resource} | _scope(scopes)
    key = proof_key(settings.dpop, challenge, document, known)
    token = yield from request_token(server, client, fields, key=key)
    return Login(resource=resource, server=server, client=client, token=token, scopes=scopes or [], key=key)


def by_workload(
    server_url: str, challenge: Challenge, settings: WorkloadIdentity, known: Login | None, assertion: str
) -> Flow[Login]:
    """The platform's token is the grant. A refusal is final: another grant would be another identity."""
    document, server = yield from discover(server_url, challenge, known, settings.issuer)
    check_issuer(server, settings.issuer, _earlier(known))
    _check_named(server, server_url, settings.issuer, "assertion=")
    scopes = choose_scopes(challenge, document, server, settings, known)
    resource = document.resource if document is not None else server_url
    client = _client(server, settings.client_id or "", None, "none")
    fields = {"grant_type": JWT_BEARER, "assertion": assertion, "resource": resource} | _scope(scopes)
    key = proof_key(settings.dpop, challenge, document, known)
    token = yield from request_token(server, client, fields, key=key)
    return Login(resource=resource, server=server, client=client, token=token, scopes=scopes or [], key=key)


def by_device(server_url: str, challenge: Challenge, settings: DeviceLogin, known: Login | None) -> Flow[Login]:
    """A code the user enters elsewhere. RFC 8628"""
    document, server = yield from discover(server_url, challenge, known, settings.issuer)
    endpoint, ending = server.device_authorization_endpoint, server.token_endpoint
    if endpoint is None or ending is None or not (secure(endpoint) and secure(ending)):
        raise LoginFailed("the authorization server does not offer logins on another device")
    scopes = choose_scopes(challenge, document, server, settings, known)
    client = yield from identify(server, settings, _earlier(known), "http://127.0.0.1/", scopes or (), _DEVICE)
    resource = document.resource if document is not None else server_url
    form, headers = prove(client, {"resource": resource} | _scope(scopes))
    answer = yield from post_form(endpoint, form | {"client_id": client.client_id}, headers)
    said = answer.json() or {}
    if answer.status != 200 or not isinstance(said.get("device_code"), str):
        raise failure("device login", answer)
    complete = said.get("verification_uri_complete")
    yield ShowCode(
        str(said.get("verification_uri")),
        clip(str(said.get("user_code"))),
        complete if isinstance(complete, str) else None,
    )
    fields = {"grant_type": _DEVICE, "device_code": said["device_code"], "resource": resource}
    key = proof_key(settings.dpop, challenge, document, known)
    token = yield from _poll(ending, client, fields, said, settings.timeout, key)
    return Login(resource=resource, server=server, client=client, token=token, scopes=scopes or [], key=key)


def _poll(
    endpoint: str,
    client: Registered,
    fields: dict[str, str],
    said: dict[str, Any],
    patience: float,
    key: dict[str, Any] | None,
) -> Flow[Token]:
    interval = max(1.0, min(seconds(said.get("interval")) or 5.0, 60.0))
    lifetime = seconds(said.get("expires_in")) or patience
    nonce: str | None = None
    begun: float = yield Now()
    while True:
        yield Pause(interval)
        now: float = yield Now()
        if now - begun > min(patience, lifetime):
            raise LoginFailed("nobody entered the code in time")
        form, headers = prove(client, fields)
        answer, nonce = yield from ask_token(endpoint, form, headers, key, nonce)
        if answer.status == 200:
            return issued(answer, now, key)
        error = failure("device login", answer)
        if error.reason == "slow_down":
            interval += 5.0
        elif answer.status == 0:
            interval = min(interval * 2, 60.0)  # RFC 8628, section 3.5: ask less often what does not answer
        elif error.reason != "authorization_pending":
            raise error


def _check_named(server: AuthorizationServer, server_url: str, wanted: str | None, what: str) -> None:
    """What can be used by whoever sees it goes to an issuer the user named, not to one of the server's choice."""
    ours, theirs = urlsplit(server_url), urlsplit(server.issuer)
    here = ours.hostname in LOOPBACK and theirs.hostname in LOOPBACK
    if wanted is None and not here and origin(ours) != origin(theirs):
        raise LoginFailed(f"the server names {clip(server.issuer)}, which would be shown what {what} holds").at(
            hint=f"if that is who it is for, say so: issuer={clip(server.issuer)!r}"
        )


def _earlier(known: Login | None) -> Registered | None:
    return known.client if known is not None else None


def _client(server: AuthorizationServer, client_id: str, secret: str | None, method: str) -> Registered:
    return Registered(issuer=server.issuer, client_id=client_id, client_secret=secret, method=method, given=True)


def _scope(scopes: list[str] | None) -> dict[str, str]:
    return {"scope": " ".join(scopes)} if scopes else {}
