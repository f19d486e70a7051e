"""The rows of the failure table about a server with tokens: rate limits, running calls, DPoP proofs and caches."""

import asyncio
import itertools
import time
from typing import Any

from joserfc.jwk import ECKey

from cluster.failure_row import LOSSES, Row, read_status
from cluster.failures import LOST_AFTER_S, repeat_until
from cluster.feature_servers import CACHED_URI, GUARDED_URL, MAX_CALLS, MAX_RATE
from cluster.raw_client import Response
from cluster.server_pool import Address
from dovetail.oauth import proofs
from dovetail.oauth.challenge import parse_challenge

PATH = "/guarded"
SHARE = 2  # Each of two workers has this part of a limit while Redis is away.


class GuardedRow(Row):
    """A row with access tokens for any number of users."""

    features = ("guarded",)

    async def send(self, method: str, params: dict[str, Any], address: Address, user: str, **meta: Any) -> Response:
        headers = {"authorization": f"Bearer {self.create_token(user)}"}
        return await self.send_stateless(method, params, address, path=PATH, headers=headers, **meta)

    def create_token(self, user: str, **claims: Any) -> str:
        now = int(time.time())
        return self.cluster.issuer.token(sub=user, aud=GUARDED_URL, iat=now - 5, exp=now + 600, **claims)


class RateLimits(GuardedRow):
    """The user "rate-old" has used up the limit before the failure."""

    async def prepare(self) -> None:
        await self.cluster.wait_until_counted("guarded")
        assert await self._count("rate-old", self.cluster.asker, 4) == 4
        assert await self._count("rate-old", self.cluster.receiver, MAX_RATE) == MAX_RATE - 4

    async def _count(self, user: str, address: Address, attempts: int = MAX_RATE + 1) -> int:
        """Return how many requests are allowed. The others get 429 and the time to wait."""
        count = 0
        for _ in range(attempts):
            response = await self.send("prompts/get", {"name": "greet"}, address, user)
            reply = await response.read()
            if response.status == 200:
                count += 1
            else:
                assert response.status == 429, reply
                assert reply["error"]["data"]["retryAfterMs"] > 0
        return count

    async def check_during(self) -> None:
        asker, receiver = self.cluster.asker, self.cluster.receiver
        match self.case:
            case "away" | "full":
                for address in (asker, receiver):
                    count = await self._count("rate-new", address)
                    assert count == MAX_RATE // SHARE, count
            case "slow":
                assert await self._count("rate-new", asker, 4) == 4
                assert await self._count("rate-new", receiver) == MAX_RATE - 4
            case "killed" | "paused":
                assert await self._count("rate-old", receiver, 3) == 0
                assert await self._count("rate-new", receiver) == MAX_RATE
            case "partitioned":
                assert await self._count("rate-old", receiver, 3) == 0
                assert await self._count("rate-old", asker) == MAX_RATE // SHARE
            case _:
                pass

    async def check_after(self) -> None:
        asker, receiver = self.cluster.asker, self.cluster.receiver
        count = await self._count("rate-old", asker) + await self._count("rate-old", receiver)
        assert count <= (MAX_RATE if self.case in LOSSES else 0)
        assert await self._count("rate-last", asker, 4) == 4
        assert await self._count("rate-last", receiver) == MAX_RATE - 4


class RunningCalls(GuardedRow):
    """The user "old" has as many calls as allowed before the failure."""

    async def prepare(self) -> None:
        self._open: dict[tuple[str, Address], list[Response]] = {}

        async def is_full() -> bool:
            return await self._fill_both("old") == MAX_CALLS

        # A worker that does not know of the other one yet takes the whole limit.
        await self.cluster.wait_until_counted("guarded")
        assert await repeat_until(is_full, 10)

    async def _fill(self, user: str, address: Address) -> int:
        """Start calls until one is refused. Return how many calls of this user run at this worker."""
        running = self._open.setdefault((user, address), [])
        while len(running) <= MAX_CALLS:
            params = {"name": "hold", "arguments": {}}
            response = await self.send("tools/call", params, address, user, progressToken=len(running))
            if response.status != 200:
                assert response.status == 429
                await response.read()
                break
            running.append(response)
        return len(running)

    async def _fill_both(self, user: str) -> int:
        count = await self._fill(user, self.cluster.asker) + await self._fill(user, self.cluster.receiver)
        if count != MAX_CALLS:
            self._end(user)
        return count

    def _end(self, *users: str) -> None:
        for (user, _), responses in self._open.items():
            if user in users:
                for response in responses:
                    response.close()
                responses.clear()

    async def check_during(self) -> None:
        asker, receiver = self.cluster.asker, self.cluster.receiver
        match self.case:
            case "away":
                for address in (asker, receiver):
                    assert await self._fill("new", address) == MAX_CALLS // SHARE
            case "slow" | "full":
                counts = [await self._fill("new", asker), await self._fill("new", receiver)]
                assert sum(counts) == MAX_CALLS, counts
            case "killed" | "paused" | "partitioned":
                if self.case == "partitioned":
                    assert await self._fill("new", asker) == MAX_CALLS // SHARE

                async def has_all_places() -> bool:
                    count = await self._fill("old", receiver)
                    assert count <= MAX_CALLS
                    return count == MAX_CALLS

                assert await repeat_until(has_all_places, LOST_AFTER_S)
            case _:
                pass

    async def check_after(self) -> None:
        asker, receiver = self.cluster.asker, self.cluster.receiver
        if self.case in LOSSES:
            assert await self._fill("old", asker) + await self._fill("old", receiver) <= 2 * MAX_CALLS
        self._end("old", "new")

        async def is_full() -> bool:
            count = await self._fill_both("old")
            assert count <= MAX_CALLS
            return count == MAX_CALLS

        assert await repeat_until(is_full, 10)
        self._end("old")


class Proofs(GuardedRow):
    """One DPoP proof was used before the failure, the others were not."""

    async def prepare(self) -> None:
        self.key = proofs.generate_key()
        thumbprint = ECKey.import_key(self.key).thumbprint()
        self.token = self.create_token("ada", cnf={"jkt": thumbprint})
        self.nonce = await self._get_nonce(self.cluster.asker)
        self.used, self.fresh = (self._create_proof() for _ in range(2))
        assert (await self._send(self.used, self.cluster.asker)).status == 200
        await self._check_used(self.used, self.cluster.receiver)

    def _create_proof(self) -> str:
        return proofs.create_dpop_proof(
            self.key, "POST", GUARDED_URL, time.time(), token=self.token, nonce=self.nonce or None
        )

    async def _send(self, proof: str, address: Address) -> Response:
        headers = {"authorization": f"DPoP {self.token}", "dpop": proof}
        response = await self.send_stateless("resources/read", {"uri": CACHED_URI}, address, path=PATH, headers=headers)
        await read_status(response)
        return response

    async def _get_nonce(self, address: Address) -> str:
        self.nonce = ""
        response = await self._send(self._create_proof(), address)
        self._check_refused(response, "use_dpop_nonce")
        return response.headers["dpop-nonce"]

    def _check_refused(self, response: Response, error: str) -> None:
        assert response.status == 401
        challenge = parse_challenge(response.headers["www-authenticate"])
        assert challenge.error == error, challenge

    async def _check_used(self, proof: str, *addresses: Address) -> None:
        for address in addresses:
            self._check_refused(await self._send(proof, address), "invalid_token")

    async def check_during(self) -> None:
        asker, receiver = self.cluster.asker, self.cluster.receiver
        match self.case:
            case "away" | "full":
                for address in (asker, receiver):
                    assert (await self._send(self._create_proof(), address)).status == 503
                if self.case == "away":
                    assert (await self._send(self.used, receiver)).status == 503
            case "partitioned":
                assert (await self._send(self.fresh, asker)).status == 503
                assert (await self._send(self.fresh, receiver)).status == 200
                await self._check_used(self.used, receiver)
            case "slow" | "killed" | "paused":
                assert (await self._send(self.fresh, receiver)).status == 200
                for proof in (self.used, self.fresh):
                    await self._check_used(proof, receiver)
            case _:
                await self._check_loss(asker, receiver)

    async def _check_loss(self, *addresses: Address) -> None:
        """Check that all earlier proofs are refused, and that the nonce in the refusal is accepted at once."""
        for address, proof in itertools.product(addresses, (self.used, self.fresh)):
            if proof is self.used and self.cluster.case not in LOSSES:
                continue  # In these cases, Redis may still know that it was used.

            async def is_refused(address: Address = address, proof: str = proof) -> bool:
                self.response = await self._send(proof, address)
                assert self.response.status in (401, 503)
                return self.response.status == 401

            assert await repeat_until(is_refused, 5)
            self._check_refused(self.response, "use_dpop_nonce")
            self.nonce = self.response.headers["dpop-nonce"]
            assert (await self._send(self._create_proof(), address)).status == 200

    async def check_split(self) -> None:
        """Check that the worker of the former primary accepts nothing."""
        assert (await self._send(self.fresh, self.cluster.asker)).status == 503
        await self._check_loss(self.cluster.receiver)
        proof = self._create_proof()
        assert (await self._send(proof, self.cluster.receiver)).status == 200
        for used in (self.used, proof):
            assert (await self._send(used, self.cluster.asker)).status in (401, 503)

    async def check_after(self) -> None:
        asker, receiver = self.cluster.asker, self.cluster.receiver
        if self.case in ("away", "full"):
            assert (await self._send(self.fresh, receiver)).status == 200
        if self.case in LOSSES:
            self._check_refused(await self._send(self.fresh, asker), "use_dpop_nonce")
            assert (await self._send(self.used, asker)).status == 401
        else:
            for proof in (self.used, self.fresh):
                await self._check_used(proof, asker, receiver)
        proof = self._create_proof()
        assert (await self._send(proof, receiver)).status == 200
        await self._check_used(proof, asker)


class Caches(GuardedRow):
    """Both workers have a cached result."""

    async def prepare(self) -> None:
        for address in self.cluster.pool.addresses:
            assert await self._read(address) == "0"
        await self._change("1", self.cluster.receiver)
        await self._wait_for("1", self.cluster.asker)

    async def _read(self, address: Address) -> str:
        response = await self.send("resources/read", {"uri": CACHED_URI}, address, "ada")
        reply = await response.read()
        assert response.status == 200, reply
        return reply["result"]["contents"][0]["text"]

    async def _change(self, version: str, address: Address) -> None:
        self.cluster.version_path.write_text(version)
        response = await self.send("tools/call", {"name": "report_change", "arguments": {}}, address, "ada")
        assert await read_status(response) == 200
        assert await self._read(address) == version

    async def _wait_for(self, version: str, *addresses: Address) -> None:
        for address in addresses:

            async def is_read(address: Address = address) -> bool:
                return await self._read(address) == version

            assert await repeat_until(is_read, 5)

    async def check_during(self) -> None:
        asker, receiver = self.cluster.asker, self.cluster.receiver
        if self.case in LOSSES:  # Nobody reports this change.
            self.cluster.version_path.write_text("2")
            await self._wait_for("2", asker, receiver)
            return
        await self._change("2", receiver)
        if self.case in ("away", "full", "partitioned"):
            await asyncio.sleep(0.2)
            assert await self._read(asker) == "1"
        if self.case == "slow":
            await self._wait_for("2", asker)

    async def check_after(self) -> None:
        for address in self.cluster.pool.addresses:
            assert await self._read(address) == "2"
        await self._change("3", self.cluster.receiver)
        await self._wait_for("3", self.cluster.asker)
