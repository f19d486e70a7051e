"""Logins that are kept between runs, and how a command line logs in: never where nobody is there to do it."""

import sys
import webbrowser
from typing import Any

import click

from dovetail.auth.login import Login
from dovetail.auth.settings import Bearer, DeviceLogin, OAuth
from dovetail.cli import text
from dovetail.errors import LoginFailed
from dovetail.login.stores import FileStore

_HINT = "dovetail auth login, with the same target"


def setting(given: str | None, url: str) -> Any:
    """What `--auth` says, or else the login kept for this server, if there is one."""
    if given is not None and given != "oauth":
        try:
            return Bearer(given.removeprefix("Bearer "))
        except ValueError:
            raise click.UsageError("--auth is oauth, or a token: one word of plain characters") from None
    if given is None and found(url) is None:
        return None
    return OAuth(open_browser=open_page if given is not None and sys.stderr.isatty() else _refuse)


def found(url: str) -> Login | None:
    """The login kept for a server."""
    try:
        stored = FileStore().get(url)
    except LoginFailed as exc:
        raise click.ClickException(str(exc)) from None
    login = Login.load(stored) if stored is not None else None
    if stored is not None and login is None:
        text.note(f"what was kept for {url} is no login that can be understood: it is not used")
    return login


def everyone() -> list[Login]:
    """Every login that is kept."""
    return [login for data in FileStore().all() if (login := Login.load(data)) is not None]


def _refuse(_: str) -> None:
    raise LoginFailed("a new login is needed").at(hint=_HINT)


def open_page(url: str) -> None:
    """Send the user to a page, and name it, should no browser come up."""
    text.note(f"opening a browser; if none comes up, open this on this machine: {url}")
    webbrowser.open(url)


def paste(url: str) -> str:
    """Let the user carry the address over from another machine."""
    if not sys.stdin.isatty():
        raise LoginFailed("there is nobody to paste the address").at(hint="run it at a terminal")
    click.echo(f"Open this in any browser, log in, and paste here the address it ends at:\n{text.line(url)}", err=True)
    return sys.stdin.readline().strip()


def show_code(url: str, code: str) -> None:
    """Name the page and the code to enter there."""
    click.echo(f"Open {text.line(url)} and enter the code {text.line(code)}", err=True)


def wished(how: str, **given: Any) -> Any:
    """The setting for a login the user asks for."""
    if given.get("client_id") is None:
        given["client_secret"] = None  # of another client, in the environment
    if how == "device":
        return DeviceLogin(show=show_code, **given)
    return OAuth(**{"paste": paste} if how == "paste" else {"open_browser": open_page}, **given)
