"""Token stores: in memory, in files that only the user can read, or in the keyring of the system.

A file is written beside its place and moved there, so a crash leaves the old one or the new one, never half of one; a
lock beside it lets one process at a time renew a token, and ends with the process.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

from dovetail.error_context import add_context, clip
from dovetail.errors import LoginFailed
from dovetail.oauth.login.login_settings import TokenStore
from dovetail.storage import get_data_dir, open_lock_file, replace_file, try_lock

log = logging.getLogger("dovetail")

LOCK_TIMEOUT_S: Final = 60.0  # for another process that renews, which takes a request or two
_LOCK_POLL_INTERVAL_S: Final = 0.02


class MemoryTokenStore:
    """For one run only."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def set(self, key: str, value: bytes) -> None:
        self._values[key] = value

    def delete(self, key: str) -> None:
        self._values.pop(key, None)


class FileTokenStore:
    """One file per server in a folder of the user's, readable by nobody else."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self._folder = Path(folder) if folder is not None else get_data_dir() / "tokens"

    def get(self, key: str) -> bytes | None:
        return _read_private_file(self._file_path(key))

    def set(self, key: str, value: bytes) -> None:
        self._make_folder()
        replace_file(self._file_path(key), value)

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._file_path(key).unlink()

    def list_files(self) -> list[Path]:
        """The file of everything that is kept."""
        return sorted(self._folder.glob("*.json"))

    @contextlib.asynccontextmanager
    async def lock(self, key: str) -> AsyncGenerator[None]:
        """Held by one at a time, here and in other processes.

        Asked for again and again, since a thread that waits for it could neither be cancelled nor lent to its holder.
        """
        try:
            self._make_folder()
            handle = open_lock_file(self._file_path(key))
        except OSError as exc:
            raise _unusable_error(self._folder, exc) from exc
        try:
            async with asyncio.timeout(LOCK_TIMEOUT_S):
                while not try_lock(handle):  # noqa: ASYNC110 - other processes set no event
                    await asyncio.sleep(_LOCK_POLL_INTERVAL_S)
        except BaseException as exc:
            os.close(handle)
            if isinstance(exc, TimeoutError):
                raise LoginFailed("another process has been renewing the token for too long") from None
            raise
        try:
            yield
        finally:
            os.close(handle)  # which lets go of the lock

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _file_path(self, key: str) -> Path:
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _read_private_file(path: Path) -> bytes | None:
    """What a file holds; None if there is none. One that others could read is theirs no longer, and the log says so."""
    try:
        with path.open("rb") as file:
            if os.name == "posix" and (mode := os.fstat(file.fileno()).st_mode & 0o777) & 0o077:
                os.fchmod(file.fileno(), 0o600)
                log.warning("the login kept in %s could be read by others (mode %o): it is 600 now", path, mode)
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise _unusable_error(path, exc) from exc


def _unusable_error(path: Path, exc: OSError) -> LoginFailed:
    return add_context(
        LoginFailed(f"logins kept in {path} cannot be used: {exc.strerror or exc}"),
        hint="the directory must belong to the user who runs this program, or pass another token_store=",
    )


class KeyringTokenStore:
    """The system's keyring, by the keyring library; the locks are files."""

    def __init__(self, service: str = "dovetail-tokens") -> None:
        import keyring

        self._keyring: Any = keyring
        self._service = service
        self._lock_store = FileTokenStore()

    def get(self, key: str) -> bytes | None:
        password = self._keyring.get_password(self._service, key)
        return None if password is None else password.encode()

    def set(self, key: str, value: bytes) -> None:
        self._keyring.set_password(self._service, key, value.decode())

    def delete(self, key: str) -> None:
        try:
            if self._keyring.get_password(self._service, key) is not None:
                self._keyring.delete_password(self._service, key)
        except Exception as exc:
            raise add_context(
                LoginFailed(f"the keyring does not forget the login: {clip(str(exc)) or type(exc).__name__}"),
                hint="it may be locked: unlock it, and try again",
            ) from exc

    def lock(self, key: str) -> "contextlib.AbstractAsyncContextManager[None]":
        return self._lock_store.lock(key)


def create_token_store(setting: Any) -> TokenStore:
    """The store a setting names."""
    match setting:
        case "memory":
            return MemoryTokenStore()
        case "file":
            return FileTokenStore()
        case "keyring":
            try:
                return KeyringTokenStore()
            except ImportError:
                raise ValueError('token_store="keyring" needs the keyring library: pip install keyring') from None
        case Path():
            return FileTokenStore(setting)
        case str() if os.sep in setting or "/" in setting:
            return FileTokenStore(setting)
        case str():
            raise ValueError(f'token_store must be "file", "keyring", "memory", or a directory such as "./{setting}"')
        case _ if all(callable(getattr(setting, name, None)) for name in ("get", "set", "delete")):
            return setting
        case _:
            raise TypeError("token_store must have the methods get(key), set(key, value) and delete(key)")
