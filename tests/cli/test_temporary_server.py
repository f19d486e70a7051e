"""Test serving a target at a URL while a command needs it."""

import queue
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from dovetail import Client
from dovetail.cli.target_argument import TargetOptions
from dovetail.cli.temporary_server import serve_at_url

pytestmark = pytest.mark.timeout(60)

NOISY = """
import os, sys
from dovetail import Server

app = Server("noisy")


@app.tool
def shout() -> str:
    sys.stderr.write("x" * 300_000 + "\\n")
    return os.environ["WORD"] + os.path.basename(os.getcwd())
"""


async def test_what_it_says_does_not_stop_it(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY, encoding="utf-8")
    (tmp_path / "inner").mkdir()
    line = TargetOptions(args=(str(tmp_path / "noisy.py"),), env=("WORD=given",), cwd=str(tmp_path / "inner"))
    with serve_at_url(line) as url:
        async with Client(url) as client:
            assert await client.call("shout") == "giveninner"
    with serve_at_url(TargetOptions(command=(sys.executable, "-c", "pass"), env=("WORD=given",))) as url:
        assert url.startswith("http://")


def test_a_server_that_never_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hurried(queue.SimpleQueue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            return super().get(block, timeout and timeout / 60)

    monkeypatch.setattr(queue, "SimpleQueue", Hurried)
    slow = tmp_path / "slow.py"
    slow.write_text("import dovetail, time\ntime.sleep(600)\n", encoding="utf-8")
    with pytest.raises(click.UsageError, match="60 s"), serve_at_url(TargetOptions(args=(str(slow),))):
        pass


def test_an_unservable_target_is_reported(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import dovetail\nraise ValueError('its own')\n", encoding="utf-8")
    with (
        pytest.raises(click.UsageError, match="its own"),
        serve_at_url(TargetOptions(args=(str(tmp_path / "broken.py"),))),
    ):
        pass
    far = TargetOptions(args=("http://127.0.0.1:1/mcp",), headers=("a: b",))
    with pytest.raises(click.UsageError, match="dovetail tap"), serve_at_url(far):
        pass
