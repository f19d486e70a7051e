"""An authorization server as an ASGI application.

The authorization server is for development and small installations. It can run next to the server that it protects, or
alone.
"""

import asyncio
import inspect
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from dovetail.auth.flow_runner import FlowRunner
from dovetail.auth.safe_fetch import ServerFetcher
from dovetail.auth.shared_store import SharedStateStore
from dovetail.auth.sqlite_store import SQLiteStore
from dovetail.error_context import clip
from dovetail.log import log
from dovetail.oauth.authorization_server.authorization_endpoint import METADATA_PATH, AuthorizationEndpoints
from dovetail.oauth.authorization_server.clients import RegisteredClient, get_client_record
from dovetail.oauth.authorization_server.identity_provider import (
    UpstreamProvider,
    get_identity_provider,
)
from dovetail.oauth.authorization_server.responses import Request, error_response
from dovetail.oauth.authorization_server.settings import AuthorizationServerSettings
from dovetail.oauth.authorization_server.store import AuthorizationStore, InMemoryStore, StoreUnavailable
from dovetail.oauth.authorization_server.token_issuer import LocalTokenVerifier, OAuthTokenIssuer, WrongSecretKey
from dovetail.oauth.flow import CheckUserActive, FetchUntrusted, VerifyPassword
from dovetail.oauth.guard.guard import validate_scopes
from dovetail.oauth.guard.verifiers import as_tuple
from dovetail.oauth.login.login_settings import split_scopes
from dovetail.oauth.metadata import parse_web_url
from dovetail.protocol.http_checks import LOOPBACK, HostFilter, Refusal, collect_headers
from dovetail.protocol.interfaces.http_types import ASGIApp, ASGIMessage, HTTPRequest, HTTPResponse
from dovetail.protocol.interfaces.shared_state import SharedState, SharedStateSource
from dovetail.protocol.principal import Principal
from dovetail.protocol.sealer import Sealer

Users = Mapping[str, str] | Callable[[str, str], str | Awaitable[str | None] | None]

_MAX_BODY_BYTES: Final = 64 * 1024
_BODY_TIMEOUT_S: Final = 10.0
# Client documents may be long, because they can contain keys with certificates.
_MAX_CLIENT_DOCUMENT_BYTES: Final = 32 * 1024
_DEVELOPMENT_USER: Final = "developer"
_PUBLIC_REGISTRATIONS_PER_HOUR: Final = 10  # Maximum registrations from one address.
_LOCAL_REGISTRATIONS_PER_HOUR: Final = 100


class AuthorizationServer:
    """An OAuth authorization server, as an ASGI application.

    Args:
        issuer: The URL of the authorization server, exactly as clients use it. It must be https, or http on this
            machine.
        users: A dict of names and passwords, or a function that takes both and returns the user's subject or None. The
            function may be async. Without `users` and `upstream`, everyone on this machine is the same development
            user.
        is_active_user: A function that takes a subject and is called whenever a token is renewed. It may be async.
            Return False to end the login. If `users` is a dict, the dict decides instead.
        upstream: A provider at which users log in instead.
        resources: URLs of the servers that accept the tokens. Defaults to all servers on the origin of the issuer.
        scopes_supported: Scopes that clients can request. Defaults to any scope.
        clients: Clients that you registered by hand. Other clients use their metadata document or register themselves.
        allow_registration: Whether clients can register themselves.
        max_registrations_per_hour: The maximum number of registrations from one address. Defaults to 10, or 100 if the
            issuer is on this machine. Behind a proxy, the limit applies to all clients together, unless the environment
            variable `FORWARDED_ALLOW_IPS` names the proxy.
        is_trusted_client: A function that takes a host name. Return False to refuse clients with a metadata document on
            that host.
        store: Path of a SQLite file for the workers of one machine, `Cluster("redis://...")` for workers on several
            machines, or an `AuthorizationStore`. Defaults to memory.
        secret_key: The key that encrypts the signing key and the tokens of `upstream`, at least 16 bytes. Required if
            `store` is a file or a cluster. All workers must have the same key.
        introspection_clients: A dict of client IDs and secrets of the resource servers that may introspect tokens.
        name: The name that users see on the pages. Defaults to the host of the issuer.
        access_token_ttl: Seconds for which an access token is valid.
        refresh_token_ttl: Seconds for which an unused refresh token is valid.
        login_ttl: Seconds after which a user must log in again, even if the token was renewed in the meantime.
        allowed_hosts: Host names that clients may use in addition to the host of the issuer.
    """

    def __init__(
        self,
        *,
        issuer: str,
        users: Users | None = None,
        is_active_user: Callable[[str], bool | Awaitable[bool]] | None = None,
        upstream: UpstreamProvider | None = None,
        resources: str | Sequence[str] = (),
        scopes_supported: str | Sequence[str] = (),
        clients: Sequence[RegisteredClient] = (),
        allow_registration: bool = True,
        max_registrations_per_hour: int | None = None,
        is_trusted_client: Callable[[str], bool] | None = None,
        store: str | Path | AuthorizationStore | SharedStateSource | SharedState | None = None,
        secret_key: str | bytes | None = None,
        introspection_clients: Mapping[str, str] | None = None,
        name: str | None = None,
        access_token_ttl: float = 900.0,
        refresh_token_ttl: float = 30 * 86400.0,
        login_ttl: float = 180 * 86400.0,
        allowed_hosts: Collection[str] = (),
    ) -> None:
        parts = urlsplit(issuer)
        is_local = parts.hostname in LOOPBACK
        _check_issuer(issuer, is_local=is_local)
        if max_registrations_per_hour is not None and max_registrations_per_hour < 0:
            raise ValueError(
                f"max_registrations_per_hour must be 0 or more, not {max_registrations_per_hour}. To turn off "
                "registration, pass allow_registration=False"
            )
        _check_users(users, is_active_user)
        _check_secrets("introspection_clients", "secret", introspection_clients or {})
        if users is not None and upstream is not None:
            raise ValueError(
                "pass users= or upstream=, not both. Users log in either at this server or at the upstream provider"
            )
        if users is None and upstream is None:
            if not is_local:
                raise ValueError("pass users= or upstream=. Logins are optional only for an issuer on this machine")
            log.warning(
                "authorization server %s: development mode, so every user who allows access is logged in as %r",
                issuer,
                _DEVELOPMENT_USER,
            )
        self._store = _open_store(store, issuer, secret_key)
        self._renewal_tasks: set[asyncio.Task[str | None]] = set()
        self._users = users
        self._is_active_user = is_active_user
        self._has_warned_of_proxy = False
        sealer = Sealer(() if secret_key is None else secret_key, purpose="authorization server")
        self._token_issuer = OAuthTokenIssuer(
            issuer,
            self._store,
            sealer,
            access_token_ttl=access_token_ttl,
            refresh_token_ttl=refresh_token_ttl,
            login_ttl=login_ttl,
        )
        settings = AuthorizationServerSettings(
            issuer=issuer,
            name=name or parts.netloc,
            resources=_check_resources(resources),
            scopes_supported=validate_scopes(split_scopes(scopes_supported)),
            clients=tuple(get_client_record(client) for client in clients),
            allow_registration=allow_registration,
            max_registrations_per_hour=(_LOCAL_REGISTRATIONS_PER_HOUR if is_local else _PUBLIC_REGISTRATIONS_PER_HOUR)
            if max_registrations_per_hour is None
            else max_registrations_per_hour,
            is_trusted_client=is_trusted_client,
            has_passwords=users is not None,
            development_user=_DEVELOPMENT_USER if users is None and upstream is None else None,
            introspection_clients=dict(introspection_clients or {}),
            warn=_create_warner(issuer),
        )
        identity_provider = None if upstream is None else get_identity_provider(upstream)
        self._endpoints = AuthorizationEndpoints(settings, self._store, self._token_issuer, identity_provider, sealer)
        self._issuer_path = parts.path.rstrip("/")
        self._host_filter = HostFilter(allowed_hosts, (), issuer)
        self._fetcher = ServerFetcher(max_untrusted_bytes=_MAX_CLIENT_DOCUMENT_BYTES)
        self._flow_runner = FlowRunner(
            {
                HTTPRequest: self._fetcher.fetch,
                FetchUntrusted: self._fetcher.fetch_untrusted,
                VerifyPassword: self._check_password,
                CheckUserActive: self._check_active,
            }
        )

    def verifier(self, audience: Sequence[str] = ()) -> LocalTokenVerifier:
        """Return a verifier for `Server(auth=...)` in the same process. It rejects revoked tokens immediately.

        Args:
            audience: The accepted audiences. Defaults to the URL of the server.
        """
        return LocalTokenVerifier(self._token_issuer, as_tuple(audience))

    async def upstream_token(self, principal: Principal | None) -> str | None:
        """Return the caller's token for the upstream provider. Renew the token first if needed.

        Use the token in the server to call the provider's API for the caller. Never send the token to a client.
        """
        if principal is None or principal.issuer != self._token_issuer.issuer:
            return None  # The caller logged in at a different authorization server.
        family = principal.claims.get("sid")
        if not isinstance(family, str):
            return None
        # A cancelled call must not stop the renewal, because the provider's new token would be lost.
        flow = self._endpoints.upstream_token(family, principal.subject)
        task = asyncio.get_running_loop().create_task(self._flow_runner.run(flow))
        self._renewal_tasks.add(task)
        task.add_done_callback(self._renewal_tasks.discard)
        return await asyncio.shield(task)

    async def revoke_user(self, subject: str) -> int:
        """End all logins of a user immediately. Return the number of logins that ended."""
        return await self._flow_runner.run(self._token_issuer.revoke_user(subject))

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Return an ASGI application that adds the endpoints of the authorization server to `app`.

        For example, `app` can be the result of `Server.asgi()`.
        """

        async def combined_app(scope: ASGIMessage, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan" and await self._refuse_wrong_key(receive, send):
                return
            is_ours = (
                scope["type"] == "http"
                and self._is_issuer_path(scope)
                and self._endpoints.has_route(self._relative_path(scope))
            )
            await (self if is_ours else app)(scope, receive, send)

        return combined_app

    async def __call__(self, scope: ASGIMessage, receive: Any, send: Any) -> None:
        """Handle an ASGI request."""
        if scope["type"] == "lifespan":
            if not await self._refuse_wrong_key(receive, send):
                await self._handle_lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            response = await self._handle_request(scope, receive)
        except Refusal as refusal:
            response = error_response("invalid_request", refusal.message, refusal.status)
        except Exception as exc:
            log.error(
                "authorization server: %s %s failed: %s",
                scope["method"],
                scope["path"][:64],
                type(exc).__name__,
                exc_info=exc,
            )
            response = error_response("server_error", "internal error, see the server's log", 500)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.items()]
        headers.append((b"content-length", b"%d" % len(response.body)))
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})

    async def _handle_request(self, scope: ASGIMessage, receive: Any) -> HTTPResponse:
        raw_headers = collect_headers(scope["headers"])
        server = scope.get("server")
        self._host_filter.check(
            {name: value for name, value in raw_headers.items() if name == b"host"}, server[0] if server else None
        )
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw_headers.items()}
        client = scope.get("client")
        if client and not self._has_warned_of_proxy and (forwarded := headers.get("x-forwarded-for")):
            self._warn_of_proxy(client[0], forwarded)
        request = Request(
            method="GET" if scope["method"] == "HEAD" else scope["method"],
            path=self._relative_path(scope),
            query=scope.get("query_string", b"").decode("latin-1"),
            headers=headers,
            body=await _read_body(receive),
            address=client[0] if client else "",
        )
        return await self._flow_runner.run(self._endpoints.handle(request))

    def _warn_of_proxy(self, address: str, forwarded: str) -> None:
        """Log once that the server ignores the client addresses that a proxy sends."""
        # For a trusted proxy, `address` is already the client address in the header.
        if address in map(str.strip, forwarded.split(",")):
            return
        self._has_warned_of_proxy = True
        log.warning(
            "authorization server %s: %s sent X-Forwarded-For, but FORWARDED_ALLOW_IPS does not name it. All clients "
            "behind it share its limits for registrations and wrong passwords. If it is your proxy, set "
            "FORWARDED_ALLOW_IPS=%s",
            self._token_issuer.issuer,
            address,
            address,
        )

    def _relative_path(self, scope: ASGIMessage) -> str:
        """Return the path of a request relative to the path of the issuer URL. RFC 8414, section 3.1

        The metadata is also available at the root of the origin.
        """
        path, root_path = "/" + scope["path"].strip("/"), (scope.get("root_path") or "").rstrip("/")
        if path == METADATA_PATH + self._issuer_path:
            return METADATA_PATH
        for prefix in (self._issuer_path, root_path):
            if prefix and path.startswith(prefix + "/"):
                return path.removeprefix(prefix)
        return path

    def _is_issuer_path(self, scope: ASGIMessage) -> bool:
        path = "/" + scope["path"].strip("/")
        root_path = (scope.get("root_path") or "").rstrip("/")
        return path == METADATA_PATH + self._issuer_path or path.startswith(
            (self._issuer_path + "/", root_path + self._issuer_path + "/")
        )

    async def _check_active(self, action: CheckUserActive) -> bool:
        if self._is_active_user is not None:
            return await _call_function(self._is_active_user, action.subject) is True
        return not isinstance(self._users, Mapping) or action.subject in self._users

    async def _check_password(self, action: VerifyPassword) -> str | None:
        users = self._users
        if isinstance(users, Mapping):
            expected_password = users.get(action.name, secrets.token_urlsafe(16))
            return action.name if secrets.compare_digest(expected_password.encode(), action.password.encode()) else None
        if users is None:
            return None
        subject = await _call_function(users, action.name, action.password)
        return subject if isinstance(subject, str) and subject else None

    async def _handle_lifespan(self, receive: Any, send: Any) -> None:
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _refuse_wrong_key(self, receive: Any, send: Any) -> bool:
        """If the secret key is wrong, refuse to start, close the store and return True."""
        try:
            await self._flow_runner.run(self._token_issuer.load_key(time.time()))
        except WrongSecretKey as exc:
            await self.close()
            await receive()
            message = f"authorization server {self._token_issuer.issuer}: {exc}"
            await send({"type": "lifespan.startup.failed", "message": message})
            return True
        except StoreUnavailable as exc:
            log.warning("authorization server %s: the store cannot be used now: %s", self._token_issuer.issuer, exc)
        return False

    async def close(self) -> None:
        """Close the HTTP connections and the store."""
        await self._fetcher.close()
        if isinstance(self._store, SQLiteStore):
            self._store.close()
        elif isinstance(self._store, SharedStateStore):
            await self._store.close()


def is_local_authorization_server(app: object) -> bool:
    """Return whether an ASGI app is an authorization server that keeps its data in memory."""
    return isinstance(app, AuthorizationServer) and app._token_issuer.is_local  # pyright: ignore[reportPrivateUsage]


def _open_store(
    store: str | Path | AuthorizationStore | SharedStateSource | SharedState | None,
    issuer: str,
    secret_key: str | bytes | None,
) -> AuthorizationStore:
    if store is None:
        return InMemoryStore()
    create_state: Any = getattr(store, "__shared_state__", None)
    is_state = callable(getattr(store, "end_lost_stream", None))
    if not (isinstance(store, str | Path) or create_state is not None or is_state):
        return cast("AuthorizationStore", store)
    if secret_key is None:
        raise ValueError(
            "store= requires secret_key=, which encrypts the signing keys. Do not store the secret key next to the data"
        )
    if isinstance(store, str | Path):
        if "://" in str(store):
            raise ValueError(f"store= must be the path of a file or a Cluster. Write store=Cluster({str(store)!r})")
        return SQLiteStore(store)
    if create_state is None:
        return SharedStateStore(cast("SharedState", store), issuer)
    if cast("SharedStateSource", store).is_local:
        raise ValueError(
            "a local cluster cannot store logins, because it is deleted when its workers stop. Pass the path of a "
            "file as store=. All workers of one machine can share this file"
        )
    return SharedStateStore(create_state(f"authorization server {issuer}", [secret_key]), issuer)


def _create_warner(issuer: str) -> Callable[[str], None]:
    return lambda message: log.warning("authorization server %s: %s", issuer, message)


def _check_issuer(issuer: str, *, is_local: bool) -> None:
    parts = urlsplit(issuer)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_local):
        raise ValueError("issuer must be an https URL. http is only allowed on this machine")
    if not parts.hostname or parts.query or parts.fragment or "#" in issuer or parts.username is not None:
        raise ValueError("issuer must be a URL without a query, a fragment or credentials")


async def _call_function(function: Callable[..., Any], *arguments: str) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    return await asyncio.to_thread(function, *arguments)


def _check_users(users: Any, is_active_user: Any) -> None:
    if not (is_active_user is None or callable(is_active_user)):
        raise TypeError("is_active_user must be a function that takes a subject and returns True or False")
    if not (users is None or isinstance(users, Mapping) or callable(users)):
        raise TypeError("users must be a dict of names and passwords, or a function that checks a name and a password")
    if isinstance(users, Mapping):
        _check_secrets("users", "password", users)


def _check_secrets(option: str, secret_label: str, secrets_by_name: Any) -> None:
    """Raise ValueError if a name or secret is blank, because anyone could log in with it."""
    if not isinstance(secrets_by_name, Mapping):
        raise TypeError(f"{option} must be a dict that maps each name to its {secret_label}")
    for name, secret in secrets_by_name.items():
        if not (isinstance(name, str) and isinstance(secret, str) and name.strip() and secret.strip()):
            raise ValueError(f"{option}= must not contain a blank name or a blank {secret_label}: {clip(str(name))!r}")


def _check_resources(resources: str | Sequence[str]) -> tuple[str, ...]:
    urls = as_tuple(resources)
    for url in urls:
        if parse_web_url(url) is None or "#" in url:
            raise ValueError(f"resources must be a list of server URLs, not {url!r}")
    return urls


async def _read_body(receive: Callable[[], Awaitable[dict[str, Any]]]) -> bytes:
    body, has_more = b"", True
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            while has_more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(400, "the connection closed before the request body was complete")
                body += message.get("body", b"")
                has_more = message.get("more_body", False)
                if len(body) > _MAX_BODY_BYTES:
                    raise Refusal(413, f"the request body must be at most {_MAX_BODY_BYTES} bytes")
    except TimeoutError:
        raise Refusal(408, "timeout while waiting for the request body") from None
    return body
