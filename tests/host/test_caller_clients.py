"""Test that each caller has its own client with its own credentials, within limits."""

from collections.abc import Mapping
from typing import Any

import pytest

from dovetail import Policy, Server
from dovetail.auth import Principal
from dovetail.errors import PolicyError
from dovetail.host.caller_clients import CallerClients
from dovetail.host.host import Host, get_parts


def credentials(principal: Principal) -> Mapping[str, Any] | None:
    return None if principal.subject == "mallory" else {"headers": {"X-User": principal.subject}}


def per_caller(made: list[Any]) -> CallerClients:
    async def make(**given: Any) -> Any:
        made.append(given)
        raise PolicyError("nothing is started here")

    host = Host(policy=Policy("allow"))
    host.add("s", Server("s"))
    return CallerClients(get_parts(host).servers.get("s"), make, credentials)


async def test_each_caller_has_its_own_and_always_the_same() -> None:
    made: list[Any] = []
    found = per_caller(made)
    ada, bob = found.get_server(Principal("ada")), found.get_server(Principal("bob"))
    assert ada is not bob
    assert found.get_server(Principal("ada")) is ada
    assert {one.name for one in found.servers} == {"s"}  # under the server's name, whoever calls
    assert ada.settings.idle_timeout  # and it is closed when it is not used


async def test_tokens_with_different_scopes_or_clients_have_their_own() -> None:
    found = per_caller([])
    principals = [Principal("ada"), Principal("ada", scopes=["admin"]), Principal("ada", client_id="app")]
    assert len({id(found.get_server(principal)) for principal in principals}) == 3
    renewed = Principal("ada", scopes=["admin"], claims={"jti": "2"}, expires_at=5.0)
    assert found.get_server(renewed) is found.get_server(principals[1])


async def test_a_caller_without_identity_or_credentials_is_refused() -> None:
    found = per_caller([])
    with pytest.raises(PolicyError):
        found.get_server(None)
    with pytest.raises(PolicyError):
        found.get_server(Principal("mallory"))
    assert found.servers == ()


async def test_the_longest_unused_make_room() -> None:
    found = per_caller([])
    ada, bob = found.get_server(Principal("ada")), found.get_server(Principal("bob"))
    for number in range(2_000):
        found.get_server(Principal(f"{number}"))
        assert found.get_server(Principal("ada")) is ada
    assert ada in found.servers
    assert bob not in found.servers
    assert len(found.servers) < 1_000
