"""Drives the flows of `auth`: makes their HTTP calls, sends the user to a browser, keeps and renews the token.

One login at a time, for all requests that wait; one renewal at a time, across processes. Documents are fetched only
from places the server itself could be asked to name: never from this network on behalf of a public server.
"""

import asyncio
import contextlib
import inspect
import ipaddress
import logging
import time
import webbrowser
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from dovetail.auth import proofs, tokens
from dovetail.auth.challenge import Challenge, parse
from dovetail.auth.code_flow import bound, log_in
from dovetail.auth.flow import Flow, HttpAnswer, HttpCall, Now, Pause, RedirectUri, ShowCode, Visit
from dovetail.auth.login import Login
from dovetail.auth.machine_flow import by_credentials, by_device, by_enterprise, by_workload
from dovetail.auth.settings import ClientCredentials, DeviceLogin, EnterpriseLogin, OAuth, WorkloadIdentity
from dovetail.client.answering import presentable
from dovetail.errors import LoginFailed, TransportError, clip
from dovetail.login.listener import Listener
from dovetail.login.stores import MemoryStore, Store, store_for
from dovetail.protocol.limits import FetchLimits
from dovetail.transports.fetch import Fetcher

log = logging.getLogger("dovetail")

Settings = OAuth | DeviceLogin | ClientCredentials | EnterpriseLogin | WorkloadIdentity

_DOCUMENT = 256 * 1024
_DOCUMENT_TIME = 5.0
_TRIES = 3  # logins for one request, the first included


class Driver:
    """The login of one client at one server."""

    def __init__(self, url: str, settings: Settings, make_fetcher: Callable[..., Fetcher]) -> None:
        self._url = url
        self._settings = settings
        self._make_fetcher = make_fetcher
        self._store: Store = store_for(getattr(settings, "store", "memory"))
        self._login: Login | None = None
        self._loaded = False
        self._nonce: str | None = None
        self._lock = asyncio.Lock()
        self._listener: Listener | None = None
        self._fetcher: Fetcher | None = None

    # What a channel asks

    async def headers(self, method: str, url: str) -> list[tuple[bytes, bytes]]:
        """The credentials of one request; none before the first login. Renewed early, not when it is too late."""
        login = await self._current()
        if login is None or login.token is None:
            return []
        token = login.token
        if not token.fresh(time.time()) and token.refresh_token is not None:
            async with self._lock:
                await self._renew(token.access_token)
            login = self._login
            if login is None or login.token is None:
                return []
            token = login.token
        if login.key is None:
            return [(b"authorization", f"{token.token_type} {token.access_token}".encode("ascii"))]
        proof = proofs.dpop(login.key, method, url, time.time(), nonce=self._nonce, token=token.access_token)
        return [(b"authorization", f"DPoP {token.access_token}".encode("ascii")), (b"dpop", proof.encode("ascii"))]

    async def challenged(self, status: int, header: str, nonce: str | None, sent: str | None, tries: int) -> bool:
        """A request was refused with 401 or 403; whether it is worth sending again with other credentials."""
        challenge = parse(header, nonce)
        if nonce is not None and nonce != self._nonce:
            self._nonce = nonce
            if challenge.error == "use_dpop_nonce":
                return tries <= _TRIES
        if tries > _TRIES or (status == 403 and challenge.error != "insufficient_scope"):
            return False
        async with self._lock:
            login = await self._current()
            if login is not None and login.token is not None and login.token.access_token != sent:
                return True  # somebody else has logged in meanwhile
            if status == 401 and login is not None and await self._renew(sent):
                return True
            await self._log_in(challenge)
        return True

    async def close(self) -> None:
        """Let go of everything."""
        if self._fetcher is not None:
            await self._fetcher.close()
            self._fetcher = None
        if self._listener is not None:
            await self._listener.close()

    # The login

    async def _current(self) -> Login | None:
        if not self._loaded:
            self._loaded = True
            stored = await asyncio.to_thread(self._store.get, self._url)
            login = Login.load(stored) if stored is not None else None
            self._login = login if login is not None and bound(login, self._url) else None
        return self._login

    async def _keep(self, login: Login) -> None:
        await asyncio.to_thread(self._store.set, self._url, login.dump())  # before its first use
        self._login = login

    async def _renew(self, sent: str | None) -> bool:
        """A fresh token by refresh, if there is a refresh token the server still takes; one process at a time."""
        lock = self._store.lock(self._url)
        await asyncio.to_thread(lock.__enter__)
        try:
            self._loaded = False
            login = await self._current() if not isinstance(self._store, MemoryStore) else self._login
            if login is None or login.token is None:
                return False
            if login.token.access_token != sent and login.token.fresh(time.time()):
                return True  # another process was faster
            if login.token.refresh_token is None:
                return False
            fresh = await self._drive(tokens.refresh(login))
            if fresh is None:
                self._login = Login(
                    resource=login.resource,
                    server=login.server,
                    client=login.client,
                    scopes=login.scopes,
                    key=login.key,
                )
                return False
            await self._keep(fresh)
            return True
        finally:
            lock.__exit__(None, None, None)

    async def _log_in(self, challenge: Challenge) -> None:
        known = self._login
        match self._settings:
            case OAuth():
                flow = log_in(self._url, challenge, self._settings, known)
            case DeviceLogin():
                flow = by_device(self._url, challenge, self._settings, known)
            case ClientCredentials():
                flow = by_credentials(self._url, challenge, self._settings, known)
            case EnterpriseLogin():
                given = await _given(self._settings.id_token)
                flow = by_enterprise(self._url, challenge, self._settings, known, given)
            case WorkloadIdentity():
                given = await _given(self._settings.assertion)
                flow = by_workload(self._url, challenge, self._settings, known, given)
        try:
            await self._keep(await self._drive(flow))
        finally:
            if self._listener is not None:
                await self._listener.close()
                self._listener = None

    # What a flow asks

    async def _drive(self, flow: Flow[Any]) -> Any:
        answer: Any = None
        while True:
            try:
                wish = flow.send(answer)
            except StopIteration as done:
                return done.value
            answer = await self._grant(wish)

    async def _grant(self, wish: Any) -> Any:
        match wish:
            case HttpCall():
                return await self._call(wish)
            case Now():
                return time.time()
            case Pause():
                return await asyncio.sleep(wish.seconds)
            case RedirectUri():
                return await self._redirect_uri()
            case Visit():
                return await self._visit(wish)
            case ShowCode():
                return await self._show(wish)
            case _:
                raise TypeError(f"a flow asked for {wish!r}")

    async def _call(self, call: HttpCall) -> HttpAnswer:
        parts = urlsplit(call.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return HttpAnswer(0)
        if self._fetcher is None:
            screen = None if is_local(urlsplit(self._url).hostname or "") else is_public
            self._fetcher = self._make_fetcher(limits=FetchLimits(body=_DOCUMENT), screen=screen)
        headers = [(name.encode("ascii"), value.encode("latin-1", "replace")) for name, value in call.headers.items()]
        try:
            async with asyncio.timeout(_DOCUMENT_TIME):
                reply = await self._fetcher.fetch(call.method, call.url, headers, call.body)
                body = await reply.read()
        except (TransportError, TimeoutError, ValueError):
            return HttpAnswer(0)
        found = {name.decode("latin-1"): value.decode("latin-1") for name, value in reply.headers.items()}
        return HttpAnswer(reply.status, found, body)

    async def _redirect_uri(self) -> str:
        settings = self._settings
        assert isinstance(settings, OAuth)
        if settings.paste is not None:
            return settings.redirect_uri or "http://127.0.0.1:8765/callback"
        self._listener = Listener(settings.redirect_uri)
        return await self._listener.open()

    async def _visit(self, visit: Visit) -> dict[str, str]:
        settings = self._settings
        assert isinstance(settings, OAuth)
        if not presentable(visit.url):
            raise LoginFailed("the authorization server's address is not one a browser should open")
        if settings.paste is not None:
            ended = await _given(settings.paste, visit.url)
            return dict(parse_qsl(urlsplit(str(ended)).query))
        assert self._listener is not None
        log.info("logging in at %s", clip(urlsplit(visit.url).netloc))
        await _given(settings.open_browser or _open, visit.url)
        try:
            async with asyncio.timeout(settings.timeout):
                return await self._listener.answer()
        except TimeoutError:
            raise LoginFailed(f"nobody logged in within {settings.timeout:g} s").at(
                hint=f"open {visit.url} in a browser on this machine, or pass paste="
            ) from None

    async def _show(self, code: ShowCode) -> None:
        settings = self._settings
        assert isinstance(settings, DeviceLogin)
        if not presentable(code.url):
            raise LoginFailed("the address to enter the code at is not one a browser should open")
        if settings.show is None:
            raise LoginFailed("nobody can be shown the code").at(hint="pass show= to DeviceLogin")
        await _given(settings.show, code.complete or code.url, code.code)


def _open(url: str) -> None:
    if not webbrowser.open(url):
        log.warning("no browser could be opened; open this address yourself: %s", url)


async def _given(value: Any, *args: Any) -> Any:
    """A value, or what a function of the user's returns for it."""
    if not callable(value):
        return value
    if inspect.iscoroutinefunction(value):
        return await value(*args)
    made = await asyncio.to_thread(value, *args)
    return await made if inspect.isawaitable(made) else made


def is_public(address: str) -> bool:
    """Whether an address is of the internet at large: not of this machine, this network, or a tunnel into them."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is None and ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast


_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_local(host: str) -> bool:
    """Whether a server is named as one of this machine or network, so that its documents may be there too."""
    if host.lower() in ("localhost", "localhost.localdomain") or host.lower().endswith(
        (".localhost", ".local", ".internal")
    ):
        return True
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return not is_public(host)
    return "." not in host


def driver_for(url: str, auth: Any, make_fetcher: Callable[..., Fetcher]) -> Driver:
    """The driver of a setting."""
    if auth == "oauth":
        auth = OAuth()
    if isinstance(auth, OAuth | DeviceLogin | ClientCredentials | EnterpriseLogin | WorkloadIdentity):
        return Driver(url, auth, make_fetcher)
    raise TypeError(
        "auth must be 'oauth', Bearer(...), OAuth(...), ClientCredentials(...), DeviceLogin(...), "
        f"EnterpriseLogin(...) or WorkloadIdentity(...), not {type(auth).__name__}"
    )
