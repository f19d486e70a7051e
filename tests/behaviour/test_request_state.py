"""Test that the client carries requestState between rounds, and that it is valid only for its request."""

import base64
from typing import Any

import pytest

from behaviour.manifest import requirement
from behaviour.request_helpers import expect_error, text
from dovetail import Context, Server, ServerLimits
from support.driver import connect, connect_again

ASKED = {"elicitation": {}}
CALL: dict[str, Any] = {"name": "pay", "arguments": {"amount": 5, "to": {"a": 1, "b": 2}}}
YES = {"sure": {"action": "accept", "content": {"value": "yes"}}}
SECRET = "correct horse battery staple"


def server(**options: Any) -> Server:
    app = Server("state", **options)

    @app.tool
    async def pay(amount: int, to: dict[str, int], ctx: Context) -> str:
        token = await ctx.once("token", lambda: "very-private-token")
        assert token == "very-private-token"
        return f"{amount} {await ctx.elicit('Sure?', str, key='sure')}"

    @app.tool
    async def pay_all(amount: int, to: dict[str, int], ctx: Context) -> str:
        return f"all {await ctx.elicit('Sure?', str, key='sure')}"

    @app.tool("same")
    async def same_tool(word: str, ctx: Context) -> str:
        return await ctx.elicit("Sure?", str, key="sure")

    @app.prompt("same")
    async def same_prompt(word: str, ctx: Context) -> str:
        return await ctx.elicit("Sure?", str, key="sure")

    @app.prompt("pay")
    async def prompt(ctx: Context) -> str:
        return await ctx.elicit("Sure?", str, key="sure")

    @app.resource("x:pay")
    async def resource(ctx: Context) -> str:
        return await ctx.elicit("Sure?", str, key="sure")

    return app


async def begun(peer: Any, **options: Any) -> str:
    """The state of a first round."""
    result = await peer.request("tools/call", CALL, **options)
    assert result["resultType"] == "input_required"
    return result["requestState"]


@requirement("state.sealed")
async def test_a_state_tells_nothing(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision, capabilities=ASKED) as peer:
        states = [await begun(peer) for _ in range(3)]
        assert len(set(states)) == 3
        for state in states:
            raw = base64.urlsafe_b64decode(state)
            for plain in (b"very-private-token", b"token", b"sure", b"pay"):
                assert plain not in raw


@requirement("state.refused")
async def test_a_state_that_is_not_ours_is_refused_always_the_same(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision, capabilities=ASKED) as peer:
        state = await begun(peer)
        flipped = [
            state[:place] + ("A" if state[place] != "A" else "B") + state[place + 1 :] for place in range(0, 60, 7)
        ]
        late = len(state) - 8
        flipped.append(state[:late] + ("A" if state[late] != "A" else "B") + state[late + 1 :])
        wrong = [*flipped, state[:-4], state[4:], state[: len(state) // 2], state + "AAAA", state + "-TAMPERED"]
        wrong += ["", "x", "\u00fc", "A" * 100, "A" * 5000, "null", "{}", state.swapcase(), f" {state}", state + "\n"]
        seen = set()
        for one in wrong:
            error = await expect_error(peer.request("tools/call", CALL | {"requestState": one, "inputResponses": YES}))
            seen.add((error.code, error.message, str(error.data)))
        assert len(seen) == 1, seen
        assert seen.pop()[0] == -32602
        good = CALL | {"requestState": state, "inputResponses": YES}
        assert text(await peer.request("tools/call", good)) == "5 yes"


@requirement("state.refused", transports=("memory",))
async def test_a_state_has_its_time(revision: str, transport: str) -> None:
    async with connect(
        server(limits=ServerLimits(request_state_ttl=0)), transport, revision, capabilities=ASKED
    ) as peer:
        expired = CALL | {"requestState": await begun(peer), "inputResponses": YES}
        late = await expect_error(peer.request("tools/call", expired))
        made_up = await expect_error(peer.request("tools/call", CALL | {"requestState": "x", "inputResponses": YES}))
        assert (late.code, late.message, late.data) == (made_up.code, made_up.message, made_up.data)


@requirement("state.bound")
async def test_a_state_is_good_for_one_request_only(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision, capabilities=ASKED) as peer:
        state = await begun(peer)
        given = {"requestState": state, "inputResponses": YES}
        made_up = await expect_error(peer.request("tools/call", CALL | given | {"requestState": "x"}))
        for method, params in (
            ("tools/call", CALL | {"arguments": {"amount": 6, "to": {"a": 1, "b": 2}}}),
            ("tools/call", CALL | {"arguments": {"amount": 5, "to": {"a": 1}}}),
            ("tools/call", CALL | {"name": "pay_all"}),
            ("prompts/get", {"name": "pay"}),
            ("resources/read", {"uri": "x:pay"}),
        ):
            error = await expect_error(peer.request(method, params | given))
            assert (error.code, error.message) == (made_up.code, made_up.message), params
        same: dict[str, Any] = {"name": "same", "arguments": {"word": "w"}}
        first = await peer.request("tools/call", same)
        other = await expect_error(
            peer.request("prompts/get", same | {"requestState": first["requestState"], "inputResponses": YES})
        )
        assert (other.code, other.message) == (made_up.code, made_up.message)
        reordered = {"amount": 5, "to": {"b": 2, "a": 1}}
        again = CALL | given | {"arguments": dict(reversed(reordered.items()))}
        result = await peer.request("tools/call", again, progress_token="t", log_level="debug", id="another id")
        assert text(result) == "5 yes"


async def authenticate(headers: Any) -> str | None:
    return headers.get(b"authorization", b"").decode() or None


@requirement("state.principal")
async def test_a_state_is_good_for_one_principal_only(revision: str, transport: str) -> None:
    async with connect(server(auth=authenticate), transport, revision, capabilities=ASKED) as peer:
        state = await begun(peer, headers={"authorization": "ada"})
        params = CALL | {"requestState": state, "inputResponses": YES}
        for other in ({"authorization": "bob"}, {"authorization": "Ada"}, {}):
            error = await expect_error(peer.request("tools/call", params, headers=other))
            assert error.code == -32602
        assert text(await peer.request("tools/call", params, headers={"authorization": "ada"})) == "5 yes"


@requirement("state.rotation")
async def test_secrets_are_rotated(revision: str, transport: str) -> None:
    old, new = SECRET, SECRET + " 2"
    states: dict[str, str] = {}
    for name, secrets in (("old", [old]), ("both", [new, old]), ("new", [new])):
        async with connect(server(secret_keys=secrets), transport, revision, capabilities=ASKED) as peer:
            states[name] = await begun(peer)
    good = {"old": {"old"}, "both": {"old", "both", "new"}, "new": {"both", "new"}}
    for name, secrets in (("old", [old]), ("both", [new, old]), ("new", [new])):
        async with connect(server(secret_keys=secrets), transport, revision, capabilities=ASKED) as peer:
            for sealer, state in states.items():
                request = peer.request("tools/call", CALL | {"requestState": state, "inputResponses": YES})
                if sealer in good[name]:
                    assert text(await request) == "5 yes"
                else:
                    assert (await expect_error(request)).code == -32602


@requirement("state.anywhere")
async def test_another_server_with_the_secret_finishes_the_round(revision: str, transport: str) -> None:
    one, two, stranger = server(secret_keys=[SECRET]), server(secret_keys=[SECRET]), server()
    async with connect(one, transport, revision, capabilities=ASKED) as peer:
        state = await begun(peer)
    params = CALL | {"requestState": state, "inputResponses": YES}
    async with connect(two, transport, revision, capabilities=ASKED) as peer:
        assert text(await peer.request("tools/call", params)) == "5 yes"
        if transport == "http":
            async with connect_again(peer, capabilities=ASKED) as other:
                assert text(await other.request("tools/call", params)) == "5 yes"
    async with connect(stranger, transport, revision, capabilities=ASKED) as peer:
        assert (await expect_error(peer.request("tools/call", params))).code == -32602


@requirement("state.weak-secret")
def test_a_weak_secret_is_refused() -> None:
    for weak in ("", "short", b"15 bytes long.."):
        with pytest.raises(ValueError, match="secret"):
            server(secret_keys=[SECRET, weak])
