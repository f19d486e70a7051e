"""Test token stores: file permissions, crashes during a write, and one refresh at a time."""

import asyncio
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from dovetail.auth import token_stores
from dovetail.auth.token_stores import FileTokenStore, KeyringTokenStore, MemoryTokenStore, create_token_store
from dovetail.errors import LoginFailed

KEY = "https://mcp.example.com/mcp"


@pytest.fixture
def store(tmp_path: Path) -> FileTokenStore:
    return FileTokenStore(tmp_path / "tokens")


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_what_is_set_is_got_until_it_is_deleted(kind: str, tmp_path: Path) -> None:
    one = MemoryTokenStore() if kind == "memory" else FileTokenStore(tmp_path)
    assert one.get(KEY) is None
    one.set(KEY, b"1")
    one.set(KEY, b"2")
    one.set(KEY + "/other", b"3")
    assert (one.get(KEY), one.get(KEY + "/other")) == (b"2", b"3")
    one.delete(KEY)
    one.delete(KEY)
    assert (one.get(KEY), one.get(KEY + "/other")) == (None, b"3")


def test_all_of_it(store: FileTokenStore) -> None:
    assert store.list_files() == []
    store.set(KEY, b"1")
    store.set(KEY + "/other", b"2")
    assert sorted([place.read_bytes() for place in store.list_files()]) == [b"1", b"2"]


def test_only_the_user_can_read_it(store: FileTokenStore, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store.set(KEY, b"x")
        asyncio.run(_lock_once(store))
    finally:
        os.umask(before)
    folder = tmp_path / "tokens"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert len(list(folder.iterdir())) == 2


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
@pytest.mark.parametrize("mode", [0o644, 0o640])
def test_files_readable_by_others_are_closed_and_reported(
    store: FileTokenStore, tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    store.set(KEY, b"x")
    (place,) = (tmp_path / "tokens").iterdir()
    place.chmod(mode)
    assert store.get(KEY) == b"x"
    assert place.stat().st_mode & 0o777 == 0o600
    assert store.list_files() == [place]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{mode:o}" in caplog.text


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
@pytest.mark.parametrize("mode", [0o602, 0o666])
def test_a_file_that_others_can_write_is_refused(store: FileTokenStore, tmp_path: Path, mode: int) -> None:
    """It may name another authorization server, which would receive the refresh token."""
    store.set(KEY, b"x")
    (place,) = (tmp_path / "tokens").iterdir()
    place.chmod(mode)
    with pytest.raises(LoginFailed):
        store.get(KEY)
    store.set(KEY, b"new")
    assert store.get(KEY) == b"new"


def test_an_unreadable_file_is_explained(store: FileTokenStore, tmp_path: Path) -> None:
    store.set(KEY, b"x")
    (place,) = (tmp_path / "tokens").iterdir()
    place.unlink()
    place.mkdir()  # a mode would stop anyone but root
    with pytest.raises(LoginFailed, match="Is a directory") as caught:
        store.get(KEY)
    assert caught.value.hint is not None


async def test_a_folder_that_cannot_be_created_is_explained(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(LoginFailed, match="taken"):
        await _lock_once(FileTokenStore(tmp_path / "taken"))


async def _lock_once(store: FileTokenStore) -> None:
    async with store.lock(KEY):
        pass


def test_no_key_leads_out_of_the_folder(store: FileTokenStore, tmp_path: Path) -> None:
    for key in ("../../x", "/etc/passwd", "a\0b", "", "x" * 9999, "é"):
        store.set(key, key.encode())
        assert store.get(key) == key.encode()
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


CRASHING = """
import os, signal, sys
from pathlib import Path
from dovetail.auth.token_stores import FileTokenStore
if sys.argv[2] == "before the move":
    os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "half written":
    os.fsync = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
FileTokenStore(sys.argv[1]).set("k", b"new" * 100_000)
if sys.argv[2] == "after the move":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("when", "expected"), [("half written", b"old"), ("before the move", b"old"), ("after the move", b"new" * 100_000)]
)
def test_a_crash_leaves_the_old_or_the_new(store: FileTokenStore, tmp_path: Path, when: str, expected: bytes) -> None:
    store.set("k", b"old")
    command = [sys.executable, "-c", CRASHING, str(tmp_path / "tokens"), when]
    assert subprocess.run(command, check=False, timeout=30).returncode == -signal.SIGKILL
    assert store.get("k") == expected
    store.set("k", b"next")
    assert store.get("k") == b"next"


def test_a_failed_write_leaves_nothing_behind(
    store: FileTokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.set(KEY, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.set(KEY, b"new")
    assert store.get(KEY) == b"old"
    assert len(list((tmp_path / "tokens").iterdir())) == 1


# The lock

HOLDING = """
import asyncio, sys
from dovetail.auth.token_stores import FileTokenStore
async def main():
    async with FileTokenStore(sys.argv[1]).lock("k"):
        print("held", flush=True)
        await asyncio.sleep(3600)
asyncio.run(main())
"""


async def test_another_process_is_waited_for_and_its_death_frees_the_lock(
    store: FileTokenStore, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", HOLDING, str(tmp_path / "tokens")]
    holder = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"held\n"
    waiting = asyncio.create_task(_entered(store))
    done, _ = await asyncio.wait([waiting], timeout=0.3)
    assert not done
    holder.kill()
    await holder.wait()
    async with asyncio.timeout(10):
        await waiting


async def _entered(store: FileTokenStore) -> None:
    async with store.lock("k"):
        pass


async def test_one_at_a_time_in_this_process_too(store: FileTokenStore) -> None:
    inside = 0

    async def work() -> None:
        nonlocal inside
        async with store.lock("k"):
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1

    async with asyncio.timeout(30):
        await asyncio.gather(*(work() for _ in range(10)))


async def test_other_servers_do_not_wait(store: FileTokenStore) -> None:
    async with store.lock("k"), asyncio.timeout(5), store.lock("other"):
        pass


async def test_a_process_that_hangs_is_not_waited_for_without_end(
    store: FileTokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_stores, "LOCK_TIMEOUT_S", 0.1)
    async with store.lock("k"):
        with pytest.raises(LoginFailed):
            await _entered(store)
    await _entered(store)


async def test_an_internal_failure_is_raised_unchanged(store: FileTokenStore) -> None:
    with pytest.raises(TimeoutError):
        async with store.lock("k"):
            raise TimeoutError
    await _entered(store)


# The keyring


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], str]:
    kept: dict[tuple[str, str], str] = {}

    class Module(types.ModuleType):
        def get_password(self, service: str, key: str) -> str | None:
            return kept.get((service, key))

        def set_password(self, service: str, key: str, value: str) -> None:
            kept[service, key] = value

        def delete_password(self, service: str, key: str) -> None:
            del kept[service, key]

    monkeypatch.setitem(sys.modules, "keyring", Module("keyring"))
    return kept


async def test_the_keyring_of_the_system(
    keyring: dict[tuple[str, str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    one = create_token_store("keyring")
    assert isinstance(one, KeyringTokenStore)
    assert one.get(KEY) is None
    one.set(KEY, "é".encode())
    assert one.get(KEY) == "é".encode()
    assert keyring == {("dovetail-tokens", KEY): "é"}
    async with one.lock(KEY):
        pass
    one.delete(KEY)
    one.delete(KEY)
    assert not keyring
    assert [path.suffix for path in (tmp_path / "dovetail" / "tokens").iterdir()] == [".lock"]


def test_a_keyring_that_forgets_nothing_says_so(
    keyring: dict[tuple[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a user who logged out would believe that nothing is kept."""
    one = create_token_store("keyring")
    one.set(KEY, b"login")

    def locked(*_: str) -> None:
        raise RuntimeError("the collection is locked")

    for name in ("delete_password", "get_password"):
        monkeypatch.setattr(sys.modules["keyring"], name, locked)
        with pytest.raises(LoginFailed, match="collection is locked"):
            one.delete(KEY)


def test_without_the_library_there_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ValueError, match="pip install keyring"):
        create_token_store("keyring")


# Names of stores


def test_a_store_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    create_token_store("file").set(KEY, b"x")
    assert len(list((tmp_path / "dovetail" / "tokens").iterdir())) == 1
    create_token_store(str(tmp_path / "mine")).set(KEY, b"x")
    create_token_store(tmp_path / "mine").set(KEY + "2", b"x")
    assert len(list((tmp_path / "mine").iterdir())) == 2
    own = MemoryTokenStore()
    assert create_token_store(own) is own
    assert isinstance(create_token_store("memory"), MemoryTokenStore)


def test_what_names_no_store_is_refused() -> None:
    """A slip of the pen must not become a folder of logins."""
    with pytest.raises(ValueError, match=r'"memory".*"\./keyrin"'):
        create_token_store("keyrin")
    with pytest.raises(TypeError, match=r"get.*set.*delete"):
        create_token_store(object())
