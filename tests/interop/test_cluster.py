"""Test a server with several workers behind load balancers that route at random, with clients of three libraries."""

from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="mcp, the official SDK, is not installed")
pytest.importorskip("fastmcp", reason="fastmcp is not installed")

from cluster.history import History, find_violations
from cluster.machines import LOOPBACK_MACHINES, can_create_machines, run_network
from cluster.server_pool import Machine, ServerPool, find_free_ports, run_servers
from interop.cluster_clients import run_clients
from support.outside_programs import needs
from support.redis_servers import RedisServer
from support.routers import run_nginx, run_router

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(300),
    # The peer warns of whatever the newest revision has deprecated.
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

WORKERS = 4


async def check_clients(pool: ServerPool, url: str, call_count: int) -> None:
    """Check that every answer, event and notice of all clients is explained by one sequential server."""
    history = History()
    counts = await run_clients(url, history, call_count)
    assert sum(counts.values()) >= call_count
    assert find_violations(history, pool.read_effects()) == []
    assert history.count("answered") == len(history.operations)
    kinds = {operation.kind for operation in history.operations}
    assert kinds >= {"echo", "climb", "ask", "sample", "touch", "change_tools", "subscribe"}
    assert len(pool.read_processes()) == len(pool.workers)
    assert pool.read_errors() == []


async def test_three_thousand_calls_with_four_workers(tmp_path: Path) -> None:
    with run_servers(tmp_path, WORKERS, cluster="local") as pool:
        async with run_router(pool.addresses) as router:
            await check_clients(pool, router.url, 3000)


async def check_two_machines(folder: Path, host: str, machines: list[Machine], call_count: int) -> None:
    """Run workers on two machines, with Redis and nginx between them."""
    (port,) = find_free_ports(1)
    options = {"allow_anonymous": True, "allowed_hosts": [host]}
    url = f"redis://{host}:{port}"
    with (
        RedisServer(folder, "valkey", "--protected-mode", "no", "--bind", *{"127.0.0.1", host}, port=port),
        run_servers(folder, WORKERS, cluster=url, machines=machines, run=options) as pool,
        run_nginx(folder / "nginx", pool.addresses, host) as nginx_url,
    ):
        await check_clients(pool, nginx_url, call_count)


@needs("nginx")
async def test_two_addresses_with_redis_and_nginx(tmp_path: Path) -> None:
    await check_two_machines(tmp_path, "127.0.0.1", LOOPBACK_MACHINES, 600)


@pytest.mark.soak
@needs("nginx", "ip", "unshare")
@pytest.mark.skipif(not can_create_machines(), reason="platform: network namespaces need privileges")
async def test_three_thousand_calls_on_two_machines(tmp_path: Path) -> None:
    with run_network() as network:
        await check_two_machines(tmp_path, network.host, network.machines, 3000)
