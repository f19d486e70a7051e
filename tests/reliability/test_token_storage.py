"""Tokens on disk: many processes refresh a token once, and a process that dies loses or mixes up nothing."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import record_measurement

from dovetail import Client
from dovetail.auth.token_stores import FileTokenStore
from dovetail.oauth.login.saved_login import SavedLogin
from support.guarded_server import GuardedServer, HttpRequest, User, oauth_settings, run_guarded_server, wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="platform: kills as POSIX does")

# Waits for a line before each request, so that all begin at once; a browser is not expected to be needed.
CALLER = """
import asyncio, sys
from dovetail import Client, MCPError
from dovetail.auth import OAuth

def never(url):
    print("a browser was asked for", flush=True)

async def main():
    async with Client(sys.argv[1], auth=OAuth(token_store=sys.argv[2], open_browser=never, timeout=1)) as client:
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            try:
                await client.ping()
                print("done", flush=True)
            except MCPError as error:
                print("failed", type(error).__name__, str(error)[:200].replace("\\n", " "), flush=True)

asyncio.run(main())
"""


class Caller:
    """A client in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, url: str, store: Path) -> "Caller":
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, "-c", CALLER, url, str(store)]
        caller = cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))
        assert await caller.line() == "ready"
        return caller

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            return (await self.process.stdout.readline()).decode().strip()

    async def stop(self) -> None:
        if self.process.returncode is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            async with asyncio.timeout(30):
                await self.process.wait()
        # asyncio has no public way to close the pipes of a process that was killed.
        transport = self.process._transport  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
        transport.close()  # pyright: ignore[reportUnknownMemberType]


async def logged_in(place: GuardedServer, store: Path) -> None:
    user = User()
    async with Client(place.url, auth=oauth_settings(user, token_store=str(store))) as client:
        await client.ping()
    await user.close()


async def test_many_processes_renew_a_token_once(tmp_path: Path) -> None:
    async with run_guarded_server() as place:
        await logged_in(place, tmp_path)
        callers = await asyncio.gather(*(Caller.start(place.url, tmp_path) for _ in range(4)))
        for expiry in range(1, 7):
            place.valid.clear()
            for caller in callers:
                caller.go()
            assert [await caller.line() for caller in callers] == ["done"] * 4
            assert place.refreshes == expiry
        await asyncio.gather(*(caller.stop() for caller in callers))
        record_measurement("refreshes per expiry, 4 processes", place.refreshes / 6, "")
        assert place.logins == 1


async def test_a_process_that_dies_during_a_refresh_blocks_no_other(tmp_path: Path) -> None:
    async with run_guarded_server() as place:
        await logged_in(place, tmp_path)
        first, second = await asyncio.gather(*(Caller.start(place.url, tmp_path) for _ in range(2)))
        place.valid.clear()
        held = asyncio.Event()

        async def hold(_: HttpRequest) -> None:
            if not held.is_set():
                held.set()
                await asyncio.sleep(3600)

        place.says["/token"] = hold
        first.go()
        async with asyncio.timeout(30):
            await held.wait()
        second.go()
        first.process.kill()
        assert await second.line() == "done"
        assert (place.logins, place.refreshes) == (1, 2)  # the one that was never answered, and the one that was
        await asyncio.gather(first.process.wait(), second.stop())
        await first.stop()


WRITER = """
import re, sys
from dovetail.auth.token_stores import FileTokenStore
store = FileTokenStore(sys.argv[1])
kept = store.get("k")
while True:
    for end in (b"1", b"2"):
        store.set("k", re.sub(rb"access-[0-9]+", b"access-" + end * 2000, kept))
"""


def test_a_login_is_whole_whenever_its_writer_dies(tmp_path: Path) -> None:
    store = FileTokenStore(tmp_path)
    asyncio.run(_stored(tmp_path, store))
    chance = random.Random(33)
    torn = 0
    for _ in range(12):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)])
        before = _seen(tmp_path)
        while _seen(tmp_path) == before:
            assert writer.poll() is None
        for _ in range(chance.randrange(2000)):
            pass
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        kept = store.get("k")
        assert kept is not None
        login = SavedLogin.load(kept)
        assert login is not None
        assert login.token is not None
        torn += len(set(login.token.access_token.removeprefix("access-"))) != 1
    record_measurement("torn logins in 12 kills", torn, "")
    assert not torn


async def _stored(folder: Path, store: FileTokenStore) -> None:
    async with run_guarded_server() as place:
        await logged_in(place, folder)
        kept = store.get(place.url)
    assert kept is not None
    assert b"access-3" in kept
    store.set("k", kept)


def _seen(folder: Path) -> set[tuple[str, int]]:
    return {(path.name, path.stat().st_ino) for path in folder.glob("*.json")}


async def test_processes_of_several_servers_do_not_mix_their_tokens(tmp_path: Path) -> None:
    async with run_guarded_server() as here, run_guarded_server() as there:
        here.issued, there.issued = 1000, 2000
        await logged_in(here, tmp_path)
        await logged_in(there, tmp_path)
        callers = await asyncio.gather(*(Caller.start(one.url, tmp_path) for one in (here, there) * 2))
        for _ in range(5):
            here.valid.clear()
            there.valid.clear()
            for caller in callers:
                caller.go()
            assert [await caller.line() for caller in callers] == ["done"] * 4
        await asyncio.gather(*(caller.stop() for caller in callers))
        for place, foreign in ((here, "-2"), (there, "-1")):
            assert place.refreshes == 5
            shown = {one.headers.get("authorization", "") + one.body.decode() for one in place.asked}
            assert not [text for text in shown if f"access{foreign}" in text or f"refresh{foreign}" in text]


async def test_logins_beside_each_other_do_not_overwrite_what_the_other_needs(tmp_path: Path) -> None:
    """Verifier and state are of one login, never of a file that another process writes too."""
    async with run_guarded_server() as place:
        users = [User() for _ in range(4)]
        for user in users:
            user.ready.clear()
        clients = [Client(place.url, auth=oauth_settings(user, token_store=str(tmp_path))) for user in users]
        async with asyncio.TaskGroup() as group:
            entering = [group.create_task(client.__aenter__()) for client in clients]
            await wait_until(lambda: all(user.opened for user in users))
            for user in reversed(users):
                user.ready.set()
            await asyncio.gather(*entering)
        for client in clients:
            await client.ping()
            await client.__aexit__(None, None, None)
        for user in users:
            await user.close()
        assert place.logins == 4
        assert place.count("/token") == 4
        kept = FileTokenStore(tmp_path).get(place.url)
        assert kept is not None
        assert SavedLogin.load(kept) is not None
    assert {os.stat(path).st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}  # noqa: ASYNC240
