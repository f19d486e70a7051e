"""Logins that are kept between runs, and how a command line logs in: never where nobody is there to do it."""

import sys
import webbrowser
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click

from dovetail.auth.token_stores import FileTokenStore
from dovetail.error_context import add_context
from dovetail.errors import LoginFailed
from dovetail.oauth.login.login_settings import BearerAuth, DeviceLogin, OAuth
from dovetail.oauth.login.saved_login import SavedLogin
from dovetail.terminal import output


def create_auth(auth_option: str | None, url: str) -> Any:
    """What `--auth` says, or else the login kept for this server, if there is one."""
    if auth_option is not None and auth_option != "oauth":
        try:
            return BearerAuth(auth_option.removeprefix("Bearer "))
        except ValueError:
            raise click.UsageError("--auth is oauth, or a token: one word of plain characters") from None
    saved_login = load_login(url)
    if auth_option is None and saved_login is None:
        return None
    is_interactive = sys.stdin.isatty() and sys.stderr.isatty()

    def reject_login(login_url: str) -> None:
        missing_scopes = find_missing_scopes(
            saved_login, parse_qs(urlsplit(login_url).query).get("scope", [""])[0].split()
        )
        requested_before = (
            saved_login.scopes if saved_login is not None else ()
        )  # what was asked for in vain is asked for again, but not news
        new_scopes = [scope for scope in missing_scopes if scope not in requested_before] or missing_scopes
        problem = (
            f"a login with the scope {' '.join(new_scopes)} is needed"
            if new_scopes and saved_login
            else "a new login is needed"
        )
        raise add_context(LoginFailed(problem), hint=format_login_command(url, new_scopes if saved_login else ()))

    return OAuth(open_browser=open_browser if is_interactive else reject_login)


def format_login_command(url: str, scopes: Iterable[str] = ()) -> str:
    """The command that logs in, with what else is to be asked for."""
    return " ".join(("dovetail auth login", url, *(f"--scope {scope}" for scope in scopes)))


def get_granted_scopes(saved_login: SavedLogin) -> list[str]:
    """What a login may be used for. A token that does not say it has all that was asked for. RFC 6749, section 5.1"""
    token_scope = saved_login.token.scope if saved_login.token is not None else None
    return token_scope.split() if token_scope is not None else list(saved_login.scopes)


def find_missing_scopes(saved_login: SavedLogin | None, scopes: Iterable[str]) -> list[str]:
    """What of the wanted scopes a login does not have; leave to renew it is not shown in its token."""
    granted_scopes = {"offline_access", *(get_granted_scopes(saved_login) if saved_login is not None else ())}
    return [scope for scope in scopes if scope not in granted_scopes]


def load_login(url: str) -> SavedLogin | None:
    """The login kept for a server; one that cannot be read is told and counts as none."""
    try:
        stored = FileTokenStore().get(url)
    except LoginFailed as exc:
        output.print_note(f"the login kept for {url} cannot be read: {exc}")
        return None
    return _decode_login(stored, url) if stored is not None else None


def load_all_logins() -> list[SavedLogin]:
    """Every login that is kept and can be read."""
    return [login for path in FileTokenStore().list_files() if (login := _load_login_file(path)) is not None]


def _load_login_file(path: Path) -> SavedLogin | None:
    try:
        return _decode_login(path.read_bytes(), str(path))
    except OSError as exc:
        output.print_note(f"a login cannot be read: {exc.strerror}: {exc.filename}")
        return None


def _decode_login(stored: bytes, source: str) -> SavedLogin | None:
    login = SavedLogin.load(stored)
    if login is None:
        output.print_note(f"the login kept for {source} cannot be read: it is damaged")
    return login


class NewLoginStore:
    """A store that knows nothing until a login has come about: until then the one that is kept stays as it is."""

    def __init__(self) -> None:
        self.login: SavedLogin | None = None
        self._file_store = FileTokenStore()

    def get(self, key: str) -> bytes | None:
        return self._file_store.get(key) if self.login is not None else None

    def set(self, key: str, value: bytes) -> None:
        self.login = SavedLogin.load(value)
        self._file_store.set(key, value)

    def delete(self, key: str) -> None:
        self._file_store.delete(key)


def open_browser(url: str) -> None:
    """Send the user to a page, and name it, should no browser come up."""
    output.print_note(f"opening a browser; if none comes up, open this on this machine: {url}")
    if not webbrowser.open(url) and not sys.stderr.isatty():
        raise add_context(
            LoginFailed("there is no browser here, and nobody at a terminal to open the page"),
            hint="log in with --device, or with --paste at a terminal",
        )


def prompt_for_redirect(url: str) -> str:
    """Let the user carry the address over from another machine."""
    click.echo(
        f"Open this in any browser, log in, and paste here the address it ends at:\n{output.escape_full_line(url)}",
        err=True,
    )
    return sys.stdin.readline().strip()


def print_device_code(url: str, code: str) -> None:
    """Name the page and the code to enter there."""
    click.echo(f"Open {output.escape_full_line(url)} and enter the code {output.escape_line(code)}", err=True)


def create_login_auth(login_method: str, **options: Any) -> Any:
    """The setting for a login the user asks for."""
    if options.get("client_id") is None:
        options["client_secret"] = None  # of another client, in the environment
    if login_method == "device":
        return DeviceLogin(show_code=print_device_code, **options)
    if login_method == "paste":
        return OAuth(paste_redirect=prompt_for_redirect, **options)
    return OAuth(open_browser=open_browser, **options)
