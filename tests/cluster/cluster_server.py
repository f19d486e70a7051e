"""A server that is one worker of a cluster. Its tools return and log the token of each call, so that a test can explain
every message.

`cluster_server.py <options as JSON>`. Each run of a tool is one line in the file `effects`: the token, the process and
the name of the tool.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from dovetail import Context, Server, ServerLimits
from dovetail.protocol.interfaces.shared_state import SharedState

OPTIONS: dict[str, Any] = json.loads(sys.argv[1])

EFFECTS = os.open(OPTIONS["effects"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


if "clock_offset" in OPTIONS:  # The clock of this machine is wrong.
    read_clock = time.time
    time.time = lambda: read_clock() + OPTIONS["clock_offset"]


def create_backend(prefix: str = "test") -> SharedState:
    """Return the back end that the options name."""
    url, keys = OPTIONS["cluster"], OPTIONS["secret_keys"]
    if url.startswith("local:"):
        from dovetail.cluster.local.local_backend import LocalBackend

        return LocalBackend(Path(url.removeprefix("local:")), secret_keys=keys)
    from dovetail.cluster.redis.redis_backend import RedisBackend

    return RedisBackend(url, prefix=prefix, secret_keys=keys)


async def read_bearer(headers: Mapping[bytes, bytes]) -> str | None:
    """Accept the name that each caller sends."""
    return headers.get(b"authorization", b"").decode("latin-1").removeprefix("Bearer ") or None


def record_effect(token: str, tool: str) -> None:
    os.write(EFFECTS, f"{token} {os.getpid()} {tool}\n".encode())


features: Any = None
if OPTIONS.get("features"):
    from feature_servers import FeatureServers

    features = FeatureServers()


@contextlib.asynccontextmanager
async def run_features() -> AsyncGenerator[None]:
    """Run the servers that the option `features` names."""
    async with features.run(OPTIONS, create_backend, record_effect):
        yield


app = Server(
    "cluster",
    version="1.0",
    secret_keys=OPTIONS["secret_keys"],
    **({"cluster": create_backend()} if OPTIONS.get("cluster") else {}),
    auth=read_bearer if OPTIONS.get("principals") else None,
    limits=ServerLimits(**OPTIONS.get("limits", {})),
    lifespan=None if features is None else run_features,
)


@app.tool
async def echo(token: str) -> str:
    """Return the token and the process."""
    record_effect(token, "echo")
    return f"{token} {os.getpid()}"


@app.tool
async def wait(token: str, seconds: float) -> str:
    """Return the token after a time."""
    record_effect(token, "wait")
    await asyncio.sleep(seconds)
    return f"{token} {os.getpid()}"


@app.tool
async def burn(milliseconds: float) -> int:
    """Use the CPU for a time."""
    end = time.thread_time() + milliseconds / 1000
    while time.thread_time() < end:
        pass
    return os.getpid()


@app.tool
async def climb(token: str, steps: int, ctx: Context, pause: float = 0.0, close_at: int = 0) -> str:
    """Report each step. Close the event stream before the step `close_at`."""
    record_effect(token, "climb")
    for step in range(1, steps + 1):
        if step == close_at:
            await ctx.close_sse_stream(retry_ms=10)
        await ctx.progress(step, total=steps, message=f"{token} {step}")
        if pause:
            await asyncio.sleep(pause)
    return f"{token} {os.getpid()}"


@app.tool
async def ask(token: str, ctx: Context) -> str:
    """Ask the user, and return the answer."""
    record_effect(token, "ask")
    answer = await ctx.elicit(token, str)
    return f"{token} {answer} {os.getpid()}"


@app.tool
async def sample(token: str, ctx: Context) -> str:
    """Ask the model, and return the answer."""
    record_effect(token, "sample")
    answer = await ctx.sample(token, max_tokens=10)
    return f"{token} {getattr(answer.content, 'text', answer.content)} {os.getpid()}"


@app.tool
async def narrate(token: str, ctx: Context) -> str:
    """Log the token at three levels."""
    record_effect(token, "narrate")
    await ctx.debug(f"{token} debug")
    await ctx.info(f"{token} info")
    await ctx.warning(f"{token} warning")
    return f"{token} {os.getpid()}"


@app.tool
async def touch(token: str, uri: str) -> str:
    """Report that a resource has changed."""
    record_effect(token, "touch")
    app.notify_resource_updated(uri)
    return f"{token} {os.getpid()}"


@app.tool
async def change_tools(token: str) -> str:
    """Report that the list of tools has changed."""
    record_effect(token, "change_tools")
    app.notify_tools_changed()
    return f"{token} {os.getpid()}"


@app.tool
async def get_session_id(token: str, ctx: Context) -> str:
    """Return the ID for `complete_elicitation`."""
    record_effect(token, "get_session_id")
    return ctx.session_id


@app.tool
async def complete_elicitation(token: str, session_id: str) -> str:
    """Notify one session. The token is the ID of the elicitation."""
    record_effect(token, "complete_elicitation")
    app.notify_elicitation_complete(token, session_id)
    return f"{token} {os.getpid()}"


@app.tool
async def hang(token: str, ctx: Context) -> str:
    """Wait until the call is cancelled."""
    record_effect(token, "hang")
    await ctx.progress(1, message=f"{token} 1")
    try:
        await asyncio.Event().wait()
    finally:
        record_effect(token, "cancelled")
    return token


@app.resource("item://{name}")
def item(name: str) -> str:
    """An item that clients subscribe to."""
    return name


if __name__ == "__main__":
    app.run(
        "http",
        port=OPTIONS["port"],
        host=OPTIONS.get("host", "127.0.0.1"),
        fallback=features,
        **OPTIONS.get("run", {}),
    )
