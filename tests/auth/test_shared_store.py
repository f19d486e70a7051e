"""Test an authorization server whose workers keep their data in shared state."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dovetail.auth import AuthorizationServer
from dovetail.auth.shared_store import SharedStateStore
from dovetail.cluster import Cluster
from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.oauth.authorization_server.identity_provider import UpstreamProvider
from dovetail.oauth.authorization_server.responses import hash_secret
from dovetail.oauth.authorization_server.store import StoreUnavailable, TokenGrant
from dovetail.oauth.guard.claims import TokenRejected
from dovetail.oauth.login.saved_login import Token
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable
from dovetail.protocol.versioned_codec import add_format, remove_format
from dovetail.wire.codec import decode, encode
from oauth.server_harness import ISSUER, REDIRECT_URI, RESOURCE, Browser, ServerHarness, complete, decode_body

NOW = 1_800_000_000.0
CLIENT = {
    "redirect_uris": [REDIRECT_URI],
    "token_endpoint_auth_method": "none",
    "grant_types": ["authorization_code", "refresh_token"],
}


class FailingBackend(MemoryBackend):
    """A back end that can be away, and that can bring back what was deleted, as a replica does."""

    is_away = False
    keeps_deleted = False
    lost_answers = 0  # so many changes happen, but their answers are lost

    def _lose_answer(self) -> None:
        if self.lost_answers:
            self.lost_answers -= 1
            raise SharedStateUnavailable("the answer is lost")

    async def use_once(self, *args: Any, **options: Any) -> bool:
        is_first = await super().use_once(*args, **options)
        self._lose_answer()
        return is_first

    async def write(self, *args: Any, **options: Any) -> int | None:
        version = await super().write(*args, **options)
        self._lose_answer()
        return version

    def _open_hub(self) -> Any:
        if self.is_away:
            raise SharedStateUnavailable("away")
        return super()._open_hub()

    async def delete(self, name: str, *, expected: int | None = None) -> bool:
        if self.keeps_deleted:
            return await self.read(name) is not None
        return await super().delete(name, expected=expected)


class Workers:
    """Three workers of one authorization server."""

    def __init__(self, **options: Any) -> None:
        first = FailingBackend()
        self.backends = [first, FailingBackend(first), FailingBackend(first)]
        self.stores = [SharedStateStore(backend, ISSUER) for backend in self.backends]
        self.harnesses = [ServerHarness(store=store, **options) for store in self.stores]


def redeem(worker: ServerHarness, code: str, browser: Browser) -> Any:
    return worker.token(
        grant_type="authorization_code",
        code=code,
        code_verifier=browser.verifier,
        redirect_uri=REDIRECT_URI,
        resource=RESOURCE,
    )


def verify(worker: ServerHarness, token: str) -> str:
    return worker.run_flow(worker.verifier.verify(token, (RESOURCE,))).subject


def test_each_step_of_a_login_may_reach_another_worker() -> None:
    first, second, third = Workers().harnesses
    browser = Browser(first)
    browser.open()
    browser.harness = second
    code = browser.request_code()
    tokens = decode_body(redeem(third, code, browser))
    assert {verify(worker, tokens["access_token"]) for worker in (first, second, third)} == {"developer"}
    renewed = decode_body(first.token(grant_type="refresh_token", refresh_token=tokens["refresh_token"]))
    assert verify(second, renewed["access_token"]) == "developer"


async def test_a_swap_keeps_what_a_newer_release_has_added() -> None:
    backend = MemoryBackend()
    store = SharedStateStore(backend, ISSUER)
    await store.put("family", "f", b"old", NOW + 60, NOW)
    name = f"{ISSUER}\0family\0f"
    stored = await backend.read(name)
    assert stored is not None
    values = decode(remove_format(stored.data) or b"")
    await backend.write(name, add_format(encode([*values, "added"])), 60)
    assert await store.swap("family", "f", b"old", b"new", NOW + 90, NOW + 1)
    changed = await backend.read(name)
    assert changed is not None
    assert decode(remove_format(changed.data) or b"")[1:] == [NOW + 1, NOW + 90, values[3], "added"]
    assert await store.get("family", "f", NOW + 2) == b"new"


def test_a_code_is_redeemed_by_one_worker_and_a_second_use_ends_the_login() -> None:
    first, second, third = Workers().harnesses
    browser = Browser(first)
    code = browser.request_code()
    tokens = decode_body(redeem(second, code, browser))
    assert decode_body(redeem(third, code, browser))["error"] == "invalid_grant"
    with pytest.raises(TokenRejected):
        verify(first, tokens["access_token"])


def test_a_code_that_a_replica_brings_back_cannot_be_redeemed_again() -> None:
    workers = Workers()
    first, second, third = workers.harnesses
    for backend in workers.backends:
        backend.keeps_deleted = True
    browser = Browser(first)
    code = browser.request_code()
    assert decode_body(redeem(second, code, browser))["access_token"]
    assert decode_body(redeem(third, code, browser))["error"] == "invalid_grant"


def test_a_code_from_before_a_loss_is_refused() -> None:
    workers = Workers()
    first, second, _ = workers.harnesses
    browser = Browser(first)
    code = browser.request_code()
    hub = workers.backends[0]._hub  # pyright: ignore[reportPrivateUsage]
    hub.epoch, hub.created_at = "another epoch", hub.created_at + 10**9
    assert decode_body(redeem(second, code, browser))["error"] == "invalid_grant"
    assert Browser(second).request_tokens()["access_token"]


def test_a_refresh_token_is_used_once_by_all_workers() -> None:
    first, second, third = Workers().harnesses
    tokens = Browser(first).request_tokens()
    assert decode_body(second.token(grant_type="refresh_token", refresh_token=tokens["refresh_token"]))["access_token"]
    reused = third.token(grant_type="refresh_token", refresh_token=tokens["refresh_token"])
    assert decode_body(reused)["error"] == "invalid_grant"
    with pytest.raises(TokenRejected):
        verify(first, tokens["access_token"])


def test_all_logins_of_a_user_end_at_all_workers() -> None:
    first, second, third = Workers().harnesses
    tokens = [Browser(worker).request_tokens() for worker in (first, second, third)]
    code_browser = Browser(second)
    code = code_browser.request_code()
    assert third.run_flow(third.issuing.revoke_user("developer")) == 4
    assert third.run_flow(third.issuing.revoke_user("developer")) == 0
    for worker, login in zip((second, third, first), tokens, strict=True):
        with pytest.raises(TokenRejected):
            verify(worker, login["access_token"])
    assert decode_body(redeem(first, code, code_browser))["error"] == "invalid_grant"


def test_logins_of_other_users_go_on() -> None:
    workers = Workers(has_passwords=True)
    first, second, _ = workers.harnesses
    for worker in workers.harnesses:
        worker.users = {"ada": "pw", "grace": "pw"}
    logins: dict[str, dict[str, Any]] = {}
    for name in ("ada", "grace"):
        browser = Browser(first)
        browser.open()
        response = browser.submit_consent(username=name, password="pw")
        code = response.headers["location"].partition("code=")[2].partition("&")[0]
        logins[name] = decode_body(redeem(second, code, browser))
    assert first.run_flow(first.issuing.revoke_user("ada")) == 1
    assert verify(first, logins["grace"]["access_token"]) == "grace"


def test_a_renewed_login_stays_in_the_index_of_its_user() -> None:
    first, second, third = Workers().harnesses
    tokens = Browser(first).request_tokens()
    for _ in range(40):  # 20 days
        for worker in (first, second, third):
            worker.now += 43_200.0
        tokens = decode_body(second.token(grant_type="refresh_token", refresh_token=tokens["refresh_token"]))
    assert third.run_flow(third.issuing.revoke_user("developer")) == 1
    with pytest.raises(TokenRejected):
        verify(first, tokens["access_token"])


def test_a_change_keeps_what_a_newer_release_has_stored() -> None:
    workers = Workers()
    first, second, _ = workers.harnesses
    store = workers.stores[0]
    client_id = decode_body(first.register(CLIENT))["client_id"]
    browser = Browser(first)
    code = browser.request_code(client_id=client_id)
    names = {"user": hash_secret("developer"), "client": client_id, "family": code.partition(".")[0]}

    def read(kind: str) -> dict[str, Any]:
        value = complete(store.get(kind, names[kind], first.now))
        assert value is not None
        return decode(value)

    def add_member(kind: str) -> None:
        value = encode(read(kind) | {"added": {"later": 1}})
        complete(store.put(kind, names[kind], value, first.now + 10**6, first.now))

    for kind in ("user", "client"):
        add_member(kind)
    exchange = {"grant_type": "authorization_code", "code": code, "code_verifier": browser.verifier}
    tokens = decode_body(second.token(client_id=client_id, redirect_uri=REDIRECT_URI, resource=RESOURCE, **exchange))
    add_member("family")
    renewal = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
    renewed = decode_body(second.token(client_id=client_id, **renewal))
    grant = second.run_flow(second.issuing.find_grant(renewed["refresh_token"], second.now))
    assert second.run_flow(second.issuing.update_grant(grant, second.now))
    assert f"family {names['family']}" in read("user")["entries"]
    for kind in names:
        assert read(kind)["added"] == {"later": 1}


def test_a_token_request_reads_its_client_once(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers()
    first, second, _ = workers.harnesses
    client_id = decode_body(first.register(CLIENT))["client_id"]
    browser = Browser(first)
    code = browser.request_code(client_id=client_id)
    reads: list[str] = []
    read = MemoryBackend.read

    async def count_read(backend: MemoryBackend, name: str) -> Any:
        reads.append(name.split("\0")[1])
        return await read(backend, name)

    monkeypatch.setattr(MemoryBackend, "read", count_read)
    exchange = {"grant_type": "authorization_code", "code": code, "code_verifier": browser.verifier}
    tokens = decode_body(second.token(client_id=client_id, redirect_uri=REDIRECT_URI, resource=RESOURCE, **exchange))
    assert reads.count("client") == 1
    renewal = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
    assert decode_body(second.token(client_id=client_id, **renewal))["access_token"]
    assert reads.count("client") == 2


def test_the_endpoints_answer_503_while_the_shared_state_is_away() -> None:
    workers = Workers()
    first, second, _ = workers.harnesses
    browser = Browser(first)
    code = browser.request_code()
    workers.backends[1].is_away = True
    assert redeem(second, code, browser).status_code == 503
    workers.backends[1].is_away = False
    assert decode_body(redeem(second, code, browser))["access_token"]


def test_what_cannot_be_read_never_looks_missing() -> None:
    workers = Workers()
    store, backend = workers.stores[0], workers.backends[0]
    complete(store.put("code", "k", b"1", NOW + 60, NOW))
    hub = backend._hub  # pyright: ignore[reportPrivateUsage]
    (name,) = hub.values._entries  # pyright: ignore[reportPrivateUsage]
    for data in (b"\x95\x63\xc4\x00\xcb" + bytes(8) + b"\xcb" + bytes(8) + b"\xa0", b"not a record"):
        complete(backend.write(name, data, 60.0))
        with pytest.raises(StoreUnavailable):
            complete(store.get("code", "k", NOW))


async def test_only_one_of_many_concurrent_takers_gets_a_value() -> None:
    workers = Workers()
    await workers.stores[0].put("family", "f", b"1", NOW + 60, NOW)
    takers = [store.take("family", "f", NOW) for store in workers.stores for _ in range(5)]
    assert sorted(value for value in await asyncio.gather(*takers) if value is not None) == [b"1"]


def test_a_local_cluster_cannot_store_logins(tmp_path: Path) -> None:
    options: dict[str, Any] = {"issuer": ISSUER, "users": {"ada": "pw"}, "secret_key": "a secret of 16 bytes"}
    with pytest.raises(ValueError, match="local"):
        AuthorizationServer(store=Cluster("local"), **options)
    with pytest.raises(ValueError, match="Cluster"):
        AuthorizationServer(store="redis://host", **options)
    for store in (Cluster("redis://host"), MemoryBackend(), tmp_path / "kept.db"):
        with pytest.raises(ValueError, match="secret_key"):
            AuthorizationServer(store=store, **options | {"secret_key": None})
        AuthorizationServer(store=store, **options)


def test_workers_share_the_tokens_of_the_provider() -> None:
    provider = UpstreamProvider("github", client_id="a", client_secret="b")
    first, second, _ = Workers(upstream=provider).harnesses
    sealed = first.sealer.seal_text(encode(Token(access_token="adas")), b"f")
    grant = TokenGrant(family="f", client_id="editor", subject="github:1", resource=RESOURCE, upstream=sealed)
    first.run_flow(first.issuing.issue_tokens(grant, first.now, refreshable=True))
    assert second.run_flow(second.authority.upstream_token("f", "github:1")) == "adas"


def test_wrong_passwords_are_counted_by_all_workers() -> None:
    workers = Workers(has_passwords=True)
    statuses: list[int] = []
    for number in range(15):
        browser = Browser(workers.harnesses[number % 3])
        browser.open()
        statuses.append(browser.submit_consent(username="ada", password="wrong").status_code)
    assert statuses == [403] * 10 + [429] * 5
    other = Browser(workers.harnesses[0])
    other.open()
    assert other.submit_consent(username="grace", password="wrong").status_code == 403


def test_correct_passwords_are_not_counted() -> None:
    workers = Workers(has_passwords=True)
    for number in range(15):
        browser = Browser(workers.harnesses[number % 3])
        browser.open()
        assert browser.submit_consent(username="ada", password="pw").status_code == 303


@pytest.mark.parametrize("max_count", [0, 3])
def test_registrations_are_counted_by_all_workers(max_count: int) -> None:
    workers = Workers(max_registrations_per_hour=max_count)
    registration = {"redirect_uris": [REDIRECT_URI]}
    statuses = [workers.harnesses[number % 3].register(registration).status_code for number in range(5)]
    assert statuses == [201] * max_count + [429] * (5 - max_count)


def test_a_code_is_redeemed_although_an_answer_is_lost() -> None:
    workers = Workers()
    first, second, _ = workers.harnesses
    browser = Browser(first)
    code = browser.request_code()
    second.run_flow(second.issuing.build_jwks(NOW))  # The signing key exists before the answer is lost.
    workers.backends[1].lost_answers = 1
    assert decode_body(redeem(second, code, browser))["access_token"]


async def test_a_change_that_happened_is_not_repeated_although_its_answer_is_lost() -> None:
    workers = Workers()
    store, backend = workers.stores[0], workers.backends[0]
    await store.put("family", "f", b"old", NOW + 60, NOW)
    backend.lost_answers = 1
    assert await store.swap("family", "f", b"old", b"new", NOW + 60, NOW)
    assert await store.get("family", "f", NOW) == b"new"
