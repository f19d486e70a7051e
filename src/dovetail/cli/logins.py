"""Logins that are kept between runs, and how a command line logs in: never where nobody is there to do it."""

import sys
import webbrowser
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click

from dovetail.auth.login import Login
from dovetail.auth.settings import Bearer, DeviceLogin, OAuth
from dovetail.cli import text
from dovetail.errors import LoginFailed
from dovetail.login.stores import FileStore


def setting(given: str | None, url: str) -> Any:
    """What `--auth` says, or else the login kept for this server, if there is one."""
    if given is not None and given != "oauth":
        try:
            return Bearer(given.removeprefix("Bearer "))
        except ValueError:
            raise click.UsageError("--auth is oauth, or a token: one word of plain characters") from None
    kept = found(url)
    if given is None and kept is None:
        return None
    attended = sys.stdin.isatty() and sys.stderr.isatty()

    def refuse(page: str) -> None:
        wanted = lacking(kept, parse_qs(urlsplit(page).query).get("scope", [""])[0].split())
        before = kept.scopes if kept is not None else ()  # what was asked for in vain is asked for again, but not news
        missing = [one for one in wanted if one not in before] or wanted
        what = f"a login with the scope {' '.join(missing)} is needed" if missing and kept else "a new login is needed"
        raise LoginFailed(what).at(hint=again(url, missing if kept else ()))

    return OAuth(open_browser=open_page if attended else refuse)


def again(url: str, scopes: Iterable[str] = ()) -> str:
    """The command that logs in, with what else is to be asked for."""
    return " ".join(("dovetail auth login", url, *(f"--scope {one}" for one in scopes)))


def granted(kept: Login) -> list[str]:
    """What a login may be used for. A token that does not say it has all that was asked for. RFC 6749, section 5.1"""
    said = kept.token.scope if kept.token is not None else None
    return said.split() if said is not None else list(kept.scopes)


def lacking(kept: Login | None, wanted: Iterable[str]) -> list[str]:
    """What of the wanted scopes a login does not have; leave to renew it is not shown in its token."""
    has = {"offline_access", *(granted(kept) if kept is not None else ())}
    return [one for one in wanted if one not in has]


def found(url: str) -> Login | None:
    """The login kept for a server; one that cannot be read is told and counts as none."""
    try:
        stored = FileStore().get(url)
    except LoginFailed as exc:
        text.note(f"the login kept for {url} cannot be read: {exc}")
        return None
    return _loaded(stored, url) if stored is not None else None


def everyone() -> list[Login]:
    """Every login that is kept and can be read."""
    return [login for place in FileStore().places() if (login := _at(place)) is not None]


def _at(place: Path) -> Login | None:
    try:
        return _loaded(place.read_bytes(), str(place))
    except OSError as exc:
        text.note(f"a login cannot be read: {exc.strerror}: {exc.filename}")
        return None


def _loaded(stored: bytes, where: str) -> Login | None:
    login = Login.load(stored)
    if login is None:
        text.note(f"the login kept for {where} cannot be read: it is damaged")
    return login


class Renewed:
    """A store that knows nothing until a login has come about: until then the one that is kept stays as it is."""

    def __init__(self) -> None:
        self.login: Login | None = None
        self._kept = FileStore()

    def get(self, key: str) -> bytes | None:
        return self._kept.get(key) if self.login is not None else None

    def set(self, key: str, value: bytes) -> None:
        self.login = Login.load(value)
        self._kept.set(key, value)

    def delete(self, key: str) -> None:
        self._kept.delete(key)


def open_page(url: str) -> None:
    """Send the user to a page, and name it, should no browser come up."""
    text.note(f"opening a browser; if none comes up, open this on this machine: {url}")
    if not webbrowser.open(url) and not sys.stderr.isatty():
        raise LoginFailed("there is no browser here, and nobody at a terminal to open the page").at(
            hint="log in with --device, or with --paste at a terminal"
        )


def paste(url: str) -> str:
    """Let the user carry the address over from another machine."""
    click.echo(f"Open this in any browser, log in, and paste here the address it ends at:\n{text.whole(url)}", err=True)
    return sys.stdin.readline().strip()


def show_code(url: str, code: str) -> None:
    """Name the page and the code to enter there."""
    click.echo(f"Open {text.whole(url)} and enter the code {text.line(code)}", err=True)


def wished(how: str, **given: Any) -> Any:
    """The setting for a login the user asks for."""
    if given.get("client_id") is None:
        given["client_secret"] = None  # of another client, in the environment
    if how == "device":
        return DeviceLogin(show=show_code, **given)
    return OAuth(**{"paste": paste} if how == "paste" else {"open_browser": open_page}, **given)
