"""Servers that tests run in their own processes. This module imports little, so that they start quickly."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time

from dovetail import Context, Server


def plain() -> Server:
    """Create a server with an echo tool."""
    app = Server("plain", version="1.0")

    @app.tool
    async def echo(text: str) -> str:
        return text

    @app.tool
    async def pid() -> int:
        return os.getpid()

    return app


def ends_itself() -> Server:
    """Create a server whose tool sends SIGTERM to its process."""
    app = Server("ends-itself")

    @app.tool
    async def end() -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return "sent"

    return app


def noisy() -> Server:
    """Create a server whose tools write to standard output in every possible way, or read standard input."""
    app = Server("noisy")

    @app.tool
    async def printing(text: str) -> str:
        print(text, flush=True)  # noqa: T201
        return "ok"

    @app.tool
    def printing_in_a_thread(text: str) -> str:
        print(text, flush=True)  # noqa: T201
        sys.stdout.write(text + "\n")
        return "ok"

    @app.tool
    async def descriptor(text: str) -> str:
        os.write(1, text.encode() + b"\n")
        return "ok"

    @app.tool
    async def original(text: str) -> str:
        assert sys.__stdout__ is not None
        sys.__stdout__.write(text + "\n")
        sys.__stdout__.flush()
        return "ok"

    @app.tool
    async def child(text: str) -> str:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", f"print({text!r})")
        return str(await process.wait())

    @app.tool
    def child_of_a_thread(text: str) -> str:
        return str(subprocess.run([sys.executable, "-c", f"print({text!r})"], check=False).returncode)

    @app.tool
    def reading() -> str:
        try:
            line = input()
        except EOFError:
            line = "end of file"
        return json.dumps([line, sys.stdin.read(), os.read(0, 10).decode()])

    @app.tool
    def child_reading() -> str:
        code = (
            "import sys; print(repr(sys.stdin.read()), file=sys.stderr); sys.exit(7 if sys.stdin.read() == '' else 1)"
        )
        return str(subprocess.run([sys.executable, "-c", code], check=False).returncode)

    return app


def busy() -> Server:
    """Create a server whose tools block it in different ways. Each one reports its start on standard error."""
    app = Server("busy")

    def begun() -> None:
        os.write(2, b"begun\n")

    @app.tool
    async def idle() -> str:
        begun()
        return "ok"

    @app.tool
    async def waiting() -> str:
        begun()
        await asyncio.sleep(60)
        return "never"

    @app.tool
    async def stubborn() -> str:
        begun()
        for _ in range(600):
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue
        return "never"

    @app.tool
    def blocking() -> str:
        begun()
        threading.Event().wait(60)
        return "never"

    @app.tool
    async def loop_blocking() -> str:
        begun()
        time.sleep(60)  # noqa: ASYNC251
        return "never"

    @app.tool
    async def soon(seconds: float, ctx: Context) -> str:
        begun()
        await ctx.progress(1)
        await asyncio.sleep(seconds)
        return "finished"

    return app
