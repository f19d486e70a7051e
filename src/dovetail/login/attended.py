"""Attended: a flow with its user at hand. HTTP calls, the clock, a browser and the way back from it, for one login."""

import asyncio
import logging
import time
import webbrowser
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from dovetail.auth.flow import HttpCall, Now, Pause, RedirectUri, ShowCode, Visit
from dovetail.auth.settings import ClientCredentials, DeviceLogin, EnterpriseLogin, OAuth, WorkloadIdentity
from dovetail.client.answering import presentable, run
from dovetail.errors import LoginFailed, clip
from dovetail.login.listener import Listener, listen
from dovetail.login.web import Web

log = logging.getLogger("dovetail")

Settings = OAuth | DeviceLogin | ClientCredentials | EnterpriseLogin | WorkloadIdentity

_PASTED: Final = "http://127.0.0.1:8765/callback"


class NobodyCame(LoginFailed):
    """The browser was not sent back in time."""


class Attended:
    """Grants what a flow wishes, for the time of one flow."""

    def __init__(self, settings: Settings, web: Web) -> None:
        self._settings = settings
        self._web = web
        self._listener: Listener | None = None

    async def grant(self, wish: Any) -> Any:
        """The answer to a wish."""
        match wish:
            case HttpCall():
                return await self._web.call(wish)
            case Now():
                return time.time()
            case Pause():
                return await asyncio.sleep(wish.seconds)
            case RedirectUri():
                return await self._redirect_uri(wish)
            case Visit():
                return await self._visit(wish)
            case ShowCode():
                return await self._show(wish)
            case _:
                raise TypeError(f"a flow asked for {type(wish).__name__}")

    async def close(self) -> None:
        """Let go of everything."""
        if self._listener is not None:
            await self._listener.close()
        await self._web.close()

    async def _redirect_uri(self, wish: RedirectUri) -> str:
        settings = self._settings
        assert isinstance(settings, OAuth)
        if settings.paste is not None:
            return settings.redirect_uri or _PASTED
        self._listener, uri = await listen(wish.known, settings.redirect_uri)
        return uri

    async def _visit(self, visit: Visit) -> dict[str, str]:
        settings = self._settings
        assert isinstance(settings, OAuth)
        if not presentable(visit.url):
            raise LoginFailed("the authorization server's address is not one a browser should open")
        if settings.paste is not None:
            try:
                ended = await given(settings.paste, visit.url)
            except EOFError:  # what input() says when the user ends it
                ended = ""
            return _pasted(str(ended or ""))
        assert self._listener is not None
        log.info("logging in at %s", clip(urlsplit(visit.url).netloc))
        try:
            async with asyncio.timeout(settings.timeout):
                self._listener.expect(visit.state)
                await given(settings.open_browser or _open, visit.url)
                return await self._listener.answer()
        except TimeoutError:
            raise NobodyCame(f"nobody logged in within {settings.timeout:g} s").at(
                hint=f"open {visit.url} in a browser on this machine, or pass paste="
            ) from None

    async def _show(self, code: ShowCode) -> None:
        settings = self._settings
        assert isinstance(settings, DeviceLogin)
        shown = code.complete if code.complete is not None and presentable(code.complete) else code.url
        if not presentable(shown):
            raise LoginFailed("the address to enter the code at is not one a browser should open")
        await given(settings.show or _tell, shown, code.code)


def _pasted(url: str) -> dict[str, str]:
    if not url.strip():
        raise LoginFailed("nothing was pasted: the login was given up")
    try:
        found = dict(parse_qsl(urlsplit(url.strip()).query, max_num_fields=32))
    except ValueError:
        found = {}
    if not found:
        raise LoginFailed(f"what was pasted is not the address the browser ended up at: {clip(url.strip())!r}").at(
            hint="after the login the browser shows an address with code= and state= in it, often on a page that fails "
            "to load: copy all of it"
        )
    return found


def _open(url: str) -> None:
    if not webbrowser.open(url):
        log.warning("no browser could be opened; open this address yourself: %s", url)


def _tell(url: str, code: str) -> None:
    log.warning("to log in, open %s and enter the code %s", url, code)


async def given(value: Any, *args: Any) -> Any:
    """A value, or what a function of the user's returns for it."""
    return await run(value, *args) if callable(value) else value
