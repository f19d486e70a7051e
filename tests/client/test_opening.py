"""Opening a conversation with a server that dies meanwhile: what is told, and that nothing is taken for sent."""

import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail import CannotStart, Client, ClientLimits, Disconnected, Interrupted, testing
from testing.calculator import app

VICTIM = Path(__file__).parents[1] / "reliability" / "victim.py"
QUICK = ClientLimits(reconnect_after=0.01)


async def test_a_server_killed_while_asked_is_not_said_to_lack_the_older_question(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", str(VICTIM), str(tmp_path / "marks.txt"), "stateless"]
    faults = testing.Faults()
    kill = faults.kill(to="server", method="server/discover")
    async with testing.serve(command, faults=faults) as target:
        client = Client(target, name="victim", limits=QUICK)
        with pytest.raises(CannotStart) as told:
            await client.connect()
        assert (kill.count, told.value.exit_code) == (1, -9)
        await client.connect()
        assert await client.call("mark", token="x") == "x"
        await client.close()


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("transport", ["http", "tcp"])
async def test_a_call_whose_opening_was_cut_off_was_not_sent(transport: Any, revision: str) -> None:
    faults = testing.Faults()
    method = "server/discover" if revision == "2026-07-28" else "initialize"
    drop = faults.drop(method=method)
    async with testing.serve(app, transport=transport, faults=faults) as target:
        client = Client(target, revision=revision, limits=QUICK)
        assert await client.call("add", a=1, b=2) == 3
        assert drop.count == 1
        await client.close()


async def test_an_opening_that_is_always_cut_off_is_no_interruption() -> None:
    faults = testing.Faults()
    faults.drop(method="server/discover", times=100)
    async with testing.serve(app, transport="tcp", faults=faults) as target:
        client = Client(target, revision="2026-07-28", limits=QUICK)
        with pytest.raises(Disconnected) as told:
            await client.call("add", a=1, b=2)
        assert not isinstance(told.value, Interrupted)
        assert not told.value.sent
        await client.close()
