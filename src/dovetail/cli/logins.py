"""Logins that are kept between runs."""

from typing import Any

from dovetail.auth.login import Login
from dovetail.login.stores import FileStore


def kept(url: str) -> Any:
    """The setting that uses a login kept for this server, if there is one."""
    return "oauth" if found(url) is not None else None


def found(url: str) -> Login | None:
    """The login kept for a server."""
    stored = FileStore().get(url)
    return Login.load(stored) if stored is not None else None
