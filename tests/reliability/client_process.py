"""Run a client in its own process against a server of the test."""

import asyncio
import json
import os
import sys
from typing import Any

from harness import HERE


def command(job: dict[str, Any]) -> list[str]:
    return [sys.executable, str(HERE / "client_program.py"), json.dumps(job)]


def environment() -> dict[str, str]:
    # Coverage would count as memory and time of the client.
    return {name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE", "COV_"))}


async def run_client(target: Any, **job: Any) -> dict[str, Any]:
    """Run a job, and return its outcome. The client may write only warnings to stderr."""
    process = await asyncio.create_subprocess_exec(
        *command({"target": target, "what": "call"} | job),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    try:
        async with asyncio.timeout(60):
            said, wrong = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, wrong.decode()
    assert b"Traceback" not in wrong, wrong.decode()
    return json.loads(said)
