"""Run a real server on a free port during a test."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn


@asynccontextmanager
async def serve_app(create_app: Callable[[str], Any]) -> AsyncIterator[str]:
    """Serve the app that the function creates for a URL, and yield the URL."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(create_app(url), log_level="warning", lifespan="off", ws="none"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(10):
            while not server.started:  # noqa: ASYNC110 - uvicorn sets no event
                await asyncio.sleep(0.005)
        yield url
    finally:
        server.should_exit = True
        await task
        listener.close()
