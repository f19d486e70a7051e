"""Add credentials to the HTTP requests of a client. The authorizer logs in, renews tokens and stores them.

All waiting requests share one login. Only one renewal runs at a time, even across processes.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

from dovetail.auth.browser_login import LoginSettings, LoginTimeout, UserInteraction, resolve_value
from dovetail.auth.flow_runner import FlowRunner
from dovetail.auth.safe_fetch import SafeFetcher
from dovetail.auth.token_stores import FileTokenStore, create_token_store
from dovetail.error_context import clip
from dovetail.errors import LoginFailed
from dovetail.log import log, log_failure
from dovetail.oauth import proofs, token_request
from dovetail.oauth.challenge import Challenge, parse_challenge
from dovetail.oauth.flow import Flow
from dovetail.oauth.login.code_flow import is_login_for, log_in
from dovetail.oauth.login.login_settings import (
    ClientCredentials,
    DeviceLogin,
    EnterpriseLogin,
    OAuth,
    TokenStore,
    WorkloadIdentity,
    get_signer,
)
from dovetail.oauth.login.machine_flow import (
    log_in_with_credentials,
    log_in_with_device_code,
    log_in_with_enterprise_idp,
    log_in_with_workload_identity,
)
from dovetail.oauth.login.saved_login import SavedLogin
from dovetail.protocol.interfaces.http_types import HTTPRequest
from dovetail.protocol.rate_limiter import RateLimiter
from dovetail.transports.http_client.http_client import HTTPClient
from dovetail.wire.base import replace

_MAX_TRIES = 3  # A request is sent at most this many times with new credentials.
# A server could ask for more scopes forever, so the number of logins for additional scopes is limited.
_MAX_STEP_UPS, _STEP_UP_WINDOW_S = (
    5,
    600.0,
)
# After one of these errors, the client registers again.
# `invalid_scope` may mean that the client is registered for fewer scopes.
_STALE_CLIENT_ERRORS = (
    *token_request.UNKNOWN_CLIENT_ERRORS,
    "invalid_scope",
)


class OAuthAuthorizer:
    """Logs a client in to a server and keeps the token valid."""

    def __init__(
        self,
        url: str,
        settings: LoginSettings,
        make_fetcher: Callable[..., HTTPClient],
        make_server_fetcher: Callable[..., HTTPClient] | None = None,
    ) -> None:
        self._url = url
        self._settings = settings
        trusted_url = settings.idp_token_endpoint if isinstance(settings, EnterpriseLogin) else None
        self._create_fetcher = lambda: SafeFetcher(
            url, settings.allow_private_network, make_fetcher, make_server_fetcher, trusted_url
        )
        self._store: TokenStore = create_token_store(getattr(settings, "token_store", "memory"))
        self._is_stored = True
        self._is_loaded = False
        self._login: SavedLogin | None = None
        self._dpop_nonce: str | None = None
        self._pending_login: SharedLogin | None = None
        self._renewal_task: asyncio.Task[bool] | None = None
        self._renewed_token: str | None = None
        self._login_token: str | None = None
        # Each set contains the scopes that an earlier login requested.
        self._requested_scope_sets: set[frozenset[str]] = set()
        self._step_up_limiter = RateLimiter(_MAX_STEP_UPS, _STEP_UP_WINDOW_S)

    # The HTTP transport calls the following methods.

    async def get_headers(self, method: str, url: str) -> list[tuple[bytes, bytes]]:
        """Return the headers with the credentials, and renew the token before it expires.

        Before the first login, there are no credentials, so the list is empty.
        """
        login = await self._get_login()
        if login is not None and login.token is not None and not login.token.is_fresh(time.time()):
            await self._renew_early(login)
            login = self._login
        if login is None or login.token is None:
            return []
        token = login.token.access_token
        if login.key is None:
            return [(b"authorization", f"Bearer {token}".encode("ascii"))]
        proof = proofs.create_dpop_proof(login.key, method, url, time.time(), nonce=self._dpop_nonce, token=token)
        return [(b"authorization", f"DPoP {token}".encode("ascii")), (b"dpop", proof.encode("ascii"))]

    async def handle_challenge(
        self, status: int, header: str, nonce: str | None, sent_token: str | None, attempt: int
    ) -> bool:
        """Handle a response with status 401 or 403.

        Return True if the client should repeat the request with new credentials.
        """
        challenge = parse_challenge(header, nonce)
        if nonce is not None:
            self._dpop_nonce = nonce
        if attempt > _MAX_TRIES or (status == 403 and challenge.error != "insufficient_scope"):
            return False
        if nonce is not None and challenge.error == "use_dpop_nonce":
            return True
        login = await self._get_login()
        if login is not None and login.token is not None and login.token.access_token != sent_token:
            # Another request has obtained a new token in the meantime.
            return True
        if self._is_login_pointless(status, challenge, sent_token, attempt):
            return False
        if (
            status == 401
            and login is not None
            and not (attempt > 1 and sent_token == self._renewed_token)
            and await self._renew(sent_token)
        ):
            return True
        if status == 403 and self._pending_login is None:
            self._step_up_limiter.take("", time.time())
        await self._join_login(challenge)
        return True

    def _is_login_pointless(self, status: int, challenge: Challenge, sent_token: str | None, attempt: int) -> bool:
        """Return whether another login cannot help, for example because the server has refused the same scopes before.

        spec: authorization#step-up-authorization-flow
        """
        if status == 403:
            return (
                getattr(self._settings, "exact_scopes", False)
                or frozenset(challenge.scopes) in self._requested_scope_sets
                or self._step_up_limiter.compute_wait("", time.time()) > 0.0
            )
        requested_scopes = self._login.scopes if self._login is not None else ()
        return (
            attempt > 1
            and sent_token is not None
            and sent_token == self._login_token
            and set(challenge.scopes) <= set(requested_scopes)
        )

    async def close(self) -> None:
        """Wait for a running token renewal, so that the new token is saved."""
        if self._renewal_task is not None:
            await asyncio.wait([self._renewal_task])

    async def log_out(self) -> bool:
        """Delete the saved login and revoke its token. Return False if the server does not support revocation.

        This method first waits for a renewal by another process. Otherwise the renewed token would stay valid.
        """
        lock = getattr(self._store, "lock", None)
        async with lock(self._url) if lock is not None else contextlib.nullcontext():
            login = await self._load_login()
            await asyncio.to_thread(self._store.delete, self._url)
            self._login = None
            try:
                return login is not None and await self._run_flow(
                    token_request.revoke_login(login, get_signer(self._settings))
                )
            except LoginFailed:
                return False

    async def _get_login(self) -> SavedLogin | None:
        if not self._is_loaded:
            self._login = await self._load_login()
            self._is_loaded = True
        return self._login

    async def _load_login(self) -> SavedLogin | None:
        try:
            data = await asyncio.to_thread(self._store.get, self._url)
        except Exception as exc:
            log.warning("cannot read the saved login for %s: %s", self._server_name, clip(str(exc)))
            return None
        source = self._store.get_path(self._url) if isinstance(self._store, FileTokenStore) else self._server_name
        login = SavedLogin.load(data, source) if data is not None else None
        if data is not None and login is None:
            log.warning("the saved login for %s is invalid and is not used", self._server_name)
        return login if login is not None and is_login_for(login, self._url, self._settings) else None

    async def _save_login(self, login: SavedLogin) -> None:
        self._login = login
        try:
            # The login is saved before the token is used for the first time.
            await asyncio.to_thread(self._store.set, self._url, login.dump())
            self._is_stored = True
        except Exception as exc:
            self._is_stored = False
            log.warning(
                "cannot save the login for %s. You must log in again after this program ends: %s",
                self._server_name,
                clip(str(exc)),
            )

    @property
    def _server_name(self) -> str:
        return clip(urlsplit(self._url).netloc)

    async def _renew_early(self, login: SavedLogin) -> None:
        token = login.token
        assert token is not None
        if token.refresh_token is None or self._pending_login is not None:
            return
        try:
            await self._renew(token.access_token)
        except LoginFailed:
            if not token.is_usable(time.time()):
                raise

    async def _renew(self, sent_token: str | None) -> bool:
        """Renew the token with the refresh token. Return False if the server rejects the refresh token.

        A renewal always runs to its end, even if its callers are cancelled, because without the new refresh token the
        user must log in again.
        """
        if self._renewal_task is None or self._renewal_task.done():
            self._renewal_task = asyncio.get_running_loop().create_task(self._renew_locked(sent_token))
            self._renewal_task.add_done_callback(log_failure)
        return await asyncio.shield(self._renewal_task)

    async def _renew_locked(self, sent_token: str | None) -> bool:
        lock = getattr(self._store, "lock", None)
        async with lock(self._url) if lock is not None else contextlib.nullcontext():
            login = await self._load_login() if self._is_stored else self._login
            self._login = login
            if login is None or login.token is None:
                return False
            if login.token.access_token != sent_token and login.token.is_fresh(time.time()):
                # Another process has renewed the token in the meantime.
                return True
            if login.token.refresh_token is None:
                return False
            new_login = await self._run_flow(token_request.refresh_login(login, get_signer(self._settings)))
            await self._save_login(new_login)
            self._renewed_token = new_login.token.access_token if new_login.token is not None else None
            return new_login.token is not None

    async def _join_login(self, challenge: Challenge) -> None:
        pending = self._pending_login
        if pending is None or pending.is_finished:
            pending = self._pending_login = SharedLogin(lambda: self._log_in(challenge))
        try:
            await pending.wait()
        finally:
            if self._pending_login is pending and pending.is_finished:
                self._pending_login = None

    async def _log_in(self, challenge: Challenge) -> None:
        try:
            login = await self._run_flow(await self._create_flow(challenge))
        except LoginFailed as exc:
            await self._mark_client_refused(exc)
            raise
        await self._save_login(login)
        self._login_token = login.token.access_token
        self._requested_scope_sets.add(frozenset(challenge.scopes))

    async def _mark_client_refused(self, exc: LoginFailed) -> None:
        """Mark the client registration as refused, so that the client registers again.

        If a client was deleted, the authorization server may show the error only to the user.
        """
        login = self._login
        if login is not None and (isinstance(exc, LoginTimeout) or exc.oauth_error in _STALE_CLIENT_ERRORS):
            await self._save_login(replace(login, client=replace(login.client, is_rejected=True)))

    async def _create_flow(self, challenge: Challenge) -> Flow[SavedLogin]:
        url, saved_login = self._url, self._login
        match self._settings:
            case OAuth() as settings:
                return log_in(url, challenge, settings, saved_login)
            case DeviceLogin() as settings:
                return log_in_with_device_code(url, challenge, settings, saved_login)
            case ClientCredentials() as settings:
                return log_in_with_credentials(url, challenge, settings, saved_login)
            case EnterpriseLogin() as settings:
                return log_in_with_enterprise_idp(
                    url, challenge, settings, saved_login, await resolve_value(settings.id_token)
                )
            case WorkloadIdentity() as settings:
                return log_in_with_workload_identity(
                    url, challenge, settings, saved_login, await resolve_value(settings.assertion)
                )

    async def _run_flow(self, flow: Flow[Any]) -> Any:
        fetcher, interaction = self._create_fetcher(), UserInteraction(self._settings)
        try:
            return await FlowRunner({HTTPRequest: fetcher.fetch, **interaction.handlers}).run(flow)
        finally:
            await interaction.close()
            await fetcher.close()


class SharedLogin:
    """A running login that several requests wait for. The login is cancelled when no request waits for it any more."""

    def __init__(self, log_in: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.get_running_loop().create_task(log_in())
        self._task.add_done_callback(log_failure)
        self._waiter_count = 0
        self._is_abandoned = False

    @property
    def is_finished(self) -> bool:
        return self._is_abandoned or self._task.done()

    async def wait(self) -> None:
        """Wait until the login has finished."""
        self._waiter_count += 1
        try:
            await asyncio.shield(self._task)
        finally:
            self._waiter_count -= 1
            if self._waiter_count == 0 and not self._task.done():
                self._is_abandoned = True
                self._task.cancel()
                await asyncio.wait([self._task])


def create_authorizer(
    url: str,
    auth: Any,
    make_fetcher: Callable[..., HTTPClient],
    make_server_fetcher: Callable[..., HTTPClient] | None = None,
) -> OAuthAuthorizer:
    """Create the authorizer for the value of `auth=`.

    `make_server_fetcher` creates the HTTP client for requests to the server's origin.
    """
    if auth == "oauth":
        auth = OAuth()
    if isinstance(auth, OAuth | DeviceLogin | ClientCredentials | EnterpriseLogin | WorkloadIdentity):
        return OAuthAuthorizer(url, auth, make_fetcher, make_server_fetcher)
    raise TypeError(
        "auth must be 'oauth', BearerAuth(...), OAuth(...), ClientCredentials(...), DeviceLogin(...), "
        f"EnterpriseLogin(...) or WorkloadIdentity(...), not {_describe_type(auth)}"
    )


def _describe_type(auth: Any) -> str:
    if isinstance(auth, str):
        return "another string. Pass a token as BearerAuth(...)"
    return f"the class {auth.__name__} itself" if isinstance(auth, type) else type(auth).__name__
