"""Callers: each has a client of a server of its own, made with its own credentials, and room is kept for others."""

from collections.abc import Mapping
from typing import Any

import pytest

from dovetail import Policy, Principal, Server
from dovetail.errors import PolicyError
from dovetail.host.callers import PerCaller
from dovetail.host.host import Host


def credentials(principal: Principal) -> Mapping[str, Any] | None:
    return None if principal.subject == "mallory" else {"headers": {"X-User": principal.subject}}


def per_caller(made: list[Any]) -> PerCaller:
    async def make(**given: Any) -> Any:
        made.append(given)
        raise PolicyError("nothing is started here")

    first = Host(policy=Policy("allow")).add("s", Server("s"))
    return PerCaller(first, make, credentials)


async def test_each_caller_has_its_own_and_always_the_same() -> None:
    made: list[Any] = []
    found = per_caller(made)
    ada, bob = found.of(Principal("ada")), found.of(Principal("bob"))
    assert ada is not bob
    assert found.of(Principal("ada")) is ada
    assert {one.name for one in found.members} == {"s"}  # under the server's name, whoever calls
    assert ada.settings.idle_stop  # and it is closed when it is not used


async def test_who_is_nobody_or_has_no_credentials_is_refused() -> None:
    found = per_caller([])
    with pytest.raises(PolicyError):
        found.of(None)
    with pytest.raises(PolicyError):
        found.of(Principal("mallory"))
    assert found.members == ()


async def test_the_longest_unused_make_room() -> None:
    found = per_caller([])
    ada, bob = found.of(Principal("ada")), found.of(Principal("bob"))
    for number in range(2_000):
        found.of(Principal(f"{number}"))
        assert found.of(Principal("ada")) is ada
    assert ada in found.members
    assert bob not in found.members
    assert len(found.members) < 1_000
