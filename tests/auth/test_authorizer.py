"""Test that concurrent callers share one login and one refresh, and how logins fail, are cancelled or closed."""

import asyncio
import functools
import json
import logging
import os
import re
import signal
import sys
import time
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, MCPError, Timeouts
from dovetail.auth import BearerAuth, ClientCredentials, DeviceLogin, EnterpriseLogin, OAuth
from dovetail.auth.authorizer import OAuthAuthorizer, create_authorizer
from dovetail.auth.token_stores import FileTokenStore, MemoryTokenStore
from dovetail.errors import Forbidden, HTTPStatusError, LoginFailed, Unauthorized
from dovetail.oauth.login.saved_login import SavedLogin
from dovetail.transports.http_client.http_client import HTTPClient
from dovetail.transports.http_client.remote_server import RemoteServer, create_http_client
from support.guarded_server import (
    TIMEOUT_S,
    GuardedServer,
    HttpReply,
    HttpRequest,
    User,
    create_client,
    http_get,
    oauth_settings,
    run_guarded_server,
    wait_until,
)

# Logging in


class Together:
    """Let the first requests wait at the server until all of them are there, so that all are refused before a login
    can begin."""

    def __init__(self, count: int) -> None:
        self._missing, self._complete = count, asyncio.Event()

    async def __call__(self, asked: HttpRequest) -> None:
        self._missing -= 1
        if self._missing == 0:
            self._complete.set()
        await self._complete.wait()


async def test_many_requests_share_one_login(place: GuardedServer, user: User) -> None:
    async with create_client(place, user) as one:
        await asyncio.gather(*(one.ping() for _ in range(20)))
    assert (place.logins, place.count("/register"), place.count("/token")) == (1, 1, 1)


async def test_a_login_that_fails_fails_for_all_and_leaves_the_client_usable(place: GuardedServer, user: User) -> None:
    def refuse(asked: HttpRequest) -> HttpReply:
        back = f"?error=access_denied&state={asked.query['state']}&iss={place.origin}"
        return HttpReply(302, None, {"location": asked.query["redirect_uri"] + back})

    async with create_client(place, user) as one:
        await one.ping()
        place.valid.clear()
        place.refreshable.clear()
        place.says["/authorize"] = refuse
        place.says["/mcp"] = Together(10)
        user.ready.clear()
        pings = [asyncio.create_task(one.ping()) for _ in range(10)]
        await wait_until(lambda: len(user.opened) == 2)
        user.ready.set()
        found = await asyncio.gather(*pings, return_exceptions=True)
        assert all(isinstance(error, LoginFailed) and error.oauth_error == "access_denied" for error in found)
        assert len(user.opened) == 2
        del place.says["/authorize"]
        await one.ping()
    assert len(user.opened) == 3


async def test_a_request_that_gives_up_leaves_the_login_to_the_others(place: GuardedServer, user: User) -> None:
    async with create_client(place, user) as one:
        await one.ping()
        place.valid.clear()
        place.refreshable.clear()
        user.ready.clear()
        user.called.clear()
        place.says["/mcp"] = Together(2)  # both learn at the same time that they need a login
        first, second = asyncio.create_task(one.ping()), asyncio.create_task(one.ping())
        await user.called.wait()
        for _ in range(5):  # the second response has arrived after these round trips
            await http_get(place.origin + "/")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        user.ready.set()
        await second
    assert len(user.opened) == 2


async def test_an_abandoned_login_ends(place: GuardedServer, user: User) -> None:
    async with create_client(place, user) as one:
        await one.ping()
        place.valid.clear()
        place.refreshable.clear()
        user.ready.clear()
        user.called.clear()
        ping = asyncio.create_task(one.ping())
        await user.called.wait()
        port = int(user.opened[-1].split("127.0.0.1%3A")[1].split("%2F")[0])
        ping.cancel()
        await asyncio.gather(ping, return_exceptions=True)
        with pytest.raises(OSError, match=r"."):
            await asyncio.open_connection("127.0.0.1", port)
        user.ready.set()
        await one.ping()
    assert len(user.opened) == 3


async def test_a_client_that_is_closed_while_logging_in(place: GuardedServer, user: User) -> None:
    user.ready.clear()
    one = create_client(place, user)
    before = asyncio.all_tasks()
    entering = asyncio.create_task(one.__aenter__())
    await user.called.wait()
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    await wait_until(
        lambda: len(asyncio.all_tasks() - before - {entering}) <= 3
    )  # the user's browser, the place's connections


async def test_a_request_open_when_the_client_closes(place: GuardedServer, user: User) -> None:
    async with create_client(place, user) as one:
        await one.ping()
        place.valid.clear()
        place.refreshable.clear()
        user.ready.clear()
        user.called.clear()
        ping = asyncio.create_task(one.ping())
        await user.called.wait()
    done, _ = await asyncio.wait([ping], timeout=10)
    assert done
    assert ping.cancelled() or isinstance(ping.exception(), MCPError)


async def test_no_clock_runs_while_the_user_logs_in(place: GuardedServer, user: User) -> None:
    user.ready.clear()
    limits = Timeouts(discover=0.3, initialize=0.3, request=0.3, total=0.3)
    async with asyncio.TaskGroup() as group:
        one = Client(place.url, auth=oauth_settings(user), timeout=limits)
        entering = group.create_task(one.__aenter__())
        await user.called.wait()
        await asyncio.sleep(0.7)
        user.ready.set()
        await entering
        await one.ping()
        await one.__aexit__(None, None, None)
    assert place.logins == 1


async def test_a_login_without_an_answer_times_out(place: GuardedServer, user: User) -> None:
    user.ready.clear()
    with pytest.raises(LoginFailed, match=r"0\.05") as refused:
        async with create_client(place, user, timeout=0.05):
            pass
    assert "/authorize?" in str(refused.value)


async def test_a_registration_no_login_came_of_is_not_used_again(place: GuardedServer, user: User) -> None:
    """Whoever forgot a client tells the user so, on a page the program does not see."""
    async with create_client(place, user, timeout=0.5) as one:
        place.clients.clear()
        place.valid.clear()
        place.refreshable.clear()
        place.says["/token"] = lambda asked: HttpReply(400, {"error": "invalid_grant"}) if not place.clients else None
        with pytest.raises(LoginFailed, match=r"0\.5"):
            await one.ping()
        await one.ping()
    assert place.count("/register") == 2


async def test_a_client_that_was_forgotten_is_registered_again(place: GuardedServer, user: User) -> None:
    async with create_client(place, user) as one:
        place.clients.clear()
        place.valid.clear()
        await one.ping()
    assert (place.count("/register"), place.logins, place.refreshes) == (2, 2, 1)


async def test_a_second_login_uses_the_first_registration(place: GuardedServer, user: User, tmp_path: Path) -> None:
    for _ in range(2):
        async with create_client(place, user, token_store=str(tmp_path)) as one:
            await one.ping()
        place.valid.clear()
        place.refreshable.clear()
    assert (place.logins, place.count("/register")) == (2, 1)


# Using a token


async def test_a_login_outlives_the_program(place: GuardedServer, user: User, tmp_path: Path) -> None:
    for _ in range(3):
        async with create_client(place, user, token_store=str(tmp_path)) as one:
            await one.ping()
    assert (place.logins, place.refreshes) == (1, 0)


async def test_a_token_is_renewed_before_it_ends(place: GuardedServer, user: User) -> None:
    place.expires_in = 0.2
    async with create_client(place, user) as one:
        place.expires_in = 3600
        await asyncio.sleep(0.15)
        before = place.count("/mcp")
        await asyncio.gather(*(one.ping() for _ in range(10)))
        assert place.count("/mcp") == before + 10
    assert (place.logins, place.refreshes) == (1, 1)


async def test_a_token_refused_in_use_is_renewed_and_the_request_sent_once_more(
    place: GuardedServer, user: User
) -> None:
    async with create_client(place, user) as one:
        place.valid.clear()
        before = place.count("/mcp")
        await one.ping()
        assert place.count("/mcp") == before + 2
    assert (place.logins, place.refreshes) == (1, 1)


async def test_many_refused_at_once_are_renewed_once(place: GuardedServer, user: User) -> None:
    async with create_client(place, user) as one:
        place.valid.clear()
        await asyncio.gather(*(one.ping() for _ in range(20)))
    assert (place.logins, place.refreshes) == (1, 1)


async def test_a_renewed_token_that_is_refused_leads_to_a_login(place: GuardedServer, user: User) -> None:
    async with create_client(place, user) as one:
        refused = {*place.valid, "access-5"}
        place.accepts = lambda token: token not in refused
        await one.ping()
    assert (place.logins, place.refreshes) == (2, 1)


async def test_a_server_that_takes_no_token_is_not_logged_in_to_again_and_again(
    place: GuardedServer, user: User
) -> None:
    place.accepts = lambda token: False
    with pytest.raises(Unauthorized):
        async with create_client(place, user):
            pass
    assert place.logins == 1


async def test_a_refresh_token_that_is_gone_leads_to_a_login(place: GuardedServer, user: User, tmp_path: Path) -> None:
    async with create_client(place, user, token_store=str(tmp_path)) as one:
        place.valid.clear()
        place.refreshable.clear()
        await one.ping()
    assert (place.logins, place.refreshes) == (2, 1)


async def test_an_authorization_server_that_is_down_costs_nothing_while_the_token_lasts(
    place: GuardedServer, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.expires_in = 10
    async with create_client(place, user) as one:
        place.says["/token"] = lambda asked: HttpReply(503)
        one_token = next(iter(place.valid))
        await one.ping()
        _pass(monkeypatch, 6)  # past the time to renew
        await one.ping()
        assert place.refreshes == 1
        _pass(monkeypatch, 6)  # past its end
        with pytest.raises(LoginFailed, match="503"):
            await one.ping()
        del place.says["/token"]
        await one.ping()
        assert one_token in place.valid
    assert place.logins == 1


def _pass(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Move the clock that tokens are checked against."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + seconds)


async def test_a_refresh_continues_without_waiting_callers(place: GuardedServer, user: User) -> None:
    """Its refresh token is spent when the request has left: whoever drops the answer has lost the login."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(asked: HttpRequest) -> None:
        if asked.form["grant_type"] == "refresh_token":
            begun.set()
            await go.wait()

    async with create_client(place, user) as one:
        place.says["/token"] = slow
        place.valid.clear()
        ping = asyncio.create_task(one.ping())
        await begun.wait()
        ping.cancel()
        await asyncio.gather(ping, return_exceptions=True)
        go.set()
        await one.ping()
    assert (place.logins, place.refreshes) == (1, 1)


async def test_a_renewal_is_waited_for_when_the_client_closes(place: GuardedServer, user: User, tmp_path: Path) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(asked: HttpRequest) -> None:
        if asked.form["grant_type"] == "refresh_token":
            begun.set()
            await go.wait()

    async def leave_early() -> None:
        async with create_client(place, user, token_store=str(tmp_path)) as one:
            place.says["/token"] = slow
            place.valid.clear()
            ping = asyncio.create_task(one.ping())
            await begun.wait()
            ping.cancel()
            await asyncio.gather(ping, return_exceptions=True)
            asyncio.get_running_loop().call_later(0.5, go.set)

    await leave_early()
    kept = FileTokenStore(tmp_path).get(place.url)
    assert kept is not None
    login = SavedLogin.load(kept)
    assert login is not None
    assert login.token is not None
    assert login.token.access_token in place.valid
    async with create_client(place, user, token_store=str(tmp_path)) as one:
        await one.ping()
    assert (place.logins, place.refreshes) == (1, 1)


async def test_a_valid_token_does_not_wait_for_a_login(
    place: GuardedServer, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.expires_in = 10
    async with create_client(place, user) as one:
        place.need = {"write"}
        user.ready.clear()
        waiting = asyncio.create_task(one.ping())
        await wait_until(lambda: len(user.opened) == 2)
        place.need = set()
        _pass(monkeypatch, 6)  # past the time to renew
        async with asyncio.timeout(10):
            await one.ping()
        assert place.refreshes == 0
        user.ready.set()
        await waiting


async def test_closing_a_session_starts_no_login(place: GuardedServer, user: User) -> None:
    driver = create_authorizer(place.url, oauth_settings(user), HTTPClient)
    door = RemoteServer(place.url, max_response_bytes=1000, connect_timeout=5.0, authorizer=driver)
    reply = await door.send("DELETE", [])
    assert reply.status == 401
    reply.close()
    await door.close()
    assert not user.opened


async def test_cookies_of_the_server_are_not_sent_during_a_login(place: GuardedServer, user: User) -> None:
    def set_cookie(asked: HttpRequest) -> HttpReply:
        reply = place.mcp(asked)
        return HttpReply(reply.status, reply.body, {**reply.headers, "set-cookie": "lb=a; Path=/"})

    place.says["/mcp"] = set_cookie
    async with create_client(place, user) as one:
        await one.ping()
    assert place.logins == 1
    assert {asked.path for asked in place.asked if "cookie" in asked.headers} == {"/mcp"}


# More scopes


async def test_a_scope_that_is_missing_is_asked_for_with_those_before(place: GuardedServer, user: User) -> None:
    async with create_client(place, user, scopes=["read"]) as one:
        place.need = {"write"}
        await one.ping()
        await one.ping()
    asked = [one.query["scope"] for one in place.asked if one.path == "/authorize"]
    assert asked == ["read", "read write"]
    assert place.count("/register") == 1


async def test_a_registration_that_may_not_ask_for_a_scope_is_not_used_again(place: GuardedServer, user: User) -> None:
    async with create_client(place, user) as one:
        place.need = {"write"}
        back = lambda asked: f"{asked.query['redirect_uri']}?error=invalid_scope&state={asked.query['state']}"  # noqa: E731
        place.says["/authorize"] = lambda asked: HttpReply(302, None, {"location": f"{back(asked)}&iss={place.origin}"})
        with pytest.raises(LoginFailed, match="invalid_scope"):
            await one.ping()
        del place.says["/authorize"]
        await one.ping()
    assert place.count("/register") == 2


async def test_a_scope_that_is_not_granted_is_asked_for_once(place: GuardedServer, user: User) -> None:
    place.granted = lambda asked: asked - {"write"}
    async with create_client(place, user) as one:
        place.need = {"write"}
        for _ in range(3):
            with pytest.raises(Forbidden):
                await one.ping()
        assert place.logins == 2
        place.need = {"admin"}
        await one.ping()
    assert place.logins == 3


async def test_a_server_cannot_ask_for_more_without_end(place: GuardedServer, user: User) -> None:
    """Each would open another page before the user."""
    async with create_client(place, user) as one:
        asked = 0
        for number in range(12):
            place.need = {f"scope{number}"}
            try:
                await one.ping()
            except Forbidden:
                asked += 1
        assert (place.logins, asked) == (6, 7)


async def test_only_what_the_user_named_is_asked_for(place: GuardedServer, user: User) -> None:
    async with create_client(place, user, scopes="read", exact_scopes=True) as one:
        place.need = {"admin"}
        with pytest.raises(Forbidden):
            await one.ping()
    assert [one.query["scope"] for one in place.asked if one.path == "/authorize"] == ["read"]


async def test_a_login_for_a_scope_that_fails_leaves_the_token(place: GuardedServer, user: User) -> None:
    async with create_client(place, user) as one:
        place.need = {"write"}
        place.says["/authorize"] = lambda asked: HttpReply(
            302,
            None,
            {"location": f"{asked.query['redirect_uri']}?error=no&state={asked.query['state']}&iss={place.origin}"},
        )
        with pytest.raises(LoginFailed) as refused:
            await one.ping()
        assert refused.value.oauth_error == "no"
        place.need = set()
        await one.ping()
    assert place.refreshes == 0


async def test_a_plain_403_starts_no_login(place: GuardedServer, user: User) -> None:
    async with create_client(place, user) as one:
        place.says["/mcp"] = lambda asked: HttpReply(403, None, {"www-authenticate": 'Bearer error="invalid_request"'})
        with pytest.raises(Forbidden):
            await one.ping()
    assert place.logins == 1


# Where tokens go


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_token_never_goes_to_another_origin(place: GuardedServer, user: User, status: int) -> None:
    async with run_guarded_server() as other, create_client(place, user) as one:
        place.says["/mcp"] = lambda asked: HttpReply(status, None, {"location": other.url})
        with pytest.raises(HTTPStatusError):
            await one.ping()
        assert not other.asked
        del place.says["/mcp"]


async def test_an_address_without_a_scheme_is_another_origin_too(place: GuardedServer, user: User) -> None:
    async with run_guarded_server() as other, create_client(place, user) as one:
        for location in (
            other.url.removeprefix("http:"),
            "\\\\" + other.url.removeprefix("http://"),
            other.url.upper(),
        ):
            place.says["/mcp"] = lambda asked, to=location: HttpReply(307, None, {"location": to})
            with pytest.raises(HTTPStatusError):
                await one.ping()
        assert not other.asked
        del place.says["/mcp"]


@pytest.mark.parametrize("path", ["/token", "/register"])
@pytest.mark.parametrize("status", [302, 307, 308])
async def test_credentials_are_not_redirected(place: GuardedServer, user: User, path: str, status: int) -> None:
    async with run_guarded_server() as other:
        place.says[path] = lambda asked: HttpReply(status, None, {"location": other.origin + path})
        with pytest.raises(LoginFailed, match=str(status)):
            async with create_client(place, user):
                pass
        assert not other.asked


async def test_a_token_follows_a_redirect_at_home(place: GuardedServer, user: User) -> None:
    place.says["/mcp"] = lambda asked: HttpReply(307, None, {"location": "/moved"})
    place.says["/moved"] = place.mcp
    async with create_client(place, user) as one:
        await one.ping()
    assert place.logins == 1


# DPoP


async def test_a_new_nonce_is_used_by_all_requests(place: GuardedServer, user: User) -> None:
    nonce = ["n1"]

    def guard(asked: HttpRequest) -> HttpReply | None:
        from joserfc import jwt
        from joserfc.jwk import ECKey

        if "dpop" not in asked.headers:
            return None
        proof = jwt.decode(asked.headers["dpop"], lambda sent: ECKey.import_key(sent.headers()["jwk"]))
        if proof.claims.get("nonce") != nonce[0]:
            headers = {"www-authenticate": 'DPoP error="use_dpop_nonce"', "dpop-nonce": nonce[0]}
            return HttpReply(401, None, headers)
        return None

    def bind(asked: HttpRequest) -> HttpReply:
        said = place.token(asked)
        return HttpReply(said.status, said.body | {"token_type": "DPoP"})

    place.says |= {"/mcp": guard, "/token": bind}
    async with create_client(place, user, dpop=True) as one:
        for nonce[0] in ("n2", "n3"):
            await asyncio.gather(*(one.ping() for _ in range(8)))
    assert (place.logins, place.refreshes) == (1, 0)


# What is kept


async def test_a_store_that_is_broken_costs_only_the_next_run(
    place: GuardedServer, user: User, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def get(self, key: str) -> bytes:
            raise OSError("cannot be read")

        def set(self, key: str, value: bytes) -> None:
            raise OSError("is full")

        def delete(self, key: str) -> None: ...

    with caplog.at_level(logging.WARNING, "dovetail"):
        async with create_client(place, user, token_store=Broken()) as one:
            place.valid.clear()
            await one.ping()
    assert (place.logins, place.refreshes) == (1, 1)
    assert "cannot be read" in caplog.text
    assert "is full" in caplog.text
    assert "access-" not in caplog.text


async def test_an_invalid_login_is_reported_and_not_used(
    place: GuardedServer, user: User, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with create_client(place, user, token_store=str(tmp_path)) as one:
        await one.ping()
    FileTokenStore(tmp_path).set(place.url, b"{broken")
    async with create_client(place, user, token_store=str(tmp_path)) as one:
        await one.ping()
    assert place.logins == 2
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert place.origin.removeprefix("http://") in warning.getMessage()


async def test_a_store_of_ones_own_needs_three_methods(place: GuardedServer, user: User) -> None:
    class Own:
        def __init__(self) -> None:
            self.kept: dict[str, bytes] = {}

        def get(self, key: str) -> bytes | None:
            return self.kept.get(key)

        def set(self, key: str, value: bytes) -> None:
            self.kept[key] = value

        def delete(self, key: str) -> None: ...

    own = Own()
    for _ in range(2):
        async with create_client(place, user, token_store=own) as one:
            place.valid.clear()
            await one.ping()
    assert list(own.kept) == [place.url]
    assert place.logins == 1


@pytest.mark.parametrize("kept", [b"", b"{", b"\xff\x00", b'{"resource": "https://evil.example"}'])
async def test_a_damaged_login_is_none(place: GuardedServer, user: User, kept: bytes) -> None:
    store = MemoryTokenStore()
    store.set(place.url, kept)
    async with create_client(place, user, token_store=store) as one:
        await one.ping()
    assert place.logins == 1


async def test_a_login_kept_for_another_client_is_not_used(place: GuardedServer, user: User) -> None:
    store = MemoryTokenStore()
    async with create_client(place, user, token_store=store):
        pass
    place.clients.add("by-hand")
    async with create_client(place, user, token_store=store, client_id="by-hand"):
        pass
    assert place.logins == 2


async def test_a_login_kept_for_another_server_is_not_used(place: GuardedServer, user: User) -> None:
    """However it came there: a token is shown only to the origin it was issued for."""
    store = MemoryTokenStore()
    async with run_guarded_server() as other:
        async with Client(other.url, auth=oauth_settings(user, token_store=store)):
            pass
        stolen = store.get(other.url)
        assert stolen is not None
        store.set(place.url, stolen)
        async with create_client(place, user, token_store=store):
            pass
    assert not [asked for asked in place.asked if asked.path == "/mcp" and "authorization" in asked.headers][1:-1]
    assert place.logins == 1


async def test_many_clients_of_one_file_renew_once(place: GuardedServer, user: User, tmp_path: Path) -> None:
    """More than there are threads to wait in: whoever holds the lock still gets one to write with."""
    async with create_client(place, user, token_store=str(tmp_path)):
        pass
    clients = [create_client(place, user, token_store=str(tmp_path)) for _ in range(40)]
    for one in clients:
        await one.__aenter__()
    place.valid.clear()
    async with asyncio.timeout(60):
        await asyncio.gather(*(one.ping() for one in clients))
    for one in clients:
        await one.__aexit__(None, None, None)
    assert (place.logins, place.refreshes) == (1, 1)


async def test_a_lock_given_up_on_is_free(tmp_path: Path) -> None:
    store = FileTokenStore(tmp_path)
    async with store.lock("k"):
        waiting = asyncio.create_task(_hold(store))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(5), store.lock("k"):
        pass


async def _hold(store: FileTokenStore) -> None:
    async with store.lock("k"):
        pass


# The other ways


async def test_paste(place: GuardedServer) -> None:
    from support.guarded_server import http_get

    asked: list[str] = []

    async def paste(url: str) -> str:
        asked.append(url)
        return (await http_get(url))[1]["location"]

    async with Client(place.url, auth=OAuth(paste_redirect=paste, token_store="memory")) as one:
        await one.ping()
    assert len(asked) == 1
    assert "redirect_uri=http%3A%2F%2F127.0.0.1%3A8765%2Fcallback" in asked[0]


PASTING = {
    "Client": """
import asyncio, sys
from dovetail import Client
from dovetail.auth import OAuth
async def main():
    async with Client(sys.argv[1], auth=OAuth(paste_redirect=input, token_store="memory")):
        pass
asyncio.run(main())
""",
    "SyncClient": """
import sys
from dovetail import SyncClient
from dovetail.auth import OAuth
with SyncClient(sys.argv[1], auth=OAuth(paste_redirect=input, token_store="memory")):
    pass
""",
}


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of our own")
@pytest.mark.parametrize("way", ["terminal", "pipe"])
@pytest.mark.parametrize("kind", PASTING)
async def test_an_interrupt_ends_a_login_that_waits_for_a_paste(place: GuardedServer, kind: str, way: str) -> None:
    ours, theirs = os.openpty() if way == "terminal" else os.pipe()[::-1]
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PASTING[kind], place.url, stdin=theirs, stdout=PIPE, stderr=PIPE
        )
        assert process.stdout is not None
        async with asyncio.timeout(20):
            await process.stdout.readuntil(b"/authorize?")
            process.send_signal(signal.SIGINT)
            _, words = await process.communicate()
    finally:
        os.close(ours)
        os.close(theirs)
    assert words.strip().endswith(b"KeyboardInterrupt")
    assert b"Fatal" not in words
    assert b"never retrieved" not in words
    assert place.count("/token") == 0


async def test_the_end_of_input_gives_a_login_up(place: GuardedServer) -> None:
    def paste(url: str) -> str:
        raise EOFError

    with pytest.raises(LoginFailed):
        await Client(place.url, auth=OAuth(paste_redirect=paste, token_store="memory")).connect()
    assert place.count("/token") == 0


async def test_what_should_have_been_pasted_is_explained(place: GuardedServer) -> None:
    with pytest.raises(LoginFailed, match="'nonsense'") as caught:
        await Client(place.url, auth=OAuth(paste_redirect=lambda _: "nonsense", token_store="memory")).connect()
    assert re.search("code=.*state=", caught.value.hint or "")


@pytest.mark.parametrize(
    "pasted",
    ["", "nonsense", "http://127.0.0.1:8765/callback?code=x&state=guessed", "http://x?code=a&code=b", "http://[::1"],
)
async def test_something_else_pasted(place: GuardedServer, pasted: str) -> None:
    with pytest.raises(LoginFailed):
        async with Client(place.url, auth=OAuth(paste_redirect=lambda url: pasted, token_store="memory")):
            pass
    assert place.count("/token") == 0


async def test_another_device(place: GuardedServer) -> None:
    place.server["device_authorization_endpoint"] = f"{place.origin}/device"
    answers = [HttpReply(400, {"error": "authorization_pending"}), None]
    place.says["/device"] = lambda asked: HttpReply(
        200, {"device_code": "d", "user_code": "AB-12", "verification_uri": f"{place.origin}/enter", "interval": 1}
    )
    place.says["/token"] = lambda asked: answers.pop(0) or place.issue(set())
    shown: list[tuple[str, str]] = []
    auth = DeviceLogin(show_code=lambda url, code: shown.append((url, code)), token_store="memory")
    async with Client(place.url, auth=auth) as one:
        await one.ping()
    assert shown == [(f"{place.origin}/enter", "AB-12")]
    assert not answers


async def test_without_a_way_to_show_it_the_code_is_logged(
    place: GuardedServer, caplog: pytest.LogCaptureFixture
) -> None:
    place.server["device_authorization_endpoint"] = f"{place.origin}/device"
    place.says["/device"] = lambda asked: HttpReply(
        200, {"device_code": "d", "user_code": "AB-12", "verification_uri": f"{place.origin}/enter", "interval": 1}
    )
    place.says["/token"] = lambda asked: place.issue(set())
    async with Client(place.url, auth=DeviceLogin(token_store="memory")) as one:
        await one.ping()
    assert re.search(f"{re.escape(place.origin)}/enter.*AB-12", caplog.text)


@pytest.mark.parametrize("uri", ["javascript:alert(1)", "file:///etc/passwd", "http://evil.example/", 7])
async def test_another_device_is_not_sent_just_anywhere(place: GuardedServer, uri: Any) -> None:
    place.server["device_authorization_endpoint"] = f"{place.origin}/device"
    said = {"device_code": "d", "user_code": "x", "verification_uri": uri, "verification_uri_complete": uri}
    place.says["/device"] = lambda asked: HttpReply(200, said)
    shown: list[str] = []
    auth = DeviceLogin(show_code=lambda url, code: shown.append(url), token_store="memory")
    with pytest.raises(LoginFailed):
        async with Client(place.url, auth=auth):
            pass
    assert not shown


async def test_a_program_logs_in_again_when_its_token_ends(place: GuardedServer) -> None:
    place.says["/token"] = lambda asked: place.issue(set())
    async with Client(place.url, auth=ClientCredentials(client_id="job", client_secret="s")) as one:
        place.valid.clear()
        place.refreshable.clear()
        await one.ping()


async def test_a_companys_identity_provider_may_be_in_a_private_network() -> None:
    server, issuer, idp = "https://mcp.example.com", "https://login.example.com", "https://idp.corp.internal/token"
    documents: dict[str, Any] = {
        f"{server}/.well-known/oauth-protected-resource/mcp": {
            "resource": f"{server}/mcp", "authorization_servers": [issuer],
        },
        f"{issuer}/.well-known/oauth-authorization-server": {"issuer": issuer, "token_endpoint": f"{issuer}/token"},
        idp: {"access_token": "grant", "issued_token_type": "urn:ietf:params:oauth:token-type:id-jag"},
        f"{issuer}/token": {"access_token": "the-token", "token_type": "Bearer"},
    }  # fmt: skip

    class Documents(HTTPClient):
        async def fetch(self, method: str, url: str, headers: Any, body: bytes = b"") -> Any:
            return Document(json.dumps(documents[url]).encode())

    company = EnterpriseLogin(client_id="me", idp_client_id="me", idp_token_endpoint=idp, id_token="id", issuer=issuer)
    driver = create_authorizer(f"{server}/mcp", company, lambda **_: Documents())
    assert await driver.handle_challenge(401, "Bearer", None, None, 1)
    assert await driver.get_headers("POST", f"{server}/mcp") == [(b"authorization", b"Bearer the-token")]


class Document:
    """A reply that holds a document."""

    def __init__(self, body: bytes) -> None:
        self.status, self.headers, self._body = 200, dict[bytes, bytes](), body

    async def read(self) -> bytes:
        return self._body


@pytest.mark.parametrize(
    ("auth", "told"),
    [
        (7, "int"),
        (OAuth, "OAuth"),
        ({"token": "s3cret"}, "dict"),
    ],
)
async def test_an_invalid_setting_is_refused_at_once(auth: Any, told: str) -> None:
    with pytest.raises(TypeError, match=f"'oauth'.*WorkloadIdentity.*{told}") as refused:
        Client("http://127.0.0.1:1/mcp", auth=auth)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("auth", ["oauth", BearerAuth("t")])
async def test_two_ways_to_say_who_is_calling_are_one_too_many(auth: Any) -> None:
    with pytest.raises(ValueError, match=r"headers=.*auth="):
        Client("http://127.0.0.1:1/mcp", headers={"authorization": "Bearer x"}, auth=auth)


# The end of a login


def driver(place: GuardedServer, user: User, tmp_path: Path) -> OAuthAuthorizer:
    make = functools.partial(create_http_client, None, True, None, TIMEOUT_S)
    return create_authorizer(place.url, oauth_settings(user, token_store=tmp_path), make)


async def test_a_login_that_is_ended_is_forgotten_and_its_tokens_too(
    place: GuardedServer, user: User, tmp_path: Path
) -> None:
    place.server["revocation_endpoint"] = f"{place.origin}/revoke"
    place.says["/revoke"] = lambda asked: HttpReply(200)
    async with create_client(place, user, token_store=tmp_path):
        pass
    assert await driver(place, user, tmp_path).log_out()
    (revoked,) = [one.form for one in place.asked if one.path == "/revoke"]
    assert revoked["token"] in place.refreshable
    assert revoked["client_id"]
    assert not await driver(place, user, tmp_path).log_out()
    async with create_client(place, user, token_store=tmp_path):
        pass
    assert place.logins == 2


async def test_a_login_is_forgotten_even_if_the_revocation_fails(
    place: GuardedServer, user: User, tmp_path: Path
) -> None:
    place.server["revocation_endpoint"] = f"{place.origin}/revoke"
    place.says["/revoke"] = lambda asked: HttpReply(500)
    async with create_client(place, user, token_store=tmp_path):
        pass
    assert not await driver(place, user, tmp_path).log_out()
    async with create_client(place, user, token_store=tmp_path):
        pass
    assert place.logins == 2


async def test_a_login_is_not_forgotten_while_it_is_renewed(place: GuardedServer, user: User, tmp_path: Path) -> None:
    async with create_client(place, user, token_store=tmp_path):
        pass
    store = FileTokenStore(tmp_path)
    async with store.lock(place.url):
        leaving = asyncio.create_task(driver(place, user, tmp_path).log_out())
        await asyncio.sleep(0.1)
        assert store.get(place.url) is not None
    await leaving
    assert store.get(place.url) is None
