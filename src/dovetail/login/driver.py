"""Drives the flows of `auth`: makes their HTTP calls, sends the user to a browser, keeps and renews the token.

One login at a time, for all requests that wait; one renewal at a time, across processes.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

from dovetail.auth import proofs, tokens
from dovetail.auth.challenge import Challenge, parse
from dovetail.auth.code_flow import bound, log_in
from dovetail.auth.flow import Flow
from dovetail.auth.login import Login
from dovetail.auth.machine_flow import by_credentials, by_device, by_enterprise, by_workload
from dovetail.auth.server.throttle import Throttle
from dovetail.auth.settings import (
    ClientCredentials,
    DeviceLogin,
    EnterpriseLogin,
    OAuth,
    WorkloadIdentity,
    signer_of,
)
from dovetail.errors import LoginFailed, clip
from dovetail.login.attended import Attended, NobodyCame, Settings, given
from dovetail.login.stores import Store, store_for
from dovetail.login.web import Web
from dovetail.transports.fetch import Fetcher
from dovetail.wire.shape import replace

log = logging.getLogger("dovetail")

_TRIES = 3  # other credentials for one request
_STEPS, _STEPS_TIME = 5, 600.0  # so many logins for more scopes in so many seconds: a server could ask without end
_DOUBTED = (*tokens.FORGOTTEN, "invalid_scope")  # some servers limit a client's scopes and do not say so


class Driver:
    """The login of one client at one server."""

    def __init__(
        self,
        url: str,
        settings: Settings,
        make_fetcher: Callable[..., Fetcher],
        make_own: Callable[..., Fetcher] | None = None,
    ) -> None:
        self._url = url
        self._settings = settings
        named = settings.idp_token_endpoint if isinstance(settings, EnterpriseLogin) else None
        self._make_web = lambda: Web(url, settings.local, make_fetcher, make_own, named)
        self._store: Store = store_for(getattr(settings, "store", "memory"))
        self._kept = True  # whether the store took what it was given
        self._loaded = False
        self._login: Login | None = None
        self._nonce: str | None = None
        self._logging_in: Work | None = None
        self._renewing: asyncio.Task[bool] | None = None
        self._renewed: str | None = None  # the newest token by renewal,
        self._issued: str | None = None  # and by login
        self._stepped: set[frozenset[str]] = set()  # what users were asked for already
        self._steps = Throttle(_STEPS, _STEPS_TIME)

    # What a channel asks

    async def headers(self, method: str, url: str) -> list[tuple[bytes, bytes]]:
        """The credentials of one request; none before the first login. Renewed early, not when it is too late."""
        login = await self._current()
        if login is not None and login.token is not None and not login.token.fresh(time.time()):
            await self._renew_early(login)
            login = self._login
        if login is None or login.token is None:
            return []
        token = login.token.access_token
        if login.key is None:
            return [(b"authorization", f"Bearer {token}".encode("ascii"))]
        proof = proofs.dpop(login.key, method, url, time.time(), nonce=self._nonce, token=token)
        return [(b"authorization", f"DPoP {token}".encode("ascii")), (b"dpop", proof.encode("ascii"))]

    async def challenged(self, status: int, header: str, nonce: str | None, sent: str | None, tries: int) -> bool:
        """A request was refused with 401 or 403; whether it is worth sending again with other credentials."""
        challenge = parse(header, nonce)
        if nonce is not None:
            self._nonce = nonce
        if tries > _TRIES or (status == 403 and challenge.error != "insufficient_scope"):
            return False
        if nonce is not None and challenge.error == "use_dpop_nonce":
            return True
        login = await self._current()
        if login is not None and login.token is not None and login.token.access_token != sent:
            return True  # somebody else has logged in meanwhile
        if self._pointless(status, challenge, sent, tries):
            return False
        if (
            status == 401
            and login is not None
            and not (tries > 1 and sent == self._renewed)
            and await self._renew(sent)
        ):
            return True
        if status == 403 and self._logging_in is None:
            self._steps.count("", time.time())
        await self._shared_login(challenge)
        return True

    def _pointless(self, status: int, challenge: Challenge, sent: str | None, tries: int) -> bool:
        """Whether the user was asked for just this already, and it did not help.

        spec: authorization#step-up-authorization-flow
        """
        if status == 403:
            return (
                getattr(self._settings, "only", False)
                or frozenset(challenge.scopes) in self._stepped
                or self._steps.full("", time.time())
            )
        asked = self._login.scopes if self._login is not None else ()
        return tries > 1 and sent is not None and sent == self._issued and set(challenge.scopes) <= set(asked)

    async def close(self) -> None:
        """Wait for a renewal under way: the token that is being replaced is of no use any more."""
        if self._renewing is not None:
            await asyncio.wait([self._renewing])

    async def log_out(self) -> bool:
        """Forget the login, and tell the authorization server if it wants to know; whether it was told.

        Not while another process renews it: what that one got would stay.
        """
        lock = getattr(self._store, "lock", None)
        async with lock(self._url) if lock is not None else contextlib.nullcontext():
            login = await self._stored()
            await asyncio.to_thread(self._store.delete, self._url)
            self._login = None
            try:
                return login is not None and await self._drive(tokens.revoke(login, signer_of(self._settings)))
            except LoginFailed:
                return False

    # What is kept

    async def _current(self) -> Login | None:
        if not self._loaded:
            self._login = await self._stored()
            self._loaded = True
        return self._login

    async def _stored(self) -> Login | None:
        try:
            stored = await asyncio.to_thread(self._store.get, self._url)
        except Exception as exc:
            log.warning("the login that was kept for %s cannot be read: %s", self._name, clip(str(exc)))
            return None
        login = Login.load(stored) if stored is not None else None
        if stored is not None and login is None:
            log.warning("what was kept for %s is no login that can be understood: it is not used", self._name)
        return login if login is not None and bound(login, self._url, self._settings) else None

    async def _keep(self, login: Login) -> None:
        self._login = login
        try:
            await asyncio.to_thread(self._store.set, self._url, login.dump())  # before its first use
            self._kept = True
        except Exception as exc:
            self._kept = False
            log.warning("the login at %s lasts for this run only, it cannot be kept: %s", self._name, clip(str(exc)))

    @property
    def _name(self) -> str:
        return clip(urlsplit(self._url).netloc)

    # The renewal

    async def _renew_early(self, login: Login) -> None:
        token = login.token
        assert token is not None
        if token.refresh_token is None or self._logging_in is not None:
            return
        try:
            await self._renew(token.access_token)
        except LoginFailed:
            if not token.usable(time.time()):
                raise

    async def _renew(self, sent: str | None) -> bool:
        """A fresh token by refresh, if there is a refresh token the server still takes.

        Once begun it runs to its end, whoever stops waiting: a rotated refresh token that is lost is a login lost.
        """
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.get_running_loop().create_task(self._renew_alone(sent))
            self._renewing.add_done_callback(_heard)
        return await asyncio.shield(self._renewing)

    async def _renew_alone(self, sent: str | None) -> bool:
        lock = getattr(self._store, "lock", None)
        async with lock(self._url) if lock is not None else contextlib.nullcontext():
            login = await self._stored() if self._kept else self._login
            self._login = login
            if login is None or login.token is None:
                return False
            if login.token.access_token != sent and login.token.fresh(time.time()):
                return True  # another process was faster
            if login.token.refresh_token is None:
                return False
            fresh = await self._drive(tokens.refresh(login, signer_of(self._settings)))
            await self._keep(fresh)
            self._renewed = fresh.token.access_token if fresh.token is not None else None
            return fresh.token is not None

    # The login

    async def _shared_login(self, challenge: Challenge) -> None:
        work = self._logging_in
        if work is None or work.ended:
            work = self._logging_in = Work(lambda: self._log_in(challenge))
        try:
            await work.result()
        finally:
            if self._logging_in is work and work.ended:
                self._logging_in = None

    async def _log_in(self, challenge: Challenge) -> None:
        try:
            login = await self._drive(await self._flow(challenge))
        except LoginFailed as exc:
            await self._doubt(exc)
            raise
        await self._keep(login)
        self._issued = login.token.access_token
        self._stepped.add(frozenset(challenge.scopes))

    async def _doubt(self, exc: LoginFailed) -> None:
        """A registration no login came of is not used again: servers forget clients, and say so to the user alone."""
        login = self._login
        if login is not None and (isinstance(exc, NobodyCame) or exc.reason in _DOUBTED):
            await self._keep(replace(login, client=replace(login.client, refused=True)))

    async def _flow(self, challenge: Challenge) -> Flow[Login]:
        url, known = self._url, self._login
        match self._settings:
            case OAuth() as settings:
                return log_in(url, challenge, settings, known)
            case DeviceLogin() as settings:
                return by_device(url, challenge, settings, known)
            case ClientCredentials() as settings:
                return by_credentials(url, challenge, settings, known)
            case EnterpriseLogin() as settings:
                return by_enterprise(url, challenge, settings, known, await given(settings.id_token))
            case WorkloadIdentity() as settings:
                return by_workload(url, challenge, settings, known, await given(settings.assertion))

    # What a flow asks

    async def _drive(self, flow: Flow[Any]) -> Any:
        attended = Attended(self._settings, self._make_web())
        try:
            answer: Any = None
            while True:
                try:
                    wish = flow.send(answer)
                except StopIteration as done:
                    return done.value
                answer = await attended.grant(wish)
        finally:
            await attended.close()


class Work:
    """A login under way, for all who wait for it; it ends when nobody does any more."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.get_running_loop().create_task(work())
        self._task.add_done_callback(_heard)
        self._waiting = 0
        self._left = False

    @property
    def ended(self) -> bool:
        return self._left or self._task.done()

    async def result(self) -> None:
        """What comes of it."""
        self._waiting += 1
        try:
            await asyncio.shield(self._task)
        finally:
            self._waiting -= 1
            if self._waiting == 0 and not self._task.done():
                self._left = True
                self._task.cancel()
                await asyncio.wait([self._task])


def _heard(task: "asyncio.Task[Any]") -> None:
    """Whoever waited was told; if nobody did, nobody has to be."""
    if not task.cancelled():
        task.exception()


def driver_for(
    url: str, auth: Any, make_fetcher: Callable[..., Fetcher], make_own: Callable[..., Fetcher] | None = None
) -> Driver:
    """The driver of a setting; `make_own` makes what calls the server's own origin, if that is something else."""
    if auth == "oauth":
        auth = OAuth()
    if isinstance(auth, OAuth | DeviceLogin | ClientCredentials | EnterpriseLogin | WorkloadIdentity):
        return Driver(url, auth, make_fetcher, make_own)
    raise TypeError(
        "auth must be 'oauth', Bearer(...), OAuth(...), ClientCredentials(...), DeviceLogin(...), "
        f"EnterpriseLogin(...) or WorkloadIdentity(...), not {_named(auth)}"
    )


def _named(auth: Any) -> str:
    """What somebody gave instead, without showing it: it may be a secret."""
    if isinstance(auth, str):
        return "another text: a token you have is Bearer(...)"
    return f"the class {auth.__name__} itself" if isinstance(auth, type) else type(auth).__name__
