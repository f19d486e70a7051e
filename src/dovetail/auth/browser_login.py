"""Interaction with the user during a login: a browser, a code to enter, and the redirect back to this machine."""

import asyncio
import webbrowser
from typing import Any, Final
from urllib.parse import urlsplit

from dovetail.auth.flow_runner import ActionHandlers
from dovetail.auth.loopback_listener import LoopbackListener, open_listener, parse_redirect_query
from dovetail.callbacks import run_callback
from dovetail.error_context import add_context, clip
from dovetail.errors import LoginFailed
from dovetail.log import log
from dovetail.oauth.flow import OpenBrowser, ReserveRedirectURI, ShowCode
from dovetail.oauth.login.login_settings import ClientCredentials, DeviceLogin, EnterpriseLogin, OAuth, WorkloadIdentity
from dovetail.protocol.http_checks import is_safe_url

LoginSettings = OAuth | DeviceLogin | ClientCredentials | EnterpriseLogin | WorkloadIdentity

_PASTE_REDIRECT_URI: Final = "http://127.0.0.1:8765/callback"


class LoginTimeout(LoginFailed):
    """Raised if the user did not finish the login in the browser in time."""


class UserInteraction:
    """Lets the user log in, with the browser or on the terminal."""

    def __init__(self, settings: LoginSettings) -> None:
        self._settings = settings
        self._listener: LoopbackListener | None = None
        self.handlers: ActionHandlers = {
            ReserveRedirectURI: self._reserve_redirect_uri,
            OpenBrowser: self._visit_url,
            ShowCode: self._show_code,
        }

    async def close(self) -> None:
        """Stop listening for the redirect from the browser."""
        if self._listener is not None:
            self._listener.close()

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
            raise LoginFailed("the login URL of the authorization server is not safe to open in a browser")
        if settings.paste_redirect is not None:
            try:
                final_url = await resolve_value(settings.paste_redirect, action.url)
            except EOFError:
                # The user pressed Ctrl-D.
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
                LoginTimeout(f"the login did not finish within {settings.timeout:g} s"),
                hint=f"open {action.url} in a browser on this machine, or pass paste_redirect=",
            ) from None

    async def _show_code(self, action: ShowCode) -> None:
        settings = self._settings
        assert isinstance(settings, DeviceLogin)
        url = (
            action.complete_url if action.complete_url is not None and is_safe_url(action.complete_url) else action.url
        )
        if not is_safe_url(url):
            raise LoginFailed("the verification URL of the authorization server is not safe to open in a browser")
        await resolve_value(settings.show_code or _log_code, url, action.code)


def _parse_pasted_url(url: str) -> dict[str, str]:
    if not url.strip():
        raise LoginFailed("login cancelled: no URL was pasted")
    try:
        params = parse_redirect_query(urlsplit(url.strip()).query)
    except ValueError:
        params = None
    if not params:
        raise add_context(
            LoginFailed(
                f"the pasted text must be the URL that the browser shows after the login, not {clip(url.strip())!r}"
            ),
            hint="after the login, the browser shows a URL with code= and state=, often on a page that fails to "
            "load. Copy the whole URL",
        )
    return params


def _open_browser(url: str) -> None:
    if not webbrowser.open(url):
        log.warning("no browser could be opened. Open this URL yourself: %s", url)


def _log_code(url: str, code: str) -> None:
    log.warning("to log in, open %s and enter the code %s", url, code)


async def resolve_value(value: Any, *args: Any) -> Any:
    """Return the value. If the value is a function, call it and return the result."""
    return await run_callback(value, *args) if callable(value) else value
