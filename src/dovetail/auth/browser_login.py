"""Run a login flow with a user: HTTP calls, a browser, and the redirect back to this machine."""

import asyncio
import logging
import time
import webbrowser
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from dovetail.auth.loopback_listener import LoopbackListener, open_listener
from dovetail.auth.safe_fetch import SafeFetcher
from dovetail.callbacks import run_callback
from dovetail.error_context import add_context, clip
from dovetail.errors import LoginFailed
from dovetail.oauth.flow import HTTPRequest, Now, OpenBrowser, Pause, ReserveRedirectURI, ShowCode
from dovetail.oauth.login.login_settings import ClientCredentials, DeviceLogin, EnterpriseLogin, OAuth, WorkloadIdentity
from dovetail.protocol.http_checks import is_safe_url

log = logging.getLogger("dovetail")

LoginSettings = OAuth | DeviceLogin | ClientCredentials | EnterpriseLogin | WorkloadIdentity

_PASTE_REDIRECT_URI: Final = "http://127.0.0.1:8765/callback"


class LoginTimeout(LoginFailed):
    """The browser was not sent back in time."""


class InteractiveFlowRunner:
    """Grants what a flow wishes, for the time of one flow."""

    def __init__(self, settings: LoginSettings, fetcher: SafeFetcher) -> None:
        self._settings = settings
        self._fetcher = fetcher
        self._listener: LoopbackListener | None = None

    async def perform(self, action: Any) -> Any:
        """The answer to a wish."""
        match action:
            case HTTPRequest():
                return await self._fetcher.fetch(action)
            case Now():
                return time.time()
            case Pause():
                return await asyncio.sleep(action.seconds)
            case ReserveRedirectURI():
                return await self._reserve_redirect_uri(action)
            case OpenBrowser():
                return await self._visit_url(action)
            case ShowCode():
                return await self._show_code(action)
            case _:
                raise TypeError(f"a flow asked for {type(action).__name__}")

    async def close(self) -> None:
        """Let go of everything."""
        if self._listener is not None:
            await self._listener.close()
        await self._fetcher.close()

    async def _reserve_redirect_uri(self, action: ReserveRedirectURI) -> str:
        settings = self._settings
        assert isinstance(settings, OAuth)
        if settings.paste_redirect is not None:
            return settings.redirect_uri or _PASTE_REDIRECT_URI
        self._listener, uri = await open_listener(action.registered_uris, settings.redirect_uri)
        return uri

    async def _visit_url(self, action: OpenBrowser) -> dict[str, str]:
        settings = self._settings
        assert isinstance(settings, OAuth)
        if not is_safe_url(action.url):
            raise LoginFailed("the authorization server's address is not one a browser should open")
        if settings.paste_redirect is not None:
            try:
                final_url = await resolve_value(settings.paste_redirect, action.url)
            except EOFError:  # what input() says when the user ends it
                final_url = ""
            return _parse_pasted_url(str(final_url or ""))
        assert self._listener is not None
        log.info("logging in at %s", clip(urlsplit(action.url).netloc))
        try:
            async with asyncio.timeout(settings.timeout):
                self._listener.expect_state(action.state)
                await resolve_value(settings.open_browser or _open_browser, action.url)
                return await self._listener.wait_for_redirect()
        except TimeoutError:
            raise add_context(
                LoginTimeout(f"nobody logged in within {settings.timeout:g} s"),
                hint=f"open {action.url} in a browser on this machine, or pass paste_redirect=",
            ) from None

    async def _show_code(self, action: ShowCode) -> None:
        settings = self._settings
        assert isinstance(settings, DeviceLogin)
        url = (
            action.complete_url if action.complete_url is not None and is_safe_url(action.complete_url) else action.url
        )
        if not is_safe_url(url):
            raise LoginFailed("the address to enter the code at is not one a browser should open")
        await resolve_value(settings.show_code or _log_code, url, action.code)


def _parse_pasted_url(url: str) -> dict[str, str]:
    if not url.strip():
        raise LoginFailed("nothing was pasted: the login was given up")
    try:
        params = dict(parse_qsl(urlsplit(url.strip()).query, max_num_fields=32))
    except ValueError:
        params = {}
    if not params:
        raise add_context(
            LoginFailed(f"what was pasted is not the address the browser ended up at: {clip(url.strip())!r}"),
            hint="after the login the browser shows an address with code= and state= in it, often on a page that fails "
            "to load: copy all of it",
        )
    return params


def _open_browser(url: str) -> None:
    if not webbrowser.open(url):
        log.warning("no browser could be opened; open this address yourself: %s", url)


def _log_code(url: str, code: str) -> None:
    log.warning("to log in, open %s and enter the code %s", url, code)


async def resolve_value(value: Any, *args: Any) -> Any:
    """A value, or what a function of the user's returns for it."""
    return await run_callback(value, *args) if callable(value) else value
