"""Test large results of an authenticated caller, with each back end that stores data outside the process."""

from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import KINDS
from dovetail import LargeResultSettings, Server
from dovetail.auth import Principal
from dovetail.cluster.local.local_backend import LocalBackend
from dovetail.cluster.redis.redis_backend import RedisBackend
from dovetail.errors import NotFound
from dovetail.testing import connect

KEYS = ["a key with enough bytes"]


@pytest.mark.parametrize("kind", KINDS[1:])
async def test_only_the_caller_can_read_its_result_at_another_worker(
    kind: str, request: pytest.FixtureRequest, private_folder: Path
) -> None:
    def create_worker() -> Server:
        backend: Any = (
            LocalBackend(private_folder, secret_keys=KEYS)
            if kind == "local"
            else RedisBackend(request.getfixturevalue("redis_servers")(kind).url, prefix="results", secret_keys=KEYS)
        )
        app = Server("exports", cluster=backend, secret_keys=KEYS, large_results=LargeResultSettings(max_text_chars=10))
        app.tool(lambda: "row " * 100, name="export")
        return app

    ada, bob = Principal("ada", issuer="https://a.example", scopes="read"), Principal("bob")
    first, second = create_worker(), create_worker()
    async with (
        connect(first, principal=ada) as client,
        connect(second, principal=ada) as same_caller,
        connect(second, principal=bob) as other_caller,
    ):
        link: Any = (await client.call_tool("export")).content[1]
        assert (await same_caller.read_resource(link.uri)).contents[0].text == "row " * 100
        with pytest.raises(NotFound):
            await other_caller.read_resource(link.uri)
    await first.stop()
    await second.stop()
