"""Test DPoP proofs and nonces of a server with several workers."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from joserfc.jwk import ECKey

from dovetail import Server
from dovetail.auth import Guard, JWTVerifier
from dovetail.auth.flow_runner import FlowRunner
from dovetail.cluster.cluster_worker import ClusterWorker
from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.oauth import proofs
from dovetail.oauth.challenge import parse_challenge
from dovetail.oauth.guard.dpop import DPoPChecker, NonceRequired
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable
from support.fake_issuer import ISSUER, Issuer
from support.fake_service import AsgiRequest, start_post, stateless_request

KEYS = ["a key with enough bytes", "an older key of the workers"]
URL = "https://mcp.example/mcp"


def thumbprint(key: dict[str, Any]) -> str:
    return ECKey.import_key(key).thumbprint()


class FailingBackend(MemoryBackend):
    """A back end that can be away."""

    is_away = False

    async def use_once(self, *args: Any, **options: Any) -> bool:
        if self.is_away:
            raise SharedStateUnavailable("away")
        return await super().use_once(*args, **options)


class Workers:
    """Two workers of a server that requires tokens with a key, and a client with such a token."""

    def __init__(self, *, require_nonce: bool) -> None:
        issuer, self.key = Issuer(), proofs.generate_key()
        now = int(time.time())
        self.token = issuer.token(cnf={"jkt": thumbprint(self.key)}, aud=URL, iat=now - 5, exp=now + 300)
        self.backends = [first := FailingBackend(), FailingBackend(first)]
        self.servers = [
            Server(
                "test",
                auth=Guard(JWTVerifier(issuer=ISSUER, public_keys=issuer.jwks()), require_dpop_nonce=require_nonce),
                cluster=backend,
                secret_keys=KEYS,
            )
            for backend in self.backends
        ]
        for server in self.servers:
            server.add_tool(lambda: "done", name="work")
        self.endpoints = [server.asgi(public_url=URL) for server in self.servers]

    def create_proof(self, nonce: str | None = None) -> str:
        return proofs.create_dpop_proof(self.key, "POST", URL, time.time(), token=self.token, nonce=nonce)

    async def post(self, worker: int, proof: str) -> AsgiRequest:
        headers = {"authorization": f"DPoP {self.token}", "dpop": proof}
        request = stateless_request(name="work", arguments={})
        return await start_post(self.endpoints[worker], request, headers).wait_done()

    async def get_nonce(self, worker: int) -> str:
        refusal = await self.post(worker, self.create_proof())
        assert parse_challenge(refusal.headers["www-authenticate"]).error == "use_dpop_nonce"
        return refusal.headers["dpop-nonce"]


@asynccontextmanager
async def run_workers(*, require_nonce: bool = False, is_old: bool = True) -> AsyncIterator[Workers]:
    workers = Workers(require_nonce=require_nonce)
    async with AsyncExitStack() as stack:
        for server in workers.servers:
            await server.start()
            stack.push_async_callback(server.stop)
        if is_old:  # Proofs are accepted without a nonce if the back end is older than they can be.
            workers.backends[0]._hub.created_at -= 3600.0  # pyright: ignore[reportPrivateUsage]
        yield workers


async def test_a_proof_is_accepted_by_one_worker_only() -> None:
    async with run_workers() as workers:
        for first, second in ((0, 1), (1, 0), (0, 0)):
            proof = workers.create_proof()
            assert (await workers.post(first, proof)).status == 200
            refusal = await workers.post(second, proof)
            assert refusal.status == 401
            assert parse_challenge(refusal.headers["www-authenticate"]).error == "invalid_token"


async def test_a_nonce_of_one_worker_is_accepted_by_the_others() -> None:
    async with run_workers(require_nonce=True) as workers:
        nonce = await workers.get_nonce(0)
        for worker in (0, 1):
            assert (await workers.post(worker, workers.create_proof(nonce))).status == 200
        forged = nonce[:-1] + ("0" if nonce[-1] != "0" else "1")
        for invalid in (forged, "f" * len(nonce), "ü" * len(nonce), ""):
            assert (await workers.post(1, workers.create_proof(invalid))).status == 401


async def test_after_a_loss_the_client_must_create_a_new_proof_with_a_nonce() -> None:
    async with run_workers(is_old=False) as workers:
        proof = workers.create_proof()
        nonce = await workers.get_nonce(0)
        for worker in (0, 1):
            assert (await workers.post(worker, workers.create_proof(nonce))).status == 200
        assert (await workers.post(1, proof)).status == 401
        workers.backends[0]._hub.epoch = "another epoch"  # pyright: ignore[reportPrivateUsage]
        assert (await workers.post(0, workers.create_proof(nonce))).status == 401
        assert (await workers.post(0, workers.create_proof(await workers.get_nonce(1)))).status == 200


async def test_a_proof_with_a_nonce_is_accepted_once() -> None:
    async with run_workers(is_old=False) as workers:
        proof = workers.create_proof(await workers.get_nonce(0))
        assert [(await workers.post(worker, proof)).status for worker in (1, 0, 1)] == [200, 401, 401]


async def test_no_proof_is_accepted_while_the_back_end_is_away() -> None:
    async with run_workers() as workers:
        workers.backends[0].is_away = True
        proof = workers.create_proof()
        assert (await workers.post(0, proof)).status == 503
        workers.backends[0].is_away = False
        assert (await workers.post(0, proof)).status == 200


@pytest.mark.parametrize(("age_s", "is_accepted"), [(-900, False), (0, True), (500, True), (900, False)])
async def test_a_nonce_expires(age_s: float, is_accepted: bool) -> None:
    backend, now = MemoryBackend(), time.time()
    cluster = ClusterWorker(backend, KEYS)
    await cluster.start()
    checker, key = DPoPChecker(require_nonce=True), proofs.generate_key()
    nonce = checker.current_nonce(now - age_s, cluster)
    proof = proofs.create_dpop_proof(key, "POST", URL, now, nonce=nonce)
    flow = checker.check_in_cluster(cluster, proof, method="POST", url=URL, token=None, now=now)
    if is_accepted:
        assert await FlowRunner({}).run(flow) == thumbprint(key)
    else:
        with pytest.raises(NonceRequired):
            await FlowRunner({}).run(flow)
    await cluster.close()


async def test_a_nonce_of_an_older_key_is_accepted_during_a_rotation() -> None:
    backend, now, key = MemoryBackend(), time.time(), proofs.generate_key()
    cluster = ClusterWorker(backend, KEYS)
    await cluster.start()
    nonce = DPoPChecker().current_nonce(now, ClusterWorker(backend, KEYS[1:]))
    for secret, is_accepted in ((None, True), ("the key of this guard only", False)):
        checker = DPoPChecker(require_nonce=True, secret=secret)
        proof = proofs.create_dpop_proof(key, "POST", URL, now, nonce=nonce)
        flow = checker.check_in_cluster(cluster, proof, method="POST", url=URL, token=None, now=now)
        if is_accepted:
            assert await FlowRunner({}).run(flow) == thumbprint(key)
        else:
            with pytest.raises(NonceRequired):
                await FlowRunner({}).run(flow)
    await cluster.close()
