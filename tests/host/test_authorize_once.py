"""Test that each call is authorized once, and its result once, on every call path."""

from collections.abc import Callable
from typing import Any

import pytest

from dovetail import Client, Server
from dovetail.errors import PolicyError
from dovetail.host import Host, Policy, PolicyRequest, rule
from dovetail.host import fingerprint as compute_fingerprint

ONE_CALL = ["tool.call", "tool.result"]


class CountingPolicy(Policy):
    """A policy that notes what it is asked about."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.kinds: list[str] = []

    def decide(self, request: PolicyRequest) -> Any:
        self.kinds.append(request.kind)
        return super().decide(request)


def create_server() -> Server:
    app = Server("far")

    @app.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return app


async def test_a_call_of_the_host_is_decided_once_and_its_result_once() -> None:
    policy = CountingPolicy("allow")
    async with Host(policy=policy) as host:
        host.add("far", create_server())
        await host.call("far.add", a=1, b=2)
        policy.kinds.clear()
        assert (await host.call("far.add", a=1, b=2)).structured_content in (3, {"result": 3})
        assert policy.kinds == ONE_CALL


@pytest.mark.parametrize("mode", ["merged", "search"])
async def test_a_call_through_the_gateway_is_decided_once_and_its_result_once(mode: Any) -> None:
    policy = CountingPolicy("allow")
    host = Host(policy=policy)
    host.add("far", create_server())
    arguments: dict[str, Any] = {"a": 1, "b": 2}
    name = "far__add"
    if mode == "search":
        name, arguments = "call_tool", {"name": "far__add", "arguments": arguments}
    async with host, Client(host.as_server(mode)) as client:
        await client.call_tool(name, arguments)
        policy.kinds.clear()
        assert not (await client.call_tool(name, arguments)).is_error
        assert policy.kinds == ONE_CALL


async def test_an_answer_of_the_user_costs_no_other_decision() -> None:
    policy = CountingPolicy("ask")
    async with Host(policy=policy, consent=lambda _: True) as host:
        host.add("far", create_server())
        await host.call("far.add", a=1, b=2)
        policy.kinds.clear()
        await host.call("far.add", a=1, b=2)
        assert policy.kinds == ONE_CALL


async def test_a_definition_is_fingerprinted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[Any] = []

    def count(definition: Any) -> str:
        computed.append(definition)
        return compute_fingerprint(definition)

    monkeypatch.setattr("dovetail.host.authorization.fingerprint", count)
    async with Host(policy=Policy("allow")) as host:
        host.add("far", create_server())
        for number in range(3):
            await host.call("far.add", a=number, b=2)
        async with Client(host.as_server()) as client:
            await client.call_tool("far__add", {"a": 1, "b": 2})
    assert len(computed) == 1


async def test_a_call_is_charged_once_to_its_rate() -> None:
    async with Host(policy=Policy("allow", limits={"far.add": "2/min"})) as host:
        host.add("far", create_server())
        for _ in range(2):
            await host.call("far.add", a=1, b=2)
        with pytest.raises(PolicyError, match="2/min"):
            await host.call("far.add", a=1, b=2)


@pytest.mark.parametrize(
    "make_policy",
    [
        lambda: Policy("allow", [rule("hide", tool="far.add")]),
        lambda: Policy("hide"),
    ],
)
async def test_a_policy_that_is_replaced_counts_for_the_next_call(make_policy: Callable[[], Policy]) -> None:
    from dovetail.errors import NotFound
    from dovetail.host.host import get_parts

    async with Host(policy=Policy("allow")) as host:
        host.add("far", create_server())
        await host.call("far.add", a=1, b=2)
        get_parts(host).authorizer.policy = make_policy()
        with pytest.raises(NotFound):
            await host.call("far.add", a=1, b=2)
