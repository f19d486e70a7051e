"""A headless Chromium, controlled by the DevTools protocol: open a page, read it, press a button."""

import asyncio
import itertools
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from support.outside_programs import get_program

TIMEOUT_S = 30.0
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    "--remote-debugging-port=0",
)

Message = dict[str, Any]


class Browser:
    """A browser window."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._session: str | None = None
        self.dialogs: list[str] = []

    async def listen(self) -> None:
        async for data in self._socket:
            message: Message = json.loads(data)
            if message.get("method") == "Page.javascriptDialogOpening":
                self.dialogs.append(message["params"]["message"])
            if "id" in message:
                self._answers.pop(message["id"]).set_result(message)

    async def _send_command(self, method: str, **params: Any) -> Message:
        id = next(self._ids)
        answer = self._answers[id] = asyncio.get_running_loop().create_future()
        request = {"id": id, "method": method, "params": params}
        await self._socket.send(json.dumps(request | ({"sessionId": self._session} if self._session else {})))
        async with asyncio.timeout(TIMEOUT_S):
            said = await answer
        assert "error" not in said, said
        return said["result"]

    async def attach(self) -> None:
        target = await self._send_command("Target.createTarget", url="about:blank")
        attached = await self._send_command("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        await self._send_command("Page.enable")

    async def open(self, url: str) -> None:
        await self._send_command("Page.navigate", url=url)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page, or None while the page is unloading."""
        said = await self._send_command("Runtime.evaluate", expression=expression, returnByValue=True)
        return said["result"].get("value")

    async def wait_for_text(self, text: str) -> str:
        """Wait until the page shows a text, and return the whole page text."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                shown = await self.evaluate("document.readyState == 'complete' && document.body.innerText")
                if isinstance(shown, str) and text in shown:
                    return shown
                await asyncio.sleep(0.02)

    async def press(self, selector: str) -> None:
        """Press a button with mouse events."""
        found = f"document.querySelector({selector!r})"
        await self.evaluate(f"{found}.scrollIntoView({{behavior: 'instant', block: 'center'}})")
        box = await self.evaluate(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({found}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            await self._send_command(
                "Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1
            )

    async def type(self, selector: str, text: str) -> None:
        """Type a text into a field."""
        await self.press(selector)
        await self._send_command("Input.insertText", text=text)


@asynccontextmanager
async def open_browser(folder: Path) -> AsyncIterator[Browser]:
    """Open a browser with a new profile."""
    async with (
        _run_chromium(folder) as process,
        _connect(*await _find_devtools_url(folder, process)) as browser,
    ):
        await browser.attach()
        yield browser


@asynccontextmanager
async def _run_chromium(folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the program, and kill it with all its processes."""
    command = [get_program("chromium"), *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
    silence = asyncio.subprocess.DEVNULL
    # The files that a killed browser does not remove are in these folders. Its socket needs a short path.
    with tempfile.TemporaryDirectory() as short_folder:
        environment = os.environ | {"HOME": short_folder, "TMPDIR": short_folder}
        process = await asyncio.create_subprocess_exec(
            *command, stdout=silence, stderr=silence, env=environment, start_new_session=True
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


@asynccontextmanager
async def _connect(port: str, path: str) -> AsyncIterator[Browser]:
    async with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None) as socket:
        browser = Browser(socket)
        listening = asyncio.create_task(browser.listen())
        try:
            yield browser
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


async def _find_devtools_url(folder: Path, process: asyncio.subprocess.Process) -> tuple[str, str]:
    """Return the addresses that the browser writes to its profile when it listens."""
    place = folder / "DevToolsActivePort"
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            assert process.returncode is None, "chromium has ended"
            with suppress(FileNotFoundError, ValueError):
                port, path = place.read_text().split("\n")
                return port, path
            await asyncio.sleep(0.02)
