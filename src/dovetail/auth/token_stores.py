"""Token stores, which save logins in memory, in files that only the user can read, or in the system's keyring.

A lock file ensures that only one process at a time renews a token.
"""

import contextlib
import hashlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

from dovetail.error_context import add_context, clip
from dovetail.errors import LoginFailed
from dovetail.oauth.login.login_settings import TokenStore
from dovetail.storage import get_data_dir, lock_path_async, make_private_dir, read_private_file, replace_file

LOCK_TIMEOUT_S: Final = 60.0  # the seconds to wait while another process renews the token


class MemoryTokenStore:
    """A token store in memory. The tokens are lost when the process ends."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def set(self, key: str, value: bytes) -> None:
        self._values[key] = value

    def delete(self, key: str) -> None:
        self._values.pop(key, None)


class FileTokenStore:
    """A token store with one file per server in a directory. Only the user can read the files."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self._folder = Path(folder) if folder is not None else get_data_dir() / "tokens"

    def get(self, key: str) -> bytes | None:
        path = self.get_path(key)
        try:
            return read_private_file(path)
        except OSError as exc:
            raise _unusable_error(path, exc) from exc

    def set(self, key: str, value: bytes) -> None:
        make_private_dir(self._folder)
        replace_file(self.get_path(key), value)

    def delete(self, key: str) -> None:
        self.get_path(key).unlink(missing_ok=True)

    def get_path(self, key: str) -> Path:
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    def list_files(self) -> list[Path]:
        return sorted(self._folder.glob("*.json"))

    @contextlib.asynccontextmanager
    async def lock(self, key: str) -> AsyncGenerator[None]:
        """Hold the lock for a key. Only one caller in all processes can hold the lock at a time."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                make_private_dir(self._folder)
                await stack.enter_async_context(lock_path_async(self.get_path(key), LOCK_TIMEOUT_S))
            except TimeoutError:
                raise LoginFailed("timeout while waiting for another process to renew the token") from None
            except OSError as exc:
                raise _unusable_error(self._folder, exc) from exc
            yield


def _unusable_error(path: Path, exc: OSError) -> LoginFailed:
    return add_context(
        LoginFailed(f"cannot use the saved logins in {path}: {exc.strerror or exc}"),
        hint="the directory must belong to the user who runs this program. To use another directory, pass token_store=",
    )


class KeyringTokenStore:
    """A token store in the keyring of the operating system. The store uses files as locks."""

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
                LoginFailed(f"cannot delete the login from the keyring: {clip(str(exc)) or type(exc).__name__}"),
                hint="the keyring may be locked. Unlock it and try again",
            ) from exc

    def lock(self, key: str) -> "contextlib.AbstractAsyncContextManager[None]":
        return self._lock_store.lock(key)


def create_token_store(setting: Any) -> TokenStore:
    match setting:
        case "memory":
            return MemoryTokenStore()
        case "file":
            return FileTokenStore()
        case "keyring":
            try:
                return KeyringTokenStore()
            except ImportError:
                raise ValueError('token_store="keyring" requires the keyring library: pip install keyring') from None
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
