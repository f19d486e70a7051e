"""The request with curl on the page on transports, and the systemd unit on the page on deploying."""

import asyncio
import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dovetail import Server, ServerLimits, testing

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def _find_block(page: str, info: str) -> str:
    matches = FENCE.finditer((GUIDE / page).read_text(encoding="utf-8"))
    return next(match["text"] for match in matches if match["info"] == info)


async def test_the_request_with_curl_is_complete(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command, _, expected = _find_block("transports.md", "console").removeprefix("$ ").rstrip().rpartition("\n")
    (tmp_path / "request.json").write_text(_find_block("transports.md", "json"))
    app = Server("doors")

    @app.tool
    def knock() -> str:
        return "who is there?"

    async with testing.serve(app, transport="http") as url:
        command = command.replace("http://127.0.0.1:8000/mcp", str(url))
        process = await asyncio.create_subprocess_exec("sh", "-eu", "-c", command, cwd=tmp_path, stdout=subprocess.PIPE)
        printed, _ = await process.communicate()
    assert re.fullmatch(".*".join(map(re.escape, expected.split("…"))), printed.decode().strip())


def test_systemd_waits_for_the_server() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.read_string(_find_block("deploying.md", "ini"))
    assert unit.sections() == ["Unit", "Service", "Install"]
    assert float(unit["Service"]["TimeoutStopSec"]) > ServerLimits().shutdown_timeout
    assert Path(unit["Service"]["ExecStart"].split()[0]).is_absolute()
