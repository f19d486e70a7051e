"""AuthorizationServer: the authorization server as an ASGI application. Thin: reads a request, runs a flow, answers.

For development and small installations; beside the server it guards, or by itself.
"""

import asyncio
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from dovetail.auth.documents import web_address
from dovetail.auth.flow import Flow, SignIn, StillUser
from dovetail.auth.guard import checked_scopes
from dovetail.auth.server.authority import METADATA, Authority
from dovetail.auth.server.issuing import Issuing, OwnTokens
from dovetail.auth.server.settings import Settings
from dovetail.auth.server.store import Client, Shelf, Store
from dovetail.auth.server.upstream import Upstream, Vault
from dovetail.auth.server.web import Request, Response, failure
from dovetail.auth.settings import words
from dovetail.auth.verify import several
from dovetail.errors import clip
from dovetail.login.sqlite import SqliteStore
from dovetail.login.unattended import Unattended
from dovetail.login.web import is_public
from dovetail.protocol.http import LOOPBACK, Gate, Refusal, collect
from dovetail.protocol.principal import Principal

log = logging.getLogger("dovetail")

Users = Mapping[str, str] | Callable[[str, str], Any]
Scope = dict[str, Any]

_BODY: Final = 64 * 1024
_BODY_TIME: Final = 10.0
_CLIENT_DOCUMENT: Final = 32 * 1024  # keys with their certificates take a while to say
_DEVELOPER: Final = "developer"
_PUBLIC: Final = 10  # registrations of one address in an hour
_DEVELOPED: Final = 100


class AuthorizationServer:
    """An authorization server of your own.

    issuer: its address, exactly as clients will see it; https, or http on this machine.
    users: names and passwords, or a function of both (plain or async) that returns the user's subject or None. Without
        any, and without `upstream`, everyone on this machine is one development user.
    active: whether there is still a user of a subject: a function (plain or async), asked whenever a token is renewed.
        A table of users answers that by itself.
    upstream: a provider whose users log in here instead.
    resources: the servers it issues tokens for; those of its own origin unless you say otherwise.
    scopes: what can be asked for; anything unless you say otherwise.
    clients: those you know; others bring their document or register themselves, unless `registration` is False.
    registrations: how many one address may make in an hour: 10, or 100 where the issuer is on this machine; behind a
        proxy that hides addresses, all together.
    store: a path for a SQLite file; in memory unless you say otherwise.
    secret: seals the signing key and the tokens of the provider upstream, at least 16 bytes; needed with a file.
    askers: resource servers that may ask about tokens, with their secrets.
    access_time, refresh_time, login_time: seconds a token is good for, may wait to be renewed, and after which a user
        logs in again, however often it was renewed.
    """

    def __init__(
        self,
        *,
        issuer: str,
        users: Users | None = None,
        active: Callable[[str], Any] | None = None,
        upstream: Upstream | None = None,
        resources: str | Sequence[str] = (),
        scopes: str | Sequence[str] = (),
        clients: Sequence[Client] = (),
        registration: bool = True,
        registrations: int | None = None,
        trusts: Callable[[str], bool] | None = None,
        store: str | Path | Store | None = None,
        secret: str | bytes | None = None,
        askers: Mapping[str, str] | None = None,
        name: str | None = None,
        access_time: float = 900.0,
        refresh_time: float = 30 * 86400.0,
        login_time: float = 180 * 86400.0,
        allowed_hosts: Collection[str] = (),
    ) -> None:
        parts = urlsplit(issuer)
        local = parts.hostname in LOOPBACK
        _check_issuer(issuer, local=local)
        if registrations is not None and registrations < 0:
            raise ValueError(f"registrations must not be negative, not {registrations}: registration=False allows none")
        _check_users(users, active)
        _check_secrets("askers", "secret", askers or {})
        if users is not None and upstream is not None:
            raise ValueError("users log in here or at the provider upstream: pass users= or upstream=, not both")
        if users is None and upstream is None:
            if not local:
                raise ValueError("beyond this machine users must log in: pass users= or upstream=")
            log.warning("authorization server %s: development mode, whoever allows access is %r", issuer, _DEVELOPER)
        if isinstance(store, str | Path):
            if secret is None:
                raise ValueError("the keys in the file are sealed: pass secret=, and keep it elsewhere")
            store = SqliteStore(store)
        self._store: Store = store or Shelf()
        self._threaded = isinstance(self._store, SqliteStore)
        self._users = users
        self._active = active
        vault = Vault(secret)
        self._issuing = Issuing(
            issuer,
            self._store,
            vault,
            access_time=access_time,
            refresh_time=refresh_time,
            login_time=login_time,
            warn=_warner(issuer),
        )
        settings = Settings(
            issuer=issuer,
            name=name or parts.netloc,
            resources=_addresses(resources),
            scopes=checked_scopes(words(scopes)),
            clients=tuple(clients),
            registration=registration,
            registrations=(_DEVELOPED if local else _PUBLIC) if registrations is None else registrations,
            trusts=trusts,
            passwords=users is not None,
            user=_DEVELOPER if users is None and upstream is None else None,
            askers=dict(askers or {}),
            warn=_warner(issuer),
        )
        self._authority = Authority(settings, self._store, self._issuing, upstream, vault)
        self._path = parts.path.rstrip("/")
        self._gate = Gate(allowed_hosts, (), issuer)
        self._unattended = Unattended(strangers=is_public, stranger_size=_CLIENT_DOCUMENT, grant=self._grant)

    @property
    def alone(self) -> bool:
        """Whether what it knows is this process's alone: it has no store that others share."""
        return self._issuing.alone

    # For servers of the same process

    def verifier(self, audience: Sequence[str] = ()) -> OwnTokens:
        """What a guarded server of the same process is given as `auth`: revoked tokens end at once."""
        return OwnTokens(self._issuing, several(audience))

    async def upstream_token(self, principal: Principal | None) -> str | None:
        """The provider's own token of a caller, renewed if need be: to call the provider's API in their name.

        For the server alone: it must never reach a client.
        """
        if principal is None or principal.issuer != self._issuing.issuer:
            return None  # what another issuer says of a grant is about its own
        family = principal.claims.get("sid")
        if not isinstance(family, str):
            return None
        return await self._run(self._authority.upstream_token(family, principal.subject))

    async def revoke(self, subject: str) -> int:
        """End every login of a user, here and at once; how many there were."""
        return await self._run(self._issuing.end_all(subject))

    def beside(self, application: Any) -> Any:
        """One ASGI application of this and another, such as `app.asgi()`: what is not for this is for that."""

        async def both(scope: Scope, receive: Any, send: Any) -> None:
            mine = scope["type"] == "http" and self._below(scope) and self._authority.serves(self._relative(scope))
            await (self if mine else application)(scope, receive, send)

        return both

    # ASGI

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            response = await self._answer(scope, receive)
        except Refusal as refusal:
            response = failure("invalid_request", refusal.message, refusal.status)
        except Exception as exc:
            log.error(
                "authorization server: %s %s failed: %s",
                scope["method"],
                scope["path"][:64],
                type(exc).__name__,
                exc_info=exc,
            )
            response = failure("server_error", "the server's log says why", 500)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
        headers.append((b"content-length", b"%d" % len(response.body)))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})

    async def _answer(self, scope: Scope, receive: Any) -> Response:
        collected = collect(scope["headers"])
        server = scope.get("server")
        self._gate.check(
            {name: value for name, value in collected.items() if name == b"host"}, server[0] if server else None
        )
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in collected.items()}
        client = scope.get("client")
        request = Request(
            method="GET" if scope["method"] == "HEAD" else scope["method"],
            path=self._relative(scope),
            query=scope.get("query_string", b"").decode("latin-1"),
            headers=headers,
            body=await _body(receive),
            address=client[0] if client else "",
        )
        return await self._run(self._authority.handle(request))

    def _relative(self, scope: Scope) -> str:
        """The path below the issuer; its metadata also where the root of the origin has it. RFC 8414, section 3.1"""
        path, root = "/" + scope["path"].strip("/"), (scope.get("root_path") or "").rstrip("/")
        if path == METADATA + self._path:
            return METADATA
        for prefix in (self._path, root):
            if prefix and path.startswith(prefix + "/"):
                return path.removeprefix(prefix)
        return path

    def _below(self, scope: Scope) -> bool:
        """Whether a path is of the issuer, and not of an application beside it that has one of the same name."""
        path = "/" + scope["path"].strip("/")
        root = (scope.get("root_path") or "").rstrip("/")
        return path == METADATA + self._path or path.startswith((self._path + "/", root + self._path + "/"))

    async def _run(self, flow: Flow[Any]) -> Any:
        return await self._unattended.run(flow, threaded=self._threaded)

    async def _grant(self, wish: SignIn | StillUser) -> Any:
        return await (self._sign_in(wish) if isinstance(wish, SignIn) else self._is_active(wish.subject))

    async def _is_active(self, subject: str) -> bool:
        if self._active is not None:
            return await _called(self._active, subject) is True
        return not isinstance(self._users, Mapping) or subject in self._users

    async def _sign_in(self, wish: SignIn) -> str | None:
        """The subject of a user, if the password is theirs."""
        users = self._users
        if isinstance(users, Mapping):
            known = users.get(wish.name, secrets.token_urlsafe(16))
            return wish.name if secrets.compare_digest(known.encode(), wish.password.encode()) else None
        if users is None:
            return None
        found = await _called(users, wish.name, wish.password)
        return found if isinstance(found, str) and found else None

    async def _live(self, receive: Any, send: Any) -> None:
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def close(self) -> None:
        """Let go of connections and of the file."""
        await self._unattended.close()
        if isinstance(self._store, SqliteStore):
            self._store.close()


def _warner(issuer: str) -> Callable[[str], None]:
    return lambda words: log.warning("authorization server %s: %s", issuer, words)


def _check_issuer(issuer: str, *, local: bool) -> None:
    parts = urlsplit(issuer)
    if parts.scheme != "https" and not (parts.scheme == "http" and local):
        raise ValueError("issuer must be an https URL, or http on this machine")
    if not parts.hostname or parts.query or parts.fragment or "#" in issuer or parts.username is not None:
        raise ValueError("issuer must be a plain URL: no query, fragment or credentials")


async def _called(function: Callable[..., Any], *arguments: str) -> Any:
    """What a function of the author's returns; a plain one runs in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    return await asyncio.to_thread(function, *arguments)


def _check_users(users: Any, active: Any) -> None:
    if not (active is None or callable(active)):
        raise TypeError("active must be a function of a subject that returns whether it is still a user's")
    if not (users is None or isinstance(users, Mapping) or callable(users)):
        raise TypeError("users must be a table of names and passwords, or a function of both")
    if isinstance(users, Mapping):
        _check_secrets("users", "password", users)


def _check_secrets(option: str, what: str, table: Any) -> None:
    """A name in a table without a secret would be anyone's."""
    if not isinstance(table, Mapping):
        raise TypeError(f"{option} must be a table of names, each with its {what}")
    for name, secret in table.items():
        if not (isinstance(name, str) and isinstance(secret, str) and name.strip() and secret.strip()):
            raise ValueError(
                f"{option}= holds {clip(str(name))!r} with a blank name or {what}, or none: it is anyone's"
            )


def _addresses(resources: str | Sequence[str]) -> tuple[str, ...]:
    """The servers tokens are issued for, by the addresses their clients type."""
    found = several(resources)
    for one in found:
        if web_address(one) is None or "#" in one:
            raise ValueError(f"resources must be the addresses of servers, not {one!r}")
    return found


async def _body(receive: Callable[[], Awaitable[dict[str, Any]]]) -> bytes:
    body, more = b"", True
    try:
        async with asyncio.timeout(_BODY_TIME):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(400, "the connection closed before the body was complete")
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > _BODY:
                    raise Refusal(413, f"the body may be at most {_BODY} bytes")
    except TimeoutError:
        raise Refusal(408, "the body took too long") from None
    return body
