"""The rows of the failure table about gateways, logins and tasks."""

import contextlib
import time
from typing import Any, ClassVar
from urllib.parse import urlencode

from cluster.failure_row import LOSSES, Row
from cluster.failures import LOST_AFTER_S, repeat_until, wait_until
from cluster.feature_servers import LOGIN_CLIENT, LOGIN_ISSUER, REDIRECT_URI
from cluster.raw_client import Response
from cluster.server_pool import Address
from dovetail import Client, RemoteError
from dovetail.auth.flow_runner import FlowRunner
from dovetail.auth.shared_store import SharedStateStore
from dovetail.cluster.redis.redis_backend import RedisBackend
from dovetail.errors import RateLimited, TaskLost
from dovetail.oauth.authorization_server.store import AuthorizationCode, TokenGrant
from dovetail.oauth.authorization_server.token_issuer import OAuthTokenIssuer
from dovetail.oauth.proofs import sha256_base64url
from dovetail.protocol.sealer import Sealer
from dovetail.tasks.task_handle import TaskReference

INVALID_PARAMS, INTERNAL_ERROR, SERVER_BUSY = -32602, -32603, 429

_MAX_ATTEMPTS = 20  # the number of tasks that are started until the asker takes one


class GatewayRow(Row):
    features = ("gateway",)
    tool: str
    answer: ClassVar[dict[str, Any]]

    async def call(self, token: str, address: Address, asked: Any = None) -> tuple[int, Any]:
        """Send one round of a call. Return the status, and the result or the error."""
        params: dict[str, Any] = {"name": self.tool, "arguments": {"token": token}}
        if asked is not None:
            answers = {key: {"action": "accept", "content": self.answer} for key in asked["inputRequests"]}
            params |= {"inputResponses": answers, "requestState": asked["requestState"]}
        response = await self.send_stateless("tools/call", params, address, path="/gateway")
        reply = await self.session.read_reply(response)
        return response.status, reply.get("result", reply.get("error"))

    async def ask(self, token: str, address: Address) -> Any:
        """Send the first round of a call, and return its questions."""
        status, asked = await self.call(token, address)
        assert status == 200, asked
        assert asked["resultType"] == "input_required"
        return asked

    async def check_refused(self, token: str, address: Address, asked: Any) -> None:
        """Check that the caller can send the same round again."""
        status, error = await self.call(token, address, asked)
        assert (status, error["code"]) == (503, SERVER_BUSY)

    async def check_complete(self, token: str, address: Address, asked: Any) -> None:
        status, result = await self.call(token, address, asked)
        assert status == 200, result
        assert result["resultType"] == "complete"
        assert result["content"][0]["text"].startswith(token)

    def count_effects(self, token: str, tool: str) -> int:
        return self.cluster.pool.read_effects()[token, tool]


class Consent(GatewayRow):
    """One answer was used before the failure, the other was not."""

    tool = "far__change"
    answer: ClassVar = {"allow": "once"}

    async def prepare(self) -> None:
        self.used = await self.ask("used", self.cluster.asker)
        await self.check_complete("used", self.cluster.receiver, self.used)
        self.fresh = await self.ask("fresh", self.cluster.asker)

    async def _check_asked_again(self, token: str, address: Address, asked: Any) -> Any:
        status, result = await self.call(token, address, asked)
        assert status == 200, result
        assert result["resultType"] == "input_required"
        return result

    async def check_during(self) -> None:
        asker, receiver = self.cluster.asker, self.cluster.receiver
        match self.case:
            case "away" | "full":
                await self.check_refused("fresh", receiver, self.fresh)
            case "partitioned":
                await self.check_refused("fresh", asker, self.fresh)
                await self.check_complete("fresh", receiver, self.fresh)
            case "slow" | "killed" | "paused":
                await self.check_complete("fresh", receiver, self.fresh)
                await self._check_asked_again("used", receiver, self.used)
            case _:
                await self._check_loss()

    async def _check_loss(self) -> None:
        """Check that the user is asked again, and that the new answer is accepted at once."""
        asked: Any = None

        async def is_asked_again() -> bool:
            nonlocal asked
            status, asked = await self.call("fresh", self.cluster.receiver, self.fresh)
            assert status in (200, 503)
            return status == 200

        assert await repeat_until(is_asked_again, 5)
        assert asked["resultType"] == "input_required"
        await self.check_complete("fresh", self.cluster.receiver, asked)

    async def check_after(self) -> None:
        asker, receiver = self.cluster.asker, self.cluster.receiver
        if self.case in ("away", "full"):
            await self.check_complete("fresh", receiver, self.fresh)
        for address in (asker, receiver):
            await self._check_asked_again("used", address, self.used)
            await self._check_asked_again("fresh", address, self.fresh)
        await self.check_complete("new", asker, await self.ask("new", receiver))
        for token in ("used", "fresh", "new"):
            assert self.count_effects(token, "change") == 1


class ParkedCalls(GatewayRow):
    """The calls at the server behind the gateway are open at the asker."""

    tool = "far__ask"
    answer: ClassVar = {"value": "Ada"}

    async def prepare(self) -> None:
        self.parked = [await self.ask(f"parked{number}", self.cluster.asker) for number in range(2)]

    async def check_during(self) -> None:
        asker, receiver = self.cluster.asker, self.cluster.receiver
        match self.case:
            case "away" | "full":
                await self.check_refused("parked0", receiver, self.parked[0])
                await self.check_complete("parked1", asker, self.parked[1])
            case "slow":
                await self.check_complete("parked0", receiver, self.parked[0])
            case "killed" | "paused" | "partitioned":
                begin = time.monotonic()
                _, error = await self.call("parked0", receiver, self.parked[0])
                assert error["code"] == INVALID_PARAMS
                assert time.monotonic() - begin < LOST_AFTER_S
                if self.case == "partitioned":
                    await self.check_complete("parked1", asker, self.parked[1])
            case _:

                async def is_complete() -> bool:
                    status, result = await self.call("parked0", receiver, self.parked[0])
                    assert status in (200, 503), result
                    return status == 200

                assert await repeat_until(is_complete, 6)

    async def check_after(self) -> None:
        asker, receiver = self.cluster.asker, self.cluster.receiver
        if self.case in ("away", "full"):
            await self.check_complete("parked0", receiver, self.parked[0])
        if self.case in (*LOSSES, "slow"):
            await self.check_complete("parked1", receiver, self.parked[1])
        await self.check_complete("new", receiver, await self.ask("new", asker))
        assert self.count_effects("new", "ask") == 1
        assert max(self.count_effects(f"parked{number}", "ask") for number in range(2)) <= 1


class Logins(Row):
    """The authorization server has issued tokens and codes before the failure."""

    features = ("login",)

    async def prepare(self) -> None:
        self.codes = await self._issue_codes("used", "fresh", "login")
        status, self.tokens = await self._redeem("login", self.cluster.asker)
        assert status == 200, self.tokens
        assert (await self._redeem("used", self.cluster.receiver))[0] == 200
        assert await self._call(self.cluster.receiver) == 200

    async def _issue_codes(self, *names: str) -> dict[str, str]:
        """Return codes for users who have logged in, as the authorization endpoint issues them."""
        keys = self.cluster.secret_keys
        backend = RedisBackend(self.cluster.redis_now.url, prefix="logins", secret_keys=keys)
        store = SharedStateStore(backend, LOGIN_ISSUER)
        sealer = Sealer(keys[0], purpose="authorization server")
        issuer = OAuthTokenIssuer(LOGIN_ISSUER, store, sealer, access_token_ttl=900, refresh_token_ttl=3600)
        codes: dict[str, str] = {}
        for name in names:
            resource = "http://127.0.0.1:8000/account"
            grant = TokenGrant(family=name, client_id=LOGIN_CLIENT, subject="ada", resource=resource)
            code = AuthorizationCode(grant=grant, redirect_uri=REDIRECT_URI, challenge=sha256_base64url(name * 20))
            codes[name] = await FlowRunner({}).run(issuer.issue_code(code, time.time()))
        await store.close()
        return codes

    async def _request_token(self, address: Address, form: dict[str, str]) -> tuple[int, Any]:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        body = urlencode({"client_id": LOGIN_CLIENT} | form).encode()
        response = await self.session.pool.send("POST", headers, body, address, "/login/token")
        reply = await response.read()
        if response.status == 503:
            assert int(response.headers["retry-after"]) > 0
        return response.status, reply

    async def _redeem(self, name: str, address: Address) -> tuple[int, Any]:
        form = {"grant_type": "authorization_code", "code": self.codes[name], "redirect_uri": REDIRECT_URI}
        return await self._request_token(address, form | {"code_verifier": name * 20})

    async def _refresh(self, address: Address) -> int:
        form = {"grant_type": "refresh_token", "refresh_token": self.tokens["refresh_token"]}
        status, reply = await self._request_token(address, form)
        if status == 200:
            self.tokens = reply
        return status

    async def _call(self, address: Address) -> int:
        """Call a tool with the access token, and return the status."""
        headers = {"authorization": f"Bearer {self.tokens['access_token']}"}
        params = {"name": "get_name", "arguments": {}}
        response: Response = await self.send_stateless("tools/call", params, address, path="/account", headers=headers)
        reply = await response.read()
        assert response.status != 200 or reply["result"]["content"][0]["text"] == "ada"
        return response.status

    async def check_during(self) -> None:
        asker, receiver = self.cluster.asker, self.cluster.receiver
        match self.case:
            case "away":
                for address in (asker, receiver):
                    assert await self._refresh(address) == 503
                    assert await self._call(address) == 503
            case "partitioned":
                assert await self._refresh(asker) == 503
                assert await self._call(asker) == 503
                assert await self._refresh(receiver) == 200
                assert await self._call(receiver) == 200
            case "full":
                assert await self._refresh(receiver) == 503
                assert await self._call(receiver) == 200
            case "slow" | "killed" | "paused":
                assert await self._call(receiver) == 200
                assert await self._refresh(receiver) == 200
                assert (await self._redeem("used", receiver))[0] == 400
            case _:

                async def answers() -> bool:
                    return await self._call(receiver) != 503

                assert await repeat_until(answers, 5)

    async def check_after(self) -> None:
        asker, receiver = self.cluster.asker, self.cluster.receiver
        # A code that was used is never accepted again.
        for address in (asker, receiver):
            assert (await self._redeem("used", address))[0] == 400
        if self.cluster.case in LOSSES:
            assert await self._call(receiver) == 401
            assert await self._refresh(asker) == 400
            assert (await self._redeem("fresh", receiver))[0] == 400
        elif self.case not in LOSSES:
            assert await self._refresh(asker) == 200
            assert await self._call(receiver) == 200
            assert (await self._redeem("fresh", receiver))[0] == 200
        self.codes |= await self._issue_codes("new")
        status, self.tokens = await self._redeem("new", asker)
        assert status == 200, self.tokens
        for address in (asker, receiver):
            assert await self._call(address) == 200


class Tasks(Row):
    """Tasks of the asker: one has finished, one runs, and one may be repeated."""

    features = ("tasks",)
    seconds = 4.0
    killed_seconds = 60.0  # so long that the task has not ended when its worker is killed

    async def prepare(self) -> None:
        self.stack = contextlib.AsyncExitStack()
        self.clients: dict[Address, Client] = {}
        for address in self.cluster.pool.addresses:
            self.clients[address] = await self._connect(address)
        self.references = {
            "finished": await self._start("run_once", "finished", 0.0, self.cluster.asker),
            "repeated": await self._start("retry", "repeated", self.seconds, self.cluster.asker),
        }
        assert await self._read("finished", self.cluster.receiver) == "finished"
        await wait_until(lambda: self._count("repeated"))
        await self._start_running()

    async def _start_running(self) -> None:
        """Start a task that the asker runs. Any worker may take a task, so cancel the tasks that another one takes."""
        seconds = self.killed_seconds if self.case == "killed" else self.seconds
        pool, asker = self.cluster.pool, self.cluster.asker
        for attempt in range(_MAX_ATTEMPTS):
            self.running = f"running{attempt}"
            self.references[self.running] = await self._start("run_once", self.running, seconds, asker)
            await wait_until(lambda: pool.read_processes(self.running))
            if pool.read_processes(self.running) == {self.cluster.asker_process.pid}:
                return
            handle = await self.clients[asker].get_task(self.references.pop(self.running))
            await handle.cancel()
        raise AssertionError(f"the asker took none of {_MAX_ATTEMPTS} tasks")

    async def _connect(self, address: Address) -> Client:
        return await self.stack.enter_async_context(Client(f"http://{address[0]}:{address[1]}/tasks"))

    async def _start(self, tool: str, token: str, seconds: float, address: Address) -> Any:
        handle = await self.clients[address].start_task(tool, {"token": token, "seconds": seconds})
        return handle.reference

    async def _read(self, token: str, address: Address) -> str | int:
        """Wait for a task. Return its text, or the code of its error."""
        try:
            handle = await self.clients[address].get_task(self.references[token])
            return (await handle).content[0].text
        except TaskLost:
            return INVALID_PARAMS
        except RemoteError as exc:
            return exc.code

    async def _get_status(self, token: str, address: Address) -> int | None:
        """Ask once for the state of a task. Return the code of the error, or None."""
        params = {"taskId": TaskReference.decode(self.references[token]).id}
        response = await self.send_stateless("tasks/get", params, address, path="/tasks")
        reply = await response.read()
        return reply["error"]["code"] if "error" in reply else None

    def _count(self, token: str, step: str = "begin") -> int:
        return self.cluster.pool.read_effects()[token, step]

    async def _check_new(self, address: Address) -> None:
        token = f"new{time.monotonic_ns()}"
        self.references[token] = await self._start("run_once", token, 0.0, address)
        other = next(other for other in self.clients if other != address)
        reader = address if self.case in ("killed", "paused", "partitioned") else other
        assert await self._read(token, reader) == token
        assert self._count(token) == 1

    async def check_during(self) -> None:
        asker, receiver = self.cluster.asker, self.cluster.receiver
        match self.case:
            case "away" | "partitioned":
                failing = (asker, receiver) if self.case == "away" else (asker,)
                for address in failing:
                    assert await self._create(address) == INTERNAL_ERROR
                    assert await self._get_status("finished", address) == INTERNAL_ERROR
                if self.case == "partitioned":
                    await self._check_new(receiver)
            case "full":
                assert await self._create(receiver) == SERVER_BUSY
                assert await self._get_status("finished", receiver) is None
            case "slow":
                await self._check_new(receiver)
            case "killed" | "paused":
                await self._check_new(receiver)
                if self.case == "killed":
                    assert await self._read(self.running, receiver) == INTERNAL_ERROR
                    assert await self._read("repeated", receiver) == "repeated"
            case _:
                pass

    async def _create(self, address: Address) -> int | None:
        """Create a task. Return the code of the error, or None."""
        try:
            await self._start("run_once", f"refused{time.monotonic_ns()}", 0.0, address)
        except RateLimited:
            return SERVER_BUSY
        except RemoteError as exc:
            return exc.code
        return None

    async def check_after(self) -> None:
        asker, receiver = self.cluster.asker, self.cluster.receiver
        if self.case == "killed":
            self.clients[asker] = await self._connect(asker)
        if self.cluster.case in LOSSES:
            for address in (asker, receiver):
                assert await self._get_status(self.running, address) == INVALID_PARAMS
                assert await self._read("finished", address) == INVALID_PARAMS
        elif self.case not in LOSSES:
            assert await self._read("finished", receiver) == "finished"
            outcomes = {
                "away": [self.running],
                "slow": [self.running],
                "full": [self.running],
                "killed": [INTERNAL_ERROR],
            }
            assert await self._read(self.running, receiver) in outcomes.get(self.case, [self.running, INTERNAL_ERROR])
            assert await self._read("repeated", receiver) == "repeated"
        for address in (asker, receiver):
            await self._check_new(address)
        assert self._count(self.running) == 1
        assert self._count("repeated") <= 2
        effects = self.cluster.pool.read_effects()
        assert not [token for (token, _), count in effects.items() if token.startswith("refused") and count]
        await self.stack.aclose()
