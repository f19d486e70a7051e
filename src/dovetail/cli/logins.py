"""Saved logins, and the login methods of commands. Without a terminal, a command never waits for a login."""

import shlex
import sys
import webbrowser
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click

from dovetail.auth.token_stores import FileTokenStore
from dovetail.error_context import add_context
from dovetail.errors import LoginFailed, UnsupportedFileVersion
from dovetail.oauth.login.login_settings import BearerAuth, DeviceLogin, OAuth
from dovetail.oauth.login.saved_login import SavedLogin
from dovetail.protocol.redaction import mask_text, strip_url
from dovetail.terminal import output
from dovetail.terminal.line_reader import LineReader


def create_auth(auth_option: str | None, url: str) -> Any:
    """Return the credentials for a URL: the value of --auth, the saved login, or None."""
    if auth_option is not None and auth_option != "oauth":
        try:
            return BearerAuth(auth_option.removeprefix("Bearer "))
        except ValueError:
            raise click.UsageError('--auth must be "oauth" or a bearer token without spaces') from None
    saved_login = load_login(url)
    if auth_option is None and saved_login is None:
        return None
    is_interactive = sys.stdin.isatty() and sys.stderr.isatty()

    def reject_login(login_url: str) -> None:
        missing_scopes = find_missing_scopes(
            saved_login, parse_qs(urlsplit(login_url).query).get("scope", [""])[0].split()
        )
        # The user has already agreed to the scopes of the saved login.
        requested_before = saved_login.scopes if saved_login is not None else ()
        new_scopes = [scope for scope in missing_scopes if scope not in requested_before] or missing_scopes
        problem = (
            f"a login with the scope {' '.join(new_scopes)} is required"
            if new_scopes and saved_login
            else "a new login is required"
        )
        raise add_context(LoginFailed(problem), hint=format_login_command(url, new_scopes if saved_login else ()))

    return OAuth(open_browser=open_browser if is_interactive else reject_login)


def format_login_command(url: str, scopes: Iterable[str] = ()) -> str:
    """Return the command line that logs in and requests these scopes."""
    options = (f"--scope {shlex.quote(scope)}" for scope in scopes)
    return " ".join(("dovetail auth login", shlex.quote(mask_text(url)), *options))


def get_granted_scopes(saved_login: SavedLogin) -> list[str]:
    """Return the scopes of a login. A token without a list of scopes has all requested scopes. RFC 6749, section 5.1"""
    token_scope = saved_login.token.scope if saved_login.token is not None else None
    return token_scope.split() if token_scope is not None else list(saved_login.scopes)


def find_missing_scopes(saved_login: SavedLogin | None, scopes: Iterable[str]) -> list[str]:
    """Return the requested scopes that a login does not have. `offline_access` is ignored, because tokens do not list
    it.
    """
    granted_scopes = {"offline_access", *(get_granted_scopes(saved_login) if saved_login is not None else ())}
    return [scope for scope in scopes if scope not in granted_scopes]


def load_login(url: str) -> SavedLogin | None:
    """Return the saved login for a server. If the login cannot be read, print the reason and return None."""
    try:
        stored = FileTokenStore().get(url)
    except LoginFailed as exc:
        output.print_note(f"cannot read the saved login for {strip_url(url)}: {exc}")
        return None
    return _decode_login(stored, strip_url(url), FileTokenStore().get_path(url)) if stored is not None else None


def load_all_logins() -> list[SavedLogin]:
    """Return all saved logins that can be read."""
    return [login for path in FileTokenStore().list_files() if (login := _load_login_file(path)) is not None]


def _load_login_file(path: Path) -> SavedLogin | None:
    try:
        return _decode_login(path.read_bytes(), str(path), path)
    except UnsupportedFileVersion as exc:
        output.print_note(f"cannot read a saved login: {exc}")
    except OSError as exc:
        output.print_note(f"cannot read a saved login: {exc.strerror}: {exc.filename}")
    return None


def _decode_login(stored: bytes, name: str, path: Path) -> SavedLogin | None:
    login = SavedLogin.load(stored, path)
    if login is None:
        output.print_note(f"cannot read the saved login for {name}: invalid data")
    return login


class NewLoginStore:
    """A token store that keeps the saved login until a new login succeeds."""

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
    """Open a browser. Also print the URL, because the browser may fail to open."""
    output.print_note(f"opening a browser. If the browser does not open, visit this URL on this machine: {url}")
    if not webbrowser.open(url) and not sys.stderr.isatty():
        raise add_context(
            LoginFailed("cannot log in: no browser opened, and stderr is not a terminal"),
            hint="log in with --paste at a terminal, or with --device if the authorization server supports it",
        )


def prompt_for_redirect(url: str) -> str:
    """Ask the user to paste the redirect URL from a browser on another machine."""
    click.echo("Open this URL in any browser, log in, and paste the URL you are redirected to:", err=True)
    return LineReader().read_line(f"{output.escape_full_line(url)}\n")


def print_device_code(url: str, code: str) -> None:
    """Print the URL of the login page and the code to enter there. Both come from the authorization server."""
    click.echo("To log in, open this page and enter this code:", err=True)
    output.print_quoted(f"{output.escape_full_line(url)}\n{output.escape_line(code)}")


def create_login_auth(login_method: str, **options: Any) -> Any:
    """Return the auth object for a login method, such as the device flow."""
    if options.get("client_id") is None:
        # Without a client ID, ignore DOVETAIL_CLIENT_SECRET, because it belongs to another client.
        options["client_secret"] = None
    if login_method == "device":
        return DeviceLogin(show_code=print_device_code, **options)
    if login_method == "paste":
        return OAuth(paste_redirect=prompt_for_redirect, **options)
    return OAuth(open_browser=open_browser, **options)
