"""The requests with curl on the page on transports, and the systemd unit on the page on deploying."""

import asyncio
import configparser
import re
import subprocess
from pathlib import Path

from dovetail import Server, ServerLimits, testing
from support.outside_programs import needs

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def _find_block(page: str, info: str) -> str:
    matches = FENCE.finditer((GUIDE / page).read_text(encoding="utf-8"))
    return next(match["text"] for match in matches if match["info"] == info)


@needs("curl")
async def test_the_request_with_curl_is_complete(tmp_path: Path) -> None:
    command, _, expected = _find_block("transports.md", "console").removeprefix("$ ").rstrip().rpartition("\n")
    (tmp_path / "request.json").write_text(_find_block("transports.md", "json"))
    async with testing.serve(_create_server(), transport="http") as url:
        printed = await _run_curl(command, str(url), tmp_path)
    assert re.fullmatch(".*".join(map(re.escape, expected.split("…"))), printed)


@needs("curl")
async def test_the_handshake_with_curl_is_complete(tmp_path: Path) -> None:
    initialize = _find_block("transports.md", "text handshake").removeprefix("$ ").partition("\nHTTP/1.1")[0]
    headers = _find_block("transports.md", "text session.txt")
    async with testing.serve(_create_server(), transport="http") as url:
        response = await _run_curl(initialize, str(url), tmp_path)
        assert response.startswith("HTTP/1.1 200")
        (session_header,) = re.findall(r"^mcp-session-id: \S+", response, re.MULTILINE)
        (tmp_path / "session.txt").write_text(
            re.sub("^Mcp-Session-Id: .*", session_header, headers, flags=re.MULTILINE)
        )
        for exchange in _find_block("transports.md", "text session").removeprefix("$ ").split("\n$ "):
            command, _, expected = exchange.rstrip().rpartition("\n")
            assert await _run_curl(command, str(url), tmp_path) == expected


def _create_server() -> Server:
    app = Server("doors")

    @app.tool
    def knock() -> str:
        return "who is there?"

    return app


async def _run_curl(command: str, url: str, folder: Path) -> str:
    command = command.replace("http://127.0.0.1:8000/mcp", url)
    process = await asyncio.create_subprocess_exec("sh", "-eu", "-c", command, cwd=folder, stdout=subprocess.PIPE)
    printed, _ = await process.communicate()
    return printed.decode().strip()


def test_systemd_waits_for_the_server() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.read_string(_find_block("deploying.md", "ini"))
    assert unit.sections() == ["Unit", "Service", "Install"]
    assert float(unit["Service"]["TimeoutStopSec"]) > ServerLimits().shutdown_timeout
    assert Path(unit["Service"]["ExecStart"].split()[0]).is_absolute()
